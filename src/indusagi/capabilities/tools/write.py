"""`write`: create or replace a whole file."""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.runtime.contract import JsonSchema

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
    """Create the `write` tool."""
    return define_tool(
        ToolSpec(
            "write",
            _DESCRIPTION,
            _PARAMETERS,
            run_lazily("indusagi.capabilities.tools.change", "run_write"),
            title="Write a file",
            annotations={"destructiveHint": True, "idempotentHint": True},
            prepare=coerce_to(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )
