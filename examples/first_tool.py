"""Define a tool, put it into a tool box, and call it."""

import asyncio

from indusagi.capabilities import ToolRegistry, ToolSpec, define_tool, make_local_context
from indusagi.runtime import ToolCall


async def count(arguments, ctx):
    text = await ctx.fs.read_text(arguments["path"])
    return {"lines": len(text.splitlines()), "words": len(text.split())}


schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
registry = ToolRegistry()
registry.register(define_tool(ToolSpec("count", "Count lines and words of a file.", schema, count)))
box = registry.to_tool_box(make_local_context("."))
outcome = asyncio.run(box.runner.run(ToolCall("call-1", "count", {"path": "LICENSE"})))
print(outcome.is_error, outcome.output)
# Prints:
# False {'lines': 202, 'words': 1581}
