"""What stands in an answer's place while it is being written."""

from __future__ import annotations

from typing import Final

from vane_magic.display import as_html
from vane_magic.display.text import clean, shorten

_TAIL: Final = 4000


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
    status, tail = shorten(status, 300), clean(text[-_TAIL:]).strip("\n")
    if len(text) > _TAIL:
        tail = "… " + tail[tail.find(" ", 0, 80) + 1 :]
    return as_html.live(status, tail), "\n\n".join(part for part in (status, tail) if part)
