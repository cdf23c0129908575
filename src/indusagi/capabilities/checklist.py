"""The checklist of a session: one list per context, shared by all tools that read or replace it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from indusagi.capabilities.context import PerContext, ToolContext
from indusagi.core.json import JsonObject
from indusagi.core.records import record

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
