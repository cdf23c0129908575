"""A site next to a host's MCP endpoint: pages for a browser, below one path.

The host's access policy (`Host`, `Origin`, limits for connections and bodies) applies to it too. A request with an
`Authorization` header passes the host's token checks, if it has any; the site itself accepts or refuses others.
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
    """A site's answer: a body, or an event stream."""

    body: bytes = b""
    status: int = 200
    headers: Headers = ()
    events: AsyncGenerator[bytes] | None = None
    """Complete server-sent events; each is sent once the client has taken the previous one."""


class Site(Protocol):
    """Answers the requests below `prefix`."""

    @property
    def prefix(self) -> str:
        """Path of its first page, without a trailing slash."""
        ...

    def accept(self, request: HttpRequest) -> bool:
        """Check a request whose token the host hasn't checked, before reading its body.

        Return whether to go on. If not, it was answered.

        Raises:
            HttpRefusal: Refused.
        """
        ...

    async def respond(self, request: HttpRequest) -> SiteResponse:
        """Answer an accepted request; cancelled if the client disconnects."""
        ...


async def serve_site(
    site: Site, request: HttpRequest, take_stream: Callable[[], None], give: Callable[[], None]
) -> None:
    """Answer a request from a site; `take_stream` and `give` count event streams.

    Raises:
        HttpRefusal: Refused.
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
    """Build the refusal of any other method: https://www.rfc-editor.org/rfc/rfc9110#section-15.5.6."""
    return HttpRefusal(405, f"only {method}", headers=[(b"allow", method.encode())])
