"""VaneClient: the one pipeline from a question to a ToolResult."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial, wraps
from typing import Concatenate, Final, NamedTuple, ParamSpec, Self, cast

from vane_magic.core.boundary import Endpoint, check_endpoint
from vane_magic.core.citations import Selection, select, split_thinking, strip_marks
from vane_magic.core.contract import RunDetails, ToolData, ToolResult, Turn, VaneSkillInput, check_query, content_hash
from vane_magic.core.errors import (
    Cancelled,
    ExecutionTimeout,
    InternalError,
    Interrupted,
    UpstreamSearchError,
    VaneError,
    VaneServiceUnavailable,
    VramConcurrencySaturated,
)
from vane_magic.core.gpu_lock import GpuLock
from vane_magic.core.models import Choice, chat_names, choose
from vane_magic.core.modes import Mode
from vane_magic.core.settings import SETTINGS, Layer, Settings, environment
from vane_magic.core.transport import DeadlineExpired, Watch
from vane_magic.core.vane_api import DOCTOR, Received, look_up, search

LOOK_UP_S: Final = 5.0  # Vane asks Ollama for the look-up, and can hang
HISTORY_BYTES: Final = 32_000
_AT_WORK: Final = "Vane does not stop when its client leaves: it may still be at work on the question."
_BUSY_BEFORE: Final = "Vane may still have been at work on the question before, which was stopped."
_log: Final = logging.getLogger("vane_magic")
_P = ParamSpec("_P")


class Phase(StrEnum):
    """What a run is doing."""

    LOOK_UP = "looking up models"
    WAITING = "waiting for the GPU"
    SEARCHING = "searching"
    WRITING = "writing"


class Progress(NamedTuple):
    """A snapshot of a run.

    Attributes
    ----------
    phase : Phase
        What the run is doing.
    elapsed_ms, limit_ms : int
        Milliseconds spent of the present budget, and that budget: the look-up's, the wait's, or the mode's.
    sources : int or None
        How many sources have come; None before they come.
    holder : str
        While waiting: who holds the GPU lock, and since when.
    pieces, arrived
        The answer as it comes, which goes on after the snapshot, and how many pieces of it had arrived; see `text`.
    """

    phase: Phase
    elapsed_ms: int
    limit_ms: int
    sources: int | None = None
    holder: str = ""
    pieces: Sequence[str] = ()
    arrived: int = 0

    @property
    def text(self) -> str:
        """The answer so far, without thinking; joined when read."""
        return split_thinking("".join(self.pieces[: self.arrived]))[0]

    def __repr__(self) -> str:
        found = "" if self.sources is None else f", {self.sources} source{'' if self.sources == 1 else 's'}"
        held = f" ({self.holder})" if self.holder else ""
        return f"{self.phase}{held}, {self.elapsed_ms // 1000} of {self.limit_ms // 1000} s{found}"


def _in_a_thread(
    blocking: Callable[Concatenate[VaneClient, _P], ToolResult],
) -> Callable[Concatenate[VaneClient, _P], Coroutine[None, None, ToolResult]]:
    """Make `VaneClient.aresearch` of `VaneClient.research`, with the same parameters."""

    @wraps(blocking, assigned=())
    async def aresearch(self: VaneClient, *args: _P.args, **options: _P.kwargs) -> ToolResult:
        """Ask one question in a worker thread; the parameters are those of `research`.

        `on_progress` is called on the event loop's thread. When the task is cancelled, the run is stopped
        and its end awaited before CancelledError goes on, so that the GPU lock is free by then.
        """
        loop = asyncio.get_running_loop()
        options["cancel"] = cancel = cast("threading.Event | None", options.get("cancel")) or threading.Event()
        if (report := cast("Callable[[Progress], None] | None", options.get("on_progress"))) is not None:
            options["on_progress"] = partial(loop.call_soon_threadsafe, report)
        with ThreadPoolExecutor(1, "vane-magic") as threads:  # one of its own: the shared pool may be full
            future = loop.run_in_executor(threads, partial(blocking, self, *args, **options))
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                cancel.set()
                while not future.done():
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([future])
                raise

    return aresearch


class VaneClient:
    """Ask a local Vane.

    Every parameter is a setting; None means: from the environment (``VANE_…``), else the default.
    Values are judged when a question is asked, so that a bad one ends in a ToolResult too.
    The client owns no open connection and may be shared between threads.

    Parameters
    ----------
    url
        Vane's address on the loopback interface; default ``http://127.0.0.1:3000``.
    mode
        ``speed``, ``balanced`` or ``quality``: 10, 30 or 60 s.
    max_sources
        How many sources to return.
    scope
        ``web``, ``academic``, ``discussions``, or several: separated by commas, or a list.
    chat_model, embedding_model
        As ``Provider/model`` or ``model``; None: chosen by a fixed rule.
    instructions
        How to write the answer.
    timeout
        Seconds; at most the mode's limit.
    wait
        Seconds to wait for the GPU lock.
    lock_path
        The lock file, or an existing directory for it.
    allow_remote
        Allow a model or a search engine that is not on this machine.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        mode: str | None = None,
        max_sources: int | None = None,
        scope: str | Sequence[str] | None = None,
        chat_model: str | None = None,
        embedding_model: str | None = None,
        instructions: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        lock_path: str | None = None,
        allow_remote: bool | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in SETTINGS}
        self._layers = (Layer("VaneClient({name}=…)", given),)
        self._defaults: tuple[Layer, ...] = ()
        self.left_at_work = False  # whether the last question was left before Vane had finished it
        self.chat_models: Sequence[str] = ()  # the names that the last look-up gave, for completion

    @classmethod
    def of_layers(cls, *layers: Layer, defaults: Layer) -> Self:
        """Build a face's client: `layers` go before the environment, `defaults` behind it.

        A layer's mapping is read at each question, so a face may keep one client and change its values.
        """
        client = cls()
        client._layers, client._defaults = layers, (defaults,)
        return client

    def research(
        self,
        query: str,
        *,
        mode: str | None = None,
        max_sources: int | None = None,
        scope: str | Sequence[str] | None = None,
        chat_model: str | None = None,
        instructions: str | None = None,
        previous: ToolResult | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> ToolResult:
        """Ask one question and wait for the answer.

        Parameters
        ----------
        query
            The question, of 3 characters or more; sent as it is, without outer white space.
        mode, max_sources, scope, chat_model, instructions, timeout, wait
            As in the class, for this question.
        previous
            An earlier result to continue from.
        on_progress
            Called with a `Progress` on each event and at least each 100 ms, on the calling thread.
        cancel
            Setting this event from another thread ends the run with code CANCELLED.

        Returns
        -------
        ToolResult
            Whatever happens; a failed one carries the part of the answer that had come.

        Raises
        ------
        Interrupted
            On Ctrl-C; its ``result`` has what had come.
        TypeError
            When `previous` is no ToolResult.
        """
        if previous is not None and not isinstance(previous, ToolResult):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
            raise TypeError(f"previous must be a ToolResult, not {type(previous).__name__}")
        given = {name: value for name, value in locals().items() if name in SETTINGS}
        layers = (Layer("the call", given, call=True), *self._layers, environment(), *self._defaults)
        return _Run(self, query, layers, previous, on_progress, cancel or threading.Event()).to_result()

    aresearch = _in_a_thread(research)


@dataclass
class _Run:
    """One question on its way; whatever has come stays readable in it."""

    client: VaneClient
    query: object
    layers: Sequence[Layer]
    previous: ToolResult | None
    on_progress: Callable[[Progress], None] | None
    cancel: threading.Event

    def __post_init__(self) -> None:
        self.started = self.phase_began = time.monotonic()
        self.before = (_BUSY_BEFORE,) if self.client.left_at_work else ()
        self.turns = self.previous.run.turns if self.previous else ()
        query = self.query.strip() if isinstance(self.query, str) else ""
        self.details = RunDetails(query=query, turns=self.turns, notes=self.before)
        self.settings: Settings | None = None
        self.phase: Phase | None = None
        self.watch = Watch(LOOK_UP_S)  # of the present phase
        self.of_documents = False  # whether the local documents answer, and not the web
        self.sent = False
        self.received = Received()
        self.caller_fault: BaseException | None = None  # raised by the caller's own on_progress

    def to_result(self) -> ToolResult:
        try:
            return self._pipeline()
        except (Cancelled, KeyboardInterrupt) as stop:
            result = self._failed(Cancelled("Stopped by the user.", self._at_work()))
            if isinstance(stop, KeyboardInterrupt):
                raise Interrupted(result) from None
            return result
        except VaneError as error:
            return self._failed(error)
        except Exception as fault:
            if fault is self.caller_fault:
                raise
            _log.exception("a fault of vane_magic")
            error = InternalError(f"A fault of vane_magic: {type(fault).__name__}.", hint="See the log, and report it.")
            error.__cause__ = fault
            return self._failed(error)

    def _pipeline(self) -> ToolResult:
        settings = self._check()
        endpoint = check_endpoint(settings.url)
        self._note(url=str(endpoint))
        try:
            server = look_up(endpoint, self._enter(Phase.LOOK_UP, LOOK_UP_S))
        except DeadlineExpired:
            cause = "Vane waits for its model provider (Ollama) when it is asked for its models."
            raise VaneServiceUnavailable(f"Nothing came from {endpoint} in {LOOK_UP_S:g} s.", cause) from None
        self.client.chat_models = chat_names(server)
        self.of_documents = any(provider.type == "localdocs" for provider in server.providers)
        choice = choose(server, settings.chat_model, settings.embedding_model, allow_remote=settings.allow_remote)
        self._note(chat_model=str(choice.chat), embedding_model=str(choice.embedding))
        self._note(fitting=choice.fitting, locality=choice.locality.name.lower())
        return self._ask(settings, endpoint, choice)

    def _check(self) -> Settings:
        """Judge the question and the settings; what the specification's input has is judged first."""
        query = check_query(self.query)
        given = {k: v for k, v in self.layers[0].values.items() if k in VaneSkillInput.model_fields and v is not None}
        VaneSkillInput.parse({"query": query, **given})
        self.settings = settings = Settings.resolve(*self.layers)
        self._note(mode=settings.mode, limit_ms=_ms(settings.limit_s))
        return settings

    def _ask(self, settings: Settings, endpoint: Endpoint, choice: Choice) -> ToolResult:
        """Hold the GPU lock, send the question once, and take what comes."""
        lock = GpuLock(settings.lock_path, wait=settings.wait, mode=settings.mode, cancel=self.cancel)
        self._enter(Phase.WAITING, settings.wait)
        try:
            lock.acquire(lambda holder, _: self._report(holder.describe() if holder else ""))
            watch = self._enter(Phase.SEARCHING, settings.limit_s, lock.acquired_at)
            lock.check()
            self.sent = True
            search(endpoint, self._request(settings, choice), watch, self.received, self._report)
            data = self._whole()
            lock.check()
            watch.pulse()
        except DeadlineExpired:
            raise self._out_of_time(settings) from None
        except VramConcurrencySaturated as lost:
            if not self.sent:
                raise
            raise ExecutionTimeout(lost.what, lost.cause, self._at_work() or "The answer had come by then.") from None
        finally:
            lock.release()
        self.client.left_at_work = False
        self._note(turns=(*self.details.turns, Turn(self.details.query, data.answer)))
        return self._ended(data)

    def _request(self, settings: Settings, choice: Choice) -> dict[str, object]:
        request: dict[str, object] = {
            "query": self.details.query,
            "sources": list(settings.scope),
            "chatModel": choice.chat.reference,
            "embeddingModel": choice.embedding.reference,
            "optimizationMode": settings.mode.value,
            "history": _history(self.turns),
            "stream": True,
        }
        return request | ({"systemInstructions": settings.instructions} if settings.instructions else {})

    def _data(self) -> ToolData | None:
        """What came, with its sources chosen and its citations read; None when nothing came."""
        received, settings = self.received, self.settings
        answer, thinking = split_thinking("".join(received.pieces))
        self._note(complete=received.done, thinking=thinking)
        if settings is None or not (answer.strip() or received.sources):
            return None
        sent = received.sources or []
        chosen = select(sent, answer, settings.max_sources)
        self._note(
            searched=received.sources is not None if received.done or received.sources else None,
            cited=chosen.cited,
            dangling=chosen.dangling,
            source_count=len(sent),
            notes=(*self.before, *_notes(received, chosen, answer, of_documents=self.of_documents), *chosen.notes),
        )
        query, mode, sources = self.details.query, settings.mode, chosen.sources
        digest = content_hash(query=query, mode=mode, answer=answer, sources=sources)
        spent_ms = _ms(self.watch.elapsed())
        return ToolData(query=query, answer=answer, sources=sources, mode=mode, timing_ms=spent_ms, content_hash=digest)

    def _whole(self) -> ToolData:
        """The answer of a stream that came to its end; an empty one is none."""
        data = self._data()
        if data is not None and data.answer.strip():
            return data
        thought = " Only the model's thinking came." if self.details.thinking else ""
        cause = "The model may be too small for the task, or its context too short."
        raise UpstreamSearchError(f"Vane's answer is empty.{thought}", cause)

    def _failed(self, error: VaneError) -> ToolResult:
        """The result of a run that ended early, with the part that had come."""
        self.client.left_at_work = self.sent and isinstance(error, (ExecutionTimeout, Cancelled))
        try:
            data = self._data()
        except Exception:  # noqa: BLE001 - a second fault must not hide the first
            _log.exception("a fault of vane_magic")
            data = None
        if self.settings and DOCTOR not in error.hint and not isinstance(error, (Cancelled, InternalError)):
            error.hint = f"{error.hint} {DOCTOR}".strip()
        return self._ended(data, error)

    def _ended(self, data: ToolData | None, error: VaneError | None = None) -> ToolResult:
        self._end_phase()
        return ToolResult.of_run(self.details, _ms(time.monotonic() - self.started), data=data, error=error)

    def _out_of_time(self, settings: Settings) -> ExecutionTimeout:
        limit = f"{settings.limit_s:g} s limit of {settings.mode} mode"
        what, cause, hint = f"No answer came within the {limit}.", "", ""
        if any(piece.strip() for piece in self.received.pieces):
            what, hint = f"Stopped at the {limit}; the text may end mid-sentence.", "Ask again, or use a slower mode."
        elif settings.mode is Mode.SPEED:
            cause, hint = "The model was probably still loading.", "Ask again in a moment."
        else:
            cause = (
                "Vane is silent when a part behind it fails. Usual causes: a model that cannot call tools or is slow,"
                " SearXNG down or without its JSON format, a context that is too small."
            )
        return ExecutionTimeout(what, f"{cause} {self._at_work()}".strip(), hint)

    def _at_work(self) -> str:
        return _AT_WORK if self.sent and not self.received.done else ""

    def _note(self, **values: object) -> None:
        self.details = self.details._replace(**values)  # pyright: ignore[reportArgumentType] - names and types are the caller's, a few lines away

    def _enter(self, phase: Phase, limit_s: float, started: float | None = None) -> Watch:
        """Begin a phase with a time limit of its own."""
        self._end_phase(phase)
        self.watch = Watch(limit_s, self.cancel, self._report, started or self.phase_began)
        return self.watch

    def _end_phase(self, then: Phase | None = None) -> None:
        now = time.monotonic()
        if self.phase is not None:
            self._note(timings=(*self.details.timings, (self.phase.value, _ms(now - self.phase_began))))
        self.phase, self.phase_began = then, now

    def _report(self, holder: str = "") -> None:
        """Send a snapshot to the caller."""
        sources, pieces = self.received.sources, self.received.pieces
        if self.phase is Phase.SEARCHING and pieces:
            self._end_phase(Phase.WRITING)
        if self.on_progress is None or self.phase is None:
            return
        elapsed_ms, limit_ms = _ms(self.watch.elapsed()), _ms(self.watch.limit_s)
        found = None if sources is None else len(sources)
        try:
            self.on_progress(Progress(self.phase, elapsed_ms, limit_ms, found, holder, pieces, len(pieces)))
        except Exception as raised:
            self.caller_fault = raised
            raise


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _history(turns: Sequence[Turn]) -> list[list[str]]:
    """Vane's pairs without citation marks, the oldest turns dropped above 32 kB."""
    pairs: list[list[str]] = []
    size = 0
    for turn in reversed(turns):
        answer = strip_marks(turn.answer).strip()
        size += len(turn.query.encode()) + len(answer.encode())
        if size > HISTORY_BYTES:
            break
        pairs[:0] = [["human", turn.query], ["assistant", answer]]
    return pairs


def _notes(received: Received, chosen: Selection, answer: str, *, of_documents: bool) -> Iterator[str]:
    """What a reader should know of the answer before trusting it."""
    if received.sources:
        if answer.strip() and not chosen.cited:
            yield "The answer cites none of its sources."
    elif received.sources is not None and of_documents:
        yield "No document matches the question, so no source backs this answer."
    elif received.sources is not None:
        yield (
            "The search found nothing, so no source backs this answer. Usual causes: SearXNG is not reachable,"
            " its engines limit the rate, or the scope has no hits."
        )
    elif received.done:
        yield (
            "Answered without a web search: no source backs this answer. If one was to be expected, SearXNG may be"
            " unreachable or without its JSON format, or its engines limit the rate."
        )
    if chosen.dangling:
        listed = ", ".join(f"[{n}]" for n in chosen.dangling[:10])
        yield f"{listed} in the answer point{'s' if len(chosen.dangling) == 1 else ''} at no source."


_DEFAULT: Final = VaneClient()


research = _DEFAULT.research
"""`VaneClient.research` with the settings of the environment."""
aresearch = _DEFAULT.aresearch
"""`VaneClient.aresearch` with the settings of the environment."""
