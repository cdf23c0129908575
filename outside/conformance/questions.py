"""Tools of a box that ask the client in the middle of a call: what each wants to know."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from indusagi.core.json import compact_json
from indusagi.interop.protocol_bridge.client.handlers import current_caller
from indusagi.runtime import ToolResult
from outside.conformance.server import schemas

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonObject

    Run = Callable[[JsonObject, ToolContext], Awaitable[ToolResult]]
    Question = tuple[str, JsonObject]
    Questions = Callable[[JsonObject], list[Question]]

_NEEDS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


def _form(message: str, **fields: Mapping[str, Any]) -> Question:
    schema: JsonObject = {
        "type": "object",
        "properties": {name: dict(field) for name, field in fields.items()},
        "required": list(fields),
    }
    return "elicitation/create", {"message": message, "requestedSchema": schema}


def _sample(prompt: str) -> Question:
    message: JsonObject = {"role": "user", "content": {"type": "text", "text": prompt}}
    return "sampling/createMessage", {"messages": [message], "maxTokens": 100}


_ROOTS: Question = ("roots/list", {})
_NAME = _form("What is your name?", name=schemas.TEXT)
_CONFIRM = _form("Please confirm", ok=schemas.YES_OR_NO)
_CAPITAL = _sample("What is the capital of France?")


def _able() -> JsonObject:
    caller = current_caller.get()
    return {} if caller is None else caller.capabilities


async def _ask(question: Question) -> str:
    caller = current_caller.get()
    if caller is None:
        raise LookupError("this call has no client")
    return compact_json(await caller.ask(*question))


def _asking(questions: Questions) -> Run:
    """Ask for all of it at once."""

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        asked = questions(arguments)
        missing = [method for method, _ in asked if _NEEDS[method] not in _able()]
        if missing or not asked:
            said = ", ".join(missing) or "anything"
            return ToolResult.error(f"the client does not answer {said}", code="unsupported")
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(_ask(question)) for question in asked]
        return ToolResult.text("\n".join(answer.result() for answer in answers))

    return run


def _always(*questions: Question) -> Run:
    return _asking(lambda arguments: [*questions])


async def _rounds(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Ask for one thing, then for another."""
    first = await _always(_form("Your name?", name=schemas.TEXT))(arguments, ctx)
    if first.is_error:
        return first
    return await _always(_form("Your favourite colour?", color=schemas.TEXT))(arguments, ctx)


def _what_it_can(arguments: JsonObject) -> list[Question]:
    return [one for one in (_NAME, _CAPITAL, _ROOTS) if _NEEDS[one[0]] in _able()]


PLAIN: dict[str, Run] = {
    "test_elicitation_sep1034_defaults": _always(_form("Is this right?", **schemas.DEFAULTS)),
    "test_elicitation_sep1330_enums": _always(_form("Which ones?", **schemas.CHOICES)),
    "test_streaming_elicitation": _always(_NAME),
    "test_input_required_result_elicitation": _always(_NAME),
    "test_input_required_result_sampling": _always(_CAPITAL),
    "test_input_required_result_list_roots": _always(_ROOTS),
    "test_input_required_result_request_state": _always(_CONFIRM),
    "test_input_required_result_tampered_state": _always(_CONFIRM),
    "test_input_required_result_multiple_inputs": _always(_NAME, _CAPITAL, _ROOTS),
    "test_input_required_result_multi_round": _rounds,
    "test_input_required_result_capabilities": _asking(_what_it_can),
}
"""Without arguments."""
OF_TEXT: dict[str, tuple[str, Run]] = {
    "test_sampling": ("prompt", _asking(lambda given: [_sample(str(given["prompt"]))])),
    "test_elicitation": (
        "message",
        _asking(lambda given: [_form(str(given["message"]), username=schemas.TEXT, email=schemas.TEXT)]),
    ),
}
"""With one, a text."""
