"""Landlock: the kernel takes rights from a command, without namespaces and without any program.

What it cannot do is said in the state: it knows only what is allowed in a folder and all below, so
nothing inside the workspace can be taken out of it; modes, owners and times of files can be changed
wherever they are; and whoever listens on a socket in the file system can be talked to.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox.policy import LOCAL_SOCKETS, UNPROTECTED
from indusagi.core.paths import is_within

if TYPE_CHECKING:
    from indusagi.capabilities.sandbox.bubblewrap import PrivateDir
    from indusagi.capabilities.sandbox.policy import SandboxLayout

_DEVICES = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
    *("/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm"),
)
_ABI_WITH_TRUNCATE = 3
_ABI_WITH_TCP = 4


def landlock_argv(layout: SandboxLayout, private: PrivateDir) -> list[str]:
    """Give the command line that a command is put behind."""
    from indusagi.capabilities.sandbox import landlock_run  # noqa: PLC0415 — loads ctypes

    write = [*layout.writable, private.tmp, private.notes, *_DEVICES]
    if not layout.read_only:
        write.append(layout.workspace)
    # What is to be read is worked out in the child: it may be more than a command line can hold.
    hidden = [*layout.hidden]
    read = [private.root] if any(is_within(private.root, path) for path in hidden) else []
    rules = json.dumps({"write": write, "hidden": hidden, "read": read, "network": layout.network})
    return [sys.executable, "-I", "-S", landlock_run.__file__, rules]


def landlock_lacks(abi: int, layout: SandboxLayout) -> tuple[str, ...]:
    """Name what was asked for and is beyond this version of Landlock."""
    lacks = [LOCAL_SOCKETS, "guard of modes and times of files"]
    if layout.protected:
        lacks.append(UNPROTECTED)
    if abi < _ABI_WITH_TRUNCATE:
        lacks.append("guard against truncation of files")
    if not layout.network:
        lacks.append("guard of the network" if abi < _ABI_WITH_TCP else "guard of UDP")
    return tuple(lacks)
