"""A server that answers by script, for everything that Vane was not recorded doing, and worse.

A script is bytes to send, a step (a function of the `Connection`), or any iterable of scripts::

    ScriptedServer(answer("It is [1].", sources=[source("A page")]))         # the usual stream
    ScriptedServer([*answer("It is", sources=[])[:-2], reset])               # broken before `done`
    ScriptedServer([head(200, [("content-length", "9")]), drip(b"x" * 9, 0.1)])
    ScriptedServer([b"HTTP/1.1 200 OK\\r\\n", forever(b"x-more: y\\r\\n")])      # endless headers
    ScriptedServer(forever(b"HTTP/1.1 100 Continue\\r\\n\\r\\n", sleep(0.1)))
    ScriptedServer(in_turn(json_reply(503, {}, [("retry-after", "30")]), answer("Now.")))
    ScriptedServer(config=config([provider(base_url="https://api.openai.com/v1", kind="openai")]))

Each request plays its script from the start, so a script is no iterator.
The connection closes at a script's end, unless `keep_open` stands in it.
"""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import OK, responses
from pathlib import Path
from typing import Any, Final

from servers.listener import SEARCH, Connection, Script, Server, Step

Headers = Iterable[tuple[str, str]]

API_KEY: Final = "sk-this-key-must-show-nowhere"
LAST_CHUNK: Final = b"0\r\n\r\n"
CHUNKED: Final = [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]

_CASES: Final = Path(__file__).parent.parent / "cases" / "cases.json"
CASES: Final = {case["id"]: case for case in json.loads(_CASES.read_text(encoding="utf-8"))}

# Steps ---

close: Final[Step] = Connection.close
reset: Final[Step] = Connection.reset
hang: Final[Step] = Connection.hang


def keep_open(connection: Connection) -> None:
    """Let the connection live on for the client's next request."""
    connection.keep_open = True


def sleep(seconds: float) -> Step:
    return lambda connection: connection.sleep(seconds)


def wait(event: threading.Event) -> Step:
    return lambda connection: connection.wait(event)


def forever(*scripts: Script) -> Step:
    """Play the scripts again and again, until the client leaves."""
    return lambda _: itertools.cycle(scripts)


def drip(data: bytes, interval: float, size: int = 1) -> Step:
    """Send data in pieces of `size` bytes, with `interval` seconds after each."""
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return lambda _: itertools.chain.from_iterable((piece, sleep(interval)) for piece in pieces)


def in_turn(*scripts: Script) -> Step:
    """Answer the n-th request by the n-th script, and all later ones by the last."""
    turn = itertools.chain(scripts, itertools.repeat(scripts[-1]))
    guard = threading.Lock()

    def step(_: Connection) -> Script:
        with guard:
            return next(turn)

    return step


# Bytes ---


def head(status: int = 200, headers: Headers = ()) -> bytes:
    """Status line and headers, just as given."""
    lines = [f"{status} {responses.get(status, 'Odd')}", *(f"{name}: {value}" for name, value in headers)]
    return ("HTTP/1.1 " + "\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One transfer chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def reply(status: int = 200, body: bytes = b"", headers: Headers = ()) -> bytes:
    """One whole response with Content-Length."""
    return head(status, [*headers, ("content-length", str(len(body))), ("connection", "close")]) + body


def json_reply(status: int, obj: object, headers: Headers = ()) -> bytes:
    """One whole response with a JSON body."""
    return reply(status, json.dumps(obj).encode(), [("content-type", "application/json"), *headers])


def events(*items: Mapping[str, Any] | bytes) -> bytes:
    """Events as lines of JSON; bytes are a line as they stand."""
    lines = (item if isinstance(item, bytes) else json.dumps(item).encode() for item in items)
    return b"".join(line + b"\n" for line in lines)


def stream(*items: Mapping[str, Any] | bytes) -> list[bytes]:
    """A stream as Vane sends it: the head, a chunk for each event, the last chunk."""
    return [head(200, CHUNKED), *(chunk(events(item)) for item in items), LAST_CHUNK]


def source(title: str = "A page", url: str = "https://docs.example/page", content: str = "Words.") -> dict[str, Any]:
    """A source in Vane's shape."""
    return {"content": content, "metadata": {"title": title, "url": url}}


def answer(text: str | Sequence[str], sources: Sequence[Any] | None = None) -> list[bytes]:
    """The usual stream; a list of texts comes in as many events, and without sources there was no search."""
    return stream(*answer_events(text, sources))


def answer_events(text: str | Sequence[str], sources: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    """The events of the usual stream."""
    return [
        {"type": "init", "data": "Stream connected"},
        *([] if sources is None else [{"type": "sources", "data": list(sources)}]),
        *({"type": "response", "data": part} for part in ([text] if isinstance(text, str) else text)),
        {"type": "done"},
    ]


# What GET /api/config tells ---


def provider(
    name: str = "Ollama",
    *,
    kind: str = "ollama",
    base_url: str | None = "http://127.0.0.1:11434",
    chat: Iterable[str] = ("qwen3:8b",),
    embedding: Iterable[str] = ("nomic-embed-text:latest",),
    provider_id: str | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    """A model provider in Vane's shape, with an API key; `error` makes it one that failed, and why."""
    return {
        "id": provider_id or str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
        "name": name,
        "type": kind,
        "chatModels": [{"key": "error", "name": error}] if error else [{"key": k, "name": k} for k in chat],
        "embeddingModels": [] if error else [{"key": k, "name": k} for k in embedding],
        "config": {"apiKey": API_KEY} | ({"baseURL": base_url} if base_url else {}),
        "hash": "0" * 64,
    }


def config(
    providers: Iterable[dict[str, Any]] | None = None, searxng: str = "http://127.0.0.1:8080", *, setup: bool = True
) -> dict[str, Any]:
    """The body of GET /api/config; by default of a Vane with one local Ollama."""
    values = {
        "version": 1,
        "setupComplete": setup,
        "preferences": {},
        "personalization": {},
        "modelProviders": list([provider()] if providers is None else providers),
        "search": {"searxngURL": searxng},
    }
    return {"values": values, "fields": {"preferences": [], "personalization": [], "modelProviders": [], "search": []}}


def provider_list(told: Mapping[str, Any]) -> dict[str, Any]:
    """What GET /api/providers makes of a configuration: no types, no failed providers."""
    shown = ("id", "name", "chatModels", "embeddingModels")
    working = (p for p in told["values"]["modelProviders"] if all(m["key"] != "error" for m in p["chatModels"]))
    return {"providers": [{key: entry[key] for key in shown} for entry in working]}


# Servers ---

NOT_FOUND: Final = reply(404, b"<!DOCTYPE html><title>404</title>", [("content-type", "text/html")])


class ScriptedServer(Server):
    """A Vane that is set up and healthy, but for what the scripts say.

    Parameters
    ----------
    search
        The script for POST /api/search.
    config
        The body of GET /api/config, from which GET /api/providers follows.
    routes
        Scripts for these and other routes; None is an HTML page with status 404, as for every unknown route.
    options
        As for `Server`.
    """

    def __init__(
        self,
        search: Script = NOT_FOUND,
        *,
        config: Mapping[str, Any] = config(),
        routes: Mapping[str, Script | None] | None = None,
        **options: Any,
    ) -> None:
        scripts: dict[str, Script | None] = {
            "GET /api/config": json_reply(200, config),
            "GET /api/providers": json_reply(200, provider_list(config)),
            SEARCH: search,
            **(routes or {}),
        }
        known = {route: script for route, script in scripts.items() if script is not None}
        super().__init__(known, fallback=NOT_FOUND, **options)


def case_server(case_id: str, **options: Any) -> ScriptedServer:
    """The server side of a user case; GET /api/config is unknown to it.

    A search's answer comes as events when the request asks for a stream and as one object when not,
    whichever way the case has it.
    """
    written = CASES[case_id]["server"]
    if not written:
        raise ValueError(f"case {case_id} has no server")
    routes = {route: in_turn(*map(_case_script, r.get("sequence", [r]))) for route, r in written.items()}
    return ScriptedServer(routes={"GET /api/config": None, **routes}, **options)


def _case_script(written: Mapping[str, Any]) -> Step:
    def step(connection: Connection) -> Iterator[Script]:
        yield sleep(written.get("wait_ms", 0) / 1000)
        if written.get("hang"):
            yield hang
        elif "event-stream" in written["headers"]["content-type"]:
            yield _case_events(written) if _wants_stream(connection) else _case_object(written)
        else:
            yield _case_body(written, stream=_wants_stream(connection))

    return step


def _wants_stream(connection: Connection) -> bool:
    try:
        return connection.request.json().get("stream") is True
    except (ValueError, AttributeError):
        return False


def _case_pieces(written: Mapping[str, Any]) -> list[tuple[float, bytes]]:
    """Pause in seconds and bytes of each piece of a stream."""
    if written.get("generate") == "many_pieces":
        words = [f"word{number} " for number in range(written["count"])]
        return [(0.0005, events(event)) for event in answer_events(words, [source()])]
    return [(piece["delay_ms"] / 1000, piece["text"].encode()) for piece in written["chunks"]]


def _case_events(written: Mapping[str, Any]) -> Script:
    ends: dict[str, Script] = {"close": LAST_CHUNK, "abort": (sleep(0.2), reset)}
    pieces = ((sleep(pause), chunk(data)) for pause, data in _case_pieces(written))
    return (head(200, CHUNKED), pieces, ends[written["then"]])


def _case_object(written: Mapping[str, Any]) -> Script:
    """What a stream would have been as one object: an empty 500 when it breaks."""
    lines = b"".join(data for _, data in _case_pieces(written)).splitlines()
    told = [json.loads(line) for line in lines]
    if {"type": "done"} not in told:
        return reply(500)
    text = "".join(event["data"] for event in told if event["type"] == "response")
    sources = [entry for event in told if event["type"] == "sources" for entry in event["data"]]
    return json_reply(200, {"message": text, "sources": sources})


def _case_body(written: Mapping[str, Any], *, stream: bool) -> Script:
    text = written.get("body", "")
    if written.get("generate") == "big_source":
        page = "Words of a long page. ".ljust(written["size"], "x")
        text = json.dumps({"message": "Short answer [1].", "sources": [source("Long page", content=page)]})
    if stream and written["status"] == OK:
        whole = json.loads(text)
        return answer(whole["message"] or [], whole["sources"] or None)
    return reply(written["status"], text.encode(), written["headers"].items())
