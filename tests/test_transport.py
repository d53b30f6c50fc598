"""The one socket: where it goes, how long it may take, and how much may come."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hostile_addresses import NORMALISED_FIRST, REFUSED
from hypothesis import given
from hypothesis import strategies as st
from servers.listener import Script, closed_port, deaf_port
from servers.scripted import (
    CHUNKED,
    LAST_CHUNK,
    ScriptedServer,
    answer,
    chunk,
    close,
    drip,
    events,
    forever,
    hang,
    head,
    in_turn,
    json_reply,
    reply,
    reset,
    sleep,
    stream,
)

from vane_magic.core.boundary import Endpoint, check_endpoint
from vane_magic.core.errors import Cancelled, SecurityBoundaryViolation, UpstreamSearchError, VaneServiceUnavailable
from vane_magic.core.transport import DeadlineExpired, Reply, Watch, exchange, is_own_address

Start = Callable[..., ScriptedServer]
Audit = list[tuple[str, tuple[Any, ...]]]

SOON: Final = 0.3  # seconds of a limit that is meant to run out
LONG: Final = 30.0  # seconds of one that is not
MIB: Final = 2**20


def _search(
    server: str | ScriptedServer, limit_s: float = LONG, json: object = "", **watch: Any
) -> AbstractContextManager[Reply]:
    """Post to the search route."""
    url = server if isinstance(server, str) else server.url
    return exchange(check_endpoint(url), "POST", "/api/search", Watch(limit_s, **watch), json=json)


def _ask(*args: Any, lines: list[bytes] | None = None, **options: Any) -> list[bytes]:
    """Post to the search route, and give the lines of the reply; `lines` holds them also when an error follows."""
    lines = [] if lines is None else lines
    with _search(*args, **options) as got:
        for line in got.lines():
            lines.append(line)
    return lines


@contextmanager
def _takes(least: float, most: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert least <= time.monotonic() - start < most


# What is sent ---


def test_the_request_says_no_more_than_it_must(scripted: Start) -> None:
    """One HTTP/1.1 request with a length, for a plain reply, over a connection that is to be closed."""
    server = scripted(answer("Yes."))
    assert len(_ask(f"{server.url}/", json={"query": "é"})) == 3
    (request,) = server.requests
    assert (request.route, request.json()) == ("POST /api/search", {"query": "é"})
    assert {name.lower(): value for name, value in request.headers} == {
        "host": f"127.0.0.1:{server.port}",
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "connection": "close",
        "content-length": "14",
        "content-type": "application/json",
        "user-agent": "vane-magic",
    }


def test_a_get_has_no_body(scripted: Start) -> None:
    """It goes below the endpoint's own path."""
    server = scripted(routes={"GET /vane/api/config": json_reply(200, {"values": 1})})
    endpoint = check_endpoint(f"{server.url}/vane/")
    with exchange(endpoint, "GET", "/api/config", Watch(LONG)) as got:
        assert (got.status, json.loads(got.body())) == (200, {"values": 1})
    (request,) = server.requests
    assert (request.body, request.header("content-length"), request.header("content-type")) == (b"", None, None)


def test_a_query_stands_behind_the_path(scripted: Start) -> None:
    """As it is; the connection is noted on the watch."""
    server = scripted(routes={"GET /search": json_reply(200, {})})
    watch = Watch(LONG)
    assert not watch.connected
    with exchange(check_endpoint(server.url), "GET", "/search", watch, query="q=a%20b&format=json") as got:
        assert got.status == 200
    assert watch.connected
    assert server.requests[0].path == "/search?q=a%20b&format=json"


def test_each_exchange_has_a_connection_of_its_own(scripted: Start) -> None:
    """It is closed at the end, also when the server would keep it, and when nothing was read."""
    server = scripted([reply(200, b"{}", [("set-cookie", "a=b")]).replace(b"close", b"keep-alive"), hang])
    for number in (1, 2):
        with _search(server) as got:
            assert got.status == 200
        server.wait_until_idle()
        assert server.connections == number
    assert all(request.header("cookie") is None for request in server.requests)


def test_a_reply_cannot_be_read_after_its_exchange(scripted: Start) -> None:
    """It says so as a cut body does, and does not hang."""
    server = scripted([head(200, CHUNKED), hang])
    with _search(server) as got:
        pass
    with pytest.raises(UpstreamSearchError, match="ended before it was whole"):
        got.body()


# Where it goes ---


def _poison_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*args: Any, **_: Any) -> Any:
        pytest.fail(f"looked up {args}")

    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "create_connection"):
        monkeypatch.setattr(socket, name, resolve)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_no_resolver_is_asked(scripted: Start, audit: Audit, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """`localhost` is 127.0.0.1, whatever the hosts file makes of it."""
    server = scripted(answer("Yes."))
    _poison_resolver(monkeypatch)
    audit.clear()
    _ask(f"http://{host}:{server.port}")
    assert audit == [("socket.connect", (("127.0.0.1", server.port),))]


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_a_server_on_ipv6_alone_is_found(scripted: Start, audit: Audit, host: str) -> None:
    """`localhost` goes on to ::1 when nothing listens on 127.0.0.1."""
    server = scripted(answer("Yes."), host="::1")
    audit.clear()
    assert len(_ask(f"http://{host}:{server.port}")) == 3
    assert [("::1", server.port)] == [args[0][:2] for _, args in audit if args[0][0] != "127.0.0.1"]
    assert server.requests[0].header("host") == f"{host}:{server.port}"


def test_ipv4_comes_first(scripted: Start) -> None:
    """Of two servers on one port, `localhost` is the one on 127.0.0.1 and [::1] the other."""
    four = scripted(json_reply(200, 4))
    six = scripted(json_reply(200, 6), host="::1", port=four.port)
    assert _ask(f"http://localhost:{four.port}") == [b"4"]
    assert (four.connections, six.connections) == (1, 0)
    assert _ask(f"http://[::1]:{four.port}") == [b"6"]


_PROXY_NAMES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.mark.parametrize("no_proxy", [None, "", "localhost", "[::1]", "example.org,[::1"])
@pytest.mark.parametrize("scheme", ["http", "https", "socks", "socks4", "socks5", "socks5h", "", "nonsense"])
def test_no_proxy_is_used(scripted: Start, monkeypatch: pytest.MonkeyPatch, scheme: str, no_proxy: str | None) -> None:
    """Whatever the environment says about proxies and certificates, the request goes straight."""
    proxy = scripted()
    server = scripted(answer("Yes."))
    for name in _PROXY_NAMES:
        monkeypatch.setenv(name, f"{scheme}://127.0.0.1:{proxy.port}" if scheme else f"127.0.0.1:{proxy.port}")
    if no_proxy is not None:
        monkeypatch.setenv("NO_PROXY", no_proxy)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "NETRC", "REQUESTS_CA_BUNDLE", "SSLKEYLOGFILE"):
        monkeypatch.setenv(name, "/nowhere/at/all")
    for host in ("127.0.0.1", "localhost"):
        assert len(_ask(f"http://{host}:{server.port}")) == 3
    assert (server.connections, proxy.connections) == (2, 0)


def test_a_peer_off_the_loopback_interface_gets_nothing(scripted: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """When something diverts the socket, the question is not sent."""

    class Diverted(socket.socket):
        def getpeername(self) -> tuple[str, int]:
            return peer, 3000

    server = scripted(answer("Yes."))
    monkeypatch.setattr(socket, "socket", Diverted)
    for peer in ("10.0.0.1", "127.0.0.2", "::ffff:127.0.0.1", "localhost", "", "evil\x1b[0m"):  # noqa: B007
        with pytest.raises(SecurityBoundaryViolation, match="Nothing was sent") as caught:
            _ask(server)
        assert caught.value.message.isprintable()
    monkeypatch.undo()
    server.wait_until_idle()
    assert server.requests == []


def test_a_forged_endpoint_opens_no_socket(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that no check has seen is checked when it is used, and so is the path."""
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("a socket was opened"))
    hosts = ("example.org", "10.0.0.1", "127.0.0.2", "0.0.0.0", "::2", "::ffff:127.0.0.1", "127.0.0.1@example.org", "")
    forged = [
        *(Endpoint("http", host, 3000) for host in hosts),
        *(Endpoint("http", url.removeprefix("http://"), 3000) for url in REFUSED if url not in NORMALISED_FIRST),
        *(Endpoint(scheme, "127.0.0.1", 3000) for scheme in ("ftp", "ws", "", "http://example.org/?")),
        *(Endpoint("http", "127.0.0.1", port) for port in (0, -1, 65536)),
        Endpoint("http", "127.0.0.1", 3000, "@example.org"),
    ]
    for endpoint in forged:
        with pytest.raises(SecurityBoundaryViolation), exchange(endpoint, "GET", "/api/config", Watch(LONG)):
            pass
    for path in ("@example.org", ".example.org/", "/../..", "//example.org", "/a b", "/a\r\nb", "/?a"):
        with (
            pytest.raises(SecurityBoundaryViolation),
            exchange(Endpoint("http", "127.0.0.1", 1), "GET", path, Watch(LONG)),
        ):
            pass
    assert audit == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location", ["http://example.org/", "/api/search", "http://[", "http://127.0.0.2:1/", "\x01", ""]
)
def test_a_redirect_is_handed_back(scripted: Start, audit: Audit, status: int, location: str) -> None:
    """It is not followed, and its address is not even read."""
    server = scripted(reply(status, b"moved", [("location", location)]))
    audit.clear()
    with _search(server) as got:
        assert (got.status, got.headers["location"], got.body()) == (status, location, b"moved")
    assert len(audit) == server.connections == 1


# Own addresses ---


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1"])
def test_addresses_of_this_machine_are_known(address: str) -> None:
    """The kernel lets a socket bind to them."""
    assert is_own_address(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "192.0.2.1",
            "198.51.100.7",
            "8.8.8.8",
            "2001:db8::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ),
        *(
            "localhost",
            "",
            "127.1",
            "2130706433",
            "::1%lo",
            "fe80::1%lo",
            "127.0.0.1:80",
            "[::1]",
            "example.org",
            "a\0",
        ),
    ],
)
def test_other_addresses_are_not(address: str, audit: Audit) -> None:
    """Nor is anything but a plain literal address; nothing is looked up or sent."""
    assert not is_own_address(address)
    assert audit == []


def test_a_kernel_that_binds_to_anything_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `ip_nonlocal_bind` every address would seem to be this machine's."""
    monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
    assert not is_own_address("10.0.0.1")
    assert not is_own_address("2001:db8::2")


# No reply ---


def test_a_refused_connection_tells_what_to_do() -> None:
    """At once: the address, how to start Vane, the setting, and whose 127.0.0.1 it is."""
    with closed_port() as port, _takes(0, 2), pytest.raises(VaneServiceUnavailable) as caught:
        _ask(f"http://127.0.0.1:{port}")
    for part in (f"http://127.0.0.1:{port}", "refused", "docker start", "url (VANE_URL)", "container", "kernel"):
        assert part in caught.value.message


def test_without_ipv6_localhost_is_still_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason given is that of the first address."""
    whole = socket.socket

    def partial(family: int = socket.AF_INET, *args: Any, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return whole(family, *args, **options)

    with closed_port() as port:
        monkeypatch.setattr(socket, "socket", partial)
        with pytest.raises(VaneServiceUnavailable, match="refused"):
            _ask(f"http://localhost:{port}")


def test_without_descriptors_there_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the system's."""

    def exhausted(*_: Any) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", exhausted)
    with pytest.raises(VaneServiceUnavailable, match="Too many open files"):
        _ask("http://localhost:3000")


@pytest.mark.parametrize("end", [close, reset])
def test_a_connection_that_ends_before_a_reply(scripted: Start, end: Script) -> None:
    """Counts as no service, at whatever moment before the first byte it ends."""
    with pytest.raises(VaneServiceUnavailable, match="without a reply"):
        _ask(scripted(end))
    with pytest.raises(VaneServiceUnavailable):  # a reset may come before the connect has ended
        _ask(scripted(on_connect=end), json="x" * MIB)


def test_a_reply_that_comes_before_the_request_is_sent(scripted: Start) -> None:
    """Is read, although the request cannot be sent to its end."""
    server = scripted(on_connect=[reply(413, b"too large"), sleep(0.2), close])
    # the kernel may drop what came when it hears of the end first
    with suppress(VaneServiceUnavailable), _search(server, json="x" * 16 * MIB) as got:
        assert (got.status, got.body()) == (413, b"too large")


# Time ---

_LINE: Final = events({"type": "response", "data": "word"})
_START: Final = [head(200, CHUNKED), chunk(_LINE)]

_SLOW: Final[dict[str, Script]] = {
    "silence after the request": hang,
    "silence in the status line": [b"HTTP/1.1 2", hang],
    "silence in the headers": [b"HTTP/1.1 200 OK\r\ncontent-type: text/pl", hang],
    "silence after the headers": [head(200, CHUNKED), hang],
    "silence in a chunk's frame": [*_START, b"10", hang],
    "silence in a chunk": [*_START, b"10\r\nabc", hang],
    "silence between chunks": [*_START, hang],
    "silence in the trailer": [*_START, b"0\r\nx: y\r\n", hang],
    "silence in a body with a length": [head(200, [("content-length", "1000")]), _LINE, hang],
    "silence in a body to the end": [head(200), _LINE, hang],
    "drip of a status line": drip(b"HTTP/1.1 200 " + b"O" * 4_000, 0.05),
    "drip of headers": [b"HTTP/1.1 200 OK\r\n", drip(b"x: y\r\n" * 1_000, 0.05)],
    "drip of 100 Continue": forever(head(100), sleep(0.05)),
    "flood of 100 Continue": forever(head(100) * 100),
    "drip of a body": [head(200, [("content-length", "100000")]), drip(b"x" * 100_000, 0.05)],
    "drip of chunks": [head(200, CHUNKED), forever(chunk(b"x"), sleep(0.05))],
    "drip of lines": [head(200, CHUNKED), forever(chunk(b"\n"), sleep(0.05))],
    "drip of a chunk's frame": [head(200, CHUNKED), drip(b"0" * 20 + b"1;" + b"x" * 4_000, 0.05)],
    "drip of a trailer": [head(200, CHUNKED), b"0\r\n", drip(b"x: y\r\n" * 1_000, 0.05)],
}


@pytest.mark.parametrize("name", _SLOW)
def test_the_deadline_is_for_all_of_it(scripted: Start, name: str) -> None:
    """No silence and no drip outlasts it, ticks go on, and the connection is closed."""
    server, ticks = scripted(_SLOW[name]), []
    with _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(server, SOON, on_tick=lambda: ticks.append(time.monotonic()))
    server.wait_until_idle()
    assert 2 <= len(ticks) <= 5  # not one for each byte


def test_connecting_counts() -> None:
    """A server whose queue is full does not hold us."""
    ticks: list[None] = []
    with deaf_port() as port, _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(f"http://localhost:{port}", SOON, on_tick=lambda: ticks.append(None))
    assert len(ticks) >= 2


def test_sending_counts(scripted: Start) -> None:
    """A server that reads nothing of a large question does not hold us."""
    server = scripted(on_connect=hang, receive_buffer=4_096)
    with _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(server, SOON, json="x" * 16 * MIB)
    with _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(server, SOON, json="x" * 2 * MIB)
    server.wait_until_idle()


def test_complete_lines_come_before_the_deadline(scripted: Start) -> None:
    """What was whole when the time ran out has been given."""
    server = scripted([*_START, chunk(_LINE + b"half a li"), hang])
    lines: list[bytes] = []
    with pytest.raises(DeadlineExpired):
        _ask(server, SOON, lines=lines)
    assert lines == [_LINE.strip()] * 2


def test_time_may_have_begun_before(scripted: Start) -> None:
    """The limit runs from `started`; with none left, nothing is opened."""
    server = scripted(answer("Yes."))
    with pytest.raises(DeadlineExpired, match="10 s"):
        _ask(server, 10, started=time.monotonic() - 10)
    assert server.connections == 0
    with _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(scripted(hang), 10 + SOON, started=time.monotonic() - 10)


@pytest.mark.parametrize("step", [3_600, -3_600])
def test_the_wall_clock_does_not_matter(scripted: Start, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """It may be set forwards or backwards meanwhile."""
    now = time.time
    stepped = threading.Event()
    monkeypatch.setattr(time, "time", lambda: now() + step * stepped.is_set())
    with _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(scripted([*_START, hang]), SOON, on_tick=stepped.set)


def test_a_watch_tells_the_time() -> None:
    """From the start that it was given; a pulse gives a slice of at most 100 ms."""
    watch = Watch(20, started=time.monotonic() - 5)
    assert watch.elapsed() == pytest.approx(5, abs=1)
    slices = [watch.pulse() for _ in range(1_000)]
    assert all(0 < each < 0.1001 for each in slices)
    assert 0 < Watch(0.01, started=time.monotonic()).pulse() <= 0.01
    with pytest.raises(DeadlineExpired):
        Watch(1, started=time.monotonic() - 3).pulse()


# Stopping ---


def _stages() -> dict[str, Script]:
    return {name: script for name, script in _SLOW.items() if name.startswith("silence")}


@pytest.mark.parametrize("name", _stages())
def test_another_thread_can_stop_it(scripted: Start, name: str) -> None:
    """The token ends it within a slice, and the connection is closed."""
    server, token = scripted(_SLOW[name]), threading.Event()
    timer = threading.Timer(0.2, token.set)
    timer.start()
    with _takes(0.2, 2), pytest.raises(Cancelled):
        _ask(server, cancel=token)
    timer.join()
    server.wait_until_idle()


def test_stopping_beforehand_opens_nothing(scripted: Start) -> None:
    """A token that is set keeps the question from being sent."""
    server, token = scripted(answer("Yes.")), threading.Event()
    token.set()
    with pytest.raises(Cancelled):
        _ask(server, cancel=token)
    assert server.connections == 0


def test_stopping_while_connecting_or_sending(scripted: Start) -> None:
    """The token is seen there, too."""
    unread = scripted(on_connect=hang, receive_buffer=4_096)
    with deaf_port() as port:
        for url in (f"http://127.0.0.1:{port}", unread.url):
            token = threading.Event()
            timer = threading.Timer(0.2, token.set)
            timer.start()
            with _takes(0.2, 2), pytest.raises(Cancelled):
                _ask(url, json="x" * 16 * MIB, cancel=token)
            timer.join()


@pytest.fixture
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("name", _stages())
def test_an_interrupt_closes_the_connection(scripted: Start, name: str) -> None:
    """Ctrl-C comes out as it is, and the server sees the client leave."""
    server = scripted(_SLOW[name])

    def interrupt() -> None:
        server.wait_for_requests()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        _ask(server)
    thread.join()
    server.wait_until_idle()


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError, ConnectionResetError, TimeoutError, ValueError])
@pytest.mark.parametrize("stage", ["connecting", "sending", "receiving"])
def test_an_error_of_the_tick_is_not_taken_for_the_networks(
    scripted: Start, stage: str, error: type[Exception]
) -> None:
    """What the caller's function raises reaches the caller, and no socket stays open."""
    calls = iter(range(100))

    def fail_later() -> None:
        if next(calls):
            raise error("of the caller")

    server = scripted(hang) if stage == "receiving" else scripted(on_connect=hang, receive_buffer=4_096)
    with deaf_port() as port, pytest.raises(error, match="of the caller"):
        _ask(
            f"http://localhost:{port}" if stage == "connecting" else server.url, json="x" * 16 * MIB, on_tick=fail_later
        )
    server.wait_until_idle()


# What comes ---


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        (stream({"a": 1}, "a\u2028b\x85c".encode(), b"", b" \r"), [b'{"a": 1}', "a\u2028b\x85c".encode(), b"", b" \r"]),
        (reply(200, "a\u2028b\x85\x0b\x0cc\r\n\nd".encode()), ["a\u2028b\x85\x0b\x0cc\r".encode(), b"", b"d"]),
        (reply(200, b""), []),
        (reply(200, b"\n"), [b""]),
        ([head(200), b"to the\nend", close], [b"to the", b"end"]),
        ([head(100), head(102), reply(200, b"after others")], [b"after others"]),
        (b"HTTP/1.0 200 OK\r\n\r\nold", [b"old"]),
        (b"HTTP/1.1 204\n\n", []),
        ([head(200, CHUNKED), b"3;x=y\r\na\nb\r\n1 \r\nc\r\n000\r\nx: y\r\n\r\n"], [b"a", b"bc"]),
    ],
)  # fmt: skip
def test_a_body_is_split_at_line_feeds_alone(scripted: Start, script: Script, lines: list[bytes]) -> None:
    """However it is framed; the last line needs no line feed."""
    assert _ask(scripted(script)) == lines
    with _search(scripted(script)) as got:
        assert got.body().removesuffix(b"\n") == b"\n".join(lines)


def test_lines_come_as_they_are_sent(scripted: Start) -> None:
    """Not only at the end of the body."""
    go_on = threading.Event()
    server = scripted([*_START, lambda connection: connection.wait(go_on), chunk(b"last"), LAST_CHUNK])
    with _search(server) as got:
        lines = got.lines()
        assert next(lines) == _LINE.strip()
        go_on.set()
        assert list(lines) == [b"last"]


def test_headers_have_lower_case_names(scripted: Start) -> None:
    """And are found in any case; repeated ones are joined."""
    server = scripted(reply(503, headers=[("Retry-After", "30"), ("X-One", "1"), ("x-one", "2"), ("X-Latin", "\xe9")]))
    with _search(server) as got:
        assert {**got.headers} == {
            "retry-after": "30",
            "x-one": "1, 2",
            "x-latin": "\xe9",
            "content-length": "0",
            "connection": "close",
        }
        assert got.headers.get("RETRY-AFTER") == "30"


_CUT: Final = b"".join(stream({"type": "init"}, {"type": "response", "data": "word"}, {"type": "done"}))
_CUT_AT: Final = [1, *range(8, len(_CUT), 5), len(_CUT) - 1]


@pytest.mark.parametrize("end", [close, reset])
def test_a_reply_cut_anywhere_is_not_taken_for_whole(scripted: Start, end: Script) -> None:
    """Each complete line before the cut is given, then the error; the part of a line is not."""
    server = scripted(in_turn(*([_CUT[:at], end] for at in _CUT_AT)))
    body = events({"type": "init"}, {"type": "response", "data": "word"}, {"type": "done"})
    for at in _CUT_AT:
        lines: list[bytes] = []
        with pytest.raises(UpstreamSearchError) as caught:
            _ask(server, lines=lines)
        assert caught.value.status == (None if at < len(head(200, CHUNKED)) else 200)
        assert lines == body.splitlines()[: _CUT[:at].count(b"}\n")]


@pytest.mark.parametrize("end", [close, reset])
def test_a_body_short_of_its_length_is_cut(scripted: Start, end: Script) -> None:
    """Also when what came would parse."""
    with pytest.raises(UpstreamSearchError, match="ended before it was whole"):
        _ask(scripted([head(200, [("content-length", "10")]), b"{}\n", sleep(0.05), end]))


_NOT_VANE: Final[dict[str, Script]] = {
    "another protocol": b"SSH-2.0-OpenSSH_9.9\r\n",
    "another protocol in one line": [b"220 mail.example ESMTP", close],
    "no HTTP": b"hello\r\n\r\n",
    "binary": bytes(range(256)) * 4,
    "bad status": b"HTTP/1.1 abc\r\n\r\n",
    "status 000": b"HTTP/1.1 000 x\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "NUL in a header": b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
    "no name": b"HTTP/1.1 200 OK\r\n: y\r\n\r\n",
    "negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    "a length of many digits": head(200, [("content-length", "9" * 5_000)]),
    "an unknown transfer coding": head(200, [("transfer-encoding", "gzip, chunked")]),
    "endless status line": [b"HTTP/1.1 200 ", forever(b"x" * 1_000)],
    "endless header": [b"HTTP/1.1 200 OK\r\nx: ", forever(b"y" * 1_000)],
    "endless headers": [b"HTTP/1.1 200 OK\r\n", forever(b"x: y\r\n" * 100)],
    "5000 headers": head(200, [(f"x-{number}", "y") for number in range(5_000)]),
    "101 headers": reply(200, b"{}", [(f"x-{number}", "y") for number in range(99)]),
    "a header of blanks": [b"HTTP/1.1 200 OK\r\nx:" + b" " * 90_000 + b"\0\r\n\r\n"],
}


@pytest.mark.parametrize("name", _NOT_VANE)
def test_what_is_no_reply_of_vanes_is_refused(scripted: Start, name: str) -> None:
    """At once, in one safe line that names the setting."""
    with _takes(0, 5), pytest.raises(UpstreamSearchError) as caught:
        _ask(scripted(_NOT_VANE[name]))
    assert caught.value.message.isprintable()
    assert caught.value.message.isascii()
    assert len(caught.value.message) < 600
    assert "url (VANE_URL)" in caught.value.message


_BAD_BODIES: Final[dict[str, Script]] = {
    "bad chunk size": b"xyz\r\n",
    "endless chunk size": forever(b"0" * 1_000),
    "endless chunk extension": [b"1;", forever(b"x" * 1_000)],
    "a chunk extension of blanks": b"1;" + b" " * 90_000 + b"\nx\r\nx\r\n",
    "endless trailer": [b"0\r\n", forever(b"x: y\r\n" * 100)],
    "endless body": forever(chunk(b"x" * 1_000 + b"\n") * 50),
    "endless line": forever(chunk(b"x" * 50_000)),
    "a chunk that is too long": [chunk(_LINE), b"1\r\nabc\r\n"],
}


@pytest.mark.parametrize("name", _BAD_BODIES)
def test_a_body_has_limits(scripted: Start, name: str) -> None:
    """Of size, of a line, and of what stands between its parts."""
    with _takes(0, 10), pytest.raises(UpstreamSearchError) as caught:
        _ask(scripted([head(200, CHUNKED), _BAD_BODIES[name]]))
    assert caught.value.status == 200
    assert len(caught.value.message) < 600


def test_the_limits_are_exact() -> None:
    """16 MiB of body, 4 MiB of line and the caller's own cap are allowed, a byte more is not."""
    line = b"x" * (4 * MIB)
    assert [line] * 3 == list(Reply(200, {}, [line + b"\n"] * 3).lines())
    for pieces in ([line + b"x"], [line, b"x"], [b"a\n", line, b"x\n"]):
        with pytest.raises(UpstreamSearchError, match="4 MiB"):
            list(Reply(200, {}, pieces).lines())
    assert len(Reply(200, {}, [line] * 4).body()) == 16 * MIB
    for consume in (Reply.body, lambda got: list(got.lines())):
        with pytest.raises(UpstreamSearchError, match="16,777,216 bytes"):
            consume(Reply(200, {}, [*[line[:-1] + b"\n"] * 4, b"x"]))
    assert Reply(200, {}, [b"abc", b"d"]).body(4) == b"abcd"
    with pytest.raises(UpstreamSearchError, match="3 bytes"):
        Reply(200, {}, [b"abc", b"d"]).body(3)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "zstd", "identity, gzip", "x-unknown"])
def test_an_encoded_reply_is_refused(scripted: Start, encoding: str) -> None:
    """By its headers: a few kilobytes may hide any size."""
    bomb = gzip.compress(bytes(MIB))
    for headers in (
        [("content-encoding", encoding)],
        [("content-encoding", "identity"), ("Content-Encoding", encoding)],
    ):
        with pytest.raises(UpstreamSearchError, match="encoded") as caught:
            _ask(scripted(reply(200, bomb, headers)))
        assert caught.value.status == 200


@pytest.mark.parametrize("encoding", ["identity", "Identity", "", "identity, identity"])
def test_no_encoding_may_be_said(scripted: Start, encoding: str) -> None:
    """What is not encoded may say so."""
    assert _ask(scripted(reply(200, b"plain", [("content-encoding", encoding)]))) == [b"plain"]


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b"\r\n", b"\n\n", b"", b"\xe2\x80\xa8"]), max_size=20))
def test_the_cuts_between_pieces_do_not_matter(pieces: list[bytes]) -> None:
    """The lines are those of the whole body, wherever it was cut on its way."""
    whole = b"".join(pieces)
    lines = whole.split(b"\n")
    assert (lines if lines[-1] else lines[:-1]) == list(Reply(200, {}, pieces).lines())
    assert whole == Reply(200, {}, pieces).body()


_BITS: Final = (
    *(b"HTTP/1.1 200 OK", b"HTTP/1.1 100 C\r\n\r\n", b"transfer-encoding: chunked\r\n", b"content-length: 3\r\n"),
    *(b"\r\n", b"\n", b":", b"x", b" ", b"\0", b"0", b"5\r\nabcde\r\n"),
)


@given(st.binary(max_size=300) | st.lists(st.sampled_from(_BITS)).map(b"".join))
def test_no_other_error_comes_out(one_server: SimpleNamespace, data: bytes) -> None:
    """Whatever bytes come, the end is a reply or one of two errors."""
    one_server.script[:] = [data, close]
    with suppress(UpstreamSearchError, VaneServiceUnavailable):
        _ask(one_server.url)


@pytest.fixture(scope="module")
def one_server() -> Iterator[SimpleNamespace]:
    """A server whose script can be changed between its requests."""
    script: list[Script] = []
    with ScriptedServer(lambda _: tuple(script)) as server:
        yield SimpleNamespace(url=server.url, script=script)


@pytest.mark.parametrize("consume", [Reply.body, lambda got: next(got.lines())])
def test_small_pieces_do_not_swell(consume: Callable[[Reply], bytes]) -> None:
    """A body in tiny pieces takes at most three times its size in memory."""
    size = MIB // 8
    got = Reply(200, {}, (bytes((number % 200 + 11, 48)) for number in range(size // 2)))
    tracemalloc.start()
    try:
        assert len(consume(got)) == size
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()


# TLS ---

# Made for these tests alone: a certificate for 127.0.0.1, ::1 and localhost, valid until 2126, and its key.
_PEM: Final = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg76Y/IThpui9qvZS3
alW7oIUYPjZYcE8Yy0IlsDmQ38ShRANCAATN09SXYmw/ztZF9FY4dX+J9xZl0MiE
NTzcDL1fA9sbCzyizTYQht57CZfTr0ZgdfOs/BdwayJjm1Hg+P5C1IAp
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBpDCCAUqgAwIBAgIULbhUi6SxM4xgbehH83m4a0/2lmowCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMzAxNTA1NDJaGA8yMTI2MTEwNjE1MDU0
MlowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABM3T
1JdibD/O1kX0Vjh1f4n3FmXQyIQ1PNwMvV8D2xsLPKLNNhCG3nsJl9OvRmB186z8
F3BrImObUeD4/kLUgCmjgYEwfzAdBgNVHQ4EFgQUnofKKAG5BVc5jhlCt9IKQVBj
X6AwHwYDVR0jBBgwFoAUnofKKAG5BVc5jhlCt9IKQVBjX6AwDwYDVR0TAQH/BAUw
AwEB/zAsBgNVHREEJTAjhwR/AAABhxAAAAAAAAAAAAAAAAAAAAABgglsb2NhbGhv
c3QwCgYIKoZIzj0EAwIDSAAwRQIgMgRt5I1vbfATbOBjuR3maEHVmrPHq1FmN9rv
QTU6ac4CIQCePu8/n7Usef59uwFTHBQVzxIOyTqO1IUPxaHK6zNE+Q==
-----END CERTIFICATE-----
"""


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    path = tmp_path / "test.pem"
    path.write_text(_PEM)
    return path


@contextmanager
def _tls_server(pem: Path, answer: bytes, host: str = "127.0.0.1") -> Iterator[int]:
    """Answer one TLS connection, then keep it open until the client leaves."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def serve() -> None:
        with suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True) as sock:
            sock.settimeout(10)
            sock.recv(65_536)
            sock.sendall(answer)
            while sock.recv(65_536):
                pass

    with socket.create_server((host, 0), family=family) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(20)
        assert not thread.is_alive()


def _trust(monkeypatch: pytest.MonkeyPatch, pem: Path) -> None:
    """Let the system trust that certificate."""
    monkeypatch.setattr(
        ssl, "get_default_verify_paths", lambda: SimpleNamespace(openssl_cafile=pem, openssl_capath="/nowhere")
    )


@pytest.mark.parametrize(("name", "host"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("[::1]", "::1")])
def test_a_trusted_certificate_is_enough(pem: Path, monkeypatch: pytest.MonkeyPatch, name: str, host: str) -> None:
    """It is checked for the name in the address, without a look into the environment."""
    _trust(monkeypatch, pem)
    monkeypatch.setenv("SSLKEYLOGFILE", str(pem.with_suffix(".keys")))
    with _tls_server(pem, b"".join(answer("Yes." * 30_000)), host) as port:
        assert len(_ask(f"https://{name}:{port}")) == 3
    assert not pem.with_suffix(".keys").exists()


def test_an_untrusted_certificate_is_refused(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment cannot make it trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    monkeypatch.setenv("SSL_CERT_DIR", str(pem.parent))
    with _tls_server(pem, b"") as port, pytest.raises(VaneServiceUnavailable, match=r"(?i)certificate.*http://"):
        _ask(f"https://127.0.0.1:{port}")


def test_a_plain_server_is_no_tls_server(scripted: Start) -> None:
    """The message says that Vane speaks http://."""
    with pytest.raises(VaneServiceUnavailable, match="http://"):
        _ask(f"https://127.0.0.1:{scripted(on_connect=reply(400, b'no')).port}")


def test_the_deadline_is_for_tls_as_well(scripted: Start, pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the handshake, and for a reply that does not end."""
    with _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(f"https://127.0.0.1:{scripted(on_connect=hang).port}", SOON)
    _trust(monkeypatch, pem)
    lines: list[bytes] = []
    with _tls_server(pem, b"".join(_START)) as port, _takes(SOON, SOON + 3), pytest.raises(DeadlineExpired):
        _ask(f"https://localhost:{port}", SOON, lines=lines)
    assert lines == [_LINE.strip()]
