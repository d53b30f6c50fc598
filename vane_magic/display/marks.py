"""Citation marks in plain text: ``[1]``, ``[1, 2]``, ``【3】``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

# Every repetition is bounded and none can begin inside another match, so the search is linear.
_ONE: Final = "(?:0|[1-9][0-9]{0,3})"  # models also cite [0], which points at no source
_NUMBERS: Final = rf" {{0,2}}{_ONE}(?: {{0,2}}, {{0,2}}{_ONE}){{0,31}} {{0,2}}"
MARK: Final = re.compile(rf"\[{_NUMBERS}\]|【{_NUMBERS}】")


class Mark(NamedTuple):
    """A citation mark: ``text[start:end]`` names the sources `numbers`, in the order written."""

    start: int
    end: int
    numbers: tuple[int, ...]


def find_marks(text: str) -> Iterator[Mark]:
    """Find the citation marks of `text` from left to right.

    A mark names one to 32 numbers between 0 and 9999. Markdown is not looked at: what stands in code or in a
    link is found as well.
    """
    for found in MARK.finditer(text):
        yield Mark(found.start(), found.end(), tuple(map(int, found[0][1:-1].split(","))))
