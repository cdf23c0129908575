"""Tasks that clients of a host hold: handles of calls that servers behind the host finish later.

The host keeps no tasks itself. Its `TaskSource` remembers which task of which server a handle stands for, and who may
use it. Inside, a task has the shape of the extension (`indusagi.interop.protocol_bridge.client.tasks`); clients of
revision 2025-11-25 get theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.interop.protocol_bridge.client.tasks import (
    RELATED_TASK,
    TASKS,
    TaskExchange,
    declares_tasks,
    is_task,
    new_missing_error,
    to_core_task,
)
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from indusagi.runtime.contract import ProgressSink

TASK_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
"""Of the extension; `Mcp-Name` repeats their `taskId`."""
CORE_TASK_METHODS = ("tasks/get", "tasks/result", "tasks/cancel")
CORE_TASKS: JsonObject = {"cancel": {}, "requests": {"tools": {"call": {}}}}
"""The capability of revision 2025-11-25. There is no list: one user's programs could see each other's tasks in it."""
TASKS_EXTENSION: JsonObject = {TASKS: {}}
CORE_VERSION = "2025-11-25"

TaskListener: TypeAlias = Callable[[JsonObject], None]


class TaskSource(Protocol):
    """Tasks of servers by the ids that clients know."""

    def offers_core(self) -> bool:
        """Return whether a listed tool can be called as a task of revision 2025-11-25."""
        ...

    def gives_handles(self) -> bool:
        """Return whether clients get handles at all; otherwise they wait for results."""
        ...

    async def add(self, exchange: TaskExchange, owner: bytes, listener: TaskListener | None) -> JsonObject:
        """Remember a new task for its owner before anything else happens, and return it under an id of its own.

        `listener` gets every change that the server reports unasked.
        """
        ...

    async def request(
        self, method: str, params: JsonObject, owner: bytes, on_progress: ProgressSink | None = None
    ) -> JsonObject:
        """Answer `tasks/get`, `tasks/update`, `tasks/cancel` or `tasks/result` of the present caller.

        Raises:
            RpcError: This owner has no such task, or the server refused.
        """
        ...

    async def watch(self, task_id: str, owner: bytes, listener: TaskListener) -> Callable[[], None]:
        """Call `listener` with every change of a task, until the returned function is called.

        Raises:
            RpcError: This owner has no such task, or its server does not report changes.
        """
        ...

    def find_server(self, task_id: JsonValue) -> str | None:
        """Find the server of a task."""
        ...


def new_exchange(source: TaskSource | None, params: JsonObject, declared: JsonValue = None) -> TaskExchange | None:
    """Return what the client of a call contributes if it knows tasks; None if it waits for the result.

    `declared` are the capabilities in a request of the modern protocol; a legacy one asks for a task in `params`.
    """
    if source is None or not source.gives_handles():
        return None
    if declared is not None:
        return TaskExchange() if declares_tasks(declared) else None
    core = params.get("task")
    return TaskExchange(core) if is_json_object(core) else None


def read_task_id(method: str, params: JsonObject, declared: JsonValue = None) -> str:
    """Read the id in a request about a task.

    Raises:
        RpcError: There is none, or the client of the modern protocol does not declare the extension.
    """
    if declared is not None and not declares_tasks(declared):
        raise new_missing_error()
    task_id = params.get("taskId")
    if not isinstance(task_id, str) or not task_id:
        raise RpcError(INVALID_PARAMS, f"{method} must have a taskId")
    return task_id


def build_handle(task: JsonObject, *, is_modern: bool) -> JsonObject:
    """Build the result of a call that has become a task."""
    if not is_modern:
        return {"task": to_core_task(task)}
    hidden = {"result", "error", "inputRequests", "requestState", "_meta"}
    return {"resultType": "task", **{key: value for key, value in task.items() if key not in hidden}}


def build_task_result(method: str, task_id: str, result: JsonObject, *, is_modern: bool) -> JsonObject:
    """Build the result of a request about a task for the era of its client."""
    if is_modern:
        return {} if method == "tasks/cancel" else result  # an acknowledgement
    if method == "tasks/result":
        meta = result.get("_meta")
        own = meta if is_json_object(meta) else {}
        return {**result, "_meta": {**own, RELATED_TASK: {"taskId": task_id}}}
    return to_core_task(result) if is_task(result) else result


def add_extensions(capabilities: JsonObject, extensions: JsonObject) -> JsonObject:
    """Add extensions to the capabilities of a host."""
    present = capabilities.get("extensions")
    return {**capabilities, "extensions": {**(present if is_json_object(present) else {}), **extensions}}
