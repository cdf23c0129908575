"""The processes around a gateway, where the system shows them: those it runs below, and its own."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from indusagi.core.groups import MARK, left_behind, signal_each
from indusagi.interop.protocol_bridge.start.managers import find_package_manager
from induscode.commands.serve_loop import is_a_gateway
from induscode.commands.serve_watch import config_files
from induscode.launch.flags import split_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from induscode.launch.invocation import Invocation

_DEEPEST = 4
_FARTHEST = 64
"""So many processes above this one are looked at."""


@dataclass(frozen=True, slots=True)
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
                signal_each(left_behind(pid, _mark_of(pid)), number)


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
