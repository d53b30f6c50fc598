"""A storm: workers and strangers at one lock, while somebody kills and stops them, mostly the present holder.

Run as a program it storms for as long as it is told and prints the counts:

    python tests/lock_storm.py --seconds 600
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vane_magic.core import gpu_lock
from vane_magic.core.errors import VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = ".vane-gpu-worker.lock"
WAIT_S = 30.0  # a worker's wait; with so many holds a second nobody should come near it


class Lock(Protocol):
    """What the storm wants of a lock."""

    def acquire(self) -> object: ...
    def check(self) -> None: ...
    def release(self) -> None: ...


class NaiveLock:
    """The lock as it is often written: O_EXCL, the file's time for the age, unlink; the storm must find it out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def acquire(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                with suppress(FileNotFoundError):
                    if time.time() - self.path.stat().st_mtime > gpu_lock.STALE_AFTER_S:
                        self.path.unlink()
                time.sleep(random.uniform(0.01, 0.05))
            else:
                return
        raise VramConcurrencySaturated("waited in vain")

    def check(self) -> None:
        if not self.path.exists():
            raise VramConcurrencySaturated("lost")

    def release(self) -> None:
        self.path.unlink(missing_ok=True)


LOCKS: dict[str, Callable[[Path], Lock]] = {"vane": lambda path: GpuLock(path, wait=WAIT_S), "naive": NaiveLock}


@dataclass
class Report:
    """What came of a storm."""

    holds: int = 0
    strangers: int = 0
    kills: int = 0
    stops: int = 0
    holders_hit: int = 0
    lost: int = 0
    overlaps: list[str] = field(default_factory=list)
    overlong: int = 0
    strangers_lost: int = 0
    hung: int = 0
    debris: list[str] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not (self.overlaps or self.overlong or self.strangers_lost or self.hung or self.debris)

    def __str__(self) -> str:
        return (
            f"{self.holds} holds, {self.strangers} of strangers; {self.kills} SIGKILL, {self.stops} SIGSTOP beyond the"
            f" threshold, {self.holders_hit} of them at the holder; {self.lost} holds lost and noticed;"
            f" {len(self.overlaps)} overlaps, {self.overlong} checks too late, {self.strangers_lost} strangers' markers"
            f" lost, {self.hung} waiters hung, {len(self.debris)} files left"
        )


# The actors: each appends whole lines to a log of its own, so that a death tears at most the last one.


class Log:
    def __init__(self, directory: Path, kind: str) -> None:
        name = f"{kind}.{os.getpid()}.{time.time_ns()}.log"  # A long storm uses each pid more than once.
        self.fd = os.open(directory / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)

    def write(self, **line: object) -> None:
        os.write(self.fd, json.dumps(line).encode() + b"\n")


def work(directory: Path, lock: Lock, until: float) -> None:
    """Take the lock again and again, check it while held, and write down from when to when it was surely ours."""
    log, chance = Log(directory, "worker"), random.Random()
    for number in itertools.count():
        if time.monotonic() > until:
            return
        log.write(number=number, event="asks", at=time.monotonic())
        try:
            lock.acquire()
        except VramConcurrencySaturated:
            log.write(number=number, event="hung", at=time.monotonic())
            continue
        log.write(number=number, event="holds", at=time.monotonic())
        try:
            for _ in range(chance.randrange(1, 12)):
                before = time.monotonic()
                lock.check()
                log.write(number=number, event="holds", at=before)
                time.sleep(chance.uniform(0, 0.004))
        except VramConcurrencySaturated:
            log.write(number=number, event="lost", at=time.monotonic())
        lock.release()
        log.write(number=number, event="done", at=time.monotonic())
        time.sleep(chance.uniform(0, 0.01))


def be_a_stranger(directory: Path, path: Path, until: float) -> None:
    """Take the path by O_EXCL with JSON in it, hold it below the threshold, and remove it when done."""
    log, chance = Log(directory, "stranger"), random.Random()
    for number in itertools.count():
        if time.monotonic() > until:
            return
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            time.sleep(chance.uniform(0.001, 0.01))
            continue
        start = time.monotonic()
        log.write(number=number, event="holds", at=start)
        os.write(fd, json.dumps({"pid": os.getpid(), "worker_id": "stranger"}).encode())
        mine = os.fstat(fd)
        time.sleep(chance.uniform(0, 0.02))
        end = time.monotonic()
        event = "done" if end - start < gpu_lock.STALE_AFTER_S / 2 else "slow"
        with suppress(FileNotFoundError):
            if os.path.samestat(mine, os.lstat(path)):
                log.write(number=number, event="holds", at=end)
                path.unlink()
                os.close(fd)
                log.write(number=number, event="done", at=time.monotonic())
                time.sleep(chance.uniform(0.02, 0.2))
                continue
        log.write(number=number, event="missing" if event == "done" else "slow", at=end)
        os.close(fd)


class Storm:
    """Fork the actors, hit them, and read their logs."""

    def __init__(
        self, directory: Path, kind: str, *, stale_after: float, workers: int = 12, strangers: int = 2
    ) -> None:
        self.path = directory / NAME
        self.logs = directory / "logs"
        self.logs.mkdir()
        self.kind, self.stale_after = kind, stale_after
        self.counts = workers, strangers
        self.actors: dict[int, bool] = {}
        self.stopped: dict[int, float] = {}
        self.report = Report()

    def run(self, seconds: float) -> Report:
        """Storm for so long, let everybody come to an end, and count."""
        until = time.monotonic() + seconds
        for index in range(sum(self.counts)):
            self._fork(until, stranger=index >= self.counts[0])
        try:
            while time.monotonic() < until:
                self._hit(until)
                self._wake(time.monotonic())
                time.sleep(random.uniform(0.005, 0.05))
            self._end()
        finally:
            for pid in self.actors:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self._judge()
        return self.report

    def _fork(self, until: float, *, stranger: bool) -> None:
        pid = os.fork()
        if pid:
            self.actors[pid] = stranger
            return
        with suppress(BaseException):
            gpu_lock.STALE_AFTER_S = self.stale_after
            random.seed()
            if stranger:
                be_a_stranger(self.logs, self.path, until)
            else:
                work(self.logs, LOCKS[self.kind](self.path), until)
            os._exit(0)
        os._exit(1)

    def _hit(self, until: float) -> None:
        """Kill or stop somebody; three times of four it is the present holder."""
        holder = self._holder()
        at_holder = holder in self.actors and random.random() < 0.75
        pid = holder if at_holder and holder else random.choice([*self.actors])
        if pid in self.stopped or random.random() < 0.5:
            return
        self.report.holders_hit += at_holder
        if random.random() < 0.4:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.report.kills += 1
            self._fork(until, stranger=self.actors.pop(pid))
        elif not self.actors[pid]:  # A stranger that sleeps too long is evicted by right.
            os.kill(pid, signal.SIGSTOP)
            self.report.stops += 1
            self.stopped[pid] = time.monotonic() + self.stale_after * random.uniform(1.05, 2)

    def _holder(self) -> int | None:
        if self.kind == "vane":
            holder = GpuLock(self.path).status()
            return holder.pid if holder else None
        logs = sorted(self.logs.glob("*.log"), key=lambda log: log.stat().st_mtime)
        return int(logs[-1].name.split(".")[1]) if logs else None

    def _wake(self, now: float) -> None:
        for pid, at in list(self.stopped.items()):
            if now >= at:
                os.kill(pid, signal.SIGCONT)
                del self.stopped[pid]

    def _end(self) -> None:
        """Everybody comes to an end by itself; who does not, hangs."""
        self._wake(float("inf"))
        deadline = time.monotonic() + WAIT_S + 10
        while self.actors and time.monotonic() < deadline:
            for pid in list(self.actors):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    assert status == 0, "an actor failed"
                    del self.actors[pid]
            time.sleep(0.02)
        self.report.hung += len(self.actors)

    def _judge(self) -> None:
        spans: list[tuple[float, float, str]] = []
        for log in self.logs.glob("*.log"):
            holds: dict[int, tuple[float, float]] = {}
            for line in log.read_text().split("\n")[:-1]:  # after the last newline: what a death tore
                entry = json.loads(line)
                if entry["event"] == "holds":
                    first, _ = holds.get(entry["number"], (entry["at"], 0.0))
                    holds[entry["number"]] = first, entry["at"]
                self.report.lost += entry["event"] == "lost"
                self.report.hung += entry["event"] == "hung"
                self.report.strangers_lost += entry["event"] == "missing"
            spans += [(start, end, f"{log.name} {number}") for number, (start, end) in holds.items()]
            self.report.strangers += len(holds) * log.name.startswith("stranger")
            if log.name.startswith("worker") and self.kind == "vane":
                self.report.overlong += sum(end - start > self.stale_after for start, end in holds.values())
        self.report.holds = len(spans)
        for one, other in itertools.pairwise(sorted(spans)):
            if other[0] < one[1]:
                self.report.overlaps.append(f"{one} and {other}")
        if self.kind == "vane":
            self._sweep()

    def _sweep(self) -> None:
        """One more turn after the storm, and then only the guard may be left."""
        scaled, gpu_lock.STALE_AFTER_S = gpu_lock.STALE_AFTER_S, self.stale_after
        with GpuLock(self.path, wait=WAIT_S) as lock:
            lock.check()
        gpu_lock.STALE_AFTER_S = scaled
        self.report.debris = [path.name for path in self.path.parent.glob(NAME + "*") if path.suffix != ".guard"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--lock", choices=sorted(LOCKS), default="vane")
    parser.add_argument("--stale-after", type=float, default=0.5)
    parser.add_argument("--json", action="store_true", help="print the report for a program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        storm = Storm(Path(directory), options.lock, stale_after=options.stale_after)
        report = storm.run(options.seconds)
    print(json.dumps(asdict(report)) if options.json else report)
    sys.exit(not report.is_fine)


if __name__ == "__main__":
    main()
