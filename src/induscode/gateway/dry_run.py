"""`indus serve --dry-run`: print the items each view would show, from the ledger, without starting a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.core.text import format_count
from indusagi.interop.protocol_bridge.client.skills import ITEM_LISTS
from indusagi.interop.protocol_bridge.client.tools import is_accepted_name
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS
from induscode.boot.catalog import NATIVE, ListedTool, list_tools
from induscode.boot.plans import usage_errors
from induscode.boot.runners import open_content
from induscode.cli.listing import print_table
from induscode.cli.output import print_notes
from induscode.cli.signals import run_async
from induscode.cli.terminal import print_line, print_status
from induscode.deck.catalog import cards_for_profile, find_missing_backend
from induscode.deck.contract import DeckFramework
from induscode.gateway.content import GatewayContent, choose_plain_names
from induscode.gateway.search_box import report_idle_patterns, select_listed
from induscode.gateway.view_box import report_unknown_servers, select_rows, select_tools
from induscode.launch.options import PROFILES
from induscode.launch.settings import CODE_ENABLED, SERVE_VIEWS
from induscode.launch.views import View
from induscode.search.cards import list_search_cards
from induscode.search.options import SEARCH_CARDS, SearchOptions, estimate_definition

if TYPE_CHECKING:
    from induscode.gateway.options import ServeOptions
    from induscode.launch.invocation import Invocation

_LISTED_WITH_BACKEND = {"saas-action", "websearch"}
"""Tools whose backend `list_tools` has looked for already."""
_NOTHING = DeckFramework()


@run_async
async def show_views(invocation: Invocation, options: ServeOptions) -> int:
    """Print every view, or the one for all clients, and return the exit code."""
    listing = await list_tools(invocation, check=False)
    print_notes(listing.notes)
    is_plain = options.names == "plain"
    native = _list_native(invocation, options.profile)
    tools = [tool for tool in listing.tools if tool.source != NATIVE or (tool.name in native and not tool.missing)]
    views = [options.view] if options.view is not None else [*invocation.settings.get(SERVE_VIEWS).values()]
    if options.view is None:
        views.append(View(name=""))
    content = GatewayContent(plain_names=is_plain)
    async with AsyncExitStack() as stack:
        if invocation.settings.get(CODE_ENABLED) and not invocation.no_tools:
            from induscode.code_mode.opening import open_code_card  # noqa: PLC0415 — only with code mode

            with usage_errors():
                card = await open_code_card(stack, invocation.settings)
            tools.append(ListedTool(card.descriptor, NATIVE))
        named = name_tools(tools, is_plain=is_plain)
        if listing.plan.rows:
            opening = open_content(listing.plan, starts_unseen=False)
            bridge, known = await stack.enter_async_context(opening)
            content.open(bridge, known, lambda _: False)
        report_unknown_servers(views, [row.id for row in listing.plan.rows])
        shown = {name for view in views for name in _print_view(named, content, view, options.search)}
    report_idle_patterns(options.search, invocation.settings, shown)
    return 0


def _list_native(invocation: Invocation, profile: str) -> set[str]:
    """List the native tools that a gateway with this profile serves."""
    names = {str(card.id) for card in cards_for_profile(PROFILES[profile] or "none")}
    served = {"task"} if invocation.model or invocation.base_url else set[str]()
    return {name for name in names if name in served | _LISTED_WITH_BACKEND or not find_missing_backend(name, _NOTHING)}


def _print_view(
    named: Mapping[str, ListedTool], content: GatewayContent, view: View, search: SearchOptions
) -> Collection[str]:
    """Print a view and return the names of its tools."""
    servers = {name: tool.source for name, tool in named.items() if tool.source != NATIVE}
    whose = [f"client {name}" for name in view.clients] + [f"principal {name}" for name in view.principals]
    whose += [f"the token in {view.token_env}"] if view.token_env else []
    print_line(f"view {view.name!r}: {', '.join(whose) or '--view'}" if view.name else "every other client:")
    tools = [replace(tool.descriptor, name=name) for name, tool in named.items()]
    selected = select_tools(tools, servers.get, view)
    names = {name: shown.name for name, shown in selected}
    rows = [
        (
            shown.name,
            named[name].source,
            name if name != shown.name else "",
            "reads" if shown.reads_only else "",
            _cut_line(shown.description),
        )
        for name, shown in selected
    ]
    print_table(("NAME", "SERVER", "RENAMED FROM", "ONLY", "DESCRIPTION"), rows)
    counts = [format_count(len(rows), "tool")]
    for kind in LISTED_KINDS:
        items, identity = content.known_items(kind), ITEM_LISTS[kind].identity
        shown_rows = [
            (name, {**row, **(front if is_json_object(front := row.get("frontmatter")) else {})})  # of a skill
            for name, row in select_rows(kind, items, view)
        ]
        # A renamed resource keeps its URI.
        names |= {name: str(row["name" if name in view.rename else identity]) for name, row in shown_rows}
        counts += [format_count(len(shown_rows), kind)] if items.rows else []
        if shown_rows:
            print_line("")
            print_table(
                (kind.upper(), "SERVER", "NAME" if identity != "name" else "RENAMED FROM", "DESCRIPTION"),
                [
                    (
                        str(row[identity]),
                        items.refs[name].server,
                        str(row.get("name", "")) if identity != "name" else name if name != row["name"] else "",
                        _cut_line(str(row.get("description", ""))),
                    )
                    for name, row in shown_rows
                ],
            )
    print_line(", ".join(counts))
    shown = [descriptor for _, descriptor in selected]
    if search.applies_to(shown):
        listed = [*list_search_cards(), *select_listed(shown, search)]
        tokens, whole = (sum(map(estimate_definition, some)) for some in (listed, shown))
        listed_names = ", ".join(descriptor.name for descriptor in listed)
        print_line(f"searched: clients list {listed_names} ({tokens:,} tokens instead of {whole:,})")
    print_line("")
    for name in {**view.rename, **view.describe}:
        wanted = view.rename.get(name, name)
        if name not in names:
            print_status(f"view {view.name!r}: it changes {name!r}, which it does not show")
        elif names[name] != wanted:
            reason = f"another one is called {wanted!r}"
            if not is_accepted_name(wanted):
                reason = f"{wanted!r} is none for a tool: use letters, digits, _ and -, 64 at most"
            print_status(f"view {view.name!r}: {name!r} keeps its name: {reason}")
    return [descriptor.name for descriptor in shown]


def _cut_line(text: str) -> str:
    return text.partition("\n")[0][:80]


def name_tools(tools: Sequence[ListedTool], *, is_plain: bool = False) -> Mapping[str, ListedTool]:
    """Map the names that clients call to the tools."""
    native = {tool.name: tool for tool in tools if tool.source == NATIVE}
    remote = [tool for tool in tools if tool.source != NATIVE]
    pairs = [(tool.tool or tool.name, tool.name) for tool in remote] if is_plain else []
    own = {qualified: name for name, qualified in choose_plain_names(pairs, {*SEARCH_CARDS, *native}).items()}
    return native | {own.get(tool.name, tool.name): tool for tool in remote}
