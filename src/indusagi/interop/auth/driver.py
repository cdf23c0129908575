"""Signs in to a server: runs the procedures of `machine` on the guarded HTTP client, a store and a prompt.

Requests to issuers go through the guarded client, which only connects to checked addresses: a server on
the open web can't make us send requests into the user's network. An issuer at a private address is reachable if the
server is at one too, or if the user named the issuer. Requests with a body never follow redirects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio

from indusagi.core.tasks import run_shielded
from indusagi.core.time import SYSTEM_CLOCK, Clock
from indusagi.interop.auth.contract import (
    AuthFault,
    AuthSettings,
    CredentialStore,
    ResourceKind,
    ServerAuth,
    SignInPrompt,
    SignInRequired,
    StoredCredentials,
    TokenSet,
)
from indusagi.interop.auth.machine import SignInRequest, build_token_client, refresh, revoke, sign_in
from indusagi.interop.auth.metadata import IssuerMetadata, canonical_resource, get_origin_of, split_address
from indusagi.interop.auth.requests import AuthIO, Challenge, HttpReply, find_oauth_challenge, parse_challenges
from indusagi.interop.auth.secrets import SecretFault, reveal_value
from indusagi.interop.auth.token_endpoint import ProofKey, exchange_subject
from indusagi.net.address import PRIVATE_KINDS, FetchError, HttpPolicy, classify_address
from indusagi.net.client import CrossSiteRedirect, WebClient, WebRequest
from indusagi.net.dial import system_resolver

_BODY_BYTES = 1024 * 1024
_REQUEST_S = 20.0
_RESOLVE_S = 5.0
_METADATA_REDIRECTS = 3


class AuthDriver(AuthIO):
    """Signs in to one server, refreshes and signs out.

    Args:
        server_url: Where tokens are sent.
        auth: How to sign in, and where to store sign-ins.
        name: Configured name, for messages.
        kind: What the name refers to.
        issuer: The issuer, if known without discovery.
        proxy: Proxy for requests to the issuer.
        clock: Decides whether tokens have expired.
    """

    def __init__(
        self,
        server_url: str,
        auth: ServerAuth,
        *,
        name: str,
        kind: ResourceKind = "server",
        issuer: IssuerMetadata | None = None,
        proxy: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.server_url = server_url
        self.resource = canonical_resource(server_url)
        self.auth = auth
        self.clock = clock
        self._name = name
        self._kind: ResourceKind = kind
        self._issuer = issuer
        self._proxy = proxy
        self._is_server_private: bool | None = None

    async def load(self) -> StoredCredentials | None:
        """Load the last sign-in to the server."""
        return await self.auth.store.load(self.resource, self.auth.settings.client_id)

    def require_sign_in(self, problem: str = "needs a sign-in") -> SignInRequired:
        """Build the fault that sends the user to the command."""
        return SignInRequired(self._name, problem, self._kind, self.auth.remedy)

    async def find_challenge(self) -> Challenge | None:
        """Send the server a request without credentials and return its challenge, if any."""
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        reply = await self.send(self.server_url, headers, ping)
        return find_oauth_challenge(parse_challenges([reply.headers.get("www-authenticate", "")]))

    async def sign_in(self, challenge: Challenge | None = None) -> StoredCredentials:
        """Sign in with the configured grant, and save.

        Raises:
            SignInRequired: It takes the user, and there is no prompt.
            AuthFault: It failed.
        """
        if self.auth.settings.needs_person:
            self.require_prompt()
        stored = await self.load()
        request = SignInRequest(
            server_url=self.server_url,
            settings=await self._read_settings(),
            clock=self.clock,
            challenge=challenge,
            previous_issuer="" if stored is None else stored.key.issuer,
            issuer=self._issuer,
        )
        return await sign_in(self, request)

    async def refresh(self, stored: StoredCredentials, key: ProofKey | None = None) -> StoredCredentials:
        """Refresh a sign-in once across all processes, and save.

        Takes the store's lock, then reads the store again: if another process has just refreshed, returns its tokens.
        The request and the save complete even if the caller is cancelled, since an issuer that rotates refresh tokens
        has already replaced the old one.

        Raises:
            SignInRequired: The sign-in is gone, or the issuer answered `invalid_grant`.
            AuthFault: The issuer couldn't be reached, or refused for another reason; the sign-in stays.
        """
        store, used = self.auth.store, stored.tokens
        async with store.lock(stored.key):
            current = await store.find(stored.key)
            if current is None or (tokens := current.tokens) is None:
                raise self.require_sign_in()
            is_newer = used is None or tokens.access_token != used.access_token
            if is_newer and not tokens.is_expired(self.clock.now_ms()):
                return current
            if tokens.refresh_token is None:
                raise self.require_sign_in("needs another sign-in")
            return await run_shielded(self._refresh(current, tokens, key), "refresh a sign-in")

    async def _refresh(self, current: StoredCredentials, tokens: TokenSet, key: ProofKey | None) -> StoredCredentials:
        if key is None and current.dpop_key is not None:
            key = ProofKey(current.dpop_key)
        try:
            return await refresh(self, current, tokens, await self._read_settings(), self.clock, key)
        except AuthFault as fault:
            is_gone = fault.error == "invalid_client" and current.registration.source == "dynamic"
            if fault.is_transient or (fault.error != "invalid_grant" and not is_gone):
                raise
            # The refresh token has expired: don't try it again.
            await self.auth.store.save(replace(current, tokens=replace(tokens, refresh_token=None)))
            raise self.require_sign_in("needs another sign-in: the last one has ended") from fault

    async def want_scopes(self, stored: StoredCredentials | None, scopes: Sequence[str]) -> None:
        """Save additional scopes for the next sign-in to request."""
        if stored is None:
            return
        # Read again under the lock: another process may have replaced the tokens.
        async with self.auth.store.lock(stored.key):
            current = await self.auth.store.find(stored.key)
            if current is not None and not set(current.wanted_scopes).issuperset(scopes):
                wanted = tuple(dict.fromkeys((*current.wanted_scopes, *scopes)))
                await self.auth.store.save(replace(current, wanted_scopes=wanted))

    async def exchange(self, stored: StoredCredentials, subject: str) -> TokenSet:
        """Exchange an access token for one for this server, as a sign-in's client, without saving it.

        Raises `AuthFault` if the issuer refused, or couldn't be reached.
        """
        client = build_token_client(self, stored, await self._read_settings(), self.clock, None)
        return (await exchange_subject(client, subject, stored.endpoints.indicator)).tokens

    async def sign_out(self) -> bool:
        """Revoke and delete every sign-in to the server; return whether the issuers confirmed each revocation."""
        client, confirmed = self.auth.settings.client_id, True
        for stored in await self.auth.store.list_credentials():
            if (stored.key.resource, stored.key.client) == (self.resource, client):
                if stored.tokens is not None:
                    try:
                        confirmed = await revoke(self, stored, await self._read_settings(), self.clock) and confirmed
                    except AuthFault:
                        confirmed = False
                await self.auth.store.delete(stored.key)
        return confirmed

    # -- AuthIO -----------------------------------------------------------------------------

    @property
    def store(self) -> CredentialStore:
        """Where sign-ins are stored."""
        return self.auth.store

    def require_prompt(self) -> SignInPrompt:
        """Return the way to the user; raises `SignInRequired` without one."""
        if self.auth.prompt is None:
            raise self.require_sign_in()
        return self.auth.prompt

    async def pause(self, seconds: float) -> None:
        """Wait before the next request."""
        await anyio.sleep(seconds)

    async def send(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> HttpReply:
        """Send a request to an issuer or the server."""
        target = split_address(url)
        host = target.hostname or ""
        own = (host,) if await self._may_be_private(host) else ()
        policy = HttpPolicy(
            allow_private=own,
            ports=(target.port or 443, 80, 443),
            redirects=_METADATA_REDIRECTS if body is None else 0,
            hard_bytes=_BODY_BYTES,
            total_s=_REQUEST_S,
            proxy=self._proxy,
        )
        method = "GET" if body is None else "POST"
        request = WebRequest(url, method=method, headers=headers, body=body, follow="origin")
        try:
            response = await WebClient(policy).send(request)
        except FetchError as exc:
            origin = get_origin_of(url)
            if exc.code in {"denied", "unsupported"}:
                problem = "it is at a private address, and the server is not; if that is right, set `issuer` in `auth`"
                if exc.facts.get("reason") not in {"address", "name"}:
                    problem = "its address cannot be used"
                raise AuthFault(f"{origin}: {problem}") from exc
            problem = "it did not answer in time" if exc.code == "timeout" else "it could not be reached"
            return HttpReply(0, problem=problem)
        if isinstance(response, CrossSiteRedirect):
            return HttpReply(response.status)
        return HttpReply(response.status, response.headers, response.body)

    async def _read_settings(self) -> AuthSettings:
        """Return the settings with the secrets that they refer to, for one request; raises `AuthFault` without one."""
        settings, provider = self.auth.settings, self.auth.settings.identity_provider
        try:
            names = ("client_secret", "private_key", "assertion")
            settings = replace(settings, **await reveal_value({name: getattr(settings, name) for name in names}))
            if provider is not None:
                values = {name: getattr(provider, name) for name in ("client_secret", "id_token")}
                settings = replace(settings, identity_provider=replace(provider, **await reveal_value(values)))
        except SecretFault as exc:
            raise AuthFault(f"{self.resource}: {exc}", is_transient=True) from exc
        if not settings.assertion_file:
            return settings
        try:
            text = await anyio.Path(settings.assertion_file).read_text("ascii")
        except (OSError, UnicodeError) as exc:
            message = f"{settings.assertion_file}: the assertion cannot be read: {exc}"
            raise AuthFault(message, is_transient=True) from exc
        return replace(settings, assertion=text.strip())

    async def _may_be_private(self, host: str) -> bool:
        settings = self.auth.settings
        provider = settings.identity_provider
        named = (settings.issuer, settings.metadata_url, "" if provider is None else provider.token_endpoint)
        if host in {split_address(url).hostname for url in (self.server_url, *named) if url}:
            return True
        if self._is_server_private is None:
            self._is_server_private = await _is_private(self.server_url)
        return self._is_server_private


async def _is_private(url: str) -> bool:
    """Return whether a URL points into a private network or to this machine."""
    parts = split_address(url)
    try:
        with anyio.fail_after(_RESOLVE_S):
            addresses = await system_resolver(parts.hostname or "", parts.port or 443)
    except (OSError, UnicodeError, TimeoutError):
        return False
    return any(classify_address(address) in PRIVATE_KINDS for address in addresses)
