"""`edit`: replace texts in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from indusagi.capabilities.coercion import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.edits.replace import Replacement
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.change import change_file
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given
from indusagi.core.json import JsonLike, JsonObject, JsonValue, is_json_object
from indusagi.runtime.contract import JsonSchema, ToolResult

MAX_EDITS = 200
_TEXTS: dict[str, JsonLike] = {
    "oldText": {"type": "string", "description": "Copied from the file, without line numbers; empty: make a new file."},
    "newText": {"type": "string"},
    "replaceAll": {"type": "boolean"},
}
_ITEM: JsonSchema = {
    "type": "object",
    # Described above, and not twice.
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
    "old_string": "oldText",
    "oldString": "oldText",
    "old_text": "oldText",
    "old_str": "oldText",
    "new_string": "newText",
    "newString": "newText",
    "new_text": "newText",
    "new_str": "newText",
    "replace_all": "replaceAll",
}
_DESCRIPTION = (
    "Replace text in a file that has been read. oldText must stand in it exactly once (or set "
    "replaceAll): include lines around it. Line endings, trailing blanks, indentation and the "
    "look of quotes may differ. A miss shows the closest lines. Answers with the changed "
    "lines and syntax errors."
)


def edit_tool() -> DefinedTool:
    """Build the tool `edit`."""
    return define_tool(
        ToolSpec(
            "edit",
            _DESCRIPTION,
            _PARAMETERS,
            _run,
            title="Edit a file",
            annotations={"destructiveHint": True, "idempotentHint": False},
            prepare=_prepare,
            terse=True,
        )
    )


_prepare_call = coerce_to(_PARAMETERS, {**PATH_ALIASES, **_TEXT_ALIASES, "dry_run": "dryRun"})
_prepare_edit = coerce_to(_ITEM, _TEXT_ALIASES)


def _prepare(arguments: JsonValue) -> JsonValue:
    prepared = _prepare_call(arguments)
    edits = prepared.get("edits") if is_json_object(prepared) else None
    if not is_json_object(prepared) or not isinstance(edits, list) or len(edits) > MAX_EDITS:
        return prepared
    return {**prepared, "edits": [_prepare_edit(edit) for edit in edits]}


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    edits = _parse_arguments(arguments)
    if isinstance(edits, str):
        return ToolResult.error(f"edit was not run: {edits}", code="invalid_arguments")
    return await change_file(ctx, path_given(arguments), edits=edits, dry_run=arguments.get("dryRun") is True)


def _parse_arguments(arguments: JsonObject) -> Sequence[Replacement] | str:
    """Parse the replacements, or return what is wrong with them."""
    several = arguments.get("edits")
    single = [name for name in _TEXTS if name in arguments]
    # Some models fill in every parameter of a tool.
    if isinstance(several, list) and (several or not single):
        if any(arguments.get(name) for name in single):
            return "give either edits, or oldText and newText"
        items = cast("list[JsonObject]", several)
    elif "oldText" in arguments and "newText" in arguments:
        items = [arguments]
    else:
        return "give oldText and newText, or edits"
    if not items:
        return "edits is empty: give one at least"
    edits = [
        Replacement(cast("str", item["oldText"]), cast("str", item["newText"]), item.get("replaceAll") is True)
        for item in items
    ]
    if any(edit.old == edit.new for edit in edits):
        return "oldText and newText are the same"
    return edits
