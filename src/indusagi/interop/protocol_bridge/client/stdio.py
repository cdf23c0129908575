"""Stdio client transport: frames are lines of JSON on the standard streams of a server process.

https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#stdio. The process inherits the variables
allowed by `start.policy`. Its output is split into lines in linear time, with a size limit. A ring buffer drains its
standard error, which neither blocks the process nor reaches the terminal. A process that stops reading its input is
given up after the idle limit of a call. `close` always ends the process tree and reaps the process; it ends a package
manager that hasn't started its server yet gently.
"""

from __future__ import annotations

import asyncio
import collections
import math
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from indusagi.capabilities.ports import SandboxMissing
from indusagi.core.process.child import ChildProcess
from indusagi.interop.protocol_bridge.client.start.causes import find_package_manager
from indusagi.interop.protocol_bridge.client.start.policy import child_environment
from indusagi.interop.protocol_bridge.client.start.sandbox import RunningSandbox
from indusagi.interop.protocol_bridge.contract import CLUSTER_PREFIX, FaultDetail, FaultReason, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.transport import BaseTransport, decode_frame, encode_frame

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.core.process.procfs import Activity, CpuDemand
    from indusagi.interop.protocol_bridge.contract import ServerLimits, StdioServerConfig

_SETTLE_S = 0.05
"""How long to wait for the exit code and the last lines after the output ends."""
_SHOWN_LINES = 20
_TURN_FRAMES = 16
_TURN_BYTES = 32 * 1024
"""How much output of one server to handle per event loop iteration.

A server that floods its output fills a 64 KiB pipe between two iterations. Handling those hundreds of notifications
takes milliseconds, during which every other server would wait.
"""
_MAX_INVALID_LINES = 5
"""How many non-protocol lines of standard output to keep."""
_GENTLE_IDLE_S = 2.0
"""How long a package manager may pause while it cleans up at its end."""


async def start_server_process(config: StdioServerConfig) -> StdioTransport:
    """Start a configured server process.

    Raises:
        ProtocolFault: It can't be started; the message says why.
    """
    downloads = find_package_manager(config.command, config.args) is not None
    transport = StdioTransport(config.id, config.limits, downloads=downloads)
    try:
        argv = [config.command, *config.args]
        env = child_environment(os.environ, config.env)
        if config.sandbox is None:
            await transport.child.start(argv, env, config.cwd, gentle=downloads)
        else:
            sandbox = transport.sandbox = RunningSandbox(config.sandbox, config.id, transport.log_line)
            await sandbox.start(transport.child, argv, env, config.env, config.cwd, gentle=downloads)
    except SandboxMissing as exc:
        detail = FaultDetail(server=config.id, reason="refused")
        raise ProtocolFault("spawn_failed", f"server {config.id!r}: {exc}", exc, detail=detail) from exc
    except (OSError, ValueError) as exc:
        reason: FaultReason | None = None
        if isinstance(exc, ValueError):
            message, reason = f"the command line cannot be used: {exc}", "malformed"
        elif config.cwd is not None and exc.filename == config.cwd:
            message, reason = f"its working directory {config.cwd!r}: {exc.strerror}", "not_found"
        elif isinstance(exc, FileNotFoundError) and config.command.startswith(CLUSTER_PREFIX):
            message = "it runs on another node of a cluster: only a gateway with --cluster reaches it"
            reason = "not_found"
        elif isinstance(exc, FileNotFoundError):
            message = f"the command {config.command!r} was not found: check its spelling and PATH"
            reason = "not_found"
        elif isinstance(exc, PermissionError):
            message = f"the command {config.command!r} may not be executed: {exc.strerror}"
            reason = "refused"
        else:
            message = f"the command {config.command!r} could not be started: {exc.strerror}"
        detail = FaultDetail(server=config.id, reason=reason)
        raise ProtocolFault("spawn_failed", f"server {config.id!r}: {message}", exc, detail=detail) from exc
    return transport


class StdioTransport(BaseTransport):
    """Transport over the standard streams of one process."""

    def __init__(self, server: str, limits: ServerLimits, *, downloads: bool = False) -> None:
        self.child = ChildProcess(self)
        self.sandbox: RunningSandbox | None = None
        super().__init__(self.child.writable)
        self._server = server
        self._limits = limits
        self._parts: list[bytes] = []
        """Beginning of an unfinished line."""
        self._parts_size = 0
        self._unread: collections.deque[bytes] = collections.deque()
        """Output not yet split into lines."""
        self._unread_from = 0
        """Start of the next line in the first chunk of it."""
        self._next_turn: asyncio.Handle | None = None
        self._outgoing: list[bytes] = []
        self._stderr: collections.deque[bytes] = collections.deque(maxlen=limits.stderr_lines)
        self._stderr_rest = b""
        self._may_unpack = downloads
        """Whether a package manager may still be unpacking, because its server hasn't written anything."""
        self.bytes_received = 0
        """Bytes of standard output and error."""
        self._bytes_sent = 0
        self._output_at_close: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        """Standard error and invalid lines at the time the process was asked to end."""
        self._invalid_lines: list[bytes] = []
        self._stall: asyncio.TimerHandle | None = None

    # -- sending ----------------------------------------------------------------------------

    def send(self, frame: JsonObject) -> None:
        """Write one line, batched with the others of this event loop iteration.

        Each write wakes the other process, which dominates the cost if there are many callers.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(encode_frame(frame))

    def _flush(self) -> None:
        if self._outgoing:
            self._outgoing.append(b"")
            data = b"\n".join(self._outgoing)
            self._outgoing.clear()
            self.child.write(data)
            self._bytes_sent += len(data)
            if self._stall is None and self.child.unwritten:
                self._watch_stall(asyncio.get_running_loop().time())

    def _watch_stall(self, since: float) -> None:
        """After the idle limit, check whether the process has read anything.

        A process that neither reads nor writes for that long is given up. One that writes may be busy with a call, and
        gets the total limit of a call.
        """
        loop = asyncio.get_running_loop()
        read, received = self._bytes_sent - self.child.unwritten, self.bytes_received

        def check() -> None:
            self._stall = None
            unwritten = self.child.unwritten
            if self._end is not None or not unwritten:
                return
            waited_s = loop.time() - since
            if self._bytes_sent - unwritten > read:
                self._watch_stall(loop.time())
            elif self.bytes_received == received or waited_s >= self._limits.call_hard_s:
                self._finish_process(f"did not read its standard input for {waited_s:.3g} s", "closed")
            else:
                self._watch_stall(since)

        self._stall = loop.call_later(self._limits.call_idle_s, check)

    # -- events of the process --------------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        """Split standard output into lines, a limited number per event loop iteration."""
        self.bytes_received += len(data)
        self._unread.append(data)
        if self._next_turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Deliver one iteration's share of lines; pause the pipe until everything read so far is delivered."""
        self._next_turn = None
        self._deliver_lines(_TURN_FRAMES, _TURN_BYTES)
        if self._unread:
            self.child.pause_output()
            self._next_turn = asyncio.get_running_loop().call_soon(self._take_turn)
        else:
            self.child.resume_output()

    def _deliver_lines(self, frames: float, size: float) -> None:
        """Deliver lines up to a number of frames or bytes, or until everything read is delivered."""
        limit = self._limits.frame_bytes
        while self._unread and self._end is None and frames > 0 and size > 0:
            data, start = self._unread[0], self._unread_from
            newline = data.find(b"\n", start)
            if newline < 0:
                self._unread.popleft()
                self._unread_from = 0
                if start < len(data):
                    self._parts.append(data[start:])
                    self._parts_size += len(data) - start
                if self._parts_size > limit:
                    self._refuse_large_frame()
                continue
            line = data[start:newline]
            self._unread_from = newline + 1
            if self._parts:
                line = b"".join((*self._parts, line))
                self._parts.clear()
                self._parts_size = 0
            frames -= 1
            size -= len(line)
            if len(line) > limit:
                self._refuse_large_frame()
            elif line and not line.isspace():
                self._may_unpack = False
                self.deliver(line)
        if self._end is not None:
            self._unread.clear()

    def _refuse_large_frame(self) -> None:
        self._parts.clear()
        self._finish_process(f"sent a message of more than {self._limits.frame_bytes:,} bytes", "frame_too_large")
        self.child.stop_reading()

    def stderr_received(self, data: bytes) -> None:
        """Keep the last lines of standard error."""
        self.bytes_received += len(data)
        *lines, rest = (self._stderr_rest + data).split(b"\n")
        cap = self._limits.stderr_line_bytes
        self._stderr.extend(line[:cap] for line in lines[-self._limits.stderr_lines :] if line.strip())
        self._stderr_rest = rest[:cap]

    def log_line(self, line: str) -> None:
        """Add a line of ours to the server's log."""
        self._stderr.append(line.encode())

    def state_changed(self) -> None:
        """Declare the end once everything is known, or after a moment if a stream stays open."""
        child = self.child
        is_ending = child.exited.is_set() or not child.output_open or not child.input_open
        if self._end is not None or not is_ending:
            return  # a server may close only its standard error
        if child.exited.is_set() and not child.output_open and not child.errors_open:
            self._declare_exit()
        else:
            asyncio.get_running_loop().call_later(_SETTLE_S, self._declare_exit)

    # -- observations -----------------------------------------------------------------------

    def keep_invalid_line(self, line: bytes) -> None:
        """Keep a non-protocol line of standard output, up to a limit."""
        if len(self._invalid_lines) < _MAX_INVALID_LINES:
            self._invalid_lines.append(line[: self._limits.stderr_line_bytes])

    def read_invalid_lines(self) -> tuple[str, ...]:
        """Return the first non-protocol lines of standard output, or else the unfinished last line."""
        if self._output_at_close is not None:
            return self._output_at_close[1]
        cap = self._limits.stderr_line_bytes
        return tuple(line[:cap].decode("utf-8", "replace") for line in self._invalid_lines or self._parts[:1])

    def read_stderr(self) -> tuple[str, ...]:
        """Return the last lines of standard error, preceded by the cause if it's older."""
        if self._output_at_close is not None:
            return self._output_at_close[0]
        rest = [self._stderr_rest] if self._stderr_rest else []
        lines = [line.decode("utf-8", "replace") for line in (*self._stderr, *rest)]
        tail = lines[-_SHOWN_LINES:]
        from indusagi.interop.protocol_bridge.client.start.causes import find_cause  # noqa: PLC0415 — its patterns compile on a fault only

        if len(lines) > _SHOWN_LINES and (cause := find_cause(lines)) != find_cause(tail):
            tail = [cause, *tail[1:]]
        return tuple(tail)

    async def activity(self) -> Activity | None:
        """Return the activity of the process tree, if the system reports it."""
        return await self.child.activity()

    async def cpu_demand(self) -> CpuDemand | None:
        """Return the CPU demand of the process tree, if known."""
        return await self.child.cpu_demand()

    # -- the end ----------------------------------------------------------------------------

    def _declare_exit(self) -> None:
        if self._end is not None:
            return
        # A process may answer and exit at once; the answer in the pipe counts.
        self.child.read_rest()
        self._deliver_lines(math.inf, math.inf)
        self._deliver_last_line()
        code = self.child.exit_code
        if code is None:
            self._finish_process("stopped reading" if self.child.output_open else "closed its output", "closed")
        elif code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            self._finish_process(f"was ended by {name}", "exited")
        else:
            self._finish_process(f"exited with code {code}", "exited")

    def _deliver_last_line(self) -> None:
        """Deliver a complete last message that lacks a newline."""
        line = b"".join(self._parts)
        with suppress(ValueError, RecursionError):
            if not isinstance(decode_frame(line), dict):
                return
            self._parts.clear()
            self.deliver(line)

    def _finish_process(self, message: str, reason: FaultReason) -> None:
        code = self.child.exit_code
        detail = FaultDetail(
            server=self._server,
            reason=reason,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            stderr=self.read_stderr(),
            stdout=self.read_invalid_lines(),
        )
        self.finish(message, detail)

    async def close(self) -> None:
        """End the process and its tree; safe to call twice and from any task.

        A cancelled caller still waits for the end.
        """
        self._flush()
        if self._output_at_close is None:
            self._output_at_close = self.read_stderr(), self.read_invalid_lines()
        if self._stall is not None:
            self._stall.cancel()
        try:
            if self._may_unpack:
                await self.child.end(max(self._limits.close_s, _GENTLE_IDLE_S), gentle=True)
            else:  # a process that ended the connection itself gets a quarter of the time
                await self.child.end(self._limits.close_s if self._end is None else self._limits.close_s / 4)
        finally:
            if self.sandbox is not None:
                await self.sandbox.aclose()
