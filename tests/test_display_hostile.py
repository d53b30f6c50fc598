"""Whatever text comes, in whatever field and at whatever point of a stream, the HTML is ours and both forms agree."""

from __future__ import annotations

import json
import re

import pytest
from hostile_texts import HOSTILE
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strict_html import UNSEEN, StrictHtml

from vane_magic.display import Card, CardSource, live_text

SOURCE = CardSource(1, "Tidal report", "https://energy.example/r1", "About tidal turbines.")
EVERY_STYLE = Card(
    text="# a\n## b\n### c\n#### d\n\np *e* **s** ~~x~~ `c` [1] [1, 2] [l](https://a.example/) [m](ftp://b)\n\n"
    "> q\n\n- u\n\n1. o\n\n---\n\n```py\nf\n```\n\n|l|r|c|\n|:-|-:|:-:|\n|1|2|3|\n",
    sources=(SOURCE, SOURCE._replace(number=2, url="ftp://x")),
    cited={1: SOURCE, 2: SOURCE._replace(number=2, url="")},
    banner="b",
    error="e",
    cause="c",
    hint="h",
    code="C",
    notes=("n",),
    footer=("f", "g"),
)
OUR_STYLES = StrictHtml(EVERY_STYLE.html()).styles | StrictHtml(live_text("t", "s")[0]).styles

SIGNS = st.sampled_from("*_~`[]()<>!#|-+=:&;\\\n \t\"'$@/.{}0123456789abzA\u00e9\u202e\x00\x1b\ud800\u65e5")
PIECES = st.sampled_from(["**", "~~", "```", "![", "](", "[1]", "[1, 2]", "【1】", "https://a.example/", "javascript:"])
BREAKS = st.sampled_from(["\n\n", "\n> ", "\n- ", "\n1. ", "\n# ", "\n    ", "\n---\n", "|a|b|\n|-|-|\n", "  \n"])
TAGS = st.sampled_from(["&lt;", "&#x202e;", "&nbsp;", "<b>", "</b>", "<!--", "-->", "<?", "]]>", "&amp;", "&#10;"])
FRAGMENTS = SIGNS | PIECES | BREAKS | TAGS | st.text(max_size=4)
TEXTS = st.lists(FRAGMENTS, max_size=60).map("".join) | st.sampled_from(HOSTILE)


def check(html: str, plain: str) -> StrictHtml:
    """Both forms are inert, and every word of the HTML stands in the plain text."""
    page = StrictHtml(html)
    assert page.faults == []
    assert page.styles <= OUR_STYLES
    assert not UNSEEN.search(plain)
    assert set(page.words) <= set(re.findall(r"\w+", plain))
    return page


def everywhere(text: str) -> Card:
    source = CardSource(7, text, text, text)
    return Card(
        query=text,
        text=f"{text}\n\n[7] [1]",
        sources=(SOURCE, source, source._replace(title=""), source._replace(url=SOURCE.url)),
        cited={1: SOURCE, 7: source},
        banner=text,
        error=text,
        cause=text,
        hint=text,
        code=text,
        notes=(text, text),
        footer=("balanced", text),
    )


def test_there_are_enough_hostile_texts() -> None:
    """At least 200, no two the same."""
    assert len(set(HOSTILE)) == len(HOSTILE) >= 200


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_inert_in_every_field(text: str) -> None:
    """In answer, title, address, snippet, question, banner, error, notes and footer, all at once and each alone."""
    card = everywhere(text)
    bundle, metadata = card.mimebundle()
    assert bundle.keys() == {"text/html", "text/plain"}
    check(bundle["text/html"], bundle["text/plain"])
    check(*live_text(text, text))
    assert not UNSEEN.search(card.terminal())
    assert not UNSEEN.search(json.dumps(metadata, ensure_ascii=False))
    for field in ("text", "banner", "error", "cause", "hint", "code"):
        alone = Card(**{field: text})
        check(alone.html(), alone.plain())


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_every_prefix_of_a_stream_is_inert(text: str) -> None:
    """An answer that was cut anywhere is shown as safely as a whole one."""
    for end in range(min(len(text), 100)):
        page = StrictHtml(Card(text=text[:end], cited={1: SOURCE}).html())
        assert page.faults == []


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_any_text_is_inert_in_every_field(text: str) -> None:
    """The same for texts that nobody thought of."""
    card = everywhere(text)
    check(card.html(), card.plain())
    check(*live_text(text, text))


@settings(deadline=None)
@given(TEXTS, st.integers(-5, 200))
def test_plain_text_has_the_same_words_at_any_width(text: str, width: int) -> None:
    """Wrapping moves words to other lines and never breaks one; what fits is the same in a terminal."""
    card = everywhere(text)
    html = card.html()
    assume(" …" not in html)
    expected = StrictHtml(html).words
    assert set(expected) <= set(re.findall(r"\w+", card.plain(width)))
    assert set(expected) <= set(re.findall(r"\w+", card.terminal(width)))


WORDS = st.lists(st.text("abcdefgh", min_size=3, max_size=9), min_size=1, max_size=12)
LEAVES = st.sampled_from(
    ["{}", "# {}", "{}\n===", "```\n{}\n```", "    {}", "```{}\nx", "{}  \n{}", "***\n{}", "<i>{}</i>"]
)
LISTS = st.sampled_from(
    ["> {}", "> > - {}", "- {}", "- a\n\n  {}", "7. {}", "- a\n  > {}", "1. a\n   - b\n     {}", "- # {}"]
)
TABLES = st.sampled_from(
    ["|{}|\n|-|", "|a|\n|-|\n|{}|", "|a|\n|-|\n|b|{}|c|", "> |a|\n> |-|\n> |b|{}", "a|b\n-|-\nc|d|{}"]
)
INLINE = st.sampled_from(["*{}*", "**{}** [1]", "~~{}~~", "`{}`", "\\{}", "&copy; {}", "$ {} $", "\\({}\\)", "[1]: {}"])
LINKS = st.sampled_from(["![{}](x)", "[{}](/x)", "[{}](https://a.example)", "[![{}](x)](/y)", "![*{}* `{}`](x)"])
DEEP = st.sampled_from([">" * 30 + "{}", "- " * 30 + "{}", "-\n{}\n-", "*" * 99 + "{}" + "*" * 99, "1. " * 20 + "{}"])
BLOCKS = LEAVES | LISTS | TABLES | INLINE | LINKS | DEEP


@settings(deadline=None)
@given(st.lists(st.tuples(BLOCKS, WORDS), min_size=1, max_size=6), st.integers(20, 120))
def test_no_word_of_an_answer_is_lost(blocks: list[tuple[str, list[str]]], width: int) -> None:
    """Paragraph, heading, list, quotation, code, table, link, image, however deep: all words stand in both forms."""
    text = "\n\n".join(block.replace("{}", " ".join(words)) for block, words in blocks)
    html, plain = Card(text=text, cited={1: SOURCE}).html(), Card(text=text).plain(width)
    for word in (word for _, words in blocks for word in words):
        assert word in StrictHtml(html).text
        assert word in plain
