"""The processes around a gateway, where the system shows them: those it runs below, and its own."""

from __future__ import annotations

import os
import shlex
import signal
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from indusagi.core.ids import new_ulid
from indusagi.core.notes import Note
from indusagi.core.process.tree import MARK, ProcessTree, signal_processes
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.start.package_managers import find_package_manager
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from indusagi.interop.protocol_bridge.host import ProviderHostInfo
from induscode.commands.serve.reload import config_files
from induscode.deck.mcp.config.trust import server_identity
from induscode.launch.flags import split_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.session import ServerFacts
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.config.rows import ServerRow
    from induscode.launch.invocation import Invocation


_DEEPEST = 4
_FARTHEST = 64
"""So many processes above this one are looked at."""


@record
class Process:
    """One that runs."""

    pid: int
    parent: int
    argv: Sequence[str]


def look(pid: int) -> Process | None:
    """Look at a process; None if it is gone, or if nothing is shown."""
    try:
        stat, line = _read(pid, "stat"), _read(pid, "cmdline")
        # The name of the program stands in brackets and may hold any character.
        parent = int(stat.rpartition(b") ")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return Process(pid, parent, [os.fsdecode(word) for word in line.split(b"\0")[:-1]])


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


# -- above ------------------------------------------------------------------------------------


def stripped_loop(invocation: Invocation, environ: Mapping[str, str]) -> str | None:
    """Say why a gateway that knows nothing of those above it must not start; None if it may.

    What a gateway tells its processes in their environment is exact. A script that empties the
    environment takes that away: then one above with the same files is taken for the beginning of a
    loop. It blocks.
    """
    above = [one for one in _above(os.getppid()) if is_a_gateway(one.argv)]
    if len(above) >= _DEEPEST:
        return f"{len(above)} gateways stand above this one already: they would start without end"
    if MARK in environ:
        return None
    ours = {*_there(invocation)}
    for one in above:
        shared = ours & {*_there(_invocation_of(one, invocation))}
        if shared:
            return (
                f"gateway {one.pid} stands above this one and serves {min(shared)} too: they would"
                f" start each other without end. Keep {MARK} in the environment if that is not so"
            )
    return None


def _above(pid: int) -> Iterator[Process]:
    for _ in range(_FARTHEST):
        found = look(pid)
        if found is None:
            return
        yield found
        pid = found.parent


def _invocation_of(process: Process, like: Invocation) -> Invocation:
    """Read from a command line which servers a gateway has."""
    words = process.argv
    try:
        cwd = os.readlink(f"/proc/{process.pid}/cwd")
    except OSError:
        cwd = like.cwd
    for given in (*_values(words, "--cwd"), *_values(words, "-C")):
        cwd = os.path.join(cwd, os.path.expanduser(given))
    mcp = split_list(tuple(_values(words, "--mcp")))
    return replace(like, cwd=cwd, mcp=mcp or None, no_mcp="--no-mcp" in words)


def _values(words: Sequence[str], flag: str) -> Iterator[str]:
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            yield words[at + 1]
        elif word.startswith(f"{flag}="):
            yield word.partition("=")[2]


def _there(invocation: Invocation) -> Iterator[str]:
    files = () if invocation.no_mcp else config_files(invocation)
    return (os.path.realpath(file) for file in files if os.path.isfile(file))


# -- below ------------------------------------------------------------------------------------


def kill_all_below() -> None:
    """Kill every process that was started here, with all that it has started. It blocks.

    A package manager is told to end instead (SIGTERM): killed in mid-unpack it would leave a cache
    behind that no program can use.
    """
    ours = os.getpid()
    with suppress(OSError):
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            found = look(pid)
            if found is not None and found.parent == ours:
                downloads = found.argv and find_package_manager(found.argv[0], found.argv[1:])
                number = signal.SIGTERM if downloads else signal.SIGKILL
                signal_processes(ProcessTree(_mark_of(pid)).list_running(pid), number)


def _mark_of(pid: int) -> str:
    """Find what all processes carry that one of ours has started; it is the last of its marks."""
    start = f"{MARK}=".encode()
    with suppress(OSError):
        for entry in _read(pid, "environ").split(b"\0"):
            if entry.startswith(start):
                return os.fsdecode(entry.rpartition(b" ")[2].removeprefix(start))
    return _NOBODY


_NOBODY = "\0"
"""A mark that no environment can hold."""


ANCESTRY = "INDUS_SERVED_BY"
"""Tells a process below which rows of which gateways it was started."""
_DEEPEST_serve_loop = 8
_PROGRAMS = frozenset({"indus", "indusr", "indusagir"})
_LAUNCHERS = ("python", "pypy", "uv", "uvx", "pipx", "env", "sh", "bash", "dash", "zsh", "nice", "timeout")
EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""What is listened on to be reached at every address of a machine."""
_HERE = EVERYWHERE | {"localhost", "127.0.0.1", "::1"}


# -- rows that are ourselves ------------------------------------------------------------------


@record
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
    rest = plan.narrow([row.id for row in plan.rows if row.id not in notes])
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
    return any(_is_program(words, at) and "serve" in words[at + 1 :] for at in range(len(words) if launched else 1))


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
    if len(above) >= _DEEPEST_serve_loop:
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
