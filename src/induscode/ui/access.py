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

COOKIE: Final = "indus_page"
_IDLE_S: Final = 12 * 3600.0
_MOST: Final = 64
"""Sign-ins that are kept; the one that was used longest ago makes place for a new one."""


@record
class PageUser:
    """A signed-in browser, or a client with a token."""

    can_act: bool
    """Whether it may change something, and not only look."""
    form_key: str
    """Must come with every change."""
    principal: str = ""
    """The subject of the client's access token: permission rules and records of calls name it."""


class PageAccess:
    """The sign-ins of one process.

    Args:
        can_act: Whether the owner of the key may change something; False: the page is for looking only.
        clock: Seconds that never go back.
    """

    def __init__(self, *, can_act: bool = True, clock: Callable[[], float] = monotonic) -> None:
        self.key = secrets.token_urlsafe(32)
        """The key of the address that is printed."""
        self.cookie = COOKIE
        """The name of the cookie. A browser sends a cookie to every port of a host: the port belongs into the name."""
        self.token = ""
        """The token of the gateway's owner, which signs in as well; empty if there is none."""
        self._can_act = can_act
        self._clock = clock
        self._users: dict[bytes, tuple[PageUser, float]] = {}
        """Users by the digest of their cookie, with the time of their last request; the latest is last."""

    def is_key(self, key: str) -> bool:
        """Compare with the key, in a time that tells nothing."""
        return hmac.compare_digest(key.encode("utf-8", "replace"), self.key.encode())

    def is_secret(self, text: str) -> bool:
        """Compare with the key and with the token of the owner."""
        is_token = hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())
        return self.is_key(text) or (is_token and bool(self.token))

    def open(self, *, can_act: bool) -> str:
        """Sign a browser in, and return its cookie as the value of a `Set-Cookie` header."""
        secret = secrets.token_urlsafe(32)
        while len(self._users) >= _MOST:
            del self._users[next(iter(self._users))]
        user = PageUser(can_act and self._can_act, secrets.token_urlsafe(16))
        self._users[_digest(secret)] = user, self._clock()
        # https://www.rfc-editor.org/rfc/rfc6265#section-4.1.2; no `Secure`: the page is served over loopback HTTP.
        return f"{self.cookie}={secret}; Path=/ui; HttpOnly; SameSite=Strict; Max-Age={int(_IDLE_S)}"

    def find(self, request: HttpRequest) -> PageUser | None:
        """Find the user of a request by its cookie."""
        key = self._digest_cookie(request)
        user, used_at = self._users.pop(key, (None, 0.0))
        now = self._clock()
        if user is None or now - used_at > _IDLE_S:
            return None
        self._users[key] = user, now
        return user

    def close(self, request: HttpRequest) -> None:
        """Sign a browser out."""
        self._users.pop(self._digest_cookie(request), None)

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
