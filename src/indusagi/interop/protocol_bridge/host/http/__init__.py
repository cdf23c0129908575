"""A host behind HTTP.

Clients must present the user's token, or an access token of an authorization server. On a loopback address the former
can be switched off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from indusagi.core.faults import describe_error
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from indusagi.interop.protocol_bridge.host.http.settings import (
    LEAST_TOKEN,
    HttpHost,
    HttpSettings,
    StoredToken,
    build_url,
    is_loopback,
    load_token,
)
from indusagi.interop.protocol_bridge.rpc.transport import decode_frame_verbatim

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.dispatcher import Reader
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema, FindTarget, NewSession


@asynccontextmanager
async def open_http(
    new_session: NewSession,
    find_schema: FindSchema,
    settings: HttpSettings | None = None,
    *,
    read: Reader = decode_frame_verbatim,
    find_target: FindTarget = lambda method, params: (method, None),
) -> AsyncGenerator[HttpHost]:
    """Listen until the block ends; running calls may then finish within the limits of `settings`.

    `find_schema` serves arguments repeated in headers, `find_target` the scopes of access tokens. The default of `read`
    keeps the exact bytes of `params`. Raises `ProtocolFault` (kind `transport`) with the reason if it can't start.
    """
    chosen = settings or HttpSettings()
    async with AsyncExitStack() as stack:
        try:
            stored, tokens = None, tuple(chosen.tokens or ())
            if chosen.auth is not None:
                tokens = ()
                # In a thread: loading the cryptography takes a while.
                await asyncio.to_thread(import_module, "joserfc.jws")
            elif chosen.without_token:
                tokens = ()
                if not is_loopback(chosen.host):
                    raise ValueError("without a token only a loopback address is allowed")
            elif chosen.tokens is None:
                stored = await _load_token()
                tokens = (stored.token,)
            elif not tokens:
                raise ValueError(f"a token needs {LEAST_TOKEN} characters or more")
            if chosen.auth is None and not chosen.without_token:
                tokens = (*tokens, *chosen.view_tokens)
            if any(len(token) < LEAST_TOKEN for token in tokens):
                raise ValueError(f"a token needs {LEAST_TOKEN} characters or more")
            # In a thread and late: h11 and the server take longer to load than everything else.
            await asyncio.to_thread(import_module, f"{__name__}.server")
            from indusagi.interop.protocol_bridge.host.http.server import serve_app  # noqa: PLC0415 — as above

            opening = serve_app(new_session, find_schema, find_target, read, chosen, tokens)
            port, connections = await stack.enter_async_context(opening)
        except (OSError, ValueError) as exc:
            reason = (isinstance(exc, OSError) and exc.strerror) or describe_error(exc)
            message = f"can't listen on {chosen.host}:{chosen.port}: {reason}"
            raise ProtocolFault("transport", message, exc) from exc
        host = HttpHost(build_url(chosen, port), port, connections=connections)
        if stored is not None:
            host = replace(host, token=stored.token, token_path=stored.path, token_is_new=stored.is_new)
        yield host


async def _load_token() -> StoredToken:
    """Read this user's token or create one, or raise `ProtocolFault` (kind `transport`)."""
    try:
        return await asyncio.to_thread(load_token)
    except (OSError, ValueError) as exc:
        # Without an errno it's our own error, which includes its remedy.
        has_remedy = not isinstance(exc, OSError) or exc.errno is None
        remedy = "" if has_remedy else " (set XDG_STATE_HOME to a directory in which you may create files)"
        message = f"the token of clients can be neither read nor created: {describe_error(exc)}{remedy}"
        raise ProtocolFault("transport", message, exc) from exc
