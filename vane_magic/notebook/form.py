"""The question form: widgets that ask Vane in a worker thread, so that the kernel stays free.

A front end sends values and clicks when it likes, and a kernel with subshells takes them on other threads. So one lock
guards what a form is doing, and what a run comes to counts only while it is the form's own run.
"""

from __future__ import annotations

import atexit
import contextvars
import html
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

import ipywidgets
from IPython.core.getipython import get_ipython
from traitlets import Enum, Instance, Int

from vane_magic.core.boundary import check_endpoint
from vane_magic.core.client import LOOK_UP_S, Progress, VaneClient
from vane_magic.core.contract import RunDetails, ToolResult
from vane_magic.core.errors import InternalError, VaneError
from vane_magic.core.models import chat_names
from vane_magic.core.modes import ErrorCode, Mode
from vane_magic.core.settings import SCOPES, SETTINGS, Layer, Settings, environment
from vane_magic.core.transport import DeadlineExpired, Watch
from vane_magic.core.vane_api import look_up
from vane_magic.display import clean, live_text
from vane_magic.display.text import inert, shorten
from vane_magic.notebook.traits import DEFAULTS

_REDRAW_S: Final = 0.1
_ECHO_S: Final = 5.0  # what a front end may take to answer; a busy kernel without subshells hears it later still
_GREETINGS: Final = 5
_GREETING_S: Final = 0.5  # seconds between them
_JOIN_S: Final = 2.0  # a stopped run ends within a tenth of a second
_COPIED: Final = 100_000  # characters of Markdown to copy; .result has all
_HINT: Final = "What do you want to know? The button asks, or an empty last line: Shift+Enter twice."
_AIR_GAP: Final = (
    "Air-gapped means here: the model and this client stay on this machine. Unless your SearXNG has only"
    " offline engines, your search terms go to public search engines."
)
_PLAIN: Final = (
    "{form!r}\nThis front end shows no widgets? Ask without them:"
    ' form.ask("…").result(), %vane …, or vane_magic.research("…").'
)
_COPY: Final = "box-sizing:border-box;width:100%;background:none;color:inherit;font-family:monospace"
_BAR: Final = "flex:1;min-width:0;height:auto"
_log: Final = logging.getLogger("vane_magic")
_widgets: Any = ipywidgets  # annotates little


class _Question(ipywidgets.Textarea):
    """The field of the question, with an echo: the front end answers each `ping` by an equal `pong`.

    A front end holds a newer value back while the kernel has not handled an older one, but sends a click at once.
    The pong comes behind every value that was held back.
    """

    ping = Int(1).tag(sync=True)
    pong = Int(0).tag(sync=True)


class _Page:
    """The widgets of a form, in the order of the keyboard, as wide as the page allows."""

    def __init__(self, question: str, settings: Settings) -> None:
        modes = [(f"{mode}, up to {mode.limit_s:g} s: {mode.workload}", mode) for mode in Mode]
        models = [(settings.chat_model or "chosen automatically", "")]
        box, choice, button = _widgets.Checkbox, _widgets.Dropdown, _widgets.Button
        count, top = settings.max_sources, max(settings.max_sources, 1000)
        self.question = _field(_Question, "Question", "", "1 1 100%", value=question, rows=3, placeholder=_HINT)
        self.mode = _field(choice, "Mode", SETTINGS["mode"].help, "2 1 20em", options=modes, value=settings.mode)
        self.model = _field(choice, "Chat model", SETTINGS["chat_model"].help, "1 1 14em", options=models)
        self.refresh = _field(button, "Refresh", "Ask Vane again for its chat models")
        self.scopes = {
            name: _field(box, name, f"Search: {name}", value=name in settings.scope, indent=False) for name in SCOPES
        }
        self.max_sources = _field(
            _widgets.BoundedIntText, "Sources", SETTINGS["max_sources"].help, "0 0 9em", value=count, min=1, max=top
        )
        self.ask = _field(button, "Ask", "Ask Vane the question", "0 0 9em", button_style="primary")
        self.stop = _field(button, "Stop", "Stop the question; what has come is kept", "0 0 9em", disabled=True)
        told = "Send the conversation so far along with the question"
        self.go_on = _field(box, "Continue from the last answer", told, indent=False, disabled=True)
        self.status, self.answer, self.markdown = (_widgets.HTML() for _ in range(3))
        self.clock = _widgets.HTML(layout={"flex": "1 1 12em"})
        self.earlier = _field(choice, "Answers", "Go back to an earlier answer", display="none")
        self.rows = (
            self.question,
            _row(self.mode, self.model, self.refresh),
            _row(_widgets.Label("Search in"), *self.scopes.values(), self.max_sources),
            _row(self.ask, self.stop, self.go_on),
            _row(self.status, self.clock),
            *(self.answer, self.earlier, self.markdown),
            _widgets.HTML(f'<div style="font-size:.85em;opacity:.75;line-height:1.4">{_AIR_GAP}</div>'),
        )


class _Run:
    """One question at work."""

    def __init__(self) -> None:
        self.cancel = threading.Event()
        self.future: Future[ToolResult] = Future()
        self.next_draw = 0.0


class Form(ipywidgets.VBox):
    """Ask Vane by a form, while other cells run.

    Settings that are not given come from ``%config VaneMagics``, the environment and the defaults of ``%vane``.

    Parameters
    ----------
    question
        What stands in the form at first.
    mode, max_sources, scope, chat_model
        What is chosen in the form at first.
    url, embedding_model, instructions, timeout, wait, lock_path, allow_remote
        As for `VaneClient`; they hold for every question.

    Attributes
    ----------
    state : str
        ``idle``, ``running``, ``done``, ``failed`` or ``cancelled``. Can be observed.
    result : ToolResult or None
        What the last question came to. Can be observed; observers are called on the thread that did the work.

    Raises
    ------
    ConfigurationError
        For a bad setting, from whatever origin.
    """

    state = Enum(("idle", "running", "done", "failed", "cancelled"), "idle", read_only=True)
    result = Instance(ToolResult, allow_none=True, read_only=True)
    _is_open = False

    def __init__(self, question: str = "", **settings: object) -> None:
        self._config: dict[str, object] = {}  # what %config holds, as of the last question
        self._layers = (Layer("Form({name}=…)", settings), Layer("%config VaneMagics.{name}", self._config))
        self._client = VaneClient.of_layers(*self._layers, defaults=DEFAULTS)
        self._lock = threading.RLock()
        self._run: _Run | None = None
        self._results: list[ToolResult] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._context = contextvars.copy_context()
        self._page = page = _Page(question, self._settings())
        super().__init__(page.rows, layout={"max_width": "60em"})  # pyright: ignore[reportUnknownMemberType] - ipywidgets annotates little
        self._is_open = True
        atexit.register(self.close)
        self._link = _widgets.jsdlink((page.question, "ping"), (page.question, "pong"))
        page.question.observe(self._adopt, "pong")
        page.question.observe(self._typed, "value")
        page.ask.on_click(self._submit)
        page.stop.on_click(self._halt)
        page.refresh.on_click(self._list_models)
        page.earlier.observe(self._show, "value")
        self._list_models()

    def __repr__(self) -> str:
        return f"<vane_magic.Form {self.state}, {len(self._results)} results>"

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        bundle: Any = super()._repr_mimebundle_(**options)  # pyright: ignore[reportUnknownMemberType] - likewise
        return {**bundle, "text/plain": _PLAIN.format(form=self)}

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """What each question of this form came to, the first one first."""
        return tuple(self._results)

    def ask(self, question: str | None = None) -> Future[ToolResult]:
        """Ask with what the form shows, without waiting for the answer.

        Parameters
        ----------
        question
            Takes the place of the one in the form.

        Returns
        -------
        concurrent.futures.Future
            Its ``result()`` waits for the ToolResult.

        Raises
        ------
        RuntimeError
            While a question is at work, or when the form is closed.
        """
        run = self._begin(question)
        if run is None:
            raise RuntimeError("The form is closed, or at work on a question: stop() ends that.")
        return run.future

    def stop(self) -> None:
        """Stop the question at work and keep what has come; called again, wait for its end no longer."""
        with self._lock:
            run = self._run
            if run and run.cancel.is_set():
                self._run = None
                self._publish(self._enter, "cancelled", "Stopped; what may still come is dropped.")
            elif run:
                run.cancel.set()
                self._publish(self._say, "Stopping …")

    def close(self) -> None:
        """Stop what is at work, and take the form off the page."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
            run, self._run = self._run, None
            if run:
                run.cancel.set()
                self._enter("cancelled", "Closed.")
        self._closing.set()
        atexit.unregister(self.close)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)
        for widget in (*_parts(self), self._link):
            widget.close()
        super().close()

    def _adopt(self, change: dict[str, Any]) -> None:
        """Have the form's messages handled where this one is: in a subshell, when the front end uses one.

        ipykernel routes a widget's messages to the shell from whose messages the widget was changed last. That was the
        cell which made the form, and may be busy. So all changes are published as if this message had caused them.
        """
        self._context = contextvars.copy_context()
        for widget in _parts(self):
            if widget.has_trait("disabled"):
                widget.send_state("disabled")
        if change["new"] < _GREETINGS:
            self._spawn(self._greet)

    def _greet(self) -> None:
        """Ping again: a front end's first messages have no subshell, since it is still being made."""
        if not self._closing.wait(_GREETING_S):
            self._ping()

    def _ping(self) -> int:
        with self._lock:
            self._page.question.ping += 1
            return self._page.question.ping

    def _publish(self, change: Callable[..., None], *args: object) -> None:
        self._context.copy().run(change, *args)

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        run = partial(self._context.copy().run, work, *args)
        thread = threading.Thread(target=run, name="vane-form", daemon=True)
        with self._lock:
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    # The front end's messages ---

    def _typed(self, change: dict[str, Any]) -> None:
        """Ask when an empty last line is typed; what is pasted asks nothing.

        A front end tells no keys of a field with several lines. Shift+Enter reaches us as a line feed, as Enter does.
        """
        old, new = str(change["old"]), str(change["new"])
        if new.endswith("\n\n") and len(new) > len(old) and new.rstrip("\n") == old.rstrip("\n") != "":
            self._page.question.value = new.rstrip("\n")
            self._submit()

    def _submit(self, _: object = None) -> None:
        self._begin(None, echo=True)

    def _halt(self, _: object) -> None:
        self.stop()

    def _show(self, change: dict[str, Any]) -> None:
        """Show one of the results."""
        number: int = change["new"]
        result = self._results[number]
        markdown = html.escape(clean(result.to_markdown())[:_COPIED])
        query = f'<div style="font-weight:600;margin:.6em 0">{inert(shorten(result.run.query, 2000))}</div>'
        self._page.answer.value = query + result.card().html()
        self._page.markdown.value = (
            f"<details><summary>Markdown to copy</summary>"
            f'<textarea rows="10" aria-label="Markdown to copy" style="{_COPY}">{markdown}</textarea></details>'
        )

    # A question's way ---

    def _begin(self, question: str | None, *, echo: bool = False) -> _Run | None:
        """Start a run; None when there is one, so that a double click asks once."""
        with self._lock:
            if self._run or not self._is_open:
                return None
            self._run = run = _Run()
            if question is not None:
                self._publish(setattr, self._page.question, "value", question)
            self._spawn(self._work, run, echo)
            self._publish(self._enter, "running", "Starting …")
        return run

    def _enter(self, state: str, status: str) -> None:
        page, is_running = self._page, state == "running"
        page.ask.disabled, page.stop.disabled = is_running, not is_running
        page.clock.value = ""
        if is_running:
            page.answer.value = ""
        self._say(status)
        self.set_trait("state", state)

    def _say(self, status: str) -> None:
        """Write the status line, which screen readers announce when its words change."""
        self._page.status.value = f'<div role="status" aria-live="polite">{inert(status)}</div>'

    def _work(self, run: _Run, echo: bool) -> None:  # noqa: FBT001 - given by position to a thread
        """Carry a run through, on a thread of its own."""
        try:
            if echo:
                self._await_echo(run)
            result = self._research(run)
        except Exception as fault:  # noqa: BLE001 - it is logged and told
            _log.exception("a fault of vane_magic")
            error = InternalError(f"A fault of vane_magic itself: {type(fault).__name__}.", hint="See the log.")
            error.__cause__ = fault
            result = ToolResult.of_run(RunDetails(query=self._page.question.value), 0, error=error)
        try:
            self._end(run, result)
        finally:
            run.future.set_result(result)

    def _await_echo(self, run: _Run) -> None:
        """Wait for the values that the front end holds back; a front end that never answered is none."""
        question = self._page.question
        if question.pong == 0:
            return
        ping, until = self._ping(), time.monotonic() + _ECHO_S
        while question.pong < ping and time.monotonic() < until and not run.cancel.wait(0.01):
            pass

    def _research(self, run: _Run) -> ToolResult:
        page, previous = self._page, self._previous()
        self._read_config()
        result = self._client.research(
            page.question.value,
            mode=page.mode.value,
            max_sources=page.max_sources.value,
            scope=[name for name, box in page.scopes.items() if box.value],
            chat_model=page.model.value or None,
            previous=previous,
            on_progress=partial(self._report, run),
            cancel=run.cancel,
        )
        return result.with_notes(f"Goes on from: {previous.run.query}") if previous else result

    def _previous(self) -> ToolResult | None:
        """The last answer, when the question is to go on from it."""
        answers = (result for result in reversed(self._results) if result.success)
        return next(answers, None) if self._page.go_on.value else None

    def _report(self, run: _Run, progress: Progress) -> None:
        """Show how a run goes."""
        with self._lock:
            if run is not self._run or run.cancel.is_set() or time.monotonic() < run.next_draw:
                return
            run.next_draw = time.monotonic() + _REDRAW_S
            held = f" ({progress.holder})" if progress.holder else ""
            found = "" if progress.sources is None else f", {_count(progress.sources, 'source')}"
            self._say(f"{progress.phase[0].upper()}{progress.phase[1:]}{held}{found}")
            self._page.clock.value = _bar(progress.elapsed_ms, progress.limit_ms)
            if text := progress.text:
                self._page.answer.value = live_text(text, "")[0]

    def _end(self, run: _Run, result: ToolResult) -> None:
        """Show what a run came to, when it is still the form's own."""
        page = self._page
        with self._lock:
            if run is not self._run:
                return
            self._run = None
            self._results.append(result)
            self._offer(self._client.chat_models)
            page.earlier.options = [(_title(n, each), n) for n, each in reversed([*enumerate(self._results)])]
            page.earlier.value = len(self._results) - 1
            page.earlier.layout.display = None
            page.go_on.disabled = not any(each.success for each in self._results)
            with self.hold_trait_notifications():  # observers find both
                self.set_trait("result", result)  # first, for who waits for the state and then reads it
                self._enter(*_outcome(result))

    # Settings and models ---

    def _read_config(self) -> None:
        shell: Any = get_ipython()
        magics = shell and shell.magics_manager.registry.get("VaneMagics")
        self._config.update({name: getattr(magics, name, None) for name in SETTINGS})

    def _settings(self) -> Settings:
        self._read_config()
        return Settings.resolve(*self._layers, environment(), DEFAULTS)

    def _list_models(self, _: object = None) -> None:
        self._spawn(self._look_up)

    def _look_up(self) -> None:
        """Ask Vane which chat models there are."""
        names: Sequence[str] = ()
        said = self._page.status.value
        try:
            endpoint = check_endpoint(self._settings().url)
            names = chat_names(look_up(endpoint, Watch(LOOK_UP_S, cancel=self._closing)))
            status = f"Ready: {endpoint} has {_count(len(names), 'chat model')}."
        except (VaneError, DeadlineExpired) as error:
            status = f"No list of chat models. {error}"
        with self._lock:
            if self._is_open and not self._run:
                self._offer(names)
                if self._page.status.value == said:  # no question has come between
                    self._say(status)

    def _offer(self, names: Sequence[str]) -> None:
        """Let these models be chosen; the chosen one stays chosen."""
        model = self._page.model
        options = (model.options[0], *((shorten(name, 100), name) for name in names))
        if names and options != model.options:
            chosen = model.value
            model.options = options
            model.value = chosen if chosen in names else ""


def _outcome(result: ToolResult) -> tuple[str, str]:
    spent = f"{result.telemetry.duration_ms / 1000:.1f} s"
    if result.error is None:
        return "done", f"Done in {spent}, {_count(len(result.sources), 'source')}."
    if result.error.code == ErrorCode.CANCELLED:
        return "cancelled", f"Stopped after {spent}; what had come is kept."
    return "failed", f"Failed after {spent}: {result.error.code}."


def _title(number: int, result: ToolResult) -> str:
    state = "" if result.success else f" ({_outcome(result)[0]})"
    return f"{number + 1}. {shorten(result.run.query, 80)}{state}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _bar(elapsed_ms: int, limit_ms: int) -> str:
    bar = f'<progress aria-label="Time used" max="{limit_ms}" value="{min(elapsed_ms, limit_ms)}" style="{_BAR}">'
    return f'<div style="display:flex;gap:.8em">{bar}</progress>{elapsed_ms // 1000} of {limit_ms // 1000} s</div>'


def _field(kind: Any, name: str, told: str, flex: str = "0 0 auto", display: str | None = None, **options: Any) -> Any:  # noqa: ANN401 - ipywidgets annotates little
    """A control with its label and tooltip."""
    layout = {"flex": flex, "width": "auto", "min_width": "0", "display": display}
    control = kind(description=name, tooltip=told, layout=layout, **options)
    if control.style.has_trait("description_width"):
        control.style.description_width = "initial"
    return control


def _row(*children: object) -> Any:  # noqa: ANN401 - likewise
    return _widgets.HBox(children, layout={"flex_flow": "row wrap", "align_items": "center", "grid_gap": "0 1em"})


def _parts(widget: Any) -> Iterator[Any]:  # noqa: ANN401 - likewise
    """The widgets in a box, and what gives each its look."""
    for child in getattr(widget, "children", ()):
        yield from _parts(child)
        yield child
    yield widget.layout
    if hasattr(widget, "style"):
        yield widget.style
