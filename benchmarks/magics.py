"""What `%vane` costs beside what it is made of, in the same run.

    python benchmarks/magics.py

Importing is timed in fresh processes, taken in turns: processor time, files compiled. A ratio is the median of the
ratios of neighbouring runs. `run.py` times `%load_ext` beside those of peers. The live display is timed in a real
kernel, drawn from the first piece on; the final rendering is left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from kernels import Kernel, open_kernel
from servers.scripted import CHUNKED, LAST_CHUNK, ScriptedServer, answer_events, chunk, events, head, source

SHELL = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
{before}
began = time.process_time()
{timed}
print(time.process_time() - began)
"""
LOAD = 'shell.extension_manager.load_extension("{}")'
FIRST_CALL = "import vane_magic.notebook.session, vane_magic.display.parser"
LIBRARIES = "import httpx, httpcore, filelock, markdown_it\nfrom pydantic import BaseModel"
ONE_MODEL = f"{LIBRARIES}\nclass Model(BaseModel):\n    text: str"  # pydantic loads a fifth more for the first one
LOADED = f"import asyncio\n{LOAD.format('vane_magic')}"  # every front end of IPython has asyncio
RUN = """
import time
from vane_magic.notebook import live
live.FIRST_S = 0
live._Notebook.end = lambda *_: None
def timed(options):
    began = time.perf_counter()
    get_ipython().run_line_magic("vane", options + "what is it")
    return time.perf_counter() - began
timed("")
"""


def fresh(cache: str, *codes: tuple[str, str]) -> list[tuple[float, ...]]:
    """Seconds of processor time of each code in new processes, where IPython's shell and what goes before are there."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": cache}

    def once(before: str, timed: str) -> float:
        code = SHELL.format(before=before, timed=timed)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
        )
        return float(done.stdout.split()[-1])

    runs = [tuple(once(*code) for code in codes) for _ in range(10)]
    return runs[1:]  # the first one compiled


def compare(name: str, pairs: list[tuple[float, ...]], target: str) -> None:
    ours, theirs = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name:<58} {ours:8.1f} ms {theirs:8.1f} ms  x{ratio:5.2f}  {target}")


def live_runs(kernel: Kernel, count: int) -> list[tuple[float, ...]]:
    """With the live display, and without any."""

    def once(options: str) -> float:
        shown = kernel.run(f"print(timed({options!r}))").messages  # a kernel may cut what is printed into pieces
        return float("".join(part["content"]["text"] for part in shown if part["msg_type"] == "stream"))

    return [(once(""), once("-q ")) for _ in range(count)]


def live_display() -> list[tuple[float, ...]]:
    """A question of 200 kB in 10,000 pieces in a real kernel: with the live display, and without."""
    pieces = [f"word {n:05} and some more" for n in range(10_000)]
    lines = answer_events([piece.ljust(20) for piece in pieces], [source()])
    groups = [chunk(events(*lines[at : at + 20])) for at in range(0, len(lines), 20)]
    script = [head(200, CHUNKED), *groups, LAST_CHUNK]
    with ScriptedServer(script) as server, open_kernel() as kernel, tempfile.TemporaryDirectory() as place:
        kernel.config(url=server.url, lock_path=place)
        kernel.run(RUN)
        return live_runs(kernel, 11)


def main() -> None:
    print(f"{'magics':<58} {'ours':>11} {'beside':>11}  {'ratio':>6}  {'at most'}")
    with tempfile.TemporaryDirectory() as cache:
        runs = fresh(cache, (LOADED, FIRST_CALL), (LOADED, LIBRARIES), (LOADED, ONE_MODEL))
        compare("imports of the first call; its libraries alone", [run[:2] for run in runs], "1.20")
        compare("... its libraries and one pydantic model", [run[::2] for run in runs], "")
    compare("200 kB in 10,000 pieces with the live display; without", live_display(), "1.20")


if __name__ == "__main__":
    main()
