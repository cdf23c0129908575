"""A gateway's toolbox behind a view: fewer tools, other names, other descriptions.

Hidden tools can't be called, and a renamed tool only exists under its new name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from urllib.parse import unquote

import click

from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject
from indusagi.core.secrets import SecretText
from indusagi.interop.protocol_bridge.client.skills import ITEM_LISTS, READ_DIRECTORY, list_directory
from indusagi.interop.protocol_bridge.client.tools import is_accepted_name
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS, ItemKind, RemoteToolRef
from indusagi.interop.protocol_bridge.host.catalog import ServedView
from indusagi.interop.protocol_bridge.host.content import ContentClient, ContentListing
from indusagi.interop.protocol_bridge.host.http.settings import LEAST_TOKEN
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from indusagi.runtime.calls import CallEntry, CallingClient, current_entry
from indusagi.runtime.contract import ProgressSink, ToolBox, ToolCall, ToolDescriptor, ToolOutcome, ToolResult
from induscode.cli.terminal import print_status
from induscode.code_mode.contract import RUN_CODE
from induscode.deck.mcp.drift import DisabledTool
from induscode.deck.provision import ServedBox, ToolBoxLayer
from induscode.gateway.content import GatewayContent, KnownItems, build_not_found
from induscode.gateway.search_box import BoxSource, serve_current
from induscode.launch.views import NATIVE, View, find_view, matches
from induscode.search.options import SEARCH_CARDS
from induscode.servers.remedies import format_command

_CALLERS = frozenset({RUN_CODE, "task"})
"""Cards that call other tools."""


class ViewBox(ToolBoxLayer):
    """A toolbox behind a view."""

    def __init__(self, box: ServedBox, view: View) -> None:
        super().__init__(box)
        self._view = view
        selected = select_tools(box.descriptors(), box.find_server, view)
        self._descriptors = tuple(descriptor for _, descriptor in selected)
        self._originals = {descriptor.name: original for original, descriptor in selected}
        self.servers = {server for original in self._originals.values() if (server := box.find_server(original))}
        """The servers of the shown tools."""

    @cached_property
    def _taken(self) -> Collection[str]:
        return list_taken_names(self.box.descriptors())

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools the view shows."""
        return self._descriptors

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call under the tool's original name. A tool the view hides is unknown."""
        name = self._originals.get(call.name) or self._find_disabled(call.name)
        if name is None:
            return ToolOutcome(call.id, ToolResult.error(f"There is no tool named {call.name!r}.", code="unknown_tool"))
        if name in _CALLERS:  # scripts and agents call through this view
            current_entry.set(CallEntry(self, call.id, find_denied=self.find_denied))
        return await self.box.run(replace(call, name=name), cancel, on_progress=on_progress)

    def list_originals(self) -> Collection[str]:
        """List the shown tools by their original names."""
        return self._originals.values()

    def answers_unlisted(self, name: str) -> bool:
        """Return whether the view would show a disabled tool under this name."""
        return self._find_disabled(name) is not None

    def _find_disabled(self, name: str) -> str | None:
        """Return the original name of a disabled tool the view would show under `name`."""
        for original in self._view.list_originals(name):
            server = self.box.find_server(original) or ""
            if self.box.answers_unlisted(original) and self._would_show(original, server):
                return original if choose_tool_name(original, self._view, self._taken) == name else None
        return None

    def find_server(self, name: str) -> str | None:
        """Return the server of a tool by its name in the view."""
        return self.box.find_server(self._originals.get(name) or self._find_disabled(name) or name)

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to a server."""
        return name in self._originals and self.box.forwards_input(self._originals[name])

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Return the server of a tool and its name there, or the view's name for a renamed tool."""
        original = self._originals.get(name, name)
        ref = self.box.find_ref(original)
        return ref if ref is None or name == original else replace(ref, name=name)

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that a rule denies."""
        originals = {name: self._originals.get(name, name) for name in names}
        denied = self.box.find_denied([*originals.values()])
        return {name for name, original in originals.items() if original in denied}

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List the disabled tools the view would show."""
        return [
            replace(tool, name=choose_tool_name(tool.name, self._view, self._taken))
            for tool in self.box.list_disabled()
            if self._would_show(tool.name, tool.ref.server)
        ]

    def _would_show(self, name: str, server: str) -> bool:
        """Return whether the view would show a disabled tool, assuming it isn't read-only: that's unknown so far."""
        return self._view.shows(name, server, reads_only=False)


def read_view_tokens(
    views: Mapping[str, View], environ: Mapping[str, str], *, over_http: bool = False
) -> dict[str, str]:
    """Read view tokens from their environment variables or secrets. An unset one is reported and gets no token.

    Two views can't share a token, and `over_http` it must be one that the HTTP host takes. Raises `SecretFault` if a
    secret can't be read.
    """
    from indusagi.interop.auth.secrets import reveal, reveal_variable  # noqa: PLC0415 — for views

    tokens: dict[str, str] = {}
    for view in views.values():
        reference = isinstance(view.token_env, SecretText)
        token = reveal(view.token_env) if reference else reveal_variable(view.token_env, environ)
        if not token:
            if view.token_env:
                print_status(f"view {view.name!r}: {view.token_env} is not set, so no token selects it")
            continue
        other = tokens.setdefault(token, view.name)
        problem = ""
        if other != view.name:
            problem = f"is that of the view {other!r}; give each a token of its own"
        elif over_http:
            if len(token) < LEAST_TOKEN or not token.isascii():
                problem = f"needs {LEAST_TOKEN} ASCII characters or more"
        if problem:
            message = f"view {view.name!r}: the token in {view.token_env} {problem}"
            raise click.UsageError(message)
    return tokens


def report_unknown_servers(views: Iterable[View], servers: Collection[str]) -> None:
    """Print server names in views that match no server, unless there are no servers at all."""
    for view in views:
        for pattern in view.servers:
            if servers and not any(matches(server, [pattern]) for server in (*servers, NATIVE)):
                remedy = f"{format_command('mcp', 'list')} names them"
                print_status(f"view {view.name!r}: there is no server {pattern!r} ({remedy})")


class GatewayViews:
    """The views of a gateway, each with a toolbox rebuilt whenever the gateway's changes.

    `source` returns the gateway's current toolbox, `forced` is a view for every client, and `wrap` puts a search in
    front of a view's toolbox.
    """

    def __init__(
        self,
        source: BoxSource,
        views: Mapping[str, View],
        forced: View | None = None,
        content: GatewayContent | None = None,
        wrap: Callable[[BoxSource], Callable[[], ToolBox]] = serve_current,
    ) -> None:
        self._source, self._views, self._forced = source, views, forced
        self._built: dict[str, tuple[ServedBox, ViewBox]] = {}
        self._served = {
            name: ServedView(
                wrap(partial(self._build_box, view)),
                None if content is None else ViewContent(content, view, partial(self._find_servers, view)),
            )
            for name, view in views.items()
        }

    def choose(self, identity: ClientIdentity, client: CallingClient) -> ServedView | None:
        """Return the client's view, or `None` if it has none."""
        view = self._forced or find_view(
            self._views, named=identity.view, principal=identity.principal, client=client.name
        )
        return None if view is None else self._served[view.name]

    def list_open(self) -> dict[str, Callable[[ClientIdentity], bool]]:
        """Map the views with a path to the clients that may open them."""
        views = self._views if self._forced is None else {self._forced.name: self._forced}
        return {name: partial(self._may_open, view) for name, view in views.items()}

    def _may_open(self, view: View, identity: ClientIdentity) -> bool:
        """Return whether a client may open a view that its token doesn't name.

        A principal with views may open these only, one without any only a view that is nobody's.
        """
        principal = identity.principal
        bound = [one.name for one in self._views.values() if matches(principal, one.principals)]
        return not principal or view.name in bound or not (bound or view.principals)

    def _build_box(self, view: View) -> ViewBox | None:
        box, known = self._source(), self._built.get(view.name)
        if box is None or (known is not None and known[0] is box):
            return known and known[1]
        built = ViewBox(box, view)
        self._built[view.name] = (box, built)
        return built

    def _find_servers(self, view: View) -> Collection[str]:
        box = self._build_box(view)
        return () if box is None else box.servers


def select_tools(
    tools: Sequence[ToolDescriptor], find_server: Callable[[str], str | None], view: View
) -> list[tuple[str, ToolDescriptor]]:
    """Select the tools a view shows, each with its original name."""
    shown = [tool for tool in tools if view.shows(tool.name, find_server(tool.name) or "", reads_only=tool.reads_only)]
    taken = list_taken_names(tools)
    selected: list[tuple[str, ToolDescriptor]] = []
    for descriptor in shown:
        text, definition = view.describe.get(descriptor.name), descriptor.definition
        changed = replace(descriptor, name=choose_tool_name(descriptor.name, view, taken))
        if definition is not None and view.schemas == "model":
            changed = replace(changed, definition=None)
        elif definition is not None and text is not None:
            changed = replace(changed, definition={**definition, "description": text})
        selected.append((descriptor.name, changed if text is None else replace(changed, description=text)))
    return selected


def list_taken_names(tools: Iterable[ToolDescriptor]) -> Collection[str]:
    """List names a view can't assign: the names of all tools and of the search cards."""
    return {*SEARCH_CARDS, *(tool.name for tool in tools)}


def choose_tool_name(name: str, view: View, taken: Collection[str]) -> str:
    """Return a tool's name in a view.

    A tool keeps its name if the new one belongs to another tool or a search card, or if providers don't accept it.
    """
    wanted = view.choose_name(name, taken)
    return wanted if is_accepted_name(wanted) else name


# -- content ----------------------------------------------------------------------------------
#
# Hidden resources can't be read, and a renamed prompt only exists under its new name. A resource keeps its URI, which
# results and links refer to; a view may change its name and description.


_DELIMITER = re.compile(r"[/\\?&=#;:,]")
_MAX_UNESCAPES = 8


class ViewContent:
    """A gateway's content source behind a view; `find_tool_servers` returns the servers of the tools it shows."""

    def __init__(self, content: GatewayContent, view: View, find_tool_servers: Callable[[], Collection[str]]) -> None:
        self._content, self._view, self._find_tool_servers = content, view, find_tool_servers
        self._selected: dict[ItemKind, tuple[KnownItems, Sequence[tuple[str, JsonObject]]]] = {}

    def _select(self, kind: ItemKind) -> Sequence[tuple[str, JsonObject]]:
        """Return the shown rows of a kind with their original names, rebuilding them after a change."""
        items, known = self._content.known_items(kind), self._selected.get(kind)
        if known is None or known[0] is not items:
            known = self._selected[kind] = items, select_rows(kind, items, self._view)
        return known[1]

    def refresh(self) -> Sequence[ItemKind]:
        """Return the kinds whose shown rows changed since a client listed them."""
        return [kind for kind, (_, rows) in [*self._selected.items()] if self._select(kind) != rows]

    def shows_server(self, server: str) -> bool:
        """Return whether the view shows anything from a server."""
        if server in self._find_tool_servers():
            return True
        known = {kind: self._content.known_items(kind).refs for kind in LISTED_KINDS}
        return any(known[kind][name].server == server for kind in LISTED_KINDS for name, _ in self._select(kind))

    def instructions(self) -> str | None:
        """Combine the instructions of all servers the view shows something from."""
        return self._content.instructions(self.shows_server)

    def extensions(self) -> JsonObject:
        """Return the protocol extensions the view needs."""
        return self._content.extensions() if self._select("skill") else {}

    async def list_content(self, kind: ItemKind) -> ContentListing:
        """List the items of one kind that the view shows."""
        listing = await self._content.list_content(kind)
        refs, selected = self._content.known_items(kind).refs, self._select(kind)
        denied = self._content.find_denied(refs[original] for original, _ in selected)
        return ContentListing([row for original, row in selected if refs[original] not in denied], listing.ttl_ms)

    def find_server(self, method: str, params: JsonObject) -> str | None:
        """Return the server a request is for, if the view shows it."""
        try:
            return self._content.find_server(method, self._restore_names(method, params))
        except RpcError:
            return None

    async def request(self, method: str, params: JsonObject, on_progress: ProgressSink | None = None) -> JsonObject:
        """Answer a request of the current caller; hidden items are unknown (`RpcError`)."""
        await self._content.listed.wait()
        if method == READ_DIRECTORY:
            listed = list_directory([row for _, row in self._select("skill")], str(params.get("uri")))
            if listed is not None:
                return listed
        return await self._content.request(method, self._restore_names(method, params), on_progress)

    async def subscribe(self, uri: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on every update of a shown resource until the returned function is called."""
        await self._content.listed.wait()
        self._check_resource(uri)
        return await self._content.subscribe(uri, listener)

    def add_client(self, client: ContentClient) -> Callable[[], None]:
        """Register a client that only hears from the shown servers; the returned function removes it."""
        return self._content.add_client(client, self.shows_server)

    def change_client(self, client: ContentClient, method: str) -> None:
        """Handle a change of a client's log level or roots."""
        self._content.change_client(client, method)

    def _restore_names(self, method: str, params: JsonObject) -> JsonObject:
        """Replace view names in request parameters by the gateway's; `RpcError` if the view hides the item."""
        if method == "completion/complete":
            ref = params.get("ref")
            if not isinstance(ref, dict) or ref.get("type") not in {"ref/prompt", "ref/resource"}:
                return params  # the gateway rejects it
            inner = "prompts/get" if ref["type"] == "ref/prompt" else "resources/read"
            return {**params, "ref": self._restore_names(inner, ref)}
        if method == "prompts/get":
            return {**params, "name": self._find_prompt(params.get("name"))}
        self._check_resource(str(params.get("uri")))
        return params

    def _find_prompt(self, name: object) -> str:
        for original, row in self._select("prompt"):
            if row["name"] == name:
                return original
        known = self._content.known_items("prompt").refs
        for original in self._view.list_originals(name) if isinstance(name, str) else ():
            server = None if original in known else self._content.find_server("prompts/get", {"name": original})
            if server is not None and self._view.shows(original, server, kind="prompt"):
                if self._view.choose_name(original, known) == name:
                    return original  # disabled: rejected later, with the reason
                break
        raise RpcError(INVALID_PARAMS, f"there is no prompt named {name!r}")

    def _check_resource(self, uri: str) -> None:
        """Reject a URI the view doesn't show, with the `RpcError` for an unknown resource."""
        listed = (self._content.known_items(kind).refs.get(uri) for kind in ("resource", "template", "skill"))
        ref = next((ref for ref in listed if ref is not None), None)
        server, shown = (ref.server, uri) if ref is not None else self._content.find_resource(uri)
        if not self._view.shows(shown, server, kind="resource") or (ref is None and has_dot_segment(shown)):
            raise build_not_found(uri)


def select_rows(kind: ItemKind, items: KnownItems, view: View) -> list[tuple[str, JsonObject]]:
    """Select the rows of a kind that a view shows, each with its original name or URI."""
    identity = ITEM_LISTS[kind].identity
    selected: list[tuple[str, JsonObject]] = []
    for row in items.rows:
        original = str(row[identity])
        if not view.shows(original, items.refs[original].server, kind=kind):
            continue
        changed: JsonObject = {}
        if kind == "skill":  # an entry repeats its file's front matter verbatim
            selected.append((original, row))
            continue
        if kind == "prompt":
            changed["name"] = view.choose_name(original, items.refs)
        elif original in view.rename:
            changed["name"] = view.rename[original]
            if "title" in row:
                changed["title"] = view.rename[original]
        if original in view.describe:
            changed["description"] = view.describe[original]
        selected.append((original, {**row, **changed}))
    return selected


def has_dot_segment(uri: str) -> bool:
    """Return whether a server could resolve a URI to one outside the pattern it matches.

    https://www.rfc-editor.org/rfc/rfc3986#section-5.2.4. Escapes are decoded, including nested ones. A URI escaped more
    often than any server would decode it counts too.
    """
    for _ in range(_MAX_UNESCAPES):
        plain = unquote(uri)
        if plain == uri:
            return ".." in _DELIMITER.split(plain)
        uri = plain
    return True
