"""Twelve workers and two strangers under random SIGKILL and SIGSTOP: the lock holds, and a naive one does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import lock_storm
import pytest
from lock_puppet import environment

SOAK_S = float(os.environ.get("VANE_SOAK_SECONDS", "600"))


def storm(lock: str, seconds: float) -> dict[str, Any]:
    """Run a storm in a process of its own, which forks its actors."""
    command = [sys.executable, lock_storm.__file__, "--lock", lock, "--seconds", str(seconds), "--json"]
    done = subprocess.run(
        command, env=environment(), stdout=subprocess.PIPE, text=True, check=False, timeout=seconds + 100
    )
    return json.loads(done.stdout)


def assert_calm(report: dict[str, Any]) -> None:
    """No two held at once or too long, no stranger lost its marker, nobody hung, nothing is left over."""
    assert report["overlaps"] == []
    assert report["overlong"] == 0
    assert (report["strangers_lost"], report["hung"], report["debris"]) == (0, 0, [])
    assert min(report[count] for count in ("holds", "strangers", "kills", "stops", "holders_hit")) > 0, report


def test_a_storm_breaks_nothing() -> None:
    """Kills, and pauses beyond the threshold, mostly at the present holder."""
    assert_calm(storm("vane", 10))


def test_the_same_storm_breaks_a_naive_lock() -> None:
    """The storm can fail: O_EXCL, the file's time and unlink let two in at once within a minute."""
    assert any(storm("naive", 5)["overlaps"] for _ in range(12))


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
def test_a_long_storm_breaks_nothing() -> None:
    """The same for `VANE_SOAK_SECONDS` (600)."""
    report = storm("vane", SOAK_S)
    print({count: len(value) if isinstance(value, list) else value for count, value in report.items()})
    assert_calm(report)
