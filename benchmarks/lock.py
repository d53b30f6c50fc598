"""What the GPU lock costs: python benchmarks/lock.py.

Each figure is a median over fresh locks; the machine's other load shows in it. Exits with 1 when a bound is broken.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import lock_puppet
from filelock import FileLock, SoftFileLock
from lock_puppet import PATIENCE_S, Puppet

from vane_magic.core.gpu_lock import GpuLock

Clock = Callable[[], float]


def median_ms(times: list[float]) -> str:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]
    return f"{statistics.median(ordered) * 1e3:7.2f} ms (p99 {p99 * 1e3:.2f}, {len(ordered)} times)"


def uncontended(make: Callable[[], Any], count: int) -> list[float]:
    """Acquire and release a new lock object each time, as each question does."""
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        lock = make()
        lock.acquire()
        lock.release()
        times.append(time.perf_counter() - started)
    return times


def side_by_side(place: Path, count: int = 1000) -> tuple[list[float], list[float]]:
    """Take turns in small batches, so that both see the same load."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(count // 20):
        ours += uncontended(lambda: GpuLock(place), 20)
        theirs += uncontended(lambda: FileLock(place / "filelock"), 20)
    return ours, theirs


def handed_over(place: Path, let_go: Callable[[Puppet], float], count: int = 40) -> list[float]:
    """How long a waiter takes to hold the lock after the holder let go, or was killed."""
    times: list[float] = []
    for _ in range(count):
        with Puppet(place) as holder, Puppet(place, wait=PATIENCE_S) as waiter:
            holder("acquire")
            waiter.ask("acquire")
            time.sleep(0.2)
            went = let_go(holder)
            times.append(waiter.answer() - went)
    return times


def followed(place: Path, child: str = "", count: int = 20) -> list[float]:
    """How long one who asks at once takes to hold the lock after the holder, perhaps with a child, was killed."""
    times: list[float] = []
    for _ in range(count):
        with Puppet(place) as holder, Puppet(place, wait=PATIENCE_S) as follower:
            holder("acquire")
            orphan = holder(child) if child else 0
            killed = kill(holder)
            times.append(follower("acquire") - killed)
        if orphan:
            os.kill(orphan, signal.SIGKILL)
    return times


def followed_zombie(place: Path, count: int = 10) -> list[float]:
    """The same while the dead holder waits for its parent to look after it."""
    times: list[float] = []
    for _ in range(count):
        command = [sys.executable, lock_puppet.__file__, str(place)]
        with (
            Puppet(place, wait=PATIENCE_S) as follower,
            subprocess.Popen(command, stdout=subprocess.PIPE, env=lock_puppet.environment()) as holder,
        ):
            assert holder.stdout
            holder.stdout.readline()
            killed = time.monotonic()
            holder.kill()
            times.append(follower("acquire") - killed)
    return times


def evicted(place: Path, threshold: float = 1.0, count: int = 5) -> list[float]:
    """How long after the threshold a waiter has evicted a stopped holder."""
    times: list[float] = []
    for _ in range(count):
        with Puppet(place) as holder, Puppet(place, wait=PATIENCE_S, stale_after=threshold) as waiter:
            acquired = holder("acquire")
            holder.stop()
            times.append(waiter("acquire") - acquired - threshold)
    return times


def release(holder: Puppet) -> float:
    now = time.monotonic()
    holder("release")
    return now


def kill(holder: Puppet) -> float:
    now = time.monotonic()
    os.kill(holder.pid, signal.SIGKILL)
    return now


def busy_answers(place: Path, count: int = 200) -> list[float]:
    """How long `wait=0` takes to say no."""
    times: list[float] = []
    with GpuLock(place):
        for _ in range(count):
            started = time.perf_counter()
            try:
                GpuLock(place).acquire()
            except RuntimeError:
                times.append(time.perf_counter() - started)
    return times


def contend(make: Callable[[], Any], seconds: float, workers: int = 32) -> tuple[int, int]:
    """Let so many processes take turns of 1 ms as fast as they can; return all holds, and of the least lucky."""
    counts: list[int] = []
    pipes: list[int] = []
    until = time.monotonic() + seconds + 1
    for _ in range(workers):
        reader, writer = os.pipe()
        if os.fork() == 0:
            held = 0
            while time.monotonic() < until:
                lock = make()
                try:
                    lock.acquire()
                except (RuntimeError, TimeoutError):
                    break
                time.sleep(0.001)
                held += time.monotonic() < until
                lock.release()
            os.write(writer, str(held).encode())
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    for reader in pipes:
        counts.append(int(os.read(reader, 20)))
        os.close(reader)
        os.wait()
    return sum(counts), min(counts)


def main() -> None:
    broken: list[str] = []

    def bound(name: str, value: float, limit: float) -> None:
        if value > limit:
            broken.append(f"{name}: {value:.2f} is over {limit:.2f}")

    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        ours, theirs = side_by_side(place)
        print(f"acquire and release    {median_ms(ours)}")
        print(f"  filelock's FileLock  {median_ms(theirs)}")
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"  ratio                {ratio:7.2f}")
        bound("acquire and release over FileLock's", ratio, 10)
        print(f"busy answer, wait=0    {median_ms(busy_answers(place))}")
        over = handed_over(place, release)
        print(f"hand-over to a waiter  {median_ms(over)}")
        bound("hand-over in ms", statistics.median(over) * 1e3, 60)
        print(f"SIGKILL to a waiter    {median_ms(handed_over(place, kill))}")
        print(f"SIGKILL, asked at once {median_ms(followed(place))}")
        print(f"  with a forked child  {median_ms(followed(place, 'fork'))}")
        print(f"  which has the file   {median_ms(followed(place, 'raw_fork'))}")
        print(f"  as a zombie          {median_ms(followed_zombie(place))}")
        print(f"SIGSTOP, past 1 s      {median_ms(evicted(place))}")
        soft = directory + "/soft"
        rates: dict[str, list[int]] = {"ours": [], "soft": []}
        for _ in range(3):
            rates["ours"].append(contend(lambda: GpuLock(place, wait=60), 4)[0])
            rates["soft"].append(contend(lambda: SoftFileLock(soft, timeout=60), 4)[0])
        mine, their = (statistics.median(rates[name]) for name in ("ours", "soft"))
        print(f"32 contenders in 5 s   {mine:.0f} holds; SoftFileLock {their:.0f}; ratio {mine / their:.2f}")
        bound("SoftFileLock's throughput over ours", their / mine, 2)
    print("\n".join(broken) or "all bounds kept")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
