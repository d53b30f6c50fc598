"""Every recording of a real Vane, played to the client: one table, `docs/outcomes/recordings.md`.

The table is checked against what happens now; `pytest tests/test_recordings.py --write-tables` writes it anew.
What a recording should lead to is also derived here from its bytes, by other means than the client's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers.listener import SEARCH, closed_port
from servers.replay import RECORDINGS, Recording, ReplayServer
from tables import Table

from vane_magic.core.client import VaneClient
from vane_magic.core.contract import ToolResult

CONFIG, PROVIDERS = "GET /api/config", "GET /api/providers"
TABLE = Table("recordings.md", ("recording", "code", "answer", "sources", "cited", "dangling", "why not played"))


def reason_not_to_play(case: str) -> str:
    """Why no request of the client can lead to it; empty when one can."""
    if case == "error-vane-not-running":
        return ""
    route = Recording(case).route
    if route in {SEARCH, CONFIG, PROVIDERS}:
        return ""
    return f"the client never sends {route}"


def outcome(case: str, lock_path: str) -> ToolResult:
    """Ask one question of a server that plays the recording; silence is cut short."""
    options: dict[str, Any] = {}
    if case == "error-vane-not-running":
        with closed_port() as port:
            return VaneClient(f"http://127.0.0.1:{port}", lock_path=lock_path).research("What is TCP?")
    recording = Recording(case)
    if recording.route == SEARCH:
        played, timeout = ReplayServer(case), 0.4 if recording.silent else None
    else:
        # With /api/providers alone, /api/config is what an older server answers: a page with status 404.
        options = {"config": "error-unknown-api-path"} if recording.route == PROVIDERS else {}
        played, timeout = ReplayServer(case, routes={SEARCH: "stream-speed"}, **options), None
    with played as server:
        return VaneClient(server.url, lock_path=lock_path).research("What is TCP?", timeout=timeout)


def row(case: str, result: ToolResult) -> tuple[str, ...]:
    part = "whole" if result.success else "partial" if result.answer else "none"
    code = result.error.code if result.error else "success"
    run = result.run
    cited = " ".join(str(number) for number in run.citations)
    return (case, code, part, str(run.source_count), cited, " ".join(map(str, run.dangling)), "")


@pytest.mark.parametrize("case", RECORDINGS)
def test_each_recording_leads_to_its_row(case: str, lock_path: Path, write_tables: bool) -> None:
    """Code, part, number of sources and citations, or why no request of ours leads there."""
    reason = reason_not_to_play(case)
    if reason:
        found = (case, "n/a", "", "", "", "", reason)
    else:
        result = outcome(case, str(lock_path))
        found = row(case, result)
        if case.startswith(("stream-", "search-")):
            _check_content(Recording(case), result)
    if write_tables:
        TABLE.put(found)
    assert TABLE.row(case) == found


def test_the_table_has_a_row_for_each_recording_and_no_other() -> None:
    """None is forgotten."""
    assert sorted(TABLE.keys()) == RECORDINGS


def _events(recording: Recording) -> list[dict[str, Any]]:
    """The events of a recorded answer, by the standard library."""
    body = recording.body.decode()
    if recording.meta["status"] == 200 and body.startswith('{"message"'):
        whole = json.loads(body)
        return [
            {"type": "sources", "data": whole["sources"]},
            {"type": "response", "data": whole["message"]},
            {"type": "done"},
        ]
    return [json.loads(line) for line in body.split("\n") if line]


def _check_content(recording: Recording, result: ToolResult) -> None:
    """Nothing lost, nothing added: a success exactly when the answer is whole and not empty."""
    if recording.meta["status"] != 200:
        assert not result.success
        assert result.data is None
        return
    events = _events(recording)
    text = "".join(event.get("data") or "" for event in events if event["type"] == "response")
    sources = [source for event in events if event["type"] == "sources" for source in event["data"]]
    assert result.success is ({"type": "done"} in events and bool(text.strip()))
    assert result.run.source_count == len(sources)
    if "<think>" not in text:
        assert result.answer == text
    for source in result.sources:
        assert source.url in {sources[int(source.source_id) - 1]["metadata"].get("url"), ""}


def test_a_recording_with_its_real_timing(lock_path: Path) -> None:
    """One answer as slowly as it was recorded."""
    with ReplayServer("stream-speed", speed=1) as server:
        result = VaneClient(server.url, lock_path=str(lock_path)).research("What is TCP?", mode="speed")
    assert result.success
    assert result.data is not None
    assert result.data.timing_ms >= Recording("stream-speed").meta["elapsed_s"] * 1000 - 50


def test_a_silent_vane_ends_at_the_real_limit(lock_path: Path) -> None:
    """Speed mode's own 10 s, by the wall clock."""
    with ReplayServer("stream-classifier-hang") as server:
        result = VaneClient(server.url, lock_path=str(lock_path)).research("What is TCP?", mode="speed")
    assert result.error is not None
    assert result.error.code == "EXECUTION_TIMEOUT"
    assert "10 s limit of speed mode" in result.error.message
    assert 10_000 <= result.telemetry.duration_ms < 11_000
