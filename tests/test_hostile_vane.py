"""A Vane, or something in its place, that is slow, broken or hostile: each question ends in time with what had come."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_addresses import NORMALISED_FIRST, REFUSED
from hypothesis import given
from hypothesis import strategies as st
from servers.scripted import (
    API_KEY,
    CHUNKED,
    LAST_CHUNK,
    ScriptedServer,
    answer,
    answer_events,
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
    provider,
    reply,
    reset,
    sleep,
    source,
    stream,
)

from vane_magic.cli import main
from vane_magic.core.client import VaneClient
from vane_magic.core.contract import ToolResult
from vane_magic.core.errors import UpstreamSearchError
from vane_magic.core.gpu_lock import GpuLock
from vane_magic.core.vane_api import Received, _parse, _take_event

Scripted = Callable[..., ScriptedServer]
QUESTION = "How does TCP open a connection?"
OPEN = [{"type": "init", "data": "Stream connected"}, {"type": "sources", "data": [source()]}]
A = b'{"type":"response","data":"A."}\n'
PART = stream(*OPEN, {"type": "response", "data": "Half an ans"})[:-1]


@pytest.fixture
def ask(lock_path: Path, scripted: Scripted) -> Callable[..., ToolResult]:
    """Ask a Vane that is healthy, but for the script of its search."""

    def ask(search: Any, *, timeout: float | None = None, **options: Any) -> ToolResult:
        client = VaneClient(scripted(search, **options).url, lock_path=str(lock_path))
        return client.research(QUESTION, timeout=timeout)

    return ask


def code(result: ToolResult) -> str:
    return result.error.code if result.error else "success"


# Every door to the address ---

# What an environment and a command line can hold, less what settings may repair.
SAMPLE = [url for url in REFUSED if url.strip(" -/") == url != "" and url.isprintable() and url not in NORMALISED_FIRST]


def by_argument(url: str, patch: pytest.MonkeyPatch) -> ToolResult:
    return VaneClient(url).research(QUESTION)


def by_environment(url: str, patch: pytest.MonkeyPatch) -> ToolResult:
    patch.setenv("VANE_URL", url)
    return VaneClient().research(QUESTION)


def by_pickle(url: str, patch: pytest.MonkeyPatch) -> ToolResult:
    return pickle.loads(pickle.dumps(VaneClient(url))).research(QUESTION)


@pytest.mark.parametrize("door", [by_argument, by_environment, by_pickle])
def test_no_door_lets_a_refused_address_through(
    door: Callable[..., ToolResult], monkeypatch: pytest.MonkeyPatch, audit: list[object]
) -> None:
    """No socket is opened and no name looked up; `%config` and the command are tested with the faces."""
    assert len(SAMPLE) > 300
    for url in SAMPLE:
        assert code(door(url, monkeypatch)) == "SECURITY_BOUNDARY_VIOLATION", url
    assert audit == []


def test_the_commands_door_is_shut_as_well(
    capsys: pytest.CaptureFixture[str], audit: list[object], lock_path: Path
) -> None:
    """`--url`, as typed; a text that begins like an option is wrong usage."""
    for url in SAMPLE:
        assert main(["ask", QUESTION, "--json", "--url", url]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "SECURITY_BOUNDARY_VIOLATION", url
    assert audit == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks://127.0.0.1:9", "socks5h://x", "not a url"])
def test_no_proxy_variable_touches_a_question(
    ask: Callable[..., ToolResult], monkeypatch: pytest.MonkeyPatch, name: str, proxy: str
) -> None:
    """Nor a certificate file that is missing."""
    monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("NO_PROXY", "[::1]")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert code(ask(answer("A."))) == "success"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://evil.example/api/search", "SECURITY_BOUNDARY_VIOLATION"),
        ("http://127.0.0.2:3000/api/search", "SECURITY_BOUNDARY_VIOLATION"),
        ("\\\\evil.example\\x", "SECURITY_BOUNDARY_VIOLATION"),
        ("//127.0.0.1@evil.example/", "SECURITY_BOUNDARY_VIOLATION"),
        ("/api/search/", "UPSTREAM_SEARCH_ERROR"),
        ("http://127.0.0.1:1/api/search?x=1", "UPSTREAM_SEARCH_ERROR"),
        ("", "UPSTREAM_SEARCH_ERROR"),
    ],
)
def test_a_redirect_is_never_followed(
    scripted: Scripted, lock_path: Path, status: int, location: str, expected: str
) -> None:
    """One request to the search, whatever the server wishes."""
    server = scripted(reply(status, headers=[("location", location)]))
    assert code(VaneClient(server.url, lock_path=str(lock_path)).research(QUESTION)) == expected
    assert len(server.searches) == 1


# Behind Vane ---


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({"GET /api/config": None}, "success"),
        ({"GET /api/config": reply(500)}, "success"),
        ({"GET /api/config": reply(200, b"[" * 100_000)}, "success"),
        ({"GET /api/config": json_reply(200, {"values": {"modelProviders": "no"}})}, "success"),
        ({"GET /api/config": json_reply(200, ["x"])}, "success"),
        ({"GET /api/config": reply(200, b" " * (5 << 20))}, "success"),
        ({"GET /api/config": [head(200, CHUNKED), chunk(b"{"), reset]}, "success"),
        ({"GET /api/config": None, "GET /api/providers": reply(502, b"<html>")}, "UPSTREAM_SEARCH_ERROR"),
        ({"GET /api/config": reply(200, b"", [("content-encoding", "br")])}, "UPSTREAM_SEARCH_ERROR"),
        ({"GET /api/config": close}, "VANE_SERVICE_UNAVAILABLE"),
    ],
)
def test_a_configuration_that_cannot_be_had_falls_back_to_the_list_of_models(
    ask: Callable[..., ToolResult], routes: dict[str, Any], expected: str
) -> None:
    """Then nobody tells where the models run, and the result says so."""
    result = ask(answer("A."), routes=routes)
    assert code(result) == expected
    if result.success:
        assert result.run.locality == "unverified"
        assert "unverified" in result.card().plain()


def test_a_look_up_that_drips_ends_in_time(ask: Callable[..., ToolResult], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own five seconds, here shortened; nothing is posted."""
    monkeypatch.setattr("vane_magic.core.client.LOOK_UP_S", 0.5)
    start = time.monotonic()
    result = ask(answer("A."), routes={"GET /api/config": [head(200, CHUNKED), forever(chunk(b" "), sleep(0.05))]})
    assert code(result) == "VANE_SERVICE_UNAVAILABLE"
    assert time.monotonic() - start < 1.5


ODD_PROVIDERS: list[Any] = [
    [],
    [None, 3, "x", []],
    [{"id": 5, "name": None, "chatModels": "x", "embeddingModels": {}}],
    [{"chatModels": [None, {"key": ""}, {"key": 5}, {"name": "n"}]}],
    [{"id": "a", "name": "x" * 10_000, "chatModels": [{"key": "m" * 10_000}]}],
]
WITHOUT_ADDRESS: dict[str, Any] = {
    "id": "a", "config": "x", "chatModels": [{"key": "m"}], "embeddingModels": [{"key": "e"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("providers", "expected"),
    [
        *((providers, "CONFIGURATION_ERROR") for providers in ODD_PROVIDERS),
        ([{**WITHOUT_ADDRESS, "type": "ollama"}], "success"),
        ([WITHOUT_ADDRESS], "SECURITY_BOUNDARY_VIOLATION"),
    ],
)
def test_odd_providers_are_read_leniently(scripted: Scripted, lock_path: Path, providers: Any, expected: str) -> None:
    """Never an internal error; one that tells neither type nor address may be anywhere."""
    told = json_reply(200, {"values": {"modelProviders": providers}})
    server = scripted(answer("A."), routes={"GET /api/config": told})
    result = VaneClient(server.url, lock_path=str(lock_path)).research(QUESTION)
    assert code(result) == expected


def test_a_thousand_providers_are_not_too_many(ask: Callable[..., ToolResult]) -> None:
    """A choice among 20,000 models, in no time worth naming."""
    many = [provider(f"P{n}", chat=[f"m{n}-{k}" for k in range(20)]) for n in range(1000)]
    result = ask(answer("A."), config=config(many))
    assert result.run.chat_model == "P0/m0-0"
    assert result.run.fitting == 20_000


def test_a_vane_that_is_switched_to_a_cloud_model_between_two_questions(scripted: Scripted, lock_path: Path) -> None:
    """Each question looks anew; ids that change are no matter."""
    here = config([provider(provider_id="one")])
    there = config([provider(provider_id="two", kind="openai", base_url="https://api.openai.com/v1")])
    back = config([provider(provider_id="three")])
    told = in_turn(*(json_reply(200, each) for each in (here, there, back)))
    server = scripted(answer("A."), routes={"GET /api/config": told})
    client = VaneClient(server.url, lock_path=str(lock_path))
    assert [code(client.research(QUESTION)) for _ in range(3)] == ["success", "SECURITY_BOUNDARY_VIOLATION", "success"]
    assert [search.json()["chatModel"]["providerId"] for search in server.searches] == ["one", "three"]


def test_what_is_allowed_shows_on_the_card(scripted: Scripted, lock_path: Path) -> None:
    """`allow_remote` asks, and says where the question went."""
    server = scripted(answer("A."), config=config([provider(kind="openai", base_url="https://api.openai.com/v1")]))
    result = VaneClient(server.url, lock_path=str(lock_path), allow_remote=True).research(QUESTION)
    assert code(result) == "success"
    assert result.run.locality == "remote"
    assert "remote" in result.card().plain()


# Time ---

STAGES: dict[str, tuple[Any, str]] = {
    "silence before the headers": (hang, ""),
    "one byte each 100 ms in the headers": (drip(b"HTTP/1.1 200 OK\r\nx-slow: yes\r\n\r\n", 0.1), ""),
    "endless headers": ([b"HTTP/1.1 200 OK\r\n", forever(b"x-more: y\r\n", sleep(0.02))], ""),
    "endless 100 Continue": (forever(b"HTTP/1.1 100 Continue\r\n\r\n", sleep(0.02)), ""),
    "silence after the headers": ([head(200, CHUNKED), hang], ""),
    "silence after init": ([*stream(OPEN[0])[:-1], hang], ""),
    "silence after the sources": ([*stream(*OPEN)[:-1], hang], ""),
    "silence in the text": ([*PART, hang], "Half an ans"),
    "one byte each 100 ms in the body": ([*PART, drip(chunk(A), 0.1)], "Half an ans"),
    "one byte each 100 ms in a chunk's frame": ([*PART, drip(b"0000000000000000000001f\r\n", 0.1)], "Half an ans"),
    "blank lines for ever": ([*PART, forever(chunk(b"\n"), sleep(0.02))], "Half an ans"),
    "unknown events for ever": ([*PART, forever(chunk(b'{"type":"ping"}\n'), sleep(0.02))], "Half an ans"),
    "half a line": ([*PART, chunk(b'{"type":"response","data":"wer'), hang], "Half an ans"),
}


@pytest.mark.parametrize("stage", list(STAGES))
def test_the_limit_is_by_the_wall_clock_at_every_stage(
    ask: Callable[..., ToolResult], stage: str, lock_path: Path
) -> None:
    """It ends at the limit with what had come; the lock is free, and the next question is fine."""
    script, text = STAGES[stage]
    result = ask(script, timeout=0.6)
    assert code(result) in {"EXECUTION_TIMEOUT", "UPSTREAM_SEARCH_ERROR"}  # a cap may come before the limit
    assert result.answer == text
    assert result.telemetry.duration_ms < 2_000  # 600 ms, the look-up, and a busy machine
    assert bool(result.sources) is ("sources" in stage or bool(text))
    assert code(ask(answer("A."))) == "success"


WHOLE = b"".join(answer(["It is ", "so [1]."], [source()]))


@pytest.mark.parametrize("end", [close, reset], ids=["closed", "reset"])
def test_a_connection_cut_at_any_byte_is_no_success(scripted: Scripted, lock_path: Path, end: Any) -> None:
    """Only what says `done` is whole; the text that had come is kept."""
    cuts = [*range(0, len(WHOLE) - len(LAST_CHUNK) - 16, 23)]
    server = scripted(in_turn(*([WHOLE[:cut], end] for cut in cuts)))
    client = VaneClient(server.url, lock_path=str(lock_path))
    for cut in cuts:
        result = client.research(QUESTION)
        assert code(result) == ("VANE_SERVICE_UNAVAILABLE" if cut == 0 else "UPSTREAM_SEARCH_ERROR"), cut
        assert "It is so [1].".startswith(result.answer)


def test_a_stepped_wall_clock_changes_no_limit(ask: Callable[..., ToolResult], monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour forward and back."""
    for step in (3600, -3600):
        real = time.time
        monkeypatch.setattr(time, "time", lambda real=real, step=step: real() + step)
        result = ask([*PART, hang], timeout=0.4)
        assert code(result) == "EXECUTION_TIMEOUT"
        assert result.answer == "Half an ans"
        assert 400 <= result.telemetry.duration_ms < 1_500


def test_a_paused_process_finds_its_time_over(scripted: Scripted, lock_path: Path) -> None:
    """Stopped past its limit, it ends at once when it goes on, with what had come."""
    server = scripted([*PART, hang])
    program = (
        "import sys; from vane_magic.core.client import VaneClient;"
        "print(VaneClient(sys.argv[1], lock_path=sys.argv[2]).research('What is TCP?', timeout=1.5).to_json())"
    )
    process = subprocess.Popen([sys.executable, "-c", program, server.url, str(lock_path)], stdout=subprocess.PIPE)
    server.wait_for_searches(1, 30)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(2)  # the pause itself
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=5)
    result = ToolResult.model_validate_json(out)
    assert code(result) == "EXECUTION_TIMEOUT"
    assert result.telemetry.duration_ms >= 1_500


# Bodies ---


def body(*lines: bytes) -> list[bytes]:
    return [head(200, CHUNKED), *(chunk(line) for line in lines), LAST_CHUNK]


DONE = b'{"type":"done"}\n'
LONE = rb'{"type":"response","data":"a\ud800b \ude00 \ud83e\udd8a \\ud800"}' + b"\n"
SEPARATORS = '{"type":"response","data":"a\u2028b\u0085c"}\n'.encode()
ODD_DATA = b'{"type":"response"}\n{"type":"response","data":null}\n{"type":"response","data":7}\n'
EVENTS = [events(event) for event in answer_events("A.")]
GOOD: dict[str, tuple[Any, str]] = {
    "bad UTF-8": (body(b'{"type":"response","data":"a\xffb"}\n', DONE), "a\ufffdb"),
    "lone surrogates": (body(LONE, DONE), "a\ufffdb \ufffd 🦊 \\ud800"),
    "line separators in a line": (body(SEPARATORS, DONE), "a\u2028b\u0085c"),
    "NUL and controls": (body(rb'{"type":"response","data":"a\u0000\u001bb"}' + b"\n", DONE), "a\0\x1bb"),
    "one object": (json_reply(200, {"message": "A.", "sources": [source()]}), "A."),
    "one object as a stream": (body(json.dumps({"message": "A.", "sources": []}).encode()), "A."),
    "events after done": (body(*EVENTS, A), "A."),
    "no line end after done": (body(A, DONE[:-1]), "A."),
    "carriage returns": (body(A[:-1] + b"\r\n", DONE[:-1] + b"\r\n"), "A."),
    "data that is missing, null or a number": (body(ODD_DATA, A, DONE), "A."),
    "sources that are no list": (body(b'{"type":"sources","data":{"a":1}}\n', A, DONE), "A."),
    "lines that are no objects": (body(b'3\n"x"\n[]\nnull\n', A, DONE), "A."),
}
BAD: dict[str, tuple[Any, str]] = {
    "one object without an answer": (json_reply(200, {"sources": []}), ""),
    "an object that says nothing": (body(b"{}\n", DONE), ""),
    "NaN": (body(b'{"type":"response","data":NaN}\n', DONE), ""),
    "a hundred thousand brackets": (body(b"[" * 100_000 + b"\n", DONE), ""),
    "a number without end": (body(b'{"type":"response","data":' + b"9" * 100_000 + b"}\n", DONE), ""),
    "half of the JSON": (body(A, A[:15]), "A."),
    "SSE with data:": (body(b"data: " + A + b"\n", DONE), ""),
    "an HTML page": (reply(200, b"<!DOCTYPE html><title>Sign in</title>"), ""),
    "nothing": (reply(200), ""),
    "gzip that would be huge": (reply(200, b"\x1f\x8b" + b"\0" * 1000, [("content-encoding", "gzip")]), ""),
}
BODIES = {name: (*case, "success") for name, case in GOOD.items()} | {
    name: (*case, "UPSTREAM_SEARCH_ERROR") for name, case in BAD.items()
}


@pytest.mark.parametrize("name", list(BODIES))
def test_a_body_is_read_leniently_or_refused_in_words(ask: Callable[..., ToolResult], name: str) -> None:
    """Nothing crashes, nothing lone gets into a hash, and the part that had come is kept."""
    script, text, expected = BODIES[name]
    result = ask(script)
    assert (code(result), result.answer) == (expected, text)
    result.to_json().encode()
    result.card().html().encode()
    assert result.data is None or result.verify()


def test_a_large_answer_is_whole_in_the_object_and_short_on_the_page(ask: Callable[..., ToolResult]) -> None:
    """Twelve megabytes of text."""
    result = ask(answer(["word " * 100_000] * 24, [source()]))
    assert code(result) == "success"
    assert len(result.answer) == 12_000_000
    assert len(result.card().html()) + len(result.card().plain()) < 100_000


def test_three_hundred_sources_and_odd_ones_keep_their_numbers(ask: Callable[..., ToolResult]) -> None:
    """Missing parts are empty, and the odd ones are reported."""
    odd = [
        {},
        None,
        {"metadata": None},
        {"content": 3, "metadata": {"title": ["x"], "url": 5}},
        source(url="javascript:x"),
    ]
    result = ask(answer("[3] [299] [301]", [*odd, *(source(f"T{n}", f"https://s.example/{n}") for n in range(6, 301))]))
    assert result.run.source_count == 300
    assert [s.source_id for s in result.sources] == ["1", "2", "3", "4", "5", "6", "7", "299"]
    assert (list(result.run.citations), result.run.dangling) == ([3, 299], (301,))
    assert any("Sources 1, 2, 3, 4, 5 came without" in note for note in result.run.notes)


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_line_is_parsed_or_refused(lines: list[bytes]) -> None:
    """No exception but ours comes out of the decoder."""
    received = Received()
    for line in lines:
        try:
            _take_event(_parse(line), received)
        except UpstreamSearchError:
            continue
    assert all(isinstance(piece, str) for piece in received.pieces)


@given(st.text(), st.integers(0, 5))
def test_any_text_survives_the_decoder(text: str, cut: int) -> None:
    """As JSON with or without escapes; lone surrogates become U+FFFD, everything else stays."""
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    escaped = json.dumps({"type": "response", "data": text}).encode()
    received = Received()
    _take_event(_parse(escaped), received)
    assert "".join(received.pieces).replace("\ufffd", "") == expected.replace("\ufffd", "")


def test_the_keys_of_the_server_are_in_no_log_or_exception(
    scripted: Scripted, lock_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when our own code fails right after reading them."""
    caplog.set_level("DEBUG")

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("vane_magic.core.client.choose", fail)
    result = VaneClient(scripted(answer("A.")).url, lock_path=str(lock_path)).research(QUESTION)
    assert code(result) == "INTERNAL_ERROR"
    assert API_KEY not in caplog.text + result.to_json() + repr(result.run)


def test_after_everything_the_lock_is_free_and_the_socket_closed(scripted: Scripted, lock_path: Path) -> None:
    """One client through ten ends in a row."""
    ends = [
        hang,
        reset,
        close,
        reply(500),
        [*PART, hang],
        [*PART, reset],
        reply(200),
        answer(""),
        answer("<think>x"),
        answer("A."),
    ]
    server = scripted(in_turn(*ends))
    client = VaneClient(server.url, lock_path=str(lock_path))
    for _ in ends:
        client.research(QUESTION, timeout=0.3)
        server.wait_until_idle(5)
        with GpuLock(lock_path):
            pass
    assert len(server.searches) == len(ends)
