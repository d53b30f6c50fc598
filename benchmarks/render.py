"""What it costs to render an answer, next to what markdown-it-py needs only to parse it.

    python benchmarks/render.py

First table: 200 kB of each kind, parsed by markdown-it-py (CommonMark with tables and strikethrough) and made into
both forms by us, before any text is cut; the best of three runs each, in turns. Second table: growth to 1 MB. Third:
a whole card as a notebook stores it, cut included.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from markdown_it import MarkdownIt

from vane_magic.display import Card, CardSource, as_html, as_text
from vane_magic.display.parser import parse

KINDS = {
    "prose": "Tidal turbines turn the **energy** of a stream into power [1][2], as wind turbines do [1, 3]. " * 4
    + "\n\n",
    "report": "## Part\n\nSome *words*, `code` and a [link](https://docs.example/a) [1].\n\n- one [2]\n- two\n"
    "  - three\n\n"
    "```python\ndef f(x):\n    return x\n```\n\n| a | b |\n|---|--:|\n| 1 | 2 [3] |\n| 3 | 4 |\n\n> quoted [1]\n\n",
    "plain": "lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore\n",
    "marks": "[1][2][3] ",
    "emphasis": "*a* **b** ",
    "brackets": "[",
    "ampersands": "&",
    "dollars": "$",
    "one word": "x",
}
SOURCES = {
    n: CardSource(n, f"Title {n}", f"https://energy.example/reports/{n}", "A snippet. " * 20) for n in range(1, 9)
}
_PLAIN_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def text_of(unit: str, size: int) -> str:
    return unit * (size // len(unit))


def render(text: str) -> None:
    tokens = parse(text)
    as_html.answer(tokens, SOURCES, 10**9)
    as_text.answer(tokens, 80)


def seconds(work: Callable[[], object]) -> float:
    """Time of the processor, since other programs may be at work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parse("warm **up**")
    print(f"{'200 kB of':12} {'parse alone':>12} {'our render':>12} {'ratio':>7}")
    for kind, unit in KINDS.items():
        text = text_of(unit, 200_000)
        runs = [(seconds(lambda t=text: _PLAIN_PARSER.parse(t)), seconds(lambda t=text: render(t))) for _ in range(3)]
        theirs, ours = (min(column) for column in zip(*runs, strict=True))
        print(f"{kind:12} {theirs * 1000:9.0f} ms {ours * 1000:9.0f} ms {ours / theirs:7.2f}")
    print(f"\n{'growth':12} {'250 kB':>10} {'500 kB':>10} {'1 MB':>10} {'1 MB : 250 kB':>15}")
    for kind, unit in KINDS.items():
        texts = [text_of(unit, size) for size in (250_000, 500_000, 1_000_000)]
        times = [seconds(lambda t=text: render(t)) for text in texts]
        print(f"{kind:12}", *(f"{t * 1000:7.0f} ms" for t in times), f"{times[2] / times[0]:15.1f}")
    print(f"\n{'stored card':12} {'200 kB':>10} {'HTML':>10} {'plain':>10}")
    for kind, unit in KINDS.items():
        card = Card(text=text_of(unit, 200_000), sources=tuple(SOURCES.values()), cited=SOURCES)
        taken = seconds(card.mimebundle)
        html, plain = card.mimebundle()[0].values()
        print(f"{kind:12} {taken * 1000:7.0f} ms {len(html):>10,} {len(plain):>10,}")


if __name__ == "__main__":
    main()
