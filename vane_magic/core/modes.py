"""The three modes with their time limits, and the error codes with their fallback flags.

Both tables are the specification's: "Timeout Tiers & Resource Limits" and "Error Handling".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Mode(StrEnum):
    """How much work Vane may do for one question."""

    SPEED = "speed"
    BALANCED = "balanced"
    QUALITY = "quality"

    @property
    def limit_s(self) -> float:
        """The tier's wall-clock limit in seconds, counted from the moment the GPU lock is held."""
        return _LIMIT_S[self]

    @property
    def workload(self) -> str:
        """What the mode is for, in a few words."""
        return _WORKLOAD[self]


_LIMIT_S: Final = {Mode.SPEED: 10.0, Mode.BALANCED: 30.0, Mode.QUALITY: 60.0}
_WORKLOAD: Final = {
    Mode.SPEED: "a quick fact or keyword check",
    Mode.BALANCED: "several sources, summed up",
    Mode.QUALITY: "many steps, a long answer",
}


class ErrorCode(StrEnum):
    """The stable codes of ``ToolResult.error.code``.

    The first six are the specification's; the others cover what it leaves to the Skill Operator Guide.
    """

    INVALID_INPUT = "INVALID_INPUT"
    SECURITY_BOUNDARY_VIOLATION = "SECURITY_BOUNDARY_VIOLATION"
    VRAM_CONCURRENCY_SATURATED = "VRAM_CONCURRENCY_SATURATED"
    EXECUTION_TIMEOUT = "EXECUTION_TIMEOUT"
    VANE_SERVICE_UNAVAILABLE = "VANE_SERVICE_UNAVAILABLE"
    UPSTREAM_SEARCH_ERROR = "UPSTREAM_SEARCH_ERROR"
    CONFIGURATION_ERROR = "CONFIGURATION_ERROR"
    CANCELLED = "CANCELLED"
    INTERNAL_ERROR = "INTERNAL_ERROR"

    @property
    def fallback_recommended(self) -> bool:
        """Whether the caller does well to try another way: false where the same input would fail again."""
        refused = {ErrorCode.INVALID_INPUT, ErrorCode.SECURITY_BOUNDARY_VIOLATION, ErrorCode.CONFIGURATION_ERROR}
        return self not in refused | {ErrorCode.CANCELLED, ErrorCode.INTERNAL_ERROR}
