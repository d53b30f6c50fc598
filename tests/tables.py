"""Tables of outcomes under docs/outcomes, which tests check and, when asked, write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

_PLACE: Final = Path(__file__).parent.parent / "docs" / "outcomes"


class Table:
    """A Markdown table; one of its columns is the key."""

    def __init__(self, name: str, columns: Sequence[str], key: int = 0) -> None:
        self._path = _PLACE / name
        self._columns = tuple(columns)
        self._key = key

    def keys(self) -> list[str]:
        return list(self._rows())

    def row(self, key: str) -> tuple[str, ...] | None:
        return self._rows().get(key)

    def put(self, row: Sequence[str]) -> None:
        """Write one row; the rows stay sorted."""
        rows = {**self._rows(), row[self._key]: tuple(row)}
        head = self._path.read_text(encoding="utf-8").split("|", 1)[0] if self._path.exists() else ""
        lines = [self._columns, ["---"] * len(self._columns), *sorted(rows.values())]
        self._path.parent.mkdir(exist_ok=True, parents=True)
        text = "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
        self._path.write_text(f"{head}{text}\n", encoding="utf-8")

    def _rows(self) -> dict[str, tuple[str, ...]]:
        if not self._path.exists():
            return {}
        lines = [line for line in self._path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        cells = [tuple(cell.strip().replace("&#124;", "|") for cell in line[1:-1].split("|")) for line in lines[2:]]
        return {row[self._key]: row for row in cells}
