"""Which sources to return, what each ``[n]`` in the answer means, and what of the text is thinking."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from vane_magic.core.contract import Source
from vane_magic.core.vane_api import RawSource
from vane_magic.display import Mark, clean, find_marks

PREVIEW: Final = 300  # characters of title and snippet_preview
_READ: Final = 20_000  # characters of a source that a preview looks at
_URL: Final = re.compile(r"https?://[^\s\x00-\x20\x7f]{1,8000}", re.IGNORECASE)
# Fenced code, up to its end or the text's, also in lists and quotations; code in a paragraph; links.
# Every repetition is bounded, gives nothing back, or runs once.
_HIDDEN: Final = re.compile(
    r"^[ \t]*+(?:(?:>|[-*+]|[0-9]{1,9}[.)])[ \t]*+)*+"
    r"(?P<fence>(?P<one>[`~])(?P=one){2,}+)(?:(?<=~)|(?![^\n]*`))[^\n]*"
    r"(?:[\s\S]*?^[ \t>]*+(?P=fence)(?P=one)*+[ \t]*+$|[\s\S]*)"
    r"|(?<!`)(?<!(?<!\\)\\)(?P<ticks>`++)(?:(?!\n[ \t]*(?:\n|```|~~~))[\s\S]){1,2000}?(?<!`)(?P=ticks)(?!`)"
    r"|\[[^\[\]\n]{0,999}\]\((?:[^()\n]|\([^()\n]{0,200}\)){0,2000}\)|<https?://[^<>\s]{0,2000}>",
    re.MULTILINE,
)
_THINK: Final = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)


class Selection(NamedTuple):
    """The sources to return and the meaning of the citations; see `RunDetails` for the fields."""

    sources: tuple[Source, ...]
    cited: tuple[tuple[int, Source], ...]
    dangling: tuple[int, ...]
    notes: tuple[str, ...]


def select(sent: Sequence[RawSource], answer: str, max_sources: int) -> Selection:
    """Number the sources as sent, and choose which to return: cited ones first, then by number.

    Parameters
    ----------
    sent
        The sources in the server's order: ``[n]`` is the n-th.
    answer
        The answer without thinking.
    max_sources
        How many to return at most.
    """
    numbers = list(dict.fromkeys(n for mark in marks_outside_code(answer) for n in mark.numbers))
    valid = [n for n in numbers if 1 <= n <= len(sent)]
    chosen = sorted(list(dict.fromkeys([*valid, *range(1, len(sent) + 1)]))[:max_sources])
    made = {n: _source(n, sent[n - 1]) for n in {*valid, *chosen}}
    return Selection(
        sources=tuple(made[n] for n in chosen),
        cited=tuple((n, made[n]) for n in sorted(valid)),
        dangling=tuple(sorted(set(numbers) - set(valid))),
        notes=tuple(_notes(sent, chosen, cut=[n for n in sorted(valid) if n not in chosen])),
    )


def _source(number: int, raw: RawSource) -> Source:
    url = raw.url.strip() if _is_usable(raw.url) else ""
    return Source(source_id=str(number), title=preview(raw.title), url=url, snippet_preview=preview(raw.content))


def _is_usable(url: str) -> bool:
    text = url.strip()
    return bool(_URL.fullmatch(text)) and clean(text, newlines=False) == text


def _notes(sent: Sequence[RawSource], chosen: Sequence[int], cut: Sequence[int]) -> Iterator[str]:
    if cut:
        yield f"{_named(cut)} {'are' if len(cut) > 1 else 'is'} cited, and left out of the list by max_sources."
    if odd := [n for n in chosen if sent[n - 1].odd or not _is_usable(sent[n - 1].url)]:
        yield f"{_named(odd)} came without a usable title, address or text."
    if failed := [n for n in chosen if sent[n - 1].title.startswith("Error fetching")]:
        yield f"{_named(failed)} could not be read by Vane."


def _named(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")  # noqa: PLR2004 - a line
    return f"Source{'s' if len(numbers) > 1 else ''} {listed}"


def preview(text: str) -> str:
    """Text as one line of at most 300 characters, cut at a word, without control and bidi characters.

    Paragraphs that repeat are given once: Vane joins the snippets of all its search queries.
    """
    paragraphs = dict.fromkeys(text[:_READ].split("\n\n"))
    line = " ".join(clean(" ".join(paragraphs)).replace("\ufffd", " ").split())
    if len(line) <= PREVIEW:
        return line
    cut = line[: PREVIEW - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > PREVIEW // 2 else cut) + "…"


def marks_outside_code(text: str) -> Iterator[Mark]:
    """The citation marks of a Markdown text, without those in code and links."""
    return find_marks(_masked(text))


def _masked(text: str) -> str:
    """The text with code and links blotted out; positions stay."""
    # One character is found much faster than two.
    if not any(sign[0] in text and sign in text for sign in ("`", "~~~", "](", "<http")):
        return text
    return _HIDDEN.sub(lambda found: "\0" * len(found[0]), text)


def strip_marks(text: str) -> str:
    """The text without its citation marks; they would mean other sources in another answer."""
    pieces: list[str] = []
    end = 0
    for mark in marks_outside_code(text):
        pieces.append(text[end : mark.start].rstrip(" "))
        end = mark.end
    return "".join([*pieces, text[end:]])


def split_thinking(text: str) -> tuple[str, str]:
    """Take ``<think>`` blocks out of a text, with or without their opener or end.

    Returns
    -------
    answer, thinking : str
        Both without outer white space when anything was taken out.
    """
    if "<thinking>".startswith(start := text[:10].strip().lower()) and start[:2] == "<t" and len(text) <= 10:  # noqa: PLR2004
        return "", text  # cut in the middle of the opener
    if "<" not in text or "think" not in text.lower():
        return text, ""
    opening = re.match(r"\s*<think[\s\S]*?(?:</think(?:ing)?>|\Z)", text, re.IGNORECASE)  # no Markdown, and so no code
    start = opening.end() if opening else 0
    answer, thinking = list[str](), list[str]()
    end, inside = 0, False
    for tag in _THINK.finditer(text[:start] + _masked(text[start:])):
        closes = bool(tag[1])
        if closes and not inside and not thinking:
            thinking, answer = [*answer, text[end : tag.start()]], []  # the opener was left out
        else:
            (thinking if inside else answer).append(text[end : tag.start()])
        end, inside = tag.end(), not closes
    (thinking if inside else answer).append(text[end:])
    if end == 0:
        return text, ""
    return "".join(answer).strip(), "\n".join(part.strip() for part in thinking if part.strip())
