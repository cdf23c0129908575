"""Launcher inside a server's sandbox: lets a thread of ours see what the server opens, runs and connects to.

It installs a seccomp filter that reports some system calls, passes the filter's descriptor out through a Unix socket,
and execs the server (https://man7.org/linux/man-pages/man2/seccomp_unotify.2.html). Each reported call waits for the
thread, which reads its arguments and lets it go on unchanged: it observes, and the sandbox is what holds the server.
Started by path with `python -I -S`, without our packages.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys

_SECCOMP = {"x86_64": (317, 0xC000003E), "aarch64": (277, 0xC00000B7)}
"""The number of seccomp(2) and the AUDIT_ARCH, by machine."""
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install_filter(calls: list[int]) -> int:
    """Report these system calls of this process and its descendants to the returned descriptor.

    Raises:
        OSError: The kernel refuses.
    """
    known = _SECCOMP.get(platform.machine())
    if known is None:
        raise OSError(f"there's no table of system calls for {platform.machine()}")
    number, machine = known
    count = len(calls)
    steps = [
        (_LOAD, 0, 0, 4),
        (_JUMP_IF_EQUAL, 0, count + 1, machine),
        (_LOAD, 0, 0, 0),
        *((_JUMP_IF_EQUAL, count - index, 0, call) for index, call in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOTIFY),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    program = _Program(len(steps), code)
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):  # the second before Linux 5.19
        found = int(libc.syscall(number, _SET_MODE_FILTER, flags, ctypes.byref(program)))
        if found >= 0:
            return found
    failure = ctypes.get_errno()
    raise OSError(failure, f"seccomp: {os.strerror(failure)}")


def main(path: str, calls: str, argv: list[str]) -> None:
    """Hand the descriptor, or the reason there's none, to the socket `path`, and become the server."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        try:
            handle = install_filter([*map(int, calls.split(","))])
        except OSError as exc:
            channel.sendall(str(exc).encode())
        else:
            socket.send_fds(channel, [os.environ.get("HTTP_PROXY", "-").encode()], [handle])
            os.close(handle)
    try:
        os.execvp(argv[0], argv)
    except OSError as exc:
        sys.exit(f"{argv[0]}: {exc.strerror}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
