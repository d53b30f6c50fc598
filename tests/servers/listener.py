"""What both servers are made of: a listening socket, a thread for each connection, a record of each request.

All waiting goes through `Connection._poll`, which ends when the client leaves and when the server stops.
So a server stops at once, whatever its scripts are doing, and leaves neither thread nor socket behind.
"""

from __future__ import annotations

import json
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

SEARCH = "POST /api/search"
_LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class ClientLeftError(Exception):
    """The client closed the connection."""


class StoppedError(Exception):
    """The server stops."""


@dataclass(eq=False)
class Request:
    """One request as it came in; times are `time.monotonic()`."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    peer: tuple[str, int]
    connected_at: float
    received_at: float = 0
    finished: threading.Event = field(default_factory=threading.Event)  # the script ran to its end
    left: threading.Event = field(default_factory=threading.Event)  # the client was seen to close the connection
    left_at: float | None = None

    @property
    def route(self) -> str:
        return f"{self.method} {self.path.partition('?')[0]}"

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One accepted connection; a script's steps act on it."""

    def __init__(self, sock: socket.socket, peer: tuple[str, int], stopping: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = Request("", "", [], b"", peer, connected_at=time.monotonic())  # none has come yet
        self.keep_open = True  # whether the connection lives on after the script, for the next request
        self._sock, self._stopping, self._unread = sock, stopping, b""

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    @property
    def searching(self) -> bool:
        """Whether a search is being answered and the client is still there, noticed by the script or not."""
        if self.request.route != SEARCH or self.request.finished.is_set():
            return False
        poll = select.poll()
        with suppress(ValueError):  # closed in the meantime
            poll.register(self._sock, _LEFT)
            return not poll.poll(0)
        return False

    def send(self, data: bytes) -> None:
        """Send all of it, as fast as the client takes it."""
        rest = memoryview(data)
        while rest:
            self._poll(select.POLLOUT)
            with suppress(BlockingIOError):
                rest = rest[self._sock.send(rest) :]

    def sleep(self, seconds: float) -> None:
        """Wait, unless the client leaves."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if left < 0.001:  # poll counts in milliseconds
                time.sleep(left)
            else:
                self._poll(0, left)

    def wait(self, event: threading.Event) -> None:
        """Wait for the event, unless the client leaves."""
        while not event.is_set():
            self.sleep(0.005)

    def hang(self) -> None:
        """Do nothing, not even read, until the client leaves or the server stops."""
        self._poll(0)

    def close(self) -> None:
        """Close as a server does that is done (FIN)."""
        self._sock.close()

    def reset(self) -> None:
        """Close as a server does that died (RST)."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def read_request(self) -> Request:
        """Wait for one request and its whole body."""
        self._receive_until(lambda: b"\r\n\r\n" in self._unread)
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split(" ", 2)
        headers = [(name, value.strip()) for name, _, value in (text.partition(":") for text in rest)]
        request = Request(method, path, headers, b"", self.request.peer, self.request.connected_at)
        if request.header("transfer-encoding"):
            raise NotImplementedError("a request body in chunks")
        size = int(request.header("content-length") or 0)
        self._receive_until(lambda: len(self._unread) >= size)
        request.body, self._unread = self._unread[:size], self._unread[size:]
        request.received_at = time.monotonic()
        self.request, self.keep_open = request, False
        return request

    def _receive_until(self, enough: Callable[[], bool]) -> None:
        while not enough():
            self._poll(select.POLLIN)
            data = self._sock.recv(1 << 20)
            if not data:
                raise ClientLeftError
            self._unread += data

    def _poll(self, wanted: int, timeout: float | None = None) -> None:
        """Wait until the socket is ready, the time is over, the client leaves or the server stops."""
        poll = select.poll()
        poll.register(self._sock, wanted | (0 if wanted & select.POLLIN else _LEFT))
        poll.register(self._stopping, select.POLLIN)
        ready = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        if self._stopping.fileno() in ready:
            raise StoppedError
        if not wanted & select.POLLIN and ready.get(self._sock.fileno(), 0) & _LEFT:
            raise ClientLeftError


Step: TypeAlias = Callable[[Connection], "Script | None"]
Script: TypeAlias = bytes | Step | Iterable["Script"]


def play(script: Script, connection: Connection) -> None:
    """Send bytes, call a step (and play what it returns), or play the parts one after another."""
    if connection.closed:
        return
    if isinstance(script, bytes):
        connection.send(script)
    elif callable(script):
        play(script(connection) or (), connection)
    else:
        for part in script:
            play(part, connection)
            if connection.closed:
                return


class Server:
    """A context manager that listens on loopback and answers each request by the script of its route.

    Parameters
    ----------
    routes
        The script for each ``"METHOD /path"`` (without the query string).
    fallback
        The script for every other request.
    host, port
        Where to listen; port 0 is any free one.
    on_connect
        A script to play on each new connection before anything is read from it.
    receive_buffer
        Bytes the kernel may take in before the server reads, for servers that never do.
    """

    def __init__(
        self,
        routes: dict[str, Script],
        *,
        fallback: Script,
        host: str = "127.0.0.1",
        port: int = 0,
        on_connect: Script = (),
        receive_buffer: int | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.connections = 0  # accepted until now
        self.most_searches = 0  # the most that were being answered at the same time
        self.errors: list[Exception] = []  # of scripts; the first is raised at the end
        self._routes, self._fallback, self._on_connect = routes, fallback, on_connect
        self._changed = threading.Condition()
        self._open: set[Connection] = set()
        self._threads: list[threading.Thread] = []
        self._address, self._receive_buffer = (host, port), receive_buffer

    @property
    def url(self) -> str:
        host = self._address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def port(self) -> int:
        return self._address[1]

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def searches(self) -> list[Request]:
        return [request for request in list(self.requests) if request.route == SEARCH]

    def wait_for_requests(self, count: int = 1, timeout: float = 10) -> list[Request]:
        """Wait until that many requests have come in whole, whatever their route."""
        return self._wait_for(lambda: self.requests, count, timeout)

    def wait_for_searches(self, count: int = 1, timeout: float = 10) -> list[Request]:
        """Wait until that many searches have come in whole."""
        return self._wait_for(lambda: self.searches, count, timeout)

    def wait_until_idle(self, timeout: float = 10) -> None:
        """Wait until no connection is open."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self.open_connections, timeout):
                raise TimeoutError(f"{self.open_connections} connections still open after {timeout} s")

    def _wait_for(self, found: Callable[[], list[Request]], count: int, timeout: float) -> list[Request]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(found()) >= count, timeout):
                raise TimeoutError(f"{len(found())} of {count} requests after {timeout} s")
            return list(found())

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._listening = socket.create_server(self._address, family=family, backlog=128)
        if self._receive_buffer:
            self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self._address = self._listening.getsockname()[:2]
        self._stopping, self._stop = socket.socketpair()
        self._start(self._accept)
        return self

    def __exit__(self, _: object, failure: BaseException | None, __: object) -> None:
        self._stop.close()  # makes the other end readable, for every thread and for good
        for thread in self._threads:
            thread.join(10)
        self._listening.close()
        self._stopping.close()
        if any(thread.is_alive() for thread in self._threads):
            self.errors.append(TimeoutError("a script waits by other means than its connection's"))
        if self.errors and failure:
            failure.add_note(f"A script of the server had failed: {self.errors[0]!r}")
        elif self.errors:
            raise self.errors[0]

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        poll.register(self._stopping, select.POLLIN)
        while self._stopping.fileno() not in dict(poll.poll()):
            with suppress(ConnectionAbortedError):  # the client has left already
                sock, peer = self._listening.accept()
                connection = Connection(sock, peer[:2], self._stopping)
                with self._changed:
                    self.connections += 1
                    self._open.add(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        try:
            play(self._on_connect, connection)
            while connection.keep_open and not connection.closed:
                self._answer(connection.read_request(), connection)
        except (ClientLeftError, ConnectionError):
            connection.request.left_at = time.monotonic()
            connection.request.left.set()
        except StoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - raised when the server ends
            self.errors.append(error)
        finally:
            connection.close()
            with self._changed:
                self._open.discard(connection)
                self._changed.notify_all()

    def _answer(self, request: Request, connection: Connection) -> None:
        with self._changed:
            self.requests.append(request)
            self.most_searches = max(self.most_searches, sum(other.searching for other in self._open))
            self._changed.notify_all()
        play(self._routes.get(request.route, self._fallback), connection)
        request.finished.set()


@contextmanager
def closed_port(host: str = "127.0.0.1") -> Generator[int]:
    """A port at which connections are refused, kept from others for as long."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind((host, 0))
        yield sock.getsockname()[1]


@contextmanager
def deaf_port() -> Generator[int]:
    """A port at which connecting takes for ever: its queue is full and nobody accepts."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]
