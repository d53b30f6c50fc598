"""The form in a real ipykernel: other cells run meanwhile, and clicks are handled where the front end sends them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernels import Kernel, open_kernel
from servers.scripted import (
    CHUNKED,
    LAST_CHUNK,
    ScriptedServer,
    answer,
    answer_events,
    chunk,
    events,
    hang,
    head,
    source,
    wait,
)

SOURCES = [source("Tidal report", "https://energy.example/r1")]
REPLY = answer("Turbines turn slowly [1].", SOURCES)
PART = [head(200, CHUNKED), *(chunk(events(e)) for e in answer_events("Half an answer [1]", SOURCES)[:-1])]
END = [chunk(events({"type": "done"})), LAST_CHUNK]
QUESTION = "How do tidal turbines work?"


class Front:
    """A front end with one form, which sends its messages to a subshell or to the main shell.

    A pong is as good as all that were asked for until its number.
    """

    def __init__(self, kernel: Kernel, server: ScriptedServer, lock: Path) -> None:
        self.kernel, self.subshell, self._busy = kernel, "", lock.parent / "busy"
        kernel.run(f"import os, time, vane_magic\nform = vane_magic.Form(url={server.url!r}, lock_path={str(lock)!r})")
        names = ("question", "ask", "stop")
        self._ids = {name: kernel.value(f"form._page.{name}.model_id") for name in names}

    def open_subshell(self) -> None:
        told = self.kernel.client.kernel_info(reply=True, timeout=20)["content"]
        if "kernel subshells" not in told.get("supported_features", []):
            pytest.skip("this ipykernel has no subshells")
        self.kernel.client.control_channel.send(self.kernel.client.session.msg("create_subshell_request", {}))
        self.subshell = self.kernel.client.get_control_msg(timeout=20)["content"]["subshell_id"]

    def set(self, name: str, **state: object) -> None:
        self._send(name, {"method": "update", "state": state, "buffer_paths": []})

    def click(self, name: str) -> None:
        self._send(name, {"method": "custom", "content": {"event": "click"}})

    def keep_busy(self) -> str:
        """Start a cell that runs until `let_go`."""
        self._busy.touch()
        cell = self.kernel.start(f"while os.path.exists({str(self._busy)!r}):\n    time.sleep(0.01)")
        self.kernel.wait_for(cell, "execute_input")
        return cell

    def let_go(self, cell: str) -> None:
        self._busy.unlink()
        assert self.kernel.wait(cell).status == "ok"

    def state(self) -> str:
        """What the form comes to."""
        self.kernel.run("while form.state in ('idle', 'running'): time.sleep(0.01)")
        return self.kernel.value("form.state")

    def _send(self, name: str, data: dict[str, Any]) -> None:
        message = self.kernel.client.session.msg("comm_msg", {"comm_id": self._ids[name], "data": data})
        if self.subshell:
            message["header"]["subshell_id"] = self.subshell
        self.kernel.client.shell_channel.send(message)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with open_kernel() as kernel:
        yield kernel


@pytest.fixture
def open_front(
    kernel: Kernel, scripted: Callable[..., ScriptedServer], lock_path: Path
) -> Iterator[Callable[..., tuple[Front, ScriptedServer]]]:
    def open_front(*script: object) -> tuple[Front, ScriptedServer]:
        server = scripted(*script)
        return Front(kernel, server, lock_path), server

    yield open_front
    (lock_path.parent / "busy").unlink(missing_ok=True)
    kernel.run("form.close()")
    assert kernel.value("[t.name for t in __import__('threading').enumerate() if t.name == 'vane-form']") == "[]"


Open = Callable[..., tuple[Front, ScriptedServer]]


def test_other_cells_run_while_it_works(kernel: Kernel, open_front: Open) -> None:
    """A cell runs from start to end while Vane has not answered."""
    gate = threading.Event()
    front, server = open_front([*PART, wait(gate), *END])
    front.set("question", value=QUESTION)
    front.click("ask")
    server.wait_for_searches()
    assert kernel.value("form.state, 1 + 1") == "running 2"
    gate.set()
    assert front.state() == "done"


def test_in_a_subshell_it_asks_and_stops_while_a_cell_is_busy(kernel: Kernel, open_front: Open) -> None:
    """Both clicks are handled before the cell ends, in the subshell of the front end, for every control."""
    front, server = open_front([*PART, hang])
    front.open_subshell()
    front.set("question", pong=9)
    kernel.run("while form._page.question.pong == 0: time.sleep(0.01)")
    cell = front.keep_busy()
    front.set("question", value=QUESTION)
    front.click("ask")
    front.set("question", pong=99)
    search = server.wait_for_searches()[0]
    front.click("stop")
    assert search.left.wait(10)
    front.let_go(cell)
    assert front.state() == "cancelled"
    assert search.json()["query"] == QUESTION


def test_stop_reaches_a_question_that_a_cell_has_asked(kernel: Kernel, open_front: Open) -> None:
    """Also when the cell that has asked stays busy: its changes do not draw the clicks to the main shell."""
    front, server = open_front([*PART, hang])
    front.open_subshell()
    front.set("question", pong=9)
    kernel.run("while form._page.question.pong == 0: time.sleep(0.01)")
    kernel.run(f"form.ask({QUESTION!r})")
    cell = front.keep_busy()
    search = server.wait_for_searches()[0]
    front.click("stop")
    assert search.left.wait(10)
    front.let_go(cell)
    assert front.state() == "cancelled"


def test_without_subshells_a_click_waits_for_the_cell(kernel: Kernel, open_front: Open) -> None:
    """And then asks what was typed by then."""
    front, server = open_front(REPLY)
    front.set("question", pong=1)
    cell = front.keep_busy()
    front.set("question", value="How")
    front.click("ask")
    front.set("question", value=QUESTION)
    front.set("question", pong=99)
    front.let_go(cell)
    assert front.state() == "done"
    assert [search.json()["query"] for search in server.searches] == [QUESTION]


def test_restarting_the_kernel_leaves_nothing(
    kernel: Kernel, scripted: Callable[..., ScriptedServer], lock_path: Path
) -> None:
    """No connection, and a lock that is free at once."""
    server = scripted(hang)
    Front(kernel, server, lock_path)
    kernel.run(f"form.ask({QUESTION!r})")
    search = server.wait_for_searches()[0]
    assert lock_path.exists()
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=60)
    assert search.left.wait(10)
    assert not lock_path.exists()


def test_the_magic_shows_a_form(kernel: Kernel) -> None:
    """As a widget, and as text that says how to ask without one; a question on the line is told where to go."""
    kernel.run("%load_ext vane_magic")
    ran = kernel.run("%vane_form")
    assert ran.kinds() == ["execute_result"]
    data = ran.stored[0]["data"]
    assert "application/vnd.jupyter.widget-view+json" in data
    assert 'form.ask("…").result()' in data["text/plain"]
    kernel.run("_.close()")
    assert "type it into the form" in kernel.run("%vane_form what is it", fails=True).text()


def test_the_magic_tells_a_bad_setting_in_short(kernel: Kernel) -> None:
    """What is wrong and where it comes from, without a traceback."""
    kernel.run("%load_ext vane_magic\nimport os\nos.environ['VANE_MODE'] = 'fast'")
    try:
        told = kernel.run("%vane_form", fails=True).text()
    finally:
        kernel.run("del os.environ['VANE_MODE']")
    assert (
        "UsageError: mode must be speed, balanced or quality, not 'fast' (from VANE_MODE in the environment)." in told
    )
    assert len(told.splitlines()) == 1
