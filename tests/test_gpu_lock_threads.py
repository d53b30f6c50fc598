"""The GPU lock inside one process: threads, clients, asyncio tasks, and interrupts at every instruction."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import pytest

from vane_magic.core import gpu_lock
from vane_magic.core.errors import Cancelled, VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

NEVER = 60.0


class Counter:
    """How many are inside at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def visit(self, lock: GpuLock) -> None:
        with lock:
            self.now += 1
            self.most = max(self.most, self.now)
            time.sleep(0.005)
            lock.check()
            self.now -= 1


@pytest.mark.parametrize("shared", [False, True])
def test_threads_exclude_each_other(lock_path: Path, shared: bool) -> None:
    """Eight threads, each with a lock of its own or all with one: never two inside."""
    counter = Counter()
    one = GpuLock(lock_path, wait=NEVER)
    with ThreadPoolExecutor(8) as pool:
        locks = [one if shared else GpuLock(lock_path, wait=NEVER) for _ in range(24)]
        list(pool.map(counter.visit, locks))
    assert (counter.now, counter.most) == (0, 1)


def test_asyncio_tasks_exclude_each_other(lock_path: Path) -> None:
    """Tasks that hold the lock in worker threads take turns."""
    counter = Counter()

    async def visit_all() -> None:
        await asyncio.gather(*(asyncio.to_thread(counter.visit, GpuLock(lock_path, wait=NEVER)) for _ in range(8)))

    asyncio.run(visit_all())
    assert counter.most == 1


def test_a_cancelled_task_leaves_nothing(lock_path: Path) -> None:
    """Stopped by its token while it waits or while it holds: the thread ends and the lock is free."""
    inside: queue.Queue[str] = queue.Queue()
    tokens = {"a": threading.Event(), "b": threading.Event()}

    def work(name: str) -> None:
        with GpuLock(lock_path, wait=NEVER, cancel=tokens[name]):
            inside.put(name)
            tokens[name].wait(NEVER)

    async def scenario() -> None:
        tasks = {name: asyncio.create_task(asyncio.to_thread(work, name)) for name in tokens}
        holder = await asyncio.to_thread(inside.get)
        waiter = "ab".replace(holder, "")
        tokens[waiter].set()
        with pytest.raises(Cancelled):
            await tasks[waiter]
        tokens[holder].set()
        await tasks[holder]

    asyncio.run(scenario())
    GpuLock(lock_path).acquire().release()


def test_a_forgotten_lock_is_free(lock_path: Path) -> None:
    """A holder that was dropped without release does not block its own process."""
    forgotten = GpuLock(lock_path).acquire()
    del forgotten
    gc.collect()
    with GpuLock(lock_path) as lock:
        lock.check()


# Interrupts


class Interrupt:
    """Raise KeyboardInterrupt before the n-th instruction of the traced files."""

    def __init__(self, number: int, *files: str) -> None:
        self.left, self.files = number, files
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Interrupt | None:
        if not frame.f_code.co_filename.startswith(self.files) or (event == "call" and in_finalizer(frame)):
            return None  # An interrupt in a finalizer is lost by Python itself.
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self

    def strikes(self, action: Callable[[], object]) -> bool:
        """Run the action; tell whether the interrupt came."""
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at this only when tracing begins.
        sys.settrace(self)
        try:
            action()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return self.left <= 0


def in_finalizer(frame: FrameType | None) -> bool:
    while frame and frame.f_code.co_filename != weakref.__file__:
        frame = frame.f_back
    return frame is not None


def files() -> list[str]:
    """List what this process has open."""
    links = (Path(f"/proc/self/fd/{fd}") for fd in range(256))
    return sorted(str(link.readlink()) for link in links if link.is_symlink())


def take_turn(lock_path: Path) -> None:
    with GpuLock(lock_path, mode="speed") as lock:
        lock.check()


def evict(lock_path: Path) -> None:
    lock_path.write_bytes(b"stranger")
    os.utime(lock_path, (1, 1))
    take_turn(lock_path)


def meet_busy(lock_path: Path) -> None:
    lock_path.write_bytes(b"stranger")
    with pytest.raises(VramConcurrencySaturated):
        take_turn(lock_path)
    lock_path.unlink()


def evict_and_keep(lock_path: Path, kept: list[object]) -> None:
    """Evict a stranger; whatever the lock raised stays alive, with its frames, as in a notebook."""
    lock_path.write_bytes(b"stranger")
    os.utime(lock_path, (1, 1))
    lock = GpuLock(lock_path)
    kept.append(lock)
    try:
        lock.acquire()
    except KeyboardInterrupt as error:
        kept.append(error)
        raise
    try:
        lock.release()
    except KeyboardInterrupt as error:
        kept.append(error)
        lock.release()
        raise


def interrupt_everywhere(lock_path: Path, action: Callable[[Path], None], stride: int, *traced: str) -> int:
    """Interrupt the action at each `stride`-th instruction; after each, the lock is free and nothing is left."""
    action(lock_path)
    open_files = files()
    for number in range(1, 10**6, stride):
        interrupt = Interrupt(number, *traced)
        if not interrupt.strikes(lambda: action(lock_path)):
            return number
        assert_all_is_clear(lock_path, interrupt.where)
        if len(traced) == 1:  # filelock may lose a descriptor, though not the lock on it.
            assert files() == open_files, f"a descriptor leaked at {interrupt.where}"
    raise AssertionError("no end")


def assert_all_is_clear(lock_path: Path, where: str) -> None:
    if lock_path.exists() and lock_path.read_bytes() == b"stranger":
        os.utime(lock_path, (1, 1))
    try:
        with GpuLock(lock_path) as lock:
            lock.check()
    except VramConcurrencySaturated as error:
        raise AssertionError(f"held after an interrupt at {where}") from error
    assert {path.name for path in lock_path.parent.glob(lock_path.name + "*")} == {lock_path.name + ".guard"}, where


@pytest.mark.parametrize("action", [take_turn, evict, meet_busy])
def test_an_interrupt_at_any_instruction_leaves_nothing_held(lock_path: Path, action: Any) -> None:
    """Ctrl-C anywhere in acquire, check or release: the next worker gets the lock at once, no file is left open."""
    assert interrupt_everywhere(lock_path, action, 89, gpu_lock.__file__) > 500


def test_an_interrupt_leaves_nothing_held_while_its_traceback_lives(lock_path: Path) -> None:
    """A notebook keeps the last exception with all its frames; the lock does not rely on their end."""
    kept: list[object] = []
    interrupt_everywhere(lock_path, lambda path: evict_and_keep(path, kept), 97, gpu_lock.__file__)
    assert len(kept) > 10


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Interrupts in filelock's __del__.
@pytest.mark.parametrize("action", [take_turn, evict, meet_busy])
def test_an_interrupt_at_really_any_instruction_of_ours_and_filelocks(lock_path: Path, action: Any) -> None:
    """The same at every single instruction, and in the library that makes the guard."""
    assert interrupt_everywhere(lock_path, action, 1, gpu_lock.__file__) > 500
    library = str(Path(filelock.__file__).parent)
    assert interrupt_everywhere(lock_path, action, 7, gpu_lock.__file__, library) > 500
