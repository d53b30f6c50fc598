"""A card as Markdown, to be kept or copied; the answer stays as its model wrote it, and so is untrusted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vane_magic.display.card import Card, CardSource


def page(card: Card) -> str:
    """The question, what failed, the answer and the numbered sources."""
    failure = " ".join(filter(None, (card.banner or card.error, card.cause, card.hint)))
    parts = [f"**{_escape(card.query)}**", f"> {_escape(failure)}" if failure else "", card.text, _list(card.sources)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _list(sources: Iterable[CardSource]) -> str:
    return "\n".join(f"{source.number}. {_link(source)}" for source in sources)


def _link(source: CardSource) -> str:
    title = _escape(source.title) or _escape(source.url) or "(no title)"
    is_safe = re.fullmatch(r"https?://[^\s<>()\[\]\\]{1,2000}", source.url)
    return f"[{title}](<{source.url}>)" if is_safe else title


def _escape(text: str) -> str:
    """Text as one line of inert Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>~$&])", r"\\\1", " ".join(text.split()))
