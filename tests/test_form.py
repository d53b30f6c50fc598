"""The question form without a browser: fields, buttons and threads; messages come in as a front end sends them."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import traitlets
from hostile_texts import HOSTILE
from ipywidgets.widgets.widget import _instances
from servers.listener import closed_port
from servers.replay import ReplayServer
from servers.scripted import (
    CHUNKED,
    LAST_CHUNK,
    ScriptedServer,
    answer,
    answer_events,
    chunk,
    config,
    events,
    hang,
    head,
    in_turn,
    provider,
    reply,
    source,
    wait,
)
from shells import open_notebook, point_at
from strict_html import StrictHtml

import vane_magic
from vane_magic import ConfigurationError
from vane_magic.core.contract import RunDetails, ToolResult
from vane_magic.core.errors import Cancelled
from vane_magic.core.gpu_lock import GpuLock
from vane_magic.core.settings import FACES_ONLY, SETTINGS
from vane_magic.notebook import form as module
from vane_magic.notebook.form import Form

ANSWER: Final = "Turbines turn slowly [1]."
SOURCES: Final = [source("Tidal report", "https://energy.example/r1")]
REPLY: Final = answer(ANSWER, SOURCES)
QUESTION: Final = "How do tidal turbines work?"
PART: Final = [head(200, CHUNKED), *(chunk(events(e)) for e in answer_events("Half an answer [1]", SOURCES)[:-1])]
END: Final = [chunk(events({"type": "done"})), LAST_CHUNK]
Scripted = Callable[..., ScriptedServer]
Open = Callable[..., Form]


@pytest.fixture
def open_form(lock_path: Path) -> Iterator[Open]:
    """Open forms that ask this server; at the end they are closed, and nothing is left of them."""
    opened: list[Form] = []
    before = set(_instances)

    def open_form(server: ScriptedServer | ReplayServer | str, *args: object, **settings: object) -> Form:
        url = server if isinstance(server, str) else server.url
        form = Form(*args, **{"url": url, "lock_path": str(lock_path), "wait": 0, **settings})
        opened.append(form)
        return form

    yield open_form
    for form in opened:
        form.close()
    assert set(_instances) == before
    assert [thread.name for thread in threading.enumerate() if thread.name == "vane-form"] == []


def controls(form: Form) -> dict[str, Any]:
    """What can be worked with, by its label."""
    return {part.description: part for part in module._parts(form) if getattr(part, "description", "")}


def write(form: Form, text: str) -> None:
    controls(form)["Question"].set_state({"value": text})


def press(form: Form, name: str) -> None:
    data = {"method": "custom", "content": {"event": "click"}}
    controls(form)[name]._handle_msg({"content": {"data": data}, "buffers": []})


def tick(form: Form, name: str, value: bool) -> None:
    controls(form)[name].set_state({"value": value})


def choose(form: Form, name: str, label: str) -> None:
    control = controls(form)[name]
    control.set_state({"index": [shown for shown, _ in control.options].index(label)})


def shown(form: Form, part: str = "answer") -> str:
    """The words of a part of the page."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", getattr(form._page, part).value)).strip()


def wait_for(holds: Callable[[], object], timeout: float = 10) -> None:
    until = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("it did not come to hold")
        time.sleep(0.005)


def wait_until(form: Form, *states: str) -> str:
    wait_for(lambda: form.state in states)
    return form.state


def ended(form: Form) -> ToolResult:
    wait_for(lambda: form.state not in {"idle", "running"})
    assert form.result is not None
    return form.result


# A question's way ---


def test_the_button_asks_with_what_the_form_shows(scripted: Scripted, open_form: Open) -> None:
    """Each field reaches Vane, and the answer stands in the form and in `result`."""
    server = scripted(REPLY, config=config([provider(chat=["a:1b", "b:2b"])]))
    form = open_form(server)
    write(form, QUESTION)
    controls(form)["Mode"].set_state({"index": 2})
    controls(form)["Chat model"].set_state({"value": "b:2b"})
    tick(form, "web", value=False)
    tick(form, "academic", value=True)
    tick(form, "discussions", value=True)
    controls(form)["Sources"].set_state({"value": 3})
    press(form, "Ask")
    result = ended(form)
    sent = server.searches[0].json()
    assert (sent["query"], sent["optimizationMode"], sent["chatModel"]["key"]) == (QUESTION, "quality", "b:2b")
    assert sent["sources"] == ["academic", "discussions"]
    assert (form.state, result.answer, form.results) == ("done", ANSWER, (result,))
    assert shown(form).startswith(f"{QUESTION}Turbines turn slowly [1].")
    assert re.fullmatch(r"Done in [0-9.]+ s, 1 source\.", shown(form, "status"))


def test_the_number_of_sources_is_that_of_the_form(replay: Callable[..., ReplayServer], open_form: Open) -> None:
    """A recorded answer with many sources is cut to the number in the form."""
    form = open_form(replay("stream-balanced"), max_sources=2)
    assert controls(form)["Sources"].value == 2
    assert len(form.ask(QUESTION).result(10).sources) == 2


def test_ask_returns_at_once_and_its_future_waits(scripted: Scripted, open_form: Open) -> None:
    """The kernel stays free: the caller goes on while Vane has not answered."""
    gate = threading.Event()
    form = open_form(scripted([*PART, wait(gate), *END]))
    future = form.ask(QUESTION)
    assert (future.done(), form.state, form.result) == (False, "running", None)
    assert controls(form)["Question"].value == QUESTION
    gate.set()
    assert future.result(10) is form.result
    assert form.state == "done"


def test_a_click_returns_at_once(scripted: Scripted, open_form: Open) -> None:
    """A message's handler only starts a thread."""
    form = open_form(scripted(hang), QUESTION)
    began = time.monotonic()
    press(form, "Ask")
    assert time.monotonic() - began < 1
    assert form.state == "running"


def test_while_it_works_the_page_says_how_far_it_is(scripted: Scripted, open_form: Open) -> None:
    """Phase and sources in words, the time against the mode's limit as a bar, and the text so far."""
    gate = threading.Event()
    form = open_form(scripted([*PART, wait(gate), *END]), mode="speed")
    future = form.ask(QUESTION)
    wait_for(lambda: shown(form) == "Half an answer [1]")
    assert shown(form, "status") == "Writing, 1 source"
    assert re.search(r'<progress [^>]*max="10" value="[0-9.]+"', form._page.clock.value)
    assert re.fullmatch(r"[0-9] of 10 s", shown(form, "clock"))
    assert (controls(form)["Ask"].disabled, controls(form)["Stop"].disabled) == (True, False)
    gate.set()
    future.result(10)
    assert (controls(form)["Ask"].disabled, controls(form)["Stop"].disabled) == (False, True)
    assert shown(form, "clock") == ""


def test_waiting_for_the_gpu_names_the_holder(scripted: Scripted, open_form: Open, lock_path: Path) -> None:
    """A form waits, and says for whom: pid, mode and time."""
    form = open_form(scripted(REPLY), wait=60)
    with GpuLock(lock_path):
        future = form.ask(QUESTION)
        wait_for(lambda: shown(form, "status").startswith("Waiting for the GPU (pid "))
        assert shown(form, "clock").endswith("of 60 s")
    assert future.result(10).success


def test_a_form_waits_as_long_as_the_magic_does(open_form: Open, scripted: Scripted) -> None:
    """70 s: a live holder has let go by then."""
    assert open_form(scripted(REPLY), wait=None)._settings().wait == 70


def test_a_double_click_asks_once(scripted: Scripted, open_form: Open) -> None:
    """The second click finds a question at work."""
    gate = threading.Event()
    server = scripted([*PART, wait(gate), *END])
    form = open_form(server, QUESTION)
    press(form, "Ask")
    press(form, "Ask")
    gate.set()
    ended(form)
    assert (len(server.searches), len(form.results)) == (1, 1)


def test_ended_threads_are_not_kept(scripted: Scripted, open_form: Open) -> None:
    """A form may be asked all day."""
    form = open_form(scripted(REPLY), QUESTION)
    for _ in range(5):
        form.ask().result()
        ended(form)
    list(map(threading.Thread.join, list(form._threads)))
    gc.collect()
    assert len(form._threads) == 0


def test_clicks_on_many_threads_ask_once(scripted: Scripted, open_form: Open) -> None:
    """Subshells are threads: of clicks at the same time one counts."""
    gate, start = threading.Event(), threading.Barrier(8)
    server = scripted([*PART, wait(gate), *END])
    form = open_form(server, QUESTION)

    def click() -> None:
        start.wait(10)
        press(form, "Ask")

    threads = [threading.Thread(target=click) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    gate.set()
    ended(form)
    assert (len(server.searches), len(form.results)) == (1, 1)


def test_a_second_ask_is_refused_while_one_is_at_work(scripted: Scripted, open_form: Open) -> None:
    """In code it is an error, which names the way out."""
    form = open_form(scripted(hang))
    form.ask(QUESTION)
    with pytest.raises(RuntimeError, match=r"stop\(\)"):
        form.ask("another question")
    assert controls(form)["Question"].value == QUESTION


@pytest.mark.parametrize(
    ("question", "script", "code"),
    [("hm", REPLY, "INVALID_INPUT"), (QUESTION, reply(500, b"{}"), "UPSTREAM_SEARCH_ERROR")],
)
def test_a_failure_is_shown_with_its_code(
    scripted: Scripted, open_form: Open, question: str, script: bytes, code: str
) -> None:
    """The state, the status line and the card say so, and the form can be used again."""
    form = open_form(scripted(script))
    result = form.ask(question).result(10)
    assert (form.state, form.result, result.error and result.error.code) == ("failed", result, code)
    assert code in shown(form)
    assert shown(form, "status").endswith(f"{code}.")
    assert not controls(form)["Ask"].disabled


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("web", False, "scope must be one or more of web, academic, discussions"),
        ("Sources", 0, "max_sources must be a whole number of 1 or more, not 0"),
        ("Chat model", "none:1b", "Vane has no chat model 'none:1b'. It has: "),
    ],
)
def test_a_bad_choice_is_told(scripted: Scripted, open_form: Open, name: str, value: object, told: str) -> None:
    """By the table of settings, and by what Vane has; nothing is sent."""
    server = scripted(REPLY)
    form = open_form(server, QUESTION)
    controls(form)[name].set_state({"value": value})
    press(form, "Ask")
    assert told in (ended(form).error or form).message
    assert server.searches == []


# Stop, and what comes late ---


def test_stop_keeps_the_part_and_frees_the_lock(scripted: Scripted, open_form: Open, lock_path: Path) -> None:
    """The state is cancelled, the text that had come is kept and marked, and Vane's connection is closed."""
    server = scripted([*PART, hang])
    form = open_form(server, QUESTION)
    press(form, "Ask")
    wait_for(lambda: "Half an answer" in shown(form))
    press(form, "Stop")
    result = ended(form)
    assert (form.state, result.answer) == ("cancelled", "Half an answer [1]")
    assert "Half an answer" in shown(form)
    assert "CANCELLED" in shown(form)
    assert "kept" in shown(form, "status")
    assert server.searches[0].left.wait(5)
    assert not lock_path.exists()


def test_after_stop_it_can_be_asked_again(scripted: Scripted, open_form: Open) -> None:
    """The next question has its own run; both results are kept."""
    form = open_form(scripted(in_turn([*PART, hang], REPLY)), QUESTION)
    press(form, "Ask")
    wait_for(lambda: "Half" in shown(form))
    press(form, "Stop")
    ended(form)
    press(form, "Ask")
    wait_until(form, "done")
    assert [result.success for result in form.results] == [False, True]


def test_stop_without_a_question_does_nothing(scripted: Scripted, open_form: Open) -> None:
    """A click that comes late finds nothing to stop."""
    form = open_form(scripted(REPLY))
    form.stop()
    assert form.state == "idle"
    assert form.ask(QUESTION).result(10).success
    press(form, "Stop")
    assert form.state == "done"


def test_a_late_result_changes_nothing(scripted: Scripted, open_form: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that does not end is given up by a second stop; what it brings then is dropped, the next run counts."""
    form = open_form(scripted(REPLY))
    stuck, research = threading.Event(), form._client.research
    late = ToolResult.of_run(RunDetails(query="late"), 0, error=Cancelled("Stopped."))

    def stick(*_: object, **__: object) -> ToolResult:
        assert stuck.wait(10)
        return late

    monkeypatch.setattr(form._client, "research", stick)
    given_up = form.ask("a question that hangs")
    form.stop()
    assert form.state == "running"
    form.stop()
    assert (form.state, form.result) == ("cancelled", None)
    monkeypatch.setattr(form._client, "research", research)
    result = form.ask(QUESTION).result(10)
    before = shown(form), shown(form, "status")
    stuck.set()
    assert given_up.result(10) is late
    assert (form.state, form.result, form.results) == ("done", result, (result,))
    assert (shown(form), shown(form, "status")) == before


def test_a_fault_of_ours_is_told_and_ends_the_run(
    scripted: Scripted, open_form: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A form is never at work for ever: the fault is logged, told by its code, and the next question works."""
    form = open_form(scripted(REPLY))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(form, "_report", fail)
        result = form.ask(QUESTION).result(10)
    assert (form.state, result.error and result.error.code) == ("failed", "INTERNAL_ERROR")
    assert "ZeroDivisionError" in caplog.text
    assert form.ask(QUESTION).result(10).success


# Observers ---


def test_state_and_result_can_be_observed(scripted: Scripted, open_form: Open) -> None:
    """Each change is told once, and whoever is told finds both values."""
    form = open_form(scripted(in_turn(REPLY, reply(500, b""))))
    told: list[tuple[str, str, bool]] = []
    form.observe(lambda change: told.append((change["name"], form.state, form.result is not None)), ["state", "result"])
    form.ask(QUESTION).result(10)
    assert told == [("state", "running", False), ("result", "done", True), ("state", "done", True)]
    told.clear()
    form.ask(QUESTION).result(10)
    assert [(name, state) for name, state, _ in told] == [
        ("state", "running"),
        ("result", "failed"),
        ("state", "failed"),
    ]


@pytest.mark.parametrize("trait", ["state", "result"])
def test_an_observer_may_ask_the_next_question(scripted: Scripted, open_form: Open, trait: str) -> None:
    """A chain of questions needs no thread that waits."""
    server = scripted(REPLY)
    form = open_form(server)
    second: list[Future[ToolResult]] = []

    def go_on(_: object) -> None:
        if form.state == "done" and not second:
            second.append(form.ask("And in Canada?"))

    form.observe(go_on, trait)
    form.ask(QUESTION).result(10)
    assert second[0].result(10).success
    assert form.state == "done"
    assert [search.json()["query"] for search in server.searches] == [QUESTION, "And in Canada?"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_observer_that_fails_leaves_the_form_whole(scripted: Scripted, open_form: Open) -> None:
    """Its error is its own: the result is there, and the form asks again."""
    form = open_form(scripted(REPLY))

    def fail(_: object) -> None:
        if form.state == "done":
            raise ZeroDivisionError

    form.observe(fail, "state")
    result = form.ask(QUESTION).result(10)
    assert (form.state, form.result) == ("done", result)
    form.unobserve(fail, "state")
    assert form.ask(QUESTION).result(10).success


def test_state_and_result_cannot_be_set(scripted: Scripted, open_form: Open) -> None:
    """They say what is, so only the form writes them."""
    form = open_form(scripted(REPLY))
    for name in ("state", "result"):
        with pytest.raises(traitlets.TraitError, match="read-only"):
            setattr(form, name, None)


# Earlier answers, and going on ---


def test_earlier_answers_can_be_gone_back_to(scripted: Scripted, open_form: Open) -> None:
    """The newest stands first and is shown; choosing another shows that one, and `result` stays the last."""
    form = open_form(scripted(in_turn(answer("First answer.", SOURCES), reply(500, b""), answer("Third.", SOURCES))))
    assert controls(form)["Answers"].layout.display == "none"
    for question in ("What is one?", "What is two?", "What is three?"):
        form.ask(question).result(10)
    titles = ["3. What is three?", "2. What is two? (failed)", "1. What is one?"]
    assert [title for title, _ in controls(form)["Answers"].options] == titles
    assert controls(form)["Answers"].layout.display is None
    assert shown(form).startswith("What is three?Third.")
    choose(form, "Answers", "1. What is one?")
    assert shown(form).startswith("What is one?First answer.")
    assert "First answer." in shown(form, "markdown")
    assert form.result is form.results[2]


def test_the_answer_can_be_copied_as_markdown(scripted: Scripted, open_form: Open) -> None:
    """The text to copy is the result's own Markdown, escaped so that it stays text."""
    form = open_form(scripted(answer("**Bold** </textarea><b>x</b> [1].", SOURCES)))
    result = form.ask(QUESTION).result(10)
    area = re.search(r"<textarea [^>]*>(.*)</textarea>", form._page.markdown.value, re.DOTALL)
    assert area
    assert area[1].replace("&lt;", "<").replace("&gt;", ">") == result.to_markdown()
    assert "<b>" not in form._page.markdown.value


def test_continue_sends_the_last_answer_along(scripted: Scripted, open_form: Open) -> None:
    """A failed one is passed over; a note says what the question went on from; without the tick nothing is sent."""
    server = scripted(in_turn(REPLY, reply(500, b""), REPLY))
    form = open_form(server)
    assert controls(form)["Continue from the last answer"].disabled
    form.ask(QUESTION).result(10)
    assert not controls(form)["Continue from the last answer"].disabled
    form.ask("What else?").result(10)
    tick(form, "Continue from the last answer", value=True)
    result = form.ask("And in Canada?").result(10)
    histories = [search.json()["history"] for search in server.searches]
    assert histories == [[], [], [["human", QUESTION], ["assistant", "Turbines turn slowly."]]]
    assert f"Goes on from: {QUESTION}" in result.run.notes


# What a front end sends ---


def keystrokes(form: Form, *values: str) -> None:
    for value in values:
        write(form, value)


def test_an_empty_last_line_asks(scripted: Scripted, open_form: Open) -> None:
    """Enter or Shift+Enter, twice at the end: the question is sent without the empty lines, once."""
    server = scripted(REPLY)
    form = open_form(server)
    keystrokes(form, QUESTION, f"{QUESTION}\n", f"{QUESTION}\n\n")
    assert ended(form).success
    assert controls(form)["Question"].value == QUESTION
    assert [search.json()["query"] for search in server.searches] == [QUESTION]


@pytest.mark.parametrize(
    "values",
    [
        ["One line\n"],
        ["One line", "One line\nand one more"],
        ["pasted\n\n"],
        ["What is", "What is it?\n\n"],
        ["a\nb", "a\n\nb"],
        ["\n", "\n\n"],
        ["Typed\n\n\n", "Typed\n\n"],
        ["What is it?", "What is it?"],
    ],
    ids=["line end", "second line", "paste", "paste at the end", "gap", "nothing", "taken back", "focus lost"],
)
def test_other_input_asks_nothing(scripted: Scripted, open_form: Open, values: list[str]) -> None:
    """Neither lines of a longer question, nor what is pasted, nor the loss of focus."""
    form = open_form(scripted(REPLY))
    keystrokes(form, *values)
    assert (form.state, controls(form)["Question"].value) == ("idle", values[-1])


def test_an_empty_last_line_asks_nothing_while_one_is_at_work(scripted: Scripted, open_form: Open) -> None:
    """The next question may be typed meanwhile."""
    server = scripted(hang)
    form = open_form(server, QUESTION)
    press(form, "Ask")
    server.wait_for_searches()
    keystrokes(form, "Next question?", "Next question?\n", "Next question?\n\n")
    assert len(server.wait_for_searches()) == 1
    assert form.state == "running"


def echo(form: Form, *held_back: str) -> None:
    """Answer each ping as a front end does: first the values that it held back, then the pong."""

    def reply(ping: int) -> None:
        for value in held_back:
            write(form, value)
        form._page.question.set_state({"pong": ping})

    form._page.question.observe(lambda change: threading.Thread(target=reply, args=(change["new"],)).start(), "ping")
    form._page.question.set_state({"pong": form._page.question.ping})


def test_a_value_that_the_front_end_held_back_counts(scripted: Scripted, open_form: Open) -> None:
    """A click overtakes what was typed before it while the kernel was busy: the whole question is asked."""
    server = scripted(REPLY)
    form = open_form(server)
    echo(form, "How do tidal", QUESTION)
    write(form, "H")
    press(form, "Ask")
    assert ended(form).success
    assert [search.json()["query"] for search in server.searches] == [QUESTION]


def test_a_front_end_that_is_gone_is_not_waited_for_long(
    scripted: Scripted, open_form: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what the kernel knows is asked."""
    monkeypatch.setattr(module, "_ECHO_S", 0.05)
    form = open_form(scripted(REPLY), QUESTION)
    form._page.question.set_state({"pong": 1})
    press(form, "Ask")
    assert ended(form).success


def test_stop_ends_the_wait_for_the_front_end(scripted: Scripted, open_form: Open) -> None:
    """Nothing is sent then."""
    server = scripted(REPLY)
    form = open_form(server, QUESTION)
    form._page.question.set_state({"pong": 1})
    press(form, "Ask")
    press(form, "Stop")
    assert ended(form).error is not None
    assert (form.state, server.searches) == ("cancelled", [])


# Settings and models ---


def test_fields_begin_with_the_settings_in_force(
    scripted: Scripted, lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments go before %config, that before the environment; what the form has no field for holds too."""
    server = scripted(REPLY)
    monkeypatch.setenv("VANE_MAX_SOURCES", "5")
    monkeypatch.setenv("VANE_MODE", "speed")
    with open_notebook() as notebook:
        point_at(notebook, server.url, lock_path)
        notebook.config(mode="quality", scope="academic,web", instructions="Be brief.")
        form = Form(scope="discussions")
        try:
            fields = controls(form)
            assert (fields["Mode"].value, fields["Sources"].value) == ("quality", 5)
            assert [name for name in ("web", "academic", "discussions") if fields[name].value] == ["discussions"]
            notebook.config(instructions="Be brief, please.")
            form.ask(QUESTION).result(10)
        finally:
            form.close()
    assert server.searches[0].json()["systemInstructions"] == "Be brief, please."


def test_every_setting_of_the_client_is_one_of_the_form(scripted: Scripted, open_form: Open) -> None:
    """The one table has the names; their checks are the same."""
    values = {"mode": "speed", "max_sources": 3, "scope": "web", "chat_model": "qwen3:8b", "timeout": 5, "wait": 1}
    values |= {"embedding_model": "nomic-embed-text", "instructions": "Short.", "allow_remote": True}
    assert set(values) | {"url", "lock_path"} == set(SETTINGS) - FACES_ONLY
    assert open_form(scripted(REPLY), **values).ask(QUESTION).result(10).success


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mode": "fast"}, r"mode must be .* Form\(mode=…\)"),
        ({"moed": "speed"}, "Did you mean mode?"),
        *(
            ({name: "x"}, f"does not take {name}. .*vane-research serve.*raise_for_error")
            for name in sorted(FACES_ONLY)
        ),
    ],
)
def test_a_bad_setting_is_told_at_once(settings: dict[str, object], told: str) -> None:
    """Before a form is shown, with its origin or the near miss."""
    with pytest.raises(ConfigurationError, match=told):
        Form(**settings)


def test_a_setting_that_went_bad_is_told_by_the_answer(
    scripted: Scripted, open_form: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is read at each question."""
    form = open_form(scripted(REPLY), timeout=None)
    monkeypatch.setenv("VANE_TIMEOUT", "soon")
    result = form.ask(QUESTION).result(10)
    assert result.error
    assert (result.error.code, form.state) == ("CONFIGURATION_ERROR", "failed")


def test_the_models_are_those_that_vane_lists(scripted: Scripted, open_form: Open) -> None:
    """Embedding models are left out; what was chosen stays chosen when the list grows."""
    listed = [provider(chat=["b:2b", "a:1b", "nomic-embed-text"])]
    grown = [provider(chat=["b:2b", "a:1b", "c:3b"])]
    server = scripted(REPLY, config=config(listed))
    form = open_form(server)
    wait_for(lambda: shown(form, "models") == f"Ready: {server.url} has 2 chat models.")
    model = controls(form)["Chat model"]
    assert (model.options, model.value) == (("Ollama/a:1b", "Ollama/b:2b"), "")
    model.set_state({"value": "Ollama/b:2b"})
    server._routes["GET /api/config"] = ScriptedServer(config=config(grown))._routes["GET /api/config"]
    press(form, "Refresh")
    wait_for(lambda: "3 chat models" in shown(form, "models"))
    assert (model.options[-1], model.value) == ("Ollama/c:3b", "Ollama/b:2b")


def test_a_list_that_comes_late_leaves_the_outcome_on_the_page(scripted: Scripted, open_form: Open) -> None:
    """The models are there to choose, and the status line still says how the question ended."""
    gate, told = threading.Event(), ScriptedServer(config=config())._routes["GET /api/config"]
    form = open_form(scripted(REPLY, routes={"GET /api/config": in_turn([wait(gate), told], told)}))
    form.ask("hm").result(10)
    gate.set()
    wait_for(lambda: "Ready" in shown(form, "models"))
    assert len(controls(form)["Chat model"].options) == 1
    assert shown(form, "status").endswith("INVALID_INPUT.")


def test_a_configured_model_is_named(scripted: Scripted, open_form: Open) -> None:
    """In place of "chosen automatically"; it is what is asked while no other is written."""
    server = scripted(REPLY, config=config([provider(chat=["a:1b", "b:2b"])]))
    form = open_form(server, chat_model="b:2b")
    assert controls(form)["Chat model"].placeholder == "b:2b"
    form.ask(QUESTION).result(10)
    assert server.searches[0].json()["chatModel"]["key"] == "b:2b"


def test_without_vane_the_form_says_so(open_form: Open) -> None:
    """There is a form all the same, since Vane may be started later."""
    with closed_port() as port:
        form = open_form(f"http://127.0.0.1:{port}")
        wait_for(lambda: "No list of chat models." in shown(form, "models"))
        assert (controls(form)["Chat model"].options, controls(form)["Chat model"].value) == ((), "")
        assert form.ask(QUESTION).result(10).error


def test_an_address_off_this_machine_is_never_asked(open_form: Open, audit: list[Any]) -> None:
    """Neither for the list of models nor for an answer."""
    form = open_form("http://10.0.0.1:3000")
    wait_for(lambda: "No list of chat models." in shown(form, "models"))
    result = form.ask(QUESTION).result(10)
    assert result.error
    assert result.error.code == "SECURITY_BOUNDARY_VIOLATION"
    assert audit == []


# What stands on the page ---


def test_every_control_has_a_label_and_a_hint(scripted: Scripted, open_form: Open) -> None:
    """In the order of the keyboard; the order of the page is that of the widgets."""
    form = open_form(scripted(REPLY))
    names = [*controls(form)]
    assert names == [
        "Question", "Mode", "Chat model", "Refresh", "web", "academic", "discussions", "Sources", "Ask", "Stop",
        "Continue from the last answer", "Answers",
    ]  # fmt: skip
    assert [name for name, control in controls(form).items() if not control.tooltip and name != "Question"] == []
    assert controls(form)["Question"].placeholder


def test_the_status_line_is_announced(scripted: Scripted, open_form: Open) -> None:
    """It is a polite live region; the seconds stand outside, so that they are not read out."""
    form = open_form(scripted(hang))
    form.ask(QUESTION)
    wait_for(lambda: "Searching" in shown(form, "status"))
    assert form._page.status.value == '<div role="status" aria-live="polite">Searching</div>'
    assert "aria-live" not in form._page.clock.value


def test_the_modes_tell_their_limits(scripted: Scripted, open_form: Open) -> None:
    """As the tiers have them."""
    labels = [label for label, _ in controls(open_form(scripted(REPLY)))["Mode"].options]
    assert [re.findall("up to (.*)", label) for label in labels] == [["10 s"], ["30 s"], ["60 s"]]


def test_the_page_says_what_air_gapped_means(scripted: Scripted, open_form: Open) -> None:
    """Terms go to public engines unless SearXNG is offline."""
    form = open_form(scripted(REPLY))
    assert "your search terms go to public search engines" in form.children[-1].value


@pytest.mark.parametrize("text", HOSTILE[::19], ids=range(len(HOSTILE[::19])))
def test_hostile_text_is_inert_in_the_form(scripted: Scripted, open_form: Open, text: str) -> None:
    """As question, answer, title and model name."""
    server = scripted(answer(f"x {text}", [source(text)]), config=config([provider(chat=["a:1b", text or "b"])]))
    form = open_form(server)
    form.ask(f"what is {text}")
    ended(form)
    assert StrictHtml(form._page.answer.value).faults == []
    assert re.sub(r"<(details|summary|textarea [^<>]*|/[a-z]*)>", "", form._page.markdown.value).count("<") == 0
    assert "\n" not in controls(form)["Answers"].label


def test_where_widgets_do_not_show_the_text_says_how_to_ask(scripted: Scripted, open_form: Open) -> None:
    """Beside the widget stands text for terminals, files and front ends without widgets."""
    bundle = open_form(scripted(REPLY))._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
    assert bundle["text/plain"].startswith("<vane_magic.Form idle, 0 results>\n")
    assert 'form.ask("…").result()' in bundle["text/plain"]
    assert "%vane …" in bundle["text/plain"]


# The end ---


def test_closing_while_it_works_leaves_nothing(scripted: Scripted, open_form: Open, lock_path: Path) -> None:
    """No thread, socket, lock or widget; the future ends; the form asks no more."""
    server = scripted([*PART, hang])
    form = open_form(server)
    future = form.ask(QUESTION)
    wait_for(lambda: "Half" in shown(form))
    form.close()
    assert (future.done(), future.result(0).answer) == (True, "Half an answer [1]")
    assert (form.state, form.result) == ("cancelled", None)
    assert not lock_path.exists()
    server.wait_until_idle()
    assert [thread for thread in threading.enumerate() if thread.name == "vane-form"] == []
    with pytest.raises(RuntimeError, match="closed"):
        form.ask(QUESTION)
    form.close()


def test_closing_ends_a_look_up_that_hangs(scripted: Scripted, open_form: Open) -> None:
    """The list of models is no reason to wait."""
    server = scripted(REPLY, routes={"GET /api/config": hang})
    form = open_form(server)
    server.wait_for_requests()
    began = time.monotonic()
    form.close()
    assert time.monotonic() - began < 2
    server.wait_until_idle()


def test_an_observer_may_close_the_form(scripted: Scripted, open_form: Open) -> None:
    """On the thread that would have to be waited for."""
    form = open_form(scripted(REPLY))
    form.observe(lambda _: form.close() if form.state == "done" else None, "state")
    assert form.ask(QUESTION).result(10).success


@pytest.mark.parametrize("way", ["exit", "interrupt"])
def test_a_process_that_ends_leaves_no_lock_and_no_connection(scripted: Scripted, lock_path: Path, way: str) -> None:
    """A question at work holds nothing up, and its lock is free at once."""
    server = scripted(hang)
    code = f"""
        import time
        from vane_magic import Form
        form = Form(url={server.url!r}, lock_path={str(lock_path)!r})
        form.ask({QUESTION!r})
        while form._page.status.value.find("Searching") < 0:
            time.sleep(0.01)
        print("asked", flush=True)
        {"time.sleep(60)" if way == "interrupt" else ""}
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"asked\n"
            if way == "interrupt":
                os.kill(process.pid, signal.SIGINT)
            process.wait(10)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
    assert server.searches[0].left.wait(5)
    assert not lock_path.exists()


def test_the_public_name_loads_the_widgets_late() -> None:
    """`import vane_magic` costs nothing of it."""
    code = "import sys, vane_magic; assert 'ipywidgets' not in sys.modules; vane_magic.Form; import ipywidgets"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert vane_magic.Form is Form
