"""Ask one real question of the local documents, in a real IPython: ``python -m vane_magic.demo``.

Everything but the documents' index lies in a temporary directory: profile, history and the lock are no one else's.
"""

from __future__ import annotations

import os
import sys
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from vane_magic.core.contract import ToolResult

CELLS: Final = (
    "%load_ext vane_magic",
    "r = %vane --local-docs What does functools.lru_cache do?",
    "print(r.to_json(indent=2))",
    "%unload_ext vane_magic",
)
NEXT: Final = """
Next, in IPython or Jupyter after %load_ext vane_magic:

    %vane --local-docs How do I read a JSON file?            without Vane: from this machine's documents
    %vane what's new in CPython 3.14?                        with Vane on http://127.0.0.1:3000
    %vane?                                                   all options
"""


def main() -> int:
    """Run the cells, as typed by hand.

    Returns
    -------
    int
        0, or 1 when a cell failed or the question was not answered.
    """
    with TemporaryDirectory(prefix="vane-magic-") as place:
        os.environ["IPYTHONDIR"] = place  # read when IPython starts
        shell = _shell()
        done = [_run(shell, source) for source in CELLS]
    result = cast("ToolResult | None", shell.user_ns.get("r"))
    print(NEXT)
    return 0 if all(done) and result and result.success else 1


def _shell() -> Any:  # noqa: ANN401 - IPython annotates little
    from IPython.terminal.interactiveshell import TerminalInteractiveShell  # noqa: PLC0415 - it reads IPYTHONDIR
    from traitlets.config import Config  # noqa: PLC0415 - likewise

    config = Config()
    config.HistoryManager.enabled = False  # which would write at exit, when the directory is gone
    return TerminalInteractiveShell.instance(config=config, simple_prompt=True)


def _run(shell: Any, source: str) -> bool:  # noqa: ANN401 - likewise
    print(f"\nIn [{shell.execution_count}]: {source}", flush=True)
    return cast("bool", shell.run_cell(source, store_history=True).success)


if __name__ == "__main__":
    sys.exit(main())
