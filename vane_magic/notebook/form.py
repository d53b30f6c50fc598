"""The question form: widgets that ask Vane in a worker thread, so that the kernel stays free.

A front end sends values and clicks when it likes, and a kernel with subshells takes them on other threads. So one lock
guards what a form is doing, and what a run comes to counts only while it is the form's own run.
"""

from __future__ import annotations

import contextvars
import html
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import ipywidgets
from IPython.core.getipython import get_ipython
from traitlets import Enum, Instance, Int, Tuple

from vane_magic.core.boundary import check_endpoint
from vane_magic.core.client import LOOK_UP_S, Progress, VaneClient
from vane_magic.core.contract import RunDetails, ToolResult
from vane_magic.core.errors import ConfigurationError, InternalError, VaneError
from vane_magic.core.models import chat_names
from vane_magic.core.modes import ErrorCode, Mode
from vane_magic.core.settings import FACES_ONLY, SCOPES, SETTINGS, Layer, Settings, environment
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
_INSTEAD: Final = "For local_docs give the url of `vane-research serve`; for on_error call result.raise_for_error()."
_HINT: Final = "What do you want to know? The button asks, or an empty last line: Shift+Enter twice."
_AIR_GAP: Final = """Air-gapped means here: the model and this client stay on this machine. Unless your SearXNG has only
offline engines, your search terms go to public search engines."""
_PLAIN: Final = """{form!r}
This front end shows no widgets? Ask without them: form.ask("…").result(), %vane …, or vane_magic.research("…")."""
_MARKDOWN: Final = """<details><summary>Markdown to copy</summary><textarea rows="10" aria-label="Markdown to copy"
style="box-sizing:border-box;width:100%;background:none;color:inherit;font-family:monospace">{}</textarea></details>"""
_CLOCK: Final = """<div style="display:flex;gap:.8em"><progress aria-label="Time used" max="{limit:g}" value="{spent:g}"
style="flex:1;min-width:0;height:auto"></progress>{spent:.0f} of {limit:g} s</div>"""
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
        modes = [(f"{mode}, up to {mode.limit_s:g} s", mode) for mode in Mode]
        model = settings.chat_model or "chosen automatically"
        told = {name: setting.help for name, setting in SETTINGS.items()}
        box, choice, button, number = _widgets.Checkbox, _widgets.Dropdown, _widgets.Button, _widgets.IntText
        self.question = _field(_Question, "Question", "", "1 1 100%", value=question, rows=3, placeholder=_HINT)
        workloads = "; ".join(f"{mode}: {mode.workload}" for mode in Mode)
        self.mode = _field(choice, "Mode", workloads, "1 0 18em", options=modes, value=settings.mode)
        self.model = _field(_widgets.Combobox, "Chat model", told["chat_model"], "1 1 16em", placeholder=model)
        self.refresh = _field(button, "Refresh", "Ask Vane again for its chat models")
        self.scopes = [_field(box, name, told["scope"], value=name in settings.scope, indent=False) for name in SCOPES]
        self.max_sources = _field(number, "Sources", told["max_sources"], "0 0 12em", value=settings.max_sources)
        self.ask = _field(button, "Ask", "Ask Vane the question", "0 0 9em", button_style="primary")
        self.stop = _field(button, "Stop", "Stop the question; what has come is kept", "0 0 9em", disabled=True)
        self.go_on = _field(box, "Continue from the last answer", "Send the earlier turns", indent=False, disabled=True)
        self.earlier = _field(choice, "Answers", "Go back to an earlier answer", display="none")
        self.models, self.status, self.clock, self.answer, self.markdown = (_widgets.HTML() for _ in range(5))
        self.rows = (
            self.question,
            _row(self.mode, self.model, self.refresh, self.models),
            _row(_widgets.Label("Search in"), *self.scopes, self.max_sources),
            _row(self.ask, self.stop, self.go_on),
            *(self.status, self.clock, self.answer, self.earlier, self.markdown),
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
    The attributes can be observed; observers are called on the thread that did the work.

    Parameters
    ----------
    question
        What stands in the form at first.
    mode, max_sources, scope
        What is chosen in the form at first.
    chat_model
        The model while none is written into the form.
    url, embedding_model, instructions, timeout, wait, lock_path, allow_remote
        As for `VaneClient`; they hold for every question.

    Attributes
    ----------
    state : str
        ``idle``, ``running``, ``done``, ``failed`` or ``cancelled``.
    result : ToolResult or None
        What the last question came to.
    results : tuple of ToolResult
        What each question came to, the first one first.

    Raises
    ------
    ConfigurationError
        For a bad setting, from whatever origin, or one that a form does not take.
    """

    state = Enum(("idle", "running", "done", "failed", "cancelled"), "idle", read_only=True)
    result = Instance(ToolResult, allow_none=True, read_only=True)
    results = Tuple(read_only=True)

    def __init__(self, question: str = "", **settings: object) -> None:
        if refused := sorted(FACES_ONLY & settings.keys()):
            raise ConfigurationError(f"A form does not take {' or '.join(refused)}.", hint=_INSTEAD)
        self._config: dict[str, object] = {}  # what %config holds, as of the last question
        self._layers = (Layer("Form({name}=…)", settings), Layer("%config VaneMagics.{name}", self._config))
        self._client = VaneClient.of_layers(*self._layers, defaults=DEFAULTS)
        self._lock = threading.RLock()
        self._run: _Run | None = None
        self._threads = WeakSet[threading.Thread]()  # those that have ended go by themselves
        self._closing = threading.Event()
        self._context = contextvars.copy_context()
        self._page = page = _Page(question, self._settings())
        super().__init__(page.rows, layout={"max_width": "60em"})  # pyright: ignore[reportUnknownMemberType] - ipywidgets annotates little
        self._link = _widgets.jsdlink((page.question, "ping"), (page.question, "pong"))
        page.question.observe(self._adopt, "pong")
        page.question.observe(self._typed, "value")
        page.ask.on_click(lambda _: self._begin(echo=True))  # pyright: ignore[reportUnknownLambdaType] - likewise
        page.stop.on_click(lambda _: self.stop())  # pyright: ignore[reportUnknownLambdaType] - likewise
        page.refresh.on_click(lambda _: self._spawn(self._list_models))  # pyright: ignore[reportUnknownLambdaType] - likewise
        page.earlier.observe(self._show, "value")
        self._spawn(self._list_models)

    def __repr__(self) -> str:
        return f"<vane_magic.Form {self.state}, {len(self.results)} results>"

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        return {**_widgets.VBox._repr_mimebundle_(self, **options), "text/plain": _PLAIN.format(form=self)}

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
                self._publish(_say, self._page.status, "Stopping …")

    def close(self) -> None:
        """Stop what is at work, and take the form off the page."""
        if self.comm is None:  # closed already, or refused before it was built
            return
        with self._lock:
            self._closing.set()
            self.stop()
            self.stop()  # the second one gives up what does not end
        for thread in set(self._threads) - {threading.current_thread()}:
            thread.join(_JOIN_S)
        for widget in (*_parts(self), self._link):
            ipywidgets.Widget.close(widget)

    def _adopt(self, change: dict[str, Any]) -> None:
        """Have the form's messages handled where this one is: in a subshell, when the front end uses one.

        ipykernel routes a widget's messages to the shell from whose messages the widget was changed last. That was the
        cell which made the form, and may be busy. So all changes are published as if this message had caused them.
        A front end's first messages have no subshell, since it is still being made: so it is greeted several times.
        """
        self._context = contextvars.copy_context()
        for widget in _parts(self):
            if widget.has_trait("disabled"):
                widget.send_state("disabled")
        if change["new"] < _GREETINGS and not self._closing.is_set():
            self._spawn(self._ping, _GREETING_S)

    def _ping(self, after_s: float = 0) -> int:
        """Have the front end answer by an equal pong."""
        self._closing.wait(after_s)
        with self._lock:
            self._page.question.ping += 1
            return self._page.question.ping

    def _publish(self, change: Callable[..., object], *args: object) -> None:
        self._context.copy().run(change, *args)

    def _spawn(self, work: Callable[..., object], *args: object) -> None:
        thread = threading.Thread(target=self._publish, args=(work, *args), name="vane-form", daemon=True)
        thread.start()
        self._threads.add(thread)

    # The front end's messages ---

    def _typed(self, change: dict[str, Any]) -> None:
        """Ask when an empty last line is typed; what is pasted asks nothing.

        A front end tells no keys of a field with several lines. Shift+Enter reaches us as a line feed, as Enter does.
        """
        old, new = str(change["old"]), str(change["new"])
        if new.endswith("\n\n") and len(new) > len(old) and new.rstrip("\n") == old.rstrip("\n") != "":
            self._page.question.value = new.rstrip("\n")
            self._begin(echo=True)

    def _show(self, change: dict[str, Any]) -> None:
        """Show one of the results."""
        result: ToolResult = change["new"]
        query = f'<div style="font-weight:600;margin:.6em 0">{inert(shorten(result.run.query, 2000))}</div>'
        self._page.answer.value = query + result.card().html()
        self._page.markdown.value = _MARKDOWN.format(html.escape(clean(result.to_markdown())[:_COPIED]))

    # A question's way ---

    def _begin(self, question: str | None = None, *, echo: bool = False) -> _Run | None:
        """Start a run; None when there is one, so that a double click asks once."""
        with self._lock:
            if self._run or self._closing.is_set():
                return None
            self._run = run = _Run()
            if question is not None:
                self._publish(setattr, self._page.question, "value", question)
            self._spawn(self._work, run, echo)
            self._publish(self._enter, "running", "Starting …")
        return run

    def _enter(self, state: str, status: str) -> None:
        self._page.ask.disabled = state == "running"
        self._page.stop.disabled = state != "running"
        self._page.clock.value = ""
        _say(self._page.status, status)
        self.set_trait("state", state)

    def _work(self, run: _Run, echo: bool) -> None:  # noqa: FBT001 - given by position to a thread
        """Carry a run through, on a thread of its own."""
        try:
            result = self._research(run, echo)
        except Exception as fault:
            logging.getLogger("vane_magic").exception("a fault of vane_magic")
            error = InternalError(f"A fault of vane_magic: {type(fault).__name__}.", hint="See the log.")
            error.__cause__ = fault
            result = ToolResult.of_run(RunDetails(query=self._page.question.value), 0, error=error)
        try:
            self._end(run, result)
        finally:
            run.future.set_result(result)

    def _research(self, run: _Run, echo: bool) -> ToolResult:  # noqa: FBT001 - likewise
        ping, until = self._ping() if echo else 0, time.monotonic() + _ECHO_S
        while 0 < self._page.question.pong < ping and time.monotonic() < until and not run.cancel.wait(0.01):
            pass  # the front end sends what it holds back; one that never answered is none
        answered = [result for result in self.results if result.success]
        previous = answered[-1] if answered and self._page.go_on.value else None
        self._read_config()
        result = self._client.research(
            self._page.question.value,
            mode=self._page.mode.value,
            max_sources=self._page.max_sources.value,
            scope=[box.description for box in self._page.scopes if box.value],
            chat_model=self._page.model.value or None,
            previous=previous,
            on_progress=partial(self._report, run),
            cancel=run.cancel,
        )
        return result.with_notes(f"Goes on from: {previous.run.query}") if previous else result

    def _report(self, run: _Run, progress: Progress) -> None:
        """Show how a run goes."""
        with self._lock:
            if run is not self._run or run.cancel.is_set() or time.monotonic() < run.next_draw:
                return
            run.next_draw = time.monotonic() + _REDRAW_S
            held = f" ({progress.holder})" if progress.holder else ""
            found = "" if progress.sources is None else f", {_count(progress.sources, 'source')}"
            _say(self._page.status, f"{progress.phase[0].upper()}{progress.phase[1:]}{held}{found}")
            self._page.clock.value = _CLOCK.format(spent=progress.elapsed_ms / 1000, limit=progress.limit_ms / 1000)
            self._page.answer.value = live_text(progress.text, "")[0]

    def _end(self, run: _Run, result: ToolResult) -> None:
        """Show what a run came to, when it is still the form's own."""
        with self._lock:
            if run is not self._run:
                return
            self._run = None
            state, status = _outcome(result)
            title = f"{len(self.results) + 1}. {shorten(result.run.query, 80)}{'' if result.success else f' ({state})'}"
            self._page.earlier.options = [(title, result), *self._page.earlier.options]
            self._page.earlier.index = 0  # which shows it
            self._page.earlier.layout.display = None
            self._page.go_on.disabled = self._page.go_on.disabled and not result.success
            with self.hold_trait_notifications():  # observers find all three
                self.set_trait("results", (*self.results, result))
                self.set_trait("result", result)  # before the state, for who waits for that and then reads this
                self._enter(state, status)

    # Settings and models ---

    def _read_config(self) -> None:
        shell: Any = get_ipython()
        magics = shell and shell.magics_manager.registry.get("VaneMagics")
        self._config.update({name: getattr(magics, name, None) for name in SETTINGS})

    def _settings(self) -> Settings:
        self._read_config()
        return Settings.resolve(*self._layers, environment(), DEFAULTS)

    def _list_models(self) -> None:
        """Ask Vane which chat models there are."""
        try:
            endpoint = check_endpoint(self._settings().url)
            names = chat_names(look_up(endpoint, Watch(LOOK_UP_S, cancel=self._closing)))
            told = f"Ready: {endpoint} has {_count(len(names), 'chat model')}."
            self._page.model.options = names
        except (VaneError, DeadlineExpired) as error:
            told = f"No list of chat models. {error}"
        _say(self._page.models, told)


def _outcome(result: ToolResult) -> tuple[str, str]:
    spent = f"{result.telemetry.duration_ms / 1000:.1f} s"
    if result.error is None:
        return "done", f"Done in {spent}, {_count(len(result.sources), 'source')}."
    if result.error.code == ErrorCode.CANCELLED:
        return "cancelled", f"Stopped after {spent}; what had come is kept."
    return "failed", f"Failed after {spent}: {result.error.code}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _say(line: Any, text: str) -> None:  # noqa: ANN401 - ipywidgets annotates little
    """Write a line which screen readers announce when its words change."""
    line.value = f'<div role="status" aria-live="polite">{inert(text)}</div>'


def _field(kind: Any, name: str, told: str, flex: str = "0 0 auto", display: str | None = None, **options: Any) -> Any:  # noqa: ANN401 - likewise
    """A control with its label and tooltip."""
    layout = {"flex": flex, "width": "auto", "min_width": "0", "display": display}
    return kind(description=name, tooltip=told, layout=layout, **options)


def _row(*children: object) -> Any:  # noqa: ANN401 - likewise
    return _widgets.HBox(children, layout={"flex_flow": "row wrap", "align_items": "center", "grid_gap": "0 1em"})


def _parts(widget: Any) -> Iterator[Any]:  # noqa: ANN401 - likewise
    """A widget with all that is in it, and what gives each its look."""
    looks = [getattr(widget, name) for name in ("layout", "style") if hasattr(widget, name)]
    for part in (*getattr(widget, "children", ()), *looks):
        yield from _parts(part)
    yield widget
