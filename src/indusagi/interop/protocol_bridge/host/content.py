"""Everything a host offers except tools: resources, templates, prompts, completion, log messages.

It comes from a `ContentSource`. Each client's session translates between the source and the two eras of the protocol:
pages of lists, subscriptions, change notifications, log levels.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, compact_json
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.skills import ITEM_LISTS
from indusagi.interop.protocol_bridge.contract import ItemKind
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from indusagi.runtime.contract import ProgressSink

PAGE_ROWS = 1_000
"""Rows per page of a list; many clients only read the first page."""
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least severe first: https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/logging#log-levels."""
LIST_CHANGES: dict[ItemKind, tuple[str, str]] = {
    "tool": ("toolsListChanged", "notifications/tools/list_changed"),
    "resource": ("resourcesListChanged", "notifications/resources/list_changed"),
    "prompt": ("promptsListChanged", "notifications/prompts/list_changed"),
}
"""Subscription key and notification by kind; templates are announced with resources."""


@record
class ContentListing:
    """The items of one kind at one moment."""

    rows: Sequence[JsonObject] = ()
    ttl_ms: int = 0
    """How long a client may cache it."""


class ContentClient(Protocol):
    """A client of a host, as a content source sees it."""

    @property
    def user(self) -> str:
        """The user it belongs to (`ClientIdentity.user`); empty without access tokens."""
        ...

    @property
    def capabilities(self) -> JsonObject:
        """The client's capabilities from its handshake; empty without one."""
        ...

    @property
    def log_level(self) -> str | None:
        """Lowest level of log messages to send outside of calls; `None`: send none."""
        ...

    @property
    def level_set(self) -> str | None:
        """The level it set itself, if any."""
        ...

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification outside of any request."""
        ...

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send the client a request outside of its own requests; raise `RpcError` if it refuses or can't be reached."""
        ...


class ContentSource(Protocol):
    """Lists and delivers everything except tools."""

    def instructions(self) -> str | None:
        """Return the instructions about all the content."""
        ...

    def extensions(self) -> JsonObject:
        """Return the supported protocol extensions with their settings."""
        ...

    def find_server(self, method: str, params: JsonObject) -> str | None:
        """Find the server that a request is for, if any."""
        ...

    def refresh(self) -> Sequence[ItemKind]:
        """Read the lists again, and return the kinds that changed."""
        ...

    async def list_content(self, kind: ItemKind) -> ContentListing:
        """List the items of one kind."""
        ...

    async def request(self, method: str, params: JsonObject, on_progress: ProgressSink | None = None) -> JsonObject:
        """Answer the current caller's `resources/read`, `prompts/get` or `completion/complete`, or raise `RpcError`."""
        ...

    async def subscribe(self, uri: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on every update of a resource, until the returned function is called.

        Raises `RpcError` if there is no such resource, or its server doesn't report updates.
        """
        ...

    def add_client(self, client: ContentClient) -> Callable[[], None]:
        """Add a client for log messages and questions outside of calls, until the returned function is called."""
        ...

    def change_client(self, client: ContentClient, method: str) -> None:
        """Handle a client's new log level or, with `notifications/…`, its new roots."""
        ...


def build_content_row(kind: ItemKind, name: str, definition: Mapping[str, JsonValue]) -> JsonObject:
    """Convert a listed item's definition, under the name or URI that clients see.

    Drops only fields whose type the protocol doesn't allow.
    """
    identity = ITEM_LISTS[kind].identity
    own = {key: value for key, value in definition.items() if key != identity}
    row: JsonObject = {identity: name, **keep_fields(own, CONTENT_FIELDS)}
    if kind not in {"prompt", "skill"}:
        row.setdefault("name", str(definition.get(identity, name)))
    return row


def cut_page(key: str, rows: Sequence[JsonObject], cursor: JsonValue) -> JsonObject:
    """Return the page of a list that starts at a cursor, with the next page's cursor; refuse a cursor of another list.

    https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/pagination
    """
    if cursor is None and len(rows) <= PAGE_ROWS:
        return {key: [*rows]}
    digest = hashlib.sha256(compact_json([*rows]).encode()).hexdigest()[:16]
    starts = {f"{digest}-{start}": start for start in range(PAGE_ROWS, len(rows), PAGE_ROWS)}
    start = 0
    if cursor is not None:
        if not isinstance(cursor, str) or cursor not in starts:
            raise RpcError(INVALID_PARAMS, "this cursor belongs to no page: the list has changed; begin again")
        start = starts[cursor]
    page: JsonObject = {key: [*rows[start : start + PAGE_ROWS]]}
    if start + PAGE_ROWS < len(rows):
        page["nextCursor"] = f"{digest}-{start + PAGE_ROWS}"
    return page


def is_logged(level: JsonValue, least: str | None) -> bool:
    """Return whether a client with log level `least` gets a message of `level`."""
    if least not in LOG_LEVELS:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


# -- rows -------------------------------------------------------------------------------------
#
# Clients built on the official SDKs check every row of a list against the protocol's schema, and reject the whole list
# for one wrong value: behind a host of several servers, the list of all of them. So we drop each protocol field whose
# value has another type, even inside annotations, icons, arguments and schemas; unknown fields stay.
# https://modelcontextprotocol.io/specification/2025-11-25/schema


Keep: TypeAlias = Callable[[JsonValue], JsonValue]
"""Returns the part of a value that a client accepts, or None."""

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
"""https://www.rfc-editor.org/rfc/rfc3339#section-5.6"""


def keep_fields(row: Mapping[str, JsonValue], fields: Mapping[str, Keep]) -> JsonObject:
    """Return a row without values that the protocol doesn't allow for these fields."""
    kept: JsonObject = {}
    for key, value in row.items():
        keep = fields.get(key)
        accepted = value if keep is None else keep(value)
        if accepted is not None or keep is None:
            kept[key] = accepted
    return kept


def _keep_type(expected: type) -> Keep:
    """Keep a value of one type; `true` and `false` aren't numbers."""
    return lambda value: (
        value if isinstance(value, expected) and (expected is bool or not isinstance(value, bool)) else None
    )


def _keep_share(value: JsonValue) -> JsonValue:
    """Keep a number from 0 to 1."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1 else None


def _keep_moment(value: JsonValue) -> JsonValue:
    """Keep a time with its offset."""
    if not isinstance(value, str) or _MOMENT.fullmatch(value) is None:
        return None
    try:
        datetime.fromisoformat(value)
    except ValueError:  # such as February 30
        return None
    return value


def _keep_one_of(*values: str) -> Keep:
    return lambda value: value if isinstance(value, str) and value in values else None


def _keep_fields_of(fields: Mapping[str, Keep], needed: str = "") -> Keep:
    """Keep an object's allowed values; None if it lacks the `needed` field."""

    def keep(value: JsonValue) -> JsonValue:
        kept = keep_fields(value, fields) if isinstance(value, dict) else None
        return kept if kept is None or not needed or needed in kept else None

    return keep


def _keep_items(keep: Keep) -> Keep:
    """Keep the accepted items of a list."""
    return lambda value: (
        [kept for item in value if (kept := keep(item)) is not None] if isinstance(value, list) else None
    )


def _keep_schema(value: JsonValue) -> JsonValue:
    """Keep a JSON Schema whose `properties` are objects, rewriting the schemas `true` and `false` as objects.

    https://json-schema.org/draft/2020-12/json-schema-core#section-4.3.2
    """
    return keep_fields(value, _SCHEMA_FIELDS) if isinstance(value, dict) else None


def _keep_properties(value: JsonValue) -> JsonValue:
    if not isinstance(value, dict):
        return None
    return {
        key: schema if isinstance(schema, dict) else {"not": {}} if schema is False else {}
        for key, schema in value.items()
    }


_TEXT, _FLAG = _keep_type(str), _keep_type(bool)
_SCHEMA_FIELDS: Mapping[str, Keep] = {"properties": _keep_properties, "required": _keep_items(_TEXT)}
_ICON = _keep_fields_of(
    {"src": _TEXT, "mimeType": _TEXT, "sizes": _keep_items(_TEXT), "theme": _keep_one_of("light", "dark")}, needed="src"
)
_SHARED_FIELDS: Mapping[str, Keep] = {
    "title": _TEXT,
    "description": _TEXT,
    "icons": _keep_items(_ICON),
    "_meta": _keep_type(dict),
}
TOOL_FIELDS: Mapping[str, Keep] = {
    **_SHARED_FIELDS,
    "inputSchema": _keep_schema,
    "outputSchema": _keep_schema,
    "annotations": _keep_fields_of(
        {
            "title": _TEXT,
            "readOnlyHint": _FLAG,
            "destructiveHint": _FLAG,
            "idempotentHint": _FLAG,
            "openWorldHint": _FLAG,
        }
    ),
    "execution": _keep_fields_of({"taskSupport": _keep_one_of("forbidden", "optional", "required")}),
}
"""Fields of a tool: https://modelcontextprotocol.io/specification/2025-11-25/schema#tool."""
CONTENT_FIELDS: Mapping[str, Keep] = {
    **_SHARED_FIELDS,
    "name": _TEXT,
    "mimeType": _TEXT,
    "size": _keep_type(int),
    "annotations": _keep_fields_of(
        {
            "audience": _keep_items(_keep_one_of("user", "assistant")),
            "priority": _keep_share,
            "lastModified": _keep_moment,
        }
    ),
    "arguments": _keep_items(
        _keep_fields_of({"name": _TEXT, "title": _TEXT, "description": _TEXT, "required": _FLAG}, needed="name")
    ),
}
"""Fields of a resource, template or prompt: https://modelcontextprotocol.io/specification/2025-11-25/schema#resource."""
