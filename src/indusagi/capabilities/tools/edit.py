"""`edit` and `write`: replace texts in a file, or the whole file."""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import DefinedTool, define_native_tool, run_lazily
from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.core.json import JsonLike
from indusagi.runtime.contract import JsonSchema

MAX_EDITS = 200
_CHANGE = "indusagi.capabilities.tools.change"
_TEXTS: dict[str, JsonLike] = {
    "oldText": {"type": "string", "description": "Copied from the file, without line numbers; empty: make a new file."},
    "newText": {"type": "string"},
    "replaceAll": {"type": "boolean"},
}
_ITEM: JsonSchema = {
    "type": "object",
    # Not described again.
    "properties": {"oldText": {"type": "string"}, "newText": {"type": "string"}, "replaceAll": {"type": "boolean"}},
    "required": ["oldText", "newText"],
    "additionalProperties": False,
}
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        **_TEXTS,
        "edits": {
            "type": "array",
            "maxItems": MAX_EDITS,
            "items": _ITEM,
            "description": "Several instead of one, in order, all or none.",
        },
        "dryRun": {"type": "boolean", "description": "Only show the diff."},
    },
    "required": ["path"],
    "additionalProperties": False,
}
_TEXT_ALIASES = {
    **dict.fromkeys(("old_string", "oldString", "old_text", "old_str"), "oldText"),
    **dict.fromkeys(("new_string", "newString", "new_text", "new_str"), "newText"),
    "replace_all": "replaceAll",
}
_DESCRIPTION = (
    "Replace text in a file that has been read. oldText must stand in it exactly once (or set "
    "replaceAll): include lines around it. Line endings, trailing blanks, indentation and the "
    "look of quotes may differ. A miss shows the closest lines. Answers with the changed "
    "lines and syntax errors."
)


def edit_tool() -> DefinedTool:
    """Create the `edit` tool."""
    prepare = coerce_to(
        _PARAMETERS, {**PATH_ALIASES, **_TEXT_ALIASES, "dry_run": "dryRun"}, {"edits": coerce_to(_ITEM, _TEXT_ALIASES)}
    )
    run, preview = run_lazily(_CHANGE, "run_edit"), run_lazily(_CHANGE, "preview_edit")
    hints = {"destructiveHint": True, "idempotentHint": False}
    return define_native_tool(
        "edit", "Edit a file", _DESCRIPTION, _PARAMETERS, run, prepare, annotations=hints, preview=preview
    )


# -- write ------------------------------------------------------------------------------------------


_WRITE_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Directories above it are made."},
        "content": {"type": "string"},
    },
    "required": ["path", "content"],
    "additionalProperties": False,
}
_WRITE_ALIASES = {**PATH_ALIASES, "contents": "content", "text": "content", "file_text": "content"}
_WRITE_DESCRIPTION = (
    "Write a whole file: a new one, or one that has been read and is unchanged since. No "
    "placeholders for omitted code. To change a part use edit. Answers with the changed lines "
    "and syntax errors."
)


def write_tool() -> DefinedTool:
    """Create the `write` tool."""
    prepare = coerce_to(_WRITE_PARAMETERS, _WRITE_ALIASES)
    run, preview = run_lazily(_CHANGE, "run_write"), run_lazily(_CHANGE, "preview_write")
    hints, schema = {"destructiveHint": True, "idempotentHint": True}, _WRITE_PARAMETERS
    return define_native_tool(
        "write", "Write a file", _WRITE_DESCRIPTION, schema, run, prepare, annotations=hints, preview=preview
    )
