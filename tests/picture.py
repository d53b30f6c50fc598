"""Draw docs/answer.png, a real answer as a notebook shows it: python tests/picture.py. It needs Chromium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from vane_magic import VaneClient  # noqa: E402 - the checkout's
from vane_magic.localdocs import Service  # noqa: E402 - likewise

QUESTION: Final = "What does the content hash prove?"
PAGE: Final = (
    "<!doctype html><meta charset=utf-8><style>body{{font:15px/1.5 system-ui,sans-serif;margin:14px 18px;color:#1f2328;"
    "background:#fff}}pre{{background:#f6f8fa;padding:8px 12px;margin:0 0 10px;font-size:14px}}</style>"
    "<pre>%vane --local-docs -m speed -n 3 {question}</pre>{answer}"
)


def main() -> None:
    with TemporaryDirectory() as place:
        with Service(cache_dir=Path(place)) as engine:
            client = VaneClient(engine.url, lock_path=str(engine.lock_path), mode="speed", max_sources=3)
            result = client.research(QUESTION).raise_for_error()
        html = Path(place, "answer.html")
        html.write_text(PAGE.format(question=QUESTION, answer=result.card().html()), encoding="utf-8")
        subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--user-data-dir={place}/profile", "--window-size=740,535", "--host-resolver-rules=MAP * ~NOTFOUND"),
                *(f"--screenshot={ROOT / 'docs' / 'answer.png'}", html.as_uri()),
            ],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


if __name__ == "__main__":
    main()
