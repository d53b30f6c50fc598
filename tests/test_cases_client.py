"""The user cases of groups C (generations and models) and F (the lock), each with its right outcome."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers.listener import closed_port
from servers.scripted import CASES, ScriptedServer, case_server

from vane_magic.core.client import Progress, VaneClient
from vane_magic.core.contract import ToolResult

QUESTION = "what is a tidal turbine"
HOLD = (
    "import sys; from vane_magic import GpuLock\nwith GpuLock(sys.argv[1], mode='quality'): print(flush=True); input()"
)


@pytest.fixture
def ask(lock_path: Path) -> Callable[..., ToolResult]:
    """Ask one question of a case's server."""

    def ask(server: ScriptedServer, *, chat_model: str | None = None, **options: object) -> ToolResult:
        client = VaneClient(server.url, lock_path=str(lock_path), chat_model=chat_model)
        return client.research(QUESTION, **options)  # pyright: ignore[reportArgumentType] - a test's own options

    return ask


def message(result: ToolResult) -> str:
    return result.error.message if result.error else "success"


def test_the_cases_of_both_groups_are_all_here() -> None:
    """None is forgotten when one is added."""
    told = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in CASES if name[0] in "CF" and f"{name.lower()}_" not in told] == []


def test_c01_a_server_from_before_the_provider_list_is_named(ask: Callable[..., ToolResult]) -> None:
    """With the version that is needed; no search is posted."""
    with case_server("C01") as server:
        assert "1.10 or earlier" in (said := message(ask(server)))
        assert "Upgrade it to Vane 1.12 or later" in said
        assert server.searches == []


def test_c04_fields_that_nobody_knew_do_no_harm(ask: Callable[..., ToolResult]) -> None:
    """They are passed over."""
    with case_server("C04") as server:
        assert ask(server).success


def test_c06_another_program_on_the_port_is_told_at_once(ask: Callable[..., ToolResult]) -> None:
    """With the address and the setting to change."""
    with case_server("C06") as server:
        result = ask(server)
        assert f"Something answers at {server.url}, but it is not Vane" in message(result)
        assert "VANE_URL" in message(result)
        assert result.telemetry.duration_ms < 5_000


def test_c09_the_order_of_the_providers_changes_nothing(ask: Callable[..., ToolResult]) -> None:
    """Both requests carry the same models."""
    with case_server("C09") as server:
        assert [ask(server).success for _ in range(2)] == [True, True]
        first, second = (search.json() for search in server.searches)
        assert (first["chatModel"], first["embeddingModel"]) == (second["chatModel"], second["embeddingModel"])


def test_c10_two_providers_of_one_name_go_by_who_has_the_model(ask: Callable[..., ToolResult]) -> None:
    """Never a silent first match."""
    with case_server("C10") as server:
        assert ask(server, chat_model="Ollama/qwen3:8b").success
        assert server.searches[0].json()["chatModel"]["providerId"].endswith("a11")


def test_c11_an_empty_list_of_providers_is_explained(ask: Callable[..., ToolResult]) -> None:
    """Vane is up; its model provider is not reached."""
    with case_server("C11") as server:
        assert "Vane is up, but has no working chat model" in (said := message(ask(server)))
        assert "in a container, localhost is the container itself" in said
        assert server.searches == []


@pytest.mark.parametrize(("name", "key"), [("llama3.1", "llama3.1:latest"), ("LLAMA3.1:LATEST", "llama3.1:latest")])
def test_c13_a_name_without_tag_or_in_capitals_is_found(ask: Callable[..., ToolResult], name: str, key: str) -> None:
    """An unknown one is refused before any search, with the list."""
    with case_server("C13") as server:
        assert ask(server, chat_model=name).success
        assert server.searches[0].json()["chatModel"]["key"] == key
        assert "Vane has no chat model 'mistral'. It has: " in message(ask(server, chat_model="mistral"))
        assert len(server.searches) == 1


def test_f01_two_workers_at_once_take_turns(lock_path: Path) -> None:
    """The server never sees two searches at the same time; the wait is announced within about a second."""
    told: list[Progress] = []
    with case_server("F01") as server:

        def work() -> None:
            client = VaneClient(server.url, lock_path=str(lock_path), wait=30)
            results.append(client.research(QUESTION, mode="speed", on_progress=told.append))

        results: list[ToolResult] = []
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [message(result) for result in results] == ["success", "success"]
        assert server.most_searches == 1
    waits = [progress for progress in told if progress.holder]
    assert waits[0].elapsed_ms < 2_500
    assert "speed, since" in waits[0].holder


def test_f03_no_place_for_the_lock_is_told_and_is_not_busy(
    ask: Callable[..., ToolResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line with the path and the setting."""
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/proc")
    with case_server("D16") as server:
        result = VaneClient(server.url).research(QUESTION)
    assert result.error is not None
    assert result.error.code == "CONFIGURATION_ERROR"
    assert "/proc/.vane-gpu-worker.lock" in result.error.message
    assert "VANE_LOCK_PATH" in result.error.message


@pytest.mark.parametrize("case", ["D01", "D03", "D06", "D12"])
def test_f07_the_lock_is_free_after_every_kind_of_end(case: str, lock_path: Path) -> None:
    """For another process too; the interrupt (D21) is tested in a kernel."""
    with ExitStack() as stack:
        if case == "D12":
            url = f"http://127.0.0.1:{stack.enter_context(closed_port())}"
        else:
            url = stack.enter_context(case_server(case)).url
        assert not VaneClient(url, lock_path=str(lock_path)).research(QUESTION, timeout=0.5).success
        hold = [sys.executable, "-c", HOLD, str(lock_path)]
        subprocess.run(hold, input="\n", text=True, capture_output=True, timeout=60, check=True)


def test_f10_the_wait_for_the_lock_is_bounded(lock_path: Path) -> None:
    """Its message is another than that of a search that took too long, and nothing was posted."""
    hold = [sys.executable, "-c", HOLD, str(lock_path)]
    with case_server("F10") as server, subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        began = time.monotonic()
        result = VaneClient(server.url, lock_path=str(lock_path), wait=1.2).research(QUESTION, mode="speed")
        assert 1.2 <= time.monotonic() - began < 10
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        assert server.searches == []
    assert result.error is not None
    assert result.error.code == "VRAM_CONCURRENCY_SATURATED"
    assert f"pid {holder.pid}, quality" in result.error.message
    assert "Waited 1." in result.error.message
