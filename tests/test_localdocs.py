"""The service over local documents: Vane's wire protocol, what it refuses, and its life from start to stop."""

from __future__ import annotations

import http.client
import io
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from vane_magic import VaneClient
from vane_magic.localdocs import Service, serve_forever
from vane_magic.localdocs import service as module

RECORDINGS = Path(__file__).parent / "recordings"
QUESTION = "How does TCP open a connection?"
PAGES = {
    "tcp.md": "# TCP\n\nTCP is reliable.\n\n## Opening\n\nTCP opens a connection with a three-way handshake.\n",
    "http.txt": "HTTP asks for a page over a connection, and TCP carries it.\n",
}


class Reply(NamedTuple):
    """A whole response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.split(b"\n") if line]


def write_pages(place: Path) -> Path:
    place.mkdir()
    for name, text in PAGES.items():
        (place / name).write_text(text)
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two documents, of this test's own."""
    return write_pages(tmp_path / "documents")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running service over such a folder, shared by the tests that only ask."""
    place = tmp_path_factory.mktemp("localdocs")
    with Service([write_pages(place / "documents")], cache_dir=place / "cache") as running:
        yield running


def call(service: Service, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    """Make one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(service.url).port or 0, timeout=20)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def body_for(service: Service, **changes: Any) -> bytes:
    """A search's body with the ids that the service tells."""
    (provider,) = call(service, "GET", "/api/providers").json["providers"]
    models = {
        name: {"providerId": provider["id"], "key": provider[f"{name}s"][0]["key"]}
        for name in ("chatModel", "embeddingModel")
    }
    return json.dumps({"query": QUESTION, "sources": ["web"], **models, **changes}).encode()


def ask(service: Service, **changes: Any) -> Reply:
    return call(service, "POST", "/api/search", body_for(service, **changes))


# Conformance: the recordings of Vane ---


def recorded(case: str) -> tuple[dict[str, Any], bytes]:
    meta: dict[str, Any] = json.loads((RECORDINGS / case / "response.meta.json").read_text())
    body = RECORDINGS / case / "response.body"
    return meta, body.read_bytes() if body.exists() else b""


def sent(case: str, service: Service) -> bytes:
    """What was sent in a recording, with this service's ids in place of that Vane's."""
    text = (RECORDINGS / case / "request.body.txt", RECORDINGS / case / "request.json")[
        (RECORDINGS / case / "request.json").exists()
    ].read_bytes()
    ours = json.loads(body_for(service))
    for theirs, own in {
        "7835902e-9606-4998-bd55-019ae886d42a": ours["chatModel"]["providerId"],
        "nomic-embed-text:latest": ours["embeddingModel"]["key"],
        "scripted:latest": ours["chatModel"]["key"],
    }.items():
        text = text.replace(theirs.encode(), own.encode())
    return text


def unlike(ours: Any, theirs: list[Any], at: str = "") -> list[str]:
    """Where a JSON value has another shape than all of some examples: other keys, or another JSON type."""
    alike = [example for example in theirs if type(example) is type(ours)]
    if not alike:
        return [f"{at}: {ours!r} instead of {theirs!r}"]
    if isinstance(ours, dict):
        same_keys = [example for example in alike if example.keys() == ours.keys()]
        if not same_keys:
            return [f"{at}: {sorted(ours)} instead of {[sorted(example) for example in alike]}"]
        return [fault for k in ours for fault in unlike(ours[k], [example[k] for example in same_keys], f"{at}.{k}")]
    if isinstance(ours, list):
        items = [item for example in alike for item in example]
        return [fault for n, item in enumerate(ours) for fault in unlike(item, items, f"{at}[{n}]")]
    return []


def test_the_comparison_of_shapes_sees_a_difference() -> None:
    """A key too many, one missing, another type, deep inside."""
    example = {"a": [{"b": 1}, {"c": None}]}
    assert unlike({"a": [{"c": None}, {"b": 2}, {"b": 3}]}, [example]) == []
    assert unlike({"a": []}, [example]) == []
    for other in (
        {},
        {"a": None},
        {"a": [{"b": "1"}]},
        {"a": [{"b": 1, "c": None}]},
        {"a": [], "d": 1},
        [],
        {"a": [1]},
    ):
        assert len(unlike(other, [example])) == 1


@pytest.mark.parametrize(("case", "path"), [("config-ready", "/api/config"), ("providers-ollama-up", "/api/providers")])
def test_the_look_ups_have_vanes_shape(service: Service, case: str, path: str) -> None:
    """Same keys, same JSON types, same status and content type."""
    meta, body = recorded(case)
    reply = call(service, "GET", path)
    assert reply.status == meta["status"]
    assert reply.headers["Content-Type"] == dict(meta["headers"])["content-type"]
    assert unlike(reply.json, [json.loads(body)]) == []


def test_the_look_ups_tell_of_this_service_only(service: Service) -> None:
    """One provider on loopback, its own search engine, set-up done; the ids are the same at each start."""
    values = call(service, "GET", "/api/config").json["values"]
    (provider,) = values["modelProviders"]
    assert values["setupComplete"] is True
    assert values["search"] == {"searxngURL": service.url}
    assert (provider["type"], provider["config"]) == ("localdocs", {"baseURL": service.url})
    assert provider["chatModels"] == [{"name": name, "key": name} for name in ["extractive (no language model)"]]
    assert len(provider["embeddingModels"]) == 1
    (listed,) = call(service, "GET", "/api/providers").json["providers"]
    assert listed == {key: provider[key] for key in ("id", "name", "chatModels", "embeddingModels")}
    assert provider["id"] == "6a1f3c0e-53a5-4a43-9c0b-7f0d6f0c5f11"


@pytest.mark.parametrize("mode", ["speed", "balanced", "quality"])
def test_a_stream_has_vanes_events(service: Service, mode: str) -> None:
    """init, sources, several responses, done: one JSON object a line, each in a chunk of its own."""
    meta, body = recorded(f"stream-{mode}")
    theirs = [json.loads(line) for line in body.splitlines()]
    reply = call(service, "POST", "/api/search", sent(f"stream-{mode}", service))
    assert reply.status == meta["status"]
    for name in ("content-type", "transfer-encoding"):
        assert reply.headers[name] == {key.lower(): value for key, value in meta["headers"]}[name]
    types = [event["type"] for event in reply.events]
    assert types[:2] == ["init", "sources"]
    assert set(types[2:-1]) == {"response"}
    assert types[-1] == "done"
    assert types.count("response") > 3
    for event in reply.events:
        assert unlike(event, [their for their in theirs if their["type"] == event["type"]]) == []
    assert reply.events[0] == theirs[0]
    assert reply.events[-1] == theirs[-1]


@pytest.mark.parametrize("mode", ["speed", "balanced", "quality"])
def test_a_whole_answer_has_vanes_shape_and_says_what_the_stream_says(service: Service, mode: str) -> None:
    """{message, sources}, as JSON."""
    meta, body = recorded(f"search-{mode}")
    reply = call(service, "POST", "/api/search", sent(f"search-{mode}", service))
    assert (reply.status, reply.headers["Content-Type"]) == (meta["status"], "application/json")
    assert unlike(reply.json, [json.loads(body)]) == []
    stream = ask(service, stream=True, optimizationMode=mode).events
    assert "".join(event["data"] for event in stream if event["type"] == "response") == reply.json["message"]
    assert stream[1]["data"] == reply.json["sources"] != []


REFUSED = [
    case.parent.name
    for case in sorted(RECORDINGS.glob("*/response.meta.json"))
    if case.parent.name.startswith(("error-", "search-history-string"))
    and json.loads(case.read_text())["status"] in {400, 405, 500}
]
TAKEN = """nulls unknown-fields content-type-text bom-body invalid-utf8-body http10 mode-omitted mode-invalid
    query-whitespace query-unicode query-lone-surrogate query-nul history history-user-role
    system-instructions-object"""
TAKEN_AS_STREAM = """string-true mode-number sources-string sources-all sources-discussions history history-objects
    history-content-missing query-whitespace"""


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_gets_vanes_status_and_words(service: Service, case: str) -> None:
    """400, 405 and 500 are the recorded ones, byte for byte."""
    meta, body = recorded(case)
    reply = call(service, meta["request"]["method"], meta["request"]["path"], sent(case, service))
    assert (reply.status, reply.body) == (meta["status"], body)


@pytest.mark.parametrize("case", [f"search-{case}" for case in TAKEN.split()])
def test_an_odd_request_that_vane_takes_is_taken(service: Service, case: str) -> None:
    """200 and a whole answer."""
    _, body = recorded(case)
    reply = call(service, "POST", "/api/search", sent(case, service))
    assert reply.status == 200
    assert unlike(reply.json, [json.loads(body), json.loads(recorded("search-speed")[1])]) == []


@pytest.mark.parametrize("case", [f"stream-{case}" for case in TAKEN_AS_STREAM.split()])
def test_an_odd_stream_that_vane_takes_is_taken(service: Service, case: str) -> None:
    """200, and the last event is done."""
    reply = call(service, "POST", "/api/search", sent(case, service))
    assert (reply.status, reply.events[-1]) == (200, {"type": "done"})


@pytest.mark.parametrize(
    "changes",
    [{"query": "tcp " * 500_000}, {"query": "x" * 2_000_000}, {"history": [["human", "What is TCP? " * 80]] * 100}],
)
def test_long_questions_and_histories_are_taken(service: Service, changes: dict[str, Any]) -> None:
    """2 MB of question, 100 kB of history."""
    reply = ask(service, stream=True, **changes)
    assert (reply.status, reply.events[-1]) == (200, {"type": "done"})


@pytest.mark.parametrize("case", ["stream-sources-empty-list", "stream-sources-unknown"])
def test_no_scope_searches_nothing(service: Service, case: str) -> None:
    """As recorded: sources [], a sentence, done."""
    reply = call(service, "POST", "/api/search", sent(case, service))
    assert reply.events[1] == {"type": "sources", "data": []}
    assert "Nothing" in reply.events[2]["data"]


@pytest.mark.parametrize(
    "changes",
    [
        {"sources": 5},
        {"query": 5},
        {"query": ["a"]},
        {"history": 7},
        {"history": [[]]},
        {"chatModel": "x"},
        {"chatModel": []},
    ],
)
def test_what_makes_vane_hang_is_a_500_here(service: Service, changes: dict[str, Any]) -> None:
    """It copies no faults of the server."""
    assert (ask(service, **changes).status, ask(service).status) == (500, 200)


def test_json_that_is_deep_or_huge_is_a_500() -> None:
    """Neither nesting nor a number of many digits brings the parser down."""
    for body in (b"[" * 200_000, b'{"query": ' + b"9" * 100_000 + b"}", b"\xff\xfe"):
        with pytest.raises((ValueError, RecursionError, KeyError)):
            module._request(body)


# What it refuses ---


@pytest.mark.parametrize(
    "path", ["/", "/api", "/api/search/", "/api/nothing-here", "/etc/passwd", "/doc/", "/api/config/x"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_paths_are_not_found(service: Service, method: str, path: str) -> None:
    assert call(service, method, path, b"{}" if method == "POST" else None).status == 404


def test_other_methods_are_not_allowed(service: Service) -> None:
    """Each path has one; HEAD gets no body."""
    for path in ("/api/config", "/api/providers"):
        assert {call(service, method, path).status for method in ("POST", "PUT", "DELETE", "HEAD", "PATCH")} == {405}
    assert {call(service, method, "/api/search").status for method in ("GET", "PUT", "DELETE", "HEAD")} == {405}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.2", "localhost.", "", "127.0.0.1:1:1"],
)
def test_a_web_page_cannot_reach_it_by_rebinding_a_name(service: Service, host: str) -> None:
    """A browser sends the page's own host, which is not a loopback name."""
    for method, path in (("GET", "/api/config"), ("GET", "/doc/" + "0" * 32), ("POST", "/api/search")):
        assert call(service, method, path, body_for(service) if method == "POST" else None, Host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:3000", "LOCALHOST", "[::1]:80"])
def test_every_loopback_name_is_answered(service: Service, host: str) -> None:
    assert call(service, "GET", "/api/config", Host=host).status == 200


def talk(service: Service, *parts: bytes) -> bytes:
    """Send bytes as they are; what comes back until the service closes."""
    with socket.create_connection(("127.0.0.1", urlsplit(service.url).port or 0), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_http_1_0_is_refused() -> None:
    """It knows no chunks."""
    with Service([Path(__file__).parent / "contract"]) as service:
        assert b" 403 " in talk(service, b"GET /api/config HTTP/1.0\r\nHost: localhost\r\n\r\n")


@pytest.mark.parametrize(
    "length", [b"9999999999", b"-1", b"+5", b"1_0", b"0x10", b"10000000", b"", b"12abc", b"9" * 5000]
)
def test_a_body_is_bounded(service: Service, length: bytes) -> None:
    """A length over the cap, or none that is a number, is refused without reading on."""
    head = b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n"
    assert b" 413 " in talk(service, head).split(b"\r\n")[0]


def test_it_answers_on_loopback_only(service: Service) -> None:
    """It listens on 127.0.0.1, not on every address."""
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]+", service.url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", urlsplit(service.url).port or 0), timeout=5)


# Documents by their address ---


def test_a_citation_leads_to_its_document(service: Service) -> None:
    """The whole document as it was written, its path first, the cited passage marked."""
    sources = ask(service).json["sources"]
    opening = next(source for source in sources if "handshake" in source["content"])
    assert opening["metadata"]["title"] == "TCP - Opening"
    url = urlsplit(opening["metadata"]["url"])
    assert f"{url.scheme}://{url.netloc}" == service.url
    reply = call(service, "GET", f"{url.path}?{url.query}")
    assert reply.status == 200
    text = reply.body.decode()
    assert text.startswith(str(service.folders[0] / "tcp.md"))
    assert "TCP is reliable." in text
    passage = "## Opening\n\nTCP opens a connection with a three-way handshake."
    assert f">>>>\n{passage}\n<<<<" in text
    plain = call(service, "GET", url.path).body.decode()
    assert ">>>>" not in plain
    assert passage in plain


def test_a_document_is_inert(tmp_path: Path) -> None:
    """A browser shows it as text: no type to guess, no script, image or style to load."""
    tmp_path = tmp_path / "pages"
    tmp_path.mkdir()
    (tmp_path / "evil.md").write_text("# Evil\n\n<script>alert('kettle')</script> <img src=http://evil.example/x>\n")
    with Service([tmp_path]) as service:
        (source,) = ask(service, query="alert kettle").json["sources"]
        reply = call(service, "GET", source["metadata"]["url"].removeprefix(service.url))
    assert b"<script>" in reply.body
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Content-Security-Policy"] == "default-src 'none'"
    assert "Access-Control-Allow-Origin" not in reply.headers


def test_nothing_but_indexed_documents_is_served(service: Service) -> None:
    """Only ids lead anywhere, never paths."""
    folder = service.folders[0]
    (folder / "secret.key").write_text("secret")
    names = ["0" * 32, "../secret.key", "..%2fsecret.key", str(folder / "tcp.md"), "", "%00", "0" * 31, "A" * 32]
    assert {call(service, "GET", f"/doc/{name}").status for name in names} == {404}
    url = ask(service).json["sources"][0]["metadata"]["url"].removeprefix(service.url)
    assert {call(service, "GET", url + more).status for more in ("x", "&a=b", "0" * 8, "/../..")} == {404}


def test_a_document_keeps_its_address_when_others_come(folder: Path, tmp_path: Path) -> None:
    """An address in an old notebook never leads to another document."""
    paths: list[str] = []
    for _ in range(2):
        with Service([folder], cache_dir=tmp_path / "cache") as service:
            paths.append(urlsplit(ask(service, query="reliable").json["sources"][0]["metadata"]["url"]).path)
        (folder / "aaa.md").write_text("# Another\n\nIt stands before the others.\n")
    assert paths[0] == paths[1]


# Life ---


def test_many_are_answered_at_the_same_time(service: Service) -> None:
    """None mixed up, none lost."""
    questions = ["handshake", "reliable", "page", "nothing of the kind"] * 8
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda question: ask(service, query=question, stream=True), questions))
    alone = {question: ask(service, query=question, stream=True).body for question in set(questions)}
    assert [reply.body for reply in replies] == [alone[question] for question in questions]


def test_a_stop_leaves_no_thread_socket_or_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while clients hang: one that sends nothing, one in its head, one in its body, one that does not read."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    threads, descriptors = set(threading.enumerate()), open_files()
    service = Service([folder], cache_dir=tmp_path / "cache")
    service.start()
    port = urlsplit(service.url).port or 0
    clients = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(4)]
    clients[1].sendall(b"POST /api/search HTTP/1.1\r\nHost: loc")
    clients[2].sendall(b"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    clients[3].sendall(b"GET /api/config HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(service).status == 200
    start = time.monotonic()
    service.stop()
    assert time.monotonic() - start < module._Handler.timeout
    assert [client.recv(1) for client in clients[:3]] == [b"", b"", b""]
    for client in clients:
        client.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    assert set(threading.enumerate()) <= threads
    assert open_files() <= descriptors
    assert list((tmp_path / "temporary").iterdir()) == []
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".sqlite"]
    service.stop()


def open_files() -> set[str]:
    """The files and sockets that this process holds, where the system tells."""
    place = Path("/proc/self/fd")
    return {f"{fd.name} {fd.readlink()}" for fd in place.iterdir() if fd.is_symlink()} if place.exists() else set()


def test_it_starts_again_after_a_stop(folder: Path, tmp_path: Path) -> None:
    """A second start of a running one is a restart, under the same address."""
    running = [thread.name for thread in threading.enumerate()].count("localdocs")
    service = Service([folder], cache_dir=tmp_path / "cache")
    for _ in range(2):
        service.start()
        first = service.url
        service.start()
        assert [thread.name for thread in threading.enumerate()].count("localdocs") == running + 1
        assert (ask(service).status, service.url) == (200, first)
        service.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", urlsplit(first).port or 0), timeout=5)


def test_two_runs_give_the_same_addresses_and_content_hash(folder: Path, tmp_path: Path) -> None:
    """Whatever order the folders are named in; a link of the first run leads to its document in the second."""
    (tmp_path / "more").mkdir()
    hashes: list[str] = []
    links: list[str] = []
    for folders in ([folder, tmp_path / "more"], [tmp_path / "more", folder / ".." / folder.name]):
        with Service(folders, cache_dir=tmp_path / "cache") as service:
            assert 20_000 <= (urlsplit(service.url).port or 0) < 30_000
            client = VaneClient(**service.settings)
            result = client.research(QUESTION, mode="speed").raise_for_error()
            hashes.append(result.data.content_hash)
            links.append(result.sources[0].url)
            reply = call(service, "GET", links[0].removeprefix(service.url))
            assert (reply.status, b">>>>" in reply.body) == (200, True)
    assert len(set(hashes)) == len(set(links)) == 1


def test_other_folders_choose_another_port(tmp_path: Path) -> None:
    """Ten sets of folders seldom meet on one of ten thousand ports."""
    urls: set[str] = set()
    for number in range(10):
        (tmp_path / f"folder{number}").mkdir()
        with Service([tmp_path / f"folder{number}"], cache_dir=tmp_path) as service:
            urls.add(service.url)
    assert len(urls) >= 8


def test_when_the_usual_port_is_taken_a_free_one_is_used(folder: Path, tmp_path: Path) -> None:
    """Both answer; the usual one is used again once it is free."""
    with Service([folder], cache_dir=tmp_path / "a") as first:
        with Service([folder], cache_dir=tmp_path / "a") as second:
            assert first.url != second.url
            assert ask(first).json["message"] == ask(second).json["message"]
        usual = first.url
    with Service([folder], cache_dir=tmp_path / "a") as third:
        assert third.url == usual


def test_each_has_a_lock_place_of_its_own(folder: Path, tmp_path: Path) -> None:
    """Absolute, in a private directory that takes files; two services do not wait for each other."""
    with Service([folder], cache_dir=tmp_path / "a") as one, Service([folder], cache_dir=tmp_path / "a") as two:
        assert one.lock_path.is_absolute()
        assert one.lock_path != two.lock_path
        assert one.lock_path.parent.stat().st_mode & 0o777 == 0o700
        one.lock_path.write_text("")


def test_a_taken_port_is_told(service: Service, folder: Path) -> None:
    """Nothing is left of the service that did not start."""
    port = urlsplit(service.url).port or 0
    threads = set(threading.enumerate())
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}.*another port"):
        Service([folder], port=port).start()
    with pytest.raises(OSError, match="65536"):
        Service([folder], port=65536).start()
    assert set(threading.enumerate()) <= threads


def test_a_client_that_leaves_is_no_error(service: Service, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed, and the next one is answered."""
    body = body_for(service, stream=True)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", urlsplit(service.url).port or 0), timeout=20) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leaves with a reset
            head = f"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
    assert ask(service).status == 200
    assert capfd.readouterr() == ("", "")


def test_it_looks_no_name_up(folder: Path, audit: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Not even its own address's, which http.server asks the resolver for."""
    with Service([folder]) as service:
        assert call(service, "GET", "/api/config").status == 200
    assert {event for event, _ in audit} <= {"socket.connect", "socket.getaddrinfo"}  # of this test's own client


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_stopped(folder: Path, stop: signal.Signals) -> None:
    """It prints its address and how many documents there are, and ends quietly."""
    code = "import sys; from pathlib import Path; from vane_magic.localdocs import serve_forever as serve; "
    code += "serve([Path(sys.argv[1])], 0, sys.stdout); print('ended')"
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines[0] == "Read 2 of 2 documents.\n"
        found = re.fullmatch(r"Serving 2 documents at (http://127\.0\.0\.1:\d+) \(Ctrl-C stops\)\.\n", lines[1])
        assert found
        connection = http.client.HTTPConnection(found[1].removeprefix("http://"), timeout=20)
        connection.request("GET", "/api/config")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(stop)
        assert process.communicate(timeout=20) == ("ended\n", "")
        assert process.returncode == 0


def test_a_wrong_folder_is_told_before_anything_is_printed(tmp_path: Path) -> None:
    """The handler of SIGTERM is put back."""
    before, out = signal.getsignal(signal.SIGTERM), io.StringIO()
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "none"))):
        serve_forever([tmp_path / "none"], 0, out)
    assert out.getvalue() == ""
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_client_takes_it_for_a_vane(service: Service) -> None:
    """The one pipeline: look-up, its own lock, stream, citations."""
    client = VaneClient(url=service.url, lock_path=str(service.lock_path))
    result = client.research(QUESTION, mode="speed").raise_for_error()
    assert "three-way handshake" in result.answer
    assert result.sources[0].url.startswith(f"{service.url}/doc/")
    assert result.run.dangling == ()
    assert set(result.run.citations) <= set(range(1, len(result.sources) + 1))
