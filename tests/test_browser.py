"""`%vane` in JupyterLab, in a real Chromium: what a reader sees, and what a hostile answer cannot do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from browser import ARTEFACTS, Book, Lab
from hostile_texts import HOSTILE
from servers.scripted import (
    CHUNKED,
    LAST_CHUNK,
    ScriptedServer,
    answer,
    answer_events,
    chunk,
    events,
    hang,
    head,
    in_turn,
    reply,
    sleep,
    source,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

ANSWER = """Tidal turbines turn **slowly**, at 10 to 20 turns a minute [1][2]. Three facts stand out:

- The rotor of the MeyGen pilot is 18 m wide [1].
- Norway's pilots stand in *Kvalsundet* [2, 3]; costs fell to $120 per MWh, not $80.
- A blade's tip stays under 12 m/s, so that fish can swim by [4].

## How a turbine starts

| place | power | since |
|---|---|---|
| Pentland Firth | 6 MW | 2016 |
| Kvalsundet | 0.3 MW | 2003 |

The power grows with the *cube* of the speed: `P = 0.5 * rho * A * v**3`.

```python
def power(v, area, rho=1025):
    return 0.5 * rho * area * v**3
```

> Sea water is 800 times as dense as air [1].
"""
SOURCES = [
    source(
        "MeyGen: lessons from the first array", "https://energy.example/meygen/lessons", "The rotor is 18 m wide. " * 9
    ),
    source(
        "Kvalsundet tidal pilot, ten years on",
        "https://norway.example/tidal/kvalsundet",
        "The first pilot fed the grid.",
    ),
    source(
        "What a megawatt-hour of tide costs", "https://prices.example/reports/2026?sort=cost", "Costs fell by half."
    ),
    source("", "https://fish.example/a-very-long-path/that-goes-on/and-on/until-it-does-not-fit-on-a-narrow-page", ""),
]
REPLY = answer(ANSWER, SOURCES)
PARTIAL = [head(200, CHUNKED), *(chunk(events(event)) for event in answer_events(ANSWER[:300], SOURCES)[:-1])]
END = [chunk(events({"type": "done"})), LAST_CHUNK]


@pytest.fixture
def start(scripted: Callable[..., ScriptedServer], lock_path: Path) -> Callable[..., str]:
    """Start a server, and give the cell that points a notebook at it."""

    def start(*script: object) -> str:
        url = scripted(*script).url
        return (
            f"%load_ext vane_magic\n%config VaneMagics.url = {url!r}\n"
            f"%config VaneMagics.lock_path = {str(lock_path)!r}\n%config VaneMagics.chat_model = 'qwen3:8b'"
        )

    return start


def artefact(page: Page, book: Book, name: str) -> None:
    """Keep a picture of the notebook."""
    ARTEFACTS.mkdir(exist_ok=True)
    page.locator(".jp-Notebook").first.screenshot(path=ARTEFACTS / f"vane-{name}.png")


@pytest.mark.parametrize(("theme", "width"), [("light", 1600), ("light", 700), ("dark", 1600), ("dark", 700)])
def test_an_answer_is_seen_once_with_its_sources(
    page: Page, lab: Lab, start: Callable[..., str], theme: str, width: int
) -> None:
    """In both themes, wide and narrow: marks are links, words are readable, nothing is wider than its cell."""
    page.set_viewport_size({"width": width, "height": 1900})
    lab.theme(page, theme)
    failure = reply(500, b'{"message":"An error has occurred."}')
    cells = [
        start(in_turn(REPLY, failure, PARTIAL)),
        "%vane How do tidal turbines work?",
        "%vane and now?",
        "%vane and then?",
    ]
    book = lab.open(page, cells, name=f"{theme}{width}")
    if width < 1000:
        page.keyboard.press("Control+b")
    book.run(0)
    output = book.run(1)
    assert output.locator(".vane").count() == 1
    assert output.locator("a", has_text="[1]").first.get_attribute("href") == SOURCES[0]["metadata"]["url"]
    assert "$120 per MWh, not $80" in output.inner_text()
    assert output.locator("img, script, style, mjx-container, .MathJax").count() == 0
    assert book.run(2).locator(".vane").inner_text().count("UPSTREAM_SEARCH_ERROR") == 1
    assert "before it was whole" in book.run(3).inner_text()
    for number in (1, 2, 3):
        card = book.cell(number).locator(".vane")
        assert card.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
        assert contrast(card) >= 4.5
    artefact(page, book, f"{theme}-{'wide' if width > 1000 else 'narrow'}")


def contrast(card: object) -> float:
    """The least contrast of a text in the card with what is behind it, as WCAG counts it."""
    return card.evaluate(  # type: ignore[attr-defined]
        """root => {
          const rgb = text => text.match(/[\\d.]+/g).map(Number);
          const behind = e => {
            for (; e; e = e.parentElement) {
              const c = rgb(getComputedStyle(e).backgroundColor);
              if (c.length < 4 || c[3] === 1) return c;
            }
            return [255, 255, 255];
          };
          const opacity = e => e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1;
          const light = c => c.slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          let least = 21;
          for (const e of root.querySelectorAll("*")) {
            if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
            const back = behind(e), a = opacity(e);
            const front = rgb(getComputedStyle(e).color).slice(0, 3).map((v, i) => v * a + back[i] * (1 - a));
            const [x, y] = [light(front), light(back)];
            least = Math.min(least, (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05));
          }
          return least;
        }"""
    )


def test_live_output_turns_into_the_answer_in_its_place(page: Page, lab: Lab, start: Callable[..., str]) -> None:
    """One output at every moment, never an empty one, and one copy in the file."""
    slow = [
        head(200, CHUNKED),
        *([chunk(events(e)), sleep(0.02)] for e in answer_events(list(ANSWER), SOURCES)),
        LAST_CHUNK,
    ]
    book = lab.open(page, [start(slow), "%vane How do tidal turbines work?"], name="live")
    book.run(0)
    output = book.run(1, wait=False)
    output.locator(".vane").wait_for(timeout=20_000)
    output.evaluate(
        """area => { window.seen = []; new MutationObserver(() => requestAnimationFrame(() =>
          window.seen.push([area.querySelectorAll(".vane").length, area.offsetHeight])))
          .observe(area, {childList: true, subtree: true, characterData: true}); }"""
    )
    assert re.search(r"(searching|writing), \d+ of 30 s", output.inner_text())
    artefact(page, book, "live")
    book.wait(1)
    output.locator("table").wait_for()
    seen = page.evaluate("window.seen")
    assert {count for count, _ in seen} == {1}
    assert min(height for _, height in seen) > 20
    assert "of 30 s" not in output.inner_text()
    stored = saved(page, lab, "live")
    (only,) = stored.cells[1].outputs
    assert only.output_type == "display_data"
    assert len(json.dumps(only)) < 20_000


def saved(page: Page, lab: Lab, name: str) -> nbformat.NotebookNode:
    """The notebook's file once it holds the last outputs."""
    page.keyboard.press("Control+s")
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with suppress(ValueError):  # it is being written
            stored = nbformat.read(lab.folder / f"{name}.ipynb", as_version=4)
            if stored.cells[1].outputs:
                return stored
        page.wait_for_timeout(50)
    raise TimeoutError("the notebook is not saved")


def test_the_stop_button_marks_what_was_shown(page: Page, lab: Lab, start: Callable[..., str]) -> None:
    """The part stays, one line says what happened, and the next cell runs."""
    book = lab.open(page, [start([*PARTIAL, hang]), "%vane -m quality what is it?", "_vane.error.code"], name="stop")
    book.run(0)
    output = book.run(1, wait=False)
    output.locator(".vane").wait_for(timeout=20_000)
    page.locator(
        'jp-button[data-command="notebook:interrupt-kernel"], button[data-command="notebook:interrupt-kernel"]'
    ).first.click()
    book.wait(1)
    text = output.inner_text()
    assert "stopped: writing" in text
    assert "Tidal turbines turn" in text
    assert text.count("Interrupted; _vane has what had come.") == 1
    assert "CANCELLED" in book.run(2).inner_text()
    artefact(page, book, "stopped")


def test_hostile_answers_fetch_and_run_nothing(page: Page, lab: Lab, start: Callable[..., str]) -> None:
    """Each text as answer, title, address and snippet, through a real front end; then in an untrusted copy."""
    size = 40
    parts = [HOSTILE[at : at + size] for at in range(0, len(HOSTILE), size)]
    replies = [
        answer(
            "\n\n".join([*part, "[1] [2]"]),
            [source(text, url="https://x.example/" + text, content=text) for text in part],
        )
        for part in parts
    ]
    cells = [start(in_turn(*replies)), f"for n in range({len(parts)}):\n    %vane -n 99 what is it?"]
    book = lab.open(page, cells, name="hostile")
    title = page.title()
    book.run(0)
    output = book.run(1)
    assert output.locator(".vane").count() == len(parts)
    page.wait_for_timeout(500)  # for what a script or a picture might start late
    assert page.title() == title
    assert (
        output.locator(".vane").locator("img, script, iframe, object, embed, form, style, button, svg, [id]").count()
        == 0
    )
    hosts = output.locator(".vane a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(hosts) <= {"http:", "https:"}
    saved(page, lab, "hostile")
    reopened(page, lab, "hostile")
    assert page.locator(".vane, .jp-RenderedHTMLCommon").count() >= len(parts)


def reopened(page: Page, lab: Lab, name: str) -> None:
    """Open a copy that nobody has trusted."""
    stored = nbformat.read(lab.folder / f"{name}.ipynb", as_version=4)
    stored.cells.append(nbformat.v4.new_markdown_cell("a copy"))
    nbformat.write(stored, lab.folder / f"{name}-copy.ipynb")
    page.goto(f"{lab.url}lab/tree/{name}-copy.ipynb?token={lab.token}&reset")
    page.locator(".jp-Notebook .jp-Cell", has_text="a copy").wait_for(timeout=60_000)


def test_an_untrusted_notebook_reads_well(page: Page, lab: Lab, start: Callable[..., str]) -> None:
    """JupyterLab sanitises it: words, order and links stay."""
    book = lab.open(page, [start(REPLY), "%vane How do tidal turbines work?"], name="untrusted")
    book.run(0)
    shown = book.run(1).inner_text()
    saved(page, lab, "untrusted")
    reopened(page, lab, "untrusted")
    again = page.locator(".jp-Notebook .jp-Cell").nth(1).locator(".jp-OutputArea")
    assert words(again.inner_text()) == words(shown)
    assert again.locator("a", has_text="[2]").first.get_attribute("href") == SOURCES[1]["metadata"]["url"]
    artefact(page, Book(page), "untrusted")


def words(text: str) -> list[str]:
    return text.split()


def test_nbconvert_and_print_show_the_same(
    browser: Browser, lab: Lab, page: Page, start: Callable[..., str], tmp_path: Path
) -> None:
    """A page without JupyterLab, on paper."""
    nbconvert = pytest.importorskip("nbconvert")
    book = lab.open(page, [start(REPLY), "%vane How do tidal turbines work?"], name="paper")
    book.run(0)
    shown = book.run(1).locator(".vane").inner_text()
    exporter = nbconvert.HTMLExporter(mathjax_url="", require_js_url="")
    body, _ = exporter.from_notebook_node(saved(page, lab, "paper"))
    place = tmp_path / "paper.html"
    place.write_text(body, encoding="utf-8")
    paper = browser.new_page(viewport={"width": 800, "height": 1100})
    paper.goto(place.as_uri())
    paper.emulate_media(media="print")
    assert words(paper.locator(".vane").inner_text()) == words(shown)
    paper.screenshot(path=ARTEFACTS / "vane-paper.png", full_page=True)
    paper.close()
