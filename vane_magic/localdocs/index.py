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

from vane_magic.localdocs.documents import clean, read, scan

Progress = Callable[[int, int], None]  # how many documents are read, and how many there are

# A document's number is the rowid of its first passage. Less merging with a large hash: 1.4 s instead of 2 for 20 MB.
_SCHEMA: Final = """
    PRAGMA journal_mode = OFF;
    BEGIN;
    CREATE TABLE manifest(fingerprint TEXT);
    CREATE TABLE document(number INTEGER PRIMARY KEY, last INTEGER, id TEXT UNIQUE, path TEXT, title TEXT);
    CREATE VIRTUAL TABLE passage USING
        fts5(title, section, text, pairs, number UNINDEXED, tokenize = "porter unicode61 remove_diacritics 2");
    INSERT INTO passage(passage, rank) VALUES ('rank', 'bm25(3, 3, 1, 1)'), ('hashsize', 8388608);
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
    folders = [folder.expanduser().resolve() for folder in folders]
    files = scan(folders)
    fingerprint, built = _digest(_SCHEMA, sys.version, *files), list[tuple[str]]()
    path = cache / f"localdocs-{_digest(*sorted(map(str, folders)))}.sqlite"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        built = db.execute("SELECT fingerprint FROM manifest").fetchall()
    if built != [(fingerprint,)]:
        _build(path, list(files.values()), fingerprint, on_progress)
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)


def pairs(text: str) -> list[str]:
    """Return the pairs of neighbouring CJK characters, a lone one by itself."""
    runs: list[str] = [] if text.isascii() else CJK.findall(text)
    return [run[at : at + 2] for run in runs for at in range(max(1, len(run) - 1))]


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _build(path: Path, files: list[Path], fingerprint: str, on_progress: Progress | None) -> None:
    """Write the index beside its place and swap it in; of several builders the last one's stays."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=path.parent) as beside:
        with closing(sqlite3.connect(Path(beside, path.name))) as db:
            db.executescript(_SCHEMA)
            found: list[tuple[object, ...]] = []
            db.executemany("INSERT INTO passage VALUES (?, ?, ?, ?, ?)", _passages(files, found, on_progress))
            db.executemany("INSERT INTO document VALUES (?, ?, ?, ?, ?)", found)
            db.execute("INSERT INTO manifest VALUES (?)", (fingerprint,))
            db.commit()
        Path(beside, path.name).replace(path)


def _passages(
    files: list[Path], found: list[tuple[object, ...]], on_progress: Progress | None
) -> Iterator[tuple[object, ...]]:
    """Yield a row for each passage; a row for each document that has some is put into `found`."""
    number = 1
    for done, file in enumerate(files, 1):
        title, passages = "", list[tuple[str, str]]()
        with suppress(OSError, SyntaxError):  # gone or unreadable since the scan
            title, passages = read(file)
        if passages:
            found.append((number, number + len(passages) - 1, _digest(str(file)), clean(str(file)), title))
        for section, text in passages:
            yield title, section, text, " ".join(pairs(f"{title} {section} {text}")), number
        number += len(passages)
        if on_progress and (done % 100 == 0 or done == len(files)):
            on_progress(done, len(files))
