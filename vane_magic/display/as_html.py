"""The HTML form: only tags, attributes and styles that are written here, around text that is escaped.

Styles stand inline, in one's own colour or in greys and accents that hold on light and dark, on a screen and on paper.
Headings are ``div`` elements with a role, since front ends build the notebook's outline from h1 to h6 in outputs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from vane_magic.display.marks import MARK
from vane_magic.display.text import Link, clean, describe, inert, shorten, stored_size

if TYPE_CHECKING:
    from markdown_it.token import Token

    from vane_magic.display.card import Card, CardSource
    from vane_magic.display.checklist import Check

_MAX_TAGS: Final = 48  # browsers stop at 512 open tags
_CITED: Final = re.compile("^.([0-9 ]+).$|[0-9]+")  # one number with its brackets, or each of several

_RULE: Final = "1px solid rgba(128,128,128,.35)"
_OUT: Final = {"target": "_blank", "rel": "noopener noreferrer nofollow"}
_LINK: Final = "color:inherit;text-decoration:underline 1px rgba(128,128,128,.7);text-underline-offset:.2em"
_MARK: Final = "font-size:.75em;line-height:0;opacity:.75"
_NUMBER_LINK: Final = "color:inherit;text-decoration:none"
_LIST: Final = "margin:.5em 0;padding-inline-start:1.7em"
_TABLE: Final = "border-collapse:collapse;margin:.8em 0;font-size:.95em"
_ROW: Final = f"border-bottom:{_RULE};vertical-align:top"
_CELL: Final = "padding:.3em .8em;text-align:"  # short, since a table has many
_PRE: Final = (
    f"margin:.7em 0;padding:.6em .8em;border:{_RULE};border-radius:4px;font-size:.9em;line-height:1.45;"
    "white-space:pre-wrap;overflow-wrap:anywhere"
)
_LANGUAGE: Final = "margin:.8em 0 -.5em;font-size:.8em;opacity:.7"
_QUOTE: Final = f"margin:.7em 0;padding:0 0 0 1em;border:0;border-inline-start:3px {_RULE[4:]}"
_STYLES: Final = {"p": "margin:.6em 0", "blockquote": _QUOTE, "ul": _LIST, "tr": _ROW}
_BARE: Final = ("li", "thead", "tbody", "strong", "em", "s")
_HEADING: Final = "margin:1.1em 0 .4em;font-weight:600;line-height:1.3;font-size:"
_SIDES: Final = {"text-align:right": "right", "text-align:center": "center"}
_HEADINGS: Final = {"h1": (3, "1.25em"), "h2": (4, "1.15em"), "h3": (5, "1.05em")}
_BREAK: Final = f'<hr style="border:0;border-top:{_RULE};margin:1.2em 0">'
_LEAVES: Final = {"softbreak": " ", "hardbreak": "<br>", "hr": _BREAK}

_CARD: Final = "max-width:46em;line-height:1.55;overflow-wrap:break-word"
_BANNER: Final = "margin:0 0 .8em;padding:.1em .8em;border-left:3px solid #d9902f;font-size:.9em"
_ERROR: Final = "margin:.8em 0;padding:.1em .9em;border-left:3px solid #d9534f"
_STEP: Final = "margin:.3em 0 0;font-size:.95em"
_FINE: Final = "font-size:.85em;opacity:.75"
_SECTION: Final = f"margin:1.2em 0 0;padding:.7em 0 0;border-top:{_RULE};font-size:.92em"
_LABEL: Final = f"{_FINE};font-weight:600"
_NOTES: Final = f"{_LIST};{_FINE}"
_TAIL: Final = "margin:.4em 0 0;white-space:pre-wrap"
_STATES: Final = {"ok": "#4a9a5f", "warning": "#d9902f", "broken": "#d9534f"}


def page(card: Card, answer: str) -> str:
    """Lay the card out: banner, answer or error, sources, notes, footer."""
    return _root(
        _line(_BANNER, card.banner, role="note"),
        _element("div", answer, dir="auto"),
        _error(card),
        _sources(card.sources),
        _element("ul", "".join(f"<li>{inert(note)}</li>" for note in card.notes), _NOTES, aria_label="Notes"),
        _line(_FINE, " · ".join(card.footer)),
    )


def live(status: str, tail: str) -> str:
    """Show a status line and unfinished text, as it stands."""
    return _root(_line(_FINE, status), _line(_TAIL, tail, dir="auto"))


def checklist(title: str, checks: Sequence[Check]) -> str:
    """Lay a checklist out as a table; the state is a word, and the colour beside it says the same again."""
    rows = "".join(
        f'<tr style="{_ROW}"><td style="{_CELL}start;border-inline-start:3px solid {_STATES.get(check.state, "#888")};'
        f'white-space:nowrap">{inert(check.state)}</td><th style="{_CELL}start;white-space:nowrap">{inert(check.name)}'
        f'</th><td style="{_CELL}start">{inert(check.text)}{_line(_STEP, check.step)}</td></tr>'
        for check in checks
    )
    return _root(_line(_HEADING + "1em", title), f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>')


def _root(*parts: str) -> str:
    # Both classes keep MathJax out: the first is version 3's, the second version 2's.
    return f'<div class="vane mathjax_ignore tex2jax_ignore" style="{_CARD}">{"".join(parts)}</div>'


def _tags(name: str, style: str = "", **attributes: object) -> tuple[str, str]:
    """An opening and a closing tag, the attributes' values escaped."""
    named = "".join(f' {key.replace("_", "-")}="{html.escape(clean(str(value)))}"' for key, value in attributes.items())
    styled = f' style="{style}"' if style else ""
    return f"<{name}{named}{styled}>", f"</{name}>"


def _element(name: str, content: str, style: str = "", **attributes: object) -> str:
    """An element around HTML; nothing around nothing."""
    before, after = _tags(name, style, **attributes)
    return content and f"{before}{content}{after}"


def _line(style: str, text: str, **attributes: str) -> str:
    return _element("div", inert(text), style, **attributes)


def _error(card: Card) -> str:
    what = _element("div", _element("strong", inert(card.error)))
    steps = (f"{_element('span', f'{name}:', _FINE)} {inert(text)}" for name, text in card.steps)
    told = f"{what}{''.join(_element('div', step, _STEP) for step in steps)}{_line(_FINE, card.code)}"
    return _element("div", told, _ERROR, role="group", aria_label="Error")


def _sources(sources: Sequence[CardSource]) -> str:
    listed = _element("ol", "".join(map(source, sources)), _LIST)
    return listed and _element("div", _line(_LABEL, "Sources") + listed, _SECTION, role="group", aria_label="Sources")


def source(entry: CardSource) -> str:
    """One entry of the list of sources."""
    title, link, where = describe(entry.title, entry.url)
    name = _element("strong", inert(title), dir="auto")
    name = _element("a", name, _LINK, href=link.href, **_OUT) if link else name
    host = where and f" {_element('span', inert(where), _FINE)}"
    snippet = _line(_FINE, entry.snippet, dir="auto")
    return _element("li", f"{name}{host}{snippet}", _STYLES["p"], value=entry.number)


_PLAIN_TAGS: Final = {name: _tags(name, _STYLES.get(name, "")) for name in (*_STYLES, *_BARE)}


def answer(tokens: Sequence[Token], cited: Mapping[int, CardSource], room: int = 0) -> str:
    """Write parsed Markdown, with its citation marks as links to the sources' addresses while `room` bytes last."""
    return "".join(_pieces(tokens, _Marks(cited, room)))


def _pieces(tokens: Sequence[Token], marks: _Marks) -> Iterator[str]:
    """Walk tokens; what is opened here is closed here, so that any order of tokens gives well-formed HTML."""
    closing: list[str] = []
    for token in tokens:
        if token.nesting > 0:
            before, after = _around(token) if len(closing) < _MAX_TAGS and not token.hidden else ("", "")
            closing.append(after)
            yield before
        elif token.nesting < 0:
            yield closing.pop()
        elif token.type == "inline":
            yield from _pieces(token.children or (), marks)
        elif token.type == "text" and "label" not in token.meta:
            yield MARK.sub(marks.link, inert(token.content))  # escaping touches no mark
        else:
            yield _leaf(token)


def _around(token: Token) -> tuple[str, str]:
    match token.tag:
        case "a":
            link: Link | None = token.meta.get("link")
            host: str = token.meta.get("host", "")
            before, after = _tags("a", _LINK, href=link.href, **_OUT) if link else ("", "")
            return before, after + (host and f" {_element('span', f'({inert(host)})', _FINE)}")
        case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
            level, size = _HEADINGS.get(token.tag, (6, "1em"))
            return _tags("div", _HEADING + size, role="heading", aria_level=level)
        case "ol":
            return _tags("ol", _LIST, start=int(token.attrs.get("start", 1)))
        case "table":
            return f'<div style="overflow-x:auto"><table style="{_TABLE}">', "</table></div>"
        case "th" | "td":
            return _tags(token.tag, _CELL + _SIDES.get(str(token.attrGet("style")), "start"))
        case tag:
            return _PLAIN_TAGS[tag]


def _leaf(token: Token) -> str:
    match token.type:
        case "text" | "image":
            return inert(token.content)
        case "code_inline":
            return _code(token.content)
        case "fence" | "code_block":
            return _line(_LANGUAGE, token.info.strip()) + _element("pre", _code(token.content), _PRE)
        case kind:
            return _LEAVES[kind]


def _code(text: str) -> str:
    """Front ends look for no TeX in code."""
    return f"<code>{html.escape(clean(text), quote=False)}</code>"


class _Marks:
    """Makes the citation marks of one answer links, each kind once, since an answer has the same ones over and over."""

    def __init__(self, cited: Mapping[int, CardSource], room: int) -> None:
        self._cited = cited
        self._room = room
        self._made: dict[str, tuple[str, int]] = {}  # and the bytes it takes

    def link(self, mark: re.Match[str]) -> str:
        words = mark[0]
        if words not in self._made:
            linked = _CITED.sub(self._cite, words)
            linked = f'<sup style="{_MARK}">{linked}</sup>' if linked != words else words
            self._made[words] = linked, stored_size(linked)
        linked, size = self._made[words]
        self._room -= size
        return linked if self._room > 0 else words

    def _cite(self, found: re.Match[str]) -> str:
        entry = self._cited.get(int(found[1] or found[0]))
        if entry is None:
            return found[0]
        title, link, where = describe(entry.title, entry.url)
        hover = shorten(f"{title} - {where}" if where else title, 100)
        if link:
            return _element("a", found[0], _NUMBER_LINK, title=hover, href=link.href, **_OUT)
        return _element("span", found[0], title=hover)
