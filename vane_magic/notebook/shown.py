"""The show-once rule: a result that its cell has shown is not echoed by that cell as well."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from vane_magic.core.contract import ToolResult

_TYPE: Final = ("vane_magic.core.contract", "ToolResult")  # by name, since its import is heavy


class _Cell(threading.local):
    """What the running cell has done with its results, by their ids; a subshell's cell has its own thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self, _info: object = None) -> None:
        self.shown = dict[str, list[object]]()  # with what a capturing publisher has kept of it
        self.hidden = set[str]()


class ShowOnce:
    """The rule for one shell; what each call shows is told to it."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell: Any = shell  # IPython annotates little
        self._cell = _Cell()

    def install(self) -> None:
        """Register with the shell."""
        self._shell.display_formatter.ipython_display_formatter.for_type_by_name(*_TYPE, self._echo)
        self._shell.events.register("pre_run_cell", self._cell.begin)

    def uninstall(self) -> None:
        """Take back what `install` registered."""
        self._shell.display_formatter.ipython_display_formatter.pop(".".join(_TYPE), None)
        self._shell.events.unregister("pre_run_cell", self._cell.begin)

    def was_shown(self, result: ToolResult) -> None:
        """The running cell has shown this result."""
        self._cell.shown[result.execution_id] = self._captured()[-1:]

    def was_hidden(self, result: ToolResult, *, whole_cell: bool) -> None:
        """The running cell was told to show nothing of this result; `whole_cell`: it has no other statement."""
        if whole_cell:
            self._cell.shown[result.execution_id] = []
        else:
            self._cell.hidden.add(result.execution_id)

    def _echo(self, result: ToolResult) -> None:
        """Stand in for IPython's display of a result; NotImplementedError is its sign to display as usual."""
        shown, key = self._cell.shown, result.execution_id
        named = any(value is result for name, value in self._shell.user_ns.items() if not name.startswith("_"))
        if key not in shown and (key not in self._cell.hidden or named):
            raise NotImplementedError
        if (kept := shown.get(key)) and kept[0] in (captured := self._captured()):
            captured.remove(kept[0])  # a capturing hook keeps something of each echo: let that be the one copy
            raise NotImplementedError
        if self._shell.displayhook.is_active:
            print(repr(result).partition("\n")[0])  # noqa: T201 - behind the Out[n]: of a terminal

    def _captured(self) -> list[object]:
        """What a capturing publisher has kept until now."""
        return getattr(self._shell.display_pub, "outputs", [])
