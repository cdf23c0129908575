"""Posts of notifications and responses, which no request waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio

from indusagi.interop.protocol_bridge.client.http.failures import HttpRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx2
    from anyio.abc import TaskGroup

    from indusagi.interop.protocol_bridge.client.http.client import HttpClient

INITIALIZED = "notifications/initialized"
_MAX_POSTS = 64
"""Concurrent posts before the next frame waits."""
_WAIT_S = 1.0
"""How long other frames wait for the response to `initialized`, or for a free slot."""


class FramePosts:
    """Posts frames in tasks, so that a slow server doesn't hold up the frames behind them.

    Args:
        http: Sends the requests.
        limit_s: Deadline of one post.
        on_failure: Receives the error of a failed post.
    """

    def __init__(self, http: HttpClient, limit_s: float, on_failure: Callable[[HttpRequestError], None]) -> None:
        self._http = http
        self._limit_s = limit_s
        self._on_failure = on_failure
        self._count = 0
        self._has_ended = asyncio.Event()

    async def start(
        self,
        tasks: TaskGroup,
        content: bytes,
        headers: Mapping[str, str],
        url: httpx2.URL | None = None,
        *,
        is_first: bool,
    ) -> None:
        """Start a post; wait a moment for `initialized`, which some servers must read first, or if there are many."""
        self._count += 1
        self._has_ended.clear()
        tasks.start_soon(self._post, content, headers, url)
        if is_first or self._count > _MAX_POSTS:
            with anyio.move_on_after(_WAIT_S):
                await self._has_ended.wait()

    async def _post(self, content: bytes, headers: Mapping[str, str], url: httpx2.URL | None) -> None:
        try:
            with anyio.move_on_after(self._limit_s):
                async with self._http.request("POST", headers, content, url) as response:
                    await self._http.discard_body(response)
        except HttpRequestError as exc:
            self._on_failure(exc)
        finally:
            self._count -= 1
            self._has_ended.set()
