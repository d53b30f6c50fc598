"""The project's pages: their fenced blocks, and how each is run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
RUN: Final = frozenset({"python", "sh", "ipython"})
_FENCE: Final = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^(?P<fence>```+)(?P<kind>\w*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    kind: str
    text: str
    reason: str  # why the tests do not run it; empty when they do

    @property
    def label(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("fence")) + 1
        yield Block(name, line, found["kind"], found["text"], found["reason"] or "")


def put_command(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Make the command of this checkout, and this Python, be found first."""
    place.mkdir()
    starts = {"vane-research": f'"{sys.executable}" -m vane_magic.cli', "python": f'"{sys.executable}"'}
    for name, start in starts.items():
        script = place / name
        script.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        script.chmod(0o755)
    patch.setenv("PATH", str(place), prepend=os.pathsep)
    patch.setenv("PYTHONPATH", str(ROOT))
