"""Reloading of a gateway: which files its servers come from, when they change, and what is started of a change."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.config_file import read_config_file
from indusagi.core.faults import Note
from indusagi.core.json import is_json_object
from induscode.deck.mcp.config import find_shape_problem, list_config_paths
from induscode.deck.mcp.config.trust import TrustStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from induscode.commands.serve.process import SignalState
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.config.rows import ServerRow
    from induscode.launch.invocation import Invocation

_UNCHANGED = "the servers stay as they were"
_POLL_S = 1.0
_STABLE_S = 0.2
"""A changed file is read when it has not changed for so long: it may be in the middle of being written."""


def list_config_files(invocation: Invocation) -> Sequence[str]:
    """List every file that may configure servers of this run, existing or not."""
    files: list[str] = []
    for name in invocation.mcp or (invocation.cwd,):
        path = os.path.join(invocation.cwd, os.path.expanduser(name))
        if os.path.isdir(path):
            files += [place for place, _ in list_config_paths(path)]
            files.append(os.path.join(path, ".mcp.json"))
        else:
            files.append(path)
    return tuple(dict.fromkeys(files))


def find_broken_files(files: Sequence[str]) -> Sequence[Note]:
    """Return a note for each existing file that cannot be read or does not have the shape of a configuration."""
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


def find_broken_rows(present: ServerPlan, plan: ServerPlan) -> Sequence[Note]:
    """Return a note for each server of the `present` plan whose row in the new one cannot be read."""
    lost = {row.id for row in present.rows} - {row.id for row in plan.rows}
    owners = tuple(f"server {server!r} of " for server in lost)
    return [
        Note(note.owner, f"{note.message}; {_UNCHANGED}", "correct it")
        for note in plan.notes
        if owners and note.owner.startswith(owners) and note.message.startswith("skipped: ")
    ]


class FileWatch:
    """Polls files for changes. Consent given in another process counts as one."""

    def __init__(self, files: Sequence[str]) -> None:
        try:
            trust = (TrustStore().path,)
        except OSError:
            trust = ()  # without a home directory no server is trusted
        self._files = (*files, *trust)
        self._last = self._read_signatures()

    async def wait_for_change(self, signals: SignalState) -> bool:
        """Wait for a changed file or a SIGHUP; True for the signal, after which all files are read."""
        while True:
            with anyio.move_on_after(_POLL_S):
                await signals.reload.wait()
            present = await to_thread.run_sync(self._read_signatures)
            if signals.reload.is_set():
                signals.reload = anyio.Event()
                self._last = present
                return True
            if present != self._last:
                while True:
                    await anyio.sleep(_STABLE_S)
                    self._last = await to_thread.run_sync(self._read_signatures)
                    if self._last == present:
                        return False
                    present = self._last

    def _read_signatures(self) -> object:
        signatures: list[object] = []
        for path in self._files:
            try:
                status = os.stat(path)
                signatures.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
            except OSError as exc:
                signatures.append(exc.errno)
        return tuple(signatures)


class ConsentedRows:
    """The rows of `--mcp` files as they were when the gateway started.

    Naming a file on the command line is consent to its present content. A file outside of the workspace belongs to
    the user, and its changes are accepted. A file inside comes with the project and may change with a `git pull`: its
    changed rows are held back until a SIGHUP. A symbolic link is inside if it stands there or leads there.
    """

    def __init__(self, workspace: str, plan: ServerPlan) -> None:
        self._inside = tuple(
            os.path.join(path, "") for path in (os.path.abspath(workspace), os.path.realpath(workspace))
        )
        self._rows: Mapping[tuple[str, str], tuple[object, ...]] = {}
        self.renew(plan)

    def renew(self, plan: ServerPlan) -> None:
        """Accept the rows of `plan` as they are."""
        self._rows = {
            (row.origin.file, row.id): _consented_part(row) for row in plan.rows if self._is_of_workspace(row)
        }

    def hold_back(self, plan: ServerPlan) -> ServerPlan:
        """Take the changed rows out of `plan`, with a note for each."""
        changed = {
            row.id: row
            for row in plan.rows
            if self._is_of_workspace(row) and self._rows.get((row.origin.file, row.id)) != _consented_part(row)
        }
        if not changed:
            return plan
        notes = [
            Note(
                f"server {row.id!r} of {row.origin}",
                "not started: it is not as it was when the file was named",
                f"look at it, then kill -HUP {os.getpid()}",
            )
            for row in changed.values()
        ]
        return replace(
            plan,
            configs={server: config for server, config in plan.configs.items() if server not in changed},
            consent={**plan.consent, **dict.fromkeys(changed, "changed")},
            notes=(*plan.notes, *notes),
        )

    def _is_of_workspace(self, row: ServerRow) -> bool:
        path = row.origin.file
        # A directory on the way may be a link too, with the file itself inside.
        entry = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        paths = (path, entry, os.path.realpath(path))
        return row.origin.scope == "given" and any(one.startswith(self._inside) for one in paths)


def _consented_part(row: ServerRow) -> tuple[object, ...]:
    """Return what consent covers: the row, and the values of its variables."""
    return row.config, row.expansion, row.secrets
