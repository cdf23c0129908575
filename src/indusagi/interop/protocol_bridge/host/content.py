"""What a host offers beside tools: resources, templates, prompts, completion, log messages.

A host gets them from a `ContentSource`. The session of each client translates between the source and the two eras of
the protocol: lists in pages, subscriptions, change notifications, log levels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from indusagi.core.json import JsonObject, JsonValue, compact_json
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.items import ITEM_LISTS
from indusagi.interop.protocol_bridge.contract import ItemKind
from indusagi.interop.protocol_bridge.host.rows import CONTENT_FIELDS, keep_fields
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from indusagi.runtime.contract import ProgressSink

PAGE_ROWS = 1_000
"""Rows in one page of a list; many clients read the first page only."""
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""The least severe first: https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/logging#log-levels."""
LIST_CHANGES: dict[ItemKind, tuple[str, str]] = {
    "tool": ("toolsListChanged", "notifications/tools/list_changed"),
    "resource": ("resourcesListChanged", "notifications/resources/list_changed"),
    "prompt": ("promptsListChanged", "notifications/prompts/list_changed"),
}
"""For each kind, its key in a subscription and its notification; templates are announced with resources."""


@record
class ContentListing:
    """The items of one kind at one moment."""

    rows: Sequence[JsonObject] = ()
    ttl_ms: int = 0
    """How long a client may keep it."""


class ContentClient(Protocol):
    """One client of a host, as a source of content sees it."""

    @property
    def capabilities(self) -> JsonObject:
        """What the client declared in its handshake; empty without one."""
        ...

    @property
    def log_level(self) -> str | None:
        """The least severe log messages that it wants outside of calls; `None`: none."""
        ...

    @property
    def level_set(self) -> str | None:
        """The level that it has set itself; `None` before."""
        ...

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification that belongs to no request."""
        ...

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request that belongs to none of the client's own.

        Raises:
            RpcError: It refused, did not respond, or cannot be asked.
        """
        ...


class ContentSource(Protocol):
    """Lists and delivers everything beside tools."""

    def instructions(self) -> str | None:
        """Return the text about everything that is served."""
        ...

    def extensions(self) -> JsonObject:
        """Return the extensions of the protocol that are offered, with their settings."""
        ...

    def find_server(self, method: str, params: JsonObject) -> str | None:
        """Find the server that a request is for; None if it is for none."""
        ...

    def refresh(self) -> Sequence[ItemKind]:
        """Read the lists again, and return the kinds that have changed."""
        ...

    async def list_content(self, kind: ItemKind) -> ContentListing:
        """List the items of one kind."""
        ...

    async def request(self, method: str, params: JsonObject, on_progress: ProgressSink | None = None) -> JsonObject:
        """Answer `resources/read`, `prompts/get` or `completion/complete` of the present caller.

        Raises:
            RpcError: It was refused.
        """
        ...

    async def subscribe(self, uri: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every update of a resource, until the returned function is called.

        Raises:
            RpcError: There is no such resource, or its server does not report updates.
        """
        ...

    def add_client(self, client: ContentClient) -> Callable[[], None]:
        """Add a client for log messages and questions outside of calls, until the returned function is called."""
        ...

    def change_client(self, client: ContentClient, method: str) -> None:
        """Take note that a client has changed its log level or, with `notifications/…`, its roots."""
        ...


def build_content_row(kind: ItemKind, name: str, definition: Mapping[str, JsonValue]) -> JsonObject:
    """Convert the definition of a listed item, under the name or URI that clients see.

    Every field is kept, except those whose type the protocol does not allow.
    """
    identity = ITEM_LISTS[kind].identity
    own = {key: value for key, value in definition.items() if key != identity}
    row: JsonObject = {identity: name, **keep_fields(own, CONTENT_FIELDS)}
    if kind not in {"prompt", "skill"}:
        row.setdefault("name", str(definition.get(identity, name)))
    return row


def cut_page(key: str, rows: Sequence[JsonObject], cursor: JsonValue) -> JsonObject:
    """Return the page of a list that begins at a cursor, with the cursor of the next page.

    A cursor belongs to the list it was made for: https://modelcontextprotocol.io/specification/2025-11-25/server/utilities/pagination.

    Raises:
        RpcError: The cursor is not one of this list.
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
    """Return whether a client that wants messages from `least` on gets one of a level."""
    if least not in LOG_LEVELS:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)
