"""What `make demo` shows: a tool is defined, registered and called, and so are its mistakes."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.capabilities import (
    SessionDir,
    ToolRegistry,
    ToolSpec,
    define_tool,
    make_local_context,
)
from indusagi.core import CancelToken, compact_json
from indusagi.runtime import ToolCall

if TYPE_CHECKING:
    from indusagi.capabilities import ToolContext
    from indusagi.core import JsonObject, JsonValue
    from indusagi.runtime import ToolBox

LETTERS = ToolSpec(
    name="letters",
    description="Repeat the letters of the alphabet, a line each.",
    parameters={
        "type": "object",
        "properties": {"times": {"type": "integer", "minimum": 1}},
        "required": ["times"],
        "additionalProperties": False,
    },
    run=lambda arguments, ctx: letters(arguments, ctx),
    read_only=True,
)


async def letters(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
    times = arguments["times"]
    assert isinstance(times, int)
    return "".join(f"{chr(ord('a') + n % 26)}\n" for n in range(26 * times))


async def wait(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
    result = await ctx.shell.exec("sleep 60")
    return f"the command {result.ended}"


WAIT = ToolSpec("wait", "Run a command that takes a minute.", {"type": "object"}, wait)


async def show(box: ToolBox, title: str, name: str, arguments: JsonValue, seconds: float) -> None:
    """Call a tool and print what a model would read."""
    print(f"\n# {title}\n{name} {compact_json(arguments)}")
    token = CancelToken()
    timer = asyncio.get_running_loop().call_later(seconds, token.cancel, "the demo has seen enough")
    outcome = await box.runner.run(ToolCall("demo", name, arguments), token)
    timer.cancel()
    lines = str(outcome.output).strip().splitlines()
    shown = lines if len(lines) <= 6 else [*lines[:2], f"… {len(lines) - 4} lines …", *lines[-2:]]
    print(*(f"{'error' if outcome.is_error else 'ok'} | {line}" for line in shown), sep="\n")


async def main(folder: str) -> None:
    registry = ToolRegistry()
    registry.register_all([define_tool(LETTERS), define_tool(WAIT)])
    context = replace(make_local_context(folder), session_dir=SessionDir(f"{folder}/session"))
    box = registry.to_tool_box(context)
    print("tools:", ", ".join(descriptor.name for descriptor in box.descriptors()))
    await show(box, "a call", "letters", {"times": 1}, 60)
    await show(box, "a call with a wrong key and a wrong type", "letters", {"tims": "two"}, 60)
    await show(box, "a tool that does not exist", "leters", {}, 60)
    await show(
        box, "an answer too long for a model: cut, and kept in full", "letters", {"times": 100}, 60
    )
    await show(box, "a call that is cancelled: the command ends with it", "wait", {}, 0.3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(str(Path(place).resolve())))
