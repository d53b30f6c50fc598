"""The host-wide GPU lock: one worker at a time, over all processes, containers and users of a host.

The *marker* exists only while the lock is held. Its holder keeps an OS lock on the marker's own inode, which the
kernel frees at death, and every change of the marker's path is made under the *guard*, a short OS lock on a file
beside it. The specification sets the marker's name and the threshold of 65 s. There is no heartbeat: the longest
tier is 60 s, so 65 s prove a defect, and a heartbeat would keep a hung holder alive. In doubt the lock is held.
"""

# ruff: noqa: PTH108, PTH111, PTH112, PTH115, PTH116, PTH117, PTH118, PTH104
# The protocol is written in system calls; pathlib hides which one is made.

from __future__ import annotations

import atexit
import errno
import functools
import json
import os
import random
import re
import socket
import stat
import sys
import threading
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast, get_type_hints

from filelock import has_fcntl, lock_descriptor, unlock_descriptor

from vane_magic.core.errors import Cancelled, ConfigurationError, VramConcurrencySaturated

if TYPE_CHECKING:
    from collections.abc import Callable

    OnWait = Callable[["Holder | None", float], None]

STALE_AFTER_S = 65.0
"""Age in seconds over which a holder may be evicted; at exactly 65 s it still holds."""

_T = TypeVar("_T")
_NAME: Final = ".vane-gpu-worker.lock"
_PROTOCOL: Final = "vane-magic/1"
_GUARD_WAIT_S: Final = 1.0
_TOLD_AFTER_S, _TOLD_EACH_S = 1.0, 0.1
_POLL_S: Final = (0.01, 0.04)
_GUARD_POLL_S: Final = (0.001, 0.01)
_CAREFUL: Final[int] = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MAX_BYTES, _MAX_TEXT, _MAX_SIGN = 4096, 128, 40
_MOVE_IT: Final = "Set lock_path (VANE_LOCK_PATH) to a directory of this host that every worker may write."


class Holder(NamedTuple):
    """Who stands in the way, as far as that is known.

    Attributes
    ----------
    pid, worker_id, mode
        As the holder itself says, so a container's pid is its own; None or empty when unknown.
    since, age_s
        Since when (ISO 8601 in UTC, or empty), and for how many seconds (None when that cannot be told).
    ours
        Whether it follows this protocol; False for another program.
    note
        What is odd about it and what to do; mostly empty.
    """

    pid: int | None
    worker_id: str
    mode: str
    since: str
    age_s: float | None
    ours: bool
    note: str = ""

    def describe(self) -> str:
        """Return who, and since when in local time: ``pid 4711, balanced, since 12:03:11``."""
        who = f"pid {self.pid}" if self.pid else "a worker" if self.ours else "another program"
        since = ""
        if self.since:
            at, now = datetime.fromisoformat(self.since).astimezone(), datetime.now(UTC).astimezone()
            since = at.strftime("since %H:%M:%S" if at.date() == now.date() else "since %Y-%m-%d %H:%M:%S")
        return ", ".join(part for part in (who, self.mode, since) if part)


class GpuLock:
    """The host's one GPU slot, as a context manager; an instance is not reentrant.

    Whoever shares the path is excluded: instances, threads, processes, containers. A forked child neither holds nor
    frees its parent's lock.

    Parameters
    ----------
    path
        The marker's absolute path, or an existing directory for it; None for ``$HOME/.vane-gpu-worker.lock``.
    wait
        Seconds to wait for another holder; 0 gives up at once.
    mode, worker_id
        What to show to others; by default no mode and ``vane-magic@<host>:<pid>``.
    cancel
        Ends the wait when set.

    Raises
    ------
    ConfigurationError
        `path` is not absolute, or `wait` is not a number of seconds from 0 up.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        wait: float = 0.0,
        mode: str | None = None,
        worker_id: str | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        if not 0 <= wait < float("inf"):
            raise ConfigurationError(f"wait must be a number of seconds from 0 up, not {wait!r}.")
        self._path = resolve_lock_path(path)
        self._wait = wait
        self._names = worker_id or "", mode or ""
        self._cancel = cancel or threading.Event()
        self._claim: _Claim | None = None

    @property
    def held(self) -> bool:
        """Whether this instance has acquired and not released; `check` tells whether that still counts."""
        return self._claim is not None and bool(self._claim.fds)

    @property
    def acquired_at(self) -> float:
        """When this instance last acquired, in seconds of `time.monotonic`; NaN before the first time."""
        return self._claim.mono_ns / 1e9 if self._claim else float("nan")

    def acquire(self, on_wait: OnWait | None = None) -> Self:
        """Take the lock, waiting at most `wait` seconds for it, and 1 s more for a worker stuck in the guard.

        Parameters
        ----------
        on_wait
            Called on this thread with the holder and the seconds waited: first after 1 s, then each 0.1 s.

        Raises
        ------
        VramConcurrencySaturated
            Somebody else holds it; its `holder` says who.
        ConfigurationError
            The lock's place cannot be used.
        Cancelled
            The `cancel` event was set.
        """
        claim = _CLAIM(self._path, *self._names)
        try:
            self._take_turn(claim, on_wait)
            self._claim = claim
            return self  # noqa: TRY300 - an interrupt on the way out must still free the lock
        except BaseException as error:
            claim.drop()
            if isinstance(error, OSError):
                raise _unusable(self._path, error) from error
            raise

    def check(self) -> None:
        """Make sure that the lock is still ours; call it before sending and before returning a result.

        Raises
        ------
        VramConcurrencySaturated
            It was lost: evicted after 65 s, removed by hand, or never acquired by this process.
        """
        if not (self._claim and self._claim.valid()):
            holder = self.status()
            now = f"Now {holder.describe()} holds it." if holder else "Nobody holds it now."
            cause = f"It was held for over {STALE_AFTER_S:g} s, or its file was removed, or it never was ours."
            raise VramConcurrencySaturated(f"The GPU lock was lost. {now}", cause, "Ask again.", holder=holder)

    def release(self) -> None:
        """Free the lock if it is still ours; harmless when it is not, and when called again."""
        if self._claim:
            self._claim.drop()

    def status(self) -> Holder | None:
        """Return who holds the lock, or None when it is free to take; never waits.

        Raises
        ------
        ConfigurationError
            What stands at the path is no regular file or cannot be examined.
        """
        try:
            return _CLAIM(self._path, *self._names).look()
        except OSError as error:
            raise _unusable(self._path, error) from error

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _take_turn(self, claim: _Claim, on_wait: OnWait | None) -> None:
        """Try until the lock is ours, the time is up or the token is set."""
        started, tell_at = time.monotonic(), _TOLD_AFTER_S
        while not self._cancel.is_set():
            if self.held:
                claim.rival = claim.look()
            elif claim.attempt():
                return
            waited = time.monotonic() - started
            left = self._wait - waited + (0 if claim.rival else _GUARD_WAIT_S)
            if left <= 0:
                raise self._busy(claim.rival or claim.in_the_guard(), waited)
            if on_wait and waited >= tell_at:
                on_wait(claim.rival or claim.in_the_guard(), waited)
                tell_at = waited + _TOLD_EACH_S
            self._cancel.wait(min(left, random.uniform(*(_POLL_S if claim.rival else _GUARD_POLL_S))))  # noqa: S311
        raise Cancelled("Stopped while waiting for the GPU lock.")

    def _busy(self, rival: Holder, waited: float) -> VramConcurrencySaturated:
        after = f" Waited {waited:.1f} s for the GPU lock." if self._wait else ""
        hint = "Ask again when it is done, or set a longer wait (VANE_WAIT)."
        what = f"Another worker holds the GPU: {rival.describe()}.{after}"
        return VramConcurrencySaturated(what, rival.note, hint, holder=rival)


def resolve_lock_path(value: str | os.PathLike[str] | None) -> Path:
    """Return the marker's path for a value of the setting `lock_path`.

    Parameters
    ----------
    value
        The marker's absolute path, an existing directory for ``.vane-gpu-worker.lock``, or None for the home.

    Raises
    ------
    ConfigurationError
        The path is not absolute, or names a directory that is not there.
    """
    text = os.path.join(os.path.expanduser("~"), _NAME) if value is None else os.fspath(value)
    if not os.path.isabs(text) or "\0" in text:
        raise ConfigurationError(f"lock_path must be an absolute path, not {text!r}.", "", _MOVE_IT)
    if text.endswith(os.sep) and not os.path.isdir(text):
        raise ConfigurationError(f"The directory of lock_path, {text!r}, does not exist.", "", _MOVE_IT)
    return Path(text, _NAME) if os.path.isdir(text) else Path(text)


class _Claim:
    """One worker's attempt at the marker, and its hold after that."""

    def __init__(self, path: Path, worker_id: str, mode: str) -> None:
        self.path, self.worker_id, self.mode = path, worker_id, mode
        self.mono_ns = 0
        self.rival: Holder | None = None
        self.fds: list[int] = []
        _OPEN[id(self.fds)] = self.fds
        weakref.finalize(self, _forget, self.fds).atexit = False  # A forgotten hold is none.
        _CLAIMS.add(self)

    def look(self) -> Holder | None:
        """Return who is in the way, without the guard."""
        return _with_descriptor(lambda fds: _inspect(self.path, fds)[1])

    def attempt(self) -> bool:
        """Look, and take the marker if nobody is in the way; else `rival` is who is, or None for the guard's holder.

        Nobody queues at the guard: whoever has it is about to take the lock, and must not wait for it to release.
        """
        self.rival = self.look()
        with suppress(BlockingIOError):
            return not self.rival and _guarded(self.path, lambda: self._clear() and self._publish(), 0)
        return False

    def in_the_guard(self) -> Holder:
        """Return who holds the guard, as its file says."""
        raw = _read(f"{self.path}.guard", _MAX_SIGN)
        words = re.fullmatch(rb"(\d{1,9}) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00) *", raw)
        pid, since = (int(words[1]), words[2].decode()) if words else (None, "")
        note = f"It stopped in the middle of a change, with {self.path}.guard locked. Continue it or end it."
        return Holder(pid, "", "", since, None, ours=True, note=note)

    def valid(self) -> bool:
        """Whether the path is still our inode, and our age within the threshold."""
        with suppress(OSError, IndexError):
            ours = os.path.samestat(os.lstat(self.path), os.fstat(self.fds[0]))
            return ours and _age_s(self.mono_ns) <= STALE_AFTER_S
        return False

    def drop(self) -> None:
        """Let go, as death would, and clear the marker away, as the next worker would; safe to call again."""
        with suppress(OSError, ConfigurationError):
            if self.fds:
                _then(lambda: _let_go(self.fds), lambda: _guarded(self.path, self._leave, _GUARD_WAIT_S))

    def _leave(self) -> None:
        _let_go(self.fds)
        self._clear()

    def _clear(self) -> bool:
        """Clear away what is nobody's any more, and tell whether the path is free; only under the guard."""
        with suppress(FileNotFoundError):
            os.unlink(f"{self.path}.new")
        self._settle(None)
        return _with_descriptor(self._evict)

    def _evict(self, fds: list[int]) -> bool:
        """Make the path free if what stands there may go; the OS lock on it is kept until it is gone."""
        found, self.rival = _inspect(self.path, fds)
        with suppress(FileNotFoundError):
            if found and not self.rival and os.path.samestat(os.lstat(self.path), found):
                os.rename(self.path, f"{self.path}.old")
        return not self.rival and (found is None or self._settle(found))

    def _settle(self, judged: os.stat_result | None) -> bool:
        """Unlink what lies aside if it is the judged file or nobody's; else put it back and return False."""
        aside, holder = f"{self.path}.old", None
        with suppress(FileNotFoundError):
            if not (judged and os.path.samestat(os.lstat(aside), judged)):
                _, holder = _with_descriptor(lambda fds: _inspect(aside, fds))
            if holder:
                _put_back(aside, self.path)
            else:
                os.unlink(aside)
        return not holder

    def _publish(self) -> bool:
        """Link a whole and locked marker to the path; False when another program was faster."""
        private = f"{self.path}.new"
        _open(self.fds, private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        fd = self.fds[0]
        _share(fd, self.path, 0o644)
        locked = lock_descriptor(fd, blocking=False)
        self.mono_ns = time.monotonic_ns()
        data = _Record.of_us(self.worker_id, self.mode, self.mono_ns).dump()
        if not locked or os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), private)
        with suppress(FileExistsError):
            os.link(private, self.path)
        os.unlink(private)
        if not self.valid():
            _let_go(self.fds)
            self.rival = self.look()
        return bool(self.fds)


class _NativeClaim(_Claim):
    """Where there is no flock, which is Windows: the guard is locked for the whole hold, the marker only informs.

    Nobody is evicted by age. The logic is tested, but not on Windows.
    """

    def look(self) -> Holder | None:
        record = _Record.parse(self.path.read_bytes()) if self.path.is_file() else None
        return record.holder(None) if record else None

    def in_the_guard(self) -> Holder:
        return self.look() or Holder(None, "", "", "", None, ours=True)

    def attempt(self) -> bool:
        _open(self.fds, f"{self.path}.guard", os.O_RDWR | os.O_CREAT, 0o666)
        if not lock_descriptor(self.fds[0], blocking=False):
            _close(self.fds)
            self.rival = self.look()
            return False
        self.mono_ns = time.monotonic_ns()
        self.path.write_bytes(_Record.of_us(self.worker_id, self.mode, self.mono_ns).dump())
        return True

    def valid(self) -> bool:
        return bool(self.fds) and _age_s(self.mono_ns) <= STALE_AFTER_S

    def drop(self) -> None:
        if self.fds:
            self.path.unlink(missing_ok=True)
            _let_go(self.fds)


class _Record(NamedTuple):
    """The content of a marker of ours. What `/proc` hides is None, and then proves nothing."""

    protocol: str
    host: str
    boot: str | None
    pid_ns: str | None
    time_ns: str | None
    pid: int
    start: int | None
    worker_id: str
    mode: str
    token: str
    acquired_at: str
    mono_ns: int

    @classmethod
    def of_us(cls, worker_id: str = "", mode: str = "", mono_ns: int = 0) -> _Record:
        """Describe this process."""
        host, boot, pid_ns, time_ns = _surroundings()
        pid = os.getpid()
        process = _process(pid)
        start = process[1] if process else None
        worker_id = (worker_id or f"vane-magic@{host}:{pid}")[:_MAX_TEXT]
        at, token = datetime.now(UTC).isoformat(timespec="milliseconds"), os.urandom(8).hex()
        return cls(_PROTOCOL, host, boot, pid_ns, time_ns, pid, start, worker_id, mode[:_MAX_TEXT], token, at, mono_ns)

    def dump(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def parse(cls, raw: bytes) -> _Record | None:
        """Return what a marker of our protocol says; None for any other content."""
        try:
            record = cls(**cast("dict[str, Any]", json.loads(raw) if len(raw) <= _MAX_BYTES else None))
            datetime.fromisoformat(record.acquired_at).astimezone()
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None
        kinds = zip(record, get_type_hints(cls).values(), strict=True)
        typed = all(isinstance(value, kind) and not isinstance(value, bool) for value, kind in kinds)
        known = typed and record.protocol == _PROTOCOL and 0 < record.pid < 2**31 and 0 <= record.mono_ns < 2**63
        return record if known else None

    def holder(self, age_s: float | None, note: str = "") -> Holder:
        worker_id, mode = ("".join(c if c.isprintable() else "?" for c in text) for text in (self.worker_id, self.mode))
        return Holder(self.pid, worker_id, mode, self.acquired_at, age_s, ours=True, note=note)

    def judge(self, path: str, *, free: bool) -> Holder | None:
        """Return who holds this marker, or None when it may be evicted."""
        host, boot, pid_ns, time_ns = _surroundings()
        same_boot = self.boot == boot
        if self.host != host and not (same_boot and boot):
            note = f"{path} was made on the host {self.host!a}, so this directory is shared between hosts."
            return self.holder(None, f"{note} {_MOVE_IT} If that worker is gone, delete the file.")
        same_clock = same_boot and time_ns is not None and self.time_ns == time_ns
        same_pids = same_boot and pid_ns is not None and self.pid_ns == pid_ns
        age = _age_s(self.mono_ns) if same_clock else None
        stale = age is not None and age > STALE_AFTER_S
        return None if free or stale or (same_pids and self._is_gone(same_clock=same_clock)) else self.holder(age)

    def _is_gone(self, *, same_clock: bool) -> bool:
        """Whether the process has ended or its number was given away; asked only in its own PID namespace."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # It lives, as another user.
        zombie, start = _process(self.pid) or (False, None)
        return zombie or (same_clock and None not in (start, self.start) and start != self.start)


def _inspect(path: str | Path, fds: list[int]) -> tuple[os.stat_result | None, Holder | None]:
    """Return what stands at the path and who holds it; no holder means that it may be evicted."""
    found = None
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"The GPU lock {path} is not a regular file.", "", f"Remove it. {_MOVE_IT}")
        _open(fds, path, os.O_RDONLY | _CAREFUL)
    except FileNotFoundError:
        return None, None
    except PermissionError:
        if not found:
            raise
        note = f"{path} cannot be read, so nobody can tell. Make it readable, or delete it if no worker runs."
        return None, Holder(None, "", "", "", None, ours=False, note=note)
    found = os.fstat(fds[0])
    free = lock_descriptor(fds[0], blocking=False)
    raw = os.read(fds[0], _MAX_BYTES + 1)
    record = _Record.parse(raw)
    return found, record.judge(str(path), free=free) if record else _judge_stranger(str(path), found, raw, free=free)


def _judge_stranger(path: str, found: os.stat_result, raw: bytes, *, free: bool) -> Holder | None:
    """Return who holds a marker that another program made, or None when it may be evicted.

    Its age counts by its mtime at first sight and from then on by our own clock, so that a step of the wall clock
    ages nothing while we look, and a time in the future counts from first sight.
    """
    key = found.st_dev, found.st_ino, found.st_mtime_ns
    seen = _SEEN.get(path)
    if seen is None or seen[0] != key:
        seen = _SEEN[path] = key, max(time.time_ns() - found.st_mtime_ns, 0) / 1e9, time.monotonic_ns()
    age = seen[1] + _age_s(seen[2])
    if free and age > STALE_AFTER_S:
        return None
    since = ""
    with suppress(ValueError, OverflowError, OSError):  # Its time may lie beyond the calendar.
        since = datetime.fromtimestamp(found.st_mtime).astimezone(UTC).isoformat(timespec="milliseconds")
    pid = re.match(rb'\s{0,9}(?:\{[^}]{0,999}?"pid"\s{0,9}:\s{0,9})?(\d{1,9})\b', raw)
    note = f"Another program made {path}{'.' if free else ', and something holds an OS lock on it.'}"
    return Holder(int(pid[1]) if pid else None, "", "", since, age, ours=False, note=note)


@functools.cache
def _surroundings() -> tuple[str, str | None, str | None, str | None]:
    """Return this process's host name, boot, PID namespace and time namespace; None for what `/proc` hides."""
    boot = pid_ns = time_ns = None
    with suppress(OSError):
        boot = _read("/proc/sys/kernel/random/boot_id", 40).decode().strip()
    with suppress(OSError):
        pid_ns = str(os.stat("/proc/self/ns/pid").st_ino)
    if pid_ns or sys.platform != "linux":
        time_ns = "one"  # An old kernel has one clock for all, and so has another system.
    with suppress(OSError):
        time_ns = str(os.stat("/proc/self/ns/time").st_ino)
    return socket.gethostname(), boot, pid_ns, time_ns


def _process(pid: int) -> tuple[bool, int] | None:
    """Return whether a process is a mere zombie, and its start in clock ticks; None when `/proc` does not tell."""
    with suppress(OSError, ValueError, IndexError):
        if os.readlink("/proc/self") == str(os.getpid()):  # else it is another PID namespace's /proc
            words = _read(f"/proc/{pid}/stat", _MAX_BYTES).rpartition(b")")[2].split()
            return words[0] in {b"Z", b"X"} and int(words[17]) <= 1, int(words[19])
    return None


def _age_s(since_ns: int) -> float:
    return (time.monotonic_ns() - since_ns) / 1e9


def _guarded(path: Path, action: Callable[[], _T], wait: float) -> _T:
    """Run `action` while no other worker changes the path; meanwhile the guard's file names us."""

    def act(fds: list[int]) -> _T:
        deadline = time.monotonic() + wait
        _open(fds, f"{path}.guard", os.O_RDWR | os.O_CREAT | _CAREFUL, 0o600)
        _share(fds[0], path, 0o666)
        while not lock_descriptor(fds[0], blocking=False):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EAGAIN, "the guard is locked", f"{path}.guard")
            time.sleep(_GUARD_POLL_S[0])
        if not os.fstat(fds[0]).st_nlink:
            raise BlockingIOError(errno.EAGAIN, "the guard was deleted", f"{path}.guard")
        os.pwrite(fds[0], f"{os.getpid()} {datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}".ljust(_MAX_SIGN).encode(), 0)
        result = action()
        os.pwrite(fds[0], b" " * _MAX_SIGN, 0)
        return result

    return _with_descriptor(act)


def _put_back(aside: str, path: Path) -> None:
    """Return a file that was renamed by mistake, unless the path was taken meanwhile."""
    try:
        os.link(aside, path, follow_symlinks=False)
    except FileExistsError:
        pass
    except PermissionError:  # The kernel may forbid links to another user's file.
        if not os.path.lexists(path):
            return os.rename(aside, path)
    return os.unlink(aside)


def _with_descriptor(action: Callable[[list[int]], _T]) -> _T:
    """Run `action` with a list for its descriptor; whatever happens, that is unlocked and closed."""
    fds: list[int] = []
    _OPEN[id(fds)] = fds
    return _then(lambda: _forget(fds), lambda: action(fds))


def _then(clean_up: Callable[[], None], action: Callable[[], _T]) -> _T:
    """Run `action`, then `clean_up`, also when an interrupt falls between the two, as it can before `finally`."""
    try:
        result = action()
        clean_up()
    except BaseException:
        clean_up()
        raise
    return result


def _read(path: str, size: int) -> bytes:
    def read(fds: list[int]) -> bytes:
        _open(fds, path, os.O_RDONLY | _CAREFUL)
        return os.read(fds[0], size)

    return _with_descriptor(read)


def _open(fds: list[int], path: str | Path, flags: int, mode: int = 0) -> None:
    """Open into a list by one chain of C calls, so that an interrupt cannot lose the descriptor."""
    fds.extend(map(os.open, (path,), (flags,), (mode,)))


def _let_go(fds: list[int]) -> None:
    """Unlock and close; else a child forked meanwhile, or past Python's hooks, would keep the OS lock."""
    _then(lambda: _close(fds), lambda: list(map(unlock_descriptor, fds)))


def _forget(fds: list[int]) -> None:
    _let_go(fds)
    _OPEN.pop(id(fds), None)


def _close(fds: list[int]) -> None:
    """Close what is in the list, by one chain of C calls too."""
    with suppress(IndexError):
        while fds:
            list(map(os.close, map(fds.pop, (0,))))


def _share(fd: int, path: Path, mode: int) -> None:
    """Where others may write the directory, let them use our file, whatever the umask."""
    if os.stat(path.parent).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        with suppress(PermissionError):  # Only its owner may, and has.
            os.fchmod(fd, mode)


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    """Say which file cannot be used and why; never that the GPU is busy."""
    what = f"The GPU lock cannot be used: {error.filename or path}: {error.strerror or error}."
    cause = "The file system has no hard links, or the directory is sticky and the file another user's."
    return ConfigurationError(what, cause if error.errno == errno.EPERM else "", _MOVE_IT)


def _in_a_forked_child() -> None:
    """Leave the parent's locks to the parent; and the child may be in other namespaces."""
    _surroundings.cache_clear()
    for fds in list(_OPEN.values()):
        _close(fds)


@atexit.register
def _drop_all() -> None:
    for claim in list(_CLAIMS):
        claim.drop()


_OPEN: Final[dict[int, list[int]]] = {}
_CLAIMS: Final[weakref.WeakSet[_Claim]] = weakref.WeakSet()
_SEEN: Final[dict[str, tuple[tuple[int, ...], float, int]]] = {}
_CLAIM: Final = _Claim if has_fcntl else _NativeClaim
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_forked_child)
