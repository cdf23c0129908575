"""Plans a run: which cards it keeps, and which servers its files configure.

Commands use this to plan their servers without importing the code that starts them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from indusagi.capabilities.arguments import find_similar_name
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.cli.output import print_notes
from induscode.deck.contract import BackendFault, BridgeFault, UnknownCapability
from induscode.deck.mcp.lock import LOCK_NAME, build_empty_entries, read_lock
from induscode.launch.invocation import Invocation
from induscode.servers.config import (
    DiscoveredConfig,
    UnusableFileError,
    discover_mcp_config,
    parse_given_rows,
    read_named_rows,
    read_rows,
    resolve_rows,
)
from induscode.servers.config.rows import ServerRow
from induscode.servers.config.trust import TrustStore
from induscode.servers.plan import ServerPlan
from induscode.servers.remedies import format_command, format_server_command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from indusagi.interop.protocol_bridge.contract import ProtocolFault
    from induscode.core.consent import ConsentState
    from induscode.deck.mcp.store import ThreadedStore
    from induscode.deck.provision import ToolDeck

LOOK_LIMIT_S = 10.0
"""How long listing commands (`mcp list`, `tools`, `resources`, `prompts`) wait for servers."""
FIRST_PROMPT_LIMIT_S = 3.0
"""How long a first prompt, a search or a script waits for servers whose tools we don't know yet."""
_PROJECT_FILES = (".indusvx/mcp.json", ".mcp.json")
_CLUSTER_REASONS = ("moved", "node_changed")
"""Why a channel to another node ends while the server there keeps running."""


class ConfigPathError(ValueError):
    """A path in `--mcp` doesn't exist, or has no usable server."""


def canon_tool_name(name: str) -> str:
    """Normalize a name for comparison, so that `web_fetch`, `WebFetch` and `web-fetch` are equal."""
    return name.lower().replace("_", "").replace("-", "")


def select_tools(deck: ToolDeck, names: Sequence[str] | None) -> ToolDeck:
    """Keep the named cards, or all of them without names.

    Raises:
        UnknownCapability: A name matches no card.
    """
    if not names:
        return deck
    known = {canon_tool_name(card.name): card.name for card in deck.tools()}
    for name in names:
        if canon_tool_name(name) not in known:
            raise UnknownCapability(name, find_similar_name(name, known.values()))
    wanted = {canon_tool_name(name) for name in names}
    return deck.retain(lambda card: canon_tool_name(card.name) in wanted)


def plan_servers(
    invocation: Invocation, trust: TrustStore | None = None, switched_on: Collection[str] = ()
) -> ServerPlan:
    """Plan the servers of a run without starting any. `switched_on` overrides `disabled` in their files.

    Raises:
        ConfigPathError: A path in `--mcp` doesn't exist.
    """
    if invocation.no_tools or invocation.no_mcp:
        return ServerPlan()
    found = _read_config(invocation, switched_on)
    store = trust or TrustStore()
    # Naming a file is consent to its current content. The user's own files and the editor's servers need none.
    stored: dict[str, ConsentState] = {
        row.id: store.consent(row) for row in found.rows if is_in_workspace(row, invocation.cwd)
    }
    consent: dict[str, ConsentState] = {
        row.id: stored[row.id] if row.origin.scope == "project" else "trusted" for row in found.rows
    }
    approved = [server for server, state in stored.items() if state == "trusted"]
    trusted = [row for row in found.rows if consent[row.id] == "trusted"]
    # Don't expand rows without consent: a variable may hold a secret.
    configs, missing = resolve_rows(trusted, os.environ)
    refused: list[Note] = []
    for row in found.rows:
        if row not in trusted:
            changed = consent[row.id] == "changed"
            reason = "it has changed since you consented to it" if changed else "it needs your consent"
            owner = f"server {row.id!r} of {row.origin}"
            refused.append(Note(owner, f"not started: {reason}", f"indus mcp trust {row.id}"))
    locked, unread = _read_locked_definitions(invocation.cwd, found.rows)
    notes = (*found.notes, *missing, *refused, *unread)
    configured = tuple(row.id for row in found.rows)
    return ServerPlan(found.rows, configs, consent, notes, locked, configured, approved)


def is_in_workspace(row: ServerRow, workspace: str) -> bool:
    """Return whether a row comes with the workspace: a project row, or one whose file lies in or links into it."""
    inside = tuple(os.path.join(path, "") for path in (os.path.abspath(workspace), os.path.realpath(workspace)))
    path = row.origin.file
    # A parent directory may be a symlink too, with the file itself inside.
    entry = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return row.origin.scope == "project" or any(one.startswith(inside) for one in (path, entry, os.path.realpath(path)))


def _read_locked_definitions(
    cwd: str, rows: Sequence[ServerRow]
) -> tuple[Mapping[RemoteToolRef, JsonObject], Sequence[Note]]:
    """Read the definitions in the project's lock file, except for the user's own servers."""
    servers = {row.id for row in rows if row.origin.scope != "user"}
    path = os.path.join(cwd, LOCK_NAME)
    if not servers or not os.path.lexists(path):
        return {}, ()
    try:
        definitions = read_lock(path)
    except BridgeFault as exc:
        message = f"nothing new of the project's servers is approved: {exc}"
        return build_empty_entries(servers), (
            Note(path, message, "restore it, or approve what there is and write it anew: indus mcp lock"),
        )
    return {ref: raw for ref, raw in definitions.items() if ref.server in servers}, ()


def check_named_configs(invocation: Invocation) -> None:
    """Check the paths in `--mcp` up front; a later reload may still leave a file without servers.

    Raises:
        ConfigPathError: A path doesn't exist, or has no usable server.
    """
    for given in () if invocation.no_mcp or invocation.no_tools else invocation.mcp or ():
        found = _read_files(replace(invocation, mcp=(given,)), ())
        # Disabled servers leave a note.
        if not found.rows and not found.notes:
            raise ConfigPathError(f"--mcp {given}: it has no servers; indus mcp add adds one to a file of indus")


def _read_config(invocation: Invocation, switched_on: Collection[str] = ()) -> DiscoveredConfig:
    """Read the servers from the files, and `given_servers`, which override others of the same name."""
    found = DiscoveredConfig() if invocation.no_config else _read_files(invocation, switched_on)
    if invocation.cluster_config:
        found = _add_cluster_rows(found, invocation.cluster_config)
    if not invocation.given_servers:
        return found
    rows, notes = parse_given_rows(invocation.given_servers, invocation.given_by)
    names = {row.id for row in rows}
    left_out = [
        Note(f"server {row.id!r} of {row.origin}", f"left out: {invocation.given_by} has a server of this name")
        for row in found.rows
        if row.id in names
    ]
    others = (row for row in found.rows if row.id not in names)
    return DiscoveredConfig((*others, *rows), (*found.notes, *notes, *left_out), found.files)


def _add_cluster_rows(found: DiscoveredConfig, path: str) -> DiscoveredConfig:
    """Add the cluster's servers. Pushing them took its key, which counts as consent."""
    if not os.path.lexists(path):
        return found
    rows, notes = read_rows(path, "user")
    names = {row.id: row for row in found.rows}
    left_out = [
        Note(f"server {row.id!r} of the cluster", f"left out: {names[row.id].origin.file} has a server of this name")
        for row in rows
        if row.id in names and names[row.id].config != row.config
    ]
    others = [row for row in rows if row.id not in names]
    return DiscoveredConfig((*found.rows, *others), (*found.notes, *notes, *left_out), (*found.files, path))


def _read_files(invocation: Invocation, switched_on: Collection[str]) -> DiscoveredConfig:
    if not invocation.mcp:
        return discover_mcp_config(invocation.cwd, switched_on=switched_on)
    parts: list[DiscoveredConfig] = []
    for given in invocation.mcp:
        path = os.path.join(invocation.cwd, os.path.expanduser(given))
        if os.path.isdir(path):
            parts.append(discover_mcp_config(path, switched_on=switched_on))
            if not parts[-1].files:
                looked = " and ".join(os.path.join(given, name) for name in _PROJECT_FILES)
                raise ConfigPathError(f"--mcp {given}: no servers are configured there ({looked})")
        elif os.path.lexists(path):
            try:
                parts.append(read_named_rows(path, switched_on=switched_on))
            except UnusableFileError as exc:
                raise ConfigPathError(f"--mcp {exc}") from exc
        else:
            raise ConfigPathError(f"--mcp {given}: there is no such file or directory")
    rows: dict[str, ServerRow] = {}
    notes = [note for part in parts for note in part.notes]
    for row in (row for part in parts for row in part.rows):
        if row.id in rows and rows[row.id].config != row.config:
            message = f"left out: {rows[row.id].origin.file} has a server of this name"
            notes.append(Note(f"server {row.id!r} of {row.origin}", message, "give one another name"))
            continue
        rows.setdefault(row.id, row)
    files = tuple(file for part in parts for file in part.files)
    return DiscoveredConfig(tuple(rows.values()), tuple(notes), files)


# -- for commands -----------------------------------------------------------------------------


@contextmanager
def usage_errors() -> Generator[None]:
    """Turn errors about paths and names on the command line into usage errors (exit code 2)."""
    try:
        yield
    except (ConfigPathError, UnknownCapability, BackendFault) as exc:
        raise click.UsageError(str(exc), click.get_current_context(silent=True)) from exc


def load_plan(invocation: Invocation) -> ServerPlan:
    """Plan the servers of a run without starting any.

    Raises:
        click.UsageError: A path in `--mcp` doesn't exist.
    """
    with usage_errors():
        check_named_configs(invocation)
        return plan_servers(invocation)


@asynccontextmanager
async def opened_store(*, report_notes: bool = True) -> AsyncGenerator[ThreadedStore]:
    """Open this user's ledger inside the block, and print notes about damage unless the caller does."""
    from induscode.deck.mcp.store import open_store  # noqa: PLC0415 — for commands with the ledger

    store = await open_store()
    printed = store.notes if report_notes else ()
    print_notes(printed)
    try:
        yield store
    finally:
        await store.aclose()
        if report_notes:
            print_notes(note for note in store.notes if note not in printed)


def build_fault_note(server: str, fault: ProtocolFault) -> Note:
    """Build the note about a server's fault, with the command that diagnoses the server or its cluster."""
    from induscode.cluster.contract import ClusterFault  # noqa: PLC0415 — on a fault

    owner = f"server {server!r}"
    is_of_cluster = isinstance(fault.cause, ClusterFault) or fault.detail.reason in _CLUSTER_REASONS
    remedy = "indus cluster status" if is_of_cluster else format_server_command("doctor", server)
    return Note(owner, str(fault).removeprefix(f"{owner}: "), remedy)


def build_silent_note(server: str, limit_s: float) -> Note:
    """Build the note about a server that didn't answer in time, with the command that waits longer."""
    remedy = f"{format_server_command('doctor', server)} waits longer"
    return Note(f"server {server!r}", f"no answer within {limit_s:g} s", remedy)


def build_unseen_note(server: str) -> Note:
    """Build the note about a server the ledger doesn't know, with the command that lists its tools."""
    message = "nothing is known of its tools: it was never started"
    return Note(f"server {server!r}", message, f"{format_command('tools')} starts it once")
