"""Every row of the table of codes is reached, with the message a person sees: `docs/outcomes/errors.md`.

`pytest tests/test_faults.py --write-tables` writes the table anew.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.listener import closed_port
from servers.scripted import (
    LAST_CHUNK,
    ScriptedServer,
    answer,
    answer_events,
    chunk,
    config,
    events,
    hang,
    head,
    json_reply,
    provider,
    reply,
    reset,
    source,
    stream,
)
from tables import Table

from vane_magic.core import client as client_module
from vane_magic.core.client import Progress, VaneClient
from vane_magic.core.contract import ToolResult
from vane_magic.core.errors import Interrupted
from vane_magic.core.gpu_lock import GpuLock
from vane_magic.core.modes import ErrorCode

TABLE = Table("errors.md", ("code", "fallback", "when", "message"), key=2)
OPEN = [{"type": "init", "data": "Stream connected"}, {"type": "sources", "data": [source()]}]
PART = stream(*OPEN, {"type": "response", "data": "Half an ans"})[:-1]


class Asking:
    """What a row's function may use to bring its fault about."""

    def __init__(self, lock_path: Path, patch: pytest.MonkeyPatch, start: Callable[..., ScriptedServer]) -> None:
        self.lock_path, self.patch, self.start = lock_path, patch, start

    def __call__(self, search: Any = (), query: Any = "What is TCP?", **options: Any) -> ToolResult:
        """Ask a healthy server, but for the search's script."""
        return self.of(self.start(search), query, **options)

    def of(self, server: ScriptedServer, query: Any = "What is TCP?", **options: Any) -> ToolResult:
        return self.at(server.url, query, **options)

    def at(self, url: Any, query: Any = "What is TCP?", *, made: Any = None, **options: Any) -> ToolResult:
        return VaneClient(url, **{"lock_path": str(self.lock_path), **(made or {})}).research(query, **options)

    def told(self, *providers: dict[str, Any], chat_model: str | None = None, **told: Any) -> ToolResult:
        """Ask a server with these providers."""
        return self.of(self.start(answer("A."), config=config(providers, **told)), chat_model=chat_model)


Row = Callable[[Asking], ToolResult]
ROWS: dict[tuple[ErrorCode, str], Row] = {}


def row(code: ErrorCode, when: str) -> Callable[[Row], Row]:
    def keep(function: Row) -> Row:
        ROWS[code, when] = function
        return function

    return keep


def rows(code: ErrorCode, made: dict[str, Row]) -> None:
    ROWS.update({(code, when): function for when, function in made.items()})


rows(
    ErrorCode.INVALID_INPUT,
    {
        "the question is no text": lambda ask: ask(query=7),
        "the question is too short": lambda ask: ask(query=" ab "),
        "the question holds NUL": lambda ask: ask(query="a\0bc"),
        "the question holds a lone surrogate": lambda ask: ask(query="abc\ud800"),
        "a bad mode with the call": lambda ask: ask(mode="sped"),
        "a bad number of sources with the call": lambda ask: ask(max_sources=0),
        "a bad scope with the call": lambda ask: ask(scope="images"),
    },
)
rows(
    ErrorCode.SECURITY_BOUNDARY_VIOLATION,
    {
        "an address off the machine": lambda ask: ask.at("http://192.168.1.20:3000"),
        "no address": lambda ask: ask.at("vane"),
        "an address that is no text": lambda ask: ask.at(3000),
        "a redirect of the look-up off the machine": lambda ask: ask.of(
            ask.start(routes={"GET /api/config": reply(307, headers=[("location", "http://evil.example/api")])})
        ),
        "a redirect of the search off the machine": lambda ask: ask(
            reply(308, headers=[("location", "//evil.example/api/search")])
        ),
        "a cloud provider's chat model": lambda ask: ask.told(
            provider("OpenAI", kind="openai", base_url="https://api.openai.com/v1")
        ),
        "a model that Ollama runs in its cloud": lambda ask: ask.told(provider(chat=["gpt-oss:120b-cloud"])),
        "a remote embedding model": lambda ask: ask.told(
            provider(embedding=[]), provider("Cloud", kind="gemini", base_url=None, chat=[])
        ),
        "a remote search engine": lambda ask: ask.told(provider(), searxng="https://searx.example.org"),
    },
)
rows(
    ErrorCode.CONFIGURATION_ERROR,
    {
        "a bad value of VaneClient": lambda ask: ask.at(None, made={"mode": "fast"}),
        "a bad wait": lambda ask: ask(wait=-1),
        "a bad timeout": lambda ask: ask(timeout=0),
        "a timeout above the mode's limit": lambda ask: ask(timeout=31),
        "a relative lock path": lambda ask: ask.at(ask.start(answer("A.")).url, made={"lock_path": "here/lock"}),
        "a lock path that cannot be written": lambda ask: ask.at(
            ask.start(answer("A.")).url, made={"lock_path": "/proc/lock"}
        ),
        "an unknown model": lambda ask: ask.told(provider(), chat_model="mistral"),
        "a model's name that fits two": lambda ask: ask.told(
            provider(provider_id="a"), provider(provider_id="b"), chat_model="qwen3:8b"
        ),
        "no chat model": lambda ask: ask.told(),
        "no chat model, and the provider says why": lambda ask: ask.told(
            provider(error="Error connecting to Ollama API.")
        ),
        "no embedding model": lambda ask: ask.told(provider(embedding=[])),
        "set-up not done": lambda ask: ask.told(provider("Transformers", kind="transformers", chat=[]), setup=False),
        "a server of 1.10 or earlier": lambda ask: ask.of(
            ask.start(
                routes={
                    "GET /api/config": None,
                    "GET /api/providers": None,
                    "GET /api/models": json_reply(200, {"chatModelProviders": {}, "embeddingModelProviders": {}}),
                }
            )
        ),
        "a server of 1.11": lambda ask: ask(json_reply(400, {"message": "Missing focus mode or query"})),
    },
)
rows(
    ErrorCode.UPSTREAM_SEARCH_ERROR,
    {
        "status 500 with Vane's fixed text": lambda ask: ask(json_reply(500, {"message": "An error has occurred."})),
        "status 500 with an empty body": lambda ask: ask(reply(500)),
        "status 503 that asks to wait": lambda ask: ask(json_reply(503, {}, [("retry-after", "30")])),
        "status 429": lambda ask: ask(reply(429)),
        "status 401": lambda ask: ask(reply(401)),
        "another program: pages with status 404": lambda ask: ask.of(
            ask.start(routes={"GET /api/config": None, "GET /api/providers": None})
        ),
        "another program: pages with status 200": lambda ask: ask.of(
            ask.start(
                routes=dict.fromkeys(
                    ("GET /api/config", "GET /api/providers", "GET /api/models"), reply(200, b"<html>Grafana</html>")
                )
            )
        ),
        "a redirect on the machine": lambda ask: ask(reply(307, headers=[("location", "/login")])),
        "a stream that is cut": lambda ask: ask([*PART, reset]),
        "a stream that ends without done": lambda ask: ask([*PART, LAST_CHUNK]),
        "a line that is unreadable": lambda ask: ask([*PART, chunk(b'{"type": oops}\n'), LAST_CHUNK]),
        "a line over 4 MiB": lambda ask: ask([*PART, chunk(b'{"type":"' + b"x" * 5_000_000 + b'"}\n'), LAST_CHUNK]),
        "a body over 16 MiB": lambda ask: ask(
            [*PART, *[chunk(events({"type": "response", "data": "x" * 1_000_000}))] * 17, LAST_CHUNK]
        ),
        "an encoded body": lambda ask: ask(reply(200, b"\x1f\x8b", [("content-encoding", "gzip")])),
        "an empty answer": lambda ask: ask(answer("", [source()])),
        "only thinking": lambda ask: ask(answer("<think>hm")),
        "an error event": lambda ask: ask(stream(*OPEN, {"type": "error", "data": "context too long"})),
    },
)
rows(
    ErrorCode.VANE_SERVICE_UNAVAILABLE,
    {"the connection is reset before any byte": lambda ask: ask.of(ask.start(routes={"GET /api/config": reset}))},
)
rows(
    ErrorCode.EXECUTION_TIMEOUT,
    {
        "silence": lambda ask: ask(hang, timeout=0.3),
        "silence in speed mode": lambda ask: ask(hang, mode="speed", timeout=0.3),
        "silence after a part of the answer": lambda ask: ask([*PART, hang], timeout=0.3),
    },
)


@row(ErrorCode.CONFIGURATION_ERROR, "a bad value in the environment")
def _(ask: Asking) -> ToolResult:
    ask.patch.setenv("VANE_MAX_SOURCES", "many")
    return ask()


@row(ErrorCode.VANE_SERVICE_UNAVAILABLE, "nothing listens")
def _(ask: Asking) -> ToolResult:
    with closed_port() as port:
        return ask.at(f"http://127.0.0.1:{port}")


@row(ErrorCode.VANE_SERVICE_UNAVAILABLE, "the look-up hangs")
def _(ask: Asking) -> ToolResult:
    ask.patch.setattr(client_module, "LOOK_UP_S", 0.3)
    return ask.of(ask.start(routes={"GET /api/config": hang}))


@row(ErrorCode.VRAM_CONCURRENCY_SATURATED, "another worker holds the lock")
def _(ask: Asking) -> ToolResult:
    with GpuLock(ask.lock_path, mode="quality"):
        return ask(answer("A."))


@row(ErrorCode.VRAM_CONCURRENCY_SATURATED, "the lock is lost before sending")
def _(ask: Asking) -> ToolResult:
    acquire = GpuLock.acquire

    def lose(lock: GpuLock, *args: Any) -> GpuLock:
        acquire(lock, *args)
        ask.lock_path.unlink()
        return lock

    ask.patch.setattr(GpuLock, "acquire", lose)
    server = ask.start(answer("A."))
    result = ask.of(server)
    assert server.searches == []
    return result


@row(ErrorCode.EXECUTION_TIMEOUT, "the lock is lost before returning")
def _(ask: Asking) -> ToolResult:
    def lose(progress: Progress) -> None:
        if progress.text:
            ask.lock_path.unlink(missing_ok=True)

    return ask(answer("A whole answer [1].", [source()]), on_progress=lose)


@row(ErrorCode.CANCELLED, "stopped by a token")
def _(ask: Asking) -> ToolResult:
    cancel = threading.Event()
    return ask([*PART, hang], cancel=cancel, on_progress=lambda progress: progress.text and cancel.set())


@row(ErrorCode.CANCELLED, "stopped by Ctrl-C")
def _(ask: Asking) -> ToolResult:
    def interrupt(progress: Progress) -> None:
        if progress.text:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as raised:
        ask([*PART, hang], on_progress=interrupt)
    return raised.value.result


@row(ErrorCode.INTERNAL_ERROR, "a fault of our own")
def _(ask: Asking) -> ToolResult:
    ask.patch.setattr(client_module, "content_hash", lambda **_: 1 / 0)
    return ask(answer("A."))


KEPT = {
    "a stream that is cut", "a stream that ends without done", "a line that is unreadable", "a line over 4 MiB",
    "a body over 16 MiB", "silence after a part of the answer", "the lock is lost before returning",
    "stopped by a token", "stopped by Ctrl-C",
}  # fmt: skip


@pytest.fixture
def ask(
    lock_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Callable[..., ScriptedServer], tmp_path: Path
) -> Asking:
    monkeypatch.chdir(tmp_path)
    return Asking(lock_path, monkeypatch, scripted)


def plain(message: str, ask: Asking) -> str:
    """A message without what differs from run to run."""
    message = message.replace(str(ask.lock_path), "$HOME/.vane-gpu-worker.lock").replace(str(os.getpid()), "4711")
    message = message.replace(socket.gethostname(), "host")
    message = re.sub(r"(127\.0\.0\.1|localhost):\d{4,5}", r"\1:3000", message)
    return re.sub(r"\d\d:\d\d:\d\d(\.\d+)?|\d{4}-\d\d-\d\dT[\d:.+Z]+", "12:03:11", message)


@pytest.mark.parametrize(("code", "when"), list(ROWS))
def test_each_condition_ends_in_its_code_and_message(
    code: ErrorCode, when: str, ask: Asking, write_tables: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What happened, the likeliest cause of its kind, the next step; what had come is kept; the lock is free."""
    result = ROWS[code, when](ask)
    assert result.error is not None
    found = (code.value, "yes" if code.fallback_recommended else "no", when, plain(result.error.message, ask))
    if write_tables:
        TABLE.put(found)
    assert result.error.code == code
    assert TABLE.row(when) == found
    if when in KEPT:
        assert result.answer
        assert result.sources
        assert result.verify()
        assert result.card().banner
    with GpuLock(ask.lock_path):
        pass  # free at once


def test_every_code_is_reached() -> None:
    """And the table has no row that nothing leads to."""
    assert {code for code, _ in ROWS} == set(ErrorCode)
    assert sorted(TABLE.keys()) == sorted(when for _, when in ROWS)


def test_a_failed_result_says_what_to_do_next() -> None:
    """But where the next step is obvious: to ask again, or to mend the question."""
    rows_ = [TABLE.row(when) for _, when in ROWS]
    assert all(row_ is not None and len(row_[3]) > 20 for row_ in rows_)


def test_a_server_that_sends_no_type_of_content_is_understood(ask: Asking) -> None:
    """The body decides, not its label."""
    lines = events(*answer_events("It is.", [source()]))
    result = ask([head(200, [("content-length", str(len(lines)))]), lines])
    assert result.success
    assert result.answer == "It is."
