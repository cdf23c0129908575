"""Sign-ins of browsers at issuers, whose redirects arrive at the page.

A redirect counts once, within its deadline, and only in the browser that started the sign-in: its `state` is bound to
that browser's cookie. So nobody can finish a sign-in for someone else, or make someone finish theirs.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from indusagi.core.tasks import BackgroundTask
from indusagi.core.time import SYSTEM_CLOCK
from indusagi.interop.auth.callback import read_redirect, read_state
from indusagi.interop.auth.contract import SIGN_IN_WAIT_S, AuthFault, AuthSettings, ServerAuth
from indusagi.interop.auth.storage import MemoryCredentialStore
from indusagi.interop.protocol_bridge.host.auth.resource import IssuerError, TokenRefusal
from indusagi.interop.protocol_bridge.host.identity import LIST_SCOPE

if TYPE_CHECKING:
    from indusagi.interop.auth.contract import DeviceCode, RedirectReceiver, StoredCredentials
    from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource
    from indusagi.interop.protocol_bridge.host.auth.verifier import TokenVerifier
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

_START_S: Final = 30.0
"""How long an issuer may take to provide the sign-in address."""
_END_S: Final = 30.0
"""How long it may take to exchange a code."""
_MOST: Final = 1_024
"""Above this, a new sign-in ends the oldest one that waits."""


class BrowserSignIn:
    """One sign-in; a `SignInPrompt` and its `RedirectReceiver`."""

    def __init__(self, redirect_uri: str, browser: bytes, target: str) -> None:
        self.redirect_uri = redirect_uri
        self.browser = browser
        """Digest of the cookie of the browser that started it."""
        self.target = target
        """Where the browser continues on this site."""
        self.url = ""
        """Where it signs in; empty if it ended before."""
        self.state = ""
        self.identity: ClientIdentity | None = None
        """Whom it signs in to the page; `None` for a sign-in to a server."""
        self.problem = ""
        """Why it failed."""
        self.known = asyncio.Event()
        """Set once `url` is known, or it has ended."""
        self.task = BackgroundTask("sign-in of a browser", self.known.set)
        self._received: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def open_redirect(
        self, settings: AuthSettings, registered: Sequence[str]
    ) -> AsyncGenerator[RedirectReceiver]:
        """Receive the redirect at the page, whatever the row says: that's for sign-ins of the operator."""
        yield self

    async def show_device_code(self, code: DeviceCode) -> None:
        """Refuse: anyone could enter the code, and someone else's sign-in would be stored."""
        raise AuthFault("a sign-in by a code on another device is not possible here")

    async def authorize(self, url: str) -> Mapping[str, str]:
        """Show the address to the browser, and wait for its redirect."""
        self.state, self.url = read_state(url), url
        self.known.set()
        try:
            async with asyncio.timeout(SIGN_IN_WAIT_S):
                return await self._received
        except TimeoutError:
            raise AuthFault("the sign-in took too long: start it again") from None

    def receive(self, values: Mapping[str, str]) -> None:
        """Continue with the redirect's values."""
        if not self._received.done():
            self._received.set_result(values)


class BrowserSignIns:
    """The sign-ins that wait for a redirect to `redirect_uri`."""

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self._waiting: dict[str, BrowserSignIn] = {}
        """By state, oldest first."""

    async def start(
        self, browser: bytes, target: str, run: Callable[[BrowserSignIn], Awaitable[None]]
    ) -> BrowserSignIn:
        """Start a sign-in that `run` performs, and wait until its address is known; raises `AuthFault` if it isn't."""
        signing = BrowserSignIn(self.redirect_uri, browser, target)

        async def work() -> None:
            try:
                await run(signing)
            except AuthFault as exc:
                signing.problem = str(exc)
            except (IssuerError, TokenRefusal) as exc:
                signing.problem = f"the issuer can't sign you in: {exc}"
            finally:
                self._waiting.pop(signing.state, None)

        signing.task.start(work())
        try:
            async with asyncio.timeout(_START_S):
                await signing.known.wait()
        except TimeoutError:
            signing.problem = "the issuer does not answer"
        if signing.problem or not signing.url:
            signing.task.cancel()
            raise AuthFault(signing.problem or "the sign-in ended")
        while len(self._waiting) >= _MOST:
            self._waiting.pop(next(iter(self._waiting))).task.cancel()
        self._waiting[signing.state] = signing
        return signing

    async def finish(self, request: HttpRequest, browsers: Sequence[bytes]) -> BrowserSignIn:
        """Finish the sign-in that a redirect belongs to, in the browser with one of these cookies.

        Raises `AuthFault` if there's none, it belongs to another browser, or it failed.
        """
        state = dict(parse_qsl(request.query)).get("state", "")
        signing = self._waiting.get(state)
        target = f"{request.path}?{request.query}"
        values = None if signing is None else read_redirect(target, request.path, signing.state)
        if signing is None or values is None:
            raise AuthFault("this sign-in has ended, or was never started: start it again")
        if not any(hmac.compare_digest(signing.browser, browser) for browser in browsers):
            raise AuthFault("this sign-in was started in another browser, or by someone else: start it here")
        del self._waiting[state]
        signing.receive(values)
        if not await signing.task.join(_END_S):
            signing.task.cancel()
            raise AuthFault("the issuer does not answer")
        if signing.problem:
            raise AuthFault(signing.problem)
        return signing

    async def aclose(self) -> None:
        """End all sign-ins."""
        for signing in [*self._waiting.values()]:
            signing.task.cancel()
            await signing.task.join()


class _Registrations(MemoryCredentialStore):
    """Remembers our registration at the issuer, and nobody's tokens."""

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a registration."""
        await super().save(replace(credentials, tokens=None, dpop_key=None))


class IssuerLogin:
    """Signs browsers in to the page: each gets a token for this host, and is whom the token names."""

    def __init__(self, resource: ProtectedResource, verifier: TokenVerifier) -> None:
        self.issuer = resource.settings.issuer
        self.is_encrypted = resource.origin.startswith("https:")
        self._resource, self._verifier = resource, verifier
        self._store = _Registrations()

    async def sign_in(self, signing: BrowserSignIn) -> None:
        """Get a token as the browser's user, and find out who that is."""
        from indusagi.interop.auth.driver import AuthDriver  # noqa: PLC0415 — for a browser that signs in
        from indusagi.interop.auth.machine import SignInRequest, sign_in  # noqa: PLC0415 — as above
        from indusagi.interop.auth.metadata import ResourceMetadata, parse_issuer_metadata  # noqa: PLC0415 — as above

        wanted, url = self._resource.settings, self._resource.url
        metadata = parse_issuer_metadata(await self._verifier.read_metadata(), self.issuer)
        settings = AuthSettings(
            client_id=wanted.page_client.client_id,
            client_secret=wanted.page_client.client_secret,
            issuer=self.issuer,
            scopes=(LIST_SCOPE,),
            dpop=wanted.requires_dpop,
        )
        auth = ServerAuth(settings=settings, store=self._store, prompt=signing)
        request = SignInRequest(
            server_url=url,
            settings=settings,
            clock=SYSTEM_CLOCK,
            issuer=replace(metadata, scopes=()),  # no refresh token: the sign-in ends with its cookie
            resource=ResourceMetadata(resource=url, issuers=(self.issuer,)),
        )
        stored = await sign_in(AuthDriver(url, auth, name="indus"), request)
        if stored.tokens is not None:
            signing.identity = await self._verifier.identify(stored.tokens.access_token)
