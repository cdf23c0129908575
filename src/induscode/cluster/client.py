"""The client of the brokers: `tls://` never without TLS, one user for all addresses, and an end of connecting.

A broker opens with an `INFO` in plain text, which says whether it wants TLS
(https://docs.nats.io/reference/reference-protocols/nats-protocol#info). nats-py follows that word alone: a broker
without TLS, or an attacker in between, would get the user and the password in plain text. It also sends them to the
very address alone that has them: brokers after it in a list, and those that a broker names, would refuse the client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from nats.aio.client import Client
from nats.errors import Error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from urllib.parse import ParseResult, SplitResult

NO_TLS = "it offers no TLS, which its address tls:// requires: nothing was sent to it"


class BrokerClient(Client):
    """A client of nats-py that sends nothing to a broker of a `tls://` address before TLS."""

    async def connect(self, *args: Any, error_cb: Callable[[Exception], Awaitable[None]], **options: Any) -> None:
        """Connect to one of the brokers, trying each again until the task is cancelled.

        `asyncio.wait_for`, with which nats-py waits for a broker, may raise a failure of the same moment instead of
        the cancellation (https://github.com/python/cpython/issues/86296, before Python 3.12), and nats-py would try
        again for ever.
        """
        self._addresses = [urlsplit(address) for address in cast("Sequence[str]", args[0])]
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
        if initial_connection and server is not None:
            self._choose_credentials(server.uri)
        await super()._process_info(info, initial_connection)

    def _choose_credentials(self, server: SplitResult | ParseResult) -> None:
        """Take the user of an address, or of the first given one with the same scheme: none of `tls://` for `nats://`.

        A user alone is a token. `%40` and the like are decoded (https://www.rfc-editor.org/rfc/rfc3986#section-2.1).
        """
        same = [one for one in (server, *self._addresses) if one.scheme == server.scheme and one.username is not None]
        user = unquote(same[0].username or "") if same else None
        password = unquote(same[0].password) if same and same[0].password is not None else None
        # nats-py prefers these to what stands in the address.
        self.options["user"], self.options["password"] = (None, None) if password is None else (user, password)
        self.options["token"] = user if password is None else None
