"""The list of all tools: native ones, and those of servers as the ledger knows them."""

from __future__ import annotations

import os
from dataclasses import field, replace
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.core.faults import Note
from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.boot.plans import (
    FIRST_PROMPT_LIMIT_S,
    LOOK_LIMIT_S,
    build_fault_note,
    build_silent_note,
    build_unseen_note,
    canon_tool_name,
    load_plan,
    opened_store,
    select_tools,
    usage_errors,
)
from induscode.search.options import estimate_definition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.store import LedgerStore
    from induscode.launch.invocation import Invocation
    from induscode.search.items import SearchItem, SearchKind
    from induscode.servers.plan import ServerPlan

NATIVE = "native"
_SEPARATORS = "_-:."
"""What may stand between a server and its tool in a name that a user types."""


@record
class ListedTool:
    """One tool of the list."""

    descriptor: ToolDescriptor
    source: str
    """`native`, or the id of a server."""
    profiles: tuple[str, ...] = ()
    tool: str | None = None
    """Its name at its server."""
    missing: str | None = None
    """Why a session does not show it to a model: the backend that it lacks."""

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        return self.descriptor.name

    @property
    def reads_only(self) -> bool:
        """Whether it changes nothing, by its annotations; of a server's tool that is the server's word."""
        return self.descriptor.reads_only

    @property
    def tokens(self) -> int:
        """Estimated tokens of its definition, at four bytes each."""
        return estimate_definition(self.descriptor)

    def as_json(self) -> JsonObject:
        """Build the JSON row."""
        return {
            "name": self.name,
            "source": self.source,
            "tool": self.tool or self.name,
            "title": self.descriptor.title,
            "profiles": [*self.profiles],
            "readOnly": self.reads_only,
            "tokens": self.tokens,
            "missing": self.missing,
        }


@record
class ToolListing:
    """The tools of a deck that does not run."""

    tools: Sequence[ListedTool]
    plan: ServerPlan
    states: Mapping[str, str] = field(default_factory=dict[str, str])
    """The state of every server of the plan: `known`, `asked`, `starting`, or why its tools are unknown."""
    notes: Sequence[Note] = ()
    disabled: Sequence[DisabledTool] = ()
    """Tools that may not be called until their changed definitions are approved."""
    content: Sequence[RemoteTool] = ()
    """What the ledger knows beside tools, of the kinds that were asked for."""

    @property
    def news(self) -> Sequence[Note]:
        """The notes, without those about definitions that were known before."""
        from indusagi.interop.protocol_bridge.client.tools import DefinitionNote  # noqa: PLC0415 — imports the bridge

        return [
            note
            for note in self.notes
            if not (isinstance(note, DefinitionNote) and self.states.get(note.tool.server) == "known")
        ]


def list_native_tools(invocation: Invocation, name: str | None = None) -> list[ListedTool]:
    """List the native tools, or those of `--tools`; a second name of one only if it's `name`.

    Raises:
        click.UsageError: `--tools` names an unknown tool.
    """
    from induscode.boot.live_connectors import build_connector_gateway, web_settings  # noqa: PLC0415 — with native tools
    from induscode.deck.catalog import capability_cards, find_missing_backend  # noqa: PLC0415 — imports the cards
    from induscode.deck.contract import SECOND_NAMES, DeckContext, DeckFramework, describe  # noqa: PLC0415 — for runs with servers
    from induscode.deck.provision import ToolDeck, base_context  # noqa: PLC0415 — for runs with servers

    if invocation.no_tools:
        return []
    context = DeckContext(invocation.cwd)
    profiles = {card.id: tuple(map(str, card.profiles)) for card in capability_cards()}
    built: list[Capability] = [card.build(context) for card in capability_cards()]
    with usage_errors():
        deck = select_tools(ToolDeck(built, base_context(context)), invocation.tools)
    names: dict[str, tuple[str, ...]] = {str(card): values for card, values in profiles.items()}
    # Other cards have their backend in a session: a model for `task`, the plan mode.
    web = web_settings(invocation.settings)
    handles = DeckFramework(web=web, saas=build_connector_gateway(web))
    missing = {name: find_missing_backend(name, handles) for name in ("saas-action", "websearch")}
    return [
        ListedTool(describe(card), NATIVE, names.get(card.name, ()), missing=missing.get(card.name))
        for card in (*deck.shown(), *(card for card in deck.tools() if card.name == name in SECOND_NAMES))
    ]


async def list_tools(
    invocation: Invocation,
    *,
    check: bool,
    kinds: Sequence[ItemKind] = (),
    server: str | None = None,
    name: str | None = None,
    limit_s: float | None = None,
) -> ToolListing:
    """List every tool, and what servers offer of other kinds.

    Servers that the ledger knows aren't started. With `check` the others are, for `limit_s` (`LOOK_LIMIT_S`) at most:
    only `server`, or only those that may have the tool `name` if that tool isn't known yet.

    Raises:
        click.UsageError: A path of `--mcp` or a name of `--tools` does not exist.
    """
    native = list_native_tools(invocation, name)
    plan = load_plan(invocation)
    listing = ToolListing(native, plan, notes=plan.notes)
    if plan.rows:
        check = check and name not in {tool.name for tool in native}
        async with opened_store(report_notes=False) as store:
            remote = await _list_remote_tools(
                plan, store, kinds, server, name, (limit_s or LOOK_LIMIT_S) if check else None
            )
        listing = ToolListing(
            [*native, *(tool for tool in remote.tools if tool.name not in {card.name for card in native})],
            plan,
            remote.states,
            (*plan.notes, *remote.notes, *(tool.note for tool in remote.disabled), *store.notes),
            remote.disabled,
            remote.content,
        )
    return listing if invocation.no_tools or invocation.no_addons else await _add_addon_tools(invocation, listing)


async def _add_addon_tools(invocation: Invocation, listing: ToolListing) -> ToolListing:
    """Add the cards of addons, which are loaded for it."""
    from induscode.addons.loader import load_addons  # noqa: PLC0415 — for runs with addons
    from induscode.deck.catalog import capability_ids  # noqa: PLC0415 — imports the cards
    from induscode.deck.contract import describe  # noqa: PLC0415 — for runs with addons

    addons = await load_addons(invocation.cwd)
    try:
        cards, notes = addons.select_cards((*capability_ids(), *(tool.name for tool in listing.tools)))
        sources = {card.name: f"addon {loaded.name}" for loaded in addons.loaded for card in loaded.addon.cards}
        added = [ListedTool(describe(card), sources[card.name]) for card in cards]
    finally:
        await addons.aclose()
    states = {**listing.states, **{tool.source: "loaded" for tool in added}}
    notes = (*listing.notes, *addons.notes, *notes)
    return replace(listing, tools=[*listing.tools, *added], states=states, notes=notes)


async def _list_remote_tools(
    plan: ServerPlan,
    store: LedgerStore,
    kinds: Sequence[ItemKind],
    server: str | None,
    name: str | None,
    limit_s: float | None,
) -> ToolListing:
    """List the tools that the ledger knows; with a limit, start servers that it doesn't know first."""
    from induscode.deck.mcp.known import read_known_tools  # noqa: PLC0415 — for runs with servers
    from induscode.deck.mcp.store.pins import read_disabled_tools  # noqa: PLC0415 — for runs with servers

    known, notes = await read_known_tools(store, plan.configs.values())
    unseen = [one for one in plan.configs if one not in known and server in {None, one}]
    if name is not None:
        is_known = any(tool.name == name for tool in _name_tools(plan, known))
        unseen = [] if is_known else find_possible_owners(name, unseen)
    states = dict.fromkeys(known, "known")
    faults: list[Note] = []
    if unseen and limit_s is not None:
        asked, faults = await _start_unseen(plan.narrow(unseen), store, limit_s)
        states |= asked
        # Their tools are in the ledger by now.
        known, notes = await read_known_tools(store, plan.configs.values())
    elif limit_s is None:
        faults = [build_unseen_note(one) for one in unseen]
    for one in plan.configs:
        states.setdefault(one, "unseen")
    for row in plan.rows:
        states.setdefault(row.id, plan.state_of(row))
    listed = _name_tools(plan, known)
    remembered = await read_disabled_tools(store, plan.configs.values())
    disabled = [tool for one in plan.configs for tool in remembered.get(one, ())]
    content: list[RemoteTool] = []
    for kind in kinds:
        known_items, _ = await read_known_tools(store, plan.configs.values(), kind)
        for items in known_items.values():
            content += items
    return ToolListing(listed, plan, states, (*notes, *faults), disabled, content)


async def _start_unseen(plan: ServerPlan, store: LedgerStore, limit_s: float) -> tuple[dict[str, str], list[Note]]:
    """Start servers once, so that the ledger gets their tools; return their states, and notes about failures."""
    from indusagi.interop.protocol_bridge.contract import is_usable_phase  # noqa: PLC0415 — for servers that are started
    from induscode.boot.runners import attach_servers  # noqa: PLC0415 — for servers that are started
    from induscode.deck.mcp.boot import BootOptions  # noqa: PLC0415 — for servers that are started

    states: dict[str, str] = {}
    faults: list[Note] = []
    mcp = await attach_servers(plan, store, BootOptions(wait_s=limit_s))
    try:
        for asked, status in mcp.status().items():
            states[asked] = "asked" if is_usable_phase(status.phase) else "starting"
            if status.fault is not None:
                states[asked] = "faulted"
                faults.append(build_fault_note(asked, status.fault))
            elif states[asked] == "starting":
                faults.append(build_silent_note(asked, limit_s))
    finally:
        await mcp.aclose()
    return states, faults


def _name_tools(plan: ServerPlan, known: Mapping[str, Sequence[RemoteTool]]) -> list[ListedTool]:
    """List tools of servers under the names that an enrolment in the order of the plan gives them."""
    from indusagi.interop.protocol_bridge.client.tools import model_name  # noqa: PLC0415 — for runs with servers

    taken: set[str] = set()
    listed: list[ListedTool] = []
    for remote in (tool for one in plan.configs for tool in known.get(one, ())):
        descriptor = replace(remote.descriptor, name=model_name(remote.ref, taken, plan.configured))
        taken.add(descriptor.name)
        listed.append(ListedTool(descriptor, remote.ref.server, tool=remote.ref.name))
    return listed


def find_possible_owners(name: str, servers: Iterable[str]) -> list[str]:
    """Find the servers that may have a tool of this name: those it begins with, spelled exactly or like it."""
    from indusagi.interop.protocol_bridge.client.tools import may_own_tool  # noqa: PLC0415 — for runs with servers

    servers = [*servers]
    heads = {canon_tool_name(name[:end]) for end, letter in enumerate(name) if letter in _SEPARATORS}
    exact = [server for server in servers if may_own_tool(server, name)]
    return exact or [server for server in servers if canon_tool_name(server) in heads]


async def list_search_items(
    invocation: Invocation, kinds: Collection[SearchKind], *, check: bool, server: str | None = None
) -> tuple[ToolListing, Sequence[SearchItem]]:
    """List every tool, and what can be found of these kinds: tools, and prompts and resources that the ledger knows.

    With a `server` no other one is started; without one, servers that were never seen get `FIRST_PROMPT_LIMIT_S`.

    Raises:
        click.UsageError: A path of `--mcp` or a name of `--tools` does not exist.
    """
    from indusagi.interop.protocol_bridge.contract import LISTED_KINDS  # noqa: PLC0415 — imports the bridge
    from induscode.search.items import build_content_item, build_tool_item  # noqa: PLC0415 — for searches alone

    # A template is looked for with the resources.
    wanted: list[ItemKind] = [kind for kind in LISTED_KINDS if ("resource" if kind == "template" else kind) in kinds]
    limit_s = FIRST_PROMPT_LIMIT_S if server is None else LOOK_LIMIT_S
    listing = await list_tools(invocation, check=check, kinds=wanted, server=server, limit_s=limit_s)
    tools = listing.tools if "tool" in kinds else ()
    denied = await to_thread.run_sync(_find_denied, tools, invocation.cwd)
    if denied:
        reason = "a rule denies it" if len(denied) == 1 else "rules deny them"
        note = Note(format_count(len(denied), "tool"), f"not searched: {reason}")
        listing = replace(listing, notes=(*listing.notes, note))
    items = [
        build_tool_item(tool.descriptor, "" if tool.source == NATIVE else tool.source, tool.tool)
        for tool in tools
        if tool.name not in denied
    ]
    disabled = {tool.ref for tool in listing.disabled}
    for item in listing.content:
        if item.ref not in disabled:
            kind, server = cast("SearchKind", item.ref.kind), item.ref.server
            mark = "/" if kind == "prompt" else "@"
            items.append(build_content_item(kind, server, f"{mark}{server}:{item.ref.name}", item.raw))
    return listing, items


def _find_denied(tools: Sequence[ListedTool], cwd: str) -> Collection[str]:
    """Find the tools of which a rule of the user or the project denies every call."""
    from induscode.permissions.store import RuleStore, has_rules, load_startup_rules  # noqa: PLC0415 — for searches alone

    if not has_rules(cwd):
        return ()
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef  # noqa: PLC0415 — imports the bridge
    from induscode.permissions.call_facts import identify_listed_tool  # noqa: PLC0415 — with rules alone
    from induscode.permissions.policy import find_total_denial  # noqa: PLC0415 — with rules alone

    rules, _ = load_startup_rules(RuleStore(), cwd)
    workspace = os.path.realpath(cwd)
    refs = {tool.name: None if tool.tool is None else RemoteToolRef(tool.source, tool.tool) for tool in tools}
    return {
        name
        for name, ref in refs.items()
        if find_total_denial(identify_listed_tool(name, ref, workspace), rules) is not None
    }


async def find_server_of_tool(plan: ServerPlan, name: str, store: LedgerStore) -> str | None:
    """Find the server that had a tool of this name when it was last seen."""
    from indusagi.interop.protocol_bridge.client.tools import model_name  # noqa: PLC0415 — for runs with servers
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef  # noqa: PLC0415 — for runs with servers
    from induscode.deck.mcp.store.events import filter_texts  # noqa: PLC0415 — for runs with servers
    from induscode.deck.mcp.store.pins import read_disabled_tools  # noqa: PLC0415 — for runs with servers
    from induscode.servers.config.trust import server_identity  # noqa: PLC0415 — for runs with servers

    for row in await store.latest("list"):
        config = plan.configs.get(str(row.facts.get("server")))
        if config is None or row.facts.get("identity") != server_identity(config):
            continue
        tools = filter_texts(row.facts.get("tools"))
        if any(model_name(RemoteToolRef(config.id, tool), (), plan.configured) == name for tool in tools):
            return config.id
    disabled = await read_disabled_tools(store, plan.configs.values())
    return next((server for server, tools in disabled.items() if name in {tool.name for tool in tools}), None)
