"""The specification's trigger sentence as the question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vane_magic.core.errors import InvalidInput
from vane_magic.core.modes import Mode
from vane_magic.trigger import read_trigger


def sentence(query: str, mode: str, end: str = ".") -> str:
    return f"Perform air-gapped web research for query: {query} using local Vane in {mode} mode{end}"


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("end", [".", "", ".\n"])
def test_the_sentence_gives_question_and_mode(mode: Mode, end: str) -> None:
    """Its final period is optional."""
    assert read_trigger(sentence("what is TCP?", mode, end), None) == ("what is TCP?", mode)


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
    assert read_trigger(sentence(query, mode), None) == (query, mode)
