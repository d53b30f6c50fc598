"""Ask a local Vane from IPython, Jupyter, a script or a shell, on the loopback interface only.

In IPython: ``%load_ext vane_magic``, then ``%vane what is a tidal turbine?``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # "as" makes a name public for type checkers
    from vane_magic.core.boundary import Endpoint as Endpoint
    from vane_magic.core.boundary import check_endpoint as check_endpoint
    from vane_magic.core.client import Progress as Progress
    from vane_magic.core.client import VaneClient as VaneClient
    from vane_magic.core.client import aresearch as aresearch
    from vane_magic.core.client import research as research
    from vane_magic.core.contract import RunDetails as RunDetails
    from vane_magic.core.contract import Source as Source
    from vane_magic.core.contract import ToolResult as ToolResult
    from vane_magic.core.contract import VaneSkillInput as VaneSkillInput
    from vane_magic.core.contract import content_hash as content_hash
    from vane_magic.core.errors import Cancelled as Cancelled
    from vane_magic.core.errors import ConfigurationError as ConfigurationError
    from vane_magic.core.errors import ExecutionTimeout as ExecutionTimeout
    from vane_magic.core.errors import InternalError as InternalError
    from vane_magic.core.errors import Interrupted as Interrupted
    from vane_magic.core.errors import InvalidInput as InvalidInput
    from vane_magic.core.errors import SecurityBoundaryViolation as SecurityBoundaryViolation
    from vane_magic.core.errors import UpstreamSearchError as UpstreamSearchError
    from vane_magic.core.errors import VaneError as VaneError
    from vane_magic.core.errors import VaneServiceUnavailable as VaneServiceUnavailable
    from vane_magic.core.errors import VramConcurrencySaturated as VramConcurrencySaturated
    from vane_magic.core.gpu_lock import GpuLock as GpuLock
    from vane_magic.core.modes import ErrorCode as ErrorCode
    from vane_magic.core.modes import Mode as Mode
    from vane_magic.core.settings import Settings as Settings
    from vane_magic.diagnosis import diagnose as diagnose
    from vane_magic.notebook.form import Form as Form
    from vane_magic.notebook.magics import load_ipython_extension as load_ipython_extension
    from vane_magic.notebook.magics import unload_ipython_extension as unload_ipython_extension
    from vane_magic.schema import tool_schema as tool_schema

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
    "notebook.magics": "load_ipython_extension unload_ipython_extension",
    "schema": "tool_schema",
}  # where the public names live, so that loading the extension imports nothing heavy
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll] - checkers read the imports


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"vane_magic.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
