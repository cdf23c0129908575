"""The tool that replaces a text in a file by another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from indusagi.capabilities.coercion import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.edits.plan import Replacement
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.change import change_file
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given
from indusagi.core.json import JsonLike, JsonObject, JsonValue, is_json_object
from indusagi.runtime.contract import JsonSchema, ToolResult

MOST_EDITS = 200
_TEXTS: dict[str, JsonLike] = {
    "oldText": {"type": "string", "description": "Copied from the file, without line numbers; empty: make a new file."},
    "newText": {"type": "string"},
    "replaceAll": {"type": "boolean"},
}
_ITEM: JsonSchema = {
    "type": "object",
    # Described above; a model is not to read it twice.
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
            "maxItems": MOST_EDITS,
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
    """Make the tool `edit`."""
    return define_tool(
        ToolSpec(
            "edit",
            _DESCRIPTION,
            _PARAMETERS,
            _run,
            title="Edit a file",
            annotations={"destructiveHint": True, "idempotentHint": False},
            prepare=_prepared,
            terse=True,
        )
    )


_outer = coerce_to(_PARAMETERS, {**PATH_ALIASES, **_TEXT_ALIASES, "dry_run": "dryRun"})
_inner = coerce_to(_ITEM, _TEXT_ALIASES)


def _prepared(arguments: JsonValue) -> JsonValue:
    given = _outer(arguments)
    edits = given.get("edits") if is_json_object(given) else None
    if not is_json_object(given) or not isinstance(edits, list) or len(edits) > MOST_EDITS:
        return given
    return {**given, "edits": [_inner(edit) for edit in edits]}


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    edits = _edits(arguments)
    if isinstance(edits, str):
        return ToolResult.error(f"edit was not run: {edits}", code="invalid_arguments")
    path = path_given(arguments)
    return await change_file(ctx, path, edits=edits, dry_run=arguments.get("dryRun") is True)


def _edits(arguments: JsonObject) -> Sequence[Replacement] | str:
    """Read the replacements, or say what is wrong with them."""
    several = arguments.get("edits")
    single = [name for name in _TEXTS if name in arguments]
    # Some fill in every parameter they are offered.
    if isinstance(several, list) and (several or not single):
        if any(arguments.get(name) for name in single):
            return "give either edits, or oldText and newText"
        given = cast("list[JsonObject]", several)
    elif "oldText" in arguments and "newText" in arguments:
        given = [arguments]
    else:
        return "give oldText and newText, or edits"
    if not given:
        return "edits is empty: give one at least"
    edits = [_edit(each) for each in given]
    if any(edit.old == edit.new for edit in edits):
        return "oldText and newText are the same"
    return edits


def _edit(given: JsonObject) -> Replacement:
    return Replacement(cast("str", given["oldText"]), cast("str", given["newText"]), given.get("replaceAll") is True)
