"""Servers behind an address of this machine, for as long as a block lasts."""

from __future__ import annotations

import asyncio
import functools
import http.server
import os
import socket
import subprocess
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence

LOOPBACK = "127.0.0.1"
_START_S = 20
_STOP_S = 5


class NotListening(Exception):
    """A command that was started does not come to listen."""


@asynccontextmanager
async def listening(
    command: Sequence[str],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within_s: float = _START_S,
) -> AsyncGenerator[int]:
    """Run a command that listens on the port it is given: as `{port}`, and in the variable PORT.

    Args:
        command: The command.
        log: Takes what it says.
        env: What it finds in its environment besides ours.
        cwd: Where it runs.
        within_s: How long it may take.

    Raises:
        NotListening: It ends, or takes too long.
    """
    port = _free_port()
    with (log or Path(os.devnull)).open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *(word.replace("{port}", str(port)) for word in command),
            env={**os.environ, "PORT": str(port), **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        try:
            async with asyncio.timeout(within_s):
                await _until_open(port, process)
        except TimeoutError:
            raise NotListening(f"it does not come to listen within {within_s:g} s") from None
        yield port
    finally:
        await _stop(process)


async def _until_open(port: int, process: asyncio.subprocess.Process) -> None:
    while True:
        if process.returncode is not None:
            raise NotListening(f"it ended with {process.returncode}")
        try:
            _, writer = await asyncio.open_connection("localhost", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            await writer.wait_closed()
            return


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the pages are for a program."""


@contextmanager
def pages(folder: Path) -> Generator[str]:
    """Serve the files of a folder, and give the address they are at."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="pages")
        thread.start()
        try:
            yield f"http://{LOOPBACK}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
