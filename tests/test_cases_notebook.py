"""The user cases of groups A, B, D and E: cells as people typed them, and the outcome that is right."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from servers.listener import closed_port
from servers.scripted import CASES, ScriptedServer, case_server
from shells import Notebook, Shown, open_notebook, point_at
from strict_html import StrictHtml

from vane_magic import Interrupted, VaneClient
from vane_magic.notebook import transformer

Ask = Callable[..., ScriptedServer]


@pytest.fixture(scope="module")
def shared() -> Iterator[Notebook]:
    with open_notebook() as notebook:
        yield notebook


@pytest.fixture
def notebook(shared: Notebook) -> Iterator[Notebook]:
    shared.clear()
    yield shared
    shared.clear()


@pytest.fixture
def case(notebook: Notebook, lock_path: Path, request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    """The server of the case that the test is named after, asked by the notebook."""
    with case_server(case_id(request.function.__name__)) as server:
        point_at(notebook, server.url, lock_path)
        yield server


def case_id(name: str) -> str:
    return name.split("_")[1].upper()


def cells(name: str) -> list[str]:
    """The case's cells; q stands for any valid question."""
    return [re.sub(r"\bq$", "what is a tidal turbine", line.split("   #")[0]) for line in CASES[name]["input"]]


def query(server: ScriptedServer) -> str:
    (search,) = server.searches
    return search.json()["query"]


def words(shown: Shown) -> str:
    return " ".join(shown.out.split())


def test_every_case_of_these_groups_has_a_test() -> None:
    """None is forgotten; D23 runs in a real kernel too."""
    tested = {case_id(name) for name in globals() if re.match(r"test_[a-f]\d\d_", name)}
    assert {name for name in CASES if name[0] in "ABDE"} == tested


# A: what is typed ---


def test_a01_apostrophe_and_question_mark(notebook: Notebook, case: ScriptedServer) -> None:
    """Exactly one request, with both kept."""
    shown = notebook.run(*cells("A01"))
    assert query(case) == "what's new in CPython 3.14?"
    assert "not found" not in shown.out


def test_a03_names_of_the_notebook_do_not_leak(
    notebook: Notebook, case: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither into a request nor into anything shown."""
    shown = [notebook.run(cell) for cell in cells("A03")]
    assert query(case) == "what does $token mean and what is {token}"
    seen = [*(s.out + s.err for s in shown), *(r.body.decode() for r in case.requests), notebook.last.to_json()]
    assert not any("hunter2" in text for text in [*seen, caplog.text, repr(notebook.last.run)])


def test_a05_a_cell_body_with_code(notebook: Notebook, case: ScriptedServer) -> None:
    """Whole, with its newlines, braces and final ;."""
    notebook.run(*cells("A05"))
    assert query(case) == cells("A05")[0].removeprefix("%%vane\n")


def test_a07_a_wrong_mode(notebook: Notebook, case: ScriptedServer, lock_path: Path) -> None:
    """A usage message that names the three; nothing sent, nothing locked."""
    shown = notebook.run(*cells("A07"), fails=True)
    assert type(shown.error) is UsageError
    assert all(mode in shown.err for mode in ("speed", "balanced", "quality"))
    assert len(shown.err.strip().splitlines()) <= 2
    assert (case.connections, lock_path.exists()) == (0, False)


@pytest.mark.parametrize("cell", cells("A10"))
def test_a10_nothing_asked(notebook: Notebook, case: ScriptedServer, lock_path: Path, cell: str) -> None:
    """A short usage text."""
    shown = notebook.run(cell)
    assert "%vane [options] question" in shown.out
    assert (case.connections, lock_path.exists()) == (0, False)


def test_a11_a_comment_above_the_cell_magic(notebook: Notebook) -> None:
    """IPython refuses it; the help quotes how that looks."""
    shown = notebook.run(*cells("A11"), fails=True)
    told = notebook.shell.find_line_magic("vane").__doc__ or ""
    assert "must be the first line of its cell" in told
    symptom = str(shown.error).splitlines()[0] if shown.error else shown.err
    assert any(quoted in symptom + shown.err for quoted in re.findall('"(.*?)"', told))


def test_a13_assigned_and_shown_once(notebook: Notebook, case: ScriptedServer) -> None:
    """Bare or assigned: one output."""
    for cell in cells("A13"):
        assert notebook.run(cell).out.count("Tidal turbines turn slowly") == 1
    assert notebook["r"].answer.startswith("Tidal turbines turn slowly")


def test_a16_loaded_again(notebook: Notebook, case: ScriptedServer) -> None:
    """One request, one output, one hook."""
    *loads, cell = cells("A16")
    for load in loads:
        notebook.run(load)
    assert notebook.run(cell).out.count("Tidal turbines turn slowly") == 1
    assert query(case) == "what is a tidal turbine?"
    hooks = notebook.shell.input_transformer_manager.token_transformers
    assert hooks.count(transformer.VaneStatement) == 1


# B: what is shown ---


def shown_html(notebook: Notebook, cell: str = "%vane what is a tidal turbine") -> tuple[StrictHtml, str]:
    """The stored HTML, checked strictly, and the plain text beside it."""
    notebook.run(f"%%capture kept\n{cell}")
    (kept,) = notebook["kept"].outputs
    assert set(kept.data) == {"text/html", "text/plain"}
    html = StrictHtml(kept.data["text/html"])
    assert html.faults == []
    return html, kept.data["text/plain"]


def test_b01_an_answer_that_begins_with_an_address(
    notebook: Notebook, case: ScriptedServer, audit: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """It is text: nothing fetches it."""
    before = len(audit)
    html, plain = shown_html(notebook, *cells("B01"))
    assert plain.startswith("https://docs.example/tidal is the page")
    assert {event[1][0] for event in audit[before:]} == {("127.0.0.1", case.port)}
    assert "https://energy.example/r1" in [address for address, _ in html.links]


def test_b03_markup_from_the_web(notebook: Notebook, case: ScriptedServer) -> None:
    """Shown as text or dropped; the words stay."""
    html, plain = shown_html(notebook)
    assert "Done" in html.text
    assert "Tidal" in plain
    assert [address for address, _ in html.links if "127.0.0.1" in address] == []


def test_b05_titles_that_break_lists(notebook: Notebook, case: ScriptedServer) -> None:
    """Each source stays one entry with its own address."""
    html, plain = shown_html(notebook)
    addresses = {address for address, _ in html.links}
    assert addresses == {"https://energy.example/a_(b)", "https://energy.example/r2"}
    assert len(re.findall(r"^\[\d\] ", plain, re.MULTILINE)) == 2


def test_b07_a_source_that_is_a_whole_page(notebook: Notebook, case: ScriptedServer) -> None:
    """The stored output stays small."""
    first, then = cells("B07")
    notebook.run(first)
    notebook.run(f"%%capture kept\n{then}")
    (kept,) = notebook["kept"].outputs
    assert len(json.dumps(kept.data).encode()) < 100_000
    assert len(repr(notebook["r"]).splitlines()) <= 3


def test_b09_thousands_of_pieces(notebook: Notebook, case: ScriptedServer) -> None:
    """One answer; the display's rate is measured in a real kernel."""
    shown = notebook.run(*cells("B09"))
    assert shown.out.count("word2999") == 1
    assert shown.err == ""


# D: what goes wrong ---


@pytest.fixture
def freed(lock_path: Path) -> Iterator[None]:
    """The lock is free at the end (case F07)."""
    yield
    assert not lock_path.exists()


@pytest.mark.usefixtures("freed")
def test_d01_the_opaque_500(notebook: Notebook, case: ScriptedServer) -> None:
    """Status, the server's text and the usual causes; not sent again."""
    text = words(notebook.run(*cells("D01")))
    assert "500" in text
    assert "An error has occurred." in text
    assert all(part in text for part in ("provider", "chat or embedding model"))
    assert len(case.searches) == 1


@pytest.mark.usefixtures("freed")
def test_d03_silence_in_speed_mode(notebook: Notebook, case: ScriptedServer) -> None:
    """It ends after 10 s, and says that Vane may still be at work."""
    began = time.monotonic()
    text = words(notebook.run(*cells("D03")))
    assert 9 <= time.monotonic() - began <= 12
    assert "EXECUTION_TIMEOUT" in text
    assert "10 s limit of speed mode" in text
    assert "may still be at work" in text
    assert case.searches[0].left.wait(2)


@pytest.mark.usefixtures("freed")
def test_d06_a_break_in_the_middle(notebook: Notebook, case: ScriptedServer) -> None:
    """The part is shown and kept, and is no success."""
    text = words(notebook.run(*cells("D06")))
    result = notebook["r"]
    assert not result.success
    assert not result.run.complete
    assert result.answer.startswith("Tidal turbines")
    assert len(result.sources) == 2
    assert "Tidal turbines" in text
    assert "Traceback" not in text


def test_d10_no_search_was_made(notebook: Notebook, case: ScriptedServer) -> None:
    """A whole answer without sources, and that is said."""
    text = words(notebook.run(*cells("D10")))
    assert notebook["r"].success
    assert notebook["r"].sources == ()
    assert "without a web search" in text


@pytest.mark.usefixtures("freed")
def test_d12_nothing_listens(notebook: Notebook, lock_path: Path) -> None:
    """At once: the address, how to start Vane, the setting, and whose machine 127.0.0.1 is."""
    with closed_port() as port:
        point_at(notebook, f"http://127.0.0.1:{port}", lock_path)
        began = time.monotonic()
        text = words(notebook.run(*cells("D12")))
    assert time.monotonic() - began < 2
    assert f"127.0.0.1:{port}" in text
    assert "VANE_URL" in text
    assert "start" in text.lower()
    assert "kernel" in text or "container" in text


@pytest.mark.parametrize("line", CASES["D14"]["input"])
def test_d14_addresses_off_the_machine(
    notebook: Notebook, lock_path: Path, line: str, audit: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """Refused before any socket or look-up."""
    point_at(notebook, line.removeprefix("base address = "), lock_path)
    before = len(audit)
    text = words(notebook.run("%vane what is a tidal turbine"))
    assert "SECURITY_BOUNDARY_VIOLATION" in text
    assert "127.0.0.1" in text
    assert audit[before:] == []


def test_d16_a_proxy_in_the_environment(
    notebook: Notebook, case: ScriptedServer, monkeypatch: pytest.MonkeyPatch, audit: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """The request goes straight to Vane."""
    for name, value in CASES["D16"]["env"].items():
        monkeypatch.setenv(name, value)
    before = len(audit)
    notebook.run(*cells("D16"))
    assert notebook.last.success
    assert {event[1][0] for event in audit[before:]} == {("127.0.0.1", case.port)}


def test_d19_busy(notebook: Notebook, case: ScriptedServer) -> None:
    """The wait that the server asks for is shown; nothing is sent again."""
    text = words(notebook.run(*cells("D19")))
    assert "busy" in text
    assert "30" in text
    assert len(case.searches) == 1


@pytest.mark.usefixtures("freed")
def test_d21_the_stop_button(notebook: Notebook, case: ScriptedServer) -> None:
    """One line, socket closed, and the next question is answered."""

    def stop() -> None:
        case.wait_for_searches(1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    shown = notebook.run("%vane --mode quality what is a tidal turbine", fails=True)
    thread.join()
    assert isinstance(shown.error, Interrupted)
    assert len(shown.out.strip().splitlines()) == 1
    assert "may still be at work" in shown.out
    assert case.searches[0].left.wait(1)
    assert "Tidal turbines turn slowly" in notebook.run("%vane --mode speed what is a tidal turbine").out


def test_d23_a_plain_call_inside_a_running_loop(notebook: Notebook, case: ScriptedServer, lock_path: Path) -> None:
    """Plain and awaited in one cell; `test_kernel.py` does the same in ipykernel's loop."""
    notebook.shell.user_ns["client"] = VaneClient(case.url, lock_path=str(lock_path))
    notebook.run("a = client.research('what is it'); b = await client.aresearch('what is it')")
    assert notebook["a"].answer == notebook["b"].answer != ""


@pytest.mark.parametrize("form", ["{}/", "{}/api/search", " {} \n", "127.0.0.1:{port}"])
def test_d24_the_address_in_other_ways(notebook: Notebook, case: ScriptedServer, lock_path: Path, form: str) -> None:
    """All work, and the path is never doubled."""
    point_at(notebook, form.format(case.url, port=case.port), lock_path)
    notebook.run("%vane what is a tidal turbine")
    assert notebook.last.success
    assert {request.path for request in case.searches} == {"/api/search"}


# E: citations and odd answers ---


def test_e01_a_citation_past_the_end(notebook: Notebook, case: ScriptedServer) -> None:
    """Reported; the text is unchanged."""
    text = words(notebook.run(*cells("E01")))
    result = notebook["r"]
    assert result.answer == "Slow [1]. In Norway [3]."
    assert result.run.citations[1].title == "Tidal report 1"
    assert result.run.dangling == (3,)
    assert "[3] in the answer points at no source" in text


def test_e03_a_thinking_block(notebook: Notebook, case: ScriptedServer) -> None:
    """Kept apart, and not shown."""
    text = words(notebook.run(*cells("E03")))
    result = notebook["r"]
    assert result.answer.strip() == "Turbines turn slowly [1]."
    assert "[9]" in result.run.thinking
    assert result.run.dangling == ()
    assert "The user asks" not in text
    assert result.verify()


def test_e05_a_polite_failure(notebook: Notebook, case: ScriptedServer) -> None:
    """Not a sourced answer, and the search engine is named."""
    text = words(notebook.run(*cells("E05")))
    assert "no source backs this answer" in text
    assert "SearXNG" in text
    assert notebook["r"].sources == ()


def test_e08_malformed_sources(notebook: Notebook, case: ScriptedServer) -> None:
    """All five keep their numbers, and the odd ones are reported."""
    text = words(notebook.run(*cells("E08")))
    result = notebook["r"]
    assert [s.source_id for s in result.sources] == ["1", "2", "3", "4", "5"]
    assert result.run.dangling == ()
    assert "came without" in text


def test_e11_an_empty_answer(notebook: Notebook, case: ScriptedServer) -> None:
    """A failure that keeps its sources, and one without."""
    for count in (2, 0):
        text = words(notebook.run("%vane what is a tidal turbine"))
        assert not notebook.last.success
        assert "empty" in text
        assert len(notebook.last.sources) == count


def test_e13_citations_of_nothing(notebook: Notebook, case: ScriptedServer) -> None:
    """All are reported, and so is that it is unsourced."""
    text = words(notebook.run(*cells("E13")))
    assert notebook["r"].run.dangling == (1, 2)
    assert "no source backs this answer" in text
    assert "[1], [2] in the answer point at no source" in text
