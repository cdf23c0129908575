"""The tool that gives a file a content: all of it, in one step."""

from __future__ import annotations

from typing import cast

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.lenient import lenient
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools._change import change_file
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import JsonSchema, ToolResult

_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "The file; directories above it are made."},
        "content": {"type": "string", "description": "All that the file is to hold."},
    },
    "required": ["path", "content"],
    "additionalProperties": False,
}
_ALIASES = {**PATH_ALIASES, "contents": "content", "text": "content", "file_text": "content"}
_DESCRIPTION = (
    "Write a file: make a new one, or replace all of an existing one. An existing file must have "
    "been read in this session and be unchanged since. It keeps its encoding, its byte order mark "
    "and CRLF line endings. Give the whole content: a comment such as '... rest unchanged ...' in "
    "place of code is refused. To change a part of a file use edit. Answers with the lines that "
    "changed, and with a syntax error if the change has brought one (Python, JSON, TOML, XML)."
)


def write_tool() -> DefinedTool:
    """Make the tool `write`."""
    return define_tool(
        ToolSpec(
            "write",
            _DESCRIPTION,
            _PARAMETERS,
            _run,
            title="Write a file",
            annotations={"destructiveHint": True, "idempotentHint": True},
            prepare=lenient(_PARAMETERS, _ALIASES),
        )
    )


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    path = path_given(arguments)
    content = cast("str", arguments["content"])
    return await change_file(ctx, path, content=content)
