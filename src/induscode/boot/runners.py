"""The deck of a run: native cards, narrowed to those that were asked for, and the servers' tools.

One way for every command: a session, a call, a list and a gateway all get their deck here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias

from indusagi.capabilities.arguments import find_similar_name
from indusagi.core.json import JsonObject
from indusagi.core.notes import Note
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.contract import FleetStatus, RemoteToolRef, ServerConfig
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from induscode.deck.contract import BridgeFault, Capability, UnknownCapability
from induscode.deck.mcp.boot import BootedBridge, BootPlan
from induscode.deck.mcp.config import DiscoveredConfig, UnusableFile, discover_mcp_config, read_named_rows, resolve_rows
from induscode.deck.mcp.config.rows import ServerRow
from induscode.deck.mcp.config.trust import Consent, TrustStore
from induscode.deck.mcp.drift import DisabledTool
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.lock import LOCK_NAME, read_lock
from induscode.deck.mcp.store import LedgerStore
from induscode.deck.provision import ToolDeck
from induscode.launch.invocation import Invocation

RowState: TypeAlias = Literal["startable", "untrusted", "changed", "unresolved"]
"""Ready to be started; not consented to, or no longer; or with a variable that has no value."""
STANDARD_ERROR = "stderr"
"""Under this subject the journal keeps what a server wrote before it failed."""
_KEPT_CHARACTERS = 1_900


_PROJECT_FILES = (".indusvx/mcp.json", ".mcp.json")
_NOT_SOON_S = 3_600.0


class ConfigPathError(ValueError):
    """A file or directory after `--mcp` that is absent or of which nothing can be used."""


def canon_tool_name(name: str) -> str:
    """Give the spelling under which names are compared: `web_fetch`, `WebFetch`, `web-fetch`."""
    return name.lower().replace("_", "").replace("-", "")


def select_tools(deck: ToolDeck, names: Sequence[str] | None) -> ToolDeck:
    """Keep the cards of these names; all of them if there are none.

    Raises:
        UnknownCapability: There is no card of a name.
    """
    if not names:
        return deck
    known = {canon_tool_name(card.name): card.name for card in deck.tools()}
    for name in names:
        if canon_tool_name(name) not in known:
            raise UnknownCapability(name, find_similar_name(name, known.values()))
    wanted = {canon_tool_name(name) for name in names}
    return deck.retain(lambda card: canon_tool_name(card.name) in wanted)


@record
class ServerPlan:
    """The servers of a run, and what is known of each before any of them is started."""

    rows: Sequence[ServerRow] = ()
    configs: Mapping[str, ServerConfig] = field(default_factory=dict[str, "ServerConfig"])
    """With the values of their variables; a row without its values is not among them."""
    consent: Mapping[str, Consent] = field(default_factory=dict[str, "Consent"])
    notes: Sequence[Note] = ()
    locked: Mapping[RemoteToolRef, JsonObject] = field(default_factory=dict[RemoteToolRef, JsonObject])
    """The definitions of the project's lock: a tool that was never seen before must be one."""
    configured: Sequence[str] = ()
    """The ids of all servers that are configured, also of those that are left out of the plan."""

    @property
    def untrusted(self) -> Sequence[ServerRow]:
        """The rows of the project that nobody has consented to as they are."""
        return tuple(row for row in self.rows if self.consent.get(row.id) != "trusted")

    def state_of(self, row: ServerRow) -> RowState:
        """Tell whether a row can be started, and if not, why."""
        consent = self.consent.get(row.id, "unknown")
        if consent != "trusted":
            return "changed" if consent == "changed" else "untrusted"
        return "startable" if row.id in self.configs else "unresolved"

    def narrowed(self, servers: Collection[str]) -> ServerPlan:
        """Give the plan of these servers alone, without what is said of the others."""
        others = tuple(f"server {row.id!r} of " for row in self.rows if row.id not in servers)
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.id in servers),
            configs={one: config for one, config in self.configs.items() if one in servers},
            notes=tuple(note for note in self.notes if not note.owner.startswith(others)),
        )


def plan_servers(invocation: Invocation, trust: TrustStore | None = None) -> ServerPlan:
    """Find out which servers a run has. Nothing is started, and no name is looked up.

    Raises:
        ConfigPathError: A path that was given leads nowhere.
    """
    if invocation.no_tools or invocation.no_mcp:
        return ServerPlan()
    found = _configured(invocation)
    store = trust or TrustStore()
    consent: dict[str, Consent] = {row.id: _consent(row, store) for row in found.rows}
    trusted = [row for row in found.rows if consent[row.id] == "trusted"]
    # What nobody has consented to is not expanded either: a variable may be a secret.
    configs, missing = resolve_rows(trusted, os.environ)
    refused = [_refusal(row, consent[row.id]) for row in found.rows if row not in trusted]
    locked, unread = _locked_definitions(invocation.cwd, found.rows)
    notes = (*found.notes, *missing, *refused, *unread)
    return ServerPlan(found.rows, configs, consent, notes, locked, tuple(row.id for row in found.rows))


def _locked_definitions(
    cwd: str, rows: Sequence[ServerRow]
) -> tuple[Mapping[RemoteToolRef, JsonObject], Sequence[Note]]:
    """Read the project's lock, as far as it is about servers that are not the user's own."""
    servers = {row.id for row in rows if row.origin.scope != "user"}
    path = os.path.join(cwd, LOCK_NAME)
    if not servers or not os.path.lexists(path):
        return {}, ()
    try:
        definitions = read_lock(path)
    except BridgeFault as exc:
        said = f"not compared with the tools there are: {exc}"
        return {}, (Note(path, said, "write it anew: indus mcp lock"),)
    return {ref: raw for ref, raw in definitions.items() if ref.server in servers}, ()


def check_named_configs(invocation: Invocation) -> None:
    """Read what `--mcp` names before anything else is done.

    Raises:
        ConfigPathError: A path leads nowhere, or nothing there can be used.
    """
    if invocation.mcp:
        _configured(invocation)


def _configured(invocation: Invocation) -> DiscoveredConfig:
    if not invocation.mcp:
        return discover_mcp_config(invocation.cwd)
    parts: list[DiscoveredConfig] = []
    for given in invocation.mcp:
        path = os.path.join(invocation.cwd, os.path.expanduser(given))
        if os.path.isdir(path):
            parts.append(discover_mcp_config(path))
            if not parts[-1].files:
                looked = " and ".join(os.path.join(given, one) for one in _PROJECT_FILES)
                raise ConfigPathError(f"--mcp {given}: no servers are configured there ({looked})")
        elif os.path.lexists(path):
            try:
                parts.append(read_named_rows(path))
            except UnusableFile as exc:
                raise ConfigPathError(f"--mcp {exc}") from exc
        else:
            raise ConfigPathError(f"--mcp {given}: there is no such file or directory")
    rows: dict[str, ServerRow] = {}
    notes = [note for part in parts for note in part.notes]
    for row in (row for part in parts for row in part.rows):
        if row.id in rows and rows[row.id].config != row.config:
            said = f"left out: {rows[row.id].origin.file} has a server of this name"
            notes.append(Note(f"server {row.id!r} of {row.origin}", said, "give one another name"))
            continue
        rows.setdefault(row.id, row)
    files = tuple(file for part in parts for file in part.files)
    return DiscoveredConfig(tuple(rows.values()), tuple(notes), files)


def _consent(row: ServerRow, trust: TrustStore) -> Consent:
    # Naming a file is consent to it as it is; a user's own files are the user's.
    if row.origin.scope != "project":
        return "trusted"
    return trust.consent(row)


def _refusal(row: ServerRow, consent: Consent) -> Note:
    why = (
        "not started: it is not as it was when somebody consented to it"
        if consent == "changed"
        else "not started: nobody has consented to it"
    )
    return Note(f"server {row.id!r} of {row.origin}", why, f"indus mcp trust {row.id}")


@record
class McpCapabilities:
    """The servers' half of a deck. Whoever loads it closes it."""

    capabilities: Sequence[Capability] = ()
    fleet: ServerFleetImpl | None = None
    notes: Sequence[Note] = ()
    plan: ServerPlan = field(default_factory=ServerPlan)
    booted: BootedBridge | None = None

    @property
    def ledger(self) -> BridgeLedger | None:
        """What is enrolled at this moment."""
        if self.booted is None or self.booted.attached.enrolment is None:
            return None
        return self.booted.attached.enrolment.ledger

    @property
    def disabled(self) -> Sequence[DisabledTool]:
        """The tools that may not be called until their changed definitions are approved."""
        if self.booted is None or self.booted.attached.enrolment is None:
            return ()
        return self.booted.attached.enrolment.disabled

    def list_enrolment_notes(self) -> Sequence[Note]:
        """Say what is kept out of the deck by what servers have listed so far."""
        if self.booted is None or self.booted.attached.enrolment is None:
            return ()
        return self.booted.attached.enrolment.notes

    def status(self) -> FleetStatus:
        """Tell how every server is; a tool that is disabled is among its notes."""
        if self.booted is not None and self.booted.attached.enrolment is not None:
            return self.booted.attached.enrolment.status()
        return {} if self.fleet is None else self.fleet.status()

    def missing(self) -> Sequence[str]:
        """Name the servers that are required and not ready."""
        status = self.status()
        return tuple(
            row.id
            for row in self.plan.rows
            if row.required and (row.id not in status or status[row.id].phase != "ready")
        )

    async def wait_for_required(self) -> None:
        """Wait until every server that is required has come up or failed."""
        required = [row.id for row in self.plan.rows if row.required]
        if self.booted is not None and required:
            await self.booted.wake(one for one in required if one in self.plan.configs)

    def brand_new(self) -> Sequence[str]:
        """Name the servers that can be started and of whose tools nothing is known yet."""
        known = () if self.booted is None else self.booted.from_store
        return tuple(one for one in self.plan.configs if one not in known)

    def eager(self) -> Sequence[str]:
        """Name the servers that are to run whether one of their tools is called or not."""
        rows = (row for row in self.plan.rows if row.start != "lazy")
        return tuple(row.id for row in rows if row.id in self.plan.configs)

    async def aclose(self) -> None:
        """Close the servers, and write the books to their end."""
        if self.booted is not None:
            self._keep_last_words(self.booted)
            await self.booted.aclose()

    def _keep_last_words(self, booted: BootedBridge) -> None:
        """Write down what servers that failed had said on standard error: `mcp logs` shows it."""
        for server, status in self.status().items():
            if status.fault is not None and status.fault.detail.stderr:
                said = "\n".join(status.fault.detail.stderr)[-_KEPT_CHARACTERS:]
                booted.journal.note("fault", server, STANDARD_ERROR, said)


@record
class ReloadOptions:
    """For a run whose servers may be others while it lasts, and which waits for none of them."""

    decorate_config: Callable[[ServerConfig], ServerConfig] | None = None
    """What a server is started with, besides what its row says."""


async def load_mcp_capabilities(
    invocation: Invocation,
    store: LedgerStore,
    *,
    trust: TrustStore | None = None,
    handlers: Handlers | None = None,
    wait: bool = True,
) -> McpCapabilities:
    """Attach the servers of a run: one fleet and one ledger, whatever the files.

    With `wait` it returns when every server that is started has come up or failed.

    Raises:
        ConfigPathError: A path that was given leads nowhere.
    """
    from anyio import to_thread  # noqa: PLC0415 — loaded wherever a loop runs

    plan = await to_thread.run_sync(plan_servers, invocation, trust)
    return await attach_servers(plan, store, handlers=handlers, wait=wait)


async def attach_servers(
    plan: ServerPlan,
    store: LedgerStore,
    *,
    lazy: Collection[str] | None = None,
    handlers: Handlers | None = None,
    wait: bool = True,
    once: bool = False,
    reload_options: ReloadOptions | None = None,
) -> McpCapabilities:
    """Attach the servers of a plan; those that are `lazy` wait for a call if they are known.

    None: those whose rows say so. With `once` a server that fails is not started again: whoever
    only looks wants to see the first failure.
    """
    if not plan.rows and reload_options is None:
        return McpCapabilities(notes=plan.notes, plan=plan)
    from anyio import CancelScope  # noqa: PLC0415 — loaded wherever a loop runs

    from indusagi.interop.protocol_bridge.client.supervision import Supervision  # noqa: PLC0415 — with it
    from induscode.boot.starting import StartAnnouncer  # noqa: PLC0415 — as below
    from induscode.deck.mcp.boot import boot_bridge  # noqa: PLC0415 — for those with servers

    supervision = Supervision(first_s=_NOT_SOON_S, longest_s=_NOT_SOON_S) if once else None
    booted = await boot_bridge(
        store,
        boot_plan_of(plan, lazy=lazy, reload_options=reload_options),
        supervision=supervision,
        handlers=handlers,
        on_event=StartAnnouncer(),
    )
    try:
        if wait:
            await booted.settled()
    except BaseException:
        # Cancelled: what is being started is ended here, and not by the end of the loop.
        with CancelScope(shield=True):
            await booted.aclose()
        raise
    attached = booted.attached
    ledger = attached.enrolment.ledger if attached.enrolment is not None else attached.ledger
    # What servers listed after they came up may have disabled tools.
    listed = attached.enrolment.notes if attached.enrolment is not None else ()
    remarks = _definition_notes(booted) if reload_options is None else ()
    notes = tuple(dict.fromkeys((*plan.notes, *attached.notes, *listed, *remarks)))
    return McpCapabilities(ledger.live_capabilities(), attached.fleet, notes, plan, booted)


def _definition_notes(booted: BootedBridge) -> Sequence[Note]:
    """Say what was done to definitions that were never seen before."""
    from indusagi.interop.protocol_bridge.client.tools import DefinitionNote  # noqa: PLC0415 — loaded

    servers = () if booted.attached.fleet is None else booted.attached.fleet.status()
    remarks = [note for server in servers for note in booted.list_remarks(server)]
    return [note for note in remarks if isinstance(note, DefinitionNote)]


def boot_plan_of(
    plan: ServerPlan, *, lazy: Collection[str] | None = None, reload_options: ReloadOptions | None = None
) -> BootPlan:
    """Say which servers of a plan there are, and when each of them is started."""
    from induscode.deck.mcp.boot import BootPlan  # noqa: PLC0415 — for those with servers

    unresolved = [row.config for row in plan.untrusted]
    asleep = [row.id for row in plan.rows if row.start == "lazy"] if lazy is None else lazy
    return BootPlan(
        (*plan.configs.values(), *unresolved),
        lazy=asleep,
        untrusted=[row.id for row in plan.untrusted],
        wait_for_new=reload_options is None,
        locked=plan.locked,
        configured=plan.configured,
        reloadable=reload_options is not None,
        decorate_config=None if reload_options is None else reload_options.decorate_config,
    )
