"""Interpreter processes: lines of JSON in both directions, limits enforced on our side, and an end that leaves nothing.

We send one script, `{"code", "names", "cpu_s", …}`, and answers to its calls, `{"id", "value"}` or `{"id", "error",
"message"}`. The process sends `ready`, then for each script `print`, `call`, `taken` (it has read an answer), and one
of `done` and `failed`. What comes from the process is the work of the script and is checked: a line that isn't a
message ends the process.

Memory is bounded in bytes. The pipe isn't read while 1 MiB of messages waits. A call is admitted here, in the reader:
one call too many ends the script, and while the arguments of unanswered calls fill `flight_bytes` the reader waits for
an answer. Answers that the script hasn't read may fill `flight_bytes` too; the next ones wait, and each holds one of
the few slots for running calls.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from indusagi.core.invisible import clean_json
from indusagi.core.json import NotJson, compact_json, is_json_object
from indusagi.core.process.child import ChildProcess
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
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from indusagi.core.json import JsonValue
    from induscode.code_mode.contract import CallFunction, CodeLimits, FaultKind, Message

_START_S = 30.0
_EXIT_S = 2.0
"""Between the end of the output of a process and its exit."""
_PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
"""What an interpreter needs to be loaded; every other variable may hold a secret."""
MAX_QUEUED_BYTES = 1024 * 1024
"""Of unhandled messages; past it the pipe isn't read."""
_LINE_BYTES = 1024 * 1024
"""Of a line, beyond the largest value."""
_ERROR_BYTES = 2_000
_FAULTS: dict[str, FaultKind] = {"syntax": "syntax", "exception": "exception", "limit": "limit"}
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair, which has no UTF-8 form: it becomes U+FFFD."""
_ENCODED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""The escape of one half, or the bytes that Python would read as one."""


class ScriptProcess:
    """One process with an interpreter; it runs one script at a time."""

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
        """Whether it has reported the end of a script, and can run another one."""

    # -- callbacks of the process -----------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        """Take lines."""
        first, *others = data.split(b"\n")
        self._line += first
        for other in others:
            self._queue.append(bytes(self._line))
            self._queued_bytes += len(self._line)
            self._line = bytearray(other)
        if len(self._line) > self._longest_line:
            self._queue.append(b"")  # not a message: the process is ended
            self._line.clear()
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._child.pause_output()
        self._changed.set()

    def stderr_received(self, data: bytes) -> None:
        """Keep the end of what the interpreter says about itself."""
        self._errors = (self._errors + data)[-_ERROR_BYTES:]

    def state_changed(self) -> None:
        """Wake the reader: the process has ended, or closed its output."""
        self._changed.set()

    # -- our side ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the process, and wait until it is ready.

        Raises:
            EngineUnavailable: It cannot be started, or ends at once.
        """
        environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        message: Message | None = None
        try:
            with anyio.move_on_after(_START_S):
                # It ends with its standard input, and takes its worker along: the kernel would spare the worker.
                await self._child.start(self._argv, environment, "/", die_with_parent=False)
                message, _ = await self._receive()
        except OSError as exc:
            raise EngineUnavailable(f"the interpreter cannot be started: {exc.strerror or exc}") from exc
        if message is None or message.get("op") != "ready":
            reason = self._errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise EngineUnavailable(f"the interpreter does not start: {reason or f'no sign after {_START_S:g} s'}")

    async def run(self, code: str, names: Sequence[str], call: CallFunction, limits: CodeLimits) -> ScriptResult:
        """Run a script; calls that are still running at its end are waited for, or cancelled if it was stopped."""
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
                    await anyio.lowlevel.checkpoint()  # a flood of small messages leaves room for everything else
                script.release()
                if script.result.fault is not None and script.result.fault.kind in {"limit", "crash"}:
                    tasks.cancel_scope.cancel()  # calls of a script that was stopped
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
        """Return the next message and its size; None if there are no more, or it's invalid."""
        while not self._queue:
            if not self._child.output_open:
                with anyio.move_on_after(_EXIT_S):  # its exit code says why
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
    """One script: its output, its calls and its end."""

    def __init__(self, call: CallFunction, limits: CodeLimits, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._call, self._limits, self._send = call, limits, send
        self._output: list[str] = []
        self._printed = 0
        self.result: ScriptResult | None = None
        self.is_reported = False
        """Whether the process itself has reported the end."""
        self._calls = 0
        self._slots = anyio.CapacityLimiter(limits.parallel)
        self.unanswered_bytes = 0
        """Of the arguments of admitted calls whose answers haven't been sent."""
        self._unread: dict[int, int] = {}
        """The sizes of answers that were sent and that the script hasn't read, by the number of the call."""
        self._held_back = 0
        """Answers that wait until the script reads earlier ones."""
        self._moved = anyio.Event()
        """Set when an answer was sent or read, or the script has ended."""

    @property
    def unread_bytes(self) -> int:
        """Of the answers that were sent and not read."""
        return sum(self._unread.values())

    async def handle(
        self, message: Message | None, size: int, tasks: TaskGroup, describe_end: Callable[[], ScriptFault]
    ) -> None:
        """Handle one message of the process."""
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
                self._move()
            case {"op": "done"}:
                self.result = ScriptResult(output="".join(self._output), value=message.get("value"))
            case {"op": "failed", "kind": str(kind), "message": str(text), "lines": list(lines)}:
                fault = ScriptFault(kind=_FAULTS.get(kind, "crash"), message=text, lines=_parse_lines(lines))
                self.result = self.finish(fault)
            case _:
                self.result = self.finish(describe_end())

    def finish(self, fault: ScriptFault) -> ScriptResult:
        """Build the result of a script that ended early, with what it printed before."""
        return ScriptResult(output="".join(self._output), fault=fault)

    def release(self) -> None:
        """Let answers go that wait for a script that has ended."""
        self._move()

    def _exceed(self, message: str) -> None:
        self.result = self.finish(ScriptFault(kind="limit", message=message))

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    async def _admit(self, size: int) -> bool:
        """Admit a call with `size` bytes of arguments when there's room for them. `False`: the script has ended."""
        self._calls += 1
        if self._calls > self._limits.calls:
            self._exceed(f"RuntimeError: a script makes {self._limits.calls} calls at most")
            return False
        while self.unanswered_bytes and self.unanswered_bytes + size > self._limits.flight_bytes:
            if self._held_back:  # the script reads no answer before this call: nothing would ever move
                limit = f"{self._limits.flight_bytes:,} bytes of arguments and as many of unread results"
                self._exceed(f"MemoryError: its open calls hold more than {limit}: await some before the next")
                return False
            await self._moved.wait()
        self.unanswered_bytes += size
        return True

    async def _answer(self, number: int, call: FunctionCall, size: int) -> None:
        # The slot is held until the answer is sent: few results wait at once.
        async with self._slots:
            try:
                line = _encode({"id": number, "value": await self._call(call)})
            except ScriptCallError as exc:
                line = _encode({"id": number, "error": exc.type_name, "message": str(exc)})
            if self._is_full(len(line)):
                self._held_back += 1
                self._move()
                while self._is_full(len(line)):
                    await self._moved.wait()
                self._held_back -= 1
            if self.result is None:  # the next script of the process has calls with the same numbers
                self._unread[number] = len(line)
                await self._send(line)
        self.unanswered_bytes -= size
        self._move()

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
                continue
    return parsed


# -- engines ----------------------------------------------------------------------------------


MISSING_EXTRA = "code mode needs the extra `code`: pip install 'indus-deck[code]'"
MOST_PROCESSES = 4
"""Scripts that run at once; further ones wait."""
_MOST_IDLE = 1
"""Processes that are kept for the next script."""


def find_engine_problem() -> str:
    """Say why the interpreter can't run here, with the remedy; "" if it can."""
    return "" if find_spec("pydantic_monty") else MISSING_EXTRA


class MontyEngine:
    """Runs scripts with pydantic-monty. Processes are kept for the next script; its workers are not."""

    name = "monty"

    def __init__(self) -> None:
        self._idle: list[ScriptProcess] = []
        self._limiter = anyio.CapacityLimiter(MOST_PROCESSES)

    async def run(self, code: str, names: Sequence[str], call: CallFunction, limits: CodeLimits) -> ScriptResult:
        """Run a script in a fresh interpreter. Whatever the script does is a result.

        Raises:
            EngineUnavailable: The interpreter can't run here.
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
                if process.is_idle and len(self._idle) < _MOST_IDLE:
                    self._idle.append(process)
                else:
                    await process.end()

    async def aclose(self) -> None:
        """End the processes that wait for a script."""
        while self._idle:
            await self._idle.pop().end()
