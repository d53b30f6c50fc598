"""The settings as traits of ``%config VaneMagics``, made from the one table."""

from __future__ import annotations

import sys
from typing import Final, cast

from traitlets import TraitError, TraitType

from vane_magic.core.errors import VaneError
from vane_magic.core.modes import Mode
from vane_magic.core.settings import Layer, Setting, Settings

DEFAULTS: Final = Layer("default", {"wait": 70.0})  # a live holder of the GPU lock has let go after 65 s


class Value(TraitType[object, object]):
    """One setting as a trait; None is "not set".

    Parameters
    ----------
    setting
        Its row in the table, which checks what is assigned.
    """

    def __init__(self, setting: Setting) -> None:
        default = in_words(DEFAULTS.values.get(setting.name, setting.default))
        told = f"{setting.help}; {setting.expected}. In the environment: {setting.env}. Default: {default}."
        super().__init__(None, allow_none=True, help=told, config=True)
        self._setting = setting

    def validate(self, obj: object, value: object) -> object:
        """Check what is assigned; a bad value in a configuration file is told at the start, and left out."""
        # a timeout is limited by the mode; where %config sets none, a call may choose the slowest
        values = {"mode": getattr(obj, "mode", None) or Mode.QUALITY, self._setting.name: value}
        try:
            return getattr(Settings.resolve(Layer("VaneMagics.{name}", values)), self._setting.name)
        except VaneError as error:
            if getattr(obj, "started", True):
                raise TraitError(error.message) from None
            sys.stderr.write(f"vane_magic: c.VaneMagics.{self._setting.name} is left out: {error.message}\n")
        return None


def in_words(value: object) -> str:
    """A setting's value as people write it."""
    if isinstance(value, tuple):
        return ", ".join(cast("tuple[str, ...]", value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
