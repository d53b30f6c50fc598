"""What one kernel keeps between questions, and the way of one question.

Heavy, so it is imported by the first question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from vane_magic.core.client import VaneClient
from vane_magic.core.contract import RunDetails, ToolResult
from vane_magic.core.errors import ConfigurationError, Interrupted, VaneError
from vane_magic.core.modes import ErrorCode
from vane_magic.core.settings import Layer, Settings, environment
from vane_magic.notebook.live import Live, open_live
from vane_magic.notebook.options import MAGIC, Asked, expand
from vane_magic.notebook.shown import ShowOnce
from vane_magic.notebook.traits import DEFAULTS
from vane_magic.question import read_trigger


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
        self._local: dict[object, VaneClient] = {}  # the one of the local-documents engine, by its folders
        self._last: ToolResult | None = None
        self._model_told = False
        self._stack = ExitStack()

    def close(self) -> None:
        """Stop what was started."""
        self._local.clear()
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
        question, notes = asked.question, list[str]()
        if asked.expand:
            question, filled = expand(question, namespace)
            told = f"Filled in {', '.join(filled)}; sent: {question}"
            notes.append(told if filled else "-e has filled in nothing: no {name} in the question exists here.")
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
        on_error = self._config.values.get("on_error") or environment().values.get("on_error")
        if on_error == "raise":  # a bad value has made the result a failed one
            result.raise_for_error()
        return result

    def _research(self, question: str, asked: Asked, previous: ToolResult | None, live: Live) -> ToolResult:
        try:
            query, mode = read_trigger(question, cast("str | None", asked.settings.get("mode")))
            options = {**asked.settings, "mode": mode}
            client = self._local_client(options, live) if asked.local else self.client
            return client.research(query, **options, previous=previous, on_progress=live.report)  # pyright: ignore[reportArgumentType] - the table of options has these names and types
        except VaneError as error:
            return ToolResult.of_run(RunDetails(query=question), 0, error=error)

    def _bind(self, result: ToolResult, asked: Asked) -> None:
        self._shell.user_ns["_vane"] = result
        if asked.out:
            self._shell.user_ns[asked.out] = result
        if result.success:
            self._last = result

    def _advice(self, result: ToolResult, asked: Asked) -> Iterator[str]:
        """What may help the reader of this result."""
        if result.error and result.error.code == ErrorCode.VANE_SERVICE_UNAVAILABLE and not asked.local:
            from vane_magic.diagnosis import WITHOUT_VANE  # noqa: PLC0415 - only this failure needs it

            yield WITHOUT_VANE.format(f"%{MAGIC}")
        if result.run.fitting > 1 and not self._model_told:
            self._model_told = True
            config_file = Path(self._shell.profile_dir.location) / "ipython_config.py"
            yield (
                f"{result.run.chat_model} was taken of {result.run.fitting} chat models. To fix one, put"
                f' c.VaneMagics.chat_model = "{result.run.chat_model}" into {config_file}'
            )

    def _local_client(self, options: Mapping[str, object], live: Live) -> VaneClient:
        """The client of the local-documents engine, which is started anew when its folders change."""
        folders = Settings.resolve(Layer("-{name}", options), self._config, environment()).local_docs
        if folders not in self._local:
            from vane_magic.localdocs import Service  # noqa: PLC0415 - few ask for it

            def tell(done: int, total: int) -> None:
                live.report(f"reading local documents, {done:,} of {total:,}")

            self.close()
            paths = [Path(folder) for folder in folders or ()]
            try:
                service = self._stack.enter_context(Service(paths, on_progress=tell))
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"The local documents cannot be served: {error}") from error
            layer = Layer("--local-docs", service.settings)
            self._local[folders] = VaneClient.of_layers(layer, self._config, defaults=DEFAULTS)
        return self._local[folders]
