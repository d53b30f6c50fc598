"""The options of ``%vane`` and ``%%vane``: options first, then the question exactly as it was typed.

Parsers made for commands break prose: they refuse an apostrophe and a hyphen, and lose quotes and blanks.
So the scan stops at the first word that is no option, and never looks into the question.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from keyword import iskeyword
from typing import Final, NamedTuple

from IPython.core.error import UsageError

from vane_magic.core.settings import SETTINGS, Setting, shown
from vane_magic.question import is_folder

MAGIC: Final = "vane"

_WORD: Final = re.compile(r"\s*(\S+)")
_LIKE_OPTION: Final = re.compile(r"--?[^\W\d]|--\Z")  # not -40, -.5 or a lone hyphen
_VALUE: Final = re.compile(r"""\s*(?:(["'])(?P<quoted>.*?)\1(?!\S)|(?P<bare>\S+))""", re.DOTALL)
_BRACES: Final = re.compile(r"\{\{(?P<kept>[^\W\d]\w*)\}\}|\{(?P<name>[^\W\d]\w*)\}")


class Option(NamedTuple):
    """One row of the table.

    Attributes
    ----------
    names
        As they are typed, the short one first.
    metavar
        What stands for its value in the help; empty for a flag.
    row
        The setting that it gives, or a row of the same form for a field of `Asked`.
    """

    names: tuple[str, ...]
    metavar: str
    row: Setting

    @property
    def signature(self) -> str:
        """The names and the value, for the help."""
        return f"{'/'.join(self.names)} {self.metavar}".rstrip()

    def takes(self, value: str) -> bool:
        """Whether the value is a right one; a list that ends in a comma goes on behind a blank."""
        try:
            self.row.parse(value)
        except (ValueError, TypeError, OverflowError):
            return False
        return not (self.row.choices and value.endswith(","))

    def check(self, value: str) -> object:
        """The value in its type.

        Raises
        ------
        UsageError
            For a value that is not a right one.
        """
        if self.takes(value):
            return self.row.parse(value)
        near = get_close_matches(value[:80], self.row.choices, n=1)
        if self.row.name == "mode":
            near = near or [f"--model {value[:80]}"]
        raise UsageError(f"{self.names[-1]} must be {self.row.expected}, not {shown(value)}{_did_you_mean(near)}")


def _identifier(value: object) -> str:
    if not isinstance(value, str) or not value.isidentifier() or iskeyword(value):
        raise ValueError
    return value


def _flag(name: str, help_: str) -> Setting:
    return Setting(name, None, str, "given", help_)


_FOLDERS: Final = 'its folders are set by %config VaneMagics.local_docs = "…" or VANE_LOCAL_DOCS'
_SCOPE: Final = SETTINGS["scope"]._replace(expected=f"{SETTINGS['scope'].expected}, joined by commas without blanks")
_OUT: Final = Setting("out", None, _identifier, "a name that Python can bind", "also bind the result to this name")
OPTIONS: Final = (
    Option(("-m", "--mode"), "MODE", SETTINGS["mode"]),
    Option(("-n", "--max-sources"), "N", SETTINGS["max_sources"]),
    Option(("-s", "--scope"), "SCOPE,…", _SCOPE),
    Option(("--model",), "MODEL", SETTINGS["chat_model"]),
    Option(("-i", "--instructions"), "TEXT", SETTINGS["instructions"]),
    Option(("-w", "--wait"), "SECONDS", SETTINGS["wait"]),
    Option(("-c", "--continue"), "", _flag("continued", "go on from the last answer of this kernel")),
    Option(("-o", "--out"), "NAME", _OUT),
    Option(("-q", "--quiet"), "", _flag("quiet", "show nothing; the result is in _vane")),
    Option(("-e", "--expand"), "", _flag("expand", "fill in {name} for names that exist")),
    Option(("--local-docs",), "", _flag("local", f"ask the local-documents engine instead of Vane; {_FOLDERS}")),
    Option(("-h", "--help"), "", _flag("help", "show the settings and a short help, and ask nothing")),
)
BY_NAME: Final[Mapping[str, Option]] = {name: option for option in OPTIONS for name in option.names}
_TOUCHING: Final = {"-m", "-n", "-s", "-w"}  # as in -n5: no word is a right value of these by chance


class Asked(NamedTuple):
    """What a magic's line, and a cell's body, ask for.

    Attributes
    ----------
    question
        As typed, without the white space around it; empty when nothing is asked.
    settings
        The settings that options gave, each in its type; the strongest layer of `Settings.resolve`.
    out
        The name to bind the result to as well.
    quiet
        Whether nothing is to be shown: ``-q`` or a line's final ``;``.
    expand
        Whether `expand` is to fill in names.
    continued
        Whether the last answer goes before the question.
    local
        Whether the local-documents engine is to answer.
    help
        Whether the help is to be shown, and nothing asked.
    """

    question: str
    settings: Mapping[str, object]
    out: str | None = None
    quiet: bool = False
    expand: bool = False
    continued: bool = False
    local: bool = False
    help: bool = False


class Scan(NamedTuple):
    """The options at the start of a text, by form alone: no value is checked.

    Attributes
    ----------
    given
        Each option with its value's text, which is empty for a flag.
    rest
        What follows them.
    awaiting
        The option whose value the text ends without.
    ended
        Whether ``--`` ended the options.
    """

    given: tuple[tuple[Option, str], ...]
    rest: str
    awaiting: Option | None = None
    ended: bool = False


def scan(text: str) -> Scan:
    """Find where the options end.

    Raises
    ------
    UsageError
        For an option that does not exist, or is not given as it must be.
    """
    given: list[tuple[Option, str]] = []
    at = 0
    while word := _WORD.match(text, at):
        if word[1] == "--":
            return Scan(tuple(given), text[word.end() :], ended=True)
        if not (found := _lookup(word[1])):
            _refuse_mistaken(word[1])
            break
        option, at = found[0], word.start(1) + found[1]
        if not option.metavar:
            if at < word.end():
                raise UsageError(f"{option.names[-1]} takes no value: {option.row.help}")
            given.append((option, ""))
        elif value := _VALUE.match(text, at):
            given.append((option, _value(option, value)))
            at = value.end()
        else:
            return Scan(tuple(given), "", awaiting=option)
    return Scan(tuple(given), text[at:])


def parse(line: str, body: str | None = None) -> Asked:
    r"""Take apart what a magic gets.

    Parameters
    ----------
    line
        What follows ``%vane``, or ``%%vane`` in its line.
    body
        The rest of the cell for ``%%vane``. It is text: nothing in it is an option or a final ``;``.
        Words after the options of the first line are the question's first line.

    Raises
    ------
    UsageError
        For options that are not right, and a line that ends in a backslash.
    """
    if line.endswith("\\"):
        raise UsageError(
            f"the line ends in a \\, and IPython would take the next line into it; for several lines use"
            f" %%{MAGIC}.\nIf the question itself ends in a \\, write a blank after it."
        )
    semicolon = body is None and line.rstrip().endswith(";")
    found = scan(line.rstrip()[:-1] if semicolon else line)
    if found.awaiting:
        raise _lacks_value(found.awaiting)
    values = {option.row.name: option.check(value) if option.metavar else True for option, value in found.given}
    if not found.ended:
        _refuse_late_options(found.rest)
        if "local" in values:
            _refuse_folder(found.rest)
    question = (found.rest if body is None else f"{found.rest}\n{body}").strip()
    settings = {name: values.pop(name) for name in SETTINGS if name in values}
    return Asked(question, settings, **{"quiet": semicolon, **values})  # pyright: ignore[reportArgumentType] - the table has these names and types


def expand(question: str, namespace: Mapping[str, object]) -> tuple[str, tuple[str, ...]]:
    """Fill in ``{name}`` for the names that exist, and leave all other braces as they are.

    Parameters
    ----------
    question
        The text as typed; ``{{name}}`` stands for a literal ``{name}``.
    namespace
        The names that may be filled in, each by its ``str``.

    Returns
    -------
    text : str
        What is to be sent.
    filled : tuple of str
        The names that were filled in, each once.
    """
    filled: dict[str, None] = {}

    def replacement(match: re.Match[str]) -> str:
        if (name := match["name"]) in namespace:
            filled[name] = None
            return str(namespace[name])
        return f"{{{match['kept']}}}" if match["kept"] in namespace else match[0]

    return _BRACES.sub(replacement, question), tuple(filled)


def usage() -> str:
    """Five lines of help."""
    options = "options: " + " ".join(f"[{option.signature}]" for option in OPTIONS)
    return f"""\
%{MAGIC} [options] question    the rest of the line as typed; a final ; hides the answer
%%{MAGIC} [options]            the rest of the cell is the question
{textwrap.fill(options, 110, subsequent_indent="  ", break_on_hyphens=False)}
%{MAGIC}? explains them; -- ends the options."""


def option_help() -> str:
    """One line for each option, for the magic's docstring."""
    width = max(len(option.signature) for option in OPTIONS)
    return "\n".join(
        f"{option.signature:<{width}}  {': '.join(filter(None, (option.row.help, ', '.join(option.row.choices))))}"
        for option in OPTIONS
    )


def _lookup(word: str) -> tuple[Option, int] | None:
    """The option that a word names, and where in the word its value would start."""
    name, equals, _ = word.partition("=")
    if option := BY_NAME.get(name):
        return option, len(name + equals)
    if (short := word[:2]) in _TOUCHING and BY_NAME[short].takes(word[2:]):
        return BY_NAME[short], 2
    return None


def _refuse_mistaken(word: str) -> None:
    """Refuse what looks like an option and is none, also one whose hyphens a word processor has made a dash."""
    bare = word.lstrip("\N{EN DASH}\N{EM DASH}")
    near = [typed for typed in (f"-{bare}", f"--{bare}") if bare != word and _lookup(typed)]
    if _LIKE_OPTION.match(word):
        near = get_close_matches(word.partition("=")[0][:80], BY_NAME, n=1, cutoff=0.75)
    elif not near:
        return
    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    place = f"; it is set by %config VaneMagics.{name} = …" if name in SETTINGS else ""
    raise UsageError(
        f"there is no option {shown(word.partition('=')[0])}{_did_you_mean(near) or place}\n"
        f"(%{MAGIC}? explains the options. Put -- before a question that starts with a hyphen:"
        f" %{MAGIC} -- {word[:80]} …)"
    )


def _did_you_mean(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def _value(option: Option, value: re.Match[str]) -> str:
    if (bare := value["bare"]) is None:
        return value["quoted"]
    if bare[0] in "\"'":
        raise UsageError(f"the value of {option.names[-1]} has no closing {bare[0]}")
    if bare == "--" or _lookup(bare):
        raise _lacks_value(option)
    return bare


def _lacks_value(option: Option) -> UsageError:
    return UsageError(f"{option.names[-1]} needs a value: {option.row.expected}")


def _refuse_late_options(question: str) -> None:
    """Refuse a question that ends in options: whoever typed them meant them to count."""
    starts = [word.start() for word in re.finditer(r"\S+", question) if _lookup(word[0])]
    tail = question[starts[-1] :].rstrip() if starts else ""
    try:
        late = scan(tail)
    except UsageError:
        return
    forgotten = late.awaiting and tail.startswith("--")
    complete = late.given and not late.rest and all(option.takes(value) for option, value in late.given)
    if (forgotten or complete) and tail not in BY_NAME["--help"].names:  # "what does git --help" is a question
        raise UsageError(
            f"{shown(tail)} stands after the question, and options come first: %{MAGIC} {tail[:80]} …\n"
            f"(If it belongs to the question, put -- before the question: %{MAGIC} -- …)"
        )


def _refuse_folder(question: str) -> None:
    """Refuse a question that begins with a folder: whoever typed it meant its documents."""
    first = _VALUE.match(question)
    folder: str = (first and (first["quoted"] or first["bare"])) or ""
    if is_folder(folder):
        raise UsageError(
            f"--local-docs takes no folder, and {shown(folder)} is one; {_FOLDERS}\n"
            f"(If it belongs to the question, put -- before the question: %{MAGIC} --local-docs -- …)"
        )
