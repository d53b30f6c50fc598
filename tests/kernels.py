"""A real ipykernel, asked as a front end asks it; what it sends back is kept, and stored as a notebook would be."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT: Final = Path(__file__).parent.parent
SHOWN: Final = {"stream", "display_data", "update_display_data", "execute_result", "error", "clear_output"}


@dataclass
class Ran:
    """What came of one cell."""

    status: str
    messages: list[dict[str, Any]]  # what is shown, as it came
    seconds: float

    def kinds(self) -> list[str]:
        return [message["msg_type"] for message in self.messages]

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The outputs as a notebook file has them: updates replace what they name."""
        outputs: list[dict[str, Any]] = []
        places: dict[str, int] = {}
        for message in self.messages:
            content = dict(message["content"])
            place = content.pop("transient", {}).get("display_id")
            if message["msg_type"] == "update_display_data":
                outputs[places[place]] |= content
            else:
                outputs.append({"output_type": message["msg_type"], **content})
                places |= {place: len(outputs) - 1} if place else {}
        return outputs

    def text(self) -> str:
        """The stored outputs as plain text."""
        return "\n".join(
            output.get("text") or "\n".join(output.get("traceback", [])) or output["data"]["text/plain"]
            for output in self.stored
        )


@dataclass
class Kernel:
    """A kernel and its client.

    As JupyterLab does, requests name their cell and somebody can answer prompts, unless told otherwise.
    """

    manager: KernelManager
    client: BlockingKernelClient
    messages: list[dict[str, Any]] = field(default_factory=list)

    def start(self, code: str, *, lab: bool = True, subshell: str | None = None, stdin: bool = True) -> str:
        """Send a cell, and give its id."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": stdin,
            "stop_on_error": True,
        }
        message = self.client.session.msg("execute_request", content)
        message["metadata"] = {"cellId": "a-cell"} if lab else {}
        if subshell:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def wait(self, cell: str, timeout: float = 60) -> Ran:
        """Wait until a cell is done."""
        began = time.monotonic()
        while not self._is_idle(cell):
            self._receive(began + timeout - time.monotonic())
        reply = self._reply(cell, began + timeout - time.monotonic())
        mine = [m for m in self.messages if m["parent_header"].get("msg_id") == cell and m["msg_type"] in SHOWN]
        return Ran(reply["content"]["status"], mine, time.monotonic() - began)

    def run(self, code: str, *, fails: bool = False, **options: Any) -> Ran:
        """Run a cell to its end."""
        ran = self.wait(self.start(code, **options))
        assert fails or ran.status == "ok", ran.text()
        return ran

    def wait_for(self, cell: str, kind: str, timeout: float = 20) -> dict[str, Any]:
        """Wait for the first message of a kind that a cell causes."""
        until = time.monotonic() + timeout
        while True:
            for message in self.messages:
                if message["msg_type"] == kind and message["parent_header"].get("msg_id") == cell:
                    return message
            self._receive(until - time.monotonic())

    def value(self, expression: str) -> str:
        """The str of an expression in the kernel."""
        ran = self.run(f"print({expression}, end='')", lab=False)
        return "".join(m["content"]["text"] for m in ran.messages)

    def config(self, **values: object) -> None:
        self.run("\n".join(f"%config VaneMagics.{name} = {value!r}" for name, value in values.items()))

    def _is_idle(self, cell: str) -> bool:
        return any(
            m["msg_type"] == "status"
            and m["content"]["execution_state"] == "idle"
            and m["parent_header"].get("msg_id") == cell
            for m in self.messages
        )

    def _receive(self, timeout: float) -> None:
        try:
            message = self.client.get_iopub_msg(timeout=max(timeout, 0.01))
        except queue.Empty:
            raise TimeoutError("the kernel is silent") from None
        message["received"] = time.monotonic()
        self.messages.append(message)

    def _reply(self, cell: str, timeout: float) -> dict[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=max(timeout, 1))
            if reply["parent_header"].get("msg_id") == cell:
                return reply


@contextmanager
def open_kernel() -> Iterator[Kernel]:
    """A kernel of its own, with the extension loaded."""
    manager = KernelManager(kernel_name="python3")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    manager.start_kernel(env={**os.environ, "PYTHONPATH": paths, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        kernel = Kernel(manager, client)
        kernel.run("%load_ext vane_magic\n%colors nocolor")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
