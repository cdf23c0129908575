"""Server endpoint: one connection to one server, with its phases, tools and calls.

A single background task opens and closes the connection; the phase mirrors the state of that task. Concurrent callers
of `open` share one attempt. A closed or faulted endpoint stays that way, so a retry needs a new endpoint. If the server
wants a sign-in, the endpoint ends idle: nothing is broken and nothing is retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

from indusagi.capabilities.sandbox.behaviour import RefusedUse
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.process.tree import CpuDemand
from indusagi.core.tasks import Attempt, BackgroundTask
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.connect import InjectedTransport as InjectedTransport
from indusagi.interop.protocol_bridge.client.connect import OpenSession, open_client_session
from indusagi.interop.protocol_bridge.client.faults import FaultSite, to_protocol_fault
from indusagi.interop.protocol_bridge.client.handlers import Handlers, current_caller
from indusagi.interop.protocol_bridge.client.session import CLIENT_NAME as CLIENT_NAME
from indusagi.interop.protocol_bridge.client.session import CLIENT_VERSION as CLIENT_VERSION
from indusagi.interop.protocol_bridge.client.session import ClientSession, ServerFacts
from indusagi.interop.protocol_bridge.client.skills import ITEM_LISTS, read_instructions, read_items
from indusagi.interop.protocol_bridge.client.start import PROCESS_HISTORY, StartHistory, StartPolicy, reveal_config
from indusagi.interop.protocol_bridge.client.stdio import StartTimeout, StartWatch, StdioTransport
from indusagi.interop.protocol_bridge.client.tasks import read_task_support
from indusagi.interop.protocol_bridge.client.tools import read_tools
from indusagi.interop.protocol_bridge.client.watches import ChangedLists, ServerWatches, keep_listening
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    EndpointStatus,
    FaultDetail,
    ItemKind,
    ProtocolFault,
    RemoteCallResult,
    RemoteTool,
    ServerConfig,
    SlowStart,
    StdioServerConfig,
    is_terminal_phase,
    needs_sign_in,
    parse_call_result,
)
from indusagi.interop.protocol_bridge.redaction import Redaction
from indusagi.interop.protocol_bridge.rpc.connection import (
    METHOD_NOT_FOUND,
    ConnectionClosedError,
    RequestOptions,
    RequestTimeoutError,
    is_transient,
)
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from indusagi.runtime.calls import current_user
from indusagi.runtime.contract import ProgressSink, ToolProgress

_log = logging.getLogger(__name__)
_MAX_ERROR_CHARS = 10_000

EndpointEvent: TypeAlias = Literal["phase", "tools", "items", "slow_start", "refused"]
"""The change: the phase, the list of tools, another list, a slow start, or a host that the sandbox refused."""
OnEvent: TypeAlias = Callable[[EndpointEvent], None]
BeforeList: TypeAlias = Callable[[str, ItemKind], Awaitable[None]]
"""Awaited with the server's id after it answered with a list, before the list becomes visible."""


def create_server_endpoint(
    config: ServerConfig,
    session_factory: InjectedTransport | None = None,
    *,
    handlers: Handlers | None = None,
    on_event: OnEvent | None = None,
    policy: StartPolicy | None = None,
    history: StartHistory | None = None,
) -> ServerEndpointImpl:
    """Create an endpoint; it isn't open yet.

    A `session_factory` replaces the configured transport: its context manager yields the connection. It may also be one
    end of a `linked_pair`, or a pair of streams (see `InjectedTransport`). `policy` limits the duration of a start;
    `history` knows whether it's the first one.
    """
    return ServerEndpointImpl(
        config, session_factory, handlers=handlers, on_event=on_event, policy=policy, history=history
    )


class ServerEndpointImpl:
    """The implementation of `ServerEndpoint`."""

    phase: EndpointPhase = EndpointPhase.IDLE

    def __init__(
        self,
        config: ServerConfig,
        session_factory: InjectedTransport | None = None,
        *,
        handlers: Handlers | None = None,
        on_event: OnEvent | None = None,
        policy: StartPolicy | None = None,
        history: StartHistory | None = None,
        open_session: OpenSession = open_client_session,
        before_list: BeforeList | None = None,
    ) -> None:
        self._policy = policy or StartPolicy()
        self._history = PROCESS_HISTORY if history is None else history
        self._start_watch: StartWatch | None = None
        self._request_timed_out = asyncio.Event()
        self._config = config
        auth = None if isinstance(config, StdioServerConfig) else config.auth
        self._user = auth.user if auth is not None and auth.settings.per_user else None
        """Whose session it is where each user signs in; empty: nobody's, for lists alone."""
        self._session_factory = session_factory
        self._open_session = open_session
        self._before_list = before_list
        self._handlers = (handlers or Handlers()).bind(config.id)
        self._on_event = on_event
        self._fault: ProtocolFault | None = None
        self._listing_fault: ProtocolFault | None = None
        self._session: ClientSession | None = None
        self._items: dict[ItemKind, tuple[RemoteTool, ...]] = {}
        self.known_tools: Sequence[RemoteTool] | None = None
        """The last list of tools, or `None` before the first one."""
        self._lists = ChangedLists(config.limits.relist_gap_s, self._relist)
        self._notes: tuple[Note, ...] = ()
        self._item_notes: dict[ItemKind, tuple[Note, ...]] = {}
        self._listing = asyncio.Lock()
        self._task = BackgroundTask(f"endpoint {config.id}", self._finish)
        self._opened: Attempt[None] | None = None
        """Settles once the endpoint is ready or has failed."""
        self._stop = asyncio.Event()
        self._watches: ServerWatches | None = None
        """Subscriptions to resources and tasks, while ready."""
        self._answer_s: float | None = None
        self._log_messages: Sequence[str] = ()

    # -- state ------------------------------------------------------------------------------

    @property
    def config(self) -> ServerConfig:
        """The server's configuration."""
        return self._config

    @property
    def facts(self) -> ServerFacts | None:
        """The server's declarations; `None` before the handshake and after the end."""
        return None if self._session is None else self._session.facts

    @property
    def fault(self) -> ProtocolFault | None:
        """What ended it, or keeps it from listing its tools."""
        return self._fault or self._listing_fault

    def known_items(self, kind: ItemKind) -> Sequence[RemoteTool] | None:
        """Return the last list of a kind, or `None` before the first one."""
        return self._items.get(kind)

    def ttl_ms(self, kind: ItemKind) -> int:
        """Return the cache lifetime of the last list of a kind, from the server's hint; 0 without one."""
        return 0 if self._session is None else self._session.ttl_ms.get(ITEM_LISTS[kind].method, 0)

    def status(self) -> EndpointStatus:
        """Return the current state, with all notes about the server."""
        session, owner = self._session, f"server {self._config.id!r}"
        notes = (*self._notes, *(note for own in self._item_notes.values() for note in own))
        if session is not None:
            own = (Note(owner, text) for text in session.notes)
            notes = (*notes, *(note for note in own if note not in self._notes))
            if count := session.connection.invalid_frames:
                text = f"{count:,} lines of its output were no protocol messages, and were skipped"
                lines = () if self._process is None else self._process.read_invalid_lines()
                if lines:
                    first = clean_text(session.redaction.hide(lines[0]))[0].strip()
                    text += f"; the first: {cut_text(first, 200)!r}"
                notes = (*notes, Note(owner, text))
        watch, slow_start = self._start_watch, None
        if watch is not None and watch.is_slow and self.phase is EndpointPhase.CONNECTING:
            slow_start = SlowStart(watch.allowance.first, watch.allowance.package_manager)
        count = len(self.known_tools or ())
        return EndpointStatus(
            self._config.id, self.phase, count, self.fault, notes=notes, slow_start=slow_start, answer_s=self._answer_s
        )

    def read_log(self) -> Sequence[str]:
        """Return the last lines of standard error, followed by the last log messages, without secrets of the row."""
        redaction = Redaction((self._config,))
        lines = () if self._process is None else self._process.read_stderr()
        return (*redaction.hide_log(lines, "stderr: "), *redaction.hide_log(self._log_messages))

    def measure_log(self) -> int:
        """Return a number that differs after its log has grown."""
        last_ms = getattr(self._log_messages[-1], "at_ms", 0) if self._log_messages else 0
        return last_ms + (0 if self._process is None else self._process.logged_ms)

    @property
    def _process(self) -> StdioTransport | None:
        return None if self._start_watch is None else self._start_watch.process

    @property
    def refusals(self) -> Sequence[RefusedUse]:
        """The hosts and paths its sandbox has refused, in order."""
        sandbox = None if self._process is None else self._process.sandbox
        return () if sandbox is None else sandbox.refusals

    async def cpu_demand(self) -> CpuDemand | None:
        """Return the CPU demand of the server's processes, if known."""
        return None if self._process is None else await self._process.cpu_demand()

    # -- opening and closing ----------------------------------------------------------------

    async def open(self) -> None:
        """Connect; concurrent callers share one attempt. Raises `ProtocolFault` if it can't be opened or was closed."""
        if self.phase is EndpointPhase.IDLE and not self._task.started:
            self._opened = Attempt[None]()
            self._enter(EndpointPhase.CONNECTING)
            self._task.start(self._run(self._opened))
        if self._opened is not None:
            await self._opened.wait()
        if self._fault is not None:
            raise self._fault
        self._require_ready()

    async def close(self) -> None:
        """Close the connection and everything that belongs to it; never raises."""
        self._stop.set()
        if not self._task.started:
            if not is_terminal_phase(self.phase):
                self._enter(EndpointPhase.CLOSED)
            return
        if self.phase is EndpointPhase.CONNECTING:
            self._task.cancel()
        await self._task.join()

    @property
    def is_unused(self) -> bool:
        """Whether it's ready, with no running call and no watched resource or task."""
        is_watched = self._watches is not None and not self._watches.is_empty
        return self._session is not None and not self._session.calls.is_used and not is_watched

    async def wait_closed(self) -> None:
        """Wait for the end, by `close` or by a fault."""
        await self._task.wait()

    async def _run(self, opened: Attempt[None]) -> None:
        """Open, hold and close the connection. Nothing else does."""
        try:
            seen_up = self._history.was_up(self._config) or self._session_factory is not None
            allowance = self._policy.allow(self._config, seen_up=seen_up)
            watch = self._start_watch = StartWatch(allowance, self._report)
            config = self._config
            if self._open_session is open_client_session and self._session_factory is None:
                config = await reveal_config(config)  # a person may have to unlock it: no time of the start
            async with AsyncExitStack() as stack:
                async with watch.limit():
                    opening = self._open_session(config, self._handlers, self._session_factory, watch)
                    session = await stack.enter_async_context(opening)
                self._history.record_up(self._config)
                session.on_list_changed, session.on_gap = self._lists.note, self._read_again
                self._session, self._log_messages = session, session.log
                self._enter(EndpointPhase.READY)
                opened.settle(None)
                # Change the phase before any caller learns that its call is lost.
                session.connection.ended.add_done_callback(lambda ended: self._lose_connection(ended.result()))
                await self._serve(session)
                if self.phase is EndpointPhase.READY:
                    self._enter(EndpointPhase.CLOSING)
        except Exception as exc:  # noqa: BLE001 — boundary: any behaviour of a server or its transport
            fault = to_protocol_fault(exc, self._config, FaultSite.CONNECT, process=self._process)
            self._fault = self._fault or fault
            if isinstance(exc, StartTimeout):
                self._history.record_timeout(self._config)

    def _finish(self) -> None:
        """Enter the final phase; runs when the task ends, even if it's cancelled before its first step."""
        self._session = None
        if self._task.was_cancelled and not self._stop.is_set():
            detail = FaultDetail(server=self._config.id, reason="cancelled")
            message = f"server {self._config.id!r}: its task was cancelled"
            self._fault = self._fault or ProtocolFault("transport", message, detail=detail)
        phase = EndpointPhase.CLOSED if self._fault is None else EndpointPhase.FAULTED
        self._enter(EndpointPhase.IDLE if needs_sign_in(self._fault) else phase)
        if self._opened is not None:
            self._opened.settle(None)

    def _lose_connection(self, end: TransportEnd) -> None:
        if self.phase is EndpointPhase.READY and not self._stop.is_set():
            self._fault = to_protocol_fault(ConnectionClosedError(end), self._config, FaultSite.HELD)
            self._enter(EndpointPhase.FAULTED)

    async def _serve(self, session: ClientSession) -> None:
        """Watch for changes and check health until `close` is called or the connection ends."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._lists.run())]
            if self._config.kind == "stdio" and self._session_factory is None:
                helpers.append(tasks.create_task(self._check_health(session)))
            facts, subjects = session.facts, ("tools", "resources", "prompts")
            offered = [one for one in subjects if session.is_modern and facts and facts.offers(one, "listChanged")]
            if changes := {f"{one}ListChanged": True for one in offered}:
                helpers.append(tasks.create_task(self._listen(session, changes)))
            stopping = tasks.create_task(self._stop.wait())
            self._watches = ServerWatches(session, self._config.limits, tasks, self.request)
            try:
                await asyncio.wait({stopping, session.connection.ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._watches.close()
                self._watches = None
                for task in (*helpers, stopping):
                    task.cancel()

    async def _check_health(self, session: ClientSession) -> None:
        """After each request timeout, check whether the process responds at all.

        The legacy protocol has `ping` for this
        (https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/ping); modern servers answer
        `server/discover`. If the server sends nothing for the idle limit of a call, end the connection, so that
        supervision restarts it.
        """
        idle_s, connection = self._config.limits.call_idle_s, session.connection
        while True:
            await self._request_timed_out.wait()
            self._request_timed_out.clear()
            received = connection.frames_received
            try:
                await session.request("server/discover" if session.is_modern else "ping", None, RequestOptions(idle_s))
            except RequestTimeoutError:
                if connection.frames_received == received:
                    detail = FaultDetail(server=self._config.id, reason="closed")
                    connection.end(TransportEnd(f"answers nothing any more: no word from it in {idle_s:g} s", detail))
                    return
            except Exception as exc:  # noqa: BLE001 — boundary: any response shows life, even an error
                _log.debug("server %r answered a check with: %s", self._config.id, exc)

    def _enter(self, phase: EndpointPhase) -> None:
        if phase is not self.phase:
            self.phase = phase
            self._report("phase")

    def _report(self, event: EndpointEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    # -- tools ------------------------------------------------------------------------------

    async def list_tools(self) -> Sequence[RemoteTool]:
        """List the tools, cached until the server reports a change, or raise `ProtocolFault`."""
        return await self.list_items("tool")

    async def list_items(self, kind: ItemKind) -> Sequence[RemoteTool]:
        """List the items of one kind, cached until the server reports a change, or raise `ProtocolFault`.

        Empty if the server doesn't declare the capability.
        """
        session = self._require_ready()
        self._lists.wanted.add(kind)
        async with self._listing:
            if kind not in self._items:
                try:
                    await self._list(session, kind)
                except ProtocolFault as fault:
                    if kind != "tool" and is_transient(fault):  # for tools, the endpoint's owner retries
                        self._lists.note((kind,))
                    raise
            return self._items[kind]

    async def _list(self, session: ClientSession, kind: ItemKind) -> None:
        facts, config = session.facts, self._config
        if kind == "instructions":
            await self._prepare_list(kind)
            self._items[kind] = read_instructions(None if facts is None else facts.instructions, config)
            self._report("items")
            return
        listed = ITEM_LISTS[kind]
        is_offered = facts is None or facts.offers(listed.capability)
        if kind == "tool":
            # A server that declares only other capabilities has no tools.
            is_offered = is_offered or not (facts and facts.capabilities)
        try:
            began = asyncio.get_running_loop().time()
            rows = await session.read_pages(listed.method, listed.key) if is_offered else ()
            if kind == "tool" and is_offered:
                self._answer_s = asyncio.get_running_loop().time() - began
        except Exception as exc:  # noqa: BLE001 — boundary: raised as a fault
            fault = self._to_fault(exc, FaultSite.LIST)
            if kind == "tool":
                self._listing_fault = fault
            elif fault.detail.rpc_code == METHOD_NOT_FOUND:
                self._items[kind] = ()  # some servers declare resources but don't know templates
                return
            else:
                self._item_notes[kind] = (Note(f"server {config.id!r}", f"its {kind}s cannot be listed: {fault}"),)
            raise fault from fault.cause
        await self._prepare_list(kind)
        if kind != "tool":
            self._items[kind], self._item_notes[kind] = read_items(kind, rows, config)
            self._report("items")
            return
        self._items[kind], notes = read_tools(rows, config)
        self.known_tools = self._items[kind]
        owner = f"server {config.id!r}"
        self._notes = (*(Note(owner, note) for note in session.notes), *notes)
        self._listing_fault = None
        self._report("tools")

    async def _prepare_list(self, kind: ItemKind) -> None:
        if self._before_list is not None:
            await self._before_list(self._config.id, kind)

    async def _relist(self, kind: ItemKind) -> None:
        session = self._session
        if session is not None:
            async with self._listing:
                await self._list(session, kind)

    async def _listen(self, session: ClientSession, changes: Mapping[str, JsonValue]) -> None:
        """Subscribe to a modern server's list changes; relist everything after each gap."""

        async def listen(on_acknowledged: Callable[[JsonObject], None]) -> None:
            await session.listen(on_acknowledged, **changes)

        try:
            await keep_listening(listen, self._config.limits, self._lists.note_gap)
        except ConnectionClosedError:
            return  # the status has the fault
        except Exception as exc:  # noqa: BLE001 — boundary: a server may refuse a feature it declared
            text = f"it does not tell when its lists change: {describe_error(exc)}"
            self._notes = (*self._notes, Note(f"server {self._config.id!r}", text))

    def _read_again(self) -> None:
        """Relist and reread everything after a gap in the notifications."""
        self._lists.note_gap()
        if self._watches is not None:
            self._watches.read_again()

    # -- watches ----------------------------------------------------------------------------

    async def watch_resource(self, uri: str) -> None:
        """Subscribe to updates of a resource (`notifications/resources/updated`)."""
        self._require_user()
        try:
            if self._watches is not None:
                await self._watches.watch_resource(uri)
        except Exception as exc:  # noqa: BLE001 — boundary: raised as a fault
            fault = self._to_fault(exc, FaultSite.CALL, "subscriptions/listen")
            raise fault from fault.cause

    async def unwatch_resource(self, uri: str) -> None:
        """Unsubscribe from updates of a resource."""
        if self._watches is not None and self.phase is EndpointPhase.READY:
            await self._watches.unwatch_resource(uri)

    async def watch_task(self, task_id: str) -> None:
        """Subscribe to changes of a modern server's task (`notifications/tasks`); legacy servers send them unasked."""
        self._require_user()
        if self._watches is not None:
            self._watches.watch_task(task_id)

    def unwatch_task(self, task_id: str) -> None:
        """Unsubscribe from changes of a task."""
        if self._watches is not None:
            self._watches.unwatch_task(task_id)

    # -- requests ---------------------------------------------------------------------------

    async def invoke(
        self, name: str, args: JsonValue, *, cancel: CancelToken | None = None, on_progress: ProgressSink | None = None
    ) -> RemoteCallResult:
        """Call a tool by its name on the server.

        Raises `ProtocolFault` if it isn't ready, refuses, times out or is cancelled, or the connection is lost.
        """
        session, clock = self._session, asyncio.get_running_loop().time
        if session is None or self._user is not None or self.phase is not EndpointPhase.READY:
            session = self._require_user()
        arguments = {} if args is None else args
        if not is_json_object(arguments):
            detail = FaultDetail(server=self._config.id, reason="malformed")
            message = f"server {self._config.id!r}: the arguments of {name!r} must be an object"
            raise ProtocolFault("tool_error", message, detail=detail)
        if cancel is not None and cancel.cancelled:
            raise self._build_cancelled(name, cancel)
        progress = None if on_progress is None else partial(_report_progress, on_progress)
        params: JsonObject = {"name": name, "arguments": arguments}
        if session.makes_core_tasks:
            params |= self._ask_for_task(name)
        caller = current_caller.get()
        tasks = None if caller is None else caller.tasks
        try:
            with nullcontext() if cancel is None else cancel.guard():
                began = clock()
                result = await session.call("tools/call", params, progress)
                self._answer_s = clock() - began
                if result.get("resultType") == "input_required":
                    return RemoteCallResult(())  # the caller's `exchange` holds the request for input
                if tasks is not None and tasks.created is not None:
                    tasks.server, tasks.completion.is_deferred = self._config.id, True
                    return RemoteCallResult(())  # `tasks` holds the handle
                found = parse_call_result(result, f"server {self._config.id!r}, tool {name!r}")
                return await self._explain_error(found, arguments) if found.is_error else found
        except Exception as exc:  # noqa: BLE001 — boundary: raised as a fault
            fault = self._to_fault(exc, FaultSite.CALL, name)
            raise fault from fault.cause
        raise self._build_cancelled(name, cancel)

    async def _explain_error(self, result: RemoteCallResult, arguments: JsonObject) -> RemoteCallResult:
        """Add a note if the error is about a path that the server's sandbox keeps from it."""
        sandbox = None if self._process is None else self._process.sandbox
        if sandbox is None:
            return result
        text = "\n".join(str(block.get("text", "")) for block in result.content if is_json_object(block))
        used = await sandbox.find_blocked_path(text[:_MAX_ERROR_CHARS], compact_json(arguments))
        if used is None:
            return result
        note = Note(f"server {self._config.id!r}", f"in its sandbox, {used.lack}", f'{used.remedy} its "sandbox"')
        return replace(result, notes=(*result.notes, note))

    def _build_cancelled(self, name: str, cancel: CancelToken | None) -> ProtocolFault:
        reason = None if cancel is None else cancel.reason
        message = f"server {self._config.id!r}: the call of {name!r} was cancelled: {reason}"
        return ProtocolFault("tool_error", message, detail=FaultDetail(server=self._config.id, reason="cancelled"))

    def _ask_for_task(self, name: str) -> JsonObject:
        """Return the parameter that turns a call to a legacy server into a task, if tool or caller want one."""
        support = next((read_task_support(one.raw) for one in self.known_tools or () if one.ref.name == name), "")
        caller = current_caller.get()
        wanted = None if caller is None or caller.tasks is None else caller.tasks.core
        if wanted is not None and support in {"optional", "required"}:
            return {"task": wanted}
        follows = support == "required" and self._handlers.follow_tasks
        return {"task": {"ttl": int(self._config.limits.call_hard_s * 1_000)}} if follows else {}

    async def request(
        self, method: str, params: JsonObject | None = None, *, on_progress: ProgressSink | None = None
    ) -> JsonObject:
        """Send any other request (resources, prompts, completion, tasks, …) as plain JSON; raise like `invoke`.

        `tasks/result` waits for a task's result in both eras.
        """
        session = self._require_user()
        progress = None if on_progress is None else partial(_report_progress, on_progress)
        try:
            return await session.call(method, params or {}, progress)
        except Exception as exc:  # noqa: BLE001 — boundary: raised as a fault
            fault = self._to_fault(exc, FaultSite.CALL, method)
            raise fault from fault.cause

    async def list_all(self, method: str, key: str) -> Sequence[JsonValue]:
        """Read a list (such as `resources/list`, `resources`) page by page; raise like `list_tools`."""
        session = self._require_ready()
        try:
            return await session.read_pages(method, key)
        except Exception as exc:  # noqa: BLE001 — boundary: raised as a fault
            fault = self._to_fault(exc, FaultSite.LIST)
            raise fault from fault.cause

    def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Send a notification; raise `ProtocolFault` if it isn't ready."""
        self._require_ready().connection.notify(method, params)

    def _to_fault(self, exc: Exception, site: FaultSite, subject: str = "") -> ProtocolFault:
        if isinstance(exc, RequestTimeoutError):
            self._request_timed_out.set()
        return to_protocol_fault(exc, self._config, site, subject=subject)

    def _require_user(self) -> ClientSession:
        """Return the session for a request, or raise `ProtocolFault`: it isn't ready, or it's another user's."""
        if self._user not in {None, current_user.get()}:
            message = f"server {self._config.id!r}: this session belongs to another user"
            raise ProtocolFault("not_connected", message, detail=FaultDetail(server=self._config.id))
        return self._require_ready()

    def _require_ready(self) -> ClientSession:
        session = self._session
        if session is None or self.phase is not EndpointPhase.READY:
            if self._fault is not None and needs_sign_in(self._fault):
                raise self._fault
            owner = f"server {self._config.id!r}"
            message = f"{owner} is {self.phase}"
            because = "" if self._fault is None else f": {str(self._fault).removeprefix(f'{owner}: ')}"
            is_moved = self._fault is not None and self._fault.detail.reason == "moved"
            detail = FaultDetail(server=self._config.id, reason="moved" if is_moved else None)
            raise ProtocolFault("not_connected", f"{message}{because}", self._fault, detail=detail)
        return session


def _report_progress(on_progress: ProgressSink, params: JsonObject) -> None:
    done, total, message = (params.get(key) for key in ("progress", "total", "message"))
    if isinstance(done, (int, float)):
        text = clean_text(message)[0] if isinstance(message, str) else ""
        on_progress(ToolProgress(done, total if isinstance(total, (int, float)) else None, text))
