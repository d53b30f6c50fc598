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

from vane_magic.localdocs.answer import compose
from vane_magic.localdocs.index import Progress, open_index

_Request = socket.socket | tuple[bytes, socket.socket]  # socketserver's type, for UDP too
MAX_BODY: Final = 8 << 20
_ID: Final = "6a1f3c0e-53a5-4a43-9c0b-7f0d6f0c5f11"
_CHAT, _EMBEDDING = "extractive (no language model)", "none (never asked)"
_METHODS: Final = {"/api/config": "GET", "/api/providers": "GET", "/api/search": "POST"}
_PAGE: Final = re.compile(r"/doc/([0-9a-f]{32})(?:\?passage=([0-9]{1,7}))?")
_LOOPBACK: Final = re.compile(r"(?i)(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")
_INERT: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'"}
_DOCUMENT: Final = """
    SELECT path, text FROM document JOIN passage ON passage.rowid BETWEEN document.number AND last
    WHERE id = ? ORDER BY passage.rowid
"""


@dataclass(eq=False)
class Service:
    """A loopback service over an index of documents; a context manager.

    Parameters
    ----------
    folders
        Where the documents are: Markdown, text, HTML, notebooks. None: the default corpus.
    port
        The port on 127.0.0.1; 0 is any free one.
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
    url: str = field(init=False)  # once started, as are the next two
    lock_path: Path = field(init=False)  # for the client: a lock of its own, since no GPU is used
    documents: int = field(init=False)
    _running: ExitStack = field(init=False, default_factory=ExitStack)

    def start(self) -> None:
        """Index what has changed, then listen.

        Raises
        ------
        ValueError
            A folder is not there, or no folder, or there are too many documents.
        OSError
            A folder cannot be read, or the port cannot be had.
        """
        self.stop()
        with ExitStack() as stack:
            own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vane-", ignore_cleanup_errors=True)))
            index = open_index(self.folders, _cache(self.cache_dir, own), self.on_progress)
            stack.enter_context(closing(index))
            server = stack.enter_context(_Server(self.port, index))
            thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="localdocs", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            (self.documents,) = index.execute("SELECT count(*) FROM document").fetchone()
            self.url, self.lock_path = server.url, own / "localdocs.lock"
            self._running = stack.pop_all()

    def stop(self) -> None:
        """Stop listening, and end what is being answered; safe to repeat."""
        self._running.close()

    @property
    def settings(self) -> dict[str, str]:
        """The client's settings to ask it with, whatever the environment names for another server."""
        names = {"chat_model": _CHAT, "embedding_model": _EMBEDDING}
        return {"url": self.url, "lock_path": str(self.lock_path), **names}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve_forever(folders: Sequence[Path], port: int, out: TextIO) -> None:
    """Serve until Ctrl-C or SIGTERM; progress, address and number of documents are printed to `out`.

    Raises
    ------
    ValueError, OSError
        As `Service.start` raises them.
    """

    def tell(done: int, total: int) -> None:
        print(f"Read {done} of {total} documents.", file=out, flush=True)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt), Service(folders, port=port, on_progress=tell) as service:
            print(f"Serving {service.documents} documents at {service.url} (Ctrl-C stops).", file=out, flush=True)
            threading.Event().wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def _cache(wanted: Path | None, spare: Path) -> Path:
    """Return a directory for the index that can be written, private when it is the default."""
    place = wanted or Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "vane-magic")
    try:
        place.mkdir(0o700, parents=True, exist_ok=True)
        if not wanted:
            place.chmod(0o700)
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        return spare
    return place.resolve()


class _Server(ThreadingHTTPServer):
    """A thread for each connection, all ended and awaited on closing."""

    daemon_threads, request_queue_size = False, 64

    def __init__(self, port: int, index: sqlite3.Connection) -> None:
        self.index, self.guard, self.open = index, threading.Lock(), set[Any]()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise OSError(f"Cannot listen on 127.0.0.1:{port}: {error}. Choose another port.") from error
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks the resolver for this host's name

    def process_request(self, request: _Request, client_address: object) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: _Request) -> None:
        self.open.discard(request)
        super().close_request(request)

    def server_close(self) -> None:
        for connection in tuple(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    """One request on one connection; nothing but the index is ever served."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - no other server has it
    protocol_version, server_version, sys_version = "HTTP/1.1", "localdocs", ""
    disable_nagle_algorithm, timeout = True, 5  # each line of a stream goes at once; seconds of silence

    def handle(self) -> None:
        with suppress(OSError):  # a client that left
            super().handle()

    def log_message(self, *_: object, **__: object) -> None:
        """Keep silent: questions are private."""

    def answer(self) -> None:
        """Answer a request, whatever its method."""
        path, page = self.path.split("?")[0], _PAGE.fullmatch(self.path)
        method = "GET" if page else _METHODS.get(path)
        length = self.headers.get("Content-Length", "0")
        bounded = re.fullmatch("[0-9]{1,8}", length) and int(length) <= MAX_BODY
        body = self.rfile.read(int(length)) if bounded else b""
        if self.request_version != "HTTP/1.1" or not _LOOPBACK.fullmatch(self.headers.get("Host", "")):
            self._reply(403, {"message": "Only HTTP/1.1 under a loopback name is answered."})
        elif not bounded:
            self._reply(413, {"message": f"A body needs a Content-Length of at most {MAX_BODY}."})
        elif self.command != method:
            self._reply(405 if method else 404, "")
        elif page:
            self._document(*page.groups())
        elif method == "POST":
            self._search(body)
        else:
            self._reply(200, _settings(self.server.url, path))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815 - http.server's names

    def _head(self, status: int, kind: str, framing: str, value: str) -> None:
        self.send_response(status)
        for name, text in {"Content-Type": kind, framing: value, "Connection": "close", **_INERT}.items():
            self.send_header(name, text)
        self.end_headers()

    def _reply(self, status: int, body: str | dict[str, object]) -> None:
        content = body.encode() if isinstance(body, str) else _json(body)
        kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
        self._head(status, kind, "Content-Length", str(len(content)))
        self.wfile.write(content if self.command != "HEAD" else b"")

    def _line(self, kind: str, **data: object) -> None:
        line = _json({"type": kind, **data}) + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

    def _document(self, name: str, place: str | None) -> None:
        """Send a document as text, the cited passage between marks."""
        with self.server.guard:
            rows = self.server.index.execute(_DOCUMENT, (name,)).fetchall()
        texts = [text if str(number) != place else f">>>>\n{text}\n<<<<" for number, (_, text) in enumerate(rows)]
        self._reply(200 if rows else 404, "\n\n".join([path for path, _ in rows[:1]] + texts))

    def _search(self, body: bytes) -> None:
        """Answer a question, whole or as a stream of events."""
        try:
            request = _request(body)
        except (ValueError, TypeError, LookupError, RecursionError):
            self._reply(500, {"message": "An error has occurred."})
            return
        if not request:
            self._reply(400, {"message": "Missing sources or query"})
            return
        *asked, stream = request
        if stream:
            self._head(200, "text/event-stream", "Transfer-Encoding", "chunked")
            self._line("init", data="Stream connected")
        with self.server.guard:
            text, hits = compose(self.server.index, *asked)
        url = f"{self.server.url}/doc/"
        sources = [{"content": text, "metadata": {"title": title, "url": url + page}} for title, page, text in hits]
        if not stream:
            self._reply(200, {"message": text, "sources": sources})
            return
        self._line("sources", data=sources)
        for piece in re.findall(r"\S+\s*", text):
            self._line("response", data=piece)
        self._line("done")
        self.wfile.write(b"0\r\n\r\n")


def _request(body: bytes) -> tuple[str, str, str, bool] | None:
    """Return a question, the one before it, the mode and whether to stream; None where query or sources are missing."""
    given: object = json.loads(body.decode("utf-8-sig", "replace"))
    fields = cast("dict[str, Any]", given if isinstance(given, dict) else {})
    if given is not None and any(fields.get(name) in (None, "", 0) for name in ("query", "sources")):
        return None
    models = [(model["providerId"], model["key"]) for model in (fields["chatModel"], fields["embeddingModel"])]
    query, turns = fields["query"], cast("list[list[object]]", fields.get("history") or [])
    if models != [(_ID, _CHAT), (_ID, _EMBEDDING)] or not isinstance(query, str) or isinstance(turns, str):
        raise ValueError
    asked = [str(text[0]) for role, *text in turns if role == "human" and text]
    searched = any(scope in fields["sources"] for scope in ("web", "academic", "discussions"))
    mode = fields.get("optimizationMode") or "speed"
    return query if searched else "", asked[-1] if asked else "", str(mode), bool(fields.get("stream"))


def _settings(url: str, path: str) -> dict[str, object]:
    """Return what /api/config or /api/providers tells: the one provider, and this service as its own search engine."""
    models = [[{"name": name, "key": name}] for name in (_CHAT, _EMBEDDING)]
    provider = {"id": _ID, "name": "Local documents", "chatModels": models[0], "embeddingModels": models[1]}
    if path == "/api/providers":
        return {"providers": [provider]}
    providers = [provider | {"type": "localdocs", "config": {"baseURL": url}, "hash": _ID}]
    values = {"version": 1, "setupComplete": True, "modelProviders": providers, "search": {"searxngURL": url}}
    fields = {name: list[object]() for name in ("preferences", "personalization", "modelProviders", "search")}
    return {"values": {"preferences": {}, "personalization": {}, **values}, "fields": fields}


def _json(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
