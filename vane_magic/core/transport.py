"""The only place that opens a socket: one request to this machine, under one clock.

httpx builds the request and reads the headers, httpcore speaks HTTP/1.1 over our own stream. There is no
`httpx.Client`: it would look at the environment, at cookies and at the `Location` of each reply, and none of
these may matter here. So there are no proxies, redirects, mounts or shared connections to switch off.
"""

from __future__ import annotations

import ipaddress
import os
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from errno import EINPROGRESS, EWOULDBLOCK
from functools import partial
from typing import Final, TypeVar

import httpcore
import httpx

from vane_magic.core.boundary import Endpoint, check_endpoint
from vane_magic.core.errors import Cancelled, SecurityBoundaryViolation, UpstreamSearchError, VaneServiceUnavailable

BODY_CAP: Final = 16 * 2**20  # bytes
LINE_CAP: Final = 4 * 2**20  # bytes
_MAX_HEADERS: Final = 100
_SLICE_S: Final = 0.1
_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": "vane-magic",
}

# No resolver and no hosts file is asked.
_PINNED: Final = {"127.0.0.1": ("127.0.0.1",), "localhost": ("127.0.0.1", "::1"), "::1": ("::1",)}
_NOBODY: Final = {4: "192.0.2.1", 6: "2001:db8::1"}  # addresses for documentation, RFC 5737 and RFC 3849
_CHECK_URL: Final = "Check the setting url (VANE_URL)."
_CAUSES: Final = {  # of a connection without a reply
    "http": "Vane may just be stopping or starting, or another program has the port.",
    "https": "Vane speaks http://, unless a proxy with a certificate that this system trusts stands before it.",
}

_T = TypeVar("_T")


class DeadlineExpired(TimeoutError):  # noqa: N818 - it says what happened, as the errors of codes do
    """The time of a `Watch` is over."""


@dataclass
class Watch:
    """What bounds one exchange: a time limit, a cancel token and a tick.

    Parameters
    ----------
    limit_s
        The limit in seconds, by the monotonic clock.
    cancel
        Ends the exchange when another thread sets it.
    on_tick
        Called at the start, and then every 100 ms while the exchange lasts.
    started
        When the limit began to run, in monotonic seconds; now by default.

    Attributes
    ----------
    connected : bool
        Whether the exchange has found somebody who listens.
    """

    limit_s: float
    cancel: threading.Event = field(default_factory=threading.Event)
    on_tick: Callable[[], None] = lambda: None
    started: float = field(default_factory=time.monotonic)
    connected: bool = field(default=False, init=False)
    _next_tick: float = field(default=0.0, init=False)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def pulse(self) -> float:
        """Tick when it is time, and give the seconds (above 0, at most 0.1) that may pass before the next pulse.

        Raises
        ------
        Cancelled
            The token is set.
        DeadlineExpired
            No time is left.
        """
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + _SLICE_S
            self.on_tick()
        if self.cancel.is_set():
            raise Cancelled("The question was stopped.")
        if (left := self.limit_s - self.elapsed()) <= 0:
            raise DeadlineExpired(f"the limit of {self.limit_s:g} s is over")
        return min(self._next_tick - now, left)


class Reply:
    """What came back: the headers first, and the body as it comes, once.

    Attributes
    ----------
    status : int
        The HTTP status.
    headers : Mapping
        At most 100 headers by lower-case name; repeated ones are joined by a comma, as HTTP means them.
    """

    def __init__(self, status: int, headers: Mapping[str, str], pieces: Iterable[bytes]) -> None:
        self.status = status
        self.headers = headers
        self._pieces = pieces

    def lines(self) -> Iterator[bytes]:
        r"""Give the body's lines as they come, without their ``\n``, the only byte that ends one.

        The iterator's end means that the body was whole; a last line without ``\n`` has been given then.

        Raises
        ------
        UpstreamSearchError
            The body was cut, after the complete lines that had come; or it has over 16 MiB, or a line over 4 MiB.
        DeadlineExpired, Cancelled
            As `Watch.pulse` raises them.
        """
        line = bytearray()
        for piece in self._bounded(BODY_CAP):
            first, *others = piece.split(b"\n")
            line += first
            if len(line) > LINE_CAP:
                raise self._error(f"Vane sent a line of more than {LINE_CAP >> 20} MiB.")
            if others:
                yield bytes(line)
                yield from others[:-1]
                line = bytearray(others[-1])
        if line:
            yield bytes(line)

    def body(self, cap: int = BODY_CAP) -> bytes:
        """Give the whole body, of at most `cap` bytes; raises as `lines` does."""
        whole = bytearray()  # a list of pieces would take many times the memory when they are short
        for piece in self._bounded(cap):
            whole += piece
        return bytes(whole)

    def _bounded(self, cap: int) -> Iterator[bytes]:
        size = 0
        for piece in self._pieces:
            size += len(piece)
            if size > cap:
                raise self._error(f"Vane sent more than {cap:,} bytes.")
            yield piece

    def _error(self, what: str) -> UpstreamSearchError:
        return UpstreamSearchError(what, "No answer of Vane's is so large.", _CHECK_URL, status=self.status)


@contextmanager
def exchange(
    endpoint: Endpoint, method: str, path: str, watch: Watch, *, query: str = "", json: object = None
) -> Generator[Reply]:
    """Send one request over a connection of its own, which is closed at the end of the context.

    Parameters
    ----------
    endpoint, path
        Where to: the path, with a leading slash, is below the endpoint's own.
    method
        The HTTP method.
    watch
        Bounds the connecting, sending and receiving together.
    query
        What stands behind the ``?``; our own text, which nothing checks.
    json
        What to send as JSON; None sends no body.

    Yields
    ------
    Reply
        Whatever its status; a redirect is not followed.

    Raises
    ------
    SecurityBoundaryViolation
        The address is off the list, or the peer is not on the loopback interface. Nothing was sent.
    VaneServiceUnavailable
        There was no connection, or it ended before any byte of a reply.
    UpstreamSearchError
        The reply is not HTTP, is encoded, or exceeds a limit. `Reply` raises more.
    DeadlineExpired, Cancelled
        As `Watch.pulse` raises them.
    """
    target = check_endpoint(endpoint.url(path))
    built = httpx.Request(method, str(target), headers=_HEADERS, json=json)
    asked = f"{target.path or '/'}?{query}".rstrip("?")
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=asked)
    request = httpcore.Request(method, url, headers=built.headers.raw, content=built.content)
    server = target._replace(path="")
    with ExitStack() as sockets:
        stream = _connected(server, watch, sockets)
        watch.connected = True
        with _explained(server, stream):
            if server.scheme == "https":
                stream.secure(server.host)
            response = (connection := _Connection(url.origin, stream)).handle_request(request)
        headers = _headers(response)
        if "transfer-encoding" not in headers:
            connection.READ_NUM_BYTES = 64 * 2**10  # what is left has no lines for h11
        yield Reply(response.status, headers, _pieces(response, server, stream))


def is_own_address(address: str) -> bool:
    """Whether a literal IP address is one of this host's, by the kernel's word; nothing is sent."""
    try:
        literal = ipaddress.ip_address(address)
    except ValueError:
        return False
    if literal.is_multicast or literal.is_unspecified or address == "255.255.255.255" or "%" in address:
        return False  # one can bind to these, but they are nobody's
    # A kernel set to bind to any address (ip_nonlocal_bind) takes one of nobody as well.
    return _can_bind(address) and not _can_bind(_NOBODY[literal.version])


def _can_bind(address: str) -> bool:
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class _Connection(httpcore.HTTP11Connection):
    """With smaller limits: h11 takes quadratic time for the blanks in a line, a minute for 90 kB of them."""

    READ_NUM_BYTES: int = 8 * 2**10
    MAX_INCOMPLETE_EVENT_SIZE = 4 * 2**10  # of a head still to be read on, or between chunks; Vane's has 300 bytes


class _Stream(httpcore.NetworkStream):
    """A socket whose operations take slices of at most 100 ms, with a pulse of the watch before each.

    What the socket raises comes out as an error of httpcore, what the watch raises as it is.
    """

    def __init__(self, sock: socket.socket, watch: Watch) -> None:
        self._sock = sock
        self._watch = watch
        self.received = 0  # bytes

    def connect(self, address: str, port: int) -> None:
        """Connect to a literal address, and make sure that the peer is on the loopback interface."""
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Closing drops what the server has not taken, or it would get a question that was given up.
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.settimeout(0)
        code = self._sock.connect_ex((address, port))
        if code in (EINPROGRESS, EWOULDBLOCK):
            code = self._sliced(self._outcome, httpcore.ConnectError)
        if code:
            raise httpcore.ConnectError(os.strerror(code))
        peer = str(self._sliced(self._sock.getpeername, httpcore.ConnectError)[0])
        if peer not in ("127.0.0.1", "::1"):
            raise SecurityBoundaryViolation(
                f"The connection to {address} ended at {peer[:45]!r}, which is not on the loopback interface.",
                "Something on this machine diverts connections, such as a proxy that wraps programs.",
                "Nothing was sent. Run Python without it.",
            )

    def secure(self, name: str) -> None:
        """Go on in TLS, with a certificate for that name or address."""

        def shake_hands() -> None:
            if not isinstance(self._sock, ssl.SSLSocket):
                self._sock = _tls().wrap_socket(self._sock, server_hostname=name, do_handshake_on_connect=False)
            self._sock.do_handshake()

        self._sliced(shake_hands, httpcore.ConnectError)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - the watch bounds it
        data = self._sliced(partial(self._sock.recv, max_bytes), httpcore.ReadError)
        self.received += len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - likewise
        rest = memoryview(buffer)
        while rest:
            rest = rest[self._sliced(partial(self._sock.send, rest), httpcore.WriteError) :]

    def close(self) -> None:
        self._sock.close()

    def _outcome(self) -> int:
        """Wait a slice for the end of a connect, and give its error number."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_WRITE)
            if not selector.select(self._sock.gettimeout()):
                raise TimeoutError
        return self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def _sliced(self, operation: Callable[[], _T], failure: type[httpcore.NetworkError]) -> _T:
        while True:
            slice_s = self._watch.pulse()
            try:
                self._sock.settimeout(slice_s)
                return operation()
            except TimeoutError:
                continue
            except OSError as error:
                raise failure(error.strerror or error) from error


def _connected(server: Endpoint, watch: Watch, sockets: ExitStack) -> _Stream:
    """Connect to the first of the host's addresses that answers; `sockets` closes what was opened."""
    failures: list[str] = []
    for address in _PINNED[server.host]:
        watch.pulse()
        try:
            sock = socket.socket(_family(address), socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptors left
            failures.append(str(error.strerror))
            continue
        stream = sockets.enter_context(closing(_Stream(sock, watch)))
        try:
            stream.connect(address, server.port)
        except httpcore.ConnectError as error:
            failures.append(str(error))
        else:
            return stream
    raise VaneServiceUnavailable(
        f"Cannot connect to Vane at {server} ({failures[0]}).",
        "It is probably not running, or listens on another port.",
        "Start it (with Docker: docker start vane), or set url (VANE_URL) to its address. In a container or a remote"
        f" kernel, {server.host} is the machine on which the kernel runs.",
    )


def _tls() -> ssl.SSLContext:
    """Make a context that trusts what the system trusts; the usual ones ask the environment, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    paths = ssl.get_default_verify_paths()
    for cafile, capath in ((paths.openssl_cafile, None), (None, paths.openssl_capath)):
        with suppress(OSError):
            context.load_verify_locations(cafile, capath)
    return context


@contextmanager
def _explained(server: Endpoint, stream: _Stream, status: int | None = None) -> Generator[None]:
    """Turn httpcore's errors into ours."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.RemoteProtocolError) as error:
        said = str(error)[:200]  # where h11 quotes the server in it, it does so as Python writes bytes
        if not stream.received:
            what, cause = f"{server} took the connection and ended it without a reply ({said}).", _CAUSES[server.scheme]
            raise VaneServiceUnavailable(what, cause, _CHECK_URL) from error
        if status is None:
            what = f"What answers at {server} does not speak HTTP as Vane does ({said})."
            raise UpstreamSearchError(what, "Another program may have the port.", _CHECK_URL) from error
        what = f"Vane's reply ended before it was whole ({said})."
        raise UpstreamSearchError(
            what, "Vane may have been stopped or restarted.", "Ask again.", status=status
        ) from error


def _pieces(response: httpcore.Response, server: Endpoint, stream: _Stream) -> Iterator[bytes]:
    with _explained(server, stream, response.status):
        yield from response.iter_stream()


def _headers(response: httpcore.Response) -> httpx.Headers:
    """Take the headers, unless they are too many or tell of an encoding, which may hide any size."""
    headers = httpx.Headers(response.headers)
    encodings = {word.lower() for word in headers.get_list("content-encoding", split_commas=True)} - {"", "identity"}
    if not encodings and len(response.headers) <= _MAX_HEADERS:
        return headers
    fault = f"is encoded ({', '.join(sorted(encodings))[:40]!r})" if encodings else f"has over {_MAX_HEADERS} headers"
    cause = "A proxy before Vane, or another program, answers."
    raise UpstreamSearchError(f"The reply {fault}.", cause, _CHECK_URL, status=response.status)
