"""Launcher inside a server's sandbox: forwards connections to the egress proxy outside, then execs the server.

The sandbox has an empty network namespace, so the server can only connect to this forwarder, on its own loopback. It
passes every connection on through a Unix socket. Clients use no proxy for local services, so each one that the profile
names (`localhost:5432`) gets a port of the same number. Started by path with `python -I -S`, without our packages.
"""

from __future__ import annotations

import os
import socket
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


def main(path: str, targets: list[str], argv: list[str]) -> None:
    """Start the forwarder in a child process, and become the server."""
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
    try:
        os.execvp(argv[0], argv)
    except OSError as exc:
        sys.exit(f"{argv[0]}: {exc.strerror}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(), sys.argv[3:])
