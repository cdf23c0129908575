"""A raw MCP client that costs next to nothing: the same for everything that is compared.

It speaks the older protocol, which every gateway understands, over the pipes of a process or over
HTTP. It sends requests, tells answers apart by their ids, and hands on what else it is told.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import BinaryIO

    from indusagi.core import JsonObject

VERSION = "2025-11-25"
HELLO: JsonObject = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
LOG = "stderr.log"
_END_S = 10.0
_TAIL = 400

# Any: what a stranger answers is taken apart by whoever asked.
Answer: TypeAlias = "dict[str, Any]"


class Client(Protocol):
    """One connection to a server or a gateway."""

    async def request(self, method: str, params: JsonObject | None = None) -> Answer:
        """Ask, and give the whole answer: with `result`, or with `error`.

        Raises:
            CannotMeasure: There will be no answer.
        """
        ...

    async def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Say something that has no answer."""
        ...

    async def aclose(self) -> None:
        """End the connection."""
        ...


async def meet(client: Client) -> None:
    """Shake hands."""
    result_of(await client.request("initialize", HELLO))
    await client.notify("notifications/initialized")


async def names(client: Client) -> list[str]:
    """List the names of all tools, page by page."""
    found: list[str] = []
    cursor: JsonObject = {}
    while True:
        page = result_of(await client.request("tools/list", cursor))
        found += [tool["name"] for tool in page["tools"]]
        if not page.get("nextCursor"):
            return found
        cursor = {"cursor": page["nextCursor"]}


def result_of(answer: Answer) -> dict[str, Any]:
    """Give what was asked for.

    Raises:
        CannotMeasure: The answer is an error, of the protocol or of a tool.
    """
    result = answer.get("result")
    if not isinstance(result, dict) or cast("Answer", result).get("isError"):
        raise CannotMeasure(f"a request failed: {json.dumps(answer)[:_TAIL]}")
    return cast("Answer", result)


def frame(method: str, params: JsonObject | None, identity: int | None) -> bytes:
    """Write a request, or a notification if it has no id."""
    said: JsonObject = {"jsonrpc": "2.0", "method": method}
    if identity is not None:
        said["id"] = identity
    if params is not None:
        said["params"] = params
    return json.dumps(said).encode()


class Pipes(asyncio.SubprocessProtocol):
    """A client of a process, over its standard input and output."""

    def __init__(self, on_notice: Callable[[Answer], None] | None = None) -> None:
        self._on_notice = on_notice
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._rest = bytearray()
        self._gone = asyncio.Event()
        self._process: asyncio.SubprocessTransport | None = None
        self._input: asyncio.WriteTransport | None = None

    @property
    def pid(self) -> int:
        """The process at the other end."""
        assert self._process is not None
        return self._process.get_pid()

    @property
    def code(self) -> int | None:
        """How the process ended, once it has."""
        assert self._process is not None
        return self._process.get_returncode()

    # -- what the event loop tells ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast("asyncio.SubprocessTransport", transport)
        self._input = cast("asyncio.WriteTransport", self._process.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self._rest += cast("bytes", data)
        if b"\n" not in cast("bytes", data):
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self._read_frames(json.loads(line))

    def process_exited(self) -> None:
        self._gone.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(CannotMeasure(f"process {self.pid} ended: {self.code}"))
                waiting.exception()  # retrieved: the waiting caller has gone

    def _read_frames(self, message: Answer) -> None:
        if "method" not in message:
            waiting = self._waiting.pop(message["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif self._on_notice is not None:
            self._on_notice(message)

    # -- what a client does -----------------------------------------------------------------

    async def request(self, method: str, params: JsonObject | None = None) -> Answer:
        """Ask, and wait for the answer."""
        _, waiting = self.asked(method, params)
        return await waiting

    def asked(self, method: str, params: JsonObject | None = None) -> tuple[int, asyncio.Future[Answer]]:
        """Ask, and give the id of the request and what its answer comes in."""
        identity = next(self._ids)
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[identity] = waiting
        self._send(frame(method, params, identity))
        return identity, waiting

    def forget(self, identity: int) -> None:
        """Expect no answer any more."""
        self._waiting.pop(identity, None)

    async def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Say something that has no answer."""
        self._send(frame(method, params, None))

    def _send(self, data: bytes) -> None:
        if self._gone.is_set() or self._input is None:
            raise CannotMeasure(f"process {self.pid} has ended: {self.code}")
        self._input.write(data + b"\n")

    async def aclose(self) -> None:
        """Close its input, wait for its end, and end what is left of its group."""
        assert self._process is not None
        assert self._input is not None
        self._input.close()
        try:
            async with asyncio.timeout(_END_S):
                await self._gone.wait()
        except TimeoutError:
            pass
        end_group(self.pid)
        await self._gone.wait()
        self._process.close()


async def open_pipes(
    command: Sequence[str], *, cwd: str, env: Mapping[str, str], on_notice: Callable[[Answer], None] | None = None
) -> Pipes:
    """Start a process in a group of its own and be its client.

    What it writes to standard error goes to a file in its folder.
    """
    with open_log(cwd) as complaints:
        _, pipes = await asyncio.get_running_loop().subprocess_exec(
            lambda: Pipes(on_notice),
            *command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
        )
    return pipes


def open_log(folder: str) -> BinaryIO:
    """Open what takes the standard error of a process."""
    return open(os.path.join(folder, LOG), "ab")


def end_group(pid: int) -> None:
    """End every process of a group that was started here."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
