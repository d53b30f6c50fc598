"""The pages say what is so: their blocks run, their links lead somewhere, their tables are those of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import reference
from pages import PAGES, ROOT, RUN, blocks, put_command
from shells import open_notebook

from vane_magic.core.modes import ErrorCode, Mode
from vane_magic.core.settings import SETTINGS
from vane_magic.localdocs import Service

GUIDE = (ROOT / "docs" / "operator-guide.md").read_text(encoding="utf-8")
BLOCKS = [block for page in PAGES for block in blocks(page)]
WITH_BLOCKS = sorted({block.page for block in BLOCKS if block.kind in RUN and not block.reason})

# The blocks ---


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The local-documents engine in Vane's place."""
    with Service([ROOT / "docs"], cache_dir=tmp_path_factory.mktemp("cache")) as service:
        yield service


@pytest.fixture
def reader(engine: Service, tmp_path: Path, lock_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in, the command, a Vane that answers, local documents."""
    put_command(tmp_path / "bin", monkeypatch)
    for name, value in {"URL": engine.url, "LOCK_PATH": lock_path, "LOCAL_DOCS": ROOT / "docs"}.items():
        monkeypatch.setenv(f"VANE_{name}", str(value))
    (tmp_path / "work").mkdir()
    with chdir(tmp_path / "work"):
        yield tmp_path / "work"


@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_the_blocks_of_a_page_run_in_their_order(page: str, reader: Path) -> None:
    """As a reader would try them, one after the other, in one directory."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with open_notebook() as notebook:
        for block in (b for b in BLOCKS if b.page == page and not b.reason):
            if block.kind == "python":
                exec(compile(block.text, block.label, "exec"), names)
            elif block.kind == "ipython":
                notebook.run(block.text.rstrip("\n"))
            elif block.kind == "sh":
                _run(["sh", "-e", "-c", block.text], block.label)
            elif block.kind == "js" and shutil.which("node"):
                assert _run(["node", "-e", block.text], block.label) == "true\n"


def _run(command: list[str], label: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{label}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.reason], ids=lambda block: block.label)
def test_a_block_that_is_not_run_says_why_and_is_a_right_script(block: Any) -> None:
    """It needs what a test must not use: a network, root, or another program's installation."""
    assert block.kind == "sh"
    assert re.search("needs|downloads|installs", block.reason)
    _run(["sh", "-n", "-c", block.text], block.label)


def test_each_block_says_what_it_is() -> None:
    """So that none escapes the tests by having no kind, or an unknown one."""
    assert {block.kind for block in BLOCKS} <= RUN | {"js", "text", "ini", "yaml"}


# Links ---

_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    """The names that a code host gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_to_a_page_or_heading_that_is_there(page: Path) -> None:
    """Links to the web are not followed."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in (a or b for a, b in _LINK.findall(text)):
        if not link.startswith(("http://", "https://")):
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            assert target.is_file(), link
            assert not anchor or anchor in _anchors(target), link


def test_each_page_is_reached_from_the_contents() -> None:
    """docs/README.md lists all pages."""
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")} - {Path("README.md")}
    assert [str(page) for page in pages if f"({page})" not in contents] == []


def test_each_file_that_a_page_names_is_there() -> None:
    """Tests, notebooks and benchmarks, some by a pattern."""
    text = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"\b(?:tests|notebooks|benchmarks)/[\w*]+\.\w+", text))
    assert len(named) > 10
    assert [name for name in sorted(named) if not any(ROOT.glob(name))] == []


# Tables ---


def test_the_reference_is_that_of_the_docstrings() -> None:
    """`python tests/reference.py` writes it anew."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


def test_the_reference_has_each_public_name() -> None:
    """Once."""
    import vane_magic  # noqa: PLC0415 - no other test needs it

    assert sorted(name for names in reference.GROUPS.values() for name in names) == sorted(vane_magic.__all__)


def test_the_guide_has_each_setting_with_its_variable_and_default() -> None:
    """In the table's order."""
    rows = re.findall(r"^\| `(\w+)` \| `(VANE_\w+)` \| (?:none|`(.+?)`) \|", GUIDE, re.MULTILINE)
    expected = [(s.name, s.env, "" if s.default is None else reference.words(s.default)) for s in SETTINGS.values()]
    assert rows == expected


def test_the_guide_has_each_code_with_its_fallback() -> None:
    """A section each."""
    found = re.findall(r"^### ([A-Z_]+)\n.*?^- \*\*Fallback\*\*: (yes|no)", GUIDE, re.MULTILINE | re.DOTALL)
    assert dict(found) == {code.value: "yes" if code.fallback_recommended else "no" for code in ErrorCode}


@pytest.mark.parametrize("page", ["README.md", "docs/concepts.md", "docs/operator-guide.md"])
def test_a_table_of_modes_has_the_limits_of_the_code(page: str) -> None:
    """Wherever it stands."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \|", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(mode.value, f"{mode.limit_s:g}") for mode in Mode]


def test_the_guide_quotes_messages_that_exist() -> None:
    """What its tables of symptoms put into quotes is said by the code."""
    source = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "vane_magic").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    symptoms = GUIDE.partition("## Troubleshooting by symptom")[2]
    quoted = re.findall(r'^\| "(?!The vane_magic extension)(.+?)"(?:,| \|)', symptoms, re.MULTILINE)  # but IPython's
    assert len(quoted) > 12
    missing = [quote for quote in quoted if not _is_said(quote, source)]
    assert missing == []


def _is_said(quote: str, source: str) -> bool:
    """Whether each of the quote's words from the code, in runs of three, stands there somewhere."""
    plain = re.sub(r"['\[\]\"…:.,]|\d+", " ", quote)
    known = re.sub(r"['\[\]\"…:.,]|\d+|\{[^{}\n]*\}", " ", source)
    runs = [part.split() for part in re.split(r"\b(?:mistral|pid|since)\b", plain)]
    flat = " ".join(known.split())
    return all(" ".join(words[:3]) in flat for words in runs if words)
