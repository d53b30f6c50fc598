"""How long local documents take to index: 10 000 of 2 kB, against the bare FTS5 inserts of the same text.

    python benchmarks/index.py [documents]

Both sides are measured in turn, and the median of each counts. The bare side inserts each text, already in
memory, as one row with the same tokenizer, in one transaction into a file. Ours finds, reads and splits the
files, weighs titles, adds the manifest and swaps the file in. The target is a ratio of at most 3; on a busy
machine look at the processor's column.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from vane_magic.localdocs.index import open_index

ROUNDS = 5
BYTES = 2_000


def make_texts(count: int) -> list[str]:
    """Make Markdown pages of made-up words, as often as words are: the n-th word 1/n times as often as the first."""
    chance = random.Random(7)
    words = ["".join(chance.choices("etaoinshrdlucmfwypvbgkjqxz", k=chance.randint(2, 11))) for _ in range(30_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    pool = chance.choices(words, weights, k=400_000)
    texts: list[str] = []
    for number in range(count):
        text, at = f"# Page {number}\n\n", chance.randrange(len(pool) - 1_000)
        while len(text) < BYTES:
            text += f"## {pool[at].title()}\n\n" if len(text) in range(900, 1_000) else ""
            text += " ".join(pool[at : at + 14]).capitalize() + chance.choice((". ", ". ", ".\n\n"))
            at += 14
        texts.append(text[:BYTES])
    return texts


def bare(texts: list[str], place: Path) -> None:
    """Insert each text as a row."""
    with closing(sqlite3.connect(place / "bare.sqlite")) as db, db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute('CREATE VIRTUAL TABLE page USING fts5(text, tokenize = "porter unicode61 remove_diacritics 2")')
        db.executemany("INSERT INTO page VALUES (?)", ((text,) for text in texts))


def timed(work: Callable[[Path], object]) -> tuple[float, float]:
    """Return the seconds by the clock and of the processor that `work` takes in a new directory."""
    with tempfile.TemporaryDirectory() as place:
        start, start_cpu = time.perf_counter(), time.process_time()
        work(Path(place))
        return time.perf_counter() - start, time.process_time() - start_cpu


def build(folder: Path, cache: Path) -> None:
    """Open the index, which builds it where it is missing."""
    open_index([folder], cache, None).close()


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    texts = make_texts(count)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        for number, text in enumerate(texts):
            Path(folder, f"{number:05}.md").write_text(text, encoding="utf-8")
        rounds = [
            (*timed(lambda place: bare(texts, place)), *timed(lambda place: build(Path(folder), place)))
            for _ in range(ROUNDS)
        ]
        build(Path(folder), Path(cache))
        fresh, fresh_cpu = timed(lambda _: build(Path(folder), Path(cache)))
    theirs, theirs_cpu, ours, ours_cpu = (statistics.median(side) for side in zip(*rounds, strict=True))
    print(f"{count} documents of {BYTES} bytes, median of {ROUNDS}{'wall':>8}{'processor':>12}")
    print(f"{'bare FTS5 inserts':42}{theirs:6.2f} s{theirs_cpu:10.2f} s")
    print(f"{'index, built':42}{ours:6.2f} s{ours_cpu:10.2f} s")
    print(f"{'index, found fresh':42}{fresh:6.2f} s{fresh_cpu:10.2f} s")
    print(f"{'built to bare, at most 3':42}{ours / theirs:6.2f}  {ours_cpu / theirs_cpu:10.2f}")


if __name__ == "__main__":
    main()
