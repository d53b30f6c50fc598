"""Count the package's lines of code: without blank lines, comments and docstrings.

    python benchmarks/size.py

Prints lines for each module and folder, and the median, 90th percentile and longest function.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "vane_magic"
LIMITS = {"core": 2_000, "": 4_500}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(ast.parse(source))


def docstring_lines(tree: ast.AST) -> set[int]:
    """The numbers of the lines of docstrings."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node.body[0] for node in ast.walk(tree) if isinstance(node, holders) and ast.get_docstring(node)]
    return {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def functions(path: Path, source: str) -> list[tuple[int, str]]:
    """Length in lines of code, and name, of each function."""
    lines = code_lines(source)
    return [
        (len(lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))), f"{path.name}:{node.name}")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, Function)
    ]


def main() -> None:
    total: Counter[str] = Counter()
    lengths: list[tuple[int, str]] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        count = len(code_lines(source))
        where = path.relative_to(PACKAGE)
        total[""] += count
        total[where.parts[0] if len(where.parts) > 1 else where.name] += count
        lengths += functions(path, source)
        print(f"{count:6}  {where}")
    for name, count in total.items():
        limit = f" of {LIMITS[name]:,}" if name in LIMITS else ""
        print(f"{count:6}{limit}  {name or 'the whole package'}")
    sizes = sorted(size for size, _ in lengths)
    p90 = sizes[int(len(sizes) * 0.9)]
    print(f"functions: {len(sizes)}, median {statistics.median(sizes):g}, p90 {p90}, longest {max(lengths)}")


if __name__ == "__main__":
    main()
