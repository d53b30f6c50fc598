"""Options first, then the question as typed."""

from __future__ import annotations

import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import no_var_expand
from traitlets.config import Config

from vane_magic.core.modes import Mode
from vane_magic.core.settings import SETTINGS, Layer, Settings
from vane_magic.notebook import transformer
from vane_magic.notebook.options import BY_NAME, OPTIONS, Asked, expand, option_help, parse, scan, usage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    """A real shell whose `%vane` returns what was asked."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config, user_module=types.ModuleType("notebook"))
    shell.register_magic_function(no_var_expand(parse), "line_cell", "vane")
    transformer.install(shell)
    yield shell
    transformer.uninstall(shell)


def refusal(line: str, body: str | None = None) -> str:
    """The message of a line that is refused: one or two lines from IPython's own class."""
    with pytest.raises(UsageError) as refused:
        parse(line, body)
    assert type(refused.value) is UsageError, "a subclass of it prints a whole traceback"
    message = str(refused.value)
    assert len(message.splitlines()) <= 2
    return message


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("-m quality q", {"mode": Mode.QUALITY}),
        ("--mode quality q", {"mode": Mode.QUALITY}),
        ("--mode=quality q", {"mode": Mode.QUALITY}),
        ("-mquality q", {"mode": Mode.QUALITY}),
        ("-n 5 q", {"max_sources": 5}),
        ("-n5 q", {"max_sources": 5}),
        ("--max-sources=5 q", {"max_sources": 5}),
        ("-s web,academic q", {"scope": ("web", "academic")}),
        ("-sdiscussions q", {"scope": ("discussions",)}),
        ('--scope "web, academic" q', {"scope": ("web", "academic")}),
        ("--model Ollama/qwen3:8b q", {"chat_model": "Ollama/qwen3:8b"}),
        ("-i brief q", {"instructions": "brief"}),
        ('-i "be brief" q', {"instructions": "be brief"}),
        ("-i 'say \"no\"' q", {"instructions": 'say "no"'}),
        ("--instructions='be brief' q", {"instructions": "be brief"}),
        ("-i don't q", {"instructions": "don't"}),
        ("-w 1.5 q", {"wait": 1.5}),
        ("-w0 q", {"wait": 0.0}),
        ("-m speed -m quality q", {"mode": Mode.QUALITY}),
        ("  -m   speed   q", {"mode": Mode.SPEED}),
        ("-m speed -n 3 --scope=web q", {"mode": Mode.SPEED, "max_sources": 3, "scope": ("web",)}),
        ("q", {}),
    ],
)
def test_options_before_the_question_give_settings(line: str, settings: dict[str, object]) -> None:
    """Short or long, with a blank, an equals sign or quotes; the last of two counts."""
    asked = parse(line)
    assert asked.question == "q"
    assert asked.settings == settings
    assert Settings.resolve(Layer("-{name}", asked.settings, call=True))


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("-c q", "continued", True),
        ("--continue q", "continued", True),
        ("-q q", "quiet", True),
        ("--quiet q", "quiet", True),
        ("q;", "quiet", True),
        ("-e q", "expand", True),
        ("--expand q", "expand", True),
        ("--local-docs q", "local", True),
        ("-h q", "help", True),
        ("--help q", "help", True),
        ("-o answer q", "out", "answer"),
        ("--out=größe q", "out", "größe"),
    ],
)
def test_the_other_options_each_set_their_own_field(line: str, field: str, value: object) -> None:
    """And nothing else."""
    given = {name: getattr(parse(line), name) for name in Asked.__annotations__}
    plain = {name: getattr(parse("q"), name) for name in Asked.__annotations__}
    assert given == {**plain, field: value}
    assert plain[field] in (False, None)


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("what's 6'2\" in cm", "what's 6'2\" in cm"),
        ("'tis the season", "'tis the season"),
        ('"quoted"', '"quoted"'),
        ("what does ls -l do", "what does ls -l do"),
        ("two  blanks\tand a tab", "two  blanks\tand a tab"),
        ("-40 C is cold", "-40 C is cold"),
        ("-.5 of it", "-.5 of it"),
        ("- what", "- what"),
        ("--- what", "--- what"),
        ("-- --mode what", "--mode what"),
        ("-- -q", "-q"),
        ("-m speed -- -- what", "-- what"),
        ("-m speed what is -q for", "what is -q for"),
        ("what is --mode for?", "what is --mode for?"),
        ("what does foo --mode do", "what does foo --mode do"),
        ("what does sed -n", "what does sed -n"),
        ("what does git commit --amend", "what does git commit --amend"),
        ("what does git --help", "what does git --help"),
        ("what does sort -h", "what does sort -h"),
        ("\N{EM DASH}amend what", "\N{EM DASH}amend what"),
        ("\N{EN DASH}5 C is cold", "\N{EN DASH}5 C is cold"),
        ("\N{EM DASH} what", "\N{EM DASH} what"),
        ("-- \N{EN DASH}m what", "\N{EN DASH}m what"),
        ("what is \N{EN DASH}m for", "what is \N{EN DASH}m for"),
        ("what is a;b", "what is a;b"),
        ("what is ;;", "what is ;"),
        (" what ", "what"),
        ("", ""),
        ("   ", ""),
        (";", ""),
        ("--", ""),
        ("-m quality", ""),
    ],
)
def test_the_question_is_the_rest_as_typed(line: str, question: str) -> None:
    """No quote, blank, sign or option in it is touched."""
    assert parse(line).question == question


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--mode fast q", ["--mode must be speed, balanced or quality, not 'fast'"]),
        ("-m qualty q", ["not 'qualty'; did you mean quality?"]),
        ("-m llama3 q", ["not 'llama3'; did you mean --model llama3?"]),
        ("-n many q", ["--max-sources must be a whole number of 1 or more, not 'many'"]),
        ("-n 0 q", ["--max-sources", "'0'"]),
        ("-s wbe q", ["--scope", "'wbe'", "did you mean web?"]),
        ("-s web, academic q", ["--scope", "'web,'", "joined by commas without blanks"]),
        ("-w soon q", ["--wait must be a number of seconds", "'soon'"]),
        ("-w nan q", ["--wait must be a number of seconds"]),
        ("-o 2x q", ["--out must be a name that Python can bind, not '2x'"]),
        ("-o class q", ["--out", "'class'"]),
        ('-i "" q', ["--instructions must be a text"]),
        ('-i "be brief q', ['the value of --instructions has no closing "']),
        ("-i 'tis q", ["the value of --instructions has no closing '"]),
        ("-m", ["--mode needs a value: speed, balanced or quality"]),
        ("-i -q what", ["--instructions needs a value"]),
        ("-o -- what", ["--out needs a value"]),
        ("--quiet=1 q", ["--quiet takes no value"]),
        ("--mdoe quality q", ["there is no option '--mdoe'; did you mean --mode?", "%vane -- --mdoe"]),
        ("-mode quality q", ["there is no option '-mode'; did you mean --mode?"]),
        ("--max 5 q", ["there is no option '--max'"]),
        ("--amend what is it", ["there is no option '--amend'", "Put -- before a question", "%vane -- --amend"]),
        ("-x q", ["there is no option '-x'\n"]),
        (
            "\N{EN DASH}m quality q",
            ["there is no option '\N{EN DASH}m'; did you mean -m?", "%vane? explains the options"],
        ),
        ("\N{EM DASH}mode quality q", ["there is no option '\N{EM DASH}mode'; did you mean --mode?"]),
        ("-q \N{EN DASH}mode=quality q", ["there is no option '\N{EN DASH}mode'; did you mean --mode=quality?"]),
        ("\N{EN DASH}\N{EN DASH}quiet q", ["did you mean --quiet?"]),
        ("\N{EN DASH}n5 q", ["did you mean -n5?"]),
        ("--local-docs=papers q", ["--local-docs takes no value", "%config VaneMagics.local_docs", "VANE_LOCAL_DOCS"]),
        ("--timeout 5 q", ["there is no option '--timeout'; it is set by %config VaneMagics.timeout"]),
        ("--lock-path=/x q", ["it is set by %config VaneMagics.lock_path"]),
        ("-is it cold", ["there is no option '-is'"]),
        ("-out r q", ["there is no option '-out'; did you mean --out?"]),
        ("what is \\", ["ends in a \\", "%%vane", "write a blank after it"]),
    ],
)
def test_a_wrong_option_is_refused_with_the_way_out(line: str, parts: list[str]) -> None:
    """In one or two lines that name what is right."""
    message = refusal(line)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("what is it --mode quality", "--mode quality"),
        ("what is it --mode=quality", "--mode=quality"),
        ("what is it -m quality  ", "-m quality"),
        ("what is it -n5", "-n5"),
        ("what is it? -q", "-q"),
        ("what is it? -q;", "-q"),
        ("-m speed what is it --quiet", "--quiet"),
        ('what is it --instructions "be brief"', '--instructions "be brief"'),
        ("what is it --mode", "--mode"),
        ("what is it -o answer", "-o answer"),
    ],
)
def test_an_option_after_the_question_is_refused(line: str, option: str) -> None:
    """It was meant to count; with -- before the question it is text."""
    message = refusal(line)
    assert option in message
    assert f"options come first: %vane {option}" in message
    assert "%vane -- " in message
    question = line.removeprefix("-m speed ").strip().removesuffix(";")
    assert parse(f"-- {question}").question == question


@pytest.mark.parametrize("folder", ["./papers", "papers/", "~/papers", "{home}/papers", "'{home}/my papers'", "."])
def test_a_folder_after_local_docs_is_refused_with_its_right_place(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have been the question's first word; with -- before it, it is, and so it is in a cell's body."""
    for name in ("papers", "my papers"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    typed = folder.format(home=tmp_path)
    for line, body in (("--local-docs", None), ("--local-docs -m speed", None), ("--local-docs", "and what is that?")):
        message = refusal(f"{line} {typed} what is it?", body)
        assert typed.strip("'")[:60] in message
        assert 'set by %config VaneMagics.local_docs = "…" or VANE_LOCAL_DOCS' in message
    question = f"{typed} what is it?"
    assert parse(f"--local-docs -- {question}").question == question
    assert parse("--local-docs", question).question == question
    assert parse(f"-q {question}").question == question
    assert parse("--local-docs papers what for?").question == "papers what for?"  # a word like any other


@pytest.mark.parametrize(
    "word", ["x" * 5_000, "\0", "~nobody-of-that-name/x", '""', "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 300]
)
def test_a_first_word_that_can_be_no_path_is_the_questions(word: str) -> None:
    """The file system's complaints about it are nobody's business."""
    assert parse(f"--local-docs {word} what").question == f"{word} what"


def test_a_cells_body_is_the_question() -> None:
    """Nothing in it is an option, a final `;` or a continuation."""
    body = "  why?\n-q --mode quality \\\nx = {'a': 1};\n"
    asked = parse("-m speed -e", body)
    assert asked.question == body.strip()
    assert asked.settings == {"mode": Mode.SPEED}
    assert asked.expand
    assert not asked.quiet


def test_words_after_the_options_of_a_cell_are_its_first_line() -> None:
    """So `%%vane why does this print twice?` over some code asks what it says."""
    asked = parse("-m speed why does this print twice?;", "print(1)\n")
    assert asked.question == "why does this print twice?;\nprint(1)"
    assert not asked.quiet
    assert "options come first" in refusal("why? -q", "print(1)\n")
    assert "ends in a \\" in refusal("why \\", "print(1)\n")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_body_is_kept_whatever_it_holds(body: str) -> None:
    """But for the white space around it."""
    assert parse("-q", body).question == body.strip()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_what_follows_the_double_hyphen_is_kept_whatever_it_holds(text: str) -> None:
    """But for a final `;`, and a backslash is refused."""
    if text.endswith("\\"):
        assert "ends in a \\" in refusal(f"-- {text}")
    else:
        assert parse(f"-- {text}").question == text.rstrip().removesuffix(";").strip()


WORDS = st.sampled_from([*BY_NAME, "--", "-x", "-40", "speed", "5", "web,", "'", '"a b"', "=", ";", "q?", " ", "\t"])


def outcome(line: str) -> Asked | str:
    """What is asked, or the message of the refusal."""
    try:
        return parse(line)
    except UsageError as refused:
        return str(refused)


@given(st.lists(WORDS).map(" ".join))
def test_any_line_is_either_parsed_or_refused_in_two_lines(line: str) -> None:
    """And a parsed question is always the end of the line."""
    result = outcome(line)
    if isinstance(result, str):
        assert 0 < len(result.splitlines()) <= 2
    else:
        assert line.rstrip().removesuffix(";").rstrip().endswith(result.question)


@pytest.mark.timeout(20)
def test_a_long_hostile_line_takes_linear_time() -> None:
    """A megabyte of quotes, hyphens and braces is done in a second or so; a quadratic scan would take hours."""
    assert isinstance(outcome("what " + "-q " * 300_000 + "x"), Asked)
    assert isinstance(outcome("-- " + '"' * 1_000_000), Asked)
    assert len(str(outcome("-i " + "'a " * 300_000))) < 500
    assert len(str(outcome("--" + "mode" * 300_000))) < 500
    assert expand("{{a" * 300_000, {"a": 1})[1] == ()


def test_a_refusal_in_a_notebook_is_two_lines_without_a_traceback(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the user sees it."""
    for cell in ("%vane --mode fast what is a tidal turbine?", "%%vane --mode fast\nwhat is a tidal turbine?"):
        assert isinstance(shell.run_cell(cell).error_in_exec, UsageError)
        shown = "".join(capsys.readouterr())
        assert (
            shown == "UsageError: --mode must be speed, balanced or quality, not 'fast'; did you mean --model fast?\n"
        )


def test_options_reach_the_magic_through_a_cell(shell: InteractiveShell) -> None:
    """Quotes and all, in an assignment."""
    shell.run_cell("""asked = %vane -m quality -i "don't guess" what's 6'2" in cm?""").raise_error()
    asked: Any = shell.user_ns.pop("asked")
    assert asked.settings == {"mode": Mode.QUALITY, "instructions": "don't guess"}
    assert asked.question == "what's 6'2\" in cm?"


@pytest.mark.parametrize(
    ("question", "sent", "filled"),
    [
        ("what is {city}?", "what is Paris?", ("city",)),
        ("{city} or {n}, {city}", "Paris or 3, Paris", ("city", "n")),
        ("what is {other} or {city.x} or {n[0]} or {n!r} or { n }", None, ()),
        ("{'a': 1}, {v: k for k in d}, {}, {0}, \\frac{1}{2}", None, ()),
        ("$city and %(city)s", None, ()),
        ("what is {{city}}?", "what is {city}?", ()),
        ("what is {{other}}?", None, ()),
        ("{nested}", "{city}", ("nested",)),
        ("{größe}", "5", ("größe",)),
    ],
)
def test_expanding_fills_in_the_names_that_exist(question: str, sent: str | None, filled: tuple[str, ...]) -> None:
    """And leaves every other brace as it is."""
    namespace = {"city": "Paris", "n": 3, "nested": "{city}", "größe": 5}
    assert expand(question, namespace) == (question if sent is None else sent, filled)


@given(st.text())
def test_expanding_with_no_names_changes_nothing(question: str) -> None:
    """Whatever the text."""
    assert expand(question, {}) == (question, ())


def test_the_help_names_every_option() -> None:
    """Both forms are built from the one table; the short one is five lines."""
    assert len(usage().splitlines()) == 5
    assert len(option_help().splitlines()) == len(OPTIONS)
    for option in OPTIONS:
        assert option.signature in usage()
        assert option.signature in option_help()
    assert "speed, balanced, quality" in option_help()
    assert "%config VaneMagics.local_docs" in option_help()


def test_the_options_are_the_settings_own() -> None:
    """A row of the table of settings lends its name, its check and its choices."""
    given = {option.row.name for option in OPTIONS} & set(SETTINGS)
    assert given == {"mode", "max_sources", "scope", "chat_model", "instructions", "wait"}
    assert all(
        option.row.choices == SETTINGS[option.row.name].choices for option in OPTIONS if option.row.name in given
    )


def test_a_scan_tells_where_it_stopped() -> None:
    """What completion goes by."""
    assert scan("-q -m").awaiting is BY_NAME["--mode"]
    assert scan("-q -- x").ended
    assert scan("-m speed what -q").rest == " what -q"
    assert [(option.names[-1], value) for option, value in scan("-q -m x").given] == [("--quiet", ""), ("--mode", "x")]
