"""The notebooks run from top to bottom, and are stored with outputs that can be read without running them."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

import notebooks

NAMES = {"quickstart", "analyst", "form", "scripting", "agents"}


def test_all_notebooks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one kernel, to save time, with the engine over local documents in Vane's place; a cell that fails ends it."""
    monkeypatch.setenv("PYTHONPATH", str(notebooks.ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    read = [notebooks.read(path) for path in notebooks.NOTEBOOKS]
    notebooks.execute(*read, place=str(tmp_path))
    assert (tmp_path / "answer-1.md").is_file()


def test_the_notebooks_are_those_of_the_contents() -> None:
    """Five."""
    assert {path.stem for path in notebooks.NOTEBOOKS} == NAMES


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_was_run_in_order_and_can_be_read(path: Path) -> None:
    """Valid, run from the top in a fresh kernel, with plain text for each output, no path of a machine, not large."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert all(output.output_type == "stream" or output.data["text/plain"] for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", text)
    assert len(text) < 200_000
