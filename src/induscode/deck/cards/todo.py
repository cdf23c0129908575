"""`todo`: the checklist with weights and dropped items.

In a deck, it's an alias for the list of `todo_set`, which is the one models see.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import count
from typing import cast

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.checklist import LONGEST_TEXT, MOST_ITEMS, Checklist, ChecklistItem, checklist_of
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult
from induscode.deck.contract import Capability, CapabilityCard, DeckContext, Profile, capability_id, parse_member


class TodoState(StrEnum):
    """The state of an item."""

    PENDING = "pending"
    ACTIVE = "active"
    DONE = "done"
    DROPPED = "dropped"


class TodoWeight(StrEnum):
    """The weight of an item."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


_GLYPHS = {TodoState.PENDING: "[ ]", TodoState.ACTIVE: "[~]", TodoState.DONE: "[x]", TodoState.DROPPED: "[-]"}
_OPEN = frozenset({TodoState.PENDING, TodoState.ACTIVE})
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["read", "set"]},
        "items": {
            "type": "array",
            "description": "For set: the whole list, in order.",
            "maxItems": MOST_ITEMS,
            "items": {
                "type": "object",
                "properties": {
                    "task": {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT},
                    "state": {"type": "string", "enum": list(TodoState)},
                    "weight": {"type": "string", "enum": list(TodoWeight)},
                },
                "required": ["task"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["action"],
    "additionalProperties": False,
}


@record
class TodoItem:
    """One item of the checklist."""

    task: str
    state: TodoState = TodoState.PENDING
    weight: TodoWeight = TodoWeight.NORMAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", parse_member(TodoState, self.state))
        object.__setattr__(self, "weight", parse_member(TodoWeight, self.weight))

    def __str__(self) -> str:
        marked = "" if self.weight is TodoWeight.NORMAL else f" ({self.weight})"
        return f"{_GLYPHS[self.state]} {self.task}{marked}"

    def as_json(self) -> JsonObject:
        """Return the item as JSON."""
        return {"task": self.task, "state": str(self.state), "weight": str(self.weight)}


class TodoLedger:
    """A checklist in the deck's terms: the session's in a deck, otherwise a private one."""

    def __init__(self, checklist: Checklist | None = None) -> None:
        self._checklist = Checklist() if checklist is None else checklist

    def items(self) -> Sequence[TodoItem]:
        """Return the list."""
        return tuple(map(_to_todo, self._checklist.items))

    def replace(self, items: Sequence[TodoItem]) -> Sequence[TodoItem]:
        """Replace the list and return the former one. Items that stay keep their ids."""
        former = self._checklist.items
        ids = {item.text: item.id for item in reversed(former)}
        numbers = (number for number in map(str, count(1)) if number not in {item.id for item in former})
        rows = [
            ChecklistItem(ids.pop(item.task, None) or next(numbers), item.task, str(item.state), str(item.weight))
            for item in items
        ]
        self._checklist.replace(rows)
        return tuple(map(_to_todo, former))

    def open_items(self) -> Sequence[TodoItem]:
        """List the items still to do."""
        return tuple(map(_to_todo, self._checklist.open_items()))


def _to_todo(item: ChecklistItem) -> TodoItem:
    return TodoItem(item.text, TodoState(item.status), TodoWeight(item.weight))


def todo_card() -> CapabilityCard:
    """Return the row of the catalog."""
    summary = "Keep a weighted checklist"
    return CapabilityCard(capability_id("todo"), "Checklist", summary, (Profile.ALL,), _build)


def _build(deck: DeckContext) -> Capability:
    own = None if deck.in_deck else TodoLedger()

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        ledger = own or TodoLedger(checklist_of(ctx))
        if arguments["action"] == "read":
            return _show_items(ledger.items(), ())
        if "items" not in arguments:
            return ToolResult.error("To set the checklist, send `items`: the whole list.", code="invalid_arguments")
        rows = cast("list[dict[str, str]]", arguments["items"])
        items = [
            TodoItem(
                row["task"],
                TodoState(row.get("state", TodoState.PENDING)),
                TodoWeight(row.get("weight", TodoWeight.NORMAL)),
            )
            for row in rows
        ]
        return _show_items(items, ledger.replace(items))

    description = "Keep a checklist for this session. `read` shows it, `set` replaces all of it."
    prepare = coerce_to(_PARAMETERS, {"todos": "items"})
    spec = ToolSpec("todo", description, _PARAMETERS, run, title="Checklist", prepare=prepare, terse=True)
    return define_tool(spec)


def _show_items(items: Sequence[TodoItem], former: Sequence[TodoItem]) -> ToolResult:
    lines = [str(item) for item in items] or ["The checklist is empty."]
    kept = {item.task for item in items}
    missing = [item.task for item in former if item.state in _OPEN and item.task not in kept]
    if missing:
        lines.append(f"Gone without being done or dropped: {'; '.join(missing)}")
    listed: JsonValue = [item.as_json() for item in items]
    return ToolResult((TextContentBlock("\n".join(lines)), JsonContentBlock({"items": listed})))
