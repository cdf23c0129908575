"""How a host begins to listen behind an address.

Whoever can reach the port must show a token, unless that is switched off, which only an address of
this machine alone allows.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.faults import describe_error
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from indusagi.interop.protocol_bridge.host.http.auth import LEAST_TOKEN, is_loopback, load_token
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.interop.protocol_bridge.host.http.auth import StoredToken
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema, NewSession


@asynccontextmanager
async def open_http(
    new_session: NewSession, find_schema: FindSchema, settings: HttpSettings | None = None
) -> AsyncGenerator[HttpHost]:
    """Listen until the block is left; calls that run then may finish for a while.

    Raises:
        ProtocolFault: It cannot be started (kind `transport`); the message says why.
    """
    chosen = settings or HttpSettings()
    async with AsyncExitStack() as stack:
        try:
            tokens, kept = await asyncio.to_thread(_tokens, chosen)
            server = await asyncio.to_thread(_loaded_server)
            opening = server.serve_app(new_session, find_schema, chosen, tokens)
            port, connections = await stack.enter_async_context(opening)
        except (OSError, ValueError) as exc:
            said = f"the host cannot listen on {chosen.host}:{chosen.port}: {describe_error(exc)}"
            raise ProtocolFault("transport", said, exc) from exc
        name = f"[{chosen.host.strip('[]')}]" if ":" in chosen.host else chosen.host
        url = f"http://{name}:{port}{chosen.path}"
        host = HttpHost(url, port, connections=connections)
        if kept is not None:
            host = replace(host, token=kept.token, token_path=kept.path, token_is_new=kept.is_new)
        yield host


def _tokens(settings: HttpSettings) -> tuple[tuple[str, ...], StoredToken | None]:
    if settings.without_token:
        if not is_loopback(settings.host):
            raise ValueError("without a token only an address of this machine alone is allowed")
        return (), None
    if settings.tokens is None:
        kept = load_token()
        return (kept.token,), kept
    if not settings.tokens or any(len(token) < LEAST_TOKEN for token in settings.tokens):
        raise ValueError(f"a token needs {LEAST_TOKEN} characters or more")
    return tuple(settings.tokens), None


def _loaded_server():
    # The server takes longer to load than all the rest: only HTTP pays for it.
    from indusagi.interop.protocol_bridge.host.http import server as _host_http  # noqa: PLC0415

    return _host_http
