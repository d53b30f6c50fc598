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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, cast

from pydantic import AwareDatetime, BaseModel, ValidationError

from vane_magic.core.boundary import Endpoint, Locality, check_endpoint, locality_of_host
from vane_magic.core.client import LOOK_UP_S, VaneClient
from vane_magic.core.errors import VaneError, VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock, resolve_lock_path
from vane_magic.core.models import Choice, chat_names, choose
from vane_magic.core.modes import Mode
from vane_magic.core.settings import SETTINGS, Layer, Settings, environment
from vane_magic.core.transport import DeadlineExpired, Watch, exchange, is_own_address
from vane_magic.core.vane_api import DOCTOR, LOOK_UP_CAP, Provider, Server, look_up
from vane_magic.display import Check, checklist
from vane_magic.display.text import shorten

PROBE_S: Final = 3.0  # for all that Ollama is asked, and for all that SearXNG is, once the look-up has ended
LOCK_S: Final = 1.0  # after all else; a dead network file system never answers
WITHOUT_VANE: Final = "Without Vane, local documents can be asked: {} --local-docs …"  # {} is a face's own command
_ORDER: Final = "settings address port Vane set-up providers models Ollama tools memory SearXNG lock versions question"
_LIBRARIES: Final = ("vane-magic", "ipython", "ipywidgets", "httpx", "httpcore", "pydantic", "filelock")
_NETWORKS: Final = re.compile("nfs|cifs|smb|9p|afs|ceph|lustre|beegfs|gpfs|virtiofs|sshfs|gluster|s3fs|rclone")
_NO_FILES: Final = {"proc", "sysfs", "devpts", "cgroup2"}  # access() tells root that it may write there
_MOUNTS: Path = Path("/proc/self/mountinfo")
_LATE: Final = 'Vane asks Ollama first: see whether that answers ("ollama ps"), and restart Vane.'
_MOVE_IT: Final = "Set lock_path (VANE_LOCK_PATH) to a directory of this host that every worker may write."

OK, WARNING, BROKEN, UNCHECKED = "ok", "warning", "broken", "not checked"  # how a link is
_Finding: TypeAlias = tuple[str, str, str]  # that, what was found, and what to do about it


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `diagnose` found; a notebook shows it as a table, `str` as text.

    Attributes
    ----------
    links : tuple of Check
        Each with its `state` (``ok``, ``warning``, ``broken`` or ``not checked``), `name`, `text`, and `step`: what
        to do, if anything. They stand in the order in which a question meets them, so that the first broken one
        is the likeliest cause of the others.
    """

    links: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no link is broken; a warning, or what could not be checked, breaks nothing."""
        return all(link.state != BROKEN for link in self.links)

    def to_json(self, *, indent: int | None = None) -> str:
        """``{"ok": true, "links": [{"state": "ok", "name": …, "text": …, "step": …}, …]}``."""
        told = {"ok": self.ok, "links": [link._asdict() for link in self.links]}
        return json.dumps(told, ensure_ascii=False, indent=indent)

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:  # IPython filters what it gets
        found = {state: [link.name for link in self.links if link.state == state] for state in (BROKEN, WARNING)}
        told = [f"{state.capitalize()}: {', '.join(names)}." for state, names in found.items() if names]
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
    return _Doctor((Layer("the call", {"url": url}), *layers, environment())).examine(deep=deep)


class _FoundError(Exception):
    """Ends the check of a link; the arguments are what was found."""


class _Doctor:
    """One examination; what its checks find of each link comes together here."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._links = {name: Check(UNCHECKED, name, "Not reached: see the links before it.") for name in _ORDER.split()}
        self._settings = Settings.resolve()
        self._choice: Choice | None = None

    def examine(self, *, deep: bool) -> Diagnosis:
        self._check("settings", self._resolve)
        self._check("versions", _versions)
        self._tell("lock", BROKEN, "Its file system does not answer.", _MOVE_IT)  # until the check ends
        lock = _start(self._check, "lock", _lock, self._settings.lock_path)
        self._check("address", self._look_up)
        lock.join(LOCK_S)
        if not deep:
            self._tell("question", UNCHECKED, "Only --deep (deep=True) asks one.")
        elif self._choice:
            self._check("question", self._ask)
        return Diagnosis(tuple(self._links.values()))

    def _tell(self, name: str, state: str, text: str, step: str = "") -> None:
        self._links[name] = Check(state, name, shorten(text, 900), shorten(step, 600))

    def _check(self, name: str, check: Callable[..., _Finding], *args: object) -> bool:
        """Check one link, whether it holds; a fault of our own keeps no other link from being checked."""
        try:
            found = check(*args)
        except _FoundError as raised:
            found = cast("_Finding", raised.args)
        except VaneError as error:  # in the client's words, but for its advice to ask the doctor
            state = WARNING if isinstance(error, VramConcurrencySaturated) else BROKEN
            step = error.hint.replace(DOCTOR, "").strip() or "Look at Vane's log."
            found = state, f"{error.what} {error.cause}", step
        except DeadlineExpired as late:
            found = BROKEN, f"No reply came: {late}.", _LATE
        except Exception as error:
            logging.getLogger("vane_magic").exception("a fault of vane_magic")
            found = UNCHECKED, f"A fault of vane_magic: {type(error).__name__}.", ""
        self._tell(name, *found)
        return found[0] in {OK, WARNING}

    def _resolve(self) -> _Finding:
        """Take the settings one by one; the bad ones are left at their defaults."""
        good, faults = list[str](), list[VaneError]()
        for name in SETTINGS:
            known = [Layer(label, {n: values.get(n) for n in (*good, name)}) for label, values, _ in self._layers]
            try:
                self._settings = Settings.resolve(*known)
                good.append(name)
            except VaneError as error:
                faults.append(error)
        if faults:
            return BROKEN, " ".join(error.message for error in faults), "Mend it where it is set."
        shown = self._settings._replace(url="see address")  # that link hides its secrets
        set_ = [(name, origin) for name, origin in shown.origins.items() if origin != "default"]
        told = [f"{name} = {_as_text(getattr(shown, name))} ({origin})" for name, origin in set_]
        return OK, f"{'; '.join([*told, 'all else' if told else 'all'])} by default.", ""

    def _look_up(self) -> _Finding:
        """Judge the address, then ask there: whether anybody listens is one link, whether that is Vane the next."""
        endpoint, watch = check_endpoint(self._settings.url), Watch(LOOK_UP_S)
        self._check("port", self._ask_vane, endpoint, watch)
        if watch.connected:
            self._links["Vane"] = self._links["port"]._replace(name="Vane")
            self._tell("port", OK, f"Something listens at {endpoint}.")
        return OK, f"{endpoint} ({self._settings.origins['url']}).", ""

    def _ask_vane(self, endpoint: Endpoint, watch: Watch) -> _Finding:
        self._look_behind(look_up(endpoint, watch))
        return OK, "It speaks the API of Vane 1.11 or later. 1.12 is needed, and only a question can tell.", ""

    def _look_behind(self, server: Server) -> None:
        """The models, then side by side Ollama and SearXNG."""
        self._check("set-up", _set_up, server)
        self._check("providers", _providers, server)
        if self._settings.chat_model or chat_names(server):
            self._check("models", self._choose, server)
        ollama = _start(self._ask_ollama, server)
        self._check("SearXNG", _searxng, server, self._settings)
        ollama.join()

    def _choose(self, server: Server) -> _Finding:
        here = server._replace(searxng_host="localhost")  # SearXNG has a link of its own
        given = self._settings
        self._choice = choice = choose(here, given.chat_model, given.embedding_model, allow_remote=given.allow_remote)
        of = f", one of {choice.fitting} that fit" if choice.fitting > 1 else ""
        chat, embedding = choice.chat, choice.embedding
        told = f"{chat} ({chat.locality.name.lower()}{of}); to embed: {embedding} ({embedding.locality.name.lower()})."
        if choice.locality is not Locality.LOCAL:
            return WARNING, told, "Make sure that you know where they run: the question goes there."
        return OK, told, "Fix the one that answers with chat_model (VANE_CHAT_MODEL)." if of else ""

    def _ask_ollama(self, server: Server) -> None:
        """Ask the Ollama of the chosen model, or the one that keeps a model from being chosen."""
        self._tell("Ollama", UNCHECKED, "No Ollama on the loopback interface has the model.")
        choice = self._choice
        found = [p for p in server.providers if p.type == "ollama" and (not choice or p.id == choice.chat.provider_id)]
        provider = min(found, key=lambda provider: not provider.fault, default=None)
        if provider and provider.loopback:
            service = _Service("Ollama", provider.loopback, Watch(PROBE_S), apart=not provider.fault)
            # Of a model that runs at ollama.com it would ask there.
            if self._check("Ollama", _ollama, service, provider) and choice and choice.chat.locality < Locality.REMOTE:
                self._check("tools", _tools, service, choice.chat.key)
                self._check("memory", _memory, service, choice.chat.key)

    def _ask(self) -> _Finding:
        """One real question, which needs a search."""
        client = VaneClient.of_layers(*self._layers, defaults=Layer("default", {}))
        limit = min(self._settings.limit_s, Mode.SPEED.limit_s)
        result = client.research("What is the latest Python?", mode=Mode.SPEED, timeout=limit).raise_for_error()
        told = f"Answered in {result.telemetry.duration_ms / 1000:.1f} s. Sources: {len(result.sources)}."
        return WARNING if result.run.notes else OK, " ".join((told, *result.run.notes)), ""


def _start(work: Callable[..., object], *args: object) -> threading.Thread:
    """Work on a thread that keeps no program from ending: a dead file system cannot be interrupted."""
    thread = threading.Thread(target=work, args=args, name="vane-magic-doctor", daemon=True)
    thread.start()
    return thread


def _as_text(value: object) -> str:
    """A setting's value as it is typed, with escapes for what cannot be seen."""
    return repr(str(value) if isinstance(value, str) else value)  # a mode is a text, too


def _versions() -> _Finding:
    found = [f"{name} {told.version}" for name in _LIBRARIES for told in metadata.distributions(name=name)]
    return OK, ", ".join([f"Python {platform.python_version()}", *found]), ""


def _set_up(server: Server) -> _Finding:
    if not server.setup_complete:
        return WARNING, "It was never finished.", "Open Vane's page in a browser, and finish it."
    return (OK, "It is done.", "") if server.told_hosts else (UNCHECKED, "Vane does not tell.", "")


def _providers(server: Server) -> _Finding:
    has = [(p.name or p.id, p.fault or f"{len(p.chat)} chat, {len(p.embedding)} embedding") for p in server.providers]
    told = "; ".join(f"{name}: {models}" for name, models in has) or "There are none"
    if chat_names(server) and not any(provider.fault for provider in server.providers):
        return OK, f"{told}.", ""
    step = 'Check it in Vane\'s settings, or get a model ("ollama pull qwen3:8b").'
    return WARNING if chat_names(server) else BROKEN, told, step


# What Ollama and SearXNG say ---


class _Loaded(BaseModel):
    name: str
    size: int
    size_vram: int
    expires_at: AwareDatetime
    context_length: int = 0


class _Engine(BaseModel):
    enabled: bool


class _Told(BaseModel):
    """What is looked at in the JSON objects of both."""

    version: str = ""
    capabilities: list[str] = []
    model_info: dict[str, object] = {}
    models: list[_Loaded] = []
    engines: list[_Engine] = []


_KINDS: Final = {401: "asks for a log-in", 403: "asks for a log-in", 429: "is busy", 503: "is busy"}
_MEANINGS: Final = {
    ("/api/show", 200): (UNCHECKED, "This Ollama does not tell what the model can do.", "A newer Ollama does."),
    ("/api/show", 404): (BROKEN, "Ollama no longer has it.", "Get it (ollama pull), or choose another model."),
    ("/search", 403): (BROKEN, "Its JSON is off (status 403).", "Add json to search.formats in its settings.yml."),
    ("/search", 429): (WARNING, "It limits the rate (status 429).", "Switch server.limiter off in its settings.yml."),
}


class _Service(NamedTuple):
    """Ollama or SearXNG, and the time within which all that it is asked has to end."""

    name: str
    endpoint: Endpoint
    watch: Watch
    apart: bool  # Vane seems to be in a container, whose loopback interface is another

    def ask(self, path: str, *members: str, query: str = "", json: object = None) -> _Told:
        """What it tells, with these members; raises what is found otherwise."""
        state, step = BROKEN, f"Look at the log of {self.name}, and at its address in Vane's settings."
        try:
            with exchange(self.endpoint, "POST" if json else "GET", path, self.watch, query=query, json=json) as reply:
                content, status = reply.body(LOOK_UP_CAP), reply.status
            with suppress(ValidationError):
                told = _Told.model_validate_json(content)
                if status in {200, 400} and told.model_fields_set.issuperset(members):  # 400: a search for nothing
                    return told
            if (path, status) in _MEANINGS:
                raise _FoundError(*_MEANINGS[path, status])
            kind = _KINDS.get(status, "fails" if status >= 500 else "is something else")  # noqa: PLR2004 - HTTP
            state, why = WARNING if kind == "is busy" else BROKEN, f"{kind} (status {status})"
        except (DeadlineExpired, VaneError) as error:
            why = f"gives no usable reply ({error.args[0].rstrip('.')})"
            if not self.watch.connected:
                state, why = UNCHECKED if self.apart else BROKEN, "takes no connection"
                step = f"Start {self.name}, unless Vane is in a container and has it there."
        raise _FoundError(state, f"{self.name} at {self.endpoint} {why}.", step)


def _ollama(service: _Service, provider: Provider) -> _Finding:
    text = f"Version {service.ask('/api/version', 'version').version} answers at {service.endpoint}"
    if not provider.fault:
        return OK, f"{text}.", ""
    step = f"For a Vane in a container: address http://host.docker.internal:{service.endpoint.port}, OLLAMA_HOST set."
    return BROKEN, f"{text}, but not to Vane.", step


def _tools(service: _Service, key: str) -> _Finding:
    told = service.ask("/api/show", "capabilities", json={"model": key})
    if "tools" not in told.capabilities:
        return BROKEN, f"{key} cannot call tools: Vane falls silent.", "Set chat_model to one that can (qwen3:8b)."
    size = next((size for name, size in told.model_info.items() if name.endswith(".context_length")), "unknown")
    return OK, f"{key} can call tools. Its context: {size} tokens; Vane asks for 32000.", ""


def _memory(service: _Service, key: str) -> _Finding:
    models = {model.name.lower(): model for model in service.ask("/api/ps", "models").models}
    model = models.get(key.lower()) or models.get(f"{key.lower()}:latest")
    if model is None:
        loaded = ", ".join(models) or "none"
        return WARNING, f"{key} is not loaded: the first question waits. In memory: {loaded}.", "Load it: ollama run."
    left = model.expires_at - datetime.now(UTC)
    stays = "for good" if left.days > 90 else f"for {max(left.total_seconds(), 0) / 60:.0f} min more"  # noqa: PLR2004
    share = f"{100 * model.size_vram // max(model.size, 1)} % of it on the GPU"
    text = f"{key} is loaded, {share}, {model.context_length or 'unknown'} tokens of context, {stays}."
    slow = "Expect it to be slow: free GPU memory, or choose a smaller model." if model.size_vram < model.size else ""
    return WARNING if slow else OK, text, slow


def _searxng(server: Server, settings: Settings) -> _Finding:
    """What it says where it can be asked from here; otherwise where it is."""
    if not server.told_hosts or any(provider.type == "localdocs" for provider in server.providers):
        return UNCHECKED, "Vane does not tell where it is, or has no need of it.", ""
    if endpoint := server.searxng_loopback:
        in_container = any((provider.host or "").endswith(".internal") for provider in server.providers)
        service = _Service("SearXNG", endpoint, Watch(PROBE_S), apart=in_container)
        service.ask("/search", query="format=json")
        text = f"It answers at {endpoint}, its JSON is on"
        with suppress(_FoundError):  # Vane does not ask for its engines
            engines = service.ask("/config", "engines").engines
            count = sum(engine.enabled for engine in engines)
            text = f"{text}, {count} of {len(engines)} engines are on"
            if not count:
                return BROKEN, f"{text}: a search finds nothing.", "Switch some on in SearXNG's settings.yml."
        return OK, f"{text}. Engines that are not offline get the search terms.", ""
    if (host := server.searxng_host) is None:
        return BROKEN, "Vane has no search engine.", "Set SearXNG's address in Vane (SEARXNG_API_URL)."
    if locality_of_host(host, is_own_address=is_own_address) is not Locality.REMOTE:
        return UNCHECKED, f"It is at {host}, not on the loopback interface.", ""
    told = f"It is on another machine, {host}: the search terms go there."
    return WARNING if settings.allow_remote else BROKEN, told, "Run it on this machine, or allow it with allow_remote."


# The lock ---


def _lock(value: str | None) -> _Finding:
    """The lock's place and holder; nothing is taken or made."""
    path, holder = resolve_lock_path(value), GpuLock(value).status()
    folder, kind = path.parent, _file_system(path.parent)
    if kind in _NO_FILES or not os.access(folder, os.W_OK | os.X_OK):
        return BROKEN, f"{path} cannot be made: {folder} does not exist or takes no files.", _MOVE_IT
    if holder:
        return WARNING, f"{path} is held: {holder.describe()}. {holder.note}", "Wait until it is free."
    if _NETWORKS.search(kind):
        return WARNING, f"{path} is free, but on a network ({kind}), where other hosts may hold it.", _MOVE_IT
    if folder.stat().st_mode & stat.S_ISVTX:
        return WARNING, f"{path} is free, but in a sticky directory: what another user leaves there stays.", _MOVE_IT
    return OK, f"{path} is free.", ""


def _file_system(folder: Path) -> str:
    """The kind of file system that a directory is on, as Linux tells; empty elsewhere."""
    with suppress(OSError):
        device = folder.stat().st_dev
        kinds: dict[str, str] = dict(re.findall(r"(?m)^\d+ \d+ (\S+) .*? - (\S+)", _MOUNTS.read_text(errors="replace")))
        return kinds.get(f"{os.major(device)}:{os.minor(device)}", "")
    return ""
