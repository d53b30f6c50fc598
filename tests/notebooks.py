"""Run the notebooks and store their outputs: python tests/notebooks.py [NAME...].

Each gets a kernel, a home and a Vane of its own: the engine over local documents.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import nbclient
import nbformat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbformat import NotebookNode

ROOT: Final = Path(__file__).parent.parent
NOTEBOOKS: Final = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """A notebook without outputs."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def execute(*notebooks: NotebookNode, place: str) -> None:
    """Run notebooks one after the other in one kernel, in an empty directory."""
    client = nbclient.NotebookClient(
        notebooks[0], timeout=90, kernel_name="python3", record_timing=False, store_widget_state=False,
        resources={"metadata": {"path": place}},
    )  # fmt: skip
    with client.setup_kernel():
        for notebook in notebooks:
            client.nb = notebook
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)


@contextmanager
def _home() -> Iterator[str]:
    """Let kernels find this checkout, and nothing of the user's."""
    with TemporaryDirectory() as place:
        os.environ |= {"HOME": place, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": place, "IPYTHONDIR": place}
        (Path(place) / "work").mkdir()
        yield f"{place}/work"


def main() -> None:
    wanted = [path for path in NOTEBOOKS if path.stem in sys.argv[1:] or len(sys.argv) == 1]
    with _home() as place:
        for path in wanted:
            notebook = read(path)
            execute(notebook, place=place)
            nbformat.write(notebook, path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
