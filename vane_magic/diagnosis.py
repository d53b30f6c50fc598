"""Which link of the chain is broken (settings, Vane, models, Ollama, SearXNG, lock), and what to do about it.

Only loopback addresses are asked, and nothing is changed anywhere. Every request is a GET but Ollama's documented
``POST /api/show``, which describes a model and neither loads nor runs it. SearXNG is asked for JSON without a query,
so it searches nothing: 403 means that JSON is off, 400 that it is on.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final, TypeAlias, cast

from pydantic import AwareDatetime, BaseModel, ValidationError

from vane_magic.core.boundary import Endpoint, Locality, check_endpoint, locality_of_host
from vane_magic.core.client import LOOK_UP_S, VaneClient
from vane_magic.core.errors import VaneError, VaneServiceUnavailable, VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock, resolve_lock_path
from vane_magic.core.models import Choice, chat_names, choose
from vane_magic.core.modes import Mode
from vane_magic.core.settings import SETTINGS, Layer, Settings, environment
from vane_magic.core.transport import DeadlineExpired, Watch, exchange, is_own_address
from vane_magic.core.vane_api import DOCTOR, LOOK_UP_CAP, Provider, Server, look_up
from vane_magic.display import Check, checklist
from vane_magic.display.text import shorten

PROBE_S: Final = 4.0  # for all that Ollama is asked, and for all that SearXNG is, once the look-up has ended
LOCK_S: Final = 2.0  # from the start; a dead network file system never answers
CONTEXT: Final = 32_000  # tokens that Vane asks Ollama for
QUESTION: Final = "What is the latest stable release of Python?"  # one that needs a search
_ORDER: Final = (
    *("settings", "address", "port", "Vane", "set-up", "providers", "models", "Ollama", "tools", "memory"),
    *("SearXNG", "engines", "lock", "versions", "question"),
)
_LIBRARIES: Final = ("vane-magic", "ipython", "ipywidgets", "httpx", "httpcore", "pydantic", "filelock")
_NETWORKS: Final = re.compile("nfs|cifs|smb|9p|afs|ceph|lustre|beegfs|gpfs|virtiofs|sshfs|gluster|s3fs|rclone")
_NO_FILES: Final = {"proc", "sysfs", "devpts", "cgroup2"}  # access() tells root that it may write there
_MOUNTS: Path = Path("/proc/self/mountinfo")
_MOVE_IT: Final = "Set lock_path (VANE_LOCK_PATH) to a directory of this host that every worker may write."
_SEE_LOG: Final = "Look at Vane's log (with Docker: docker logs vane)."
_UNREACHED: Final = "Not reached: see the links before it."
_log: Final = logging.getLogger("vane_magic")

_Finding: TypeAlias = "tuple[State, str, str]"  # how a link is, what was found, and what to do about it


class State(StrEnum):
    """How a link of the chain is."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `diagnose` found; a notebook shows it as a table, `str` as text.

    Attributes
    ----------
    links : tuple of Check
        Each with its `state` (a `State`), `name`, `text`, and `step`: what to do, if anything. They stand in the
        order in which a question meets them, so that the first broken one is the likeliest cause of the others.
    """

    links: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no link is broken; a warning, or what could not be checked, breaks nothing."""
        return all(link.state != State.BROKEN for link in self.links)

    def to_json(self, *, indent: int | None = None) -> str:
        """``{"ok": true, "links": [{"state": "ok", "name": …, "text": …, "step": …}, …]}``."""
        told = {"ok": self.ok, "links": [link._asdict() for link in self.links]}
        return json.dumps(told, ensure_ascii=False, indent=indent)

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        del include, exclude  # IPython filters what it gets
        names = {state: ", ".join(link.name for link in self.links if link.state == state) for state in State}
        told = [f"{state.capitalize()}: {names[state]}." for state in (State.BROKEN, State.WARNING) if names[state]]
        html, plain = checklist(" ".join(told) or "No link is broken.", self.links)
        return {"text/html": html, "text/plain": plain}


def diagnose(url: str | None = None, *, deep: bool = False, layers: Sequence[Layer] = ()) -> Diagnosis:
    """Check each link of the chain; done within 10 s whatever hangs.

    Parameters
    ----------
    url
        Vane's address; None: from `layers`, else from the environment (``VANE_URL``), else the default.
    deep
        Ask one real question in speed mode, too. It takes the GPU lock and the GPU, and up to 10 s more, and the
        setting `wait` if another worker holds the lock.
    layers
        Settings that go before the environment, as a face of this package has them.

    Returns
    -------
    Diagnosis
        Whatever is broken, a refused address included. A bad setting does not keep the others from being checked.
        Ollama and SearXNG are asked only when Vane tells that they are on this machine's loopback interface.
    """
    doctor = _Doctor((Layer("the call", {"url": url}), *layers))
    try:
        return doctor.examine(deep=deep)
    finally:
        doctor.cancel.set()


class _FoundError(Exception):
    """Ends the check of a link; the arguments are what was found."""


class _NobodyError(_FoundError):
    """Nothing listens."""


class _Doctor:
    """One examination; what its checks find of each link comes together here."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.cancel = threading.Event()
        self._layers = layers
        self._links: dict[str, Check] = {}
        self._silent: set[str] = set()  # links at which nothing listens
        self._settings = Settings.resolve()
        self._endpoint: Endpoint | None = None
        self._server: Server | None = None
        self._choice: Choice | None = None

    def examine(self, *, deep: bool) -> Diagnosis:
        began = time.monotonic()
        self._check("settings", self._resolve)
        self._check("versions", _versions)
        lock = _start(self._check, "lock", _lock, self._settings.lock_path)
        self._check("address", self._judge_address)
        if self._endpoint:
            self._check("Vane", self._look_up, self._endpoint)
        if self._server:
            self._look_behind(self._server)
        lock.join(max(0.1, began + LOCK_S - time.monotonic()))
        if lock.is_alive():
            self._tell("lock", State.BROKEN, "The file system of the lock does not answer.", _MOVE_IT)
        if deep and self._choice:
            self._check("question", self._ask)
        rest = dict.fromkeys(_ORDER, _UNREACHED) | ({} if deep else {"question": "Only --deep (deep=True) asks one."})
        return Diagnosis(tuple(self._links.get(name) or Check(State.UNCHECKED, name, rest[name]) for name in _ORDER))

    def _tell(self, name: str, state: State, text: str, step: str = "") -> None:
        self._links[name] = Check(state, name, shorten(text, 900), shorten(step, 600))

    def _check(self, name: str, check: Callable[..., _Finding], *args: object) -> bool:
        """Check one link, whether it holds; a fault of our own keeps no other link from being checked."""
        try:
            found = check(*args)
        except _FoundError as raised:
            found = cast("_Finding", raised.args)
            self._silent |= {name} if isinstance(raised, _NobodyError) else set()
        except VaneError as error:
            found = _of_error(error)
        except Exception as error:  # noqa: BLE001 - see above
            _log.exception("a fault of vane_magic")
            found = State.UNCHECKED, f"A fault of vane_magic itself: {type(error).__name__}.", ""
        self._tell(name, *found)
        return self._holds(name)

    def _holds(self, name: str) -> bool:
        return self._links[name].state in {State.OK, State.WARNING}

    def _resolve(self) -> _Finding:
        """Take the settings one by one; the bad ones are left at their defaults."""
        good, faults = list[str](), list[VaneError]()
        for name in SETTINGS:
            names = (*good, name)
            layers = [Layer(e.label, {n: e.values.get(n) for n in names}) for e in (*self._layers, environment())]
            try:
                self._settings = Settings.resolve(*layers)
                good.append(name)
            except VaneError as error:
                faults.append(error)
        if faults:
            step = " ".join(error.hint for error in faults).strip() or "Mend it where it is set."
            return State.BROKEN, " ".join(error.what for error in faults), step
        shown = replace(self._settings, url="…")  # the address has a link of its own, which hides its secrets
        set_ = [(name, origin) for name, origin in self._settings.origins.items() if origin != "default"]
        told = [f"{name} = {json.dumps(getattr(shown, name), ensure_ascii=False)} ({origin})" for name, origin in set_]
        return State.OK, f"{'; '.join([*told, 'all else' if told else 'all'])} by default.", ""

    def _judge_address(self) -> _Finding:
        self._endpoint = check_endpoint(self._settings.url)
        return State.OK, f"{self._endpoint} ({self._settings.origins['url']}).", ""

    def _look_up(self, endpoint: Endpoint) -> _Finding:
        watch = Watch(LOOK_UP_S, cancel=self.cancel)
        try:
            self._server = look_up(endpoint, watch)
            told = "It speaks the API of Vane 1.11 or later; only a question can tell 1.11 from 1.12, which is needed."
            found = State.OK, told, ""
        except VaneError as error:
            found = _of_error(error)
        except DeadlineExpired:
            why = "It waits for the provider of its models." if watch.connected else "It takes no connection."
            step = 'See whether Ollama answers ("ollama ps"), and restart Vane.'
            found = State.BROKEN, f"Nothing came from {endpoint} within {LOOK_UP_S:g} s. {why}", step
        if watch.connected:
            self._tell("port", State.OK, f"Something listens at {endpoint}.")
            return found
        self._tell("port", *found)
        return State.UNCHECKED, _UNREACHED, ""

    def _look_behind(self, server: Server) -> None:
        """The models, then side by side Ollama and SearXNG."""
        self._check("set-up", _set_up, server)
        self._check("providers", _providers, server)
        self._check("models", self._choose, server)
        since = time.monotonic()
        asked = _start(self._ask_ollama, server, since), _start(self._ask_searxng, server, since)
        for thread in asked:
            thread.join()
        if "Ollama" in self._silent and self._choice:
            told = f"{self._links['Ollama'].text} Yet Vane has its models: it is probably in a container."
            self._tell("Ollama", State.UNCHECKED, told)
        in_container = any(provider.host == "host.docker.internal" for provider in server.providers)
        if "SearXNG" in self._silent and (in_container or not self._holds("Ollama")):
            told = f"{self._links['SearXNG'].text} If Vane is in a container, it may have one of its own there."
            self._tell("SearXNG", State.WARNING, told, "If it is in none, start SearXNG.")

    def _choose(self, server: Server) -> _Finding:
        names = self._settings.chat_model, self._settings.embedding_model
        if not names[0] and not chat_names(server):
            return State.UNCHECKED, _UNREACHED, ""
        here = replace(server, searxng_host="localhost")  # SearXNG has a link of its own
        self._choice = choice = choose(here, *names, allow_remote=self._settings.allow_remote)
        of = f", one of {choice.fitting} that fit" if choice.fitting > 1 else ""
        embedding = f"to embed: {choice.embedding} ({choice.embedding.locality.word})"
        told = f"{choice.chat} ({choice.chat.locality.word}{of}); {embedding}."
        if choice.locality is not Locality.LOCAL:
            return State.WARNING, told, "Make sure that you know where they run: the question goes there."
        return State.OK, told, "Fix the one that answers with chat_model (VANE_CHAT_MODEL)." if of else ""

    def _ask_ollama(self, server: Server, since: float) -> None:
        choice = self._choice
        found = [p for p in server.providers if p.type == "ollama" and (not choice or p.id == choice.chat.provider_id)]
        provider = min(found, key=lambda provider: not provider.fault, default=None)
        if provider is None or provider.loopback is None:
            why = "It is not on the loopback interface." if provider else "No chat model comes from an Ollama."
            self._tell("Ollama", State.UNCHECKED, why)
            return
        service = _Service("Ollama", provider.loopback, self.cancel, since)
        holds = self._check("Ollama", _ollama, service, provider)
        if choice and holds and choice.chat.locality is not Locality.REMOTE:  # it would ask ollama.com of such a one
            self._check("tools", _tools, service, choice.chat.key)
            self._check("memory", _memory, service, choice.chat.key)

    def _ask_searxng(self, server: Server, since: float) -> None:
        self._check("SearXNG", _place, server, self._settings)
        if self._holds("SearXNG") and server.searxng_loopback:
            service = _Service("SearXNG", server.searxng_loopback, self.cancel, since)
            if self._check("SearXNG", _json_format, service):
                self._check("engines", _engines, service)

    def _ask(self) -> _Finding:
        """One real question."""
        client = VaneClient.of_layers(*self._layers, defaults=Layer("default", {}))
        limit = min(self._settings.timeout or Mode.SPEED.limit_s, Mode.SPEED.limit_s)
        result = client.research(QUESTION, mode=Mode.SPEED, timeout=limit)
        try:
            result.raise_for_error()
        except VramConcurrencySaturated as busy:
            return State.WARNING, *_of_error(busy)[1:]
        told = f"Answered in {result.telemetry.duration_ms / 1000:.1f} s. Sources: {len(result.sources)}."
        return State.WARNING if result.run.notes else State.OK, " ".join((told, *result.run.notes)), ""


def _start(work: Callable[..., object], *args: object) -> threading.Thread:
    """Work on a thread that keeps no program from ending, since a dead file system cannot be interrupted."""
    thread = threading.Thread(target=work, args=args, name="vane-magic-doctor", daemon=True)
    thread.start()
    return thread


def _of_error(error: VaneError) -> _Finding:
    """A failure in the client's words, but for its advice to ask the doctor."""
    return State.BROKEN, f"{error.what} {error.cause}", error.hint.replace(DOCTOR, "").strip() or _SEE_LOG


def _versions() -> _Finding:
    told = [f"Python {platform.python_version()}"]
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            told.append(f"{name} {metadata.version(name)}")
    return State.OK, ", ".join(told), ""


def _set_up(server: Server) -> _Finding:
    if not server.told_hosts:
        return State.UNCHECKED, "Vane does not tell.", ""
    if server.setup_complete:
        return State.OK, "It is done.", ""
    state = State.WARNING if chat_names(server) else State.BROKEN
    return state, "It was never finished.", "Open Vane's page in a browser, and finish it."


def _providers(server: Server) -> _Finding:
    counts = [
        (p.name or p.id, p.fault or f"{len(p.chat)} chat, {len(p.embedding)} embedding") for p in server.providers
    ]
    told = "; ".join(f"{name}: {count}" for name, count in counts) or "There are none"
    if not chat_names(server) or any(provider.fault for provider in server.providers):
        state = State.WARNING if chat_names(server) else State.BROKEN
        return state, told, 'Check it in Vane\'s settings, or get a model ("ollama pull qwen3:8b").'
    return State.OK, f"{told}.", ""


def _place(server: Server, settings: Settings) -> _Finding:
    """Where SearXNG is; a finding that holds means that it may be asked."""
    host = server.searxng_host
    if not server.told_hosts or any(provider.type == "localdocs" for provider in server.providers):
        return State.UNCHECKED, "Vane does not tell where it is, or has no need of it.", ""
    if host is None:
        return State.BROKEN, "Vane has no search engine.", "Set SearXNG's address in Vane (SEARXNG_API_URL)."
    if locality_of_host(host, is_own_address=is_own_address) is Locality.REMOTE:
        state = State.WARNING if settings.allow_remote else State.BROKEN
        step = "Run SearXNG on this machine, or allow it with allow_remote."
        return state, f"It is on another machine, {host}: the search terms go there.", step
    state = State.OK if server.searxng_loopback else State.UNCHECKED
    return state, f"It is at {host}, not on the loopback interface.", ""


# What Ollama and SearXNG say, as far as it is looked at ---


class _Loaded(BaseModel):
    name: str
    size: int = 0
    size_vram: int = 0
    context_length: int = 0
    expires_at: AwareDatetime | None = None


class _Engine(BaseModel):
    enabled: bool
    categories: list[str] = []


class _Told(BaseModel):
    """What is looked at in the JSON objects of both; None was not told."""

    version: str | None = None
    capabilities: list[str] | None = None
    model_info: dict[str, object] | None = None
    models: list[_Loaded] | None = None
    engines: list[_Engine] | None = None


@dataclass(frozen=True, slots=True)
class _Service:
    """Ollama or SearXNG; all that it is asked has to end within the same time."""

    name: str
    endpoint: Endpoint
    cancel: threading.Event
    since: float

    def ask(self, path: str, query: str = "", model: str = "") -> tuple[int, _Told | None]:
        """The status, and what was told where it is a JSON object of the right types."""
        watch = Watch(PROBE_S, cancel=self.cancel, started=self.since)
        method, body = ("POST", json.dumps({"model": model}).encode()) if model else ("GET", None)
        try:
            with exchange(self.endpoint, method, path, watch, query=query, body=body) as reply:
                body = reply.body(LOOK_UP_CAP)
            with suppress(ValidationError):
                return reply.status, _Told.model_validate_json(body)
            return reply.status, None  # noqa: TRY300 - one way to go on
        except DeadlineExpired:
            why = f"gives no answer within {PROBE_S:g} s"
        except VaneServiceUnavailable:
            if not watch.connected:
                raise _NobodyError(
                    State.BROKEN, f"Nothing listens at {self.endpoint}.", f"Start {self.name}."
                ) from None
            why = "ends the connection without a reply"
        except VaneError as error:
            why = f"gives no usable reply ({error.what.rstrip('.')})"
        raise self.unfit(why)

    def unfit(self, why: int | str) -> _FoundError:
        """What is found when an answer is not the one expected; a number is its status."""
        state = State.WARNING if why in {429, 503} else State.BROKEN
        if isinstance(why, int):
            kinds = {401: "asks for a log-in", 403: "asks for a log-in", 429: "is busy", 503: "is busy"}
            why = f"{kinds.get(why, 'fails' if why >= 500 else 'is something else')} (status {why})"  # noqa: PLR2004 - HTTP
        step = f"Look at the log of {self.name}, and at its address in Vane's settings."
        return _FoundError(state, f"{self.name} at {self.endpoint} {why}.", step)


def _ollama(service: _Service, provider: Provider) -> _Finding:
    status, told = service.ask("/api/version")
    if told is None or told.version is None:
        raise service.unfit(status)
    text = f"Version {told.version} answers at {service.endpoint}"
    if not provider.fault:
        return State.OK, f"{text}.", ""
    address = f"http://host.docker.internal:{service.endpoint.port}"
    step = f"A Vane in a container needs the address {address}, and an Ollama that listens there (OLLAMA_HOST)."
    return State.BROKEN, f"{text}, but not to Vane.", step


def _tools(service: _Service, key: str) -> _Finding:
    status, told = service.ask("/api/show", model=key)
    if status == 404:  # noqa: PLR2004 - HTTP
        return State.BROKEN, f"Ollama does not have {key}.", "Get it (ollama pull), or choose another."
    if told is None or told.model_info is None:
        raise service.unfit(status)
    if told.capabilities is None:
        return State.UNCHECKED, f"This Ollama does not tell what {key} can do.", "A newer Ollama does."
    if "tools" not in told.capabilities:
        step = "Choose one that can, such as qwen3:8b, with chat_model (VANE_CHAT_MODEL)."
        return State.BROKEN, f"{key} cannot call tools, and Vane falls silent with such a model.", step
    size = next((value for name, value in told.model_info.items() if name.endswith(".context_length")), None)
    if isinstance(size, int) and size < CONTEXT:
        text = f"{key} can call tools, but takes {size:,} tokens, where Vane asks for {CONTEXT:,}."
        return State.WARNING, text, "Choose one with a longer context if answers break off or lose the thread."
    return State.OK, f"{key} can call tools.", ""


def _memory(service: _Service, key: str) -> _Finding:
    status, told = service.ask("/api/ps")
    if told is None or told.models is None:
        raise service.unfit(status)
    loaded = {model.name.lower(): model for model in told.models}
    model = loaded.get(key.lower()) or loaded.get(f"{key.lower()}:latest")
    if model is None:
        others = f" ({', '.join(loaded)} is)" if loaded else ""
        step = "Load it beforehand (ollama run), or ask again when a question runs out of time."
        return State.WARNING, f"{key} is not loaded{others}, so the first question waits for it.", step
    share = f", {100 * model.size_vram // model.size} % of it on the GPU" if model.size else ""
    room = f", with {model.context_length:,} tokens of context" if model.context_length else ""
    text = f"{key} is loaded{share}{room}{_until(model.expires_at)}."
    if model.size_vram < model.size:
        return State.WARNING, text, "Expect it to be slow: free GPU memory, or choose a smaller model."
    again = f"Vane asks for {CONTEXT:,} tokens, so Ollama may load it anew: set OLLAMA_CONTEXT_LENGTH={CONTEXT}."
    return State.OK, text, again if 0 < model.context_length < CONTEXT else ""


def _until(expires: datetime | None) -> str:
    """How long Ollama keeps a model that nobody uses."""
    if expires is None:
        return ""
    left = expires - datetime.now(UTC)
    return ", for good" if left.days > 90 else f", for {max(left.total_seconds(), 0) / 60:.0f} min more"  # noqa: PLR2004


def _json_format(service: _Service) -> _Finding:
    status, told = service.ask("/search", "format=json")
    if status == 403:  # noqa: PLR2004 - HTTP
        step = "Add json to search.formats in its settings.yml, and restart it."
        return (
            State.BROKEN,
            f"It answers at {service.endpoint}, but its JSON is off (status 403): Vane gets nothing.",
            step,
        )
    if status == 429:  # noqa: PLR2004 - HTTP
        step = "Switch its limiter off (server.limiter in its settings.yml)."
        return State.WARNING, "It limits the rate of requests (status 429), and perhaps Vane's, too.", step
    if status not in {200, 400} or told is None:
        raise service.unfit(status)
    return State.OK, f"It answers at {service.endpoint}, and its JSON is on.", ""


def _engines(service: _Service) -> _Finding:
    told = service.ask("/config")[1]
    if told is None or told.engines is None:
        return State.UNCHECKED, "SearXNG does not tell its engines.", ""
    on = [engine for engine in told.engines if engine.enabled]
    general = sum("general" in engine.categories for engine in on)
    text = f"{len(on)} of {len(told.engines)} are on, {general} of them for general questions"
    if not general:
        state = State.WARNING if on else State.BROKEN
        return state, f"{text}: a search finds nothing.", "Switch some on in SearXNG's settings.yml."
    return State.OK, f"{text}; those that are not offline get the search terms.", ""


# The lock ---


def _lock(value: str | None) -> _Finding:
    """The lock's place and holder; nothing is taken or made."""
    path, holder = resolve_lock_path(value), GpuLock(value).status()
    folder = path.parent
    kind = _file_system(folder)
    if kind in _NO_FILES or not os.access(folder, os.W_OK | os.X_OK):
        return State.BROKEN, f"{path} cannot be made: {folder} does not exist or takes no files.", _MOVE_IT
    if holder:
        text = f"{path} is held: {holder.describe()}. {holder.note}"
        return State.WARNING, text, "Wait until it is done; questions meanwhile are told that the GPU is busy."
    if _NETWORKS.search(kind):
        return State.WARNING, f"{path} is free, but on a network ({kind}), where other hosts may hold it.", _MOVE_IT
    if folder.stat().st_mode & stat.S_ISVTX:
        text = (
            f"{path} is free, but its directory is sticky: what another user's worker leaves there cannot be cleared."
        )
        return State.WARNING, text, _MOVE_IT
    return State.OK, f"{path} is free.", ""


def _file_system(folder: Path) -> str:
    """The kind of file system that a directory is on, as Linux tells; empty elsewhere."""
    place, depth, kind = folder.resolve(), 0, ""
    with suppress(OSError, IndexError):
        for line in _MOUNTS.read_text(errors="replace").splitlines():
            mount, _, rest = line.partition(" - ")
            point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount.split(" ")[4]))
            if place.is_relative_to(point) and len(point.parts) >= depth:  # of two at one place the later hides
                depth, kind = len(point.parts), rest.split(" ")[0]
    return kind
