"""CommonMark with tables and strikethrough, set up so that nothing is obeyed and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from vane_magic.display.text import clean, parse_link, shorten

if TYPE_CHECKING:  # see _parser
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

_DEPTH: Final = 12


def parse(text: str) -> list[Token]:
    """Parse Markdown.

    A link's tokens say where it leads: the first one's ``meta`` has ``link`` when it may be clicked, and ``host`` when
    the label does not say so itself; then the last one's content is the address. Those between have ``label`` in their
    ``meta``. An image's content is what stands for it.
    """
    tokens = _parser().parse(clean(text))
    for token in tokens:
        _resolve(token.children or [])
    return tokens


def inside(opener: Token, following: Iterator[Token]) -> list[Token]:
    """Take what stands between a token that opens and the one that closes it, and drop that one."""
    return list(takewhile(lambda token: token.level > opener.level, following))


@cache
def _parser() -> MarkdownIt:
    """Build the one parser; it parses once here, since its tables fill at first use and threads share it.

    The library is loaded here, since that takes a tenth of a second and core needs the marks alone.
    """
    from markdown_it import MarkdownIt  # noqa: PLC0415 - see above

    # The library may go deeper than we do by more than a list, which is two levels.
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEPTH + 3}).enable(["table", "strikethrough"])
    parser.disable("reference")  # a line "[1]: https://elsewhere" must not take over citation 1
    # Addresses are taken as they stand: one strict pattern of ours judges them later.
    parser.validateLink = lambda url: True  # noqa: ARG005 - the library's signature
    parser.normalizeLink = lambda url: url
    parser.normalizeLinkText = lambda link: link
    parser.block.ruler.before("table", "too_deep", _too_deep)
    parser.core.ruler.after("block", "surplus_cells", _keep_surplus_cells)
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


def _keep_surplus_cells(state: StateCore) -> None:
    """Add to a row's last cell what stands beyond the header's columns, where the library would drop it."""
    lines, tokens = state.src.split("\n"), iter(state.tokens)
    for token in tokens:
        if token.type == "tr_open" and token.map:
            row = inside(token, tokens)
            if row[0].type == "td_open":  # a head has as many cells as its table
                cells = [inner for inner in row if inner.type == "inline"]
                surplus = _split_row(lines[token.map[0]])[len(cells) :]
                cells[-1].content += "".join(f" |{cell}" for cell in surplus)


def _split_row(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", line.lstrip(" \t>").rstrip())
    return cells[not cells[0] : len(cells) - (not cells[-1])]


def _resolve(children: list[Token]) -> None:
    opener: Token | None = None
    label: list[Token] = []
    for token in children:
        if token.type == "image":
            token.content = f"[image: {_words(token.children or ())}]"
        elif token.type == "link_open":  # links never nest
            opener, label = token, []
        elif token.type == "link_close" and opener:
            _note_target(opener, token, label)
        label.append(token)


def _words(tokens: Iterable[Token]) -> str:
    return "".join(" " if token.type == "softbreak" else token.content for token in tokens)


def _note_target(opener: Token, closer: Token, inner: list[Token]) -> None:
    label, address = _words(inner), str(opener.attrGet("href") or "")
    for token in inner:
        token.meta["label"] = label
    opener.meta["link"] = link = parse_link(address)
    if opener.markup == "autolink" or address in ("", label):
        return
    shown = link.href if link else shorten(address, 300)
    closer.content = f" ({shown})"
    if not link or not _names(label, link.host):
        opener.meta["host"] = link.host if link else shown


def _names(label: str, host: str) -> bool:
    """Whether the label is itself an address of that host, with or without its scheme."""
    named = parse_link("https://" + label.lower().removeprefix("https://").removeprefix("http://"))
    return named is not None and named.host == host
