"""`write`: give a file its complete content in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.runtime.contract import JsonSchema

if TYPE_CHECKING:
    from indusagi.capabilities.tool import RunTool

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


def _load_run() -> RunTool:
    from indusagi.capabilities.tools.runs.change import run_write  # noqa: PLC0415 — imported by the first call

    return run_write


def write_tool() -> DefinedTool:
    """Build the tool `write`."""
    return define_tool(
        ToolSpec(
            "write",
            _DESCRIPTION,
            _PARAMETERS,
            run_lazily(_load_run),
            title="Write a file",
            annotations={"destructiveHint": True, "idempotentHint": True},
            prepare=coerce_to(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )
