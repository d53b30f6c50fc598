"""Completion in ``%vane``: options and their values, and ``{name}`` in a question that is to be expanded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from IPython.core import completer
from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from vane_magic.notebook.options import BY_NAME, MAGIC, Option, scan

IDENTIFIER: Final = "vane_magic"  # the matcher's name in `%config Completer.disable_matchers`
# nothing, or what looks like `target =`, outside a comment or a string
_BEFORE: Final = re.compile(r"""\s*|(?:[^#"']|"[^"]*"|'[^']*')*[^=!<>"']=\s*""")


def install(shell: InteractiveShell, models: Callable[[], Sequence[str]]) -> None:
    """Register the matcher with a shell, once however often this is called.

    Parameters
    ----------
    shell
        The shell whose completer gets it.
    models
        Gives the names that ``--model`` takes, from memory: it is called at a key press.
    """
    uninstall(shell)
    user: Any = shell  # IPython annotates little

    @completer.context_matcher(identifier=IDENTIFIER)  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator] - likewise
    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        typed = _typed(context)
        return _result() if typed is None else _complete(typed, models, user.user_ns.keys() - user.user_ns_hidden)

    _matchers(shell).append(matcher)


def uninstall(shell: InteractiveShell) -> None:
    """Take the matcher out of a shell, also one that an earlier import of this module has put in."""
    found = _matchers(shell)
    found[:] = [each for each in found if getattr(each, "matcher_identifier", "") != IDENTIFIER]


def _matchers(shell: InteractiveShell) -> list[object]:
    return cast("list[object]", shell.Completer.custom_matchers)  # pyright: ignore[reportUnknownMemberType] - IPython types no elements


def _typed(context: CompletionContext) -> str | None:
    """What stands between the magic's name and the cursor; None outside the magic.

    The body of a cell counts as following ``--``.
    """
    first = context.full_text.split("\n", 1)[0]
    if context.cursor_line and first.startswith(f"%%{MAGIC}"):
        return f"{first.removeprefix(f'%%{MAGIC}')} -- {context.text_until_cursor}"
    before, _, rest = context.text_until_cursor.partition(f"%{MAGIC}")
    starts = _BEFORE.fullmatch(before) or (before.strip() == "%" and not context.cursor_line)
    return rest if rest[:1].isspace() and starts else None


def _complete(typed: str, models: Callable[[], Iterable[str]], names: Iterable[str]) -> SimpleMatcherResult:
    fragment = "" if typed[-1].isspace() else typed.rsplit(maxsplit=1)[-1]
    try:
        found = scan(typed[: len(typed) - len(fragment)])
    except UsageError:
        return _result()
    if found.awaiting:
        return _values(found.awaiting, fragment, models)
    given = {option.row.name for option, _ in found.given}
    if found.ended or found.rest.strip() or (fragment and fragment[0] != "-"):
        _, brace, start = (found.rest + fragment).rpartition("{")
        if not brace or "expand" not in given:
            return _result()
        return _result((name for name in names if name.startswith(start) and not name.startswith("_")), start)
    name, equals, value = fragment.partition("=")
    if equals and name in BY_NAME:
        return _values(BY_NAME[name], value, models)
    start = fragment or "--"
    words = (name for name, option in BY_NAME.items() if name.startswith(start) and option.row.name not in given)
    return _result(words, fragment, "option")


def _values(option: Option, typed: str, models: Callable[[], Iterable[str]]) -> SimpleMatcherResult:
    taken, _, last = typed.rpartition(",") if option.row.name == "scope" else ("", "", typed)
    words = models() if option.row.name == "chat_model" else option.row.choices
    fitting = (
        f'"{word}"' if " " in word else word
        for word in words
        if word.isprintable() and word.casefold().startswith(last.casefold()) and word not in taken.split(",")
    )
    return _result(fitting, last, "value")


def _result(words: Iterable[str] = (), fragment: str = "", kind: str = "variable") -> SimpleMatcherResult:
    """The matches; where no Python stands, other matchers' are kept out."""
    completions = [SimpleCompletion(text=word, type=kind) for word in words]
    return SimpleMatcherResult(completions=completions, matched_fragment=fragment, suppress=kind != "variable")
