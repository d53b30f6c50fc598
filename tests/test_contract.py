"""The specification's input and output, to the letter."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle

import jsonschema
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

import vane_magic
from vane_magic.core.contract import RunDetails, Source, ToolData, ToolResult, Turn, VaneSkillInput, content_hash
from vane_magic.core.errors import ERROR_TYPES, ExecutionTimeout, InternalError, InvalidInput, VaneError
from vane_magic.core.modes import ErrorCode, Mode

SCHEMA = vane_magic.tool_schema()["input"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SOURCE = Source(source_id="1", title="T", url="https://a.example/1", snippet_preview="S")


def data(answer: str = "An answer [1].", sources: tuple[Source, ...] = (SOURCE,)) -> ToolData:
    digest = content_hash(query="what is it", mode="speed", answer=answer, sources=sources)
    return ToolData(
        query="what is it", answer=answer, sources=sources, mode=Mode.SPEED, timing_ms=5, content_hash=digest
    )


def success(**details: object) -> ToolResult:
    return ToolResult.of_run(RunDetails(**details), 7, data=data())


def failure(error: VaneError, part: ToolData | None = None) -> ToolResult:
    details = RunDetails(failure=(error.what, error.cause, error.hint))
    return ToolResult.of_run(details, 7, data=part, error=error)


# Input ---


@pytest.mark.parametrize(
    "text",
    [
        '{"query": "abc"}',
        '{"query": "abc", "mode": "speed", "max_sources": 1}', '{"query": "abc", "max_sources": 8.0}',
        '{"query": 3}', '{"query": "ab"}', "{}", "[]", "null", '"abc"', '{"query": null}',
        '{"query": "abc", "mode": null}',
        '{"query": "abc", "max_sources": null}', '{"query": "abc", "max_sources": true}',
        '{"query": "abc", "max_sources": 0}',
        '{"query": "abc", "max_sources": 1.5}', '{"query": "abc", "max_sources": "8"}',
        '{"query": "abc", "mode": "fast"}', '{"query": "abc", "mode": "SPEED"}', '{"query": "abc", "mode": ["speed"]}',
        '{"query": "abc", "extra": 1}', '{"query": ["abc"]}',
    ],
)  # fmt: skip
def test_the_input_is_judged_as_the_schema_judges_it(text: str) -> None:
    """Null for an optional member, a boolean number and unknown members are refused."""
    fits = jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(text))
    if fits:
        assert VaneSkillInput.from_json(text).query == "abc"
    else:
        with pytest.raises(InvalidInput) as raised:
            VaneSkillInput.from_json(text)
        assert "pydantic" not in raised.value.message


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff", "NaN", '{"query": NaN}', '{"query": "abc"} x'])
def test_what_is_no_json_object_is_invalid_input(text: str | bytes) -> None:
    """No other exception escapes."""
    with pytest.raises(InvalidInput):
        VaneSkillInput.from_json(text)


@pytest.mark.parametrize("query", ["  ab ", "\n\t", "a\0bc", "abc\ud800", "x" * 100_001])
def test_a_question_needs_three_characters_that_can_be_sent(query: str) -> None:
    """Counted in code points, after trimming."""
    with pytest.raises(InvalidInput):
        VaneSkillInput.parse({"query": query})


def test_a_question_is_trimmed_and_otherwise_kept() -> None:
    """Three code points beyond the Basic Multilingual Plane are three characters."""
    assert VaneSkillInput(query="  what's  6'2\"? \n").query == "what's  6'2\"?"
    assert VaneSkillInput(query="🦊🦊🦊").query == "🦊🦊🦊"


# Output ---


def test_members_without_a_value_are_absent_from_the_json() -> None:
    """Absent, never null."""
    assert set(json.loads(success().to_json())) == {"execution_id", "success", "type", "data", "telemetry"}
    failed = json.loads(failure(ExecutionTimeout("Late.")).to_json())
    assert set(failed) == {"execution_id", "success", "type", "error", "telemetry"}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_each_code_has_one_exception_and_its_fallback_flag(code: ErrorCode) -> None:
    """The result and the exception say the same."""
    result = failure(ERROR_TYPES[code]("What.", "Why.", "Do this."))
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code.value, "What. Why. Do this.")
    assert result.error.fallback_recommended is code.fallback_recommended
    with pytest.raises(ERROR_TYPES[code]) as raised:
        result.raise_for_error()
    assert (raised.value.what, raised.value.cause, raised.value.hint) == ("What.", "Why.", "Do this.")
    assert raised.value.result is result


def test_the_specifications_fallback_flags() -> None:
    """ "Error Handling": only an invalid input recommends no fallback among the listed five."""
    listed = ["VRAM_CONCURRENCY_SATURATED", "EXECUTION_TIMEOUT", "VANE_SERVICE_UNAVAILABLE", "UPSTREAM_SEARCH_ERROR"]
    assert all(ErrorCode(code).fallback_recommended for code in listed)
    assert not ErrorCode.INVALID_INPUT.fallback_recommended


def test_an_internal_error_is_raised_from_its_cause_but_pickles_without_it() -> None:
    """The fault is never swallowed; what it drags along may not pickle."""
    error = InternalError("A fault.")
    error.__cause__ = KeyError("x")
    result = failure(error)
    with pytest.raises(InternalError) as raised:
        result.raise_for_error()
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(InternalError) as raised:
        pickle.loads(pickle.dumps(result)).raise_for_error()
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("kind", list(ERROR_TYPES.values()))
def test_exceptions_pickle_with_all_they_carry(kind: type[VaneError]) -> None:
    """Builtin parents such as OSError have their own idea of arguments."""
    error = kind("What.", "Why.", "Do this.")
    error.result = success()
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), twin.hint, twin.result) == (kind, "What. Why. Do this.", "Do this.", error.result)


def test_results_compare_copy_and_pickle_by_the_contract() -> None:
    """`run` is kept by pickle and copy, and is no part of equality."""
    result = success(query="q", turns=(Turn("a", "b"),))
    for twin in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert twin == result
        assert hash(twin) == hash(result)
        assert twin.run == result.run
    assert ToolResult.model_validate_json(result.to_json()) == result
    assert success() != success()


def test_a_result_cannot_be_changed() -> None:
    """Frozen, down to its parts."""
    result = success()
    with pytest.raises(ValueError, match="frozen"):
        result.success = False
    with pytest.raises(ValueError, match="frozen"):
        result.run = RunDetails()


@pytest.mark.parametrize("change", [{"data": None}, {"error": None}, {"type": "WRITE"}, {"x": 1}, {"success": False}])
def test_json_that_does_not_fit_the_schema_is_no_result(change: dict[str, object]) -> None:
    """Null, unknown members and a failure without an error."""
    with pytest.raises(ValueError, match="validation error"):
        ToolResult.model_validate(json.loads(success().to_json()) | change)


def test_a_repr_is_a_few_lines_and_str_is_the_answer() -> None:
    """Whatever the size of the answer."""
    long = ToolResult.of_run(RunDetails(), 7, data=data("word " * 10_000))
    assert len(repr(long)) < 400
    assert str(long) == "word " * 10_000
    assert "EXECUTION_TIMEOUT" in repr(failure(ExecutionTimeout("Late.")))
    assert str(failure(ExecutionTimeout("Late."))) == ""


def test_markdown_keeps_each_source_one_entry() -> None:
    """Titles are text, whatever they hold."""
    odd = Source(source_id="2", title="a](http://evil) \n# b", url="javascript:alert(1)", snippet_preview="")
    text = ToolResult.of_run(RunDetails(query="what is it"), 7, data=data(sources=(SOURCE, odd))).to_markdown()
    assert text.splitlines()[-2:] == ["1. [T](<https://a.example/1>)", r"2. a\]\(http://evil\) \# b"]


def test_a_result_from_json_knows_what_its_members_tell() -> None:
    """So its card links its citations, and a follow-up question can go on from it."""
    second = Source(source_id="4", title="U", url="https://a.example/4", snippet_preview="S")
    answer = "So [4], not [9]."
    first = ToolResult.of_run(RunDetails(), 7, data=data(answer, sources=(SOURCE, second)))
    again = ToolResult.model_validate_json(first.to_json())
    assert again.run.citations == {4: second}
    assert again.to_frame().cited.tolist() == [False, True]
    assert (again.run.query, again.run.mode, again.run.turns) == (
        "what is it",
        Mode.SPEED,
        (Turn("what is it", answer),),
    )
    late = ToolResult.model_validate_json(failure(ExecutionTimeout("Late.", "Slow.", "Wait.")).to_json())
    assert (late.run.failure, late.run.turns) == (("Late. Slow. Wait.", "", ""), ())


def test_a_frame_says_which_sources_are_cited() -> None:
    """One row a source."""
    frame = success(cited=((1, SOURCE),)).to_frame()
    assert list(frame.columns) == ["source_id", "title", "url", "snippet_preview", "cited"]
    assert frame.cited.tolist() == [True]
    assert len(failure(ExecutionTimeout("Late.")).to_frame()) == 0


# Hash ---


@given(TEXT, TEXT, TEXT, TEXT, TEXT)
def test_the_hash_is_that_of_the_canonical_json(query: str, answer: str, title: str, url: str, snippet: str) -> None:
    """Checked against another implementation of RFC 8785."""
    source = {"source_id": "1", "title": title, "url": url, "snippet_preview": snippet}
    content = {"query": query, "mode": "speed", "answer": answer, "sources": [source]}
    expected = f"sha256:{hashlib.sha256(rfc8785.dumps(content)).hexdigest()}"
    assert content_hash(query=query, mode=Mode.SPEED, answer=answer, sources=[source]) == expected
    assert content_hash(query=query, mode="speed", answer=answer, sources=[Source.model_validate(source)]) == expected


def test_times_and_ids_are_not_in_the_hash_and_content_is() -> None:
    """Two runs with the same content have the same hash."""
    assert success().data.content_hash == success().data.content_hash
    assert success().verify()
    changed = json.loads(success().to_json())
    changed["data"]["answer"] += " "
    assert not ToolResult.model_validate(changed).verify()
    assert not failure(ExecutionTimeout("Late.")).verify()
