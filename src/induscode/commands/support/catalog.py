"""The tools there are, as rows of a list: native ones, and what servers said of theirs."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json
from indusagi.core.notes import Note
from indusagi.core.records import record
from induscode.boot.runners import attach_servers, select_tools
from induscode.commands.support.runner import build_fault_note, load_plan, opened_store, usage_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import RemoteTool
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.store import LedgerStore
    from induscode.launch.invocation import Invocation

NATIVE = "native"
_BYTES_PER_TOKEN = 4


@record
class ListedTool:
    """One tool."""

    descriptor: ToolDescriptor
    source: str
    """`native`, or the id of a server."""
    profiles: tuple[str, ...] = ()
    read_only: bool = False
    tool: str | None = None
    """The name its server has for it."""
    missing: str | None = None
    """Why a session does not show it to a model: what it works through is not there."""
    tokens: int = field(init=False)
    """About how many tokens it takes to tell a model about it."""

    def __post_init__(self) -> None:
        told = {
            "name": self.descriptor.name,
            "description": self.descriptor.description,
            "parameters": self.descriptor.parameters,
        }
        size = len(compact_json(told).encode("utf-8"))
        object.__setattr__(self, "tokens", -(-size // _BYTES_PER_TOKEN))

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        return self.descriptor.name

    def as_json(self) -> JsonObject:
        """Give the row for programs."""
        return {
            "name": self.name,
            "source": self.source,
            "tool": self.tool or self.name,
            "title": self.descriptor.title,
            "profiles": [*self.profiles],
            "readOnly": self.read_only,
            "tokens": self.tokens,
            "missing": self.missing,
        }


@record
class Listing:
    """The tools of a deck, before any of it runs."""

    tools: Sequence[ListedTool]
    plan: ServerPlan
    states: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of every server of the plan: `known`, `asked`, or why nothing is known of it."""
    notes: Sequence[Note] = ()
    disabled: Sequence[DisabledTool] = ()
    """Tools of servers that may not be called until their changed definitions are approved."""

    @property
    def news(self) -> Sequence[Note]:
        """The notes without those about definitions that were known before."""
        from indusagi.interop.protocol_bridge.client.tools import DefinitionNote  # noqa: PLC0415 — brings the bridge

        return [
            note
            for note in self.notes
            if not (isinstance(note, DefinitionNote) and self.states.get(note.tool.server) == "known")
        ]


def native_tools(invocation: Invocation) -> list[ListedTool]:
    """List the native tools, as far as they were asked for.

    Raises:
        click.UsageError: One that was asked for is none.
    """
    from induscode.boot.session import web_settings  # noqa: PLC0415 — brings the deck
    from induscode.deck.catalog import capability_cards, find_missing_backend  # noqa: PLC0415 — brings the cards
    from induscode.deck.contract import DeckContext, DeckFramework, describe  # noqa: PLC0415 — as above
    from induscode.deck.provision import ToolDeck, base_context  # noqa: PLC0415 — as above

    if invocation.no_tools:
        return []
    context = DeckContext(invocation.cwd)
    profiles = {card.id: tuple(map(str, card.profiles)) for card in capability_cards()}
    built: list[Capability] = [card.build(context) for card in capability_cards()]
    with usage_errors():
        deck = select_tools(ToolDeck(built, base_context(context)), invocation.tools)
    names: dict[str, tuple[str, ...]] = {str(one): found for one, found in profiles.items()}
    # In a session there is a model for `task`, and a plan mode.
    handles = DeckFramework(web=web_settings(invocation.settings))
    missing = {one: find_missing_backend(one, handles) for one in ("saas-action", "websearch")}
    return [
        ListedTool(describe(card), NATIVE, names.get(card.name, ()), card.read_only, missing=missing.get(card.name))
        for card in deck.tools()
    ]


async def list_tools(invocation: Invocation, *, check: bool) -> Listing:
    """List every tool. Servers that were seen before are not started.

    With `check`, those that were never seen are, to hear what they have.

    Raises:
        click.UsageError: A path or a name that was given does not exist.
    """
    native = native_tools(invocation)
    plan = load_plan(invocation)
    if not plan.rows:
        return Listing(native, plan, notes=plan.notes)
    async with opened_store(tell_notes=False) as store:
        remote = await _remote(plan, store, check=check)
    return Listing(
        [*native, *(one for one in remote.tools if one.name not in {n.name for n in native})],
        plan,
        remote.states,
        (*plan.notes, *remote.notes, *(one.note for one in remote.disabled), *store.notes),
        remote.disabled,
    )


async def _remote(plan: ServerPlan, store: LedgerStore, *, check: bool) -> Listing:
    from induscode.deck.mcp.boot import read_known_tools  # noqa: PLC0415 — for those with servers
    from induscode.deck.mcp.store.pins import read_disabled_tools  # noqa: PLC0415 — as above

    known, notes = await read_known_tools(store, plan.configs.values())
    unseen = [server for server in plan.configs if server not in known]
    states = dict.fromkeys(known, "known")
    faults: list[Note] = []
    if unseen and check:
        asked = await _asked(plan.narrow(unseen), store)
        faults = list(asked.notes)
        states.update(asked.states)
        # Once more, since what was heard has been pinned: two ways to know would be one too many.
        known, notes = await read_known_tools(store, plan.configs.values())
    for server in unseen:
        states.setdefault(server, "unseen")
    if not check:
        faults = [_unseen(server) for server in unseen]
    for row in plan.rows:
        states.setdefault(row.id, plan.state_of(row))
    listed = _name_tools([known[server] for server in plan.configs if server in known], plan.configured)
    remembered = await read_disabled_tools(store, plan.configs.values())
    disabled = [one for server in plan.configs for one in remembered.get(server, ())]
    return Listing(listed, plan, states, (*notes, *faults), disabled)


def _unseen(server: str) -> Note:
    said = "nothing is known of its tools: it was never started"
    return Note(f"server {server!r}", said, "leave out --no-check")


async def _asked(plan: ServerPlan, store: LedgerStore) -> Listing:
    mcp = await attach_servers(plan, store)
    try:
        faults = [
            build_fault_note(server, status.fault)
            for server, status in mcp.status().items()
            if status.fault is not None
        ]
        states = {server: "faulted" if status.fault is not None else "asked" for server, status in mcp.status().items()}
    finally:
        await mcp.aclose()
    return Listing((), plan, states, faults)


def _name_tools(servers: Iterable[Sequence[RemoteTool]], configured: Sequence[str]) -> list[ListedTool]:
    """Give every tool the name that an enrolment in this order gives it."""
    from dataclasses import replace  # noqa: PLC0415 — for those with servers

    from indusagi.interop.protocol_bridge.client.tools import model_name  # noqa: PLC0415 — as above

    taken: set[str] = set()
    listed: list[ListedTool] = []
    for remote in (one for tools in servers for one in tools):
        name = model_name(remote.ref, taken, configured)
        descriptor = replace(remote.descriptor, name=name)
        taken.add(descriptor.name)
        listed.append(ListedTool(descriptor, remote.ref.server, tool=remote.ref.name))
    return listed
