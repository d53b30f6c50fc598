"""Citation marks in plain text, and how untrusted text and addresses are cleaned."""

from __future__ import annotations

import re

import pytest
from hostile_texts import HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from strict_html import UNSEEN

from vane_magic.display import clean, find_marks
from vane_magic.display.text import cut, parse_link, shorten


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a [1] b", [("[1]", (1,))]),
        ("[1][2]", [("[1]", (1,)), ("[2]", (2,))]),
        ("[1, 2]", [("[1, 2]", (1, 2))]),
        ("[1,2,10]", [("[1,2,10]", (1, 2, 10))]),
        ("[ 3 ,  4 ]", [("[ 3 ,  4 ]", (3, 4))]),
        ("【2】【3, 4】", [("【2】", (2,)), ("【3, 4】", (3, 4))]),
        ("[[5]]", [("[5]", (5,))]),
        ("[0] [0, 2]", [("[0]", (0,)), ("[0, 2]", (0, 2))]),
        ("[9999]", [("[9999]", (9999,))]),
        ("[2, 2]", [("[2, 2]", (2, 2))]),
        ("[1, 2", []),
        ("[00] [01] [10000] [-1] [1.5] [x] [] [1,] [,1] [1 2] [1-3] [^1] [1】 【1]", []),
        ("[\u0661] [\u00b2] [\uff11]", []),
        ("[1\n]", []),
        ("[" + ", ".join(["7"] * 32) + "]", [("[" + ", ".join(["7"] * 32) + "]", (7,) * 32)]),
        ("[" + ", ".join(["7"] * 33) + "]", []),
    ],
)
def test_a_mark_is_a_bracket_around_numbers(text: str, expected: list[tuple[str, tuple[int, ...]]]) -> None:
    """One to 32 numbers from 0 to 9999 in ASCII digits, in square or lenticular brackets."""
    assert [(text[m.start : m.end], m.numbers) for m in find_marks(text)] == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(["[", "]", "【", "】", "1", "23", ",", " ", ", ", "a", "[4]", "\n"])).map("".join))
def test_marks_stand_in_order_and_name_what_they_hold(text: str) -> None:
    """Marks do not overlap, and their numbers are those written between their brackets."""
    end = 0
    for mark in find_marks(text):
        assert end <= mark.start < mark.end
        assert list(mark.numbers) == [int(n) for n in re.findall("[0-9]+", text[mark.start : mark.end])]
        end = mark.end


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc\r\nd\re", "a\tb\nc\nd\ne"),
        ("\x1b[31mred\x07", "\ufffd[31mred\ufffd"),
        ("invoice\u202egpj.exe", "invoice\ufffdgpj.exe"),
        ("pay\u200bpal \u2066x\u2069", "pay\ufffdpal \ufffdx\ufffd"),
        ("\ud800 \udfff", "\ufffd \ufffd"),
        ("\U000e0041\U000e007f", "\ufffd\ufffd"),
        ("a\u200db a\ufe0fb \ufe0f", "a\ufffdb a\ufffdb \ufffd"),
        ("\u26a0\ufe0f 1\ufe0f\u20e3 \U0001f469\u200d\U0001f4bb \u2764\ufe0f\u200d\U0001f525", None),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0915\u094d\u200d\u0937", None),
        ("\u26a0\ufe0f\ufe0f", "\u26a0\ufe0f\ufffd"),
        ("Bréhat 日本語 naïve “quoted” … 🙂", None),
    ],
)
def test_what_hides_is_shown_and_what_is_read_stays(text: str, expected: str | None) -> None:
    """Controls, direction marks and the invisible become U+FFFD; joiners stay in Persian, Hindi and emoji."""
    assert clean(text) == (text if expected is None else expected)


def test_one_line_folds_white_space() -> None:
    """Without line feeds, any run of white space is one blank."""
    assert clean(" A\n\n# head\ting \r\n", newlines=False) == "A # head ing"


@settings(deadline=None)
@given(st.text(st.characters(), max_size=60) | st.sampled_from(HOSTILE))
def test_cleaned_text_is_clean_for_good(text: str) -> None:
    """Nothing unseen is left, cleaning twice changes nothing, and the result can be stored as UTF-8."""
    for newlines in (True, False):
        once = clean(text, newlines=newlines)
        assert not UNSEEN.search(once)
        assert clean(once, newlines=newlines) == once
        once.encode()


@settings(deadline=None)
@given(st.text(max_size=200) | st.sampled_from(HOSTILE), st.integers(10, 150))
def test_shortened_text_fits_and_says_so(text: str, limit: int) -> None:
    """What fits stays whole; what is cut ends in an ellipsis and holds a beginning of the text."""
    short, whole = shorten(text, limit), clean(text, newlines=False)
    assert short == whole or (short.endswith(" …") and whole.startswith(short.removesuffix(" …")))
    assert len(short.encode()) <= limit


def test_a_cut_falls_between_words() -> None:
    """A broken last word is dropped, but not a whole text without blanks; what fits stays whole."""
    assert cut("one two three", 11) == "one two …"
    assert cut("x" * 100, 90) == "x" * 90 + " …"
    assert cut("one two", 7) == "one two"


@pytest.mark.parametrize(
    ("address", "href", "host"),
    [
        ("https://docs.example/a_(b)?x[]=1&y=%20#z", "https://docs.example/a_(b)?x[]=1&y=%20#z", "docs.example"),
        ("HTTP://Docs.Example:8080", "http://docs.example:8080", "docs.example:8080"),
        ("https://de.example/wiki/Zürich", "https://de.example/wiki/Z%C3%BCrich", "de.example"),
        ("http://127.0.0.1:3000/x", "http://127.0.0.1:3000/x", "127.0.0.1:3000"),
        ("http://localhost/", "http://localhost/", "localhost"),
        ("https://a.example/@b.example", "https://a.example/@b.example", "a.example"),
    ],
)
def test_a_plain_web_address_is_a_link(address: str, href: str, host: str) -> None:
    """Scheme and host in lower case, what is not ASCII percent-encoded, the rest as given."""
    assert parse_link(address) == (href, host)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "docs.example",
        "//docs.example/",
        "/path",
        "ftp://docs.example/",
        "javascript:alert(1)",
        "https://user@docs.example/",
        "https://docs.example:80@evil.example/",
        "https://docs.example\\@evil.example/",
        "https://docs.example/a b",
        "https://docs.example/\n",
        " https://docs.example/",
        'https://docs.example/"',
        "https://docs.example/<",
        "https://docs.example/`",
        "https://dócs.example/",
        "https://docs。example/",
        "https://docs.example./",
        "https://.example/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "https://docs.example:0/",
        "https://docs.example:123456/",
        "https://" + "a" * 64 + ".example/",
        "https://docs.example/" + "a" * 1000,
        "https://docs.example/" + "ü" * 500,
    ],
)
def test_any_other_address_is_none(address: str) -> None:
    """No relative address, user name, odd host, blank, quote or overlong text."""
    assert parse_link(address) is None
