"""One SQLite FTS5 file over the passages of documents, rebuilt when a document changes."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from vane_magic.display import clean
from vane_magic.localdocs.documents import read, scan

Progress = Callable[[int, int], None]  # how many documents are read, and how many there are

# A document is found by its id as by a word, which no question has. Less merging with a large hash: 1.4 s instead of
# 2 for 20 MB.
_SCHEMA: Final = """
    PRAGMA journal_mode = OFF;
    BEGIN;
    CREATE TABLE manifest(fingerprint TEXT, documents INTEGER);
    CREATE VIRTUAL TABLE passage USING fts5(heading, text, pairs, id, path UNINDEXED, place UNINDEXED,
        tokenize = "porter unicode61 remove_diacritics 2");
    INSERT INTO passage(passage, rank) VALUES ('rank', 'bm25(3, 1, 1, 0)'), ('hashsize', 8388608);
"""
# Chinese, Japanese and Korean are written without spaces, or with endings glued on: they are indexed by pairs.
CJK: Final = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+")


def open_index(folders: Sequence[Path], cache: Path, on_progress: Progress | None) -> sqlite3.Connection:
    """Open the index over some folders (none: the default corpus), built first when it is missing or stale.

    Raises
    ------
    ValueError, OSError
        As `documents.scan` raises them.
    """
    files = scan(folders)
    fingerprint, built = digest(_SCHEMA, sys.version, *files), list[tuple[str]]()
    path = cache / f"localdocs-{digest(*sorted(map(str, folders)))}.sqlite"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        built = db.execute("SELECT fingerprint FROM manifest").fetchall()
    if built != [(fingerprint,)]:
        _build(path, list(files.values()), fingerprint, on_progress)
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)


def pairs(text: str) -> list[str]:
    """Return the pairs of neighbouring CJK characters, a lone one by itself."""
    runs: list[str] = [] if text.isascii() else CJK.findall(text)
    return [run[at : at + 2] for run in runs for at in range(max(1, len(run) - 1))]


def digest(*parts: str) -> str:
    """Return 32 hexadecimal digits that stand for some texts."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _build(path: Path, files: list[Path], fingerprint: str, on_progress: Progress | None) -> None:
    """Write the index beside its place and swap it in; of several builders the last one's stays."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=path.parent) as beside:
        with closing(sqlite3.connect(Path(beside, path.name))) as db:
            db.executescript(_SCHEMA)
            for done, file in enumerate(files, 1):
                with suppress(OSError, SyntaxError):  # gone or unreadable since the scan
                    db.executemany("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?)", _rows(file))
                if on_progress and (done % 100 == 0 or done == len(files)):
                    on_progress(done, len(files))
            db.execute("INSERT INTO manifest SELECT ?, count(*) FROM passage WHERE place = 0", (fingerprint,))
            db.commit()
        Path(beside, path.name).replace(path)


def _rows(file: Path) -> Iterator[tuple[object, ...]]:
    """Yield a row for each passage of a document."""
    title, passages = read(file)
    name, path = digest(str(file)), clean(str(file))
    for place, (section, text) in enumerate(passages):
        heading = title if section in {"", title} else f"{title} - {section}"
        yield heading, text, " ".join(pairs(f"{heading} {text}")), name, path, place
