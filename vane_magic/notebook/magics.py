"""The magics, their ``%config`` and their registration with a shell.

Loading imports nothing heavy: what a question needs is imported by the first one.
"""

from __future__ import annotations

import atexit
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from IPython.core import magic
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Bunch, observe

from vane_magic.core.errors import Interrupted, VaneError
from vane_magic.core.settings import SETTINGS, Layer, Settings, environment
from vane_magic.notebook import completion, transformer
from vane_magic.notebook.options import MAGIC, option_help, parse, usage
from vane_magic.notebook.shown import ShowOnce
from vane_magic.notebook.traits import DEFAULTS, Value, in_words

if TYPE_CHECKING:
    from vane_magic.core.contract import ToolResult
    from vane_magic.diagnosis import Diagnosis
    from vane_magic.notebook.form import Form
    from vane_magic.notebook.session import Session


@magic.magics_class  # pyright: ignore[reportUnknownMemberType, reportUntypedClassDecorator] - IPython annotates little
class VaneMagics(magic.Magics):
    """The magics of one shell, configured by ``%config VaneMagics.<setting> = …``."""

    locals().update({name: Value(setting) for name, setting in SETTINGS.items()})
    started = False  # whether the configuration file has been read

    def __init__(self, shell: InteractiveShell) -> None:
        self._session: Session | None = None
        self._values: dict[str, object] = {}
        self._layer = Layer("%config VaneMagics.{name}", self._values)
        self.once = ShowOnce(shell)
        self._shell: Any = shell
        super().__init__(self._shell)  # pyright: ignore[reportUnknownMemberType] - likewise
        self.started = True

    @magic.no_var_expand  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator] - likewise
    @magic.needs_local_scope  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator] - likewise
    @magic.line_cell_magic  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator] - likewise
    def vane(
        self, line: str = "", cell: str | None = None, local_ns: Mapping[str, object] | None = None
    ) -> ToolResult | None:
        """Ask a local Vane; show the answer with its sources, and return the ToolResult.

        In [1]: %vane what's a tidal turbine?

        In [2]: r = %vane -m quality -n 12 how do pilots in Norway compare?
           ...: r.sources[0].url, r.answer

        In [3]: %%vane --continue
           ...: And in Canada?
           ...: Answer in two sentences.

        Options come first; the question is the rest of the line as it stands, quotes, $, {} and ? included.
        A final ; hides the answer. The last result is always in _vane.
        %%vane must be the first line of its cell: under a comment IPython reads it as Python, and says
        "Line magic function `%%vane` not found" or "invalid syntax".
        Load the extension in an earlier cell: in the same one, IPython takes a question's ? for its help.

        %vane alone shows the settings and where each comes from; %config VaneMagics lists and changes them.
        """
        asked = parse(line, cell)
        if asked.help or not asked.question:
            missing = "" if asked.help or not line.strip() else "No question was given, so nothing was asked.\n\n"
            print(missing + self._overview())  # noqa: T201 - that is what was asked for
            return None
        if self._session is None:
            from vane_magic.notebook.session import Session  # noqa: PLC0415 - heavy, and not needed for loading

            self._session = Session(self._shell, self._layer, self.once)
        names = ChainMap(dict(local_ns or {}), self._shell.user_ns)
        try:
            return self._session.ask(asked, names, whole_cell=cell is not None)
        except (KeyboardInterrupt, VaneError) as raised:
            if isinstance(raised, VaneError) and not asked.quiet:  # the card has been shown
                raised.cause, raised.hint = "", f"{raised.code}: see the card above."
            raised._render_traceback_ = partial(_two_lines, raised)  # pyright: ignore[reportAttributeAccessIssue] - IPython's hook
            raise

    vane.__doc__ = f"{cleandoc(vane.__doc__ or '')}\n\n{option_help()}\n"

    @magic.line_magic  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator] - likewise
    def vane_doctor(self, line: str = "") -> Diagnosis:
        """Say which link from the settings to the answer is broken, and what to do; nothing is searched.

        ``%vane_doctor --deep`` also asks one real question.
        """
        if (option := line.strip(" ;")) not in {"", "--deep"}:
            raise UsageError(f"%{MAGIC}_doctor takes --deep or nothing, not {option[:80]}")
        from vane_magic.diagnosis import diagnose  # noqa: PLC0415 - heavy, and not needed for loading

        return diagnose(deep=bool(option), layers=(self._layer,))

    @magic.line_magic  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator] - likewise
    def vane_form(self, line: str = "") -> Form:
        """Show a form to ask Vane with, while other cells run."""
        if line.strip(" ;"):
            raise UsageError(f'%{MAGIC}_form takes no question: type it into the form, or: vane_magic.Form("…")')
        from vane_magic.notebook.form import Form  # noqa: PLC0415 - heavy, and not needed for loading

        try:
            return Form()
        except VaneError as error:
            raise UsageError(error.message) from None

    def chat_models(self) -> Sequence[str]:
        """The chat models of the last look-up, for completion."""
        return self._session.client.chat_models if self._session else ()

    def close(self) -> None:
        """Stop what the questions have started."""
        if self._session:
            self._session.close()

    @observe(*SETTINGS)
    def _keep(self, change: Bunch) -> None:
        """Keep the layer of ``%config`` at the traits' present values."""
        self._values[change.name] = change.new

    def _overview(self) -> str:
        """The settings with their origins, and five lines of help."""
        try:
            found = Settings.resolve(self._layer, environment(), DEFAULTS)
            rows = [f"{name:<16} {in_words(getattr(found, name)):<30}  {found.origins[name]}" for name in SETTINGS]
        except VaneError as error:
            rows = [error.message]
        return "\n".join([*rows, "", usage()])


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; called by ``%load_ext vane_magic``, and once however often it is called."""
    unload_ipython_extension(shell)
    magics = VaneMagics(shell)
    shell.register_magics(magics)  # pyright: ignore[reportUnknownMemberType] - likewise
    magics.once.install()
    transformer.install(shell)
    completion.install(shell, magics.chat_models)
    atexit.register(magics.close)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take back everything that loading registered; called by ``%unload_ext vane_magic``. The results stay."""
    manager: Any = shell.magics_manager
    if not (magics := manager.registry.pop(VaneMagics.__name__, None)):
        return
    for kind, names in magics.magics.items():
        for name in names:
            manager.magics[kind].pop(name, None)
    shell.configurables.remove(magics)
    magics.once.uninstall()
    transformer.uninstall(shell)
    completion.uninstall(shell)
    atexit.unregister(magics.close)
    magics.close()


def _two_lines(raised: BaseException) -> list[str]:
    """A traceback of two lines: what failed, and what is to be done; the way through this package helps nobody."""
    if isinstance(raised, VaneError):
        return [f"{type(raised).__name__}: {raised.what}", raised.hint or raised.cause]
    if isinstance(raised, Interrupted):
        return [f"Interrupted; _vane has what had come. {raised.result.run.failure[1]}".rstrip()]
    return ["Interrupted."]
