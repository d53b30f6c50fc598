"""Measure everything in one run, peers included, and write docs/performance.md: python benchmarks/run.py.

With names of parts (loading, calling, locking, rendering, asking, indexing) only these are measured, in this
environment, and their rows are printed.

The peers go into a virtual environment of their own in a temporary directory. Without a package index they are left
out, and the page says so. A ratio is ours to the other's: the median of the ratios of neighbouring runs, so that a
machine whose speed drifts does no harm, and the range of their middle half.
"""

# ruff: noqa: PLC0415 - each part imports what it measures, in the environment of the peers

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
PEERS = ("jupyter-ai-magics", "jupysql", "bigquery-magics", "pyinstrument", "nh3", "mistune")
HELPERS = ("psutil", "ipykernel", "jupyter-client")  # what the measuring itself needs
EXTENSIONS = {"jupyter-ai-magics": "jupyter_ai_magics", "jupysql": "sql", "bigquery-magics": "bigquery_magics"}
EXTENSIONS |= {"pyinstrument": "pyinstrument"}
SCRIPTS = ("client.py", "lock.py", "render.py", "index.py", "magics.py")
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

Row = tuple[str, str, str, list[float], list[float]]  # what, beside what, the ratio aimed at, our seconds, theirs
LOAD = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
began = time.process_time()
shell.extension_manager.load_extension({!r})
print(time.process_time() - began)
"""


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(count: int, ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Take turns, after one of each that does not count."""
    pairs = [(ours(), theirs()) for _ in range(count + 1)][1:]
    return [a for a, _ in pairs], [b for _, b in pairs]


def has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# What is measured, in the environment of the peers ---


def loading() -> Iterator[Row]:
    """`%load_ext` in fresh processes: seconds of the processor."""

    def load(extension: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", LOAD.format(extension)], capture_output=True, text=True, check=True, cwd=ROOT
        )
        return float(done.stdout.split()[-1])

    for name, extension in EXTENSIONS.items():
        if has(name):
            yield (
                "`%load_ext vane_magic`",
                f"`%load_ext {extension}`",
                "0.2" if name == "pyinstrument" else "",
                *in_turns(7, lambda: load("vane_magic"), lambda extension=extension: load(extension)),
            )


def calling() -> Iterator[Row]:
    """What the first question imports, in fresh processes, and the live display in a real kernel."""
    import magics

    def columns(name: str, other: str, limit: str, runs: list[tuple[float, ...]]) -> Row:
        ours, theirs = zip(*runs, strict=True)
        return name, other, limit, list(ours), list(theirs)

    with tempfile.TemporaryDirectory() as cache:
        codes = ((magics.LOADED, code) for code in (magics.FIRST_CALL, magics.LIBRARIES, magics.ONE_MODEL))
        runs = magics.fresh(cache, *codes)
    what = "the imports of the first question"
    yield columns(
        what, "httpx, httpcore, filelock, markdown-it-py and pydantic's BaseModel", "1.2", [r[:2] for r in runs]
    )
    yield columns(what, "these, and one model of pydantic's", "", [r[::2] for r in runs])
    if has("ipykernel"):
        name = "200 kB in 10,000 pieces, with the live display"
        yield columns(name, "without", "1.2", magics.live_display())


def locking() -> Iterator[Row]:
    """Acquire and release: batches of 20 new objects, since a single one is too short to time."""
    import filelock

    from vane_magic.core.gpu_lock import GpuLock

    def batch(make: Callable[[], GpuLock | filelock.BaseFileLock]) -> float:
        def cycle() -> None:
            for _ in range(20):
                lock = make()
                lock.acquire()
                lock.release()

        return timed(cycle) / 20

    with tempfile.TemporaryDirectory() as place:
        for name in ("FileLock", "SoftFileLock", "StrictSoftFileLock", "SoftFileLease", "ReadWriteLock"):
            kind = getattr(filelock, name, None)
            if isinstance(kind, type) and issubclass(kind, filelock.BaseFileLock):
                path = f"{place}/{name}"
                yield (
                    "GPU lock, acquire and release",
                    f"filelock's `{name}`",
                    "10" if name == "FileLock" else "",
                    *in_turns(
                        20,
                        lambda: batch(lambda: GpuLock(Path(place))),
                        lambda kind=kind, path=path: batch(lambda: kind(path)),
                    ),
                )


def rendering() -> Iterator[Row]:
    """A report of 20 kB as HTML, from Markdown."""
    import render
    from markdown_it import MarkdownIt

    from vane_magic.display import as_html
    from vane_magic.display.parser import parse

    text = render.text_of(render.KINDS["report"], 20_000)
    plain = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

    def ours() -> float:
        return timed(lambda: as_html.answer(parse(text), render.SOURCES, 10**9))

    others: dict[str, Callable[[], object]] = {"markdown-it-py, no sanitiser": lambda: plain.render(text)}
    if has("nh3") and has("mistune"):
        import mistune
        import nh3

        mistuned = mistune.create_markdown(escape=True, plugins=["table", "strikethrough"])
        others["markdown-it-py and nh3"] = lambda: nh3.clean(plain.render(text))
        others["mistune, escaping"] = lambda: mistuned(text)
    for name, other in others.items():
        limit = "2" if name.endswith("no sanitiser") else ""
        yield "an answer of 20 kB to HTML", name, limit, *in_turns(15, ours, lambda other=other: timed(other))


def asking() -> Iterator[Row]:
    """One question over a socket, from a server in a process of its own that answers at once."""
    import client
    import httpx

    from vane_magic.core.client import VaneClient

    for name, limit, script, count in (
        ("2 kB in 20 events", "+5 ms", client.stream_of(20, 100), 40),
        ("1 MB in 10,000 events", "1.5", client.stream_of(10_000, 100), 10),
    ):
        with tempfile.TemporaryDirectory() as place, client.server_of(script) as url, ExitStack() as stack:
            http = stack.enter_context(httpx.Client(trust_env=False, verify=False))
            asker = VaneClient(url, lock_path=f"{place}/lock")
            yield (
                f"a question answered by {name}",
                "bare httpx, same events",
                limit,
                *in_turns(
                    count,
                    lambda asker=asker: timed(lambda: asker.research(client.QUESTION).raise_for_error()),
                    lambda http=http, url=url: timed(lambda: client.bare(http, url)),
                ),
            )


def indexing() -> Iterator[Row]:
    """Local documents of 2 kB each, against the bare inserts of the same text."""
    import index

    texts = index.make_texts(2_000)
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            Path(folder, f"{number:05}.md").write_text(text, encoding="utf-8")
        yield (
            "2,000 documents of 2 kB indexed",
            "bare FTS5 inserts",
            "3",
            *in_turns(
                3,
                lambda: index.timed(lambda place: index.build(Path(folder), place))[0],
                lambda: index.timed(lambda place: index.bare(texts, place))[0],
            ),
        )


PARTS = {part.__name__: part for part in (loading, calling, locking, rendering, asking, indexing)}


def measure() -> None:
    """Print one line of JSON a row; the versions come first."""
    names = ("ipython", "httpx", "filelock", "markdown-it-py", "pydantic", *PEERS)
    print(json.dumps({name: metadata.version(name) for name in names if has(name)}), flush=True)
    for part in PARTS.values():
        for row in part():
            print(json.dumps(row), flush=True)


# The page ---


def make_environment(place: str) -> tuple[str, str]:
    """A Python with the peers; this one, and why, where they cannot be had."""
    python = f"{place}/env/bin/python"
    if uv := shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"):
        make, install = [uv, "venv", "-q", "--python", sys.executable], [uv, "pip", "install", "-q", "--python", python]
    else:
        make, install = [sys.executable, "-m", "venv"], [python, "-m", "pip", "install", "-q"]
    try:
        subprocess.run([*make, f"{place}/env"], check=True, capture_output=True, timeout=300)
        subprocess.run([*install, *PEERS, str(ROOT), *HELPERS], check=True, capture_output=True, timeout=900)
    except (OSError, subprocess.SubprocessError) as error:
        return sys.executable, f"The peers could not be installed ({type(error).__name__}), so they are left out."
    return python, ""


def milliseconds(times: Sequence[float]) -> str:
    value = statistics.median(times) * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.2g} ms"


def line(row: Row) -> str:
    what, beside, limit, ours, theirs = row
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    cells = (
        what,
        beside,
        milliseconds(ours),
        milliseconds(theirs),
        f"{middle:.2g}",
        limit,
        f"{low:.2g} to {high:.2g}",
        str(len(ours)),
    )
    return f"| {' | '.join(cells)} |"


NOTES = """\
The extensions of peers do more when they load, or less later: this says what a notebook waits for, and nothing of their
worth. The bare client neither looks up models, takes a lock nor reads citations. markdown-it-py and mistune keep images
and links to anywhere; nh3 with its own rules keeps images.
"""


def page(rows: list[Row], versions: dict[str, str], told: str, outputs: dict[str, str]) -> str:
    head = "| what | beside | ours | the other | ratio | at most | middle half | runs |"
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    machine = f"{platform.system()}, Python {platform.python_version()}, {os.cpu_count()} processors"
    parts = [
        "# Performance\n",
        "Written by `python benchmarks/run.py` (`make bench`), in one run on one machine.",
        "Read the ratios: the times are this machine's, with its other load.\n",
        f"{time.strftime('%d %B %Y', time.gmtime())}, {machine}. {listed}.\n",
        *([f"{told}\n"] if told else []),
        "## Beside peers\n",
        "A ratio under 1 means that ours is faster. It is the median over the runs, which take turns.",
        '"At most" is what we promise ourselves, where we do.\n',
        "\n".join([head, f"|{' --- |' * 8}", *map(line, rows)]) + "\n",
        NOTES,
        "## What each benchmark prints\n",
        *(f"### benchmarks/{name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in outputs.items()),
    ]
    return "\n".join(parts).rstrip() + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        python, told = make_environment(place)
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environ |= {"PYTHONPATH": str(ROOT), "HOME": place, "PYTHONPYCACHEPREFIX": f"{place}/compiled"}
        done = subprocess.run(
            [python, __file__, "--measure"], env=environ, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
        )
        versions, *rows = map(json.loads, done.stdout.splitlines())
        print("\n".join(map(line, rows)))
        outputs: dict[str, str] = {}
        for name in SCRIPTS:
            script = [sys.executable, str(ROOT / "benchmarks" / name)]
            ran = subprocess.run(script, env=environ, capture_output=True, text=True, check=False, cwd=ROOT)
            outputs[name] = ran.stdout + (
                f"\nexit code {ran.returncode}\n{ran.stderr[-500:]}" if ran.returncode else ""
            )
            print(f"== {name}\n{outputs[name]}", flush=True)
    PAGE.write_text(page(rows, versions, told, outputs), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    elif len(sys.argv) > 1:
        print("\n".join(line(row) for name in sys.argv[1:] for row in PARTS[name]()))
    else:
        main()
