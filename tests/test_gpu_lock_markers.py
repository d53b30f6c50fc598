"""What may stand at the lock's path, and what the lock makes of it: strangers, other boots and hosts, odd files."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock, Timeout
from hypothesis import given, settings
from hypothesis import strategies as st

from vane_magic.core import gpu_lock
from vane_magic.core.errors import ConfigurationError, VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR_NS = 3600 * 10**9


def assert_busy(lock_path: Path, match: str | None = None) -> gpu_lock.Holder:
    before = os.lstat(lock_path)
    with pytest.raises(VramConcurrencySaturated, match=match) as caught:
        GpuLock(lock_path).acquire()
    assert os.path.samestat(before, os.lstat(lock_path))
    assert caught.value.holder is not None
    return caught.value.holder


def assert_taken(lock_path: Path) -> None:
    with GpuLock(lock_path) as lock:
        lock.check()
    assert {path.name for path in lock_path.parent.glob(lock_path.name + "*")} == {lock_path.name + ".guard"}


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


@contextmanager
def os_locked(path: Path) -> Iterator[None]:
    """Hold an OS lock on the file as another process would: on a descriptor of its own."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Strangers

STRANGERS = {
    "json": b'{"worker_id": "other", "pid": 4711, "acquired_at": 1}',
    "pid": b"4711\n",
    "empty": b"",
    "filelock": b"4711\nhost\n123456\n",
    "binary": bytes(range(256)),
    "deep": b"[" * 4000,
    "numbers": b"9" * 4000,
    "long": b'{"protocol": "vane-magic/1"}' + b" " * 10000,
    "wrong protocol": b'{"protocol": "vane-magic/2"}',
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_marker_is_respected_for_65_s(lock_path: Path, name: str) -> None:
    """Whatever it says: a young one is left alone, an old one is evicted at once."""
    lock_path.write_bytes(STRANGERS[name])
    age(lock_path, 60)
    holder = assert_busy(lock_path, "Another program made ")
    assert not holder.ours
    assert holder.age_s is not None
    assert 59 < holder.age_s < 65
    age(lock_path, 66)
    assert_taken(lock_path)


def test_a_strangers_pid_is_named(lock_path: Path) -> None:
    """Where its content tells a pid, the message does too."""
    for name, pid in (("json", 4711), ("pid", 4711), ("filelock", 4711), ("empty", None)):
        lock_path.write_bytes(STRANGERS[name])
        assert assert_busy(lock_path).pid == pid


def test_a_strangers_os_lock_is_respected_for_ever(lock_path: Path) -> None:
    """The age of a file that somebody has locked proves nothing."""
    lock_path.write_bytes(b"")
    age(lock_path, 10**6)
    with os_locked(lock_path):
        assert_busy(lock_path, "OS lock")
    assert_taken(lock_path)


def test_filelock_at_the_same_path_and_this_lock_exclude_each_other(lock_path: Path) -> None:
    """In both orders, and each gets its turn when the other is done."""
    with FileLock(lock_path):
        assert_busy(lock_path)
    age(lock_path, 66)  # filelock leaves its empty file behind
    with GpuLock(lock_path), pytest.raises(Timeout):
        FileLock(lock_path, timeout=0.2).acquire()
    FileLock(lock_path, timeout=0.2).acquire().lock.release()


def test_a_marker_from_the_future_is_evicted_after_65_s_of_watching(
    lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its age counts from first sight by our own clock, and starts again when it changes."""
    clock = fake_clock(monkeypatch)
    lock_path.write_bytes(b"x")
    age(lock_path, -3600)
    assert_busy(lock_path)
    clock.leap(60)
    assert_busy(lock_path)
    age(lock_path, -7200)  # touched: a living program
    clock.leap(1)
    assert_busy(lock_path)
    clock.leap(65.001)
    assert_taken(lock_path)


@pytest.mark.parametrize("step", [HOUR_NS, -HOUR_NS])
def test_a_step_of_the_wall_clock_steals_nothing(lock_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """An hour forward or back, while one of ours holds, and while a stranger that we have seen holds."""
    clock = fake_clock(monkeypatch)
    with GpuLock(lock_path) as lock:
        clock.wall_ns += step
        assert_busy(lock_path)
        lock.check()
    lock_path.write_bytes(b"stranger")
    os.utime(lock_path, ns=(clock.time_ns(),) * 2)
    assert_busy(lock_path)
    clock.wall_ns += step
    assert_busy(lock_path)
    clock.leap(66)
    assert_taken(lock_path)


def test_a_time_beyond_the_calendar_is_only_not_shown(lock_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile file time does no harm."""
    lock_path.write_bytes(b"x")
    found = lock_path.stat()
    stat = SimpleNamespace(st_dev=1, st_ino=1, st_mtime=1e18, st_mtime_ns=10**27, st_mode=found.st_mode)
    holder = gpu_lock._judge_stranger(str(lock_path), stat, b"", free=True)  # type: ignore[arg-type]
    assert holder is not None
    assert holder.describe() == "another program"


class Clock:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall_ns = self.mono_ns = 0

    def leap(self, seconds: float) -> None:
        self.wall_ns += round(seconds * 1e9)
        self.mono_ns += round(seconds * 1e9)

    def time_ns(self) -> int:
        return time.time_ns() + self.wall_ns

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self.mono_ns

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9


def fake_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(gpu_lock, "time", clock)
    return clock


# Markers of ours, from elsewhere


def forge(lock_path: Path, **changes: Any) -> None:
    """Leave a marker as a worker of ours on this host would, but for the changes."""
    with GpuLock(lock_path):
        record = json.loads(lock_path.read_text())
    lock_path.write_text(json.dumps(record | changes))


ELSEWHERE = {"boot": "another-boot"}
GONE = 2**31 - 1  # above Linux's highest pid


def old_ns() -> int:
    return time.monotonic_ns() - 66 * 10**9


def test_a_marker_whose_process_is_gone_is_evicted_though_something_holds_its_descriptor(lock_path: Path) -> None:
    """A child that inherited the descriptor is not the worker."""
    forge(lock_path, pid=GONE)
    with os_locked(lock_path):
        assert_taken(lock_path)


def test_a_recycled_pid_is_not_the_worker(lock_path: Path) -> None:
    """The same number with another start time is another process."""
    forge(lock_path, pid=os.getppid(), start=1)
    with os_locked(lock_path):
        assert_taken(lock_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": GONE, "pid_ns": "another"},
        {"pid": GONE, "pid_ns": None},
        {"start": 1, "time_ns": "another"},
        {"start": 1, "time_ns": None},
        {"start": None},
        {"mono_ns": 1, "time_ns": "another", "pid_ns": "another"},
        {"mono_ns": 2**62},
        {"boot": "another-boot"},
        {"boot": None},
    ],
    ids=str,
)
def test_in_doubt_the_lock_is_held(lock_path: Path, changes: dict[str, Any]) -> None:
    """Another namespace, a hidden /proc, a clock of another boot prove nothing while the OS lock is held."""
    forge(lock_path, **changes)
    with os_locked(lock_path):
        assert assert_busy(lock_path).ours
    assert_taken(lock_path)


def test_age_decides_on_the_same_clock_whatever_the_pid_namespace(lock_path: Path) -> None:
    """Another container's holder past 65 s is evicted although its pid means nothing here."""
    forge(lock_path, pid_ns="another", host="container", mono_ns=old_ns())
    with os_locked(lock_path):
        assert_taken(lock_path)


def test_a_marker_from_before_a_reboot_is_evicted(lock_path: Path) -> None:
    """Our host's name and another boot: that worker cannot live."""
    forge(lock_path, **ELSEWHERE, mono_ns=2**62)
    assert_taken(lock_path)


def test_another_hosts_marker_is_respected_for_ever(lock_path: Path) -> None:
    """The message says that the directory is shared between hosts, and how to move the lock."""
    forge(lock_path, **ELSEWHERE, host="box-b", mono_ns=1)
    age(lock_path, 10**6)
    holder = assert_busy(lock_path, r"box-b.*shared between hosts.*VANE_LOCK_PATH")
    assert holder.age_s is None


def test_a_container_of_this_boot_is_ours_whatever_its_name(lock_path: Path) -> None:
    """Containers differ in host name; a free OS lock is proof enough of death."""
    forge(lock_path, host="container")
    assert_taken(lock_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": "1"},
        {"pid": 0},
        {"pid": -1},
        {"pid": 2**40},
        {"pid": True},
        {"mono_ns": 1.5},
        {"mono_ns": 10**400},
        {"start": "1"},
        {"boot": 1},
        {"host": None},
        {"acquired_at": "yesterday"},
        {"acquired_at": "0001-01-01T00:00:00"},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_marker_that_only_looks_like_ours_is_a_strangers(lock_path: Path, changes: dict[str, Any]) -> None:
    """A wrong type or value anywhere proves nothing, and does no harm."""
    forge(lock_path, **changes)
    assert not assert_busy(lock_path).ours


@settings(max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=200) | st.lists(st.none() | st.integers() | st.text()).map(json.dumps).map(str.encode))
def test_no_content_breaks_the_reading(raw: bytes) -> None:
    """Any bytes are either our record or a stranger's."""
    assert gpu_lock._Record.parse(raw) is None


@settings(max_examples=100, deadline=None, database=None)
@given(st.text(), st.text())
def test_any_worker_and_mode_fit_into_a_marker_and_a_message(worker_id: str, mode: str) -> None:
    """Names are cut, kept on one line and free of control characters."""
    raw = gpu_lock._Record.of_us(worker_id, mode, 1).dump()
    record = gpu_lock._Record.parse(raw)
    assert record is not None
    assert record.holder(1.0).describe().isprintable()
    assert record.holder(1.0).worker_id.isprintable()


# Files that are no marker


@pytest.mark.parametrize("kind", ["directory", "fifo", "symlink", "dangling symlink", "socket"])
def test_what_is_no_regular_file_is_a_configuration_error(
    lock_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It is not touched, not followed, not waited for, and named."""
    lock, target = GpuLock(lock_path), lock_path.with_name("target")
    if kind == "directory":
        (lock_path / "full").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(lock_path)
    elif kind == "socket":
        monkeypatch.chdir(lock_path.parent)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(lock_path.name)
    else:
        lock_path.symlink_to(target)
        if kind == "symlink":
            target.write_text("precious")
            age(target, 10**6)
    for act in (lock.acquire, lock.status):
        with pytest.raises(ConfigurationError, match=r"not a regular file.*VANE_LOCK_PATH"):
            act()
    assert not target.exists() or target.read_text() == "precious"


def test_a_gigabyte_is_not_read(lock_path: Path) -> None:
    """A huge marker is a stranger's, judged by its first 4 kB."""
    with lock_path.open("wb") as file:
        file.truncate(2**30)
    started = time.monotonic()
    assert not assert_busy(lock_path).ours
    age(lock_path, 66)
    assert_taken(lock_path)
    assert time.monotonic() - started < 5


def test_another_name_of_the_markers_file_is_untouched(lock_path: Path) -> None:
    """When the path is a hard link to somebody's file, eviction removes the name and not the content."""
    precious = lock_path.with_name("precious")
    precious.write_text("precious")
    age(precious, 10**6)
    os.link(precious, lock_path)
    assert_taken(lock_path)
    assert precious.read_text() == "precious"
    assert precious.stat().st_nlink == 1


@pytest.mark.parametrize("content", ["stale", "fresh"])
def test_what_an_evictor_left_aside_goes_or_comes_back(lock_path: Path, content: str) -> None:
    """After its death the next worker judges it again: a stale marker goes, a stranger's live one returns."""
    aside = lock_path.with_name(lock_path.name + ".old")
    lock_path.with_name(lock_path.name + ".new").write_text("half")
    aside.write_text("stranger")
    if content == "stale":
        age(aside, 66)
        assert_taken(lock_path)
        return
    with pytest.raises(VramConcurrencySaturated):
        GpuLock(lock_path).acquire()
    assert lock_path.read_text() == "stranger"
    assert not aside.exists()


def test_a_file_put_back_gives_way_to_one_that_came_meanwhile(lock_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the kernel forbids links to another user's file."""

    def forbid(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    for link in (os.link, forbid):
        monkeypatch.setattr(gpu_lock, "os", SimpleNamespace(**{**vars(os), "link": link}))
        for there in (False, True):
            aside = lock_path.with_name("aside")
            aside.write_text("put back")
            lock_path.unlink(missing_ok=True)
            if there:
                lock_path.write_text("came")
            gpu_lock._put_back(str(aside), lock_path)
            assert lock_path.read_text() == ("came" if there else "put back")
            assert not aside.exists()


# The marker is lost, or cannot be made


def test_a_marker_deleted_by_hand_is_noticed(lock_path: Path) -> None:
    """`check` fails, others may have the lock, and the loser's release leaves it alone."""
    loser = GpuLock(lock_path).acquire()
    lock_path.unlink()
    with pytest.raises(VramConcurrencySaturated, match="lost"):
        loser.check()
    with GpuLock(lock_path) as lock:
        with pytest.raises(VramConcurrencySaturated, match="lost"):
            loser.check()
        loser.release()
        lock.check()


def test_a_removed_directory_is_noticed_and_told(lock_path: Path) -> None:
    """While held: lost, and the release is silent. Afterwards: a configuration error."""
    place = lock_path.with_name("place")
    place.mkdir()
    lock = GpuLock(place).acquire()
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    with pytest.raises(VramConcurrencySaturated, match="lost"):
        lock.check()
    lock.release()
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        lock.acquire()


@pytest.mark.parametrize("call", ["link", "rename", "open", "write", "unlink"])
def test_a_system_call_that_fails_is_told_and_leaves_nothing_held(
    lock_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """For one without hard links the message says so; with the call mended, the next acquire works."""
    forge(lock_path)

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return self._fail if name == call else getattr(os, name)

        @staticmethod
        def _fail(*_: Any) -> Any:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr(gpu_lock, "os", Broken())
        with pytest.raises((ConfigurationError, VramConcurrencySaturated), match=r"hard links|cannot be read"):
            GpuLock(lock_path).acquire()
    assert_taken(lock_path)
