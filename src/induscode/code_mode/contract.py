"""Types of code mode: limits, the result of a script, and the exception that a script's call raises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record

RUN_CODE = "run_code"
"""The name of the tool that runs scripts."""
FaultKind: TypeAlias = Literal["syntax", "exception", "limit", "crash"]
"""Why a script ended early: it did not parse, it raised, it exceeded a limit, its interpreter ended."""


@record(kw_only=True)
class CodeLimits:
    """Limits on one script."""

    wall_s: float = 600.0
    """From start to end, with the calls and the questions to a person about them."""
    cpu_s: float = 10.0
    """Time of the interpreter itself, without the calls."""
    memory_bytes: int = 128 * 1024 * 1024
    calls: int = 200
    parallel: int = 8
    """Calls at once, as far as they only read."""
    code_chars: int = 100_000
    value_bytes: int = 8 * 1024 * 1024
    """Of the arguments or the result of one call, and of the value of the script, as JSON."""
    flight_bytes: int = 16 * 1024 * 1024
    """Of the arguments of unanswered calls, and of answers that the script hasn't read."""
    output_bytes: int = 1024 * 1024
    """Of everything that the script prints."""


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
    """As Python prints the last line of a traceback: `ZeroDivisionError: division by zero`."""
    lines: Sequence[SourceLine] = ()
    """The traceback, the innermost line last."""


@record(kw_only=True)
class ScriptResult:
    """What a script gave."""

    output: str = ""
    """What it printed."""
    value: JsonValue = None
    """The value of its last expression."""
    fault: ScriptFault | None = None


class ScriptCallError(Exception):
    """A call that raises inside the script: the name of a builtin exception, and its message."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class EngineUnavailable(CoreError):
    """The interpreter can't run here; the message says what to install."""


@record
class FunctionCall:
    """A call as the script makes it."""

    name: str
    positional: Sequence[JsonValue]
    named: Mapping[str, JsonValue]


CallFunction: TypeAlias = Callable[[FunctionCall], Awaitable[JsonValue]]
"""Makes a call for a script; it raises a ScriptCallError."""


Message: TypeAlias = JsonObject
"""One line of the protocol between us and an interpreter."""


@record
class CallReport:
    """One call that a script made, for the report to the model."""

    name: str
    state: str = field(default="ok")
    """`ok`, or the code of the error."""
