"""What a call of ``%vane`` shows: after a second how the run goes, and then in that place what came of it."""

from __future__ import annotations

import sys
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from IPython.core.displaypub import CapturingDisplayPublisher, DisplayPublisher

from vane_magic.display import Card, clean, live_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from IPython.core.interactiveshell import InteractiveShell

    from vane_magic.core.client import Progress

FIRST_S: Final = 1.0
REDRAW_S: Final = 0.1


class Live:
    """The display of one call.

    Parameters
    ----------
    shell
        Where the call was made.
    quiet
        Whether nothing is to be shown.
    """

    def __init__(self, shell: InteractiveShell, *, quiet: bool = False) -> None:
        self._place = None if quiet else _place(shell)
        self._next = time.monotonic() + FIRST_S
        self._drawn: tuple[str, str] | None = None

    def report(self, progress: Progress) -> None:
        """Show how a run goes; most calls only look at the clock, since text is joined when it is read."""
        if self._is_due():
            self._draw(str(progress), progress.text)

    def say(self, status: str) -> None:
        """Show a status alone."""
        if self._is_due():
            self._draw(status, "")

    def end(self, card: Card) -> None:
        """Show what came, in the place of what stood there."""
        if self._place:
            self._place.end(card)

    def stop(self) -> None:
        """Leave what stands there, marked."""
        if self._place and self._drawn:
            self._place.stop(f"stopped: {self._drawn[0]}", self._drawn[1])

    def _is_due(self) -> bool:
        return self._place is not None and self._place.live and time.monotonic() >= self._next

    def _draw(self, status: str, text: str) -> None:
        if self._place and (status, text) != self._drawn:
            self._drawn = status, text
            self._place.draw(status, text)
            self._next = time.monotonic() + REDRAW_S


class _Terminal:
    """A terminal, or the file that its output was sent to."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self._is_clean = True

    def draw(self, status: str, _text: str) -> None:
        """Write one line, which can be taken back."""
        self._is_clean = False
        self._write(clean(status, newlines=False)[: get_terminal_size().columns - 1])

    def end(self, card: Card) -> None:
        self.stop()
        print(card.terminal(min(get_terminal_size().columns, 100)))  # noqa: T201 - to the terminal

    def stop(self, _status: str = "", _text: str = "") -> None:
        if not self._is_clean:
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


class _Notebook:
    """An output area of a front end, or what captures in its place."""

    def __init__(self, publisher: DisplayPublisher, *, live: bool) -> None:
        self.live = live
        self._publisher: Any = publisher
        self._transient: dict[str, str] | None = None  # of what is drawn; front ends do not store it

    def draw(self, status: str, text: str) -> None:
        """Draw anew, in the place of what was drawn before."""
        html, plain = live_text(text, status)
        update = self._transient is not None
        self._transient = self._transient or {"display_id": f"vane-{uuid4().hex}"}
        self._publish({"text/html": html, "text/plain": plain}, {}, update=update)

    def end(self, card: Card) -> None:
        self._publish(*card.mimebundle(), update=self._transient is not None)

    def stop(self, status: str, text: str) -> None:
        self.draw(status, text)

    def _publish(self, data: Mapping[str, str], metadata: Mapping[str, object], *, update: bool) -> None:
        self._publisher.publish(data=data, metadata=metadata, transient=self._transient, update=update)


def _place(shell: InteractiveShell) -> _Terminal | _Notebook:
    publisher = shell.display_pub
    if type(publisher) is DisplayPublisher:  # which prints; subclasses send or keep
        return _Terminal()
    captured = isinstance(publisher, CapturingDisplayPublisher)
    return _Notebook(publisher, live=not captured and _is_watched(shell))


def _is_watched(shell: InteractiveShell) -> bool:
    """Whether a notebook's front end asks, with somebody before it.

    Front ends that name the cell can update a display; `jupyter console` cannot, and would never show the answer.
    Headless runs (nbclient, nbconvert, papermill) say that nobody can answer a prompt.
    """
    parent: Callable[[], Mapping[str, Any]] = getattr(shell, "get_parent", dict[str, Any])  # a kernel's shell has one
    request = parent()
    return "cellId" in request.get("metadata", {}) and request.get("content", {}).get("allow_stdin") is True
