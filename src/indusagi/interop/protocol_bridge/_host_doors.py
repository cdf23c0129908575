"""Who may come in to a host behind HTTP, and how many at once."""

from __future__ import annotations

import asyncio
import hmac
from contextlib import contextmanager
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge._host_exchange import Refused
from indusagi.interop.protocol_bridge.host_session import BUSY

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.interop.protocol_bridge._host_exchange import Request
    from indusagi.interop.protocol_bridge.host_doors import Doors
    from indusagi.interop.protocol_bridge.host_settings import HttpSettings

_WAIT = {"retry-after": "1"}


def come_in(request: Request, doors: Doors) -> None:
    """Look at the name, the page, the path and the token of a request, and note whose it is.

    Raises:
        Refused: One of them is not right.
    """
    names = [value.lower() for name, value in request.lines if name == "host"]
    if len(names) != 1 or names[0] not in doors.hosts:
        raise Refused(421, "this host is not known under that name")
    origins = [value for name, value in request.lines if name == "origin"]
    if any(origin.lower() not in doors.origins for origin in origins):
        raise Refused(403, "requests from that page are not taken")
    request.owner = _shown(request, doors.tokens)
    if request.path not in doors.paths:
        # Before the token: a client that is asked for one where it looks for a place to sign in
        # would take that for a beginning.
        raise Refused(404, "there is nothing here")
    if doors.tokens and not request.owner:
        challenge = {"www-authenticate": "Bearer"}
        raise Refused(401, "a token is needed: Authorization: Bearer ...", headers=challenge)


def _shown(request: Request, tokens: tuple[bytes, ...]) -> bytes:
    """Give the token that a request shows, if it is one of ours; a wrong one takes as long."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    shown = given.strip().encode("utf-8", "replace")
    found = b""
    for token in tokens:
        if hmac.compare_digest(token, shown) and scheme.lower() == "bearer":
            found = token
    return found


class Quota:
    """Counts what runs, in all and of each, and what stands."""

    def __init__(self, settings: HttpSettings) -> None:
        self.running = 0
        self.streams = 0
        self._settings = settings
        self._each: dict[bytes, int] = {}
        self._calm = asyncio.Event()
        self._calm.set()

    async def calm(self) -> None:
        """Wait until nothing runs."""
        await self._calm.wait()

    @contextmanager
    def request(self, whose: bytes) -> Generator[None]:
        """Count a request while it is answered.

        Raises:
            Refused: There are too many.
        """
        if self.running >= self._settings.requests:
            raise Refused(503, "there are too many requests at once", BUSY, _WAIT)
        if self._each.get(whose, 0) >= self._settings.requests_each:
            raise Refused(429, "this client has too many requests at once", BUSY, _WAIT)
        self.running += 1
        self._each[whose] = self._each.get(whose, 0) + 1
        self._calm.clear()
        try:
            yield
        finally:
            self.running -= 1
            self._each[whose] -= 1
            if not self._each[whose]:
                del self._each[whose]
            if not self.running:
                self._calm.set()

    @contextmanager
    def stream(self) -> Generator[None]:
        """Count a stream while it stands.

        Raises:
            Refused: There are too many.
        """
        if self.streams >= self._settings.streams:
            raise Refused(503, "there are too many streams", BUSY, _WAIT)
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
