"""The command ``vane-research``: the answer on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Final, TextIO, cast

from vane_magic.core.client import Progress, VaneClient
from vane_magic.core.contract import RunDetails, ToolResult, VaneSkillInput, read_trigger
from vane_magic.core.errors import ConfigurationError, Interrupted, InvalidInput, VaneError
from vane_magic.core.settings import SETTINGS, Settings, environment

INTERRUPTED: Final = 130  # as shells have it for SIGINT
_INPUT_CAP: Final = 1_000_000  # bytes of --input; a question has 100,000 characters at most
_SETTINGS: Final = ("mode", "max_sources", "scope", "chat_model", "instructions", "timeout", "wait")
_EPILOG: Final = "Every setting can also be given in the environment, as VANE_URL, VANE_MODE and so on."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0 success, 1 a failed result or a broken link, 2 wrong usage, 130 interrupted.
    """
    options = _parser().parse_args(argv)
    try:
        code = cast("int", options.run(options))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would complain once more
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vane-research", description="Ask a local Vane, on the loopback interface only.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ask = commands.add_parser("ask", help="ask one question", epilog=_EPILOG, allow_abbrev=False)
    ask.add_argument("question", nargs="*", help="the question, or the skill's trigger sentence")
    ask.add_argument(
        "--input", metavar="FILE", help="a VaneSkillInput as JSON in place of the question; - = standard input"
    )
    for name in (*_SETTINGS, "url"):
        ask.add_argument(f"--{name.replace('_', '-')}", help=SETTINGS[name].help, metavar="VALUE")
    ask.add_argument("--allow-remote", action="store_true", help=SETTINGS["allow_remote"].help)
    ask.add_argument("--local-docs", action="store_true", help="ask the local-documents engine, not Vane")
    ask.add_argument("--json", action="store_true", help="print one ToolResult as JSON")
    ask.set_defaults(run=_ask, usage_error=ask.error)
    doctor = commands.add_parser("doctor", help="say which link is broken", epilog=_EPILOG, allow_abbrev=False)
    doctor.add_argument("--url", help=SETTINGS["url"].help, metavar="VALUE")
    doctor.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    doctor.add_argument("--deep", action="store_true", help="ask one real question in speed mode, too")
    doctor.set_defaults(run=_doctor)
    serve = commands.add_parser("serve", help="serve local documents by Vane's API", allow_abbrev=False)
    serve.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="none = this project's own documents")
    serve.add_argument("--port", type=int, default=0, help="0 = a free one")
    serve.set_defaults(run=_serve)
    skill = commands.add_parser("skill", help="print SKILL.md: how an agent uses this command", allow_abbrev=False)
    skill.set_defaults(run=_skill)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from vane_magic.diagnosis import diagnose  # noqa: PLC0415 - only this command needs it

    found = diagnose(options.url, deep=options.deep)
    if options.json:
        _reconfigure(sys.stdout, encoding="utf-8")
    else:
        _reconfigure(sys.stdout, errors="replace")
    print(found.to_json() if options.json else found)
    return int(not found.ok)


def _serve(options: argparse.Namespace) -> int:
    from vane_magic.localdocs import serve_forever  # noqa: PLC0415 - only this command needs it

    try:
        serve_forever(options.folders, options.port, sys.stdout)
    except (OSError, ValueError) as error:
        print(f"vane-research: {error}", file=sys.stderr)
        return 1
    return 0


def _skill(_: argparse.Namespace) -> int:
    package = Path(__file__).parent
    shipped = package / "localdocs/corpus/SKILL.md"  # in a wheel; a checkout has it at its top
    _reconfigure(sys.stdout, encoding="utf-8")
    print((shipped if shipped.is_file() else package.parent / "SKILL.md").read_text(encoding="utf-8"), end="")
    return 0


def _ask(options: argparse.Namespace) -> int:
    _check_usage(options)
    code = None
    try:
        result = _result(options)
    except Interrupted as interrupted:
        result, code = interrupted.result, INTERRUPTED
    except VaneError as error:
        query = " ".join(options.question)
        details = RunDetails(query=query, failure=(error.what, error.cause, error.hint))
        result = ToolResult.of_run(details, 0, error=error)
    _print(result, as_json=options.json)
    return code if code is not None else int(not result.success)


def _check_usage(options: argparse.Namespace) -> None:
    """The options that exclude each other; argparse knows the rest."""
    if (options.input is None) is (not options.question):
        options.usage_error("give a question, or --input FILE")
    if options.input is not None and (options.mode or options.max_sources):
        options.usage_error("--mode and --max-sources are members of the input")
    if options.url and options.local_docs:
        options.usage_error("--url and --local-docs exclude each other")


def _result(options: argparse.Namespace) -> ToolResult:
    given = {name: getattr(options, name) for name in _SETTINGS}
    if options.input is None:
        query = " ".join(options.question)
    else:
        asked = VaneSkillInput.from_json(_read(options.input))
        query, members = asked.query, asked.model_dump(exclude_unset=True)
        given |= {name: members.get(name) for name in ("mode", "max_sources")}
    query, given["mode"] = read_trigger(query, given["mode"])
    if given["max_sources"] is not None:
        given["max_sources"] = SETTINGS["max_sources"].check(given["max_sources"], call=True)
    allow_remote = True if options.allow_remote else None
    with ExitStack() as stack:
        if options.local_docs:
            url, lock_path = _local_docs(stack)
            client = VaneClient(url, lock_path=lock_path, allow_remote=allow_remote)
        else:
            client = VaneClient(options.url, allow_remote=allow_remote)
        line = _Line(sys.stderr)
        stack.callback(line.clear)
        return client.research(query, **given, on_progress=line.show)


def _local_docs(stack: ExitStack) -> tuple[str, str]:
    """Start the local-documents engine; its address and its own lock."""
    from vane_magic.localdocs import Service  # noqa: PLC0415 - only this option needs it

    folders = [Path(folder) for folder in Settings.resolve(environment()).local_docs or ()]
    try:
        service = stack.enter_context(Service(folders))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The local documents cannot be served: {error}") from error
    return service.url, str(service.lock_path)


def _read(place: str) -> bytes:
    try:
        if place == "-":
            text = sys.stdin.buffer.read(_INPUT_CAP + 1)
        else:
            with Path(place).open("rb") as file:
                text = file.read(_INPUT_CAP + 1)
    except OSError as error:
        raise InvalidInput(f"The input cannot be read: {error}") from error
    if len(text) > _INPUT_CAP:
        raise InvalidInput(f"The input has more than {_INPUT_CAP:,} bytes.")
    return text


def _print(result: ToolResult, *, as_json: bool) -> None:
    if as_json:
        _reconfigure(sys.stdout, encoding="utf-8")
        print(result.to_json())
        return
    _reconfigure(sys.stdout, errors="replace")
    width = min(get_terminal_size().columns, 100)
    card = result.card()
    answer = replace(card, banner="", error="", cause="", hint="", code="", notes=(), footer=())
    if answer.text or answer.sources:
        print(answer.terminal(width))
    print(replace(card, text="", sources=()).terminal(width), file=sys.stderr)


def _reconfigure(stream: TextIO, *, encoding: str | None = None, errors: str | None = None) -> None:
    """Keep an odd locale from turning a good answer into an encoding error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding=encoding, errors=errors)


class _Line:
    """One line of progress on a terminal; nothing in a log."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream if stream.isatty() else None

    def show(self, progress: Progress) -> None:
        if self.stream:
            spent, limit = progress.elapsed_ms // 1000, progress.limit_ms // 1000
            found = "" if progress.sources is None else f", {progress.sources} sources"
            held = f" ({progress.holder})" if progress.holder else ""
            self.stream.write(f"\r\x1b[K{progress.phase}{held} {spent} of {limit} s{found}")
            self.stream.flush()

    def clear(self) -> None:
        if self.stream:
            self.stream.write("\r\x1b[K")


if __name__ == "__main__":
    sys.exit(main())
