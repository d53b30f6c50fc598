"""The index of local documents: what is read, into which passages, and when it is built anew."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vane_magic.localdocs import Service, documents
from vane_magic.localdocs import index as module
from vane_magic.localdocs.index import open_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "documents"
    place.mkdir()
    return place


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    place = tmp_path / "cache"
    place.mkdir()
    return place


def builds(folder: Path, cache: Path) -> int:
    """Open the index; how many documents were read for that."""
    read: list[int] = []
    open_index([folder], cache, lambda done, _total: read.append(done)).close()
    return max(read, default=0)


def texts(index: sqlite3.Connection) -> list[str]:
    return [text for (text,) in index.execute("SELECT text FROM passage ORDER BY rowid")]


def titles(folder: Path, cache: Path) -> list[str]:
    with closing(open_index([folder], cache, None)) as index:
        return [title for (title,) in index.execute("SELECT heading FROM passage ORDER BY path, place")]


# When it is built ---


def test_it_is_built_once(folder: Path, cache: Path) -> None:
    """Also when a file of another kind comes, or a folder that is skipped."""
    (folder / "a.md").write_text("one")
    assert builds(folder, cache) == 1
    (folder / "b.csv").write_text("two")
    (folder / ".git").mkdir()
    (folder / ".git" / "c.md").write_text("three")
    assert builds(folder, cache) == 0


CHANGES: dict[str, Callable[[Path], object]] = {
    "a size": lambda folder: (folder / "a.md").write_text("other text"),
    "a time": lambda folder: os.utime(folder / "a.md", ns=(1, 1)),
    "a name": lambda folder: (folder / "a.md").rename(folder / "b.md"),
    "a document more": lambda folder: (folder / "b.md").write_text("two"),
    "a document less": lambda folder: (folder / "a.md").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_built_anew_when_a_document_changes(folder: Path, cache: Path, change: str) -> None:
    """Any path, size or time."""
    (folder / "a.md").write_text("one")
    (folder / "z.md").write_text("last")
    builds(folder, cache)
    CHANGES[change](folder)
    assert builds(folder, cache) == len(list(folder.iterdir()))
    assert builds(folder, cache) == 0


def test_a_reader_keeps_what_it_opened_while_another_is_swapped_in(folder: Path, cache: Path) -> None:
    """One file, replaced whole."""
    (folder / "a.md").write_text("old")
    with closing(open_index([folder], cache, None)) as old:
        (file,) = cache.iterdir()
        (folder / "a.md").write_text("newer")
        with closing(open_index([folder], cache, None)) as new:
            assert (texts(old), texts(new)) == (["old"], ["newer"])
    assert list(cache.iterdir()) == [file]


def test_a_build_that_fails_leaves_the_old_index_and_no_debris(folder: Path, cache: Path) -> None:
    """As when Ctrl-C comes in the middle."""
    (folder / "a.md").write_text("old")
    builds(folder, cache)
    before = {file: file.read_bytes() for file in cache.iterdir()}
    (folder / "a.md").write_text("newer")

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_index([folder], cache, interrupt)
    assert {file: file.read_bytes() for file in cache.iterdir()} == before
    assert builds(folder, cache) == 1


@pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\0" + bytes(1000)])
def test_a_damaged_index_is_built_anew(folder: Path, cache: Path, damage: bytes) -> None:
    """Also one that another program put there."""
    (folder / "a.md").write_text("one")
    builds(folder, cache)
    (file,) = cache.iterdir()
    file.write_bytes(damage)
    assert builds(folder, cache) == 1
    file.unlink()
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TABLE manifest(fingerprint)")
    assert builds(folder, cache) == 1


def test_several_may_build_at_the_same_time(folder: Path, cache: Path) -> None:
    """Threads and processes; each gets a whole index, one file stays."""
    for number in range(200):
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n{'text ' * 100}")
    code = "import sys; from pathlib import Path; from vane_magic.localdocs.index import open_index; "
    code += "index = open_index([Path(sys.argv[1])], Path(sys.argv[2]), None); "
    code += "print(index.execute('SELECT documents FROM manifest').fetchone())"
    argv = [sys.executable, "-c", code, str(folder), str(cache)]
    others = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    ready = threading.Barrier(4)

    def build(_: int) -> int:
        ready.wait()
        with closing(open_index([folder], cache, None)) as index:
            return len(texts(index))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [200] * 4
    assert [other.communicate(timeout=60)[0] for other in others] == ["(200,)\n"] * 2
    assert len(list(cache.iterdir())) == 1


def test_progress_is_told(folder: Path, cache: Path) -> None:
    """How many of how many, up to all of them."""
    for number in range(250):
        (folder / f"{number}.md").write_text("text")
    told: list[tuple[int, int]] = []
    open_index([folder], cache, lambda *counts: told.append(counts)).close()
    assert told == [(100, 250), (200, 250), (250, 250)]


# Where it lies ---


def test_it_lies_in_the_users_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a private directory, by XDG_CACHE_HOME or the home; one file for each set of folders."""
    for place in (tmp_path / "home" / ".cache", tmp_path / "xdg"):
        for folders in ([folder], [folder, tmp_path / "cache"], [folder]):
            (tmp_path / "cache").mkdir(exist_ok=True)
            run(Service(folders))
        assert (place / "vane-magic").stat().st_mode & 0o777 == 0o700
        assert len(list((place / "vane-magic").glob("*.sqlite"))) == 2
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def run(service: Service) -> int:
    with service:
        return service.documents


def test_without_a_place_to_write_it_lies_in_a_temporary_one(folder: Path, tmp_path: Path) -> None:
    """It is answered all the same, and nothing is left."""
    (folder / "a.md").write_text("one")
    (tmp_path / "file").write_text("")
    with Service([folder], cache_dir=tmp_path / "file" / "cache") as service:
        assert service.documents == 1
        assert len(list(service.lock_path.parent.glob("*.sqlite"))) == 1
    assert not service.lock_path.parent.exists()


# Which documents ---


def test_all_kinds_are_found_in_all_folders(folder: Path, cache: Path) -> None:
    """Whatever the case of the suffix."""
    names = ["a.md", "b.MARKDOWN", "c.txt", "d.rst", "e.html", "f.HTM", "g.ipynb"]
    for name in [*names, "h.py", "i.csv", "j", "md", ".md", ".hidden.md"]:
        (folder / name).write_text("text")
        for inner in ("sub/deep", ".hidden", "node_modules", "__pycache__", "venv", ".venv"):
            (folder / inner).mkdir(parents=True, exist_ok=True)
            (folder / inner / name).write_text("text")
    found = [Path(path) for path in documents.scan([folder]).values()]
    assert sorted(found) == sorted(place / name for place in (folder, folder / "sub/deep") for name in names)
    assert len(documents.scan([folder, folder / "sub", folder])) == len(found)
    assert builds(folder, cache) == len(found)


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither into a loop, nor out of the folder; a pipe is no document."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.md").write_text("secret")
    (folder / "loop").symlink_to(folder)
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "out.md").symlink_to(tmp_path / "outside" / "secret.md")
    (folder / "gone.md").symlink_to(tmp_path / "nowhere")
    (folder / "folder.md").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.md")
    assert documents.scan([folder]) == {}
    (tmp_path / "named").symlink_to(tmp_path / "outside")
    assert len(documents.scan([tmp_path / "named"])) == 1


def test_a_wrong_folder_is_told(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its path: missing, a file, too many documents."""
    (folder / "a.md").write_text("text")
    (folder / "b.md").write_text("text")
    with pytest.raises(ValueError, match=f"{folder}/none is not there"):
        open_index([folder / "none"], cache, None)
    with pytest.raises(ValueError, match=f"{folder}/a.md is a file"):
        open_index([folder, folder / "a.md"], cache, None)
    monkeypatch.setattr(documents, "MAX_FILES", 1)
    with pytest.raises(ValueError, match=f"more than 1 documents.*{folder}"):
        open_index([folder], cache, None)
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_told_and_an_unreadable_document_left_out(folder: Path, cache: Path) -> None:
    """What the user names must be readable; what lies below need not."""
    (folder / "a.md").write_text("text")
    (folder / "b.md").write_text("text")
    (folder / "b.md").chmod(0)
    assert titles(folder, cache) == ["a"]
    folder.chmod(0)
    try:
        with pytest.raises(PermissionError, match=str(folder)):
            open_index([folder], cache, None)
    finally:
        folder.chmod(0o700)


def test_a_document_that_goes_while_it_is_indexed_is_left_out(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are indexed, and the next start looks again."""
    for name in ("a.md", "b.md", "c.md"):
        (folder / name).write_text("text")
    scan = documents.scan

    def then_gone(folders: list[Path]) -> dict[str, Path]:
        found = scan(folders)
        (folder / "b.md").unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(module, "scan", then_gone)
        assert titles(folder, cache) == ["a", "c"]
    assert builds(folder, cache) == 2


def test_a_home_is_understood(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be given as ~/documents."""
    (folder / "a.md").write_text("text")
    monkeypatch.setenv("HOME", str(folder.parent))
    with Service([Path("~/documents")], cache_dir=cache) as service:
        assert service.documents == 1


# What is read ---


def read(folder: Path, name: str, content: str | bytes) -> tuple[str, list[tuple[str, str]]]:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return documents.read(folder / name)


def test_markdown_is_split_at_its_headings(folder: Path) -> None:
    """With # and with a line below; not in code, not at a line that is shorter or a rule."""
    text = """---
title: a long front matter
---
Before.

# The title #

Text of *it*.
```sh
# no heading
```

Underlined
==========
More
---
## Part ##
End.
"""
    title, passages = read(folder, "a.md", text)
    assert title == "The title"
    assert [section for section, _ in passages] == ["", "The title", "Underlined", "Part"]
    assert passages[1][1].endswith("# no heading\n```")
    assert passages[2][1] == "Underlined\n==========\nMore\n---"


def test_a_document_without_headings_is_named_by_its_file(folder: Path) -> None:
    """And an empty one has no passage."""
    assert read(folder, "notes.txt", "just text") == ("notes", [("", "just text")])
    assert read(folder, "empty.md", "\n \n") == ("empty", [])


def test_restructured_text_is_text_with_underlined_headings(folder: Path) -> None:
    title, passages = read(folder, "a.rst", "=====\nTitle\n=====\n\nText.\n\nPart\n~~~~\n\n.. note:: More.\n")
    assert title == "Title"
    assert [section for section, _ in passages] == ["", "Title", "Part"]


@given(st.text(st.sampled_from("ab \n\n.#=-`~*é漢"), max_size=6_000), st.integers(1, 40))
def test_passages_lose_nothing_and_are_short(text: str, times: int) -> None:
    """All that is no white space stands in them, in order, in at most 1 500 characters each."""
    text = text * times
    passages = [
        part for _, section in documents._sections(text) for part in documents._PASSAGES.findall(section.strip())
    ]
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert max(map(len, passages), default=0) <= 1_500


def test_passages_end_where_a_paragraph_ends(folder: Path) -> None:
    """Else at a line, else at a word."""
    for gap in ("\n\n", "\n", " "):
        _, passages = read(folder, "a.txt", gap.join("word" * 50 for _ in range(40)))
        assert all(set(part) <= set("word" + gap) and len(part.strip()) % 200 < 15 for _, part in passages)
        assert len(passages) == 6


def test_odd_bytes_are_read(folder: Path, cache: Path) -> None:
    """Bad UTF-8, a byte-order mark, NUL and controls, line ends of all kinds, surrogates, a name that is no UTF-8."""
    odd = b"\xef\xbb\xbf# T\xc3\xa9st\r\nA\xff b\x00c\x1b[31m d\r\rE\xe2\x80\xa8\xed\xa0\x80\n"
    title, passages = read(folder, "a.md", odd)
    assert title == "Tést"
    assert passages[0][1] == "# Tést\nA\ufffd b\ufffdc\ufffd[31m d\n\nE\ufffd\ufffd\ufffd\ufffd"
    read(folder, "b.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": "# \ud800 x\0"}]}))
    try:
        Path(os.fsdecode(bytes(folder) + b"/c\xff.md")).write_text("text")
    except OSError:
        pytest.skip("this file system takes no such name")
    assert titles(folder, cache) == ["Tést", "\ufffd x\ufffd", "c\ufffd"]


def test_a_long_file_is_read_up_to_the_cap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is left out, even where a character is cut."""
    monkeypatch.setattr(documents, "MAX_BYTES", 5)
    assert read(folder, "a.txt", "abcdé") == ("a", [("", "abcd\ufffd")])


def test_html_is_text_with_headings(folder: Path) -> None:
    """Scripts, styles, comments and tags go; title, headings, list items and entities stay."""
    page = """<!DOCTYPE html><html><head><title> The
      page </title><style>p { color: red }</style><script>let a = "<p>no</p>"</script></head>
      <body><!-- <p>no</p> --><h1>First</h1><p>One &amp; <b>two</b> &lt;three&gt; &#233; &notit; &#0;</p>
      <ul><li>four<li>five</ul><svg onload="x">six</svg><a href="javascript:x">seven</a><SCRIPT >no</SCRIPT>
      <h2 class="x">Second <i>part</i></h2>eight<pre> a
        b</pre><script>no"""
    title, passages = read(folder, "a.html", page)
    assert title == "The page"
    assert [section for section, _ in passages][1:] == ["First", "Second part"]
    words = " ".join(text for _, text in passages)
    assert "One & two <three> é ¬it; \ufffd" in words
    assert "- four" in words
    assert "\n\n a\n        b" in words
    assert "- five\n\nsixseven" in words
    assert "<p>" not in words
    assert "no" not in words.replace("¬it", "").split()
    assert "color" not in words


HOSTILE = 1 << 17


@pytest.mark.parametrize(
    "piece",
    [
        "<",
        "<a ",
        "<!--",
        "<!",
        "<?",
        "</",
        "<a b='",
        "<a b=c ",
        "<script>",
        "<script",
        "<h1 ",
        "<li>",
        "<pre>",
        "&",
        "&#",
        "&#9",
        "&amp",
        "<![CDATA[",
        "<h1>\n",
        "</a ",
        "-->",
        "<style><script>",
        "\n#",
        "\n```",
        "a\n==\n",
        "\n>",
        "<p>\n",
    ],
)
def test_hostile_html_takes_linear_time(folder: Path, piece: str) -> None:
    """128 kB of it end within the time limit for a test; html.parser would need hours."""
    _, passages = read(folder, "a.html", piece * (HOSTILE // len(piece)))
    assert max((len(text) for _, text in passages), default=0) <= 1_500


@pytest.mark.parametrize("kind", ["md", "txt"])
@pytest.mark.parametrize(
    "piece", ["#", "# ", "\n", "\n# a", "a", "a\n=", "=\n", "```\n", "~~~`\n", " ", "\n#\t", "漢", "\r"]
)
def test_hostile_text_takes_linear_time(folder: Path, kind: str, piece: str) -> None:
    """The same for Markdown and text."""
    _, passages = read(folder, f"a.{kind}", piece * (HOSTILE // len(piece)))
    assert max((len(text) for _, text in passages), default=0) <= 1_500


def test_a_notebook_is_its_cells(folder: Path) -> None:
    """Markdown as it is, code as code; outputs and images are left out."""
    cells = [
        {
            "cell_type": "markdown",
            "source": ["# A book\n", "\n", "Some *text*."],
            "attachments": {"a": {"image/png": "x"}},
        },
        {"cell_type": "code", "source": "# no heading\nprint(1)", "outputs": [{"text": "secret"}]},
        {"cell_type": "raw", "source": []},
        {"cell_type": "markdown", "source": "## Part\n\nEnd."},
    ]
    title, passages = read(folder, "a.ipynb", json.dumps({"cells": cells, "nbformat": 4}))
    assert title == "A book"
    assert [section for section, _ in passages] == ["A book", "Part"]
    assert "~~~~~~\n# no heading\nprint(1)\n~~~~~~" in passages[0][1]
    assert "secret" not in str(passages)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"cells": 7}',
        '{"cells": {"a": 1}}',
        '{"cells": [7]}',
        '{"cells": [{"source": "x"}]}',
        '{"cells": [{"cell_type": "code", "source": 7}]}',
        '{"cells": [{"cell_type": "code", "source": [7]}]}',
        "[" * 100000,
        '{"cells": ' + "9" * 10000 + "}",
        '{"worksheets": [{"cells": []}]}',
    ],
)
def test_a_broken_notebook_is_text(folder: Path, content: str) -> None:
    """Nothing is lost, nothing fails."""
    title, passages = read(folder, "a.ipynb", content)
    assert title == "a"
    assert "".join(text for _, text in passages) == content


# The default corpus ---


def test_modules_are_read_but_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docstrings of the module, its public functions and classes, by their names; no private ones."""
    monkeypatch.setattr(documents, "_LIBRARY", tmp_path)
    (tmp_path / "_pything").mkdir()
    (tmp_path / "_pything" / "__init__.py").write_text(
        '''"""About it."""
raise SystemExit("run!")
def f(a, *, b=1) -> int:
    """Do f."""
def _g(): """Private."""
class C:
    """A class."""
    async def m(self):
        """Do m."""
    def n(self): pass
def long('''
        + ", ".join(f"argument{n}=None" for n in range(30))
        + '''): """Do much."""
'''
    )
    title, passages = documents.read(tmp_path / "_pything" / "__init__.py")
    assert title == "thing"
    assert passages[:4] == [("", "About it."), ("f(a, *, b=1)", "Do f."), ("C", "A class."), ("C.m(self)", "Do m.")]
    ((name, text),) = passages[4:]
    assert (text, len(name), name[-1]) == ("Do much.", 100, "…")


def test_a_module_that_this_python_cannot_read_is_left_out(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a library of another version may be."""
    monkeypatch.setattr(documents, "_LIBRARY", tmp_path)
    monkeypatch.setattr(documents, "_MODULES", "good bad none")
    (tmp_path / "good.py").write_text('"""Good."""')
    (tmp_path / "bad.py").write_text('"""Bad."""\nprint "x"')
    with closing(open_index([], cache, None)) as index:
        names = [path for (path,) in index.execute("SELECT DISTINCT path FROM passage")]
    assert [name for name in names if not name.endswith(".md")] == [str(tmp_path / "good.py")]


def test_the_default_corpus_has_the_library_and_imports_none_of_it() -> None:
    """Each named module is there on this Python, but those that only other versions have."""
    files = documents.scan([]).values()
    names = {str(file.relative_to(documents._LIBRARY)) for file in files if file.suffix == ".py"}
    missing = {name for name in documents._MODULES.split() if not {f"{name}.py", f"{name}/__init__.py"} & names}
    assert missing <= {"_pydatetime"}
    code = "import sys; from vane_magic.localdocs import documents as d; before = set(sys.modules); "
    code += "[d.read(file) for file in d.scan([]).values()]; "
    code += "print([name for name in set(sys.modules) - before if name[:10] != 'encodings.'])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_this_projects_pages_come_from_the_wheel_or_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder `corpus` beside the code, else from a checkout; never from what else lies beside a package.

    The tables of outcomes are no pages to quote from.
    """
    code = tmp_path / "vane_magic" / "localdocs" / "documents.py"
    code.parent.mkdir(parents=True)
    for place in (tmp_path, code.parent / "corpus"):
        (place / "docs" / "outcomes").mkdir(parents=True)
        for name in ("README.md", "SKILL.md", "OTHER.md", "docs/lock.md", "docs/outcomes/errors.md"):
            (place / name).write_text("text")
    monkeypatch.setattr(documents, "__file__", str(code))
    monkeypatch.setattr(documents, "_MODULES", "")

    def found() -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in documents.scan([]).values()]

    inside = "vane_magic/localdocs/corpus/"
    assert found() == [f"{inside}{name}" for name in ("README.md", "SKILL.md", "docs/lock.md")]
    (code.parent / "corpus").rename(tmp_path / "away")
    assert found() == []
    (tmp_path / "pyproject.toml").write_text("")
    assert found() == ["README.md", "SKILL.md", "docs/lock.md"]
