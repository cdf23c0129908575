"""The files that a gateway's servers stand in, watched while it runs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.config_file import read_config_file
from indusagi.core.json import is_json_object
from indusagi.core.notes import Note
from induscode.deck.mcp.config import find_shape_problem, list_config_paths
from induscode.deck.mcp.config.trust import TrustStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.config_file import ConfigFile
    from induscode.commands.serve.signals import SignalState
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.config.rows import ServerRow
    from induscode.launch.invocation import Invocation

_KEPT = "the servers stay as they were"
_POLL_S = 1.0
_QUIET_S = 0.2
"""A file that is being written is left alone until it has not changed for so long."""


def config_files(invocation: Invocation) -> Sequence[str]:
    """Name every file that servers may stand in, whether it is there or not."""
    files: list[str] = []
    for given in invocation.mcp or (invocation.cwd,):
        path = os.path.join(invocation.cwd, os.path.expanduser(given))
        if os.path.isdir(path):
            files += [place for place, _ in list_config_paths(path)]
            files.append(os.path.join(path, ".mcp.json"))
        else:
            files.append(path)
    return tuple(dict.fromkeys(files))


def troubles(files: Sequence[str]) -> Sequence[Note]:
    """Say what is wrong with files that are there and cannot be read, or say nothing sensible."""
    found = [(file, _trouble(read_config_file(file))) for file in files if os.path.lexists(file)]
    return [Note(f"file {file}", f"{why}; {_KEPT}", "correct it") for file, why in found if why]


def _trouble(found: ConfigFile) -> str | None:
    """Tell whether a file was hardly meant: a list of no servers is one, a wrong shape is none."""
    if found.trouble is not None or not is_json_object(found.document):
        return found.trouble or "it is not an object"
    return find_shape_problem(found.document)


def unreadable(present: ServerPlan, plan: ServerPlan) -> Sequence[Note]:
    """Say which servers there are whose rows cannot be read any more."""
    gone = {row.id for row in present.rows} - {row.id for row in plan.rows}
    owners = tuple(f"server {one!r} of " for one in gone)
    return [
        Note(note.owner, f"{note.message}; {_KEPT}", "correct it")
        for note in plan.notes
        if owners and note.owner.startswith(owners) and note.message.startswith("skipped: ")
    ]


class FileWatch:
    """Waits for a change of files, or for somebody who wants them read."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = (*files, *_trust_file())
        self._last = self._seen()

    async def changed(self, told: SignalState) -> bool:
        """Wait until the files are others than before; True if they are to be read in any case."""
        while True:
            with anyio.move_on_after(_POLL_S):
                await told.again.wait()
            seen = await to_thread.run_sync(self._seen)
            if told.again.is_set():
                told.again = anyio.Event()
                self._last = seen
                return True
            if seen != self._last:
                self._last = await self._settled(seen)
                return False

    async def _settled(self, seen: object) -> object:
        while True:
            await anyio.sleep(_QUIET_S)
            now = await to_thread.run_sync(self._seen)
            if now == seen:
                return now
            seen = now

    def _seen(self) -> object:
        return tuple(_signature(file) for file in self._files)


def _signature(file: str) -> object:
    try:
        facts = os.stat(file)
    except OSError as exc:
        return exc.errno
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _trust_file() -> Sequence[str]:
    try:
        return (TrustStore().path,)
    except OSError:
        return ()  # nobody has a home: nothing is trusted either


class ConsentedRows:
    """The rows of files named on the command line, as they were when they were named.

    To name a file is consent to it as it is. A file outside of the workspace is the user's own, and
    stays agreed to; one inside comes with the project, and may change under whoever works on it. A
    link is inside if it stands there or leads there: whoever works there can set it elsewhere.
    """

    def __init__(self, workspace: str, plan: ServerPlan) -> None:
        self._inside = {os.path.join(path, "") for path in (os.path.abspath(workspace), os.path.realpath(workspace))}
        self._rows: Mapping[tuple[str, str], tuple[object, ...]] = {}
        self.renew(plan)

    def renew(self, plan: ServerPlan) -> None:
        """Agree to the rows as they are now."""
        self._rows = {_place(row): _agreed_part(row) for row in plan.rows if self._comes_along(row)}

    def applied(self, plan: ServerPlan) -> ServerPlan:
        """Take out of a plan what nobody has agreed to."""
        strange = {
            row.id: row
            for row in plan.rows
            if self._comes_along(row) and self._rows.get(_place(row)) != _agreed_part(row)
        }
        if not strange:
            return plan
        notes = [
            Note(
                f"server {row.id!r} of {row.origin}",
                "not started: it is not as it was when the file was named",
                f"look at it, then kill -HUP {os.getpid()}",
            )
            for row in strange.values()
        ]
        return replace(
            plan,
            configs={one: config for one, config in plan.configs.items() if one not in strange},
            consent={**plan.consent, **dict.fromkeys(strange, "changed")},
            notes=(*plan.notes, *notes),
        )

    def _comes_along(self, row: ServerRow) -> bool:
        named = row.origin.file
        # A directory on the way may be a link too, with the file itself standing inside.
        stands = os.path.join(os.path.realpath(os.path.dirname(named)), os.path.basename(named))
        names = (named, stands, os.path.realpath(named))
        return row.origin.scope == "given" and any(name.startswith((*self._inside,)) for name in names)


def _agreed_part(row: ServerRow) -> tuple[object, ...]:
    """Give what agreement is about: what the row says, and what its variables come to."""
    return row.config, row.expansion, row.secrets


def _place(row: ServerRow) -> tuple[str, str]:
    return row.origin.file, row.id
