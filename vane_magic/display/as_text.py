"""The plain form: wrapped, numbered, free of escape codes, with every word that the HTML form shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
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
    text = "\n\n".join(_blocks(tokens, width))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _blocks(tokens: Iterable[Token], width: int) -> Iterator[str]:
    """Write each block in its own `width` columns; whoever asked for it indents it and sets it apart from others."""
    tokens = iter(tokens)
    for token in tokens:
        inner = _inside(token, tokens) if token.nesting else []
        match token.type:
            case "inline":
                yield "\n".join(_wrap(line, width) for line in _words(token).split("\n"))
            case "heading_open":
                text = "".join(_blocks(inner, width))
                line = "-" * min(len(text.split("\n")[-1]), width)
                yield f"{text}\n{line}"
            case "blockquote_open":
                yield _indent("> ", "> ", "\n\n".join(_blocks(inner, width - 2)))
            case "bullet_list_open" | "ordered_list_open":
                yield "".join(_items(token, inner, width)).lstrip("\n")
            case "table_open":
                yield "\n".join(_wrap(row, width) for row in _rows(inner, width))
            case "fence" | "code_block":
                language = clean(token.info, newlines=False)
                code = _indent("    ", "    ", clean(token.content).rstrip("\n"))
                yield f"{language}:\n{code}" if language else code
            case "hr":
                yield "---"
            case _:  # a paragraph
                yield from _blocks(inner, width)


def _inside(opener: Token, following: Iterator[Token]) -> list[Token]:
    """Take what stands between a token that opens and the one that closes it, and drop that one."""
    return list(takewhile(lambda token: token.level > opener.level, following))


def _indent(first: str, rest: str, text: str) -> str:
    return first + text.replace("\n", f"\n{rest}")


def _items(opener: Token, tokens: Sequence[Token], width: int) -> Iterator[str]:
    """Write a list's items, each behind the line feeds that part it from the one before."""
    following = iter(tokens)
    for number, item in enumerate(following, int(opener.attrs.get("start", 1))):
        inner = _inside(item, following)
        paragraphs = (token for token in inner if token.type == "paragraph_open" and token.level == item.level + 1)
        gap = "\n" if all(token.hidden for token in paragraphs) else "\n\n"  # the library hides those of a tight list
        marker = f"{number}. " if opener.tag == "ol" else "- "
        yield gap + _indent(marker, " " * len(marker), gap.join(_blocks(inner, width - len(marker))))


def _rows(tokens: Sequence[Token], width: int) -> Iterator[str]:
    """Align a table's columns where they fit."""
    rows = list[list[str]]()
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_words(token))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 3 * (len(widths) - 1) <= width:
        rows = [[cell.ljust(size) for cell, size in zip(row, widths, strict=True)] for row in rows]
        rows.insert(1, ["-" * size for size in widths])
    return map(" | ".join, rows)


def _words(inline: Token) -> str:
    return clean("".join(map(_piece, inline.children or ())))


def _piece(token: Token) -> str:
    if address := token.meta.get("address"):  # behind a link
        return f" ({address})"
    return _PIECES.get(token.type, "{}").format(token.content)
