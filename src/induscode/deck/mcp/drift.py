"""How a definition differs from the one that was approved, and how much that matters.

One grade for everything that asks: the lock, the pins, `mcp diff`, and whether a tool is disabled.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.notes import Note
from induscode.deck.mcp.canonical import Form, canonical_definition, canonical_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef

_READ_BY_MODELS = ("description", "title", "annotations", "inputSchema", "outputSchema")
"""What decides when and how a model calls a tool, and what a person thinks it does."""


class DriftGrade(StrEnum):
    """How much a change matters, the worst first."""

    BREAKING = "breaking"
    """Calls that were right may fail, or their answers have another shape."""
    ROUTING = "routing"
    """The same calls are accepted, but a model may make them for other reasons."""
    COSMETIC = "cosmetic"
    """Neither: the same words in another order, an icon, metadata."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One tool that is not what it was."""

    ref: RemoteToolRef
    grade: DriftGrade
    before: JsonObject | None
    """None: there was no such tool, or its approved definition was not kept."""
    after: JsonObject | None
    """None: there is no such tool any more."""

    @property
    def fields(self) -> Sequence[str]:
        """The parts of the definition that differ."""
        before, after = (canonical_definition(self.before or {}), canonical_definition(self.after or {}))
        names = dict.fromkeys([*before, *after])
        return tuple(name for name in names if not same_json(before.get(name), after.get(name)))

    @property
    def disables(self) -> bool:
        """Whether the tool may not be called until somebody approves the change."""
        return self.grade is not DriftGrade.COSMETIC

    def diff(self) -> str:
        """Show the change line by line."""
        from difflib import unified_diff  # noqa: PLC0415 — only whoever looks at a change pays

        name = f"{self.ref.server}/{self.ref.name}"
        lines = unified_diff(pretty(self.before), pretty(self.after), f"{name} (approved)", f"{name} (now)", n=2)
        return "".join(lines)


@dataclass(frozen=True, slots=True)
class DisabledTool:
    """A tool that may not be called until its changed definition is approved."""

    ref: RemoteToolRef
    name: str
    """The name a model would call it by."""
    grade: DriftGrade
    fields: Sequence[str] = ()
    """The parts of the definition that differ."""
    unsettled: bool = False
    """Whether it has switched between approved and other definitions, and not just changed."""

    @property
    def reason(self) -> str:
        """Why it is disabled."""
        changed = f"{self.grade} change of {', '.join(self.fields)}" if self.fields else self.grade
        if self.unsettled:
            return f"disabled: its definition keeps switching away from what was approved ({changed})"
        return f"disabled: its definition is not the one that was approved ({changed})"

    @property
    def diff_command(self) -> str:
        """The command that shows the change."""
        return command_line("indus", "mcp", "diff", self.ref.server)

    @property
    def approve_command(self) -> str:
        """The command that approves the definition as it is now."""
        return command_line("indus", "mcp", "approve", self.ref.server, self.ref.name)

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return f"look at the change: {self.diff_command}; approve it: {self.approve_command}"

    @property
    def note(self) -> Note:
        """The reason and the remedy, for whoever reads notes."""
        return Note(f"server {self.ref.server!r}, tool {self.ref.name!r}", self.reason, self.remedy)

    def as_json(self) -> JsonObject:
        """Give the facts for programs."""
        return {
            "server": self.ref.server,
            "tool": self.ref.name,
            "name": self.name,
            "grade": str(self.grade),
            "fields": [*self.fields],
            "reason": self.reason,
            "approve": self.approve_command,
        }


def command_line(*words: str) -> str:
    """Write a command for a shell: a hostile name stays one word of it, and no option."""
    end = next((at for at, word in enumerate(words) if word.startswith("-")), None)
    marked = words if end is None else (*words[:end], "--", *words[end:])
    return shlex.join(marked)


def grade_drift(before: JsonObject | None, after: JsonObject | None) -> DriftGrade:
    """Tell how much it matters that one definition took the place of another.

    A tool that is new breaks nothing; it is graded as routing, since a model may choose it. A
    `default` validates nothing (JSON Schema Validation 2020-12, section 9.2): another one is
    routing, and the same members in another order are no change.
    """
    if after is None:
        return DriftGrade.BREAKING
    if before is None:
        return DriftGrade.ROUTING
    if not _accepts_the_same(before.get("inputSchema"), after.get("inputSchema")):
        return DriftGrade.BREAKING
    if not _validates_the_same(before.get("outputSchema"), after.get("outputSchema")):
        return DriftGrade.BREAKING
    one, other = (canonical_definition(raw, Form.READING) for raw in (before, after))
    if any(not same_json(one.get(name), other.get(name)) for name in _READ_BY_MODELS):
        return DriftGrade.ROUTING
    return DriftGrade.COSMETIC


def closest_drift(ref: RemoteToolRef, approved: Iterable[JsonObject], raw: JsonObject) -> Drift:
    """Compare a definition with every approved one; the mildest difference is the drift."""
    worst_first = [*DriftGrade]
    found = [Drift(ref, grade_drift(before, raw), before, raw) for before in approved]
    if not found:
        return Drift(ref, DriftGrade.ROUTING, None, raw)
    # The last of equals: what was approved last is what people remember.
    return max(reversed(found), key=lambda one: worst_first.index(one.grade))


def is_same_definition(one: JsonObject, other: JsonObject) -> bool:
    """Tell whether two definitions differ in order alone, or not at all."""
    return same_json(canonical_definition(one), canonical_definition(other))


def differ_in_order_alone(one: JsonObject, other: JsonObject) -> bool:
    """Tell whether two definitions have the same words and members, in whatever order."""
    return same_json(canonical_definition(one, Form.READING), canonical_definition(other, Form.READING))


def compare_definitions(
    before: Mapping[RemoteToolRef, JsonObject], after: Mapping[RemoteToolRef, JsonObject]
) -> Sequence[Drift]:
    """List every tool that differs, those that are gone last."""
    found: list[Drift] = []
    for ref, raw in after.items():
        known = before.get(ref)
        if known is None or not is_same_definition(known, raw):
            found.append(Drift(ref, grade_drift(known, raw), known, raw))
    gone = (ref for ref in before if ref not in after)
    found.extend(Drift(ref, DriftGrade.BREAKING, before[ref], None) for ref in gone)
    return tuple(found)


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Compare two values as JSON: the order of keys makes no difference, `1` is not `true`."""
    return compact_json(one, sort_keys=True) == compact_json(other, sort_keys=True)


def pretty(value: JsonObject | None) -> list[str]:
    """Write a definition over several lines, keys in order, so that a change is a changed line."""
    import json  # noqa: PLC0415 — only whoever shows or writes definitions pays for it

    if value is None:
        return []
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    return [f"{line}\n" for line in text.split("\n")]


def _accepts_the_same(before: JsonValue, after: JsonValue) -> bool:
    """Tell whether two schemas accept the same calls, apart from a new optional property.

    Whatever else differs counts as breaking: what it means for callers is not for us to guess.
    """
    old, new = (canonical_schema(one, Form.VALIDATION) for one in (before, after))
    if same_json(old, new):
        return True
    if not is_json_object(old) or not is_json_object(new):
        return False
    old_properties, new_properties = old.pop("properties", {}), new.pop("properties", {})
    if not is_json_object(old_properties) or not is_json_object(new_properties):
        return False
    if not old_properties.keys() <= new_properties.keys():
        return False
    kept = {name: new_properties[name] for name in old_properties}
    return same_json(old, new) and same_json(old_properties, kept)


def _validates_the_same(before: JsonValue, after: JsonValue) -> bool:
    return same_json(canonical_schema(before, Form.VALIDATION), canonical_schema(after, Form.VALIDATION))
