"""Server tasks through a gateway: a client that supports tasks holds an id issued by the gateway.

The id is random. It maps to a server and the server's own id, works only for the client that created the task (by token
or principal), and outlives the gateway (`TaskMap`). Requests about a task go to its server; notifications go to the
clients following it. Clients without task support never see one: the endpoint waits for the result. The call is
recorded, with the task's duration, once the gateway sees the task end.

In a cluster the id is sealed instead of stored, so every node can open it (`TaskHandles`). A restarted server that
counts from one may reuse an id for another task, so the gateway compares creation times before acting on a task.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast

import anyio
from anyio import to_thread

from indusagi.core.faults import Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.sqlite import DatabaseFormat, LazyDatabase
from indusagi.core.tasks import Listeners
from indusagi.core.text import clean_json
from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.client.handlers import current_server, name_askers
from indusagi.interop.protocol_bridge.client.tasks import TERMINAL, TaskExchange, is_task, read_task, read_task_support
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling
from indusagi.interop.protocol_bridge.contract import ProtocolFault, parse_call_result, to_tool_result
from indusagi.interop.protocol_bridge.fleet import send_past_move
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity, current_identity
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from indusagi.interop.protocol_bridge.uris import convert_blocks, convert_result
from indusagi.runtime.calls import CallCompletion, current_conversation, current_user
from indusagi.runtime.contract import ProgressSink, ToolOutcome, ToolResult

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
    from indusagi.interop.protocol_bridge.host.catalog import TaskListener
    from induscode.cluster.sessions import SealedTask, TaskHandles
    from induscode.gateway.content import GatewayContent

_log = logging.getLogger(__name__)

T = TypeVar("T")
UNLIMITED_MS, LONGEST_MS = 7 * 86_400_000, 30 * 86_400_000
"""Retention of a task without a TTL, and the upper bound for any task."""
_GRACE_MS = 60_000
"""Retention past a task's TTL: the server may keep it longer and should be the one to report it gone."""
_ID_BYTES = 24
_CREATED_TOLERANCE_S = 0.01
"""Creation times closer than this are equal: servers may round them."""
_MAX_ID_CHARS = 1_024
_CANCEL_S = 30.0
"""How long a server may take to cancel a task whose client has lost its access."""


@dataclass(slots=True, eq=False)
class HeldTask:
    """A task held by a client, with the state this process has for it."""

    row: TaskRow
    completion: CallCompletion | None = None
    listeners: list[TaskListener] = field(default_factory=list["TaskListener"])
    spellings: dict[str, ArgumentSpelling] = field(default_factory=dict[str, ArgumentSpelling])
    """How the server spells the argument names in its input requests, by request key."""
    created: float = 0.0
    """Creation time by the server's clock; 0 if unknown."""
    sealed: SealedTask | None = None
    """Contents of its handle, in a cluster."""
    is_reported: bool = False
    """Whether the node that created the task knows about its end."""
    notified: JsonObject | None = None
    """Last state sent to the clients following it."""
    conversation: str | None = None
    """The conversation whose call created it, if that was here."""
    identity: ClientIdentity | None = None
    """The client that created it, if that was here."""


class GatewayTasks:
    """The task source of a gateway.

    `task_map` persists tasks; without it they live as long as this process. In a cluster, `handles` seal ids instead.
    `holds_back` returns whether every result has to pass through here: addon interceptors don't see tasks.
    """

    def __init__(
        self,
        content: GatewayContent,
        task_map: TaskMap | None = None,
        on_note: Callable[[Note], None] = lambda _: None,
        handles: TaskHandles | None = None,
        holds_back: Callable[[], bool] = lambda: False,
    ) -> None:
        self._holds_back = holds_back
        self._content = content
        self._map = task_map
        self._on_note = on_note
        self._handles = handles
        self._held: dict[str, HeldTask] = {}
        self._by_own: dict[tuple[str, str], HeldTask] = {}
        self.on_adopted: Listeners[[str]] = Listeners()
        """Called with a task's server when a conversation asks about a task that it didn't create."""
        content.on_task_status.add(self.receive)

    async def open(self) -> None:
        """Load tasks that clients hold from earlier runs. In a cluster, follow the task ends other nodes report."""
        if self._handles is not None:
            self._handles.follow(self._look_later)
        for row in await self._use_map(lambda known: known.read_all(now_ms())) or ():
            self._hold(HeldTask(row))

    async def aclose(self) -> None:
        """Record calls with a running task as unfinished, and close the map."""
        for held in self._held.values():
            self._finish(held, ToolResult.error("The gateway ended before the task.", code="unfinished"))
        if self._map is not None:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._map.close)

    async def _use_map(self, use: Callable[[TaskMap], T]) -> T | None:
        """Use the map in a thread. If that fails, drop it: tasks then live as long as this process."""
        if self._map is None:
            return None
        try:
            return await to_thread.run_sync(use, self._map)
        except (OSError, sqlite3.Error) as exc:
            message = f"tasks cannot be remembered across a restart: {describe_error(exc)}"
            self._on_note(Note(f"the tasks {self._map.path!r}", message))
            self._map = None
            return None

    # -- handles ----------------------------------------------------------------------------

    def offers_core(self) -> bool:
        """Return whether any listed tool can be called as a task of revision 2025-11-25."""
        return any(read_task_support(tool.raw) != "forbidden" for tool in self._content.list_tools())

    def gives_handles(self) -> bool:
        """Return whether clients get handles. If not, the gateway waits for results."""
        return not self._holds_back()

    async def add(self, exchange: TaskExchange, owner: bytes, listener: TaskListener | None) -> JsonObject:
        """Persist a new task before its client learns about it, and return it under the gateway's id."""
        task = exchange.created or {}
        own = str(task.get("taskId"))
        if len(own) > _MAX_ID_CHARS:
            raise RpcError(INVALID_PARAMS, f"server {exchange.server!r} has a task id of {len(own):,} characters")
        row = TaskRow(
            secrets.token_urlsafe(_ID_BYTES),
            self._content.name_session(exchange.server),
            own,
            _digest(owner),
            _find_end(task),
        )
        held = HeldTask(row, created=_read_time(task.get("createdAt")) or 0.0)
        if self._handles is not None:
            await self._seal(held, self._handles)
        earlier = self._by_own.get((row.session, own))
        if earlier is not None and earlier.row.owner == row.owner and earlier.sealed is None:
            held.row = replace(row, id=earlier.row.id)
        if earlier is not None:  # the server restarted and counts from one: the old task is gone
            self._forget(earlier)
        held.conversation, held.identity = current_conversation.get(), current_identity.get()
        held.completion, held.listeners = exchange.completion, [] if listener is None else [listener]
        row = held.row
        self._hold(held)
        await self._use_map(lambda known: known.write(row))
        return self._show(held, task)

    async def _seal(self, held: HeldTask, handles: TaskHandles) -> None:
        """Replace a new task's id by a handle that every node can open."""
        # Other nodes don't learn about TTL changes, so leave it to the server to report the task gone.
        row, expires_ms = held.row, now_ms() + LONGEST_MS

        async def seal(endpoint: ServerEndpointImpl) -> JsonObject:
            sealed = held.sealed = handles.build(endpoint.config, row.own, row.owner, held.created, expires_ms)
            held.row = replace(row, id=handles.seal(sealed), expires_ms=expires_ms)
            return {}

        await self._reach(held, seal)

    def _unseal(self, task_id: str) -> HeldTask | None:
        sealed = None if self._handles is None else self._handles.unseal(task_id)
        if sealed is None:
            return None
        row = TaskRow(task_id, self._content.name_session(sealed.server), sealed.own, sealed.owner, sealed.expires_ms)
        return HeldTask(row, created=sealed.created, sealed=sealed)

    def _hold(self, held: HeldTask) -> None:
        self._held[held.row.id] = held
        key = (held.row.session, held.row.own)
        known = self._by_own.get(key)
        if known is None or known.created <= held.created:  # a sealed handle may be older than the current task
            self._by_own[key] = held
        if len(self._held) <= MOST_TASKS:
            return
        now = now_ms()
        by_end = sorted(self._held.values(), key=lambda one: one.row.expires_ms)
        # Evict a tenth at a time: sorting for every task would cost more than the tasks.
        for index, one in enumerate(by_end):
            if index >= MOST_TASKS // 10 and one.row.expires_ms > now:
                break
            self._forget(one)

    def _forget(self, held: HeldTask) -> None:
        self._finish(held, ToolResult.error("The end of the task was not seen.", code="unfinished"))
        self._held.pop(held.row.id, None)
        if self._by_own.get((held.row.session, held.row.own)) is held:
            del self._by_own[held.row.session, held.row.own]

    async def _find(self, task_id: str, owner: bytes) -> HeldTask:
        """Find a task by its owner; for anyone else it doesn't exist (`RpcError`)."""
        held = self._held.get(task_id) or self._unseal(task_id)
        if held is None and (row := await self._use_map(lambda known: known.find(task_id))) is not None:
            held = HeldTask(row)
        is_owner = held is not None and secrets.compare_digest(held.row.owner, _digest(owner))
        if held is None or not is_owner or held.row.expires_ms <= now_ms():
            raise _build_unknown()
        if task_id not in self._held:
            self._hold(held)
        if held.conversation != current_conversation.get():
            self.on_adopted(held.row.server)
        return held

    def cancel(self, is_meant: Callable[[ClientIdentity], object]) -> None:
        """Cancel the running tasks that some clients created here, as far as their servers answer."""

        async def cancel(task_id: str, identity: ClientIdentity) -> None:
            current_user.set(identity.user)
            with suppress(RpcError), anyio.move_on_after(_CANCEL_S):
                await self.request("tasks/cancel", {"taskId": task_id}, identity.owner)

        for held in [*self._held.values()]:
            if held.completion is not None and held.identity is not None and is_meant(held.identity):
                self._content.start_soon(cancel, held.row.id, held.identity)

    def find_server(self, task_id: JsonValue) -> str | None:
        """Return the server of a task that this process knows or whose handle it can open."""
        held = self._held.get(task_id) or self._unseal(task_id) if isinstance(task_id, str) else None
        return None if held is None else held.row.server

    # -- requests ---------------------------------------------------------------------------

    async def request(
        self, method: str, params: JsonObject, owner: bytes, on_progress: ProgressSink | None = None
    ) -> JsonObject:
        """Answer a request about a task of the current caller; `RpcError` if the owner has no such task."""
        held = await self._find(str(params.get("taskId")), owner)
        if method != "tasks/get":
            await self._verify(held)
        sent: JsonObject = {**params, "taskId": held.row.own}
        if method == "tasks/update":
            sent["inputResponses"] = _restore_answers(held, params.get("inputResponses"))

        async def ask(endpoint: ServerEndpointImpl) -> JsonObject:
            return await endpoint.request(method, sent, on_progress=on_progress)

        result = await self._reach(held, ask)
        if method == "tasks/result":
            self._finish(held, to_tool_result(parse_call_result(result, held.row.server)))
            return self._convert(held, result)
        if method == "tasks/update":
            return {}
        if method == "tasks/cancel" and not is_task(result):
            # The client needn't poll again, so poll once to record the end of the call.
            shown = await self._look(held)
            self._finish(held, ToolResult.error("The client cancelled the task.", code="cancelled"))
            return shown
        return await self._observe(held, read_task(result))

    async def _look(self, held: HeldTask) -> JsonObject:
        """Poll the server for a task and return it as its client sees it."""
        seen = await self._reach(held, lambda endpoint: endpoint.request("tasks/get", {"taskId": held.row.own}))
        return await self._observe(held, read_task(seen))

    async def _verify(self, held: HeldTask) -> None:
        """Check that the server's id still means the task of a sealed handle (`RpcError` if not): no map says so."""
        if held.sealed is not None:
            await self._look(held)

    def _look_later(self, task_id: str) -> None:
        """Poll a task after another node saw its end: the call is recorded on this node."""
        held = self._held.get(task_id)
        if held is None or held.completion is None:
            return

        async def look() -> None:
            try:
                await self._look(held)
            except RpcError as exc:
                _log.debug("the end of a task was not seen: %s", exc)

        self._content.start_soon(look)

    async def _reach(self, held: HeldTask, use: Callable[[ServerEndpointImpl], Awaitable[JsonObject]]) -> JsonObject:
        server = held.row.server

        async def send() -> JsonObject:
            endpoint = await self._content.wake(server)
            if self._handles is not None and held.sealed is not None:
                if self._handles.identify_server(endpoint.config) != held.sealed.server_key:
                    raise _build_unknown()  # another server under the same name
            return await use(endpoint)

        try:
            return await send_past_move(send)
        except ProtocolFault as fault:
            error = self._content.convert_fault(fault, server)
            if error.code == INVALID_PARAMS and held.completion is not None:
                self._finish(held, ToolResult.error(f"The server has lost the task: {error}", code="unfinished"))
            raise error from fault

    async def _observe(self, held: HeldTask, task: JsonObject) -> JsonObject:
        """Note a task's state and return it as its client sees it; `RpcError` if the server reused the id."""
        if not _is_same(held, task):
            self._forget(held)
            raise _build_unknown()
        end = _find_end(task)
        if held.sealed is None and abs(end - held.row.expires_ms) > _GRACE_MS:  # a task's TTL may change
            row = held.row = replace(held.row, expires_ms=end)
            await self._use_map(lambda known: known.write(row))
        self._note_end(held, task)
        if self._handles is not None and held.sealed is not None and task.get("status") in TERMINAL:
            if not held.is_reported and held.sealed.instance != self._handles.instance:
                held.is_reported = True
                await self._handles.report_end(held.row.id, held.sealed.instance)
        return self._show(held, task)

    def _note_end(self, held: HeldTask, task: JsonObject) -> None:
        status = task.get("status")
        if status not in TERMINAL:
            return
        result, error = task.get("result"), task.get("error")
        if is_json_object(result):
            ended = to_tool_result(parse_call_result(result, held.row.server))
        elif status == "completed":
            ended = ToolResult(())
        else:
            text = error.get("message") if is_json_object(error) else task.get("statusMessage")
            ended = ToolResult.error(str(text), code="cancelled" if status == "cancelled" else "tool_error")
        # By the server's clock.
        began, at = _read_time(task.get("createdAt")), _read_time(task.get("lastUpdatedAt"))
        self._finish(held, ended, None if began is None or at is None or at < began else at - began)

    def _finish(self, held: HeldTask, result: ToolResult, seconds: float | None = None) -> None:
        completion, held.completion = held.completion, None
        if completion is not None:
            completion.finish(ToolOutcome(held.row.id, result), seconds)

    def _show(self, held: HeldTask, task: JsonObject) -> JsonObject:
        """Return a task under the gateway's id, with URIs converted and invisible characters removed."""
        result, asked = task.get("result"), task.get("inputRequests")
        rest = {key: value for key, value in task.items() if key not in {"result", "inputRequests", "_meta"}}
        shown = cast("JsonObject", clean_json(rest)[0])
        if is_json_object(result):
            shown["result"] = self._convert(held, result)
        if is_json_object(asked):
            held.spellings.clear()
            for key, value in asked.items():
                params = value.get("params") if is_json_object(value) else None
                schema = params.get("requestedSchema") if is_json_object(params) else None
                held.spellings[key] = ArgumentSpelling(schema)
            shown["inputRequests"] = name_askers(held.row.server, clean_json(asked)[0])
        return {**shown, "taskId": held.row.id}

    def _convert(self, held: HeldTask, result: JsonObject) -> JsonObject:
        convert = self._content.map_uris(held.row.server)
        cleaned = convert_result(cast("JsonObject", clean_json(result)[0]), convert)
        content = cleaned.get("content")
        return {**cleaned, "content": convert_blocks(content, convert)} if isinstance(content, list) else cleaned

    # -- changes ----------------------------------------------------------------------------

    async def watch(self, task_id: str, owner: bytes, listener: TaskListener) -> Callable[[], None]:
        """Call `listener` on every change of a task until the returned function is called."""
        held = await self._find(task_id, owner)
        await self._verify(held)
        held.listeners.append(listener)
        endpoints: list[ServerEndpointImpl] = []

        def stop() -> None:
            if listener in held.listeners:
                held.listeners.remove(listener)
            if not held.listeners:
                for endpoint in endpoints:
                    endpoint.unwatch_task(held.row.own)

        async def ask(endpoint: ServerEndpointImpl) -> JsonObject:
            endpoints.append(endpoint)
            await endpoint.watch_task(held.row.own)
            return {}

        try:
            await self._reach(held, ask)
        except BaseException:
            stop()
            raise
        return stop

    def receive(self, params: JsonObject) -> None:
        """Pass a server's task notification to the clients following the task."""
        session = self._content.name_session(current_server.get() or "")
        held = self._by_own.get((session, str(params.get("taskId"))))
        if held is None or not is_task(params):
            return
        task = read_task(params)
        if not _is_same(held, task):
            return
        shown = self._show(held, task) if held.listeners else None
        # A server reports a change once for each node that follows the task, and every node learns of each.
        if shown is not None and shown != held.notified:
            held.notified = shown
            for listener in [*held.listeners]:
                listener(shown)
        self._note_end(held, task)


def _build_unknown() -> RpcError:
    return RpcError(INVALID_PARAMS, "there is no such task: it has expired, or belongs to another client")


def _is_same(held: HeldTask, task: JsonObject) -> bool:
    """Return whether a server's task is the held one, by creation time."""
    created = _read_time(task.get("createdAt"))
    if not held.created or created is None:
        return True
    # Servers may write fractions of a second in one place and leave them out in another.
    is_exact = held.created % 1 and created % 1
    return abs(created - held.created) < (_CREATED_TOLERANCE_S if is_exact else 1)


def _digest(owner: bytes) -> str:
    return hashlib.sha256(owner).hexdigest()


def _find_end(task: JsonObject) -> int:
    """Return when a task may be forgotten."""
    ttl = task.get("ttlMs")
    life = int(min(ttl, LONGEST_MS)) if isinstance(ttl, (int, float)) and ttl >= 0 else UNLIMITED_MS
    created = _read_time(task.get("createdAt"))
    # The clock of another machine may be wrong.
    begin = now_ms() if created is None or abs(created * 1_000 - now_ms()) > LONGEST_MS else int(created * 1_000)
    return begin + life + _GRACE_MS


def _read_time(value: JsonValue) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _restore_answers(held: HeldTask, answers: JsonValue) -> JsonObject:
    """Spell the names in a client's answers the way the server does."""
    restored: JsonObject = {}
    for key, answer in answers.items() if is_json_object(answers) else ():
        restored[key] = answer
        spelling, content = held.spellings.get(key), answer.get("content") if is_json_object(answer) else None
        if spelling is not None and is_json_object(answer) and is_json_object(content):
            restored[key] = {**answer, "content": spelling.restore(content)}
    return restored


# -- task map ---------------------------------------------------------------------------------
#
# One private SQLite file of this user, shared by its gateways. A row is written before a client learns the id, so that
# the client can come again after a restart of the gateway. The rows that expire first leave when there are too many. A
# row names its owner by a digest. All functions block.


TASKS_FILE = "tasks.db"
"""File name in the state directory."""
MOST_TASKS = 10_000
"""Above this, the tasks that expire first are dropped."""
_SCHEMA = (
    "CREATE TABLE tasks (id TEXT PRIMARY KEY, server TEXT NOT NULL, own TEXT NOT NULL, "
    "owner TEXT NOT NULL, expires_ms INTEGER NOT NULL, UNIQUE (server, own)) WITHOUT ROWID"
)
_TASKS = DatabaseFormat(application_id=0x7461736B, version=0, upgrades={0: (_SCHEMA,)})
_COLUMNS = "id, server, own, owner, expires_ms"


@record
class TaskRow:
    """A task held by a client."""

    id: str
    """The id the client knows."""
    session: str
    """The session with its server (`ServerFleetImpl.name_session`)."""
    own: str
    """The server's id."""
    owner: str
    """Digest of the client's token or principal."""
    expires_ms: int

    @property
    def server(self) -> str:
        """Its server."""
        return self.session.partition("\n")[0]


class TaskMap(LazyDatabase):
    """The task file. A damaged one is worth less than the tasks to come."""

    def __init__(self, path: str) -> None:
        super().__init__(path, TASKS_FILE, _TASKS)

    def read_all(self, now_ms: int) -> Iterable[TaskRow]:
        """Return unexpired rows. Deletes only rows over the limit, so a clock jumping ahead loses nothing.

        Raises:
            OSError: The file can't be created, or belongs to another user.
            sqlite3.Error: The file is unusable.
        """
        with self._lock:
            connection = self._open()
            past_the_most = "SELECT id FROM tasks ORDER BY expires_ms DESC LIMIT -1 OFFSET ?"
            connection.execute(f"DELETE FROM tasks WHERE id IN ({past_the_most})", (MOST_TASKS,))
            query = f"SELECT {_COLUMNS} FROM tasks WHERE expires_ms > ? ORDER BY expires_ms"
            return [TaskRow(*row) for row in connection.execute(query, (now_ms,))]

    def find(self, task_id: str) -> TaskRow | None:
        """Find a row, including ones other gateways wrote. Raises like `read_all`."""
        with self._lock:
            row = self._open().execute(f"SELECT {_COLUMNS} FROM tasks WHERE id = ?", (task_id,)).fetchone()
        return None if row is None else TaskRow(*row)

    def write(self, row: TaskRow) -> None:
        """Write a row, replacing earlier ones for the same task. Raises like `read_all`."""
        with self._lock:
            connection = self._open()
            connection.execute("DELETE FROM tasks WHERE server = ? AND own = ?", (row.session, row.own))
            connection.execute(
                f"INSERT INTO tasks ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
                (row.id, row.session, row.own, row.owner, row.expires_ms),
            )
