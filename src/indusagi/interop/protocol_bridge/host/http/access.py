"""Access to a host over HTTP: the checks that a request passes before its body is read, and before it is dispatched.

With the one-user token the first check is all. With access tokens the identity of the client has scopes, which each
message needs one of: https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#error-handling.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.host.auth.limits import RateLimit
from indusagi.interop.protocol_bridge.host.auth.proofs import ProofLimitError
from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource, read_token
from indusagi.interop.protocol_bridge.host.auth.settings import TokenRefusal
from indusagi.interop.protocol_bridge.host.auth.verifier import TokenVerifier
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal
from indusagi.interop.protocol_bridge.host.http.settings import HEALTH, METRICS
from indusagi.interop.protocol_bridge.host.identity import ADMIN_SCOPE, CALL_SCOPE, LIST_SCOPE, ClientIdentity
from indusagi.runtime.calls import SubjectToken, current_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.auth.resource import PresentedToken
    from indusagi.interop.protocol_bridge.host.auth.settings import ResourceSettings
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
    from indusagi.interop.protocol_bridge.host.http.settings import AccessPolicy, FindTarget

_METADATA_HEADERS = [(b"cache-control", b"max-age=300")]
_UNSCOPED = frozenset({"initialize", "ping", "server/discover", "logging/setLevel"})
"""Requests that every client may send; so are notifications."""
_LISTING = frozenset({"subscriptions/listen"})


def check_request(request: HttpRequest, policy: AccessPolicy) -> None:
    """Check `Host`, `Origin` and path of a request.

    Raises:
        HttpRefusal: The access policy refuses it.
    """
    hosts = [value for name, value in request.lines if name == "host"]
    if len(hosts) != 1 or hosts[0].lower() not in policy.hosts:
        # https://www.rfc-editor.org/rfc/rfc9110#section-15.5.20
        raise HttpRefusal(421, "this host is not known under that name")
    if "origin" in request.headers and any(
        value.lower() not in policy.origins for name, value in request.lines if name == "origin"
    ):
        raise HttpRefusal(403, "requests from that origin are not allowed")
    if request.path not in policy.paths and not policy.is_site(request.path):
        # Before the token: a client that gets 401 for a discovery path would start to sign in there.
        raise HttpRefusal(404, "there is nothing at this path")


def check_user_token(request: HttpRequest, policy: AccessPolicy) -> None:
    """Check the one-user token, and set the identity of the client.

    Raises:
        HttpRefusal: The token is absent or wrong, or opens the protocol alone.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    presented = token.strip().encode("utf-8", "replace")
    is_bearer = scheme.lower() == "bearer"
    owner = b""
    for expected in policy.tokens:  # all of them, in constant time each: the time tells nothing about a wrong token
        if hmac.compare_digest(expected, presented) and is_bearer:
            owner = expected
    if policy.tokens and not owner:
        # https://www.rfc-editor.org/rfc/rfc6750#section-3
        headers = [(b"www-authenticate", b"Bearer")]
        message = "a token is needed: Authorization: Bearer ..."
        if is_bearer and presented:
            message = "the token is not valid: this host has another one"
        raise HttpRefusal(401, message, headers=headers)
    if owner in policy.limited and request.path in {HEALTH, METRICS}:
        raise HttpRefusal(403, f"{request.path} needs the token of the user")
    request.identity = ClientIdentity(owner=owner)


class ResourceAccess:
    """Access by tokens of an authorization server."""

    def __init__(self, settings: ResourceSettings, resource: ProtectedResource) -> None:
        self.resource = resource
        self.verifier = TokenVerifier(settings, resource)
        self._issuer = settings.issuer
        self._rates = RateLimit(settings.rate)

    def accept(
        self, request: HttpRequest, start_task: Callable[[Callable[[], Coroutine[object, object, None]]], object]
    ) -> bool:
        """Check the token of a request, and set the identity of its client; False if that is decided later.

        Raises:
            HttpRefusal: The token is absent, invalid or insufficient, or the client sends too many requests.
        """
        if request.path in self.resource.metadata_paths:
            if request.method != "GET":
                raise HttpRefusal(405, "only GET", headers=[(b"allow", b"GET")])
            request.respond(200, self.resource.metadata, _METADATA_HEADERS)
            return False
        try:
            presented = read_token(request.lines, request.query)
            identity = self.verifier.check_known(presented, request.method, request.path)
        except (TokenRefusal, ProofLimitError) as exc:
            raise self._refuse(exc) from None
        if identity is None:
            start_task(lambda: self._decide(request, presented))
            return False
        request.token = presented.token
        self._admit(request, identity)
        return True

    async def _decide(self, request: HttpRequest, presented: PresentedToken) -> None:
        """Check a token for which the issuer has to be asked."""
        refusal = HttpRefusal(503, "the token cannot be checked at the moment")
        try:
            identity = await self.verifier.check(presented, request.method, request.path)
            request.token = presented.token
            self._admit(request, identity)
            refusal = None
        except (TokenRefusal, ProofLimitError) as exc:
            refusal = self._refuse(exc)
        except HttpRefusal as exc:
            refusal = exc
        finally:
            request.connection.decide(request, refusal)

    def _admit(self, request: HttpRequest, identity: ClientIdentity) -> None:
        wait_s = self._rates.take(identity.owner, asyncio.get_running_loop().time())
        if wait_s:
            raise HttpRefusal(429, "this principal sends too many requests", retry_s=wait_s)
        if request.path in {HEALTH, METRICS}:
            self._require_scope(identity, ADMIN_SCOPE)
        request.identity = identity

    def authorize(self, request: HttpRequest, message: JsonObject, find_target: FindTarget) -> None:
        """Check that the client has the scope that a message needs; what runs for the message then knows its token.

        Raises:
            HttpRefusal: It has not.
        """
        # Always set: the callbacks of a connection share a context.
        current_subject.set(SubjectToken(request.token, self._issuer))
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str) or method in _UNSCOPED or method.startswith("notifications/"):
            return
        server = None
        if method == "tools/call" or request.identity.find_missing_scope(CALL_SCOPE) is not None:
            # A tool that finds others lists them, and a tool that calls another one is that call.
            method, server = find_target(method, params if isinstance(params, dict) else {})
        if method.endswith("/list") or method in _LISTING:
            self._require_scope(request.identity, LIST_SCOPE)
        else:
            self._require_scope(request.identity, CALL_SCOPE, server)

    def _require_scope(self, identity: ClientIdentity, scope: str, server: str | None = None) -> None:
        missing = identity.find_missing_scope(scope, server)
        if missing is not None:
            raise self._refuse(TokenRefusal("insufficient_scope", f"it needs the scope {missing}", scope=missing))

    def _refuse(self, exc: TokenRefusal | ProofLimitError) -> HttpRefusal:
        if isinstance(exc, ProofLimitError):
            return HttpRefusal(429, "this client sends too many proofs")
        status, headers = self.resource.build_challenges(exc)
        nonces = self.verifier.nonces
        if exc.error == "use_dpop_nonce" and nonces is not None:
            headers.append((b"dpop-nonce", nonces.build(self.verifier.now).encode()))
        message = f"the access token is refused: {exc}" if exc.error else str(exc)
        return HttpRefusal(status, message, headers=headers)
