"""The loopback service: Vane's wire protocol over an index of local documents."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final, Self, TextIO, cast
from weakref import WeakSet

from vane_magic.localdocs.answer import compose
from vane_magic.localdocs.index import Progress, digest, open_index

_JSON, _TEXT, _EVENTS = "application/json", "text/plain; charset=utf-8", "text/event-stream"
_ID: Final = "6a1f3c0e-53a5-4a43-9c0b-7f0d6f0c5f11"
_MODELS: Final = {"chat_model": "extractive (no language model)", "embedding_model": "none (never asked)"}
_METHODS: Final = {"/api/config": "GET", "/api/providers": "GET", "/api/search": "POST"}
_PAGE: Final = re.compile(r"/doc/([0-9a-f]{32})(?:\?passage=([0-9]{1,7}))?")
_LOOPBACK: Final = re.compile(r"(?i)(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
_INERT: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'"}
_DOCUMENT: Final = "SELECT path, text FROM passage WHERE passage MATCH ? ORDER BY place"


@dataclass(eq=False)
class Service:
    """A loopback service over an index of documents; a context manager.

    Once started it has `url`, `documents` (how many), `lock_path` (a lock of its own, since no GPU is used), and
    `settings`: the client's, to ask it with whatever the environment names for another server.

    Parameters
    ----------
    folders
        Where the documents are: Markdown, text, HTML, notebooks. None: the default corpus.
    port
        The port on 127.0.0.1. 0: one that the folders' paths choose, so that a document's address stays the same from
        run to run; any free one when that is taken.
    cache_dir
        Where the index is kept; by default the user's cache directory, or a temporary one where that cannot be written.
    on_progress
        Called while documents are read, with how many are done and how many there are.
    """

    folders: Sequence[Path] = ()
    _: KW_ONLY
    port: int = 0
    cache_dir: Path | None = None
    on_progress: Progress | None = None
    _running: ExitStack = field(init=False, default_factory=ExitStack)

    def start(self) -> Self:
        """Index what has changed, then listen; returns this service.

        Raises
        ------
        ValueError
            A folder is not there, or no folder, or there are too many documents.
        OSError
            A folder cannot be read, or the port cannot be had.
        """
        self.stop()
        folders = [folder.expanduser().resolve() for folder in self.folders]
        with ExitStack() as stack:
            own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vane-", ignore_cleanup_errors=True)))
            index = stack.enter_context(closing(open_index(folders, _cache(self.cache_dir, own), self.on_progress)))
            usual = 20_000 + int(digest(*sorted(map(str, folders))), 16) % 10_000  # below those of outgoing connections
            server = stack.enter_context(_Server([self.port] if self.port else [usual, 0], index))
            thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="localdocs", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            (self.documents,) = index.execute("SELECT documents FROM manifest").fetchone()
            self.url, self.lock_path = server.url, own / "localdocs.lock"
            self.settings = {"url": self.url, "lock_path": str(self.lock_path), **_MODELS}
            self._running = stack.pop_all()
        return self

    def stop(self, *_: object) -> None:
        """Stop listening, and end what is being answered; safe to repeat."""
        self._running.close()

    __enter__, __exit__ = start, stop


def serve_forever(folders: Sequence[Path], port: int, out: TextIO) -> None:
    """Serve until Ctrl-C or SIGTERM; progress, address and number of documents are printed to `out`.

    Raises
    ------
    ValueError, OSError
        As `Service.start` raises them.
    """

    def tell(done: int, total: int) -> None:
        print(f"Read {done} of {total} documents.", file=out, flush=True)

    with suppress(KeyboardInterrupt), ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        service = stack.enter_context(Service(folders, port=port, on_progress=tell))
        count = f"{service.documents} document{'s' * (service.documents != 1)}"
        print(f"Serving {count} at {service.url} (Ctrl-C stops).", file=out, flush=True)
        threading.Event().wait()


def _cache(wanted: Path | None, spare: Path) -> Path:
    """Return a directory for the index that can be written, private when it is the default."""
    place = wanted or Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "vane-magic")
    with suppress(OSError):
        place.mkdir(0o700, parents=True, exist_ok=True)
    return place.resolve() if os.access(place, os.W_OK | os.X_OK) else spare


class _Server(ThreadingHTTPServer):
    """It listens on the first port that can be had; a thread for each connection, all ended and awaited on closing."""

    daemon_threads, request_queue_size = False, 64
    allow_reuse_address, allow_reuse_port = os.name == "posix", False  # a port that is taken is never shared

    def __init__(self, ports: Sequence[int], index: sqlite3.Connection) -> None:
        self.index, self.guard, self.open = index, threading.Lock(), WeakSet[socket.socket]()
        for port in ports:
            try:
                super().__init__(("127.0.0.1", port), _Handler)
                break
            except (OSError, OverflowError) as error:
                if port == ports[-1]:
                    raise OSError(f"Cannot listen on 127.0.0.1:{port}: {error}. Choose another port.") from error
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks the resolver for this host's name

    def server_close(self) -> None:
        for connection in tuple(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    """One request on one connection; nothing but the index is ever served."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - no other server has it
    protocol_version, server_version, sys_version = "HTTP/1.1", "localdocs", ""
    disable_nagle_algorithm, timeout = True, 5  # a body waits for no acknowledgement of its head; seconds of silence

    def handle(self) -> None:
        self.server.open.add(self.connection)
        with suppress(OSError):  # a client that left
            super().handle()

    def log_message(self, *_: object, **__: object) -> None:
        """Keep silent: questions are private."""

    def answer(self) -> None:
        """Answer a request, whatever its method."""
        status, kind, body = self._respond()
        framing = {"Transfer-Encoding": "chunked"} if kind == _EVENTS else {"Content-Length": str(len(body))}
        self.send_response(status)
        for name, value in {"Content-Type": kind, **framing, "Connection": "close", **_INERT}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815 - http.server's names

    def _respond(self) -> tuple[int, str, bytes]:
        """Return the status, kind and body of the response."""
        path, page = self.path.split("?")[0], _PAGE.fullmatch(self.path)
        method = "GET" if page else _METHODS.get(path)
        length = self.headers.get("Content-Length", "0")
        body = self.rfile.read(int(length)) if re.fullmatch("[0-9]{1,7}", length) else None
        if self.request_version != "HTTP/1.1" or not _LOOPBACK.fullmatch(self.headers.get("Host", "")):
            return 403, _JSON, _json({"message": "Only HTTP/1.1 under a loopback name is answered."})
        if body is None:
            return 413, _JSON, _json({"message": "A body needs a Content-Length, of at most 9999999."})
        if self.command != method:
            return 405 if method else 404, _TEXT, b""
        if page:
            return self._document(*page.groups())
        return self._search(body) if method == "POST" else (200, _JSON, _json(_settings(self.server.url, path)))

    def _document(self, name: str, place: str | None) -> tuple[int, str, bytes]:
        """Return a document as text, the cited passage between marks."""
        with self.server.guard:
            rows = self.server.index.execute(_DOCUMENT, (f'id:"{name}"',)).fetchall()
        texts = [text if str(number) != place else f">>>>\n{text}\n<<<<" for number, (_, text) in enumerate(rows)]
        return 200 if rows else 404, _TEXT, "\n\n".join([path for path, _ in rows[:1]] + texts).encode()

    def _search(self, body: bytes) -> tuple[int, str, bytes]:
        """Answer a question, whole or as a stream of events."""
        try:
            request = _request(body)
        except (ValueError, TypeError, LookupError, RecursionError):
            return 500, _JSON, _json({"message": "An error has occurred."})
        if not request:
            return 400, _JSON, _json({"message": "Missing sources or query"})
        *asked, stream = request
        with self.server.guard:
            answer, hits = compose(self.server.index, *asked)
        url = self.server.url
        sources = [{"content": text, "metadata": {"title": title, "url": url + page}} for title, page, text in hits]
        if not stream:
            return 200, _JSON, _json({"message": answer, "sources": sources})
        words = [{"type": "response", "data": piece} for piece in re.findall(r"\S+\s*", answer)]
        start = [{"type": "init", "data": "Stream connected"}, {"type": "sources", "data": sources}]
        lines = [_json(event) + b"\n" for event in (*start, *words, {"type": "done"})]
        return 200, _EVENTS, b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in (*lines, b""))


def _request(body: bytes) -> tuple[str, str, str, bool] | None:
    """Return a question, the one before it, the mode and whether to stream; None where query or sources are missing."""
    given: object = json.loads(body.decode("utf-8-sig", "replace"))
    fields = cast("dict[str, Any]", given if isinstance(given, dict) else {})
    if given is not None and any(fields.get(name) in (None, "", 0) for name in ("query", "sources")):
        return None
    models = [(model["providerId"], model["key"]) for model in (fields["chatModel"], fields["embeddingModel"])]
    query, turns = fields["query"], cast("list[list[object]]", fields.get("history") or [])
    if models != [(_ID, name) for name in _MODELS.values()] or not isinstance(query, str) or isinstance(turns, str):
        raise ValueError
    asked = [str(text[0]) for role, *text in turns if role == "human" and text]
    searched = any(scope in fields["sources"] for scope in ("web", "academic", "discussions"))
    mode = fields.get("optimizationMode") or "speed"
    return query if searched else "", asked[-1] if asked else "", str(mode), bool(fields.get("stream"))


def _settings(url: str, path: str) -> dict[str, object]:
    """Return what /api/config or /api/providers tells: the one provider, and this service as its own search engine."""
    models = [[{"name": name, "key": name}] for name in _MODELS.values()]
    provider = {"id": _ID, "name": "Local documents", "chatModels": models[0], "embeddingModels": models[1]}
    if path == "/api/providers":
        return {"providers": [provider]}
    told, search = provider | {"type": "localdocs", "config": {"baseURL": url}, "hash": _ID}, {"searxngURL": url}
    values: dict[str, object] = {"modelProviders": [told], "search": search, "preferences": {}, "personalization": {}}
    return {"values": {"version": 1, "setupComplete": True, **values}, "fields": {name: [] for name in values}}


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
