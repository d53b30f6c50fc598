"""`VaneClient.research` against a bare httpx stream loop that parses the same events, in the same run.

    python benchmarks/client.py

The server is a process of its own that answers at once. Times are medians; a ratio is the median of the ratios of
neighbouring runs, so that a machine whose speed drifts does no harm.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "tests"), str(Path(__file__).parent.parent)]

import httpx
from servers.scripted import LAST_CHUNK, ScriptedServer, answer, answer_events, chunk, events, source

from vane_magic.core.client import VaneClient

QUESTION = "How does TCP open a connection?"
MIB = 2**20


def stream_of(pieces: int, size: int) -> list[bytes]:
    """An answer of so many events with so many characters each, in chunks of 64 events."""
    whole = answer_events(
        [("word " * (size // 5 - 1)) + (" [1]." if n % 10 == 0 else "word ") for n in range(pieces)], [source()]
    )
    groups = [whole[at : at + 64] for at in range(0, len(whole), 64)]
    return [answer("")[0], *(chunk(events(*group)) for group in groups), LAST_CHUNK]


def serve(script: list[bytes], pipe: multiprocessing.connection.Connection) -> None:
    with ScriptedServer(script) as server:
        pipe.send(server.url)
        pipe.recv()


@contextmanager
def server_of(script: list[bytes]) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(script, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


def bare(http: httpx.Client, url: str) -> str:
    """Post on a fresh connection, parse each event, join the text: what nobody could do without."""
    text: list[str] = []
    body = {"query": QUESTION, "sources": ["web"], "stream": True}
    with http.stream("POST", f"{url}/api/search", json=body) as reply:
        for line in reply.iter_lines():
            event = json.loads(line)
            if event["type"] == "response":
                text.append(event["data"])
    return "".join(text)


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(name: str, script: list[bytes], runs: int, lock: str) -> None:
    # Made once, since making an httpx client takes longer than all the rest: it loads certificates.
    no_pool = httpx.Limits(max_keepalive_connections=0)
    with server_of(script) as url, httpx.Client(trust_env=False, verify=False, limits=no_pool) as http:
        client = VaneClient(url, lock_path=lock)

        def ours() -> str:
            return client.research(QUESTION, max_sources=8).raise_for_error().answer

        assert ours() == bare(http, url)
        pairs = [(timed(ours), timed(lambda: bare(http, url))) for _ in range(runs)]
    mine, theirs = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    more = statistics.median(a - b for a, b in pairs) * 1000
    print(f"{name:<28} {mine:9.2f} ms {theirs:9.2f} ms   x{ratio:5.2f}   {more:+8.2f} ms")


def peak_of(size: int, lock: str) -> tuple[float, float]:
    """Extra memory in multiples of the body, and seconds, of one question in a fresh process."""
    with server_of(stream_of(size // 8000, 8000)) as url:
        code = f"from client import once; once({url!r}, {lock!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    before, after, seconds = map(float, done.stdout.split())
    return (after - before) * 1024 / size, seconds


def once(url: str, lock: str) -> None:
    """In a process of its own: the peak of memory before and after a question, and how long that took."""
    with ScriptedServer(answer("Warm.")) as warm:
        VaneClient(warm.url, lock_path=lock).research(QUESTION)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = timed(lambda: VaneClient(url, lock_path=lock).research(QUESTION).raise_for_error())
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, seconds)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        lock = f"{place}/lock"
        print(f"{'client':<28} {'ours':>12} {'bare httpx':>12}   {'ratio':>6}   {'more':>11}")
        compare("2 kB in 20 events", stream_of(20, 100), 60, lock)
        compare("1 MB in 10,000 events", stream_of(10_000, 100), 15, lock)
        print(f"{'one body':<28} {'memory / size':>14} {'time':>10} {'per MB':>10}")
        for size in (1, 4, 15):
            memory, seconds = peak_of(size * 1_000_000, lock)
            print(f"{size:>3} MB {memory:36.2f} {seconds * 1000:7.0f} ms {seconds * 1000 / size:7.1f} ms")


if __name__ == "__main__":
    main()
