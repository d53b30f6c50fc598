"""Which chat and embedding model a question goes to, and whether it would leave this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from vane_magic.core.boundary import Locality, locality_of_host, locality_of_model
from vane_magic.core.errors import ConfigurationError, SecurityBoundaryViolation
from vane_magic.core.transport import is_own_address
from vane_magic.core.vane_api import Provider, Server

_EMBEDDING: Final = re.compile(r"embed|minilm|\bbge\b|\bgte\b|\be5\b|rerank|paraphrase", re.IGNORECASE)
_CLOUD_TYPES: Final = frozenset({"anthropic", "gemini", "groq"})  # fixed addresses of their makers
_LOCAL_TYPES: Final = frozenset({"ollama", "lmstudio", "lemonade", "localdocs", "transformers"})
_LISTED: Final = 12  # names in a message


class Model(NamedTuple):
    """One model of one provider."""

    provider_id: str
    provider: str
    key: str
    name: str
    locality: Locality

    def __str__(self) -> str:
        return f"{self.provider}/{self.key}"

    @property
    def reference(self) -> dict[str, str]:
        """The form in which a request names it."""
        return {"providerId": self.provider_id, "key": self.key}

    @property
    def embeds(self) -> bool:
        """Whether it looks like an embedding model; Ollama lists those among its chat models."""
        return bool(_EMBEDDING.search(self.key))


class Choice(NamedTuple):
    """The two models of a question; `fitting` says how many chat models an automatic choice had."""

    chat: Model
    embedding: Model
    locality: Locality
    fitting: int = 1


def choose(server: Server, chat_name: str | None, embedding_name: str | None, *, allow_remote: bool) -> Choice:
    """Choose by name, or by a fixed rule: local first, embedding models never for chat, then by name.

    Raises
    ------
    ConfigurationError
        There is no such model, more than one, or none at all.
    SecurityBoundaryViolation
        The model or the search engine is on another machine, and `allow_remote` is false.
    """
    chats, embeddings = list(_models(server, "chat")), list(_models(server, "embedding"))
    fitting = [] if chat_name else [model for model in chats if not model.embeds]
    if not chat_name and not fitting:
        raise _no_chat_model(server)
    chat = _named(chat_name, chats, "chat") if chat_name else min(fitting, key=_rank)
    if not embedding_name and not embeddings:
        hint = 'Add one in Vane\'s settings, for example with "ollama pull nomic-embed-text".'
        raise ConfigurationError("Vane lists no embedding model, and a search must name one.", hint=hint)
    embedding = _named(embedding_name, embeddings, "embedding") if embedding_name else min(embeddings, key=_rank)
    engine = locality_of_host(server.searxng_host, is_own_address=is_own_address)
    if not allow_remote:
        _refuse_remote(chat, embedding, engine, server)
    same = sum(model.locality == chat.locality for model in fitting)
    return Choice(chat, embedding, max(chat.locality, embedding.locality, engine), max(same, 1))


def chat_names(server: Server) -> list[str]:
    """The names by which the chat models can be asked for, in a fixed order."""
    return [str(model) for model in sorted(_models(server, "chat"), key=_order) if not model.embeds]


def _models(server: Server, kind: str) -> Iterator[Model]:
    for provider in server.providers:
        host = _provider_locality(provider, told=server.told_hosts)
        for entry in provider.chat if kind == "chat" else provider.embedding:
            locality = locality_of_model(provider.type, host, entry.key)
            yield Model(provider.id, provider.name or provider.id, entry.key, entry.name, locality)


def _provider_locality(provider: Provider, *, told: bool) -> Locality:
    # Without an address of its own a provider is at its maker's, as api.openai.com, unless it is made to run at home.
    away = told and provider.host is None and provider.type not in _LOCAL_TYPES
    if away or provider.type in _CLOUD_TYPES:
        return Locality.REMOTE
    return locality_of_host(provider.host, is_own_address=is_own_address)


def _order(model: Model) -> tuple[object, ...]:
    """A fixed order, since Vane's lists come in the order in which the providers answered."""
    return (model.provider.casefold(), model.key.casefold(), model.provider_id)


def _rank(model: Model) -> tuple[object, ...]:
    """The best first, where all do: to embed, a model made for it."""
    return (model.locality, not model.embeds, _order(model))


def _named(text: str, models: Sequence[Model], kind: str) -> Model:
    hits = next(filter(None, _readings(text, models)), list[Model]())
    if len(hits) == 1:
        return hits[0]
    names = [f"{m.provider_id}/{m.key}" if hits else str(m) for m in sorted(hits or models, key=_order)]
    listed = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
    if hits:
        raise ConfigurationError(f"More than one {kind} model is called {text!r}.", hint=f"Name one of: {listed}.")
    hint = f"It has: {listed}." if names else f"It has no {kind} models at all."
    raise ConfigurationError(f"Vane has no {kind} model {text!r}.", hint=hint)


def _readings(text: str, models: Sequence[Model]) -> Iterator[list[Model]]:
    """The models that a name may mean, one list for each way of reading it, the plainest first."""
    for form in (str, str.casefold):
        for wanted in (form(text), form(f"{text}:latest")):
            yield [m for m in models if form(m.key) == wanted]
            yield [m for m in models if form(m.name) == wanted]
            yield [m for m in models if wanted in map(form, _full_names(m))]


def _full_names(model: Model) -> Iterator[str]:
    owners, names = (model.provider, model.provider_id), (model.key, model.name)
    return (f"{owner}/{name}" for owner in owners for name in names)


def _refuse_remote(chat: Model, embedding: Model, engine: Locality, server: Server) -> None:
    for kind, model in (("chat", chat), ("embedding", embedding)):
        if model.locality is Locality.REMOTE:
            what, cause = f"The {kind} model {model} does not run on this machine.", "The question would leave it."
            hint = f"Choose a local one in Vane's settings or by {kind}_model, or allow it with allow_remote."
            raise SecurityBoundaryViolation(what, cause, hint)
    if engine is Locality.REMOTE:
        what = f"Vane's search engine is on another machine: {server.searxng_host}."
        hint = "Run SearXNG on this machine, or allow it with allow_remote."
        raise SecurityBoundaryViolation(what, "The search terms would be sent there.", hint)


def _no_chat_model(server: Server) -> ConfigurationError:
    if not server.setup_complete:
        what, cause = "Vane has not been set up yet.", "It has no chat model."
        return ConfigurationError(what, cause, "Open its page in a browser and finish the set-up.")
    faults = "; ".join(f"{p.name}: {p.fault}" for p in server.providers if p.fault)[:500]
    usual = (
        "It may not reach Ollama: in a container, localhost is the container itself, and Ollama must listen on an"
        " address that the container can see."
    )
    hint = 'Check the provider, or get a model: "ollama pull qwen3:8b".'
    return ConfigurationError("Vane is up, but has no working chat model.", faults or usual, hint)
