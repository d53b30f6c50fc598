"""An extractive answer: sentences of the best passages that hold the question's terms, quoted and cited."""

from __future__ import annotations

import heapq
import math
import re
import sqlite3
from itertools import groupby
from typing import Final

from vane_magic.localdocs.index import CJK, clean, pairs

Source = tuple[str, str, str]  # heading, page, text
_LONGEST: Final = 500  # characters of a sentence
_PREVIOUS: Final = 0.3  # the weight of a term of the question before
_DEPTHS: Final = {"speed": (5, 3), "balanced": (8, 6), "quality": (16, 12)}  # sources and sentences
_STOP_WORDS: Final = """a about an and are as at be been but by can could d describe did do does explain for from had
    has have how i if in into is it its ll m me mean means my no not of on or our please re s should show so t tell than
    that the their them then there these they this those to us ve was we were what when where which who whom why will
    with work works would you your"""
_COUNT: Final = "SELECT count(*) FROM passage WHERE passage MATCH ?"
_FOUND: Final = """
    SELECT document.title || CASE WHEN section IN ('', document.title) THEN '' ELSE ' - ' || section END,
        id || '?passage=' || (hit - document.number), text, score
    FROM (SELECT rowid AS hit, rank AS score FROM passage WHERE passage MATCH ? ORDER BY rank LIMIT 60)
    JOIN passage ON passage.rowid = hit JOIN document ON document.number = passage.number ORDER BY score
"""
_DROPPED: Final = re.compile(
    r"(?ms)^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)|^\s*>>> .*?(?:\n\s*\n|\Z)"  # fenced code; doctests
    r"|^(?: {0,3}#{1,6} |\t| {4,}(?![-*+] ))[^\n]*|^[^\n]+\n([=\-~^\"'#*+`])\2{2,}$|^[^\w\n]+$"  # headings; indented code
)
_ENDING: Final = re.compile(r"(?<=\w{4})(?:ing|ed|es|e|s|y|ies|ion|ions)$")
_BLOCKS: Final = re.compile(r"\n\s*\n|\n(?=[ \t]*(?:[-*+|]|\d{1,3}[.)])\s)")
_BULLET: Final = re.compile(r"\A(?:[-*+]|\d{1,3}[.)])\s+")
_ENDS: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s+(?=\W{0,3}[A-Z0-9])|(?<=[\u3002\uff01\uff1f])")
# Code; a link; what would read as a citation of ours, or begin code or bold text of its own.
_LIVE: Final = re.compile(r"(`+[^`]+`+)|!?\[([^\[\]]*)\]\([^()\s]*\)|[\[【](?=\s*\d)|`|\b__|__\b")


def terms(question: str) -> list[str]:
    """Return a question's telling words and pairs of CJK characters, quoted, so that none of it is FTS5's syntax."""
    text = clean(question[:10_000]).casefold()
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
    rows: list[tuple[str, str, str, float]] = index.execute(_FOUND, (" OR ".join(weights),)).fetchall()
    found = [
        (_worth(f"{heading} {text}", weights), score, (heading, page, text)) for heading, page, text, score in rows
    ]
    most_sources, most_quotes = _DEPTHS.get(mode, _DEPTHS["quality"])
    enough = max(worth for worth, _, _ in found) / 2
    best = sorted((worth * score, source) for worth, score, source in found if worth >= enough)[:most_sources]
    values = {
        (number, place, quote): -score
        * (_worth(quote, weights) + _worth(heading, weights) / place)
        / (300 + len(quote))
        for number, (score, (heading, _, text)) in enumerate(best, 1)
        for place, quote in enumerate(_sentences(text), 1)
    }
    answer = f"_Sentences quoted from local documents; no language model was used.{note}_\n"
    for number, quotes in groupby(
        sorted(heapq.nlargest(most_quotes, values, key=values.__getitem__)), lambda at: at[0]
    ):
        heading = _quoted(best[number - 1][1][0].replace("*", r"\*"))
        answer += f"\n- **{heading}**: " + " ".join(f"{quote} [{number}]" for _, _, quote in quotes)
    return answer, [source for _, source in best]


def _weights(index: sqlite3.Connection, asked: list[str], before: list[str]) -> dict[str, float]:
    """Return the weight of each term that the documents have: the rarer, the more it tells."""
    (total,) = index.execute("SELECT count(*) FROM passage_docsize").fetchone()
    counts = {term: index.execute(_COUNT, (term,)).fetchone()[0] for term in asked + before}
    return {t: math.log(1 + total / n) * (1 if t in asked else _PREVIOUS) for t, n in counts.items() if n}


def _worth(text: str, weights: dict[str, float]) -> float:
    """Return the weight of the terms that a text holds, which is when one of its words begins with the term's stem."""
    stems = {term: ("" if "*" in term else r"(?<![^\W_])") + _ENDING.sub("", term.strip('"*')) for term in weights}
    return sum(weight for term, weight in weights.items() if re.search(stems[term], text.casefold()))


def _sentences(text: str) -> list[str]:
    """Return a passage's sentences, list items and table rows as Markdown; where there are none, its code."""
    blocks = (_BULLET.sub("", " ".join(block.split())) for block in _BLOCKS.split(_DROPPED.sub("", text)))
    parts = [part for block in blocks for part in _ENDS.split(block) if re.search(r"\w\W*\w", part) and part[-1] != ":"]
    return [_quoted(part) for part in parts] or [f"``{' '.join(text.split())[:_LONGEST]}``"]


def _quoted(sentence: str) -> str:
    """Return a sentence as Markdown that ends what it begins and holds no mark like a citation."""
    if len(sentence) > _LONGEST:
        sentence = sentence[:_LONGEST].rsplit(" ", 1)[0] + " …"
    if sentence.count("**") % 2:
        sentence = sentence.replace("**", r"\*\*")
    return _LIVE.sub(lambda live: live[1] or live[2] or "\\" + live[0].replace("【", "["), sentence)
