"""A gateway that has itself among its servers would start or ask itself without an end.

Four things keep it from that. Rows that start this very program, or lead to an address it listens
on, are left out. Every process it starts is told in its environment which rows it stands below, so
that a gateway that comes to be started behind a script sees that it would begin again; where that
was taken from the environment, the processes above are looked at (`serve_kin`). And each gateway
has an identity of its own, by which it knows itself behind whatever address.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from indusagi.core.ids import new_ulid
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from indusagi.interop.protocol_bridge.host import ProviderHostInfo
from induscode.deck.mcp.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.protocol import ServerFacts
    from induscode.boot.runners import ServerPlan
    from induscode.deck.mcp.rows import ServerRow

ANCESTRY = "INDUS_SERVED_BY"
"""Tells a process below which rows of which gateways it was started."""
_DEEPEST = 8
_PROGRAMS = frozenset({"indus", "indusr", "indusagir"})
_LAUNCHERS = (
    "python",
    "pypy",
    "uv",
    "uvx",
    "pipx",
    "env",
    "sh",
    "bash",
    "dash",
    "zsh",
    "nice",
    "timeout",
)
EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""What is listened on to be reached at every address of a machine."""
_HERE = EVERYWHERE | {"localhost", "127.0.0.1", "::1"}


# -- rows that are ourselves ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """An address that a gateway is about to listen on."""

    host: str
    port: int

    def is_meant_by(self, url: str) -> bool:
        """Tell whether an address leads here, as far as its words tell."""
        from urllib.parse import urlsplit  # noqa: PLC0415 — for servers behind addresses

        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return False
        ours = self.host.strip("[]").lower()
        return port == self.port and (host == ours or (host in _HERE and ours in _HERE))


def without_ourselves(plan: ServerPlan, listening: Listening | None) -> ServerPlan:
    """Leave the rows out that would start or reach this gateway; a note says so of each."""
    notes: dict[str, Note] = {}
    for row in plan.rows:
        why = _is_this(plan.configs.get(row.id, row.config), listening)
        if why is not None:
            notes[row.id] = Note(_owner(row), f"left out: {why}", "name its servers here instead")
    if not notes:
        return plan
    rest = plan.narrowed([row.id for row in plan.rows if row.id not in notes])
    return replace(rest, notes=(*rest.notes, *notes.values()))


def _owner(row: ServerRow) -> str:
    return f"server {row.id!r} of {row.origin}"


def _is_this(config: ServerConfig, listening: Listening | None) -> str | None:
    if isinstance(config, StdioServerConfig):
        starts = starts_a_gateway([config.command, *config.args])
        return "it is this gateway, which would start itself" if starts else None
    if listening is not None and listening.is_meant_by(config.url):
        return "it is the address this gateway listens on"
    return None


def starts_a_gateway(argv: Sequence[str]) -> bool:
    """Tell whether a command line is `indus serve`, by itself or behind what starts programs."""
    words = [*_words(argv)]
    launched = os.path.basename(argv[0]).startswith(_LAUNCHERS)
    for at in range(len(words) if launched else 1):
        if _is_program(words, at) and "serve" in words[at + 1 :]:
            return True
    return False


def is_a_gateway(argv: Sequence[str]) -> bool:
    """Tell whether the process of a command line is a gateway, and not one that starts it."""
    if not argv or not os.path.basename(argv[0]).startswith(("python", "pypy")):
        return False
    at = 1
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "-m":
        at += 1
    return at < len(argv) and _is_program(argv, at) and "serve" in argv[at + 1 :]


def _words(argv: Sequence[str]) -> Iterator[str]:
    for word in argv:
        yield word
        if " " in word:  # a line for a shell
            try:
                yield from shlex.split(word)
            except ValueError:
                yield from word.split()


def _is_program(words: Sequence[str], at: int) -> bool:
    if [*words[at : at + 2]] == ["-m", "induscode"]:
        return True
    path = words[at].replace("\\", "/")
    name = path.rpartition("/")[2].partition("@")[0].removesuffix(".exe")
    return name in _PROGRAMS or path.endswith("/induscode/__main__.py")


# -- processes below us -----------------------------------------------------------------------


def ancestry(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Read below which rows this process was started, the nearest last."""
    return tuple(one for one in environ.get(ANCESTRY, "").split(",") if one)


def refusal(plan: ServerPlan, above: Sequence[str]) -> str | None:
    """Say why a gateway below these rows must not start; None if it may."""
    if len(above) >= _DEEPEST:
        return f"{len(above)} gateways stand above this one already: they would start without end"
    for server, config in plan.configs.items():
        if _mark(config) in above:
            return (
                f"this gateway was itself started as server {server!r}, which it would start "
                f"again: take {server!r} out of one of the two configurations"
            )
    return None


def marked(above: Sequence[str], config: ServerConfig) -> ServerConfig:
    """Have the process of a server know below which rows it stands."""
    if not isinstance(config, StdioServerConfig):
        return config
    chain = ",".join((*above, _mark(config)))
    return replace(config, env={**config.env, ANCESTRY: chain})


def _mark(config: ServerConfig) -> str:
    return server_identity(config)[:16]


# -- this one among all gateways --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GatewayInfo(ProviderHostInfo):
    """Who a gateway says it is; no two of them say the same."""

    instance: str = field(default_factory=new_ulid, kw_only=True)

    @property
    def _description(self) -> str:
        return f"The tools of several MCP servers and of one machine. Instance {self.instance}."

    def as_json(self) -> JsonObject:
        """Say it in the words of the protocol."""
        said = ProviderHostInfo.as_json(self)
        said["description"] = self._description
        return said

    def is_behind(self, facts: ServerFacts | None) -> bool:
        """Tell whether a server that was met is this very gateway."""
        info = None if facts is None else facts.server_info
        return info is not None and info.get("description") == self._description
