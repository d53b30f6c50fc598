"""CommonMark with tables and strikethrough, set up so that nothing is obeyed and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token

from vane_magic.display.text import clean, parse_link, shorten

_DEPTH: Final = 12
_MAX_NESTING: Final = 15  # over _DEPTH by more than a list, which is two levels
_PIPE: Final = re.compile(r"(?<!\\)\|")


def parse(text: str) -> list[Token]:
    """Parse Markdown.

    A link's tokens carry in ``meta`` where it leads: ``link`` at its start when it may be clicked; ``host`` there and
    ``address`` at its end when the label does not say so itself; ``label`` in between. An image's content is its
    alternative text.
    """
    text = clean(text)
    tokens = _parser().parse(text)
    _keep_surplus_cells(tokens, text.split("\n"))
    for token in tokens:
        _resolve(token.children or [])
    return tokens


@cache
def _parser() -> MarkdownIt:
    """Build the one parser; it parses once here, since its tables fill at first use and threads share it."""
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING})
    # Addresses are taken as they stand: one strict pattern of ours judges them later.
    parser.validateLink = lambda url: True  # noqa: ARG005 - the library's signature
    parser.normalizeLink = lambda url: url
    parser.normalizeLinkText = lambda link: link
    parser.enable(["table", "strikethrough"])
    parser.disable("reference")  # a line "[1]: https://elsewhere" must not take over citation 1
    parser.block.ruler.before("table", "too_deep", _too_deep)
    parser.parse("- a\n\n> `b`\n")
    return parser


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001 - a rule's signature
    """Show blocks nested deeper than anyone reads as they stand, where the library would drop them."""
    if silent or state.level < _DEPTH:
        return False
    line = start + 1
    while line < end and (state.isEmpty(line) or state.sCount[line] >= state.blkIndent):
        line += 1
    state.push("code_block", "code", 0).content = state.getLines(start, line, state.blkIndent, keepLastLF=False)
    state.line = line
    return True


def _keep_surplus_cells(tokens: list[Token], lines: list[str]) -> None:
    """Add to a row's last cell what stands beyond the header's columns, where the library would drop it."""
    row, cells = 0, list[Token]()
    for token in tokens:
        if token.type == "tr_open" and token.map:
            row, cells = token.map[0], []
        elif token.type == "inline":
            cells.append(token)
        elif token.type == "tr_close" and (surplus := _split_row(lines[row])[len(cells) :]):
            words = Token("text", "", 0, content=" |" + "|".join(surplus))
            cells[-1].children = [*(cells[-1].children or []), words]


def _split_row(line: str) -> list[str]:
    cells = _PIPE.split(line.lstrip(" \t>").rstrip())
    return cells[not cells[0] : len(cells) - (not cells[-1])]


def _resolve(children: list[Token]) -> None:
    opener, start = None, 0
    for index, token in enumerate(children):
        if token.type == "image":
            token.content = _words(token.children or ())
        elif token.type == "link_open":  # links never nest
            opener, start = token, index + 1
        elif token.type == "link_close" and opener:
            _note_target(opener, token, children[start:index])


def _words(tokens: Iterable[Token]) -> str:
    return "".join(" " if token.type == "softbreak" else token.content for token in tokens)


def _note_target(opener: Token, closer: Token, inner: list[Token]) -> None:
    label, address = _words(inner), str(opener.attrGet("href") or "")
    for token in inner:
        token.meta["label"] = label
    opener.meta["link"] = link = parse_link(address)
    if opener.markup == "autolink" or address in ("", label):
        return
    closer.meta["address"] = shown = link.href if link else shorten(address, 300)
    if not link or not _names(label, link.host):
        opener.meta["host"] = link.host if link else shown


def _names(label: str, host: str) -> bool:
    """Whether the label is itself an address of that host, with or without its scheme."""
    named = parse_link("https://" + label.lower().removeprefix("https://").removeprefix("http://"))
    return named is not None and named.host == host
