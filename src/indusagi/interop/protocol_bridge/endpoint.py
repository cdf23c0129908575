"""One connection to one server: its phases, its tools, its calls.

An endpoint is opened once, by a task of its own that also closes it: whatever happens to that task
is what happens to the phase. Callers share one attempt to open. After the end (closed or faulted)
the endpoint stays what it was; a new one is needed for another try.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Literal, TypeAlias

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.notes import Note
from indusagi.core.tasks import BackgroundTask
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.connect import CLIENT_NAME as CLIENT_NAME
from indusagi.interop.protocol_bridge.client.connect import CLIENT_VERSION as CLIENT_VERSION
from indusagi.interop.protocol_bridge.client.connect import InjectedTransport as InjectedTransport
from indusagi.interop.protocol_bridge.client.connect import open_client_session
from indusagi.interop.protocol_bridge.client.faults import FaultSite, to_protocol_fault
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.session import ClientSession, ServerFacts
from indusagi.interop.protocol_bridge.client.start.policy import PROCESS_HISTORY, StartHistory, StartPolicy
from indusagi.interop.protocol_bridge.client.start.watch import StartTimeout, StartWatch
from indusagi.interop.protocol_bridge.client.tools import read_tools
from indusagi.interop.protocol_bridge.content import read_result
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    EndpointStatus,
    FaultDetail,
    ProtocolFault,
    RemoteCallResult,
    RemoteTool,
    ServerConfig,
    SlowStart,
    is_terminal_phase,
)
from indusagi.interop.protocol_bridge.rpc.connection import OnProgress, RequestTimeoutError, TransportEnd
from indusagi.runtime.contract import ProgressSink, ToolProgress

_log = logging.getLogger(__name__)

_LISTEN_PAUSE_S = 60.0
"""The longest pause before a server that stopped telling of changes is asked again."""

EndpointEvent: TypeAlias = Literal["phase", "tools", "slow_start"]
"""What changed: where it stands, what it lists, or that its start takes long."""
OnEvent: TypeAlias = Callable[[EndpointEvent], None]


def create_server_endpoint(
    config: ServerConfig,
    session_factory: InjectedTransport | None = None,
    *,
    handlers: Handlers | None = None,
    on_event: OnEvent | None = None,
    policy: StartPolicy | None = None,
    history: StartHistory | None = None,
) -> ServerEndpointImpl:
    """Make an endpoint, not yet opened.

    With a `session_factory` the configuration's own transport is not used: the factory's context
    manager yields the connection instead. One end of a `linked_pair`, or a pair of streams, may be
    given as it is (see `connect`). The `policy` says how long a start may take, the `history`
    whether it is the first one.
    """
    return ServerEndpointImpl(
        config, session_factory, handlers=handlers, on_event=on_event, policy=policy, history=history
    )


class ServerEndpointImpl:
    """The one kind of endpoint there is."""

    def __init__(
        self,
        config: ServerConfig,
        session_factory: InjectedTransport | None = None,
        *,
        handlers: Handlers | None = None,
        on_event: OnEvent | None = None,
        policy: StartPolicy | None = None,
        history: StartHistory | None = None,
    ) -> None:
        self._policy = policy or StartPolicy()
        self._history = PROCESS_HISTORY if history is None else history
        self._watch_of_start: StartWatch | None = None
        self._slow_start: SlowStart | None = None
        self._unanswered = asyncio.Event()
        self._config = config
        self._session_factory = session_factory
        self._handlers = handlers or Handlers()
        self._on_event = on_event
        self._phase = EndpointPhase.IDLE
        self._fault: ProtocolFault | None = None
        self._listing_fault: ProtocolFault | None = None
        self._peer: ClientSession | None = None
        self._tools: tuple[RemoteTool, ...] | None = None
        self._notes: tuple[Note, ...] = ()
        self._listing = asyncio.Lock()
        self._owner = BackgroundTask(f"endpoint {config.id}")
        self._settled = asyncio.Event()
        self._stop = asyncio.Event()
        self._tools_changed = asyncio.Event()

    # -- what can be asked at any time ------------------------------------------------------

    @property
    def config(self) -> ServerConfig:
        """What it was made from."""
        return self._config

    @property
    def phase(self) -> EndpointPhase:
        """Where it stands."""
        return self._phase

    @property
    def facts(self) -> ServerFacts | None:
        """What the server said about itself; None before it was met and after it is gone."""
        return None if self._peer is None else self._peer.facts

    @property
    def known_tools(self) -> Sequence[RemoteTool] | None:
        """What was listed last; None before the first listing."""
        return self._tools

    def status(self) -> EndpointStatus:
        """Tell how it is."""
        noise = 0 if self._peer is None else self._peer.wire.noise
        notes = (*self._notes, *self._new_notes())
        if noise:
            said = f"{noise:,} lines of its output were no protocol messages, and were skipped"
            process = None if self._watch_of_start is None else self._watch_of_start.process
            lines = () if process is None else process.read_invalid_lines()
            if lines:
                said += f"; the first: {cut_text(clean_text(lines[0])[0].strip(), 200)!r}"
            notes = (*notes, Note(f"server {self._config.id!r}", said))
        return EndpointStatus(
            self._config.id,
            self._phase,
            len(self._tools or ()),
            self._fault or self._listing_fault,
            notes=notes,
            slow_start=self._slow_start if self._phase is EndpointPhase.CONNECTING else None,
        )

    def _new_notes(self) -> Sequence[Note]:
        """Give what was noted about the server since its tools were listed."""
        said = () if self._peer is None else self._peer.notes
        notes = (Note(f"server {self._config.id!r}", one) for one in said)
        return [note for note in notes if note not in self._notes]

    async def cpu_seconds(self) -> float | None:
        """Tell how much CPU time its process has used so far; None if unknown."""
        process = None if self._watch_of_start is None else self._watch_of_start.process
        return None if process is None else await process.cpu_seconds()

    # -- opening and closing ----------------------------------------------------------------

    async def open(self) -> None:
        """Connect; those who call at the same time share one attempt.

        Raises:
            ProtocolFault: It could not be opened, or was closed before.
        """
        if self._phase is EndpointPhase.IDLE and not self._owner.started:
            self._enter(EndpointPhase.CONNECTING)
            self._owner.start(self._own())
        # Not the attempt itself is awaited: a caller that is cancelled leaves it to the others.
        await self._settled.wait()
        if self._fault is not None:
            raise self._fault
        self._require_ready()

    async def close(self) -> None:
        """End the connection and everything that belongs to it; never raises."""
        self._stop.set()
        if not self._owner.started:
            if not is_terminal_phase(self._phase):
                self._enter(EndpointPhase.CLOSED)
                self._settled.set()
            return
        if self._phase is EndpointPhase.CONNECTING:
            self._owner.cancel()
        await self._owner.join()

    async def ended(self) -> None:
        """Wait for the end, however it comes."""
        await self._owner.wait()

    async def _own(self) -> None:
        """Open, hold and close; the only code that does."""
        try:
            await self._hold()
        except asyncio.CancelledError:
            if not self._stop.is_set():
                self._fault = self._fault or self._cancelled_fault()
                raise
        except Exception as exc:  # noqa: BLE001 — boundary: whatever a server or its transport does
            process = None if self._watch_of_start is None else self._watch_of_start.process
            found = to_protocol_fault(exc, self._config, FaultSite.CONNECT, process=process)
            self._fault = self._fault or found
            if isinstance(exc, StartTimeout):
                self._history.record_timeout(self._config)
        finally:
            self._peer = None
            gone_wrong = self._fault is not None
            self._enter(EndpointPhase.FAULTED if gone_wrong else EndpointPhase.CLOSED)
            self._settled.set()

    async def _hold(self) -> None:
        seen_up = self._history.was_up(self._config) or self._session_factory is not None
        allowance = self._policy.allow(self._config, seen_up=seen_up)
        watch = self._watch_of_start = StartWatch(allowance, self._tell_slow_start)
        async with AsyncExitStack() as stack:
            async with watch.limit():
                opening = open_client_session(self._config, self._handlers, self._session_factory, watch)
                peer = await stack.enter_async_context(opening)
            self._history.record_up(self._config)
            peer.on_tools_changed = self._tools_changed.set
            self._peer = peer
            self._enter(EndpointPhase.READY)
            self._settled.set()
            # Before any caller learns that its call is lost, the phase says so.
            peer.wire.ended.add_done_callback(lambda _: self._lose(peer))
            await self._watch(peer)
            if self._phase is EndpointPhase.READY:
                self._enter(EndpointPhase.CLOSING)

    def _tell_slow_start(self) -> None:
        watch = self._watch_of_start
        if watch is not None and self._phase is EndpointPhase.CONNECTING:
            allowance = watch.allowance
            self._slow_start = SlowStart(allowance.first, allowance.package_manager)
            self._tell("slow_start")

    def _lose(self, peer: ClientSession) -> None:
        if self._phase is EndpointPhase.READY and not self._stop.is_set():
            self._fault = to_protocol_fault(peer.end_error(), self._config, FaultSite.HELD)
            self._enter(EndpointPhase.FAULTED)

    async def _watch(self, peer: ClientSession) -> None:
        """Wait until it is to be closed, or the link ends; meanwhile follow changes."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._relist())]
            if self._config.kind == "stdio" and self._session_factory is None:
                helpers.append(tasks.create_task(self._check_alive(peer)))
            facts = peer.facts
            if facts is not None and facts.era == "modern" and facts.offers("tools", "listChanged"):
                helpers.append(tasks.create_task(self._listen(peer)))
            stopping = tasks.create_task(self._stop.wait())
            try:
                await asyncio.wait({stopping, peer.wire.ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*helpers, stopping):
                    task.cancel()

    async def _check_alive(self, peer: ClientSession) -> None:
        """After a request that was not answered in time, see whether the process answers at all.

        The older protocol has `ping` for it; every modern server answers `server/discover`. One
        that says nothing at all for as long again as a call may be idle is given up, and whoever
        supervises the endpoint starts another.
        """
        idle_s = self._config.limits.call_idle_s
        while True:
            await self._unanswered.wait()
            self._unanswered.clear()
            heard = peer.wire.heard
            facts = peer.facts
            legacy = facts is None or facts.era == "legacy"
            try:
                await peer.request("ping" if legacy else "server/discover", idle_s=idle_s)
            except RequestTimeoutError:
                if peer.wire.heard == heard:
                    said = f"answers nothing any more: no word from it in {idle_s:g} s"
                    detail = FaultDetail(server=self._config.id, reason="closed")
                    peer.wire.give_up(TransportEnd(said, detail))
                    return
            except Exception as exc:  # noqa: BLE001 — boundary: any answer, an error too, is one
                _log.debug("server %r answered a check with: %s", self._config.id, exc)

    def _cancelled_fault(self) -> ProtocolFault:
        detail = FaultDetail(server=self._config.id, reason="cancelled")
        message = f"server {self._config.id!r}: its task was cancelled"
        return ProtocolFault("transport", message, detail=detail)

    def _enter(self, phase: EndpointPhase) -> None:
        if phase is not self._phase:
            self._phase = phase
            self._tell("phase")

    def _tell(self, event: EndpointEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)

    # -- tools ------------------------------------------------------------------------------

    async def list_tools(self) -> Sequence[RemoteTool]:
        """List the tools; what was listed once is remembered.

        Raises:
            ProtocolFault: Not ready, or the listing failed.
        """
        peer = self._require_ready()
        async with self._listing:
            if self._tools is None:
                await self._list(peer)
            return self._tools or ()

    async def _list(self, peer: ClientSession) -> None:
        try:
            rows = await peer.pages("tools/list", "tools") if _has_tools(peer) else ()
        except Exception as exc:  # noqa: BLE001 — boundary: told as a fault
            self._suspect(exc)
            self._listing_fault = to_protocol_fault(exc, self._config, FaultSite.LIST)
            raise self._listing_fault from self._listing_fault.cause
        self._tools, notes = read_tools(rows, self._config)
        owner = f"server {self._config.id!r}"
        self._notes = (*(Note(owner, note) for note in peer.notes), *notes)
        self._listing_fault = None
        self._tell("tools")

    async def _relist(self) -> None:
        """List again when the server says that something changed, but not faster than allowed."""
        while True:
            await self._tools_changed.wait()
            await asyncio.sleep(self._config.limits.relist_gap_s)
            self._tools_changed.clear()
            peer = self._peer
            if peer is None or self._tools is None:
                continue
            async with self._listing:
                try:
                    await self._list(peer)
                except ProtocolFault:
                    # The old list stays; the fault stands in the status.
                    continue

    async def _listen(self, peer: ClientSession) -> None:
        """Ask a modern server to tell of changes; what may have been missed is listed again."""
        pause_s = self._config.limits.relist_gap_s
        try:
            while True:
                await peer.listen(toolsListChanged=True)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LISTEN_PAUSE_S)
                self._tools_changed.set()
        except Exception as exc:  # noqa: BLE001 — boundary: a server may refuse what it offered
            owner = f"server {self._config.id!r}"
            said = f"it does not tell when its tools change: {describe_error(exc)}"
            self._notes = (*self._notes, Note(owner, said))

    # -- calls ------------------------------------------------------------------------------

    async def invoke(
        self, name: str, args: JsonValue, *, cancel: CancelToken | None = None, on_progress: ProgressSink | None = None
    ) -> RemoteCallResult:
        """Call a tool by the name the server has for it.

        Raises:
            ProtocolFault: Not ready, refused, timed out, cancelled, or the connection was lost.
        """
        peer = self._require_ready()
        arguments = {} if args is None else args
        if not is_json_object(arguments):
            raise self._refusal(f"the arguments of {name!r} must be an object")
        progress = None if on_progress is None else _follower(on_progress)
        if cancel is None:
            return await self._call(peer, name, arguments, progress)
        with cancel.guard():
            return await self._call(peer, name, arguments, progress)
        message = f"server {self._config.id!r}: the call of {name!r} was cancelled: {cancel.reason}"
        detail = FaultDetail(server=self._config.id, reason="cancelled")
        raise ProtocolFault("tool_error", message, detail=detail)

    async def _call(
        self, peer: ClientSession, name: str, arguments: JsonObject, on_progress: OnProgress | None
    ) -> RemoteCallResult:
        try:
            answer = await peer.call_tool(name, arguments, on_progress=on_progress)
        except Exception as exc:  # noqa: BLE001 — boundary: told as a fault
            self._suspect(exc)
            failure = to_protocol_fault(exc, self._config, FaultSite.CALL, subject=name)
            raise failure from failure.cause
        return read_result(answer, f"server {self._config.id!r}, tool {name!r}")

    async def request(self, method: str, params: JsonObject | None = None) -> JsonObject:
        """Ask anything else of the server (resources, prompts, completion, …), as plain JSON.

        Raises:
            ProtocolFault: As for `invoke`.
        """
        peer = self._require_ready()
        try:
            return await peer.with_input(method, params or {})
        except Exception as exc:  # noqa: BLE001 — boundary: told as a fault
            self._suspect(exc)
            failure = to_protocol_fault(exc, self._config, FaultSite.CALL, subject=method)
            raise failure from failure.cause

    async def list_all(self, method: str, key: str) -> Sequence[JsonValue]:
        """Read a list of the server (`resources/list`, `resources`) page by page.

        Raises:
            ProtocolFault: As for `list_tools`.
        """
        peer = self._require_ready()
        try:
            return await peer.pages(method, key)
        except Exception as exc:  # noqa: BLE001 — boundary: told as a fault
            failure = to_protocol_fault(exc, self._config, FaultSite.LIST)
            raise failure from failure.cause

    def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Tell the server something that needs no answer.

        Raises:
            ProtocolFault: Not ready.
        """
        self._require_ready().wire.notify(method, params)

    def _suspect(self, exc: Exception) -> None:
        """Have it checked whether the process still answers, after a request that it did not."""
        if isinstance(exc, RequestTimeoutError):
            self._unanswered.set()

    def _require_ready(self) -> ClientSession:
        peer = self._peer
        if peer is None or self._phase is not EndpointPhase.READY:
            message = f"server {self._config.id!r} is {self._phase}"
            because = f": {self._fault}" if self._fault is not None else ""
            detail = FaultDetail(server=self._config.id)
            raise ProtocolFault("not_connected", f"{message}{because}", self._fault, detail=detail)
        return peer

    def _refusal(self, message: str) -> ProtocolFault:
        detail = FaultDetail(server=self._config.id, reason="malformed")
        return ProtocolFault("tool_error", f"server {self._config.id!r}: {message}", detail=detail)


def _has_tools(peer: ClientSession) -> bool:
    """Tell whether it is worth asking: a server that declares other things only has no tools."""
    facts = peer.facts
    return facts is None or facts.offers("tools") or not facts.capabilities


def _follower(on_progress: ProgressSink) -> OnProgress:
    def follow(notice: JsonObject) -> None:
        done, total, message = notice.get("progress"), notice.get("total"), notice.get("message")
        if isinstance(done, (int, float)):
            whole = total if isinstance(total, (int, float)) else None
            said = clean_text(message)[0] if isinstance(message, str) else ""
            on_progress(ToolProgress(done, whole, said))

    return follow
