"""The members of a run: nodes in this process with clocks of their own, or gateways as processes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tests.support.broker_proxy import BrokerProxy, open_proxy

from indusagi.core.json import is_json_object
from indusagi.core.tasks import Listeners
from indusagi.interop.protocol_bridge.client.start import Supervision
from indusagi.interop.protocol_bridge.contract import BridgeConfig, ProtocolFault, ServerLimits, StdioServerConfig
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from induscode.cluster.membership import read_lease_clock
from induscode.cluster.node import ClusterNode, open_node
from induscode.cluster.server_sessions import open_session
from outside.cluster.history import Outcome
from outside.install import ROOT

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.cluster.contract import ClusterSettings

Break: TypeAlias = Literal["fencing", "leases", "retries"]
"""What a broken implementation does wrong: it serves without a lease; it takes servers from a node whose lease has not
ended; it sends a call again whose outcome is unknown."""
BREAKS: Sequence[Break] = ("fencing", "leases", "retries")
_SOON = Supervision(first_s=0.05, factor=1.0, jitter=0.0, failures=1_000)
_START_S = 30.0
_STOP_S = 20.0
_CALL_S = 8.0
_UNKNOWN = "whether the call took effect is unknown"
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")
TOKEN = secrets.token_hex(8)
"""Admits to the brokers of this process."""
SERVER = Path(__file__).with_name("effect_server.py")


def make_servers(keys: Sequence[str], effects: Path) -> list[StdioServerConfig]:
    """Describe the servers of a run."""
    limits = ServerLimits(call_idle_s=_CALL_S, call_hard_s=_CALL_S, probe_s=0.5, close_s=0.5)
    words = ("-I", "-S", str(SERVER))
    return [StdioServerConfig(key, sys.executable, (*words, key, str(effects)), limits=limits) for key in keys]


class StuckError(Exception):
    """A member did not leave in time."""


def describe_wait(task: asyncio.Task[None]) -> str:
    """Describe where a task waits, from the outermost function to the innermost one."""
    lines: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = next((getattr(waiting, name) for name in _FRAMES if getattr(waiting, name, None) is not None), None)
        if frame is not None:
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        inner = next((getattr(waiting, name) for name in _AWAITED if getattr(waiting, name, None) is not None), None)
        if inner is None and frame is None:
            inner = next((one for one in gc.get_referents(waiting) if hasattr(one, "ag_frame")), None)
        waiting = inner
    return " > ".join(lines)


class LocalMember:
    """A node of this process, in a task of its own; its clock can jump."""

    def __init__(self, settings: ClusterSettings, servers: Sequence[StdioServerConfig], ports: Sequence[int]) -> None:
        self.name = settings.node
        self.proxy = BrokerProxy()
        self.slept_s = 0.0
        self.broken: Break | None = None
        self.node: ClusterNode | None = None
        self._settings = settings
        self._servers = servers
        self._ports = ports
        self._fleet: ServerFleetImpl | None = None
        self._ready = asyncio.Event()
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether it takes calls."""
        return self._fleet is not None and not self._leaving.is_set()

    def read_clock(self) -> float:
        """Return the time of the lease's clock, with the time that this node slept."""
        return read_lease_clock() + self.slept_s

    async def start(self) -> None:
        """Join the cluster."""
        self._task = asyncio.create_task(self._run(), name=self.name)  # noqa: TID251 — awaited in `stop`
        ready = asyncio.create_task(self._ready.wait())  # noqa: TID251 — ended below
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED, timeout=_START_S)
        ready.cancel()
        if self._task.done():
            self._task.result()

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            self.proxy = await stack.enter_async_context(open_proxy(self._ports, TOKEN))
            settings = replace(self._settings, brokers=self.proxy.urls)
            self.node = node = await stack.enter_async_context(open_node(settings, self.read_clock))
            if self.broken is not None:
                _break_node(node, self.broken)
            fleet = ServerFleetImpl(supervision=_SOON, open_session=partial(open_session, node))
            stack.push_async_callback(fleet.tear_down)
            node.follow(fleet)
            await fleet.start(BridgeConfig(self._servers), waiting={one.id: "asleep" for one in self._servers})
            self._fleet = fleet
            self._ready.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    waking = [tasks.create_task(fleet.wake(server.id)) for server in self._servers]
                    await self._leaving.wait()
                    for task in waking:
                        task.cancel()
            finally:
                self._fleet = None

    async def call(self, key: str, arguments: JsonObject) -> Outcome:
        """Call a server as a client of this node."""
        call = str(arguments["call"])
        outcome = await self._call_once(call, key, arguments)
        if self.broken == "retries" and outcome.kind == "unknown":
            for _ in range(50):
                await asyncio.sleep(0.05)
                outcome = await self._call_once(call, key, arguments)
                if outcome.kind == "answer":
                    break
        return outcome

    async def _call_once(self, call: str, key: str, arguments: JsonObject) -> Outcome:
        endpoint = None if self._fleet is None else self._fleet.endpoint(key)
        if endpoint is None:
            return Outcome(time.monotonic(), call, "error", text="the node is not there")
        try:
            result = await endpoint.invoke("append", arguments)
        except ProtocolFault as fault:
            is_unknown = fault.detail.reason == "outcome_unknown" or fault.kind == "timeout"
            return Outcome(time.monotonic(), call, "unknown" if is_unknown else "error", text=str(fault))
        return read_answer(call, result.structured, str(result.content))

    async def stop(self) -> None:
        """Leave the cluster; safe to call twice."""
        self._leaving.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=_STOP_S)
            if late:
                stack = describe_wait(self._task)
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=_STOP_S)
                raise StuckError(f"node {self.name} did not leave within {_STOP_S:g} s: {stack}")
            if not self._task.cancelled():
                self._task.result()


def _break_node(node: ClusterNode, broken: Break) -> None:
    """Make a node do one thing wrong."""
    members = node.membership
    if broken == "fencing":
        members.is_held = lambda: True
        members.on_lost = Listeners()
    elif broken == "leases":

        async def end_lease(lease: str) -> bool:
            return True

        members.end_lease = end_lease


def read_answer(call: str, structured: JsonValue, text: str) -> Outcome:
    """Read the state that an answer carries."""
    fields = structured if is_json_object(structured) else {}
    state = tuple(value for name in ("epoch", "pid", "count") if isinstance(value := fields.get(name), int))
    if len(state) != 3:
        kind = "unknown" if _UNKNOWN in text else "error"
        return Outcome(time.monotonic(), call, kind, text=text)
    return Outcome(time.monotonic(), call, "answer", state)


class GatewayMember:
    """`indus serve --http --cluster` as a process, called over HTTP by clients of the modern protocol."""

    def __init__(
        self, name: str, servers: Sequence[StdioServerConfig], ports: Sequence[int], folder: Path, key_file: Path
    ) -> None:
        self.name = name
        self._key_file = key_file
        self.proxy = BrokerProxy()
        self.process: asyncio.subprocess.Process | None = None
        self._ports = ports
        self._folder = folder
        self._stack = AsyncExitStack()
        self._port = 0
        rows = {one.id: {"command": one.command, "args": [*one.args]} for one in servers}
        self._config = folder / f"{self.name}.json"
        self._config.write_text(json.dumps({"mcpServers": rows}), "utf-8")
        self._log = folder / f"{self.name}.log"

    @property
    def is_up(self) -> bool:
        """Whether it takes calls."""
        return self._port != 0 and self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Join the cluster."""
        self.proxy = await self._stack.enter_async_context(open_proxy(self._ports, TOKEN))
        words = ["--http", "127.0.0.1:0", "--no-token", "--profile", "none", "--mcp", str(self._config)]
        cluster = ["--cluster", ",".join(self.proxy.urls), "--node", self.name, "--cluster-key", str(self._key_file)]
        variables = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
        home = {name: str(self._folder / self.name) for name in variables}
        env = {**os.environ, **home, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        with self._log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "induscode", "serve", *words, *cluster, env=env, stdout=log, stderr=log
            )
        async with asyncio.timeout(_START_S):
            while (found := re.search(r"serving at http://127\.0\.0\.1:(\d+)", self._log.read_text("utf-8"))) is None:
                if self.process.returncode is not None:
                    raise RuntimeError(f"{self.name} ended: {self._log.read_text('utf-8')}")
                await asyncio.sleep(0.05)
        self._port = int(found[1])

    async def call(self, key: str, arguments: JsonObject) -> Outcome:
        """Call a server as a client of this node."""
        call, tool = str(arguments["call"]), f"{key}__append"
        meta: JsonObject = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params: JsonObject = {"name": tool, "arguments": arguments, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            f"Accept: application/json, text/event-stream\r\nConnection: close\r\nMCP-Protocol-Version: 2026-07-28\r\n"
            f"Mcp-Method: tools/call\r\nMcp-Name: {tool}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError as exc:
            return Outcome(time.monotonic(), call, "error", text=f"not sent: {exc}")
        try:
            writer.write(head.encode() + body)
            async with asyncio.timeout(_CALL_S):
                answer = (await reader.read()).decode()
        except (OSError, TimeoutError) as exc:
            return Outcome(time.monotonic(), call, "unknown", text=f"no response: {exc!r}")
        finally:
            writer.transport.abort()
        return _read_response(call, answer)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def stop(self) -> None:
        """Leave the cluster; safe to call twice."""
        self._port = 0
        if self.process is not None and self.process.returncode is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_S):
                    await self.process.wait()
            except TimeoutError:
                self.signal(signal.SIGKILL)
                await self.process.wait()
                raise StuckError(f"gateway {self.name} did not end within {_STOP_S:g} s") from None
        await self._stack.aclose()


def _read_response(call: str, answer: str) -> Outcome:
    found = re.search(r'\{"jsonrpc".*\}', answer)
    try:
        frame = json.loads(found[0]) if found else None
    except ValueError:
        frame = None
    if not is_json_object(frame):
        # Without a response, or with half of one, the client knows nothing.
        is_refused = re.match(r"HTTP/1\.1 [45]", answer) is not None
        return Outcome(time.monotonic(), call, "error" if is_refused else "unknown", text=answer[:200])
    result = frame.get("result")
    fields: Mapping[str, JsonValue] = result if is_json_object(result) else {}
    return read_answer(call, fields.get("structuredContent"), json.dumps(frame))


Member: TypeAlias = LocalMember | GatewayMember
"""A node that clients call and faults happen to."""
