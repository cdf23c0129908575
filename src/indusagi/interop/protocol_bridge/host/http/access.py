"""Access to an HTTP host: checks before a request's body is read.

With the one-user token that's all; `resource_access` checks access tokens.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal
from indusagi.interop.protocol_bridge.host.http.settings import HEALTH, METRICS
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity, find_rights

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
    from indusagi.interop.protocol_bridge.host.http.settings import AccessPolicy


def check_request(request: HttpRequest, policy: AccessPolicy) -> None:
    """Check a request's `Host`, `Origin` and path.

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
        # Before the token check: a 401 for a discovery path would make clients start a sign-in there.
        raise HttpRefusal(404, "there is nothing at this path")


def check_user_token(request: HttpRequest, policy: AccessPolicy) -> None:
    """Check the one-user token and set the client's identity.

    Raises:
        HttpRefusal: The token is missing or wrong, or valid for the protocol only.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    presented = token.strip().encode("utf-8", "replace")
    is_bearer = scheme.lower() == "bearer"
    owner = b""
    for expected in policy.tokens:  # check all, each in constant time: timing reveals nothing about a wrong token
        if hmac.compare_digest(expected, presented) and is_bearer:
            owner = expected
    if policy.tokens and not owner:
        # https://www.rfc-editor.org/rfc/rfc6750#section-3
        headers = [(b"www-authenticate", b"Bearer")]
        message = "a token is needed: Authorization: Bearer ..."
        if is_bearer and presented:
            message = "the token is not valid: this host has another one"
        raise HttpRefusal(401, message, headers=headers)
    credential = "open" if not policy.tokens else "view" if owner in policy.limited else "user"
    request.identity = ClientIdentity(owner=owner, credential=credential)
    if request.path in {HEALTH, METRICS} and not find_rights(request.identity).can_operate:
        raise HttpRefusal(403, f"{request.path} needs the token of the user")
