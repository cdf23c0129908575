"""The client of the brokers, with TLS required for addresses that begin with `tls://`, and an end of connecting.

A broker opens with an `INFO` in plain text, which says whether it wants TLS
(https://docs.nats.io/reference/reference-protocols/nats-protocol#info). nats-py follows that word alone: a broker
without TLS, or an attacker in between, would get the user and the password in plain text.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from nats.aio.client import Client
from nats.errors import Error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NO_TLS = "it offers no TLS, which its address tls:// requires: nothing was sent to it"


class BrokerClient(Client):
    """A client of nats-py that sends nothing to a broker of a `tls://` address before TLS."""

    async def connect(self, *args: Any, error_cb: Callable[[Exception], Awaitable[None]], **options: Any) -> None:
        """Connect to one of the brokers, trying each again until the task is cancelled.

        `asyncio.wait_for`, with which nats-py waits for a broker, may raise a failure of the same moment instead of
        the cancellation (https://github.com/python/cpython/issues/86296, before Python 3.12), and nats-py would try
        again for ever.
        """
        connecting = cast("asyncio.Task[object]", asyncio.current_task())
        before = connecting.cancelling()

        async def report_failure(exc: Exception) -> None:
            if asyncio.current_task() is connecting and connecting.cancelling() > before:
                raise asyncio.CancelledError
            await error_cb(exc)

        await super().connect(*args, error_cb=report_failure, **options)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Take the first word of a broker, before the user and password are sent; raises if it offers no TLS."""
        server = self._current_server
        if initial_connection and server is not None and server.uri.scheme == "tls":
            # The same object that nats-py looks into afterwards.
            info["tls_required"] = info.get("tls_required", False) or info.get("tls_available", False)
            if not info["tls_required"]:
                raise Error(NO_TLS)
        await super()._process_info(info, initial_connection)
