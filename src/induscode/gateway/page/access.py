"""Browser sign-ins to the page: a key in the address, a token in a form or the issuer of access tokens, then a cookie.

The key in the printed address is random and ends with the process. A cookie identifies a sign-in that only this process
knows. Changes also need the sign-in's form key, so that other sites can't submit them (CSRF).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from time import monotonic
from typing import TYPE_CHECKING, Final

from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.identity import BROWSER

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity, Rights
    from induscode.gateway.page.source import GatewayPage

COOKIE: Final = "indus_page"
_IDLE_S: Final = 12 * 3600.0
_MAX_SIGN_INS: Final = 1_024
"""Above this, a new sign-in evicts the least recently used one."""
USER_S: Final = 3600.0
"""How long a principal stays signed in: its issuer may lock it out meanwhile."""


@record(kw_only=True)
class PageUser:
    """A signed-in browser, or a client with a token."""

    rights: Rights
    form_key: str
    """Required with every change."""
    principal: str = ""
    """Subject of the client's access token, used in permission rules and call records."""
    user: str = ""
    """The principal and its issuer (`ClientIdentity.user`)."""
    browser: bytes = field(default=b"", repr=False)
    """Digest of the browser's cookie; empty for a client with a token."""


@record
class PageSignIn:
    """A browser's sign-in."""

    form_key: str
    used_at: float
    identity: ClientIdentity
    until: float
    """When it ends, however often it's used."""


class PageAccess:
    """The sign-ins of one process; `clock` is monotonic, in seconds."""

    def __init__(
        self, find_end: Callable[[ClientIdentity], str] = lambda _: "", *, clock: Callable[[], float] = monotonic
    ) -> None:
        """Create it; `find_end` returns why a principal's access has ended, and otherwise an empty text."""
        self._find_end = find_end
        self.key = secrets.token_urlsafe(32)
        """The key in the printed address."""
        self.cookie = COOKIE
        """Cookie name. Browsers send cookies to every port of a host, so the port has to be in the name."""
        self.token = ""
        """The gateway owner's token, which signs in as well; may be empty."""
        self._clock = clock
        self.is_encrypted = False
        """Whether browsers reach the page over https."""
        self._sign_ins: dict[bytes, PageSignIn] = {}
        """By cookie digest, most recently used last."""

    def is_key(self, key: str) -> bool:
        """Compare with the key in constant time."""
        return hmac.compare_digest(key.encode("utf-8", "replace"), self.key.encode())

    def is_secret(self, text: str) -> bool:
        """Compare with the key and the owner's token."""
        is_token = hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())
        return self.is_key(text) or (is_token and bool(self.token))

    def open(self, identity: ClientIdentity = BROWSER) -> str:
        """Sign a browser in, for the owner or a principal, and return the value of its `Set-Cookie` header."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        while len(self._sign_ins) >= _MAX_SIGN_INS:
            del self._sign_ins[next(iter(self._sign_ins))]
        life_s = USER_S if identity.principal else _IDLE_S
        until = now + life_s if identity.principal else math.inf
        self._sign_ins[digest(secret)] = PageSignIn(secrets.token_urlsafe(16), now, identity, until)
        # An issuer's redirect only brings `Lax` cookies along.
        return self.build_cookie(self.cookie, secret, "Lax" if identity.principal else "Strict", life_s)

    def build_cookie(self, name: str, secret: str, same_site: str, life_s: float) -> str:
        """Build the value of a `Set-Cookie` header (RFC 6265 §4.1.2)."""
        secure = "; Secure" if self.is_encrypted else ""
        return f"{name}={secret}; Path=/ui; HttpOnly; SameSite={same_site}; Max-Age={int(life_s)}{secure}"

    def find(self, request: HttpRequest) -> PageSignIn | None:
        """Find a request's sign-in by its cookie."""
        key, now = self.digest_cookie(request), self._clock()
        found = self._sign_ins.pop(key, None)
        if found is None or now - found.used_at > _IDLE_S or now > found.until or self._find_end(found.identity):
            return None
        found = self._sign_ins[key] = replace(found, used_at=now)
        return found

    def close(self, request: HttpRequest) -> None:
        """Sign a browser out."""
        self._sign_ins.pop(self.digest_cookie(request), None)

    def digest_cookie(self, request: HttpRequest, suffix: str = "") -> bytes:
        """Digest a request's cookie; a missing cookie digests as the empty string, which has no sign-in."""
        from http.cookies import CookieError, SimpleCookie  # noqa: PLC0415 — only for browser requests

        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(f"{self.cookie}{suffix}")
        except CookieError:
            morsel = None
        return digest("" if morsel is None else morsel.value)


def digest(secret: str) -> bytes:
    """Digest a cookie."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


@record(kw_only=True)
class PageRequest:
    """A request for a view by a signed-in user."""

    source: GatewayPage
    user: PageUser
    query: Mapping[str, str]
    form: Mapping[str, str]
    """Fields of a POST; empty for a GET."""

    def get(self, name: str) -> str:
        """Return a form field, else a query parameter, else an empty string."""
        return self.form.get(name, self.query.get(name, ""))
