"""Real processes that do with a GPU lock what a test tells them: hold, fork, hang, die at a given system call."""

from __future__ import annotations

import atexit
import codecs
import ctypes
import functools
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from vane_magic.core import gpu_lock
from vane_magic.core.errors import VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 30.0  # a test that waits longer than this for a puppet has failed

STEPS = {"open", "close", "read", "write", "pwrite", "lstat", "fstat", "link", "unlink", "rename", "fchmod"}


class Puppet:
    """A process with one `GpuLock`, steered over a pipe.

    `puppet("name", ...)` runs the method `name` of `Actions` there and returns or raises what it does; `ask` and
    `answer` are its two halves.
    """

    def __init__(self, path: Path, *, stale_after: float = 65.0, **options: Any) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = _nursery().fork(theirs.fileno())
        self._pipe = Connection(ours.detach())
        self._pipe.send((path, stale_after, options))

    def __call__(self, name: str, *args: Any) -> Any:
        self.ask(name, *args)
        return self.answer()

    def ask(self, name: str, *args: Any) -> None:
        self._pipe.send((name, args))

    def answer(self, patience: float = PATIENCE_S) -> Any:
        assert self._pipe.poll(patience), "the puppet does not answer"
        fine, value = self._pipe.recv()
        if not fine:
            raise value
        return value

    def kill(self) -> None:
        """Kill it, and return when the kernel is done with it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.await_death()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.await_stop()

    def await_stop(self) -> None:
        """Return when the process stands still."""
        wait_until(lambda: proc_state(self.pid) in "Tt")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def await_death(self) -> None:
        wait_until(lambda: not Path(f"/proc/{self.pid}").exists())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()


class _Nursery:
    """A process with one thread that has the lock imported and only forks, so that a puppet is there at once."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, "nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment())
        atexit.register(self.close)

    def fork(self, fd: int) -> int:
        socket.send_fds(self._control, [b"fork"], [fd])
        return int(self._control.recv(20))

    def close(self) -> None:
        self._control.close()
        self._process.wait(PATIENCE_S)

    @staticmethod
    def serve(control: socket.socket) -> None:
        with tempfile.TemporaryDirectory() as place, GpuLock(place):
            try_lock(place)  # imports what is imported at first use, while this user may read it
            codecs.lookup("ascii")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        while True:
            _, fds, _, _ = socket.recv_fds(control, 20, 1)
            if not fds:
                return
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                _serve(Connection(fds[0]))
            os.close(fds[0])
            control.send(str(child).encode())


_nursery = functools.cache(_Nursery)


def environment() -> dict[str, str]:
    """An environment in which a new interpreter finds the package and the tests' helpers."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def proc_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def wait_until(true: Callable[[], object], patience: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, "what the test waits for does not happen"
        time.sleep(0.002)


def _serve(pipe: Connection) -> NoReturn:
    path, gpu_lock.STALE_AFTER_S, options = pipe.recv()
    actions = Actions(GpuLock(path, **options))
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            reply = True, getattr(actions, name)(*args)
        except BaseException as error:  # noqa: BLE001 - the test gets it
            reply = False, error
        pipe.send(reply)


class Actions:
    """What a puppet can do."""

    def __init__(self, lock: GpuLock) -> None:
        self.lock = lock

    def pid(self) -> int:
        return os.getpid()

    def acquire(self) -> float:
        """Acquire, and tell when that was done (the monotonic clock is the host's)."""
        self.lock.acquire()
        return time.monotonic()

    def acquired_at(self) -> float:
        return self.lock.acquired_at

    def check(self) -> None:
        self.lock.check()

    def release(self) -> None:
        self.lock.release()

    def held(self) -> bool:
        return self.lock.held

    def take_turn(self, hold_s: float) -> tuple[float, float]:
        """Wait, hold and leave; tell from when to when it was held."""
        with self.lock:
            start = time.monotonic()
            time.sleep(hold_s)
            self.lock.check()
            return start, time.monotonic()

    def wait_interrupted(self) -> float:
        """Acquire until a KeyboardInterrupt; tell how long the waiting went on after the signal."""
        sent: list[float] = []

        def interrupt() -> None:
            time.sleep(0.3)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            self.lock.acquire()
        except KeyboardInterrupt:
            return time.monotonic() - sent[0]
        raise AssertionError("not interrupted")

    def hang(self, seconds: float) -> None:
        """Keep the main thread busy, while another thread lives."""
        threading.Thread(target=time.sleep, args=(seconds,)).start()
        time.sleep(seconds)

    def fork(self) -> int:
        """Fork a child that lives until it is killed, by Python's own fork."""
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        return child

    def fork_in_the_guard(self) -> int:
        """Fork such a child while this process is changing the path."""
        return gpu_lock._guarded(self.lock._path, self.fork, 1)

    def raw_fork(self) -> int:
        """The same by a fork that runs no hook of Python's: the child keeps the descriptor."""
        libc = ctypes.PyDLL(None)
        child = libc.fork()
        while child == 0:
            libc.pause()
        return child

    def spawn(self) -> int:
        """Start another program that lives until it is killed, with all descriptors that may be inherited."""
        return subprocess.Popen(["sleep", "1000"], close_fds=False).pid

    def exec(self) -> None:
        """Become another program: same pid, same start."""
        os.execlp("sleep", "sleep", "1000")

    def in_child(self, name: str) -> Any:
        """Fork a child that does something with the inherited lock; return or raise what came of it."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            try:
                theirs.send(getattr(self, name)())
            except BaseException as error:  # noqa: BLE001 - the parent gets it
                theirs.send(error)
            os._exit(0)
        os.waitpid(child, 0)
        reply = ours.recv()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def try_fresh(self) -> str:
        """Try a lock of our own on the same path."""
        return try_lock(self.lock._path)

    def pool(self, wait: float) -> list[str]:
        """Let the children of a `multiprocessing` pool take turns."""
        with multiprocessing.get_context("fork").Pool(3) as pool:
            return pool.starmap(try_lock, [(self.lock._path, wait)] * 6)

    def limit(self, kind: str, soft: int) -> tuple[int, int]:
        which = getattr(resource, kind)
        before = resource.getrlimit(which)
        resource.setrlimit(which, (soft, before[1]))
        return before

    def open_files(self) -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def become(self, uid: int, umask: int) -> None:
        """Go on as another user."""
        os.umask(umask)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def after_step(self, number: int, sent: int) -> None:
        """From the `number`-th system call of the lock on: send ourselves a signal right after that call."""
        _Stepper(number, sent).step_in()

    def before_call(self, name: str, sent: int) -> None:
        """Send ourselves a signal right before a system call of that name."""
        _Stepper(0, sent, name).step_in()


def try_lock(path: Path | str, wait: float = 0.0) -> str:
    """Take the lock for a moment, or tell who is in the way."""
    try:
        with GpuLock(path, wait=wait) as lock:
            lock.check()
            return "held"
    except VramConcurrencySaturated as error:
        return f"busy {error.holder.pid if error.holder else None}"


class _Stepper:
    """The lock's system calls, counted."""

    def __init__(self, number: int, sent: int, before: str = "") -> None:
        self._left, self._sent, self._before = number, sent, before

    def step_in(self) -> None:
        vars(gpu_lock).update(
            os=self,
            lock_descriptor=self._counted("flock", gpu_lock.lock_descriptor),
            unlock_descriptor=self._counted("unlock", gpu_lock.unlock_descriptor),
        )

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._counted(name, real) if name in STEPS else real

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if name == self._before:
                os.kill(os.getpid(), self._sent)
            result = real(*args, **options)
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._sent)
            return result

        return counted


if __name__ == "__main__":
    if sys.argv[1] == "nursery":
        _Nursery.serve(socket.socket(fileno=int(sys.argv[2])))
    else:  # a holder that is the test's own child, so that nobody else reaps it
        held = GpuLock(sys.argv[1]).acquire()
        print("held", flush=True)
        time.sleep(1000)
