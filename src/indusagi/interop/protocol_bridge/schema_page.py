"""One level of the view while it is written, and the levels below it that come later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from indusagi.interop.protocol_bridge.schema import closed_object, is_dict, is_list, known_type

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.schema import AnyObject

_SHOWN_CHARACTERS = 60
"""How much of somebody else's text a place or a reason repeats."""

_Holder: TypeAlias = "JsonObject | list[JsonValue]"


def least(level: object) -> JsonObject:
    """Say the least that can be said of a level: its type."""
    kind = known_type(level)
    if kind is None:
        return {}
    if kind == "object":
        return closed_object()
    return {"type": "array", "items": {}} if kind == "array" else {"type": kind}


@dataclass(frozen=True, slots=True)
class Spot:
    """A level that waits for its turn, and the place that its view will take."""

    source: object
    holder: _Holder
    key: str | int
    place: str = "$"
    depth: int = 0
    trail: tuple[AnyObject, ...] = ()
    """The levels above, and what was referred to on the way: meeting one again is recursion."""

    @property
    def view(self) -> JsonObject:
        """What stands in the place now: the least, until something better is put there."""
        return cast("dict[object, JsonObject]", self.holder)[self.key]

    def settled(self, source: object, trail: tuple[AnyObject, ...]) -> Spot:
        """Give the same place for what its level turned out to be."""
        return Spot(source, self.holder, self.key, self.place, self.depth, trail)

    def put(self, view: JsonObject) -> None:
        """Put the view of the level in its place."""
        cast("dict[object, JsonObject]", self.holder)[self.key] = view


class Page:
    """The view of one level, in which each level below has a place with the least in it."""

    def __init__(self, spot: Spot, kind: str | None, out: JsonObject | None = None) -> None:
        self.out: JsonObject = {} if out is None else out
        self.below: list[Spot] = []
        self._spot = spot
        self._kind = kind

    def write(self, key: str, level: AnyObject) -> None:
        """Write a keyword that holds levels, or names them."""
        value = level[key]
        if key == "required":
            self._required(value, level.get("properties"))
        elif key in {"items", "additionalProperties"}:
            self._one(key, value, "[]" if key == "items" else ".*")
        elif key in {"properties", "patternProperties"}:
            self._named(key, value)
        else:
            self._several(key, cast("list[object]", value))

    def finish(self) -> None:
        """Add what some provider insists on, and what allows everything."""
        if self._kind == "object":
            self.out.setdefault("properties", {})
        elif self._kind == "array" and "unevaluatedItems" not in self.out:
            self.out.setdefault("items", {})

    def _required(self, names: object, declared: object) -> None:
        kept = [name for name in names if isinstance(name, str)] if is_list(names) else []
        if self._kind == "object":
            known = declared if is_dict(declared) else {}
            kept = [name for name in kept if known.get(name, False) is not False]
        if kept:
            self.out["required"] = cast("JsonValue", kept)

    def _one(self, key: str, value: object, step: str) -> None:
        if isinstance(value, bool):
            self.out[key] = value
        elif is_dict(value):
            self._leave(self.out, key, value, step)

    def _named(self, key: str, values: object) -> None:
        """Write a map of levels; a property that must not occur is not mentioned."""
        holder: JsonObject = {}
        self.out[key] = holder
        for name, source in values.items() if is_dict(values) else ():
            if isinstance(name, str) and (source is not False or key != "properties"):
                self._leave(holder, name, source, _step(name))

    def _several(self, key: str, values: Iterable[object]) -> None:
        """Write a list of levels, without the booleans that change nothing in it."""
        void = {"anyOf": [False], "allOf": [False, True]}.get(key, [])
        sources = [value for value in values if not (isinstance(value, bool) and value in void)]
        if sources:
            holder = cast("list[JsonValue]", [None] * len(sources))
            self.out[key] = holder
            for index, source in enumerate(sources):
                self._leave(holder, index, source, f".{key}[{index}]")

    def _leave(self, holder: _Holder, key: str | int, source: object, step: str) -> None:
        above = self._spot
        spot = Spot(source, holder, key, f"{above.place}{step}", above.depth + 1, above.trail)
        spot.put(least(source))
        self.below.append(spot)


def shown(value: object) -> str:
    """Give the beginning of a text, or the type of anything else."""
    return repr(value[:_SHOWN_CHARACTERS]) if isinstance(value, str) else type(value).__name__


def _step(name: str) -> str:
    return f".{name}" if name.isidentifier() and name.isascii() else f"[{shown(name)}]"
