"""IPython's way of a line takes a question's final ``?`` for a help look-up: claim ``%vane`` statements first.

The transformer finds where a statement starts by its tokens, so strings and comments keep their meaning.
It takes the question from the raw line, since a question is no Python: quotes and brackets may be unbalanced.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import EscapedCommand, MagicAssign, TokenTransformBase
from IPython.core.interactiveshell import InteractiveShell

from vane_magic.notebook.options import MAGIC, parse

# A line that ends in \ goes on in the next; the parser of options refuses it then. IPython also splits lines at
# U+2028 and the like, where no statement ends.
_STATEMENT: Final = re.compile(
    rf"%{MAGIC}(?!\S)[^\S\r\n]?(?P<text>[^\r\n]*)(?:(?<=\\)(?:\r\n?|\n)[^\r\n]*)*(?:\r\n?|\n|\Z)"
)


class VaneStatement(TokenTransformBase):
    """One ``%vane …`` or ``target = %vane …``.

    Parameters
    ----------
    start
        Row (from 1) and column of the statement's first token, where HelpEnd would claim it too.
    percent
        Row (from 0) and column of the ``%``.
    """

    priority: ClassVar[int] = 1  # HelpEnd has 5; the lower number wins at the same place

    def __init__(self, start: tuple[int, int], percent: tuple[int, int]) -> None:
        super().__init__(start)
        self.row, self.column = percent

    @classmethod
    def find(cls, tokens_by_line: Sequence[Sequence[tokenize.TokenInfo]]) -> VaneStatement | None:
        """Find the first statement that may be one; what follows it may be tokenised wrongly until it is transformed.

        Another magic's, where `transform` declines, is transformed by IPython, and then the search begins anew.
        """
        for line in tokens_by_line:
            percent: Any = EscapedCommand.find([line]) or MagicAssign.find([line])  # pyright: ignore[reportUnknownMemberType] - IPython annotates little
            if percent:
                first = next(token for token in line if token.type not in {tokenize.INDENT, tokenize.DEDENT})
                return cls(first.start, (percent.start_line, percent.start_col))
        return None

    def transform(self, lines: list[str]) -> list[str]:
        """Put a call in place of the statement.

        Raises
        ------
        SyntaxError
            For another magic's, and text that only begins like this one, such as ``%vane?``: IPython's sign to try
            its own.
        """
        code = "".join(lines[self.row :])
        if not (found := _STATEMENT.match(code, self.column)):
            raise SyntaxError
        call = f"get_ipython().run_line_magic({MAGIC!r}, {found['text']!r}){';' if _hides(found['text']) else ''}\n"
        return [*lines[: self.row], code[: self.column] + call, *code[found.end() :].splitlines(keepends=True)]


def install(shell: InteractiveShell) -> None:
    """Register the transformer with a shell, once however often this is called."""
    uninstall(shell)
    shell.input_transformer_manager.token_transformers.append(VaneStatement)


def uninstall(shell: InteractiveShell) -> None:
    """Take the transformer out of a shell, also one that an earlier import of this module has put in."""
    found: list[type] = shell.input_transformer_manager.token_transformers
    found[:] = [each for each in found if each.__qualname__ != VaneStatement.__qualname__]


def _hides(text: str) -> bool:
    """Whether the answer is hidden: a terminal has written ``Out[n]:`` before any formatter is asked."""
    try:
        return parse(text).quiet
    except UsageError:
        return False
