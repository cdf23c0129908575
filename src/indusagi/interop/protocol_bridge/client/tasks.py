"""Tasks: calls that a server answers with a handle at once and finishes later.

In revision 2026-07-28 they're an extension (SEP-2663): the server decides, `tasks/get` returns the result and input
requests, and `tasks/update` delivers the input. Revision 2025-11-25 has an experimental form in its core: the client
asks for a task with `task` in its request, `tasks/result` waits for the result, and input requests arrive as ordinary
requests. Inside this package, tasks have the extension's shape.

https://modelcontextprotocol.io/seps/2663-tasks-extension,
https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, TypeGuard

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.tasks import Backoff
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    InvalidResponseError,
    OnProgress,
    RequestTimeoutError,
    RpcError,
    get_retry_after,
    is_transient,
    parse_error,
)
from indusagi.interop.protocol_bridge.rpc.mcp_headers import MISSING_CAPABILITY
from indusagi.interop.protocol_bridge.rpc.transport import RequestId, get_object
from indusagi.runtime.calls import CallCompletion

TASKS = "io.modelcontextprotocol/tasks"
"""Identifier of the extension."""
RELATED_TASK = "io.modelcontextprotocol/related-task"
"""`_meta` key of revision 2025-11-25 that links a message to a task."""
TASK_STATUSES = frozenset({"notifications/tasks", "notifications/tasks/status"})
"""Task notifications of both revisions."""
TERMINAL = frozenset({"completed", "failed", "cancelled"})
SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 60.0
"""Bounds of the server's `pollIntervalMs`."""
_FIRST_POLL_S, _MAX_DEFAULT_POLL_S = 0.1, 2.0
"""Without a `pollIntervalMs`, the pause doubles from the first to the second value."""
_CANCEL_S = 2.0
_MAX_INPUTS = 100
"""Limit of input requests per task."""
_MAX_EARLY = 100
"""Limit of tasks whose early notifications are remembered."""
_CORE_NAMES = {"ttlMs": "ttl", "pollIntervalMs": "pollInterval"}
"""Task fields that have another name in revision 2025-11-25."""

Send: TypeAlias = Callable[[str, JsonObject, float], Awaitable[JsonObject]]
"""Sends a request about a task, with a timeout in seconds."""
RunHandler: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]


class TaskExchange:
    """The client's side of a call that may become a task, and the resulting task."""

    def __init__(self, core: JsonObject | None = None, *, shown_id: str = "") -> None:
        self.core = core
        """The `task` of a 2025-11-25 request; `None` if the client declares the extension."""
        self.shown_id = shown_id
        """The client's id for the task that a 2025-11-25 `tasks/result` waits for."""
        self.created: JsonObject | None = None
        """The handle, with the server's id."""
        self.server = ""
        self.completion = CallCompletion()

    def takes(self, *, is_modern: bool) -> bool:
        """Return whether the client gets task handles of a modern or legacy server.

        A legacy server requests input with ordinary requests, which a client of the extension couldn't answer later.
        """
        return is_modern or self.core is not None


def is_task(value: JsonValue) -> TypeGuard[JsonObject]:
    """Return whether a value is a task of either revision."""
    return is_json_object(value) and isinstance(value.get("taskId"), str) and isinstance(value.get("status"), str)


def read_created_task(result: JsonObject, *, is_modern: bool) -> JsonObject | None:
    """Read the task handle in a `tools/call` result; `None` for an ordinary result."""
    value = result if is_modern and result.get("resultType") == "task" else result.get("task")
    if not is_task(value) or (is_modern and value is not result):
        return None
    return read_task(value)


def read_task(value: JsonObject) -> JsonObject:
    """Convert a task of either revision into the extension's shape."""
    renamed = {old: new for new, old in _CORE_NAMES.items()}
    return {renamed.get(key, key): inner for key, inner in value.items() if key != "resultType"}


def to_core_task(task: JsonObject) -> JsonObject:
    """Convert a task into the shape of revision 2025-11-25, without result and input requests."""
    hidden = {"result", "error", "inputRequests", "resultType"}
    return {_CORE_NAMES.get(key, key): value for key, value in task.items() if key not in hidden}


def declares_tasks(capabilities: JsonValue) -> bool:
    """Return whether a client's or server's capabilities declare the extension."""
    extensions = capabilities.get("extensions") if is_json_object(capabilities) else None
    return is_json_object(extensions) and is_json_object(extensions.get(TASKS))


def declare_tasks(capabilities: JsonValue) -> JsonObject:
    """Add the extension to a client's capabilities."""
    declared = capabilities if is_json_object(capabilities) else {}
    return {**declared, "extensions": {**get_object(declared, "extensions"), TASKS: {}}}


def offers_core_tasks(capabilities: JsonObject) -> bool:
    """Return whether a 2025-11-25 server turns tool calls into tasks."""
    value: JsonValue = capabilities
    for key in ("tasks", "requests", "tools", "call"):
        value = value.get(key) if is_json_object(value) else None
    return is_json_object(value)


def read_task_support(definition: JsonObject) -> str:
    """Read whether a 2025-11-25 tool may or must be called as a task."""
    support = get_object(definition, "execution").get("taskSupport")
    return str(support) if support in {"optional", "required"} else "forbidden"


def read_related_task(params: JsonObject) -> str:
    """Read the id of the task a server's message belongs to, or an empty string."""
    task_id = get_object(get_object(params, "_meta"), RELATED_TASK).get("taskId")
    return task_id if isinstance(task_id, str) else ""


def new_missing_error() -> RpcError:
    """Build the error for a client that doesn't declare the extension."""
    data: JsonObject = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return RpcError(MISSING_CAPABILITY, "Missing required client capability", data)


def requires_tasks(exc: RpcError) -> bool:
    """Return whether a server refused a call because the client doesn't declare the extension."""
    data = exc.data.get("requiredCapabilities") if is_json_object(exc.data) else None
    return exc.code == MISSING_CAPABILITY and declares_tasks(data)


def read_task_result(task: JsonObject) -> JsonObject:
    """Read the result of a finished task; raise if it failed, was cancelled or has no result."""
    status, result, error = task.get("status"), task.get("result"), task.get("error")
    if status == "completed" and is_json_object(result):
        return result
    if status == "failed" and is_json_object(error):
        raise parse_error(error)
    if status == "cancelled":
        raise RpcError(INTERNAL_ERROR, str(task.get("statusMessage") or "the task was cancelled"))
    raise InvalidResponseError(f"its task is {status!r} and has no result")


class ServerTasks:
    """The tasks that a session waits for. `idle_s` is the timeout of a status request."""

    def __init__(self, send: Send, run_handler: RunHandler, idle_s: float) -> None:
        self.sinks: dict[RequestId, OnProgress] = {}
        """Progress callbacks of 2025-11-25 tasks, by the id of the request that created the task."""
        self.send = send
        self.run_handler = run_handler
        self.idle_s = idle_s
        self._changed: dict[str, asyncio.Event] = {}
        self._early: deque[str] = deque(maxlen=_MAX_EARLY)
        """Tasks whose notification came before `follow`, in one read with the handle."""

    def receive(self, task: JsonObject) -> None:
        """Handle a task notification: poll the task at once instead of after the pause."""
        task_id = str(task.get("taskId"))
        changed = self._changed.get(task_id)
        if changed is not None:
            changed.set()
        elif task_id not in self._early:
            self._early.append(task_id)

    async def follow(
        self,
        task: JsonObject,
        *,
        is_modern: bool,
        limit_s: float,
        on_progress: OnProgress | None = None,
        cancels: bool = True,
    ) -> JsonObject:
        """Wait for a task to end, answer its input requests, and return its result.

        Transient poll failures are retried. With `cancels`, cancel the task if we stop waiting before the server has
        ended the wait. Raises `RpcError` if the task fails, is cancelled, or requests input that has no handler, and
        `RequestTimeoutError` after `limit_s`.
        """
        task_id = str(task["taskId"])
        changed = self._changed[task_id] = asyncio.Event()
        if task_id in self._early:
            self._early.remove(task_id)
            changed.set()
        poll = _TaskPoll(self, task_id, changed)
        try:
            async with asyncio.timeout(limit_s):
                report = on_progress if is_modern else None  # a legacy server reports progress itself
                ended = await poll.run(task, limit_s, report, is_modern=is_modern)
        except TimeoutError:
            raise RequestTimeoutError(f"the task has not ended within {limit_s:g} s") from None
        finally:
            if self._changed.get(task_id) is changed:
                del self._changed[task_id]
            if cancels and not poll.is_over:
                from anyio import move_on_after  # noqa: PLC0415 — only for a call that ends early

                with suppress(Exception), move_on_after(_CANCEL_S, shield=True):
                    await self.send("tasks/cancel", {"taskId": task_id}, _CANCEL_S)
        return read_task_result(ended) if is_modern else ended


class _TaskPoll:
    """Polls one task."""

    def __init__(self, tasks: ServerTasks, task_id: str, changed: asyncio.Event) -> None:
        self.is_over = False
        """Whether the server ended the wait: the task ended, or the server refused to say more about it."""
        self._tasks = tasks
        self._params: JsonObject = {"taskId": task_id}
        self._changed = changed
        self._backoff = Backoff()
        self._given: JsonObject = {}
        """Our answers, by input request."""
        self._delivered: set[str] = set()

    async def run(
        self, task: JsonObject, limit_s: float, on_progress: OnProgress | None, *, is_modern: bool
    ) -> JsonObject:
        """Return the finished task, or just the result from a legacy server."""
        pause_s, is_detailed = _FIRST_POLL_S, False  # a handle has neither result nor input requests
        for number in itertools.count(1):
            status, message = task.get("status"), task.get("statusMessage")
            if on_progress is not None and status is not None:
                on_progress({"progress": number, "message": message or f"the task is {status}"})
            if not is_modern and (status in TERMINAL or status == "input_required"):
                # Waits until the end, while the server sends its input requests.
                result = await self._request("tasks/result", limit_s)
                self.is_over = True
                return result
            if is_detailed and status in TERMINAL:
                self.is_over = True
                return task
            if is_detailed and status == "input_required":
                await self._answer(task)
            if is_detailed or status == "working":
                await _pause(task, self._changed, pause_s)
                pause_s = min(pause_s * 2, _MAX_DEFAULT_POLL_S)
            task, is_detailed = read_task(await self._request("tasks/get", self._tasks.idle_s)), True
            if not is_task(task):
                raise InvalidResponseError("tasks/get answered without a task")
        raise AssertionError  # `count` has no end

    async def _request(self, method: str, within_s: float) -> JsonObject:
        """Send an idempotent request, retrying transient failures."""
        while True:
            try:
                answer = await self._tasks.send(method, self._params, within_s)
            except Exception as exc:
                if not is_transient(exc):
                    self.is_over = True
                    raise
                await self._backoff.pause(get_retry_after(exc))
            else:
                self._backoff.reset()
                return answer

    async def _answer(self, task: JsonObject) -> None:
        """Answer new input requests. Answers that didn't get through are resent with the next poll."""
        requests = get_object(task, "inputRequests")
        responses: JsonObject = {}
        for key in requests:
            if key in self._delivered:
                continue
            if key not in self._given:
                if len(self._given) >= _MAX_INPUTS:
                    raise InvalidResponseError(f"its task asked more than {_MAX_INPUTS} questions")
                request = get_object(requests, key)
                self._given[key] = await self._tasks.run_handler(
                    str(request.get("method")), get_object(request, "params")
                )
            responses[key] = self._given[key]
        if not responses:
            return
        try:
            await self._tasks.send("tasks/update", {**self._params, "inputResponses": responses}, self._tasks.idle_s)
        except Exception as exc:
            if not is_transient(exc):
                raise
            await self._backoff.pause(get_retry_after(exc))
        else:
            self._delivered.update(responses)


async def _pause(task: JsonObject, changed: asyncio.Event, pause_s: float) -> None:
    """Wait for the server's poll interval (`pause_s` without one), or until it reports a change."""
    interval_ms = task.get("pollIntervalMs")
    if isinstance(interval_ms, (int, float)) and interval_ms > 0:
        pause_s = min(max(interval_ms / 1_000, SHORTEST_POLL_S), LONGEST_POLL_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await changed.wait()
    changed.clear()
