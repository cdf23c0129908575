"""Everything but tools that a gateway serves, and the names of tools without prefixes.

That's resources, templates, prompts, completion, updates, logs and roots.

Clients see resource URIs and prompt names qualified with the server; both are looked up, never parsed
(`indusagi.interop.protocol_bridge.uris`). Without prefixes items keep their names, and the first server in the
configuration wins a name that several use. Nothing leaks between clients: updates go to subscribers, and log messages
go to the client whose call caused them, or are dropped if that's unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, cast

import anyio

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.tasks import Listeners
from indusagi.core.text import clean_json, cut_text
from indusagi.interop.protocol_bridge.client.handlers import (
    UNKNOWN_CALLER,
    current_caller,
    current_server,
    forward_request,
)
from indusagi.interop.protocol_bridge.client.skills import DIRECTORY_READ, READ_DIRECTORY, SKILLS, list_directory
from indusagi.interop.protocol_bridge.client.tasks import TASK_STATUSES
from indusagi.interop.protocol_bridge.client.tools import is_accepted_name
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS, EndpointPhase, ProtocolFault, RemoteToolRef
from indusagi.interop.protocol_bridge.host.content import LOG_LEVELS, ContentListing, build_content_row, is_logged
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from indusagi.interop.protocol_bridge.uris import (
    Convert,
    UriMap,
    convert_block,
    convert_meta,
    convert_result,
    convert_row,
    matches_template,
    normalize_uri,
)
from indusagi.runtime.calls import current_user
from indusagi.runtime.contract import JsonContentBlock, ToolOutcome
from induscode.deck.mcp.content import ContentRefused, DeniedContent, ServerContent

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
    from indusagi.interop.protocol_bridge.fleet import FleetEvent
    from indusagi.interop.protocol_bridge.host.content import ContentClient
    from indusagi.runtime.contract import ProgressSink
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.gateway.token_book import TokenBook

INSTRUCTIONS_CHARS = 16_000
"""Limit for the combined instructions; each server gets a quarter of it."""
_DATE = re.compile(r"[0-9T:.+Zz-]{4,40}")
"""Deliberately loose date pattern: it only has to keep other text out."""
_UPDATED = "notifications/resources/updated"
_MESSAGE = "notifications/message"
_ROOTS_CHANGED = "notifications/roots/list_changed"
_NOT_FOUND = -32002
"""From the older protocol: https://modelcontextprotocol.io/specification/2025-11-25/server/resources#error-handling."""
_REFUSED = -32000


@record
class KnownItems:
    """The items of one kind as clients see them."""

    rows: Sequence[JsonObject] = ()
    refs: Mapping[str, RemoteToolRef] = field(default_factory=dict[str, RemoteToolRef])
    """By the name or URI clients use."""
    disabled: Mapping[str, RemoteToolRef] = field(default_factory=dict[str, RemoteToolRef])
    """Without prefixes: disabled items by the unprefixed names they reserve."""


NO_ITEMS = KnownItems()


class GatewayContent:
    """The content source of a gateway, empty until opened."""

    def __init__(self, *, plain_names: bool = False, single_client: bool = False) -> None:
        self.plain_names = plain_names
        self._single_client = single_client
        """Over stdio everything goes to the one client."""
        self.listed = anyio.Event()
        """Set once every server listed its items or the wait timed out; requests wait for it."""
        self._bridge: BootedBridge | None = None
        self._is_ourselves: Callable[[str], bool] = lambda _: False
        self._denies_item: Callable[[RemoteToolRef], bool] = lambda _: False
        self._book: TokenBook | None = None
        self._content: ServerContent | None = None
        self._tasks: TaskGroup | None = None
        self._clients: dict[ContentClient, Callable[[str], bool]] = {}
        """Each with a predicate for the servers it can see."""
        self._listeners: dict[tuple[str, str], list[Callable[[], None]]] = {}
        """By session and server URI."""
        self.on_task_status: Listeners[[JsonObject]] = Listeners()
        """Receives task notifications from servers."""
        self._items: dict[ItemKind, KnownItems] = {}
        self._maps: dict[str, UriMap] = {}

    def open(
        self,
        bridge: BootedBridge,
        content: ServerContent,
        is_ourselves: Callable[[str], bool],
        denies_item: Callable[[RemoteToolRef], bool] = lambda _: False,
        book: TokenBook | None = None,
    ) -> None:
        """Serve a bridge's servers, except any that turn out to be this gateway.

        `denies_item` returns whether the current caller may never use an item; `book` has its budget.
        """
        self._bridge, self._content, self._is_ourselves = bridge, content, is_ourselves
        self._denies_item, self._book = denies_item, book
        self.refresh()

    def follow(self, tasks: TaskGroup | None) -> None:
        """Run server requests that no client request triggered in `tasks`; stop running them if it's `None`."""
        self._tasks = tasks
        if tasks is None:
            return
        for client in self._clients:
            self.change_client(client, _ROOTS_CHANGED)

    def start_soon(self, run: Callable[..., Coroutine[object, object, object]], *arguments: object) -> None:
        """Run a server request that no client request triggered, while the gateway follows its servers."""
        if self._tasks is not None:
            self._tasks.start_soon(run, *arguments)

    def handle_event(self, event: FleetEvent) -> None:
        """Restore the clients' subscriptions and log level on a server that came back up."""
        if event.event == "phase" and event.status.phase is EndpointPhase.READY and self._tasks is not None:
            self._start_restore(event.server)

    def restore_user(self, endpoint: ServerEndpointImpl, _user: str) -> None:
        """Restore the subscriptions and log level of a user on the user's session that has come up, in its task."""
        if self._bridge is not None:
            self._start_restore(self._bridge.fleet.name_session(endpoint.config.id))

    def _start_restore(self, session: str) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self._restore, session, [uri for key, uri in self._listeners if key == session])

    async def _restore(self, session: str, watched: Sequence[str]) -> None:
        endpoint = None if self._bridge is None else self._bridge.fleet.find_session(session)
        if endpoint is None or endpoint.facts is None:
            return
        try:
            for uri in watched:
                await endpoint.watch_resource(uri)
            levels = [LOG_LEVELS.index(one.level_set) for one in self._clients if one.level_set in LOG_LEVELS]
            if levels and endpoint.facts.era == "legacy" and endpoint.facts.offers("logging"):
                await endpoint.request("logging/setLevel", {"level": LOG_LEVELS[min(levels)]})
        except ProtocolFault:
            return  # the status has the fault

    # -- lists ------------------------------------------------------------------------------

    def refresh(self) -> Sequence[ItemKind]:
        """Rebuild the lists from the ledger and return the kinds that changed."""
        before, self._items = self._items, {}
        for kind in LISTED_KINDS:
            self._items[kind] = self._build_items(kind)
        return [kind for kind in LISTED_KINDS if kind not in before or before[kind].rows != self._items[kind].rows]

    def known_items(self, kind: ItemKind) -> KnownItems:
        """Return the current items of a kind; the same object until a refresh."""
        return self._items.get(kind, NO_ITEMS)

    def _build_items(self, kind: ItemKind) -> KnownItems:
        rows: list[JsonObject] = []
        refs: dict[str, RemoteToolRef] = {}
        present: dict[RemoteToolRef, RemoteTool] = {}
        for endpoint in () if self._bridge is None else self._bridge.fleet.endpoints():
            present.update((item.ref, item) for item in endpoint.known_items(kind) or ())
        disabled = self._find_kept_names(kind) if self.plain_names else {}
        for item in self._list_items(kind):
            own, kept_by = item.ref.name, disabled.get(item.ref.name)
            is_free = own not in refs and (kept_by is None or self._is_before(item.ref.server, kept_by.server))
            name = own if self.plain_names and is_free else item.name
            if name in refs:
                continue
            row = build_content_row(kind, name, item.descriptor.definition or {})
            if item.ref in present:
                row = update_volatile(row, present[item.ref].descriptor.definition or {})
            convert = self.map_uris(item.ref.server)
            if "_meta" in row:
                row["_meta"] = convert_meta(row["_meta"], convert)
            if kind == "skill":
                row = {**convert_row(row, convert), "uri": name}
            rows.append(row)
            refs[name] = item.ref
        return KnownItems(rows, refs, {name: ref for name, ref in disabled.items() if name not in refs})

    def _find_kept_names(self, kind: ItemKind) -> dict[str, RemoteToolRef]:
        """Map disabled items by their unprefixed names: requests for one must not reach another server's item."""
        kept: dict[str, RemoteToolRef] = {}
        for item in () if self._bridge is None else self._bridge.enrolment.disabled:
            ref = item.ref
            if ref.kind == kind and (ref.name not in kept or self._is_before(ref.server, kept[ref.name].server)):
                kept[ref.name] = ref
        return kept

    def _is_before(self, server: str, other: str) -> bool:
        """Return whether a server precedes another in the configuration."""
        servers = [] if self._bridge is None else [*self._bridge.enrolment.list_servers()]
        return other not in servers or (server in servers and servers.index(server) < servers.index(other))

    def _list_items(self, kind: ItemKind) -> Sequence[BridgeCapability]:
        if self._content is None:
            return ()
        return [item for item in self._content.list_items(kind) if not self._is_ourselves(item.ref.server)]

    async def list_content(self, kind: ItemKind) -> ContentListing:
        """List one kind of item across all servers."""
        await self.listed.wait()
        items = self.known_items(kind)
        hints: list[int] = []
        for server in {ref.server for ref in items.refs.values()}:
            endpoint = None if self._bridge is None else self._bridge.fleet.endpoint(server)
            hints.append(0 if endpoint is None else endpoint.ttl_ms(kind))
        denied = self.find_denied(items.refs.values())
        rows = [row for row, ref in zip(items.rows, items.refs.values(), strict=True) if ref not in denied]
        return ContentListing(rows, min(hints, default=0))

    def find_denied(self, refs: Iterable[RemoteToolRef]) -> Collection[RemoteToolRef]:
        """Return the items that the current caller may never use."""
        return {ref for ref in refs if self._denies_item(ref)}

    def instructions(self, shows_server: Callable[[str], bool] = lambda _: True) -> str | None:
        """Combine the servers' instructions under headings, truncated and with every line quoted.

        A quoted line can't pass for another server's heading.
        """
        parts: list[str] = []
        for item in filter(lambda item: shows_server(item.ref.server), self._list_items("instructions")):
            text = cut_text(item.description, INSTRUCTIONS_CHARS // 4)
            quoted = "\n".join(f"> {line}" for line in text.splitlines())
            named = "" if self.plain_names else f" (names begin with {item.ref.server}__)"
            parts.append(f"Instructions of the server {item.ref.server!r}{named}:\n{quoted}")
        return cut_text("\n\n".join(parts), INSTRUCTIONS_CHARS) if parts else None

    def extensions(self) -> JsonObject:
        """Offer skills if any server has some: https://modelcontextprotocol.io/seps/2640-skills-extension."""
        return {SKILLS: {DIRECTORY_READ: True}} if self.known_items("skill").rows else {}

    def list_tools(self) -> Sequence[BridgeCapability]:
        """List the enrolled tools of all servers."""
        return () if self._bridge is None else self._bridge.ledger.live_capabilities()

    def name_session(self, server: str) -> str:
        """Name the session that this task's requests to a server go over."""
        return server if self._bridge is None else self._bridge.fleet.name_session(server)

    async def wake(self, server: str) -> ServerEndpointImpl:
        """Start a server if it's asleep and return its endpoint; `RpcError` while the gateway is opening."""
        if self._content is None:
            raise RpcError(_REFUSED, "the servers are not there yet")
        return await self._content.wake(server)

    # -- names and URIs ---------------------------------------------------------------------

    def map_uris(self, server: str) -> Callable[[str], str]:
        """Return a function that turns a server's URIs into the ones clients see."""
        if server not in self._maps:
            self._maps[server] = UriMap(server)
        mapped = self._maps[server].to_host
        if not self.plain_names:
            return mapped
        items = self.known_items("resource")
        owners = {**items.disabled, **items.refs} if items.disabled else items.refs
        return lambda uri: uri if owners.get(uri) is None or owners[uri].server == server else mapped(uri)

    def _find_resource(self, uri: str) -> tuple[str, str]:
        """Return the server of a URI and the server's own URI; `RpcError` if no server has it."""
        refs = {**self.known_items("skill").refs, **self.known_items("resource").refs}
        if (ref := refs.get(uri) or self.known_items("resource").disabled.get(uri)) is not None:
            return ref.server, ref.name
        for endpoint in () if self._bridge is None else self._bridge.fleet.endpoints():
            server = endpoint.config.id
            if (own := self._maps.setdefault(server, UriMap(server)).to_server(uri)) is not None:
                listed = {normalize_uri(ref.name): ref.name for ref in refs.values() if ref.server == server}
                return server, listed.get(normalize_uri(own), own)
        if self.plain_names:
            for template in self.known_items("template").refs.values():
                if matches_template(uri, template.name):
                    return template.server, uri
            offering = {
                ref.server for items in self._items.values() for ref in items.refs.values() if ref.kind != "prompt"
            }
            if len(offering) == 1:
                return offering.pop(), uri
        raise build_not_found(uri)

    def find_resource(self, uri: str) -> tuple[str, str]:
        """Return the server of a URI and the URI clients see; `RpcError` if no server has it."""
        server, own = self._find_resource(uri)
        return server, self.map_uris(server)(own)

    def _find_prompt(self, name: JsonValue) -> RemoteToolRef:
        items = self.known_items("prompt")
        ref = (items.refs.get(name) or items.disabled.get(name)) if isinstance(name, str) else None
        if ref is None and isinstance(name, str) and self._bridge is not None:
            disabled = self._bridge.enrolment.find_disabled(name, "prompt")
            ref = None if disabled is None else disabled.ref  # rejected later, with the reason
        if ref is None:
            raise RpcError(INVALID_PARAMS, f"there is no prompt named {name!r}")
        return ref

    def find_server(self, method: str, params: JsonObject) -> str | None:
        """Return the server a request is for, if any."""
        try:
            if method == "completion/complete":
                return self._find_reference(params.get("ref"))[0]
            if method == "prompts/get":
                return self._find_prompt(params.get("name")).server
            return self._find_resource(str(params.get("uri")))[0]
        except RpcError:
            return None

    # -- requests ---------------------------------------------------------------------------

    async def request(self, method: str, params: JsonObject, on_progress: ProgressSink | None = None) -> JsonObject:
        """Answer `resources/read`, `prompts/get`, `completion/complete` or a skills request of the current caller."""
        await self.listed.wait()
        if self._content is None:
            raise RpcError(_REFUSED, "the servers are not there yet")
        book = None if method == "completion/complete" else self._book
        if book is not None and (refusal := await book.take()):
            raise RpcError(_REFUSED, refusal)
        result = await self._fetch(self._content, method, params, on_progress)
        if book is not None:
            book.count_content(params, result)
        return result

    async def _fetch(
        self, content: ServerContent, method: str, params: JsonObject, on_progress: ProgressSink | None
    ) -> JsonObject:
        server = ""
        try:
            if method == "resources/read":
                server, own = self._find_resource(str(params.get("uri")))
                result = await content.read_resource(server, own, on_progress=on_progress)
            elif method == "prompts/get":
                ref, arguments = self._find_prompt(params.get("name")), params.get("arguments")
                server = ref.server
                if arguments is not None and not is_json_object(arguments):
                    raise RpcError(INVALID_PARAMS, "the arguments of a prompt must be an object")
                result = await content.get_prompt(server, ref.name, arguments, on_progress=on_progress)
            elif method in {"skills/get", READ_DIRECTORY}:
                uri = str(params.get("uri"))
                listed = list_directory(self.known_items("skill").rows, uri) if method == READ_DIRECTORY else None
                if listed is not None:
                    return listed
                try:
                    server, own = self._find_resource(uri)
                except RpcError as exc:  # the extension wants an invalid parameter, in every revision
                    raise RpcError(INVALID_PARAMS, exc.message, exc.data) from exc
                self._refuse_denied(RemoteToolRef(server, own, "resource"))
                result = await (content.get_skill if method == "skills/get" else content.read_directory)(server, own)
            else:
                server, own_ref = self._find_reference(params.get("ref"))
                kind: ItemKind = "template" if "uri" in own_ref else "prompt"
                self._refuse_denied(RemoteToolRef(server, str(own_ref.get("uri", own_ref.get("name"))), kind))
                result = await content.complete(server, {**params, "ref": own_ref})
        except ContentRefused as exc:
            raise RpcError(INVALID_PARAMS if method in {"skills/get", READ_DIRECTORY} else _REFUSED, str(exc)) from exc
        except ProtocolFault as fault:
            raise self.convert_fault(fault, server) from fault
        return convert_result(result, self.map_uris(server))

    def _find_allowed_resource(self, uri: str) -> tuple[str, str]:
        """Find a resource as `_find_resource`. One that the caller may never read isn't there, as in the lists."""
        server, own = self._find_resource(uri)
        if self._denies_item(RemoteToolRef(server, own, "resource")):
            raise build_not_found(uri)
        return server, own

    def _refuse_denied(self, ref: RemoteToolRef) -> None:
        """Refuse a request about an item that the current caller may never use."""
        if self._denies_item(ref):
            raise DeniedContent(f"a rule or a missing scope denies {ref.name!r} of server {ref.server!r}")

    def _find_reference(self, value: JsonValue) -> tuple[str, JsonObject]:
        """Resolve the prompt or template a completion is for."""
        ref = value if is_json_object(value) else {}
        name, uri = ref.get("name"), ref.get("uri")
        if ref.get("type") == "ref/prompt":
            prompt = self._find_prompt(name)
            return prompt.server, {**ref, "name": prompt.name}
        if ref.get("type") == "ref/resource" and isinstance(uri, str):
            template = self.known_items("template").refs.get(uri)
            server, own = (template.server, template.name) if template is not None else self._find_resource(uri)
            return server, {**ref, "uri": own}
        raise RpcError(INVALID_PARAMS, "completion/complete must have a ref to a prompt or to a resource")

    def convert_fault(self, fault: ProtocolFault, server: str) -> RpcError:
        """Return the server's error with our URI; wrap any other fault in an error that names the server."""
        cause = fault.cause
        if not isinstance(cause, RpcError) or cause.detail is not None:
            return RpcError(_REFUSED, str(fault))
        data = clean_json(cause.data)[0]
        if is_json_object(data) and isinstance(uri := data.get("uri"), str):
            data = {**data, "uri": self.map_uris(server)(uri)}
        return RpcError(cause.code, str(clean_json(cause.message)[0]), data)

    # -- updates ----------------------------------------------------------------------------

    async def subscribe(self, uri: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on every update of a resource until the returned function is called."""
        await self.listed.wait()
        if self._content is None:
            raise RpcError(_REFUSED, "the servers are not there yet")
        server, own = self._find_allowed_resource(uri)
        key = self.name_session(server), own
        listeners = self._listeners.setdefault(key, [])
        listeners.append(listener)

        def stop() -> None:
            if listener in listeners:
                listeners.remove(listener)
            if not listeners and self._listeners.get(key) is listeners:
                del self._listeners[key]
                if self._tasks is not None:
                    self._tasks.start_soon(self._unwatch, *key)

        try:
            endpoint = await self._content.open_item(RemoteToolRef(server, own, "resource"))
            if endpoint.facts is not None and not endpoint.facts.offers("resources", "subscribe"):
                raise RpcError(METHOD_NOT_FOUND, f"server {server!r} does not report updates of resources")
            await endpoint.watch_resource(own)
        except BaseException as exc:
            stop()
            if isinstance(exc, ProtocolFault):
                raise self.convert_fault(exc, server) from exc
            if isinstance(exc, ContentRefused):
                raise RpcError(_REFUSED, str(exc)) from exc
            raise
        return stop

    async def _unwatch(self, session: str, uri: str) -> None:
        endpoint = None if self._bridge is None else self._bridge.fleet.find_session(session)
        if endpoint is None or (session, uri) in self._listeners:
            return
        try:
            await endpoint.unwatch_resource(uri)
        except ProtocolFault:
            return  # the server ended, or never knew the subscription

    def receive(self, method: str, params: JsonObject) -> None:
        """Pass a server's notification to the clients it's for."""
        server = current_server.get()
        if server is None:
            return
        uri = params.get("uri")
        if method == _UPDATED and isinstance(uri, str):
            for listener in self._list_listeners(server, uri):
                listener()
        elif method in TASK_STATUSES:
            self.on_task_status(params)
        elif method == _MESSAGE:
            shown = cast("JsonObject", clean_json({key: params[key] for key in params if key != "_meta"})[0])
            if not self.plain_names:
                logger = shown.get("logger")
                shown["logger"] = f"{server}/{logger}" if isinstance(logger, str) else server
            caller = current_caller.get()
            outside = [client for client, shows in self._clients.items() if self._single_client and shows(server)]
            for receiver in outside if caller is None else (caller,):
                if is_logged(params.get("level"), receiver.log_level):
                    receiver.notify(_MESSAGE, shown)

    def _list_listeners(self, server: str, uri: str) -> Sequence[Callable[[], None]]:
        """Return the listeners on a resource or on one that contains it (`…/part`).

        Servers may report parts: https://modelcontextprotocol.io/specification/2025-11-25/schema#resourceupdatednotificationparams.
        """
        found, session = list[Callable[[], None]](), self.name_session(server)
        for (owner, watched), listeners in self._listeners.items():
            if owner == session and uri.startswith(watched):
                rest = uri[len(watched) :]
                if not rest or rest.startswith("/") or watched.endswith("/"):
                    found += listeners
        return found

    # -- clients ----------------------------------------------------------------------------

    def add_client(
        self, client: ContentClient, shows_server: Callable[[str], bool] = lambda _: True
    ) -> Callable[[], None]:
        """Register a client that completed its handshake; the returned function removes it."""
        self._clients[client] = shows_server
        self.change_client(client, _ROOTS_CHANGED)

        def remove() -> None:
            self._clients.pop(client, None)

        return remove

    def change_client(self, client: ContentClient, method: str) -> None:
        """Tell the servers that a client's log level or roots changed."""
        if self._tasks is None or self._bridge is None:
            return
        users, sessions = self._bridge.fleet.users, [(one.config.id, one) for one in self._bridge.fleet.endpoints()]
        sessions += () if users is None else users.list_sessions(client.user)
        for session, endpoint in sessions:
            if endpoint.phase is EndpointPhase.READY and endpoint.facts is not None:
                if method != _ROOTS_CHANGED:
                    self._tasks.start_soon(self._restore, session, ())
                elif endpoint.facts.era == "legacy" and client in self._with_roots(endpoint.config.id):
                    endpoint.notify(_ROOTS_CHANGED)

    async def answer_roots(self, params: JsonObject) -> JsonObject:
        """Answer a server's `roots/list` from the client of the call, or from the only client with roots."""
        with_roots = self._with_roots(current_server.get() or "")
        if current_caller.get() is not None:
            return await forward_request("roots/list", "roots", params)
        if len(with_roots) != 1:
            raise RpcError(UNKNOWN_CALLER, "roots/list was refused: it cannot be told which client it is meant for")
        return await with_roots[0].ask("roots/list", params)

    def _with_roots(self, server: str) -> Sequence[ContentClient]:
        """List the clients with roots that can see a server; only the user's where each user signs in to it."""
        is_own = self.name_session(server) != server
        return [
            client
            for client, shows in self._clients.items()
            if "roots" in client.capabilities and shows(server) and (not is_own or client.user == current_user.get())
        ]


def convert_outcome(outcome: ToolOutcome, convert: Convert) -> ToolOutcome:
    """Convert the URIs in a server result's content and `_meta`."""
    result = outcome.result
    content = [
        JsonContentBlock(convert_block(block.value, convert)) if isinstance(block, JsonContentBlock) else block
        for block in result.content
    ]
    details = result.details
    if "_meta" in details:
        details = {**details, "_meta": convert_meta(details["_meta"], convert)}
    return replace(outcome, result=replace(result, content=content, details=details))


def choose_plain_names(tools: Iterable[tuple[str, str]], taken: Container[str]) -> dict[str, str]:
    """Choose the tools that keep their unprefixed names, and map these to the qualified ones.

    The first tool wins a name; names of native tools are reserved.
    """
    qualified: dict[str, str] = {}
    for own, name in tools:
        if own not in taken and is_accepted_name(own):
            qualified.setdefault(own, name)
    return qualified


def build_not_found(uri: str) -> RpcError:
    """Build the error for an unknown resource, in the caller's protocol era."""
    caller = current_caller.get()
    is_modern = caller is not None and caller.exchange is not None
    return RpcError(INVALID_PARAMS if is_modern else _NOT_FOUND, "no server has this resource", {"uri": uri})


def update_volatile(row: JsonObject, listed: Mapping[str, JsonValue]) -> JsonObject:
    """Update the fields that change with a resource's content: size and modification time."""
    size, annotations = listed.get("size"), listed.get("annotations")
    changed = annotations.get("lastModified") if is_json_object(annotations) else None
    if type(size) is int:
        row = {**row, "size": size}
    if isinstance(changed, str) and _DATE.fullmatch(changed):
        kept = row.get("annotations")
        row = {**row, "annotations": {**(kept if is_json_object(kept) else {}), "lastModified": changed}}
    return row
