"""Server of the local model: a process that lives as long as the block that opens it.

The process listens on a loopback port and answers requests with a key of this run only. It ends with its standard
input, and with its parent, also by kill -9.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.json import is_json_object
from indusagi.core.process.child import ChildProcess, KeptOutput
from indusagi.core.records import record
from induscode.search.weights import WeightsError
from outside.engine import host

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core.json import JsonValue

INSTALL = "uv pip install -r outside/local.txt"
_START_S = 300.0
"""Time to load the weights; a machine that swaps takes minutes."""
_PASSED_VARIABLES = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR")


@record
class LocalWeights:
    """A file of weights, and how it is served."""

    name: str
    path: str
    context_window: int
    chat_template: str = ""
    """A Jinja template in this folder; empty for the one in the file."""


@record
class LocalAddress:
    """Where a server of the local model answers."""

    base_url: str
    key: str


def has_engine() -> bool:
    """Tell whether llama.cpp is installed."""
    return find_spec("xllamacpp") is not None


def count_cores() -> int:
    """Count the cores that this process may use.

    The engine gets one less: its threads wait for each other, and one that has no core of its own stops them all.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@asynccontextmanager
async def open_local_server(weights: LocalWeights) -> AsyncGenerator[LocalAddress]:
    """Serve a file of weights inside the block.

    Raises:
        WeightsError: The engine is not installed, or cannot load the file.
    """
    if not await to_thread.run_sync(has_engine):
        raise WeightsError(f"the engine of the local model is not installed: {INSTALL}")
    key = secrets.token_urlsafe(32)
    settings = {
        "weights": weights.path,
        "name": weights.name,
        "context_window": weights.context_window,
        "chat_template": "",
        "key": key,
        "threads": max(1, count_cores() - 1),
    }
    if weights.chat_template:
        settings["chat_template"] = await anyio.Path(host.__file__).with_name(weights.chat_template).read_text("utf-8")
    environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    output = _HostOutput()
    child = ChildProcess(output)
    try:
        try:
            with anyio.fail_after(_START_S):
                await child.start([sys.executable, "-I", host.__file__], environment, None)
                child.write(json.dumps(settings).encode("utf-8") + b"\n")
                await output.changed.wait()
        except TimeoutError:
            raise WeightsError(f"{weights.path} was not loaded after {_START_S:g} s: {output.describe()}") from None
        except OSError as exc:
            raise WeightsError(f"the engine of the local model cannot be started: {exc.strerror or exc}") from exc
        if output.address is None:
            raise WeightsError(f"the engine cannot load {weights.path}: {output.describe()}")
        yield LocalAddress(f"{output.address}/v1", key)
    finally:
        await child.end(1.0)


class _HostOutput(KeptOutput):
    """The line with the address, and the end of what the engine has written about itself."""

    def __init__(self) -> None:
        super().__init__(last_error_bytes=4096)
        self.changed = anyio.Event()
        self.address: str | None = None
        self._line = b""

    def stdout_received(self, data: bytes) -> None:
        self._line += data
        if b"\n" in self._line and not self.changed.is_set():
            value: JsonValue = json.loads(self._line.partition(b"\n")[0])
            address = value.get("address") if is_json_object(value) else None
            self.address = address if isinstance(address, str) else None
            self.changed.set()

    def state_changed(self) -> None:
        self.changed.set()  # it has exited, or closed its output, before it was ready

    def describe(self) -> str:
        """Return the last lines of its errors, joined into one."""
        return "; ".join(filter(None, map(str.strip, self.errors.decode("utf-8", "replace").splitlines()[-3:])))
