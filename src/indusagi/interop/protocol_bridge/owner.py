"""Server owner: everything that starts or ends one server goes through one mailbox.

The fleet keeps one owner per server id. Its commands (start, stop, restart, replace, rest, close) run one at a time in
one task, so none of them sees a half-started or half-stopped server. The server itself runs in a second task, which
only commands start and end: it opens an endpoint, lists the tools, waits for the end, and opens the next endpoint if
`Supervision` says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import anyio

from indusagi.core.tasks import Attempt, BackgroundTask, Backoff
from indusagi.interop.protocol_bridge.client.start import RestartRecord, StartPacer, Supervision
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    EndpointStatus,
    ItemKind,
    ProtocolFault,
    ServerConfig,
    is_terminal_phase,
    is_usable_phase,
    needs_sign_in,
    waits_for_user,
)
from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
from indusagi.runtime.calls import current_user

MAX_LOG_LINES = 200

Waiting: TypeAlias = Literal["asleep", "sign_in", "untrusted"]
"""Why a server isn't started: it starts at its first call, the user has to sign in, or it needs consent."""
MakeEndpoint: TypeAlias = Callable[[ServerConfig], ServerEndpointImpl]
Command: TypeAlias = Callable[[], Awaitable[bool]]
"""Returns whether it succeeded."""


class ServerOwner:
    """Owns one server: its endpoint, its restarts, and the commands about it."""

    def __init__(
        self,
        config: ServerConfig,
        make_endpoint: MakeEndpoint,
        supervision: Supervision,
        pacer: StartPacer,
        waiting: Waiting | None = None,
        kinds: Sequence[ItemKind] = (),
        user: str = "",
    ) -> None:
        self.config = config
        self._user = user
        self.waiting = waiting
        self.endpoint = make_endpoint(config)
        self.is_closed = False
        """Whether `close` was called: nothing starts after that."""
        self._make_endpoint = make_endpoint
        self._pacer = pacer
        self._kinds = kinds
        self._urgent = asyncio.Event()
        """Set while a caller waits for the server, so that it starts out of turn."""
        self._record = RestartRecord(supervision)
        self._restarts = 0
        self._earlier_log: deque[str] = deque(maxlen=MAX_LOG_LINES)
        """Log of the previous endpoints."""
        self._next_try_at: float | None = None
        self._last_fault: ProtocolFault | None = None
        self._life: BackgroundTask | None = None
        self._up: Attempt[None] | None = None
        """Settles once the server is up or has failed."""
        self._listed: Attempt[None] | None = None
        """Settles after `_up`, once everything but the tools is listed, too."""
        self._mailbox: deque[tuple[Command, Attempt[bool]]] = deque()
        """The running command and those waiting behind it."""
        self._worker: BackgroundTask | None = None

    # -- state ------------------------------------------------------------------------------

    def read_log(self) -> Sequence[str]:
        """Return the log of the previous endpoints, followed by the current one's."""
        return (*self._earlier_log, *self.endpoint.read_log())

    def status(self) -> EndpointStatus:
        """Return the endpoint's state, plus restarts, trust and the last fault."""
        next_try_s = None
        if self._next_try_at is not None:
            next_try_s = max(0.0, self._next_try_at - asyncio.get_running_loop().time())
        status = self.endpoint.status()
        if waits_for_user(status.fault) and is_terminal_phase(status.phase):
            status = replace(status, phase=EndpointPhase.IDLE)
        return replace(
            status,
            fault=self.fault,
            restarts=self._restarts,
            next_try_s=next_try_s,
            trust="untrusted" if self.waiting == "untrusted" else "trusted",
        )

    @property
    def fault(self) -> ProtocolFault | None:
        """The server's fault; until it's up, the one of the last attempt."""
        is_starting = self.endpoint.phase in {EndpointPhase.IDLE, EndpointPhase.CONNECTING}
        return self.endpoint.fault or (self._last_fault if is_starting else None)

    @property
    def is_starting(self) -> bool:
        """Whether it has started (or is queued to) but neither listed its tools nor failed yet."""
        return self.waiting is None and self._up is not None and not self._up.is_settled

    # -- commands ---------------------------------------------------------------------------

    async def start(self, *, urgent: bool = False) -> None:
        """Start the server if it's asleep; wait until it's up or has failed."""
        if urgent:
            self._urgent.set()
        if self._mailbox or self.waiting in {"asleep", "sign_in"}:
            await self._post(self._start).wait()
        await self.wait_up()

    async def stop(self) -> None:
        """End the server and leave it stopped."""
        await self._post(self._stop).join()

    async def restart(self) -> bool:
        """Restart the server; concurrent callers share one restart.

        Returns False if the owner is closed or the server needs consent.
        """
        is_restarted = await self._post(self._restart).wait()
        await self.wait_up()
        return is_restarted

    async def replace(self, config: ServerConfig, waiting: Waiting | None) -> bool:
        """Switch the server to another configuration; return False if the owner is closed."""
        is_replaced = await self._post(partial(self._replace, config, waiting)).wait()
        await self.wait_up()
        return is_replaced

    async def rest(self) -> bool:
        """Stop the server until its next call, which waits for the process to end; return False if it's in use."""
        if self._mailbox or self.waiting is not None or not self.endpoint.is_unused:
            return False
        self._renew_endpoint()
        self._forget_failures()
        self.waiting = "asleep"
        await self._post(self._end_life).join()
        return True

    async def close(self) -> None:
        """End the server for good."""
        self.is_closed = True
        await self._post(self._stop).join()

    async def wait_listed(self) -> None:
        """Wait until a started server has listed everything or has failed."""
        if self.waiting is None and self._listed is not None:
            await self._listed.wait()

    async def wait_up(self) -> None:
        """Wait until a started server is up or has failed."""
        if self.waiting is None and self._up is not None:
            await self._up.wait()

    # -- the mailbox ------------------------------------------------------------------------

    def _post(self, command: Command) -> Attempt[bool]:
        """Enqueue a command, sharing an equal one at the end of the mailbox."""
        if self._mailbox and self._mailbox[-1][0] == command:
            return self._mailbox[-1][1]
        done = Attempt[bool]()
        self._mailbox.append((command, done))
        if len(self._mailbox) == 1:
            worker = BackgroundTask(f"owner {self.config.id}", lambda: self._drop_mail(worker))
            self._worker = worker
            worker.start(self._work())
        return done

    async def _work(self) -> None:
        while self._mailbox:
            command, done = self._mailbox[0]
            is_done = await command()
            self._mailbox.popleft()
            done.settle(is_done)

    def _drop_mail(self, worker: BackgroundTask) -> None:
        """Release callers whose commands never ran because the event loop is ending."""
        while self._mailbox and self._worker is worker:
            _, done = self._mailbox.popleft()
            done.settle(False)  # noqa: FBT003 — the outcome

    async def _start(self) -> bool:
        if self.is_closed or self.waiting not in {"asleep", "sign_in"}:
            return False
        await self._end_life()
        if self.waiting == "sign_in":
            self.endpoint = self._make_endpoint(self.config)
        self.begin()
        return True

    async def _stop(self) -> bool:
        await self._end_life()
        if self.waiting != "untrusted":
            self.waiting = None
        await self.endpoint.close()
        return True

    async def _restart(self) -> bool:
        if self.waiting == "untrusted":
            return False
        await self._stop()
        if self.is_closed:
            return False
        self._renew_endpoint()
        self._forget_failures()
        self._restarts += 1
        self._urgent.set()
        self.begin()
        return True

    async def _replace(self, config: ServerConfig, waiting: Waiting | None) -> bool:
        await self._stop()
        if self.is_closed:
            return False
        self._forget_failures()
        self._restarts = 0
        self._earlier_log.clear()
        self.config, self.waiting, self.endpoint = config, waiting, self._make_endpoint(config)
        if waiting is None:
            self.begin()
        return True

    # -- the life of the server -------------------------------------------------------------

    def _renew_endpoint(self) -> None:
        self._earlier_log.extend(self.endpoint.read_log())
        self.endpoint = self._make_endpoint(self.config)

    def _forget_failures(self) -> None:
        self._record.forget()
        self._last_fault = None
        self._urgent.clear()

    def begin(self) -> None:
        """Start the server at once; for new owners and for commands."""
        self.waiting = None
        self._up, self._listed = Attempt[None](), Attempt[None]()
        self._life = BackgroundTask(f"supervisor {self.config.id}", self._finish_life)
        self._life.start(self._live(self.endpoint))

    def _finish_life(self) -> None:
        self._next_try_at = None
        self._settle(self._up, self._listed)

    def _settle(self, *attempts: Attempt[None] | None) -> None:
        for attempt in attempts:
            if attempt is not None:
                attempt.settle(None)

    async def _end_life(self) -> bool:
        if self._life is not None:
            self._life.cancel()
            await self._life.join()
            self._life = None
        return True

    async def _live(self, endpoint: ServerEndpointImpl) -> None:
        """Restart the server until it's ended or its fault is permanent."""
        current_user.set(self._user)  # the task inherits the user of the call that started the server
        loop = asyncio.get_running_loop()
        try:
            while True:
                started_at = loop.time()
                await self._open(endpoint)
                if not needs_sign_in(endpoint.status().fault):
                    self._settle(self._up)
                await self._list_content(endpoint)
                await endpoint.wait_closed()
                if self.endpoint is not endpoint:
                    return  # resting
                status, up_s = endpoint.status(), loop.time() - started_at
                self._last_fault = status.fault
                if needs_sign_in(status.fault):
                    self.waiting = "sign_in"
                    return
                wait_s = self._record.delay(status.fault, up_s, loop.time())
                if status.phase is EndpointPhase.CLOSED or wait_s is None:
                    return
                self._next_try_at = loop.time() + wait_s
                await asyncio.sleep(wait_s)
                self._next_try_at = None
                self._restarts += 1
                self._renew_endpoint()
                endpoint = self.endpoint
                self._up = Attempt[None]()
        finally:
            await endpoint.close()

    async def _open(self, endpoint: ServerEndpointImpl) -> None:
        """Open the endpoint and list its tools, retrying failed listings while the endpoint is ready."""
        rules = self._record.rules
        backoff = Backoff(rules.first_s, factor=rules.factor, longest_s=rules.longest_s, jitter=rules.jitter)
        try:
            if self.config.kind == "stdio":
                async with self._pacer.turn(endpoint.cpu_demand, self._urgent):
                    await endpoint.open()
            else:
                await endpoint.open()
        except ProtocolFault:
            return
        while is_usable_phase(endpoint.phase):
            try:
                await endpoint.list_tools()
            except ProtocolFault as fault:
                if needs_sign_in(fault):  # it accepts every client's handshake
                    await endpoint.close()
                    return
                self._settle(self._up)
                await self._list_content(endpoint)  # callers don't wait for listings that may never succeed
                await backoff.pause(fault.detail.retry_after_s)
            else:
                return

    async def _list_content(self, endpoint: ServerEndpointImpl) -> None:
        """List everything but tools, then release the callers waiting for the listings, even if one failed."""
        for kind in self._kinds:
            with suppress(ProtocolFault):  # the others may still succeed
                await endpoint.list_items(kind)
        self._settle(self._listed)


class ServerLeases:
    """The leases of one fleet.

    A lease doesn't start a server. While it's held, a configuration change doesn't stop, replace or restart its
    servers: the code making that change checks `find_holders` first.
    """

    def __init__(self) -> None:
        self._leases: list[tuple[str, frozenset[str]]] = []
        self._ended = anyio.Event()

    @contextmanager
    def hold(self, servers: Iterable[str], holder: str) -> Generator[None]:
        """Hold a lease on servers for the duration of the block."""
        lease = holder, frozenset(servers)
        self._leases.append(lease)
        try:
            yield
        finally:
            self._leases.remove(lease)
            self._ended.set()
            self._ended = anyio.Event()

    def find_holders(self, server: str) -> list[str]:
        """Return the holders of a server's leases, oldest first."""
        return [holder for holder, servers in self._leases if server in servers]

    async def wait_until_free(self, servers: Collection[str]) -> None:
        """Wait until none of these servers are leased."""
        while any(self.find_holders(server) for server in servers):
            await self._ended.wait()
