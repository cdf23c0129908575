"""Tasks: calls that a server answers with a handle at once, and finishes later.

Revision 2026-07-28 has them as an extension (SEP-2663): the server decides, `tasks/get` carries the result and the
questions to the client, `tasks/update` brings the answers. Revision 2025-11-25 has an experimental form in its core:
the client asks for a task with `task` in its request, `tasks/result` waits for the result, and questions come as
requests of the server meanwhile. Inside of this package a task has the shape of the extension.

https://modelcontextprotocol.io/seps/2663-tasks-extension,
https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from indusagi.core.backoff import Backoff
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.interop.protocol_bridge.client.transient import get_retry_after, is_transient
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    InvalidResponseError,
    OnProgress,
    RequestTimeoutError,
    RpcError,
)
from indusagi.runtime.calls import CallCompletion

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId

TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the extension."""
RELATED_TASK = "io.modelcontextprotocol/related-task"
"""Key in the `_meta` of a message of revision 2025-11-25 that belongs to a task."""
TASK_STATUSES = frozenset({"notifications/tasks", "notifications/tasks/status"})
"""The notifications about a task, of both revisions."""
TERMINAL = frozenset({"completed", "failed", "cancelled"})
MISSING_CAPABILITY = -32021
"""`MissingRequiredClientCapabilityError` of the modern protocol."""
SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 60.0
"""Bounds of the server's `pollIntervalMs`."""
_FIRST_POLL_S, _UNTOLD_POLL_S = 0.1, 2.0
"""Without a `pollIntervalMs` the pause doubles from the first to the second."""
_CANCEL_S = 2.0
_QUESTIONS = 100
"""Questions of one task that are answered."""
_EARLY = 100
"""Tasks of which an early notification is remembered."""
_CORE_NAMES = {"ttlMs": "ttl", "pollIntervalMs": "pollInterval"}
"""Fields of a task that revision 2025-11-25 names differently."""

Send: TypeAlias = Callable[[str, JsonObject, float], Awaitable[JsonObject]]
"""Sends a request about a task, which is answered within some seconds."""
RunHandler: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]


class TaskExchange:
    """What a client that knows tasks contributes to its call, and the task that the server made of the call."""

    def __init__(self, core: JsonObject | None = None, *, shown_id: str = "") -> None:
        self.core = core
        """The `task` of a request of revision 2025-11-25; None: the client declares the extension."""
        self.shown_id = shown_id
        """The id of the task that a `tasks/result` of revision 2025-11-25 waits for, as its client knows it."""
        self.created: JsonObject | None = None
        """The handle, with the server's own id."""
        self.server = ""
        self.completion = CallCompletion()

    def takes(self, *, is_modern: bool) -> bool:
        """Return whether the client gets the handle of a task of a modern or of a legacy server.

        A legacy server asks its questions by requests, which a client of the extension could not answer later.
        """
        return is_modern or self.core is not None


def is_task(value: JsonValue) -> TypeGuard[JsonObject]:
    """Return whether a value is a task of either revision."""
    return is_json_object(value) and isinstance(value.get("taskId"), str) and isinstance(value.get("status"), str)


def read_created_task(result: JsonObject, *, is_modern: bool) -> JsonObject | None:
    """Read the handle in a result of `tools/call`; None if it is an ordinary result."""
    value = result if is_modern and result.get("resultType") == "task" else result.get("task")
    if not is_task(value) or (is_modern and value is not result):
        return None
    return read_task(value)


def read_task(value: JsonObject) -> JsonObject:
    """Convert a task of either revision into the shape of the extension."""
    renamed = {old: new for new, old in _CORE_NAMES.items()}
    return {renamed.get(key, key): inner for key, inner in value.items() if key != "resultType"}


def to_core_task(task: JsonObject) -> JsonObject:
    """Convert a task into the shape of revision 2025-11-25, which carries neither result nor questions."""
    hidden = {"result", "error", "inputRequests", "resultType"}
    return {_CORE_NAMES.get(key, key): value for key, value in task.items() if key not in hidden}


def declares_tasks(capabilities: JsonValue) -> bool:
    """Return whether capabilities of a client or server declare the extension."""
    extensions = capabilities.get("extensions") if is_json_object(capabilities) else None
    return is_json_object(extensions) and is_json_object(extensions.get(TASKS))


def declare_tasks(capabilities: JsonValue) -> JsonObject:
    """Add the extension to the capabilities of a client."""
    declared = capabilities if is_json_object(capabilities) else {}
    extensions = declared.get("extensions")
    return {**declared, "extensions": {**(extensions if is_json_object(extensions) else {}), TASKS: {}}}


def offers_core_tasks(capabilities: JsonObject) -> bool:
    """Return whether a server of revision 2025-11-25 makes tasks of tool calls."""
    value: JsonValue = capabilities
    for key in ("tasks", "requests", "tools", "call"):
        value = value.get(key) if is_json_object(value) else None
    return is_json_object(value)


def read_task_support(definition: JsonObject) -> str:
    """Read from the definition of a tool whether it may or must be called as a task of revision 2025-11-25."""
    execution = definition.get("execution")
    support = execution.get("taskSupport") if is_json_object(execution) else None
    return str(support) if support in {"optional", "required"} else "forbidden"


def read_related_task(params: JsonObject) -> str:
    """Read the id of the task that a message of a server belongs to; empty without one."""
    meta = params.get("_meta")
    related = meta.get(RELATED_TASK) if is_json_object(meta) else None
    task_id = related.get("taskId") if is_json_object(related) else None
    return task_id if isinstance(task_id, str) else ""


def new_missing_error() -> RpcError:
    """Build the error for a client that does not declare the extension."""
    data: JsonObject = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return RpcError(MISSING_CAPABILITY, "Missing required client capability", data)


def requires_tasks(exc: RpcError) -> bool:
    """Return whether a server refused a call because its client does not declare the extension."""
    data = exc.data.get("requiredCapabilities") if is_json_object(exc.data) else None
    return exc.code == MISSING_CAPABILITY and declares_tasks(data)


def read_task_result(task: JsonObject) -> JsonObject:
    """Read the result of a task that has ended.

    Raises:
        RpcError: It failed, or was cancelled.
        InvalidResponseError: It has no result.
    """
    status, result, error = task.get("status"), task.get("result"), task.get("error")
    if status == "completed" and is_json_object(result):
        return result
    if status == "failed" and is_json_object(error):
        code, message = error.get("code"), error.get("message")
        raise RpcError(
            code if isinstance(code, int) else INTERNAL_ERROR,
            message if isinstance(message, str) else "the server gave no reason",
            error.get("data"),
        )
    if status == "cancelled":
        raise RpcError(INTERNAL_ERROR, str(task.get("statusMessage") or "the task was cancelled"))
    raise InvalidResponseError(f"its task is {status!r} and has no result")


class ServerTasks:
    """The tasks of one session that are waited for.

    Args:
        send: Sends a request about a task.
        run_handler: Answers a question of the server.
        idle_s: How long a status may take.
    """

    def __init__(self, send: Send, run_handler: RunHandler, idle_s: float) -> None:
        self.sinks: dict[RequestId, OnProgress] = {}
        """Progress of tasks of revision 2025-11-25, by the id of the request that made the task."""
        self._send = send
        self._run_handler = run_handler
        self._idle_s = idle_s
        self._changed: dict[str, asyncio.Event] = {}
        self._early: deque[str] = deque(maxlen=_EARLY)
        """Tasks with a notification that came before `follow`: with the handle, in one read of the pipe."""

    def receive(self, task: JsonObject) -> None:
        """Take a notification about a task: it is looked at once instead of after the pause."""
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
        """Wait until a task has ended, answer its questions, and return its result.

        A poll that fails for a while is repeated. With `cancels`, the task is cancelled when we stop waiting for it:
        not when the server itself has ended the wait.

        Raises:
            RpcError: The task failed or was cancelled, or asked for an input that has no handler.
            RequestTimeoutError: It takes longer than `limit_s`.
        """
        task_id = str(task["taskId"])
        changed = self._changed[task_id] = asyncio.Event()
        if task_id in self._early:
            self._early.remove(task_id)
            changed.set()
        poll = _TaskPoll(self._send, self._run_handler, self._idle_s, task_id, changed)
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
                await self._cancel(task_id)
        return read_task_result(ended) if is_modern else ended

    async def _cancel(self, task_id: str) -> None:
        from anyio import move_on_after  # noqa: PLC0415 — only for a call that ends early

        with suppress(Exception), move_on_after(_CANCEL_S, shield=True):
            await self._send("tasks/cancel", {"taskId": task_id}, _CANCEL_S)


class _TaskPoll:
    """The polls of one task."""

    def __init__(
        self, send: Send, run_handler: RunHandler, idle_s: float, task_id: str, changed: asyncio.Event
    ) -> None:
        self.is_over = False
        """Whether the server has ended the wait: by the end of the task, or by refusing to say more about it."""
        self._send = send
        self._run_handler = run_handler
        self._idle_s = idle_s
        self._params: JsonObject = {"taskId": task_id}
        self._changed = changed
        self._backoff = Backoff()
        self._given: JsonObject = {}
        """Our answers, by question."""
        self._delivered: set[str] = set()

    async def run(
        self, task: JsonObject, limit_s: float, on_progress: OnProgress | None, *, is_modern: bool
    ) -> JsonObject:
        """Return the task that has ended; of a legacy server its result."""
        untold_s, is_detailed = _FIRST_POLL_S, False  # a handle has neither result nor questions
        for number in itertools.count(1):
            status, message = task.get("status"), task.get("statusMessage")
            if on_progress is not None and status is not None:
                on_progress({"progress": number, "message": message or f"the task is {status}"})
            if not is_modern and (status in TERMINAL or status == "input_required"):
                # Waits until the end; the server sends its questions meanwhile.
                result = await self._request("tasks/result", limit_s)
                self.is_over = True
                return result
            if is_detailed and status in TERMINAL:
                self.is_over = True
                return task
            if is_detailed and status == "input_required":
                await self._answer(task)
            if is_detailed or status == "working":
                await _pause(task, self._changed, untold_s)
                untold_s = min(untold_s * 2, _UNTOLD_POLL_S)
            task, is_detailed = read_task(await self._request("tasks/get", self._idle_s)), True
            if not is_task(task):
                raise InvalidResponseError("tasks/get answered without a task")
        raise AssertionError  # `count` has no end

    async def _request(self, method: str, within_s: float) -> JsonObject:
        """Send a request that changes nothing, until it is answered."""
        while True:
            try:
                answer = await self._send(method, self._params, within_s)
            except Exception as exc:
                if not is_transient(exc):
                    self.is_over = True
                    raise
                await self._backoff.pause(get_retry_after(exc))
            else:
                self._backoff.reset()
                return answer

    async def _answer(self, task: JsonObject) -> None:
        """Answer the questions that are new. Answers that did not get through are sent with the next poll."""
        requests = task.get("inputRequests")
        responses: JsonObject = {}
        for key, value in requests.items() if is_json_object(requests) else ():
            if key in self._delivered:
                continue
            if key not in self._given:
                if len(self._given) >= _QUESTIONS:
                    raise InvalidResponseError(f"its task asked more than {_QUESTIONS} questions")
                request = value if is_json_object(value) else {}
                params = request.get("params")
                self._given[key] = await self._run_handler(
                    str(request.get("method")), params if is_json_object(params) else {}
                )
            responses[key] = self._given[key]
        if not responses:
            return
        try:
            await self._send("tasks/update", {**self._params, "inputResponses": responses}, self._idle_s)
        except Exception as exc:
            if not is_transient(exc):
                raise
            await self._backoff.pause(get_retry_after(exc))
        else:
            self._delivered.update(responses)


async def _pause(task: JsonObject, changed: asyncio.Event, untold_s: float) -> None:
    """Wait as long as the server wants between two polls, or until it reports a change."""
    told, pause_s = task.get("pollIntervalMs"), untold_s
    if isinstance(told, (int, float)) and told > 0:
        pause_s = min(max(told / 1_000, SHORTEST_POLL_S), LONGEST_POLL_S)
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await changed.wait()
    changed.clear()
