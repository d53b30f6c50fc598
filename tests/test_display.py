"""What a card shows: answer, citations, links, sources, errors, notes; and how much of it is stored."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from textwrap import dedent

import nbformat
import pytest
from strict_html import StrictHtml

from vane_magic.display import Card, CardSource, live_text

ONE = CardSource(1, "Tidal report 1", "https://energy.example/r1", "Snippet number 1 about tidal turbines.")
TWO = CardSource(2, "Tidal report 2", "https://energy.example/r2", "Snippet number 2 about tidal turbines.")
CITED = {1: ONE, 2: TWO}


def show(card: Card) -> StrictHtml:
    page = StrictHtml(card.html())
    assert page.faults == []
    return page


def lines(page: StrictHtml) -> list[str]:
    return [line.strip() for line in page.text.split("\n") if line.strip()]


# Citations ---


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("Said [1].", [(ONE.url, "[1]")]),
        ("Said [1][2].", [(ONE.url, "[1]"), (TWO.url, "[2]")]),
        ("Said [1, 2].", [(ONE.url, "1"), (TWO.url, "2")]),
        ("Said 【2】.", [(TWO.url, "【2】")]),
        ("Said [1, 9].", [(ONE.url, "1")]),
        ("**Said [2]**\n\n- here [1]\n\n| a [1] |\n|---|", [(TWO.url, "[2]"), (ONE.url, "[1]"), (ONE.url, "[1]")]),
        ("| a |\n|---|\n| b | beyond the columns [1] |", [(ONE.url, "[1]")]),
        ("Said [9] and [0].", []),
        ("In code `[1]` and\n\n```\n[1]\n```\n\n    [1]", []),
        ("![see [1]](https://evil.example/x.png)", []),
        ("[a [1] b](/x)", []),
        ("[1]: https://evil.example/\n\nSaid [1].", [(ONE.url, "[1]"), (ONE.url, "[1]")]),
    ],
)
def test_a_mark_links_to_its_source(text: str, links: list[tuple[str, str]]) -> None:
    """Each number of a mark leads to its source's address, but not in code, links and images."""
    assert show(Card(text=text, cited=CITED)).links == links


def test_a_reference_cannot_take_over_a_number() -> None:
    """Link definitions of Markdown are text, however marks, links and images refer to them."""
    one, two, uses = "[1]: https://evil.example/", "[2]: https://evil.example/", "[x][1] ![y][2] [1] [2][]"
    page = show(Card(text=f"{one}\n{two}\n\n{uses}", cited=CITED))
    assert {address for address, _ in page.links} == {ONE.url, TWO.url}
    assert lines(page) == [f"{one} {two}", uses]


def test_marks_leave_the_words_as_given() -> None:
    """The text around and in marks is unchanged, whether they lead anywhere or not."""
    text = "a [1] b[1,2]c [ 1 , 9 ] d 【2】[3] e"
    assert lines(show(Card(text=text, cited=CITED))) == [text]


def test_a_mark_names_its_source_on_hover() -> None:
    """Title and host; without an address a mark is no link but still says its title."""
    bare = CardSource(3, 'The "bare" one', "", "")
    page = show(Card(text="[1] [3] [4]", cited={1: ONE, 3: bare, 4: bare._replace(title="")}))
    assert page.titles == ["Tidal report 1 - energy.example", 'The "bare" one', "(untitled)"]
    assert [address for address, _ in page.links] == [ONE.url]


def test_an_answer_full_of_marks_keeps_its_words() -> None:
    """Marks are links while there is room for that; later ones are plain, and no text is cut for them."""
    long = ONE._replace(url="https://energy.example/" + "r" * 700)
    text = "\n\n".join(f"Sentence {n} is said here [1]." for n in range(300))
    page = show(Card(text=text, cited={1: long}))
    assert lines(page) == text.split("\n\n")
    assert 10 < len(page.links) < 200


# Links and images ---


@pytest.mark.parametrize(
    ("text", "shown", "plain", "addresses"),
    [
        (
            "[guide](https://docs.example/a)",
            "guide (docs.example)",
            "guide (https://docs.example/a)",
            ["https://docs.example/a"],
        ),
        ("<https://docs.example/a>", "https://docs.example/a", "https://docs.example/a", ["https://docs.example/a"]),
        (
            "[docs.example/b](https://docs.example/a)",
            "docs.example/b",
            "docs.example/b (https://docs.example/a)",
            ["https://docs.example/a"],
        ),
        (
            "[bank.example](https://evil.example/)",
            "bank.example (evil.example)",
            "bank.example (https://evil.example/)",
            ["https://evil.example/"],
        ),
        (
            "[docs.example bank.example](https://docs.example)",
            "docs.example bank.example (docs.example)",
            "docs.example bank.example (https://docs.example)",
            ["https://docs.example"],
        ),
        ("[x](/api/shutdown)", "x (/api/shutdown)", "x (/api/shutdown)", []),
        ("[x](javascript:alert(1))", "x (javascript:alert(1))", "x (javascript:alert(1))", []),
        ("<mailto:a@b.example>", "mailto:a@b.example", "mailto:a@b.example", []),
        ("[x]()", "x", "x", []),
        ("![a *map*](https://evil.example/x.png)", "[image: a map]", "[image: a map]", []),
        ("![](data:image/png;base64,AAAA)", "[image: ]", "[image: ]", []),
        (
            "[![logo](https://evil.example/x.png)](https://docs.example/)",
            "[image: logo] (docs.example)",
            "[image: logo] (https://docs.example/)",
            ["https://docs.example/"],
        ),
        ("https://docs.example/tidal is the page [1].", "https://docs.example/tidal is the page [1].", None, []),
    ],
)
def test_a_link_says_where_it_leads(text: str, shown: str, plain: str | None, addresses: list[str]) -> None:
    """The host follows the label unless the label is an address of it; what may not be clicked is text."""
    page = show(Card(text=text))
    assert lines(page) == [shown]
    assert [address for address, _ in page.links] == addresses
    assert Card(text=text).plain() == (plain or shown)


# Shapes that web pages bring ---


def test_b01_an_answer_that_begins_with_an_address_is_text() -> None:
    """Nothing is looked up, whatever the text begins with."""
    text = "https://docs.example/tidal is the page that lists every pilot [1]."
    card = Card(text=text, sources=(ONE,), cited=CITED)
    assert lines(show(card))[0] == text
    assert card.plain().startswith(text)


def test_b03_markup_is_shown_as_text() -> None:
    """Script, image and frame of an answer, and a title with a handler, stand there letter by letter."""
    text = 'Done [1]. <script>window.pwned=1</script><img src=x onerror="window.pwned=2"> <iframe src="/"></iframe>'
    source = ONE._replace(title="<b onmouseover=alert(1)>Tidal</b>")
    card = Card(text=text, sources=(source,), cited={1: source})
    page = show(card)
    assert text in page.text
    assert source.title in page.text
    assert source.title in card.plain()


def test_b05_a_title_cannot_break_out_of_its_entry() -> None:
    """Each source stays one entry with its own address; an empty title falls back to the host, then the address."""
    odd = CardSource(1, "A](https://evil.example) | pipe `tick`\n\n# heading", "https://energy.example/a_(b)", "")
    card = Card(
        text="Fine [1][2].",
        sources=(odd, TWO._replace(title=""), CardSource(3, " ", "ftp://files.example", ""), CardSource(4, "", "", "")),
        cited={1: odd, 2: TWO},
    )
    page = show(card)
    title = "A](https://evil.example) | pipe `tick` # heading"
    assert page.links[2:] == [(odd.url, title), (TWO.url, "energy.example")]
    assert lines(page)[1:] == [
        "Sources",
        f"{title} energy.example",
        "energy.example",
        TWO.snippet,
        "ftp://files.example",
        "(untitled)",
    ]


def test_b07_a_source_that_is_a_whole_page_is_shortened() -> None:
    """Its beginning is shown and marked as cut; the terminal has all of it."""
    page = CardSource(1, "Page", ONE.url, "word " * 40_000)
    card = Card(text="Long [1].", sources=(page,), cited={1: page})
    html, plain = card.html(), card.plain()
    assert len(html) + len(plain) < 5_000
    assert "word …" in html
    assert "word …" in plain
    assert card.terminal().count("word") == 40_000


# Layout ---


def test_the_plain_form_reads_like_a_page() -> None:
    """Wrapped, numbered, with lists, quotations, code and tables in their shape."""
    text = """\
        # Tidal turbines

        A **tidal** turbine turns the *flow* of the
        tide into power [1, 2]; see `MeyGen`.\\
        Hard break.

        1. One with a [link](https://docs.example/)
           - nested
        2. Two

        - loose

          second paragraph
        -

        > quoted $x$
        > > twice

        ---

        ```python
        def f():
            return 1
        ```

        | a | long name |
        |---|--:|
        | 1 | 2 |
        """
    card = Card(
        text=dedent(text),
        sources=(ONE, TWO._replace(url="ftp://files.example", snippet="")),
        cited=CITED,
        banner="Stopped at the 60 s limit.",
        cause="The model is slow.",
        hint="Ask again in a moment.",
        code="EXECUTION_TIMEOUT",
        notes=("No search was made.", "Second."),
        footer=("balanced", "4.2 s"),
    )
    expected = """\
        Stopped at the 60 s limit.

        Tidal turbines
        --------------

        A tidal turbine turns the flow of the
        tide into power [1, 2]; see `MeyGen`.
        Hard break.

        1. One with a link
           (https://docs.example/)
           - nested
        2. Two

        - loose

          second paragraph
        -

        > quoted $x$
        >
        > > twice

        ---

        python:
            def f():
                return 1

        a | long name
        - | ---------
        1 | 2

        Likely cause: The model is slow.
        Next step: Ask again in a moment.
        EXECUTION_TIMEOUT

        Sources
        [1] Tidal report 1
            https://energy.example/r1
            Snippet number 1 about tidal
            turbines.
        [2] Tidal report 2
            ftp://files.example

        - No search was made.
        - Second.

        balanced · 4.2 s"""
    assert [line.rstrip() for line in card.plain(40).split("\n")] == dedent(expected).split("\n")
    assert card.terminal(40) == card.plain(40)


def test_a_wide_table_is_wrapped_row_by_row() -> None:
    """Columns are aligned only where they fit."""
    text = "|name|what it is|\n|-|-|\n|turbine|turns a flow into power, in water or in air|"
    assert Card(text=text).plain(30) == ("name | what it is\nturbine | turns a flow into\npower, in water or in air")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n  > b\n  - c\n- d\n\ne", "- a\n  > b\n  - c\n- d\n\ne"),
        ("- a\n\n  - b\n- c", "- a\n\n  - b\n\n- c"),
        ("9. a\n10. b  \n    c", "9. a\n10. b\n    c"),
        ("- # two words", "- two words\n  ---------"),
        ("> - a\n>\n>   ```\n>   b  c\n>\n>   d\n>   ```", "> - a\n>\n>       b  c\n>\n>       d"),
    ],
)
def test_a_list_is_as_tight_as_its_markdown(text: str, expected: str) -> None:
    """Blank lines stand in a loose list and not in a tight one; what is nested hangs behind what it stands in."""
    assert Card(text=text).plain() == expected


def test_html_has_the_reading_order_and_structure() -> None:
    """Banner, answer, error, sources as a numbered list, notes, footer; no h1 to h6 that a notebook would list."""
    card = Card(
        text="# Title\n\n### Sub\n\n3. three\n\nText [1].",
        sources=(ONE._replace(number=4),),
        cited=CITED,
        banner="Banner.",
        hint="Hint.",
        code="CODE",
        notes=("Note.",),
        footer=("fact", "fact"),
    )
    html = card.html()
    order = ["Banner", "Title", "Sub", "three", "Text", "Hint", "CODE", "Sources", "Tidal", "Note", "fact · fact"]
    assert [html.index(f">{word}") if word != "Hint" else html.index(word) for word in order] == sorted(
        html.index(f">{word}") if word != "Hint" else html.index(word) for word in order
    )
    assert html.startswith('<div class="vane mathjax_ignore tex2jax_ignore"')
    assert '<div role="heading" aria-level="3"' in html
    assert '<div role="heading" aria-level="5"' in html
    assert '<ol start="3"' in html
    assert '<div role="group" aria-label="Sources"' in html
    assert '<li value="4"' in html
    assert not re.search("<h[1-6]|<img|<style|<script| id=| data-", html)


@pytest.mark.parametrize("dollars", ["$x$", "$$x$$", "\\\\(x\\\\)", "\\\\begin{x}", "&dollar;x&dollar;"])
def test_tex_is_split_in_text_and_stays_in_code(dollars: str) -> None:
    """A dollar sign or backslash stands in a span of its own, where no TeX is looked for across tags."""
    html = Card(text=f"{dollars} `{dollars}`", error="$e$").html()
    outside = re.sub("<code>.*?</code>", "", html)
    assert set(re.findall(r".?.?.?.?.?.?[$\\].?.?.?.?.?.?.?", outside)) <= {"<span>$</span>", "<span>\\</span>"}
    assert StrictHtml(html).faults == []


def test_an_error_card_says_what_why_and_what_next() -> None:
    """Without an answer the error is the card."""
    card = Card(error="Nothing answers.", cause="Vane is down.", hint="Start it.", code="VANE_SERVICE_UNAVAILABLE")
    told = ["Nothing answers.", "Likely cause: Vane is down.", "Next step: Start it.", "VANE_SERVICE_UNAVAILABLE"]
    assert lines(show(card)) == told
    assert card.plain().split("\n") == told


def test_an_answer_comes_before_its_error() -> None:
    """With text, an error without a banner becomes the banner, and cause and next step follow the answer."""
    card = Card(text="Half an", error="Stopped.", cause="Slow.", code="EXECUTION_TIMEOUT")
    assert lines(show(card)) == ["Stopped.", "Half an", "Likely cause: Slow.", "EXECUTION_TIMEOUT"]
    assert card.plain() == "Stopped.\n\nHalf an\n\nLikely cause: Slow.\nEXECUTION_TIMEOUT"
    assert Card(text=" \n", error="Stopped.").html() == Card(error="Stopped.").html()
    both = card._replace(banner="Thin line.")
    assert lines(show(both))[:3] == ["Thin line.", "Half an", "Stopped."]


def test_an_empty_card_is_empty() -> None:
    """No labels around nothing."""
    assert lines(show(Card())) == []
    assert Card().plain() == Card().terminal() == ""


def test_the_bundle_has_two_forms_and_metadata() -> None:
    """HTML and plain text, and the question as it was sent, cleaned."""
    card = Card(query="what \x1b[31m is\nit", text="Text", sources=(ONE,), code="CODE")
    data, metadata = card.mimebundle()
    assert data == {"text/html": card.html(), "text/plain": card.plain()}
    assert metadata == {"vane": {"query": "what \ufffd[31m is it", "code": "CODE", "sources": 1}}


def test_threads_may_render_at_once() -> None:
    """The parser is shared; equal cards come out equal."""
    card = Card(text="- a **b** [1]\n\n|c|\n|-|\n|d|\n" * 20, cited=CITED)
    expected, found = card.html(), list[str]()
    threads = [threading.Thread(target=lambda: found.append(card.html())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


def test_the_parser_is_loaded_at_first_use() -> None:
    """Whoever needs the marks alone does not wait for markdown-it."""
    code = "import sys, vane_magic.display as d; [*d.find_marks('[1]')]; print('markdown_it' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Live ---


def test_live_text_is_a_status_and_the_end_of_the_text() -> None:
    """Markdown stays as it is; only the last 4,000 characters are shown, from the beginning of a word."""
    html, plain = live_text("**bold** [1]\n- item", "Writing, 12 s")
    assert lines(StrictHtml(html)) == ["Writing, 12 s", "**bold** [1]", "- item"]
    assert plain == "Writing, 12 s\n\n**bold** [1]\n- item"
    html, plain = live_text("first " + "word " * 2000 + "last", "s")
    assert plain.endswith("word last")
    assert plain.startswith("s\n\n… word word ")
    assert 3900 < len(plain) < 4100
    assert len(html) < 5000


def test_live_text_without_text_is_the_status_alone() -> None:
    """Before the first word there is nothing to show but the status."""
    html, plain = live_text("", "Searching")
    assert lines(StrictHtml(html)) == [plain] == ["Searching"]


# Bounds ---


def stored_size(data: dict[str, str], metadata: dict[str, dict[str, object]]) -> int:
    """Bytes that a notebook file grows by."""
    cell = nbformat.v4.new_code_cell("%vane q")
    empty = len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])).encode())
    cell.outputs = [nbformat.v4.new_output("display_data", data=data, metadata=metadata)]
    return len(nbformat.writes(nbformat.v4.new_notebook(cells=[cell])).encode()) - empty


SWELLING = {
    "words": "lorem ipsum dolor sit amet ",
    "paragraphs": "lorem ipsum\n\n",
    "marks": "[1]",
    "emphasis": "*a* ",
    "open emphasis": "**a ",
    "code": "`a` ",
    "ampersands": "&",
    "quotes": '"',
    "dollars": "$",
    "backslashes": "\\\\",
    "tables": "|a|b|\n|-|-|\n|1|2|\n\n",
    "pipes": "|",
    "quotations": ">",
    "deep quotations": "> > > > > > > > a\n\n",
    "lists": "- - - - a\n",
    "headings": "# a\n",
    "lines of code": "```\na\n\n\n\n\n\n```\n",
    "links": "[a](https://a.example/b) ",
    "tabs": "\t",
    "line feeds": "\n",
    "no blanks": "x",
    "three bytes": "日本語",
    "four bytes": "🙂 ",
    "surrogates": "\ud800",
    "rules": "---\n\n",
}


@pytest.mark.parametrize("unit", SWELLING.values(), ids=SWELLING)
def test_the_stored_output_stays_under_100_kb(unit: str) -> None:
    """200 kB of anything with 300 sources and overlong fields: both forms fit together, and say what is missing."""
    sources = tuple(CardSource(n, f"Title {n} " * 30, f"https://a.example/{n}", unit * 400) for n in range(1, 301))
    filler = unit * (9_000 // len(unit))
    card = Card(
        query=filler,
        text=unit * (200_000 // len(unit)),
        sources=sources,
        cited={source.number: source for source in sources},
        banner=filler,
        error=filler,
        cause=filler,
        hint=filler,
        code=filler,
        notes=(filler,) * 50,
        footer=(filler,) * 50,
    )
    data, metadata = card.mimebundle()
    assert stored_size(data, metadata) < 100_000
    page, plain = StrictHtml(data["text/html"]), " ".join(data["text/plain"].split())
    assert page.faults == []
    for form in (" ".join(page.text.split()), plain):
        assert re.search(
            r"The answer is cut: [\d,]+ of its [\d,]+ characters are shown; \.answer holds all of it\.", form
        )
        assert re.search(r"\d+ of 300 sources are shown; \.sources holds all of them\.", form)
    assert set(page.words) <= set(re.findall(r"\w+", plain))


def test_an_answer_of_30_kb_is_whole_and_a_longer_one_ends_in_an_ellipsis() -> None:
    """Ordinary text is cut only above 30 kB, at a word."""
    sources = tuple(ONE._replace(number=n) for n in range(1, 9))
    paragraph = "The turbine turns with the tide and feeds the grid [1], as a report says; " * 6 + "so it is.\n\n"
    fits, long = paragraph * (29_000 // len(paragraph)), paragraph * 100
    whole, cut = Card(text=fits, sources=sources, cited=CITED), Card(text=long, sources=sources, cited=CITED)
    assert "The answer is cut" not in whole.plain()
    assert whole.plain().count("so it is.") == fits.count("so it is.")
    assert " …\n" in cut.plain()
    assert " …</p>" in cut.html()
    assert stored_size(*cut.mimebundle()) < 100_000
    assert "30,000 of its 40,000 characters are shown" in Card(text="x" * 40_000).plain()


def test_a_terminal_prints_all() -> None:
    """Nothing is stored there, so nothing is left out: not of the answer, the sources, the notes or the error."""
    sources = tuple(ONE._replace(number=n, title=f"Title{n}") for n in range(1, 301))
    card = Card(
        text="".join(f"word{n} " for n in range(20_000)),
        sources=sources,
        error="e" * 5_000,
        notes=tuple(f"note{n}" for n in range(40)),
        footer=tuple(f"fact{n}" for n in range(40)),
    )
    words = set(re.findall(r"\w+", card.terminal()))
    assert words >= {f"word{n}" for n in range(20_000)}
    assert words >= {f"Title{n}" for n in range(1, 301)} | {f"note{n}" for n in range(40)} | {
        f"fact{n}" for n in range(40)
    }
    assert "e" * 5_000 in words


def test_a_terminal_prints_a_huge_answer_as_it_stands() -> None:
    """Beyond 200,000 characters Markdown is not laid out, only cleaned."""
    text = "**bold** \x1b[31m\n" * 20_000
    assert Card(text=text).terminal() == text.replace("\x1b", "\ufffd")


def test_a_table_in_a_list_has_each_cell_once() -> None:
    """Its head stands behind the item's marker; what a row has beyond the head is kept."""
    text = Card(text="- | a | b |\n  |---|---|\n  | 1 | 2 | 3 |").plain()
    assert re.findall(r"\w", text) == ["a", "b", "1", "2", "3"]
