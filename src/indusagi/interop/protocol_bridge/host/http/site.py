"""A site beside the MCP endpoint of a host: pages for a browser, below one path.

The access policy of the host (`Host`, `Origin`, limits of connections and bodies) holds for it too. A request with an
`Authorization` header passes the token checks of the host, if it has any; the site itself accepts or refuses others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.http.request import STREAM_HEADERS, HttpRefusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from indusagi.interop.protocol_bridge.host.http.request import Headers, HttpRequest


@record
class SiteResponse:
    """The answer of a site: a body, or a stream of events."""

    body: bytes = b""
    status: int = 200
    headers: Headers = ()
    events: AsyncGenerator[bytes] | None = None
    """Complete server-sent events; each is sent when the client has taken the one before."""


class Site(Protocol):
    """What answers the requests below `prefix`."""

    @property
    def prefix(self) -> str:
        """The path of its first page, without a slash at its end."""
        ...

    def accept(self, request: HttpRequest) -> bool:
        """Check a request whose token the host hasn't checked, before its body is read.

        Returns:
            Whether it is accepted; if not, it is answered already.

        Raises:
            HttpRefusal: It is refused.
        """
        ...

    async def respond(self, request: HttpRequest) -> SiteResponse:
        """Answer an accepted request; the disconnect of its client cancels this."""
        ...


async def serve_site(
    site: Site, request: HttpRequest, take_stream: Callable[[], None], give: Callable[[], None]
) -> None:
    """Answer a request by a site; `take_stream` and `give` count event streams.

    Raises:
        HttpRefusal: It is refused.
    """
    with anyio.CancelScope() as scope:
        request.on_disconnect = scope.cancel
        if request.is_finished:
            return
        response = await site.respond(request)
        if response.events is None:
            request.respond(response.status, response.body, response.headers)
            return
        take_stream()
        try:
            connection = request.connection
            connection.start_stream([*STREAM_HEADERS, *response.headers])
            async for event in response.events:
                await connection.writable.wait()
                connection.write_stream(event)
            connection.end_stream()
        finally:
            give()
            with anyio.CancelScope(shield=True):
                await response.events.aclose()


def refuse_method(method: str) -> HttpRefusal:
    """Build the refusal of a request with another method: https://www.rfc-editor.org/rfc/rfc9110#section-15.5.6."""
    return HttpRefusal(405, f"only {method}", headers=[(b"allow", method.encode())])
