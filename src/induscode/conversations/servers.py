"""The servers of an open session: applies configuration changes between turns, and times phases.

A broken file changes nothing. For files inside the workspace that only the command line names, or that belong to the
user, the session keeps the rows it started with, because the model could have changed them. For rows of the project,
`indus mcp trust` gives consent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from time import monotonic

from anyio import to_thread

from indusagi.core.tasks import BackgroundTask, run_shielded
from indusagi.interop.protocol_bridge.contract import EndpointPhase
from indusagi.interop.protocol_bridge.fleet import FleetEvent
from induscode.boot.plans import FIRST_PROMPT_LIMIT_S, BrokenConfigError, ConfigFiles, ConsentedRows, reread_plan
from induscode.boot.runners import explain_slow_start
from induscode.boot.session import KeptServers
from induscode.conversations.server_requests import SamplingModel
from induscode.deck.mcp.boot import BootedBridge
from induscode.launch.invocation import Invocation
from induscode.servers.config.rows import ServerRow
from induscode.servers.plan import ServerPlan

RELOAD = "look at it: /mcp reload"
_SLOW_START_S = 1.0
"""Minimum duration for a start to be worth showing."""


class ServerPhases:
    """Records when each server entered its phase. Receives fleet events and passes them on."""

    def __init__(
        self, listener: Callable[[FleetEvent], None] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._phases: dict[str, tuple[EndpointPhase, float]] = {}
        self._causes: dict[str, str] = {}
        self.awaited: Collection[str] = ()
        """Servers that a command starts, which reports their faults itself."""

    def __call__(self, event: FleetEvent) -> None:
        """Handle a fleet event."""
        server, status = event.server, event.status
        if event.event == "phase":
            self._phases[server] = status.phase, self._clock()
            self._causes.pop(server, None)
        elif event.event == "slow_start" and status.slow_start is not None:
            self._causes[server] = explain_slow_start(status.slow_start)
        if self._listener is not None:
            self._listener(event)

    def get_age(self, server: str) -> float | None:
        """Return how long a server has been in its phase, in seconds, or `None` if that never changed."""
        known = self._phases.get(server)
        return None if known is None else self._clock() - known[1]

    def describe_starts(self) -> list[str]:
        """Describe each slow start, with its probable cause."""
        now = self._clock()
        return [
            f"starting {server} {now - since:.0f} s" + (f": {self._causes[server]}" if server in self._causes else "")
            for server, (phase, since) in self._phases.items()
            if phase is EndpointPhase.CONNECTING and now - since >= _SLOW_START_S
        ]

    def forget(self, servers: Sequence[str]) -> None:
        """Drop removed servers."""
        for server in servers:
            self._phases.pop(server, None)
            self._causes.pop(server, None)


class DirectoryServers(KeptServers):
    """A directory's servers, for one conversation after the other."""

    def __init__(self, stack: AsyncExitStack, on_event: Callable[[FleetEvent], None] | None = None) -> None:
        super().__init__(stack)
        self.phases = ServerPhases(on_event)
        self.sampling = SamplingModel()
        self.session: SessionServers | None = None

    async def follow(self, invocation: Invocation, files: ConfigFiles) -> SessionServers:
        """Apply changes of their files from now on."""
        if self.session is None:
            assert self.mcp is not None
            self.session = await to_thread.run_sync(SessionServers, invocation, self.mcp, files, self.phases)
            self.stack.push_async_callback(self.session.aclose)
        return self.session


_LISTS_LIMIT_S = 1.0
"""How long the first prompt waits for the skills of servers that are up."""


class LateServers:
    """Servers whose tools aren't known yet. Prompts wait for each of them once, for a few seconds."""

    def __init__(self, mcp: BootedBridge) -> None:
        self._mcp = mcp
        self._waited: set[str] = set()
        self._late: set[str] = set()
        """Servers that were still starting when a prompt went ahead."""

    async def wait(self) -> Sequence[str]:
        """Wait briefly for unknown servers, and for required ones. Describe servers that are still starting."""
        unknown = [server for server in self._mcp.unknown_servers() if server not in self._waited]
        self._waited.update(unknown)
        self._late.update(unknown)
        awaited = {server for server in self._mcp.awaited_servers() if server in unknown}
        starting = await self._mcp.wake([*awaited], FIRST_PROMPT_LIMIT_S)
        await self._mcp.wake(awaited.difference(starting), _LISTS_LIMIT_S, until_listed=True)
        self._mcp.record_late(starting)
        self._late.difference_update(awaited.difference(starting))
        await self._mcp.wait_for_required()
        return [f"server {server!r} is still starting: the model gets its tools once it's up" for server in starting]

    def take_notices(self) -> Sequence[str]:
        """Describe late servers that are now up, each once, for the model."""
        if not self._late:
            return ()
        tools = [card for card in self._mcp.capabilities if card.ref.server in self._late]
        servers = dict.fromkeys(card.ref.server for card in tools)
        self._late.difference_update(servers)
        return [
            f"server {server!r} is up now, with the tools "
            + ", ".join(card.name for card in tools if card.ref.server == server)
            for server in servers
        ]


class SessionServers:
    """The servers of an open session. Don't call its methods concurrently.

    The user has consented to the rows of the plan of `mcp`. The signatures of `files` are from before they were read.
    """

    def __init__(self, invocation: Invocation, mcp: BootedBridge, files: ConfigFiles, phases: ServerPhases) -> None:
        self.mcp = mcp
        self.phases = phases
        self.plan = mcp.plan
        """All configured servers, including those switched off for this session."""
        self.switched_off: set[str] = set()
        """Switched off for this session."""
        self.switched_on: set[str] = set()
        """Switched on for this session, but off in their files."""
        self._invocation = invocation
        self._files = files
        # A user file inside the workspace (a session in the home directory) is as exposed as an `--mcp` file.
        self._consented = ConsentedRows(invocation.cwd, mcp.plan, lambda _: RELOAD, scopes={"given", "user"})
        self._waking: list[BackgroundTask] = []
        self._leased: Sequence[str] = ()
        """Servers that can't change until sub-agents stop using them."""

    async def apply_changes(self) -> list[str]:
        """Apply changed files and approvals from other processes, and describe the changes."""
        await self.mcp.reread_approvals()
        leases = self.mcp.fleet.leases
        is_free = bool(self._leased) and not any(map(leases.find_holders, self._leased))
        if not await to_thread.run_sync(self._files.has_changed) and not is_free:
            return []
        try:
            return await self.apply_plan(await self.read_plan())
        except BrokenConfigError as exc:
            return str(exc).splitlines()

    async def read_plan(self) -> ServerPlan:
        """Read the configuration; `BrokenConfigError` if a file or a current server's row is missing or broken."""
        switched_on = tuple(self.switched_on)
        return await to_thread.run_sync(reread_plan, self._invocation, self._files.files, self.plan, None, switched_on)

    def find_held_back(self, plan: ServerPlan) -> Sequence[ServerRow]:
        """List the rows of a plan with changes that need the user's consent. Blocks."""
        return self._consented.find_changed(plan)

    async def apply_plan(self, plan: ServerPlan) -> list[str]:
        """Switch to the servers of a plan, starting new ones in the background, and describe the changes.

        A cancellation takes effect when the change is complete.
        """
        return await run_shielded(self._apply_plan(plan), "change of servers")

    async def _apply_plan(self, plan: ServerPlan) -> list[str]:
        mcp = self.mcp
        known = {str(note) for note in mcp.plan.notes}
        used = await to_thread.run_sync(self._consented.hold_back, plan)
        used = used.narrow([row.id for row in used.rows if row.id not in self.switched_off])
        changes = await mcp.change(used)
        self._leased = changes.leased
        mcp.plan, self.plan = used, plan
        self.phases.forget(changes.removed)
        self._waking.append(BackgroundTask("start of changed servers"))
        self._waking[-1].start(mcp.wake(changes.to_start))
        described = [f"servers {word}: {names}" for word, names in changes.group(used, "changed").items()]
        described += [
            f"server {server!r} stays as it is until the end of {', '.join(mcp.fleet.leases.find_holders(server))}"
            for server in changes.leased
        ]
        return [*described, *(str(note) for note in used.notes if str(note) not in known)]

    async def aclose(self) -> None:
        """Cancel background starts."""
        for task in self._waking:
            task.cancel()
            await task.join()
