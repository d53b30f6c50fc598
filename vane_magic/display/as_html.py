"""The HTML form: only tags, attributes and styles that are written here, around text that is escaped.

Styles stand inline, in one's own colour or in greys and accents that hold on light and dark, on a screen and on paper.
Headings are ``div`` elements with a role, since front ends build the notebook's outline from h1 to h6 in outputs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from vane_magic.display.marks import find_marks
from vane_magic.display.text import Link, attribute, clean, describe, inert, shorten, stored_size

if TYPE_CHECKING:
    from markdown_it.token import Token

    from vane_magic.display.card import Card, CardSource
    from vane_magic.display.checklist import Check

_MAX_TAGS: Final = 48  # browsers stop at 512 open tags
_NUMBER: Final = re.compile("[0-9]+")

_RULE: Final = "1px solid rgba(128,128,128,.35)"
_LINK: Final = "color:inherit;text-decoration:underline 1px rgba(128,128,128,.7);text-underline-offset:.2em"
_MARK: Final = "font-size:.75em;line-height:0;opacity:.75"
_NUMBER_LINK: Final = "color:inherit;text-decoration:none"
_LIST: Final = "margin:.5em 0;padding-inline-start:1.7em"
_TABLE: Final = "border-collapse:collapse;table-layout:auto;margin:.8em 0;font-size:.95em"
_ROW: Final = f"border-bottom:{_RULE};vertical-align:top"
_CELL: Final = "padding:.3em .8em;text-align:"  # short, since a table has many
_PRE: Final = (
    f"margin:.7em 0;padding:.6em .8em;border:{_RULE};border-radius:4px;font-size:.9em;line-height:1.45;"
    "white-space:pre-wrap;overflow-wrap:anywhere"
)
_LANGUAGE: Final = "margin:.8em 0 -.5em;font-size:.8em;opacity:.7"
_QUOTE: Final = f"margin:.7em 0;padding:0 0 0 1em;border:0;border-inline-start:3px {_RULE[4:]}"
_TAGS: Final = {
    "paragraph": ('<p style="margin:.6em 0">', "</p>"),
    "blockquote": (f'<blockquote style="{_QUOTE}">', "</blockquote>"),
    "bullet_list": (f'<ul style="{_LIST}">', "</ul>"),
    "list_item": ("<li>", "</li>"),
    "table": (f'<div style="overflow-x:auto"><table style="{_TABLE}">', "</table></div>"),
    "thead": ("<thead>", "</thead>"),
    "tbody": ("<tbody>", "</tbody>"),
    "tr": (f'<tr style="{_ROW}">', "</tr>"),
    "strong": ("<strong>", "</strong>"),
    "em": ("<em>", "</em>"),
    "s": ("<s>", "</s>"),
}
_HEADINGS: Final = {"h1": (3, "1.25em"), "h2": (4, "1.15em"), "h3": (5, "1.05em")}
_LEAVES: Final = {
    "softbreak": " ",
    "hardbreak": "<br>",
    "hr": f'<hr style="border:0;border-top:{_RULE};margin:1.2em 0">',
}

_CARD: Final = "max-width:46em;line-height:1.55;overflow-wrap:break-word"
# Both classes keep MathJax out: the first is version 3's, the second version 2's.
_OPENING: Final = f'<div class="vane mathjax_ignore tex2jax_ignore" style="{_CARD}">'
_BANNER: Final = "margin:0 0 .8em;padding:.1em .8em;border-left:3px solid #d9902f;font-size:.9em"
_ERROR: Final = "margin:.8em 0;padding:.1em .9em;border-left:3px solid #d9534f"
_STEP: Final = "margin:.3em 0 0;font-size:.95em"
_FINE: Final = "font-size:.85em;opacity:.75"
_SECTION: Final = f"margin:1.2em 0 0;padding:.7em 0 0;border-top:{_RULE}"
_LABEL: Final = "font-size:.85em;font-weight:600;opacity:.75"
_SOURCES: Final = "margin:.2em 0 0;padding-inline-start:1.9em;font-size:.92em"
_SOURCE: Final = "margin:.5em 0;line-height:1.45"
_NOTES: Final = "margin:.8em 0 0;padding-inline-start:1.3em;font-size:.85em;opacity:.8"
_FOOTER: Final = "margin:.9em 0 0;font-size:.8em;opacity:.7"
_TITLE: Final = "font-weight:600"
_GRID: Final = "border-collapse:collapse;margin:.6em 0 0;font-size:.95em"
_STATES: Final = {"ok": "#4a9a5f", "warning": "#d9902f", "broken": "#d9534f"}


def page(card: Card, answer: str) -> str:
    """Lay the card out: banner, answer or error, sources, notes, footer."""
    parts = (
        _block(_BANNER, card.banner, role="note"),
        f'<div dir="auto">{answer}</div>' if answer else "",
        _error(card),
        _sources(card.sources),
        _notes(card.notes),
        _block(_FOOTER, " · ".join(card.footer)),
    )
    return f"{_OPENING}{''.join(parts)}</div>"


def live(status: str, tail: str) -> str:
    """Show a status line and unfinished text, as it stands."""
    text = f'<div dir="auto" style="margin:.4em 0 0;white-space:pre-wrap">{inert(tail)}</div>' if tail else ""
    return f"{_OPENING}{_block(_FINE, status)}{text}</div>"


def checklist(title: str, checks: Sequence[Check]) -> str:
    """Lay a checklist out as a table; the state is a word, and the colour beside it says the same again."""
    rows = "".join(
        f'<tr style="{_ROW}"><td style="{_CELL}start;border-inline-start:3px solid {_STATES.get(check.state, "#888")};'
        f'white-space:nowrap">{inert(check.state)}</td><th style="{_CELL}start;white-space:nowrap">{inert(check.name)}'
        f'</th><td style="{_CELL}start">{inert(check.text)}{_block(_STEP, check.step)}</td></tr>'
        for check in checks
    )
    return f'{_OPENING}{_block(_TITLE, title)}<table style="{_GRID}"><tbody>{rows}</tbody></table></div>'


def _block(style: str, text: str, role: str = "") -> str:
    named = f' role="{role}"' if role else ""
    return f'<div{named} style="{style}">{inert(text)}</div>' if text else ""


def _error(card: Card) -> str:
    steps = "".join(
        f'<div style="{_STEP}"><span style="{_FINE}">{name}:</span> {inert(text)}</div>' for name, text in card.steps
    )
    what = f"<div><strong>{inert(card.error)}</strong></div>" if card.error else ""
    told = f"{what}{steps}{_block(_FINE, card.code)}"
    return told and f'<div role="group" aria-label="Error" style="{_ERROR}">{told}</div>'


def _sources(sources: Sequence[CardSource]) -> str:
    items = "".join(map(source, sources))
    return items and (
        f'<div role="group" aria-label="Sources" style="{_SECTION}"><div style="{_LABEL}">Sources</div>'
        f'<ol style="{_SOURCES}">{items}</ol></div>'
    )


def source(entry: CardSource) -> str:
    """One entry of the list of sources."""
    title, link, where = describe(entry.title, entry.url)
    name = f'<strong dir="auto">{inert(title)}</strong>'
    if link:
        name = f"{_anchor(link, _LINK)}{name}</a>"
    where = where and f' <span style="{_FINE}">{inert(where)}</span>'
    snippet = entry.snippet and f'<div dir="auto" style="{_FINE}">{inert(entry.snippet)}</div>'
    return f'<li value="{entry.number}" style="{_SOURCE}">{name}{where}{snippet}</li>'


def _anchor(link: Link, style: str, title: str = "") -> str:
    hover = f' title="{attribute(title)}"' if title else ""
    return (
        f'<a href="{html.escape(link.href)}"{hover} target="_blank" rel="noopener noreferrer nofollow" style="{style}">'
    )


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{inert(note)}</li>" for note in notes)
    return items and f'<ul aria-label="Notes" style="{_NOTES}">{items}</ul>'


def answer(tokens: Sequence[Token], cited: Mapping[int, CardSource], room: int = 0) -> str:
    """Write parsed Markdown, with its citation marks as links to the sources' addresses while `room` bytes last."""
    writer = _Writer(cited, room)
    writer.walk(tokens)
    return "".join(writer.out)


class _Writer:
    """Walks tokens; what it opens it closes itself, so that any order of tokens gives well-formed HTML."""

    def __init__(self, cited: Mapping[int, CardSource], room: int) -> None:
        self.out: list[str] = []
        self._cited = cited
        self._room = room
        self._marks: dict[str, tuple[str, int]] = {}  # each mark made, and the bytes it takes
        self._closing: list[str] = []
        self._in_link = False

    def walk(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.nesting > 0:
                before, after = self._tags(token) if len(self._closing) < _MAX_TAGS else ("", "")
                self.out.append(before)
                self._closing.append(after)
            elif token.nesting < 0:
                self.out.append(self._closing.pop())
                self._end(token)
            else:
                self._leaf(token)

    def _tags(self, token: Token) -> tuple[str, str]:
        match token.type.removesuffix("_open"):
            case "paragraph" if token.hidden:
                return "", ""
            case "heading":
                level, size = _HEADINGS.get(token.tag, (6, "1em"))
                style = f"margin:1.1em 0 .4em;font-size:{size};font-weight:600;line-height:1.3"
                return f'<div role="heading" aria-level="{level}" style="{style}">', "</div>"
            case "ordered_list":
                return f'<ol start="{int(token.attrs.get("start", 1))}" style="{_LIST}">', "</ol>"
            case "th" | "td":
                align = {"text-align:right": "right", "text-align:center": "center"}
                side = align.get(str(token.attrGet("style")), "start")
                return f'<{token.tag} style="{_CELL}{side}">', f"</{token.tag}>"
            case "link":
                self._in_link = True
                link: Link | None = token.meta.get("link")
                return (_anchor(link, _LINK), "</a>") if link else ("", "")
            case kind:
                return _TAGS[kind]

    def _end(self, token: Token) -> None:
        if token.type == "link_close":
            self._in_link = False
            host: str = token.meta.get("host", "")
            self.out.append(host and f' <span style="{_FINE}">({inert(host)})</span>')

    def _leaf(self, token: Token) -> None:
        match token.type:
            case "inline":
                self.walk(token.children or ())
            case "text":
                self._prose(token.content)
            case "code_inline":
                self.out.append(f"<code>{_code(token.content)}</code>")
            case "fence" | "code_block":
                self._listing(token)
            case "image":
                self.out.append(inert(f"[image: {token.content}]"))
            case kind:
                self.out.append(_LEAVES[kind])

    def _listing(self, token: Token) -> None:
        language = _block(_LANGUAGE, token.info.strip())
        self.out.append(f'{language}<pre style="{_PRE}"><code>{_code(token.content)}</code></pre>')

    def _prose(self, text: str) -> None:
        position = 0
        for mark in () if self._in_link else find_marks(text):
            self.out += inert(text[position : mark.start]), self._mark(text[mark.start : mark.end], mark.numbers)
            position = mark.end
        self.out.append(inert(text[position:]))

    def _mark(self, words: str, numbers: Sequence[int]) -> str:
        if words not in self._marks:
            linked = self._link(words, numbers)
            self._marks[words] = linked, stored_size(linked)
        linked, size = self._marks[words]
        self._room -= size
        return linked if self._room > 0 else words

    def _link(self, words: str, numbers: Sequence[int]) -> str:
        """Make one number and its brackets one link; of several numbers, each its own."""
        if not any(number in self._cited for number in numbers):
            return words
        if len(numbers) == 1:
            linked = _cite(self._cited.get(numbers[0]), words)
        else:
            linked = _NUMBER.sub(lambda number: _cite(self._cited.get(int(number[0])), number[0]), words)
        return f'<sup style="{_MARK}">{linked}</sup>'


def _cite(entry: CardSource | None, words: str) -> str:
    if entry is None:
        return words
    title, link, where = describe(entry.title, entry.url)
    hover = shorten(f"{title} - {where}" if where else title, 100)
    if link:
        return f"{_anchor(link, _NUMBER_LINK, hover)}{words}</a>"
    return f'<span title="{attribute(hover)}">{words}</span>'


def _code(text: str) -> str:
    """Front ends look for no TeX in code."""
    return html.escape(clean(text), quote=False)
