"""Browser sign-ins to the page: a key in the address or a token in a form, then a cookie.

The key in the printed address is random and ends with the process. A cookie identifies a sign-in that only this process
knows. Changes also need the sign-in's form key, so that other sites can't submit them (CSRF).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Final

from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
    from indusagi.interop.protocol_bridge.host.identity import Rights
    from induscode.gateway.page.source import GatewayPage

COOKIE: Final = "indus_page"
_IDLE_S: Final = 12 * 3600.0
_MAX_SIGN_INS: Final = 64
"""Above this, a new sign-in evicts the least recently used one."""


@record(kw_only=True)
class PageUser:
    """A signed-in browser, or a client with a token."""

    rights: Rights
    form_key: str
    """Required with every change."""
    principal: str = ""
    """Subject of the client's access token, used in permission rules and call records."""


class PageAccess:
    """The sign-ins of one process; `clock` is monotonic, in seconds."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self.key = secrets.token_urlsafe(32)
        """The key in the printed address."""
        self.cookie = COOKIE
        """Cookie name. Browsers send cookies to every port of a host, so the port has to be in the name."""
        self.token = ""
        """The gateway owner's token, which signs in as well; may be empty."""
        self._clock = clock
        self._sign_ins: dict[bytes, tuple[str, float]] = {}
        """Form key and last use by cookie digest, most recently used last."""

    def is_key(self, key: str) -> bool:
        """Compare with the key in constant time."""
        return hmac.compare_digest(key.encode("utf-8", "replace"), self.key.encode())

    def is_secret(self, text: str) -> bool:
        """Compare with the key and the owner's token."""
        is_token = hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())
        return self.is_key(text) or (is_token and bool(self.token))

    def open(self) -> str:
        """Sign a browser in and return the value of its `Set-Cookie` header."""
        secret = secrets.token_urlsafe(32)
        while len(self._sign_ins) >= _MAX_SIGN_INS:
            del self._sign_ins[next(iter(self._sign_ins))]
        self._sign_ins[_digest(secret)] = secrets.token_urlsafe(16), self._clock()
        # https://www.rfc-editor.org/rfc/rfc6265#section-4.1.2; no `Secure`, as the page is served over loopback HTTP.
        return f"{self.cookie}={secret}; Path=/ui; HttpOnly; SameSite=Strict; Max-Age={int(_IDLE_S)}"

    def find(self, request: HttpRequest) -> str | None:
        """Find a request's sign-in by cookie and return its form key."""
        key = self._digest_cookie(request)
        form_key, used_at = self._sign_ins.pop(key, (None, 0.0))
        now = self._clock()
        if form_key is None or now - used_at > _IDLE_S:
            return None
        self._sign_ins[key] = form_key, now
        return form_key

    def close(self, request: HttpRequest) -> None:
        """Sign a browser out."""
        self._sign_ins.pop(self._digest_cookie(request), None)

    def _digest_cookie(self, request: HttpRequest) -> bytes:
        """Digest a request's cookie; a missing cookie digests as the empty string, which has no sign-in."""
        from http.cookies import CookieError, SimpleCookie  # noqa: PLC0415 — only for browser requests

        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            morsel = None
        return _digest("" if morsel is None else morsel.value)


def _digest(secret: str) -> bytes:
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
