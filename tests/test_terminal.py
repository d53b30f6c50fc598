"""`%vane` in a terminal: a real `ipython` and a real `jupyter console` behind a pty, and one whose output is a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pexpect
import psutil
import pytest
from kernels import ROOT
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
    reply,
    sleep,
    source,
)

ANSWER = "Turbines turn **slowly** [1]."
SOURCES = [source("Tidal report", "https://energy.example/r1")]
REPLY = answer(ANSWER, SOURCES)
BEGINNING = [head(200, CHUNKED), *(chunk(events(event)) for event in answer_events(ANSWER, SOURCES)[:-1])]
SLOW = [*BEGINNING, sleep(1.5), chunk(events({"type": "done"})), LAST_CHUNK]
PROMPT = r"In \[\d+\]: \Z"


class Terminal:
    """An IPython behind a pty; cells are typed as lines."""

    def __init__(self, *arguments: str) -> None:
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PAGER": "cat", "PROMPT_TOOLKIT_NO_CPR": "1"},
            encoding="utf-8",
            timeout=60,
            dimensions=(500, 100),
        )
        self.child.expect(PROMPT)
        self.run("%load_ext vane_magic")

    def start(self, line: str) -> None:
        self.child.sendline(line)
        self.child.expect_exact(line[-10:])

    def run(self, line: str) -> str:
        """What is written until the next prompt."""
        self.start(line)
        self.child.expect(PROMPT)
        return self.child.before.strip()

    def config(self, **values: object) -> None:
        for name, value in values.items():
            self.run(f"%config VaneMagics.{name} = {value!r}")

    def close(self) -> None:
        started = psutil.Process(self.child.pid).children(recursive=True) if self.child.isalive() else []
        self.child.close(force=True)
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture(scope="module")
def shared() -> Iterator[Terminal]:
    terminal = Terminal("IPython", "--no-banner", "--simple-prompt", "--no-confirm-exit", "--colors=nocolor")
    yield terminal
    terminal.close()


@pytest.fixture
def ask(shared: Terminal, scripted: Callable[..., ScriptedServer], lock_path: Path) -> Callable[..., ScriptedServer]:
    def start(*script: object) -> ScriptedServer:
        server = scripted(*script)
        shared.config(url=server.url, lock_path=str(lock_path))
        return server

    return start


def test_an_answer_is_printed_once_with_its_sources(shared: Terminal, ask: Callable[..., ScriptedServer]) -> None:
    """And the echo of its value is one line."""
    server = ask(REPLY)
    text = shared.run("%vane what's HTTP?")
    assert server.searches[0].json()["query"] == "what's HTTP?"
    assert text.count("Turbines turn slowly [1].") == 1
    assert "https://energy.example/r1" in text
    assert re.search(r"^Out\[\d+\]: <ToolResult success.*>$", text.splitlines()[-1].strip())
    assert "\x1b" not in text


@pytest.mark.parametrize("line", ["%vane -q what is it?", "%vane what is it?;", "r = %vane -q what is it?"])
def test_a_quiet_call_prints_nothing(shared: Terminal, ask: Callable[..., ScriptedServer], line: str) -> None:
    """Not even Out[n]:."""
    ask(REPLY)
    assert shared.run(line) == ""


def test_a_slow_run_has_one_line_that_is_taken_back(shared: Terminal, ask: Callable[..., ScriptedServer]) -> None:
    """Written over itself, and gone before the answer."""
    ask(SLOW)
    text = shared.run("r = %vane what is it?")
    live, _, answered = text.rpartition("\r\x1b[K")
    assert re.search(r"writing, 1 of 30 s, 1 source", live)
    assert "\n" not in live.strip()
    assert answered.startswith("Turbines turn slowly")
    assert "of 30 s" not in answered


def test_ctrl_c_ends_it_with_one_line(shared: Terminal, ask: Callable[..., ScriptedServer], lock_path: Path) -> None:
    """The prompt is back, and what had come is there."""
    server = ask([*BEGINNING, hang])
    shared.start("%vane -m quality what is it?")
    shared.child.expect("of 60 s, 1 source")
    shared.child.sendintr()
    shared.child.expect(PROMPT, timeout=5)
    line = shared.child.before.rpartition("\r\x1b[K")[2].strip()
    assert line.startswith("Interrupted; _vane has what had come.")
    assert len(line.splitlines()) <= 2
    assert server.searches[0].left.wait(1)
    assert not lock_path.exists()
    assert "Turbines turn" in shared.run("print(_vane.answer)")


def test_a_raised_error_refers_to_its_card(shared: Terminal, ask: Callable[..., ScriptedServer]) -> None:
    """In two lines that do not tell it all again."""
    ask(reply(500))
    shared.config(on_error="raise")
    text = shared.run("%vane what is it?")
    shared.config(on_error="show")
    assert text.count("Usual causes") == 1
    assert text.splitlines()[-2].startswith("UpstreamSearchError: ")
    assert text.splitlines()[-1] == "UPSTREAM_SEARCH_ERROR: see the card above."


def test_help_is_shown(shared: Terminal) -> None:
    """`%vane?` explains; `%vane` alone lists the settings."""
    assert "Ask a local Vane" in shared.run("%vane?")
    assert "on_error         show" in shared.run("%vane")  # whatever the tests before have set


def test_a_file_gets_the_answer_alone(scripted: Callable[..., ScriptedServer], tmp_path: Path, lock_path: Path) -> None:
    """Nothing live is written into a log."""
    script = tmp_path / "ask.ipy"
    script.write_text("r = %vane what is it?\n", encoding="utf-8")
    server = scripted(SLOW)
    place = {"VANE_URL": server.url, "VANE_LOCK_PATH": str(lock_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "IPython", "--colors=nocolor", "--ext=vane_magic", str(script)]
    ran = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.count("Turbines turn slowly [1].") == 1
    assert ran.stderr == ""
    assert not re.search(r"[\r\x1b]", ran.stdout)


def test_jupyter_console_shows_one_answer(
    scripted: Callable[..., ScriptedServer], lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot update a display, so it gets nothing live and the whole answer."""
    pytest.importorskip("jupyter_console")
    server = scripted(SLOW)
    monkeypatch.setenv("VANE_URL", server.url)
    monkeypatch.setenv("VANE_LOCK_PATH", str(lock_path))
    terminal = Terminal("jupyter_console", "--simple-prompt", "--ZMQTerminalInteractiveShell.banner=''")
    try:
        text = terminal.run("r = %vane what is it?")
        assert text.count("Turbines turn slowly [1].") == 1
        assert "of 30 s" not in text
        terminal.child.sendline("exit")  # ends its kernel too
        terminal.child.expect(pexpect.EOF)
    finally:
        terminal.close()
