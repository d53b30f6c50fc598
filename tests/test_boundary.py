"""What counts as this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import pytest
from hostile_addresses import ALLOWED, NORMALISED_FIRST, NOT_TEXT, REFUSED
from hypothesis import given
from hypothesis import strategies as st

from vane_magic.core.boundary import (
    Endpoint,
    Locality,
    check_endpoint,
    host_of,
    locality_of_host,
    locality_of_model,
    loopback_of,
)
from vane_magic.core.errors import SecurityBoundaryViolation

LOCAL, UNVERIFIED, REMOTE = Locality

_socket_events: list[str] | None = None


def _note_socket_events(event: str, _: object) -> None:
    if _socket_events is not None and event.startswith("socket."):
        _socket_events.append(event)


sys.addaudithook(_note_socket_events)


@contextmanager
def _no_socket_is_touched() -> Iterator[None]:
    global _socket_events  # noqa: PLW0603 - an audit hook cannot be removed, only silenced
    _socket_events = []
    try:
        yield
        assert _socket_events == []
    finally:
        _socket_events = None


def _refusal(url: object) -> SecurityBoundaryViolation | None:
    try:
        check_endpoint(url)
    except SecurityBoundaryViolation as error:
        return error
    return None


# Vane's own address ---


def test_the_corpus_is_large() -> None:
    """Hundreds of texts on either side, none on both."""
    assert len(REFUSED) > 500
    assert len(ALLOWED) > 300
    assert not set(REFUSED) & set(ALLOWED)


def test_loopback_addresses_are_read() -> None:
    """Scheme, host, port and path come out, in lower case where case means nothing."""
    assert {url: check_endpoint(url) for url in ALLOWED} == {url: Endpoint(*parts) for url, parts in ALLOWED.items()}


def test_everything_else_is_refused() -> None:
    """No text off the list passes, and judging one touches no socket and no resolver."""
    with _no_socket_is_touched():
        assert [url for url in (*REFUSED, *NOT_TEXT) if _refusal(url) is None] == []


@pytest.mark.parametrize("url", ["http://192.168.1.20:3000", "http://vane.lan:3000", "https://vane.example.org"])
def test_a_refusal_says_what_is_allowed_and_where_to_set_it(url: str) -> None:
    """One line names the address, the allowed forms and the setting."""
    error = _refusal(url)
    assert error is not None
    assert "\n" not in error.message
    for part in (url, "loopback", "http://", "https://", "127.0.0.1", "localhost", "[::1]", "url (VANE_URL)"):
        assert part in error.message


def test_a_refusal_is_safe_to_print() -> None:
    """Control, bidi and other odd characters are escaped, and a long text is cut."""
    for url in (*REFUSED, *NOT_TEXT):
        error = _refusal(url)
        assert error is not None
        assert error.message.isascii(), url
        assert error.message.isprintable(), url
        assert len(error.message) < 600, url


@pytest.mark.parametrize(
    "url",
    [
        "http://hunter2@127.0.0.1",
        "http://user:hunter2@vane.example.org/a",
        "http://user:hunter2@a@127.0.0.1:3000",
        "http://user:hunter2?a#b/c@127.0.0.1",
        "http://user:hunter2\uff20127.0.0.1",
        "http://hunter2@" + "a" * 3_000,
        "http://127.0.0.1:3000/?token=hunter2",
        "http://vane.example.org?key=hunter2#hunter2",
    ],
)
def test_a_refusal_hides_secrets(url: str) -> None:
    """Neither userinfo nor a query string is shown."""
    error = _refusal(url)
    assert error is not None
    assert "hunter2" not in error.message


def test_nothing_is_repaired() -> None:
    """A missing scheme and outer blanks are the settings' business, not the boundary's."""
    assert all(_refusal(url) for url in NORMALISED_FIRST)


@pytest.mark.parametrize(
    ("url", "path", "whole"),
    [
        ("http://127.0.0.1:3000", "/api/search", "http://127.0.0.1:3000/api/search"),
        ("http://127.0.0.1:3000/", "/api/search", "http://127.0.0.1:3000/api/search"),
        ("HTTPS://LOCALHOST/vane/", "/api/config", "https://localhost:443/vane/api/config"),
        ("http://[::1]:8080", "", "http://[::1]:8080"),
    ],
)
def test_urls_are_rebuilt_from_the_parts(url: str, path: str, whole: str) -> None:
    """No slash is doubled and none is lost, and the port is always written."""
    assert whole == check_endpoint(url).url(path)


def _reference(text: str) -> bool:
    """The rule of `check_endpoint` once more, by cutting instead of by an expression."""
    scheme, mark, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    host, colon, port = authority.rpartition(":") if authority[-1:] != "]" else (authority, "", "")
    if not colon:
        host = authority
    segments = (path.removesuffix("/")).split("/") if path else []
    unreserved = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
    return (
        text.isascii()
        and bool(mark)
        and scheme.lower() in {"http", "https"}
        and host.lower() in {"127.0.0.1", "localhost", "[::1]"}
        and (not colon or (port.isdigit() and port[0] != "0" and 1 <= int(port) <= 65535))
        and (not path or bool(slash))
        and all(segment and set(segment) <= unreserved and segment not in {".", ".."} for segment in segments)
    )


_FRAGMENTS: Final = (
    *(
        "http",
        "https",
        "HTTP",
        "://",
        ":",
        "/",
        "//",
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "::1",
        "[",
        "]",
        "1",
        "0",
    ),
    *(
        "3000",
        "65535",
        "65536",
        "example.org",
        "@",
        "\\",
        "?",
        "#",
        ".",
        "..",
        "a",
        "%",
        " ",
        "\n",
        "\0",
        "\u3002",
        "\u017f",
    ),
)


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(_FRAGMENTS), max_size=9).map("".join),
        st.tuples(
            st.sampled_from(["http://127.0.0.1", "https://localhost", "http://[::1]"]),
            st.lists(st.sampled_from(_FRAGMENTS), max_size=6).map("".join),
        ).map("".join),
    )
)
def test_the_verdict_follows_the_rule(text: str) -> None:
    """For any text the verdict is the reference's, and an allowed one reads the same when written again."""
    if not _reference(text):
        assert _refusal(text) is not None
        return
    endpoint = check_endpoint(text)
    assert endpoint.host in {"127.0.0.1", "localhost", "::1"}
    assert check_endpoint(str(endpoint)) == endpoint
    assert urlsplit(text).hostname == endpoint.host


# What stands behind Vane ---

_OWN: Final = {"192.168.1.20", "fd00::20", "203.0.113.20", "::ffff:192.168.1.20", "127.1", "0x7f.1"}

_VERDICTS: Final = {
    LOCAL: (
        *("host.docker.internal", "host.containers.internal"),
        *("localhost", "LocalHost", "127.0.0.1", "127.0.0.2", "127.255.255.254", "::1"),
        *("0:0:0:0:0:0:0:1", "0.0.0.0", "::"),  # to connect to the unspecified address is to connect to oneself
        *("192.168.1.20", "fd00::20", "FD00::20", "203.0.113.20"),  # this machine's own
    ),
    UNVERIFIED: (
        *(None, "", "ollama", "searxng", "my_ollama", "ollama-1"),
        *("OLLAMA", "ip6-localhost", "xn--bcher-kva", "a", "a" * 63),
        *("ollama.localhost", "a.b.localhost"),  # not every resolver keeps these on the machine
        *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.21", "169.254.1.1", "100.64.0.1", "100.127.255.255"),
        *("fd00::1", "fc00::1", "fe80::1", "fe80::1%eth0"),
    ),
    REMOTE: (
        *("api.openai.com", "ollama.com", "searx.be"),
        *("vane.lan", "ollama.local", "a.b", "ollama.default.svc.cluster.local"),
        *("8.8.8.8", "203.0.113.21", "172.15.255.255", "172.32.0.1"),
        *("100.63.255.255", "100.128.0.1", "192.169.0.1", "1.1.1.1"),
        *("0.0.0.1", "128.0.0.1", "126.255.255.255", "224.0.0.1", "255.255.255.255", "2001:db8::1", "ff02::1", "::2"),
        # odd forms of loopback, and of this machine's own addresses
        *("127.1", "127.0.1", "0x7f.1", "0x7f000001", "0X7F000001"),
        *("2130706433", "017700000001", "0", "0x", "127", "0177.0.0.1"),
        *("127.0.0.01", "127.0.0.1.", "::ffff:127.0.0.1", "::ffff:192.168.1.20", "::127.0.0.1", "[::1]", "::1%lo"),
        *("localhost.", "localhost.example.org", ".localhost"),
        *("localhost.localdomain", "host.docker.internal.", "ollama."),
        *("134744072", "0x08080808", "localho\u017ft"),
        *("\u24dbocalhost", "b\u00fccher", "127\u30020.0.1", "\uff11\uff12\uff17.0.0.1"),
        *("host.doc\u212aer.internal", "local host", "a/b", "a@b", "a\\b", "a:b", "%6cocalhost"),
        *(" localhost", "localhost\n", "a\0", ".", "..", "-.-", "a" * 64, "a" * 5_000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("verdict", Locality)
def test_hosts_are_judged(verdict: Locality) -> None:
    """Local, unverified or remote, by the text alone; odd forms are never local."""
    with _no_socket_is_touched():
        judged = {host: locality_of_host(host, is_own_address=_OWN.__contains__) for host in _VERDICTS[verdict]}
    assert dict.fromkeys(_VERDICTS[verdict], verdict) == judged


def test_only_literal_addresses_are_asked_for() -> None:
    """The kernel hears of usual literal addresses only, never of names."""
    asked: list[str] = []
    for host in (host for hosts in _VERDICTS.values() for host in hosts):
        locality_of_host(host, is_own_address=lambda address: bool(asked.append(address)))
    assert {"192.168.1.20", "fd00::20", "8.8.8.8"} <= set(asked)
    assert all(set(address) <= set("0123456789abcdef:.") for address in asked)
    assert not any("ffff:" in address or address in {"127.1", "127", "0"} for address in asked)


def test_the_worst_verdict_is_the_greatest() -> None:
    """So `max` of several verdicts is the one that counts."""
    assert max(Locality) == Locality.REMOTE
    assert [verdict.name for verdict in sorted(Locality)] == ["LOCAL", "UNVERIFIED", "REMOTE"]


_HOSTS: Final = {
    "http://localhost:11434": "localhost",
    "http://LOCALHOST:11434/": "localhost",
    "https://api.openai.com/v1": "api.openai.com",
    "http://host.docker.internal:11434": "host.docker.internal",
    "http://my_ollama:11434/v1/": "my_ollama",
    "http://[::1]:8080": "::1",
    "http://[FD00::20]/v1?x=1#y": "fd00::20",
    "http://127.0.0.1": "127.0.0.1",
    " http://searxng:8080\n": "searxng",
    "localhost:11434": "localhost",
    "127.0.0.1:11434/api": "127.0.0.1",
    "ollama": "ollama",
    "0.0.0.0:11434": "0.0.0.0",
    "http://2130706433": "2130706433",
    "http://localhost.": "localhost.",
}


def test_the_host_of_an_address_is_found() -> None:
    """With and without a scheme, in lower case, an IPv6 address without its brackets."""
    assert {url: host_of(url) for url in _HOSTS} == _HOSTS


@pytest.mark.parametrize("url", [None, "", "  ", "\n", 5, True, b"http://localhost", [], {}, object()])
def test_no_address_has_no_host(url: object) -> None:
    """What is no text, or empty, has none."""
    assert host_of(url) is None


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://localhost@example.org",
            "http://localhost:80@example.org",
            "http://user:pw@localhost",
            "http://@localhost",
        ),
        *(
            "http://localhost\\@example.org",
            "http://example.org\\@localhost",
            "http:\\\\localhost",
            "http://localhost\\a",
        ),
        *(
            "http://localhost/@example.org",
            "http://local\thost",
            "http://local\nhost",
            "http://localhost\0",
            "\0http://localhost",
        ),
        *("http://%6cocalhost", "http://localhost%2eexample.org", "http://\u24dbocalhost", "http://localho\u017ft"),
        *(
            "http://127\u30020.0.1",
            "http://local\u00adhost",
            "http://[::1%25lo]",
            "http://[abc]",
            "http://[::1",
            "http://[]",
        ),
        *(
            "http:localhost",
            "http:/localhost",
            "http:///localhost",
            "http:8080",
            "https:80",
            "//localhost",
            "/localhost",
            "http://",
        ),
        *("ftp://localhost", "ws://localhost", "file:///etc/hosts", "unix:/run/ollama.sock", "socks5://localhost:1080"),
        *(
            "http://localhost:port",
            "http://localhost:123456",
            "http://localhost:",
            "http://localhost:80:80",
            "http://local host",
        ),
        *(
            "localhost:11434@example.org",
            ":11434",
            "?",
            "#",
            "http://a,b",
            "http://localhost" + "/" * 2_000,
            "x" * 100_000,
        ),
    ],
)
def test_a_doubtful_address_counts_as_remote(url: str) -> None:
    """Where two parsers might disagree about the host, nothing is taken for local, nor for missing."""
    host = host_of(url)
    assert host is not None
    assert locality_of_host(host, is_own_address=lambda _: True) is REMOTE


_ON_LOOPBACK: Final = {
    "http://localhost:11434": Endpoint("http", "localhost", 11434),
    "https://127.0.0.1/v1?key=secret#x": Endpoint("https", "127.0.0.1", 443),
    "http://[::1]:8080/": Endpoint("http", "::1", 8080),
    "http://host.docker.internal:11434/v1": Endpoint("http", "127.0.0.1", 11434),
    "http://host.containers.internal:11434": Endpoint("http", "127.0.0.1", 11434),
    " LOCALHOST:11434\n": Endpoint("http", "localhost", 11434),
}
_NOT_ON_LOOPBACK: Final = (
    *(None, "", 5, "http://ollama:11434", "http://127.0.0.2", "http://0.0.0.0:1", "http://192.168.1.20", "https://example.org"),
    *("http://u:p@localhost", "http://localhost\\@example.org", "http://localhost:0", "http://localhost:99999", "ftp://localhost"),
    *("http://localhost.", "http://127.1", "http://2130706433", "http://[0::1]", "http:localhost"),
)  # fmt: skip


def test_only_what_is_on_loopback_may_be_asked_directly() -> None:
    """Of the addresses in Vane's configuration, without their paths and secrets."""
    assert {url: loopback_of(url) for url in _ON_LOOPBACK} == _ON_LOOPBACK
    assert [url for url in _NOT_ON_LOOPBACK if loopback_of(url) is not None] == []


@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(_FRAGMENTS), max_size=9).map("".join),
        st.lists(st.sampled_from(_FRAGMENTS), max_size=6).map(lambda parts: "http://" + "".join(parts)),
    )
)
def test_a_host_is_what_other_parsers_say_or_remote(text: str) -> None:
    """Whatever the text, there is no exception; what is not remote is what the standard library reads, too."""
    host = host_of(text)
    if locality_of_host(host, is_own_address=lambda _: False) is REMOTE or host is None:
        return
    endpoint = loopback_of(text)
    assert endpoint is None or endpoint.host == host
    text = text.strip()
    assert host == urlsplit(text if text.lower().startswith(("http://", "https://")) else f"//{text}").hostname


@pytest.mark.parametrize("host", Locality)
def test_transformers_run_inside_vane(host: Locality) -> None:
    """Their models are local, since Vane itself runs them."""
    assert locality_of_model("transformers", host, "Xenova/all-MiniLM-L6-v2") is LOCAL


@pytest.mark.parametrize("kind", ["ollama", "openai", ""])
@pytest.mark.parametrize("key", ["gpt-oss:120b-cloud", "kimi-k2:cloud", "GLM-4.6:CLOUD", "x-cloud"])
def test_cloud_models_of_ollama_are_remote(kind: str, key: str) -> None:
    """Although their provider stands on this machine; Ollama speaks for type openai and an unknown one, too."""
    assert locality_of_model(kind, LOCAL, key) is REMOTE


@pytest.mark.parametrize("host", Locality)
@pytest.mark.parametrize("key", ["qwen3:8b", "cloud", "cloud:8b", "nextcloud:latest", "my-cloud:1b", ""])
def test_other_models_run_where_their_provider_stands(host: Locality, key: str) -> None:
    """The word cloud elsewhere in a name means nothing."""
    assert locality_of_model("ollama", host, key) is host
