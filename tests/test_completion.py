"""What Tab offers in a `%vane` statement, by IPython's own completer."""

from __future__ import annotations

import importlib.util
import types
from typing import TYPE_CHECKING

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from vane_magic.notebook import completion
from vane_magic.notebook.options import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = ["Ollama/qwen3:8b", "Ollama/llama3.1:latest", "My Server/big model", "bad\nname"]
LONG = {name for option in OPTIONS for name in option.names if name.startswith("--")}


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    config = Config()
    config.HistoryManager.enabled = False
    config.Completer.use_jedi = False  # seconds of reading; one test has it on
    shell = InteractiveShell(config=config, user_module=types.ModuleType("notebook"))
    shell.register_magic_function(lambda line, cell="": None, "line_cell", "vane")
    shell.user_ns.update(namely=1, named=2, _name=3, other=4)
    completion.install(shell, lambda: MODELS)
    yield shell
    completion.uninstall(shell)


def offered(shell: InteractiveShell, before: str, after: str = "") -> dict[str, str]:
    """Each offer, and what the text before the cursor becomes with it."""
    with provisionalcompleter():
        found = list(shell.Completer.completions(before + after, len(before)))
    return {each.text: before[: each.start] + each.text for each in found}


@pytest.mark.parametrize(
    "start",
    [
        "%vane ",
        "%%vane ",
        "x = %vane ",
        "d['a'] = %vane ",
        "if x: y = %vane ",
        'd["it\'s"] = %vane ',
        "    %vane ",
        "a = 1\n%vane ",
    ],
)
def test_options_are_offered_alone_wherever_the_statement_may_stand(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """No name of Python's and no file stands among them."""
    monkeypatch.setattr(shell.Completer, "use_jedi", True)
    assert set(offered(shell, start)) == LONG
    assert set(offered(shell, f"{start}--mo")) == {"--mode", "--model"}
    assert set(offered(shell, f"{start}-m speed -")) == {n for o in OPTIONS[1:] for n in o.names}


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        ("--mode ", {"--mode speed", "--mode balanced", "--mode quality"}),
        ("-m q", {"-m quality"}),
        ("--mode=", {"--mode=speed", "--mode=balanced", "--mode=quality"}),
        ("--mode=ba", {"--mode=balanced"}),
        ("-q -n 5 -m b", {"-q -n 5 -m balanced"}),
        ("-s ", {"-s web", "-s academic", "-s discussions"}),
        ("-s web,", {"-s web,academic", "-s web,discussions"}),
        ("--scope=web,a", {"--scope=web,academic"}),
        ("--model ", {"--model Ollama/qwen3:8b", "--model Ollama/llama3.1:latest", '--model "My Server/big model"'}),
        ("--model ollama/Q", {"--model Ollama/qwen3:8b"}),
        ("--model=Ollama/l", {"--model=Ollama/llama3.1:latest"}),
    ],
)
def test_the_values_of_an_option_are_offered(shell: InteractiveShell, typed: str, texts: set[str]) -> None:
    """Choices and models, from the first letter on; a model with a blank is quoted."""
    for start in ("%vane ", "x = %vane "):
        assert set(offered(shell, start + typed).values()) == {start + text for text in texts}


@pytest.mark.parametrize("typed", ["-n ", "-i ", "-o ", "--quiet="])
def test_a_free_value_offers_no_options(shell: InteractiveShell, typed: str) -> None:
    """What stands there is the user's to say."""
    assert not LONG & set(offered(shell, f"%vane {typed}"))


@pytest.mark.parametrize(
    "cell", ["%vane what is --", "%vane -q what -", "%vane -- --", "x = 5 %vane --", "%vane -m speed what --mode "]
)
def test_a_question_offers_no_options(shell: InteractiveShell, cell: str) -> None:
    """Options come first, and the question is text."""
    assert not (LONG | {"quality"}) & set(offered(shell, cell))


@pytest.mark.parametrize(
    "cell",
    [
        "# x = %vane --",
        "print('x = %vane --",
        "print('=%vane --",
        "x == %vane --",
        "%%vane_ --",
        "%vanes --",
        "y\n%%vane --",
        "%vane_doctor --",
    ],
)
def test_other_places_are_left_alone(shell: InteractiveShell, cell: str) -> None:
    """Comments, strings, other magics, a cell magic that is not in the first line."""
    assert not LONG & set(offered(shell, cell))


@pytest.mark.parametrize(
    "cell", ["%vane -e what is {na", "%vane -e {na", "x = %vane -m speed -e what is {na", "%%vane -e\nwhat\nis {na"]
)
def test_a_brace_in_a_question_to_be_expanded_offers_the_users_names(shell: InteractiveShell, cell: str) -> None:
    """In a cell's body too; private names and IPython's own are not offered."""
    texts = offered(shell, cell)
    assert {"named", "namely"} <= set(texts)
    assert texts["named"] == cell.removesuffix("na") + "named"


def test_without_expanding_the_matcher_offers_no_names(shell: InteractiveShell) -> None:
    """A brace is text then. Python's matchers may still offer what they like."""
    matcher = shell.Completer.custom_matchers[-1]
    for text, names in (("%vane what is {na", []), ("%vane -e what is {na", ["named", "namely"])):
        context = types.SimpleNamespace(full_text=text, cursor_line=0, text_until_cursor=text)
        assert sorted(each.text for each in matcher(context)["completions"]) == names


@pytest.mark.parametrize("cell", ["%vane -z ", '%vane -i "be ', "%vane", "%vane --mode nonsense"])
def test_a_line_that_would_be_refused_breaks_nothing(
    shell: InteractiveShell, cell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception in a matcher would be printed into the user's prompt."""
    offered(shell, cell)
    assert "".join(capsys.readouterr()) == ""


def test_installing_again_leaves_one_copy(shell: InteractiveShell) -> None:
    """Ten loads, and a load of a fresh import of the module, add nothing; other matchers stay."""
    other = InteractiveShell(config=shell.config, user_module=types.ModuleType("notebook"))
    matchers = other.Completer.custom_matchers
    before = list(matchers)
    spec = importlib.util.find_spec(completion.__name__)
    assert spec
    assert spec.loader
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    for _ in range(10):
        completion.install(other, lambda: MODELS)
    again.install(other, lambda: ["only"])
    assert len(matchers) == len(before) + 1
    assert set(offered(other, "%vane --model ")) == {"only"}
    completion.uninstall(other)
    completion.uninstall(other)
    assert matchers == before
