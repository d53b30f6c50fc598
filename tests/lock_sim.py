"""A small operating system in memory, on which the real lock code runs one system call at a time.

A `World` has one directory, two clocks and a few processes. Each process runs real code of `gpu_lock` in a thread of
its own, but only one at a time: every system call is a step, and a schedule says who makes how many steps and what
happens then (preempt, crash, a leap of the clock). The world knows the truth, and checks the protocol's invariants
at each step:

I1  a marker of ours is whole when it appears, and never written again
I2  holds do not overlap (from the return of `acquire` to the last successful `check`)
I3  only the holder of the guard changes the marker's path, strangers apart
I4  nobody unlinks an inode that was neither its own nor fit for eviction
I6  no check succeeds after the eviction
I7  death frees everything (this is the kernel's part, and so the world's)
I8  what cannot be judged is left alone
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vane_magic.core import gpu_lock
from vane_magic.core.errors import VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MARKER = "/sim/.vane-gpu-worker.lock"
NS = 10**9


class CrashError(BaseException):
    """The process was killed: nothing it does has an effect any more."""


@dataclass(eq=False)
class Inode:
    number: int
    maker: Process | None
    mtime_ns: int
    data: bytes = b""
    locked_by: Descriptor | None = None
    foreign: bool = False
    born_ns: int = 0
    immortal: bool = False  # must never go: nobody can judge it
    published: bool = False


@dataclass(eq=False)
class Descriptor:
    inode: Inode
    owner: Process


@dataclass
class Hold:
    who: str
    start: int
    end: int


@dataclass(eq=False)
class Process:
    """One process: a program in a thread that runs only when the world lets it."""

    world: World
    name: str
    pid: int
    program: Callable[[Process], None]
    fds: dict[int, Descriptor] = field(default_factory=dict)
    crashed: bool = False
    done: bool = False
    steps: int = 0
    last_look: int = 0
    outcomes: list[str] = field(default_factory=list)
    failure: BaseException | None = None
    seen: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.crashed:
                self.program(self)
        except CrashError:
            pass
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self.failure = error
        self.done = True
        self.world.back.release()

    def open_fd(self, inode: Inode) -> int:
        fd = next(number for number in range(3, 1000) if number not in self.fds)
        self.fds[fd] = Descriptor(inode, self)
        return fd

    def close_fd(self, fd: int) -> None:
        descriptor = self.fds.pop(fd)
        if descriptor.inode.locked_by is descriptor:
            descriptor.inode.locked_by = None


@dataclass(frozen=True)
class Turn:
    """One line of a schedule: this process makes so many steps (None: until it ends), and then..."""

    process: str
    steps: int | None = None
    crash: bool = False
    leap_s: float = 0.0


class World:
    """The kernel, the clock, the schedule and the judge."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.processes: dict[str, Process] = {}
        self.holds: list[Hold] = []
        self.mono_ns = 1000 * NS
        self.wall_ns = 1_800_000_000 * NS
        self.now = 0
        self.current: Process | None = None
        self.left: int | None = None
        self.inodes = 0
        self.back = threading.Semaphore(0)
        self.os = FakeOs(self)
        self.trace: list[str] = []

    # What a test sets up

    def add(self, name: str, program: Callable[[Process], None]) -> Process:
        process = self.processes[name] = Process(self, name, 100 + len(self.processes), program)
        process.thread.start()
        return process

    def leap(self, seconds: float) -> None:
        """Let time pass; both clocks go together."""
        self.mono_ns += round(seconds * NS)
        self.wall_ns += round(seconds * NS)

    def new_inode(self, maker: Process | None) -> Inode:
        self.inodes += 1
        return Inode(self.inodes, maker, self.wall_ns, born_ns=self.mono_ns)

    def run(self, schedule: list[Turn]) -> None:
        """Follow the schedule, then let everyone who is left run to its end."""
        with self._in_place_of_the_system():
            for turn in [*schedule, *(Turn(name) for _ in range(8) for name in self.processes)]:
                self._give(turn)
            self._end()

    def _give(self, turn: Turn) -> None:
        process = self.processes[turn.process]
        if not process.done and not process.crashed and turn.steps != 0:
            self.left = turn.steps
            self._resume(process)
        if turn.crash and not process.done:
            self.crash(process)
        self.leap(turn.leap_s)

    def _resume(self, process: Process) -> None:
        self.current = process
        process.turn.release()
        assert self.back.acquire(timeout=30), "a process of the simulation hangs"
        if process.failure:
            raise process.failure

    def crash(self, process: Process) -> None:
        process.crashed = True
        self.trace.append(f"{process.name} dies")
        for fd in list(process.fds):
            process.close_fd(fd)

    def _end(self) -> None:
        unfinished = [p.name for p in self.processes.values() if not p.done and not p.crashed]
        assert not unfinished, f"{unfinished} did not end"

    # What the lock's code calls

    def step(self, name: str, *args: object) -> Process:
        """Make one step of the running process: perhaps wait for another turn first."""
        process = self.current
        assert process is not None
        if process.crashed:
            raise CrashError
        while self.left == 0:
            self._leave(process)
        if self.left is not None:
            self.left -= 1
        self.now += 1
        process.steps += 1
        self.trace.append(f"{self.now:4} {process.name} {name} {' '.join(str(arg) for arg in args)}")
        return process

    def pause(self, _seconds: float | None = None) -> None:
        """End this turn, since the running process waits; a few long pauses are as good as many short ones."""
        self.leap(0.4)
        self.left = 0

    def _leave(self, process: Process) -> None:
        self.back.release()
        process.turn.acquire()
        if process.crashed:
            raise CrashError

    # The invariants

    def bind(self, process: Process, path: str, inode: Inode) -> None:
        if path == MARKER and not inode.foreign:
            self._changes(process)
            assert gpu_lock._Record.parse(inode.data), "I1: the marker is not whole"
            if not inode.published:
                assert inode.locked_by, "I1: the marker is not locked"
            inode.published = True
        self.names[path] = inode

    def unbind(self, process: Process, path: str) -> Inode:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "gone", path)
        if path == MARKER:
            self._changes(process)
        return self.names.pop(path)

    def _changes(self, process: Process) -> None:
        guard = self.names.get(MARKER + ".guard")
        holder = guard.locked_by.owner if guard and guard.locked_by else None
        assert process.name.startswith("stranger") or holder is process, "I3: a change without the guard"

    def removed(self, process: Process, inode: Inode) -> None:
        """Judge a final removal, when no name is left."""
        if inode in self.names.values() or inode.maker is process or process.name.startswith("stranger"):
            return
        assert not inode.immortal, "I8: what nobody can judge was removed"
        record = gpu_lock._Record.parse(inode.data)
        born_ns = record.mono_ns if record else inode.born_ns
        old = self.mono_ns - born_ns > gpu_lock.STALE_AFTER_S * NS
        keeper = inode.locked_by.owner if inode.locked_by else None
        dead = not inode.foreign and (inode.maker is None or inode.maker.crashed or keeper is not inode.maker)
        assert old or dead, f"I4: {process.name} removed a live marker"

    def held(self, process: Process, start: int) -> Hold:
        hold = Hold(process.name, start, start)
        self.holds.append(hold)
        return hold

    def assert_no_overlap(self) -> None:
        spans = sorted((hold for hold in self.holds), key=lambda hold: hold.start)
        for first, second in itertools.pairwise(spans):
            assert first.end < second.start, f"I2: {first} and {second} overlap"

    @contextmanager
    def _in_place_of_the_system(self) -> Iterator[None]:
        """Put this world under the lock's code."""
        claims: list[Any] = []
        fakes: dict[str, Any] = {
            "os": self.os,
            "time": SimpleNamespace(
                time_ns=lambda: self.wall_ns,
                monotonic_ns=lambda: self.mono_ns,
                monotonic=lambda: self.mono_ns / NS,
                sleep=self.pause,
            ),
            "lock_descriptor": lambda fd, **_: self.os.flock(fd),
            "unlock_descriptor": self.os.funlock,
            "_process": self._process,
            "_surroundings": lambda: ("host", "boot", "pids", "time"),
            "_SEEN": _Seen(self),
            "_CLAIMS": SimpleNamespace(add=claims.append),
            "_OPEN": {},
        }
        real = {name: getattr(gpu_lock, name) for name in fakes}
        try:
            for name, fake in fakes.items():
                setattr(gpu_lock, name, fake)
            yield
        finally:
            for process in self.processes.values():
                if not process.done:
                    process.crashed = True
                    self.current = process
                    process.turn.release()
                process.thread.join(30)
            self.back = threading.Semaphore(0)  # The dead have released it, too.
            for claim in claims:
                claim.fds.clear()
            for name, value in real.items():
                setattr(gpu_lock, name, value)

    def _process(self, pid: int) -> tuple[bool, int] | None:
        alive = [p for p in self.processes.values() if p.pid == pid and not p.crashed]
        return (False, pid) if alive else None


class _Seen:
    """`gpu_lock._SEEN` is a memory of each process."""

    def __init__(self, world: World) -> None:
        self.world = world

    def get(self, path: str) -> Any:
        assert self.world.current is not None
        return self.world.current.seen.get(path)

    def __setitem__(self, path: str, value: object) -> None:
        assert self.world.current is not None
        self.world.current.seen[path] = value


class FakeOs:
    """The system calls that the lock makes, each one step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.path = SimpleNamespace(
            samestat=os.path.samestat, isabs=os.path.isabs, isdir=lambda _: False, lexists=self._lexists
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)  # constants, and what only computes

    def _stat(self, inode: Inode) -> Any:
        return SimpleNamespace(
            st_dev=1,
            st_ino=inode.number,
            st_mode=0o100644,
            st_nlink=list(self.world.names.values()).count(inode),
            st_mtime=inode.mtime_ns / NS,
            st_mtime_ns=inode.mtime_ns,
        )

    def _lexists(self, path: str) -> bool:
        self.world.step("lexists", path)
        return os.fspath(path) in self.world.names

    def _inode(self, path: str | os.PathLike[str]) -> Inode:
        try:
            return self.world.names[os.fspath(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "none", os.fspath(path)) from None

    def getpid(self) -> int:
        assert self.world.current is not None
        return self.world.current.pid

    def kill(self, pid: int, _signal: int) -> None:
        if not any(p.pid == pid and not p.crashed for p in self.world.processes.values()):
            raise ProcessLookupError

    def stat(self, _path: str) -> Any:
        return SimpleNamespace(st_mode=0o40755)

    def lstat(self, path: str) -> Any:
        process = self.world.step("lstat", path)
        if os.fspath(path) == MARKER:
            process.last_look = self.world.now
        return self._stat(self._inode(path))

    def fstat(self, fd: int) -> Any:
        process = self.world.step("fstat", fd)
        return self._stat(process.fds[fd].inode)

    def open(self, path: str, flags: int, _mode: int) -> int:
        process = self.world.step("open", path, "create" if flags & os.O_CREAT else "")
        path = os.fspath(path)
        if flags & os.O_EXCL and path in self.world.names:
            raise FileExistsError(errno.EEXIST, "there", path)
        if flags & os.O_CREAT and path not in self.world.names:
            inode = self.world.new_inode(process)
            inode.foreign = process.name.startswith("stranger")
            self.world.bind(process, path, inode)
        return process.open_fd(self._inode(path))

    def close(self, fd: int) -> None:
        process = self.world.current
        assert process is not None
        if not process.crashed:  # The kernel has closed a dead one's.
            self.world.step("close", fd).close_fd(fd)

    def read_all(self, path: str) -> bytes:
        """Not a system call: what a test looks at."""
        return self._inode(path).data

    def read(self, fd: int, size: int) -> bytes:
        return self.world.step("read", fd).fds[fd].inode.data[:size]

    def write(self, fd: int, data: bytes) -> int:
        inode = self.world.step("write", fd).fds[fd].inode
        assert not inode.published, "I1: a marker was written again"
        inode.data, inode.mtime_ns = inode.data + data, self.world.wall_ns
        return len(data)

    def pwrite(self, fd: int, data: bytes, _offset: int) -> int:
        self.world.step("pwrite", fd).fds[fd].inode.data = data
        return len(data)

    def link(self, source: str, target: str, **_: object) -> None:
        process = self.world.step("link", source, target)
        inode = self._inode(source)
        if os.fspath(target) in self.world.names:
            raise FileExistsError(errno.EEXIST, "there", os.fspath(target))
        self.world.bind(process, os.fspath(target), inode)

    def unlink(self, path: str) -> None:
        process = self.world.step("unlink", path)
        self.world.removed(process, self.world.unbind(process, os.fspath(path)))

    def rename(self, source: str, target: str) -> None:
        process = self.world.step("rename", source, target)
        inode = self.world.unbind(process, os.fspath(source))
        lost = self.world.names.get(target)
        self.world.bind(process, target, inode)
        if lost:
            self.world.removed(process, lost)

    def flock(self, fd: int) -> bool:
        descriptor = self.world.step("flock", fd).fds[fd]
        if descriptor.inode.locked_by not in {None, descriptor}:
            return False
        descriptor.inode.locked_by = descriptor
        return True

    def funlock(self, fd: int) -> None:
        descriptor = self.world.step("unlock", fd).fds[fd]
        if descriptor.inode.locked_by is descriptor:
            descriptor.inode.locked_by = None


# The programs


def worker(rounds: int = 1) -> Callable[[Process], None]:
    """Take the lock, check twice, release; `rounds` times, busy or not."""

    def program(process: Process) -> None:
        world = process.world
        for _ in range(rounds):
            lock = GpuLock(MARKER, cancel=_Pause(world))
            try:
                lock.acquire()
            except VramConcurrencySaturated:
                process.outcomes.append("busy")
                continue
            hold = world.held(process, process.last_look)
            process.outcomes.append("held")
            try:
                for _check in range(2):
                    lock.check()
                    hold.end = process.last_look
            except VramConcurrencySaturated:
                process.outcomes.append("lost")
            lock.release()

    return program


def stranger(process: Process) -> None:
    """Take the path by O_CREAT | O_EXCL and JSON, hold it for some steps and remove it."""
    world = process.world
    try:
        fd = world.os.open(MARKER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        process.outcomes.append("busy")
        return
    inode, start = process.fds[fd].inode, world.now
    world.os.write(fd, b'{"pid": 1}')
    world.os.close(fd)
    hold = world.held(process, start)
    for _ in range(3):
        world.step("works")
        if world.mono_ns - inode.born_ns > gpu_lock.STALE_AFTER_S * NS:
            process.outcomes.append("stale")  # From now on it may be evicted.
            return
        there = [name for name, other in world.names.items() if other is inode]
        assert there, "a stranger's live marker is lost"
        hold.end = world.now
    process.outcomes.append("held")
    world.step("unlink", MARKER)
    if world.names.get(MARKER) is inode:
        world.unbind(process, MARKER)


class _Pause(threading.Event):
    """A cancel token that nobody sets; to wait for it takes time and ends the turn."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def wait(self, timeout: float | None = None) -> bool:
        self.world.pause(timeout)
        return False
