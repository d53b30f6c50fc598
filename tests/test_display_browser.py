"""In a real browser, no hostile text fetches anything or runs a script, shown as a notebook shows trusted output."""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_texts import HOSTILE
from test_display_hostile import everywhere

from vane_magic.display import live_text

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
# innerHTML, then each script made anew so that it runs: what JupyterLab does with trusted HTML.
PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>untouched</title><body>
<script type="application/json" class="outputs">%s</script>
<script>
for (const output of JSON.parse(document.querySelector(".outputs").textContent)) {
  const host = document.body.appendChild(document.createElement("section"));
  host.innerHTML = output;
  for (const old of host.querySelectorAll("script")) {
    const script = document.createElement("script");
    for (const {name, value} of old.attributes) script.setAttribute(name, value);
    script.textContent = old.textContent;
    old.replaceWith(script);
  }
}
document.body.setAttribute("data-shown", document.querySelectorAll("section").length);
</script>"""


class Loopback(socketserver.ThreadingTCPServer):
    """Serves one page at ``/page`` and remembers how every connection began."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, page: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page = page
        self.openings: list[bytes] = []


class _Handler(socketserver.StreamRequestHandler):
    server: Loopback
    timeout = 30

    def handle(self) -> None:
        opening = self.request.recv(4096)
        if opening:  # browsers also open connections ahead and leave them unused
            self.server.openings.append(opening)
        head = b"HTTP/1.0 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
        self.wfile.write(head + self.server.page if opening.startswith(b"GET /page ") else b"HTTP/1.0 404 No\r\n\r\n")


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[object]:
    """Show outputs in a browser for which every host is the loopback server; give its DOM and the other requests."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium, and CI must have one")
        pytest.skip("there is no Chromium")

    def show(outputs: list[str]) -> tuple[str, list[bytes]]:
        page = (PAGE % json.dumps(outputs).replace("<", "\\u003c")).encode()
        with Loopback(page) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            dom = _dump(f"http://127.0.0.1:{server.server_address[1]}/page", server.server_address[1], tmp_path)
            server.shutdown()
        return dom, [opening for opening in server.openings if not opening.startswith(b"GET /page ")]

    return show


def _dump(address: str, port: int, profile: Path) -> str:
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-default-apps",
        "--disable-extensions",
        "--no-pings",
        f"--user-data-dir={profile / 'chromium'}",
        f"--host-resolver-rules=MAP * 127.0.0.1:{port}",
        "--virtual-time-budget=3000",
        "--dump-dom",
        address,
    ]
    done = subprocess.run(
        command, capture_output=True, timeout=100, check=True
    )  # an own process, ended when it returns
    return done.stdout.decode()


def _is_browsers_own(request: bytes) -> bool:
    """Whether it goes to the browser's maker, for updates and the time: that happens whatever the flags say."""
    own = (b".google.com", b".googleapis.com", b".gvt1.com", b".gstatic.com")
    return b".example" not in request and any(name in request for name in own)


def test_no_hostile_text_fetches_or_runs(browse) -> None:  # noqa: ANN001 - the fixture's own function
    """Every text in every field, and in the live line: one request for the page, none for anything in it."""
    outputs = [form for text in HOSTILE for form in (everywhere(text).html(), live_text(text, text)[0])]
    dom, requests = browse(outputs)
    assert f'data-shown="{len(outputs)}"' in dom
    assert "<title>untouched</title>" in dom
    assert [request[:200] for request in requests if not _is_browsers_own(request)] == []


def test_the_harness_sees_fetches_and_scripts(browse) -> None:  # noqa: ANN001 - the fixture's own function
    """The same texts unrendered do fetch, with and without encryption, and do run, so that the test above can fail."""
    dom, requests = browse(
        [
            "<img src=http://plain.example/p.png>",
            "<img src=https://secret.example/p.png>",
            "<script>document.title='owned'</script>",
        ]
    )
    assert "<title>owned</title>" in dom
    assert any(b"Host: plain.example" in request for request in requests)
    assert any(b"secret.example" in request for request in requests)  # the name stands in the TLS greeting
