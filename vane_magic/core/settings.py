"""The one table of settings, and how the value in force and its origin are found.

Every face (client, magics, command, form) takes its names, defaults and checks from `SETTINGS`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, cast

from vane_magic.core.errors import ConfigurationError, InvalidInput
from vane_magic.core.modes import Mode

DEFAULT_URL: Final = "http://127.0.0.1:3000"
SCOPES: Final = ("web", "academic", "discussions")
MAX_TEXT: Final = 32_000  # characters of `instructions`; far above any sensible use


class Setting(NamedTuple):
    """One row of the table.

    Attributes
    ----------
    name
        The argument, option and trait name.
    default
        The value in force when no layer gives one.
    parse
        Checks a value and brings it into its type; raises ValueError or TypeError.
    expected
        What `parse` takes, for the message: "must be …".
    help
        One line for people.
    of_call
        Whether a bad value given with the call is INVALID_INPUT, as the specification has it for its input.
    choices
        The words that a value is made of, where it is a choice.
    """

    name: str
    default: object
    parse: Callable[[object], object]
    expected: str
    help: str
    of_call: bool = False
    choices: tuple[str, ...] = ()

    @property
    def env(self) -> str:
        """The name in the environment."""
        return f"VANE_{self.name.upper()}"

    def check(self, value: object, *, origin: str = "", call: bool = False) -> object:
        """The value in its type.

        Raises
        ------
        InvalidInput
            For a bad value of the specification's input, when `call` is true.
        ConfigurationError
            For any other bad value.
        """
        try:
            return self.parse(value)
        except (ValueError, TypeError, OverflowError):
            kind = InvalidInput if call and self.of_call else ConfigurationError
            place = f" (from {origin})" if origin else ""
            what = f"{self.name} must be {self.expected}, not {shown(value)}{place}."
            raise kind(what, hint=_near(value, self.choices)) from None


class Layer(NamedTuple):
    """Values from one origin; None means "not given".

    `label` names the origin for people; `{name}` and `{env}` in it are filled in for each setting.
    """

    label: str
    values: Mapping[str, object]
    call: bool = False

    def origin(self, setting: Setting) -> str:
        """The origin of this setting, for people."""
        return self.label.format(name=setting.name, env=setting.env)


class OnError(StrEnum):
    """What a failed `%vane` does."""

    SHOW = "show"
    RAISE = "raise"


def shown(value: object) -> str:
    """A value for a message: its repr, made short."""
    text = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}…"  # noqa: PLR2004 - a line's worth


def _near(value: object, known: Iterable[str]) -> str:
    near = get_close_matches(value, known, n=1) if isinstance(value, str) else []
    return f"Did you mean {near[0]}?" if near else ""


def _url(value: object) -> str:
    """Bring the usual ways of writing the address into one; what it names is judged by `check_endpoint`."""
    if not isinstance(value, str):
        return shown(value)  # not an address, so check_endpoint refuses it with the right code
    text = value.strip().removesuffix("/").removesuffix("/api/search")
    if bare := re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\]|::1(?=\Z))(:[0-9]+)?", text, re.IGNORECASE | re.ASCII):
        return f"http://{'[::1]' if bare[1] == '::1' else bare[1]}{bare[2] or ':3000'}"
    return text


def _whole_number(value: object) -> int:
    """A whole number of 1 or more; text and 8.0 count, true does not."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    number = int(value)
    if number < 1 or (not isinstance(value, str) and number != value):
        raise ValueError
    return number


def _words(value: object, separator: str = ",", known: Iterable[str] | None = None) -> tuple[str, ...]:
    """The words of a separated text, or of any iterable of texts; each once, in order, at least one."""
    parts = value.split(separator) if isinstance(value, str) else cast("Iterable[object]", value)
    words = dict.fromkeys(part.strip() for part in parts if isinstance(part, str) and part.strip())
    if not words or (known is not None and not set(words) <= set(known)):
        raise ValueError
    return tuple(words)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not value.strip() or len(value) > MAX_TEXT or not is_clean(value):
        raise ValueError
    return value.strip()


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError
    if not 0 <= (seconds := float(value)) < math.inf:  # which nan is not either
        raise ValueError
    return seconds


def _limit(value: object) -> float:
    if (seconds := _seconds(value)) == 0:
        raise ValueError
    return seconds


def _place(value: object) -> str:
    path = os.fspath(cast("str | os.PathLike[str]", value))
    if not path or "\0" in path:
        raise ValueError
    return path


def _folders(value: object) -> tuple[str, ...]:
    return _words(value if not hasattr(value, "__fspath__") else _place(value), os.pathsep)


def _flag(value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    for flag, words in ((True, _ON), (False, _OFF)):
        if word is flag or word in words:
            return flag
    raise ValueError


def is_clean(text: str) -> bool:
    """Whether a text can be sent: no NUL and no lone surrogate."""
    return "\0" not in text and not re.search(r"[\ud800-\udfff]", text)


_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")
_CHAT: Final = "a model's name, as `Provider/model` or `model`"
_ROWS: Final = (
    Setting("url", DEFAULT_URL, _url, "an address", "Vane's address, on the loopback interface"),
    Setting(
        "mode", Mode.BALANCED, Mode, "speed, balanced or quality", "how much work Vane may do, in 10, 30 or 60 s",
        of_call=True, choices=tuple(Mode),
    ),
    Setting("max_sources", 8, _whole_number, "a whole number of 1 or more", "how many sources to return", of_call=True),
    Setting(
        "scope", ("web",), partial(_words, known=SCOPES), "one or more of web, academic, discussions",
        "where to search", of_call=True, choices=SCOPES,
    ),
    Setting("chat_model", None, _text, _CHAT, "the model that answers; none = chosen by a fixed rule"),
    Setting("embedding_model", None, _text, _CHAT, "the embedding model to name; none = chosen"),
    Setting("instructions", None, _text, f"a text of at most {MAX_TEXT} characters", "how to write the answer"),
    Setting("timeout", None, _limit, "a number of seconds above 0", "seconds; none = the mode's own limit"),
    Setting("wait", 0.0, _seconds, "a number of seconds of 0 or more", "seconds to wait for the GPU lock"),
    Setting("lock_path", None, _place, "a path", "the lock file, or a directory for it; none = in the home"),
    Setting("allow_remote", False, _flag, "true or false", "allow a model or search engine off this machine"),  # noqa: FBT003 - a row
    Setting("local_docs", None, _folders, "folders", "folders of the local-documents engine"),
    Setting("on_error", OnError.SHOW, OnError, "show or raise", "what a failed %vane does", choices=tuple(OnError)),
)  # fmt: skip
SETTINGS: Final[Mapping[str, Setting]] = {row.name: row for row in _ROWS}
FACES_ONLY: Final = frozenset({"local_docs", "on_error"})  # settings that VaneClient does not take


class Settings(NamedTuple):
    """The values in force, each in its type, and where each came from."""

    url: str
    mode: Mode
    max_sources: int
    scope: tuple[str, ...]
    chat_model: str | None
    embedding_model: str | None
    instructions: str | None
    timeout: float | None
    wait: float
    lock_path: str | None
    allow_remote: bool
    local_docs: tuple[str, ...] | None
    on_error: OnError
    origins: Mapping[str, str]

    @classmethod
    def resolve(cls, *layers: Layer) -> Settings:
        """Take each setting from the first layer that gives it.

        Parameters
        ----------
        *layers
            The strongest first: argument or option, ``%config``, environment.

        Raises
        ------
        InvalidInput
            A bad mode, max_sources or scope in a layer with ``call=True``.
        ConfigurationError
            Any other bad value, an unknown name, or a timeout above the mode's limit.
        """
        for layer in layers:
            if unknown := sorted(set(layer.values) - set(SETTINGS)):
                hint = _near(unknown[0], SETTINGS)
                raise ConfigurationError(f"There is no setting {shown(unknown[0])}.", hint=hint)
        found = {name: _in_force(setting, layers) for name, setting in SETTINGS.items()}
        values = {name: value for name, (value, _) in found.items()}
        origins = {name: origin for name, (_, origin) in found.items()}
        settings = cls(**values, origins=origins)  # pyright: ignore[reportArgumentType] - each row parses to its field's type
        if settings.limit_s > settings.mode.limit_s:
            raise ConfigurationError(
                f"timeout is {settings.limit_s:g} s, above the {settings.mode.limit_s:g} s of"
                f" {settings.mode} mode (from {origins['timeout']}).",
                hint="Set a shorter one, or a slower mode if there is one: the limit is part of the contract.",
            )
        return settings

    @property
    def limit_s(self) -> float:
        """The wall-clock limit in seconds that holds for one question."""
        return self.mode.limit_s if self.timeout is None else self.timeout


def environment(environ: Mapping[str, str] = os.environ) -> Layer:
    """The layer of the ``VANE_…`` variables; an empty variable counts as not set."""
    return Layer("{env} in the environment", {s.name: environ.get(s.env) or None for s in SETTINGS.values()})


def _in_force(setting: Setting, layers: Iterable[Layer]) -> tuple[object, str]:
    for layer in layers:
        if (value := layer.values.get(setting.name)) is not None:
            origin = layer.origin(setting)
            return setting.check(value, origin=origin, call=layer.call), origin
    return setting.default, "default"
