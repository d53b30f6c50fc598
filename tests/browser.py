"""JupyterLab (and Notebook 7 beside it) in a headless Chromium, for tests that look at what a person sees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nbformat
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROOT: Final = Path(__file__).parent.parent
ARTEFACTS: Final = ROOT / "artefacts"
THEMES: Final = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# What the page shows at first says "idle" before there is a kernel.
_READY: Final = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel
    return kernel?.connectionStatus === "connected" && kernel.status === "idle"
}"""


def chromium() -> str:
    """The browser's path; without one the tests are skipped, but where CI is set they fail."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium is installed")
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium."""
    path = chromium()
    if not os.environ.get("CI"):
        pytest.importorskip("playwright", reason="Playwright is not installed")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the tests are collected without it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


@dataclass
class Lab:
    """A Jupyter server with a folder of its own."""

    url: str
    token: str
    folder: Path

    def configure(self, page: Page, plugin: str, **settings: object) -> None:
        """Change a plugin's settings, for pages that are opened from now on."""
        address = f"{self.url}lab/api/settings/{plugin}?token={self.token}"
        answer = page.request.put(address, data=json.dumps({"raw": json.dumps(settings)}))
        assert answer.ok, answer.text()

    def theme(self, page: Page, name: str) -> None:
        self.configure(page, "@jupyterlab/apputils-extension:themes", theme=THEMES[name])

    def open(self, page: Page, cells: Sequence[str], *, name: str, app: str = "lab/tree") -> Book:
        """Open a new notebook with these cells in JupyterLab, or by its path in Notebook 7; wait for its kernel."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, self.folder / f"{name}.ipynb")
        reset = "&reset" if "lab" in app else ""
        page.goto(f"{self.url}{app}/{name}.ipynb?token={self.token}{reset}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
        page.wait_for_function(_READY, timeout=60_000)
        return Book(page)


@dataclass
class Book:
    """A notebook on a page."""

    page: Page

    def cell(self, number: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def run(self, number: int, *, wait: bool = True) -> Locator:
        """Run a cell, and give its output."""
        cell = self.cell(number)
        cell.locator(".jp-InputArea-editor .cm-content").click()
        self.page.keyboard.press("Control+Enter")
        if wait:
            self.wait(number)
        return cell.locator(".jp-OutputArea")

    def wait(self, number: int) -> None:
        """Wait until a cell is done."""
        prompt = self.cell(number).locator(".jp-InputPrompt")
        until = time.monotonic() + 60
        while "[*]" in (text := prompt.inner_text()) or not any(c.isdigit() for c in text):
            if time.monotonic() > until:
                raise TimeoutError(f"cell {number} is not done: {text}")
            self.page.wait_for_timeout(20)


@contextmanager
def open_lab(folder: Path) -> Iterator[Lab]:
    """Start a Jupyter server on a free port; it stops at the end, with its kernels."""
    if not os.environ.get("CI"):
        pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    token, notebooks, runtime = "only-for-this-test", folder / "notebooks", folder / "runtime"
    notebooks.mkdir(parents=True)
    _quiet(folder / "settings")
    environ = {
        **os.environ,
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    options = ["--no-browser", "--allow-root", "--ServerApp.port=0", f"--IdentityProvider.token={token}"]
    options += [f"--ServerApp.root_dir={notebooks}", "--LabApp.extension_manager=readonly"]
    options += ["--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True"]
    log = (folder / "server.log").open("wb")
    with (
        log,
        subprocess.Popen([sys.executable, "-m", "jupyterlab", *options], env=environ, stdout=log, stderr=log) as server,
    ):
        try:
            yield Lab(_address(server, runtime, folder / "server.log"), token, notebooks)
        finally:
            server.terminate()
            server.wait(30)


def _quiet(settings: Path) -> None:
    """No news, no look-ups of newer versions."""
    plugin = settings / "@jupyterlab" / "apputils-extension"
    plugin.mkdir(parents=True)
    wishes = {"fetchNews": "false", "checkForUpdates": False}
    (plugin / "notification.jupyterlab-settings").write_text(json.dumps(wishes))


def _address(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    until = time.monotonic() + 60
    about = runtime / f"jpserver-{server.pid}.json"
    while time.monotonic() < until and server.poll() is None:
        try:
            told: dict[str, Any] = json.loads(about.read_text())
        except (FileNotFoundError, ValueError):
            time.sleep(0.05)
        else:
            return str(told["url"])
    raise RuntimeError(log.read_text(errors="replace")[-3000:])
