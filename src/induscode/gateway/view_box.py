"""The toolbox of a gateway as one view shows it: fewer tools, other names, other descriptions.

A hidden tool cannot be called either. The original name of a renamed tool is unknown to the client of the view.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol, cast

import click

from indusagi.interop.protocol_bridge.client.tools import is_accepted_name
from indusagi.interop.protocol_bridge.host.catalog import ServedView
from indusagi.runtime.calls import CallEntry, current_entry
from indusagi.runtime.contract import ToolOutcome, ToolResult
from induscode.cli.terminal import print_status
from induscode.code_mode.contract import RUN_CODE
from induscode.gateway.view_content import ViewContent
from induscode.launch.views import NATIVE, find_view, matches
from induscode.search.names import SEARCH_CARDS
from induscode.servers.remedies import format_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.runtime.calls import CallingClient
    from indusagi.runtime.contract import ProgressSink, ToolBox, ToolCall, ToolDescriptor
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.gateway.content import GatewayContent
    from induscode.launch.views import View

_CALLERS = frozenset({RUN_CODE, "task"})
"""Cards that call others."""


class ServedBox(Protocol):
    """What a view needs of the toolbox of a gateway."""

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List all tools."""
        ...

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call."""
        ...

    def answers_unlisted(self, name: str) -> bool:
        """Tell whether a tool is disabled."""
        ...

    def find_server(self, name: str) -> str | None:
        """Find the server of a tool."""
        ...


class SearchableBox(ServedBox, Protocol):
    """What a search needs of the toolbox of a gateway, or of a view."""

    @property
    def context(self) -> ToolContext:
        """The context of native cards."""
        ...

    def forwards_input(self, name: str) -> bool:
        """Tell whether a tool belongs to a server."""
        ...

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Find the server of a tool and its own name there."""
        ...

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Tell which tools a rule denies."""
        ...

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List the disabled tools."""
        ...


class ViewBox:
    """A toolbox behind a view."""

    def __init__(self, box: ServedBox, view: View) -> None:
        self.box = box
        self._view = view
        selected = select_tools(box, view)
        self._descriptors = tuple(descriptor for _, descriptor in selected)
        self._originals = {descriptor.name: original for original, descriptor in selected}
        self.servers = {server for original in self._originals.values() if (server := box.find_server(original))}
        """The servers of the shown tools."""

    @cached_property
    def _taken(self) -> Collection[str]:
        return list_taken_names(self.box.descriptors())

    @property
    def runner(self) -> ViewBox:
        """The runner of the calls: this object."""
        return self

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools that the view shows."""
        return self._descriptors

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call under the original name of the tool; one that the view does not show is unknown."""
        name = self._originals.get(call.name) or self._find_disabled(call.name)
        if name is None:
            return ToolOutcome(call.id, ToolResult.error(f"There is no tool named {call.name!r}.", code="unknown_tool"))
        if name in _CALLERS:  # a script and an agent call what this view shows
            current_entry.set(CallEntry(self, call.id, find_denied=self.find_denied))
        return await self.box.run(replace(call, name=name), cancel, on_progress=on_progress)

    def list_originals(self) -> Collection[str]:
        """List the shown tools by their names in the toolbox behind the view."""
        return self._originals.values()

    def answers_unlisted(self, name: str) -> bool:
        """Tell whether there is a disabled tool of this name that the view would show."""
        return self._find_disabled(name) is not None

    def _find_disabled(self, name: str) -> str | None:
        """Find the original name of a disabled tool by the one under which the view would show it."""
        for original in self._view.list_originals(name):
            server = self.box.find_server(original) or ""
            if self.box.answers_unlisted(original) and self._would_show(original, server):
                return original if choose_tool_name(original, self._view, self._taken) == name else None
        return None

    def find_server(self, name: str) -> str | None:
        """Find the server of a tool, by the name that the view gives it."""
        return self.box.find_server(self._originals.get(name) or self._find_disabled(name) or name)

    # -- for a search in the view ---------------------------------------------------------------

    @property
    def context(self) -> ToolContext:
        """The context of native cards."""
        return self._searchable.context

    def forwards_input(self, name: str) -> bool:
        """Tell whether a tool belongs to a server."""
        return name in self._originals and self._searchable.forwards_input(self._originals[name])

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Find the server of a tool and its own name there; a renamed tool has that of the view."""
        original = self._originals.get(name, name)
        ref = self._searchable.find_ref(original)
        return ref if ref is None or name == original else replace(ref, name=name)

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Tell which tools a rule denies."""
        originals = {name: self._originals.get(name, name) for name in names}
        denied = self._searchable.find_denied([*originals.values()])
        return {name for name, original in originals.items() if original in denied}

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List the disabled tools that the view would show."""
        return [
            replace(tool, name=choose_tool_name(tool.name, self._view, self._taken))
            for tool in self._searchable.list_disabled()
            if self._would_show(tool.name, tool.ref.server)
        ]

    def _would_show(self, name: str, server: str) -> bool:
        """Tell whether the view would show a disabled tool. Nobody knows yet whether such a tool only reads."""
        return self._view.shows(name, server, reads_only=False)

    @property
    def _searchable(self) -> SearchableBox:
        return cast("SearchableBox", self.box)


def read_view_tokens(views: Mapping[str, View], environ: Mapping[str, str]) -> dict[bytes, str]:
    """Read the tokens of views from their variables; an unset one is reported, and its view has no token.

    Raises:
        click.UsageError: Two views have one token.
    """
    tokens: dict[bytes, str] = {}
    for view in views.values():
        token = environ.get(view.token_env, "").strip() if view.token_env else ""
        if token:
            other = tokens.setdefault(token.encode("utf-8", "surrogateescape"), view.name)
            if other != view.name:
                message = f"view {view.name!r}: the token in {view.token_env} is that of the view {other!r}"
                raise click.UsageError(
                    f"{message}; give each a token of its own", click.get_current_context(silent=True)
                )
        elif view.token_env:
            print_status(f"view {view.name!r}: {view.token_env} is not set, so no token selects it")
    return tokens


def check_view_tokens(tokens: Mapping[bytes, str], views: Mapping[str, View]) -> None:
    """Refuse tokens that a host over HTTP would refuse.

    Raises:
        click.UsageError: A token is too short, or cannot stand in a header.
    """
    from indusagi.interop.protocol_bridge.host.http.settings import LEAST_TOKEN  # noqa: PLC0415 — over HTTP only

    for token, name in tokens.items():
        if len(token) < LEAST_TOKEN or not token.isascii():
            message = (
                f"view {name!r}: the token in {views[name].token_env} needs {LEAST_TOKEN} ASCII characters or more"
            )
            raise click.UsageError(message, click.get_current_context(silent=True))


def report_unknown_servers(views: Iterable[View], servers: Collection[str]) -> None:
    """Print which names of servers in views match none of these; nothing where there are no servers."""
    for view in views:
        for pattern in view.servers:
            if servers and not any(matches(server, [pattern]) for server in (*servers, NATIVE)):
                remedy = f"{format_command('mcp', 'list')} names them"
                print_status(f"view {view.name!r}: there is no server {pattern!r} ({remedy})")


class GatewayViews:
    """The views of a gateway, each with a toolbox that is built again when the gateway's own has changed.

    Args:
        source: Returns the present toolbox of the gateway.
        views: By name.
        tokens: Names of views by the token that selects them.
        forced: The view of every client, if there is one.
        content: What the gateway serves beside tools, if it does.
        wrap: Puts a search in front of the toolbox of a view.
    """

    def __init__(
        self,
        source: Callable[[], ToolBox],
        views: Mapping[str, View],
        tokens: Mapping[bytes, str] | None = None,
        forced: View | None = None,
        content: GatewayContent | None = None,
        wrap: Callable[[Callable[[], ToolBox]], Callable[[], ToolBox]] = lambda source: source,
    ) -> None:
        self._source, self._views, self._tokens, self._forced = source, views, tokens or {}, forced
        self._built: dict[str, tuple[ToolBox, ViewBox]] = {}
        self._served = {
            name: ServedView(
                wrap(partial(self._build_box, view)),
                None if content is None else ViewContent(content, view, partial(self._find_servers, view)),
            )
            for name, view in views.items()
        }

    def choose(self, identity: ClientIdentity, client: CallingClient) -> ServedView | None:
        """Choose what a client is served; None if it has no view."""
        view = self._forced or find_view(
            self._views, token=self._tokens.get(identity.owner, ""), principal=identity.principal, client=client.name
        )
        return None if view is None else self._served[view.name]

    def _build_box(self, view: View) -> ToolBox:
        box, known = self._source(), self._built.get(view.name)
        if known is not None and known[0] is box:
            return known[1]
        if not hasattr(box, "find_server"):
            return box  # the empty box before the servers are known
        built = ViewBox(cast("ServedBox", box), view)
        self._built[view.name] = (box, built)
        return built

    def _find_servers(self, view: View) -> Collection[str]:
        box = self._build_box(view)
        return box.servers if isinstance(box, ViewBox) else ()


def select_tools(box: ServedBox, view: View) -> list[tuple[str, ToolDescriptor]]:
    """Select the tools that a view shows, each with its original name."""
    every = box.descriptors()
    shown = [
        descriptor
        for descriptor in every
        if view.shows(descriptor.name, box.find_server(descriptor.name) or "", reads_only=descriptor.reads_only)
    ]
    taken = list_taken_names(every)
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
    """List the names that a view can give to no other tool: those of all tools, and of the search."""
    return {*SEARCH_CARDS, *(tool.name for tool in tools)}


def choose_tool_name(name: str, view: View, taken: Collection[str]) -> str:
    """Choose the name under which a view shows a tool.

    A new name that another tool or the search has, or that providers refuse, is not given: the tool keeps its own.
    """
    wanted = view.choose_name(name, taken)
    return wanted if is_accepted_name(wanted) else name
