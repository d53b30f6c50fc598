"""What was checked, line by line, as inert HTML and as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vane_magic.display import as_html, as_text


class Check(NamedTuple):
    """One line; every text but the state is untrusted.

    Parameters
    ----------
    state
        ``ok``, ``warning``, ``broken`` or any other word, which is shown in grey.
    name
        What was checked.
    text
        What was found.
    step
        What to do about it; may be empty.
    """

    state: str
    name: str
    text: str
    step: str = ""


def checklist(title: str, checks: Sequence[Check], width: int = 80) -> tuple[str, str]:
    """Show a title and the checks below it.

    The caller bounds the texts: nothing is cut here.

    Returns
    -------
    tuple of str
        The HTML form and the plain form, which has the same words, wrapped at `width` columns.
    """
    return as_html.checklist(title, checks), as_text.checklist(title, checks, width)
