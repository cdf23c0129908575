"""`edit`: replace texts in a file."""

from __future__ import annotations

from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.edits.replace import Replacement
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given
from indusagi.capabilities.tools.write import change_file
from indusagi.core.json import JsonLike, JsonObject
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
            prepare=coerce_to(
                _PARAMETERS,
                {**PATH_ALIASES, **_TEXT_ALIASES, "dry_run": "dryRun"},
                {"edits": coerce_to(_ITEM, _TEXT_ALIASES)},
            ),
            terse=True,
        )
    )


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    several, items, problem = arguments.get("edits"), list[JsonObject](), None
    single = [name for name in _TEXTS if name in arguments]
    # Some models fill in every parameter of a tool.
    if isinstance(several, list) and (several or not single):
        items = cast("list[JsonObject]", several)
        # The same change in both forms is one change.
        is_same = len(items) == 1 and all(
            (items[0].get(name) or None) == (arguments.get(name) or None) for name in _TEXTS
        )
        if any(arguments.get(name) for name in single) and not is_same:
            problem = "give either edits, or oldText and newText"
        elif not items:
            problem = "edits is empty: give one at least"
    elif "oldText" in arguments and "newText" in arguments:
        items = [arguments]
    else:
        problem = "give oldText and newText, or edits"
    edits = [
        Replacement(cast("str", item["oldText"]), cast("str", item["newText"]), item.get("replaceAll") is True)
        for item in items
    ]
    if problem is None and any(edit.old == edit.new for edit in edits):
        problem = "oldText and newText are the same"
    if problem is not None:
        return ToolResult.error(f"edit was not run: {problem}", code="invalid_arguments")
    return await change_file(ctx, path_given(arguments), edits=edits, dry_run=arguments.get("dryRun") is True)
