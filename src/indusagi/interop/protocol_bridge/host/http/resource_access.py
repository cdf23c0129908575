"""Access to an HTTP host with access tokens: checked before reading a body, and before dispatching a message.

The client's identity has scopes, and each message needs one of them:
https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#error-handling.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.host.auth.proofs import ProofLimitError
from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource, TokenRefusal, read_token
from indusagi.interop.protocol_bridge.host.auth.verifier import RateLimit, TokenVerifier
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal, HttpRequest
from indusagi.interop.protocol_bridge.host.http.settings import HEALTH, METRICS, FindTarget
from indusagi.interop.protocol_bridge.host.identity import (
    ADMIN_SCOPE,
    CALL_SCOPE,
    LIST_SCOPE,
    ClientIdentity,
    current_identity,
)
from indusagi.runtime.calls import SubjectToken, current_subject

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.auth.resource import PresentedToken, ResourceSettings
    from indusagi.interop.protocol_bridge.host.boundary import HostTasks

_METADATA_HEADERS = [(b"cache-control", b"max-age=300")]
_UNSCOPED = frozenset({"initialize", "ping", "server/discover", "logging/setLevel"})
"""Requests that every client may send, like notifications."""
_LISTING = frozenset({"subscriptions/listen"})


class ResourceAccess:
    """Access with tokens of an authorization server."""

    def __init__(self, settings: ResourceSettings, url: str, path: str) -> None:
        self.resource = ProtectedResource(settings, url, path)
        self.verifier = TokenVerifier(settings, self.resource)
        self._issuer = settings.issuer
        self._rates = RateLimit(settings.rate)

    def accept(self, request: HttpRequest, tasks: HostTasks) -> bool:
        """Check a request's token and set its client's identity, or refuse it; return False if that's decided later."""
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
            tasks.start("the check of a token", lambda: self._decide(request, presented))
            return False
        request.token = presented.token
        self._admit(request, identity)
        return True

    async def _decide(self, request: HttpRequest, presented: PresentedToken) -> None:
        """Check a token that takes a request to the issuer."""
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
        """Refuse a message whose client lacks the scope, and set the identity and subject token of its calls."""
        # Always set it: a connection's callbacks share a context.
        current_subject.set(SubjectToken(request.token, self._issuer))
        current_identity.set(request.identity)
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str) or method in _UNSCOPED or method.startswith("notifications/"):
            return
        server = None
        if method == "tools/call" or request.identity.find_missing_scope(CALL_SCOPE) is not None:
            # A tool that finds others counts as listing; a tool that calls another one counts as that call.
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
