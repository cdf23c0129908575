"""Landlock launcher: restrict this process, then exec the command (https://docs.kernel.org/userspace-api/landlock.html).

Started by path with `python -I -S`, so it doesn't import anything from this package. Landlock rules only take rights
away, permanently and for all descendants: we list writable paths, and everything else is read-only. It's a separate
program because running this much Python between fork and exec isn't safe in a multi-threaded process.
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
"""Capabilities root could use to escape the sandbox (capabilities(7)): CAP_SYS_MODULE, SYS_RAWIO, SYS_PTRACE,
SYS_ADMIN, SYS_BOOT, MKNOD, PERFMON, BPF."""
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FIRST_ABI_RIGHTS = (1 << 13) - 1
_TCP = 0b11
_ABSTRACT_SOCKETS = 1
_SCOPES = 0b11
"""Abstract UNIX sockets and signals only reach processes in the same sandbox."""
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_JOIN_SESSION_KEYRING = 1
_ABI_OF = {"refer": 2, "truncate": 3, "network": 4, "scopes": 6}


def landlock_abi() -> int:
    """Return the kernel's Landlock ABI version, or 0 if it lacks Landlock."""
    if sys.platform != "linux":  # pragma: no cover — macOS
        return 0
    found = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return max(int(found), 0)


def leave_keyring() -> None:
    """Give processes started by this thread a session keyring of their own (keyctl(2)), where there are keyrings."""
    if (number := _KEYCTL.get(os.uname().machine)) is not None:
        ctypes.CDLL(None).syscall(number, _JOIN_SESSION_KEYRING, None)


def scope_thread() -> None:
    """Cut processes started by this thread off from other programs' abstract sockets.

    Landlock restricts a thread, and a process inherits the restrictions of the thread that starts it. Raises `OSError`
    if the kernel refuses, or doesn't support scopes.
    """
    if landlock_abi() < _ABI_OF["scopes"]:
        raise OSError("this kernel has no Landlock scopes")
    leave_keyring()
    attributes = (ctypes.c_uint64 * 3)(0, 0, _ABSTRACT_SOCKETS)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)), 0)
    try:
        _enforce(ruleset)
    finally:
        os.close(ruleset)


def list_without(folder: str, hidden: list[str]) -> list[str]:
    """List paths that together make up `folder` minus the hidden ones."""
    inside = folder.rstrip("/") + "/"
    if folder not in hidden and not any(path.startswith(inside) for path in hidden):
        return [folder]
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [inside + name for name in names]
    shown = [path for path in paths if path not in hidden and not os.path.islink(path)]
    return [inner for path in shown for inner in list_without(path, hidden)]


def restrict(
    *, write: list[str], read: list[str], hidden: list[str], network: bool
) -> None:  # pragma: no cover — runs in a permanently restricted process
    """Restrict this process to these rights. Raises `OSError` if the kernel refuses."""
    abi = landlock_abi()
    reading = _EXECUTE | _READ_FILE
    handled = _FIRST_ABI_RIGHTS
    handled |= _REFER if abi >= _ABI_OF["refer"] else 0
    handled |= _TRUNCATE if abi >= _ABI_OF["truncate"] else 0
    fields = [handled, 0 if network or abi < _ABI_OF["network"] else _TCP, _SCOPES]
    known = fields[: 1 + (abi >= _ABI_OF["network"]) + (abi >= _ABI_OF["scopes"])]
    attributes = (ctypes.c_uint64 * len(known))(*known)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(ctypes.sizeof(attributes)), 0)
    # Directories are listable everywhere; files are readable outside `hidden`.
    _allow(ruleset, "/", _READ_DIR)
    for path in [*list_without("/", hidden), *read]:
        _allow(ruleset, path, reading)
    for path in write:
        # Rights only add up: a folder with hidden paths can't be readable itself, but its other entries can.
        has_hidden = list_without(path, hidden) != [path]
        _allow(ruleset, path, handled & ~reading if has_hidden else handled)
    libc = ctypes.CDLL(None, use_errno=True)
    for power in _POWERS:
        libc.prctl(_PR_CAPBSET_DROP, power, 0, 0, 0)  # fails without CAP_SETPCAP
    _enforce(ruleset)
    os.close(ruleset)


def _enforce(ruleset: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    _call(_RESTRICT_SELF, ruleset, 0)


def _allow(ruleset: int, path: str, rights: int) -> None:  # pragma: no cover — see restrict
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # removed since we listed it, or not searchable
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{handle}"):
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
        rule = rights.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.create_string_buffer(rule, 12), 0)
    finally:
        os.close(handle)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(number, *arguments))
    if found < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, f"Landlock: {os.strerror(failure)}")
    return found


if __name__ == "__main__":  # pragma: no cover — runs in a permanently restricted process
    leave_keyring()
    restrict(**json.loads(sys.argv[1]))
    # Python ignores these signals and the command would inherit that: SIGPIPE wouldn't end `yes | head`.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])
