"""The egress proxy of a sandboxed server: which targets it connects to, and how it refuses the others."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.waiting import LIMIT_S, until

from indusagi.capabilities.sandbox.egress import EgressProxy
from indusagi.capabilities.sandbox.profile import ServerProfile
from indusagi.capabilities.sandbox.trace import SandboxObserver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

LOOPBACK = "127.0.0.1"


class Upstream:
    """A server that answers each connection with what it has received up to an empty line."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError:
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()


@asynccontextmanager
async def open_egress(
    tmp_path: Path, *hosts: str, kind: str = "public", observer: SandboxObserver | None = None
) -> AsyncGenerator[tuple[EgressProxy, Upstream, list[str], str]]:
    """Open an upstream, and a proxy to it; `PORT` in a host is the upstream's port, and every name leads to it."""
    upstream, blocked = Upstream(), list[str]()
    server = await asyncio.start_server(upstream.serve, LOOPBACK, 0)
    upstream.port = server.sockets[0].getsockname()[1]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return [LOOPBACK]

    named = tuple(host.replace("PORT", str(upstream.port)) for host in hosts)
    profile = ServerProfile(hosts=named, observer=observer)
    proxy = EgressProxy(profile, resolve, lambda _: kind, blocked.append)
    path = str(tmp_path / f"{id(proxy)}")
    await proxy.open(path)
    try:
        yield proxy, upstream, blocked, path
    finally:
        await proxy.aclose()
        server.close()


async def send(path: str, *parts: bytes) -> bytes:
    """Send bytes to the proxy and read until it closes the connection."""
    reader, writer = await asyncio.open_unix_connection(path)
    for part in parts:
        writer.write(part)
    with anyio.fail_after(LIMIT_S):
        received = await reader.read()
    writer.close()
    return received


async def test_named_hosts_are_reached_in_both_ways(tmp_path: Path) -> None:
    async with open_egress(tmp_path, "api.example:PORT") as (proxy, upstream, blocked, path):
        port = upstream.port
        got = await send(path, f"CONNECT api.example:{port} HTTP/1.1\r\n\r\n".encode(), b"GET / HTTP/1.1\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
        head = f"GET http://api.example:{port}/a?b=1 HTTP/1.1\r\nHost: api.example\r\nProxy-Authorization: x\r\n\r\n"
        assert (await send(path, head.encode())).endswith(b"hello")
        assert upstream.requests[-1] == b"GET /a?b=1 HTTP/1.1\r\nConnection: close\r\nHost: api.example\r\n\r\n"
        assert (proxy.asked, proxy.blocked, blocked) == ({f"api.example:{port}"}, {}, [])


async def test_other_hosts_ports_and_private_addresses_are_refused_and_noted_once(tmp_path: Path) -> None:
    async with open_egress(tmp_path, "api.example:PORT", kind="private") as (proxy, upstream, blocked, path):
        for _ in range(2):
            got = await send(path, b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 403 ")
            assert b'evil.example:443 isn\'t one of the "hosts" of this server\'s "sandbox"' in got
        await send(path, b"CONNECT evil.example:53 HTTP/1.1\r\n\r\n")
        got = await send(path, f"CONNECT api.example:{upstream.port} HTTP/1.1\r\n\r\n".encode())
        assert f'api.example has no public address, and "hosts" lacks {LOOPBACK}:{upstream.port}'.encode() in got
        assert blocked == ["evil.example:443", "evil.example:53", f"{LOOPBACK}:{upstream.port}"]
        assert (upstream.requests, proxy.asked) == ([], set())


@pytest.mark.parametrize("host", [LOOPBACK, "api.example"])
async def test_an_address_that_the_profile_names_may_be_private(host: str, tmp_path: Path) -> None:
    hosts = ("api.example:PORT", f"{LOOPBACK}:PORT")
    async with open_egress(tmp_path, *hosts, kind="private") as (_, upstream, __, path):
        request = f"CONNECT {host}:{upstream.port} HTTP/1.1\r\n\r\n".encode()
        assert (await send(path, request, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")


@pytest.mark.parametrize("host", [LOOPBACK, "api.example"])
async def test_a_server_that_is_tried_reaches_private_addresses_and_they_are_noted(host: str, tmp_path: Path) -> None:
    async with open_egress(tmp_path, kind="private", observer=SandboxObserver(reaches_private=True)) as opened:
        proxy, upstream, blocked, path = opened
        request = f"CONNECT {host}:{upstream.port} HTTP/1.1\r\n\r\n".encode()
        assert (await send(path, request, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")
        assert (proxy.asked, blocked) == ({f"{host}:{upstream.port}", f"{LOOPBACK}:{upstream.port}"}, [])
    async with open_egress(tmp_path, kind="private", observer=SandboxObserver()) as (proxy, upstream, blocked, path):
        assert b" 403 " in await send(path, f"CONNECT {host}:{upstream.port} HTTP/1.1\r\n\r\n".encode())


@pytest.mark.parametrize(
    "target",
    [
        *("CONNECT api.example:PORT@evil.example:443", "CONNECT user@api.example:PORT"),
        *("CONNECT api.example.evil.example:PORT", "CONNECT evil-api.example:PORT", "CONNECT cdn.example:PORT"),
        *("CONNECT [::ffff:127.0.0.1]:PORT", "CONNECT 127.1:PORT", "CONNECT 2130706433:PORT", "CONNECT 0x7f.1:PORT"),
        *(
            "CONNECT api.example%00.evil.example:PORT",
            "CONNECT api.example\tevil.example:PORT",
            "CONNECT localhost:PORT",
        ),
        *("GET http://api.example:PORT@evil.example:PORT/", "GET http://evil.example:PORT/#@api.example:PORT/"),
        "GET http://api.example:PORT:443/",
    ],
)
async def test_no_spelling_of_a_target_leads_to_another_host(target: str, tmp_path: Path) -> None:
    async with open_egress(tmp_path, "api.example:PORT", "*.cdn.example:PORT") as (_, upstream, __, path):
        request = f"{target} HTTP/1.1\r\nHost: api.example\r\n\r\n".replace("PORT", str(upstream.port))
        received = await send(path, request.encode(), b"GET / HTTP/1.1\r\n\r\n")
        assert not received.startswith((b"HTTP/1.1 200", b"HTTP/1.1 502"))
        assert upstream.requests == []


async def test_a_second_request_goes_to_no_other_host(tmp_path: Path) -> None:
    async with open_egress(tmp_path, "api.example:PORT") as (proxy, upstream, blocked, path):
        first = f"GET http://api.example:{upstream.port}/ HTTP/1.1\r\nConnection: keep-alive\r\n\r\n"
        second = b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n"
        assert (await send(path, first.encode(), second)).count(b"HTTP/1.1") == 1
        assert (proxy.asked, blocked, len(upstream.requests)) == ({f"api.example:{upstream.port}"}, [], 1)


async def test_a_host_that_does_not_answer_is_said(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind((LOOPBACK, 0))
        port = closed.getsockname()[1]
        async with open_egress(tmp_path, f"api.example:{port}") as (_, __, blocked, path):
            got = await send(path, f"CONNECT api.example:{port} HTTP/1.1\r\n\r\n".encode())
            assert got.startswith(b"HTTP/1.1 502 ")
            assert blocked == []


@pytest.mark.parametrize(
    "garbage",
    [
        *(b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET https://a.example/ HTTP/1.1\r\n\r\n", b"\5\1\0"),
        *(
            b"CONNECT a.example HTTP/1.1\r\n\r\n",
            b"CONNECT a.example:x HTTP/1.1\r\n\r\n",
            b"CONNECT \xff:1 HTTP/1.1\r\n\r\n",
        ),
        *(b"x" * 40_000, b"GET http://[ HTTP/1.1\r\n\r\n"),
    ],
)
async def test_garbage_ends_its_own_connection_only(
    garbage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indusagi.capabilities.sandbox.egress._HEAD_S", 0.05)  # for those that never complete a head
    async with open_egress(tmp_path, "api.example:PORT") as (_, upstream, __, path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(garbage)
        with anyio.fail_after(LIMIT_S):
            await reader.read()
        writer.close()
        monkeypatch.setattr("indusagi.capabilities.sandbox.egress._HEAD_S", LIMIT_S)
        request = f"CONNECT api.example:{upstream.port} HTTP/1.1\r\n\r\n".encode()
        assert (await send(path, request, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")


async def test_the_end_of_the_proxy_ends_its_connections(tmp_path: Path) -> None:
    async with open_egress(tmp_path, "api.example:PORT") as (proxy, upstream, _, path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"CONNECT api.example:{upstream.port} HTTP/1.1\r\n\r\n".encode())
        await until(lambda: bool(proxy.asked))
        await proxy.aclose()
        with anyio.fail_after(LIMIT_S):
            await reader.read()
        writer.close()
