"""Lists all tools: native ones, and server tools as the ledger knows them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.core.faults import Note
from indusagi.core.records import record
from indusagi.core.secrets import REDACTED, hide_in_urls
from indusagi.core.text import format_count
from indusagi.interop.protocol_bridge.client.tools import DefinitionNote, may_own_tool, model_name
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS, ItemKind, RemoteTool, RemoteToolRef, is_usable_phase
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
from induscode.cluster.contract import hide_password
from induscode.deck.catalog import capability_cards, capability_ids, find_missing_backend
from induscode.deck.contract import SECOND_NAMES, Capability, DeckContext, DeckFramework, describe
from induscode.deck.mcp.store.events import filter_texts
from induscode.deck.mcp.store.pins import read_disabled_tools, read_known_tools
from induscode.deck.provision import ToolDeck, base_context
from induscode.launch.settings import APPROVALS_NOTIFY, CLUSTER_BROKERS, SERVE_VIEWS, SETTINGS, Settings
from induscode.search.options import estimate_definition
from induscode.servers.config.trust import server_identity

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.store import LedgerStore
    from induscode.launch.invocation import Invocation
    from induscode.search.items import SearchItem, SearchKind
    from induscode.servers.plan import ServerPlan

NATIVE = "native"
_SEPARATORS = "_-:."
"""Separators between server and tool in a name typed by the user."""


@record
class ListedTool:
    """A tool in a listing."""

    descriptor: ToolDescriptor
    source: str
    """`native`, a server id, or `addon NAME`."""
    profiles: tuple[str, ...] = ()
    tool: str | None = None
    """The server's own name for it."""
    missing: str | None = None
    """The missing backend that hides it from models."""

    @property
    def name(self) -> str:
        """The name models call it by."""
        return self.descriptor.name

    @property
    def reads_only(self) -> bool:
        """Whether its annotations say it's read-only; for a server's tool, that's the server's claim."""
        return self.descriptor.reads_only

    @property
    def tokens(self) -> int:
        """Estimated size of its definition, at four bytes per token."""
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
    """The tools of a deck, without running it."""

    tools: Sequence[ListedTool]
    plan: ServerPlan
    states: Mapping[str, str] = field(default_factory=dict[str, str])
    """For each server of the plan: `known`, `asked`, `starting`, or why we don't know its tools."""
    notes: Sequence[Note] = ()
    disabled: Sequence[DisabledTool] = ()
    """Tools that can't be called until the user approves their changed definitions."""
    content: Sequence[RemoteTool] = ()
    """Known prompts, resources and templates, if requested."""

    @property
    def news(self) -> Sequence[Note]:
        """The notes, except those about definitions the ledger already knew."""
        return [
            note
            for note in self.notes
            if not (isinstance(note, DefinitionNote) and self.states.get(note.tool.server) == "known")
        ]


def list_native_tools(invocation: Invocation, name: str | None = None) -> list[ListedTool]:
    """List the native tools, or only those in `--tools`. An alias is listed only if it's `name`.

    Raises `click.UsageError` if `--tools` names an unknown tool.
    """
    from induscode.connectors.live import build_connector_gateway, web_settings  # noqa: PLC0415 — with native tools

    if invocation.no_tools:
        return []
    context = DeckContext(invocation.cwd)
    profiles = {str(card.id): tuple(map(str, card.profiles)) for card in capability_cards()}
    built: list[Capability] = [card.build(context) for card in capability_cards()]
    with usage_errors():
        deck = select_tools(ToolDeck(built, base_context(context)), invocation.tools)
    # Sessions provide the other backends: a model for `task`, plan mode.
    web = web_settings(invocation.settings)
    handles = DeckFramework(web=web, saas=build_connector_gateway(web))
    missing = {name: find_missing_backend(name, handles) for name in ("saas-action", "websearch")}
    return [
        ListedTool(describe(card), NATIVE, profiles.get(card.name, ()), missing=missing.get(card.name))
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
    """List every tool, plus other items of these `kinds`.

    With `check`, start the servers that the ledger doesn't know, for up to `limit_s` (`LOOK_LIMIT_S` by default). With
    `server`, start only that one; with `name`, only servers that may own it, and only if the tool is unknown. Raises
    `click.UsageError` if a path in `--mcp` or a name in `--tools` doesn't exist.
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
    """Load the addons and add their cards."""
    from induscode.addons.loader import load_addons  # noqa: PLC0415 — for runs with addons

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
    """List the tools in the ledger. With `limit_s`, first start the servers it doesn't know."""
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
        # The ledger has their tools now.
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
        by_server, _ = await read_known_tools(store, plan.configs.values(), kind)
        content += [item for items in by_server.values() for item in items]
    return ToolListing(listed, plan, states, (*notes, *faults), disabled, content)


async def _start_unseen(plan: ServerPlan, store: LedgerStore, limit_s: float) -> tuple[dict[str, str], list[Note]]:
    """Start servers once to record their tools in the ledger; return their states and failure notes."""
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
    """Name server tools the way enrolling them in plan order would."""
    taken: set[str] = set()
    listed: list[ListedTool] = []
    for remote in (tool for one in plan.configs for tool in known.get(one, ())):
        descriptor = replace(remote.descriptor, name=model_name(remote.ref, taken, plan.configured))
        taken.add(descriptor.name)
        listed.append(ListedTool(descriptor, remote.ref.server, tool=remote.ref.name))
    return listed


def find_possible_owners(name: str, servers: Iterable[str]) -> list[str]:
    """Find the servers whose id prefixes this tool name, exactly or else ignoring case, `_` and `-`."""
    servers = [*servers]
    heads = {canon_tool_name(name[:end]) for end, letter in enumerate(name) if letter in _SEPARATORS}
    exact = [server for server in servers if may_own_tool(server, name)]
    return exact or [server for server in servers if canon_tool_name(server) in heads]


async def list_search_items(
    invocation: Invocation, kinds: Collection[SearchKind], *, check: bool, server: str | None = None
) -> tuple[ToolListing, Sequence[SearchItem]]:
    """List every tool, and build the searchable items of these `kinds` (prompts and resources from the ledger).

    With `server`, start no other server. Without it, unknown servers get `FIRST_PROMPT_LIMIT_S` to come up. Raises
    `click.UsageError` if a path in `--mcp` or a name in `--tools` doesn't exist.
    """
    from induscode.search.items import build_content_item, build_tool_item  # noqa: PLC0415 — for searches alone

    # Templates count as resources in a search.
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
    """Find the tools that the user's or project's rules deny altogether."""
    from induscode.permissions.rules import RuleStore, has_rules, load_startup_rules  # noqa: PLC0415 — for searches alone

    if not has_rules(cwd):
        return ()
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
    """Find the server that last listed a tool of this name."""
    for row in await store.latest("list"):
        config = plan.configs.get(str(row.facts.get("server")))
        if config is None or row.facts.get("identity") != server_identity(config):
            continue
        tools = filter_texts(row.facts.get("tools"))
        if any(model_name(RemoteToolRef(config.id, tool), (), plan.configured) == name for tool in tools):
            return config.id
    disabled = await read_disabled_tools(store, plan.configs.values())
    return next((server for server, tools in disabled.items() if name in {tool.name for tool in tools}), None)


# -- settings ---------------------------------------------------------------------------------


def build_setting_row(settings: Settings, key: str) -> JsonObject:
    """Describe a setting with its value and origin, without secrets."""
    setting = SETTINGS[key]
    value, origin = settings.get(setting), settings.origin(setting)
    if setting.variable and value is None and os.environ.get(setting.variable):
        value, origin = os.environ[setting.variable], f"variable {setting.variable}"
    if setting is SERVE_VIEWS:
        value = {name: view.to_json() for name, view in settings.get(SERVE_VIEWS).items()}
    if setting is CLUSTER_BROKERS:
        value = [hide_password(address) for address in settings.get(CLUSTER_BROKERS)]
    if setting is APPROVALS_NOTIFY and isinstance(value, str) and "://" in value:
        value = f"{'/'.join(hide_in_urls(value).split('/')[:3])}/{REDACTED}"  # the path of a webhook is its password
    if isinstance(value, str):
        value = hide_in_urls(value)
    if isinstance(value, tuple):
        value = list(cast("tuple[JsonValue, ...]", value))
    return {
        "key": key,
        "value": cast("JsonValue", value),
        "origin": origin,
        "flag": setting.flag,
        "describe": setting.describe,
    }


def format_setting(value: JsonValue) -> str:
    """Format the value of a setting as one line."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)
