"""`todo`: the deck's checklist, with weights and with dropped items."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import cast
from weakref import WeakKeyDictionary

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ContextId, ToolContext
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import JsonContentBlock, JsonSchema, TextContentBlock, ToolResult
from induscode.deck.contract import Capability, CapabilityCard, DeckContext, Profile, capability_id, parse_member

MOST_ITEMS = 200
LONGEST_TASK = 500


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
                    "task": {"type": "string", "minLength": 1, "maxLength": LONGEST_TASK},
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
    """One thing to do."""

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
    """The list of one card, or of the context that a host has opened it for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: tuple[TodoItem, ...] = ()

    def items(self) -> Sequence[TodoItem]:
        """Return the list."""
        with self._lock:
            return self._items

    def replace(self, items: Sequence[TodoItem]) -> Sequence[TodoItem]:
        """Replace the list, and return the former one."""
        with self._lock:
            former, self._items = self._items, tuple(items)
            return former

    def restore(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Replace the list by stored items; those with an unknown state or weight are left out."""
        self.replace(
            [
                TodoItem(row["task"], TodoState(row["state"]), TodoWeight(row["weight"]))
                for row in rows
                if row["state"] in set(TodoState) and row["weight"] in set(TodoWeight)
            ]
        )

    def open_items(self) -> Sequence[TodoItem]:
        """List the items that are still to be done."""
        return tuple(item for item in self.items() if item.state in _OPEN)


_LEDGERS: WeakKeyDictionary[ContextId, TodoLedger] = WeakKeyDictionary()


def open_todo_ledger(ctx: ToolContext) -> TodoLedger:
    """Give a context a list of its own, which the host of a session can store and restore."""
    return _LEDGERS.setdefault(ctx.context_id, TodoLedger())


def todo_card() -> CapabilityCard:
    """Return the row of the catalog."""
    summary = "Keep a weighted checklist"
    return CapabilityCard(capability_id("todo"), "Checklist", summary, (Profile.ALL,), _build)


def _build(_: DeckContext) -> Capability:
    own = TodoLedger()

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        ledger = _LEDGERS.get(ctx.context_id, own)
        if arguments["action"] == "read":
            return _show_items(ledger.items(), ())
        if "items" not in arguments:
            message = "To set the checklist, send `items`: the whole list."
            return ToolResult.error(message, code="invalid_arguments")
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
