"""The specification's trigger sentence as the question."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vane_magic.core.errors import InvalidInput
from vane_magic.core.modes import Mode
from vane_magic.question import is_folder, read_trigger


def sentence(query: str, mode: str, end: str = ".") -> str:
    return f"Perform air-gapped web research for query: {query} using local Vane in {mode} mode{end}"


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("end", [".", "", ".\n"])
def test_the_sentence_gives_question_and_mode(mode: Mode, end: str) -> None:
    """Its final period is optional."""
    assert read_trigger(sentence("what is TCP?", mode, end), None) == ("what is TCP?", mode)


def test_the_backticks_of_skill_md_may_stay() -> None:
    """A model may copy the sentence as it is printed; other backticks are the question's."""
    assert read_trigger(sentence("`what is TCP?`", "`speed`"), None) == ("what is TCP?", "speed")
    assert read_trigger(sentence("`a` or `b`?", "speed"), None) == ("`a` or `b`?", "speed")
    assert read_trigger(sentence("`a` or `b`", "speed"), None) == ("`a` or `b`", "speed")


def test_the_last_words_of_the_sentence_count() -> None:
    """A question may quote the sentence."""
    inner = sentence("x", "speed")
    assert read_trigger(sentence(inner, "quality"), None) == (inner, "quality")


@pytest.mark.parametrize(
    "text",
    [
        f"Please: {sentence('abc', 'speed')}",
        sentence("abc", "fast"),
        f"{sentence('abc', 'speed')} Thanks",
        "what is TCP?",
    ],
)
def test_only_the_whole_sentence_counts(text: str) -> None:
    """Everything else is a question as it stands."""
    assert read_trigger(text, "speed") == (text, "speed")


def test_another_mode_given_with_the_call_is_refused() -> None:
    """Neither of the two wins in silence."""
    text = sentence("abc", "speed")
    assert read_trigger(text, "speed") == ("abc", "speed")
    with pytest.raises(InvalidInput, match="asks for speed mode, the call for quality"):
        read_trigger(text, "quality")


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(list(Mode)))
def test_any_question_survives_the_sentence(query: str, mode: Mode) -> None:
    """Also one that holds parts of the sentence, and line ends."""
    found, _ = read_trigger(sentence(query, mode), None)
    assert found == (query[1:-1] if re.fullmatch("`[^`]+`", query) else query)


@pytest.mark.parametrize(
    "word", ["./papers", "papers/", "~/papers", "../{name}/papers", ".", "~", "./nowhere", "/nowhere/x"]
)
def test_the_path_of_a_folder_is_known_by_its_form(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is mistyped."""
    (tmp_path / "papers").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert is_folder(word.format(name=tmp_path.name))


@pytest.mark.parametrize(
    "word",
    [
        "papers",
        "what",
        "",
        "/etc/hosts",
        ".NET",
        "and/or",
        "~nobody-of-that-name/x",
        "\0",
        "~\0x/",
        "~\ud800",
        "x" * 5_000,
    ],
)
def test_other_words_are_the_questions(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may have the name of a plain word; a file is none; what can be no path is nobody's business."""
    (tmp_path / "papers").mkdir()
    monkeypatch.chdir(tmp_path)
    assert not is_folder(word)
