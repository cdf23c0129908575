"""Broker client: `tls://` never without TLS, one user for all addresses, and cancellable connecting.

The user comes from this process's credentials, or from the addresses. Credentials are `USER:PASSWORD`, a token, an nkey
seed, or a NATS credentials file with a token (JWT) and a seed, which signs the broker's nonce
(https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/nkey_auth).

A broker opens with a plain-text `INFO`, which says whether it wants TLS
(https://docs.nats.io/reference/reference-protocols/nats-protocol#info). nats-py trusts that alone: a broker without
TLS, or an attacker in between, would get the user and password in plain text. It also sends them only to the exact
address that contains them, so later brokers in a list, and brokers announced by others, would reject the client.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast
from urllib.parse import ParseResult, SplitResult, unquote, urlsplit

from nats.aio.client import Client
from nats.errors import Error

_JWT = re.compile(r"-----BEGIN NATS USER JWT-----\s*(\S+)")
_SEED = re.compile(r"^(SU[A-Z2-7]{56})$", re.MULTILINE)
"""An nkey seed: a two-byte prefix, 32 bytes, and a checksum, in base 32."""
_PUBLIC_PREFIX = 20 << 3
"""Prefix of a user's public nkey: the letter U."""
NO_TLS = "it offers no TLS, which its address tls:// requires: nothing was sent to it"


class BrokerClient(Client):
    """A nats-py client that sends nothing to a `tls://` broker before TLS."""

    def __init__(self, credentials: str = "") -> None:
        super().__init__()
        self._credentials = credentials

    async def connect(self, *args: Any, error_cb: Callable[[Exception], Awaitable[None]], **options: Any) -> None:
        """Connect to one of the brokers, retrying each until the task is cancelled.

        nats-py waits with `asyncio.wait_for`, which before Python 3.12 may raise a simultaneous failure instead of the
        cancellation (https://github.com/python/cpython/issues/86296); nats-py would then retry forever.
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
        """Handle a broker's greeting, before sending user and password. Raises if it must offer TLS and doesn't."""
        server = self._current_server
        if initial_connection and server is not None and server.uri.scheme == "tls":
            # nats-py reads the same object afterwards.
            info["tls_required"] = info.get("tls_required", False) or info.get("tls_available", False)
            if not info["tls_required"]:
                raise Error(NO_TLS)
        if initial_connection and server is not None:
            self._choose_credentials(server.uri)
        await super()._process_info(info, initial_connection)

    def _choose_credentials(self, server: SplitResult | ParseResult) -> None:
        """Use the address's user, or the first one with the same scheme: never one of `tls://` for `nats://`.

        A user without a password is a token. `%40` and the like are decoded
        (https://www.rfc-editor.org/rfc/rfc3986#section-2.1).
        """
        if self._credentials and any(one.scheme == server.scheme for one in self._addresses):
            self._use_credentials(self._credentials)
            return
        same = [one for one in (server, *self._addresses) if one.scheme == server.scheme and one.username is not None]
        user = unquote(same[0].username or "") if same else None
        password = unquote(same[0].password) if same and same[0].password is not None else None
        # nats-py prefers these to the address.
        self.options["user"], self.options["password"] = (None, None) if password is None else (user, password)
        self.options["token"] = user if password is None else None

    def _use_credentials(self, text: str) -> None:
        """Use credentials from a file or variable. A seed signs the broker's nonce."""
        seed, jwt = _SEED.search(text), _JWT.search(text)
        self.options["user"] = self.options["password"] = self.options["token"] = None
        if seed is None:
            user, mark, password = text.partition(":")
            if mark:
                self.options["user"], self.options["password"] = user, password
            else:
                self.options["token"] = text
            return
        sign, self._public_nkey = read_seed(seed[1])
        self._signature_cb = lambda nonce: base64.b64encode(sign(nonce.encode()))
        if jwt is not None:
            self._user_jwt_cb = lambda: bytearray(jwt[1].encode())


def read_seed(seed: str) -> tuple[Callable[[bytes], bytes], str]:
    """Return the signing function of an nkey seed, and the public nkey; raises `Error` if it's damaged."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 — loads slowly

    data = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if binascii.crc_hqx(data[:-2], 0).to_bytes(2, "little") != data[-2:]:
        raise Error("the nkey seed in the credentials is damaged")
    key = Ed25519PrivateKey.from_private_bytes(data[2:-2])
    public = bytes((_PUBLIC_PREFIX,)) + key.public_key().public_bytes_raw()
    checked = public + binascii.crc_hqx(public, 0).to_bytes(2, "little")
    return key.sign, base64.b32encode(checked).decode().rstrip("=")
