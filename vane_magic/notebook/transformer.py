"""IPython's way of a line takes a question's final ``?`` for a help look-up: claim ``%vane`` statements first.

The transformer finds where a statement starts by its tokens, so strings and comments keep their meaning.
It takes the question from the raw line, since a question is no Python: quotes and brackets may be unbalanced.
"""

from __future__ import annotations

import re
import tokenize
from typing import TYPE_CHECKING, ClassVar

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import TokenTransformBase

from vane_magic.notebook.options import MAGIC, parse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from tokenize import TokenInfo

    from IPython.core.interactiveshell import InteractiveShell


class VaneStatement(TokenTransformBase):
    """One ``%vane …`` or ``target = %vane …``.

    Parameters
    ----------
    start
        Row (from 1) and column of the statement's first token, where HelpEnd would claim it too.
    percent
        Row (from 1) and column of the ``%``.
    """

    priority: ClassVar[int] = 1  # HelpEnd has 5; the lower number wins at the same place

    def __init__(self, start: tuple[int, int], percent: tuple[int, int]) -> None:
        super().__init__(start)
        self.row, self.column = percent[0] - 1, percent[1]

    @classmethod
    def find(cls, tokens_by_line: Sequence[Sequence[TokenInfo]]) -> VaneStatement | None:
        """Find the first statement; what follows it may be tokenised wrongly until it is transformed."""
        for line in tokens_by_line:
            tokens = [token for token in line if token.type not in {tokenize.INDENT, tokenize.DEDENT}]
            for at in (0, _after_assignment(tokens)):
                if _names_magic(tokens[at : at + 2]):
                    return cls(tokens[0].start, tokens[at].start)
        return None

    def transform(self, lines: list[str]) -> list[str]:
        """Put a call in place of the statement.

        Raises
        ------
        SyntaxError
            For text that only begins like the magic, such as ``%vane?``: IPython's sign to try its own.
        """
        end = self.row + 1
        while end < len(lines) and not _ends(lines[end - 1]):
            end += 1
        piece = "".join(lines[self.row : end])
        target, text = piece[: self.column], re.split(r"[\r\n]", piece[self.column :], maxsplit=1)[0]
        rest = text.removeprefix(f"%{MAGIC}")
        if rest == text or not (rest == "" or rest[0].isspace()):
            raise SyntaxError
        call = f"get_ipython().run_line_magic({MAGIC!r}, {rest[1:]!r}){';' if _hides(rest) else ''}\n"
        return [*lines[: self.row], target + call, *lines[end:]]


def install(shell: InteractiveShell) -> None:
    """Register the transformer with a shell, once however often this is called."""
    uninstall(shell)
    shell.input_transformer_manager.token_transformers.append(VaneStatement)


def uninstall(shell: InteractiveShell) -> None:
    """Take the transformer out of a shell, also one that an earlier import of this module has put in."""
    found: list[type] = shell.input_transformer_manager.token_transformers
    found[:] = [each for each in found if each.__qualname__ != VaneStatement.__qualname__]


def _after_assignment(tokens: Sequence[TokenInfo]) -> int:
    """The place after the first ``=`` outside brackets, as IPython's magic assignment has it; 0 for none."""
    depth = 0
    for at, token in enumerate(tokens):
        if token.string == "=" and depth == 0:
            return at + 1
        if token.string in {"(", "[", "{"}:
            depth += 1
        elif token.string in {")", "]", "}"}:
            depth = max(depth - 1, 0)
    return 0


def _names_magic(tokens: Sequence[TokenInfo]) -> bool:
    """Whether two tokens are ``%`` and ``vane``; Python 3.12 puts an odd blank and more into the name."""
    return len(tokens) == 2 and tokens[0].string == "%" and tokens[1].string.split()[:1] == [MAGIC]  # noqa: PLR2004 - "%" and a name


def _ends(line: str) -> bool:
    r"""Whether a line of IPython's is the last of a statement's: it also splits lines at U+2028 and the like.

    A line that ends in ``\`` goes on in the next; the parser of options refuses it then.
    """
    return line.endswith(("\n", "\r")) and not line.rstrip("\r\n").endswith("\\")


def _hides(text: str) -> bool:
    """Whether the answer is hidden: a terminal has written ``Out[n]:`` before any formatter is asked."""
    try:
        return parse(text).quiet
    except UsageError:
        return False
