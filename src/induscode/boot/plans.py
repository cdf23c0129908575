"""Plans a run: which cards it keeps, which servers its files configure, and how it follows changes of the files.

Commands use this to plan their servers without importing the code that starts them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import click
from anyio import to_thread

from indusagi.capabilities.arguments import find_similar_name
from indusagi.core.config_file import read_config_file
from indusagi.core.faults import CoreError, Note
from indusagi.core.json import JsonObject, is_json_object
from indusagi.interop.protocol_bridge.contract import ProtocolFault, RemoteToolRef
from induscode.cli.output import print_notes
from induscode.core.consent import ConsentState, digest_facts
from induscode.deck.contract import BackendFault, BridgeFault, UnknownCapability
from induscode.deck.mcp.lock import LOCK_NAME, build_empty_entries, read_lock, read_locked_labels
from induscode.launch.invocation import Invocation
from induscode.launch.settings import REVIEW, SANDBOX
from induscode.servers.config import (
    DiscoveredConfig,
    UnusableFileError,
    discover_mcp_config,
    find_shape_problem,
    parse_given_rows,
    read_named_rows,
    read_rows,
    resolve_rows,
)
from induscode.servers.config.rows import Scope, ServerRow
from induscode.servers.config.trust import TrustStore, consent_facts
from induscode.servers.plan import ServerPlan, has_no_sandbox, list_run_files
from induscode.servers.remedies import format_command, format_server_command

if TYPE_CHECKING:
    from induscode.cli.process import SignalState
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.provision import ToolDeck
    from induscode.servers.labels import RowLabels


LOOK_LIMIT_S = 5.0
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
    """Keep the named cards, or all of them without names; raises `UnknownCapability` if a name matches no card."""
    if not names:
        return deck
    known = {canon_tool_name(card.name): card.name for card in deck.tools()}
    for name in names:
        if canon_tool_name(name) not in known:
            raise UnknownCapability(name, find_similar_name(name, known.values()))
    wanted = {canon_tool_name(name) for name in names}
    return deck.retain(lambda card: canon_tool_name(card.name) in wanted)


def plan_servers(
    invocation: Invocation,
    trust: TrustStore | None = None,
    switched_on: Collection[str] = (),
    *,
    must_have_servers: bool = False,
) -> ServerPlan:
    """Plan the servers of a run without starting any. `switched_on` overrides `disabled` in their files.

    Raises `ConfigPathError` if a path in `--mcp` doesn't exist.
    """
    if invocation.no_tools or invocation.no_mcp:
        return ServerPlan()
    found = _read_config(invocation, switched_on, must_have_servers=must_have_servers)
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
    requires_sandbox = invocation.sandbox == "required"
    bare = [row for row in trusted if requires_sandbox and has_no_sandbox(row.config)]
    # Don't expand rows without consent: a variable may hold a secret.
    configs, missing = resolve_rows([row for row in trusted if row not in bare], os.environ)
    refused = [
        Note(
            f"server {row.id!r} of {row.origin}",
            f"not started: it has no sandbox, and {_name_origin(invocation)} requires one",
            'put "sandbox": "standard" into its row, or what this finds: '
            f"{format_server_command('doctor', row.id)} --sandbox",
        )
        for row in bare
    ]
    for row in found.rows:
        if row not in trusted:
            changed = consent[row.id] == "changed"
            reason = "it has changed since you trusted it" if changed else "it isn't trusted yet"
            owner = f"server {row.id!r} of {row.origin}"
            refused.append(Note(owner, f"not started: {reason}", f"indus mcp trust {row.id}"))
    locked, labels, unread = _read_lock(invocation.cwd, found.rows)
    notes = (*found.notes, *missing, *refused, *unread)
    configured = tuple(row.id for row in found.rows)
    review = invocation.settings.get(REVIEW)
    return ServerPlan(
        found.rows, configs, consent, notes, locked, configured, approved, labels, requires_sandbox, review
    )


def _name_origin(invocation: Invocation) -> str:
    """Name what requires a sandbox: the flag, or the settings file."""
    origin = invocation.settings.origin(SANDBOX)
    return "--sandbox required" if origin in {"default", f"flag {SANDBOX.flag}"} else f"the setting of {origin}"


def is_in_workspace(row: ServerRow, workspace: str) -> bool:
    """Return whether a row comes with the workspace: a project row, or one whose file lies in or links into it."""
    inside = tuple(os.path.join(path, "") for path in (os.path.abspath(workspace), os.path.realpath(workspace)))
    path = row.origin.file
    # A parent directory may be a symlink too, with the file itself inside.
    entry = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return row.origin.scope == "project" or any(one.startswith(inside) for one in (path, entry, os.path.realpath(path)))


def _read_lock(
    cwd: str, rows: Sequence[ServerRow]
) -> tuple[Mapping[RemoteToolRef, JsonObject], Mapping[str, RowLabels], Sequence[Note]]:
    """Read the definitions and labels in the project's lock file, except for the user's own servers."""
    servers = {row.id for row in rows if row.origin.scope != "user"}
    path = os.path.join(cwd, LOCK_NAME)
    if not servers or not os.path.lexists(path):
        return {}, {}, ()
    try:
        definitions, labels = read_lock(path), read_locked_labels(path)
    except BridgeFault as exc:
        message = f"nothing new of the project's servers is approved: {exc}"
        note = Note(path, message, "restore it, or approve what there is and write it anew: indus mcp lock")
        return build_empty_entries(servers), {}, (note,)
    ours = {server: rows for server, rows in labels.items() if server in servers}
    return {ref: raw for ref, raw in definitions.items() if ref.server in servers}, ours, ()


def check_named_configs(invocation: Invocation) -> None:
    """Check the paths in `--mcp` up front; a later reload may still leave a file without servers.

    Raises `ConfigPathError` if a path doesn't exist, or has no usable server.
    """
    if not invocation.no_mcp and not invocation.no_tools:
        _read_files(invocation, (), must_have_servers=True)


def _read_config(invocation: Invocation, switched_on: Collection[str], *, must_have_servers: bool) -> DiscoveredConfig:
    """Read the servers from the files, and `given_servers`, which override others of the same name."""
    found = DiscoveredConfig()
    if not invocation.no_config:
        found = _read_files(invocation, switched_on, must_have_servers=must_have_servers)
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


def _read_files(invocation: Invocation, switched_on: Collection[str], *, must_have_servers: bool) -> DiscoveredConfig:
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
            raise ConfigPathError(f"--mcp {given}: no such file or directory")
        # Disabled servers leave a note.
        if must_have_servers and not parts[-1].rows and not parts[-1].notes:
            raise ConfigPathError(f"--mcp {given}: it has no servers; indus mcp add adds one to a file of indus")
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
    """Plan the servers of a run without starting any; raises `click.UsageError` if a path in `--mcp` doesn't exist."""
    with usage_errors():
        return plan_servers(invocation, must_have_servers=True)


@asynccontextmanager
async def opened_store(*, report_notes: bool = True) -> AsyncGenerator[LedgerStore]:
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


# -- changed files ----------------------------------------------------------------------------
#
# A temporarily broken file changes nothing. A `git pull` or the model itself may change an `--mcp` file inside the
# workspace, so its changed rows wait for the user's yes.


_UNCHANGED = "the servers stay as they were"
_STABLE_S = 0.2
"""A changed file is read once it's been stable for this long, as it may still be being written."""


def list_config_files(invocation: Invocation) -> Sequence[str]:
    """List every file that may configure this run's servers, existing or not."""
    files = [path for path, _ in list_run_files(invocation)]
    if files and invocation.cluster_config:
        files.append(invocation.cluster_config)
    return tuple(dict.fromkeys(files))


class ConfigFiles:
    """Detects changes of the configuration files. Consent from another process counts as a change."""

    poll_s = 1.0

    def __init__(self, files: Sequence[str]) -> None:
        try:
            trust = (TrustStore().path,)
        except OSError:
            trust = ()  # without a home directory we trust no server
        self.files = files
        self._watched = (*files, *trust)
        self._last = self.read_signatures()

    def has_changed(self) -> bool:
        """Return whether a file changed since the last call. Blocks."""
        present = self.read_signatures()
        changed, self._last = present != self._last, present
        return changed

    def read_signatures(self) -> object:
        """Stat every file. A missing file yields its errno instead. Blocks."""
        signatures: list[object] = []
        for path in self._watched:
            try:
                status = os.stat(path)
                signatures.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
            except OSError as exc:
                signatures.append(exc.errno)
        return tuple(signatures)

    async def wait_for_change(self, signals: SignalState) -> None:
        """Wait for a changed file, or for SIGHUP, after which all files are reread."""
        while True:
            with anyio.move_on_after(self.poll_s):
                await signals.reload.wait()
            changed = await to_thread.run_sync(self.has_changed)
            if signals.reload.is_set():
                signals.reload = anyio.Event()
                return
            if changed:
                while changed:
                    await anyio.sleep(_STABLE_S)
                    changed = await to_thread.run_sync(self.has_changed)
                return


class BrokenConfigError(CoreError):
    """Configuration files or rows are unusable, so the servers didn't change. The message has a line for each."""


def reread_plan(
    invocation: Invocation,
    files: Sequence[str],
    present: ServerPlan,
    trust: TrustStore | None = None,
    switched_on: Collection[str] = (),
) -> ServerPlan:
    """Read the servers of a run again, to replace the `present` plan. Blocks.

    Raises `BrokenConfigError` if a file, or the row of a present server, is missing or broken.
    """
    notes = _find_broken_files(files)
    if not notes:
        try:
            plan = plan_servers(invocation, trust, switched_on)
        except ConfigPathError as exc:
            raise BrokenConfigError(f"{exc}; {_UNCHANGED}") from exc
        notes = _find_broken_rows(present, plan)
        if not notes:
            return plan
    raise BrokenConfigError("\n".join(map(str, notes)))


def _find_broken_files(files: Sequence[str]) -> Sequence[Note]:
    """Return a note for each existing file that's unreadable or not shaped like a configuration."""
    notes: list[Note] = []
    for path in files:
        if not os.path.lexists(path):
            continue
        content = read_config_file(path)
        if content.trouble is not None or not is_json_object(content.document):
            trouble = content.trouble or "it is not an object"
        else:
            trouble = find_shape_problem(content.document)
        if trouble is not None:
            notes.append(Note(f"file {path}", f"{trouble}; {_UNCHANGED}", "correct it"))
    return notes


def _find_broken_rows(present: ServerPlan, plan: ServerPlan) -> Sequence[Note]:
    """Return a note for each server of the `present` plan whose new row is unreadable."""
    lost = {row.id for row in present.rows} - {row.id for row in plan.rows}
    owners = tuple(f"server {server!r} of " for server in lost)
    return [
        Note(note.owner, f"{note.message}; {_UNCHANGED}", "correct it")
        for note in plan.notes
        if owners and note.owner.startswith(owners) and note.message.startswith("skipped: ")
    ]


# -- consent ----------------------------------------------------------------------------------


class ConsentedRows:
    """The rows a run may start: unchanged since its start, or approved by the user as they are now.

    Naming a file on the command line is consent to its current content. A file outside the workspace belongs to the
    user, so we accept its changes. A file inside comes with the project, so we hold its changed rows back: a note has
    the command (`remedy`) that approves one. Project rows need separate consent anyway (`indus mcp trust`), so only
    rows of `scopes` are checked.
    """

    def __init__(
        self,
        workspace: str,
        plan: ServerPlan,
        remedy: Callable[[ServerRow], str],
        *,
        scopes: Collection[Scope] = frozenset({"given"}),
    ) -> None:
        self._workspace = workspace
        self._remedy = remedy
        self._scopes = scopes
        self._digests = {
            (row.origin.file, row.id): digest_facts(consent_facts(row)) for row in plan.rows if self._holds(row)
        }

    def find_changed(self, plan: ServerPlan) -> Sequence[ServerRow]:
        """List the rows of `plan` that changed since we accepted them."""
        return [
            row
            for row in plan.rows
            if self._holds(row)
            and row.id not in plan.approved
            and self._digests.get((row.origin.file, row.id)) != digest_facts(consent_facts(row))
        ]

    def hold_back(self, plan: ServerPlan) -> ServerPlan:
        """Remove the changed rows from `plan`, with a note for each."""
        changed = {row.id: row for row in self.find_changed(plan)}
        if not changed:
            return plan
        notes = [
            Note(
                f"server {row.id!r} of {row.origin}",
                "not started: it is not as it was when the file was named",
                self._remedy(row),
            )
            for row in changed.values()
        ]
        return replace(
            plan,
            configs={server: config for server, config in plan.configs.items() if server not in changed},
            consent={**plan.consent, **dict.fromkeys(changed, "changed")},
            notes=(*plan.notes, *notes),
        )

    def _holds(self, row: ServerRow) -> bool:
        return row.origin.scope in self._scopes and is_in_workspace(row, self._workspace)
