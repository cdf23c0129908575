"""What the kernel costs beside the work that it is asked to do."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING

from bench.measure import awaits, calls, compare
from bench.row import Row
from bench.samples import SEARCH_SCHEMA
from indusagi.capabilities import ToolRegistry, ToolSpec, define_tool, make_local_context
from indusagi.core import content_hash
from indusagi.runtime import ToolCall

if TYPE_CHECKING:
    from bench.measure import Pair
    from indusagi.capabilities import ToolContext
    from indusagi.core import JsonObject

_TOOLS = 40
"""As many as a session with a few servers has; an unknown name is compared with each."""

_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer", "minimum": 1}},
    "required": ["path"],
    "additionalProperties": False,
}
_ARGUMENTS: JsonObject = {"path": "src/indusagi/core/json.py", "line": 12}


async def _locate(arguments: JsonObject, _ctx: ToolContext) -> str:
    return f"{arguments['path']}:{arguments['line']}"


def _registry() -> ToolRegistry:
    names = [*(f"server_{n}_tool" for n in range(_TOOLS - 1)), "locate"]
    registry = ToolRegistry()
    registry.register_all(define_tool(ToolSpec(name, "Point at a line.", _PARAMETERS, _locate)) for name in names)
    return registry


def _tool_call() -> Pair:
    ctx = make_local_context(os.curdir)
    run = _registry().to_tool_box(ctx).runner.run
    call = ToolCall("call-1", "locate", _ARGUMENTS)
    with asyncio.Runner() as runner:
        through = awaits(runner, partial(run, call))
        bare = awaits(runner, partial(_locate, _ARGUMENTS, ctx))
        return compare(through, bare)


def _unknown_tool() -> Pair:
    run = _registry().to_tool_box(make_local_context(os.curdir)).runner.run
    with asyncio.Runner() as runner:
        unknown = awaits(runner, partial(run, ToolCall("call-1", "locale", _ARGUMENTS)))
        known = awaits(runner, partial(run, ToolCall("call-1", "locate", _ARGUMENTS)))
        return compare(unknown, known)


def _content_hash() -> Pair:
    return compare(calls(partial(content_hash, SEARCH_SCHEMA)), calls(_plain_hash))


def _plain_hash() -> str:
    return hashlib.sha256(json.dumps(SEARCH_SCHEMA).encode()).hexdigest()


ROWS = (
    Row(
        "tool-call",
        "a call through the tool box",
        "awaiting the tool's own coroutine",
        _tool_call,
        # Twice what is measured (140 to 175 on Python 3.11 to 3.13). The coroutine does next to
        # nothing, so this is the price of checking the arguments, of a scope that can be cancelled
        # and of measuring the answer. One hop into a thread for each call would make it 900.
        budget=300,
    ),
    Row(
        "unknown-tool",
        f"a call of a name that none of {_TOOLS} tools has",
        "a call of one of them",
        _unknown_tool,
        # Twice what is measured. It goes through all names to find the one that was meant, and is
        # still to be an answer like any other.
        budget=6,
    ),
    Row("content-hash", "content_hash of a tool's schema", "sha256 of json.dumps", _content_hash, budget=6),
)
