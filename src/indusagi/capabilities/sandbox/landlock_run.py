"""Landlock: take rights from this process, then become the command. Run as a program of its own.

It is started by path with `python -I -S`, so it imports nothing of ours. Landlock only takes away,
for good, and for every descendant: what may be written is named, and everything else may not.
Between fork and exec of a program with threads this much Python would not be safe.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_POWERS = (16, 17, 19, 21, 22, 27, 38, 39)
"""What root would get around the walls with: modules, raw devices, the memory of other processes,
mounts, the reboot, device files, and the kernel's own programs."""
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FIRST_ABI_RIGHTS = (1 << 13) - 1
_TCP = 0b11
_SCOPES = 0b11
"""No abstract sockets and no signals to whoever is not in the same sandbox."""
_ABI_OF = {"refer": 2, "truncate": 3, "network": 4, "scopes": 6}


def landlock_abi() -> int:
    """Ask the kernel which version it has; 0 for none."""
    if sys.platform != "linux":  # pragma: no cover — macOS
        return 0
    found = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return max(int(found), 0)


def list_without(folder: str, hidden: list[str]) -> list[str]:
    """Name the paths that together are `folder` without what is hidden in it."""
    inside = folder.rstrip("/") + "/"
    if folder not in hidden and not any(path.startswith(inside) for path in hidden):
        return [folder]
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [inside + name for name in names]
    shown = [path for path in paths if path not in hidden and not os.path.islink(path)]
    return [one for path in shown for one in list_without(path, hidden)]


def restrict(
    *, write: list[str], read: list[str], hidden: list[str], network: bool
) -> None:  # pragma: no cover — runs in a process that is restricted for good
    """Take every right from this process but these.

    Raises:
        OSError: The kernel refuses.
    """
    abi = landlock_abi()
    reading = _EXECUTE | _READ_FILE
    handled = _handled(abi)
    fields = [handled, 0 if network or abi < _ABI_OF["network"] else _TCP, _SCOPES]
    known = fields[: 1 + (abi >= _ABI_OF["network"]) + (abi >= _ABI_OF["scopes"])]
    attributes = (ctypes.c_uint64 * len(known))(*known)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)), 0)
    # Names may be seen everywhere; what is in a file only where that was not taken away.
    _allow(ruleset, "/", _READ_DIR)
    for path in [*list_without("/", hidden), *read]:
        _allow(ruleset, path, reading)
    for path in write:
        _allow(ruleset, path, handled)
    libc = ctypes.CDLL(None, use_errno=True)
    for power in _POWERS:
        libc.prctl(_PR_CAPBSET_DROP, power, 0, 0, 0)  # refused to whoever has none of them
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _handled(abi: int) -> int:  # pragma: no cover — see restrict
    more = (_REFER if abi >= _ABI_OF["refer"] else 0) | (_TRUNCATE if abi >= _ABI_OF["truncate"] else 0)
    return _FIRST_ABI_RIGHTS | more


def _allow(ruleset: int, path: str, rights: int) -> None:  # pragma: no cover — see restrict
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # gone since it was listed, or not for us
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{place}"):
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.create_string_buffer(rule, 12), 0)
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:  # pragma: no cover — see restrict
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(number, *arguments))
    if found < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, f"Landlock: {os.strerror(failure)}")
    return found


if __name__ == "__main__":  # pragma: no cover — runs in a process that is restricted for good
    restrict(**json.loads(sys.argv[1]))
    # Python ignores these, and so would the command: `yes | head` would complain, or never end.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])
