"""The plain form: wrapped, numbered, free of escape codes, with every word that the HTML form shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from vane_magic.display.parser import inside
from vane_magic.display.text import clean, describe

if TYPE_CHECKING:
    from markdown_it.token import Token

    from vane_magic.display.card import Card, CardSource
    from vane_magic.display.checklist import Check

_MIN_COLUMN: Final = 20  # what is left for words, however deep the list
_PIECES: Final = {"code_inline": "`{}`", "softbreak": " ", "hardbreak": "\n"}


def page(card: Card, answer: str, width: int) -> str:
    """Lay the card out as the HTML form does, in lines of `width` columns."""
    parts = (
        _wrap(card.banner, width),
        answer,
        _error(card, width),
        _sources(card.sources, width),
        "\n".join(_wrap(note, width, "- ") for note in card.notes),
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
    marker = f"[{entry.number}] "
    room = width - len(marker)
    lines = (_wrap(title, room), link.href if link else where, _wrap(entry.snippet, room))
    return _hang(marker, "\n".join(filter(None, lines)))


def checklist(title: str, checks: Sequence[Check], width: int) -> str:
    """Lay a checklist out in three columns, the next step below what was found."""
    states = max((len(check.state) for check in checks), default=0)
    names = max((len(check.name) for check in checks), default=0)
    lines = [_wrap(title, width), ""]
    for check in checks:
        lead = f"{check.state:<{states}}  {check.name:<{names}}  "
        room = width - len(lead)
        step = f"\n{_wrap(check.step, room, '> ')}" if check.step else ""
        lines.append(_hang(lead, _wrap(check.text, room) + step))
    return "\n".join(lines)


def _wrap(text: str, width: int, marker: str = "") -> str:
    """Wrap behind a marker, at blanks only, so that every word and address stays whole."""
    room = max(width - len(marker), _MIN_COLUMN)
    lines: list[str] = []
    for word in clean(text).split():
        if lines and len(lines[-1]) + len(word) < room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return _hang(marker, "\n".join(lines))


def _hang(marker: str, text: str) -> str:
    return marker + text.replace("\n", "\n" + " " * len(marker))


def answer(tokens: Sequence[Token], width: int) -> str:
    """Write parsed Markdown: paragraphs and lists wrapped, code as it stands, tables in columns."""
    text = "\n\n".join(_blocks(tokens, width))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _blocks(tokens: Iterable[Token], width: int) -> Iterator[str]:
    """Write each block in its own `width` columns; whoever asked for it indents it and sets it apart from others."""
    tokens = iter(tokens)
    for token in tokens:
        inner = inside(token, tokens) if token.nesting else []
        match token.type:
            case "inline":
                yield "\n".join(_wrap(line, width) for line in _words(token).split("\n"))
            case "heading_open":
                text = "".join(_blocks(inner, width))
                yield f"{text}\n" + "-" * len(text.split("\n")[-1])
            case "blockquote_open":
                yield "> " + "\n\n".join(_blocks(inner, width - 2)).replace("\n", "\n> ")
            case "bullet_list_open" | "ordered_list_open":
                yield "".join(_items(token, inner, width)).lstrip("\n")
            case "table_open":
                yield _table(inner, width)
            case "fence" | "code_block":
                language = clean(token.info, newlines=False)
                code = _hang("    ", clean(token.content).rstrip("\n"))
                yield f"{language}:\n{code}" if language else code
            case "hr":
                yield "---"
            case _:  # a paragraph
                yield from _blocks(inner, width)


def _items(opener: Token, tokens: Sequence[Token], width: int) -> Iterator[str]:
    """Write a list's items, each behind the line feeds that part it from the one before."""
    following = iter(tokens)
    for number, item in enumerate(following, int(opener.attrs.get("start", 1))):
        inner = inside(item, following)
        paragraphs = (token for token in inner if token.type == "paragraph_open" and token.level == item.level + 1)
        gap = "\n" if all(token.hidden for token in paragraphs) else "\n\n"  # the library hides those of a tight list
        marker = f"{number}. " if opener.tag == "ol" else "- "
        yield gap + _hang(marker, gap.join(_blocks(inner, width - len(marker))))


def _table(tokens: Sequence[Token], width: int) -> str:
    """Align the columns where they fit; otherwise wrap each row by itself."""
    rows = list[list[str]]()
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(clean(_words(token), newlines=False))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) + 3 * (len(widths) - 1) > width:
        return "\n".join(_wrap(" | ".join(row), width) for row in rows)
    rows.insert(1, ["-" * size for size in widths])
    return "\n".join(" | ".join(map(str.ljust, row, widths)) for row in rows)


def _words(inline: Token) -> str:
    return "".join(_PIECES.get(token.type, "{}").format(token.content) for token in inline.children or ())
