"""The GPU lock between real processes: killed, stopped, hung, forked, cloned into namespaces."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lock_puppet
import pytest
from lock_puppet import Puppet, wait_until

from vane_magic.core import gpu_lock
from vane_magic.core.errors import ConfigurationError, VramConcurrencySaturated
from vane_magic.core.gpu_lock import GpuLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakePuppet = Callable[..., Puppet]

SHORT_S = 0.6  # the threshold, scaled down
SOON_S = 0.05  # the next holder's time after a death
NEVER = 60.0  # a wait that must not be used up


@pytest.fixture
def puppet(lock_path: Path) -> Iterator[MakePuppet]:
    """Make puppets on this test's lock; they end with the test."""
    with ExitStack() as stack:
        yield lambda path=lock_path, **options: stack.enter_context(Puppet(path, **options))


@pytest.fixture
def evict(lock_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], GpuLock]]:
    """Take the lock with the threshold scaled down, and hold it at the real one."""
    with ExitStack() as stack:

        def acquire() -> GpuLock:
            with monkeypatch.context() as patch:
                patch.setattr(gpu_lock, "STALE_AFTER_S", SHORT_S)
                return stack.enter_context(GpuLock(lock_path, wait=NEVER))

        yield acquire


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Kill the processes in the list when the test ends."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def debris(lock_path: Path) -> set[str]:
    return {path.name for path in lock_path.parent.glob(lock_path.name + "*")} - {lock_path.name + ".guard"}


def assert_free_soon(lock_path: Path, since: float | None = None) -> None:
    """The lock can be had far below the threshold, and nothing is left over."""
    with GpuLock(lock_path, wait=NEVER) as lock:
        lock.check()
        assert since is None or time.monotonic() - since < 5
    assert debris(lock_path) == set()


# Death


def test_a_killed_holder_is_followed_within_50_ms(lock_path: Path, puppet: MakePuppet) -> None:
    """From the kill it takes a waiter one poll and no threshold; a busy machine gets twenty tries to show it."""
    taken: list[float] = [NEVER]
    while min(taken) > SOON_S and len(taken) < 20:
        holder, waiter = puppet(), puppet(wait=NEVER)
        holder("acquire")
        waiter.ask("acquire")
        killed = time.monotonic()
        os.kill(holder.pid, signal.SIGKILL)
        taken.append(waiter.answer() - killed)
        waiter("release")
    assert min(taken) < SOON_S, taken


def test_an_unreaped_zombie_holds_nothing(lock_path: Path) -> None:
    """A dead process whose parent has not looked after it yet does not count as alive."""
    command = [sys.executable, lock_puppet.__file__, str(lock_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=lock_puppet.environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert GpuLock(lock_path).status() is not None
        holder.kill()
        wait_until(lambda: lock_puppet.proc_state(holder.pid) == "Z")
        assert_free_soon(lock_path, time.monotonic())


def test_an_orderly_end_of_the_process_takes_the_marker_away(lock_path: Path) -> None:
    """A worker that forgets to release leaves no marker for strangers to wait for."""
    code = "import sys; from vane_magic.core.gpu_lock import GpuLock; lock = GpuLock(sys.argv[1]).acquire()"
    subprocess.run([sys.executable, "-c", code, str(lock_path)], check=True, env=lock_puppet.environment())
    assert not lock_path.exists()


@pytest.mark.parametrize("birth", ["fork", "raw_fork", "spawn"])
def test_a_living_child_of_a_dead_holder_holds_nothing(
    lock_path: Path, puppet: MakePuppet, orphans: list[int], birth: str
) -> None:
    """Forked with Python's hooks or without them, or a program started with inherited descriptors."""
    holder = puppet()
    holder("acquire")
    child = holder(birth)
    orphans.append(child)
    holder.kill()
    assert_free_soon(lock_path, time.monotonic())
    assert lock_puppet.proc_state(child) in "RS"


def test_a_holder_that_becomes_another_program_holds_nothing(lock_path: Path, puppet: MakePuppet) -> None:
    """After exec, pid and start time are the same, but the OS lock is gone."""
    holder = puppet()
    holder("acquire")
    holder.ask("exec")
    wait_until(lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n")
    assert_free_soon(lock_path, time.monotonic())


def test_a_worker_killed_after_any_system_call(lock_path: Path, puppet: MakePuppet) -> None:
    """A dead holder's marker stands; the next one dies after its n-th call of evict, publish or release."""
    for step in itertools.count(1):
        dead, victim = puppet(), puppet()
        dead("acquire")
        dead.kill()
        victim("after_step", step, signal.SIGKILL)
        victim.ask("take_turn", 0.0)
        try:
            victim.answer()
        except (EOFError, ConnectionResetError):
            victim.await_death()
            assert_free_soon(lock_path, time.monotonic())
        else:
            break
    assert step > 35


# Sleep and hanging


def test_a_stopped_holder_is_evicted_at_the_threshold(puppet: MakePuppet, evict: Callable[[], GpuLock]) -> None:
    """Not before; and when it goes on, it notices at `check` and leaves its successor alone."""
    holder = puppet()
    holder("acquire")
    acquired = holder("acquired_at")
    holder.stop()
    successor = evict()
    assert successor.acquired_at - acquired > SHORT_S
    holder.resume()
    with pytest.raises(VramConcurrencySaturated, match="lost") as caught:
        holder("check")
    assert caught.value.holder is not None
    assert caught.value.holder.pid == os.getpid()
    holder("release")
    successor.check()


def test_a_hung_holder_is_evicted(puppet: MakePuppet, evict: Callable[[], GpuLock]) -> None:
    """A main thread that hangs cannot hide behind a living thread, since there is no heartbeat."""
    holder = puppet()
    holder("acquire")
    holder.ask("hang", 1.5)
    successor = evict()
    holder.answer()
    with pytest.raises(VramConcurrencySaturated):
        holder("check")
    successor.check()


def test_a_living_holder_is_safe_below_the_threshold(lock_path: Path, puppet: MakePuppet) -> None:
    """At the real threshold, a stopped holder stands while others try."""
    holder = puppet()
    holder("acquire")
    holder.stop()
    with pytest.raises(VramConcurrencySaturated) as caught:
        GpuLock(lock_path, wait=0.5).acquire()
    assert caught.value.holder is not None
    assert caught.value.holder.pid == holder.pid
    holder.resume()
    holder("check")


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_the_real_threshold(lock_path: Path, puppet: MakePuppet) -> None:
    """With nothing scaled down: evicted at 65 s, not before, and the resumed holder notices."""
    holder = puppet()
    holder("acquire")
    acquired = holder("acquired_at")
    holder.stop()
    with GpuLock(lock_path, wait=90) as successor:
        taken = successor.acquired_at - acquired
        assert 65 < taken < 66
        holder.resume()
        with pytest.raises(VramConcurrencySaturated):
            holder("check")
        holder("release")
        successor.check()
    print(f"evicted after {taken:.3f} s")


# The guard


def test_a_worker_frozen_in_the_guard_blocks_nobody_for_long(lock_path: Path, puppet: MakePuppet) -> None:
    """Others get their busy answer in about a second and are told who it is; its death frees the guard."""
    frozen = puppet()
    frozen("before_call", "link", signal.SIGSTOP)
    frozen.ask("acquire")
    frozen.await_stop()
    started = time.monotonic()
    with pytest.raises(VramConcurrencySaturated, match=rf"pid {frozen.pid}\b.*{lock_path.name}\.guard") as caught:
        GpuLock(lock_path).acquire()
    assert time.monotonic() - started < 5
    assert caught.value.holder is not None
    assert caught.value.holder.pid == frozen.pid
    told: list[int | None] = []
    with pytest.raises(VramConcurrencySaturated):
        GpuLock(lock_path, wait=0.5).acquire(lambda holder, _: told.append(holder and holder.pid))
    assert set(told) == {frozen.pid}
    frozen.kill()
    assert_free_soon(lock_path, time.monotonic())


def test_a_release_does_not_hang_on_a_frozen_guard(lock_path: Path, puppet: MakePuppet) -> None:
    """The holder's close frees the lock even when it cannot clear its marker away."""
    lock, frozen = GpuLock(lock_path).acquire(), puppet()
    frozen("before_call", "unlink", signal.SIGSTOP)
    lock_path.rename(lock_path.with_suffix(".hidden"))  # so that the other one gets as far as the guard
    frozen.ask("acquire")
    frozen.await_stop()
    lock_path.with_suffix(".hidden").rename(lock_path)
    started = time.monotonic()
    lock.release()
    assert time.monotonic() - started < 5
    frozen.kill()
    assert_free_soon(lock_path, time.monotonic())


def test_two_evictors_before_the_rename(lock_path: Path, puppet: MakePuppet) -> None:
    """The second one waits for the guard; when the first goes on, one of them gets the lock and the other not."""
    dead, first, second = puppet(), puppet(), puppet()
    dead("acquire")
    dead.kill()
    for evictor in (first, second):
        evictor("before_call", "rename", signal.SIGSTOP)
    first.ask("acquire")
    first.await_stop()
    second.ask("acquire")
    with pytest.raises(VramConcurrencySaturated, match=f"pid {first.pid}"):
        second.answer()
    first.resume()
    first.answer()
    first("check")
    with pytest.raises(VramConcurrencySaturated):
        second("acquire")


# Forks


@pytest.mark.parametrize("call", ["check", "release", "held"])
def test_a_forked_child_neither_holds_nor_frees(lock_path: Path, puppet: MakePuppet, call: str) -> None:
    """The child's `check` fails, its `release` does nothing, and the parent still holds."""
    parent = puppet()
    parent("acquire")
    if call == "check":
        with pytest.raises(VramConcurrencySaturated):
            parent("in_child", call)
    else:
        assert not parent("in_child", call)
    parent("check")
    assert parent("in_child", "try_fresh") == f"busy {parent.pid}"


def test_a_child_forked_in_the_guard_does_not_keep_it(lock_path: Path, puppet: MakePuppet, orphans: list[int]) -> None:
    """Else the guard would be locked for as long as the child lives, when the parent dies right then."""
    child = puppet()("fork_in_the_guard")
    orphans.append(child)
    wait_until(lambda: lock_puppet.proc_state(child) == "S")
    assert not [link for link in Path(f"/proc/{child}/fd").iterdir() if ".guard" in str(link.readlink())]


def test_multiprocessing_works_while_the_parent_holds_or_not(lock_path: Path, puppet: MakePuppet) -> None:
    """A pool's children take turns by themselves; while the parent holds they are told so."""
    parent = puppet()
    assert parent("pool", NEVER) == ["held"] * 6
    parent("acquire")
    assert set(parent("pool", 0.0)) == {f"busy {parent.pid}"}
    parent("check")


# Waiting


def test_a_real_interrupt_ends_the_wait(lock_path: Path, puppet: MakePuppet) -> None:
    """SIGINT while waiting raises KeyboardInterrupt soon, and nothing is held after it."""
    with GpuLock(lock_path):
        assert puppet(wait=NEVER)("wait_interrupted") < 5
    assert_free_soon(lock_path)


def test_sixteen_waiters_are_all_served(lock_path: Path, puppet: MakePuppet) -> None:
    """Each takes one turn of 50 ms and leaves: all within 16 x 5 holds, and no two at a time."""
    lock = GpuLock(lock_path).acquire()
    waiters = [puppet(wait=NEVER) for _ in range(16)]
    for waiter in waiters:
        waiter.ask("take_turn", 0.05)
    time.sleep(0.2)
    released = time.monotonic()
    lock.release()
    turns = sorted(waiter.answer() for waiter in waiters)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(turns))
    waited = [start - released for start, _ in turns]
    assert waited[-1] < 16 * 5 * 0.05
    print(f"waits of {waited[0]:.3f} to {waited[-1]:.3f} s, median {statistics.median(waited):.3f} s")


# Places, users, limits

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = 65534


@as_root
def test_a_directory_shared_by_two_users(lock_path: Path, puppet: MakePuppet) -> None:
    """With a strict umask both exclude each other, follow each other, and clear up after each other's death."""
    shared = shared_directory(lock_path, 0o777)
    ours, theirs = (puppet(path=shared / lock_path.name) for _ in range(2))
    ours("become", 0, 0o077)
    theirs("become", NOBODY, 0o077)
    for first, second in ((ours, theirs), (theirs, ours)):
        first("acquire")
        with pytest.raises(VramConcurrencySaturated, match=f"pid {first.pid}"):
            second("acquire")
        first("release")
        second("acquire")
        second("release")
    for first, second in ((ours, theirs), (theirs, puppet(path=shared / lock_path.name))):
        first("acquire")
        first.kill()
        second("acquire")
        second("check")
        second("release")


@as_root
def test_a_sticky_directory_is_a_configuration_error(lock_path: Path, puppet: MakePuppet) -> None:
    """There one user cannot clear up after another, so it is refused with the reason, not reported as busy."""
    shared = shared_directory(lock_path, 0o1777)
    ours, theirs = (puppet(path=shared / lock_path.name) for _ in range(2))
    ours("acquire")
    ours.kill()
    theirs("become", NOBODY, 0o022)
    with pytest.raises(ConfigurationError, match=r"sticky.*VANE_LOCK_PATH"):
        theirs("acquire")


@as_root
@pytest.mark.parametrize("mode", [0o755, 0o700, 0o644])
def test_a_directory_that_cannot_be_used_is_a_configuration_error(
    lock_path: Path, puppet: MakePuppet, mode: int
) -> None:
    """Not writable, not reachable, not searchable: never busy; path, reason and setting are named."""
    shared = shared_directory(lock_path, mode)
    GpuLock(shared / lock_path.name).acquire()
    theirs = puppet(path=shared / lock_path.name)
    theirs("become", NOBODY, 0o022)
    with pytest.raises(ConfigurationError, match=rf"{shared}.*Permission denied.*VANE_LOCK_PATH"):
        theirs("acquire")


@as_root
def test_an_unreadable_marker_is_respected(lock_path: Path, puppet: MakePuppet) -> None:
    """Nobody can judge it, so it counts as held, and the message says what to do."""
    shared = shared_directory(lock_path, 0o777)
    (shared / lock_path.name).touch(mode=0o000)
    os.utime(shared / lock_path.name, (1, 1))
    theirs = puppet(path=shared / lock_path.name)
    theirs("become", NOBODY, 0o022)
    with pytest.raises(VramConcurrencySaturated, match="cannot be read"):
        theirs("acquire")


def shared_directory(lock_path: Path, mode: int) -> Path:
    """Make a directory with this mode that others can reach."""
    shared = Path(tempfile.mkdtemp(dir=lock_path.parent))
    shared.chmod(mode)
    for parent in shared.parents:
        if parent.stat().st_uid == os.geteuid() and parent != parent.parent and parent.stat().st_mode & 0o1 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    return shared


@pytest.mark.parametrize(("kind", "limit", "reason"), [
    ("RLIMIT_FSIZE", 100, "No space left"), ("RLIMIT_NOFILE", 0, "Too many open files")
])  # fmt: skip
def test_a_lack_of_space_or_descriptors_leaves_nothing(
    lock_path: Path, puppet: MakePuppet, kind: str, limit: int, reason: str
) -> None:
    """A configuration error with the reason; afterwards no descriptor and no file is left."""
    worker = puppet()
    worker("take_turn", 0.0)
    files = worker("open_files")
    soft, _ = worker("limit", kind, limit or files)
    with pytest.raises(ConfigurationError, match=reason):
        worker("acquire")
    worker("limit", kind, soft)
    assert worker("open_files") == files
    assert debris(lock_path) == set()
    worker("acquire")


# Namespaces


def unshare(*options: str) -> list[str]:
    command = ["unshare", *options, sys.executable, lock_puppet.__file__]
    if not shutil.which("unshare") or subprocess.run(["unshare", *options, "true"], check=False).returncode:
        pytest.skip("this system allows no new namespaces")
    return command


@pytest.fixture
def cloned(lock_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a holder in namespaces of its own."""
    with ExitStack() as stack:

        def start(*options: str) -> subprocess.Popen[bytes]:
            command = [*unshare(*options), str(lock_path)]
            holder = subprocess.Popen(command, stdout=subprocess.PIPE, env=lock_puppet.environment())
            stack.enter_context(holder)
            stack.callback(holder.kill)
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            return holder

        yield start


def test_another_pid_namespace(lock_path: Path, cloned: Any) -> None:
    """A live holder is respected although its pid means nothing here, and followed at once when it dies."""
    holder = cloned("--pid", "--fork", "--kill-child", "--mount-proc")
    with pytest.raises(VramConcurrencySaturated, match="pid 1, "):
        GpuLock(lock_path).acquire()
    holder.kill()
    assert_free_soon(lock_path, time.monotonic())


def test_another_time_namespace(lock_path: Path, cloned: Any) -> None:
    """A clock that is far behind proves no age: the holder is respected, until it dies."""
    offset = str(-int(time.monotonic() / 2))
    holder = cloned("--time", "--monotonic", offset, "--fork", "--kill-child")
    with pytest.raises(VramConcurrencySaturated) as caught:
        GpuLock(lock_path).acquire()
    assert caught.value.holder is not None
    assert caught.value.holder.age_s is None
    holder.kill()
    assert_free_soon(lock_path, time.monotonic())


def test_a_hidden_proc(lock_path: Path, cloned: Any) -> None:
    """A holder that cannot tell its boot or namespaces is respected, and followed when it dies."""
    holder = cloned("--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0" "$@"')
    record = json.loads(lock_path.read_text())
    assert (record["boot"], record["pid_ns"], record["time_ns"], record["start"]) == (None,) * 4
    with pytest.raises(VramConcurrencySaturated):
        GpuLock(lock_path).acquire()
    holder.kill()
    holder.wait()
    assert_free_soon(lock_path, time.monotonic())
