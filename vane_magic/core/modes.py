"""The three modes with their time limits, and the error codes with their fallback flags.

Both tables are the specification's: "Timeout Tiers & Resource Limits" and "Error Handling".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Mode(StrEnum):
    """How much work Vane may do for one question.

    Attributes
    ----------
    limit_s : float
        The tier's wall-clock limit in seconds, counted from the moment the GPU lock is held.
    workload : str
        What the mode is for, in a few words.
    """

    limit_s: float
    workload: str

    def __new__(cls, value: str, limit_s: float, workload: str) -> Self:
        """Make a member from a row below; its value is the first of the three."""
        mode = str.__new__(cls, value)
        mode._value_, mode.limit_s, mode.workload = value, limit_s, workload
        return mode

    SPEED = "speed", 10.0, "a quick fact or keyword check"
    BALANCED = "balanced", 30.0, "several sources, summed up"
    QUALITY = "quality", 60.0, "many steps, a long answer"

    @property
    def limit_ms(self) -> int:
        """The tier's wall-clock limit in milliseconds."""
        return round(self.limit_s * 1000)


class ErrorCode(StrEnum):
    """The stable codes of ``ToolResult.error.code``.

    The first six are the specification's; the others cover what it leaves to the Skill Operator Guide.

    Attributes
    ----------
    fallback_recommended : bool
        Whether the caller does well to try another way: false where the same input would fail again.
    """

    fallback_recommended: bool

    def __new__(cls, value: str, fallback_recommended: bool) -> Self:  # noqa: FBT001 - a row of the table below
        """Make a member from a row below; its value is the first of the two."""
        code = str.__new__(cls, value)
        code._value_, code.fallback_recommended = value, fallback_recommended
        return code

    INVALID_INPUT = "INVALID_INPUT", False
    SECURITY_BOUNDARY_VIOLATION = "SECURITY_BOUNDARY_VIOLATION", False
    VRAM_CONCURRENCY_SATURATED = "VRAM_CONCURRENCY_SATURATED", True
    EXECUTION_TIMEOUT = "EXECUTION_TIMEOUT", True
    VANE_SERVICE_UNAVAILABLE = "VANE_SERVICE_UNAVAILABLE", True
    UPSTREAM_SEARCH_ERROR = "UPSTREAM_SEARCH_ERROR", True
    CONFIGURATION_ERROR = "CONFIGURATION_ERROR", False
    CANCELLED = "CANCELLED", False
    INTERNAL_ERROR = "INTERNAL_ERROR", False
