"""Egress proxy: the only way out of a sandbox whose profile names hosts.

It listens on a Unix socket in the sandbox's private directory and speaks HTTP CONNECT, and plain HTTP with an absolute
URL. No SOCKS: many clients lack it, and fail at their start if a variable names such a proxy. Names are checked against
the profile and resolved here, so DNS isn't a way out either. A name that resolves to an address of this machine or
network is refused, unless the profile names that address too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from indusagi.capabilities.sandbox.profile import parse_host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.capabilities.sandbox.profile import ServerProfile

_HEAD_S: Final = 10.0
_CONNECT_S: Final = 20.0
_MAX_HEAD: Final = 32 * 1024
_MAX_TUNNELS: Final = 256
_MAX_NOTED: Final = 100
_CHUNK: Final = 65_536


class _Blocked(Exception):
    """The profile doesn't allow this target."""


class EgressProxy:
    """Lets one server connect to the hosts of its profile.

    Args:
        profile: Names the hosts.
        resolve: Looks up the addresses of a name.
        classify: Returns `public` for an address of the open web.
        on_blocked: Receives every target (`host:port`) it refuses, once.
    """

    def __init__(
        self,
        profile: ServerProfile,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]],
        classify: Callable[[str], str],
        on_blocked: Callable[[str], None],
    ) -> None:
        self._profile = profile
        self._resolve = resolve
        self._classify = classify
        self._on_blocked = on_blocked
        self.asked: set[str] = set()
        """Allowed targets it asked for."""
        self.blocked: dict[str, None] = {}
        """Targets it was refused, in order."""
        self._server: asyncio.Server | None = None
        self._tunnels: set[asyncio.Task[None]] = set()

    async def open(self, path: str) -> None:
        """Listen on a Unix socket.

        Raises:
            OSError: The socket can't be created.
        """

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(reader, writer))  # noqa: TID251 — owned by this object
            self._tunnels.add(task)
            task.add_done_callback(self._tunnels.discard)

        folder, name = os.path.split(path)
        handle = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        try:  # the name of a socket has 107 bytes at most (unix(7)); a temporary directory may be longer
            self._server = await asyncio.start_unix_server(accept, f"/proc/self/fd/{handle}/{name}", limit=_MAX_HEAD)
        finally:
            os.close(handle)

    async def aclose(self) -> None:
        """Close the socket and every connection."""
        if self._server is not None:
            self._server.close()
        for tunnel in self._tunnels:
            tunnel.cancel()
        if self._tunnels:
            await asyncio.wait({*self._tunnels})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if len(self._tunnels) <= _MAX_TUNNELS:
                await self._open_tunnel(reader, writer)
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            pass  # whatever the server sends, only its own connection ends
        finally:
            writer.close()

    async def _open_tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_S):
            host, port, head = _read_http(await reader.readuntil(b"\r\n\r\n"))
        try:
            upstream, sink = await self._connect(host, port)
        except _Blocked as refusal:
            writer.write(_refuse_http(403, str(refusal)))
            await writer.drain()
            return
        except (OSError, TimeoutError) as exc:
            writer.write(_refuse_http(502, f"{host}:{port} can't be reached: {exc}"))
            await writer.drain()
            return
        try:
            if head:
                sink.write(head)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as pipes:
                pipes.create_task(_pipe(reader, sink))
                pipes.create_task(_pipe(upstream, writer))
        finally:
            sink.transport.abort()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a target that the profile names.

        Raises:
            _Blocked: It doesn't name it, or the name has a private address.
            OSError: Nothing answers.
            ValueError: It's no name of a host.
        """
        target = _format_target(host, port)
        is_named = self._profile.allows_host(host, port)
        if not is_named and self._profile.observer is None:
            self._note_blocked(target)
            raise _Blocked(f'{target} isn\'t one of the "hosts" of this server\'s "sandbox"')
        self._note_asked(target)
        async with asyncio.timeout(_CONNECT_S):
            is_local = _is_address(host) or host == "localhost"
            if is_local and is_named:
                addresses: Sequence[str] = [host]  # on purpose
            else:
                known = [host] if is_local else await self._resolve(host, port)
                addresses = [one for one in known if self._allows_address(one, port)]
                if not addresses:
                    needed = dict.fromkeys(_format_target(one, port) for one in (*([] if is_named else [host]), *known))
                    self.asked.discard(target)
                    for one in needed:
                        self._note_blocked(one)
                    raise _Blocked(f'{host} has no public address, and "hosts" lacks {" and ".join(needed)}')
            failure: OSError | None = None
            for address in addresses:
                try:
                    return await asyncio.open_connection(address, port)
                except OSError as exc:
                    failure = exc
            raise failure or OSError("no address")

    def _allows_address(self, address: str, port: int) -> bool:
        if self._classify(address) == "public" or self._profile.allows_host(address, port):
            return True
        is_allowed = self._profile.observer is not None and self._profile.observer.reaches_private
        if is_allowed:
            self._note_asked(_format_target(address, port))  # a profile has to name it
        return is_allowed

    def _note_asked(self, target: str) -> None:
        if len(self.asked) < _MAX_NOTED:
            self.asked.add(target)

    def _note_blocked(self, target: str) -> None:
        self.asked.discard(target)
        if target not in self.blocked and len(self.blocked) < _MAX_NOTED:
            self.blocked[target] = None
            self._on_blocked(target)


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    with suppress(OSError, RuntimeError):  # it may be closing
        sink.write_eof()


def _read_http(request: bytes) -> tuple[str, int, bytes]:
    """Read the head of a proxy request: its target, and the head to send there unless it's a CONNECT.

    Raises:
        ValueError: It's no request to a proxy.
    """
    line, _, rest = request.decode("latin-1").partition("\r\n")
    method, target, version = line.split(" ")
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        return host.strip("[]"), int(port), b""
    url = urlsplit(target)
    if url.scheme != "http" or not url.hostname:
        raise ValueError("not an absolute URL")
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    # One request a connection: the next one could name another host.
    kept = [one for one in rest.split("\r\n") if not one.lower().startswith(("proxy-", "connection:", "keep-alive:"))]
    head = "\r\n".join((f"{method} {path} {version}", "Connection: close", *kept))
    return url.hostname, url.port or 80, head.encode("latin-1")


def _refuse_http(status: int, reason: str) -> bytes:
    body = f"{reason}\n".encode()
    # Many clients show the first line only.
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _format_target(host: str, port: int) -> str:
    return parse_host(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
