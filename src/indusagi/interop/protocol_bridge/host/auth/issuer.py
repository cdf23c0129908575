"""Client of the authorization server: its metadata, keys and introspection endpoint.

The operator names the issuer. Everything else comes from its metadata document, fetched with the guarded HTTP client
without redirects: a document can't lead into this machine's private network.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, urlencode, urlsplit

from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, is_json_object, parse_strict_json
from indusagi.interop.auth.metadata import build_issuer_metadata_urls
from indusagi.interop.protocol_bridge.host.auth.proofs import import_key, is_key_for
from indusagi.interop.protocol_bridge.host.auth.resource import ALGORITHMS, IssuerError
from indusagi.net.policy import FetchError, HttpPolicy

if TYPE_CHECKING:
    from joserfc.jwk import Key

    from indusagi.interop.protocol_bridge.host.auth.resource import IntrospectionClient, ResourceSettings

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
        value = (self._metadata or await self.fetch_metadata()).get(name)
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


# -- rate limit -------------------------------------------------------------------------------


_BURST_S = 10.0
"""Allow this many seconds' worth of requests at once."""
_BUCKETS = 4_096


class RateLimit:
    """Token bucket per owner."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._capacity = max(1.0, rate * _BURST_S)
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        """Remaining tokens and their time, least recently used first. A full bucket may be forgotten."""

    def take(self, owner: bytes, now: float) -> int:
        """Count a request; return 0, or the seconds until the next one is allowed."""
        left, at = self._buckets.pop(owner, (self._capacity, now))
        left = min(self._capacity, left + (now - at) * self._rate)
        is_allowed = left >= 1
        self._buckets[owner] = (left - 1 if is_allowed else left, now)
        if len(self._buckets) > _BUCKETS:
            self._buckets.popitem(last=False)
        return 0 if is_allowed else math.ceil((1 - left) / self._rate)
