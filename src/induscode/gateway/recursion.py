"""Guards against recursion: a gateway that serves itself, directly or through others.

There are four. `INDUS_SERVED_BY` in the environment lists the server rows above a process: a gateway refuses to start
if it would start one of these rows again, or if there are too many (the hop count). Where a row clears the environment
(`env -i`), the parent processes tell: one with this gateway's command line and directory means that the gateway is
starting itself. Each gateway puts an instance id in its server info, and closes a server that reports the gateway's own
id. Finally, a row with the address this gateway listens on is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from indusagi.core.faults import Note
from indusagi.core.ids import new_ulid
from indusagi.core.process.tree import read_descriptor, read_proc_file, read_process
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.host import ProviderHostInfo
from induscode.servers.config.trust import server_identity

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.session import ServerFacts
    from induscode.servers.plan import ServerPlan

ANCESTRY = "INDUS_SERVED_BY"
_MAX_HOPS = 8
EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""Hosts that mean all addresses of this machine."""
_THIS_MACHINE = EVERYWHERE | {"localhost", "127.0.0.1", "::1"}


# -- environment ------------------------------------------------------------------------------


def read_ancestry(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the identities of the server rows above this process, nearest last."""
    return tuple(identity for identity in environ.get(ANCESTRY, "").split(",") if identity)


def add_ancestry(above: Sequence[str], config: ServerConfig) -> ServerConfig:
    """Add the rows `above` and the server's own to its process environment."""
    if not isinstance(config, StdioServerConfig):
        return config
    return replace(config, env={**config.env, ANCESTRY: ",".join((*above, _short_identity(config)))})


def refuse_recursion(plan: ServerPlan, above: Sequence[str]) -> str | None:
    """Return why a gateway below the rows `above` must not start, or `None` if it may."""
    if not above and (parent := find_same_gateway()):
        return (
            f"the process {parent} above this gateway has the same command line and directory, and started it with its "
            f"environment cleared: take the row that starts indus serve out of the configuration"
        )
    if len(above) >= _MAX_HOPS:
        return f"{len(above)} gateways stand above this one already: they would start without end"
    for server, config in plan.configs.items():
        if _short_identity(config) in above:
            return (
                f"this gateway was itself started as server {server!r}, which it would start "
                f"again: take {server!r} out of one of the two configurations"
            )
    return None


def find_same_gateway() -> int:
    """Return the pid of an ancestor with the same command line and directory, or 0."""
    own = _read_command(os.getpid())
    process = read_process(os.getpid())
    while own is not None and process is not None and process.parent > 1:
        if _read_command(process.parent) == own:
            return process.parent
        process = read_process(process.parent)
    return 0


def _read_command(pid: int) -> tuple[bytes, str] | None:
    """Return a gateway's command line and directory; `None` for other processes, and without `/proc`."""
    line = read_proc_file(pid, "cmdline")
    return (line, read_descriptor(pid, "../cwd")) if line and b"serve" in line.split(b"\0") else None


def _short_identity(config: ServerConfig) -> str:
    return server_identity(config)[:16]


# -- listening address ------------------------------------------------------------------------


@record
class ListenAddress:
    """The address a gateway is about to listen on."""

    host: str
    port: int

    def matches(self, url: str) -> bool:
        """Return whether `url` names this address, without resolving names."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return False
        ours = self.host.strip("[]").lower()
        return port == self.port and (host == ours or (host in _THIS_MACHINE and ours in _THIS_MACHINE))


def drop_own_address(plan: ServerPlan, address: ListenAddress | None) -> ServerPlan:
    """Skip rows with this gateway's address, adding a note for each."""
    own = [
        row
        for row in plan.rows
        if address is not None
        and not isinstance(config := plan.configs.get(row.id, row.config), StdioServerConfig)
        and address.matches(config.url)
    ]
    if not own:
        return plan
    message = "left out: it is the address this gateway listens on"
    notes = [Note(f"server {row.id!r} of {row.origin}", message, "name its servers here instead") for row in own]
    rest = plan.narrow([row.id for row in plan.rows if row not in own])
    return replace(rest, notes=(*rest.notes, *notes))


# -- instance id ------------------------------------------------------------------------------


@record
class GatewayInfo(ProviderHostInfo):
    """A gateway's server info, with a unique id in its description."""

    instance: str = field(default_factory=new_ulid, kw_only=True)

    @property
    def _description(self) -> str:
        return f"The tools of several MCP servers and of one machine. Instance {self.instance}."

    def as_json(self) -> JsonObject:
        """Build the protocol's `Implementation` object."""
        info = ProviderHostInfo.as_json(self)
        info["description"] = self._description
        return info

    def is_reported_by(self, facts: ServerFacts | None) -> bool:
        """Return whether a connected server is this gateway itself."""
        info = None if facts is None else facts.server_info
        return info is not None and info.get("description") == self._description
