"""The lock's protocol, step by step: the real code on an operating system in memory, see `lock_sim`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lock_sim import MARKER, CrashError, Process, Turn, World, stranger, worker

from vane_magic.core import gpu_lock

STEPS = 75  # more than any program here makes in one round
HOLDS = 20  # after so many steps a worker on a free path holds the lock and has checked it once
EVICTS = 36  # the same for one that evicts a marker first


def world_of(**programs: Any) -> World:
    world = World()
    for name, program in programs.items():
        world.add(name, program)
    return world


def end_well(world: World) -> None:
    """No two holds overlap, the next worker gets the lock, and leaves nothing but the guard."""
    world.assert_no_overlap()
    if any(inode.foreign for inode in world.names.values()):
        world.leap(66)  # A stranger's is respected until then, also when it lies aside.
    last = world.add("last", worker())
    world.run([])
    assert last.outcomes == ["held"]
    assert set(world.names) == {MARKER + ".guard"}
    world.assert_no_overlap()


def test_a_worker_alone_holds_and_leaves_nothing() -> None:
    """One round on a free path: held, both checks good, only the guard stays."""
    world = world_of(a=worker())
    world.run([])
    assert world.processes["a"].outcomes == ["held"]
    assert set(world.names) == {MARKER + ".guard"}


@pytest.mark.parametrize("step", range(STEPS))
def test_a_worker_may_die_at_any_step(step: int) -> None:
    """Killed anywhere in publish, hold or release: the next worker gets the lock at once and clears up."""
    world = world_of(a=worker())
    world.run([Turn("a", step, crash=True)])
    end_well(world)


@pytest.mark.parametrize("step", range(STEPS))
def test_an_evictor_may_die_at_any_step(step: int) -> None:
    """Killed anywhere while it evicts a dead holder: the next worker gets the lock at once and clears up."""
    world = world_of(dead=worker(), evictor=worker())
    world.run([Turn("dead", HOLDS, crash=True), Turn("evictor", step, crash=True)])
    end_well(world)


@pytest.mark.parametrize("step", range(STEPS))
def test_a_worker_may_sleep_past_the_threshold_at_any_step(step: int) -> None:
    """Paused anywhere for 66 s: no overlap, and it harms no successor, whether that holds or is done by then."""
    for other in (HOLDS, EVICTS, None):
        world = world_of(sleeper=worker(), other=worker(rounds=3))
        world.run([Turn("sleeper", step, leap_s=66), Turn("other", other), Turn("sleeper")])
        end_well(world)


@pytest.mark.parametrize("step", range(STEPS))
def test_the_evictor_of_a_sleeper_may_die_or_sleep_too(step: int) -> None:
    """A holder past the threshold, an evictor that dies or sleeps at any step, a third worker: no overlap."""
    for crash in (True, False):
        world = world_of(sleeper=worker(), evictor=worker(), third=worker(rounds=3))
        world.run(
            [
                Turn("sleeper", HOLDS, leap_s=66),
                Turn("evictor", step, crash=crash, leap_s=0 if crash else 66),
                Turn("third"),
                Turn("sleeper"),
            ]
        )
        end_well(world)


def test_the_step_counts_mean_what_they_say() -> None:
    """After HOLDS steps, and EVICTS with an eviction, a worker has left the guard and begun its first check."""
    for first, steps in (([], HOLDS), ([Turn("dead", HOLDS, crash=True)], EVICTS)):
        world = world_of(dead=worker(), a=worker())
        world.run([*first, Turn("a", steps, crash=True)])
        assert "a" in {hold.who for hold in world.holds}
        last = world.trace[world.trace.index("a dies") - 1]
        assert last.split()[1:] == ["a", "lstat", MARKER], "the next step would end the first check"


def test_a_holder_keeps_the_lock_up_to_the_threshold_and_no_longer() -> None:
    """At exactly 65 s a live holder stands; a nanosecond later it is evicted, and notices."""
    for leap, outcomes in ((65.0, ["held"]), (65.0 + 1e-9, ["held", "lost"])):
        world = world_of(holder=worker(), other=worker())
        world.run([Turn("holder", HOLDS, leap_s=leap), Turn("other")])
        assert world.processes["holder"].outcomes == outcomes
        assert world.processes["other"].outcomes == (["busy"] if leap == 65.0 else ["held"])


def pairs(first: Turn | None, step: int, stride: int = 1, **programs: Any) -> None:
    """Let two workers race: one stops after `step` steps, and the other after every (`stride`-th) number."""
    for other in range(step % stride, STEPS, stride):
        world = world_of(a=worker(), b=worker(), **programs)
        world.run([*([first] if first else []), Turn("a", step), Turn("b", other), Turn("a"), Turn("b")])
        end_well(world)


@pytest.mark.parametrize("step", range(STEPS))
def test_two_evictors_at_any_two_steps(step: int) -> None:
    """Both find a dead holder's marker and stop anywhere, before the rename too: one gets the lock, one is told."""
    pairs(Turn("dead", HOLDS, crash=True), step, stride=7, dead=worker())


@pytest.mark.soak
@pytest.mark.parametrize("step", range(STEPS))
def test_two_workers_at_really_any_two_steps(step: int) -> None:
    """The whole grid: for a dead holder, a dead stranger, fresh and stale, and a free path."""
    pairs(Turn("dead", HOLDS, crash=True), step, dead=worker())
    pairs(Turn("stranger", 4, crash=True), step, stranger=stranger)
    pairs(Turn("stranger", 4, crash=True, leap_s=66), step, stranger=stranger)
    pairs(None, step)


def test_a_strangers_fresh_marker_is_respected_and_a_stale_one_evicted() -> None:
    """Another program's marker is left alone for 65 s, dead or alive."""
    for leap, outcome in ((64.0, "busy"), (66.0, "held")):
        world = world_of(stranger=stranger, a=worker())
        world.run([Turn("stranger", 3, crash=True, leap_s=leap)])
        assert world.processes["a"].outcomes == [outcome]


def swap(process: Process) -> None:
    """In one go, as a program outside the guard may: remove a stale marker, put a fresh one there, and keep it."""
    world = process.world
    world.step("swap")
    stale = world.names.get(MARKER)
    if stale is None or not stale.foreign:
        return
    inode = world.names[MARKER] = world.new_inode(process)
    inode.foreign = True
    world.step("works")
    assert inode in world.names.values(), "a stranger's live marker is lost"


@pytest.mark.parametrize("step", range(STEPS))
def test_a_marker_swapped_under_the_evictors_hands_is_put_back(step: int) -> None:
    """Strangers change the path between any two steps of the evictor: the fresh marker stays, or comes back."""
    for more in range(0, 6, 2):
        world = world_of(stranger=stranger, evictor=worker(), swapper=swap)
        first = [Turn("stranger", 4, crash=True, leap_s=66), Turn("evictor", step), Turn("swapper", 1)]
        world.run([*first, Turn("evictor", more, crash=more > 0)])
        end_well(world)


turns = st.builds(
    Turn,
    st.sampled_from(["a", "b", "c", "stranger", "stranger2"]),
    st.integers(1, STEPS),
    crash=st.sampled_from([False] * 9 + [True]),
    leap_s=st.sampled_from([0] * 6 + [1, 64, 66]),
)


def explored(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )


@explored(150)
@given(st.lists(turns, max_size=12))
def test_no_schedule_of_three_workers_and_two_strangers_breaks_an_invariant(schedule: list[Turn]) -> None:
    """Crashes, pauses and leaps of the clock at random steps: the invariants hold, and it always ends well."""
    explore(schedule)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@explored(20_000)
@given(st.lists(turns, max_size=25))
def test_none_of_many_longer_schedules_breaks_an_invariant(schedule: list[Turn]) -> None:
    """The same, longer and 20,000 times."""
    explore(schedule)


def explore(schedule: list[Turn]) -> None:
    world = world_of(a=worker(2), b=worker(2), c=worker(2), stranger=stranger, stranger2=stranger)
    world.run(schedule)
    end_well(world)


# The model must be able to fail: it finds each of these faults, which somebody could well write.


def careless_evict(claim: Any, fds: list[int]) -> bool:
    """Judge, and then unlink whatever stands there."""
    found, claim.rival = gpu_lock._inspect(claim.path, fds)
    if found and not claim.rival:
        gpu_lock.os.unlink(claim.path)
    return not claim.rival


def open_guard(_path: Any, action: Any, _wait: float) -> Any:
    """A guard that lets everybody in."""
    return action()


def blind_check(claim: Any) -> bool:
    """A check that looks and believes in itself."""
    with suppress(FileNotFoundError):
        gpu_lock.os.lstat(claim.path)
    return bool(claim.fds)


def eager_judge(path: Any, fds: list[int]) -> Any:
    """Take whatever stands there for stale."""
    try:
        gpu_lock._open(fds, path, os.O_RDONLY)
    except FileNotFoundError:
        return None, None
    return gpu_lock.os.fstat(fds[0]), None


def unlocked(claim: Any) -> bool:
    """Publish by O_EXCL and write afterwards."""
    gpu_lock._open(claim.fds, claim.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    gpu_lock.os.write(claim.fds[0], b"{}")
    return True


@pytest.mark.parametrize(
    ("target", "name", "fault", "message"),
    [
        (gpu_lock._Claim, "_evict", careless_evict, "I4|lost"),
        (gpu_lock, "_guarded", open_guard, "I3"),
        (gpu_lock._Claim, "valid", blind_check, "I2"),
        (gpu_lock, "_inspect", eager_judge, "I4"),
        (gpu_lock._Claim, "_publish", unlocked, "I1"),
    ],
)
def test_the_model_finds_a_fault(
    monkeypatch: pytest.MonkeyPatch, target: Any, name: str, fault: Any, message: str
) -> None:
    """The same schedules as above, on a broken lock, break an invariant."""

    def try_all() -> None:
        for step in range(STEPS):
            test_a_worker_may_sleep_past_the_threshold_at_any_step(step)
            test_a_marker_swapped_under_the_evictors_hands_is_put_back(step)
        for step in range(STEPS):
            test_two_evictors_at_any_two_steps(step)

    monkeypatch.setattr(target, name, fault)
    with pytest.raises(AssertionError, match=message):
        try_all()


def test_a_crash_stops_a_process_at_once() -> None:
    """The model's own check: after a crash nothing more happens."""
    reached: list[str] = []

    def program(process: Process) -> None:
        try:
            process.world.step("one")
            process.world.step("two")
        except CrashError:
            with pytest.raises(CrashError):
                process.world.step("three")
            raise
        reached.append("end")

    world = world_of(a=program)
    world.run([Turn("a", 1, crash=True)])
    assert reached == []
    assert [line.split()[2] for line in world.trace if "dies" not in line] == ["one"]
