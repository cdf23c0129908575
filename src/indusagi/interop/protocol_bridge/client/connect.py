"""From a configuration to a connected peer, and back to nothing when the block is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.memory import is_transport, transport_session
from indusagi.interop.protocol_bridge.client.session import ClientSession, Era
from indusagi.interop.protocol_bridge.client.start.policy import start_digest
from indusagi.interop.protocol_bridge.client.start.watch import StartWatch
from indusagi.interop.protocol_bridge.client.stdio import start_server_process
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError, Transport

SessionFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""Yields what to speak through: an SDK `ClientSession` that is connected, a `(read, write)` pair of
streams, a low-level `Server`, or one end of a `linked_pair`."""
# Any: the streams belong to a package that is not loaded for their names.
InjectedTransport: TypeAlias = SessionFactory | Transport | tuple[Any, Any]
"""A session factory; or what one would yield, where that is a link or a pair of streams."""

CLIENT_NAME = "indus-protocol-bridge"
CLIENT_VERSION = "0.1.0"

_eras: dict[str, Era] = {}
"""What each configuration's server was found to speak, so that it is asked right the next time."""


def client_info() -> JsonObject:
    """Say who we are, as servers see it."""
    return {"name": CLIENT_NAME, "version": CLIENT_VERSION}


@asynccontextmanager
async def open_client_session(
    config: ServerConfig, handlers: Handlers, injected: InjectedTransport | None, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    """Connect to the server of a configuration, and disconnect when the block is left.

    The process of the server, if there is one, is shown to the `watch`.
    """
    if injected is not None and is_transport(injected):
        opening = transport_session(injected, config, handlers, client_info())
    elif injected is not None:
        factory = injected if callable(injected) else partial(nullcontext, injected)
        sdk = await asyncio.to_thread(_loaded_sdk)
        opening = sdk.injected_session(config, handlers, client_info(), factory)
    elif config.kind == "stdio":
        opening = _stdio_peer(config, handlers, watch)
    else:
        sdk = await asyncio.to_thread(_loaded_sdk)
        opening = sdk.remote_session(config, handlers, client_info())
    async with opening as peer:
        yield peer


@asynccontextmanager
async def open_transport(config: ServerConfig, version: Callable[[], str | None]) -> AsyncGenerator[Transport]:
    """Reach the server of a configuration without a word to it, and let it go at the end.

    `version` gives what a handshake has agreed on, once there was one.
    """
    if config.kind == "stdio":
        link = await start_server_process(config)
        try:
            yield link
        finally:
            await link.close()
    else:
        remote = await asyncio.to_thread(_loaded_relay)
        async with remote.remote_transport(config, version) as link:
            yield link


def _loaded_relay():
    from indusagi.interop.protocol_bridge.client.sdk import raw as _relay_http  # noqa: PLC0415 — as below

    return _relay_http


def _loaded_sdk():
    # The SDK takes longer to load than most servers to start: only those who need it pay.
    from indusagi.interop.protocol_bridge.client.sdk import transports as _sdk  # noqa: PLC0415

    return _sdk


@asynccontextmanager
async def _stdio_peer(
    config: StdioServerConfig, handlers: Handlers, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    digest = start_digest(config)
    known = _eras.get(digest)
    async with AsyncExitStack() as stack:
        try:
            peer = await stack.enter_async_context(_spawned(config, handlers, known or "modern", watch))
        except ConnectionClosedError:
            if known is not None:
                raise
            # Some exit at a method they do not know: once more, in the old way from the start.
            peer = await stack.enter_async_context(_spawned(config, handlers, "legacy", watch))
        if peer.facts is not None:
            _eras[digest] = peer.facts.era
        yield peer


@asynccontextmanager
async def _spawned(
    config: StdioServerConfig, handlers: Handlers, first: Era, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    link = watch.process = await start_server_process(config)
    try:
        peer = ClientSession(link, config.limits, handlers, client_info(), on_invalid_frame=link.keep_invalid_line)
        await peer.connect(first)
        try:
            yield peer
        finally:
            await peer.close()
    finally:
        await link.close()
