"""What goes in and what comes out: the specification's VaneSkillInput and ToolResult.

The JSON forms are exactly the specification's; optional members are absent, never null.
`ToolResult.run` holds what the specification has no place for, and is no part of the JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, Self, TypeAlias, cast
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic.functional_validators import BeforeValidator, field_validator, model_validator
from pydantic.types import StrictBool, StrictFloat, StrictInt, StrictStr

from vane_magic.core.errors import ERROR_TYPES, InvalidInput, VaneError
from vane_magic.core.modes import ErrorCode, Mode
from vane_magic.core.settings import SETTINGS, is_clean, shown
from vane_magic.display import Card, CardSource, find_marks

if TYPE_CHECKING:
    from pandas import DataFrame

MIN_QUERY: Final = 3  # code points after trimming (specification, "Input Schema")
MAX_QUERY: Final = 100_000  # far above any question; Vane itself has no limit
_RFC_3339: Final = r"(?i)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"


def check_query(value: object) -> str:
    """The question, trimmed.

    Raises
    ------
    InvalidInput
        When it is no text, under 3 code points after trimming, or holds NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"The question must be text, not {type(value).__name__}.")
    query = value.strip()
    if len(query) < MIN_QUERY:
        raise InvalidInput(f"The question {shown(query)} is too short.", hint=f"Give {MIN_QUERY} characters or more.")
    if len(query) > MAX_QUERY:
        raise InvalidInput(f"The question has {len(query):,} characters.", hint=f"It may have {MAX_QUERY:,} at most.")
    if not is_clean(query):
        what = "The question holds a NUL character or half of a surrogate pair."
        raise InvalidInput(what, hint="Such text cannot be sent; remove it.")
    return query


def _no_text(value: object) -> object:
    """What pydantic would read as an integer, and JSON Schema does not."""
    if isinstance(value, (str, bool)):
        raise ValueError  # noqa: TRY004 - pydantic reports a ValueError, not a TypeError
    return value


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class VaneSkillInput(_Model):
    """The specification's input: a question, a mode and a number of sources.

    Parameters
    ----------
    query
        The question, of at least 3 code points after trimming.
    mode
        ``speed``, ``balanced`` (default) or ``quality``.
    max_sources
        How many sources to return, 1 or more; default 8.

    Raises
    ------
    pydantic.ValidationError
        For a value that does not fit; `from_json` raises InvalidInput instead.
    """

    query: Annotated[str, BeforeValidator(check_query)]
    mode: Mode = Mode.BALANCED
    max_sources: Annotated[int, Field(ge=1), BeforeValidator(_no_text)] = 8

    @classmethod
    def parse(cls, members: Mapping[str, object]) -> Self:
        """Build it from members given by a caller.

        Raises
        ------
        InvalidInput
            For an unknown member or a value that does not fit, null included.
        """
        try:
            return cls.model_validate(members)
        except ValidationError as error:
            raise _invalid(error) from None

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Build it from a JSON object.

        Raises
        ------
        InvalidInput
            When the text is no JSON object, or as `parse` does.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _invalid(error) from None


def _invalid(error: ValidationError) -> InvalidInput:
    """The first complaint of pydantic, in the words of the settings' table."""
    first = error.errors(include_url=False)[0]
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, InvalidInput):
        return reason
    if not first["loc"]:
        return InvalidInput("The input is not a JSON object.", hint='Give one like {"query": "…", "mode": "speed"}.')
    name = str(first["loc"][0])
    if name in SETTINGS:
        return InvalidInput(f"{name} must be {SETTINGS[name].expected}, not {shown(first['input'])}.")
    what = f"There is no member {shown(name)}." if first["type"] == "extra_forbidden" else f"{name[:80]} must be given."
    return InvalidInput(what, hint="Known are query, mode and max_sources.")


_Text: TypeAlias = Annotated[StrictStr, Field(min_length=1)]
_Milliseconds: TypeAlias = Annotated[StrictInt | StrictFloat, Field(ge=0, allow_inf_nan=False)]


class Source(_Model):
    """One source of an answer; its number is what ``[n]`` in the answer means."""

    source_id: _Text
    title: StrictStr
    url: StrictStr
    snippet_preview: StrictStr


class ToolData(_Model):
    """The answer and its sources."""

    query: Annotated[StrictStr, Field(min_length=MIN_QUERY)]
    answer: StrictStr
    sources: tuple[Source, ...]
    mode: Mode
    timing_ms: _Milliseconds
    content_hash: _Text


class ToolError(_Model):
    """Why there is no whole answer."""

    code: Annotated[StrictStr, Field(pattern=r"^[A-Z][A-Z0-9_]*$")]
    message: _Text
    fallback_recommended: StrictBool


def _worker_id() -> str:
    return f"vane-magic@{socket.gethostname()}:{os.getpid()}"


class Telemetry(_Model):
    """When, how long and by whom."""

    duration_ms: _Milliseconds
    timestamp: Annotated[StrictStr, Field(pattern=_RFC_3339)] = Field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds")
    )
    worker_id: _Text = Field(default_factory=_worker_id)


class Turn(NamedTuple):
    """One question and its answer; a follow-up question sends it along."""

    query: str
    answer: str


class RunDetails(NamedTuple):
    """What is known of a run beyond the contract; pickle keeps it, JSON does not.

    Attributes
    ----------
    query, mode, url
        What was asked, how, and of which address; empty or None where the run ended before that was known.
    limit_ms : int
        The wall-clock limit in milliseconds.
    complete : bool
        Whether Vane said that the answer was whole.
    searched : bool or None
        Whether Vane searched; None when the run ended before that was known.
    cited : tuple of (int, Source)
        Every valid citation number with its source, also those that `max_sources` cut from the list.
    dangling : tuple of int
        Citation numbers for which Vane sent no source.
    source_count : int
        How many sources Vane sent.
    chat_model, embedding_model : str
        As ``Provider/model``.
    fitting : int
        How many chat models an automatic choice had; 1 when the model was named.
    locality : str
        ``local``, ``unverified`` or ``remote``: where the models and the search engine stand.
    thinking : str
        The model's ``<think>`` text.
    timings : tuple of (str, int)
        Milliseconds spent in each phase.
    notes : tuple of str
        What a reader should know; shown on the card.
    failure : tuple of str
        What happened, the likeliest cause and the next step, of a failed run.
    turns : tuple of Turn
        This conversation so far, this question included; what `previous=` sends.
    """

    query: str = ""
    mode: Mode | None = None
    url: str = ""
    limit_ms: int = 0
    complete: bool = False
    searched: bool | None = None
    cited: tuple[tuple[int, Source], ...] = ()
    dangling: tuple[int, ...] = ()
    source_count: int = 0
    chat_model: str = ""
    embedding_model: str = ""
    fitting: int = 1
    locality: str = ""
    thinking: str = ""
    timings: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    failure: tuple[str, str, str] = ("", "", "")
    turns: tuple[Turn, ...] = ()

    @property
    def citations(self) -> dict[int, Source]:
        """Every valid citation number with its source."""
        return dict(self.cited)

    @property
    def phases(self) -> dict[str, int]:
        """Milliseconds spent in each phase, in order."""
        return dict(self.timings)


class ToolResult(_Model):
    """The specification's output; every call ends in one.

    ``str(result)`` is the answer. Equality and hashing are over the contract's fields.

    Attributes
    ----------
    run : RunDetails
        What the contract has no place for; see there.
    """

    execution_id: _Text = Field(default_factory=lambda: str(uuid4()))
    success: StrictBool
    type: Literal["READ_ONLY"] = "READ_ONLY"
    data: ToolData | None = None
    error: ToolError | None = None
    telemetry: Telemetry
    _run: RunDetails | None = PrivateAttr(default=None)
    _raised: BaseException | None = PrivateAttr(default=None)  # what an INTERNAL_ERROR stands for

    @field_validator("data", "error", mode="before")
    @classmethod
    def _absent_not_null(cls, value: object) -> object:
        if value is None:
            raise ValueError("must be left out, not null")
        return value

    @model_validator(mode="after")
    def _data_or_error(self) -> Self:
        if self.success is (self.error is not None) or (self.success and self.data is None):
            raise ValueError("a success has data and no error; a failure has an error")
        return self

    @classmethod
    def of_run(
        cls, run: RunDetails, duration_ms: int, *, data: ToolData | None = None, error: VaneError | None = None
    ) -> Self:
        """Build the result of a run; `error` makes it a failed one."""
        parts: dict[str, object] = {"success": error is None, "telemetry": Telemetry(duration_ms=duration_ms)}
        if data is not None:
            parts["data"] = data
        if error is not None:
            run = run._replace(failure=(error.what, error.cause, error.hint))
            advice = error.code.fallback_recommended
            parts["error"] = ToolError(code=error.code, message=error.message, fallback_recommended=advice)
        result = cls.model_validate(parts)
        result._run = run  # noqa: SLF001 - its own class
        result._raised = error.__cause__ if error else None  # noqa: SLF001 - likewise
        return result

    @property
    def run(self) -> RunDetails:
        """What is known of the run beyond the contract; of a result from JSON, what its members tell."""
        self._run = self._run or self._run_by_contract()
        return self._run

    @property
    def answer(self) -> str:
        """The answer; empty when there is none."""
        return self.data.answer if self.data else ""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources; empty when there are none."""
        return self.data.sources if self.data else ()

    def raise_for_error(self) -> Self:
        """The result itself when it is a success.

        Raises
        ------
        VaneError
            The exception of the result's code, with this result as its ``result``.
        """
        if self.error is None:
            return self
        raised = ERROR_TYPES.get(cast("ErrorCode", self.error.code), VaneError)(*self.run.failure)
        raised.result = self
        raise raised from self._raised

    def _run_by_contract(self) -> RunDetails:
        query, mode = (self.data.query, self.data.mode) if self.data else ("", None)
        named = {number for mark in find_marks(self.answer) for number in mark.numbers}
        cited = tuple((n, s) for place, s in enumerate(self.sources, 1) if (n := _number(s, place)) in named)
        failure = (self.error.message, "", "") if self.error else ("", "", "")
        turns = (Turn(query, self.answer),) if self.success else ()
        return RunDetails(query=query, mode=mode, cited=cited, failure=failure, turns=turns)

    def with_notes(self, *notes: str) -> Self:
        """The same result, equal to this one, whose card bears these notes as well."""
        noted = self.model_copy()
        noted._run = self.run._replace(notes=(*self.run.notes, *notes))  # noqa: SLF001 - its own class
        return noted

    def verify(self) -> bool:
        """Whether the content hash is that of the content; false when there is no content."""
        return self.data is not None and self.data.content_hash == content_hash(
            query=self.data.query, mode=self.data.mode, answer=self.data.answer, sources=self.data.sources
        )

    def to_json(self, *, indent: int | None = None) -> str:
        """The contract's JSON; members without a value are absent."""
        return self.model_dump_json(exclude_none=True, indent=indent)

    def to_markdown(self) -> str:
        """The question, the answer as written by the model (untrusted) and the numbered sources."""
        return self.card().markdown()

    def to_frame(self) -> DataFrame:
        """The sources as a pandas DataFrame, with a column that says which the answer cites.

        Raises
        ------
        ImportError
            When pandas is not installed.
        """
        import pandas as pd  # noqa: PLC0415 - heavy, and needed by nobody else

        rows = [{**s.model_dump(), "cited": s in self.run.citations.values()} for s in self.sources]
        return pd.DataFrame(rows, columns=[*Source.model_fields, "cited"])

    def card(self) -> Card:
        """What is shown of this result."""
        what, cause, hint = self.run.failure
        partial = self.error is not None and bool(self.answer)
        return Card(
            query=self.run.query,
            text=self.answer,
            sources=tuple(_card_source(_number(s, place), s) for place, s in enumerate(self.sources, 1)),
            cited={number: _card_source(number, source) for number, source in self.run.cited},
            banner=what if partial else "",
            error="" if partial else what,
            cause=cause,
            hint=hint,
            code=self.error.code if self.error else "",
            notes=self.run.notes,
            footer=tuple(self._footer()),
        )

    def _footer(self) -> Iterable[str]:
        where = self.run.locality
        doubt = "" if where in {"", "local"} else f"{where}: not shown to stay on this machine"
        digest = f"{self.data.content_hash[:19]}…" if self.data else ""
        spent = f"{self.telemetry.duration_ms / 1000:.1f} s"
        return filter(None, (self.run.mode, spent, self.run.chat_model, doubt, digest))

    def __getstate__(self) -> dict[object, object]:
        """Pickle without the exception: it may hold what cannot be pickled, or should not be."""
        state = super().__getstate__()
        return {**state, "__pydantic_private__": {"_run": self._run, "_raised": None}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolResult):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.execution_id)

    def __str__(self) -> str:
        return self.answer

    def __repr__(self) -> str:
        state = "success" if self.error is None else self.error.code
        mode = f" {self.run.mode.value}" if self.run.mode else ""
        spent = f"{self.telemetry.duration_ms / 1000:.1f} s"
        head = f"<ToolResult {state}{mode} {spent}, {len(self.sources)} source{'s' * (len(self.sources) != 1)}>"
        text = " ".join((self.answer or (self.error.message if self.error else "")).split())
        return f"{head}\n{text[:200]}{'…' if len(text) > 200 else ''}"  # noqa: PLR2004 - a few lines

    def _repr_html_(self) -> str:
        return self.card().html()

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, str], dict[str, dict[str, object]]]:
        del include, exclude  # IPython filters what it gets
        return self.card().mimebundle()


def content_hash(*, query: str, mode: str, answer: str, sources: Iterable[Source | Mapping[str, str]]) -> str:
    """The content's hash: SHA-256 over the RFC 8785 (JCS) form of question, mode, answer and sources.

    For strings, lists and objects with ASCII names, as here, the JCS form is what `json.dumps` writes with
    sorted names, no blanks and no ASCII escapes.

    Returns
    -------
    str
        ``sha256:`` and 64 hexadecimal digits.
    """
    listed = [s.model_dump() if isinstance(s, Source) else {k: s[k] for k in Source.model_fields} for s in sources]
    content = {"query": query, "mode": str(mode), "answer": answer, "sources": listed}
    form = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(form.encode()).hexdigest()}"


def _card_source(number: int, source: Source) -> CardSource:
    return CardSource(number=number, title=source.title, url=source.url, snippet=source.snippet_preview)


def _number(source: Source, place: int) -> int:
    """The source's number; its place where a result from elsewhere has no number."""
    return int(source.source_id) if re.fullmatch(r"[0-9]{1,9}", source.source_id) else place
