"""The form in JupyterLab and Notebook 7, in a real Chromium: typed into, clicked, read and looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from browser import ARTEFACTS, Book, Lab
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
    source,
    wait,
)

from vane_magic.notebook import form as form_module

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

QUESTION: Final = "How do tidal turbines work?"
ANSWER: Final = """Tidal turbines turn **slowly**, at 10 to 20 turns a minute [1][2].

- The rotor of the first pilot is 18 m wide [1].
- Costs fell to $120 per MWh, not $80 [2].

```python
def power(v, area, rho=1025):
    return 0.5 * rho * area * v**3
```
"""
SOURCES: Final = [
    source("Lessons from the first array", "https://energy.example/lessons", "The rotor is 18 m wide. " * 6),
    source("What a megawatt-hour of tide costs", "https://prices.example/2026?sort=cost", "Costs fell by half."),
]
TITLES: Final = [entry["metadata"]["title"] for entry in SOURCES]
REPLY: Final = answer(ANSWER, SOURCES)
PART: Final = [head(200, CHUNKED), *(chunk(events(e)) for e in answer_events("Half an answer [1]", SOURCES)[:-1])]
END: Final = [chunk(events({"type": "done"})), LAST_CHUNK]
VANE_MODELS: Final = ["qwen3:8b", "llama3.3:70b-instruct-q4_K_M"]
VANE: Final = config([provider(chat=VANE_MODELS)])
KERNELS: Final = "@jupyterlab/apputils-extension:kernels-settings"


class Shown:
    """A form on a page; controls are found by what a reader, or a screen reader, finds them by."""

    def __init__(self, book: Book) -> None:
        self.page, self.book = book.page, book
        self.question = book.page.get_by_label("Question")
        self.question.wait_for()
        self.says("Ready")
        while int(self.tell("form._page.question.pong")) < form_module._GREETINGS:  # page and kernel find each other
            self.page.wait_for_timeout(100)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def type(self, text: str) -> None:
        self.question.click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def says(self, text: str) -> None:
        """Wait until the status line says this."""
        self.page.get_by_role("status").get_by_text(text).wait_for()

    def shows(self, text: str) -> None:
        """Wait until the answer shows this."""
        self.page.locator(".vane").get_by_text(text).first.wait_for()

    def tell(self, expression: str) -> str:
        """What the kernel says; the second cell prints it."""
        self.book.cell(1).locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(f"print({expression})")
        return self.book.run(1).inner_text().strip()


@pytest.fixture
def show(page: Page, lab: Lab, lock_path: Path, scripted: Callable[..., ScriptedServer]) -> Callable[..., Any]:
    """Show a form that asks a server with these scripts."""

    def show(*script: object, name: str, app: str = "lab/tree") -> tuple[Shown, ScriptedServer]:
        server = scripted(in_turn(*script), config=VANE)
        made = f"form = vane_magic.Form(url={server.url!r}, lock_path={str(lock_path)!r})"
        busy = f"import os, time\nwhile not os.path.exists({str(lock_path.parent / 'go')!r}): time.sleep(0.01)"
        book = lab.open(page, [f"import vane_magic\n{made}\nform", "0", busy], name=name, app=app)
        book.run(0)
        return Shown(book), server

    return show


Show = Callable[..., tuple[Shown, ScriptedServer]]


@pytest.mark.parametrize("app", ["lab/tree", "notebooks"], ids=["lab", "notebook"])
def test_type_ask_stop_ask_again_continue(page: Page, show: Show, app: str) -> None:
    """The whole use of a form, in JupyterLab and in Notebook 7."""
    gate = threading.Event()
    form, server = show([*PART, hang], [*PART, wait(gate), *END], REPLY, name=f"use-{app[:3]}", app=app)
    form.type(QUESTION)
    form.button("Ask").dblclick()
    form.says("Writing, 2 sources")
    form.shows("Half an answer")
    assert page.get_by_role("progressbar", name="Time used").get_attribute("max") == "30"
    assert form.tell("form.state") == "running"
    form.button("Stop").click()
    form.says("Stopped after")
    form.shows("Half an answer")

    form.button("Ask").click()
    form.says("Writing")
    gate.set()
    form.says("Done in")
    assert form.tell("form.state") == "done"

    page.get_by_label("Continue from the last answer").check()
    offered = page.locator("datalist option").evaluate_all("options => options.map(option => option.value)")
    assert offered == [f"Ollama/{name}" for name in sorted(VANE_MODELS)]
    page.get_by_label("Chat model").fill(offered[1])
    form.type("And in Canada?")
    form.button("Ask").click()
    form.shows("Tidal turbines turn slowly")
    assert page.locator(".vane a", has_text="[1]").first.get_attribute("href") == SOURCES[0]["metadata"]["url"]
    queries = [search.json()["query"] for search in server.searches]
    assert queries == [QUESTION, QUESTION, "And in Canada?"]
    assert [search.json()["chatModel"]["key"] for search in server.searches[1:]] == [VANE_MODELS[1], VANE_MODELS[0]]
    assert server.searches[2].json()["history"] == [["human", QUESTION], ["assistant", "Half an answer"]]

    page.get_by_label("Answers").select_option(label=f"1. {QUESTION} (cancelled)")
    form.shows("CANCELLED")
    page.get_by_text("Markdown to copy").click()
    assert QUESTION[:-1] in page.get_by_label("Markdown to copy").input_value()


@pytest.mark.parametrize("subshells", ["perCommTarget", "perComm", "disabled"])
def test_the_form_is_used_while_a_cell_is_busy(
    page: Page, lab: Lab, show: Show, lock_path: Path, subshells: str
) -> None:
    """With subshells it asks and stops meanwhile; without, it asks after the cell, and what was typed last."""
    lab.configure(page, KERNELS, commsOverSubshells=subshells)
    form, server = show([*PART, hang], REPLY, name=f"busy-{subshells}")
    form.book.run(2, wait=False)
    form.book.cell(2).get_by_text("[*]").wait_for()
    form.type("How do")
    page.get_by_label("Sources", exact=True).fill("3")
    form.type(QUESTION)
    form.button("Ask").click()
    if subshells == "disabled":
        (lock_path.parent / "go").touch()
        form.shows("Half an answer")
    else:
        form.shows("Half an answer")
        assert "[*]" in form.book.cell(2).locator(".jp-InputPrompt").inner_text()
    form.button("Stop").click()
    form.says("Stopped after")
    if subshells != "disabled":
        assert "[*]" in form.book.cell(2).locator(".jp-InputPrompt").inner_text()
    (lock_path.parent / "go").touch()
    form.book.wait(2)
    assert [search.json()["query"] for search in server.searches] == [QUESTION]
    assert form.tell("form.state, form._page.max_sources.value") == "cancelled 3"


def test_keys_alone_are_enough(page: Page, show: Show) -> None:
    """Lines are lines, an empty last one asks; Tab goes through the controls in their order, each shows its focus."""
    form, server = show(REPLY, name="keys")
    form.question.focus()
    page.keyboard.type("How do tidal turbines")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("work?")
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Tab")
    assert form.tell("form.state") == "idle"
    form.question.focus()
    page.keyboard.press("Control+End")
    page.keyboard.press("Shift+Enter")
    form.says("Done in")
    assert form.question.input_value() == "How do tidal turbines\nwork?"
    assert [search.json()["query"] for search in server.searches] == ["How do tidal turbines\nwork?"]
    form.question.focus()
    order = ["Question", "Mode", "Chat model", "Refresh", "web", "academic", "discussions", "Sources", "Ask"]
    for name in [*order, "Continue from the last answer", *["[1]", "[2]", "[1]", "[2]"], *TITLES, "Answers"]:
        focused, without = page.evaluate(_FOCUS)
        assert focused[0] == name
        assert focused[1] != without[1]
        page.keyboard.press("Tab")


# What has the focus, and how that looks with the focus and without.
_FOCUS: Final = """() => {
    const element = document.activeElement
    const named = element.labels?.length && element.tagName !== "BUTTON" ? element.labels[0] : element
    function look() {
        const style = getComputedStyle(element)
        return [named.textContent.trim(), [style.outlineStyle, style.borderColor].join()]
    }
    const focused = look()
    element.blur()
    const without = look()
    element.focus()
    return [focused, without]
}"""


def test_a_screen_reader_finds_names_and_news(page: Page, show: Show) -> None:
    """Every control has a name and a role, and the status line is a polite live region."""
    show(REPLY, name="reader")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]}
    assert named >= {("textbox", "Question"), ("combobox", "Mode"), ("combobox", "Chat model"), ("button", "Refresh")}
    assert named >= {("checkbox", "web"), ("checkbox", "academic"), ("checkbox", "discussions")}
    assert named >= {("spinbutton", "Sources"), ("button", "Ask"), ("button", "Stop")}
    status = next(node for node in tree if node.get("role", {}).get("value") == "status")
    assert {p["name"]: p["value"].get("value") for p in status["properties"]}["live"] == "polite"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_form_fits_its_page(page: Page, lab: Lab, show: Show, theme: str) -> None:
    """From 400 to 1600 px nothing sticks out; pictures are kept to be looked at."""
    lab.theme(page, theme)
    gate = threading.Event()
    script = [*PART, wait(gate), chunk(events({"type": "response", "data": ANSWER})), *END]
    form, _ = show(script, name=f"fits-{theme}")
    page.keyboard.press("Control+b")
    picture(page, f"{theme}-idle")
    form.type(QUESTION)
    form.button("Ask").click()
    form.says("Writing")
    picture(page, f"{theme}-live")
    gate.set()
    form.says("Done in")
    page.get_by_text("Markdown to copy").click()
    for width in (1600, 1000, 700, 400):
        page.set_viewport_size({"width": width, "height": 1600})
        page.wait_for_function("width => document.querySelector('#main').clientWidth <= width", arg=width)
        picture(page, f"{theme}-done-{width}")
        assert page.evaluate(_STICKING_OUT) == []


_STICKING_OUT: Final = """() => {
    const area = document.querySelector(".jp-OutputArea-output").getBoundingClientRect()
    const parts = document.querySelectorAll(".jp-OutputArea-output :is(.jupyter-widgets, .vane *)")
    return [...parts].filter(e => e.getBoundingClientRect().right > area.right + 1).map(e => e.outerHTML.slice(0, 100))
}"""


def picture(page: Page, name: str) -> None:
    ARTEFACTS.mkdir(exist_ok=True)
    page.locator(".jp-OutputArea-output").first.screenshot(path=ARTEFACTS / f"form-{name}.png")


def test_a_form_survives_a_reload_of_its_page(page: Page, show: Show) -> None:
    """The kernel has it still: question, answer and buttons are there, and work."""
    form, server = show(REPLY, REPLY, name="reload")
    form.type(QUESTION)
    form.button("Ask").click()
    form.says("Done in")
    page.evaluate("jupyterapp.shell.currentWidget.context.save()")
    page.reload()
    form.shows("Tidal turbines turn slowly")
    assert form.question.input_value() == QUESTION
    form.button("Ask").click()
    server.wait_for_searches(2)
