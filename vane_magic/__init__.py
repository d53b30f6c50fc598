"""Ask a local Vane from IPython, Jupyter, a script or a shell, on the loopback interface only.

In IPython: ``%load_ext vane_magic``, then ``%vane what is a tidal turbine?``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from vane_magic.core.boundary import Endpoint, check_endpoint
    from vane_magic.core.client import Progress, VaneClient, aresearch, research
    from vane_magic.core.contract import RunDetails, Source, ToolResult, VaneSkillInput, content_hash
    from vane_magic.core.errors import (
        Cancelled,
        ConfigurationError,
        ExecutionTimeout,
        InternalError,
        Interrupted,
        InvalidInput,
        SecurityBoundaryViolation,
        UpstreamSearchError,
        VaneError,
        VaneServiceUnavailable,
        VramConcurrencySaturated,
    )
    from vane_magic.core.gpu_lock import GpuLock
    from vane_magic.core.modes import ErrorCode, Mode
    from vane_magic.core.settings import Settings
    from vane_magic.diagnosis import diagnose
    from vane_magic.notebook.form import Form
    from vane_magic.schema import tool_schema

_NAMES: Final = {
    "core.boundary": "Endpoint check_endpoint",
    "core.client": "Progress VaneClient aresearch research",
    "core.contract": "RunDetails Source ToolResult VaneSkillInput content_hash",
    "core.errors": "Cancelled ConfigurationError ExecutionTimeout InternalError Interrupted InvalidInput"
    " SecurityBoundaryViolation UpstreamSearchError VaneError VaneServiceUnavailable VramConcurrencySaturated",
    "core.gpu_lock": "GpuLock",
    "core.modes": "ErrorCode Mode",
    "core.settings": "Settings",
    "diagnosis": "diagnose",
    "notebook.form": "Form",
    "schema": "tool_schema",
}  # where the public names live, so that loading the extension imports nothing heavy
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Cancelled",
    "ConfigurationError",
    "Endpoint",
    "ErrorCode",
    "ExecutionTimeout",
    "Form",
    "GpuLock",
    "InternalError",
    "Interrupted",
    "InvalidInput",
    "Mode",
    "Progress",
    "RunDetails",
    "SecurityBoundaryViolation",
    "Settings",
    "Source",
    "ToolResult",
    "UpstreamSearchError",
    "VaneClient",
    "VaneError",
    "VaneServiceUnavailable",
    "VaneSkillInput",
    "VramConcurrencySaturated",
    "aresearch",
    "check_endpoint",
    "content_hash",
    "diagnose",
    "load_ipython_extension",
    "research",
    "tool_schema",
    "unload_ipython_extension",
]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics; called by ``%load_ext vane_magic``."""
    from vane_magic.notebook import magics  # noqa: PLC0415 - IPython's part is loaded for IPython only

    magics.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take back everything that loading registered; called by ``%unload_ext vane_magic``."""
    from vane_magic.notebook import magics  # noqa: PLC0415 - likewise

    magics.unload(shell)


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"vane_magic.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
