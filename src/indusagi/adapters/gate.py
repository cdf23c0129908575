"""Gate: a function of the embedding program that decides whether a call runs.

It receives a `GateRequest` and returns True, or False, or a text with the reason for the model. A plain function runs
in a thread, so that it may wait for a person; an async one in the event loop. A call runs after True and after nothing
else: a gate that raises has denied the call.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import TypeAlias, cast

from anyio import to_thread

from indusagi.core.json import JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import ToolBox, ToolCall, ToolResult


@record(kw_only=True)
class GateRequest:
    """A call that waits for a decision: what is shown is what runs."""

    tool: str
    arguments: JsonValue
    title: str
    """What will happen, in one line of printable ASCII characters."""
    reasons: tuple[str, ...] = ()
    """Why the gate is asked, where rules say so."""


GateAnswer: TypeAlias = bool | str
Gate: TypeAlias = Callable[[GateRequest], GateAnswer | Awaitable[GateAnswer]]


class MissingGateError(TypeError):
    """A toolbox that checks no call was given to an adapter without a gate."""


def allow_all(_: GateRequest) -> bool:
    """Allow every call: the gate of a program whose tools may all run."""
    return True


def is_gated(box: ToolBox) -> bool:
    """Return whether a toolbox decides about its calls by itself, as that of `open_deck` does."""
    return getattr(box, "is_gated", False) is True


def require_gate(box: ToolBox, gate: Gate | None) -> None:
    """Refuse a toolbox whose calls are checked by nothing.

    Raises:
        MissingGateError: There is neither a gate nor a toolbox that checks.
    """
    if gate is None and not is_gated(box):
        raise MissingGateError(
            "this toolbox runs every call of a model unasked: give gate=FUNCTION, which decides about each call, "
            "or gate=allow_all (indusagi.adapters.gate)"
        )


def build_gate_request(call: ToolCall) -> GateRequest:
    """Build the request of a call about which nothing else is known."""
    title = f"{json.dumps(call.name)[1:-1]} {format_arguments(call.input)}"
    # A copy: what a gate changes doesn't run.
    arguments = copy.deepcopy({**call.input} if isinstance(call.input, dict) else call.input)
    return GateRequest(tool=call.name, arguments=arguments, title=title)


def format_arguments(arguments: JsonValue) -> str:
    """Write arguments in one line of ASCII, in which every character is visible."""
    return json.dumps(arguments, default=repr)


async def ask_gate(gate: Gate, request: GateRequest) -> str | None:
    """Ask a gate; return None if the call may run, and otherwise why not, which may be empty."""
    try:
        if iscoroutinefunction(gate) or iscoroutinefunction(getattr(gate, "__call__", None)):  # noqa: B004 — the method itself
            answer = gate(request)
        else:
            answer = await to_thread.run_sync(gate, request, abandon_on_cancel=True)
        if isawaitable(answer):
            answer = await cast("Awaitable[GateAnswer]", answer)
    except Exception as exc:  # noqa: BLE001 — boundary: the gate is code of the embedding program
        return f"asking failed: {type(exc).__name__}: {exc}"
    if answer is True:
        return None
    return answer if isinstance(answer, str) else ""


async def check_call(gate: Gate, call: ToolCall) -> ToolResult | None:
    """Return the result of a call that the gate denied, or None if it may run."""
    refusal = await ask_gate(gate, build_gate_request(call))
    if refusal is None:
        return None
    suffix = f": {refusal}" if refusal else ""
    return ToolResult.error(f"{call.name} was not run: the user said no{suffix}", code="denied")
