"""Launcher inside a server's sandbox, and the filters of its system calls.

Where the profile names hosts, it starts a forwarder to the egress proxy outside: the sandbox has an empty network
namespace, so the server can only connect to this forwarder, on its own loopback. It passes every connection on through
a Unix socket. Clients use no proxy for local services, so each one that the profile names (`localhost:5432`) gets a
port of the same number.

Where the server is observed, it installs a seccomp filter that reports some system calls, and passes the filter's
descriptor out through another socket (https://man7.org/linux/man-pages/man2/seccomp_unotify.2.html). Each reported call
waits for a thread of ours, which reads its arguments and lets it go on unchanged: the sandbox is what holds the server.

Then it becomes the server. Started by path with `python -I -S`, without our packages.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
from contextlib import suppress
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 65_536
_MAX_CONNECTIONS = 256
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def forward(listener: socket.socket, path: str, target: str = "") -> None:
    """Pass connections on to the Unix socket `path`, to a `target` if it's one's port, until the sandbox ends."""
    places = BoundedSemaphore(_MAX_CONNECTIONS)

    def serve(inside: socket.socket) -> None:
        with places, inside, socket.socket(socket.AF_UNIX) as outside, suppress(OSError):
            outside.connect(path)
            if target and not _ask_for(target, outside):
                return
            back = Thread(target=_pump, args=(outside, inside), daemon=True)
            back.start()
            _pump(inside, outside)
            back.join()

    while True:
        inside, _ = listener.accept()
        Thread(target=serve, args=(inside,), daemon=True).start()


def _ask_for(target: str, outside: socket.socket) -> bool:
    """Ask the proxy for a target, and return whether it has connected."""
    outside.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        one = outside.recv(1)  # what follows is from the service
        if not one:
            return False
        head += one
    return head.startswith(b"HTTP/1.1 200 ")


def _listen(target: str) -> Iterator[socket.socket]:
    """Listen on the port of a local target, in both families where there are both."""
    port = int(target.rpartition(":")[2])
    try:
        yield socket.create_server(("127.0.0.1", port))
    except OSError as exc:
        sys.stderr.write(f"indus: the sandbox can't offer {target} to the server: {os.strerror(exc.errno or 0)}\n")
    with suppress(OSError):
        yield socket.create_server(("::1", port), family=socket.AF_INET6)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def start_forwarder(path: str, targets: list[str]) -> None:
    """Start the forwarder to the proxy's socket `path` in a child process, and name it in our environment."""
    local = [(listener, target) for target in targets for listener in _listen(target)]
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        try:
            for one, target in local:
                Thread(target=forward, args=(one, path, target), daemon=True).start()
            forward(listener, path)
        finally:
            os._exit(1)
    for one in (listener, *(one for one, _ in local)):
        one.close()
    for name in _PROXY_VARIABLES:
        os.environ[name] = f"http://127.0.0.1:{port}"
    os.environ["NODE_USE_ENV_PROXY"] = "1"
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"


# -- filters ----------------------------------------------------------------------------------


_MACHINES = {"x86_64": (0xC000003E, 41, 317), "aarch64": (0xC00000B7, 198, 277), "riscv64": (0xC00000F3, 198, 277)}
"""The architecture in audit(7), and its numbers of socket(2) and seccomp(2)."""
_IO_URING_SETUP = 425
_X32 = 0x40000000
"""Begins the numbers of a second set of system calls of x86-64."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""16 is netlink(7), which knows no host but this namespace."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _NOTIFY, _FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
_NO_SYSTEM_CALL, _NO_FAMILY = 38, 97
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5


def filter_sockets() -> None:
    """Let processes started by this thread only open the sockets that a network namespace holds, for good.

    Others reach beyond it, as vsock(7) does to the host of a virtual machine. It also refuses io_uring(7), which opens
    sockets without that system call, and the system calls of other architectures. Raises `OSError` if the kernel
    refuses.
    """
    if os.uname().machine not in _MACHINES:
        return
    architecture, number, _ = _MACHINES[os.uname().machine]
    families = [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    size = len(families) + 7  # from the second step to the last one
    _install(
        [
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
        ],
        0,
    )


def report_calls(calls: list[int]) -> int:
    """Report these system calls of this process and its descendants to the returned descriptor.

    Raises:
        OSError: The kernel refuses.
    """
    count, machine = len(calls), platform.machine()
    if machine not in _MACHINES or not calls:
        raise OSError(f"there's no table of system calls for {machine}")
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, count + 1, _MACHINES[machine][0]),
        (_LOAD, 0, 0, _NUMBER),
        *((_EQUAL, count - index, 0, call) for index, call in enumerate(calls)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOTIFY),
    ]
    try:
        return _install(steps, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError:  # before Linux 5.19
        return _install(steps, _NEW_LISTENER)


def _install(steps: list[tuple[int, int, int, int]], flags: int) -> int:
    """Apply a program of classic BPF to this thread as a seccomp(2) filter, and return the kernel's answer."""
    import ctypes  # noqa: PLC0415 — only for a filter

    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    found = int(libc.syscall(_MACHINES[os.uname().machine][2], _SET_MODE_FILTER, flags, header))
    if found < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, f"seccomp: {os.strerror(failure)}")
    return found


def hand_out_filter(path: str, calls: str) -> None:
    """Hand the descriptor of the filter, or the reason there's none, to the socket `path`."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        try:
            handle = report_calls([int(call) for call in calls.split(",") if call])
        except OSError as exc:
            channel.sendall(str(exc).encode())
        else:
            socket.send_fds(channel, [os.environ.get("HTTP_PROXY", "-").encode()], [handle])
            os.close(handle)


def main(proxy: str, targets: str, trace: str, calls: str, *argv: str) -> None:
    """Start what the sandbox needs, and become the server. An empty path leaves a part out."""
    if proxy:
        start_forwarder(proxy, targets.split())
    if trace:
        hand_out_filter(trace, calls)
    try:
        os.execvp(argv[0], argv)
    except OSError as exc:
        sys.exit(f"{argv[0]}: {exc.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
