"""The command ``vane-research``: the answer on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from shutil import get_terminal_size
from typing import Final, TextIO, cast

from vane_magic.core.client import VaneClient
from vane_magic.core.contract import RunDetails, ToolResult, VaneSkillInput
from vane_magic.core.errors import ConfigurationError, Interrupted, InvalidInput, VaneError
from vane_magic.core.modes import ErrorCode
from vane_magic.core.settings import SETTINGS, Layer, Settings, environment
from vane_magic.core.vane_api import DOCTOR
from vane_magic.question import is_folder, read_trigger

INTERRUPTED: Final = 130  # as shells have it for SIGINT
_INPUT_CAP: Final = 1_000_000  # bytes of --input; a question has 100,000 characters at most
# The settings that `ask` takes for one question, with the other names of their options, which are the magic's.
_SETTINGS: Final[dict[str, list[str]]] = {
    "mode": ["-m"], "max_sources": ["-n"], "scope": ["-s"], "chat_model": ["--model"], "instructions": ["-i"],
    "timeout": [], "wait": ["-w"],
}  # fmt: skip
_EPILOG: Final = "Every setting can also be given in the environment, as VANE_URL, VANE_MODE and so on."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns
    -------
    int
        0 success, 1 a failed result or a broken link, 2 wrong usage, 130 interrupted.
    """
    options, unknown = _parser().parse_known_args(argv)
    if unknown:
        is_late = options.run is _ask and unknown[0].startswith("-")
        hint = " (-- goes before a question that begins with a hyphen)" if is_late else ""
        options.usage_error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
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
    parser = argparse.ArgumentParser("vane-research", description="Ask a Vane on this machine.", allow_abbrev=False)
    with suppress(metadata.PackageNotFoundError):  # in a checkout that is not installed
        parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version('vane-magic')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    ask = commands.add_parser("ask", help="ask one question", epilog=_EPILOG, allow_abbrev=False)
    ask.add_argument("question", nargs="*", help="the question, or the skill's trigger sentence (-- before a hyphen)")
    ask.add_argument("--input", metavar="FILE", help="a VaneSkillInput as JSON, not a question; - = standard input")
    for name, short in {**_SETTINGS, "url": []}.items():
        about = f"{SETTINGS[name].help}: {SETTINGS[name].expected}"
        ask.add_argument(*short, f"--{name.replace('_', '-')}", dest=name, help=about, metavar="VALUE")
    ask.add_argument("--allow-remote", action="store_true", help=SETTINGS["allow_remote"].help)
    ask.add_argument("--local-docs", action="store_true", help="ask the local-documents engine, not Vane")
    ask.add_argument("--json", action="store_true", help="print one ToolResult as JSON")
    ask.set_defaults(run=_ask)
    doctor = commands.add_parser("doctor", help="say which link is broken", epilog=_EPILOG, allow_abbrev=False)
    doctor.add_argument("--url", help=SETTINGS["url"].help, metavar="VALUE")
    doctor.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    doctor.add_argument("--deep", action="store_true", help="ask one real question in speed mode, too")
    doctor.set_defaults(run=_doctor)
    serve = commands.add_parser("serve", help="serve local documents by Vane's API", allow_abbrev=False)
    serve.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="none = this project's own documents")
    serve.add_argument("--port", type=int, default=0, help="0 = a usual one for these folders, or a free one")
    serve.set_defaults(run=_serve)
    commands.add_parser("skill", help="print SKILL.md: how an agent uses this command").set_defaults(run=_skill)
    for command in commands.choices.values():
        command.set_defaults(usage_error=command.error)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from vane_magic.diagnosis import diagnose  # noqa: PLC0415 - only this command needs it

    found = diagnose(options.url, deep=options.deep)
    _put(found.to_json() if options.json else str(found), exact=options.json)
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
    shipped = Path(__file__).parent / "localdocs/corpus/SKILL.md"  # in a wheel; a checkout has it at its top
    page = shipped if shipped.is_file() else Path(__file__).parents[1] / "SKILL.md"
    _put(page.read_text(encoding="utf-8").removesuffix("\n"), exact=True)
    return 0


def _ask(options: argparse.Namespace) -> int:
    _check_usage(options)
    code = 0
    try:
        result = _result(options)
    except Interrupted as interrupted:
        result, code = interrupted.result, INTERRUPTED
    except VaneError as error:
        result = ToolResult.of_run(RunDetails(query=" ".join(options.question)), 0, error=error)
    if options.json:
        _put(result.to_json(), exact=True)
    else:
        _print(result, local=options.local_docs)
    return code or int(not result.success)


def _check_usage(options: argparse.Namespace) -> None:
    """The options that exclude each other; argparse knows the rest."""
    if (options.input is None) is (not options.question):
        options.usage_error("give a question, or --input FILE")
    if options.input is not None and (options.mode or options.max_sources):
        options.usage_error("--mode and --max-sources are members of the input")
    if options.url and options.local_docs:
        options.usage_error("--url and --local-docs exclude each other")
    first, *others = options.question or [""]
    if re.fullmatch(r"[\N{EN DASH}\N{EM DASH}]-?[a-zA-Z]\S*", first):
        options.usage_error(f"{first} begins with a dash, and options begin with hyphens (-, --)")
    if options.local_docs and others and is_folder(first):
        told = "its folders are set by VANE_LOCAL_DOCS (if it belongs to the question, put that into quotes)"
        options.usage_error(f"--local-docs takes no folder, and {first} is one; {told}")


def _result(options: argparse.Namespace) -> ToolResult:
    given = {name: getattr(options, name) for name in _SETTINGS}
    query = " ".join(options.question)
    if options.input is not None:
        asked = VaneSkillInput.from_json(_read(options.input))
        query = asked.query
        given |= asked.model_dump(exclude={"query"}, exclude_unset=True)
    query, given["mode"] = read_trigger(query, given["mode"])
    if given["max_sources"] is not None:
        given["max_sources"] = SETTINGS["max_sources"].check(given["max_sources"], call=True)
    with ExitStack() as stack:
        server = _local_docs(stack) if options.local_docs else {"url": options.url}
        layer = Layer("the command line", {**server, "allow_remote": options.allow_remote or None})
        client = VaneClient.of_layers(layer, defaults=Layer("default", {}))
        stack.callback(_show_line)
        return client.research(query, **given, on_progress=_show_line)


def _local_docs(stack: ExitStack) -> dict[str, str]:
    """Start the local-documents engine; the settings to ask it with."""
    from vane_magic.localdocs import Service  # noqa: PLC0415 - only this option needs it

    folders = [Path(folder) for folder in Settings.resolve(environment()).local_docs or ()]
    try:
        return stack.enter_context(Service(folders)).settings
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"The local documents cannot be served: {error}") from error


def _read(place: str) -> bytes:
    try:
        with nullcontext(sys.stdin.buffer) if place == "-" else Path(place).open("rb") as file:
            text = file.read(_INPUT_CAP + 1)
    except OSError as error:
        hint = "It takes a file's name, or - for standard input." if place.lstrip().startswith("{") else ""
        raise InvalidInput(f"The input cannot be read: {error}", hint=hint) from error
    if len(text) > _INPUT_CAP:
        raise InvalidInput(f"The input has more than {_INPUT_CAP:,} bytes.")
    return text


def _print(result: ToolResult, *, local: bool) -> None:
    """Answer and sources on standard output; what else there is to say, in a shell's words, on standard error."""
    width = min(get_terminal_size().columns, 100)
    told = ["The links lead there while vane-research serve runs."] if local and result.sources else []
    card = result.with_notes(*told).card()
    hint = card.hint.replace(DOCTOR, "Run vane-research doctor to see which link is broken.")
    if card.code == ErrorCode.VANE_SERVICE_UNAVAILABLE and not local:
        from vane_magic.diagnosis import WITHOUT_VANE  # noqa: PLC0415 - only this failure needs it

        hint = f"{hint} {WITHOUT_VANE.format('vane-research ask')}"
    answer = card._replace(banner="", error="", cause="", hint="", code="", notes=(), footer=())
    if answer.text or answer.sources:
        _put(answer.terminal(width))
    print(card._replace(hint=hint, text="", sources=()).terminal(width), file=sys.stderr)


def _put(text: str, *, exact: bool = False) -> None:
    """Print, and keep an odd locale from turning a good answer into an error; what must be exact is UTF-8."""
    out: TextIO = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(encoding="utf-8" if exact else None, errors="replace")
    print(text)


def _show_line(text: object = "") -> None:
    """One line of progress, in place of the one before; nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
