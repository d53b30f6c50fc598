"""What stands behind Vane, on loopback: servers that answer as SearXNG and Ollama document it, healthy or broken.

Both take scripts for single routes in place of the documented answers::

    searxng()                                   # JSON on, two engines
    searxng(formats=["html"])                   # as it comes out of the box: JSON is answered by 403
    ollama(loaded=[])                           # nothing in memory
    ollama(routes={"GET /api/version": hang})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from servers.listener import Connection, Script, Server
from servers.scripted import json_reply, reply

MODEL: Final = "qwen3:8b"
EMBEDDING: Final = "nomic-embed-text:latest"
HTML: Final = reply(200, b"<!DOCTYPE html><title>Grafana</title>", [("content-type", "text/html")])
Routes = Mapping[str, Script]

# SearXNG: docs.searxng.org, "Search API" and "search:" ---


def engine(name: str, *, enabled: bool = True) -> dict[str, Any]:
    """An entry of ``engines`` in the answer to GET /config."""
    return {"name": name, "enabled": enabled, "categories": ["general"], "shortcut": name[:2], "timeout": 3.0}


ENGINES: Final = (engine("duckduckgo"), engine("wikipedia"), engine("bing", enabled=False))


def searxng(
    *,
    formats: Sequence[str] = ("html", "json"),
    engines: Iterable[Mapping[str, Any]] = ENGINES,
    routes: Routes | None = None,
) -> Server:
    """A SearXNG with these output formats and engines."""

    def search(connection: Connection) -> Script:
        asked = parse_qs(urlsplit(connection.request.path).query)
        if asked.get("format", ["html"])[0] not in formats:
            return reply(403, b"<!doctype html><title>403 Forbidden</title>", [("content-type", "text/html")])
        if "q" not in asked:
            return json_reply(400, {"error": "No query"})
        return json_reply(200, {"query": asked["q"][0], "results": [], "unresponsive_engines": []})

    told = {"engines": list(engines), "instance_name": "SearXNG", "version": "2026.2.6", "categories": ["general"]}
    documented: dict[str, Script] = {"GET /search": search, "GET /config": json_reply(200, told)}
    return Server({**documented, **(routes or {})}, fallback=reply(404, b"<!DOCTYPE html><title>404</title>"))


# Ollama: docs/api.md of its repository ---


def loaded(
    name: str = MODEL, *, on_gpu: float = 1.0, context: int | None = 32_000, minutes: float = 5, **more: Any
) -> dict[str, Any]:
    """An entry of ``models`` in the answer to GET /api/ps; `on_gpu` is the share of it in GPU memory."""
    expires = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat().replace("+00:00", "123Z")  # nanoseconds
    size = 6_000_000_000
    told = {"name": name, "model": name, "size": size, "size_vram": round(size * on_gpu), "expires_at": expires}
    return told | ({} if context is None else {"context_length": context}) | more


def shown(*capabilities: str, context: int = 40_960) -> dict[str, Any]:
    """The answer to POST /api/show."""
    return {
        "parameters": "temperature 0.6",
        "template": "{{ .Prompt }}",
        "details": {"family": "qwen3", "parameter_size": "8.2B", "quantization_level": "Q4_K_M"},
        "model_info": {"general.architecture": "qwen3", "qwen3.block_count": 36, "qwen3.context_length": context},
        "capabilities": list(capabilities),
    }


def ollama(
    *,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    loaded: Iterable[Mapping[str, Any]] | None = None,
    routes: Routes | None = None,
) -> Server:
    """An Ollama that has these models, some of them in memory."""
    has = {MODEL: shown("completion", "tools"), EMBEDDING: shown("embedding")} if models is None else models
    in_memory = [_LOADED()] if loaded is None else list(loaded)

    def show(connection: Connection) -> Script:
        name = connection.request.json()["model"]
        known = has.get(name) or has.get(f"{name}:latest")
        return json_reply(200, known) if known else json_reply(404, {"error": f"model '{name}' not found"})

    documented: dict[str, Script] = {
        "GET /": reply(200, b"Ollama is running"),
        "GET /api/version": json_reply(200, {"version": "0.12.6"}),
        "GET /api/ps": json_reply(200, {"models": in_memory}),
        "GET /api/tags": json_reply(200, {"models": [{"name": name, "model": name} for name in has]}),
        "POST /api/show": show,
    }
    return Server({**documented, **(routes or {})}, fallback=reply(404, b"404 page not found"))


_LOADED: Final = loaded  # `ollama` has a parameter of that name
