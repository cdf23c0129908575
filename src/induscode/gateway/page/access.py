"""Sign-ins of browsers to the page: a key in the address or a token in a form, then a cookie.

The key of the printed address is random and ends with the process. A cookie names a sign-in that only this process
knows; changes also need the form key of that sign-in, so that another site cannot send them (CSRF).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from time import monotonic
from typing import TYPE_CHECKING, Final

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest
    from indusagi.interop.protocol_bridge.host.identity import Rights

COOKIE: Final = "indus_page"
_IDLE_S: Final = 12 * 3600.0
_MOST: Final = 64
"""Sign-ins that are kept; the one that was used longest ago makes place for a new one."""


@record(kw_only=True)
class PageUser:
    """A signed-in browser, or a client with a token."""

    rights: Rights
    form_key: str
    """Must come with every change."""
    principal: str = ""
    """The subject of the client's access token: permission rules and records of calls name it."""


class PageAccess:
    """The sign-ins of one process.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self.key = secrets.token_urlsafe(32)
        """The key of the address that is printed."""
        self.cookie = COOKIE
        """The name of the cookie. A browser sends a cookie to every port of a host: the port belongs into the name."""
        self.token = ""
        """The token of the gateway's owner, which signs in as well; empty if there is none."""
        self._clock = clock
        self._sign_ins: dict[bytes, tuple[str, float]] = {}
        """Form keys by the digest of their cookie, with the time of the last request; the latest is last."""

    def is_key(self, key: str) -> bool:
        """Compare with the key, in a time that tells nothing."""
        return hmac.compare_digest(key.encode("utf-8", "replace"), self.key.encode())

    def is_secret(self, text: str) -> bool:
        """Compare with the key and with the token of the owner."""
        is_token = hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())
        return self.is_key(text) or (is_token and bool(self.token))

    def open(self) -> str:
        """Sign a browser in, and return its cookie as the value of a `Set-Cookie` header."""
        secret = secrets.token_urlsafe(32)
        while len(self._sign_ins) >= _MOST:
            del self._sign_ins[next(iter(self._sign_ins))]
        self._sign_ins[_digest(secret)] = secrets.token_urlsafe(16), self._clock()
        # https://www.rfc-editor.org/rfc/rfc6265#section-4.1.2; no `Secure`: the page is served over loopback HTTP.
        return f"{self.cookie}={secret}; Path=/ui; HttpOnly; SameSite=Strict; Max-Age={int(_IDLE_S)}"

    def find(self, request: HttpRequest) -> str | None:
        """Find the sign-in of a request by its cookie, and return its form key."""
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
        """Digest the cookie of a request; that of the empty text belongs to nobody."""
        from http.cookies import CookieError, SimpleCookie  # noqa: PLC0415 — for requests of browsers

        try:
            morsel = SimpleCookie(request.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            morsel = None
        return _digest("" if morsel is None else morsel.value)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
