"""Log lines to the client, on the stream of the request they belong to."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from mcp.shared.exceptions import MCPDeprecationWarning

if TYPE_CHECKING:
    from mcp_types import LoggingLevel

    from outside.conformance.server.asking import Asked


async def log(ctx: Asked, level: LoggingLevel, line: str) -> None:
    """Send a line; the SDK leaves it out where the client has not asked for such lines."""
    with warnings.catch_warnings():
        # The later revision deprecates logging; the suite still judges it.
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        sending = ctx.session.send_log_message(  # pyright: ignore[reportDeprecated]
            level, line, "conformance", ctx.request_id
        )
    await sending
