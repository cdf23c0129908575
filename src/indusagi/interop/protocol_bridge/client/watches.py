"""Watches on one server: changed lists, resource updates and task changes.

A legacy server needs `resources/subscribe`, and reports task changes unasked. A modern server gets an open request per
watched item (`subscriptions/listen`) and acknowledges what it will report, from which point a resource counts as
watched. https://modelcontextprotocol.io/specification/2026-07-28/basic/utilities/subscriptions
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.tasks import Backoff
from indusagi.interop.protocol_bridge.contract import ItemKind, ProtocolFault, ServerLimits
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError, get_retry_after, is_transient

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.client.session import ClientSession

    SendRequest: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]

_LONGEST_PAUSE_S = 60.0
_LONGEST_RELIST_S = 30.0
_TASK = "task "
"""Key prefix of watched tasks."""
_NOT_REPORTED = "the server does not report updates of this resource"

_log = logging.getLogger(__name__)


class ChangedLists:
    """Rereads a server's changed lists, at most once per `gap_s`. Transient failures are retried."""

    def __init__(self, gap_s: float, relist: Callable[[ItemKind], Awaitable[None]]) -> None:
        self.wanted: set[ItemKind] = set()
        """Kinds that have been requested."""
        self._gap_s = gap_s
        self._relist = relist
        self._changed: set[ItemKind] = set()
        self._has_changed = asyncio.Event()

    def note(self, kinds: Iterable[ItemKind]) -> None:
        """Schedule lists for rereading."""
        self._changed.update(kinds)
        self._has_changed.set()

    def note_gap(self) -> None:
        """Schedule every requested list for rereading."""
        self.note(self.wanted)

    async def run(self) -> None:
        """Reread changed lists until cancelled."""
        backoff = Backoff(self._gap_s, longest_s=_LONGEST_RELIST_S)
        while True:
            await self._has_changed.wait()
            await asyncio.sleep(self._gap_s)
            self._has_changed.clear()
            changed, self._changed = self._changed & self.wanted, set()
            failures: list[ProtocolFault] = []
            for kind in sorted(changed):
                try:
                    await self._relist(kind)
                except ProtocolFault as fault:
                    # Keep the old list; the status shows the fault.
                    if is_transient(fault):
                        failures.append(fault)
                        self._changed.add(kind)
            if not failures:
                backoff.reset()
                continue
            await backoff.pause(max(get_retry_after(fault) or 0.0 for fault in failures))
            self._has_changed.set()


class ServerWatches:
    """The watched resources and tasks of one session. `tasks` runs the open requests."""

    def __init__(
        self, session: ClientSession, limits: ServerLimits, tasks: asyncio.TaskGroup, request: SendRequest
    ) -> None:
        self._session = session
        self._limits = limits
        self._tasks = tasks
        self._request = request
        self._watched: dict[str, asyncio.Task[None] | None] = {}
        """Resources by URI and tasks as `task <id>`, each with its open request."""
        self._settling: dict[str, asyncio.Event] = {}
        """Resources that the server hasn't acknowledged yet."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is watched."""
        return not self._watched

    async def watch_resource(self, uri: str) -> None:
        """Subscribe to updates of a resource; return once the server has agreed, or raise if it refuses."""
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
            return  # no acknowledgement, but it may report updates anyway
        if not isinstance(reported, list) or uri not in reported:
            raise RpcError(INVALID_PARAMS, _NOT_REPORTED, {"uri": uri})

    async def unwatch_resource(self, uri: str) -> None:
        """Unsubscribe from updates of a resource; raises like `request`."""
        if uri in self._watched and self._drop(uri) is None:
            await self._request("resources/unsubscribe", {"uri": uri})

    def watch_task(self, task_id: str) -> None:
        """Subscribe to changes of a modern server's task (`notifications/tasks`)."""
        key = f"{_TASK}{task_id}"
        if self._session.is_modern and key not in self._watched:
            self._watched[key] = self._tasks.create_task(self._listen(key, None, taskIds=[task_id]))

    def unwatch_task(self, task_id: str) -> None:
        """Unsubscribe from changes of a task."""
        self._drop(f"{_TASK}{task_id}")

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
        """Keep a request open; its first acknowledgement or refusal goes to `acknowledged`.

        After the request ends or fails transiently, reopen it and reread the watched item.
        """

        def accept(reported: JsonObject) -> None:
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_result(reported)

        async def listen(on_acknowledged: Callable[[JsonObject], None]) -> None:
            def pass_on(reported: JsonObject) -> None:
                accept(reported)
                on_acknowledged(reported)

            await self._session.listen(pass_on, **notifications)

        try:
            await keep_listening(listen, self._limits, partial(self._read_again, key), on_end=partial(accept, {}))
        except Exception as exc:  # noqa: BLE001 — boundary: a server may refuse a feature it declared
            if acknowledged is not None and not acknowledged.done():
                acknowledged.set_exception(exc)
            else:
                _log.debug("the server does not report %s: %s", key, exc)
        finally:
            accept({})

    def read_again(self) -> None:
        """Reread everything watched after a gap in the notifications."""
        for key in self._watched:
            self._read_again(key)

    def _read_again(self, key: str) -> None:
        """Report a watched item as changed; for a task, fetch its state first."""
        if key.startswith(_TASK):
            self._tasks.create_task(self._read_task(key.removeprefix(_TASK)))
        else:
            self._session.report("notifications/resources/updated", {"uri": key})

    async def _read_task(self, task_id: str) -> None:
        with suppress(Exception):  # the client polls it anyway
            self._session.report("notifications/tasks", await self._request("tasks/get", {"taskId": task_id}))


async def keep_listening(
    listen: Callable[[Callable[[JsonObject], None]], Awaitable[None]],
    limits: ServerLimits,
    on_gap: Callable[[], None],
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Keep a subscription open, reopening it after its end and after transient failures.

    `on_gap` runs once it's open again, because nothing was reported in between. `on_end` runs whenever the server ends
    it. Permanent failures of `listen` propagate.
    """
    loop, backoff = asyncio.get_running_loop(), Backoff(limits.relist_gap_s, longest_s=_LONGEST_PAUSE_S)
    is_read = True

    def read_again() -> None:
        nonlocal is_read
        if not is_read:
            is_read = True
            on_gap()

    while True:
        opened_at, retry_after_s = loop.time(), None
        unacknowledged = loop.call_later(limits.list_s, read_again)  # some servers never acknowledge
        try:
            await listen(lambda _: read_again())
            read_again()
            on_end()
        except Exception as exc:
            if not is_transient(exc):
                raise
            retry_after_s = get_retry_after(exc)
        finally:
            unacknowledged.cancel()
        is_read = False
        if loop.time() - opened_at > _LONGEST_PAUSE_S:
            backoff.reset()
        await backoff.pause(retry_after_s)
