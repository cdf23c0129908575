"""Opens client sessions and bare transports from a configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.session import ClientSession, Era, transport_session
from indusagi.interop.protocol_bridge.client.start import start_digest
from indusagi.interop.protocol_bridge.client.stdio import StartWatch, start_server_process
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault, ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError
from indusagi.interop.protocol_bridge.rpc.transport import Transport, is_transport

SessionFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""Yields the carrier of the session: a connected SDK `ClientSession`, a `(read, write)` pair of streams, a low-level
`Server`, or one end of a `linked_pair`."""
# Any: avoids loading the package that defines the streams.
InjectedTransport: TypeAlias = SessionFactory | Transport | tuple[Any, Any]
"""A session factory, or its result if that's a transport or a pair of streams."""

OpenSession: TypeAlias = Callable[
    [ServerConfig, Handlers, InjectedTransport | None, StartWatch], AbstractAsyncContextManager[ClientSession]
]
"""Connects to a configured server like `open_client_session`, possibly on another node."""
_eras: dict[str, Era] = {}
"""Era by stdio configuration, so that its next start begins with the right request."""


@asynccontextmanager
async def open_client_session(
    config: ServerConfig, handlers: Handlers, injected: InjectedTransport | None, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    """Connect to a configured server; disconnect on exit. `watch` gets the server process, if any."""
    if injected is not None:
        factory = injected if callable(injected) else partial(nullcontext, injected)
        opening = _injected_session(config, handlers, factory)
    elif config.kind == "stdio":
        opening = _stdio_session(config, handlers, watch)
    else:
        http = await asyncio.to_thread(_load_http)
        opening = http.remote_session(config, handlers)
    async with opening as session:
        yield session


@asynccontextmanager
async def open_transport(config: ServerConfig) -> AsyncGenerator[Transport]:
    """Open a transport to a configured server without a handshake; close it on exit."""
    if config.kind == "stdio":
        transport = await start_server_process(config)
        try:
            yield transport
        finally:
            await transport.close()
    else:
        http = await asyncio.to_thread(_load_http)
        async with http.remote_transport(config) as transport:
            yield transport


def _load_http():
    # Lazily, in a thread: loading an HTTP library takes longer than starting most servers.
    from indusagi.interop.protocol_bridge.client.http import connect  # noqa: PLC0415

    return connect


async def load_sdk():
    """Import the module for values of the MCP SDK in a thread, or raise `ProtocolFault` if it's missing or too old."""

    def load():
        from indusagi.interop.protocol_bridge.client import sdk  # noqa: PLC0415 — few programs need the SDK

        return sdk

    try:
        return await asyncio.to_thread(load)
    except ImportError as exc:
        message = f"sessions and streams of the MCP SDK need its version 2: pip install 'indus-deck[mcp]' ({exc})"
        raise ProtocolFault("protocol", message, exc) from exc


@asynccontextmanager
async def _injected_session(
    config: ServerConfig, handlers: Handlers, session_factory: SessionFactory
) -> AsyncGenerator[ClientSession]:
    """Open a session over a factory's result: a transport, or a session, server or stream pair of the SDK.

    Raises `ProtocolFault` if the factory yields something else, or the SDK is missing.
    """
    async with AsyncExitStack() as stack:
        manager = session_factory()
        # A client's message handler can't be replaced after entering it.
        tap = stack.enter_context((await load_sdk()).tap_notifications(manager)) if _may_need_sdk(manager) else None
        value = await stack.enter_async_context(manager)
        opening = None
        if is_transport(value):
            opening = transport_session(value, config, handlers)
        elif _may_need_sdk(value):
            opening = (await load_sdk()).injected_session(value, config, handlers, tap)
        if opening is None:
            message = (
                f"server {config.id!r}: the session factory yields {type(value).__name__}; "
                "it must yield a ClientSession, a pair of streams, a low-level Server or a transport"
            )
            raise ProtocolFault("protocol", message, detail=FaultDetail(server=config.id, reason="malformed"))
        async with opening as session:
            yield session


def _may_need_sdk(value: object) -> bool:
    """Return whether a value may be a pair of streams or comes from the SDK."""
    return any(kind is tuple or kind.__module__.partition(".")[0] == "mcp" for kind in type(value).__mro__)


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
            # Some servers exit on an unknown method: start again with the legacy handshake.
            session = await stack.enter_async_context(_process_session(config, handlers, "legacy", watch))
        if session.facts is not None:
            _eras[digest] = session.facts.era
        yield session


@asynccontextmanager
async def _process_session(
    config: StdioServerConfig, handlers: Handlers, first: Era, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    transport = watch.process = await start_server_process(config, partial(watch.report, "refused"))
    try:
        on_invalid = transport.keep_invalid_line
        session = ClientSession(transport, config, handlers, on_invalid_frame=on_invalid)
        await session.connect(first)
        try:
            yield session
        finally:
            await session.connection.close()
    finally:
        await transport.close()
