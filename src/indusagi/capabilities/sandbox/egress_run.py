"""Launcher inside a server's sandbox: forwards connections to the egress proxy outside, then execs the server.

The sandbox has an empty network namespace, so the server can only connect to this forwarder, on its own loopback. It
passes every connection on through a Unix socket. Started by path with `python -I -S`, without our packages.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from threading import BoundedSemaphore, Thread

_CHUNK = 65_536
_MAX_CONNECTIONS = 256
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


def forward(listener: socket.socket, path: str) -> None:
    """Pass connections on to the Unix socket `path`, until the sandbox ends."""
    places = BoundedSemaphore(_MAX_CONNECTIONS)

    def serve(inside: socket.socket) -> None:
        with places, inside, socket.socket(socket.AF_UNIX) as outside, suppress(OSError):
            outside.connect(path)
            back = Thread(target=_pump, args=(outside, inside), daemon=True)
            back.start()
            _pump(inside, outside)
            back.join()

    while True:
        inside, _ = listener.accept()
        Thread(target=serve, args=(inside,), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def main(path: str, argv: list[str]) -> None:
    """Start the forwarder in a child process, and become the server."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        try:
            forward(listener, path)
        finally:
            os._exit(1)
    listener.close()
    for name in _PROXY_VARIABLES:
        scheme = "socks5h" if name.lower() == "all_proxy" else "http"
        os.environ[name] = f"{scheme}://127.0.0.1:{port}"
    os.environ["NODE_USE_ENV_PROXY"] = "1"
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"
    try:
        os.execvp(argv[0], argv)
    except OSError as exc:
        sys.exit(f"{argv[0]}: {exc.strerror}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
