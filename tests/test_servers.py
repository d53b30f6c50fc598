"""The replay server, the scripted server and the guards of conftest do what the other tests trust them to do."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from servers.listener import SEARCH, Connection, Script, closed_port, deaf_port
from servers.replay import RECORDINGS, Recording, ReplayServer
from servers.scripted import (
    API_KEY,
    CASES,
    ScriptedServer,
    answer,
    case_server,
    chunk,
    close,
    config,
    drip,
    events,
    forever,
    hang,
    head,
    in_turn,
    json_reply,
    keep_open,
    provider,
    reply,
    reset,
    sleep,
    source,
    stream,
    wait,
)

if TYPE_CHECKING:
    from servers.listener import Server

Scripted = Callable[..., ScriptedServer]
PLAYABLE = [name for name in RECORDINGS if name != "error-vane-not-running"]


def connect(server: Server) -> socket.socket:
    return socket.create_connection((server.url.split("//")[1].rsplit(":", 1)[0].strip("[]"), server.port), 10)


def send(sock: socket.socket, route: str = SEARCH, body: bytes = b"") -> None:
    sock.sendall(f"{route} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def read(sock: socket.socket, size: int = 1 << 30) -> bytes:
    """Up to `size` bytes, fewer when the server closes."""
    data = b""
    while len(data) < size and (part := sock.recv(min(size - len(data), 1 << 16))):
        data += part
    return data


def read_until_reset(sock: socket.socket) -> bytes:
    data = b""
    try:
        while part := sock.recv(1 << 16):
            data += part
    except ConnectionResetError:
        return data
    return pytest.fail("closed, not reset")


def exchange(server: Server, route: str = SEARCH, body: bytes = b"") -> bytes:
    """One request, and everything that comes until the server closes."""
    with connect(server) as sock:
        send(sock, route, body)
        return read(sock)


def body_of(response: bytes) -> bytes:
    return response.partition(b"\r\n\r\n")[2]


def still_open(sock: socket.socket, seconds: float = 0.02) -> bool:
    """Whether nothing comes for a while, neither a byte nor the end."""
    sock.settimeout(seconds)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    return False


# The replay server ---


@pytest.mark.parametrize("case", PLAYABLE)
def test_every_recording_plays_over_a_socket_and_ends_as_recorded(case: str) -> None:
    """What is sent is response.wire, byte for byte; then comes silence, or the connection closes."""
    recording = Recording(case)
    expected = b"".join(data for _, data in recording.parts()) if recording.wire is None else recording.wire
    closes = recording.meta["ended"].startswith("server") or ["Connection", "close"] in recording.meta["headers"]
    with ReplayServer(case) as server, connect(server) as sock:
        send(sock, recording.route, recording.request or b"")
        assert read(sock, len(expected)) == expected
        assert read(sock) == b"" if closes else still_open(sock)
        if recording.silent:
            assert not server.requests[0].finished.is_set()
            sock.close()
            assert server.requests[0].left.wait(10)


def test_recordings_are_whole() -> None:
    """Each recorded body has its recorded size, and is made up of its chunks."""
    for name in RECORDINGS:
        recording = Recording(name)
        assert len(recording.body) == recording.meta["body_bytes"], name
        if recording.meta["transfer"] == "chunked":
            assert sum(size for _, size in recording.meta["chunks"]) == len(recording.body), name


def test_an_http_library_reads_a_recording() -> None:
    """The stream that comes out of an HTTP client is the recorded body."""
    with ReplayServer("stream-speed") as server, httpx.Client(trust_env=False) as client:
        assert client.post(f"{server.url}/api/search", json={}).content == Recording("stream-speed").body
        assert client.get(f"{server.url}/api/config").content == Recording("config-ready").body
        assert client.get(f"{server.url}/api/providers").content == Recording("providers-ollama-up").body
        assert client.get(f"{server.url}/api/nothing-here").status_code == 404
        assert server.connections == 1  # kept open, as Vane does


def test_routes_take_other_recordings_and_scripts() -> None:
    """The look-ups and any other route can be given another recording, or a script."""
    routes: dict[str, str | Script] = {"GET /search": "searxng-json-ok", "GET /api/models": json_reply(200, {})}
    with (
        ReplayServer("providers-none", config="config-ollama-down", routes=routes) as server,
        httpx.Client(trust_env=False, base_url=server.url) as client,
    ):
        assert client.get("/api/providers").json() == {"providers": []}
        assert client.get("/api/config").content == Recording("config-ollama-down").body
        assert client.get("/search?q=tcp&format=json").content == Recording("searxng-json-ok").body
        assert client.get("/api/models").json() == {}


@pytest.mark.parametrize("speed", [1, 0.5])
def test_pauses_are_the_recorded_ones_times_the_speed(speed: float) -> None:
    """No chunk comes before its time; the last one comes soon after."""
    recording = Recording("stream-answer-empty")
    parts = list(recording.parts())
    with ReplayServer("stream-answer-empty", speed=speed) as server, connect(server) as sock:
        send(sock)
        for at, data in parts:
            assert read(sock, len(data)) == data
            assert time.monotonic() - server.requests[0].received_at >= at * speed
        assert time.monotonic() - server.requests[0].received_at < parts[-1][0] * speed + 5


def test_a_broken_stream_breaks_without_its_last_chunk() -> None:
    """An HTTP client reports the recording of a killed Vane as a protocol error."""
    with (
        ReplayServer("stream-vane-killed-mid-answer") as server,
        httpx.Client(trust_env=False) as client,
        pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"),
    ):
        client.post(f"{server.url}/api/search", json={})


def test_a_recording_without_a_server_cannot_be_played() -> None:
    """Where nothing listened, there is a port at which nothing listens."""
    with pytest.raises(ValueError, match="closed_port"):
        ReplayServer("error-vane-not-running")
    with closed_port() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)


# What the servers tell ---


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_each_request_is_recorded_whole(host: str) -> None:
    """Method, path, headers in order and as written, body, peer and times."""
    before = time.monotonic()
    with ScriptedServer(answer("Yes."), host=host) as server:
        with connect(server) as sock:
            name = sock.getsockname()[:2]
            sock.sendall(b"POST /api/search?x=1 HTTP/1.1\r\nX-One: a:b\r\nx-one:  c \r\nContent-Length: 4\r\n\r\n[1")
            sock.sendall(b"2]")
            read(sock)
        (request,) = server.wait_for_searches()
        assert (request.method, request.path, request.route) == ("POST", "/api/search?x=1", SEARCH)
        assert request.headers == [("X-One", "a:b"), ("x-one", "c"), ("Content-Length", "4")]
        assert (request.header("x-ONE"), request.header("none")) == ("a:b", None)
        assert (request.body, request.json(), request.peer) == (b"[12]", [12], name)
        assert before < request.connected_at < request.received_at < time.monotonic()
        assert server.url == f"http://{'[::1]' if ':' in host else host}:{server.port}"


def test_searches_are_told_from_look_ups() -> None:
    """`requests` has all, `searches` the POSTs; waiting for more than came ends in an error."""
    with ScriptedServer(answer("Yes.")) as server:
        for route in ("GET /api/config", SEARCH, "GET /api/providers", "GET /api/search"):
            exchange(server, route)
        assert len(server.wait_for_requests(4)) == 4
        assert server.searches == server.wait_for_searches() == [server.requests[1]]
        with pytest.raises(TimeoutError, match="1 of 2"):
            server.wait_for_searches(2, timeout=0.01)


def test_a_client_that_leaves_is_seen_leaving() -> None:
    """Whether the script hangs, waits or sends without end; after a whole answer the script has finished."""
    never = threading.Event()
    for script in (hang, sleep(60), wait(never), [head(), forever(b"x" * 65536)], [head(), drip(b"x" * 999, 0.1)]):
        with ScriptedServer(script) as server:
            with connect(server) as sock:
                send(sock)
                (request,) = server.wait_for_searches()
                assert not request.left.is_set()
                left_at = time.monotonic()
            assert request.left.wait(10)
            assert left_at <= (request.left_at or 0) <= time.monotonic()
            assert not request.finished.is_set()
            server.wait_until_idle()
    with ScriptedServer([answer("Yes."), keep_open]) as server:
        with connect(server) as sock:
            send(sock)
            assert server.wait_for_searches()[0].finished.wait(10)
            assert server.open_connections == 1
            with pytest.raises(TimeoutError, match="1 connections"):
                server.wait_until_idle(0.01)
        assert server.requests[0].left.wait(10)


def test_searches_at_the_same_time_are_counted() -> None:
    """A search counts from its request until its answer is whole or its client has left."""
    go = threading.Event()
    with ScriptedServer([wait(go), answer("Yes.")]) as server:
        for count in (1, 2, 3):  # one after the other: each client has left when the next one comes
            with connect(server) as sock:
                send(sock)
                server.wait_for_searches(count)
        assert server.most_searches == 1
        with connect(server) as one, connect(server) as two:
            send(one)
            send(two)
            server.wait_for_searches(5)
            go.set()
            assert read(one) == read(two) != b""
        exchange(server, "GET /api/config")
        assert server.most_searches == 2


def test_a_fault_of_a_script_is_no_secret() -> None:
    """It is raised at the end, or noted on the failure that ends the test."""

    def broken(_: Connection) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ScriptedServer(broken) as server:
        assert exchange(server) == b""

    def failing_test() -> None:
        with ScriptedServer(broken) as server:
            exchange(server)
            raise KeyError

    with pytest.raises(KeyError) as caught:
        failing_test()
    assert "ZeroDivisionError" in caught.value.__notes__[0]


def test_stopping_is_prompt_and_leaves_nothing() -> None:
    """With clients that hang, wait, never read or never send, all threads and sockets are gone at once."""

    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208 - names are enough

    threads, before = threading.active_count(), descriptors()
    scripts = {"/hang": hang, "/sleep": sleep(60), "/wait": wait(threading.Event()), "/flood": forever(b"x" * 65536)}
    with ScriptedServer(routes={f"GET {path}": script for path, script in scripts.items()}) as server:
        clients = [connect(server) for _ in range(6)]
        for sock, path in zip(clients, scripts, strict=False):
            send(sock, f"GET {path}")
        clients[4].sendall(b"GET /half")  # and the last one sends nothing
        server.wait_for_requests(4)
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < 5
    assert threading.active_count() <= threads
    for sock in clients:
        sock.close()
    assert descriptors() <= before


def test_a_server_starts_again_at_its_port() -> None:
    """As a Vane that was restarted."""
    server = ScriptedServer(answer("Yes."))
    for _ in range(2):
        with server:
            exchange(server)
    assert server.connections == 2
    with pytest.raises(ConnectionRefusedError):
        connect(server)


# Scripts ---


def test_the_usual_stream_is_vanes() -> None:
    """Head, a chunk for each event in Vane's order, last chunk."""
    with ScriptedServer(answer(["It is ", "[1]."], [source("T", "https://a.example", "c")])) as server:
        response = httpx.post(f"{server.url}/api/search", json={}, trust_env=False, verify=False)
    recorded = Recording("stream-speed")
    assert response.headers["content-type"] == dict(recorded.meta["headers"])["content-type"]
    told = [json.loads(line) for line in response.content.split(b"\n")[:-1]]
    assert [event["type"] for event in told] == ["init", "sources", "response", "response", "done"]
    real = [json.loads(line) for line in recorded.body.split(b"\n")[:-1]]
    assert (told[0], told[-1]) == (real[0], real[-1])
    assert told[1]["data"] == [{"content": "c", "metadata": {"title": "T", "url": "https://a.example"}}]
    assert told[1]["data"][0].keys() == real[1]["data"][0].keys()


def test_the_made_up_configuration_has_vanes_shape() -> None:
    """Every member that it has, the recorded one has too, at the same place; failed providers are not listed."""
    real = json.loads(Recording("config-ready").body)
    made = config([provider(chat=["a", "b"]), provider("Cloud", kind="openai", error="refused")], setup=False)
    assert made.keys() == real.keys()
    assert made["values"].keys() == real["values"].keys()
    assert made["values"]["setupComplete"] is False
    ours, failed = made["values"]["modelProviders"]
    assert ours.keys() == real["values"]["modelProviders"][1].keys()
    down = json.loads(Recording("config-ollama-down").body)["values"]["modelProviders"][1]
    assert failed["chatModels"][0].keys() == down["chatModels"][0].keys()
    assert failed["chatModels"][0]["key"] == "error"
    with ScriptedServer(config=made) as server, httpx.Client(trust_env=False, base_url=server.url) as client:
        assert client.get("/api/config").json() == made
        assert API_KEY in client.get("/api/config").text
        (listed,) = client.get("/api/providers").json()["providers"]
    real_listed = json.loads(Recording("providers-ollama-up").body)["providers"][0]
    assert listed.keys() == real_listed.keys()
    assert [model["key"] for model in listed["chatModels"]] == ["a", "b"]


def test_the_nth_request_gets_the_nth_script() -> None:
    """And all later ones the last."""
    busy = json_reply(503, {}, [("retry-after", "30")])
    with ScriptedServer(in_turn(busy, [json_reply(200, {}), close])) as server:
        responses = [exchange(server) for _ in range(3)]
    assert [response[:12] for response in responses] == [b"HTTP/1.1 503", b"HTTP/1.1 200", b"HTTP/1.1 200"]
    assert b"\r\nretry-after: 30\r\n" in responses[0]


def test_a_step_may_answer_by_the_request() -> None:
    """What a step returns is played, and a keep-alive connection takes one request after the other."""

    def echo(connection: Connection) -> Iterable[Script]:
        return [reply(200, connection.request.body), keep_open]

    with ScriptedServer(echo) as server, connect(server) as sock:
        for body in (b"one", b"two"):
            send(sock, body=body)
            assert read(sock, len(reply(200, body))) == reply(200, body)
        assert (len(server.requests), server.connections) == (2, 1)


def test_a_script_waits_for_an_event() -> None:
    """Nothing comes before it is set, the rest at once after it."""
    go = threading.Event()
    with ScriptedServer([b"HTTP/1.1 200 OK\r\n", wait(go), b"\r\nrest"]) as server, connect(server) as sock:
        send(sock)
        assert read(sock, 17) == b"HTTP/1.1 200 OK\r\n"
        assert still_open(sock)
        sock.settimeout(10)
        go.set()
        assert read(sock) == b"\r\nrest"


def test_reset_and_close_differ() -> None:
    """A reset is an error to the client, a close is an end; what comes after either is not played."""
    with ScriptedServer([reset, b"x"]) as server, pytest.raises(ConnectionResetError):
        exchange(server)
    with ScriptedServer([close, b"x"]) as server:
        assert exchange(server) == b""


HOSTILE: dict[str, tuple[Script, bytes]] = {
    "thousands of headers": ([head(200, [(f"x-{n}", "y") for n in range(5000)])], rb"x-4999: y\r\n\r\n\Z"),
    "endless headers": ([b"HTTP/1.1 200 OK\r\n", forever(b"x: y\r\n")], rb"(x: y\r\n){9999}"),
    "endless body": ([answer("")[0], forever(chunk(b"a" * 65536))], rb"a{65536}\r\n10000\r\na"),
    "endless trailers": ([answer("")[0], b"0\r\n", forever(b"x: y\r\n")], rb"\r\n0\r\n(x: y\r\n){99}"),
    "100-continue drip": (forever(b"HTTP/1.1 100 Continue\r\n\r\n", sleep(0.001)), rb"(HTTP/1.1 100.*\r\n\r\n){9}"),
    "blank chunk drip": ([answer("")[0], forever(chunk(b"\n"), sleep(0.001))], rb"(1\r\n\n\r\n){9}"),
    "byte drip": ([head(), drip(b"abcdefghi", 0.001)], rb"\r\n\r\nabcdefghi\Z"),
    "gzip": (
        reply(200, b"\x1f\x8b", [("content-encoding", "gzip")]),
        rb"content-encoding: gzip\r\n(.|\r\n)*\x1f\x8b\Z",
    ),
    "redirect": (head(307, [("location", "http://192.0.2.1/")]), rb"\AHTTP/1.1 307 .*\r\nlocation: http://192"),
    "short body": ([head(200, [("content-length", "9")]), b"abc"], rb"content-length: 9\r\n\r\nabc\Z"),
    "no done": (stream({"type": "init"}), rb'\{"type": "init"\}\n\r\n0\r\n\r\n\Z'),
    "half a stream": (answer("Yes.")[:-2], rb'"Yes\."\}\n\r\n\Z'),
    "garbage line": ([head(), events({"type": "init"}, b"[" * 999, b"\xff")], rb"\}\n\[{999}\n\xff\n\Z"),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", rb"\ASSH"),
    "odd status": (head(299), rb"\AHTTP/1.1 299 Odd"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_take_a_line_each(name: str) -> None:
    """Each is on the wire what its name says."""
    script, expected = HOSTILE[name]
    with ScriptedServer(script) as server, connect(server) as sock:
        send(sock)
        received, enough = b"", re.compile(expected)
        while not enough.search(received) and (part := sock.recv(65536)):
            received += part
        assert enough.search(received), received[-200:]


def test_a_server_may_act_before_it_reads() -> None:
    """It hangs up or talks first, or takes in nothing, so that a client cannot finish sending."""
    with ScriptedServer(on_connect=reset) as server, pytest.raises(ConnectionError), connect(server) as sock:
        read(sock)
    with ScriptedServer(on_connect=b"220 mail.example\r\n") as server, connect(server) as sock:
        assert read(sock, 5) == b"220 m"
    with ScriptedServer(on_connect=hang, receive_buffer=4096) as server, connect(server) as sock:
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            send(sock, body=bytes(32 << 20))
        assert (server.requests, server.connections) == ([], 1)


def test_a_deaf_port_takes_no_connection() -> None:
    """Connecting to it runs into the client's own limit."""
    with deaf_port() as port, pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), 0.2)


# User cases ---

WITH_SERVER = [case for case in CASES if CASES[case]["server"]]
SEARCHES = {case: CASES[case]["server"][SEARCH] for case in WITH_SERVER}
WHOLE = {case: told for case, told in SEARCHES.items() if told.get("body") and not told.get("wait_ms")}


@pytest.mark.parametrize("case", WHOLE)
def test_a_case_written_as_an_object_streams_on_request(case: str) -> None:
    """As one object it comes as written, as a stream in events; an error comes as written either way."""
    written = WHOLE[case]
    with case_server(case) as server:
        assert body_of(exchange(server, body=b'{"stream": false}')).decode() == written["body"]
        streamed = httpx.post(f"{server.url}/api/search", json={"stream": True}, trust_env=False, verify=False)
    assert streamed.status_code == written["status"]
    if written["status"] != 200:
        assert streamed.text == written["body"]
        return
    told = [json.loads(line) for line in streamed.content.splitlines()]
    whole = json.loads(written["body"])
    assert "".join(event["data"] for event in told if event["type"] == "response") == whole["message"]
    assert [event["data"] for event in told if event["type"] == "sources"] == [s for s in [whole["sources"]] if s]
    assert (told[0]["type"], told[-1]) == ("init", {"type": "done"})


def test_every_case_with_a_server_answers_the_look_up_as_written() -> None:
    """In order, where the case has several answers; those without a server say so."""
    for case, written in CASES.items():
        if not written["server"]:
            with pytest.raises(ValueError, match=case):
                case_server(case)
            continue
        listed = written["server"]["GET /api/providers"]
        with case_server(case) as server:
            for expected in listed.get("sequence", [listed]):
                assert body_of(exchange(server, "GET /api/providers")).decode() == expected["body"]
            assert exchange(server, "GET /api/config").startswith(b"HTTP/1.1 404")


def test_cases_that_are_no_single_object_play_as_described() -> None:
    """A broken stream (D06), no sources (D10), thousands of pieces (B09), a long page (B07), silence (D21, F01)."""
    ask: dict[str, Any] = {"json": {"stream": True}, "trust_env": False, "verify": False}
    with case_server("D06") as server:
        assert exchange(server, body=b"{}").startswith(b"HTTP/1.1 500")
        with connect(server) as sock:
            send(sock, body=b'{"stream": true}')
            assert read_until_reset(sock).endswith(b'"turn slow"}\n\r\n')
    with case_server("D10") as server:
        assert json.loads(body_of(exchange(server, body=b"{}"))) == {"message": "Hello! How can I help?", "sources": []}
        assert b"sources" not in httpx.post(f"{server.url}/api/search", **ask).content
    with case_server("B09") as server:
        assert httpx.post(f"{server.url}/api/search", **ask).content.count(b'"response"') == 3000
    with case_server("B07") as server:
        assert len(json.loads(body_of(exchange(server, body=b"{}")))["sources"][0]["content"]) == 2_000_000
    with case_server("D21") as server:
        with connect(server) as sock:
            send(sock, body=b'{"stream": true}')
            assert still_open(sock)
        assert b"Tidal turbines" in exchange(server, body=b'{"stream": true}')
    with case_server("F01") as server, connect(server) as sock:
        send(sock, body=b'{"stream": true}')
        assert still_open(sock)


# conftest ---


def test_home_and_environment_are_the_tests_own(tmp_path: Path, lock_path: Path) -> None:
    """No setting and no proxy of the developer's reaches a test."""
    assert Path.home() == tmp_path / "home"
    assert list(Path.home().iterdir()) == []
    assert lock_path == tmp_path / ".vane-gpu-worker.lock"
    assert [name for name in os.environ if name.startswith("VANE_") or name.lower().endswith("_proxy")] == []


def test_fixtures_start_servers_and_the_audit_sees_connects(
    replay: Callable[..., ReplayServer], scripted: Scripted, audit: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """A connect is there with its address, and a look-up with its name; of the test before there is nothing."""
    first, second = replay("stream-speed"), scripted(answer("Yes."))
    assert audit == []
    exchange(second)
    socket.create_connection(("localhost", first.port), 10).close()
    assert ("socket.connect", (("127.0.0.1", second.port),)) in audit
    assert any(event == "socket.getaddrinfo" and args[0] == "localhost" for event, args in audit)


GUARDED = """
import contextlib
import json
import socket

import pytest
from pydantic import ValidationError
from vane_magic.core.contract import RunDetails, Telemetry, ToolResult
from vane_magic.core.errors import Cancelled

def test_loopback_passes():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        socket.getaddrinfo(b"localhost", 80)
        socket.getaddrinfo(None, 80)

def test_foreign_connect_fails():
    with socket.socket() as sock:
        sock.connect(("192.0.2.1", 9))

def test_every_address_but_loopback_is_foreign():
    with socket.socket() as sock, contextlib.suppress(Exception):
        sock.connect(("0.0.0.0", 9))

def test_foreign_name_fails_though_swallowed():
    with contextlib.suppress(Exception):
        socket.getaddrinfo("vane.invalid", 80)

def test_datagrams_count():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(Exception):
        sock.sendto(b"x", ("192.0.2.1", 9))

@pytest.mark.foreign_addresses
def test_expected_passes(audit):
    with contextlib.suppress(OSError):
        socket.getaddrinfo("vane.invalid", 80)
    assert audit[0][1][0] == "vane.invalid"

def test_after_it_all_is_guarded_again():
    with contextlib.suppress(Exception):
        socket.gethostbyname("vane.invalid")

MEMBERS = {"success": False, "error": {"code": "X", "message": "m", "fallback_recommended": False}}
GOOD, BAD = ({"duration_ms": 1, "worker_id": "w", "timestamp": at} for at in ("2026-11-30T12:00:00Z", "noon"))

def test_valid_results_pass(validate_result):
    validate_result(ToolResult(**MEMBERS, telemetry=GOOD))
    validate_result(ToolResult.model_validate(MEMBERS | {"telemetry": GOOD}))
    validate_result(ToolResult.of_run(RunDetails(), 1, error=Cancelled("Stopped.")))

def test_result_made_invalid_fails():
    ToolResult(**MEMBERS, telemetry=BAD)

def test_result_validated_invalid_fails():
    ToolResult.model_validate(MEMBERS | {"telemetry": BAD})

def test_result_read_invalid_fails():
    ToolResult.model_validate_json(json.dumps(MEMBERS | {"telemetry": BAD}))

def test_result_of_a_run_invalid_fails(monkeypatch):
    monkeypatch.setattr("vane_magic.core.contract.Telemetry", lambda **_: Telemetry(**BAD))
    ToolResult.of_run(RunDetails(), 1, error=Cancelled("Stopped."))

def test_no_result_is_no_fault():
    with pytest.raises(ValidationError):
        ToolResult(success=True, telemetry=BAD)
"""


def test_guards_fail_the_tests_that_they_should(tmp_path: Path) -> None:
    """A foreign address or an invalid result fails a test, even one that swallows the error."""
    (tmp_path / "test_guarded.py").write_text(GUARDED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    here = Path(__file__).parent
    done = subprocess.run(
        [*command, "-rA", "--tb=no", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = re.findall(r"^(PASSED|FAILED) \S+::(\w+)", done.stdout, re.MULTILINE)
    assert {name: verdict for verdict, name in verdicts} == {
        "test_loopback_passes": "PASSED",
        "test_foreign_connect_fails": "FAILED",
        "test_every_address_but_loopback_is_foreign": "FAILED",
        "test_foreign_name_fails_though_swallowed": "FAILED",
        "test_datagrams_count": "FAILED",
        "test_expected_passes": "PASSED",
        "test_after_it_all_is_guarded_again": "FAILED",
        "test_valid_results_pass": "PASSED",
        "test_result_made_invalid_fails": "FAILED",
        "test_result_validated_invalid_fails": "FAILED",
        "test_result_read_invalid_fails": "FAILED",
        "test_result_of_a_run_invalid_fails": "FAILED",
        "test_no_result_is_no_fault": "PASSED",
    }, done.stdout
