"""The catalog of a host: what the box holds, as clients are told, written once and sent often."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast, runtime_checkable

from indusagi.core.json import JsonLike, JsonObject, JsonValue, NotJson, compact_json
from indusagi.interop.protocol_bridge.rpc.codec import EncodedObject
from indusagi.runtime.contract import ToolBox, ToolDescriptor

BoxSource: TypeAlias = ToolBox | Callable[[], ToolBox]
"""A box, or what gives the present one."""

_log = logging.getLogger(__name__)

SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@dataclass(frozen=True, slots=True)
class ToolListing:
    """The tools of a box at one moment, in its order."""

    schemas: Mapping[str, JsonObject]
    """By name, as they are listed."""
    legacy: EncodedObject
    modern: EncodedObject


def build_listing(descriptors: Sequence[ToolDescriptor], server_info: JsonObject) -> ToolListing:
    """Write the rows of a listing for both eras; one that is no JSON is left out and logged."""
    legacy, modern = _Rows(), _Rows()
    schemas: dict[str, JsonObject] = {}
    for descriptor in descriptors:
        try:
            row = build_tool_row(descriptor)
            before = _as_before(row)
            text = compact_json(row)
            modern.add(row, text)
            legacy.add(before, text if before is row else compact_json(before))
            schemas[descriptor.name] = cast("JsonObject", row["inputSchema"])
        except (NotJson, RecursionError) as exc:
            _log.warning("tool %r cannot be listed: %s", descriptor.name, exc)
    hints: JsonObject = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    stamp: JsonObject = {"_meta": {SERVER_INFO: server_info}}
    return ToolListing(schemas, legacy.prepared({}), modern.prepared({**hints, **stamp}))


class _Rows:
    def __init__(self) -> None:
        self._rows: list[JsonValue] = []
        self._texts: list[str] = []

    def add(self, row: JsonObject, text: str) -> None:
        self._rows.append(row)
        self._texts.append(text)

    def prepared(self, rest: JsonObject) -> EncodedObject:
        more = f",{compact_json(rest)[1:-1]}" if rest else ""
        text = f'{{"tools":[{",".join(self._texts)}]{more}}}'
        return EncodedObject({"tools": self._rows, **rest}, text.encode())


def build_tool_row(descriptor: ToolDescriptor) -> JsonObject:
    """Write a descriptor as a row of the protocol.

    A remote tool is passed on as its server defines it, under the name it has here.
    """
    if descriptor.definition is not None:
        return build_remote_row(descriptor.name, descriptor.definition)
    parameters = _plain(descriptor.parameters)
    # The one thing that the protocol demands of this schema, and that clients check.
    schema = parameters if parameters.get("type") == "object" else {**parameters, "type": "object"}
    row: JsonObject = {"name": descriptor.name}
    if descriptor.title is not None:
        row["title"] = descriptor.title
    row["description"] = descriptor.description
    row["inputSchema"] = schema
    if descriptor.output_schema is not None:
        row["outputSchema"] = _plain(descriptor.output_schema)
    if descriptor.annotations:
        row["annotations"] = _plain(descriptor.annotations)
    return row


def build_remote_row(name: str, definition: Mapping[str, JsonValue]) -> JsonObject:
    """Write the definition of a remote tool as a row of the protocol.

    Every field is kept, but for those whose type the protocol does not allow: one of them would
    make a strict client refuse the whole list.
    """
    row: JsonObject = {"name": name}
    for key, value in definition.items():
        wanted = _FIELD_TYPES.get(key)
        if key != "name" and (wanted is None or isinstance(value, wanted)):
            row[key] = value
    schema = row.get("inputSchema")
    given = schema if isinstance(schema, dict) else {}
    row["inputSchema"] = given if given.get("type") == "object" else {**given, "type": "object"}
    hints = row.get("annotations")
    if isinstance(hints, dict):
        row["annotations"] = {
            key: value
            for key, value in hints.items()
            if isinstance(value, str if key == "title" else bool) or not (key == "title" or key.endswith("Hint"))
        }
    icons = row.get("icons")
    if isinstance(icons, list):
        row["icons"] = [one for one in icons if _is_icon(one)]
    return row


_FIELD_TYPES: dict[str, type] = {
    "title": str,
    "description": str,
    "inputSchema": dict,
    "outputSchema": dict,
    "annotations": dict,
    "icons": list,
    "execution": dict,
    "_meta": dict,
}
"""https://modelcontextprotocol.io/specification/2025-11-25/schema#tool"""


def _is_icon(value: JsonValue) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("src"), str):
        return False
    sizes = value.get("sizes", [])
    return isinstance(value.get("mimeType", ""), str) and (
        isinstance(sizes, list) and all(isinstance(size, str) for size in sizes)
    )


def _as_before(row: JsonObject) -> JsonObject:
    """Leave out what clients of the older protocol cannot read: results that are no objects."""
    output = row.get("outputSchema")
    if not isinstance(output, dict) or output.get("type") == "object":
        return row
    return {key: value for key, value in row.items() if key != "outputSchema"}


def _plain(value: Mapping[str, JsonLike]) -> JsonObject:
    """Copy what may be frozen into plain dicts and lists."""
    return cast("JsonObject", _copied(value))


def _copied(value: object) -> object:
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if hasattr(value, "items"):
        return {key: _copied(inner) for key, inner in cast("Mapping[str, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_copied(inner) for inner in cast("Sequence[object]", value)]
    return value


class Ready(Protocol):
    """Something that has happened, or can be waited for: an event of asyncio, or of anyio."""

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        ...

    async def wait(self) -> object:
        """Wait until it has."""
        ...


@runtime_checkable
class AnswersUnlisted(Protocol):
    """A box with tools that it does not list: a call of one is answered with the reason."""

    def answers_unlisted(self, name: str) -> bool:
        """Tell whether there is such a tool of this name."""
        ...


class Catalog:
    """The tools a host offers, and those who want to hear when they change."""

    def __init__(self, box: BoxSource, server_info: JsonObject, ready: Ready | None = None) -> None:
        self.server_info = server_info
        self.ready = ready
        """Set once the box holds what a first client should see."""
        self._source = box
        self._listing: ToolListing | None = None
        self._listeners: dict[object, Callable[[], None]] = {}

    def box(self) -> ToolBox:
        """Give the present box."""
        if hasattr(self._source, "descriptors"):
            return cast("ToolBox", self._source)
        return cast("Callable[[], ToolBox]", self._source)()

    def listing(self) -> ToolListing:
        """Give the present listing; it is made once, and not kept before the box is ready."""
        if self._listing is not None:
            return self._listing
        listing = build_listing(self.box().descriptors(), self.server_info)
        if self.ready is None or self.ready.is_set():
            self._listing = listing
        return listing

    def may_call(self, name: str) -> bool:
        """Tell whether a call is for the box: it lists the tool, or says why it does not."""
        if name in self.listing().schemas:
            return True
        box = self.box()
        return isinstance(box, AnswersUnlisted) and box.answers_unlisted(name)

    def refresh(self) -> bool:
        """Look at the box again, and tell those who listen; False if all is as it was."""
        before = self._listing
        self._listing = build_listing(self.box().descriptors(), self.server_info)
        if before is not None and before.modern.encoded == self._listing.modern.encoded:
            return False
        for listener in [*self._listeners.values()]:
            listener()
        return True

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change; what is returned ends that."""
        place = object()
        self._listeners[place] = listener

        def forget() -> None:
            self._listeners.pop(place, None)

        return forget
