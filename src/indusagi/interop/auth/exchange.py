"""Authorizes calls on behalf of a gateway's clients: token exchange (https://www.rfc-editor.org/rfc/rfc8693).

A call for a client carries a token that the issuer issued for this server in exchange for the client's access token,
which goes to that issuer and nowhere else. The row must name the issuer, and it must be the issuer of the client's
token: a server can't send tokens to an issuer of its choice. Handshakes and listings use the gateway's own credentials.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import anyio

from indusagi.interop.auth.authorizer import UNAUTHORIZED, OAuthAuthorizer
from indusagi.interop.auth.contract import AuthFault
from indusagi.runtime.calls import acting_subject

if TYPE_CHECKING:
    from indusagi.interop.auth.contract import Refusal, StoredCredentials, TokenSet
    from indusagi.interop.auth.driver import AuthDriver
    from indusagi.runtime.calls import SubjectToken

_EXCHANGED = 1_024
_MARGIN_MS = 30_000
_LIFE_MS = 300_000
"""How long to use a token without an expiry."""


class ExchangedToken:
    """The result of exchanging one access token."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.tokens: TokenSet | None = None
        self.is_accepted = False
        """Whether the server has accepted the token."""


class TokenExchangeAuthorizer:
    """Authorizer of a server that we call on behalf of clients; a `RequestAuthorizer`."""

    def __init__(self, driver: AuthDriver) -> None:
        self._driver = driver
        self._own = OAuthAuthorizer(driver)
        self._exchanged: OrderedDict[bytes, ExchangedToken] = OrderedDict()
        """By digest of the subject token, least recently used first."""

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        """Build a request's `Authorization` header: for its client, or our own.

        Raises:
            AuthFault: There is no token for this client.
        """
        subject = acting_subject.get()
        if subject is None:
            return await self._own.build_headers(method, url)
        exchanged = self._find(subject)
        async with exchanged.lock:
            now_ms, tokens = self._driver.clock.now_ms(), exchanged.tokens
            ends_ms = 0 if tokens is None else tokens.expires_at_ms or tokens.obtained_at_ms + _LIFE_MS
            if tokens is None or now_ms + _MARGIN_MS >= ends_ms:
                stored = await self._find_client(subject)
                exchanged.tokens = tokens = await self._driver.exchange(stored, subject.token)
                exchanged.is_accepted = False
        return {"authorization": f"Bearer {tokens.access_token}"}

    async def handle_refusal(self, sent: dict[str, str], refusal: Refusal) -> bool:
        """Return whether to retry a refused request: once, with a newly exchanged token.

        Raises:
            AuthFault: The server refuses a new token.
        """
        subject = acting_subject.get()
        if subject is None:
            return await self._own.handle_refusal(sent, refusal)
        if refusal.status != UNAUTHORIZED:
            return False
        exchanged = self._find(subject)
        if exchanged.tokens is None or sent.get("authorization") != f"Bearer {exchanged.tokens.access_token}":
            return True  # another request exchanged it again in the meantime
        exchanged.tokens = None
        if not exchanged.is_accepted:
            raise AuthFault(f"{self._driver.resource}: it refuses the token that was exchanged for its client's")
        return True

    def accept(self, sent: dict[str, str], nonce: str) -> None:
        """Record that the server accepted the headers."""
        subject = acting_subject.get()
        if subject is None:
            self._own.accept(sent, nonce)
        else:
            self._find(subject).is_accepted = True

    async def close(self) -> None:
        """Stop any work in progress."""
        await self._own.close()

    def _find(self, subject: SubjectToken) -> ExchangedToken:
        digest = hashlib.sha256(subject.token.encode()).digest()
        exchanged = self._exchanged.setdefault(digest, ExchangedToken())
        self._exchanged.move_to_end(digest)
        if len(self._exchanged) > _EXCHANGED:
            self._exchanged.popitem(last=False)
        return exchanged

    async def _find_client(self, subject: SubjectToken) -> StoredCredentials:
        """Return our own sign-in at the subject's issuer, signing in if necessary."""
        settings, name = self._driver.auth.settings, self._driver.resource
        if settings.issuer != subject.issuer:
            message = f"its auth must name the issuer of the clients' tokens ({subject.issuer}) as `issuer`"
            raise AuthFault(f"{name}: {message}")
        stored = await self._driver.load()
        if stored is None or stored.key.issuer != subject.issuer:
            stored = await self._driver.sign_in()
        if stored.key.issuer != subject.issuer:
            raise AuthFault(f"{name}: the server belongs to another issuer than its clients' tokens")
        return stored
