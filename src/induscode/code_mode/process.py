"""Interpreter processes: JSON lines in both directions, limits enforced on our side, and a clean end.

We send one script, `{"code", "names", "cpu_s", …}`, and answers to its calls, `{"id", "value"}` or `{"id", "error",
"message"}`. The process sends `ready`, then for each script `print`, `call`, `taken` (it has read an answer), and
either `done` or `failed`. The script controls all of that output, so we check it: an invalid line ends the process.

Memory is bounded in bytes. We stop reading the pipe while 1 MiB of messages is queued. The reader admits calls: one
call too many ends the script, and while the arguments of unanswered calls fill `flight_bytes`, the reader waits for an
answer. Answers the script hasn't read may fill `flight_bytes` too; further ones wait, each holding one of the few slots
for running calls.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from indusagi.core.json import JsonValue, NotJson, compact_json, is_json_object
from indusagi.core.process.child import ChildProcess
from indusagi.core.text import clean_json
from induscode.code_mode import monty_host
from induscode.code_mode.contract import (
    EngineUnavailable,
    FunctionCall,
    ScriptCallError,
    ScriptFault,
    ScriptResult,
    SourceLine,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from induscode.code_mode.contract import CallFunction, CodeLimits, FaultKind, Message

_START_S = 30.0
_EXIT_S = 2.0
"""Time between a process closing its output and exiting."""
_PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
"""Enough to load an interpreter. Any other variable may hold a secret."""
MAX_QUEUED_BYTES = 1024 * 1024
"""Limit for unhandled messages. Beyond it, we stop reading the pipe."""
_LINE_BYTES = 1024 * 1024
"""Allowance per line on top of the largest value."""
_ERROR_BYTES = 2_000
_FAULTS: dict[str, FaultKind] = {"syntax": "syntax", "exception": "exception", "limit": "limit"}
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair. It has no UTF-8 form, so it becomes U+FFFD."""
_ENCODED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""An escaped half, or bytes that Python would decode to one."""


class ScriptProcess:
    """An interpreter process. It runs one script at a time."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self._child = ChildProcess(self)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._line = bytearray()
        self._errors = b""
        self._changed = anyio.Event()
        self._longest_line = _LINE_BYTES
        self.is_idle = False
        """Whether it reported the end of a script and can run another."""

    # -- process callbacks ------------------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        """Queue complete lines."""
        first, *others = data.split(b"\n")
        self._line += first
        for other in others:
            self._queue.append(bytes(self._line))
            self._queued_bytes += len(self._line)
            self._line = bytearray(other)
        if len(self._line) > self._longest_line:
            self._queue.append(b"")  # an invalid message, which ends the process
            self._line.clear()
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._child.pause_output()
        self._changed.set()

    def stderr_received(self, data: bytes) -> None:
        """Keep the tail of the interpreter's errors."""
        self._errors = (self._errors + data)[-_ERROR_BYTES:]

    def state_changed(self) -> None:
        """Wake the reader: the process exited or closed its output."""
        self._changed.set()

    # -- our side ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the process, and wait until it's ready.

        Raises `EngineUnavailable` if it can't be started, or exits at once.
        """
        environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        message: Message | None = None
        try:
            with anyio.move_on_after(_START_S):
                # It exits with its standard input and takes its worker along; the kernel would spare the worker.
                await self._child.start(self._argv, environment, "/", die_with_parent=False)
                message, _ = await self._receive()
        except OSError as exc:
            raise EngineUnavailable(f"the interpreter cannot be started: {exc.strerror or exc}") from exc
        if message is None or message.get("op") != "ready":
            reason = self._errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise EngineUnavailable(f"the interpreter does not start: {reason or f'no sign after {_START_S:g} s'}")

    async def run(self, code: str, names: Sequence[str], call: CallFunction, limits: CodeLimits) -> ScriptResult:
        """Run a script. Wait for calls still running at its end, or cancel them if it was stopped."""
        self._longest_line, self.is_idle = limits.value_bytes + _LINE_BYTES, False
        request: Message = {
            "code": code,
            "names": [*names],
            "cpu_s": limits.cpu_s,
            "memory_bytes": limits.memory_bytes,
            "calls": limits.calls,
            "value_bytes": limits.value_bytes,
            "output_bytes": limits.output_bytes,
        }
        script = RunningScript(call, limits, self._send)
        with anyio.move_on_after(limits.wall_s) as scope:
            async with anyio.create_task_group() as tasks:
                await self._send(_encode(request))
                while script.result is None:
                    message, size = await self._receive()
                    await script.handle(message, size, tasks, self._describe_end)
                    await anyio.lowlevel.checkpoint()  # don't let a flood of small messages starve everything else
                script.move()  # releases answers waiting for the script
                if script.result.fault is not None and script.result.fault.kind in {"limit", "crash"}:
                    tasks.cancel_scope.cancel()  # calls of a stopped script
        if script.result is None or scope.cancelled_caught:
            message = f"TimeoutError: it ran for more than {limits.wall_s:g} s, with its calls"
            return script.finish(ScriptFault(kind="limit", message=message))
        self.is_idle = script.is_reported
        return script.result

    async def end(self) -> None:
        """Kill the process and its descendants."""
        await self._child.end(0)

    async def _send(self, line: bytes) -> None:
        await self._child.writable.wait()
        self._child.write(line)

    async def _receive(self) -> tuple[Message | None, int]:
        """Return the next message and its size, or None at the end or for an invalid one."""
        while not self._queue:
            if not self._child.output_open:
                with anyio.move_on_after(_EXIT_S):  # the exit code says why
                    await self._child.exited.wait()
                return None, 0
            self._changed = anyio.Event()
            if not self._queue:
                await self._changed.wait()
        line = self._queue.popleft()
        self._queued_bytes -= len(line)
        if self._queued_bytes <= MAX_QUEUED_BYTES:
            self._child.resume_output()
        try:
            message: JsonValue = json.loads(line)
            compact_json(message)
            if _ENCODED_SURROGATE.search(line):
                message, _ = clean_json(message, lambda part: _SURROGATE.subn("\ufffd", part))
        except (ValueError, RecursionError, NotJson):
            return None, 0
        return (message, len(line)) if is_json_object(message) else (None, 0)

    def _describe_end(self) -> ScriptFault:
        if self._child.output_open:
            return ScriptFault(kind="crash", message="the interpreter sent an invalid message, and was ended")
        return ScriptFault(kind="crash", message="the interpreter ended by itself")


class RunningScript:
    """One script: its output, calls and end."""

    def __init__(self, call: CallFunction, limits: CodeLimits, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._call, self._limits, self._send = call, limits, send
        self._output: list[str] = []
        self._printed = 0
        self.result: ScriptResult | None = None
        self.is_reported = False
        """Whether the process itself reported the end."""
        self._calls = 0
        self._slots = anyio.CapacityLimiter(limits.parallel)
        self.unanswered_bytes = 0
        """Argument bytes of admitted calls without an answer yet."""
        self._unread: dict[int, int] = {}
        """Sizes of answers the script hasn't read, by call number."""
        self._held_back = 0
        """Answers waiting until the script reads earlier ones."""
        self._moved = anyio.Event()
        """Set when an answer was sent or read, or the script ended."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers sent and not yet read."""
        return sum(self._unread.values())

    async def handle(
        self, message: Message | None, size: int, tasks: TaskGroup, describe_end: Callable[[], ScriptFault]
    ) -> None:
        """Handle one message from the process."""
        self.is_reported = message is not None and message.get("op") in {"done", "failed"}
        match message:
            case {"op": "print", "text": str(text)}:
                self._printed += len(text.encode("utf-8", "replace"))
                if self._printed > self._limits.output_bytes:
                    self._exceed(f"MemoryError: it printed more than {self._limits.output_bytes:,} bytes")
                elif text:
                    self._output.append(text)
            case {"op": "call", "id": int(number), "name": str(name), "args": list(args), "kwargs": dict(kwargs)}:
                if await self._admit(size):
                    tasks.start_soon(self._answer, number, FunctionCall(name, args, kwargs), size)
            case {"op": "taken", "id": int(number)}:
                self._unread.pop(number, None)
                self.move()
            case {"op": "done"}:
                self.result = ScriptResult(output="".join(self._output), value=message.get("value"))
            case {"op": "failed", "kind": str(kind), "message": str(text), "lines": list(lines)}:
                fault = ScriptFault(kind=_FAULTS.get(kind, "crash"), message=text, lines=_parse_lines(lines))
                self.result = self.finish(fault)
            case _:
                self.result = self.finish(describe_end())

    def finish(self, fault: ScriptFault) -> ScriptResult:
        """Build the result of a script that ended early, with its output so far."""
        return ScriptResult(output="".join(self._output), fault=fault)

    def _exceed(self, message: str) -> None:
        self.result = self.finish(ScriptFault(kind="limit", message=message))

    def move(self) -> None:
        """Wake everything that waits for an answer to be sent or read, or for the script's end."""
        self._moved.set()
        self._moved = anyio.Event()

    async def _admit(self, size: int) -> bool:
        """Admit a call with `size` bytes of arguments once there's room. `False` if the script has ended."""
        self._calls += 1
        if self._calls > self._limits.calls:
            self._exceed(f"RuntimeError: a script makes {self._limits.calls} calls at most")
            return False
        while self.unanswered_bytes and self.unanswered_bytes + size > self._limits.flight_bytes:
            if self._held_back:  # a deadlock: the script won't read an answer before this call
                limit = f"{self._limits.flight_bytes:,} bytes of arguments and as many of unread results"
                self._exceed(f"MemoryError: its open calls hold more than {limit}: await some before the next")
                return False
            await self._moved.wait()
        self.unanswered_bytes += size
        return True

    async def _answer(self, number: int, call: FunctionCall, size: int) -> None:
        # Hold the slot until the answer is sent, so that few results wait at once.
        async with self._slots:
            try:
                line = _encode({"id": number, "value": await self._call(call)})
            except ScriptCallError as exc:
                line = _encode({"id": number, "error": exc.type_name, "message": str(exc)})
            if self._is_full(len(line)):
                self._held_back += 1
                self.move()
                while self._is_full(len(line)):
                    await self._moved.wait()
                self._held_back -= 1
            if self.result is None:  # the process's next script reuses the call numbers
                self._unread[number] = len(line)
                await self._send(line)
        self.unanswered_bytes -= size
        self.move()

    def _is_full(self, size: int) -> bool:
        """Return whether an answer of this size has to wait until the script reads earlier ones."""
        unread = self.unread_bytes
        return self.result is None and unread > 0 and unread + size > self._limits.flight_bytes


def _encode(message: Message) -> bytes:
    return json.dumps(message).encode("ascii") + b"\n"


def _parse_lines(lines: Sequence[JsonValue]) -> list[SourceLine]:
    parsed: list[SourceLine] = []
    for line in lines:
        match line:
            case {"number": int(number), "text": str(text), "function": str(function)}:
                parsed.append(SourceLine(number, text, function))
            case _:
                pass
    return parsed


# -- engines ----------------------------------------------------------------------------------


MISSING_EXTRA = "code mode needs the extra `code`: pip install 'indus-deck[code]'"
MOST_PROCESSES = 4
"""Concurrent scripts. Further ones wait."""
_MAX_IDLE = 1
"""Idle processes to keep for the next script."""


def find_engine_problem() -> str:
    """Say why the interpreter can't run here, with a remedy; "" if it can."""
    return "" if find_spec("pydantic_monty") else MISSING_EXTRA


class MontyEngine:
    """Runs scripts with pydantic-monty. It reuses processes for the next script, but not their workers."""

    name = "monty"

    def __init__(self) -> None:
        self._idle: list[ScriptProcess] = []
        self._limiter = anyio.CapacityLimiter(MOST_PROCESSES)

    async def run(self, code: str, names: Sequence[str], call: CallFunction, limits: CodeLimits) -> ScriptResult:
        """Run a script in a fresh interpreter. Whatever the script does is a result.

        Raises `EngineUnavailable` if the interpreter can't run here.
        """
        if problem := find_engine_problem():
            raise EngineUnavailable(problem)
        async with self._limiter:
            is_known = bool(self._idle)
            command = [sys.executable, "-I", monty_host.__file__]
            process = self._idle.pop() if is_known else ScriptProcess(command)
            try:
                if not is_known:
                    await process.start()
                return await process.run(code, names, call, limits)
            finally:
                if process.is_idle and len(self._idle) < _MAX_IDLE:
                    self._idle.append(process)
                else:
                    await process.end()

    async def aclose(self) -> None:
        """End idle processes."""
        while self._idle:
            await self._idle.pop().end()
