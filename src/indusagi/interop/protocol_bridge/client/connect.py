"""Connections from a configuration: a client session or a bare transport, closed when the block is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.session import ClientSession, Era, transport_session
from indusagi.interop.protocol_bridge.client.start.policy import start_digest
from indusagi.interop.protocol_bridge.client.start.watch import StartWatch
from indusagi.interop.protocol_bridge.client.stdio import start_server_process
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError
from indusagi.interop.protocol_bridge.rpc.transport import Transport, is_transport

SessionFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""Yields what carries the session: a connected SDK `ClientSession`, a `(read, write)` pair of streams, a low-level
`Server`, or one end of a `linked_pair`."""
# Any: the streams belong to a package that is not loaded for their names.
InjectedTransport: TypeAlias = SessionFactory | Transport | tuple[Any, Any]
"""A session factory; or what one would yield, if that is a transport or a pair of streams."""

CLIENT_NAME = "indus-protocol-bridge"
CLIENT_VERSION = "0.1.0"
"""Of the client, which is specified; the program has a version of its own."""
CLIENT_INFO: JsonObject = {"name": CLIENT_NAME, "version": CLIENT_VERSION}

OpenSession: TypeAlias = Callable[
    [ServerConfig, Handlers, InjectedTransport | None, StartWatch], AbstractAsyncContextManager[ClientSession]
]
"""Connects to the server of a configuration as `open_client_session` does: there, or where another node runs it."""
_eras: dict[str, Era] = {}
"""The era of each stdio configuration's server, so that its next start begins with the right request."""


@asynccontextmanager
async def open_client_session(
    config: ServerConfig, handlers: Handlers, injected: InjectedTransport | None, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    """Connect to the server of a configuration, and disconnect when the block is left.

    A server process is shown to `watch`.
    """
    if injected is not None and is_transport(injected):
        opening = transport_session(injected, config, handlers, CLIENT_INFO)
    elif injected is not None:
        factory = injected if callable(injected) else partial(nullcontext, injected)
        sdk, _ = await asyncio.to_thread(_load_sdk)
        opening = sdk.injected_session(config, handlers, CLIENT_INFO, factory)
    elif config.kind == "stdio":
        opening = _stdio_session(config, handlers, watch)
    else:
        sdk, _ = await asyncio.to_thread(_load_sdk)
        opening = sdk.remote_session(config, handlers, CLIENT_INFO)
    async with opening as session:
        yield session


@asynccontextmanager
async def open_transport(config: ServerConfig, version: Callable[[], str | None]) -> AsyncGenerator[Transport]:
    """Open a transport to the server of a configuration without a handshake, and close it when the block is left.

    `version` returns the protocol version that a handshake has agreed on, once there was one.
    """
    if config.kind == "stdio":
        transport = await start_server_process(config)
        try:
            yield transport
        finally:
            await transport.close()
    else:
        _, raw = await asyncio.to_thread(_load_sdk)
        async with raw.remote_transport(config, version) as transport:
            yield transport


def _load_sdk():
    # In a thread and late: loading the SDK takes longer than starting most servers.
    from indusagi.interop.protocol_bridge.client.sdk import raw, transports  # noqa: PLC0415

    return transports, raw


@asynccontextmanager
async def _stdio_session(
    config: StdioServerConfig, handlers: Handlers, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    digest = start_digest(config)
    era = _eras.get(digest)
    async with AsyncExitStack() as stack:
        try:
            session = await stack.enter_async_context(_process_session(config, handlers, era or "modern", watch))
        except ConnectionClosedError:
            if era is not None:
                raise
            # Some servers exit at a method they do not know: start again with the legacy handshake.
            session = await stack.enter_async_context(_process_session(config, handlers, "legacy", watch))
        if session.facts is not None:
            _eras[digest] = session.facts.era
        yield session


@asynccontextmanager
async def _process_session(
    config: StdioServerConfig, handlers: Handlers, first: Era, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    transport = watch.process = await start_server_process(config)
    try:
        on_invalid = transport.keep_invalid_line
        session = ClientSession(transport, config.limits, handlers, CLIENT_INFO, on_invalid_frame=on_invalid)
        await session.connect(first)
        try:
            yield session
        finally:
            await session.connection.close()
    finally:
        await transport.close()
