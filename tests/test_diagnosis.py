"""The doctor: which link is broken, seen against servers that stand in for Vane, Ollama and SearXNG.

`pytest tests/test_diagnosis.py --write-tables` writes `docs/outcomes/doctor.md` anew.
"""

# ruff: noqa: E501 - each row of the tables of faults stands on one line

from __future__ import annotations

import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from servers import chain
from servers.chain import EMBEDDING, HTML, MODEL, engine, loaded, shown
from servers.listener import Script, Server, closed_port, deaf_port
from servers.replay import ReplayServer
from servers.scripted import (
    API_KEY,
    CASES,
    NOT_FOUND,
    ScriptedServer,
    answer,
    case_server,
    config,
    drip,
    forever,
    hang,
    head,
    json_reply,
    provider,
    reply,
    reset,
    sleep,
    source,
)
from shells import open_notebook
from strict_html import StrictHtml
from tables import Table

from vane_magic import diagnosis as module
from vane_magic.cli import main
from vane_magic.core.gpu_lock import GpuLock
from vane_magic.core.settings import Layer
from vane_magic.diagnosis import BROKEN, OK, UNCHECKED, WARNING, Diagnosis, diagnose
from vane_magic.display import Check
from vane_magic.localdocs import Service

PAGE = Path(__file__).parent.parent / "docs" / "outcomes" / "doctor.md"
HOME_LOCK = ".vane-gpu-worker.lock"
ANSWER = answer("It is 3.14 [1].", [source()])


@dataclass
class Chain:
    """A chain to examine: each link healthy, but for what a test says."""

    stack: ExitStack
    patch: pytest.MonkeyPatch
    vane: Server | None = None
    ollama: Server | None = None
    searxng: Server | None = None

    def start(self, server: Server) -> Server:
        return self.stack.enter_context(server)

    def closed(self) -> str:
        """An address at which nothing listens."""
        return f"http://127.0.0.1:{self.stack.enter_context(closed_port())}"

    def hurry(self, seconds: float = 1.0) -> None:
        """Do not wait as long as people would, where something hangs."""
        self.patch.setattr(module, "PROBE_S", seconds)
        self.patch.setattr(module, "LOOK_UP_S", seconds)

    def examine(
        self,
        *,
        ollama: Server | str | None = None,
        searxng: Server | str | None = None,
        providers: Sequence[dict[str, Any]] | None = None,
        search: Script = ANSWER,
        deep: bool = False,
        setup: bool = True,
        **told: Any,
    ) -> Diagnosis:
        """Examine a chain; servers are started, texts are addresses, `told` is for the provider."""
        places = [ollama or chain.ollama(), searxng or chain.searxng()]
        self.ollama, self.searxng = (place if isinstance(place, str) else self.start(place) for place in places)
        at = [place if isinstance(place, str) else place.url for place in (self.ollama, self.searxng)]
        listed = [provider(base_url=at[0], **{"chat": [MODEL], "embedding": [EMBEDDING], **told})]
        body = config(listed if providers is None else providers, at[1], setup=setup)
        self.vane = self.start(ScriptedServer(search, config=body))
        return diagnose(self.vane.url, deep=deep)

    def of_vane(self, server: Server) -> Diagnosis:
        return diagnose(self.start(server).url)


@pytest.fixture
def built(lock_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    monkeypatch.setenv("VANE_LOCK_PATH", str(lock_path))
    monkeypatch.setattr(module, "_LIBRARIES", ("pydantic", "no-such-library"))  # to look them all up takes long
    with ExitStack() as stack:
        yield Chain(stack, monkeypatch)


def link(found: Diagnosis, name: str) -> Check:
    return next(link for link in found.links if link.name == name)


def states(found: Diagnosis, *which: str) -> dict[str, str]:
    """The states by link, those that hold left out."""
    return {link.name: link.state for link in found.links if link.state in (which or (WARNING, BROKEN))}


def said(found: Diagnosis, name: str) -> str:
    return f"{link(found, name).text} {link(found, name).step}"


# A healthy chain ---


def test_every_link_of_a_healthy_chain_holds(built: Chain) -> None:
    """All but the question, which only --deep asks."""
    found = built.examine()
    assert found.ok
    assert {link.name: link.state for link in found.links if link.state != OK} == {"question": UNCHECKED}
    assert f"Ollama/{MODEL} (local)" in said(found, "models")
    assert "0.12.6" in said(found, "Ollama")
    assert "can call tools" in said(found, "tools")
    assert re.search(
        r"is loaded, 100 % of it on the GPU, 32000 tokens of context, for [45] min more", said(found, "memory")
    )
    assert "its JSON is on, 2 of 3 engines are on" in said(found, "SearXNG")
    assert re.fullmatch(r"Python 3\.\d+\.\S+, pydantic 2\.[\d.]+", link(found, "versions").text)
    assert f"{built.ollama.url}" in said(found, "Ollama")


def test_a_deep_examination_asks_one_real_question(built: Chain) -> None:
    """In speed mode, under the lock, with the setting's shorter limit."""
    found = built.examine(deep=True)
    assert link(found, "question").state == OK
    assert "Sources: 1." in said(found, "question")
    (search,) = built.vane.searches
    assert search.json()["optimizationMode"] == "speed"


@pytest.mark.parametrize(
    ("search", "state", "words"),
    [
        (json_reply(500, {"message": "An error has occurred."}), BROKEN, "status 500"),
        (json_reply(503, {"message": "later"}, [("retry-after", "30")]), BROKEN, "wait: 30"),
        (answer("I think so.", None), WARNING, "no source backs this answer"),
        (answer("It is [1].", []), WARNING, "found nothing"),
        (answer("", [source()]), BROKEN, "empty"),
        ([*ANSWER[:-2], reset], BROKEN, "before it was whole"),
        (hang, BROKEN, "still loading"),
    ],
)
def test_a_deep_examination_tells_how_the_question_fails(
    built: Chain, search: Script, state: str, words: str, lock_path: Path
) -> None:
    """In the client's words, without its advice to ask the doctor; the lock is free again."""
    built.patch.setenv("VANE_TIMEOUT", "1")
    found = built.examine(deep=True, search=search)
    assert link(found, "question").state == state
    assert words in said(found, "question")
    assert "doctor" not in str(found)
    with GpuLock(lock_path):
        pass


def test_a_deep_examination_waits_for_nobody(built: Chain, lock_path: Path) -> None:
    """A GPU in use is no broken link; nothing is sent."""
    with GpuLock(lock_path, mode="quality"):
        found = built.examine(deep=True)
    assert states(found) == {"lock": WARNING, "question": WARNING}
    assert str(os.getpid()) in said(found, "lock")
    assert built.vane.searches == []


# Ollama ---

Row = tuple[str, str, str, Callable[[Chain], Diagnosis]]


def with_ollama(**options: Any) -> Callable[[Chain], Diagnosis]:
    return lambda built: built.examine(ollama=chain.ollama(**options))


def when(route: str, script: Script) -> dict[str, Any]:
    return {"routes": {route: script}}


VERSION, PS, SHOW = "GET /api/version", "GET /api/ps", "POST /api/show"
FAILED = "Error connecting to Ollama API. Please ensure the base URL is correct and the Ollama server is running."


def hurried(made: Callable[[Chain], Diagnosis]) -> Callable[[Chain], Diagnosis]:
    def examine(built: Chain) -> Diagnosis:
        built.hurry()
        return made(built)

    return examine


OLLAMA: dict[str, Row] = {
    "it has no models": ("providers", BROKEN, "ollama pull", lambda b: b.examine(providers=[provider(base_url=b.start(chain.ollama(models={}, loaded=[])).url, chat=[], embedding=[])])),
    "it has embedding models only": ("providers", BROKEN, "ollama pull", lambda b: b.examine(providers=[provider(base_url=b.start(chain.ollama()).url, chat=[EMBEDDING], embedding=[EMBEDDING])])),
    "it is down": ("Ollama", BROKEN, "Start Ollama", lambda b: b.examine(ollama=b.closed(), error=FAILED)),
    "it is busy": ("Ollama", WARNING, "busy (status 503)", with_ollama(**when(VERSION, json_reply(503, {"error": "server busy"})))),
    "it fails": ("Ollama", BROKEN, "fails with status 500|fails (status 500)", with_ollama(**when(VERSION, reply(500)))),
    "it asks for a log-in": ("Ollama", BROKEN, "log-in (status 401)", with_ollama(**when(VERSION, reply(401)))),
    "another program has its port": ("Ollama", BROKEN, "something else (status 200)", with_ollama(routes={VERSION: HTML, PS: HTML, SHOW: HTML})),
    "it redirects": ("Ollama", BROKEN, "something else (status 307)", with_ollama(**when(VERSION, reply(307, headers=[("location", "http://evil.example/")])))),
    "it resets": ("Ollama", BROKEN, "ended it without a reply", with_ollama(**when(VERSION, reset))),
    "it hangs": ("Ollama", BROKEN, "the limit of 1 s is over", hurried(with_ollama(**when(VERSION, hang)))),
    "it drips": ("Ollama", BROKEN, "the limit of 1 s is over", hurried(with_ollama(**when(VERSION, [head(200), drip(b"{" * 99, 0.1)])))),
    "it sends without end": ("Ollama", BROKEN, "no usable reply", with_ollama(**when(VERSION, [head(200), forever(b" " * 65536)]))),
    "it sends another encoding": ("Ollama", BROKEN, "no usable reply", with_ollama(**when(VERSION, reply(200, b"\x1f\x8b", [("content-encoding", "gzip")])))),
    "it does not speak HTTP": ("Ollama", BROKEN, "no usable reply", with_ollama(**when(VERSION, b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))),
    "it answers us, but not Vane": ("Ollama", BROKEN, "http://host.docker.internal:", lambda b: b.examine(error=FAILED)),
    "it answers Vane, but not us": ("Ollama", UNCHECKED, "container", lambda b: b.examine(ollama=b.closed())),
    "it is elsewhere": ("Ollama", UNCHECKED, "No Ollama on the loopback interface", lambda b: b.examine(ollama="http://ollama:11434")),
    "the model is gone": ("tools", BROKEN, "ollama pull", with_ollama(models={})),
    "the model cannot call tools": ("tools", BROKEN, "cannot call tools", lambda b: b.examine(ollama=chain.ollama(models={"gemma3:12b": shown("completion")}, loaded=[loaded("gemma3:12b")]), chat=["gemma3:12b"])),
    "it is too old to tell of tools": ("tools", UNCHECKED, "does not tell", with_ollama(models={MODEL: {"model_info": {}, "details": {}}})),
    "the model's context is small": ("tools", OK, "8192 tokens; Vane asks for 32000", with_ollama(models={MODEL: shown("completion", "tools", context=8192)})),
    "it fails to show": ("tools", BROKEN, "status 500", with_ollama(**when(SHOW, json_reply(500, {"error": "corrupt"})))),
    "it shows nonsense": ("tools", UNCHECKED, "does not tell", with_ollama(**when(SHOW, reply(200, b'["tools"]')))),
    "the model is not loaded": ("memory", WARNING, "ollama run", with_ollama(loaded=[])),
    "another model is loaded": ("memory", WARNING, "In memory: llama3.1:70b.", with_ollama(loaded=[loaded("llama3.1:70b")])),
    "the model is half on the GPU": ("memory", WARNING, "40 % of it on the GPU", with_ollama(loaded=[loaded(on_gpu=0.4)])),
    "the model is on the processor": ("memory", WARNING, ", 0 % of it on the GPU", with_ollama(loaded=[loaded(on_gpu=0)])),
    "the model is loaded with a small context": ("memory", OK, ", 4096 tokens of context", with_ollama(loaded=[loaded(context=4096)])),
    "the model stays for good": ("memory", OK, ", for good", with_ollama(loaded=[loaded(minutes=60 * 24 * 365 * 200)])),
    "it is too old to tell of contexts": ("memory", OK, "unknown tokens of context", with_ollama(loaded=[loaded(context=None)])),
    "it does not tell what is loaded": ("memory", BROKEN, "something else (status 404)", with_ollama(**when(PS, NOT_FOUND))),
    "it tells nonsense of what is loaded": ("memory", BROKEN, "something else (status 200)", with_ollama(**when(PS, json_reply(200, {"models": [{"size": "big"}]})))),
}  # fmt: skip


@pytest.mark.parametrize("fault", OLLAMA)
def test_each_fault_of_ollama_is_told_with_its_next_step(built: Chain, fault: str) -> None:
    """On its own link; nothing else is called broken but what follows from it."""
    name, state, words, examine = OLLAMA[fault]
    found = examine(built)
    assert link(found, name).state == state, str(found)
    assert any(word in said(found, name) for word in words.split("|")), said(found, name)
    assert state in {OK, UNCHECKED} or link(found, name).step
    assert set(states(found, BROKEN)) <= {name, "providers"}
    assert link(found, "SearXNG").state in {OK, WARNING}


def test_a_model_that_runs_at_ollama_com_is_not_asked_about(built: Chain) -> None:
    """Ollama itself would go there for the answer."""
    built.patch.setenv("VANE_ALLOW_REMOTE", "true")
    started = built.start(chain.ollama())
    cloud = provider(base_url=started.url, chat=["gpt-oss:120b-cloud"])
    found = built.examine(ollama=started.url, providers=[cloud])
    assert link(found, "models").state == WARNING
    assert {request.route for request in started.requests} == {"GET /api/version"}


def test_the_ollama_of_the_chosen_model_counts(built: Chain) -> None:
    """Another one that is down is a warning of the providers."""
    up, down = built.start(chain.ollama()).url, built.closed()
    both = [provider("Ollama A", base_url=down, error=FAILED), provider("Ollama B", base_url=up)]
    found = built.examine(providers=both)
    assert states(found) == {"providers": WARNING}
    assert f"Ollama A: {FAILED}" in said(found, "providers")
    assert up in said(found, "Ollama")


def test_an_ollama_on_the_container_s_host_is_asked_on_loopback(built: Chain) -> None:
    """`host.docker.internal` is this machine; SearXNG at 127.0.0.1 is then the container's, and may be well."""
    at = built.start(chain.ollama()).url.replace("127.0.0.1", "host.docker.internal")
    found = built.examine(ollama=at, searxng=built.closed())
    assert link(found, "Ollama").state == OK
    assert states(found) == {}
    assert link(found, "SearXNG").state == UNCHECKED
    assert "container" in said(found, "SearXNG")


# SearXNG ---


def with_searxng(**options: Any) -> Callable[[Chain], Diagnosis]:
    return lambda built: built.examine(searxng=chain.searxng(**options))


SEARCH, ENGINE_LIST = "GET /search", "GET /config"
SEARXNG: dict[str, Row] = {
    "its JSON is off": ("SearXNG", BROKEN, "search.formats", with_searxng(formats=["html"])),
    "it is down": ("SearXNG", BROKEN, "Start SearXNG", lambda b: b.examine(searxng=b.closed())),
    "it is down, or in the container of Vane": ("SearXNG", UNCHECKED, "container", lambda b: b.examine(ollama=b.closed().replace("127.0.0.1", "host.docker.internal"), searxng=b.closed())),
    "it is not set": ("SearXNG", BROKEN, "SEARXNG_API_URL", lambda b: b.examine(searxng=" ")),
    "it is on another machine": ("SearXNG", BROKEN, "searx.example.org", lambda b: b.examine(searxng="https://searx.example.org")),
    "it is in another container": ("SearXNG", UNCHECKED, "not on the loopback", lambda b: b.examine(searxng="http://searxng:8080")),
    "its address holds a log-in": ("SearXNG", BROKEN, "another machine, (odd address)", lambda b: b.examine(searxng="http://me:secret@127.0.0.1:8080")),
    "it limits the rate": ("SearXNG", WARNING, "server.limiter", with_searxng(**when(SEARCH, reply(429)))),
    "it asks for a log-in": ("SearXNG", BROKEN, "log-in (status 401)", with_searxng(**when(SEARCH, reply(401)))),
    "it fails": ("SearXNG", BROKEN, "fails (status 500)", with_searxng(**when(SEARCH, reply(500)))),
    "a proxy before it has lost it": ("SearXNG", BROKEN, "fails (status 502)", with_searxng(**when(SEARCH, reply(502)))),
    "it starts": ("SearXNG", WARNING, "busy (status 503)", with_searxng(**when(SEARCH, reply(503)))),
    "another program has its port": ("SearXNG", BROKEN, "something else (status 200)", with_searxng(**when(SEARCH, HTML))),
    "it is below a path": ("SearXNG", BROKEN, "something else (status 404)", with_searxng(**when(SEARCH, NOT_FOUND))),
    "it redirects": ("SearXNG", BROKEN, "something else (status 302)", with_searxng(**when(SEARCH, reply(302, headers=[("location", "/login")])))),
    "it resets": ("SearXNG", BROKEN, "ended it without a reply", with_searxng(**when(SEARCH, reset))),
    "it hangs": ("SearXNG", BROKEN, "the limit of 1 s is over", hurried(with_searxng(**when(SEARCH, hang)))),
    "it is slow": ("SearXNG", BROKEN, "the limit of 1 s is over", hurried(with_searxng(**when(SEARCH, [sleep(60), reply(400, b"{}")])))),
    "its engines are slow to come": ("SearXNG", OK, "its JSON is on", hurried(with_searxng(**when(ENGINE_LIST, hang)))),
    "no engine is on": ("SearXNG", BROKEN, "0 of 1 engines are on", with_searxng(engines=[engine("bing", enabled=False)])),
    "it has no engines": ("SearXNG", BROKEN, "0 of 0 engines are on", with_searxng(engines=[])),
    "it does not tell its engines": ("SearXNG", OK, "its JSON is on. ", with_searxng(**when(ENGINE_LIST, NOT_FOUND))),
    "it tells nonsense of its engines": ("SearXNG", OK, "its JSON is on. ", with_searxng(**when(ENGINE_LIST, json_reply(200, {"engines": [1]})))),
    "it answers a search for nothing": ("SearXNG", OK, "JSON is on", with_searxng(**when(SEARCH, json_reply(200, {"results": []})))),
}  # fmt: skip


@pytest.mark.parametrize("fault", SEARXNG)
def test_each_fault_of_searxng_is_told_with_its_next_step(built: Chain, fault: str) -> None:
    """On its own link; the rest of the chain stays whole."""
    name, state, words, examine = SEARXNG[fault]
    found = examine(built)
    assert link(found, name).state == state, str(found)
    assert words in said(found, name)
    assert state in {OK, UNCHECKED} or link(found, name).step
    assert set(states(found)) <= {name}
    assert "secret" not in found.to_json()


def test_a_remote_search_engine_that_is_allowed_is_a_warning(built: Chain) -> None:
    """The setting says so; nobody connects to it."""
    built.patch.setenv("VANE_ALLOW_REMOTE", "true")
    found = built.examine(searxng="https://searx.example.org")
    assert states(found) == {"SearXNG": WARNING}


def test_local_documents_have_no_search_engine_to_blame(built: Chain, tmp_path: Path) -> None:
    """Their engine gives its own address for it."""
    (tmp_path / "a.md").write_text("# Tides\n\nA tide turns.\n")
    with Service([tmp_path], cache_dir=tmp_path / "cache") as engine:
        built.patch.setenv("VANE_URL", engine.url)
        found = diagnose()
    assert (link(found, "SearXNG").state, found.ok) == (UNCHECKED, True)


def test_nothing_is_searched(built: Chain) -> None:
    """SearXNG gets no query, Ollama nothing but the three questions that only read, Vane no question."""
    built.examine()
    assert [(r.method, r.path, r.body) for r in built.searxng.requests] == [
        ("GET", "/search?format=json", b""),
        ("GET", "/config", b""),
    ]
    assert sorted((r.route, r.body) for r in built.ollama.requests) == [
        ("GET /api/ps", b""),
        ("GET /api/version", b""),
        ("POST /api/show", json.dumps({"model": MODEL}, separators=(",", ":")).encode()),
    ]
    assert {r.route for r in built.vane.requests} == {"GET /api/config"}


# Vane ---


def answering(script: Script | None, **more: Script | None) -> Callable[[Chain], Diagnosis]:
    routes = {"GET /api/config": script, "GET /api/providers": script, **{f"GET /api/{k}": v for k, v in more.items()}}
    return lambda built: built.of_vane(ScriptedServer(routes=routes))


OLD = json_reply(200, {"chatModelProviders": {}, "embeddingModelProviders": {}})
VANE: dict[str, Row] = {
    "nothing listens": ("port", BROKEN, "docker start vane", lambda b: diagnose(b.closed())),
    "nothing takes connections": ("port", BROKEN, "the limit of 1 s is over", hurried(lambda b: diagnose(f"http://127.0.0.1:{b.stack.enter_context(deaf_port())}"))),
    "it is 1.10 or earlier": ("Vane", BROKEN, "too old", answering(None, models=OLD)),
    "another program has its port": ("Vane", BROKEN, "not Vane (status 404)", answering(None)),
    "another program answers everything": ("Vane", BROKEN, "not Vane (status 200)", answering(HTML, models=HTML)),
    "it fails": ("Vane", BROKEN, "status 500", answering(reply(500))),
    "it asks for a log-in": ("Vane", BROKEN, "log-in", answering(reply(401))),
    "it resets": ("Vane", BROKEN, "ended it without a reply", answering(reset)),
    "it hangs on Ollama": ("Vane", BROKEN, "ollama ps", hurried(answering(hang))),
    "it redirects off the machine": ("Vane", BROKEN, "redirects to another machine", answering(reply(307, headers=[("location", "http://evil.example/")]))),
    "it does not speak HTTP": ("Vane", BROKEN, "does not speak HTTP", answering(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")),
    "set-up is not done": ("set-up", WARNING, "finish it", lambda b: b.examine(setup=False, providers=[provider("Transformers", kind="transformers", base_url=None, chat=[])])),
    "set-up is not done, but there are models": ("set-up", WARNING, "finish it", lambda b: b.examine(setup=False)),
    "it has no providers": ("providers", BROKEN, "There are none", lambda b: b.examine(providers=[])),
    "it has no embedding model": ("models", BROKEN, "nomic-embed-text", lambda b: b.examine(providers=[provider(base_url="http://ollama:1", embedding=[])])),
    "its model is in the cloud": ("models", BROKEN, "does not run on this machine", lambda b: b.examine(providers=[provider("OpenAI", kind="openai", base_url=None)])),
    "nobody knows where its model is": ("models", WARNING, "unverified", lambda b: b.examine(providers=[provider(base_url="http://ollama:1")])),
    "several models fit": ("models", OK, "one of 2 that fit", lambda b: b.examine(providers=[provider(base_url="http://127.0.0.1:1", chat=["a", "b"])])),
}  # fmt: skip


@pytest.mark.parametrize("fault", VANE)
def test_each_fault_of_vane_is_told_with_its_next_step(built: Chain, fault: str) -> None:
    """Whether anybody listens is one link, whether that is Vane the next."""
    name, state, words, examine = VANE[fault]
    found = examine(built)
    assert link(found, name).state == state, str(found)
    assert words in said(found, name)
    assert link(found, name).step
    assert link(found, "port").state == (BROKEN if name == "port" else OK)
    assert "doctor" not in str(found)


def test_a_vane_without_its_configuration_is_examined_as_far_as_it_goes(built: Chain) -> None:
    """Where models and search engine are stays unknown; that breaks nothing."""
    found = built.of_vane(ScriptedServer(routes={"GET /api/config": None}))
    assert states(found) == {"models": WARNING}
    assert {link.name for link in found.links if link.state == UNCHECKED} == {
        *("set-up", "Ollama", "tools", "memory", "SearXNG", "question")
    }


def test_the_real_server_s_configuration_is_read(built: Chain) -> None:
    """As recorded, ready and with its Ollama down."""
    found = diagnose(built.start(ReplayServer("stream-speed")).url)
    assert "Transformers: 0 chat, 3 embedding; Ollama: 3 chat, 3 embedding; SmolLM2: 1 chat" in said(found, "providers")
    found = diagnose(built.start(ReplayServer("stream-speed", config="config-ollama-down")).url)
    assert link(found, "providers").state == WARNING
    assert FAILED in said(found, "providers")


# Settings, address and lock ---


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"VANE_MODE": "fast"}, "VANE_MODE in the environment"),
        ({"VANE_TIMEOUT": "31"}, "above the 30 s of balanced mode"),
        ({"VANE_MAX_SOURCES": "many", "VANE_WAIT": "-1"}, "max_sources must be"),
    ],
)
def test_a_bad_setting_does_not_hide_the_other_links(built: Chain, environ: dict[str, str], words: str) -> None:
    """It is told with its origin, and the rest is examined with its default."""
    for name, value in environ.items():
        built.patch.setenv(name, value)
    found = built.examine()
    assert states(found) == {"settings": BROKEN}
    assert words in said(found, "settings")
    assert all(name.removeprefix("VANE_").lower() in said(found, "settings") for name in environ)


def test_settings_are_told_with_their_origin(built: Chain) -> None:
    """A timeout over the default mode's limit is right in quality mode."""
    built.patch.setenv("VANE_MODE", "quality")
    built.patch.setenv("VANE_TIMEOUT", "45")
    built.patch.setenv("VANE_SCOPE", "academic,web")
    found = built.examine()
    assert found.ok
    told = said(found, "settings")
    assert "mode = 'quality' (VANE_MODE in the environment)" in told
    assert "scope = ('academic', 'web')" in told
    assert "timeout = 45.0" in told


def test_a_setting_shows_what_can_be_seen_and_escapes_the_rest(built: Chain) -> None:
    """In any script; a mark of direction or a control would show nothing, or something else."""
    built.patch.setenv("VANE_INSTRUCTIONS", "Größe 東京 🦊\u202e\x7f")
    assert r"instructions = 'Größe 東京 🦊\u202e\x7f'" in said(diagnose(built.closed()), "settings")


def test_layers_go_before_the_environment(built: Chain) -> None:
    """As a face gives them."""
    built.patch.setenv("VANE_CHAT_MODEL", "mistral")
    assert states(built.examine(), BROKEN) == {"models": BROKEN}
    found = diagnose(built.vane.url, layers=[Layer("%config", {"chat_model": MODEL})])
    assert found.ok
    assert f"chat_model = '{MODEL}' (%config)" in said(found, "settings")


@pytest.mark.parametrize("url", ["http://192.168.1.20:3000", "http://vane.lan:3000", "https://vane.example.org"])
def test_an_address_off_the_machine_is_refused_before_any_socket(
    built: Chain, url: str, audit: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """And before any look-up of its name."""
    found = diagnose(url)
    assert states(found) == {"address": BROKEN}
    assert "Only loopback is" in said(found, "address")
    assert audit == []


def test_an_address_s_password_is_not_shown(built: Chain) -> None:
    """It may have come from the environment."""
    built.patch.setenv("VANE_URL", "http://me:hunter2@127.0.0.1:3000/?key=hunter3")
    told = diagnose().to_json()
    assert "hunter" not in told
    assert "(VANE_URL in the environment)" in told


LOCK_FAULTS: dict[str, tuple[str, str, Callable[[Path], str]]] = {
    "its directory is not there": (BROKEN, "VANE_LOCK_PATH", lambda place: str(place / "no" / "lock")),
    "it is relative": (BROKEN, "absolute", lambda _: "lock"),
    "its place takes no files": (BROKEN, "takes no files", lambda _: f"/proc/{HOME_LOCK}"),
    "a directory stands there": (OK, "is free", str),
    "a link stands there": (BROKEN, "not a regular file", lambda place: str(linked(place))),
    "its directory is sticky": (WARNING, "sticky", lambda place: str(sticky(place))),
}


def linked(place: Path) -> Path:
    (place / "link").symlink_to(place / "elsewhere")
    return place / "link"


def sticky(place: Path) -> Path:
    place.chmod(0o1777)
    return place


@pytest.mark.parametrize("fault", LOCK_FAULTS)
def test_each_fault_of_the_lock_s_place_is_told(built: Chain, fault: str, tmp_path: Path) -> None:
    """With the setting that moves it; never as a GPU in use."""
    state, words, place = LOCK_FAULTS[fault]
    (tmp_path / "place").mkdir()
    built.patch.setenv("VANE_LOCK_PATH", place(tmp_path / "place"))
    found = built.examine()
    assert link(found, "lock").state == state
    assert words in said(found, "lock")
    assert "held" not in said(found, "lock")
    assert set(states(found)) <= {"lock"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_lock_s_place_that_cannot_be_written_is_told(built: Chain, tmp_path: Path) -> None:
    """As after an administrator's work."""
    (tmp_path / "place").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    built.patch.setenv("VANE_LOCK_PATH", str(tmp_path / "place"))
    assert states(built.examine()) == {"lock": BROKEN}


@pytest.mark.parametrize(
    ("kind", "state"),
    [("nfs4", WARNING), ("cifs", WARNING), ("9p", WARNING), ("fuse.sshfs", WARNING), ("ext4", OK), ("sysfs", BROKEN)],
)
def test_a_network_file_system_is_a_warning(built: Chain, kind: str, state: str, tmp_path: Path) -> None:
    """The kernel's own table tells, by the number of the device."""
    device = tmp_path.stat().st_dev
    here, there = (f"{os.major(device)}:{minor}" for minor in (os.minor(device), os.minor(device) + 1))
    row = "36 35 {} / /mnt rw,noatime master:1 - {} host:/export rw\n"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(row.format(there, "nfs") + row.format(here, kind) + row.format(f"1{here}", "nfs"))
    built.patch.setattr(module, "_MOUNTS", mounts)
    built.patch.setenv("VANE_LOCK_PATH", str(tmp_path))
    found = built.examine()
    assert link(found, "lock").state == state
    assert (kind in said(found, "lock")) is (state == WARNING)


def test_an_examination_takes_and_makes_nothing(built: Chain, lock_path: Path) -> None:
    """Neither lock nor guard nor any other file."""
    before = sorted(lock_path.parent.iterdir())
    built.examine()
    assert sorted(lock_path.parent.iterdir()) == before


# Whatever happens ---


def test_all_is_done_within_ten_seconds_whatever_hangs(built: Chain, tmp_path: Path) -> None:
    """A look-up that takes its time, then Ollama, SearXNG and the lock's file system silent for ever."""
    never = threading.Event()
    built.patch.setattr(module, "resolve_lock_path", lambda _: never.wait(60))
    deaf = built.start(chain.ollama(routes={VERSION: hang})).url, built.start(chain.searxng(routes={SEARCH: hang})).url
    told = json_reply(200, config([provider(base_url=deaf[0])], deaf[1]))
    server = built.start(ScriptedServer(routes={"GET /api/config": [sleep(4.5), told]}))
    began = time.monotonic()
    found = diagnose(server.url)
    assert time.monotonic() - began < 10
    never.set()
    assert states(found) == {"Ollama": BROKEN, "SearXNG": BROKEN, "lock": BROKEN}
    assert "does not answer" in said(found, "lock")


def test_an_interrupt_ends_it_at_once(built: Chain) -> None:
    """As every command; the exit code is the shell's for Ctrl-C."""
    server = built.start(ScriptedServer(routes={"GET /api/config": hang}))
    with subprocess.Popen([*COMMAND, "--url", server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        server.wait_for_requests(timeout=60)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.communicate(timeout=30) == (b"", b"")
        assert time.monotonic() - began < 3
    assert process.returncode == 130


def test_no_thread_or_connection_is_left(built: Chain) -> None:
    """The servers count them."""
    before = threading.active_count()
    built.examine(ollama=chain.ollama(routes={VERSION: reset}))
    for server in (built.vane, built.ollama, built.searxng):
        server.wait_until_idle()
    servers_only = [t for t in threading.enumerate() if t.name == "vane-magic-doctor"]
    assert servers_only == []
    assert threading.active_count() >= before


def test_a_fault_of_our_own_hides_nothing_else(built: Chain, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and its link is not checked."""
    built.patch.setattr(module, "_tools", lambda *_: 1 / 0)
    with caplog.at_level(logging.ERROR):
        found = built.examine()
    assert said(found, "tools").strip() == "A fault of vane_magic: ZeroDivisionError."
    assert states(found) == {}
    assert link(found, "memory").state == OK
    assert "ZeroDivisionError" in caplog.text


def test_a_planted_key_appears_nowhere(built: Chain, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a finding nor in a request nor in the log, whichever member of the configuration holds it."""
    caplog.set_level(logging.DEBUG)
    at = [built.start(server) for server in (chain.ollama(), chain.searxng())]
    for url, search in [
        (f"{at[0].url}/{API_KEY}?key={API_KEY}", f"{at[1].url}/{API_KEY}/search?key={API_KEY}#{API_KEY}"),
        (at[0].url.replace("//", f"//{API_KEY}@"), at[1].url.replace("//", f"//me:{API_KEY}@")),
    ]:
        found = built.examine(searxng=search, providers=[provider(base_url=url)], deep=True)
        shown_ = [found.to_json(), str(found), *found._repr_mimebundle_().values(), repr(found), caplog.text]
        assert not any(API_KEY in text for text in shown_)
    sent = [(r.path, r.headers, r.body) for server in (*at, built.vane) for r in server.requests]
    assert API_KEY not in str(sent)
    assert len(sent) >= 5


def test_proxies_in_the_environment_get_nothing(built: Chain) -> None:
    """A company's, as on many desktops."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        built.patch.setenv(name, built.closed())
    built.patch.setenv("NO_PROXY", "localhost")
    assert states(built.examine()) == {}


HOSTILE = "<script>alert(1)</script>[x](javascript:1) $a$ \u202eabc\x1b[31m\ud800"


def test_hostile_words_are_shown_inert_and_short(built: Chain) -> None:
    """Names and reasons come from whoever answers."""
    name, key = f"A{HOSTILE}"[:300], f"m{HOSTILE}{'x' * 300}"[:400]
    ollama = chain.ollama(
        models={key: shown("completion")},
        loaded=[loaded(f"other{HOSTILE}" * 50)],
        **when(VERSION, json_reply(200, {"version": HOSTILE * 5000})),
    )
    started = built.start(ollama)
    found = built.examine(
        providers=[provider(name, base_url=started.url, chat=[key], provider_id="a"), provider("B", error=HOSTILE * 20)]
    )
    bundle = found._repr_mimebundle_()
    assert StrictHtml(bundle["text/html"]).faults == []
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", bundle["text/plain"] + found.to_json())
    assert all(len(text) < 30_000 for text in bundle.values())
    assert len(found.to_json().encode()) < 30_000


# How it is shown ---


def test_both_forms_hold_the_same_words(built: Chain) -> None:
    """The state is a word, not a colour alone."""
    found = built.examine(searxng=chain.searxng(formats=["html"]), ollama=chain.ollama(loaded=[]))
    bundle = found._repr_mimebundle_()
    page = StrictHtml(bundle["text/html"])
    assert page.faults == []
    assert sorted(page.words) == sorted(re.findall(r"\w+", bundle["text/plain"]))
    assert bundle["text/plain"] == str(found)
    assert bundle["text/plain"].startswith("Broken: SearXNG. Warning: memory.\n")
    assert_wrapped(str(found), 80)


def test_links_that_were_not_reached_share_one_line(built: Chain) -> None:
    """With their names and the reason, below the link that kept them from it; JSON has an entry for each."""
    found = diagnose(built.closed())
    links = [link for link in found.links if "Not reached" in link.text]
    names = "Vane, set-up, providers, models, Ollama, tools, memory, SearXNG"
    assert [link.name for link in links] == names.split(", ")
    assert len(json.loads(found.to_json())["links"]) == len(module._ORDER.split())
    words = " ".join(str(found).split())
    assert words.count("Not reached") == 1
    assert f"not checked others {names}. Not reached" in words
    assert words.index(" broken port ") < words.index("Not reached") < words.index(" ok lock ")


def assert_wrapped(text: str, width: int) -> None:
    assert [line for line in text.splitlines() if len(line) > width and " " in line[24:].strip()] == []


COMMAND = [sys.executable, "-m", "vane_magic.cli", "doctor"]


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args], capture_output=True, text=True, env={**os.environ, **environ}, timeout=60, check=False
    )


def test_the_command_ends_in_0_or_1(built: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    """So that scripts can tell; a warning breaks nothing."""
    built.examine(ollama=chain.ollama(loaded=[]))
    assert main(["doctor", "--url", built.vane.url]) == 0
    assert "warning      memory" in capsys.readouterr().out
    assert main(["doctor", "--url", built.closed()]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("Broken: port.")
    assert err == ""


def test_the_command_s_json_is_one_object(built: Chain) -> None:
    """On standard output, whatever the locale."""
    built.examine(providers=[provider("Ollama für uns", base_url=built.start(chain.ollama()).url)])
    done = run("--json", "--deep", VANE_URL=built.vane.url, LC_ALL="C", PYTHONUTF8="0")
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert done.returncode == 0
    assert [link["name"] for link in told["links"]] == module._ORDER.split()
    assert {link["state"] for link in told["links"]} == {"ok"}
    assert all(set(link) == {"name", "state", "text", "step"} for link in told["links"])
    assert "Ollama für uns" in done.stdout
    assert re.search(r"ipython [\d.]+, ipywidgets [\d.]+, httpx [\d.]+, httpcore", done.stdout)
    assert len(built.vane.searches) == 1


@pytest.mark.parametrize("option", ["--depe", "what is TCP?", "--url"])
def test_the_command_refuses_what_it_does_not_know(option: str) -> None:
    """As every command does."""
    with pytest.raises(SystemExit) as raised:
        main(["doctor", option])
    assert raised.value.code == 2


def test_the_client_s_failures_name_the_doctor() -> None:
    """All but those whose cause is what the caller gave, or which the caller wanted."""
    table = Table("errors.md", ("code", "fallback", "when", "message"), key=2)
    rows = [row for row in map(table.row, table.keys()) if row]
    silent = {row[2] for row in rows if "%vane_doctor" not in row[3]}
    told = {"CANCELLED", "INTERNAL_ERROR", "INVALID_INPUT"}
    assert {row[2] for row in rows if row[0] in told} <= silent
    assert {row[2] for row in rows if row[0] not in told} & silent == {
        *("a bad timeout", "a bad wait", "a bad value in the environment", "a bad value of VaneClient"),
        "a timeout above the mode's limit",
    }


# The user cases, as far as the doctor has a part in them ---


def of_case(built: Chain, case: str, *, deep: bool = False, **environ: str) -> Diagnosis:
    built.patch.setenv("VANE_TIMEOUT", "1")
    for name, value in environ.items():
        built.patch.setenv(name, value)
    built.vane = built.start(case_server(case))
    return diagnose(built.vane.url, deep=deep)


@pytest.mark.parametrize(
    ("case", "name", "words"),
    [
        ("C01", "Vane", ["1.10 or earlier", "Upgrade it to Vane 1.12"]),
        ("C06", "Vane", ["it is not Vane", "VANE_URL"]),
        ("C11", "providers", ["There are none", "ollama pull"]),
    ],
)
def test_a_case_that_fails_before_the_question(built: Chain, case: str, name: str, words: list[str]) -> None:
    """One message, which names the next step; no search is posted."""
    found = of_case(built, case, deep=True)
    assert link(found, name).state == BROKEN
    assert all(word in said(found, name) for word in words)
    assert built.vane.searches == []


@pytest.mark.parametrize(
    ("case", "state", "words"),
    [
        ("D01", BROKEN, ["status 500", "An error has occurred.", "chat or embedding model"]),
        ("D03", BROKEN, ["1 s limit of speed mode", "may still be at work"]),
        ("D06", BROKEN, ["before it was whole"]),
        ("D10", WARNING, ["no source backs this answer"]),
        ("D19", BROKEN, ["status 503", "It asks to wait: 30"]),
        ("D21", BROKEN, ["1 s limit"]),
        ("E05", WARNING, ["no source backs this answer", "SearXNG"]),
    ],
)
def test_a_case_that_fails_in_the_question(
    built: Chain, case: str, state: str, words: list[str], lock_path: Path
) -> None:
    """With --deep; asked once, and the lock is free at once (F07)."""
    found = of_case(built, case, deep=True)
    assert link(found, "question").state == state
    assert all(word in said(found, "question") for word in words), said(found, "question")
    assert len(built.vane.searches) == 1
    with GpuLock(lock_path):
        pass


@pytest.mark.parametrize("case", ["C04", "D16", "D23"])
def test_a_case_that_is_well(built: Chain, case: str) -> None:
    """Unknown members, proxies and a running event loop change nothing."""
    found = of_case(built, case, deep=True, **(CASES[case]["env"] or {}))
    assert found.ok
    assert link(found, "question").state == OK


def test_c09_the_order_of_the_providers_does_not_matter(built: Chain) -> None:
    """Both examinations name the same models."""
    first = of_case(built, "C09")
    assert said(diagnose(built.vane.url), "models") == said(first, "models")


def test_c10_a_model_that_two_have(built: Chain) -> None:
    """Refused with both ids, never a silent first match."""
    built.patch.setenv("VANE_CHAT_MODEL", MODEL)
    both = [provider(base_url=built.start(chain.ollama()).url, provider_id=name) for name in ("a", "b")]
    assert f"Name one of: a/{MODEL}, b/{MODEL}." in said(built.examine(providers=both), "models")


@pytest.mark.parametrize(
    ("case", "model", "state", "words"),
    [
        ("C13", "llama3.1", WARNING, "llama3.1:latest"),
        ("C13", "LLAMA3.1:LATEST", WARNING, "llama3.1:latest"),
        ("C13", "mistral", BROKEN, "It has: Ollama/llama3.1:latest"),
        ("C10", "Ollama/qwen3:8b", WARNING, "Ollama/qwen3:8b"),
    ],
)
def test_c10_and_c13_a_model_by_its_name(built: Chain, case: str, model: str, state: str, words: str) -> None:
    """Found, or refused with the list; "unverified" is the warning, since these servers do not tell addresses."""
    found = of_case(built, case, VANE_CHAT_MODEL=model)
    assert link(found, "models").state == state
    assert words in said(found, "models")


def test_d12_nothing_listens(built: Chain) -> None:
    """Told at once: how to start Vane, which setting holds the address, whose loopback interface it is."""
    began = time.monotonic()
    told = said(diagnose(built.closed()), "port")
    assert time.monotonic() - began < 2
    assert all(words in told for words in ("docker start vane", "VANE_URL", "the machine on which the kernel runs"))


@pytest.mark.parametrize("form", ["{}/", "{}/api/search", " {} \n", "{bare}"])
def test_d24_an_address_in_other_forms(built: Chain, form: str) -> None:
    """Each is examined as the plain one."""
    server = built.start(ScriptedServer())
    found = diagnose(form.format(server.url, bare=server.url.removeprefix("http://")))
    assert link(found, "Vane").state == OK
    assert f"{server.url} (the call)" in said(found, "address")


@pytest.mark.parametrize("wait", ["0", "0.3"])
def test_f01_and_f10_a_held_lock_names_its_holder(built: Chain, wait: str, lock_path: Path) -> None:
    """Who and since when; --deep waits as long as the setting says, and no search is posted."""
    with GpuLock(lock_path, mode="balanced"):
        found = of_case(built, "F10", deep=True, VANE_WAIT=wait)
    assert link(found, "lock").state == WARNING
    assert re.search(rf"held: pid {os.getpid()}, balanced, since \d\d:\d\d:\d\d", said(found, "lock"))
    assert link(found, "question").state == WARNING
    assert ("Waited 0.3 s for the GPU lock" in said(found, "question")) is (wait != "0")
    assert built.vane.searches == []


def test_f03_no_place_for_the_lock(built: Chain) -> None:
    """The path and the setting to move it; not a GPU in use."""
    built.patch.delenv("VANE_LOCK_PATH")
    for name, value in CASES["F03"]["env"].items():
        built.patch.setenv(name, value)
    told = said(built.examine(), "lock")
    assert f"/proc/{HOME_LOCK}" in told
    assert "VANE_LOCK_PATH" in told
    assert "held" not in told


# The notebook ---


def test_the_magic_shows_and_returns_the_diagnosis(built: Chain) -> None:
    """With the kernel's %config; --deep as for the command, anything else is refused."""
    built.examine()
    with open_notebook() as notebook:
        notebook.config(url=built.vane.url)
        shown_ = notebook.run("%vane_doctor").out
        assert "No link is broken." in shown_
        assert "(%config VaneMagics.url)" in shown_
        notebook.run("d = %vane_doctor --deep")
        assert link(notebook["d"], "question").state == OK
        assert isinstance(notebook.run("%vane_doctor now", fails=True).error, UsageError)


# The transcript ---


def without_engines_and_lock(built: Chain) -> Diagnosis:
    built.patch.setenv("VANE_LOCK_PATH", f"/proc/{HOME_LOCK}")
    return built.examine(searxng=chain.searxng(engines=[engine("bing", enabled=False)]), ollama=chain.ollama(loaded=[]))


TRANSCRIPTS: Mapping[str, Callable[[Chain], Diagnosis]] = {
    "A healthy chain": lambda built: built.examine(deep=True),
    "Vane is not running": VANE["nothing listens"][3],
    "Vane hangs, since its Ollama does": VANE["it hangs on Ollama"][3],
    "Ollama is down": OLLAMA["it is down"][3],
    "The model cannot call tools": OLLAMA["the model cannot call tools"][3],
    "SearXNG has its JSON format off": SEARXNG["its JSON is off"][3],
    "No engine is on, and no file can be made at the lock's place": without_engines_and_lock,
}


def plain(text: str, built: Chain) -> str:
    """A text without what differs from run to run."""
    for server, port in ((built.ollama, 11434), (built.searxng, 8080)):
        text = text.replace(server, f"http://127.0.0.1:{port}") if isinstance(server, str) else text
        text = text.replace(f":{server.port}", f":{port}") if isinstance(server, Server) else text
    text = re.sub(r"127\.0\.0\.1:(?!11434|8080)\d+", "127.0.0.1:3000", text)
    text = re.sub(r"/(?!proc)\S+/\.vane-gpu-worker\.lock", f"$HOME/{HOME_LOCK}", text)
    text = re.sub(r"in \d\.\d s|for \d min", lambda found: re.sub(r"\d", "3", found[0]), text)
    text = text.replace("limit of 1 s", "limit of 5 s")
    return re.sub(r"Python \d.*", "Python and the libraries it found.", text)


def test_the_transcript_is_what_the_doctor_says(built: Chain, write_tables: bool) -> None:
    """A healthy chain and six broken ones."""
    parts = [
        "# What the doctor says\n\nWritten by `pytest tests/test_diagnosis.py --write-tables`, and checked by each run.\n"
    ]
    for title, examine in TRANSCRIPTS.items():
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            one = Chain(stack, patch)
            found = examine(one)
            links = [link._replace(text=plain(link.text, one), step=plain(link.step, one)) for link in found.links]
            text = str(Diagnosis(tuple(links)))
        parts.append(
            f"## {title}\n\n```text\n$ vane-research doctor{' --deep' if 'healthy' in title else ''}\n{text}\n```\n"
        )
    page = "\n".join(parts)
    if write_tables:
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page
