"""What a gateway serves beside tools, as one view shows it.

A hidden resource cannot be read either, and the original name of a renamed prompt is unknown to the client of the view.
A resource keeps its URI, which results and links refer to; a view may change the name and the description beside it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from indusagi.interop.protocol_bridge.client.items import ITEM_LISTS
from indusagi.interop.protocol_bridge.client.skills import READ_DIRECTORY, list_directory
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS
from indusagi.interop.protocol_bridge.host.content import ContentListing
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from induscode.gateway.content import build_not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ItemKind
    from indusagi.interop.protocol_bridge.host.content import ContentClient
    from indusagi.runtime.contract import ProgressSink
    from induscode.gateway.content import GatewayContent, KnownItems
    from induscode.launch.views import View

_DELIMITER = re.compile(r"[/\\?&=#;:,]")
_MOST_ESCAPED = 8


class ViewContent:
    """The content source of a gateway behind a view.

    Args:
        content: Everything that the gateway has.
        view: What is shown of it.
        find_tool_servers: Returns the servers of the tools that the view shows.
    """

    def __init__(self, content: GatewayContent, view: View, find_tool_servers: Callable[[], Collection[str]]) -> None:
        self._content, self._view, self._find_tool_servers = content, view, find_tool_servers
        self._selected: dict[ItemKind, tuple[KnownItems, Sequence[tuple[str, JsonObject]]]] = {}

    def _select(self, kind: ItemKind) -> Sequence[tuple[str, JsonObject]]:
        """Return the shown rows of a kind, each with its original name; they are built again after a change."""
        items, known = self._content.known_items(kind), self._selected.get(kind)
        if known is None or known[0] is not items:
            known = self._selected[kind] = items, select_rows(kind, items, self._view)
        return known[1]

    def refresh(self) -> Sequence[ItemKind]:
        """Return the kinds whose shown rows have changed since a client has listed them."""
        return [kind for kind, (_, rows) in [*self._selected.items()] if self._select(kind) != rows]

    def shows_server(self, server: str) -> bool:
        """Tell whether the view shows anything of a server."""
        if server in self._find_tool_servers():
            return True
        known = {kind: self._content.known_items(kind).refs for kind in LISTED_KINDS}
        return any(known[kind][name].server == server for kind in LISTED_KINDS for name, _ in self._select(kind))

    def instructions(self) -> str | None:
        """Compose the instructions of the servers of which the view shows something."""
        return self._content.instructions(self.shows_server)

    def extensions(self) -> JsonObject:
        """Return the extensions that the view needs."""
        return self._content.extensions() if self._select("skill") else {}

    async def list_content(self, kind: ItemKind) -> ContentListing:
        """List the items of one kind that the view shows."""
        listing = await self._content.list_content(kind)
        return ContentListing([row for _, row in self._select(kind)], listing.ttl_ms)

    def find_server(self, method: str, params: JsonObject) -> str | None:
        """Find the server that a request is for; None if it is for none that the view shows."""
        try:
            return self._content.find_server(method, self._restore_names(method, params))
        except RpcError:
            return None

    async def request(self, method: str, params: JsonObject, on_progress: ProgressSink | None = None) -> JsonObject:
        """Answer a request of the present caller; what the view hides is unknown.

        Raises:
            RpcError: It was refused.
        """
        await self._content.listed.wait()
        if method == READ_DIRECTORY:
            listed = list_directory([row for _, row in self._select("skill")], str(params.get("uri")))
            if listed is not None:
                return listed
        return await self._content.request(method, self._restore_names(method, params), on_progress)

    async def subscribe(self, uri: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every update of a resource, until the returned function is called.

        Raises:
            RpcError: The view shows no such resource, or its server refuses.
        """
        await self._content.listed.wait()
        self._check_resource(uri)
        return await self._content.subscribe(uri, listener)

    def add_client(self, client: ContentClient) -> Callable[[], None]:
        """Add a client, which hears of the shown servers alone, until the returned function is called."""
        return self._content.add_client(client, self.shows_server)

    def change_client(self, client: ContentClient, method: str) -> None:
        """Take note that a client has changed its log level or its roots."""
        self._content.change_client(client, method)

    def _restore_names(self, method: str, params: JsonObject) -> JsonObject:
        """Return the parameters of a request with the gateway's own names in them.

        Raises:
            RpcError: The view does not show what the request is for.
        """
        if method == "completion/complete":
            ref = params.get("ref")
            if not isinstance(ref, dict) or ref.get("type") not in {"ref/prompt", "ref/resource"}:
                return params  # refused by the gateway
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
                    return original  # disabled: refused with the reason
                break
        raise RpcError(INVALID_PARAMS, f"there is no prompt named {name!r}")

    def _check_resource(self, uri: str) -> None:
        """Refuse a URI that the view does not show, as if no server had it.

        Raises:
            RpcError: The view does not show it.
        """
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
        if kind == "skill":  # an entry repeats the front matter of its file, word by word
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
    """Tell whether a server could resolve a URI to one outside of the pattern that it matches.

    https://www.rfc-editor.org/rfc/rfc3986#section-5.2.4. Escapes count as what they stand for, also nested ones, and a
    URI that is escaped more often than any server would decode it counts as such.
    """
    for _ in range(_MOST_ESCAPED):
        plain = unquote(uri)
        if plain == uri:
            return ".." in _DELIMITER.split(plain)
        uri = plain
    return True
