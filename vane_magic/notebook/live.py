"""What a call of ``%vane`` shows: after a second how the run goes, and then in that place what came of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from shutil import get_terminal_size
from typing import Any, Final
from uuid import uuid4

from IPython.core.displaypub import CapturingDisplayPublisher, DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from vane_magic.core.client import Progress
from vane_magic.display import Card, clean, live_text

FIRST_S: Final = 1.0
REDRAW_S: Final = 0.1


class Live:
    """The display of one call; this one shows nothing.

    Parameters
    ----------
    watched
        Whether somebody sees how the run goes.
    """

    def __init__(self, *, watched: bool = False) -> None:
        self._watched = watched
        self._next = time.monotonic() + FIRST_S
        self._drawn: tuple[str, str] | None = None

    def report(self, progress: Progress | str) -> None:
        """Show how a run goes; most calls only look at the clock, since text is joined when it is read."""
        if not self._watched or time.monotonic() < self._next:
            return
        drawn = str(progress), "" if isinstance(progress, str) else progress.text
        if drawn != self._drawn:
            self._drawn = drawn  # before it is drawn: an interrupt may fall between, and `stop` marks what stands
            self.draw(*drawn)
            self._next = time.monotonic() + REDRAW_S

    def end(self, card: Card) -> None:
        """Show what came, in the place of what stood there."""

    def stop(self) -> None:
        """Leave what stands there, marked."""

    def draw(self, status: str, text: str) -> None:
        """Draw anew, in the place of what was drawn before."""


class _Terminal(Live):
    """A terminal, or the file that its output was sent to."""

    def end(self, card: Card) -> None:
        self.stop()
        print(card.terminal(min(get_terminal_size().columns, 100)))  # noqa: T201 - to the terminal

    def stop(self) -> None:
        if self._drawn:
            self.draw("", "")

    def draw(self, status: str, text: str) -> None:  # noqa: ARG002 - one line is all that can be taken back
        line = clean(status, newlines=False)[: get_terminal_size().columns - 1]
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)  # noqa: T201 - likewise


class _Notebook(Live):
    """An output area of a front end, or what captures in its place."""

    def __init__(self, publisher: DisplayPublisher, *, watched: bool) -> None:
        super().__init__(watched=watched)
        self._publisher: Any = publisher
        self._transient = {"display_id": f"vane-{uuid4().hex}"}  # front ends do not store it
        self._published = False

    def end(self, card: Card) -> None:
        self._publish(*card.mimebundle())

    def stop(self) -> None:
        if self._drawn:
            self.draw(f"stopped: {self._drawn[0]}", self._drawn[1])

    def draw(self, status: str, text: str) -> None:
        html, plain = live_text(text, status)
        self._publish({"text/html": html, "text/plain": plain}, {})

    def _publish(self, data: Mapping[str, str], metadata: Mapping[str, object]) -> None:
        update, self._published = self._published, True
        self._publisher.publish(data=data, metadata=metadata, transient=self._transient, update=update)


def open_live(shell: InteractiveShell, *, quiet: bool = False) -> Live:
    """Choose the display of a call that a shell makes."""
    if quiet:
        return Live()
    publisher = shell.display_pub
    if type(publisher) is DisplayPublisher:  # which prints; subclasses send or keep
        return _Terminal(watched=sys.stderr.isatty())
    return _Notebook(publisher, watched=not isinstance(publisher, CapturingDisplayPublisher) and _is_watched(shell))


def _is_watched(shell: InteractiveShell) -> bool:
    """Whether a notebook's front end asks, with somebody before it, and can update what it shows.

    Front ends that name the cell can; `jupyter console` and the widget `Output` cannot, and would never show the
    answer. Headless runs (nbclient, nbconvert, papermill) say that nobody can answer a prompt.
    """
    request: Mapping[str, Any] = getattr(shell, "get_parent", dict[str, Any])()  # a kernel's shell has one
    asked = "cellId" in request.get("metadata", {}) and request.get("content", {}).get("allow_stdin") is True
    # there is no public list of widgets that costs little
    widgets: Mapping[str, object] = getattr(sys.modules.get("ipywidgets.widgets.widget"), "_instances", {})
    return asked and request["header"]["msg_id"] not in {getattr(w, "msg_id", "") for w in [*widgets.values()]}
