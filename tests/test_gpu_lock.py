"""What one worker sees of the GPU lock: taking, waiting, losing, naming the holder."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock, lock_descriptor

from vane_magic.core import gpu_lock
from vane_magic.core.errors import Cancelled, ConfigurationError, VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock, Holder, resolve_lock_path

NAME = ".vane-gpu-worker.lock"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / NAME


def test_the_marker_exists_only_while_held(marker: Path) -> None:
    """Acquire creates the marker, release removes it, and only the guard stays."""
    with GpuLock(marker) as lock:
        assert marker.exists()
        assert lock.held
        lock.check()
    assert not lock.held
    assert [path.name for path in marker.parent.glob(NAME + "*")] == [NAME + ".guard"]


def test_a_second_lock_is_refused_and_told_who_holds_it(marker: Path) -> None:
    """The error carries the holder and says pid, mode and time."""
    with GpuLock(marker, mode="balanced", worker_id="first"), pytest.raises(VramConcurrencySaturated) as caught:
        GpuLock(marker).acquire()
    holder = caught.value.holder
    assert holder is not None
    assert (holder.pid, holder.worker_id, holder.mode, holder.ours) == (os.getpid(), "first", "balanced", True)
    assert holder.describe() in str(caught.value)
    assert holder.describe().startswith(f"pid {os.getpid()}, balanced, since ")


def test_an_instance_is_not_reentrant(marker: Path) -> None:
    """The same instance cannot take the lock twice, and still holds it after the refusal."""
    with GpuLock(marker) as lock:
        with pytest.raises(VramConcurrencySaturated, match=f"pid {os.getpid()}"):
            lock.acquire()
        lock.check()


def test_release_is_idempotent(marker: Path) -> None:
    """A second release does nothing, also when another worker holds the lock by then."""
    first = GpuLock(marker)
    first.release()
    first.acquire()
    first.release()
    with GpuLock(marker) as second:
        first.release()
        second.check()


def test_acquired_at_is_the_monotonic_clock(marker: Path) -> None:
    """The client's deadline may start at `acquired_at`, which is never later than the hold."""
    before = time.monotonic()
    with GpuLock(marker) as lock:
        assert before <= lock.acquired_at <= time.monotonic()
    assert math.isnan(GpuLock(marker).acquired_at)


def test_a_waiter_gets_the_lock_when_it_is_released(marker: Path) -> None:
    """Waiting ends with the lock as soon as the holder lets go."""
    holder = GpuLock(marker).acquire()
    threading.Timer(0.2, holder.release).start()
    with GpuLock(marker, wait=20) as lock:
        lock.check()


def test_a_guard_that_is_held_for_a_moment_is_no_reason_to_give_up(marker: Path) -> None:
    """Without any wait, the lock is free although somebody is just changing something."""
    guard = FileLock(f"{marker}.guard", thread_local=False)
    guard.acquire()
    threading.Timer(0.1, guard.release).start()
    with GpuLock(marker) as lock:
        lock.check()


def test_a_guard_deleted_under_the_hands_is_made_anew(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a file without a name would exclude nobody."""
    guards: list[int] = []

    def lock(fd: int, *, blocking: bool) -> bool:
        if ".guard" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            guards.append(fd)
            if len(guards) == 1:
                guard_of(marker).unlink()
        return lock_descriptor(fd, blocking=blocking)

    monkeypatch.setattr(gpu_lock, "lock_descriptor", lock)
    with GpuLock(marker):
        assert len(guards) == 2
    assert guard_of(marker).exists()


def guard_of(marker: Path) -> Path:
    return marker.with_name(marker.name + ".guard")


def test_a_wait_is_bounded_and_told(marker: Path) -> None:
    """After `wait` seconds the error says how long was waited for the lock."""
    with GpuLock(marker), pytest.raises(VramConcurrencySaturated, match=r"Waited 0\.3 s for the GPU lock"):
        GpuLock(marker, wait=0.3).acquire()


def test_a_wait_is_announced_after_a_second(marker: Path) -> None:
    """`on_wait` gets the holder and the seconds, on the calling thread, first after 1 s."""
    calls: list[tuple[Holder | None, float, int]] = []
    with GpuLock(marker, mode="speed"), pytest.raises(VramConcurrencySaturated):
        GpuLock(marker, wait=1.5).acquire(lambda holder, s: calls.append((holder, s, threading.get_ident())))
    assert calls
    assert calls[0][1] >= 1
    assert all(holder is not None and holder.mode == "speed" for holder, _, _ in calls)
    assert {ident for _, _, ident in calls} == {threading.get_ident()}


def test_a_wait_can_be_cancelled(marker: Path) -> None:
    """The token ends the wait at once with Cancelled, and nothing is held."""
    token = threading.Event()
    with GpuLock(marker):
        threading.Timer(0.2, token.set).start()
        with pytest.raises(Cancelled):
            GpuLock(marker, wait=60, cancel=token).acquire()
    GpuLock(marker).acquire().release()


def test_status_names_the_holder_or_nobody(marker: Path) -> None:
    """`status` reads the marker and never takes the lock."""
    lock = GpuLock(marker, mode="quality")
    assert lock.status() is None
    with lock:
        holder = GpuLock(marker).status()
        assert holder is not None
        assert holder.mode == "quality"
        assert holder.age_s is not None
        assert 0 <= holder.age_s < 60
    assert lock.status() is None


def test_the_marker_tells_who_and_where(marker: Path) -> None:
    """The JSON names protocol, process, namespaces, boot, host, worker, mode, token and both times."""
    with GpuLock(marker):
        content = json.loads(marker.read_text())
    assert set(content) == {
        "protocol", "host", "boot", "pid_ns", "time_ns", "pid", "start", "worker_id", "mode", "token",
        "acquired_at", "mono_ns",
    }  # fmt: skip
    assert content["worker_id"] == f"vane-magic@{content['host']}:{os.getpid()}"


def test_without_flock_the_guard_is_the_lock(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: the same interface, a marker that informs, death frees it; but nobody is evicted by age."""
    monkeypatch.setattr(gpu_lock, "_CLAIM", gpu_lock._NativeClaim)
    with GpuLock(marker, mode="speed") as lock:
        lock.check()
        with pytest.raises(VramConcurrencySaturated, match=f"pid {os.getpid()}, speed"):
            GpuLock(marker).acquire()
        marker.unlink()
        with pytest.raises(VramConcurrencySaturated):
            GpuLock(marker).acquire()
        lock.check()
    assert GpuLock(marker).status() is None
    marker.write_text("left by a death")
    with GpuLock(marker, worker_id="next"):
        holder = GpuLock(marker).status()
        assert holder is not None
        assert holder.worker_id == "next"
    assert not marker.exists()


def test_the_threshold_is_the_specifications() -> None:
    """65 s, as the specification says."""
    assert gpu_lock.STALE_AFTER_S == 65.0


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf])
def test_an_impossible_wait_is_refused(tmp_path: Path, wait: float) -> None:
    """A wait is a finite number of seconds from 0 up."""
    with pytest.raises(ConfigurationError, match="wait"):
        GpuLock(tmp_path, wait=wait)


def test_lock_path_is_a_file_a_directory_or_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing directory means the marker in it; nothing means the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_lock_path(None) == tmp_path / NAME
    assert resolve_lock_path(str(tmp_path)) == tmp_path / NAME
    assert resolve_lock_path(tmp_path / "other.lock") == tmp_path / "other.lock"


@pytest.mark.parametrize("value", ["", "relative", "~/x.lock", "./x", "/tmp/a\0b", "/no/such/directory/"])
def test_a_lock_path_that_is_no_absolute_path_is_refused(value: str) -> None:
    """The error names the setting and its environment variable."""
    with pytest.raises(ConfigurationError, match=r"lock_path.*VANE_LOCK_PATH"):
        resolve_lock_path(value)


@pytest.mark.parametrize("place", ["/proc/x.lock", "/no/such/directory/x.lock", "/dev/null/x.lock"])
def test_a_place_that_takes_no_file_is_a_configuration_error(place: str) -> None:
    """Case F03: never reported as busy; path and setting are named."""
    with pytest.raises(ConfigurationError, match=r"(/proc|/no/such|/dev/null).*VANE_LOCK_PATH"):
        GpuLock(place).acquire()


def test_the_status_of_an_impossible_place_is_a_configuration_error() -> None:
    """What cannot be examined is told; where nothing is, nobody holds."""
    with pytest.raises(ConfigurationError, match="Not a directory"):
        GpuLock("/dev/null/x.lock").status()
    assert GpuLock("/no/such/directory/x.lock").status() is None
