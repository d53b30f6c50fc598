"""The one pipeline: from a question to a ToolResult, over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from servers.listener import SEARCH, Script
from servers.replay import Recording, ReplayServer
from servers.scripted import API_KEY, ScriptedServer, answer, config, hang, in_turn, json_reply, provider, source

from vane_magic.core.client import Phase, Progress, VaneClient
from vane_magic.core.contract import ToolResult
from vane_magic.core.errors import ExecutionTimeout, Interrupted
from vane_magic.core.gpu_lock import GpuLock
from vane_magic.core.modes import ErrorCode

Replay = Callable[..., ReplayServer]
Scripted = Callable[..., ScriptedServer]
QUESTION = "How does TCP open a connection?"


@pytest.fixture
def ask(lock_path: Path) -> Callable[..., ToolResult]:
    """Ask one question of a server, with this test's own lock."""

    def ask(server: ReplayServer | ScriptedServer, query: str = QUESTION, **options: object) -> ToolResult:
        return VaneClient(server.url, lock_path=str(lock_path)).research(query, **options)

    return ask


def one_after_another(*cases: str) -> Script:
    """The first search is answered by the first recording, and so on."""
    return in_turn(*(Recording(case).script(0) for case in cases))


def code(result: ToolResult) -> str:
    return result.error.code if result.error else "success"


def is_free(path: Path) -> bool:
    """Whether another worker could take the lock now."""
    with GpuLock(path):
        return True


@pytest.mark.parametrize("mode", ["speed", "balanced", "quality"])
def test_a_question_comes_back_as_a_cited_result(replay: Replay, ask: Callable[..., ToolResult], mode: str) -> None:
    """The whole way, with the real server's bytes."""
    server = replay(f"stream-{mode}")
    result = ask(server, mode=mode)
    assert code(result) == "success"
    assert result.data is not None
    assert (result.data.query, result.data.mode) == (QUESTION, mode)
    assert result.verify()
    assert result.run.complete
    assert result.run.searched is True
    assert result.run.locality == "local"
    assert set(result.run.citations) <= set(range(1, result.run.source_count + 1))
    assert len(result.sources) == min(8, result.run.source_count)
    assert list(result.run.phases) == ["looking up models", "waiting for the GPU", "searching", "writing"]
    assert result.telemetry.duration_ms >= result.data.timing_ms


def test_exactly_one_search_is_sent_and_it_says_what_vane_needs(replay: Replay, ask: Callable[..., ToolResult]) -> None:
    """One POST; both models by id and key; always streamed."""
    server = replay("stream-speed")
    ask(server, "  what's 6'2\" in cm?  ", mode="speed", scope="web,academic", instructions="Be brief.")
    (sent,) = server.searches
    body = json.loads(sent.body)
    assert body["query"] == "what's 6'2\" in cm?"
    assert (body["optimizationMode"], body["sources"], body["stream"]) == ("speed", ["web", "academic"], True)
    assert set(body["chatModel"]) == set(body["embeddingModel"]) == {"providerId", "key"}
    assert (body["history"], body["systemInstructions"]) == ([], "Be brief.")


def test_a_refused_address_opens_no_socket(lock_path: Path, audit: list[object]) -> None:
    """Judged before anything else is done."""
    result = VaneClient("http://192.168.1.20:3000", lock_path=str(lock_path)).research(QUESTION)
    assert code(result) == ErrorCode.SECURITY_BOUNDARY_VIOLATION
    assert audit == []
    assert not lock_path.exists()


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [
        ("ab", {}, ErrorCode.INVALID_INPUT),
        (None, {}, ErrorCode.INVALID_INPUT),
        (7, {}, ErrorCode.INVALID_INPUT),
        (QUESTION, {"mode": "fast"}, ErrorCode.INVALID_INPUT),
        (QUESTION, {"max_sources": 0}, ErrorCode.INVALID_INPUT),
        (QUESTION, {"max_sources": True}, ErrorCode.INVALID_INPUT),
        (QUESTION, {"max_sources": "8"}, ErrorCode.INVALID_INPUT),
        (QUESTION, {"scope": "images"}, ErrorCode.INVALID_INPUT),
        (QUESTION, {"timeout": 31}, ErrorCode.CONFIGURATION_ERROR),
        (QUESTION, {"wait": -1}, ErrorCode.CONFIGURATION_ERROR),
        (QUESTION, {"instructions": 3}, ErrorCode.CONFIGURATION_ERROR),
    ],
)
def test_a_bad_value_ends_in_a_result_and_sends_nothing(
    scripted: Scripted, ask: Callable[..., ToolResult], query: object, options: dict[str, object], expected: ErrorCode
) -> None:
    """`research` raises for nothing that a caller can get wrong in a value."""
    server = scripted()
    result = ask(server, query, **options)
    assert code(result) == expected
    assert server.requests == []


def test_a_refused_question_is_kept_with_the_result() -> None:
    """So that the card and a loop over results can name it."""
    assert VaneClient().research(" ab ").run.query == "ab"


def test_a_bad_setting_of_the_client_is_judged_when_a_question_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor never judges values, and the environment counts."""
    assert code(VaneClient(mode="fast").research(QUESTION)) == ErrorCode.CONFIGURATION_ERROR
    monkeypatch.setenv("VANE_WAIT", "soon")
    result = VaneClient().research(QUESTION)
    assert result.error is not None
    assert "VANE_WAIT in the environment" in result.error.message


def test_only_misuse_of_python_raises(lock_path: Path) -> None:
    """A wrong type where no value could be right."""
    with pytest.raises(TypeError, match="previous must be a ToolResult"):
        VaneClient().research(QUESTION, previous="no")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        VaneClient(transport=None)  # pyright: ignore[reportCallIssue]


def test_a_busy_lock_ends_in_a_result_before_anything_is_posted(replay: Replay, lock_path: Path) -> None:
    """No POST is ever sent without the lock."""
    server = replay("stream-speed")
    with GpuLock(lock_path, mode="quality"):
        result = VaneClient(server.url, lock_path=str(lock_path)).research(QUESTION)
    assert code(result) == ErrorCode.VRAM_CONCURRENCY_SATURATED
    assert str(os.getpid()) in result.error.message
    assert server.searches == []
    assert code(VaneClient(server.url, lock_path=str(lock_path)).research(QUESTION)) == "success"


def test_two_clients_of_one_process_take_turns(replay: Replay, lock_path: Path) -> None:
    """With patience both are served, and the server never sees two searches at once."""
    server = replay("stream-speed", speed=0.3)
    results: list[ToolResult] = []

    def work() -> None:
        client = VaneClient(server.url, lock_path=str(lock_path), wait=20)
        results.append(client.research(QUESTION, mode="speed"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [code(result) for result in results] == ["success"] * 3
    assert server.most_searches == 1


def test_progress_tells_the_phases_and_the_text_so_far(replay: Replay, ask: Callable[..., ToolResult]) -> None:
    """On the calling thread, on each event."""
    seen: list[Progress] = []
    threads = set()

    def note(progress: Progress) -> None:
        seen.append(progress)
        threads.add(threading.current_thread())

    result = ask(replay("stream-speed"), mode="speed", on_progress=note)
    assert threads == {threading.current_thread()}
    assert [p for i, p in enumerate(p.phase for p in seen) if i == 0 or p != seen[i - 1].phase][-2:] == [
        Phase.SEARCHING,
        Phase.WRITING,
    ]
    assert seen[-1].text == result.answer
    assert seen[-1].limit_ms == 10_000
    assert seen[-1].sources == result.run.source_count
    texts = [p.text for p in seen]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_a_silent_server_still_ticks(scripted: Scripted, ask: Callable[..., ToolResult]) -> None:
    """A caller can redraw while nothing comes."""
    server = scripted(hang)
    ticks: list[float] = []
    result = ask(server, timeout=1, on_progress=lambda p: ticks.append(time.monotonic()))
    assert code(result) == ErrorCode.EXECUTION_TIMEOUT
    assert max(b - a for a, b in pairwise(ticks)) < 0.5


def test_a_fault_of_the_callers_own_callback_is_the_callers(
    replay: Replay, ask: Callable[..., ToolResult], lock_path: Path
) -> None:
    """It goes up unchanged, and the lock is free."""

    def fail(progress: Progress) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        ask(replay("stream-speed"), on_progress=fail)
    assert is_free(lock_path)


def test_a_fault_of_our_own_is_an_internal_error(
    replay: Replay, ask: Callable[..., ToolResult], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Logged with its traceback, chained, never swallowed."""

    def fail(*args: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("vane_magic.core.client.select", fail)
    result = ask(replay("stream-speed"))
    assert code(result) == ErrorCode.INTERNAL_ERROR
    assert "ZeroDivisionError: oops" in caplog.text
    with pytest.raises(Exception, match="ZeroDivisionError") as raised:
        result.raise_for_error()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


# Stopping ---


def test_ctrl_c_keeps_what_had_come(replay: Replay, lock_path: Path) -> None:
    """`Interrupted` is a KeyboardInterrupt that carries the result."""
    server = replay("stream-answer-stalls-7min")

    def interrupt(progress: Progress) -> None:
        if progress.text.count(" ") > 5 and not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    pressed: list[bool] = []
    with pytest.raises(KeyboardInterrupt) as raised:
        VaneClient(server.url, lock_path=str(lock_path)).research(QUESTION, on_progress=interrupt)
    assert isinstance(raised.value, Interrupted)
    result = raised.value.result
    assert code(result) == ErrorCode.CANCELLED
    assert result.answer
    assert result.sources
    assert result.verify()
    assert "may still be at work" in result.error.message
    assert is_free(lock_path)
    assert server.searches[0].left.wait(5)


def test_a_token_stops_a_run_from_another_thread(
    replay: Replay, ask: Callable[..., ToolResult], lock_path: Path
) -> None:
    """For threads that Ctrl-C cannot reach."""
    cancel = threading.Event()
    server = replay("stream-classifier-hang")
    threading.Timer(0.3, cancel.set).start()
    assert code(ask(server, cancel=cancel)) == ErrorCode.CANCELLED
    assert is_free(lock_path)


def test_the_next_result_of_that_client_says_that_vane_may_be_busy(replay: Replay, lock_path: Path) -> None:
    """Vane does not stop when its client leaves."""
    server = replay("stream-speed", routes={SEARCH: one_after_another("stream-writer-stall", "stream-speed")})
    client = VaneClient(server.url, lock_path=str(lock_path))
    first = client.research(QUESTION, timeout=0.4)
    assert code(first) == ErrorCode.EXECUTION_TIMEOUT
    second, third = client.research(QUESTION), client.research(QUESTION)
    assert any("still have been at work" in note for note in second.run.notes)
    assert not any("still have been at work" in note for note in third.run.notes)


# asyncio ---


async def _cancel_when_searching(server: ReplayServer, client: VaneClient) -> None:
    task = asyncio.create_task(client.aresearch(QUESTION))
    await asyncio.to_thread(server.wait_for_searches, 1, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_task_has_freed_the_lock_when_it_ends(replay: Replay, lock_path: Path) -> None:
    """An immediate second call succeeds."""
    server = replay("stream-speed", routes={SEARCH: one_after_another("stream-writer-stall", "stream-speed")})
    client = VaneClient(server.url, lock_path=str(lock_path))

    async def main() -> ToolResult:
        await _cancel_when_searching(server, client)
        return await client.aresearch(QUESTION)

    assert code(asyncio.run(main())) == "success"


def test_the_event_loop_runs_on_and_gets_the_progress(replay: Replay, lock_path: Path) -> None:
    """`aresearch` blocks a worker thread, not the loop."""
    server = replay("stream-speed", speed=0.2)
    seen: list[threading.Thread] = []

    async def main() -> tuple[ToolResult, int]:
        client = VaneClient(server.url, lock_path=str(lock_path))
        task = asyncio.create_task(
            client.aresearch(QUESTION, on_progress=lambda p: seen.append(threading.current_thread()))
        )
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return await task, turns

    result, turns = asyncio.run(main())
    assert code(result) == "success"
    assert turns > 10
    assert set(seen) == {threading.main_thread()}


def test_asyncio_tasks_exclude_each_other(replay: Replay, lock_path: Path) -> None:
    """Without patience the second is told that the GPU is taken."""
    server = replay("stream-speed", speed=0.3)

    async def main() -> list[ToolResult]:
        client = VaneClient(server.url, lock_path=str(lock_path))
        first = asyncio.create_task(client.aresearch(QUESTION))
        await asyncio.to_thread(server.wait_for_searches, 1, 5)
        return [await client.aresearch(QUESTION), await first]

    assert [code(r) for r in asyncio.run(main())] == ["VRAM_CONCURRENCY_SATURATED", "success"]


# Conversations ---


def test_a_follow_up_sends_the_successful_turns_without_their_marks(scripted: Scripted, lock_path: Path) -> None:
    """As pairs: `human` is the user, every other word the assistant."""
    server = scripted(answer("<think>hm</think>TCP is a protocol [1].", [source()]))
    client = VaneClient(server.url, lock_path=str(lock_path))
    first = client.research("what is TCP?")
    failed = client.research("no", previous=first)
    second = client.research("who made it?", previous=failed)
    client.research("when?", previous=ToolResult.model_validate_json(second.to_json()))
    history = [json.loads(request.body)["history"] for request in server.searches]
    turn = [["human", "what is TCP?"], ["assistant", "TCP is a protocol."]]
    assert history == [[], turn, [["human", "who made it?"], ["assistant", "TCP is a protocol."]]]
    assert [t.query for t in second.run.turns] == ["what is TCP?", "who made it?"]


def test_the_oldest_turns_are_dropped_above_32_kb(scripted: Scripted, lock_path: Path) -> None:
    """The history stays bounded however long the conversation."""
    server = scripted(answer("x" * 10_000))
    client = VaneClient(server.url, lock_path=str(lock_path))
    result = None
    for number in range(6):
        result = client.research(f"question {number}", previous=result)
    sent = json.loads(server.searches[-1].body)["history"]
    assert [text for role, text in sent if role == "human"] == ["question 2", "question 3", "question 4"]


# Notes ---


@pytest.mark.parametrize(
    ("text", "sources", "note"),
    [
        ("Hello.", None, "Answered without a web search"),
        ("Sorry, nothing.", [], "The search found nothing"),
        ("So [1][2].", [], "[1], [2] in the answer point at no source"),
        ("No marks.", [source()], "cites none"),
    ],
)
def test_what_backs_an_answer_is_said(
    scripted: Scripted, ask: Callable[..., ToolResult], text: str, sources: list[object] | None, note: str
) -> None:
    """A success, with a note in `run` and on the card."""
    result = ask(scripted(answer(text, sources)))
    assert code(result) == "success"
    assert any(note in each for each in result.run.notes)
    assert note in result.card().plain()


def test_documents_that_do_not_match_are_not_the_webs_fault(scripted: Scripted, ask: Callable[..., ToolResult]) -> None:
    """The engine of the local documents has no SearXNG that could be broken."""
    told = config([provider("Local documents", kind="localdocs", chat=["extractive"], embedding=["none"])])
    (note,) = ask(scripted(answer("Nothing was found.", []), config=told)).run.notes
    assert note == "No document matches the question, so no source backs this answer."


def test_an_answer_cut_by_the_clock_is_kept_and_marked(replay: Replay, ask: Callable[..., ToolResult]) -> None:
    """With text, the display shows the answer first under a thin banner."""
    result = ask(replay("stream-writer-stall"), timeout=0.5)
    assert code(result) == ErrorCode.EXECUTION_TIMEOUT
    assert not result.run.complete
    assert result.verify()
    assert result.card().banner.startswith("Stopped at the 0.5 s limit")
    with pytest.raises(ExecutionTimeout):
        result.raise_for_error()


def test_an_empty_answer_is_a_failure_that_keeps_its_sources(
    replay: Replay, scripted: Scripted, ask: Callable[..., ToolResult]
) -> None:
    """Also when only thinking came."""
    result = ask(replay("stream-answer-empty"))
    assert code(result) == ErrorCode.UPSTREAM_SEARCH_ERROR
    assert len(result.sources) == 5
    thought = ask(scripted(answer("<think>I wonder")))
    assert code(thought) == ErrorCode.UPSTREAM_SEARCH_ERROR
    assert thought.run.thinking == "I wonder"
    assert "thinking" in thought.error.message


def test_keys_of_the_server_go_nowhere(
    scripted: Scripted, ask: Callable[..., ToolResult], caplog: pytest.LogCaptureFixture
) -> None:
    """`/api/config` holds API keys: what is not needed is dropped unread."""
    keyed = provider(base_url=f"http://127.0.0.1:11434/{API_KEY}")
    told = config([keyed], searxng=f"http://127.0.0.1:8080/?key={API_KEY}")
    told["values"]["preferences"] = {"note": API_KEY}
    server = scripted(json_reply(500, {"message": "no"}), config=told)
    result = ask(server)
    assert code(result) == ErrorCode.UPSTREAM_SEARCH_ERROR
    shown = [result.to_json(), repr(result), repr(result.run), result.card().html(), result.card().plain(), caplog.text]
    assert API_KEY not in "".join(shown)
    sent = b"".join(request.body + repr(request.headers).encode() for request in server.requests)
    assert API_KEY.encode() not in pickle.dumps(result) + sent
