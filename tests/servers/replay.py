"""A server that plays recordings of a real Vane, byte for byte."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from servers.listener import Connection, Script, Server, Step
from servers.scripted import LAST_CHUNK, chunk, hang, keep_open

_PLACE: Final = Path(__file__).parent.parent / "recordings"
RECORDINGS: Final = sorted(path.name for path in _PLACE.iterdir() if path.is_dir())


class Recording:
    """One recorded request and what came back.

    Attributes
    ----------
    meta
        Status line, headers, times and how it ended (``response.meta.json``).
    body
        The response's body without transfer coding; a stand-in of the same size where it was not kept.
    request
        The request's body; None where it was too large to keep.
    wire
        Status line, headers and chunks as received; None where not kept.
    """

    def __init__(self, case: str) -> None:
        self.meta: dict[str, Any] = json.loads(_read(case, "response.meta.json") or b"")
        self.request = _read(case, "request.json", "request.body.txt")
        self.wire = _read(case, "response.wire")
        body = _read(case, "response.body")
        self.body = self._stand_in() if body is None else body

    @property
    def route(self) -> str:
        return f"{self.meta['request']['method']} {self.meta['request']['path'].partition('?')[0]}"

    @property
    def silent(self) -> bool:
        """Whether it ended because the client had enough, not the server."""
        return self.meta["ended"].startswith("client")

    def parts(self) -> Iterator[tuple[float, bytes]]:
        """When each piece came, in seconds from the start, and its bytes on the wire."""
        if not self.meta["status_line"]:
            return
        lines = [self.meta["status_line"], *(f"{name}: {value}" for name, value in self.meta["headers"]), "", ""]
        yield self.meta["time_to_headers_s"], "\r\n".join(lines).encode("latin-1")
        if self.meta["transfer"] != "chunked":
            yield self.meta["elapsed_s"], self.body
            return
        start = 0
        for at, size in self.meta["chunks"]:
            yield at, chunk(self.body[start : start + size])
            start += size
        if self.meta["complete"]:
            yield self.meta["elapsed_s"], LAST_CHUNK

    def script(self, speed: float) -> Step:
        """The parts with their pauses times `speed`, then the recorded end."""
        if self.meta["ended"] == "no connection":
            raise ValueError("nothing listened in this recording: use closed_port()")

        def step(connection: Connection) -> Iterator[Script]:
            def until(seconds: float) -> None:
                connection.sleep(connection.request.received_at + seconds * speed - time.monotonic())

            for at, data in self.parts():
                until(at)
                yield data
            if self.silent:
                yield hang
            until(self.meta["elapsed_s"])
            if self.meta["complete"] and ["Connection", "close"] not in self.meta["headers"]:
                yield keep_open

        return step

    def _stand_in(self) -> bytes:
        title = re.findall(r"title '(.*)'", self.meta["body_not_kept"])[0]
        return f"<!DOCTYPE html><title>{title}</title>".encode().ljust(self.meta["body_bytes"])


def _read(case: str, *names: str) -> bytes | None:
    paths = (_PLACE / case / name for name in names)
    return next((path.read_bytes() for path in paths if path.exists()), None)


class ReplayServer(Server):
    """Answers each route by a recording, given by name.

    Parameters
    ----------
    case
        Answers the route that it was recorded from: mostly POST /api/search.
    config, providers
        Answer GET /api/config and GET /api/providers.
    routes
        Recordings, or scripts, for these and other routes.
    speed
        What recorded times are multiplied by: 1 plays as recorded, 0 without pauses.
    options
        As for `Server`.
    """

    def __init__(
        self,
        case: str,
        *,
        config: str = "config-ready",
        providers: str = "providers-ollama-up",
        routes: Mapping[str, str | Script] | None = None,
        speed: float = 0,
        **options: Any,
    ) -> None:
        def script(given: str | Script) -> Script:
            return Recording(given).script(speed) if isinstance(given, str) else given

        played = {"GET /api/config": config, "GET /api/providers": providers, Recording(case).route: case}
        known = {route: script(given) for route, given in {**played, **(routes or {})}.items()}
        super().__init__(known, fallback=script("error-unknown-api-path"), **options)
