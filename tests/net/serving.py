"""Servers on the loopback interface, and settings under which names lead to them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.abc

from indusagi.capabilities.ports import WebSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from tests.support.http_peer import Behaviour, Exchange, HttpServer


def port_of(server: HttpServer) -> int:
    return urlsplit(server.url).port or 0


def names(*found: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Make a resolver that finds the same addresses for every name."""

    async def resolver(host: str, port: int) -> Sequence[str]:
        return found

    return resolver


def open_to(server: HttpServer, *hosts: str, settings: WebSettings | None = None) -> WebSettings:
    """Give settings under which names lead to a server here."""
    allowed = [f"{host}:{port_of(server)}" for host in (hosts or ("open.example",))]
    return replace(settings or WebSettings(), allow_private=allowed, resolver=names("127.0.0.1"))


def replying(body: bytes = b"hello", status: int = 200, headers: Mapping[str, str] | None = None) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.reply(status, body, headers)

    return behave


def writing(data: bytes) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        await exchange.write(data)
        raise ConnectionError("an orderly end, in the middle")

    return behave


@asynccontextmanager
async def listener() -> AsyncGenerator[tuple[int, list[int]]]:
    """Listen on the loopback interface, and count who connects."""
    connected: list[int] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        connected.append(1)
        await stream.aclose()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as server:
        port: int = server.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, handle)
            yield port, connected
            group.cancel_scope.cancel()
