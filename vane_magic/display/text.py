"""Untrusted text made harmless: what the eye cannot see, what HTML or TeX would act on, where links lead."""

from __future__ import annotations

import html
import json
import re
from bisect import bisect_right
from typing import Final, NamedTuple
from urllib.parse import quote

ELLIPSIS: Final = " …"

# Controls, marks of direction, blanks without width, fillers, tags, variation selectors, lone surrogates.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_JOINED_SCRIPTS: Final = "\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17b3"
_PICTURES: Final = "\xa9\xae\u203c\u2049\u2122-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
# Persian and Indic words need their joiners, and emoji theirs: kept there, and nowhere else.
_NEEDED: Final = (
    f"(?<=[{_JOINED_SCRIPTS}])[\u200c\u200d](?=[{_JOINED_SCRIPTS}])"
    f"|(?<=[{_PICTURES}\ufe0f])\u200d(?=[{_PICTURES}])"
    f"|(?<=[{_PICTURES}#*0-9])[\ufe0e\ufe0f]"
)
# The last label of a host begins with a letter, so that 0x7f.1 and 2130706433 are no hosts, as browsers have it.
_URL: Final = re.compile(
    r"(?!.{1001})(https?)://"
    r"((?:[a-z0-9_-]{1,63}\.){0,30}[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
    r"|(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2}))"
    r"(:[1-9][0-9]{0,4})?"
    r"((?:[/?#][a-z0-9._~:/?#\[\]@!$&'()*+,;=%|-]*)?)",
    re.IGNORECASE | re.ASCII,
)


class Link(NamedTuple):
    """An address that may be clicked, and the host it leads to, as the reader sees it."""

    href: str
    host: str


def clean(text: str, *, newlines: bool = True) -> str:
    """Show what would hide: each control, bidirectional or invisible character becomes U+FFFD.

    Joiners and variation selectors stay where a script or an emoji needs them.

    Parameters
    ----------
    text
        Any text; lone surrogates are replaced as well.
    newlines
        Keep line feeds and tabs (a carriage return becomes a line feed). Otherwise every run of white space
        becomes one blank.
    """
    if not (text.isascii() and text.isprintable()):  # most words are, and this is quickly seen
        text = _UNSEEN.sub(_judge, text.replace("\r\n", "\n").replace("\r", "\n"))
    return text if newlines else " ".join(text.split())


def _judge(found: re.Match[str]) -> str:
    # Compiled, and kept by re, when a text first has such signs: it takes as long as all the other patterns.
    return found[0] if re.compile(_NEEDED).match(found.string, found.start()) else "\ufffd"


def inert(text: str) -> str:
    """HTML that shows `text`; dollar signs and backslashes stand alone, so that no TeX is found in it."""
    escaped = html.escape(clean(text), quote=False)
    return escaped.replace("$", "<span>$</span>").replace("\\", "<span>\\</span>")


def shorten(text: str, limit: int) -> str:
    """Clean `text` to one line of at most `limit` bytes of HTML, cut at a word and marked with an ellipsis."""
    text = clean(text, newlines=False)

    def size(length: int) -> int:
        return len(inert(text[:length]).encode())

    if len(text) <= limit and size(len(text)) <= limit:
        return text
    fits = bisect_right(range(limit), limit - len(ELLIPSIS.encode()), key=size) - 1
    return cut(text, fits)


def stored_size(text: str) -> int:
    """Bytes that `text` takes in a notebook file, where each line is a string of its own, indented."""
    return len(json.dumps(text, ensure_ascii=False).encode()) + 12 * text.count("\n")


def cut(text: str, length: int) -> str:
    """Cut `text` to `length` characters or at a blank a little before, and mark that with an ellipsis."""
    if length >= len(text):
        return text
    blank = max(text.rfind(" ", 0, length), text.rfind("\n", 0, length))
    return text[: blank if blank > max(0, length - 80) else length] + ELLIPSIS


def parse_link(url: str) -> Link | None:
    """Take an address apart when it is plain http or https to a plain host, of at most 1,000 characters.

    No user name, no relative address, no host that a browser would read as another. Characters beyond ASCII
    in path and query are percent-encoded.
    """
    found = _URL.fullmatch(quote(url, safe=bytes(range(128)), errors="replace"))
    if not found:
        return None
    host = (found[2] + (found[3] or "")).lower()
    return Link(f"{found[1].lower()}://{host}{found[4]}", host)


def describe(title: str, url: str) -> tuple[str, Link | None, str]:
    """Name a source: its title, else its host, else its address; its link; and where it leads, if not said yet."""
    title, link = clean(title, newlines=False), parse_link(url)
    where = link.host if link else shorten(url, 300)
    return title or where or "(untitled)", link, where if title else ""
