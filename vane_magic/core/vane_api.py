"""Vane's wire protocol, as version 1.12 and later speak it: the look-up, the search request and its events.

Everything that comes back is untrusted: it is bounded, and read leniently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple, cast

from pydantic_core import from_json

from vane_magic.core.boundary import Endpoint, check_endpoint, host_of, loopback_of
from vane_magic.core.errors import ConfigurationError, SecurityBoundaryViolation, UpstreamSearchError
from vane_magic.core.transport import Reply, Watch, exchange
from vane_magic.display import clean

LOOK_UP_CAP: Final = 4 * 2**20  # bytes of a look-up's reply; real ones have 5 kB
DOCTOR: Final = "Run %vane_doctor (or: vane-research doctor) to see which link is broken."
_MAX_ITEMS: Final = 2_000  # providers, and models of one provider
_MAX_NAME: Final = 500  # characters
_UNPAIRED: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)"  # an even number of backslashes before
    rb"(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


class ModelEntry(NamedTuple):
    """A model of a provider: its `key` is what a request names, its `name` is for people."""

    key: str
    name: str


class Provider(NamedTuple):
    """What is kept of one of Vane's model providers; everything else, API keys included, is dropped unread.

    `type` and `host` are empty and None where Vane does not tell them. `fault` is the reason why the
    provider lists no models. `loopback` is where it can be asked from here.
    """

    id: str
    name: str
    type: str = ""
    host: str | None = None
    chat: tuple[ModelEntry, ...] = ()
    embedding: tuple[ModelEntry, ...] = ()
    fault: str = ""
    loopback: Endpoint | None = None


class Server(NamedTuple):
    """What Vane tells about itself. `told_hosts` is false where only the bare list of models could be had."""

    providers: tuple[Provider, ...]
    setup_complete: bool = True
    searxng_host: str | None = None
    told_hosts: bool = True
    searxng_loopback: Endpoint | None = None


class RawSource(NamedTuple):
    """A source as sent; what was no text is empty, and `odd` says so."""

    title: str
    url: str
    content: str
    odd: bool = False


@dataclass
class Received:
    """What has come of an answer so far; it stays readable whatever ends the stream."""

    sources: list[RawSource] | None = None
    pieces: list[str] = field(default_factory=list[str])
    done: bool = False


def look_up(endpoint: Endpoint, watch: Watch) -> Server:
    """Ask Vane for its models, and where they and the search engine stand.

    Raises
    ------
    ConfigurationError
        The server is too old.
    UpstreamSearchError
        What answers is not Vane, or fails.
    SecurityBoundaryViolation
        It redirects to another machine.
    VaneServiceUnavailable, DeadlineExpired, Cancelled
        As `exchange` raises them.
    """
    config = _get(endpoint, "/api/config", watch)[1]
    if (providers := _providers(_at(config, "values", "modelProviders"))) is not None:
        searxng = _at(config, "values", "search", "searxngURL")
        return Server(
            providers,
            setup_complete=_at(config, "values", "setupComplete") is not False,
            searxng_host=host_of(searxng),
            searxng_loopback=loopback_of(searxng),
        )
    status, listed = _get(endpoint, "/api/providers", watch)
    if (providers := _providers(_at(listed, "providers"))) is not None:
        return Server(providers, told_hosts=False)
    if "chatModelProviders" in _mapping(_get(endpoint, "/api/models", watch)[1]):
        raise _too_old("1.10 or earlier")
    if status in {401, 403, 429} or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _failed(status)
    raise UpstreamSearchError(
        f"Something answers at {endpoint}, but it is not Vane (status {status}).",
        "Another program may have taken the port.",
        "Set the address with the setting url (VANE_URL).",
        status=status,
    )


def search(
    endpoint: Endpoint, request: Mapping[str, object], watch: Watch, received: Received, on_event: Callable[[], None]
) -> None:
    """Send one question, once, and fill `received` with what comes until the end of the answer.

    Raises
    ------
    UpstreamSearchError
        Vane answers with an error, or the answer breaks off, is unreadable or too large.
    ConfigurationError
        The server is too old.
    SecurityBoundaryViolation, VaneServiceUnavailable, DeadlineExpired, Cancelled
        As `exchange` raises them.
    """
    with exchange(endpoint, "POST", "/api/search", watch, json=request) as reply:
        _check_status(reply)
        if "json" in reply.headers.get("content-type", ""):
            _take_event(_parse(reply.body()), received)
            if not received.done:
                raise UpstreamSearchError("Vane sent an object without an answer.")
            return
        for line in reply.lines():
            if line.strip():
                _take_event(_parse(line), received)
                on_event()
            if received.done:
                return
    raise UpstreamSearchError("Vane's answer ended before it was whole.", "Vane may have been stopped or restarted.")


def _get(endpoint: Endpoint, path: str, watch: Watch) -> tuple[int, object]:
    """The status, and the body when it is JSON with status 200."""
    body: object = None
    with exchange(endpoint, "GET", path, watch) as reply:
        _check_redirect(reply)
        if reply.status == HTTPStatus.OK:
            with suppress(UpstreamSearchError):
                body = _parse(reply.body(LOOK_UP_CAP))
        return reply.status, body


def _check_redirect(reply: Reply) -> None:
    if reply.status // 100 != 3:  # noqa: PLR2004 - HTTP
        return
    location = reply.headers.get("location", "")
    if re.match(r"[a-z][a-z0-9+.-]*:|[/\\]{2}", location.strip(), re.IGNORECASE):
        try:
            check_endpoint(location.split("?")[0])
        except SecurityBoundaryViolation:
            raise SecurityBoundaryViolation(
                f"The server redirects to another machine: {clean(location[:200], newlines=False)!r}.",
                hint="The redirect was not followed. Check what answers at the address.",
            ) from None
    raise UpstreamSearchError(
        f"The server redirects (status {reply.status}), which Vane never does for these requests.",
        "Another program, or a proxy before Vane, may have the port.",
        "The redirect was not followed. Set the address with the setting url (VANE_URL).",
        status=reply.status,
    )


_LOG_IN: Final = "Remove the log-in for loopback, or the proxy before Vane."
_NO_API: Final = ("It has no search API: it is not Vane, or older than 1.12.", "Check the setting url (VANE_URL).")
_REASONS: Final = {
    401: ("It asks for a log-in.", _LOG_IN),
    403: ("It refuses access.", _LOG_IN),
    404: _NO_API,
    405: _NO_API,
    429: ("It is busy.", "Ask again later."),
    503: ("It is busy or starting.", "Ask again later."),
}
_USUAL_500: Final = (
    "Usual causes: the model provider (Ollama) does not answer Vane, or the chat or embedding model is gone."
)


def _check_status(reply: Reply) -> None:
    _check_redirect(reply)
    if reply.status == HTTPStatus.OK:
        return
    text = ""
    with suppress(UpstreamSearchError):
        text = _server_text(reply.body(64 * 1024))
    if reply.status == HTTPStatus.BAD_REQUEST and "focus mode" in text.lower():
        raise _too_old("1.11")
    raise _failed(reply.status, text, clean(reply.headers.get("retry-after", "")[:40], newlines=False))


def _failed(status: int, text: str = "", wait: str = "") -> UpstreamSearchError:
    said = f" and says {_at_the_end(text)}" if text else "."
    usual = _USUAL_500 if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
    cause, hint = _REASONS.get(status, (usual, DOCTOR))
    hint += f" It asks to wait: {wait}." if wait else ""
    return UpstreamSearchError(f"Vane answers with status {status}{said}", cause, hint, status=status)


def _server_text(body: bytes) -> str:
    """The server's own words, made short and safe; an HTML page has none that help."""
    try:
        return _said(_at(_parse(body), "message"))
    except UpstreamSearchError:
        return "" if b"<" in body[:200] else _said(body[:300].decode(errors="replace"))


def _said(words: object) -> str:
    return " ".join(clean(_text(words)[:300], newlines=False).split())


def _at_the_end(words: str) -> str:
    """A quotation that ends a sentence, with one full stop in all."""
    return f'"{words}"' if words.endswith(".") else f'"{words}".'


def _too_old(version: str) -> ConfigurationError:
    return ConfigurationError(
        f"This server speaks the API of Perplexica {version}, which is too old.",
        "Vane was called Perplexica then, and took other requests.",
        "Upgrade it to Vane 1.12 or later.",
    )


def _parse(text: bytes) -> object:
    """JSON, repaired once when it has bad UTF-8 or lone surrogates."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        utf_8 = text.decode(errors="replace").encode()
        repaired = _UNPAIRED.sub(lambda m: m[1] + (m[2] or rb"\ufffd"), utf_8)
    try:
        return from_json(repaired, allow_inf_nan=False)
    except ValueError:
        cause = "A proxy may stand before Vane, or Vane is faulty."
        raise UpstreamSearchError("Vane sent something unreadable in place of an answer.", cause) from None


def _take_event(event: object, received: Received) -> None:
    """One line of the stream; unknown events are passed over."""
    members = _mapping(event)
    kind, data = members.get("type"), members.get("data")
    if kind == "response":
        if isinstance(data, str) and data:
            received.pieces.append(data)
    elif kind == "sources":
        received.sources = _sources(data)
    elif kind == "done":
        received.done = True
    elif kind == "error":
        raise UpstreamSearchError(f"Vane broke off with an error: {_at_the_end(_said(data))}")
    elif kind is None and "message" in members:  # the whole answer, as a server sends it that ignores `stream`
        received.sources = _sources(members.get("sources"))
        received.pieces = [_text(members["message"])]
        received.done = True


def _sources(data: object) -> list[RawSource]:
    return [_source(item) for item in _list(data)]


def _source(item: object) -> RawSource:
    parts = (_at(item, "metadata", "title"), _at(item, "metadata", "url"), _at(item, "content"))
    return RawSource(*map(_text, parts), odd=not all(isinstance(part, str) for part in parts))


def _providers(listed: object) -> tuple[Provider, ...] | None:
    items = _list(listed)[:_MAX_ITEMS]
    return tuple(map(_provider, items)) if isinstance(listed, list) else None


def _provider(item: object) -> Provider:
    chat, embedding = (tuple(_entries(_at(item, kind))) for kind in ("chatModels", "embeddingModels"))
    base_url = _at(item, "config", "baseURL")
    return Provider(
        id=_word(_at(item, "id")),
        name=_word(_at(item, "name")),
        type=_word(_at(item, "type")).lower(),
        host=host_of(base_url),
        chat=tuple(entry for entry in chat if entry.key != "error"),
        embedding=tuple(entry for entry in embedding if entry.key != "error"),
        fault=next((entry.name for entry in (*chat, *embedding) if entry.key == "error"), ""),
        loopback=loopback_of(base_url),
    )


def _entries(listed: object) -> Iterator[ModelEntry]:
    for item in _list(listed)[:_MAX_ITEMS]:
        if key := _word(_at(item, "key")):
            yield ModelEntry(key, _word(_at(item, "name")) or key)


def _word(value: object) -> str:
    """A short text, or empty; what is overlong is no name."""
    text = _text(value)
    return text if len(text) <= _MAX_NAME else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _at(value: object, *path: str) -> object:
    """The member at a path of names; None where there is none."""
    for name in path:
        value = _mapping(value).get(name)
    return value


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] - JSON's names are text


def _list(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()
