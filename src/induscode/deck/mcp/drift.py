"""How a definition differs from the one that was approved, and how much that matters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef

_ROUTING = ("description", "title", "annotations")
"""What decides when a model calls a tool, and what a person thinks it does."""


class DriftGrade(StrEnum):
    """How much a change matters, the worst first."""

    BREAKING = "breaking"
    """Calls that were right may fail, or mean something else."""
    ROUTING = "routing"
    """The same calls, but a model may be led to make them for other reasons."""
    COSMETIC = "cosmetic"
    """Neither."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One tool that is not what it was."""

    ref: RemoteToolRef
    grade: DriftGrade
    before: JsonObject | None
    """None: there was no such tool."""
    after: JsonObject | None
    """None: there is no such tool any more."""

    @property
    def fields(self) -> Sequence[str]:
        """The parts of the definition that differ."""
        before, after = self.before or {}, self.after or {}
        names = dict.fromkeys([*before, *after])
        return tuple(name for name in names if not same_json(before.get(name), after.get(name)))

    def diff(self) -> str:
        """Show the change line by line."""
        from difflib import unified_diff  # noqa: PLC0415 — only whoever looks at a change pays

        name = f"{self.ref.server}/{self.ref.name}"
        lines = unified_diff(
            pretty(self.before), pretty(self.after), f"{name} (approved)", f"{name} (now)", n=2
        )
        return "".join(lines)


def grade_drift(before: JsonObject | None, after: JsonObject | None) -> DriftGrade:
    """Tell how much it matters that one definition took the place of another.

    A tool that is new breaks nothing; it is told as routing, since a model may choose it.
    """
    if after is None:
        return DriftGrade.BREAKING
    if before is None:
        return DriftGrade.ROUTING
    if not _accepts_the_same(before.get("inputSchema"), after.get("inputSchema")):
        return DriftGrade.BREAKING
    if not same_json(before.get("outputSchema"), after.get("outputSchema")):
        return DriftGrade.BREAKING
    if any(not same_json(before.get(name), after.get(name)) for name in _ROUTING):
        return DriftGrade.ROUTING
    if not same_json(before.get("inputSchema"), after.get("inputSchema")):
        return DriftGrade.ROUTING
    return DriftGrade.COSMETIC


def compare_definitions(
    before: Mapping[RemoteToolRef, JsonObject], after: Mapping[RemoteToolRef, JsonObject]
) -> Sequence[Drift]:
    """List every tool that differs, those that are gone last."""
    found: list[Drift] = []
    for ref, raw in after.items():
        known = before.get(ref)
        if known is None or not same_json(known, raw):
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
    """Tell whether two schemas differ in their texts only, or in a property that may be left out.

    Whatever else differs counts as breaking: what it means for callers is not for us to guess.
    """
    old, new = _without_texts(before), _without_texts(after)
    if same_json(old, new):
        return True
    if not is_json_object(old) or not is_json_object(new):
        return False
    old_properties, new_properties = old.pop("properties", {}), new.pop("properties", {})
    if not is_json_object(old_properties) or not is_json_object(new_properties):
        return False
    kept = {name: new_properties.get(name) for name in old_properties}
    return same_json(old, new) and same_json(old_properties, kept)


def _without_texts(schema: JsonValue) -> JsonValue:
    """Copy a schema without the texts that validate nothing; properties keep their names."""
    if isinstance(schema, list):
        return [_without_texts(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for name, value in schema.items():
        if name in {"description", "title", "examples", "$comment"} and not is_json_object(value):
            continue
        if name == "properties" and isinstance(value, dict):
            kept[name] = {key: _without_texts(one) for key, one in value.items()}
        elif name in {"enum", "const", "default"}:
            kept[name] = value
        else:
            kept[name] = _without_texts(value)
    return kept
