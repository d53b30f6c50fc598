"""A real IPython shell with the extension loaded, for tests that type cells into it."""

from __future__ import annotations

import io
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from vane_magic.core.contract import ToolResult
from vane_magic.core.settings import SETTINGS


@dataclass
class Shown:
    """What a cell wrote, and how it ended."""

    out: str
    err: str
    error: BaseException | None


@dataclass
class Notebook:
    """Cells go in as typed; what they show comes out as text, as in a terminal."""

    shell: InteractiveShell
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = set(self.shell.user_ns)

    def run(self, source: str, *, fails: bool = False) -> Shown:
        """Run one cell; its error is raised unless it is expected."""
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            done = self.shell.run_cell(source, store_history=True)
        error = done.error_before_exec or done.error_in_exec
        if error and not fails:
            raise error
        return Shown(out.getvalue(), err.getvalue(), error)

    def __getitem__(self, name: str) -> Any:
        return self.shell.user_ns[name]

    @property
    def last(self) -> ToolResult:
        return self["_vane"]

    @property
    def magics(self) -> Any:
        return self.shell.magics_manager.registry["VaneMagics"]

    def config(self, **values: object) -> None:
        for name, value in values.items():
            self.run(f"%config VaneMagics.{name} = {value!r}")

    def clear(self) -> None:
        """Forget what a test has bound and set."""
        self.shell.config.pop("VaneMagics", None)
        self.run("%reload_ext vane_magic")
        for name in SETTINGS:
            setattr(self.magics, name, None)
        for name in set(self.shell.user_ns) - self.names:
            del self.shell.user_ns[name]


@contextmanager
def open_notebook(config: Mapping[str, Mapping[str, object]] | None = None) -> Iterator[Notebook]:
    """A shell of its own, the one that `get_ipython()` gives meanwhile."""
    settings = Config(
        {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}, **(config or {})}
    )
    before = InteractiveShell._instance
    shell = InteractiveShell(config=settings, user_module=types.ModuleType("notebook"))
    _make_current(shell)
    try:
        shell.run_cell("%load_ext vane_magic").raise_error()
        yield Notebook(shell)
    finally:
        shell.run_cell("%unload_ext vane_magic")
        _make_current(before)


def _make_current(shell: InteractiveShell | None) -> None:
    """Let `get_ipython()`, `display` and `%%capture` mean this shell."""
    InteractiveShell.clear_instance()
    InteractiveShell._instance = shell


def point_at(notebook: Notebook, url: str, lock: Path) -> None:
    """Let the notebook ask this server, with a lock of its own."""
    notebook.config(url=url, lock_path=str(lock), wait=0)
