"""A server process as a link: its framing, its standard error, its end.

Its environment is that of `start.environment`. Its output is cut into lines in linear time under a
cap; its standard error is drained into a ring, so that it can neither stall nor reach the terminal.
A process that stops reading its input is given up after a while. `close` always ends, and always
collects the process; a package manager that has not yet started its server is ended gently.
"""

from __future__ import annotations

import asyncio
import collections
import math
import os
import signal
from typing import TYPE_CHECKING

from indusagi.core.process.child import ChildProcess
from indusagi.interop.protocol_bridge.client.start.causes import find_cause
from indusagi.interop.protocol_bridge.client.start.environment import child_environment
from indusagi.interop.protocol_bridge.client.start.package_managers import find_package_manager
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultReason, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.codec import encode_frame
from indusagi.interop.protocol_bridge.rpc.connection import TransportEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.core.process.procfs import Activity
    from indusagi.interop.protocol_bridge.contract import ServerLimits, StdioServerConfig
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

_SETTLE_S = 0.05
"""How long the end of the output waits for the exit code and the last words."""
_SHOWN_LINES = 20
_TURN_FRAMES = 16
_TURN_BYTES = 32 * 1024
"""How much of one server's output is handled in one turn of the event loop.

A server that floods fills a pipe of 64 KiB between two turns: hundreds of notifications, which take
milliseconds. Every other server would wait for them.
"""
_NOISE_LINES = 5
"""How many lines of standard output that were not protocol messages are kept."""
_GENTLE_IDLE_S = 2.0
"""How long a package manager that is being ended may pause while it cleans up."""


async def start_server_process(config: StdioServerConfig) -> StdioTransport:
    """Start the server process of a configuration.

    Raises:
        ProtocolFault: It cannot be started; the message says why.
    """
    downloads = find_package_manager(config.command, config.args) is not None
    link = StdioTransport(config.id, config.limits, downloads=downloads)
    try:
        argv = [config.command, *config.args]
        env = child_environment(os.environ, config.env)
        await link.child.start(argv, env, config.cwd, gentle=downloads)
    except (OSError, ValueError) as exc:
        raise _spawn_fault(config, exc) from exc
    return link


def _spawn_fault(config: StdioServerConfig, exc: OSError | ValueError) -> ProtocolFault:
    reason: FaultReason | None = None
    if isinstance(exc, ValueError):
        said, reason = f"the command line cannot be used: {exc}", "malformed"
    elif config.cwd is not None and exc.filename == config.cwd:
        said, reason = f"its working directory {config.cwd!r}: {exc.strerror}", "not_found"
    elif isinstance(exc, FileNotFoundError):
        said = f"the command {config.command!r} was not found: check its spelling and PATH"
        reason = "not_found"
    elif isinstance(exc, PermissionError):
        said = f"the command {config.command!r} may not be executed: {exc.strerror}"
        reason = "refused"
    else:
        said = f"the command {config.command!r} could not be started: {exc.strerror}"
    detail = FaultDetail(server=config.id, reason=reason)
    return ProtocolFault("spawn_failed", f"server {config.id!r}: {said}", exc, detail=detail)


class StdioTransport:
    """The standard streams of one process as a link."""

    def __init__(self, server: str, limits: ServerLimits, *, downloads: bool = False) -> None:
        self.child = ChildProcess(self)
        self.writable = self.child.writable
        self._server = server
        self._limits = limits
        self._parts: list[bytes] = []
        self._size = 0
        self._unread: collections.deque[bytes] = collections.deque()
        """Output that was read and not yet cut into lines."""
        self._unread_from = 0
        """Where in the first piece of it the next line begins."""
        self._next_turn: asyncio.Handle | None = None
        self._early: list[bytes] = []
        self._outgoing: list[bytes] = []
        self._on_frame: Callable[[bytes | JsonValue], None] | None = None
        self._on_end: Callable[[TransportEnd], None] | None = None
        self._end: TransportEnd | None = None
        self._stderr: collections.deque[bytes] = collections.deque(maxlen=limits.stderr_lines)
        self._stderr_rest = b""
        # A package manager that has not got its server to say anything may still be unpacking.
        self._may_unpack = downloads
        self._bytes_heard = 0
        self._bytes_sent = 0
        # What it had written when it was told to end; what it writes then is about that.
        self._said: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._noise: list[bytes] = []
        self._stall: asyncio.TimerHandle | None = None

    # -- for the wire -----------------------------------------------------------------------

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver what comes, also what came before; `on_end` is called once."""
        self._on_frame, self._on_end = on_frame, on_end
        early, self._early = self._early, []
        for line in early:
            on_frame(line)
        if self._end is not None:
            on_end(self._end)

    def send(self, frame: JsonObject) -> None:
        """Write one line, together with the others of this turn of the loop.

        Each write wakes the other process: with many callers that costs more than all the rest.
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
        """Look again after a while whether the process has read anything.

        One that neither reads nor writes for the time a call may be idle is given up; one that
        writes may be busy with a call, and has the time that a call may take in all.
        """
        loop = asyncio.get_running_loop()
        read, heard = self._bytes_sent - self.child.unwritten, self._bytes_heard

        def look() -> None:
            self._stall = None
            unwritten = self.child.unwritten
            if self._end is not None or not unwritten:
                return
            waited = loop.time() - since
            if self._bytes_sent - unwritten > read:
                self._watch_stall(loop.time())
            elif self._bytes_heard == heard or waited >= self._limits.call_hard_s:
                self._finish(f"did not read its standard input for {waited:.3g} s", "closed")
            else:
                self._watch_stall(since)

        self._stall = loop.call_later(self._limits.call_idle_s, look)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Know nothing of single requests: a process answers or ends."""
        return None

    # -- for the child ----------------------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        """Cut its output into lines, a bounded number of them in each turn of the loop."""
        self._bytes_heard += len(data)
        self._unread.append(data)
        if self._next_turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Deliver what one turn allows; hold the pipe until all that was read is delivered."""
        self._next_turn = None
        self._deliver(_TURN_FRAMES, _TURN_BYTES)
        if self._unread:
            self.child.pause_output()
            self._next_turn = asyncio.get_running_loop().call_soon(self._take_turn)
        else:
            self.child.resume_output()

    def _deliver(self, frames: float, size: float) -> None:
        """Deliver lines until so many frames or bytes were handled, or all that was read."""
        while self._unread and self._end is None and frames > 0 and size > 0:
            data, start = self._unread[0], self._unread_from
            newline = data.find(b"\n", start)
            if newline < 0:
                self._unread.popleft()
                self._unread_from = 0
                self._keep_part(data[start:])
                continue
            line = data[start:newline]
            self._unread_from = newline + 1
            if self._parts:
                line = b"".join((*self._parts, line))
                self._parts.clear()
                self._size = 0
            frames -= 1
            size -= len(line)
            self._line(line)
        if self._end is not None:
            self._unread.clear()

    def _keep_part(self, data: bytes) -> None:
        """Keep the beginning of a line whose end has not come yet."""
        if data:
            self._parts.append(data)
            self._size += len(data)
            if self._size > self._limits.frame_bytes:
                self._too_large()

    def stderr_received(self, data: bytes) -> None:
        """Keep the last lines of its standard error."""
        self._bytes_heard += len(data)
        *lines, rest = (self._stderr_rest + data).split(b"\n")
        cap = self._limits.stderr_line_bytes
        kept = lines[-self._limits.stderr_lines :]
        self._stderr.extend(line[:cap] for line in kept if line.strip())
        self._stderr_rest = rest[:cap]

    # -- for whoever watches its start -------------------------------------------------------

    @property
    def bytes_received(self) -> int:
        """How much it has written to its standard output and error."""
        return self._bytes_heard

    def keep_invalid_line(self, line: bytes) -> None:
        """Keep a line of its standard output that was not a protocol message; of many the first."""
        if len(self._noise) < _NOISE_LINES:
            self._noise.append(line[: self._limits.stderr_line_bytes])

    def read_invalid_lines(self) -> tuple[str, ...]:
        """Give the first lines of its standard output that were not protocol messages.

        A last line without its end is one of them as long as nothing else came.
        """
        if self._said is not None:
            return self._said[1]
        lines = self._noise or self._parts[:1]
        cap = self._limits.stderr_line_bytes
        return tuple(line[:cap].decode("utf-8", "replace") for line in lines)

    async def activity(self) -> Activity | None:
        """Tell what its whole tree has done; None where the system does not tell."""
        return await self.child.activity()

    async def cpu_seconds(self) -> float | None:
        """Tell how much CPU time the process has used; None if unknown."""
        return await self.child.cpu_seconds()

    def state_changed(self) -> None:
        """Declare the end once all is known, or after a moment if something stays open."""
        child = self.child
        ending = child.exited.is_set() or not child.output_open or not child.input_open
        if self._end is not None or not ending:
            return  # a server may close its standard error and live on
        if child.exited.is_set() and not child.output_open and not child.errors_open:
            self._declare()
        else:
            asyncio.get_running_loop().call_later(_SETTLE_S, self._declare)

    # -- framing ----------------------------------------------------------------------------

    def _line(self, line: bytes) -> None:
        if len(line) > self._limits.frame_bytes:
            self._too_large()
        elif not line or line.isspace():
            return
        elif self._on_frame is None:
            self._may_unpack = False
            self._early.append(line)
        else:
            self._may_unpack = False
            self._on_frame(line)

    def _too_large(self) -> None:
        self._parts.clear()
        limit = self._limits.frame_bytes
        self._finish(f"sent a message of more than {limit:,} bytes", "frame_too_large")
        self.child.stop_reading()

    # -- the end ----------------------------------------------------------------------------

    def _declare(self) -> None:
        # What was read before the end was known is delivered before the end is told.
        self._deliver(math.inf, math.inf)
        code = self.child.exit_code
        if code is None:
            did = "stopped reading" if self.child.output_open else "closed its output"
            self._finish(did, "closed")
        elif code < 0:
            self._finish(f"was ended by {_signal_name(-code)}", "exited")
        else:
            self._finish(f"exited with code {code}", "exited")

    def _finish(self, message: str, reason: FaultReason) -> None:
        if self._end is not None:
            return
        code = self.child.exit_code
        detail = FaultDetail(
            server=self._server,
            reason=reason,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            stderr=self.read_stderr(),
            stdout=self.read_invalid_lines(),
        )
        self._end = TransportEnd(message, detail)
        if self._on_end is not None:
            self._on_end(self._end)

    def read_stderr(self) -> tuple[str, ...]:
        """Give the last lines of its standard error, and before them the cause if it is older."""
        if self._said is not None:
            return self._said[0]
        rest = [self._stderr_rest] if self._stderr_rest else []
        lines = [line.decode("utf-8", "replace") for line in (*self._stderr, *rest)]
        tail = lines[-_SHOWN_LINES:]
        if len(lines) > _SHOWN_LINES and (cause := find_cause(lines)) != find_cause(tail):
            tail = [cause, *tail[1:]]
        return tuple(tail)

    async def close(self) -> None:
        """End the process and all of its group; safe to call twice, and from any task.

        A caller that is cancelled meanwhile waits for the end all the same.
        """
        self._flush()
        if self._said is None:
            self._said = self.read_stderr(), self.read_invalid_lines()
        if self._stall is not None:
            self._stall.cancel()
        if self._may_unpack:
            await self.child.end(max(self._limits.close_s, _GENTLE_IDLE_S), gentle=True)
            return
        # One that has broken off already is not waited for.
        await self.child.end(self._limits.close_s if self._end is None else self._limits.close_s / 4)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
