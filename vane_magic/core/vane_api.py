"""Vane's wire protocol, as version 1.12 and later speak it: the look-up, the search request and its events.

Everything that comes back is untrusted: it is bounded, and read leniently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from pydantic_core import from_json

from vane_magic.core.boundary import Endpoint, check_endpoint, host_of, loopback_of
from vane_magic.core.errors import ConfigurationError, SecurityBoundaryViolation, UpstreamSearchError
from vane_magic.core.transport import Reply, Watch, exchange
from vane_magic.display import clean

LOOK_UP_CAP: Final = 4 * 2**20  # bytes of a look-up's reply; real ones have 5 kB
DOCTOR: Final = "Run %vane_doctor (or: vane-research doctor) to see which link is broken."
_MAX_ITEMS: Final = 2_000  # providers, and models of one provider
_UNPAIRED: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)"  # an even number of backslashes before
    rb"(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of a provider: its `key` is what a request names, its `name` is for people."""

    key: str
    name: str


@dataclass(frozen=True, slots=True)
class Provider:
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


@dataclass(frozen=True, slots=True)
class Server:
    """What Vane tells about itself. `told_hosts` is false where only the bare list of models could be had."""

    providers: tuple[Provider, ...]
    setup_complete: bool = True
    searxng_host: str | None = None
    told_hosts: bool = True
    searxng_loopback: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class RawSource:
    """A source as sent; what was no text is empty, and `odd` says so."""

    title: str
    url: str
    content: str
    odd: bool = False


@dataclass(slots=True)
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
    status, config = _get(endpoint, "/api/config", watch)
    values = _mapping(_mapping(config).get("values"))
    if isinstance(providers := values.get("modelProviders"), list):
        searxng = _mapping(values.get("search")).get("searxngURL")
        return Server(
            _providers(cast("object", providers)),
            setup_complete=values.get("setupComplete") is not False,
            searxng_host=host_of(searxng),
            searxng_loopback=loopback_of(searxng),
        )
    status, listed = _get(endpoint, "/api/providers", watch)
    if isinstance(providers := _mapping(listed).get("providers"), list):
        return Server(_providers(cast("object", providers)), told_hosts=False)
    if "chatModelProviders" in _mapping(_get(endpoint, "/api/models", watch)[1]):
        raise _too_old("1.10 or earlier")
    if status in {401, 403, 429} or status >= 500:  # noqa: PLR2004 - HTTP
        raise _failed(status, "", {})
    raise _not_vane(endpoint, status)


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
    body = json.dumps(request, ensure_ascii=False).encode()
    with exchange(endpoint, "POST", "/api/search", watch, body=body) as reply:
        _check_status(reply)
        if "json" in reply.headers.get("content-type", ""):
            _take_whole(_parse(reply.body()), received)
            return
        for line in reply.lines():
            if line.strip():
                _take_event(_parse(line), received)
                on_event()
            if received.done:
                return
    raise UpstreamSearchError("Vane's answer ended before it was whole.", "Vane may have been stopped or restarted.")


def _not_vane(endpoint: Endpoint, status: int) -> UpstreamSearchError:
    return UpstreamSearchError(
        f"Something answers at {endpoint}, but it is not Vane (status {status}).",
        "Another program may have taken the port.",
        "Set the address with the setting url (VANE_URL).",
        status=status,
    )


def _get(endpoint: Endpoint, path: str, watch: Watch) -> tuple[int, object]:
    """The status, and the body when it is JSON with status 200."""
    with exchange(endpoint, "GET", path, watch) as reply:
        _check_redirect(reply)
        if reply.status != 200:  # noqa: PLR2004 - HTTP
            return reply.status, None
        try:
            return reply.status, _parse(reply.body(LOOK_UP_CAP))
        except UpstreamSearchError:
            return reply.status, None


def _check_redirect(reply: Reply) -> None:
    if not 300 <= reply.status < 400:  # noqa: PLR2004 - HTTP
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


_REASONS: Final = {
    401: ("It asks for a log-in.", "Remove the log-in for loopback, or the proxy before Vane."),
    403: ("It refuses access.", "Remove the log-in for loopback, or the proxy before Vane."),
    404: ("It has no search API: it is not Vane, or older than 1.12.", "Check the setting url (VANE_URL)."),
    405: ("It has no search API: it is not Vane, or older than 1.12.", "Check the setting url (VANE_URL)."),
    429: ("It is busy.", "Ask again later."),
    503: ("It is busy or starting.", "Ask again later."),
}
_USUAL_500: Final = (
    "Usual causes: the model provider (Ollama) does not answer Vane, or the chat or embedding model is gone."
)


def _check_status(reply: Reply) -> None:
    _check_redirect(reply)
    if reply.status == 200:  # noqa: PLR2004 - HTTP
        return
    try:
        body = reply.body(64 * 1024)
    except UpstreamSearchError:
        body = b""
    text = _server_text(body)
    if reply.status == 400 and "focus mode" in text.lower():  # noqa: PLR2004 - HTTP
        raise _too_old("1.11")
    raise _failed(reply.status, text, reply.headers)


def _failed(status: int, text: str, headers: Mapping[str, str]) -> UpstreamSearchError:
    said = f' and says "{text}"' if text else ""
    cause, hint = _REASONS.get(status, (_USUAL_500 if status >= 500 else "", DOCTOR))  # noqa: PLR2004 - HTTP
    wait = clean(headers.get("retry-after", "")[:40], newlines=False)
    hint = f"{hint} It asks to wait: {wait}." if wait else hint
    return UpstreamSearchError(f"Vane answers with status {status}{said}.", cause, hint, status=status)


def _server_text(body: bytes) -> str:
    """The server's own words, made short and safe; an HTML page has none that help."""
    try:
        message = _mapping(_parse(body)).get("message")
    except UpstreamSearchError:
        message = None if b"<" in body[:200] else body[:300].decode(errors="replace")
    text = message if isinstance(message, str) else ""
    return " ".join(clean(text[:300], newlines=False).split())


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
        pass
    repaired = text.decode(errors="replace").encode()
    repaired = _UNPAIRED.sub(lambda m: m[1] + (m[2] or rb"\ufffd"), repaired)
    try:
        return from_json(repaired, allow_inf_nan=False)
    except ValueError:
        raise UpstreamSearchError(
            "Vane sent something unreadable in place of an answer.",
            "A proxy may stand before Vane, or Vane is faulty.",
            DOCTOR,
        ) from None


def _take_event(event: object, received: Received) -> None:
    """One line of the stream; unknown events are passed over."""
    if not isinstance(event, dict):
        return
    members: dict[str, object] = event  # pyright: ignore[reportUnknownVariableType] - JSON's names are text
    kind, data = members.get("type"), members.get("data")
    if kind == "response":
        if isinstance(data, str) and data:
            received.pieces.append(data)
    elif kind == "sources":
        received.sources = _sources(data)
    elif kind == "done":
        received.done = True
    elif kind == "error":
        said = " ".join(clean(data[:300], newlines=False).split()) if isinstance(data, str) else ""
        raise UpstreamSearchError(f'Vane broke off with an error: "{said}".', hint=DOCTOR)
    elif kind is None and "message" in members:
        _take_whole(members, received)


def _take_whole(answer: object, received: Received) -> None:
    """An answer in one object, as a server sends it that ignores `stream`."""
    members = _mapping(answer)
    if "message" not in members:
        raise UpstreamSearchError("Vane sent an object without an answer.", hint=DOCTOR)
    message = members["message"]
    received.sources = _sources(members.get("sources"))
    received.pieces = [message] if isinstance(message, str) else []
    received.done = True


def _sources(data: object) -> list[RawSource]:
    return [_source(_mapping(item)) for item in _list(data)]


def _source(item: Mapping[str, object]) -> RawSource:
    metadata = _mapping(item.get("metadata"))
    parts = (metadata.get("title"), metadata.get("url"), item.get("content"))
    title, url, content = (part if isinstance(part, str) else "" for part in parts)
    return RawSource(title, url, content, odd=not all(isinstance(part, str) for part in parts))


def _providers(listed: object) -> tuple[Provider, ...]:
    return tuple(_provider(_mapping(item)) for item in _list(listed)[:_MAX_ITEMS])


def _provider(item: Mapping[str, object]) -> Provider:
    chat = tuple(_entries(item.get("chatModels")))
    embedding = tuple(_entries(item.get("embeddingModels")))
    base_url = _mapping(item.get("config")).get("baseURL")
    return Provider(
        id=_word(item.get("id")),
        name=_word(item.get("name")),
        type=_word(item.get("type")).lower(),
        host=host_of(base_url),
        chat=tuple(entry for entry in chat if entry.key != "error"),
        embedding=tuple(entry for entry in embedding if entry.key != "error"),
        fault=next((entry.name for entry in (*chat, *embedding) if entry.key == "error"), ""),
        loopback=loopback_of(base_url),
    )


def _entries(listed: object) -> Iterator[ModelEntry]:
    for item in _list(listed)[:_MAX_ITEMS]:
        if key := _word(_mapping(item).get("key")):
            yield ModelEntry(key, _word(_mapping(item).get("name")) or key)


def _word(value: object) -> str:
    """A short text, or empty; what is overlong is no name."""
    return value if isinstance(value, str) and len(value) <= 500 else ""  # noqa: PLR2004 - far above any name


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()
