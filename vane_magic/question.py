"""What `%vane` and the command read alike in a typed question: the trigger sentence, a folder out of its place."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final

from vane_magic.core.errors import InvalidInput

_SENTENCE: Final = re.compile(
    r"Perform air-gapped web research for query: (?:`(?P<quoted>[^`]+)`|(?P<query>.*))"
    r" using local Vane in (?P<tick>`?)(?P<mode>speed|balanced|quality)(?P=tick) mode\.?",
    re.DOTALL,
)


def read_trigger(text: str, mode: str | None) -> tuple[str, str | None]:
    """The question and mode of a text that may be the trigger sentence; else the text and the mode as given.

    The backticks that SKILL.md prints around both may stay.

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
    return found["quoted"] or found["query"], found["mode"]


def is_folder(word: str) -> bool:
    """Whether a question's first word is the path of a folder, also of one that is not there.

    A plain word is none: it may name a folder by chance, as "docs" does.
    """
    with suppress(ValueError):  # of what can be no path
        path = os.path.expanduser(word)  # noqa: PTH111 - here and below, pathlib raises for a long word
        if os.path.isdir(path):  # noqa: PTH112
            return "/" in word or os.sep in word or word in {".", "..", "~"}
        return word.startswith(("./", "../", "~/", "/")) and not os.path.exists(path)  # noqa: PTH110
    return False
