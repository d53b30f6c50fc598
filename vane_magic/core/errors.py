"""The whole tree of exceptions, one for each error code.

::

    VaneError (Exception)
    ├── InvalidInput                 (ValueError)
    ├── SecurityBoundaryViolation    (ValueError)
    ├── ConfigurationError           (ValueError)
    ├── VramConcurrencySaturated     (RuntimeError)     .holder
    ├── VaneServiceUnavailable       (ConnectionError)
    ├── UpstreamSearchError          (RuntimeError)     .status
    ├── ExecutionTimeout             (TimeoutError)
    ├── Cancelled                    (RuntimeError)
    └── InternalError                (RuntimeError)
    Interrupted (KeyboardInterrupt)                     .result
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from vane_magic.core.modes import ErrorCode

if TYPE_CHECKING:
    from vane_magic.core.contract import ToolResult
    from vane_magic.core.gpu_lock import Holder


class VaneError(Exception):
    """Anything that ends a question without a whole answer.

    Parameters
    ----------
    what
        What happened, as a sentence.
    cause
        The likeliest cause, as a sentence; empty when `what` says it all.
    hint
        The next step for the reader, as a sentence; empty when there is none.

    Attributes
    ----------
    result : ToolResult or None
        The failed result that the error came from, set by `ToolResult.raise_for_error`.
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR

    def __init__(self, what: str, cause: str = "", hint: str = "") -> None:
        super().__init__(what, cause, hint)
        self.what, self.cause, self.hint = what, cause, hint
        self.result: ToolResult | None = None

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by argument and state, since a builtin parent such as OSError has its own idea of both."""
        return type(self), (self.what, self.cause, self.hint), self.__dict__

    @property
    def message(self) -> str:
        """What happened, the likely cause and the next step in one line of text."""
        return " ".join(part for part in (self.what, self.cause, self.hint) if part)


class InvalidInput(VaneError, ValueError):
    """The question, mode, number of sources or scope given with the call is not valid."""

    code = ErrorCode.INVALID_INPUT


class SecurityBoundaryViolation(VaneError, ValueError):
    """The question would leave the loopback interface or this machine."""

    code = ErrorCode.SECURITY_BOUNDARY_VIOLATION


class ConfigurationError(VaneError, ValueError):
    """A setting, a model, the lock's place or Vane's set-up does not allow a search."""

    code = ErrorCode.CONFIGURATION_ERROR


class VramConcurrencySaturated(VaneError, RuntimeError):
    """Another worker holds the GPU lock.

    Attributes
    ----------
    holder : Holder or None
        Who holds it, where that is known.
    """

    code = ErrorCode.VRAM_CONCURRENCY_SATURATED

    def __init__(self, what: str, cause: str = "", hint: str = "", *, holder: Holder | None = None) -> None:
        super().__init__(what, cause, hint)
        self.holder = holder


class VaneServiceUnavailable(VaneError, ConnectionError):
    """Nothing answers at the address, or not in time."""

    code = ErrorCode.VANE_SERVICE_UNAVAILABLE


class UpstreamSearchError(VaneError, RuntimeError):
    """What answers is not Vane, or Vane's answer is an error, unfinished or empty.

    Attributes
    ----------
    status : int or None
        The HTTP status, where there was one.
    """

    code = ErrorCode.UPSTREAM_SEARCH_ERROR

    def __init__(self, what: str, cause: str = "", hint: str = "", *, status: int | None = None) -> None:
        super().__init__(what, cause, hint)
        self.status = status


class ExecutionTimeout(VaneError, TimeoutError):
    """The mode's time limit passed before the answer was whole."""

    code = ErrorCode.EXECUTION_TIMEOUT


class Cancelled(VaneError, RuntimeError):
    """The user stopped the question."""

    code = ErrorCode.CANCELLED


class InternalError(VaneError, RuntimeError):
    """A fault of this package; the original exception is chained."""

    code = ErrorCode.INTERNAL_ERROR


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or the kernel's stop button ended a question.

    Parameters
    ----------
    result
        A ToolResult with code CANCELLED and whatever had come until then.
    """

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        return "interrupted"


ERROR_TYPES: Final[dict[ErrorCode, type[VaneError]]] = {kind.code: kind for kind in VaneError.__subclasses__()}
