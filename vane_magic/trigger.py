"""The specification's trigger sentence, which `%vane` and the command take for the question and mode that it names."""

from __future__ import annotations

import re
from typing import Final

from vane_magic.core.errors import InvalidInput

_SENTENCE: Final = re.compile(
    r"Perform air-gapped web research for query: (?P<query>.*)"
    r" using local Vane in (?P<mode>speed|balanced|quality) mode\.?",
    re.DOTALL,
)


def read_trigger(text: str, mode: str | None) -> tuple[str, str | None]:
    """The question and mode of a text that may be the trigger sentence; else the text and the mode as given.

    Raises
    ------
    InvalidInput
        When the sentence names another mode than the one given with the call.
    """
    found = _SENTENCE.fullmatch(text.strip())
    if found is None:
        return text, mode
    if mode not in {None, found["mode"]}:
        what = f"The sentence asks for {found['mode']} mode, the call for {mode}."
        raise InvalidInput(what, hint="Leave one of the two out.")
    return found["query"], found["mode"]
