"""Watches the files that configure a run's servers, and decides which changes to apply.

A temporarily broken file changes nothing. A `git pull` or the model itself may change an `--mcp` file inside the
workspace, so its changed rows wait for the user's yes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.config_file import read_config_file
from indusagi.core.faults import CoreError, Note
from indusagi.core.json import is_json_object
from induscode.boot.plans import ConfigPathError, is_in_workspace, plan_servers
from induscode.core.consent import digest_facts
from induscode.servers.config import find_shape_problem, list_config_paths
from induscode.servers.config.trust import TrustStore, consent_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from induscode.cli.process import SignalState
    from induscode.launch.invocation import Invocation
    from induscode.servers.config.rows import Scope, ServerRow
    from induscode.servers.plan import ServerPlan

_UNCHANGED = "the servers stay as they were"
_POLL_S = 1.0
_STABLE_S = 0.2
"""A changed file is read once it's been stable for this long, as it may still be being written."""


def list_config_files(invocation: Invocation) -> Sequence[str]:
    """List every file that may configure this run's servers, existing or not."""
    if invocation.no_mcp:
        return ()
    files: list[str] = []
    for name in invocation.mcp or (invocation.cwd,):
        path = os.path.join(invocation.cwd, os.path.expanduser(name))
        if os.path.isdir(path):
            files += [place for place, _ in list_config_paths(path)]
            files.append(os.path.join(path, ".mcp.json"))
        else:
            files.append(path)
    if invocation.cluster_config:
        files.append(invocation.cluster_config)
    return tuple(dict.fromkeys(files))


# -- changes ----------------------------------------------------------------------------------


class ConfigFiles:
    """Detects changes of the configuration files. Consent from another process counts as a change."""

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


class FileWatch(ConfigFiles):
    """Polls the files of a gateway for changes."""

    poll_s = _POLL_S

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

    Raises:
        BrokenConfigError: A file, or the row of a present server, is missing or broken.
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
    user, so we accept its changes. A file inside comes with the project, so we hold its changed rows back.

    Args:
        workspace: The working directory of the run.
        plan: The servers at the start, whose rows we accept.
        remedy: Returns the command that approves a held-back row.
        scopes: Which scopes to check. Project rows need separate consent anyway (`indus mcp trust`).
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
