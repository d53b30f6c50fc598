"""Reading documents: which there are, and their text as short passages under headings."""

from __future__ import annotations

import ast
import html
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

from vane_magic.display import clean

MAX_FILES: Final = 50_000
MAX_BYTES: Final = 4 << 20  # of one file; the rest of a longer one is not read
_LABEL: Final = 100  # characters of a function's name and arguments

_MARKDOWN: Final = (".md", ".markdown", ".ipynb")
_SUFFIXES: Final = (*_MARKDOWN, ".txt", ".rst", ".html", ".htm")
_PARSER: Final = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_PARSER.parse("- a\n\n> `b`\n")  # its tables fill at first use, and threads share it
_SKIPPED: Final = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})

_LIBRARY: Final = Path(os.__file__).parent
# All have a Python source; `_py...` is where the standard library keeps the documented twin of a C module.
_MODULES: Final = """_pydatetime _pydecimal _pyio abc argparse ast asyncio base64 bisect calendar collections
    concurrent/futures configparser contextlib copy csv dataclasses datetime difflib dis email enum fnmatch fractions
    functools glob gzip hashlib heapq hmac html http importlib inspect ipaddress json locale logging operator os
    pathlib pdb pickle posixpath pprint queue random re sched secrets shlex shutil socket sqlite3 ssl statistics string
    subprocess tarfile tempfile textwrap threading timeit traceback types typing unittest urllib uuid weakref zipfile"""

# Fenced code, to pass over; a heading after `#`; a heading with a line under it, at least as long.
_HEADINGS: Final = re.compile(
    r"(?s)\n(?: {0,3}(`{3,}|~{3,}).*?(?:\n {0,3}\1|\Z)"
    r"|#{1,6}[ \t]+(\S[^\n]*+)"
    r"|(\S[^\n]*+)\n(([=\-~^\"'#*+`])\5{2,}+)[ \t]*(?![^\n]))"
)
# Before a heading, as Markdown and `_from_html` have it; under a heading, or above.
_HEADING_MARKS: Final = re.compile(r"(?m)^(?:#{1,6} +|[^\w\s]{3,}$\n?)")
# The rest; or up to the end of a paragraph, a line, a word; or 1 500 characters.
_PASSAGES: Final = re.compile(r"(?s).{1,1500}+\Z|.{750,1498}\n\n|.{750,1499}\n|.{750,1499} |.{1500}")
# HTML as Markdown, each step in linear time: html.parser took 54 s for 50 kB of "<a <a <a ..." (Python 3.11.7).
_FROM_HTML: Final = (
    (r"(?is)<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1[^<>]*+>?|\Z)", " "),
    (r"(?is)(<pre\b.*?(?:</pre|\Z))|\s+", r"\1 "),  # a line's end is no more than a space, but in <pre>
    (r"(?i)<(?:title|h[1-6])\b[^<>]*+>\s*", "\n\n# "),
    (r"(?i)<li\b[^<>]*+>\s*", "\n- "),
    (r"(?i)</?(?:p|div|br|pre|tr|td|th|table|section|ul|ol|dl|dt|dd|title|h[1-6])\b[^<>]*+>", "\n\n"),
    (r"(?i)</?[a-z!?][^<>]*+>", ""),
    (r"&#[xX]?[0-9a-fA-F]{8,}", "\ufffd"),  # int() refuses thousands of digits
)


def scan(folders: Sequence[Path]) -> dict[str, Path]:
    """Find the documents of some folders, or of the default corpus when there are none.

    Returns
    -------
    dict of str to Path
        In order; the key has path, size and time, so that it tells one version of a document from another.

    Raises
    ------
    ValueError
        A folder is not there, or no folder, or there are more than `MAX_FILES` documents.
    OSError
        A folder cannot be read.
    """
    found = dict[str, Path]()
    for path in chain.from_iterable(map(_files, folders)) if folders else _corpus():
        with suppress(OSError):  # gone since
            if stat.S_ISREG((status := path.lstat()).st_mode):
                found[f"{path}\0{status.st_size}\0{status.st_mtime_ns}"] = path
        if len(found) > MAX_FILES:
            raise ValueError(f"There are more than {MAX_FILES} documents, counted up to {path}. Name smaller folders.")
    return dict(sorted(found.items()))


def read(file: Path) -> tuple[str, list[tuple[str, str]]]:
    """Return a document's title and its passages, each with the heading of its section.

    Raises
    ------
    OSError
        The file cannot be read.
    SyntaxError
        It is a Python module that this Python cannot read.
    """
    kind = file.suffix.lower()
    with file.open("rb", buffering=0) as stream:
        raw = stream.read(min(MAX_BYTES, os.fstat(stream.fileno()).st_size))  # read(MAX_BYTES) makes room for that many
    if kind == ".py":
        first, *rest = file.relative_to(_LIBRARY).with_suffix("").parts
        title = ".".join((first.removeprefix("_py"), *(part for part in rest if part[0] != "_")))
        sections = _docstrings(ast.parse(raw))
    else:
        # By lines, since `clean` sees quickly that one of plain ASCII is clean.
        text = "\n".join(map(clean, raw.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")))
        if kind in {".html", ".htm"}:
            text = _from_html(text)
        elif kind == ".ipynb":
            text = _from_notebook(text)
        sections = list(_sections(text))
        title = next((section for section, _ in sections if section), "") or clean(file.stem)
    return title, [(section, part) for section, text in sections for part in _PASSAGES.findall(text.strip())]


def plain(path: str, passage: str) -> str:
    """Return what a reader reads of a document's passage: its words, without the marks of Markdown or of headings."""
    if path.lower().endswith(_MARKDOWN):
        return "\n\n".join(filter(None, (_shown(token).strip() for token in _PARSER.parse(passage))))
    return _HEADING_MARKS.sub("", passage).strip()


def _shown(token: Token) -> str:
    if token.type == "inline":
        return "".join(map(_shown, token.children or ()))
    if token.type in {"html_block", "html_inline"}:
        return _from_html(token.content).replace("\n# ", "\n")
    return "\n" if token.tag == "br" else token.content


def _files(folder: Path) -> Iterator[Path]:
    """Yield the document files below a folder; links are not followed, so there is no loop and no way out."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is {'a file' if folder.exists() else 'not there'}. Name a folder of documents.")
    os.scandir(folder).close()  # raises when the folder cannot be read, which os.walk passes over
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name[0] != "." and name not in _SKIPPED]
        yield from (Path(place, name) for name in names if name[0] != "." and name.lower().endswith(_SUFFIXES))


def _corpus() -> Iterator[Path]:
    """Yield this project's own pages, from the wheel or the checkout, and the sources of the named modules."""
    root = shipped if (shipped := Path(__file__).with_name("corpus")).is_dir() else Path(__file__).parents[2]
    if root == shipped or (root / "pyproject.toml").is_file():
        yield from chain.from_iterable(map(root.glob, ("README.md", "SKILL.md", "CHANGELOG.md", "docs/*.md")))
    yield from (file for name in _MODULES.split() for part in (".py", "/*.py") for file in _LIBRARY.glob(name + part))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Split text at its headings, which stay in it."""
    section, start, text = "", 0, f"\n{text}"
    for mark in _HEADINGS.finditer(text):
        if mark[2] or (mark[3] and len(mark[4]) >= len(mark[3])):
            yield section, text[start : mark.start()]
            section, start = (mark[2] or mark[3]).strip("# \t"), mark.start()
    yield section, text[start:]


def _from_html(text: str) -> str:
    """Turn HTML into text with Markdown's marks for headings and lists; scripts and styles are dropped."""
    for pattern, plain in _FROM_HTML:
        text = re.sub(pattern, plain, text)
    return clean(html.unescape(text))


def _from_notebook(text: str) -> str:
    """Turn a notebook into Markdown; what is no notebook is text."""
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        cells = [(cell["cell_type"] == "code", "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return clean("\n\n".join(f"~~~~~~\n{source}\n~~~~~~" if code else source for code, source in cells))
    return text


def _docstrings(tree: ast.Module | ast.ClassDef, name: str = "") -> list[tuple[str, str]]:
    """Return the docstrings of a module or class and of its public functions and classes, by their names."""
    found, prefix = [(name, ast.get_docstring(tree) or "")], f"{name}." if name else ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name[0] != "_":
            found += _docstrings(node, prefix + node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            call = f"{prefix}{node.name}({ast.unparse(node.args)})"
            found.append((call if len(call) <= _LABEL else f"{call[: _LABEL - 1]}…", ast.get_docstring(node) or ""))
    return found
