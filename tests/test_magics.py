"""`%vane` as people type it: cells go through `run_cell` of a real IPython to a server on loopback."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from servers.listener import closed_port
from servers.scripted import ScriptedServer, answer, config, hang, in_turn, provider, reply, source
from shells import Notebook, open_notebook, point_at
from traitlets import TraitError

from vane_magic import VaneServiceUnavailable
from vane_magic.core.settings import SETTINGS
from vane_magic.notebook import live, transformer

ANSWER = "Turbines turn slowly [1]."
REPLY = answer(ANSWER, [source("Tidal report", "https://energy.example/r1")])


@pytest.fixture(scope="module")
def shared() -> Iterator[Notebook]:
    with open_notebook() as notebook:
        yield notebook


@pytest.fixture
def notebook(shared: Notebook) -> Iterator[Notebook]:
    """The module's shell without settings, results and names of other tests."""
    shared.clear()
    yield shared
    shared.clear()


@pytest.fixture
def vane(notebook: Notebook, scripted: Callable[..., ScriptedServer], lock_path: Path) -> ScriptedServer:
    """A healthy Vane that the notebook asks."""
    server = scripted(REPLY)
    point_at(notebook, server.url, lock_path)
    return server


def questions(server: ScriptedServer) -> list[str]:
    return [request.json()["query"] for request in server.searches]


# Shown once ---


@pytest.mark.parametrize(
    ("cell", "times"),
    [
        ("%vane what is it?", 1),
        ("%vane what is it?\n", 1),
        ("r = %vane what is it?", 1),
        ("r = %vane what is it?\nr", 1),
        ("r = %vane what is it?\ndisplay(r)", 1),
        ("%vane -o r what is it?", 1),
        ("%vane -o r what is it?\nr", 1),
        ("%vane what is it?\n1 + 1", 1),
        ("%vane what is it?\n%vane and that?", 2),
        ("for i in range(3):\n    %vane what is it?", 3),
        ("if True:\n    r = %vane what is it?\nr", 1),
        ("def f():\n    return get_ipython().run_line_magic('vane', 'what is it')\nf()", 1),
        ("def f():\n    %vane what is it?\nf()", 1),
        ("%%vane\nwhat is it?", 1),
        ("%%vane\nwhat is it;", 1),
        ("d = {}\nd['a'] = %vane what is it?\nd['a']", 1),
        ("rs = [get_ipython().run_line_magic('vane', q) for q in ('what is it', 'and that')]\nrs[0]", 2),
        ("vane what is it", 1),
    ],
)
def test_each_call_shows_its_answer_once_wherever_it_stands(
    notebook: Notebook, vane: ScriptedServer, cell: str, times: int
) -> None:
    """Neither the value of the last line nor a name for it doubles what the call has shown."""
    assert notebook.run(cell).out.count("Turbines turn slowly") == times
    assert len(vane.searches) == times


@pytest.mark.parametrize(
    "cell",
    [
        "%vane -q what is it?",
        "%vane what is it?;",
        "r = %vane -q what is it?",
        "r = %vane what is it? ;",
        "%%vane -q\nwhat is it?",
        "%%vane -q -o r\nwhat is it?",
        "vane -q what is it",
        "get_ipython().run_line_magic('vane', '-q what is it')",
        "for i in range(2):\n    %vane -q what is it?",
    ],
)
def test_a_quiet_call_shows_nothing(notebook: Notebook, vane: ScriptedServer, cell: str) -> None:
    """The answer is bound all the same; where a terminal has written Out[n]: the line ends in one summary."""
    shown = notebook.run(cell)
    assert "Turbines" not in shown.out + shown.err
    assert len(shown.out.splitlines()) <= 1
    assert notebook.last.answer == ANSWER


def test_the_line_form_of_a_quiet_call_shows_nothing_at_all(notebook: Notebook, vane: ScriptedServer) -> None:
    """There the statement ends in ; before IPython writes Out[n]:."""
    assert notebook.run("%vane -q what is it?").out == ""
    assert notebook.run("%vane what is it?;").out == ""


def test_a_hidden_result_is_shown_by_its_name(notebook: Notebook, vane: ScriptedServer) -> None:
    """Who names it on the last line wants to see it."""
    assert notebook.run("r = %vane -q what is it?\nr").out.count("Turbines turn slowly") == 1
    assert notebook.run("%vane -q -o s what is it?\ns").out.count("Turbines turn slowly") == 1


def test_a_result_is_shown_again_in_a_later_cell(notebook: Notebook, vane: ScriptedServer) -> None:
    """The rule is about one cell."""
    notebook.run("r = %vane what is it?")
    assert notebook.run("r").out.count("Turbines turn slowly") == 1
    assert notebook.run("_vane").out.count("Turbines turn slowly") == 1
    assert len(vane.searches) == 1


def test_a_terminal_echoes_one_line(notebook: Notebook, vane: ScriptedServer) -> None:
    """Out[n]: has been written by then, so it gets a summary."""
    last = notebook.run("%vane what is it?").out.splitlines()[-1]
    assert last.startswith("Out[")
    assert last.endswith(("1 sources>", "1 source>"))


@pytest.mark.parametrize("cell", ["%vane what is it?", "r = %vane what is it?", "r = %vane what is it?\nr"])
def test_a_captured_cell_holds_one_copy(notebook: Notebook, vane: ScriptedServer, cell: str) -> None:
    """`%%capture` keeps something of each echo, and that must not be a second or an empty copy."""
    assert "Turbines" not in notebook.run(f"%%capture kept\n{cell}").out
    (kept,) = notebook["kept"].outputs
    assert "Turbines" in kept.data["text/html"]
    assert "Turbines" in kept.data["text/plain"]
    assert kept.metadata["vane"]["query"] == "what is it?"


# What is asked, and what is bound ---


def test_settings_come_from_option_config_environment_and_default_in_that_order(
    notebook: Notebook, vane: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them that gives a value wins."""
    monkeypatch.setenv("VANE_MODE", "speed")
    monkeypatch.setenv("VANE_SCOPE", "academic,web")
    notebook.run("%vane what is it?")
    notebook.config(mode="quality")
    notebook.run("%vane what is it?")
    notebook.run("%vane -m balanced -s discussions -i 'in one word' what is it?")
    notebook.config(mode=None)
    notebook.run("%vane what is it?")
    bodies = [request.json() for request in vane.searches]
    assert [body["optimizationMode"] for body in bodies] == ["speed", "quality", "balanced", "speed"]
    assert [body["sources"] for body in bodies] == [["academic", "web"]] * 2 + [["discussions"], ["academic", "web"]]
    assert [body.get("systemInstructions") for body in bodies] == [None, None, "in one word", None]


def test_a_question_is_sent_as_typed(notebook: Notebook, vane: ScriptedServer) -> None:
    """Nothing of the notebook's names gets into it."""
    notebook.run("name = 'SECRET'; v = 1")
    typed = "what's 6'2\" in cm, $5, {name} and $name, {'a': 1}, %s, --amend, 日本語 🙂?"
    notebook.run(f"%vane {typed}")
    notebook.run(f"%%vane\n{typed}\nsecond line;\n")
    assert questions(vane) == [typed, f"{typed}\nsecond line;"]


def test_expand_fills_in_what_exists_and_shows_what_was_sent(notebook: Notebook, vane: ScriptedServer) -> None:
    """In a function its own names count too."""
    notebook.run("city = 'Oslo'")
    shown = notebook.run("%vane -e how is {city} {in} {winter}?")
    assert questions(vane) == ["how is Oslo {in} {winter}?"]
    assert "how is Oslo" in shown.out
    notebook.run("def f(month):\n    r = %vane -e how is {city} in {month}?\nf('May')")
    assert questions(vane)[1] == "how is Oslo in May?"
    assert "filled in nothing" in notebook.run("%vane -e how is {nothing}?").out


def test_continue_sends_the_conversation_and_says_so(notebook: Notebook, vane: ScriptedServer) -> None:
    """Never a failed answer, and never nothing."""
    shown = notebook.run("%vane -c and then?", fails=True)
    assert isinstance(shown.error, UsageError)
    assert vane.requests == []
    notebook.run("%vane -q what is it?")
    notebook.run("%vane -m speed xx")  # too short: fails
    shown = notebook.run("%vane -c and then?")
    assert vane.searches[-1].json()["history"] == [["human", "what is it?"], ["assistant", "Turbines turn slowly."]]
    assert "what is it?" in shown.out
    notebook.run("%vane --continue and now?")
    assert [pair[1] for pair in vane.searches[-1].json()["history"][::2]] == ["what is it?", "and then?"]


def test_the_trigger_sentence_is_understood(notebook: Notebook, vane: ScriptedServer) -> None:
    """It is the specification's; another mode beside it is a contradiction."""
    sentence = "Perform air-gapped web research for query: what is it? using local Vane in speed mode."
    notebook.run(f"%vane {sentence}")
    assert questions(vane) == ["what is it?"]
    assert vane.searches[0].json()["optimizationMode"] == "speed"
    notebook.run(f"%vane -m quality {sentence}")
    assert notebook.last.error is not None
    assert notebook.last.error.code == "INVALID_INPUT"
    assert len(vane.searches) == 1


def test_out_binds_a_name_as_well(notebook: Notebook, vane: ScriptedServer) -> None:
    """Also a failed result."""
    notebook.run("%vane -o first what is it?")
    assert notebook["first"] is notebook.last
    notebook.run("%vane -o second xx")
    assert notebook["second"] is notebook.last
    assert not notebook["second"].success


@pytest.mark.parametrize("cell", ["%vane", "%vane   ", "%%vane\n  \n\n", "%vane -m speed"])
def test_without_a_question_the_settings_and_their_origins_are_shown(
    notebook: Notebook, vane: ScriptedServer, cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No socket is opened for that."""
    monkeypatch.setenv("VANE_MAX_SOURCES", "5")
    shown = notebook.run(cell).out
    lines = {line.split()[0]: line for line in shown.splitlines() if line}
    assert "%config VaneMagics.url" in lines["url"]
    assert "VANE_MAX_SOURCES" in lines["max_sources"]
    assert lines["wait"].split()[1:] == ["0", "%config", "VaneMagics.wait"]
    assert "default" in lines["scope"]
    assert "%vane [options] question" in shown
    assert vane.connections == 0


@pytest.mark.parametrize(
    "cell", ["%vane --help", "%vane -h", "%vane -m speed --help what is it?", "%%vane --help\nwhat is it?"]
)
def test_help_is_shown_where_it_is_asked_for_as_in_a_shell(
    notebook: Notebook, vane: ScriptedServer, lock_path: Path, cell: str
) -> None:
    """The same as the bare magic's; nothing is asked, and no socket opened."""
    bare = notebook.run("%vane").out
    assert "%vane [options] question" in bare
    assert notebook.run(cell).out == bare
    assert (vane.connections, lock_path.exists()) == (0, False)


def test_a_bad_setting_is_shown_by_the_bare_magic_too(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the place it comes from."""
    monkeypatch.setenv("VANE_MODE", "fast")
    assert "VANE_MODE in the environment" in notebook.run("%vane").out


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("%vane --mode fast what is it", "speed, balanced or quality"),
        ("%vane -m llama3 what is it", "--model"),
        ("%vane --mod speed what is it", "--mode"),
        ("%vane what is it --mode speed", "--mode speed"),
        ("%vane -n 0 what is it", "whole number"),
        ("%vane \N{EM DASH}mode speed what is it?", "did you mean --mode?"),
        ("%vane --local-docs / what is it?", "VaneMagics.local_docs"),
    ],
)
def test_a_mistaken_option_is_answered_with_the_fix(
    notebook: Notebook, vane: ScriptedServer, lock_path: Path, cell: str, told: str
) -> None:
    """In one or two lines, before anything is sent or locked."""
    shown = notebook.run(cell, fails=True)
    assert type(shown.error) is UsageError
    assert told in shown.err
    assert len(shown.err.strip().splitlines()) <= 2
    assert vane.connections == 0
    assert not lock_path.exists()


def test_help_explains_with_examples_and_every_option(notebook: Notebook, vane: ScriptedServer) -> None:
    """`%vane?` is help, and asks nothing."""
    text = notebook.shell.find_line_magic("vane").__doc__ or ""
    shown = notebook.run("%vane?")
    assert "Ask a local Vane" in shown.out
    assert text.splitlines()[0].endswith(".")
    assert text.count("In [") == 3
    assert "--max-sources" in text
    assert "%config VaneMagics.local_docs" in text
    assert "must be the first line" in text
    assert vane.connections == 0


# Results ---


def test_a_result_pickles_copies_compares_and_can_be_stored(notebook: Notebook, vane: ScriptedServer) -> None:
    """`%store` keeps it beyond the session."""
    notebook.run("r = %vane -q what is it?")
    result = notebook["r"]
    again = pickle.loads(pickle.dumps(result))
    assert again == result == copy.deepcopy(result)
    assert again.run == result.run
    notebook.run("%load_ext storemagic")
    notebook.run("%store r")
    notebook.run("del r")
    notebook.run("%store -r r")
    assert notebook["r"] == result
    assert len(repr(result).splitlines()) <= 3
    assert result.to_markdown().startswith("**what is it?**")


def test_one_client_notes_that_vane_may_still_be_at_work(
    notebook: Notebook, scripted: Callable[..., ScriptedServer], lock_path: Path
) -> None:
    """The card after a time-out says so."""
    server = scripted(in_turn(hang, REPLY))
    point_at(notebook, server.url, lock_path)
    notebook.config(timeout=0.3)
    assert "EXECUTION_TIMEOUT" in notebook.run("%vane what is it?").out
    assert "may still have been at work" in notebook.run("%vane what is it?").out


def test_an_automatic_choice_among_several_models_is_told_once(
    notebook: Notebook, scripted: Callable[..., ScriptedServer], lock_path: Path
) -> None:
    """With the line and the file that fix it."""
    models = config([provider(chat=["qwen3:8b", "llama3.1:latest"])])
    point_at(notebook, scripted(REPLY, config=models).url, lock_path)
    first, second = notebook.run("%vane what is it?").out, notebook.run("%vane what is it?").out
    told = " ".join(first.split())
    assert 'c.VaneMagics.chat_model = "Ollama/llama3.1:latest"' in told
    assert "ipython_config.py" in told.replace(" ", "")
    assert "c.VaneMagics" not in second


# Failures ---


def test_a_failed_result_shows_its_card_and_is_returned(notebook: Notebook, lock_path: Path) -> None:
    """An absent Vane's card says how to start it, where the address is set, and what can be asked without it."""
    with closed_port() as port:
        point_at(notebook, f"http://127.0.0.1:{port}", lock_path)
        shown = notebook.run("r = %vane what is it?\nr.success")
    text = " ".join(shown.out.split())
    assert text.count("VANE_SERVICE_UNAVAILABLE") == 1
    assert "VANE_URL" in text
    assert "--local-docs" in text
    assert notebook["r"] is notebook.last


def test_on_error_raise_shows_the_card_once_and_stops_the_cell(notebook: Notebook, lock_path: Path) -> None:
    """The traceback has two lines, and the exception is the code's own."""
    with closed_port() as port:
        point_at(notebook, f"http://127.0.0.1:{port}", lock_path)
        notebook.config(on_error="raise")
        shown = notebook.run("r = %vane what is it?\nprint('went on')", fails=True)
    assert isinstance(shown.error, VaneServiceUnavailable)
    assert shown.error.result is notebook.last
    assert pickle.loads(pickle.dumps(shown.error)).message == shown.error.message
    assert "went on" not in shown.out
    what, cause, hint = notebook.last.run.failure
    card, _, trace = shown.out.partition("VaneServiceUnavailable: ")
    assert card.count("VANE_SERVICE_UNAVAILABLE") == 1
    assert hint.split()[0] in card
    assert trace.strip().splitlines() == [what, "VANE_SERVICE_UNAVAILABLE: see the card above."]
    assert str(shown.error) == f"{what} VANE_SERVICE_UNAVAILABLE: see the card above."
    with pytest.raises(VaneServiceUnavailable) as raised:
        notebook.last.raise_for_error()
    assert str(raised.value) == " ".join(part for part in (what, cause, hint) if part)


def test_a_quiet_call_that_raises_tells_all_in_its_traceback(notebook: Notebook, lock_path: Path) -> None:
    """There is no card to look at."""
    with closed_port() as port:
        point_at(notebook, f"http://127.0.0.1:{port}", lock_path)
        notebook.config(on_error="raise")
        shown = notebook.run("%vane -q what is it?", fails=True)
    assert shown.out.startswith("VaneServiceUnavailable: ")
    assert notebook.last.error
    assert str(shown.error) == notebook.last.error.message
    assert "see the card" not in shown.out


def test_a_bad_on_error_in_the_environment_is_a_failed_result(
    notebook: Notebook, vane: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no reason for a traceback."""
    monkeypatch.setenv("VANE_ON_ERROR", "rise")
    shown = notebook.run("%vane what is it?")
    assert "VANE_ON_ERROR" in shown.out
    assert "Did you mean raise?" in " ".join(shown.out.split())


def test_a_fault_of_the_server_is_a_card(
    notebook: Notebook, scripted: Callable[..., ScriptedServer], lock_path: Path
) -> None:
    """With what is usually the matter."""
    point_at(notebook, scripted(reply(500, b'{"message":"An error has occurred."}')).url, lock_path)
    shown = notebook.run("%vane what is it?")
    assert "UPSTREAM_SEARCH_ERROR" in shown.out
    assert "Traceback" not in shown.out + shown.err


# Configuration ---


def test_every_setting_is_a_trait_with_its_help(notebook: Notebook) -> None:
    """`%config VaneMagics` lists them, and tells unset from set."""
    notebook.config(mode="quality")
    listed = notebook.run("%config VaneMagics").out
    for name, setting in SETTINGS.items():
        assert f"VaneMagics.{name}=" in listed
        assert setting.env in listed
    assert listed.count("Current: None") == len(SETTINGS) - 1
    assert set(notebook.magics.trait_names(config=True)) == set(SETTINGS)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("mode", "qualty", "Did you mean quality?"),
        ("max_sources", 0, "whole number"),
        ("scope", "wen", "Did you mean web?"),
        ("wait", -1, "seconds"),
        ("allow_remote", "maybe", "true or false"),
        ("on_error", "rise", "Did you mean raise?"),
    ],
)
def test_a_bad_value_is_refused_when_it_is_assigned(
    notebook: Notebook, caplog: pytest.LogCaptureFixture, name: str, value: object, told: str
) -> None:
    """The value before stays."""
    with pytest.raises(TraitError, match=name):
        setattr(notebook.magics, name, value)
    notebook.config(**{name: value})
    assert told in caplog.text
    assert getattr(notebook.magics, name) is None


@pytest.mark.parametrize(
    ("mode", "taken", "refused", "told"),
    [
        (None, 60, 99, "timeout is 99 s, above the 60 s of quality mode"),
        ("quality", 60, 60.5, "timeout is 60.5 s, above the 60 s of quality mode"),
        ("balanced", 30, 31, "timeout is 31 s, above the 30 s of balanced mode"),
        ("speed", 10, 30, "timeout is 30 s, above the 10 s of speed mode"),
    ],
)
def test_a_timeout_that_no_question_could_have_is_refused_when_it_is_assigned(
    notebook: Notebook, caplog: pytest.LogCaptureFixture, *, mode: str | None, taken: float, refused: float, told: str
) -> None:
    """In the words of a question's refusal; without a mode of %config, a call may choose the slowest."""
    notebook.config(mode=mode, timeout=taken)
    notebook.config(timeout=refused)
    assert told in caplog.text
    assert "Set a shorter one, or a slower mode" in caplog.text
    assert notebook.magics.timeout == taken


def test_an_unknown_setting_is_answered_with_the_near_one(notebook: Notebook) -> None:
    """IPython warns of it by itself."""
    with pytest.warns(UserWarning, match=r"Did you mean.*mode"):
        notebook.run("%config VaneMagics.moed = 'speed'")


def test_a_configuration_file_sets_them(lock_path: Path, scripted: Callable[..., ScriptedServer]) -> None:
    """`c.VaneMagics.mode = "quality"` in ipython_config.py."""
    server = scripted(REPLY)
    mine = {"VaneMagics": {"mode": "quality", "url": server.url, "lock_path": str(lock_path)}}
    with open_notebook(mine) as notebook:
        notebook.run("%vane what is it?")
        assert server.searches[0].json()["optimizationMode"] == "quality"


def test_a_bad_value_in_a_configuration_file_is_told_and_breaks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of the file counts."""
    with open_notebook({"VaneMagics": {"mode": "qualty", "max_sources": 3}}) as notebook:
        told = capsys.readouterr().err
        assert "c.VaneMagics.mode" in told
        assert "Did you mean quality?" in told
        assert (notebook.magics.mode, notebook.magics.max_sources) == (None, 3)
        with pytest.raises(TraitError):
            notebook.magics.mode = "qualty"


# Completion ---


def test_models_are_completed_from_the_last_look_up(
    notebook: Notebook, scripted: Callable[..., ScriptedServer], lock_path: Path
) -> None:
    """Without a request of its own."""
    server = scripted(REPLY, config=config([provider(chat=["qwen3:8b", "llama3.1:latest"])]))
    point_at(notebook, server.url, lock_path)

    def offered() -> set[str]:
        with provisionalcompleter():
            return {each.text for each in notebook.shell.Completer.completions("%vane --model ", 14)}

    assert not any("qwen3" in text for text in offered())
    assert server.connections == 0
    notebook.run("%vane -q what is it?")
    connections = server.connections
    assert {text.split()[-1] for text in offered()} >= {"Ollama/qwen3:8b", "Ollama/llama3.1:latest"}
    assert server.connections == connections


# Loading ---

_HEAVY = ["httpx", "httpcore", "pydantic", "filelock", "ipywidgets", "markdown_it", "vane_magic.core.client"]


def test_loading_imports_nothing_heavy() -> None:
    """A question imports it, when one is asked; only what IPython itself has imported is there."""
    script = f"""
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
shell.run_cell("%load_ext vane_magic").raise_error()
shell.run_cell("%vane").raise_error()
new = set(sys.modules) - before
assert not [name for name in {_HEAVY!r} if name in new], new
assert len([name for name in new if not name.startswith("vane_magic")]) < 20, new
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


def state(shell: InteractiveShell) -> dict[str, Any]:
    """All that loading may touch."""
    manager, formatter = shell.magics_manager, shell.display_formatter.ipython_display_formatter
    return {
        "transformers": list(shell.input_transformer_manager.token_transformers),
        "matchers": list(shell.Completer.custom_matchers),
        "configurables": [type(each).__name__ for each in shell.configurables],
        "magics": {kind: set(names) for kind, names in manager.magics.items()},
        "registry": set(manager.registry),
        "events": {name: list(functions) for name, functions in shell.events.callbacks.items()},
        "formatters": (dict(formatter.type_printers), dict(formatter.deferred_printers)),
        "names": set(shell.user_ns),
    }


def test_unloading_leaves_nothing_behind(notebook: Notebook, vane: ScriptedServer) -> None:
    """Not a magic, hook, matcher, transformer, configurable or formatter; the user's results stay."""
    notebook.run("%unload_ext vane_magic")
    before = state(notebook.shell)
    notebook.run("%load_ext vane_magic")
    notebook.run("%reload_ext vane_magic")
    notebook.run("%load_ext vane_magic")
    loaded = state(notebook.shell)
    assert loaded != before
    assert loaded["configurables"].count("VaneMagics") == 1
    assert loaded["transformers"].count(transformer.VaneStatement) == 1
    point_at(notebook, vane.url, Path("/nowhere"))
    notebook.run("%vane what is it?")
    notebook.run("%unload_ext vane_magic")
    after = state(notebook.shell)
    assert after["names"] - before["names"] <= {"_vane"} | {n for n in after["names"] if n.startswith("_")}
    assert {**after, "names": None} == {**before, "names": None}
    notebook.run("_vane")


def test_ten_reloads_leave_one_copy(notebook: Notebook, vane: ScriptedServer, lock_path: Path) -> None:
    """One request and one answer each time."""
    once = state(notebook.shell)
    for _ in range(10):
        notebook.run("%reload_ext vane_magic")
    again = state(notebook.shell)
    assert {k: len(v) for k, v in again.items() if k != "names"} == {k: len(v) for k, v in once.items() if k != "names"}
    point_at(notebook, vane.url, lock_path)
    assert notebook.run("%vane what is it?").out.count("Turbines turn slowly") == 1
    assert len(vane.searches) == 1


# Local documents ---


def test_an_interrupt_in_the_middle_of_drawing_marks_what_stands() -> None:
    """The first drawing has gone out, and Ctrl-C falls before the call that drew it returns."""
    published: list[tuple[str, bool]] = []

    class Publisher:
        def publish(self, *, data: dict[str, str], update: bool, **_: object) -> None:
            published.append((data["text/plain"], update))
            if len(published) == 1:
                raise KeyboardInterrupt

    display = live._Notebook(Publisher(), watched=True)  # pyright: ignore[reportArgumentType] - all it needs of one
    display._next = 0
    with pytest.raises(KeyboardInterrupt):
        display.report("searching, 1 of 30 s")
    display.stop()
    assert [(text.strip(), update) for text, update in published] == [
        ("searching, 1 of 30 s", False),
        ("stopped: searching, 1 of 30 s", True),
    ]


def test_options_without_a_question_are_not_dropped_in_silence(notebook: Notebook) -> None:
    """The settings that follow would read as if the option had failed."""
    assert notebook.run("%vane -m speed").out.startswith("No question was given, so nothing was asked.")
    assert not notebook.run("%vane").out.startswith("No question")


def test_local_docs_are_asked_by_an_engine_started_once(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own address, lock and model go before what is set for Vane; unloading stops it."""
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "tides.md").write_text("# Tides\n\nA tidal turbine turns slowly in the current of the tide.\n")
    monkeypatch.setenv("VANE_CHAT_MODEL", "qwen3:8b")
    notebook.config(local_docs=str(folder), url="http://127.0.0.1:9", lock_path="/nowhere/lock")
    shown = notebook.run("r = %vane --local-docs how does a tidal turbine turn?")
    result = notebook["r"]
    assert result.success, result.error
    assert "turns slowly" in shown.out
    place = result.run.url
    notebook.run("r = %vane --local-docs -q what is the tide?")
    assert notebook["r"].run.url == place
    assert json.loads(result.to_json())["data"]["sources"][0]["url"].startswith(place)
    (other := tmp_path / "other").mkdir()
    (other / "wind.md").write_text("# Wind\n\nA wind turbine turns fast.\n")
    notebook.config(local_docs=str(other))
    notebook.run("r = %vane --local-docs -q how does a turbine turn?")
    assert [source.title for source in notebook["r"].sources] == ["Wind"]  # other folders, another engine
    notebook.run("%unload_ext vane_magic")
    with pytest.raises(OSError):
        __import__("urllib.request").request.urlopen(f"{place}/api/config", timeout=2)


def test_a_missing_folder_is_a_card(notebook: Notebook, tmp_path: Path) -> None:
    """It names the folder."""
    notebook.config(local_docs=str(tmp_path / "nowhere"))
    shown = notebook.run("%vane --local-docs what is it?")
    assert "CONFIGURATION_ERROR" in shown.out
    assert "nowhere" in shown.out
