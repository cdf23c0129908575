"""Socket filter: processes started by a thread can only open the sockets that a network namespace holds.

Others reach beyond it, as vsock(7) does to the host of a virtual machine. The filter is a seccomp(2) program. It also
refuses io_uring(7), which opens sockets without that system call, and the system calls of other architectures.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198), "riscv64": (0xC00000F3, 198)}
"""The architecture in audit(7), and its number of socket(2)."""
_IO_URING_SETUP = 425
_X32 = 0x40000000
"""Begins the numbers of a second set of system calls of x86-64."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""16 is netlink(7), which knows no host but this namespace."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NO_SYSTEM_CALL, _NO_FAMILY = 38, 97
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_PR_SET_SECCOMP, _FILTER_MODE = 22, 2
_PR_SET_NO_NEW_PRIVS = 38


def filter_sockets() -> None:
    """Apply the filter to this thread, for good. Raises `OSError` if the kernel refuses."""
    if os.uname().machine not in _ARCHITECTURES:
        return
    architecture, number = _ARCHITECTURES[os.uname().machine]
    families = [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    size = len(families) + 7  # from the second step to the last one
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, size, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, size - 2, 0, _X32),
        (_EQUAL, size - 3, 0, _IO_URING_SETUP),
        (_EQUAL, 0, len(families) + 2, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        *families,
        (_RETURN, 0, 0, _FAIL | _NO_FAMILY),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAIL | _NO_SYSTEM_CALL),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, header, 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of sockets was refused")
