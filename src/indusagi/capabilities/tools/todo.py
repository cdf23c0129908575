"""`todo_read` and `todo_set`: the checklist of a session.

Both tools share one list per context. A list is always replaced as a whole; the answer names unfinished items that
the new list no longer contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import PerContext, ToolContext
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult

MOST_ITEMS = 200
LONGEST_TEXT = 500
_GLYPHS = {"pending": "[ ]", "active": "[~]", "done": "[x]"}
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
                    "status": {"type": "string", "enum": list(_GLYPHS)},
                },
                "required": ["id", "text", "status"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}


@record
class ChecklistItem:
    """One item of the checklist."""

    id: str
    text: str
    status: str

    def __str__(self) -> str:
        return f"{_GLYPHS[self.status]} {self.id}: {self.text}"

    def to_json(self) -> JsonObject:
        """Return the item as JSON."""
        return {"id": self.id, "text": self.text, "status": self.status}


class Checklist:
    """The checklist of one session, and the list before the last change."""

    def __init__(self) -> None:
        self.items: tuple[ChecklistItem, ...] = ()
        self.former: tuple[ChecklistItem, ...] = ()

    def replace(self, items: Sequence[ChecklistItem]) -> None:
        """Replace the list; the former one is kept until the next change."""
        self.items, self.former = tuple(items), self.items

    def restore(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Replace the list by stored items; those with an unknown status are left out."""
        items = [ChecklistItem(row["id"], row["text"], row["status"]) for row in rows if row["status"] in _GLYPHS]
        self.items, self.former = tuple(items), ()

    def open_items(self) -> Sequence[ChecklistItem]:
        """List the unfinished items."""
        return tuple(item for item in self.items if item.status != "done")


_CHECKLISTS: PerContext[Checklist] = PerContext(Checklist)


def checklist_of(ctx: ToolContext) -> Checklist:
    """Return the checklist of a context."""
    return _CHECKLISTS.of(ctx)


def todo_read_tool() -> DefinedTool:
    """Make the tool that shows the list."""
    description = "Show the checklist that todo_set has written."
    return define_tool(
        ToolSpec("todo_read", description, _NO_ARGUMENTS, _read, title="Read checklist", read_only=True, terse=True)
    )


def todo_set_tool() -> DefinedTool:
    """Make the tool that replaces the list."""
    description = (
        "Replace the checklist of this session. Send every item each time. Keep one active while "
        "you work on it, and mark it done as soon as it is."
    )
    return define_tool(
        ToolSpec(
            "todo_set",
            description,
            _ITEMS,
            _set,
            title="Update checklist",
            prepare=coerce_to(_ITEMS, {"todos": "items"}),
            terse=True,
        )
    )


async def _read(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    return _format_list(checklist_of(ctx).items, ())


async def _set(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    rows = cast("list[dict[str, str]]", arguments["items"])
    items = [ChecklistItem(row["id"].strip(), row["text"].strip(), row["status"]) for row in rows]
    problem = _find_problem(items)
    if problem is not None:
        return ToolResult.error(f"The checklist was left as it was: {problem}.", code="invalid_items")
    checklist = checklist_of(ctx)
    checklist.replace(items)
    kept = {item.id for item in items}
    dropped = [item.id for item in checklist.former if item.id not in kept and item.status != "done"]
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
    done = sum(item.status == "done" for item in items)
    head = f"{done} of {len(items)} done" if items else "The checklist is empty."
    lines = [head, *(str(item) for item in items), *notes]
    listed: JsonValue = [item.to_json() for item in items]
    return ToolResult(
        (TextContentBlock("\n".join(lines)), JsonContentBlock({"items": listed})),
        details={"open": len(items) - done, "done": done},
    )
