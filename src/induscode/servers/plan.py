"""The servers of a run, before any of them is started; nothing here loads the bridge."""

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
"""Can be started; without consent, or changed since; or with a variable that has no value."""


@record
class ServerPlan:
    """The servers of a run, before any of them is started."""

    rows: Sequence[ServerRow] = ()
    configs: Mapping[str, ServerConfig] = field(default_factory=dict[str, "ServerConfig"])
    """Trusted servers by id, with the values of their variables; a row without its values is absent."""
    consent: Mapping[str, ConsentState] = field(default_factory=dict[str, "ConsentState"])
    notes: Sequence[Note] = ()
    locked: Mapping[RemoteToolRef, JsonObject] = field(default_factory=dict["RemoteToolRef", "JsonObject"])
    """The definitions of the project's lock file: a tool seen for the first time must match it."""
    configured: Sequence[str] = ()
    """The ids of all configured servers in order, also of those left out of the plan: names of tools depend on it."""
    approved: Collection[str] = ()
    """Rows the user has said yes to exactly as they are, by id. Other rows can be trusted because of their file."""

    @classmethod
    def from_configs(cls, configs: Iterable[ServerConfig]) -> ServerPlan:
        """Plan these servers, all of them trusted."""
        return cls(configs={config.id: config for config in configs})

    @property
    def untrusted(self) -> Sequence[ServerRow]:
        """The rows without consent to what they are now."""
        return tuple(row for row in self.rows if self.consent.get(row.id) != "trusted")

    @property
    def lazy(self) -> Collection[str]:
        """The ids of servers whose rows say that a first call starts them."""
        return [row.id for row in self.rows if row.start == "lazy"]

    @property
    def growing(self) -> Collection[str]:
        """The ids of servers whose rows approve whatever they add (`"added": "allow"`)."""
        return {row.id for row in self.rows if row.added == "allow"}

    def find_places(self) -> Mapping[str, str]:
        """Find the place of each server: a digest of its file and its name there, which an edited row keeps."""
        return {row.id: digest_place(row.origin.file, row.id) for row in self.rows}

    def state_of(self, row: ServerRow) -> RowState:
        """Tell whether a row can be started, and if not, why."""
        consent = self.consent.get(row.id, "unknown")
        if consent != "trusted":
            return "changed" if consent == "changed" else "untrusted"
        return "startable" if row.id in self.configs else "unresolved"

    def narrow(self, servers: Collection[str]) -> ServerPlan:
        """Return the plan of these servers only, without the notes about others."""
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
