"""What a client has one server report: updates of resources, and changes of tasks.

A legacy server is asked by `resources/subscribe`, and reports changes of tasks unasked. A modern server has an open
request for each watched item (`subscriptions/listen`), and acknowledges what it will report: a resource counts as
watched from then on. https://modelcontextprotocol.io/specification/2026-07-28/basic/utilities/subscriptions
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.json import JsonObject, JsonValue
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.client.session import ClientSession
    from indusagi.interop.protocol_bridge.contract import ServerLimits

    SendRequest: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]

_LONGEST_PAUSE_S = 60.0
"""Between two subscriptions that the server has ended."""
_NOT_REPORTED = "the server does not report updates of this resource"

_log = logging.getLogger(__name__)


class ServerWatches:
    """The watched resources and tasks of one session.

    Args:
        session: With the server.
        limits: Of the server.
        tasks: Runs the open requests.
        request: Sends a request to the server, and raises what its caller expects.
    """

    def __init__(
        self, session: ClientSession, limits: ServerLimits, tasks: asyncio.TaskGroup, request: SendRequest
    ) -> None:
        self._session = session
        self._limits = limits
        self._tasks = tasks
        self._request = request
        self._watched: dict[str, asyncio.Task[None] | None] = {}
        """Resources by their URIs, and tasks as `task <id>`, each with its open request."""
        self._settling: dict[str, asyncio.Event] = {}
        """Resources of which the server has not yet said whether it reports them."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is watched."""
        return not self._watched

    async def watch_resource(self, uri: str) -> None:
        """Have the server report updates of a resource; returns when it has agreed.

        Raises:
            RpcError: A modern server has refused. What `request` raises, if a legacy one has.
        """
        while (settling := self._settling.get(uri)) is not None:
            await settling.wait()
        if uri in self._watched:
            return
        self._watched[uri] = None
        settling = self._settling[uri] = asyncio.Event()
        try:
            if self._session.is_modern:
                await self._open_request(uri)
            else:
                await self._request("resources/subscribe", {"uri": uri})
        except BaseException:
            self._drop(uri)
            raise
        finally:
            del self._settling[uri]
            settling.set()

    async def _open_request(self, uri: str) -> None:
        acknowledged: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._watched[uri] = self._tasks.create_task(
            self._listen(uri, acknowledged, resourceSubscriptions=[uri])
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._limits.list_s):
                reported = (await acknowledged).get("resourceSubscriptions")
        except TimeoutError:
            return  # it acknowledges nothing, and may report updates all the same
        if not isinstance(reported, list) or uri not in reported:
            raise RpcError(INVALID_PARAMS, _NOT_REPORTED, {"uri": uri})

    async def unwatch_resource(self, uri: str) -> None:
        """Have the server report no further updates of a resource; raises as `request`."""
        if uri in self._watched and self._drop(uri) is None:
            await self._request("resources/unsubscribe", {"uri": uri})

    def watch_task(self, task_id: str) -> None:
        """Have a modern server report changes of a task (`notifications/tasks`)."""
        key = f"task {task_id}"
        if self._session.is_modern and key not in self._watched:
            self._watched[key] = self._tasks.create_task(self._listen(key, None, taskIds=[task_id]))

    def unwatch_task(self, task_id: str) -> None:
        """Have the server report no further changes of a task."""
        self._drop(f"task {task_id}")

    def close(self) -> None:
        """Cancel the open requests."""
        for key in [*self._watched]:
            self._drop(key)

    def _drop(self, key: str) -> asyncio.Task[None] | None:
        task = self._watched.pop(key, None)
        if task is not None:
            task.cancel()
        return task

    async def _listen(
        self, key: str, acknowledged: asyncio.Future[JsonObject] | None, **notifications: JsonValue
    ) -> None:
        """Keep a request open; its first acknowledgement or failure goes to `acknowledged`."""

        def accept(reported: JsonObject) -> None:
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_result(reported)

        pause_s = self._limits.relist_gap_s
        try:
            while True:
                await self._session.listen(accept, **notifications)
                accept({})  # it has ended without an acknowledgement
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        except Exception as exc:  # noqa: BLE001 — boundary: a server may refuse what it declared
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_exception(exc)
            else:
                _log.debug("the server does not report %s: %s", key, exc)
        finally:
            accept({})
