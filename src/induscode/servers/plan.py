"""The servers of a run, before any of them starts. Doesn't import the bridge."""

from __future__ import annotations

import os
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record
from induscode.core.consent import digest_facts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from indusagi.core.faults import Note
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef, ServerConfig
    from induscode.core.consent import ConsentState
    from induscode.servers.config.rows import ServerRow

RowState: TypeAlias = Literal["startable", "untrusted", "changed", "unresolved"]
"""Ready to start, without consent, changed since consent, or with an unset variable."""


@record
class ServerPlan:
    """The servers of a run, before any of them starts."""

    rows: Sequence[ServerRow] = ()
    configs: Mapping[str, ServerConfig] = field(default_factory=dict[str, "ServerConfig"])
    """Trusted servers by id, with variables expanded. Excludes rows with unset variables."""
    consent: Mapping[str, ConsentState] = field(default_factory=dict[str, "ConsentState"])
    notes: Sequence[Note] = ()
    locked: Mapping[RemoteToolRef, JsonObject] = field(default_factory=dict["RemoteToolRef", "JsonObject"])
    """The project's locked definitions, which a tool seen for the first time must match."""
    configured: Sequence[str] = ()
    """The ids of all configured servers in order, even ones outside the plan: tool names depend on them."""
    approved: Collection[str] = ()
    """Ids of rows the user has approved exactly as they are. Other rows can be trusted because of their file."""

    @classmethod
    def from_configs(cls, configs: Iterable[ServerConfig]) -> ServerPlan:
        """Plan these servers, all trusted."""
        return cls(configs={config.id: config for config in configs})

    @property
    def untrusted(self) -> Sequence[ServerRow]:
        """The rows without consent in their current form."""
        return tuple(row for row in self.rows if self.consent.get(row.id) != "trusted")

    @property
    def lazy(self) -> Collection[str]:
        """The ids of servers that start on first call."""
        return [row.id for row in self.rows if row.start == "lazy"]

    @property
    def growing(self) -> Collection[str]:
        """The ids of servers whose rows approve all additions (`"added": "allow"`)."""
        return {row.id for row in self.rows if row.added == "allow"}

    def find_places(self) -> Mapping[str, str]:
        """Map each server to its place, a digest of file and name that survives edits of the row."""
        return {row.id: digest_place(row.origin.file, row.id) for row in self.rows}

    def state_of(self, row: ServerRow) -> RowState:
        """Return whether a row can start, or why not."""
        consent = self.consent.get(row.id, "unknown")
        if consent != "trusted":
            return "changed" if consent == "changed" else "untrusted"
        return "startable" if row.id in self.configs else "unresolved"

    def narrow(self, servers: Collection[str]) -> ServerPlan:
        """Return the plan for just these servers, without notes about others."""
        others = tuple(f"server {row.id!r} of " for row in self.rows if row.id not in servers)
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.id in servers),
            configs={server: config for server, config in self.configs.items() if server in servers},
            notes=tuple(note for note in self.notes if not note.owner.startswith(others)),
        )


def digest_place(file: str, server: str) -> str:
    """Digest the name of a server in a file."""
    return digest_facts([os.path.realpath(file), server])
