"""An extractive answer: sentences of the best passages that hold the question's terms, quoted and cited."""

from __future__ import annotations

import heapq
import math
import re
import sqlite3
from itertools import groupby
from typing import Final

from vane_magic.localdocs.documents import plain
from vane_magic.localdocs.index import CJK, pairs

Source = tuple[str, str, str]  # heading, path and query of its address, plain text
_SHORTEST, _LONGEST = 16, 500  # bytes and characters of a sentence
_DEPTHS: Final = {"speed": (5, 3), "balanced": (8, 6), "quality": (16, 12)}  # sources and sentences
_STOP_WORDS: Final = """a about an and are as at be been but by can could d describe did do does explain for from had
    has have how i if in into is it its ll m me mean means my no not of on or our please re s should show so t tell than
    that the their them then there these they this those to us ve was we were what when where which who whom why will
    with work works would you your"""
_COUNT: Final = "SELECT count(*) FROM passage WHERE passage MATCH ?"
_FOUND: Final = """SELECT heading, '/doc/' || id || '?passage=' || place, text, path, rank
    FROM passage WHERE passage MATCH ? ORDER BY rank LIMIT 60"""
# Fenced code; comments; doctests; Markdown's headings and indented code; underlined headings; other lines of marks.
_DROPPED: Final = re.compile(
    r"(?ms)^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)"
    r"|^ {0,3}<!--.*?(?:-->|\Z)"
    r"|^[ \t]*>>> .*?(?:\n[ \t]*\n|\Z)"
    r"|^(?: {0,3}#{1,6} |\t| {4,}(?![-*+] ))[^\n]*"
    r"|^[^\n]+\n([=\-~^\"'#*+`])\2{2,}$"
    r"|^[^\w\n]+$"
)
_FRAME: Final = re.compile(r"(?m)^ {0,3}(?:`{3,}|~{3,}|#{1,6} )[^\n]*$")  # of code: its fences, the heading above
_ENDING: Final = re.compile(r"(?<=\w{4})(?:ing|ed|es|e|s|y|ies|ion|ions)$")
# Between blocks: the mark of a list's item, a blank line, the line's end before a row of a table.
_BLOCKS: Final = re.compile(r"\n\s*(?:[-*+]|\d{1,3}[.)])\s+|\n[ \t]*\n|\n(?=[ \t]*\|\s)")
_ENDS: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+(?=\W{0,3}[^\W_a-z])|(?<=[\u3002\uff01\uff1f])")
# Code; a link; a comment; marks that would read as citations of ours; what would begin code or emphasis of its own.
_LIVE: Final = re.compile(
    r"((?<!`)(`+)[^`]+\2(?!`))|!?\[([^\[\]]*)\]\([^()\s]*(?: \"[^\"]*\")?\)|<!--.*?-->"
    r"|((?:[\[【][\d ,]+[\]】])+)|(`)|(\b_+|_+\b)"
)


def terms(question: str) -> list[str]:
    """Return a question's telling words and pairs of CJK characters, quoted, so that none of it is FTS5's syntax."""
    text = question[:10_000].casefold()
    words = [f'"{word}"' for word in re.findall(r"\w+", CJK.sub(" ", text)) if word not in _STOP_WORDS.split()]
    return list(dict.fromkeys(words + [f'"{pair}"*' for pair in pairs(text)]))[:32]


def compose(index: sqlite3.Connection, question: str, previous: str, mode: str) -> tuple[str, list[Source]]:
    """Return the answer and its sources, the best first; the terms of the question before count too, but less."""
    asked = terms(question)
    weights = _weights(index, asked, terms(previous))
    missing = ", ".join(term.strip('"*') for term in asked if term not in weights)
    note = f" No document has: {missing}." if missing else ""
    if not weights:
        return f"Nothing about this was found in the local documents.{note}", []
    stems = [(_stem(term), weight) for term, weight in weights.items()]
    rows: list[tuple[str, str, str, str, float]] = index.execute(_FOUND, (" OR ".join(weights),)).fetchall()
    worths = [_worth(f"{heading} {text}", stems) for heading, _, text, _, _ in rows]
    most_sources, most_quotes = _DEPTHS.get(mode, _DEPTHS["quality"])
    fitting = [(worth * row[4], *row[:4]) for worth, row in zip(worths, rows, strict=True) if worth >= max(worths) / 2]
    ranked = sorted(fitting)[:most_sources]  # BM25's scores are negative, the best is the lowest
    answer = f"_Sentences quoted from local documents; no language model was used.{note}_\n"
    for number, group in groupby(_quotes(ranked, stems, most_quotes), lambda quote: quote[0]):
        heading = _quoted(ranked[number - 1][1].replace("*", r"\*"))
        answer += f"\n- **{heading}**: " + " ".join(f"{quote} [{number}]" for _, _, quote in group)
    return answer, [(heading, page, _snippet(heading, plain(path, text))) for _, heading, page, text, path in ranked]


def _snippet(heading: str, text: str) -> str:
    """Return a passage's text without its heading, which its title has."""
    first, _, rest = text.partition("\n")
    return rest.lstrip() if first == heading.rpartition(" - ")[2] and rest.strip() else text


def _weights(index: sqlite3.Connection, asked: list[str], before: list[str]) -> dict[str, float]:
    """Return the weight of each term that the documents have: the rarer, the more; those from before count for 0.3."""
    (total,) = index.execute("SELECT count(*) FROM passage_docsize").fetchone()
    counts = {term: index.execute(_COUNT, (term,)).fetchone()[0] for term in asked + before}
    return {t: math.log(1 + total / n) * (1 if t in asked else 0.3) for t, n in counts.items() if n}


def _stem(term: str) -> re.Pattern[str]:
    """Return what finds a term in a text: its stem at the start of a word, a CJK pair anywhere."""
    return re.compile("(?i)" + ("" if "*" in term else r"(?<![^\W_])") + _ENDING.sub("", term.strip('"*')))


def _worth(text: str, stems: list[tuple[re.Pattern[str], float]]) -> float:
    """Return the weight of the terms that a text holds."""
    return sum(weight for stem, weight in stems if stem.search(text))


def _quotes(
    ranked: list[tuple[float, str, str, str, str]], stems: list[tuple[re.Pattern[str], float]], most: int
) -> list[tuple[int, int, str]]:
    """Return the sentences that tell most, by source and place; the first ones of a fitting section count more."""
    values = dict[tuple[int, int, str], float]()
    for number, (score, heading, _, text, _) in enumerate(ranked, 1):
        lead, sentences = _worth(heading, stems), _sentences(text)
        if not sentences:
            code = " ".join(_FRAME.sub("", text)[:_LONGEST].replace("``", "''").split())
            values[number, 1, f"`` {code} ``"] = 0
        for place, quote in enumerate(sentences, 1):
            values[number, place, quote] = -score * (_worth(quote, stems) + lead / place) / (300 + len(quote))
    return sorted(heapq.nlargest(most, values, key=values.__getitem__))


def _sentences(text: str) -> list[str]:
    """Return a passage's sentences, list items and table rows as Markdown."""
    blocks = (" ".join(block.split()).strip("| ") for block in _BLOCKS.split("\n" + _DROPPED.sub("", text)))
    parts = (part for block in blocks for part in _ENDS.split(block))
    return [_quoted(part) for part in parts if len(part.encode()) > _SHORTEST and part[-1] != ":"]


def _quoted(sentence: str) -> str:
    """Return a sentence as Markdown that ends what it begins and holds no mark like a citation."""
    if len(sentence) > _LONGEST:
        sentence = sentence[:_LONGEST].rsplit(" ", 1)[0] + " …"
    if sentence.count("**") % 2:
        sentence = sentence.replace("**", r"\*\*")
    return _LIVE.sub(_tamed, sentence)


def _tamed(live: re.Match[str]) -> str:
    code, _, link, marks, tick, emphasis = live.groups("")
    return code or link or (marks and f"`{marks}`") or (tick and "'") or emphasis.replace("_", r"\_")
