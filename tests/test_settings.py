"""Where a setting's value comes from, and what is refused."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vane_magic
from vane_magic.core.client import VaneClient
from vane_magic.core.errors import ConfigurationError, InvalidInput, VaneError
from vane_magic.core.modes import Mode
from vane_magic.core.settings import FACES_ONLY, SETTINGS, Layer, Settings, environment


def call(**values: object) -> Layer:
    return Layer("the call", values, call=True)


def config(**values: object) -> Layer:
    return Layer("%config VaneMagics.{name}", values)


def test_without_any_layer_the_defaults_hold() -> None:
    """The documented defaults."""
    settings = Settings.resolve()
    assert (settings.url, settings.mode, settings.max_sources) == ("http://127.0.0.1:3000", Mode.BALANCED, 8)
    assert (settings.scope, settings.wait, settings.allow_remote) == (("web",), 0.0, False)
    assert settings.limit_s == 30.0
    assert set(settings.origins.values()) == {"default"}


def test_the_first_layer_that_gives_a_value_wins_and_is_named() -> None:
    """Argument or option, then %config, then environment, then default."""
    env = environment({"VANE_MODE": "speed", "VANE_MAX_SOURCES": "3", "VANE_WAIT": "2.5"})
    settings = Settings.resolve(call(mode="quality"), config(mode="speed", max_sources=5), env)
    assert (settings.mode, settings.max_sources, settings.wait) == (Mode.QUALITY, 5, 2.5)
    assert settings.origins["mode"] == "the call"
    assert settings.origins["max_sources"] == "%config VaneMagics.max_sources"
    assert settings.origins["wait"] == "VANE_WAIT in the environment"


def test_an_empty_variable_counts_as_not_set() -> None:
    """A shell's `VANE_MODE= command`."""
    assert Settings.resolve(environment({"VANE_MODE": ""})).mode is Mode.BALANCED


def test_a_bad_value_that_another_layer_overrides_does_no_harm() -> None:
    """Only values in force are judged."""
    assert Settings.resolve(call(mode="speed"), environment({"VANE_MODE": "fast"})).mode is Mode.SPEED


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("mode", "fast"), ("mode", 7), ("max_sources", 0), ("max_sources", True), ("max_sources", 1.5),
        ("max_sources", "eight"), ("scope", "images"), ("scope", ""), ("scope", []), ("scope", 3),
    ],
)  # fmt: skip
def test_a_bad_value_of_the_input_is_the_callers_or_the_configurations_fault(name: str, bad: object) -> None:
    """Given with the call: INVALID_INPUT; from anywhere else: CONFIGURATION_ERROR."""
    with pytest.raises(InvalidInput, match=f"^{name} must be "):
        Settings.resolve(call(**{name: bad}))
    with pytest.raises(ConfigurationError, match=f"from %config VaneMagics.{name}"):
        Settings.resolve(config(**{name: bad}))


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("wait", -1), ("wait", float("nan")), ("wait", float("inf")), ("wait", "soon"), ("wait", True),
        ("timeout", 0), ("timeout", -3), ("timeout", "1e999"), ("chat_model", ""), ("chat_model", 4),
        ("chat_model", "a\0b"), ("instructions", "\ud800"), ("instructions", "x" * 40_000), ("lock_path", 5),
        ("lock_path", ""), ("allow_remote", "perhaps"), ("allow_remote", 1), ("on_error", "ignore"), ("on_error", 0),
    ],
)  # fmt: skip
def test_any_other_bad_value_is_a_configuration_error(name: str, bad: object) -> None:
    """Also when it is given with the call."""
    with pytest.raises(ConfigurationError, match=f"^{name} must be "):
        Settings.resolve(call(**{name: bad}))


def test_a_near_miss_is_named() -> None:
    """For values and for names."""
    with pytest.raises(InvalidInput, match=r"Did you mean speed\?"):
        Settings.resolve(call(mode="sped"))
    with pytest.raises(ConfigurationError, match=r"There is no setting 'moed'.*Did you mean mode\?"):
        Settings.resolve(call(moed="speed"))


def test_a_timeout_may_shorten_the_modes_limit_but_not_stretch_it() -> None:
    """At 65 s others may evict the worker, so the tiers are upper bounds."""
    assert Settings.resolve(call(mode="speed", timeout=10)).limit_s == 10
    with pytest.raises(ConfigurationError, match="above the 10 s of speed mode"):
        Settings.resolve(call(mode="speed", timeout=10.1))


@pytest.mark.parametrize(
    ("given_as", "url"),
    [
        (" http://127.0.0.1:3000 \n", "http://127.0.0.1:3000"),
        ("http://127.0.0.1:3000/", "http://127.0.0.1:3000"),
        ("http://127.0.0.1:3000/api/search", "http://127.0.0.1:3000"),
        ("http://127.0.0.1:3000/api/search/", "http://127.0.0.1:3000"),
        ("http://127.0.0.1:3000/vane/api/search", "http://127.0.0.1:3000/vane"),
        ("http://127.0.0.1:3000//", "http://127.0.0.1:3000/"),
        ("http://127.0.0.1:3000/vane///", "http://127.0.0.1:3000/vane//"),
        ("127.0.0.1", "http://127.0.0.1:3000"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("localhost", "http://localhost:3000"),
        ("localhost:1/", "http://localhost:1"),
        ("[::1]", "http://[::1]:3000"),
        ("[::1]:99", "http://[::1]:99"),
        ("::1", "http://[::1]:3000"),
        ("192.168.1.20:3000", "192.168.1.20:3000"),
        ("vane.lan", "vane.lan"),
    ],
)
def test_the_usual_ways_of_writing_the_address_are_brought_into_one(given_as: str, url: str) -> None:
    """What is not ours to repair stays as it is, for the boundary to judge."""
    assert Settings.resolve(environment({"VANE_URL": given_as})).url == url


@pytest.mark.parametrize("scope", ["web, academic,web", ["web", "academic"], ("web", "academic")])
def test_a_scope_is_several_words_each_once(scope: object) -> None:
    """By commas or as a list."""
    assert Settings.resolve(call(scope=scope)).scope == ("web", "academic")


def test_folders_are_joined_as_paths_are(tmp_path: object) -> None:
    """As PATH is: by os.pathsep; a path object is one folder."""
    assert Settings.resolve(environment({"VANE_LOCAL_DOCS": "/a:/b c"})).local_docs == ("/a", "/b c")
    assert Settings.resolve(config(local_docs=tmp_path)).local_docs == (str(tmp_path),)


@pytest.mark.parametrize(("word", "flag"), [("1", True), ("Yes", True), ("on", True), ("0", False), ("FALSE", False)])
def test_a_flag_in_the_environment_is_a_word(word: str, *, flag: bool) -> None:
    """The words that shells and configuration files use."""
    assert Settings.resolve(environment({"VANE_ALLOW_REMOTE": word})).allow_remote is flag


def test_the_client_takes_each_setting_but_those_of_the_faces() -> None:
    """All faces are made from the one table."""
    taken = list(inspect.signature(VaneClient).parameters)
    assert taken == [name for name in SETTINGS if name not in FACES_ONLY]


def test_research_offers_settings_by_their_own_names() -> None:
    """`aresearch`, and both without a client, take the same."""
    offered = list(inspect.signature(VaneClient.research).parameters)[2:]
    assert set(offered) - {"previous", "on_progress", "cancel"} <= set(SETTINGS)
    for asked in (VaneClient().aresearch, vane_magic.research, vane_magic.aresearch):
        assert list(inspect.signature(asked).parameters) == ["query", *offered]
    assert inspect.iscoroutinefunction(vane_magic.aresearch)


@given(
    st.sampled_from(sorted(SETTINGS)),
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.binary()),
)
def test_any_value_is_taken_or_refused_with_a_message(name: str, value: object) -> None:
    """No other exception escapes, and a message is one that can be printed."""
    try:
        Settings.resolve(call(**{name: value}))
    except VaneError as error:
        message = error.message
    else:
        return
    assert 0 < len(message) < 400
    message.encode()
