"""The package from outside: its public names, and what importing and loading it costs."""

from __future__ import annotations

import subprocess
import sys

import vane_magic

HEAVY = ("httpx", "httpcore", "pydantic", "filelock", "ipywidgets", "markdown_it", "pandas")


def test_the_public_names_are_sorted_and_each_can_be_had() -> None:
    """One flat namespace; the list is the truth."""
    public = vane_magic.__all__
    assert public == sorted(public)
    assert set(public) == {*vane_magic._HOMES, "load_ipython_extension", "unload_ipython_extension"}
    assert all(getattr(vane_magic, name).__module__.startswith("vane_magic") for name in public)
    assert dir(vane_magic) == public


def test_each_public_name_says_what_it_is() -> None:
    """Help for each, also in `dir` and `?`."""
    assert [name for name in vane_magic.__all__ if not getattr(vane_magic, name).__doc__] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for every module."""
    assert not hasattr(vane_magic, "Perplexica")


def _loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_the_package_imports_nothing_heavy() -> None:
    """Nor IPython."""
    assert _loaded_by("import vane_magic").isdisjoint({*HEAVY, "IPython", "asyncio"})
    assert _loaded_by("import vane_magic.core.settings, vane_magic.core.errors").isdisjoint({*HEAVY, "IPython"})


def test_loading_the_extension_imports_nothing_heavy() -> None:
    """A notebook that loads it and asks nothing pays nothing."""
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.extension_manager.load_extension('vane_magic')"
    )
    assert _loaded_by(code).isdisjoint(HEAVY)


def test_the_command_does_not_import_ipython_for_a_question() -> None:
    """A shell's user waits for nothing that is not used."""
    assert _loaded_by("import vane_magic.cli").isdisjoint({"IPython", "ipywidgets", "pandas"})
