"""What stays on this machine, judged by text alone: nothing here opens a socket or looks up a name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from vane_magic.core.errors import SecurityBoundaryViolation

_MAX_ADDRESS: Final = 2_000  # characters
_SHOWN: Final = 200  # characters of a refused address in a message

_ENDPOINT: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>127\.0\.0\.1|localhost|\[::1\])(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<path>(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9._~-]+)*)/?",  # no empty, "." or ".." segment
    re.ASCII | re.IGNORECASE,  # without ASCII, U+017F would match "s"
)


class Endpoint(NamedTuple):
    """An address on the loopback interface, as `check_endpoint` reads it; its text is rebuilt from the parts.

    Attributes
    ----------
    scheme : str
        ``http`` or ``https``.
    host : str
        ``127.0.0.1``, ``localhost`` or ``::1``.
    port : int
        1 to 65535.
    path : str
        Empty, or the path before Vane's own, with a leading and without a trailing slash.
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        return self.url()

    def url(self, path: str = "") -> str:
        """Give the URL of a path (with a leading slash) below this address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}{path}"


def check_endpoint(url: object) -> Endpoint:
    r"""Read an address of Vane's; nothing in it is repaired.

    Parameters
    ----------
    url
        ``http(s)://``, then ``127.0.0.1``, ``localhost`` or ``[::1]``, then a port and a path if need be.

    Raises
    ------
    SecurityBoundaryViolation
        It is anything else. The message is safe to print, and shows neither userinfo nor a query string.

    Notes
    -----
    The specification, "Security & Loopback Boundary". One expression over the whole text decides, since parsers
    disagree: which host ``http://evil.example\@localhost`` names depends on whom one asks.
    """
    if not isinstance(url, str) or len(url) > _MAX_ADDRESS:
        raise _refusal(url)
    match = _ENDPOINT.fullmatch(url)
    if match is None or int(match["port"] or 1) > 65535:  # noqa: PLR2004 - the highest port
        raise _refusal(url)
    scheme = match["scheme"].lower()
    port = int(match["port"]) if match["port"] else {"http": 80, "https": 443}[scheme]
    return Endpoint(scheme, match["host"].lower().strip("[]"), port, match["path"])


def _refusal(url: object) -> SecurityBoundaryViolation:
    return SecurityBoundaryViolation(
        f"{_shown(url)} is not allowed as Vane's address.",
        "Only loopback is, so that no question leaves this machine: http:// or https://, then 127.0.0.1, localhost"
        " or [::1], then at most a port and a plain path.",
        "Set url (VANE_URL) to such an address, for example http://127.0.0.1:3000.",
    )


def _shown(url: object) -> str:
    """A refused address without its secrets, in printable ASCII."""
    if not isinstance(url, str):
        return f"A value of type {type(url).__name__[:_SHOWN]}"
    if len(url) > _MAX_ADDRESS:
        return f"A text of {len(url):,} characters"
    *userinfo, rest = re.split("[@\ufe6b\uff20]", url)
    text, mark, _ = rest.partition("?")
    shown = ascii(f"{'...@' if userinfo else ''}{text}{'?...' if mark else ''}")
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


class Locality(IntEnum):
    """Where something that Vane uses runs; of several, the worst (`max`) counts."""

    LOCAL = 0
    UNVERIFIED = 1
    REMOTE = 2


_HOST_NAMES: Final = ("host.docker.internal", "host.containers.internal")  # by which Docker and Podman name the host
# Loopback, and the unspecified address: whoever connects to that reaches the own machine, or nothing.
_THIS_MACHINE: Final = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128", "0.0.0.0/32", "::/128")))
_PRIVATE_4: Final = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10")
_PRIVATE: Final = tuple(map(ipaddress.ip_network, (*_PRIVATE_4, "fc00::/7", "fe80::/10")))
# A compose service or a neighbour, and what is under .localhost, which not every resolver keeps on the machine.
# A name of digits alone, or 0x and hexadecimal ones, is an IPv4 address to Vane.
_NEIGHBOUR: Final = re.compile(r"(?![0-9]+\Z|0x[0-9a-f]*\Z)[a-z0-9_-]{1,63}|(?:[a-z0-9_-]{1,63}\.)+localhost")

_ODD: Final = "(odd address)"  # no name and no address: judged as remote
_BASE_URL: Final = re.compile(
    r"(?:(?P<scheme>https?)://|(?!https?:))"  # Ollama's library takes an address without a scheme, too
    r"(?:\[(?P<v6>[0-9a-f]*:[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?P<port>:[0-9]{1,5})?(?:[/?#][!-?A-\[\]-~]*)?",
    re.ASCII | re.IGNORECASE,
)


def host_of(url: object) -> str | None:
    """Give the host of a ``baseURL`` in Vane's configuration, in lower case; None when there is none.

    What two URL parsers might read differently (userinfo, backslashes, control characters, percent escapes,
    anything but ASCII) gives a text that is no host and that `locality_of_host` judges as remote.
    """
    if not isinstance(url, str) or not url.strip(" \t\r\n"):
        return None
    match = _base_url(url)
    return (match["v6"] or match["name"]).lower() if match else _ODD


def loopback_of(url: object) -> Endpoint | None:
    """Give scheme, host and port of such a URL when it is on the loopback interface; the rest may hold secrets.

    ``host.docker.internal`` (Docker) and ``host.containers.internal`` (Podman) are this machine, as a container on
    it says.
    """
    if not isinstance(url, str) or not (match := _base_url(url)):
        return None
    name = f"[{match['v6']}]" if match["v6"] else match["name"].lower()
    host = "127.0.0.1" if name in _HOST_NAMES else name
    try:
        return check_endpoint(f"{match['scheme'] or 'http'}://{host}{match['port'] or ''}")
    except SecurityBoundaryViolation:
        return None


def _base_url(url: str) -> re.Match[str] | None:
    return _BASE_URL.fullmatch(url.strip(" \t\r\n")) if len(url) <= _MAX_ADDRESS else None


def locality_of_host(host: str | None, *, is_own_address: Callable[[str], bool]) -> Locality:
    """Judge where a host is that Vane connects to.

    Parameters
    ----------
    host
        A name or address as `host_of` gives it. Forms of an address that are not the usual one, as ``127.1``
        or ``::ffff:127.0.0.1``, are never local.
    is_own_address
        Tells of a literal address whether it is one of this machine's.
    """
    if not host:
        return Locality.UNVERIFIED
    name = host.lower() if host.isascii() else _ODD
    if name in ("localhost", *_HOST_NAMES):
        return Locality.LOCAL
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return Locality.UNVERIFIED if _NEIGHBOUR.fullmatch(name) else Locality.REMOTE
    odd = isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id)
    if not odd and (any(address in block for block in _THIS_MACHINE) or is_own_address(name)):
        return Locality.LOCAL
    return Locality.UNVERIFIED if any(address in block for block in _PRIVATE) else Locality.REMOTE


def locality_of_model(provider_type: str, host: Locality, model_key: str) -> Locality:
    """Judge where a model runs: Transformers inside Vane, Ollama's cloud models at ollama.com, others at their host.

    The ending of a cloud model counts whatever the type, since Ollama answers behind type ``openai`` as well.
    """
    if provider_type == "transformers":
        return Locality.LOCAL
    return Locality.REMOTE if model_key.lower().endswith(("-cloud", ":cloud")) else host
