"""Code mode types: limits, a script's result, and the exception its calls raise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record

RUN_CODE = "run_code"
"""Name of the tool that runs scripts."""
FaultKind: TypeAlias = Literal["syntax", "exception", "limit", "crash"]
"""Why a script ended early: it didn't parse, it raised, it exceeded a limit, or its interpreter died."""


@record(kw_only=True)
class CodeLimits:
    """Limits on one script."""

    wall_s: float = 600.0
    """From start to end, including calls and the user's decisions about them."""
    cpu_s: float = 10.0
    """The interpreter's own time, without calls."""
    memory_bytes: int = 128 * 1024 * 1024
    calls: int = 200
    parallel: int = 8
    """Concurrent read-only calls."""
    code_chars: int = 100_000
    value_bytes: int = 8 * 1024 * 1024
    """Limit for one call's arguments or result, and for the script's value, as JSON."""
    flight_bytes: int = 16 * 1024 * 1024
    """Limit for arguments of unanswered calls, and for answers the script hasn't read."""
    output_bytes: int = 1024 * 1024
    """Limit for the script's output."""


@record
class SourceLine:
    """One line of a traceback."""

    number: int
    text: str = ""
    function: str = ""


@record(kw_only=True)
class ScriptFault:
    """Why a script ended early."""

    kind: FaultKind
    message: str
    """Like the last line of a Python traceback: `ZeroDivisionError: division by zero`."""
    lines: Sequence[SourceLine] = ()
    """The traceback, innermost line last."""


@record(kw_only=True)
class ScriptResult:
    """A script's result."""

    output: str = ""
    """Everything it printed."""
    value: JsonValue = None
    """The value of its last expression."""
    fault: ScriptFault | None = None


class ScriptCallError(Exception):
    """A call that raises inside the script, with a builtin exception's name and a message."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class EngineUnavailable(CoreError):
    """The interpreter can't run here. The message says what to install."""


@record
class FunctionCall:
    """A script's call."""

    name: str
    positional: Sequence[JsonValue]
    named: Mapping[str, JsonValue]


CallFunction: TypeAlias = Callable[[FunctionCall], Awaitable[JsonValue]]
"""Makes a call for a script. Raises ScriptCallError."""
Message: TypeAlias = JsonObject
"""One line of the protocol between us and an interpreter."""


@record
class CallReport:
    """One of a script's calls, for the report to the model."""

    name: str
    state: str = field(default="ok")
    """`ok`, or the error code."""
