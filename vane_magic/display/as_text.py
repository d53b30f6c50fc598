"""The plain form: wrapped, numbered, free of escape codes, with every word that the HTML form shows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Final

from vane_magic.display.text import clean, describe

if TYPE_CHECKING:
    from markdown_it.token import Token

    from vane_magic.display.card import Card, CardSource
    from vane_magic.display.checklist import Check

_MIN_COLUMN: Final = 20  # what is left for words, however deep the list
_PIECES: Final = {"code_inline": "`{}`", "image": "[image: {}]", "softbreak": " ", "hardbreak": "\n"}
_fill: Final = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)


def page(card: Card, answer: str, width: int) -> str:
    """Lay the card out as the HTML form does, in lines of `width` columns."""
    parts = (
        _wrap(card.banner, width),
        answer,
        _error(card, width),
        _sources(card.sources, width),
        "\n".join(_wrap(note, width, "- ", "  ") for note in card.notes),
        _wrap(" · ".join(card.footer), width),
    )
    return "\n\n".join(part for part in parts if part)


def _error(card: Card, width: int) -> str:
    lines = [card.error, *(f"{name}: {text}" for name, text in card.steps), card.code]
    return "\n".join(_wrap(line, width) for line in lines if line)


def _sources(sources: Sequence[CardSource], width: int) -> str:
    return "\n".join(["Sources", *(source(entry, width) for entry in sources)]) if sources else ""


def source(entry: CardSource, width: int) -> str:
    """One entry of the list of sources."""
    title, link, where = describe(entry.title, entry.url)
    address = link.href if link else where
    lines = (
        _wrap(title, width, f"[{entry.number}] ", "    "),
        address and f"    {address}",
        _wrap(entry.snippet, width, "    ", "    "),
    )
    return "\n".join(filter(None, lines))


def checklist(title: str, checks: Sequence[Check], width: int) -> str:
    """Lay a checklist out in three columns, the next step below what was found."""
    states = max((len(check.state) for check in checks), default=0)
    names = max((len(check.name) for check in checks), default=0)
    lines = [_wrap(title, width), ""]
    for check in checks:
        lead = f"{check.state:<{states}}  {check.name:<{names}}  "
        lines.append(_wrap(check.text, width, lead, " " * len(lead)))
        lines += [_wrap(check.step, width, f"{' ' * len(lead)}> ", f"{' ' * len(lead)}  ")] if check.step else []
    return "\n".join(lines)


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> str:
    """Wrap at blanks only, so that every word and address stays whole."""
    return _fill(clean(text), max(width, len(rest) + _MIN_COLUMN), initial_indent=first, subsequent_indent=rest)


def answer(tokens: Sequence[Token], width: int) -> str:
    """Write parsed Markdown: paragraphs and lists wrapped, code as it stands, tables in columns."""
    writer = _Writer(width)
    writer.walk(tokens)
    return "\n".join(writer.lines)


class _Writer:
    """Collects lines, blank ones between blocks but none inside a tight list; each method takes the token it names."""

    def __init__(self, width: int) -> None:
        self.lines: list[str] = []
        self._width = width
        self._indents: list[str] = []  # what stands before the lines of each open item or quotation
        self._firsts: dict[int, str] = {}  # by depth: what stands there instead before the first line, until that comes
        self._markers: list[Iterator[str]] = []  # of the open lists' next items
        self._rows: list[list[str]] = []  # of the open table
        self._tight = False

    def walk(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            method: Callable[[Token], None] | None = getattr(self, f"_{token.type}", None)
            if method:
                method(token)

    def _paragraph_open(self, token: Token) -> None:
        self._tight = token.hidden

    def _heading_close(self, _: Token) -> None:
        self.lines.append(self._lead() + "-" * min(len(self.lines[-1]), self._width))

    def _inline(self, token: Token) -> None:
        text = clean("".join(map(_piece, token.children or ())))
        if self._rows:
            self._rows[-1].append(text)
        else:
            self._put(text)

    def _hr(self, _: Token) -> None:
        self._put("---")

    def _fence(self, token: Token) -> None:
        self._gap()
        if language := clean(token.info, newlines=False):
            self.lines.append(f"{self._lead()}{language}:")
        for line in clean(token.content).rstrip("\n").split("\n"):
            self.lines.append(f"{self._lead()}    {line}".rstrip())

    _code_block = _fence

    def _blockquote_open(self, _: Token) -> None:
        self._indent("> ", "> ")

    def _list_item_open(self, _: Token) -> None:
        marker = next(self._markers[-1])
        self._indent(marker, " " * len(marker))

    def _list_item_close(self, _: Token) -> None:
        if len(self._indents) - 1 in self._firsts:  # nothing stands in it
            self.lines.append(self._lead().rstrip())
        self._indents.pop()

    _blockquote_close = _list_item_close

    def _bullet_list_open(self, token: Token) -> None:
        if not self._markers:
            self._gap()
        numbers = count(int(token.attrs.get("start", 1)))
        self._markers.append((f"{number}. " for number in numbers) if token.tag == "ol" else repeat("- "))

    _ordered_list_open = _bullet_list_open

    def _bullet_list_close(self, _: Token) -> None:
        self._markers.pop()
        self._tight = False

    _ordered_list_close = _bullet_list_close

    def _tr_open(self, _: Token) -> None:
        self._rows.append([])

    def _table_close(self, _: Token) -> None:
        """Align the columns when they fit; otherwise wrap each row by itself."""
        rows, self._rows = self._rows, []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        room = self._width - sum(map(len, self._indents))
        if sum(widths) + 3 * (len(widths) - 1) <= room:
            rows = [[cell.ljust(size) for cell, size in zip(row, widths, strict=True)] for row in rows]
            rows.insert(1, ["-" * size for size in widths])
        self._tight = False
        self._put("\n".join(map(" | ".join, rows)))

    def _indent(self, first: str, rest: str) -> None:
        self._firsts[len(self._indents)] = first
        self._indents.append(rest)

    def _lead(self) -> str:
        return "".join(self._firsts.pop(depth, indent) for depth, indent in enumerate(self._indents))

    def _gap(self) -> None:
        if self.lines and self.lines[-1].strip("> "):
            begun = (indent for depth, indent in enumerate(self._indents) if depth not in self._firsts)
            self.lines.append("".join(begun).rstrip())

    def _put(self, text: str) -> None:
        if not self._tight:
            self._gap()
        for line in text.split("\n"):
            first = self._lead()
            self.lines += (_wrap(line, self._width, first, self._lead()) or first.rstrip()).split("\n")


def _piece(token: Token) -> str:
    if address := token.meta.get("address"):  # behind a link
        return f" ({address})"
    return _PIECES.get(token.type, "{}").format(token.content)
