"""The skill: a valid SKILL.md that keeps its promises, schemas that judge as the contract does, an agent's day."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import skills_ref
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import ROOT
from pydantic import ValidationError
from servers.listener import closed_port
from servers.scripted import ScriptedServer, answer, hang, json_reply, source

import vane_magic
from vane_magic.cli import main
from vane_magic.core.contract import ToolResult, VaneSkillInput
from vane_magic.core.errors import ERROR_TYPES, InvalidInput
from vane_magic.core.gpu_lock import GpuLock
from vane_magic.core.modes import ErrorCode, Mode
from vane_magic.question import read_trigger

SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
SCHEMA = vane_magic.tool_schema()
QUESTION = "How does TCP open a connection?"

# The file ---


def test_the_skill_passes_the_formats_validator_in_a_folder_of_its_name(tmp_path: Path) -> None:
    """skills-ref is the reference implementation of the format."""
    folder = tmp_path / "vane-research"
    folder.mkdir()
    (folder / "SKILL.md").write_text(SKILL, encoding="utf-8")
    assert skills_ref.validate(folder) == []
    told = skills_ref.read_properties(folder)
    assert told.metadata == {"id": "vane-research", "version": "1.0.0", "status": "Active", "owner": "soren"}
    assert told.license == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    assert len(SKILL.splitlines()) < 200


def test_the_command_prints_the_skill(capsys: pytest.CaptureFixture[str]) -> None:
    """So that an agent finds it wherever the package is installed."""
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == SKILL


def test_the_skill_names_each_code_with_its_fallback() -> None:
    """The table and the code say the same."""
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (yes|no) \|", SKILL, re.MULTILINE))
    assert rows == {code.value: "yes" if code.fallback_recommended else "no" for code in ErrorCode}


def test_the_skill_names_each_mode_with_its_limit_and_workload() -> None:
    """Likewise."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \| ([^|]+) \|", SKILL, re.MULTILINE)
    assert rows == [(mode.value, f"{mode.limit_s:g}", mode.workload) for mode in Mode]


def test_the_skills_trigger_is_understood() -> None:
    """The sentence, with its placeholders filled in, is the question and the mode."""
    (sentence,) = re.findall(r"^> (Perform .*)$", SKILL, re.MULTILINE)
    filled = sentence.replace("`<query>`", QUESTION).replace("`<speed|balanced|quality>`", "speed")
    assert read_trigger(filled, None) == (QUESTION, "speed")


def test_the_wheel_ships_the_pages(tmp_path: Path) -> None:
    """SKILL.md for agents, and all pages as the default corpus of the local documents."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "site")], check=True)
    corpus = tmp_path / "site" / "vane_magic" / "localdocs" / "corpus"
    shipped = {str(path.relative_to(corpus)) for path in corpus.rglob("*") if path.is_file()}
    pages = {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*") if path.is_file()}
    assert shipped == {"README.md", "SKILL.md", "CHANGELOG.md", *pages}
    done = subprocess.run(
        [sys.executable, "-m", "vane_magic.cli", "skill"],
        cwd=tmp_path / "site", capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert done.stdout == SKILL


# The schemas ---

_CONTRACT = ROOT / "vane_magic" / "contract"
_CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
_VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-2, 9), st.sampled_from([8.0, 0.5, -1.0, 1e300])),
    *(st.text(max_size=4), st.sampled_from(["", "ab", "abc", "speed", "fast", "READ_ONLY", "A_CODE", "a code"])),
    *(st.just("2026-11-30T16:00:00Z"), st.just([]), st.just({})),
)
_INPUT, _OUTPUT, _PARAMETERS = (
    jsonschema.Draft202012Validator(schema, format_checker=_CHECKER)
    for schema in (SCHEMA["input"], SCHEMA["output"], SCHEMA["function"]["parameters"])
)


def _result(*, data: bool, error: bool) -> dict[str, Any]:
    """JSON of the form of a result."""
    told = {"code": "A_CODE", "message": "What.", "fallback_recommended": True}
    listed = [{"source_id": "1", "title": "", "url": "", "snippet_preview": ""}]
    content = {"query": "abc", "answer": "", "sources": listed, "mode": "speed", "timing_ms": 1.5, "content_hash": "x"}
    telemetry = {"duration_ms": 3, "timestamp": "2026-11-30T16:00:00+00:00", "worker_id": "w"}
    whole = {"execution_id": "e", "success": not error, "type": "READ_ONLY", "telemetry": telemetry}
    return whole | ({"data": content} if data else {}) | ({"error": told} if error else {})


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each container of a JSON value with each of its keys, and with one that it lacks."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [(value, key) for key, _ in inner] + ([(value, "more")] if isinstance(value, dict) else [])
    return found + [place for _, part in list(inner) for place in _places(part)]


@st.composite
def changed_results(draw: st.DrawFn) -> dict[str, Any]:
    """A result with up to two members removed, added or replaced, wherever they stand."""
    result = _result(data=draw(st.booleans()), error=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 2))):
        holder, key = draw(st.sampled_from(_places(result)))
        if draw(st.booleans()):
            holder[key] = draw(_VALUES)
        elif isinstance(holder, dict):
            holder.pop(key, None)
    return result


_KEYS = st.sampled_from(["query", "mode", "max_sources", "more"])
_INPUTS = st.dictionaries(_KEYS, _VALUES, max_size=4) | st.dictionaries(_KEYS, _VALUES).map(
    lambda d: {"query": "abc"} | d
)


@settings(deadline=None)
@given(_INPUTS)
def test_the_input_that_is_taken_fits_the_schema(value: dict[str, Any]) -> None:
    """The model is stricter in one thing: white space around a question counts for nothing."""
    try:
        VaneSkillInput.parse(value)
    except InvalidInput:
        taken = False
    else:
        taken = True
    query = value.get("query")
    trimmed = value | {"query": query.strip()} if isinstance(query, str) else value
    assert taken == (_INPUT.is_valid(trimmed) and "\0" not in str(query))


@settings(deadline=None)
@given(changed_results())
def test_the_model_takes_the_results_that_fit_the_schema(value: dict[str, Any]) -> None:
    """They come out as they went in; what else it takes lacked a member, and comes out with it and fits."""
    if _OUTPUT.is_valid(value):
        assert json.loads(ToolResult.model_validate(value).to_json()) == value
    else:
        with suppress(ValidationError):
            assert _OUTPUT.is_valid(json.loads(ToolResult.model_validate(value).to_json()))


@settings(deadline=None)
@given(_INPUTS | _VALUES)
def test_the_functions_parameters_judge_as_the_contract_does(value: Any) -> None:
    """They are its schema, with a type and a description for each member."""
    assert _PARAMETERS.is_valid(value) == _INPUT.is_valid(value)


def test_the_function_is_what_tool_calling_apis_take() -> None:
    """A name of letters, a text that warns of the web, parameters without references, all of it JSON."""
    function = SCHEMA["function"]
    assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]{0,63}", function["name"])
    assert "untrusted" in function["description"]
    assert "$ref" not in json.dumps(function)
    assert all(member["description"] for member in function["parameters"]["properties"].values())


# An agent's day: JSON in, JSON out ---

Agent = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def agent(lock_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Agent:
    """Ask by the command as SKILL.md says; the exit code and the result, checked against the schema."""

    def ask(query: object, *options: str, **env: str) -> tuple[int, dict[str, Any]]:
        asked = json.dumps({"query": query, "mode": "speed"}).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked)))
        for name, value in {"VANE_LOCK_PATH": str(lock_path), **env}.items():
            monkeypatch.setenv(name, value)
        code = main(["ask", "--input", "-", "--json", *options])
        out, err = capsys.readouterr()
        result = json.loads(out)
        assert err == ""
        _OUTPUT.validate(result)
        if "error" in result:
            expected = ErrorCode(result["error"]["code"]).fallback_recommended
            assert result["error"]["fallback_recommended"] is expected
        return code, result

    return ask


def test_an_agent_gets_an_answer_with_sources(agent: Agent, scripted: Callable[..., ScriptedServer]) -> None:
    """Exit code 0, no error."""
    code, result = agent(QUESTION, "--url", scripted(answer("By a handshake [1].", [source()])).url)
    assert (code, result["success"], "error" in result) == (0, True, False)
    assert result["data"]["sources"][0]["source_id"] == "1"


def test_an_agent_gets_a_part_of_an_answer_with_the_failure(
    agent: Agent, scripted: Callable[..., ScriptedServer]
) -> None:
    """As SKILL.md says: a failed result may carry `data`."""
    server = scripted([*answer("Half an ans", [source()])[:-2], hang])
    code, result = agent(QUESTION, "--url", server.url, "--timeout", "0.5")
    assert (code, result["error"]["code"]) == (1, "EXECUTION_TIMEOUT")
    assert (result["data"]["answer"], len(result["data"]["sources"])) == ("Half an ans", 1)


def test_an_agent_meets_each_failure_as_one_result(
    agent: Agent, scripted: Callable[..., ScriptedServer], lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every code but CANCELLED, each brought about by its cause; exit code 1."""
    vane = scripted(answer("Words [1].", [source()]))
    broken = scripted(json_reply(500, {"message": "An error has occurred."}))
    with closed_port() as port:
        met = [agent(QUESTION, "--url", f"http://127.0.0.1:{port}")]
    met += [
        agent("ab", "--url", vane.url),
        agent(["a", "list"], "--url", vane.url),
        agent(QUESTION, "--url", "http://192.168.1.20:3000"),
        agent(QUESTION, "--url", broken.url),
        agent(QUESTION, "--url", scripted(hang).url, "--timeout", "0.2"),
        agent(QUESTION, "--url", vane.url, "--chat-model", "no-such-model"),
    ]
    with GpuLock(lock_path):
        met.append(agent(QUESTION, "--url", vane.url))
    with monkeypatch.context() as patch:
        patch.setattr("vane_magic.core.client.choose", lambda *_, **__: 1 / 0)
        met.append(agent(QUESTION, "--url", vane.url))
    assert [code for code, _ in met] == [1] * len(met)
    codes = {result["error"]["code"] for _, result in met}
    assert codes == {code.value for code in ERROR_TYPES} - {"CANCELLED"}
    assert vane.searches == []


def test_a_shell_pipeline_that_is_interrupted_still_prints_one_result(
    scripted: Callable[..., ScriptedServer], lock_path: Path
) -> None:
    """CANCELLED, exit code 130, in a real process that reads its input from a pipe."""
    server = scripted(hang)
    process = subprocess.Popen(
        [sys.executable, "-m", "vane_magic.cli", "ask", "--input", "-", "--json", "--url", server.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT,
    )  # fmt: skip
    with process:
        assert process.stdin
        process.stdin.write(json.dumps({"query": QUESTION}))
        process.stdin.close()
        process.stdin = None
        server.wait_for_searches(1, 60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    result = json.loads(out)
    _OUTPUT.validate(result)
    assert (process.returncode, result["error"]["code"]) == (130, "CANCELLED")
    assert result["error"]["fallback_recommended"] is False
