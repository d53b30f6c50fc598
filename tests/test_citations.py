"""Which sources come back, what each [n] means, and what is thinking."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vane_magic.core.citations import marks_outside_code, preview, select, split_thinking, strip_marks
from vane_magic.core.vane_api import RawSource


def sources(count: int) -> list[RawSource]:
    return [RawSource(f"Title {n}", f"https://s{n}.example/", f"Text {n}.") for n in range(1, count + 1)]


def numbers(text: str) -> list[int]:
    return [number for mark in marks_outside_code(text) for number in mark.numbers]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so [1] and [12].", [1, 12]),
        ("so [1, 2] and [3,4].", [1, 2, 3, 4]),
        ("so [1][2].", [1, 2]),
        ("so 【2】.", [2]),
        ("so [0] [999] [-1] [1-3] [^1] [a] [1a] [].", [0, 999]),
        ("`a[1]` and ``b ` [2]`` and [3]", [3]),
        ("```\nx[1]\n```\n[2]", [2]),
        ("~~~ python\nx[1]\n~~~\n[2]", [2]),
        ("````\n```\nx[1]\n````\n[2]", [2]),
        ("```\nx[1] without an end", []),
        ("an unpaired ` tick [1]", [1]),
        ("a ` tick\n\nand another ` [1]", [1]),
        ("a ` tick [1]\n```\nand `x[2]`\n```\n[3]", [1, 3]),
        (r"\`a [1]\`", [1]),
        (r"a \\`code [1]` [2]", [2]),
        ("* ```py\n  x[1]\n  ```\n\nThe answer is [1], see [2].", [1, 2]),
        ("1. a\n\n    ```py\n    x[0] = y[1]\n    ```\n\n    done [2]", [2]),
        ("> ```\n> x[1]\n> ```\n> so [2]", [2]),
        ("[1](https://evil.example) and [text [2]](x) [3]", [2, 3]),
        ("[a](https://en.example/x_(y)) [1]", [1]),
        ("<https://x.example/[1]> [2]", [2]),
        ("![1](https://pixel.example/)", []),
    ],
)
def test_marks_count_outside_code_and_links(text: str, found: list[int]) -> None:
    """Every form a model uses; indexes in code are no citations."""
    assert numbers(text) == found


def test_a_number_means_the_nth_source_that_vane_sent() -> None:
    """All sources fit: all are returned, by number."""
    chosen = select(sources(3), "b [3], a [1], and [3] again", 8)
    assert [s.source_id for s in chosen.sources] == ["1", "2", "3"]
    assert [(n, s.url) for n, s in chosen.cited] == [(1, "https://s1.example/"), (3, "https://s3.example/")]
    assert chosen.dangling == ()


def test_cited_sources_come_first_when_the_list_is_cut() -> None:
    """Then the rest by number; the list keeps its order, and the cut ones keep their meaning."""
    assert [s.source_id for s in select(sources(9), "[8] [5]", 3).sources] == ["1", "5", "8"]
    chosen = select(sources(9), "[8] [5] [7]", 2)
    assert [s.source_id for s in chosen.sources] == ["5", "8"]
    assert [n for n, _ in chosen.cited] == [5, 7, 8]


def test_cited_sources_that_the_limit_cuts_are_told() -> None:
    """Else a reader looks for [5] in a list that ends before."""
    assert select(sources(5), "So [1] [4] [5].", 1).notes == (
        "Sources 4, 5 are cited, and left out of the list by max_sources.",
    )


def test_numbers_without_a_source_dangle() -> None:
    """[0] and numbers past the end; the answer itself is never changed."""
    assert select(sources(2), "[0] [1] [3] [999]", 8).dangling == (0, 3, 999)
    assert select([], "[1][2]", 8).dangling == (1, 2)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://a.example/x", "https://a.example/x"),
        (" HTTP://a.example ", "HTTP://a.example"),
        ("javascript:alert(1)", ""),
        ("data:text/html,x", ""),
        ("file:///etc/passwd", ""),
        ("//a.example", ""),
        ("https://a.example/\u202egpj.exe", ""),
        ("https://a b.example", ""),
        ("", ""),
    ],
)
def test_a_url_is_given_when_it_is_http_and_else_reported(url: str, kept: str) -> None:
    """Numbers stay; nothing is dropped in silence."""
    chosen = select([RawSource("T", url, "S")], "[1]", 8)
    assert chosen.sources[0].url == kept
    assert bool(chosen.notes) is not bool(kept)


def test_a_page_that_vane_could_not_read_is_named() -> None:
    """Vane sends its own error as a source."""
    chosen = select([RawSource("Error fetching https://a.example", "https://a.example", "Failed to fetch")], "", 8)
    assert "Source 1 could not be read by Vane." in chosen.notes


def test_a_preview_is_one_line_cut_at_a_word() -> None:
    """White space folded, control and bidi characters gone, repeated paragraphs given once."""
    assert preview("a \n\t b\x00\u202e c") == "a b c"
    assert preview("Same.\n\nSame.\n\nOther.") == "Same. Other."
    cut = preview("word " * 100)
    assert len(cut) <= 300
    assert cut.endswith("word…")
    assert len(preview("x" * 1000)) == 300


@given(st.text())
def test_a_preview_is_short_and_printable(text: str) -> None:
    """Any text."""
    line = preview(text)
    assert len(line) <= 300
    assert "\n" not in line
    assert line == " ".join(line.split())
    line.encode()


SHAPES = [
    ("<think>I wonder [9].</think>\n\nThe answer [1].", "The answer [1].", "I wonder [9]."),
    ("I wonder.</think>The answer.", "The answer.", "I wonder."),
    ("<think>I wonder", "", "I wonder"),
    ("<thinking>a</thinking> b <THINK>c</THINK> d", "b  d", "a\nc"),
    ("The answer.<think>more", "The answer.", "more"),
    ("<think>use ``` here</think>The answer.", "The answer.", "use ``` here"),
    ("<think>hm</think> Use the `<think>` tag [1]. More.", "Use the `<think>` tag [1]. More.", "hm"),
    ("<think></think>The answer.", "The answer.", ""),
]


@pytest.mark.parametrize(("text", "answer", "thinking"), SHAPES)
def test_thinking_is_taken_out(text: str, answer: str, thinking: str) -> None:
    """With or without opener or end."""
    assert split_thinking(text) == (answer, thinking)


@pytest.mark.parametrize("text", ["The `<think>` tag [1].", "```\n<think>\n```\nwhat I think", "I think so. "])
def test_a_tag_in_code_is_no_thinking(text: str) -> None:
    """An answer about the tag keeps it, and no text loses its white space."""
    assert split_thinking(text) == (text, "")


@pytest.mark.parametrize(("text", "answer", "thinking"), SHAPES)
def test_a_cut_text_never_shows_more_than_the_whole_one(text: str, answer: str, thinking: str) -> None:
    """At every byte: thinking that began with its opener is never taken for the answer."""
    for end in range(2, len(text)):
        if text.lower().startswith("<think") and "</think" not in text[:end].lower():
            assert split_thinking(text[:end])[0] == ""


@given(st.text(st.sampled_from("<>/think`~\n ab[1]"), max_size=60))
def test_words_are_neither_lost_nor_made(text: str) -> None:
    """What is taken out of the answer is in the thinking."""
    answer, thinking = split_thinking(text)
    letters = sorted(char for char in answer + thinking if char in "ab1")
    assert letters == sorted(char for char in re.sub(r"(?i)</?think(ing)?>", "", text) if char in "ab1")


def test_marks_are_stripped_for_the_history() -> None:
    """They would mean other sources in the next answer."""
    assert strip_marks("One [1]. Two [1, 2] and `a[1]`.") == "One. Two and `a[1]`."


def test_hostile_answers_take_linear_time() -> None:
    """Megabytes of openers end at once, also with a far closer; a quadratic scan would hit the time limit."""
    for unit in (
        "[",
        "`",
        "- ",
        "> 1. ",
        "~",
        "``` \n",
        "[](",
        "<think>",
        "`a`<think>",
        "`<think>`",
        "a ` b ``` c ",
        "[1",
        "(((",
        "[x](a(b",
        "~~~\n`\n\n",
        "【",
        "</think>",
    ):
        many = unit * (500_000 // len(unit))
        for text in (many + many, many + "x" * 500_000 + unit, f"- {many}\n> {many}"):
            split_thinking(text)
            list(marks_outside_code(text))
