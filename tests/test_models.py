"""Which models a question goes to, and what is refused."""

from __future__ import annotations

import random

import pytest

from vane_magic.core.boundary import Locality
from vane_magic.core.errors import ConfigurationError, SecurityBoundaryViolation
from vane_magic.core.models import Choice, chat_names, choose
from vane_magic.core.vane_api import ModelEntry, Provider, Server

LOOPBACK = "127.0.0.1"


def entries(*keys: str) -> tuple[ModelEntry, ...]:
    return tuple(ModelEntry(key, key.split("/")[-1].upper() if "/" in key else key) for key in keys)


def ollama(*keys: str, number: int = 1, name: str = "Ollama", host: str | None = LOOPBACK) -> Provider:
    """Ollama lists each of its models for both uses."""
    return Provider(f"id-{number}", name, "ollama", host, entries(*keys), entries(*keys))


TRANSFORMERS = Provider("id-t", "Transformers", "transformers", None, (), entries("Xenova/all-MiniLM-L6-v2"))


def server(*providers: Provider, searxng: str | None = LOOPBACK, setup: bool = True, told: bool = True) -> Server:
    return Server(providers, setup_complete=setup, searxng_host=searxng, told_hosts=told)


def pick(found: Server, chat: str | None = None, embedding: str | None = None, *, remote: bool = False) -> Choice:
    return choose(found, chat, embedding, allow_remote=remote)


def test_the_choice_does_not_hang_on_the_order_of_the_lists() -> None:
    """Vane lists in the order in which the providers answered."""
    providers = [TRANSFORMERS, ollama("b:1b", "a:2b", "nomic-embed-text:latest"), ollama("c:1b", number=2, name="Box")]
    chosen = set()
    for _ in range(20):
        random.shuffle(providers)
        choice = pick(server(*providers))
        chosen.add((str(choice.chat), str(choice.embedding), choice.fitting))
    assert chosen == {("Box/c:1b", "Ollama/nomic-embed-text:latest", 3)}


def test_embedding_models_are_never_chosen_for_chat() -> None:
    """Ollama lists them among its chat models."""
    assert pick(server(ollama("all-minilm:l6", "bge-m3:latest", "nomic-embed-text", "qwen3:8b"))).chat.key == "qwen3:8b"
    with pytest.raises(ConfigurationError, match="no working chat model"):
        pick(server(ollama("nomic-embed-text:latest", "mxbai-embed-large")))


@pytest.mark.parametrize(
    "asked",
    [
        "llama3.1:latest", "llama3.1", "LLAMA3.1:LATEST", "Llama3.1", "Ollama/llama3.1", "ollama/LLAMA3.1:latest",
        "id-1/llama3.1:latest",
    ],
)  # fmt: skip
def test_a_model_is_found_by_every_usual_form_of_its_name(asked: str) -> None:
    """With or without provider and tag, in any case."""
    assert pick(server(TRANSFORMERS, ollama("llama3.1:latest", "qwen3:8b")), asked).chat.key == "llama3.1:latest"


def test_a_key_with_a_slash_is_a_whole_name_first() -> None:
    """Only then is the text split after a provider's name."""
    found = server(ollama("library/qwen:1b"), ollama("qwen:1b", number=2, name="library"))
    assert pick(found, "library/qwen:1b").chat.provider_id == "id-1"
    assert pick(found, "id-2/qwen:1b").chat.provider_id == "id-2"


def test_an_exact_name_wins_over_another_case() -> None:
    """Case is ignored only when that leaves one."""
    found = server(ollama("Qwen:1b", "qwen:1b"))
    assert pick(found, "qwen:1b").chat.key == "qwen:1b"
    with pytest.raises(ConfigurationError, match="More than one chat model"):
        pick(found, "QWEN:1b")


def test_a_display_name_serves_where_no_key_fits() -> None:
    """An OpenAI-type provider's models are often known by their names."""
    openai = Provider("id-o", "Box", "openai", LOOPBACK, (ModelEntry("smollm2", "SmolLM2 135M"),))
    assert pick(server(TRANSFORMERS, openai), "SmolLM2 135M").chat.key == "smollm2"


def test_two_providers_of_one_name_go_by_who_has_the_model() -> None:
    """Never a silent first match."""
    found = server(ollama("qwen3:8b", "both"), ollama("gemma:2b", "both", number=2))
    assert pick(found, "Ollama/gemma:2b").chat.provider_id == "id-2"
    with pytest.raises(ConfigurationError, match=r"id-1/both, id-2/both"):
        pick(found, "Ollama/both")


def test_an_unknown_name_is_refused_with_the_list() -> None:
    """For chat and embedding models; a long list is cut."""
    with pytest.raises(ConfigurationError, match=r"no chat model 'mistral'.*Ollama/a, Ollama/b"):
        pick(server(ollama("b", "a")), "mistral")
    with pytest.raises(ConfigurationError, match="no embedding model 'x'"):
        pick(server(ollama("a")), None, "x")
    with pytest.raises(ConfigurationError, match="m11, …"):
        pick(server(ollama(*(f"m{n:02}" for n in range(40)))), "mistral")


def test_a_configured_embedding_model_is_taken_and_a_missing_one_refused() -> None:
    """A search must name one, though it is not called."""
    assert pick(server(TRANSFORMERS, ollama("a")), None, "ALL-MINILM-L6-V2").embedding.provider == "Transformers"
    bare = Provider("id-b", "Box", "lmstudio", LOOPBACK, entries("a"))
    with pytest.raises(ConfigurationError, match="no embedding model"):
        pick(server(bare))


# Where it runs ---


@pytest.mark.parametrize(
    ("kind", "host", "key", "locality"),
    [
        ("ollama", "127.0.0.1", "qwen3:8b", Locality.LOCAL),
        ("ollama", "localhost", "qwen3:8b", Locality.LOCAL),
        ("ollama", "host.docker.internal", "qwen3:8b", Locality.LOCAL),
        ("ollama", "ollama", "qwen3:8b", Locality.UNVERIFIED),
        ("ollama", "192.168.1.7", "qwen3:8b", Locality.UNVERIFIED),
        ("ollama", "gpu.example.org", "qwen3:8b", Locality.REMOTE),
        ("ollama", "127.0.0.1", "gpt-oss:120b-cloud", Locality.REMOTE),
        ("ollama", "127.0.0.1", "deepseek:cloud", Locality.REMOTE),
        ("ollama", None, "qwen3:8b", Locality.UNVERIFIED),
        ("lmstudio", "127.0.0.1", "m", Locality.LOCAL),
        ("lemonade", "127.0.0.1", "m", Locality.LOCAL),
        ("openai", "127.0.0.1", "m", Locality.LOCAL),
        ("openai", "api.openai.com", "gpt-4o", Locality.REMOTE),
        ("openai", None, "gpt-4o", Locality.REMOTE),
        ("anthropic", None, "claude", Locality.REMOTE),
        ("gemini", None, "gemini", Locality.REMOTE),
        ("groq", None, "llama", Locality.REMOTE),
        ("groq", "127.0.0.1", "llama", Locality.REMOTE),
        ("mistral", None, "m", Locality.REMOTE),
        ("mistral", "127.0.0.1", "m", Locality.LOCAL),
        ("", None, "m", Locality.REMOTE),
        ("lmstudio", None, "m", Locality.UNVERIFIED),
        ("lemonade", None, "m", Locality.UNVERIFIED),
        ("transformers", None, "m", Locality.LOCAL),
        ("localdocs", None, "m", Locality.UNVERIFIED),
        ("localdocs", "127.0.0.1", "extractive (no language model)", Locality.LOCAL),
    ],
)
def test_each_kind_of_provider_has_its_place(kind: str, host: str | None, key: str, locality: Locality) -> None:
    """By type, address and model; remote ones are refused unless allowed."""
    found = server(Provider("id-x", "X", kind, host, entries(key)), TRANSFORMERS)
    assert pick(found, remote=True).locality is locality
    if locality is Locality.REMOTE:
        with pytest.raises(SecurityBoundaryViolation, match="does not run on this machine"):
            pick(found)
    else:
        assert pick(found).locality is locality


def test_a_remote_provider_that_is_only_set_up_is_no_reason_to_refuse() -> None:
    """Local goes before unverified, and remote is never chosen by itself."""
    cloud = Provider("id-c", "A cloud", "openai", "api.openai.com", entries("gpt-4o"), entries("embed"))
    neighbour = ollama("a:1b", number=2, name="B", host="192.168.1.7")
    assert str(pick(server(cloud, neighbour, ollama("z:1b"), TRANSFORMERS)).chat) == "Ollama/z:1b"
    assert str(pick(server(cloud, neighbour, TRANSFORMERS)).chat) == "B/a:1b"
    assert str(pick(server(cloud, neighbour, TRANSFORMERS), remote=True).chat) == "B/a:1b"
    with pytest.raises(SecurityBoundaryViolation):
        pick(server(cloud, TRANSFORMERS))


def test_a_remote_search_engine_or_embedding_model_is_refused_too() -> None:
    """The worst verdict counts."""
    with pytest.raises(SecurityBoundaryViolation, match=r"search engine is on another machine: searx\.example\.org"):
        pick(server(ollama("a"), searxng="searx.example.org"))
    cloud = Provider("id-c", "Cloud", "openai", "api.openai.com", (), entries("embed-3"))
    with pytest.raises(SecurityBoundaryViolation, match="embedding model Cloud/embed-3"):
        pick(server(ollama("a"), cloud), None, "embed-3")
    assert pick(server(ollama("a"), searxng="searx.example.org"), remote=True).locality is Locality.REMOTE


def test_a_bare_list_of_models_leaves_the_place_unverified() -> None:
    """Without /api/config nobody tells where a provider stands."""
    listed = Provider("id-1", "Ollama", "", None, entries("qwen3:8b"), entries("nomic-embed-text"))
    assert pick(server(listed, searxng=None, told=False)).locality is Locality.UNVERIFIED
    cloud = Provider("id-1", "Ollama", "", None, entries("gpt-oss:120b-cloud"), entries("nomic-embed-text"))
    with pytest.raises(SecurityBoundaryViolation):
        pick(server(cloud, searxng=None, told=False))


def test_a_vane_without_models_says_why() -> None:
    """Not set up, a provider's own words, or the usual cause."""
    with pytest.raises(ConfigurationError, match="not been set up"):
        pick(server(TRANSFORMERS, setup=False))
    failed = Provider("id-1", "Ollama", "ollama", LOOPBACK, fault="Error connecting to Ollama API.")
    with pytest.raises(ConfigurationError, match=r"Ollama: Error connecting to Ollama API\."):
        pick(server(failed))
    with pytest.raises(ConfigurationError, match="localhost is the container itself"):
        pick(server())


def test_the_names_for_completion_are_those_that_can_be_asked_for() -> None:
    """In a fixed order, without embedding models."""
    found = server(TRANSFORMERS, ollama("b", "a", "nomic-embed-text"))
    assert chat_names(found) == ["Ollama/a", "Ollama/b"]
    assert all(str(pick(found, name).chat) == name for name in chat_names(found))
