"""What the local documents answer: which passages, which sentences, quoted how."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vane_magic.core.citations import marks_outside_code
from vane_magic.display import Card, CardSource
from vane_magic.localdocs.answer import compose, terms
from vane_magic.localdocs.index import open_index

NOTICE = "_Sentences quoted from local documents; no language model was used._"


class Library:
    """Documents by name, and what is answered from them."""

    def __init__(self, place: Path) -> None:
        self.folder, self.cache = place / "documents", place / "cache"
        self.folder.mkdir()
        self.cache.mkdir()

    def add(self, **pages: str) -> None:
        for name, text in pages.items():
            (self.folder / f"{name}.md").write_text(text, encoding="utf-8")

    def ask(self, question: str, previous: str = "", mode: str = "balanced") -> tuple[str, list[tuple[str, str, str]]]:
        with closing(open_index([self.folder], self.cache, None)) as index:
            return compose(index, question, previous, mode)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path)


@pytest.fixture(scope="module")
def corpus(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], tuple[str, list[tuple[str, str, str]]]]]:
    """The default corpus, built once for this file."""
    with closing(open_index([], tmp_path_factory.mktemp("corpus"), None)) as index:
        yield lambda question: compose(index, question, "", "balanced")


LOCK = """# The GPU lock

The lock keeps two workers from the GPU at the same time. It is a file in the home directory.

## Waiting

A worker waits at most 70 seconds for the lock. Bananas have no part in it.

## Stale locks

A lock that is older than 65 seconds is stale. Another worker may take it.
"""
FRUIT = "# Fruit\n\nBananas are yellow. Apples are red, and a worker picks them.\n"


def quotes(answer: str) -> list[tuple[str, int]]:
    """The quoted sentences as words to see, each with its number."""
    shown = [
        re.sub(r"\\(\W|_)", r"\1", line.split("**: ", 1)[1]) for line in answer.splitlines() if line.startswith("- **")
    ]
    return [
        (text.strip(), int(number)) for line in shown for text, number in re.findall(r"(.*?) \[(\d+)\](?= |$)", line)
    ]


# Which passages and sentences ---


def test_the_answer_is_sentences_of_the_documents_with_their_source(library: Library) -> None:
    """Its first line says so; each sentence stands, word for word, in the source that it cites."""
    library.add(lock=LOCK, fruit=FRUIT)
    answer, sources = library.ask("How does a worker wait for the GPU lock?")
    assert answer.splitlines()[0] == NOTICE
    found = quotes(answer)
    assert found[0] == ("A worker waits at most 70 seconds for the lock.", 1)
    assert sources[0][0] == "The GPU lock - Waiting"
    for text, number in found:
        assert text in " ".join(sources[number - 1][2].split())


def test_headings_count_more_than_text(library: Library) -> None:
    """A section about the term goes before one that mentions it."""
    library.add(
        fruit=FRUIT, bananas="# Bananas\n\nThey are berries.\n", z="# Z\n\nBananas, bananas and bananas again.\n"
    )
    answer, sources = library.ask("What are bananas?")
    assert sources[0][0] == "Bananas"
    assert ("They are berries.", 1) in quotes(answer)


def test_a_question_needs_not_the_documents_form_of_a_word(library: Library) -> None:
    """Stems, case and accents do not matter."""
    library.add(lock=LOCK, cafe="# Cafés\n\nThe café serves crêpes to all who are waiting there.\n")
    for question in ("WAITS", "wait", "waited?", "the worker's lock", "worker\u2019s"):
        assert library.ask(question)[1][0][0].startswith("The GPU lock"), question
    for question in ("cafe", "CAFÉ", "crepe", "Crêpes"):
        assert library.ask(question)[1][0][0] == "Cafés", question


@pytest.mark.parametrize(
    ("mode", "most_sources", "most_quotes"), [("speed", 5, 3), ("balanced", 8, 6), ("quality", 16, 12)]
)
def test_a_mode_says_how_much_is_quoted(library: Library, mode: str, most_sources: int, most_quotes: int) -> None:
    """Never more than its sources and sentences; an unknown mode is quality, as Vane has it."""
    library.add(
        **{
            f"page{n}": f"# Page {n}\n\nThis is turbine {n}. And a turbine here. Then more turbines.\n"
            for n in range(20)
        }
    )
    answer, sources = library.ask("turbines", mode=mode)
    assert (len(sources), len(quotes(answer))) == (most_sources, most_quotes)
    if mode == "quality":
        assert (answer, sources) == library.ask("turbines", mode="turbo")


def test_a_follow_up_is_searched_with_the_question_before(library: Library) -> None:
    """Its own words weigh more; alone they would find other things, or nothing."""
    library.add(lock=LOCK, fruit=FRUIT, rest="# Rest\n\nA pause of 5 seconds is a long wait for fruit.\n")
    assert library.ask("And how many seconds is it?", "How does the GPU lock work?")[1][0][0].startswith("The GPU lock")
    assert library.ask("What about apples?", "How does the GPU lock work?")[1][0][0] == "Fruit"
    assert library.ask("Why?", "How does the GPU lock work?")[1][0][0].startswith("The GPU lock")
    assert library.ask("Why?")[1] == []


def test_what_no_document_has_is_said(library: Library) -> None:
    """The rest of the question is answered."""
    library.add(lock=LOCK)
    answer, sources = library.ask("Does the lock do Zebras and xylophones?")
    assert answer.splitlines()[0] == f"{NOTICE[:-1]} No document has: zebras, xylophones._"
    assert sources


@pytest.mark.parametrize("question", ["zebras?", "", " ", "?!", "what is it", "\0", "\ud800", "___", "²"])
def test_when_nothing_is_found_a_plain_sentence_says_so(library: Library, question: str) -> None:
    """Without sources."""
    library.add(lock=LOCK)
    answer, sources = library.ask(question)
    assert answer.startswith("Nothing about this was found in the local documents.")
    assert sources == []
    assert Library.ask(library, "lock")[1]


def test_an_empty_library_answers(library: Library) -> None:
    assert library.ask("anything")[1] == []


# Languages without spaces ---

CJK = {
    "ja": (
        "# 電気自動車\n\n電気自動車は電池で走ります。充電には家庭用の電源を使えます。\n\n# 料理\n\nご飯を炊きます。",
        "充電はどうしますか",
    ),
    "zh": ("# 锁\n\n锁是一个文件。工作进程最多等待七十秒。\n\n# 水果\n\n香蕉是黄色的。", "最多等待多久"),
    "ko": (
        "# 잠금\n\n작업자는 최대 칠십 초 동안 기다립니다. 다른 작업자가 가져갑니다.\n\n# 과일\n\n바나나는 노랗다.",
        "작업자가 기다리는 시간",
    ),
}
CJK_RIGHT = {
    "ja": "充電には家庭用の電源を使えます。",
    "zh": "工作进程最多等待七十秒。",
    "ko": "작업자는 최대 칠십 초 동안 기다립니다.",
}


@pytest.mark.parametrize("language", CJK)
def test_chinese_japanese_and_korean_are_found(library: Library, language: str) -> None:
    """By pairs of characters, and split at their full stops."""
    text, question = CJK[language]
    library.add(cjk=text, lock=LOCK)
    answer, sources = library.ask(question)
    assert CJK_RIGHT[language] in [quote for quote, _ in quotes(answer)]
    assert sources[0][0].startswith(text[2:4].strip())


def test_one_character_is_found(library: Library) -> None:
    """Also within a word, and beside words of other scripts."""
    library.add(cjk=CJK["zh"][0], lock=LOCK)
    assert library.ask("锁")[1][0][0] == "锁"
    assert library.ask("GPU锁是 lock")[1] != []
    assert terms("GPU锁 は lock") == ['"gpu"', '"lock"', '"锁"*', '"は"*']


# Untrusted questions ---


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], object]]:
    place = Library(tmp_path_factory.mktemp("asked"))
    place.add(lock=LOCK, fruit=FRUIT, **{name: text for name, (text, _) in CJK.items()})
    with closing(open_index([place.folder], place.cache, None)) as index:
        yield lambda question, previous: compose(index, question, previous, "speed")


@given(st.text(max_size=60), st.text(st.sampled_from("\"'*^:+-(){}[]AND OR NOT NEAR,lock\0\ud800漢"), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_question_is_fts5_syntax(asked: Callable[[str, str], object], one: str, two: str) -> None:
    """Whatever it holds, it is words."""
    asked(one, two)
    asked(two, one)


@pytest.mark.parametrize(
    "question",
    ['lock"', "lock OR", "NEAR(lock gpu, 2)", "title:lock", "lock*", "^lock", "lock AND NOT gpu", "-lock", "{lock}"],
)
def test_operators_are_words(library: Library, question: str) -> None:
    library.add(lock=LOCK)
    assert library.ask(question)[1][0][0].startswith("The GPU lock")


def test_a_question_is_bounded(asked: Callable[[str, str], object]) -> None:
    """2 MB of it give at most 32 terms."""
    for question in (
        "w " * 1_000_000,
        "漢字" * 1_000_000,
        " ".join(f"word{n}" for n in range(250_000)),
        "x" * 2_000_000,
    ):
        assert len(terms(question)) <= 32
        asked(question, question)


# Quotes are inert ---

HOSTILE = [
    "The lock [3] is not [1, 2] a citation [4][5] of ours 【6】 at all [ 7 ].",
    "The lock is `lock[0]` or ``lock[1]`` in code [9](http://evil.example/) here.",
    "The lock has an ` unbalanced backtick and [8] here.",
    "The lock has **unbalanced bold [8] marks, and __init__ and *args, **kwargs.",
    "The lock shows ![an image](http://evil.example/x.png) and [a link](http://evil.example/) here.",
    "The lock <script>alert(1)</script> <img src=x onerror=alert(1)> has markup.",
    "The lock ``` has an open fence in its line of text.",
    "The lock [text][1] is a reference.\n\n[1]: http://evil.example/",
    "The lock | has | a table |\n|---|---|---|\n| of | locks | and more of them |",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_documents_own_marks_are_no_citations(library: Library, text: str) -> None:
    """Each citation that a reader of the answer finds is ours, in range and outside code."""
    library.add(hostile=f"# About [2] `x [3]\n\n{text}\n", lock=LOCK)
    answer, sources = library.ask("lock", mode="quality")
    ours = [(int(number),) for number in re.findall(r" \[(\d+)\](?= |$)", answer, re.MULTILINE)]
    assert [mark.numbers for mark in marks_outside_code(answer)] == ours != []
    assert {number for (number,) in ours} <= set(range(1, len(sources) + 1))
    cited = {n: CardSource(n, "t", f"http://127.0.0.1:9/{n}", "s") for n in range(1, 10)}
    shown = Card(text=answer, cited=cited).html()
    assert [(int(number),) for number in re.findall(r'href="http://127\.0\.0\.1:9/(\d)"', shown)] == ours
    assert shown.count("href=") == len(ours)


CODE = """# Turbine

A turbine turns slowly.

```sh
turbine --fast. Turbine for ever.
```

    turbine = 1. Turbine for ever

>>> turbine()
'A turbine. Turbine for ever.'

Turbine rules
-------------
More about the turbine.
"""


def test_code_is_not_quoted_as_a_sentence(library: Library) -> None:
    """Fences, indented code, doctests, headings and rules are left out."""
    library.add(code=CODE)
    answer, _ = library.ask("turbine")
    assert sorted(text for text, _ in quotes(answer)) == ["A turbine turns slowly.", "More about the turbine."]


def test_where_there_is_only_code_it_is_quoted_as_code(library: Library) -> None:
    """As the cells of a notebook are."""
    library.add(code="# Turbine\n\n~~~~~~\nturbine = Turbine(`x`)\nturbine.turn()\n~~~~~~\n")
    answer, _ = library.ask("turbine")
    assert answer.endswith("- **Turbine**: `` turbine = Turbine(`x`) turbine.turn() `` [1]")


MARKED = """# The *turbine* [at sea](http://evil.example/sea)

<!-- not run: a secret. The turbine is secret
over two lines -->
```sh
turbine --fast
```
A **turbine** turns `slowly_now` <!-- a hidden turbine --> by [the tide](http://evil.example/ "title") &amp; 2 \\* 3.
It is ![a picture](http://evil.example/x.png) of <b>steel</b> and __iron__.

- one ~~old~~ turbine
- another, see <https://example.org/>

| part | made of |
| --- | --- |
| blade | `steel` |

<details>
A turbine in HTML.
</details>

Turbine rules
-------------
"""


def test_a_sources_text_is_what_a_reader_reads(library: Library) -> None:
    """No comments, fences, addresses of links or pictures, pipes or marks of headings and emphasis."""
    library.add(marked=MARKED)
    ((_, _, first), (_, _, second)) = sorted(library.ask("turbine", mode="quality")[1], key=lambda source: source[1])
    assert [line for line in first.split("\n") if line] == [
        "The turbine at sea",
        "turbine --fast",
        "A turbine turns slowly_now   by the tide & 2 * 3.",
        "It is a picture of steel and iron.",
        "one old turbine",
        "another, see https://example.org/",
        "part",
        "made of",
        "blade",
        "steel",
        "A turbine in HTML.",
    ]
    assert second == "Turbine rules"


def test_text_that_is_no_markdown_stays_as_it_is(library: Library) -> None:
    """Names with underscores and stars; only the heading goes, which the title has, in text and in what was HTML."""
    (library.folder / "a.rst").write_text("Turbine\n=======\n\nA turbine has __init__ and *args, **kwargs.\n")
    (library.folder / "b.html").write_text("<h2>Turbine</h2><p>A turbine &lt;b&gt; has `__init__` too.</p>")
    texts = [" ".join(text.split()) for _, _, text in library.ask("turbine", mode="quality")[1]]
    assert sorted(texts) == ["A turbine <b> has `__init__` too.", "A turbine has __init__ and *args, **kwargs."]


def test_no_answer_shows_a_comment(library: Library) -> None:
    """Neither one on lines of its own nor one within a sentence; in code it is no comment."""
    library.add(marked=f"{MARKED}\nThe turbine prints `<!-- this -->` in code.\n\n<!-- turbine, not closed. Turbine.\n")
    answer, _ = library.ask("turbine", mode="quality")
    assert "A **turbine** turns `slowly_now`  by the tide &amp; 2 \\* 3. [2]" in answer
    assert "The turbine prints `<!-- this -->` in code." in answer
    assert answer.count("<!--") == 1
    assert "secret" not in answer
    assert "closed" not in answer


@pytest.mark.parametrize("piece", ["[", "![", "> ", "- ", "*_", "`", "<", "<!--", "&amp;", "1. ", "[a](", "|a", "\n\n"])
def test_hostile_markdown_is_answered_in_time(library: Library, piece: str) -> None:
    """Sixteen passages full of it."""
    library.add(**{f"page{n}": f"# Turbine\n\nA turbine. {piece * (1_400 // len(piece))}" for n in range(16)})
    start = time.monotonic()
    assert len(library.ask("turbine", mode="quality")[1]) == 16
    assert time.monotonic() - start < 10


def test_a_long_sentence_is_cut_at_a_word(library: Library) -> None:
    """And says so."""
    library.add(long="# Long\n\n" + "turbine " * 150 + "end.\n")
    ((text, _),) = quotes(library.ask("turbine", mode="speed")[0])[:1]
    assert 450 < len(text) <= 502
    assert text.endswith("turbine …")


@given(
    st.lists(
        st.text(st.sampled_from("aturbine .!?\n#`*_[]()|-1>~\\漢。"), min_size=1, max_size=200), min_size=1, max_size=4
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_quotes_are_always_the_documents_words(tmp_path_factory: pytest.TempPathFactory, pages: list[str]) -> None:
    """Whatever the document: letters and digits of each quoted line stand in that order in its source."""
    place = Library(tmp_path_factory.mktemp("pages"))
    place.add(**{f"page{n}": f"# Turbine\n\nA turbine. {text}" for n, text in enumerate(pages)})
    answer, sources = place.ask("turbine", mode="quality")
    assert answer.startswith(NOTICE)
    for line in answer.splitlines()[2:]:
        number = int(re.findall(r"\[(\d+)\]$", line)[0])
        for quote in re.split(rf" \[{number}\](?: |$)", line.split("**: ", 1)[1]):
            assert letters(quote.removesuffix("…")) in letters(sources[number - 1][2])


def letters(text: str) -> str:
    """What is left without marks and spaces, links' addresses included."""
    return re.sub(r"[\W_]", "", re.sub(r"\]\([^()\s]*\)", "", text))


# The default corpus ---


def test_the_standard_library_is_explained(corpus: Callable[[str], tuple[str, list[tuple[str, str, str]]]]) -> None:
    """The questions that a first user asks."""
    for question, heading, sentence in [
        ("what does functools.lru_cache do?", "functools - lru_cache(", "Least-recently-used cache decorator."),
        (
            "How do I read a text file with pathlib?",
            "pathlib",
            "Open the file in text mode, read it, and close the file.",
        ),
        (
            "what does TemporaryDirectory do?",
            "tempfile - TemporaryDirectory",
            "Create and return a temporary directory.",
        ),
        ("how can I run a subprocess and capture its output", "subprocess", ""),
        ("What does asyncio.gather return?", "asyncio.tasks - gather(", "Return a future aggregating results"),
    ]:
        answer, sources = corpus(question)
        assert sources[0][0].startswith(heading), question
        assert sentence in answer, question


def test_what_is_not_in_it_is_said(corpus: Callable[[str], tuple[str, list[tuple[str, str, str]]]]) -> None:
    """As for itertools, which has no source to read."""
    assert "No document has: batched" in corpus("what does itertools.batched do?")[0].splitlines()[0]


def test_this_project_is_explained(corpus: Callable[[str], tuple[str, list[tuple[str, str, str]]]]) -> None:
    """Its own pages are in the corpus."""
    answer, sources = corpus("How does Vane's GPU lock work?")
    assert "lock" in answer.lower()
    assert any("lock" in heading.lower() or "lock" in text.lower() for heading, _, text in sources)
