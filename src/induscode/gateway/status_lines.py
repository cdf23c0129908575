"""Status lines of a gateway: what it left out, why servers are missing, and what's odd about their listings."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.client.tools import ViewNote
from indusagi.interop.protocol_bridge.contract import EndpointPhase
from induscode.boot.plans import build_fault_note
from induscode.cli.terminal import print_status
from induscode.servers.remedies import format_server_command

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import EndpointStatus
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.launch.views import Schemas

_MAX_PRINTED = 1_000
_MAX_REMARKS = 20
"""Remarks printed per server; a hostile one can produce thousands."""
_COUNT = re.compile(r"\d[\d,]*")


class StatusLines:
    """Prints each note of a gateway once."""

    def __init__(self, schemas: Schemas = "raw") -> None:
        # Clients get raw definitions, so notes about the model view don't concern them.
        self._hidden = ViewNote if schemas == "raw" else ()
        self._printed: set[str] = set()
        self._counts: str | None = None
        self.listed: dict[str, None] = {}
        """Servers that have listed something since their remarks were printed."""

    def print_note(self, note: Note) -> None:
        """Print a note."""
        self.print_notes([note])

    def print_notes(self, notes: Iterable[Note], key: Callable[[Note], str] = str) -> None:
        """Print the notes whose `key` is new."""
        if len(self._printed) > _MAX_PRINTED:
            self._printed.clear()
        for note in notes:
            if key(note) not in self._printed:
                self._printed.add(key(note))
                print_status(str(note))

    def print_counts(self, counts: str) -> None:
        """Print what is served: once, and on a terminal again when it's different."""
        if self._counts is None or (counts != self._counts and sys.stderr.isatty()):
            print_status(counts)
        self._counts = counts

    def print_fault(self, server: str, status: EndpointStatus) -> None:
        """Print why a server is missing."""
        if status.fault is not None and status.fault.detail.reason != "moved":
            self.print_note(build_fault_note(server, status.fault))

    def print_servers(self, bridge: BootedBridge) -> None:
        """Print why servers are missing, and the remarks on all listings."""
        for server, status in bridge.status().items():
            self.print_fault(server, status)
            self.listed[server] = None
        self.print_remarks(bridge)

    def print_remarks(self, bridge: BootedBridge) -> None:
        """Print the first few remarks on the listings of each server in `listed`."""
        servers, self.listed = self.listed, {}
        for server in servers:
            notes = [note for note in bridge.list_remarks(server) if not isinstance(note, self._hidden)]
            more = len(notes) - _MAX_REMARKS
            if more > 0:
                remedy = f"all of them: {format_server_command('doctor', server)}"
                notes[_MAX_REMARKS:] = [Note(f"server {server!r}", f"{more:,} further remarks", remedy)]
            # Ignore numbers when deduplicating: they change all the time.
            self.print_notes(notes, lambda note: f"{note.owner}: {_COUNT.sub('#', note.message)}")


def describe_phases(statuses: Iterable[EndpointStatus]) -> str:
    """Count servers by state: ` (3 ready, 2 starting)`, or nothing without servers."""
    phases = [status.phase for status in statuses]
    ready, failed = phases.count(EndpointPhase.READY), phases.count(EndpointPhase.FAULTED)
    counts = {"ready": ready, "starting": len(phases) - ready - failed, "failed": failed}
    text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return text and f" ({text})"
