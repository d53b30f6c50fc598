"""What is shown of an answer, and how much of it a notebook stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from vane_magic.display import as_html, as_markdown, as_text
from vane_magic.display.parser import parse
from vane_magic.display.text import ELLIPSIS, clean, cut, shorten, stored_size

# Bytes of JSON, as a notebook file has them; with the note that the answer is cut, and the metadata, all parts together
# stay under 100,000.
_STORED: Final = 96_000
_STORED_SOURCES: Final = 22_000
_ANSWER: Final = 30_000  # bytes of text, before markup
_PARSED: Final = 200_000  # characters; a longer answer is printed in its Markdown
_LIMITS: Final = {"banner": 600, "error": 1500, "cause": 1500, "hint": 1500, "code": 100}  # bytes of HTML
_LIVE: Final = 4000  # characters


class CardSource(NamedTuple):
    """One source as the card lists it; every text is untrusted.

    Parameters
    ----------
    number
        The number a citation mark names it by.
    title, url, snippet
        May be empty; only a plain http(s) address becomes a link.
    """

    number: int
    title: str
    url: str
    snippet: str


class Card(NamedTuple):
    """An answer with its sources, or an error, ready to be shown; every text is untrusted.

    Parameters
    ----------
    query
        The question as sent; kept in the bundle's metadata.
    text
        The answer in Markdown.
    sources
        The list to show, in this order.
    cited
        What a mark ``[n]`` in `text` may point at, also sources that are not in the list.
    banner
        One line above the answer.
    error, cause, hint, code
        What happened, the likely cause, the next step, and the error's code. With `text` and no `banner`,
        `error` takes the banner's place, since the answer comes first.
    notes
        Remarks below the sources.
    footer
        Short facts for the last line: mode, time, model, hash.
    """

    query: str = ""
    text: str = ""
    sources: tuple[CardSource, ...] = ()
    cited: Mapping[int, CardSource] = {}
    banner: str = ""
    error: str = ""
    cause: str = ""
    hint: str = ""
    code: str = ""
    notes: tuple[str, ...] = ()
    footer: tuple[str, ...] = ()

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The lines below an error, each with its name."""
        named = (("Likely cause", self.cause), ("Next step", self.hint))
        return [(name, text) for name, text in named if text]

    def html(self) -> str:
        """Inert HTML; with `plain` it stays under 100 kB and says what it leaves out."""
        return _fit(self, 80)[0]

    def plain(self, width: int = 80) -> str:
        """Plain text with every word of `html`, wrapped at `width` columns."""
        return _fit(self, width)[1]

    def terminal(self, width: int = 80) -> str:
        """Plain text of everything, nothing left out."""
        answer = as_text.answer(parse(self.text), width) if len(self.text) <= _PARSED else clean(self.text)
        return as_text.page(_answer_first(self), answer, width)

    def markdown(self) -> str:
        """Markdown of everything but the notes; not inert, since the answer stands in it as written."""
        return as_markdown.page(self)

    def mimebundle(self) -> tuple[dict[str, str], dict[str, dict[str, object]]]:
        """Both forms by MIME type, and metadata: the question, the error's code, the number of sources."""
        html, plain = _fit(self, 80)
        about = {"query": shorten(self.query, 1000), "code": shorten(self.code, 100), "sources": len(self.sources)}
        return {"text/html": html, "text/plain": plain}, {"vane": dict[str, object](about)}


def live_text(text: str, status: str) -> tuple[str, str]:
    """Show how far a question has come: a status line and the end of the text, unrendered and inert.

    Parameters
    ----------
    text
        The untrusted Markdown so far; its last 4,000 characters are shown, from the beginning of a word.
    status
        One line: the phase, the seconds, the sources.

    Returns
    -------
    tuple of str
        The HTML form and the plain form.
    """
    status, tail = shorten(status, 300), clean(text[-_LIVE:]).strip("\n")
    if len(text) > _LIVE:
        tail = "… " + tail[tail.find(" ", 0, 80) + 1 :]
    return as_html.live(status, tail), "\n\n".join(part for part in (status, tail) if part)


def _answer_first(card: Card) -> Card:
    return card._replace(banner=card.error, error="") if card.text.strip() and not card.banner else card


def _fit(card: Card, width: int) -> tuple[str, str]:
    """Make both forms small enough to be stored: fields and the list of sources first, then the answer."""
    card = _shorten_fields(_answer_first(card), width)
    room = _STORED - stored_size(as_html.page(card, "")) - stored_size(as_text.page(card, "", width))
    shown, html, plain = _fit_answer(card, room, width)
    if shown != card.text:
        count = f"{len(shown) - len(ELLIPSIS):,} of its {len(card.text):,} characters"
        card = card._replace(notes=(*card.notes, f"The answer is cut: {count} are shown; .answer holds all of it."))
    return as_html.page(card, html), as_text.page(card, plain, width)


def _shorten_fields(card: Card, width: int) -> Card:
    listed, taken = list[CardSource](), 0
    for entry in card.sources:
        short = entry._replace(title=shorten(entry.title, 400), snippet=shorten(entry.snippet, 900))
        taken += stored_size(as_html.source(short)) + stored_size(as_text.source(short, width))
        if taken > _STORED_SOURCES:
            break
        listed.append(short)
    fields = {name: shorten(getattr(card, name), limit) for name, limit in _LIMITS.items()}
    notes = [shorten(note, 600) for note in card.notes[:10]]
    if len(listed) < len(card.sources):
        notes.append(f"{len(listed)} of {len(card.sources)} sources are shown; .sources holds all of them.")
    footer = tuple(shorten(fact, 150) for fact in card.footer[:12])
    return card._replace(text=clean(card.text), sources=tuple(listed), notes=tuple(notes), footer=footer, **fields)


def _fit_answer(card: Card, room: int, width: int) -> tuple[str, str, str]:
    """Cut the text until its forms fit, since nobody knows beforehand how far markup swells; then link its marks."""
    limit = min(_ANSWER, room // 2)
    while True:
        length = len(card.text[:limit].encode()[:limit].decode(errors="ignore"))
        shown = cut(card.text, length)
        tokens = parse(shown)
        plain = as_text.answer(tokens, width)
        taken = stored_size(plain) + stored_size(as_html.answer(tokens, {}))
        if taken <= room or not length:
            return shown, as_html.answer(tokens, card.cited, room - taken), plain
        limit = int(len(shown.encode()) * 0.95 * room / taken)
