"""Write docs/reference.md from the docstrings: python tests/reference.py."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from pydantic import BaseModel  # noqa: E402 - as above

import vane_magic  # noqa: E402 - the checkout's
from vane_magic import cli  # noqa: E402 - likewise
from vane_magic.core.errors import ERROR_TYPES  # noqa: E402 - likewise
from vane_magic.core.settings import SETTINGS  # noqa: E402 - likewise
from vane_magic.notebook.options import OPTIONS  # noqa: E402 - likewise

PAGE: Final = ROOT / "docs" / "reference.md"
GROUPS: Final = {
    "Ask": ["research", "aresearch", "VaneClient", "Progress", "Form", "diagnose"],
    "The contract": ["VaneSkillInput", "ToolResult", "Source", "RunDetails", "content_hash", "tool_schema"],
    "Settings and modes": ["Settings", "Mode", "ErrorCode"],
    "Boundary and lock": ["check_endpoint", "Endpoint", "GpuLock"],
    "Errors": ["VaneError", *sorted(kind.__name__ for kind in ERROR_TYPES.values()), "Interrupted"],
    "IPython": ["load_ipython_extension", "unload_ipython_extension"],
}
_HEAD: Final = """\
# Reference

Made from the docstrings by `python tests/reference.py`; the tests check that it is current.
All names are imported from `vane_magic`.
The [operator guide](operator-guide.md#error-handling) tells what to do for each error code.
"""
_NOTHING: Final = {"option_strings": (), "metavar": "(none)", "help": "it takes no argument"}
_SECTION: Final = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def page() -> str:
    """The whole page."""
    parts = [_HEAD, *(part for title, names in GROUPS.items() for part in (f"## {title}\n", *map(_entry, names)))]
    return "\n".join([*parts, _settings(), _options(), _command()]).rstrip() + "\n"


def _entry(name: str) -> str:
    found = getattr(vane_magic, name)
    lines = [f"### {name}\n", *_signature(name, found), _markdown(inspect.getdoc(found) or "")]
    if isinstance(found, type) and issubclass(found, Enum):
        lines.append(f"Members: {', '.join(f'`{member.value}`' for member in found)}.\n")
    if isinstance(found, type):
        lines += [_member(name, *item) for item in vars(found).items() if item[0][0] != "_"]
    return "\n".join(line for line in lines if line)


def _signature(name: str, found: Any) -> Iterator[str]:
    """The call as one writes it; a data model is described by its parameters."""
    is_model = isinstance(found, type) and issubclass(found, BaseModel)
    if inspect.isroutine(found) or (isinstance(found, type) and "__init__" in vars(found) and not is_model):
        yield f"`{name}{_call(found)}`\n"
    if isinstance(found, type) and issubclass(found, BaseException):
        yield f"Derived from {' and '.join(f'`{base.__name__}`' for base in found.__bases__)}.\n"
    if is_model:
        yield f"Members: {', '.join(f'`{member}`' for member in found.model_fields)}.\n"


def _call(found: Any) -> str:
    """The public parameters and what is returned; annotations without quotes."""
    signature = inspect.signature(found)
    public = [p for p in signature.parameters.values() if p.name[0] != "_" and p.name not in {"self", "cls"}]
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=public)))


def _member(owner: str, name: str, found: Any) -> str:
    """A public method or property that has a docstring of its own."""
    target = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
    if isinstance(found, property):
        title = f"`{owner}.{name}`"
    elif inspect.isroutine(target) and target.__module__.startswith("vane_magic"):
        title = f"`{owner}.{name}{_call(target)}`"
    else:
        return ""
    return f"#### {title}\n\n{_markdown(inspect.getdoc(target) or '')}"


def _markdown(text: str) -> str:
    """A NumPy docstring as Markdown."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"::\n\n((?:    .*\n|\n)+)", lambda code: f":\n\n```text\n{inspect.cleandoc(code[1])}\n```\n", text)
    first, *rest = _SECTION.split(text)
    sections = zip(rest[::2], rest[1::2], strict=True)
    told = (body if title == "Notes" else f"**{title}**\n\n{_items(body)}" for title, body in sections)
    return "\n".join([f"{first.strip()}\n", *told])


def _items(body: str) -> str:
    """The entries of a section: a line each, and its text indented below."""
    entries = re.findall(r"^(\S.*)\n((?:[ ]+.*\n?|\n)*)", f"{body.strip()}\n", re.MULTILINE)
    return "\n".join(f"- `{name}`: {' '.join(told.split())}".rstrip(": ") for name, told in entries) + "\n"


def _table(title: str, head: list[str], rows: list[list[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    lines = ["| " + " | ".join(cell.replace("|", "&#124;") for cell in row) + " |" for row in cells]
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _settings() -> str:
    rows = [
        [f"`{s.name}`", f"`{s.env}`", "none" if s.default is None else f"`{words(s.default)}`", s.expected, s.help]
        for s in SETTINGS.values()
    ]
    return _table("The settings", ["name", "environment", "default", "takes", "what"], rows)


def words(value: object) -> str:
    """A default as it is written in a page."""
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _options() -> str:
    rows = [
        [f"`{option.signature}`", option.row.expected if option.metavar else "", option.row.help] for option in OPTIONS
    ]
    return _table("The options of %vane", ["option", "takes", "what"], rows)


def _command() -> str:
    """The command's subcommands and options, without argparse's own layout, which changes with Python."""
    (commands,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    rows = [
        [f"`{name}`", f"`{', '.join(action.option_strings) or action.metavar or action.dest}`", action.help or ""]
        for name, parser in commands.choices.items()
        for action in [a for a in parser._actions if a.dest != "help"] or [argparse.Namespace(**_NOTHING)]
    ]
    return _table("The command vane-research", ["subcommand", "argument", "what"], rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
