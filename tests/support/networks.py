"""A network in memory: the guarded client in front of a transport of httpx2."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import httpcore2
import httpx2

from indusagi.net import dial
from indusagi.net.address import parse_url
from indusagi.net.dial import HttpAnswer, Network

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from indusagi.net.address import FetchError


def make_network(transport: httpx2.AsyncBaseTransport) -> Network:
    """Make a network whose servers are a transport."""
    return Network(cast("httpcore2.AsyncConnectionPool", _Engine(transport)), 20)


def make_answer(response: httpx2.Response, url: str = "http://host/") -> HttpAnswer:
    """Make what the client sees of a response."""
    found = httpcore2.Response(response.status_code, headers=response.headers.raw, content=_Stream(response))
    return HttpAnswer(parse_url(url), found)


def to_fetch_error(exc: Exception) -> FetchError | TimeoutError:
    """Make what the client raises for an error of its engine."""
    if isinstance(exc, TimeoutError):
        return exc
    failure = dial._to_fetch_error(parse_url("http://host/"), exc)
    failure.__cause__ = exc
    return failure


class _Engine:
    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response:
        scheme, host, port = request.url.scheme.decode(), request.url.host.decode(), request.url.port
        url = httpx2.URL(f"{scheme}://{host}:{port}{request.url.target.decode()}")
        assert not isinstance(request.stream, bytes)
        content = b"".join([piece async for piece in request.stream])  # type: ignore[union-attr]
        asked = httpx2.Request(request.method.decode(), url, headers=request.headers, content=content)
        try:
            response = await self._transport.handle_async_request(asked)
        except httpx2.TransportError as exc:
            raise _convert(exc) from exc
        return httpcore2.Response(response.status_code, headers=response.headers.raw, content=_Stream(response))

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Stream:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        stream = self._response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        try:
            async for piece in stream:
                yield piece
        except httpx2.TransportError as exc:
            raise _convert(exc) from exc

    async def aclose(self) -> None:
        await self._response.aclose()


def _convert(exc: httpx2.TransportError) -> Exception:
    """Return the engine's error of the same name."""
    return getattr(httpcore2, type(exc).__name__)(str(exc))
