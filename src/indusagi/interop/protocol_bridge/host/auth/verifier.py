"""Verifies access tokens and identifies their clients.

A verified token is cached by digest until it expires. A new token's signature is verified with the issuer's cached
keys. Both happen right in the event loop. Only a token with an unknown key, or one that needs introspection, waits for
the issuer, and the number of requests to the issuer is bounded whatever clients send.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, urlencode, urlsplit

import anyio

from indusagi.core.faults import Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object, parse_strict_json
from indusagi.core.records import record
from indusagi.core.time import SYSTEM_CLOCK, Clock
from indusagi.interop.auth.metadata import build_issuer_metadata_urls
from indusagi.interop.protocol_bridge.host.auth.proofs import (
    InvalidSignature,
    NonceSource,
    ProofChecker,
    import_key,
    is_key_for,
    parse_signed,
    verify_signed,
)
from indusagi.interop.protocol_bridge.host.auth.resource import ALGORITHMS, IssuerError, TokenRefusal
from indusagi.interop.protocol_bridge.host.boundary import log_failure
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.net.address import FetchError, HttpPolicy

if TYPE_CHECKING:
    from joserfc.jwk import Key

    from indusagi.interop.protocol_bridge.host.auth.proofs import SignedText
    from indusagi.interop.protocol_bridge.host.auth.resource import (
        IntrospectionClient,
        PresentedToken,
        ProtectedResource,
        ResourceSettings,
    )


# -- issuers ---------------------------------------------------------------------------------------
#
# The operator names the issuer. Everything else comes from its metadata document, fetched with the guarded HTTP client
# without redirects: a document can't lead into this machine's private network.


_DOCUMENT_BYTES = 512 * 1024
_MAX_KEYS = 64
_HTTP_OK = 200
_HTTP_NOT_FOUND = 404


class KeySet:
    """An issuer's public keys at one moment (JWKS, RFC 7517 §5)."""

    def __init__(self, document: JsonObject) -> None:
        self.rows: list[JsonObject] = []
        """Keys usable for verification; others are skipped (RFC 7517 §5)."""
        self._keys: list[Key] = []
        rows = document.get("keys")
        for row in (rows if isinstance(rows, list) else [])[:_MAX_KEYS]:
            key = import_key(row) if is_json_object(row) else None
            if key is not None and is_json_object(row):
                self.rows.append(row)
                self._keys.append(key)

    def find(self, key_id: str | None, algorithm: str) -> Key | None:
        """Find the key with an id that fits an algorithm; without an id, the only key that fits."""
        fitting = [
            key
            for row, key in zip(self.rows, self._keys, strict=True)
            if is_key_for(row, algorithm) and (key_id is None or row.get("kid") == key_id)
        ]
        return fitting[0] if len(fitting) == 1 else None


class IssuerClient:
    """Sends requests to an issuer."""

    def __init__(self, settings: ResourceSettings) -> None:
        from indusagi.net.address import parse_url  # noqa: PLC0415 — for hosts with access tokens
        from indusagi.net.client import WebClient  # noqa: PLC0415 — for hosts with access tokens

        self.issuer = settings.issuer
        target = parse_url(settings.issuer)
        # The operator named the issuer, so it may be in a private network; no other host may.
        policy = HttpPolicy(
            allow_private=(target.server,),
            ports=(443, target.port),
            redirects=0,
            hard_bytes=_DOCUMENT_BYTES,
            total_s=settings.fetch_s,
            connect_s=settings.fetch_s,
        )
        self._web = WebClient(policy)
        self._metadata: JsonObject | None = None

    async def fetch_metadata(self) -> JsonObject:
        """Fetch the issuer's metadata: RFC 8414 §3, else OpenID Connect Discovery 1.0 §4.

        Raises `IssuerError` if there is none, or it describes another issuer.
        """
        addresses = build_issuer_metadata_urls(self.issuer)
        for address in addresses:
            document = await self._request(address, may_miss=True)
            if document is None:
                continue
            if document.get("issuer") != self.issuer:
                # https://www.rfc-editor.org/rfc/rfc8414#section-3.3
                message = f"its metadata names another issuer: {str(document.get('issuer'))[:200]!r}"
                raise IssuerError(f"{message}; start with exactly that one, or with the right server")
            self._metadata = document
            return document
        raise IssuerError(f"there is no metadata document at {addresses[0]} or the places of OpenID Connect")

    async def read_metadata(self) -> JsonObject:
        """Return the metadata as last fetched, or fetch it; raise like `fetch_metadata`."""
        return self._metadata or await self.fetch_metadata()

    async def fetch_keys(self) -> KeySet:
        """Fetch the issuer's keys from the place in its current metadata; raise `IssuerError` without a usable one."""
        await self.fetch_metadata()
        keys = KeySet(await self._request(await self._find_endpoint("jwks_uri")) or {})
        if not keys.rows:
            raise IssuerError(f"it has no public key for any of {', '.join(ALGORITHMS)}")
        return keys

    async def introspect(self, token: str, client: IntrospectionClient) -> JsonObject:
        """Ask the issuer about a token (RFC 7662 §2); raise `IssuerError` if it doesn't answer."""
        endpoint = await self._find_endpoint("introspection_endpoint")
        # RFC 6749 §2.3.1: encode both parts before joining them.
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        body = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        try:
            return await self._request(endpoint, headers=headers, body=body) or {}
        except IssuerError:
            self._metadata = None  # the endpoint may have moved
            raise

    async def _find_endpoint(self, name: str) -> str:
        value = (await self.read_metadata()).get(name)
        if not isinstance(value, str):
            raise IssuerError(f"its metadata has no {name}")
        try:
            parts = urlsplit(value)
            is_address = bool(parts.hostname) and parts.port != 0 and value.isprintable()
        except ValueError:
            parts, is_address = urlsplit(""), False
        if not is_address or parts.scheme not in {"http", "https"}:
            raise IssuerError(f"its {name} is not an address: {value[:200]!r}")
        if parts.scheme != "https" and parts.netloc != urlsplit(self.issuer).netloc:
            raise IssuerError(f"its {name} is not encrypted")
        return value

    async def _request(
        self, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None, may_miss: bool = False
    ) -> JsonObject | None:
        from indusagi.net.client import CrossSiteRedirect, WebRequest  # noqa: PLC0415 — with the client

        method = "GET" if body is None else "POST"
        accepted = {"Accept": "application/json", **(headers or {})}
        request = WebRequest(url, method, headers=accepted, body=body, follow="origin")
        try:
            response = await self._web.send(request)
        except (FetchError, ValueError) as exc:
            raise IssuerError(describe_error(exc)) from exc
        if isinstance(response, CrossSiteRedirect):
            raise IssuerError(f"{url} leads to another address, which is not followed")
        if response.status == _HTTP_NOT_FOUND and may_miss:
            return None
        if response.status != _HTTP_OK or response.cut is not None:
            raise IssuerError(f"{url} answered with status {response.status}")
        try:
            document = parse_strict_json(response.body)
        except ValueError as exc:
            raise IssuerError(f"{url} is not valid JSON: {exc}") from None
        if not is_json_object(document):
            raise IssuerError(f"{url} is not a JSON object")
        return document


# -- tokens ----------------------------------------------------------------------------------


_KNOWN_TOKENS = 4_096
_IDENTITIES = 4_096
_RETRY_S = 5.0
"""Minimum time between two attempts while we have no keys at all."""
_MIN_PAUSE_S = 1.0
_INTROSPECTIONS = 32
"""Introspection requests that may wait for the issuer at the same time."""
_MAX_KEY_ID_CHARS = 256


class IssuerKeys:
    """Cached JWKS of an issuer, refreshed periodically and (rate-limited) on unknown key ids."""

    def __init__(self, settings: ResourceSettings, client: IssuerClient) -> None:
        self.keys: KeySet | None = None
        self.failure = "it was not reached yet"
        """Why the last fetch failed; empty if it succeeded."""
        self._settings = settings
        self._client = client
        self._lock = anyio.Lock()
        self._fetched_at = 0.0
        self._tried_at = -float("inf")

    async def fetch(self, *, is_forced: bool = False) -> None:
        """Fetch the keys, unless tried just before; concurrent callers share one fetch."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            pause_s = self._settings.refetch_s
            if self.keys is None:
                pause_s = min(pause_s, _RETRY_S)
            if not is_forced and loop.time() - self._tried_at < pause_s:
                return
            self._tried_at = loop.time()
            try:
                fetched = await self._client.fetch_keys()
            except Exception as exc:  # noqa: BLE001 — boundary: keep the old keys, whatever the issuer sends
                if not isinstance(exc, IssuerError):
                    log_failure(f"fetching the keys of {self._settings.issuer}", exc)
                self.failure = describe_error(exc)
                if loop.time() - self._fetched_at > self._settings.stale_s:
                    self.keys = None  # the issuer may have withdrawn them
                return
            self.failure, self._fetched_at = "", loop.time()
            if self.keys is None or self.keys.rows != fetched.rows:
                self.keys = fetched  # so tokens verified with the old keys are verified again


@dataclass(slots=True, eq=False)
class KnownToken:
    """A verified token, for as long as it needs no other check."""

    token: AccessToken
    keys: KeySet | None
    """Keys that verified it; None if introspected."""
    expires_at: float
    """Including leeway."""
    known_until: float
    is_reported: bool = False
    """Whether `on_identity` has had its identity."""


class TokenVerifier:
    """Verifies the access tokens of requests."""

    def __init__(self, settings: ResourceSettings, resource: ProtectedResource, clock: Clock = SYSTEM_CLOCK) -> None:
        self.nonces = NonceSource() if settings.requires_nonce else None
        self.proofs = ProofChecker(settings.leeway_s, self.nonces)
        self._settings = settings
        self._resource = resource
        self._clock = clock
        self._client = IssuerClient(settings)
        self._issuer_keys = IssuerKeys(settings, self._client)
        self._known: OrderedDict[bytes, KnownToken] = OrderedDict()
        """Verified tokens by digest, least recently used first."""
        self._identities: OrderedDict[ClientIdentity, None] = OrderedDict()
        """Identities already reported."""
        self._introspecting = 0

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._clock.now_ms() / 1000

    async def watch(self) -> None:
        """Fetch metadata and keys now and then periodically, until cancelled."""
        reported = ""
        while True:
            failure = await self._refresh()
            if failure and failure != reported and self._settings.on_note is not None:
                remedy = "requests with a token get 503 meanwhile; it is tried again"
                self._settings.on_note(Note(f"issuer {self._settings.issuer}", failure, remedy))
            reported = failure
            pause_s = self._settings.refetch_s if failure else self._settings.refresh_s
            await anyio.sleep(max(pause_s, _MIN_PAUSE_S))

    async def _refresh(self) -> str:
        """Fetch keys or metadata; return the reason if that failed."""
        if self._settings.introspection is None:
            await self._issuer_keys.fetch(is_forced=True)
            return self._issuer_keys.failure
        try:
            await self._client.fetch_metadata()
        except IssuerError as exc:
            return str(exc)
        return ""

    def check_known(self, presented: PresentedToken, method: str, path: str) -> ClientIdentity | None:
        """Check a token like `check`, but without waiting; return None if that takes a request to the issuer."""
        known = self._find_known(presented.token)
        if known is None and self._settings.introspection is None:
            known = self._verify(presented.token)
        return None if known is None else self._check_use(known, presented, method, path)

    async def check(self, presented: PresentedToken, method: str, path: str) -> ClientIdentity:
        """Check a token, asking the issuer if necessary.

        Raises `TokenRefusal` if it's invalid, or the issuer doesn't answer (`unavailable`), and `ProofLimitError` if
        the client sent too many proofs.
        """
        return self._check_use(await self._ask_issuer(presented.token), presented, method, path)

    async def identify(self, token: str) -> ClientIdentity:
        """Return the identity of a token that the issuer has just issued to us; raises `TokenRefusal` like `check`."""
        return (await self._ask_issuer(token)).token.identity

    async def read_metadata(self) -> JsonObject:
        """Return the issuer's metadata, fetching it if necessary; raise `IssuerError` if there is none."""
        return await self._client.read_metadata()

    async def _ask_issuer(self, text: str) -> KnownToken:
        client = self._settings.introspection
        if client is not None:
            return await self._introspect(text, client)
        await self._issuer_keys.fetch()
        if self._issuer_keys.keys is None:
            raise TokenRefusal("unavailable", "the keys of the issuer cannot be fetched at the moment")
        known = self._verify(text)
        if known is None:
            raise TokenRefusal("invalid_token", "the issuer has no such key (kid)")
        return known

    # -- tokens ---------------------------------------------------------------------------------

    def _find_known(self, text: str) -> KnownToken | None:
        """Find a token verified with the current keys. Most requests need nothing else."""
        digest = hashlib.sha256(text.encode("ascii")).digest()
        known = self._known.get(digest)
        if known is None:
            return None
        now = self.now
        if known.expires_at <= now:
            raise TokenRefusal("invalid_token", "it has expired (exp)")
        if known.keys is not self._issuer_keys.keys or known.known_until <= now:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return known

    def _remember(self, text: str, token: AccessToken, known_s: float) -> KnownToken:
        if not token.identity.has_any_scope:
            raise TokenRefusal("insufficient_scope", "it has no scope of this server")
        expires_at = token.expires_at + self._settings.leeway_s
        known = KnownToken(token, self._issuer_keys.keys, expires_at, self.now + known_s)
        self._known[hashlib.sha256(text.encode("ascii")).digest()] = known
        if len(self._known) > _KNOWN_TOKENS:
            self._known.popitem(last=False)
        return known

    def _verify(self, text: str) -> KnownToken | None:
        """Verify a JWT with the cached keys; return None if they include no key for it."""
        try:
            signed = parse_signed(text)
            check_type(signed, self._settings)
            keys, key_id = self._issuer_keys.keys, signed.header.get("kid")
            if key_id is not None and (not isinstance(key_id, str) or len(key_id) > _MAX_KEY_ID_CHARS):
                raise InvalidSignature("its key has no usable name (kid)")
            key = None if keys is None else keys.find(key_id, signed.algorithm)
            if key is not None:
                verify_signed(signed, key)
        except InvalidSignature as exc:
            raise TokenRefusal("invalid_token", str(exc)) from None
        # Check claims even without a key, to refuse other issuers' tokens without a request to ours.
        audiences = self._resource.audiences
        token = check_claims(signed.payload, self._settings, audiences, self.now, is_introspected=False)
        return None if key is None else self._remember(text, token, math.inf)

    async def _introspect(self, text: str, client: IntrospectionClient) -> KnownToken:
        if self._introspecting >= _INTROSPECTIONS:
            raise TokenRefusal("unavailable", "too many tokens wait for the issuer")
        self._introspecting += 1
        try:
            answer = await self._client.introspect(text, client)
        except IssuerError:
            raise TokenRefusal("unavailable", "the issuer does not answer at the moment") from None
        finally:
            self._introspecting -= 1
        if answer.get("active") is not True:
            raise TokenRefusal("invalid_token", "it is not active")
        token = check_claims(answer, self._settings, self._resource.audiences, self.now, is_introspected=True)
        return self._remember(text, token, self._settings.introspected_s)

    # -- use ------------------------------------------------------------------------------------

    def _check_use(self, known: KnownToken, presented: PresentedToken, method: str, path: str) -> ClientIdentity:
        """Check that the token's owner presents it; report the first use of an identity."""
        bound_to, identity = known.token.thumbprint, known.token.identity
        if bound_to is None:
            if presented.is_dpop or self._settings.requires_dpop:
                raise TokenRefusal("invalid_token", "it is not bound to a key (cnf)")
        else:
            if not presented.is_dpop:
                # https://www.rfc-editor.org/rfc/rfc9449#section-7.2
                raise TokenRefusal("invalid_token", "it is bound to a key: use the scheme DPoP")
            url = self._resource.build_url(path)
            self.proofs.check(presented.proofs, presented.token, bound_to, method, url, self.now)
        if not known.is_reported:
            known.is_reported = True
            if identity not in self._identities:
                self._identities[identity] = None
                if len(self._identities) > _IDENTITIES:
                    self._identities.popitem(last=False)
                if self._settings.on_identity is not None:
                    self._settings.on_identity(identity)
        return identity


# -- claims -----------------------------------------------------------------------------------
#
# Pure functions. The JWT's signature was verified, or the issuer sent the claims, before these run.


ACCESS_TYPES = frozenset({"at+jwt", "application/at+jwt"})
_PLAIN_TYPES = frozenset({"jwt", ""})
_MAX_NAME_CHARS = 255
"""Limit for a subject: https://openid.net/specs/openid-connect-core-1_0.html#IDToken."""
_MAX_SCOPES = 256


@record
class AccessToken:
    """A token valid for this host."""

    identity: ClientIdentity
    expires_at: float
    """Seconds since 1970, without leeway."""
    thumbprint: str | None = None
    """Thumbprint of the client key it's bound to (`cnf.jkt`, RFC 9449 §6.1); None: any bearer may use it."""


def check_type(signed: SignedText, settings: ResourceSettings) -> None:
    """Refuse a JWT that isn't an access token: an ID token must not serve as one (RFC 9068 §4)."""
    value = signed.header.get("typ", "")
    kind = value.lower() if isinstance(value, str) else None
    if kind not in ACCESS_TYPES and not (settings.accepts_any_type and kind in _PLAIN_TYPES):
        raise TokenRefusal("invalid_token", "its type is not at+jwt")


def check_claims(
    claims: JsonObject, settings: ResourceSettings, audiences: Mapping[str, str], now: float, *, is_introspected: bool
) -> AccessToken:
    """Check a token's issuer, audience and lifetime, and read its identity; a `TokenRefusal` names the claim."""
    leeway = settings.leeway_s
    # The issuer may leave its own name out of an introspection response.
    if claims.get("iss", settings.issuer if is_introspected else None) != settings.issuer:
        raise TokenRefusal("invalid_token", "it was issued by another issuer (iss)")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    views = {audiences[name] for name in named if isinstance(name, str) and name in audiences}
    if not views:
        raise TokenRefusal("invalid_token", "it was issued for another server (aud)")
    expires_at = _read_time(claims, "exp")
    if expires_at is None:
        raise TokenRefusal("invalid_token", "it has no end (exp)")
    if expires_at + leeway <= now:
        raise TokenRefusal("invalid_token", "it has expired (exp)")
    for name in ("nbf", "iat"):
        begins_at = _read_time(claims, name)
        if begins_at is not None and begins_at - leeway > now:
            raise TokenRefusal("invalid_token", f"it is not valid yet ({name})")
    client_id = _read_name(claims, "client_id") or _read_name(claims, "azp")
    # RFC 9068 §2.2: a client acting for itself is its own subject. Introspection may omit that.
    subject = _read_name(claims, "sub") or (client_id if is_introspected else "")
    if not subject:
        raise TokenRefusal("invalid_token", "it has no subject (sub)")
    owner, view = hashlib.sha256(compact_json([settings.issuer, subject, client_id]).encode()).digest(), min(views)
    identity = ClientIdentity(
        owner=owner + f"/v/{view}".encode() if view else owner,  # as at the path of the view
        principal=subject,
        user=compact_json([settings.issuer, subject]),
        client_id=client_id,
        scopes=_read_scopes(claims),
        credential="principal",
        view=view,
    )
    return AccessToken(identity, expires_at, _read_thumbprint(claims))


def _read_time(claims: JsonObject, name: str) -> float | None:
    """Read a NumericDate (RFC 7519 §2), refusing the token if it isn't a number."""
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12 or math.isnan(value):
        raise TokenRefusal("invalid_token", f"its {name} is not a time")
    return float(value)


def _read_name(claims: JsonObject, name: str) -> str:
    """Read a name for rules and records: printable ASCII, so that no two names look alike."""
    value = claims.get(name, "")
    if not isinstance(value, str) or len(value) > _MAX_NAME_CHARS or not (value.isascii() and value.isprintable()):
        raise TokenRefusal("invalid_token", f"its {name} is not a name")
    if value != value.strip():
        raise TokenRefusal("invalid_token", f"its {name} begins or ends with a space")
    return value


def _read_scopes(claims: JsonObject) -> frozenset[str]:
    """Read `scope` (RFC 9068 §2.2.3), or some issuers' `scp`, as text or list."""
    value: JsonValue = claims.get("scope", claims.get("scp", ""))
    items = value.split(" ") if isinstance(value, str) else value
    if not isinstance(items, list) or len(items) > _MAX_SCOPES:
        raise TokenRefusal("invalid_token", "its scope is not a list of scopes")
    return frozenset(item for item in items if isinstance(item, str) and item)


def _read_thumbprint(claims: JsonObject) -> str | None:
    """Read the thumbprint of the key a token is bound to, refusing bindings we can't verify."""
    confirmation = claims.get("cnf")
    if confirmation is None and "cnf" not in claims:
        return None
    thumbprint = confirmation.get("jkt") if is_json_object(confirmation) else None
    if not isinstance(thumbprint, str) or not is_json_object(confirmation) or len(confirmation) != 1:
        raise TokenRefusal("invalid_token", "it is bound in a way that this host cannot verify (cnf)")
    return thumbprint
