"""`todo_read` and `todo_set`, and the checklist they share with all tools of a session.

`todo_set` always replaces the whole list; its answer mentions unfinished items missing from the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import PerContext, ToolContext
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult

MOST_ITEMS = 200
LONGEST_TEXT = 500
_GLYPHS = {"pending": "[ ]", "active": "[~]", "done": "[x]", "dropped": "[-]"}
_OPEN = frozenset({"pending", "active"})
_WEIGHTS = ("low", "normal", "high")


@record
class ChecklistItem:
    """A checklist item. Its weight and the status `dropped` come from the deck's `todo`."""

    id: str
    text: str
    status: str
    weight: str = "normal"

    def __str__(self) -> str:
        marked = "" if self.weight == "normal" else f" ({self.weight})"
        return f"{_GLYPHS[self.status]} {self.id}: {self.text}{marked}"

    @property
    def is_open(self) -> bool:
        """Whether it's unfinished."""
        return self.status in _OPEN

    def to_json(self) -> JsonObject:
        """Return the item as JSON."""
        item: JsonObject = {"id": self.id, "text": self.text, "status": self.status}
        return item if self.weight == "normal" else {**item, "weight": self.weight}


class Checklist:
    """The checklist of a session, and the list before the last change."""

    def __init__(self) -> None:
        self.items: tuple[ChecklistItem, ...] = ()
        self.former: tuple[ChecklistItem, ...] = ()

    def replace(self, items: Sequence[ChecklistItem]) -> None:
        """Replace the list, remembering the old one until the next change."""
        self.items, self.former = tuple(items), self.items

    def restore(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Replace the list with stored items, skipping ones with an unknown status or weight."""
        items = [ChecklistItem(row["id"], row["text"], row["status"], row.get("weight", "normal")) for row in rows]
        self.items = tuple(item for item in items if item.status in _GLYPHS and item.weight in _WEIGHTS)
        self.former = ()

    def open_items(self) -> Sequence[ChecklistItem]:
        """List the unfinished items."""
        return tuple(item for item in self.items if item.is_open)


_CHECKLISTS: PerContext[Checklist] = PerContext(Checklist)


def checklist_of(ctx: ToolContext) -> Checklist:
    """Return the checklist of a context."""
    return _CHECKLISTS.of(ctx)


# -- the tools ----------------------------------------------------------------------------------

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
