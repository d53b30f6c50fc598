"""The command, as a shell and an agent use it: a real process, standard input and output, exit codes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from pages import ROOT
from servers.listener import closed_port
from servers.replay import ReplayServer
from servers.scripted import ScriptedServer, answer, hang, json_reply, source

from vane_magic.cli import main
from vane_magic.core.gpu_lock import GpuLock

SCHEMA = json.loads((Path(__file__).parent.parent / "vane_magic" / "contract" / "tool_result.schema.json").read_text())
COMMAND = [sys.executable, "-m", "vane_magic.cli"]
Run = Callable[..., "Done"]
QUESTION = "How does TCP open a connection?"


class Done(NamedTuple):
    """How a run of the command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(lock_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command to its end, in this process, with this test's own lock."""

    def run(*args: str, stdin: str = "", **env: str) -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        for name, value in {"VANE_LOCK_PATH": str(lock_path), **env}.items():
            monkeypatch.setenv(name, value)
        try:
            code = main(args)
        except SystemExit as usage:  # argparse's way
            code = int(usage.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def start(lock_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command as a process of its own."""
    with ExitStack() as stack:

        def start(*args: str, stdout: int = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
            environ = {**os.environ, "VANE_LOCK_PATH": str(lock_path), **env}
            process = subprocess.Popen(
                [*COMMAND, *args], stdout=stdout, stderr=subprocess.PIPE, encoding="utf-8", env=environ
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def result_of(done: Done) -> dict[str, Any]:
    """The one ToolResult on standard output."""
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    jsonschema.validate(result, SCHEMA)
    return result


def code_of(done: Done) -> str:
    result = result_of(done)
    return result["error"]["code"] if "error" in result else "success"


@pytest.fixture
def vane(replay: Callable[..., ReplayServer]) -> ReplayServer:
    return replay("stream-speed")


def test_the_answer_is_on_standard_output_and_the_rest_on_standard_error(run: Run, vane: ReplayServer) -> None:
    """So that the answer can be piped; nothing blinks in a log."""
    done = run("ask", QUESTION, "--mode", "speed", "--url", vane.url)
    assert done.returncode == 0
    assert "[1]" in done.stdout
    assert "Transmission Control Protocol" in done.stdout
    assert "speed" in done.stderr
    assert "sha256:" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stderr


def test_a_question_may_come_in_words(run: Run, vane: ReplayServer) -> None:
    """Without quotes, as people type."""
    assert run("ask", "--url", vane.url, "what", "is", "TCP").returncode == 0
    assert vane.searches[0].json()["query"] == "what is TCP"
    assert run("ask", "--url", vane.url, "-40", "C", "in", "F").returncode == 0
    assert vane.searches[1].json()["query"] == "-40 C in F"


def test_the_magics_short_options_serve_here_too(run: Run, vane: ReplayServer) -> None:
    """Who has learned `%vane -m quality -n 2` types the same."""
    result = result_of(run("ask", "-m", "quality", "-n", "2", "-s", "web", QUESTION, "--json", "--url", vane.url))
    assert (result["data"]["mode"], len(result["data"]["sources"])) == ("quality", 2)


def test_json_is_one_result_with_the_options_in_force(run: Run, vane: ReplayServer) -> None:
    """Every option reaches the request or the result."""
    done = run(
        "ask", QUESTION, "--json", "--mode", "quality", "--max-sources", "2", "--url", f"{vane.url}/",
        "--scope", "web,academic", "--instructions", "Be brief.", "--timeout", "20", "--wait", "1",
    )  # fmt: skip
    result = result_of(done)
    assert (done.returncode, done.stderr) == (0, "")
    assert (result["data"]["mode"], len(result["data"]["sources"])) == ("quality", 2)
    sent = vane.searches[0].json()
    assert (sent["sources"], sent["systemInstructions"]) == (["web", "academic"], "Be brief.")


@pytest.mark.parametrize(
    ("stdin", "code"),
    [
        (json.dumps({"query": QUESTION}), "success"),
        (json.dumps({"query": QUESTION, "mode": "speed", "max_sources": 1}), "success"),
        (json.dumps({"query": QUESTION, "mode": None}), "INVALID_INPUT"),
        (json.dumps({"query": QUESTION, "max_sources": None}), "INVALID_INPUT"),
        (json.dumps({"query": QUESTION, "max_sources": True}), "INVALID_INPUT"),
        (json.dumps({"query": QUESTION, "max_sources": "8"}), "INVALID_INPUT"),
        (json.dumps({"query": QUESTION, "model": "x"}), "INVALID_INPUT"),
        (json.dumps({"query": "ab"}), "INVALID_INPUT"),
        (json.dumps({"query": 5}), "INVALID_INPUT"),
        (json.dumps([QUESTION]), "INVALID_INPUT"),
        ("", "INVALID_INPUT"),
        ("{", "INVALID_INPUT"),
        ("x" * 1_000_001, "INVALID_INPUT"),
    ],
)
def test_an_input_on_standard_input_is_judged_as_the_schema_has_it(
    run: Run, vane: ReplayServer, stdin: str, code: str
) -> None:
    """One ToolResult whatever happens."""
    done = run("ask", "--input", "-", "--json", "--url", vane.url, stdin=stdin)
    assert code_of(done) == code
    assert done.returncode == (0 if code == "success" else 1)
    assert len(vane.searches) == (code == "success")


def test_an_input_may_be_a_file(run: Run, vane: ReplayServer, tmp_path: Path) -> None:
    """And one that cannot be read is INVALID_INPUT."""
    (tmp_path / "in.json").write_text(json.dumps({"query": QUESTION}))
    assert code_of(run("ask", "--input", str(tmp_path / "in.json"), "--json", "--url", vane.url)) == "success"
    assert code_of(run("ask", "--input", str(tmp_path / "none.json"), "--json", "--url", vane.url)) == "INVALID_INPUT"


@pytest.mark.parametrize("way", ["argument", "input"])
def test_the_trigger_sentence_is_accepted_as_the_question(run: Run, vane: ReplayServer, way: str) -> None:
    """With its mode; another explicit mode is INVALID_INPUT."""
    text = f"Perform air-gapped web research for query: {QUESTION} using local Vane in quality mode."
    stdin = json.dumps({"query": text})
    args = [text] if way == "argument" else ["--input", "-"]
    result = result_of(run("ask", *args, "--json", "--url", vane.url, stdin=stdin))
    assert (result["data"]["query"], result["data"]["mode"]) == (QUESTION, "quality")
    assert code_of(run("ask", text, "--mode", "speed", "--json", "--url", vane.url)) == "INVALID_INPUT"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--mode", "fast"], "INVALID_INPUT"),
        (["--max-sources", "many"], "INVALID_INPUT"),
        (["--max-sources", "0"], "INVALID_INPUT"),
        (["--scope", "images"], "INVALID_INPUT"),
        (["--timeout", "soon"], "CONFIGURATION_ERROR"),
        (["--wait", "-1"], "CONFIGURATION_ERROR"),
        (["--url", "http://192.168.1.20:3000"], "SECURITY_BOUNDARY_VIOLATION"),
    ],
)
def test_a_bad_value_is_a_failed_result_and_not_wrong_usage(run: Run, args: list[str], code: str) -> None:
    """Exit code 1 and one ToolResult."""
    done = run("ask", QUESTION, "--json", *args)
    assert (code_of(done), done.returncode) == (code, 1)


@pytest.mark.parametrize(
    "args",
    [
        [], ["ask"], ["ask", QUESTION, "--colour"], ["ask", QUESTION, "--mod", "speed"], ["query", QUESTION],
        ["ask", QUESTION, "--input", "-"], ["ask", "--input", "-", "--mode", "speed"], ["ask", QUESTION, "--mode"],
        ["ask", QUESTION, "--url", "http://127.0.0.1:1", "--local-docs"], ["serve", "--port", "x"],
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2_without_a_result(run: Run, args: list[str]) -> None:
    """Usage on standard error."""
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: vane-research" in done.stderr


def test_the_package_runs_as_the_command() -> None:
    """Where the script is not on the path."""
    done = subprocess.run([sys.executable, "-m", "vane_magic", "skill"], capture_output=True, cwd=ROOT, check=True)
    assert done.stdout.startswith(b"---\nname: vane-research")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["\N{EN DASH}-local-docs", "what is a hash?"], "options begin with hyphens"),
        (["\N{EM DASH}json", "what is a hash?"], "options begin with hyphens"),
        (["--local-docs", "{folder}", "what is a hash?"], "VANE_LOCAL_DOCS"),
        (["--scope", "academic,", "web", "--jsn", "what?"], "-- goes before a question"),
    ],
)
def test_what_would_have_been_asked_by_mistake_is_wrong_usage(
    run: Run, tmp_path: Path, args: list[str], told: str
) -> None:
    """A question that was meant to stay local must not be sent elsewhere."""
    done = run("ask", *(arg.format(folder=tmp_path) for arg in args))
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


@pytest.mark.parametrize("question", ["\N{EN DASH}40 C in F", "\N{EM DASH}json is what?"])
def test_a_question_in_quotes_may_begin_with_a_dash(run: Run, vane: ReplayServer, question: str) -> None:
    """Options have no blanks in them."""
    assert run("ask", question, "--url", vane.url).returncode == 0


def test_the_version_is_the_packages(run: Run) -> None:
    """As its metadata have it."""
    assert run("--version") == (0, f"vane-research {metadata.version('vane-magic')}\n", "")


@pytest.mark.parametrize(
    ("args", "command", "hint"),
    [(["ask", "-x", "marks", "the", "spot"], "ask", True), (["ask", QUESTION, "--colour"], "ask", True),
     (["doctor", "--colour"], "doctor", False), (["skill", "please"], "skill", False)],
)  # fmt: skip
def test_an_unknown_option_is_told_with_its_commands_usage(
    run: Run, args: list[str], command: str, *, hint: bool
) -> None:
    """Not with that of all commands; of a question it may be the beginning."""
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"usage: vane-research {command} " in done.stderr
    assert f"unrecognized arguments: {args[1] if args[1] != QUESTION else args[2]}" in done.stderr
    assert ("-- goes before a question that begins with a hyphen" in done.stderr) is hint


@pytest.mark.parametrize("question", ["-40 C in F", "-x marks the spot", "--json is what?", "-help me"])
def test_a_question_may_begin_with_a_hyphen_behind_two(run: Run, vane: ReplayServer, question: str) -> None:
    """In words or quoted; options go before the two hyphens."""
    for words in (question.split(" "), [question]):
        done = run("ask", "--json", "--mode", "speed", "--url", vane.url, "--", *words)
        assert result_of(done)["data"]["query"] == question
    assert [search.json()["query"] for search in vane.searches] == [question] * 2


def test_a_failure_for_people_is_on_standard_error(run: Run) -> None:
    """What happened, the likely cause, the next step; standard output is empty."""
    with closed_port() as port:
        done = run("ask", QUESTION, "--url", f"http://127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot connect" in done.stderr
    assert "VANE_URL" in done.stderr
    assert "Traceback" not in done.stderr
    words = " ".join(done.stderr.split())
    assert "Run vane-research doctor to see" in words
    assert "Without Vane, local documents can be asked: vane-research ask --local-docs" in words
    assert "%vane" not in words


def test_another_failure_does_not_offer_local_documents(run: Run, scripted: Callable[..., ScriptedServer]) -> None:
    """Vane is there; the doctor tells what it lacks."""
    done = run("ask", QUESTION, "--url", scripted(json_reply(500, {"message": "no"})).url)
    assert "Run vane-research doctor to see" in " ".join(done.stderr.split())
    assert "--local-docs" not in done.stderr


def test_a_partial_answer_is_printed_and_marked(run: Run, scripted: Callable[..., ScriptedServer]) -> None:
    """The text on standard output, the banner on standard error, exit code 1."""
    server = scripted([*answer("Half an ans", [source()])[:-2], hang])
    done = run("ask", QUESTION, "--url", server.url, "--timeout", "0.5")
    assert done.returncode == 1
    assert "Half an ans" in done.stdout
    assert "may end mid-sentence" in done.stderr


def test_a_busy_gpu_is_told_with_its_holder(run: Run, vane: ReplayServer, lock_path: Path) -> None:
    """Without waiting by default."""
    with GpuLock(lock_path):
        done = run("ask", QUESTION, "--json", "--url", vane.url)
    assert code_of(done) == "VRAM_CONCURRENCY_SATURATED"
    assert str(os.getpid()) in done.stdout


def test_an_interrupt_prints_one_result_and_exits_with_130(
    start: Callable[..., subprocess.Popen[str]], scripted: Callable[..., ScriptedServer], lock_path: Path
) -> None:
    """With CANCELLED; the lock is free; the socket is closed."""
    server = scripted([*answer("Half an ans", [source()])[:-2], hang])
    process = start("ask", QUESTION, "--json", "--url", server.url)
    (search,) = server.wait_for_searches(1, 30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    result = json.loads(out)
    jsonschema.validate(result, SCHEMA)
    assert (process.returncode, result["error"]["code"], err) == (130, "CANCELLED", "")
    assert search.left.wait(5)
    with GpuLock(lock_path):
        pass


def test_a_broken_pipe_is_quiet(start: Callable[..., subprocess.Popen[str]], vane: ReplayServer) -> None:
    """As with `| head -0`."""
    read, write = os.pipe()
    process = start("ask", QUESTION, "--url", vane.url, stdout=write)
    os.close(write)
    os.close(read)
    _, err = process.communicate(timeout=60)
    assert "BrokenPipeError" not in err
    assert "Traceback" not in err


def test_an_odd_locale_does_not_break_a_good_answer(
    start: Callable[..., subprocess.Popen[str]], scripted: Callable[..., ScriptedServer]
) -> None:
    """JSON is always UTF-8; text is printed as well as it can be."""
    server = scripted(answer("Größe 東京 🦊 [1].", [source()]))
    text, _ = start("ask", QUESTION, "--url", server.url, PYTHONIOENCODING="ascii").communicate(timeout=60)
    assert "Gr??e ?? ? [1]." in text
    told, _ = start("ask", QUESTION, "--json", "--url", server.url, PYTHONIOENCODING="ascii").communicate(timeout=60)
    assert "東京 🦊" in told


def test_each_failure_of_the_server_is_one_result(run: Run, scripted: Callable[..., ScriptedServer]) -> None:
    """The server's words reach the agent, bounded and clean."""
    done = run("ask", QUESTION, "--json", "--url", scripted(json_reply(500, {"message": "no \x1b[31m"})).url)
    assert code_of(done) == "UPSTREAM_SEARCH_ERROR"
    assert "\\u001b" not in done.stdout


def test_a_terminal_shows_one_line_of_progress(run: Run, vane: ReplayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report takes the place of the one before, and the last is wiped; standard output has none of it."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    assert code_of(run("ask", QUESTION, "--json", "--url", vane.url)) == "success"
    before, first, *_, last, after = screen.getvalue().split("\r\x1b[K")
    assert (before, after) == ("", "")
    assert first == "looking up models, 0 of 5 s"
    assert last.startswith("writing, 0 of 30 s, ")
    assert last.endswith(" sources")


# Local documents ---


def test_local_documents_answer_without_a_vane(run: Run, tmp_path: Path) -> None:
    """With a lock of their own, and whatever the environment names for the real server."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "turbine.md").write_text("# Tidal turbines\n\nA tidal turbine turns slowly in the current.\n")
    env = {"VANE_LOCAL_DOCS": str(tmp_path / "docs"), "VANE_CHAT_MODEL": "qwen3:8b", "VANE_URL": "http://127.0.0.1:1"}
    done = run("ask", "what is a tidal turbine", "--local-docs", "--json", **env)
    result = result_of(done)
    assert result["success"], done.stdout
    assert "turns slowly" in result["data"]["answer"]
    assert result["data"]["sources"][0]["title"].startswith("Tidal turbines")


def test_a_folder_that_is_not_there_is_a_configuration_error(run: Run, tmp_path: Path) -> None:
    """Named, with its path."""
    done = run("ask", QUESTION, "--local-docs", "--json", VANE_LOCAL_DOCS=str(tmp_path / "none"))
    assert code_of(done) == "CONFIGURATION_ERROR"
    assert "none" in done.stdout


def test_serve_speaks_the_same_api_until_it_is_stopped(
    run: Run, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A client asks it by its address."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "turbine.md").write_text("# Tidal turbines\n\nA tidal turbine turns slowly in the current.\n")
    process = start("serve", str(tmp_path / "docs"))
    assert process.stdout is not None
    url = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
    assert result_of(run("ask", "what is a tidal turbine", "--json", "--url", url))["success"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert err == ""


def test_a_folder_that_cannot_be_served_is_told_in_one_line(run: Run, tmp_path: Path) -> None:
    """Exit code 1."""
    done = run("serve", str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr.startswith("vane-research: ")
    assert "Traceback" not in done.stderr
