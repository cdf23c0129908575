"""Access to an HTTP host with access tokens, checked before reading a body."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from indusagi.interop.protocol_bridge.host.auth.proofs import ProofLimitError
from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource, TokenRefusal, read_token
from indusagi.interop.protocol_bridge.host.auth.verifier import TokenVerifier
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal, HttpRequest
from indusagi.interop.protocol_bridge.host.http.settings import build_refusal
from indusagi.runtime.calls import SubjectToken

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.auth.resource import PresentedToken, ResourceSettings
    from indusagi.interop.protocol_bridge.host.boundary import HostTasks
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

    Admit: TypeAlias = Callable[[HttpRequest, ClientIdentity], None]

_METADATA_HEADERS = [(b"cache-control", b"max-age=300")]


class ResourceAccess:
    """Access with tokens of an authorization server."""

    def __init__(self, settings: ResourceSettings, resource: ProtectedResource) -> None:
        self.resource = resource
        self.verifier = TokenVerifier(settings, resource)
        self._issuer = settings.issuer

    def accept(self, request: HttpRequest, tasks: HostTasks, admit: Admit) -> bool:
        """Check a request's token and admit its client, or refuse it; return False if that's decided later."""
        try:
            presented = read_token(request.lines, request.query)
            identity = self.verifier.check_known(presented, request.method, request.path)
        except (TokenRefusal, ProofLimitError) as exc:
            raise self._refuse(request, exc) from None
        if identity is None:
            tasks.start("the check of a token", lambda: self._decide(request, presented, admit))
            return False
        request.subject = SubjectToken(presented.token, self._issuer)
        admit(request, identity)
        return True

    def describe(self, request: HttpRequest) -> bool:
        """Answer a request for metadata; return False if it's another one."""
        document = self.resource.metadata.get(request.path)
        if document is None:
            return False
        if request.method != "GET":
            raise HttpRefusal(405, "only GET", headers=[(b"allow", b"GET")])
        request.respond(200, document, _METADATA_HEADERS)
        return True

    async def _decide(self, request: HttpRequest, presented: PresentedToken, admit: Admit) -> None:
        """Check a token that takes a request to the issuer."""
        refusal = HttpRefusal(503, "the token cannot be checked at the moment")
        try:
            identity = await self.verifier.check(presented, request.method, request.path)
            request.subject = SubjectToken(presented.token, self._issuer)
            admit(request, identity)
            refusal = None
        except (TokenRefusal, ProofLimitError) as exc:
            refusal = self._refuse(request, exc)
        except HttpRefusal as exc:
            refusal = exc
        finally:
            request.connection.decide(request, refusal)

    def _refuse(self, request: HttpRequest, exc: TokenRefusal | ProofLimitError) -> HttpRefusal:
        if isinstance(exc, ProofLimitError):
            return HttpRefusal(429, "this client sends too many proofs")
        refusal, nonces = (
            build_refusal(self.resource, exc, self.resource.views.get(request.path, "")),
            self.verifier.nonces,
        )
        if exc.error == "use_dpop_nonce" and nonces is not None:
            refusal.headers = [*refusal.headers, (b"dpop-nonce", nonces.build(self.verifier.now).encode())]
        return refusal
