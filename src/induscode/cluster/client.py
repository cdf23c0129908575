"""The client of the brokers, with TLS required for addresses that begin with `tls://`.

A broker opens with an `INFO` in plain text, which says whether it wants TLS
(https://docs.nats.io/reference/reference-protocols/nats-protocol#info). nats-py follows that word alone: a broker
without TLS, or an attacker in between, would get the user and the password in plain text.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client
from nats.errors import Error

NO_TLS = "it offers no TLS, which its address tls:// requires: nothing was sent to it"


class BrokerClient(Client):
    """A client of nats-py that sends nothing to a broker of a `tls://` address before TLS."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Take the first word of a broker, before the user and password are sent; raises if it offers no TLS."""
        server = self._current_server
        if initial_connection and server is not None and server.uri.scheme == "tls":
            # The same object that nats-py looks into afterwards.
            info["tls_required"] = info.get("tls_required", False) or info.get("tls_available", False)
            if not info["tls_required"]:
                raise Error(NO_TLS)
        await super()._process_info(info, initial_connection)
