"""`todo_read` and `todo_set`.

`todo_set` always replaces the whole list; its answer mentions unfinished items missing from the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.checklist import LONGEST_TEXT, MOST_ITEMS, ChecklistItem, checklist_of
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult

_NO_ARGUMENTS: JsonSchema = {"type": "object", "properties": {}, "additionalProperties": False}
_ITEMS: JsonSchema = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "maxItems": MOST_ITEMS,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "minLength": 1, "maxLength": 64},
                    "text": {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT},
                    "status": {"type": "string", "enum": ["pending", "active", "done"]},
                },
                "required": ["id", "text", "status"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}


def todo_read_tool() -> DefinedTool:
    """Create the tool that shows the list."""
    description = "Show the checklist that todo_set has written."
    prepare = coerce_to(_NO_ARGUMENTS, {})
    return define_native_tool("todo_read", "Read checklist", description, _NO_ARGUMENTS, _read, prepare, read_only=True)


def todo_set_tool() -> DefinedTool:
    """Create the tool that replaces the list."""
    description = (
        "Replace the checklist of this session. Send every item each time. Keep one active while "
        "you work on it, and mark it done as soon as it is."
    )
    prepare = coerce_to(_ITEMS, {"todos": "items"})
    return define_native_tool("todo_set", "Update checklist", description, _ITEMS, _set, prepare)


async def _read(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    return _format_list(checklist_of(ctx).items, ())


async def _set(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    rows = cast("list[dict[str, str]]", arguments["items"])
    checklist = checklist_of(ctx)
    weights = {item.id: item.weight for item in checklist.items}
    items = [
        ChecklistItem(key, row["text"].strip(), row["status"], weights.get(key, "normal"))
        for row in rows
        for key in (row["id"].strip(),)
    ]
    problem = _find_problem(items)
    if problem is not None:
        return ToolResult.error(f"The checklist was left as it was: {problem}.", code="invalid_items")
    checklist.replace(items)
    kept = {item.id for item in items}
    dropped = [item.id for item in checklist.former if item.id not in kept and item.is_open]
    notes = [f"Dropped without finishing: {', '.join(dropped)}."] if dropped else []
    active = [item.id for item in items if item.status == "active"]
    if len(active) > 1:
        notes.append(f"{len(active)} items are active at once: {', '.join(active)}.")
    return _format_list(checklist.items, notes)


def _find_problem(items: Sequence[ChecklistItem]) -> str | None:
    seen: set[str] = set()
    for item in items:
        if not item.id:
            return "an item has no id"
        if item.id in seen:
            return f"two items have the id {item.id!r}"
        if not item.text:
            return f"the item {item.id!r} has no text"
        seen.add(item.id)
    return None


def _format_list(items: Sequence[ChecklistItem], notes: Sequence[str]) -> ToolResult:
    done, still_open = sum(item.status == "done" for item in items), sum(item.is_open for item in items)
    head = f"{done} of {done + still_open} done" if items else "The checklist is empty."
    lines = [head, *(str(item) for item in items), *notes]
    listed: JsonValue = [item.to_json() for item in items]
    return ToolResult(
        (TextContentBlock("\n".join(lines)), JsonContentBlock({"items": listed})),
        details={"open": still_open, "done": done},
    )
