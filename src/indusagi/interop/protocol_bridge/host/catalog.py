"""A host's tools as protocol objects: encoded once, sent often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias, cast

import anyio

from indusagi.core.json import JsonLike, JsonObject, JsonValue, NotJson, compact_json, is_json_object
from indusagi.core.protocols import offers
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.tasks import (
    RELATED_TASK,
    TASKS,
    TaskExchange,
    declares_tasks,
    is_task,
    new_missing_error,
    to_core_task,
)
from indusagi.interop.protocol_bridge.contract import ItemKind, to_block
from indusagi.interop.protocol_bridge.host.content import TOOL_FIELDS, ContentSource, keep_fields
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from indusagi.interop.protocol_bridge.rpc.mcp_headers import SERVER_INFO
from indusagi.interop.protocol_bridge.rpc.transport import EncodedObject
from indusagi.runtime.contract import ProgressSink, ToolBox, ToolCall, ToolDescriptor, ToolResult

Ready: TypeAlias = asyncio.Event | anyio.Event
BoxSource: TypeAlias = ToolBox | Callable[[], ToolBox]
"""A tool box, or a function that returns the current one."""

_log = logging.getLogger(__name__)

_MOST_NARROWED = 64
"""Cached listings of callers who don't see everything."""


@record
class ToolListing:
    """A box's tools at one moment, in its order, encoded for both eras."""

    schemas: Mapping[str, JsonObject]
    """Argument schemas by tool name, as listed."""
    legacy: EncodedObject
    modern: EncodedObject


EncodedRow: TypeAlias = tuple[JsonObject, str]


class ListingBuilder:
    """Builds listings for both eras. A descriptor is encoded once, while it's listed."""

    def __init__(self, server_info: JsonObject) -> None:
        self._server_info = server_info
        self._rows: dict[int, tuple[ToolDescriptor, tuple[EncodedRow, EncodedRow] | None]] = {}
        """By the id of the descriptor, which is kept so that no other gets its id."""

    def build(self, descriptors: Sequence[ToolDescriptor]) -> ToolListing:
        """Build a listing; log and skip a tool whose description isn't JSON."""
        known, self._rows = self._rows, {}
        schemas: dict[str, JsonObject] = {}
        for one in descriptors:
            kept = known.get(id(one))
            _, encoded = self._rows[id(one)] = (one, _encode_row(one)) if kept is None else kept
            if encoded is not None:
                schemas[one.name] = cast("JsonObject", encoded[0][0]["inputSchema"])
        rows = [encoded for _, encoded in self._rows.values() if encoded is not None]
        hints: JsonObject = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        rest: JsonObject = {**hints, "_meta": {SERVER_INFO: self._server_info}}
        return ToolListing(
            schemas, _join_rows([older for _, older in rows], {}), _join_rows([row for row, _ in rows], rest)
        )


def _encode_row(descriptor: ToolDescriptor) -> tuple[EncodedRow, EncodedRow] | None:
    """Encode a row for the modern and the older era; log and return `None` if it isn't JSON."""
    try:
        row = build_tool_row(descriptor)
        encoded, output = (row, compact_json(row)), row.get("outputSchema")
        if not isinstance(output, dict) or output.get("type") == "object":
            return encoded, encoded
        # Older revisions only allow output schemas of type object.
        older = {key: value for key, value in row.items() if key != "outputSchema"}
        return encoded, (older, compact_json(older))
    except (NotJson, RecursionError) as exc:
        _log.warning("tool %r cannot be listed: %s", descriptor.name, exc)
        return None


def _join_rows(rows: Sequence[EncodedRow], rest: JsonObject) -> EncodedObject:
    more = f",{compact_json(rest)[1:-1]}" if rest else ""
    text = f'{{"tools":[{",".join(text for _, text in rows)}]{more}}}'
    return EncodedObject({"tools": [row for row, _ in rows], **rest}, text.encode())


def build_tool_row(descriptor: ToolDescriptor) -> JsonObject:
    """Convert a descriptor: https://modelcontextprotocol.io/specification/2025-11-25/server/tools#tool.

    A remote tool keeps its server's definition, under the name it has here.
    """
    if descriptor.definition is not None:
        return build_remote_row(descriptor.name, descriptor.definition)
    parameters = _to_plain(descriptor.parameters)
    # The protocol requires this type, and clients check it.
    schema = parameters if parameters.get("type") == "object" else {**parameters, "type": "object"}
    row: JsonObject = {"name": descriptor.name}
    if descriptor.title is not None:
        row["title"] = descriptor.title
    row["description"] = descriptor.description
    row["inputSchema"] = schema
    if descriptor.output_schema is not None:
        row["outputSchema"] = _to_plain(descriptor.output_schema)
    if descriptor.annotations:
        row["annotations"] = _to_plain(descriptor.annotations)
    return row


def build_remote_row(name: str, definition: Mapping[str, JsonValue]) -> JsonObject:
    """Convert a remote tool's definition, dropping only fields whose type the protocol doesn't allow."""
    own = {key: value for key, value in definition.items() if key != "name"}
    row: JsonObject = {"name": name, **keep_fields(own, TOOL_FIELDS)}
    schema = row.get("inputSchema")
    known = schema if isinstance(schema, dict) else {}
    row["inputSchema"] = known if known.get("type") == "object" else {**known, "type": "object"}
    return row


def build_call_result(result: ToolResult, server_info: JsonObject, *, is_modern: bool) -> JsonObject:
    """Convert a tool's result: https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result."""
    structured = result.structured
    message: JsonObject = {"content": [to_block(block) for block in result.content], "isError": result.is_error}
    # Up to 2025-11-25, structured content has to be an object.
    if isinstance(structured, dict) or (is_modern and structured is not None):
        message["structuredContent"] = structured
    own_meta = result.details.get("_meta")
    meta = dict(own_meta) if isinstance(own_meta, dict) else {}
    # The client sees one server, which is this host.
    meta.pop(SERVER_INFO, None)
    if is_modern:
        message["resultType"] = "complete"
        meta[SERVER_INFO] = server_info
    if meta:
        message["_meta"] = meta
    try:
        return EncodedObject(message, compact_json(message).encode())
    except NotJson as exc:
        error = ToolResult.error(f"The answer cannot be sent: it is {exc}", code="bad_result")
        return build_call_result(error, server_info, is_modern=is_modern)


def _to_plain(value: Mapping[str, JsonLike]) -> JsonObject:
    """Copy frozen containers into dicts and lists."""

    def copy(value: object) -> object:
        if isinstance(value, (str, int, float)) or value is None:
            return value
        if hasattr(value, "items"):
            return {key: copy(inner) for key, inner in cast("Mapping[str, object]", value).items()}
        if isinstance(value, (list, tuple)):
            return [copy(inner) for inner in cast("Sequence[object]", value)]
        return value

    return cast("JsonObject", copy(value))


class NamesServers(Protocol):
    """A tool box with tools of servers."""

    def find_server(self, name: str) -> str | None:
        """Find the server of a tool by the name that clients call; None for other tools."""
        ...


class ServesServers(NamesServers, Protocol):
    """A tool box with tools of other servers, some of which it may not list."""

    def answers_unlisted(self, name: str) -> bool:
        """Return whether calls of an unlisted tool get an answer, such as the reason."""
        ...

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to another server, which requests input by itself."""
        ...


class SearchesTools(Protocol):
    """A tool box with tools about its other tools: one calls another tool by name, others only list."""

    def resolve_call(self, call: ToolCall) -> ToolCall:
        """Return the call of the named tool, or the same call."""
        ...

    def is_listing(self, name: str) -> bool:
        """Return whether a tool only lists other tools."""
        ...

    def suggest_names(self, name: str) -> Sequence[str]:
        """List the closest names to an unknown one, best first."""
        ...


class DeniesTools(Protocol):
    """A tool box with tools that some callers may never call."""

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that the current caller may never call, whatever the arguments."""
        ...


class ServedView:
    """The tool box and content that some of a host's clients see. One object is one view."""

    def __init__(self, box: BoxSource, content: ContentSource | None = None) -> None:
        self.box = box
        self.content = content


class Catalog:
    """A host's tools and other content, with listeners for changes of the lists."""

    def __init__(
        self,
        box: BoxSource,
        server_info: JsonObject,
        ready: Ready | None = None,
        content: ContentSource | None = None,
        opened: Ready | None = None,
        tasks: TaskSource | None = None,
    ) -> None:
        self.tasks = tasks
        """None: calls only return results, never tasks."""
        self.server_info = server_info
        self.ready = ready
        """Set once the box holds all tools; None if it does from the start."""
        self.content = content
        """None: tools only."""
        self.opened = opened
        """Set once the instructions are known; None if they are from the start."""
        self.box = cast("Callable[[], ToolBox]", (lambda: box) if hasattr(box, "descriptors") else box)
        """Returns the current box."""
        self._builder = ListingBuilder(server_info)
        self._listing: ToolListing | None = None
        self._listed: ToolBox | None = None
        """The box of the cached listing."""
        self._narrowed: tuple[ToolListing, dict[frozenset[str], ToolListing]] | None = None
        """That listing without some tools, for callers who may never call them."""
        self._listeners: dict[object, tuple[ItemKind, Callable[[], None]]] = {}

    def listing(self) -> ToolListing:
        """Return the current listing, cached once the box is ready."""
        if self._listing is not None:
            return self._listing
        box = self.box()
        listing = self._builder.build(box.descriptors())
        if self.is_ready:
            self._listing, self._listed = listing, box
        return listing

    def list_for_caller(self) -> ToolListing:
        """Return the current listing without the tools that the current caller may never call."""
        listing = self.listing()
        box = self._listed or self.box()
        denied = frozenset(box.find_denied(listing.schemas.keys()) if offers(box, DeniesTools) else ())
        if not denied:
            return listing
        if self._narrowed is None or self._narrowed[0] is not listing or len(self._narrowed[1]) >= _MOST_NARROWED:
            self._narrowed = listing, {}
        known = self._narrowed[1]
        if denied not in known:
            shown = [descriptor for descriptor in box.descriptors() if descriptor.name not in denied]
            known[denied] = self._builder.build(shown)
        return known[denied]

    @property
    def is_ready(self) -> bool:
        """Whether the box holds all tools."""
        return self.ready is None or self.ready.is_set()

    def may_call(self, name: str) -> bool:
        """Return whether the box answers a call: it lists the tool, or returns the reason it doesn't."""
        if name in self.listing().schemas:
            return True
        box = self.box()
        if offers(box, ServesServers) and box.answers_unlisted(name):
            return True
        # The box changes a moment before the announcement, and until then the cached listing is old.
        is_changed = self._listing is not None and box is not self._listed
        return is_changed and any(tool.name == name for tool in box.descriptors())

    def resolve_call(self, call: ToolCall) -> ToolCall | None:
        """Return the effective call: a tool may call another one by name. `None` if the box doesn't answer it."""
        if call.name not in (self._listing or self.listing()).schemas and not self.may_call(call.name):
            return None
        box = self.box()
        return box.resolve_call(call) if offers(box, SearchesTools) else call

    def describe_unknown(self, name: str) -> str:
        """Build the error message for an unknown tool, with the closest names."""
        box = self.box()
        names = box.suggest_names(name) if offers(box, SearchesTools) else ()
        nearest = f"; the nearest: {', '.join(names)}" if names else ""
        return f"there is no tool named {name!r}{nearest}"

    def find_target(self, method: str, params: JsonObject) -> tuple[str, str | None]:
        """Find the effective method of a request and its server; None for a tool of this host, or an unknown one."""
        if method.startswith("tasks/"):
            return method, None if self.tasks is None else self.tasks.find_server(params.get("taskId"))
        if method != "tools/call":
            return method, None if self.content is None else self.content.find_server(method, params)
        box, name = self.box(), params.get("name")
        if offers(box, SearchesTools) and isinstance(name, str):
            if box.is_listing(name):
                return "tools/list", None
            name = box.resolve_call(ToolCall("", name, params.get("arguments"))).name
        return method, box.find_server(name) if offers(box, NamesServers) and isinstance(name, str) else None

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to another server, which may request input by itself."""
        box = self.box()
        return offers(box, ServesServers) and box.forwards_input(name)

    def refresh(self) -> bool:
        """Read the tools again, call the listeners if they changed, and return whether they did."""
        before, box = self._listing, self.box()
        self._listing, self._listed = self._builder.build(box.descriptors()), box
        if before is not None and before.modern.encoded == self._listing.modern.encoded:
            return False
        self.announce("tool")
        return True

    def refresh_content(self) -> None:
        """Read everything except tools again, and call the listeners of the kinds that changed."""
        changed: set[ItemKind] = {*(() if self.content is None else self.content.refresh())}
        if "template" in changed:  # announced with the resources
            changed.add("resource")
        for kind in changed:
            self.announce(kind)

    def announce(self, kind: ItemKind) -> None:
        """Call the listeners of a kind whose list changed."""
        for wanted, listener in [*self._listeners.values()]:
            if wanted == kind:
                listener()

    def listen(self, listener: Callable[[], None], kind: ItemKind = "tool") -> Callable[[], None]:
        """Call `listener` whenever a kind's list changes, until the returned function is called."""
        key = object()
        self._listeners[key] = kind, listener

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop


# -- tasks ------------------------------------------------------------------------------------
#
# The host itself stores no tasks. Its `TaskSource` knows which server's task a handle stands for and who may use it.
# Internally a task has the extension's shape (`indusagi.interop.protocol_bridge.client.tasks`); clients of revision
# 2025-11-25 get that revision's.


TASK_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
"""Methods of the extension; `Mcp-Name` repeats their `taskId`."""
CORE_TASK_METHODS = ("tasks/get", "tasks/result", "tasks/cancel")
CORE_TASKS: JsonObject = {"cancel": {}, "requests": {"tools": {"call": {}}}}
"""Capability of revision 2025-11-25. No `list`: it would show one user's programs each other's tasks."""
TASKS_EXTENSION: JsonObject = {TASKS: {}}
CORE_VERSION = "2025-11-25"

TaskListener: TypeAlias = Callable[[JsonObject], None]


class TaskSource(Protocol):
    """Tasks of servers, by the ids that clients know."""

    def offers_core(self) -> bool:
        """Return whether a listed tool can be called as a task of revision 2025-11-25."""
        ...

    def gives_handles(self) -> bool:
        """Return whether clients get handles at all; otherwise they wait for results."""
        ...

    async def add(self, exchange: TaskExchange, owner: bytes, listener: TaskListener | None) -> JsonObject:
        """Store a new task for its owner before anything else happens, and return it under a new id.

        `listener` gets every change that the server reports unasked.
        """
        ...

    async def request(
        self, method: str, params: JsonObject, owner: bytes, on_progress: ProgressSink | None = None
    ) -> JsonObject:
        """Answer the current caller's `tasks/get`, `tasks/update`, `tasks/cancel` or `tasks/result`.

        Raises `RpcError` if this owner has no such task, or the server refuses.
        """
        ...

    async def watch(self, task_id: str, owner: bytes, listener: TaskListener) -> Callable[[], None]:
        """Call `listener` on every change of a task, until the returned function is called.

        Raises `RpcError` if this owner has no such task, or its server doesn't report changes.
        """
        ...

    def find_server(self, task_id: JsonValue) -> str | None:
        """Find the server of a task."""
        ...


def new_exchange(source: TaskSource | None, params: JsonObject, declared: JsonValue = None) -> TaskExchange | None:
    """Return the task exchange of a call, or None if its client waits for the result.

    `declared` are the capabilities in a modern request; a legacy one asks for a task in `params`.
    """
    if source is None or not source.gives_handles():
        return None
    if declared is not None:
        return TaskExchange() if declares_tasks(declared) else None
    core = params.get("task")
    return TaskExchange(core) if is_json_object(core) else None


def read_task_id(method: str, params: JsonObject, declared: JsonValue = None) -> str:
    """Read a request's task id; raise `RpcError` if it's missing, or a modern client didn't declare the extension."""
    if declared is not None and not declares_tasks(declared):
        raise new_missing_error()
    task_id = params.get("taskId")
    if not isinstance(task_id, str) or not task_id:
        raise RpcError(INVALID_PARAMS, f"{method} must have a taskId")
    return task_id


def build_handle(task: JsonObject, *, is_modern: bool) -> JsonObject:
    """Build the result of a call that became a task."""
    if not is_modern:
        return {"task": to_core_task(task)}
    hidden = {"result", "error", "inputRequests", "requestState", "_meta"}
    return {"resultType": "task", **{key: value for key, value in task.items() if key not in hidden}}


def build_task_result(method: str, task_id: str, result: JsonObject, *, is_modern: bool) -> JsonObject:
    """Build the result of a request about a task, for the client's era."""
    if is_modern:
        return {} if method == "tasks/cancel" else result  # an acknowledgement
    if method == "tasks/result":
        meta = result.get("_meta")
        own = meta if is_json_object(meta) else {}
        return {**result, "_meta": {**own, RELATED_TASK: {"taskId": task_id}}}
    return to_core_task(result) if is_task(result) else result


def add_extensions(capabilities: JsonObject, extensions: JsonObject) -> JsonObject:
    """Add extensions to a host's capabilities."""
    present = capabilities.get("extensions")
    return {**capabilities, "extensions": {**(present if is_json_object(present) else {}), **extensions}}
