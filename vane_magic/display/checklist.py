"""What was checked, line by line, as inert HTML and as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    The caller bounds the texts: nothing is cut here. Checks that say the same share one line, which names them.

    Returns
    -------
    tuple of str
        The HTML form and the plain form, which has the same words, wrapped at `width` columns.
    """
    lines = list(_lines(checks))
    return as_html.checklist(title, lines), as_text.checklist(title, lines, width)


def _lines(checks: Sequence[Check]) -> Iterator[Check]:
    """The checks as they are shown; those that say the same stand at the place of the last of them."""
    for check in checks:
        names = [other.name for other in checks if other._replace(name=check.name) == check]
        if names == [check.name]:
            yield check
        elif check.name == names[-1]:
            yield check._replace(name="others", text=f"{', '.join(names)}. {check.text}")
