"""What one kernel keeps between questions, and the way of one question.

Heavy, so it is imported by the first question.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from IPython.core.error import UsageError

from vane_magic.core.client import VaneClient
from vane_magic.core.contract import RunDetails, ToolResult, read_trigger
from vane_magic.core.errors import ConfigurationError, Interrupted, VaneError
from vane_magic.core.modes import ErrorCode
from vane_magic.core.settings import Layer, Settings, environment
from vane_magic.notebook.live import Live, open_live
from vane_magic.notebook.options import MAGIC, Asked, expand
from vane_magic.notebook.traits import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from IPython.core.interactiveshell import InteractiveShell

    from vane_magic.localdocs import Service
    from vane_magic.notebook.shown import ShowOnce

LAST: Final = "_vane"  # the name that always holds the last result


class Session:
    """One kernel's clients, its last answer and its local-documents engine.

    Parameters
    ----------
    shell
        The kernel's shell.
    config
        The layer of ``%config``; its values are read at each question.
    once
        Is told what was shown.
    """

    def __init__(self, shell: InteractiveShell, config: Layer, once: ShowOnce) -> None:
        self._shell: Any = shell  # IPython annotates little
        self._config = config
        self._once = once
        self.client = VaneClient.of_layers(config, defaults=DEFAULTS)
        self._local: VaneClient | None = None
        self._folders: object = None  # that it was started with
        self._last: ToolResult | None = None
        self._model_told = False
        self._stack = ExitStack()

    def close(self) -> None:
        """Stop what was started."""
        self._local = None
        self._stack.close()

    def ask(self, asked: Asked, namespace: Mapping[str, object], *, whole_cell: bool) -> ToolResult:
        """Ask, show, bind.

        Raises
        ------
        UsageError
            For ``-c`` without an answer to go on from.
        Interrupted
            On Ctrl-C; what had come is bound.
        VaneError
            For a failed result, when `on_error` says so.
        """
        if asked.continued and self._last is None:
            raise UsageError(f"-c: no %{MAGIC} of this kernel has been answered yet; ask a first question without it.")
        previous = self._last if asked.continued else None
        question, notes = _expanded(asked, namespace)
        if previous:
            notes.append(f"Goes on from: {previous.run.query}")
        live = open_live(self._shell, quiet=asked.quiet)
        try:
            result = self._research(question, asked, previous, live)
        except BaseException as raised:
            live.stop()
            if isinstance(raised, Interrupted):
                self._bind(raised.result.with_notes(*notes), asked)
            raise
        result = result.with_notes(*notes, *self._advice(result, asked))
        self._bind(result, asked)
        if asked.quiet:
            self._once.was_hidden(result, whole_cell=whole_cell)
        else:
            live.end(result.card())
            self._once.was_shown(result)
        if not result.success and self._raises():
            result.raise_for_error()
        return result

    def _research(self, question: str, asked: Asked, previous: ToolResult | None, live: Live) -> ToolResult:
        try:
            query, mode = read_trigger(question, cast("str | None", asked.settings.get("mode")))
            client = self._local_client(live) if asked.local else self.client
            options = {**asked.settings, "mode": mode}
            return client.research(query, **options, previous=previous, on_progress=live.report)  # pyright: ignore[reportArgumentType] - the table of options has these names and types
        except VaneError as error:
            details = RunDetails(query=question, failure=(error.what, error.cause, error.hint))
            return ToolResult.of_run(details, 0, error=error)

    def _bind(self, result: ToolResult, asked: Asked) -> None:
        self._shell.user_ns[LAST] = result
        if asked.out:
            self._shell.user_ns[asked.out] = result
        if result.success:
            self._last = result

    def _advice(self, result: ToolResult, asked: Asked) -> Iterator[str]:
        """What may help the reader of this result."""
        if result.error and result.error.code == ErrorCode.VANE_SERVICE_UNAVAILABLE and not asked.local:
            yield f"Without Vane, local documents can be asked: %{MAGIC} --local-docs …"
        if result.run.fitting > 1 and not self._model_told:
            self._model_told = True
            config_file = Path(self._shell.profile_dir.location) / "ipython_config.py"
            yield (
                f"{result.run.chat_model} was taken of {result.run.fitting} chat models. To fix one, put"
                f' c.VaneMagics.chat_model = "{result.run.chat_model}" into {config_file}'
            )

    def _raises(self) -> bool:
        try:
            return self._setting("on_error") == "raise"
        except VaneError:  # the failed result says so
            return False

    def _setting(self, name: str) -> object:
        """A setting that the faces read, whatever the others are."""
        layers = (Layer(layer.label, {name: layer.values.get(name)}) for layer in (self._config, environment()))
        return getattr(Settings.resolve(*layers), name)

    def _local_client(self, live: Live) -> VaneClient:
        """The client of the local-documents engine, which is started anew when its folders change."""
        folders = self._setting("local_docs")
        if self._local is None or folders != self._folders:
            self.close()
            self._folders = folders
            layer = Layer("--local-docs", self._start_service(live).settings)
            self._local = VaneClient.of_layers(layer, self._config, defaults=DEFAULTS)
        return self._local

    def _start_service(self, live: Live) -> Service:
        from vane_magic.localdocs import Service  # noqa: PLC0415 - few ask for it

        folders = [Path(folder) for folder in cast("Sequence[str]", self._folders or ())]

        def tell(done: int, total: int) -> None:
            live.report(f"reading local documents, {done:,} of {total:,}")

        try:
            return self._stack.enter_context(Service(folders, on_progress=tell))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"The local documents cannot be served: {error}") from error


def _expanded(asked: Asked, namespace: Mapping[str, object]) -> tuple[str, list[str]]:
    """The question to be sent, and a note of what was filled in."""
    if not asked.expand:
        return asked.question, []
    question, filled = expand(asked.question, namespace)
    if not filled:
        return question, ["-e has filled in nothing: no {name} in the question exists here."]
    return question, [f"Filled in {', '.join(filled)}; sent: {question}"]
