"""`write`: give a file its complete content in one step."""

from __future__ import annotations

from typing import cast

from indusagi.capabilities.coercion import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.change import change_file
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import JsonSchema, ToolResult

_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Directories above it are made."},
        "content": {"type": "string"},
    },
    "required": ["path", "content"],
    "additionalProperties": False,
}
_ALIASES = {**PATH_ALIASES, "contents": "content", "text": "content", "file_text": "content"}
_DESCRIPTION = (
    "Write a whole file: a new one, or one that has been read and is unchanged since. No "
    "placeholders for omitted code. To change a part use edit. Answers with the changed lines "
    "and syntax errors."
)


def write_tool() -> DefinedTool:
    """Build the tool `write`."""
    return define_tool(
        ToolSpec(
            "write",
            _DESCRIPTION,
            _PARAMETERS,
            _run,
            title="Write a file",
            annotations={"destructiveHint": True, "idempotentHint": True},
            prepare=coerce_to(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    return await change_file(ctx, path_given(arguments), content=cast("str", arguments["content"]))
