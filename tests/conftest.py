"""What every test gets: a home and an environment of its own, no way off this machine, checked results."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import jsonschema
import pytest
from browser import Lab, open_browser, open_lab
from servers.replay import ReplayServer
from servers.scripted import ScriptedServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

    from vane_magic.core.contract import ToolResult

# Servers ---


@pytest.fixture
def replay() -> Iterator[Callable[..., ReplayServer]]:
    """Start replay servers; they stop when the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(ReplayServer(*args, **options))


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    """Start scripted servers; they stop when the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(ScriptedServer(*args, **options))


# Home and environment ---

_PROXIES: Final = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY"}
_FOREIGN: Final = ("VANE_", "XDG_", "IPYTHON", "JUPYTER", "SSL_CERT_", "NETRC")


def _isolate(patch: pytest.MonkeyPatch, home: Path) -> None:
    home.mkdir()
    for name in list(os.environ):
        if name.upper() in _PROXIES or name.startswith(_FOREIGN):
            patch.delenv(name)
    patch.setenv("HOME", str(home))


@pytest.fixture(scope="session", autouse=True)
def _isolated_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For the fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        _isolate(patch, tmp_path_factory.mktemp("session") / "home")
        yield


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _isolate(monkeypatch, tmp_path / "home")


@pytest.fixture
def lock_path(tmp_path: Path) -> Path:
    """Where this test's GPU lock is."""
    return tmp_path / ".vane-gpu-worker.lock"


# Nothing leaves the machine ---

_CONNECTS: Final = {"socket.connect", "socket.sendto"}  # (socket, address)
_LOOKUPS: Final = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}  # (host, ...)
_OWN_NAMES: Final = {None, "", "localhost", socket.gethostname()}


class ForeignAddressError(Exception):
    """A test tried to reach an address off this machine."""


class _Watch:
    """What the running test did; an audit hook cannot be removed, so there is one for the whole session."""

    events: list[tuple[str, tuple[Any, ...]]] = []  # noqa: RUF012 - that one list
    faults: list[str] = []  # noqa: RUF012 - likewise
    foreign_expected = False

    @classmethod
    def hook(cls, event: str, args: tuple[Any, ...]) -> None:
        if event in _CONNECTS:
            args = args[1:]  # to hold the socket would hide that it was never closed
            host = None if isinstance(args[0], (str, bytes)) else args[0][0]  # a path is a Unix socket's
        elif event in _LOOKUPS:
            host = args[0]
        else:
            return
        cls.events.append((event, args))
        if _is_foreign(host) and not cls.foreign_expected:
            cls.faults.append(f"{event} {args}")
            raise ForeignAddressError(f"{event} {args}")


sys.addaudithook(_Watch.hook)


def _is_foreign(host: object) -> bool:
    """Whether a host is not on the loopback interface, or its name would have to be looked up."""
    name = host.decode("latin-1") if isinstance(host, bytes) else host
    if name in _OWN_NAMES or not isinstance(name, str):
        return False
    try:
        return not ipaddress.ip_address(name).is_loopback
    except ValueError:
        return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-tables", action="store_true", help="write docs/outcomes anew (without -n)")


@pytest.fixture
def write_tables(request: pytest.FixtureRequest) -> bool:
    """Whether the tables of outcomes are to be written, not only checked."""
    return bool(request.config.getoption("--write-tables"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "foreign_addresses: may look up and connect to addresses off this machine")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _Watch.events.clear()
    _Watch.faults.clear()
    _Watch.foreign_expected = item.get_closest_marker("foreign_addresses") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail the test also when the code under test swallowed the fault."""
    result = yield
    if _Watch.faults:
        pytest.fail("\n".join(_Watch.faults), pytrace=False)
    return result


@pytest.fixture
def audit() -> list[tuple[str, tuple[Any, ...]]]:
    """Each connect and look-up of this test until now: the audit event and its arguments but the socket."""
    return _Watch.events


# A browser ---


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One Jupyter server for all tests, which give their notebooks names of their own."""
    with open_lab(tmp_path_factory.mktemp("lab") / "home") as opened:
        page = browser.new_page()
        opened.configure(page, "@jupyterlab/notebook-extension:tracker", windowingMode="none")
        page.close()
        yield opened


@pytest.fixture
def page(browser: Browser, lab: Lab) -> Iterator[Page]:
    """A page that may talk to the server alone; any other request, or a dialog, fails the test.

    JupyterLab's own question whether to leave an unsaved notebook is none: it is said yes to.
    """
    host = urlsplit(lab.url).netloc
    faults: list[str] = []

    def answer(dialog: Dialog) -> None:
        if dialog.type != "beforeunload":
            faults.append(f"{dialog.type}: {dialog.message}")
        dialog.accept()

    opened = browser.new_page(viewport={"width": 1600, "height": 1400})
    opened.set_default_navigation_timeout(60_000)
    opened.on("request", lambda r: faults.append(r.url) if urlsplit(r.url).netloc not in {host, ""} else None)
    opened.on("dialog", answer)
    yield opened
    opened.close()
    assert faults == []


# The schemas check every result ---

_CONTRACT: Final = Path(__file__).parent.parent / "vane_magic" / "contract"


def _validator(name: str) -> Any:
    formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
    if "date-time" not in formats.checkers:
        raise RuntimeError('without "jsonschema[format]" no date is checked')
    return jsonschema.Draft202012Validator(json.loads((_CONTRACT / name).read_text()), format_checker=formats)


_TOOL_RESULT: Final = _validator("tool_result.schema.json")


def _complaints(result: ToolResult) -> list[str]:
    errors = _TOOL_RESULT.iter_errors(json.loads(result.to_json()))
    return [f"ToolResult{error.json_path[1:]}: {error.message}" for error in errors]


@pytest.fixture
def validate_result() -> Callable[[ToolResult], None]:
    """Fail unless the result's JSON is what the contract's schema says."""

    def validate(result: ToolResult) -> None:
        assert _complaints(result) == []

    return validate


@pytest.fixture(scope="session", autouse=True)
def _every_result_is_valid() -> Iterator[None]:
    """Let each test fail in which a ToolResult is made that the schema refuses."""
    from vane_magic.core.contract import ToolResult  # noqa: PLC0415 - pytest starts without the package

    def checked(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **members: Any) -> Any:
            result = make(*args, **members)
            _Watch.faults.extend(_complaints(result or args[0]))  # __init__ returns None
            return result

        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ToolResult, "__init__", checked(ToolResult.__init__))
        for name in ("model_validate", "model_validate_json"):
            patch.setattr(ToolResult, name, staticmethod(checked(getattr(ToolResult, name))))
        yield
