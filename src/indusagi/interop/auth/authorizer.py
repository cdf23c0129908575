"""Authorizes requests to one server: provides the current token, and recovers from refusals.

A request takes the current token without waiting for any other. Only a request that needs another token joins the one
recovery in progress: a refresh, a sign-in, or a step-up to more scopes. The recovery runs in its own task, which a
cancelled request doesn't affect. Past attempts bound the number of tries, not time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from indusagi.core.faults import describe_error
from indusagi.core.tasks import Attempt, BackgroundTask
from indusagi.interop.auth.contract import AuthFault, Refusal, SignInRequired, StoredCredentials, TokenSet
from indusagi.interop.auth.metadata import get_origin_of
from indusagi.interop.auth.requests import Challenge, find_oauth_challenge, parse_challenges
from indusagi.interop.auth.token_endpoint import ProofKey
from indusagi.runtime.calls import SubjectToken, acting_subject

if TYPE_CHECKING:
    from indusagi.interop.auth.driver import AuthDriver

UNAUTHORIZED = 401
FORBIDDEN = 403
_MARGIN_MS = 30_000
"""Refresh a token this long before it expires: clocks differ, and a request takes time."""
_STEP_UPS = 3
"""Maximum step-ups per connection (specification: "implement retry limits")."""
_TokenSource: TypeAlias = Literal["stored", "refreshed", "signed_in"]


class OAuthAuthorizer:
    """Authorizer of a server with OAuth sign-in."""

    def __init__(self, driver: AuthDriver) -> None:
        self._driver = driver
        self._stored: StoredCredentials | None = None
        self._source: _TokenSource = "stored"
        self._is_loaded = False
        self._is_accepted = False
        """Whether the server has accepted the current token."""
        self._key: ProofKey | None = None
        self._fault: AuthFault | None = None
        """Why signing in failed for good; the server's other requests fail the same way, without another try."""
        self._step_ups = 0
        self._recovery: _Recovery | None = None

    @property
    def _token(self) -> str:
        tokens = None if self._stored is None else self._stored.tokens
        return "" if tokens is None else tokens.access_token

    # -- requests ---------------------------------------------------------------------------

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        """Build a request's `Authorization` header and DPoP proof; empty before the first sign-in.

        Raises `AuthFault` if the token has expired and couldn't be refreshed.
        """
        if self._fault is not None:
            raise self._fault
        if not self._is_loaded:
            stored = await self._driver.load()
            if not self._is_loaded:
                self._adopt(stored, "stored")
        tokens = None if self._stored is None else self._stored.tokens
        now_ms = self._driver.clock.now_ms()
        if tokens is not None and tokens.refresh_token is not None and tokens.is_expired(now_ms, _MARGIN_MS):
            try:
                await self._recover(tokens.access_token, None)
            except AuthFault as fault:
                if not fault.is_transient or tokens.is_expired(now_ms):
                    raise
        tokens = None if self._stored is None else self._stored.tokens
        if tokens is None:
            return {}
        headers = {"authorization": f"{tokens.token_type} {tokens.access_token}"}
        if tokens.token_type == "DPoP" and self._key is not None:
            proof = self._key.sign_proof(method, url, get_origin_of(url), now_ms, tokens.access_token)
            headers["dpop"] = proof
        return headers

    async def handle_refusal(self, sent: dict[str, str], refusal: Refusal) -> bool:
        """Return whether to retry a refused request."""
        used = sent.get("authorization", "").partition(" ")[2]
        challenges = parse_challenges(refusal.challenges)
        challenge = find_oauth_challenge(challenges)
        if challenge is None and challenges:
            return False  # it wants another scheme, which OAuth can't answer
        if challenge is not None and challenge.error == "use_dpop_nonce" and self._key is not None and refusal.nonce:
            origin = get_origin_of(self._driver.server_url)
            is_new = self._key.nonces.get(origin) != refusal.nonce
            self._key.nonces[origin] = refusal.nonce
            # A concurrent request's proof may have used the previous nonce.
            return is_new or not self._is_accepted
        if used != self._token:
            return True  # another request got a new token in the meantime
        if refusal.status == UNAUTHORIZED:
            await self._recover(used, challenge)
            return True
        if challenge is None or challenge.error != "insufficient_scope" or not challenge.scopes:
            return False
        await self._join(("step up", *challenge.scopes), used, partial(self._step_up, challenge))
        return True

    def accept(self, sent: dict[str, str], nonce: str) -> None:
        """Record that the server accepted a token, and the nonce for the next proof."""
        used = sent.get("authorization", "").partition(" ")[2]
        self._is_accepted = self._is_accepted or used == self._token
        if nonce and self._key is not None:
            self._key.nonces[get_origin_of(self._driver.server_url)] = nonce

    # -- recovery ---------------------------------------------------------------------------

    async def _recover(self, used: str, challenge: Challenge | None) -> None:
        try:
            await self._join(("renew", used), used, partial(self._renew, used, challenge))
        except SignInRequired:
            raise  # the user may still sign in, even from another process
        except AuthFault as fault:
            if not fault.is_transient:
                self._fault = fault
            raise

    async def _join(self, purpose: tuple[str, ...], used: str, work: Callable[[], Awaitable[None]]) -> None:
        """Join the recovery in progress for the same purpose, or start it; raise its fault."""
        while (recovery := self._recovery) is not None and recovery.purpose != purpose:
            await recovery.task.wait()
            if used != self._token:
                return
        if recovery is None:
            recovery = self._recovery = _Recovery(purpose, self._finish)
            recovery.task.start(self._run(recovery, work))
        await recovery.outcome.wait()

    async def _run(self, recovery: _Recovery, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            recovery.outcome.settle(None)
        except AuthFault as fault:
            recovery.outcome.fail(fault)
        except Exception as exc:  # noqa: BLE001 — boundary: store and prompt belong to the product
            recovery.outcome.fail(AuthFault(f"signing in failed: {describe_error(exc)}"))

    def _finish(self, recovery: _Recovery) -> None:
        """Make room for the next recovery; if this one was stopped, it fails as transient."""
        recovery.outcome.fail(AuthFault("signing in was stopped", is_transient=True))
        self._recovery = None

    async def _renew(self, used: str, challenge: Challenge | None) -> None:
        """Replace a refused or expired token: with another process's, by a refresh, or by a sign-in."""
        driver = self._driver
        stored = await driver.load()
        tokens = None if stored is None else stored.tokens
        if tokens is not None and tokens.access_token != used and not tokens.is_expired(driver.clock.now_ms()):
            self._adopt(stored, "stored")
            return
        # Don't refresh again if the server refused a new token right away.
        is_useless = bool(used) and not self._is_accepted and self._source != "stored"
        if stored is not None and tokens is not None and tokens.refresh_token is not None and not is_useless:
            try:
                self._adopt(await driver.refresh(stored, self._key), "refreshed")
            except SignInRequired:
                if driver.auth.settings.needs_person and driver.auth.prompt is None:
                    raise
            else:
                return
        if is_useless and self._source == "signed_in":
            raise AuthFault(
                f"{driver.resource} refuses the access token it was just issued; check the scopes and the audience"
            )
        self._adopt(await driver.sign_in(challenge), "signed_in")

    async def _step_up(self, challenge: Challenge) -> None:
        """Sign in again for more scopes."""
        driver, used = self._driver, self._token
        stored = await driver.load()
        tokens = None if stored is None else stored.tokens
        known = set(() if stored is None else stored.requested_scopes)
        if tokens is not None and tokens.access_token != used and known.issuperset(challenge.scopes):
            self._adopt(stored, "stored")  # the user signed in again in another process
            return
        shown = " ".join(challenge.scopes)
        settings = driver.auth.settings
        if settings.scopes is not None:
            raise AuthFault(f"{driver.resource}: it needs the scope {shown!r}; add it to `scopes` in the row's `auth`")
        if known.issuperset(challenge.scopes):
            raise AuthFault(f"{driver.resource}: it needs the scope {shown!r}, which was requested and not granted")
        if settings.needs_person and driver.auth.prompt is None:
            await driver.want_scopes(stored, challenge.scopes)
            raise driver.require_sign_in(f"needs a sign-in for the scope {shown!r}")
        self._step_ups += 1
        if self._step_ups > _STEP_UPS:
            raise AuthFault(f"{driver.resource}: it has asked for more scopes {_STEP_UPS} times; sign in again")
        self._adopt(await driver.sign_in(challenge), "signed_in")

    def _adopt(self, stored: StoredCredentials | None, source: _TokenSource) -> None:
        self._stored, self._source, self._is_loaded, self._is_accepted = stored, source, True, False
        key = None if stored is None else stored.dpop_key
        if key is None:
            self._key = None
        elif self._key is None or self._key.to_json() != key:
            self._key = ProofKey(key)

    async def close(self) -> None:
        """Cancel a recovery in progress, after saving a refresh that was already sent."""
        if self._recovery is not None:
            task = self._recovery.task
            task.cancel()
            await task.join()


class _Recovery:
    """A recovery in progress."""

    def __init__(self, purpose: tuple[str, ...], on_end: Callable[[_Recovery], None]) -> None:
        self.purpose = purpose
        self.outcome = Attempt[None]()
        self.task = BackgroundTask("renew a token", partial(on_end, self))


# -- on behalf of clients ---------------------------------------------------------------------
#
# Token exchange (https://www.rfc-editor.org/rfc/rfc8693): a call for a client of a gateway carries a token that the
# issuer issued for this server in exchange for the client's access token, which goes to that issuer and nowhere else.
# The row must name the issuer, and it must be the issuer of the client's token: a server can't send tokens to an issuer
# of its choice. Handshakes and listings use the gateway's own credentials.


_EXCHANGED = 1_024
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
        """Build a request's `Authorization` header: for its client, or our own."""
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
        """Return whether to retry a refused request: once, with a newly exchanged token."""
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
            raise AuthFault(f"{self._driver.resource} refuses the token exchanged for its client's")
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
