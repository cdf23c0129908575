"""The servers of an open session: changes of their configuration are applied between turns, and phases are timed.

A broken file changes nothing. A row of a file inside the workspace that nothing but the command line has named, or that
belongs to the user, is used as it was when the session began: the model could have changed it. `indus mcp trust` is the
consent to rows of the project.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.tasks import BackgroundTask, run_shielded
from indusagi.interop.protocol_bridge.contract import EndpointPhase
from induscode.boot.config_watch import ConsentedRows, find_broken_files, find_broken_rows
from induscode.boot.plans import FIRST_PROMPT_LIMIT_S, ConfigPathError, plan_servers
from induscode.boot.runners import explain_slow_start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.interop.protocol_bridge.fleet import FleetEvent
    from induscode.boot.config_watch import ConfigFiles
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.launch.invocation import Invocation
    from induscode.servers.config.rows import ServerRow
    from induscode.servers.plan import ServerPlan

RELOAD = "look at it: /mcp reload"
_SHOWN_AFTER_S = 1.0
"""A start that takes longer is shown."""


class BrokenConfigError(CoreError):
    """A configuration file or a row of it cannot be used; the servers stay as they were."""


class ServerPhases:
    """Since when every server has its phase; it receives the events of the fleet and passes them on."""

    def __init__(
        self, listener: Callable[[FleetEvent], None] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._phases: dict[str, tuple[EndpointPhase, float]] = {}
        self._causes: dict[str, str] = {}

    def __call__(self, event: FleetEvent) -> None:
        """Handle an event of the fleet."""
        server, status = event.server, event.status
        if event.event == "phase":
            self._phases[server] = status.phase, self._clock()
            self._causes.pop(server, None)
        elif event.event == "slow_start" and status.slow_start is not None:
            self._causes[server] = explain_slow_start(status.slow_start)
        if self._listener is not None:
            self._listener(event)

    def get_age(self, server: str) -> float | None:
        """Return for how many seconds a server has its phase; None if it has never changed."""
        known = self._phases.get(server)
        return None if known is None else self._clock() - known[1]

    def describe_starts(self) -> list[str]:
        """Describe each start that takes longer than a second, with its probable cause."""
        now = self._clock()
        return [
            f"starting {server} {now - since:.0f} s" + (f": {self._causes[server]}" if server in self._causes else "")
            for server, (phase, since) in self._phases.items()
            if phase is EndpointPhase.CONNECTING and now - since >= _SHOWN_AFTER_S
        ]

    def forget(self, servers: Sequence[str]) -> None:
        """Drop servers that are gone."""
        for server in servers:
            self._phases.pop(server, None)
            self._causes.pop(server, None)


class LateServers:
    """Servers whose tools aren't known yet. A prompt waits for each of them once, and only for a few seconds."""

    def __init__(self, mcp: BootedBridge) -> None:
        self._mcp = mcp
        self._waited: set[str] = set()
        self._late: set[str] = set()
        """Those that were still starting when a prompt went on."""

    async def wait(self) -> Sequence[str]:
        """Wait for unknown servers within the limit, and for required ones; describe those that are still starting."""
        unknown = [server for server in self._mcp.unknown_servers() if server not in self._waited]
        self._waited.update(unknown)
        awaited = self._mcp.awaited_servers()
        starting = await self._mcp.wake([server for server in unknown if server in awaited], FIRST_PROMPT_LIMIT_S)
        self._mcp.record_late(starting)
        self._late.update(starting, (server for server in unknown if server not in awaited))
        await self._mcp.wait_for_required()
        return [f"server {server!r} is still starting: the model gets its tools once it's up" for server in starting]

    def take_notices(self) -> Sequence[str]:
        """Describe to the model, once, the servers that have come up since a prompt went on without them."""
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
    """The servers of an open session. Its methods are called one after the other.

    Args:
        invocation: The invocation of the session.
        mcp: The servers as they were booted; the rows of its plan have the person's consent.
        files: The configuration files, with signatures from before they were read.
        phases: Receives the events of the fleet.
    """

    def __init__(self, invocation: Invocation, mcp: BootedBridge, files: ConfigFiles, phases: ServerPhases) -> None:
        self.mcp = mcp
        self.phases = phases
        self.plan = mcp.plan
        """All configured servers, also those that are switched off for this session."""
        self.switched_off: set[str] = set()
        """Switched off for this session."""
        self.switched_on: set[str] = set()
        """Switched on for this session, and off in their files."""
        self._invocation = invocation
        self._files = files
        # A user's file inside the workspace (a session in the home directory) is as exposed as one of `--mcp`.
        self._consented = ConsentedRows(invocation.cwd, mcp.plan, lambda _: RELOAD, scopes={"given", "user"})
        self._waking: list[BackgroundTask] = []
        self._leased: Sequence[str] = ()
        """Servers whose change waits until no sub-agent uses them."""

    async def apply_changes(self) -> list[str]:
        """Apply changed files, and approvals given in another process; describe the changes."""
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
        """Read the configuration as it is now.

        Raises:
            BrokenConfigError: A file is gone, or broken, or a row of a present server is.
        """
        broken = await to_thread.run_sync(find_broken_files, self._files.files)
        if broken:
            raise BrokenConfigError("\n".join(map(str, broken)))
        try:
            plan = await to_thread.run_sync(plan_servers, self._invocation, None, tuple(self.switched_on))
        except ConfigPathError as exc:
            raise BrokenConfigError(f"{exc}; the servers stay as they were") from exc
        lost = find_broken_rows(self.plan, plan)
        if lost:
            raise BrokenConfigError("\n".join(map(str, lost)))
        return plan

    def find_held_back(self, plan: ServerPlan) -> Sequence[ServerRow]:
        """List the rows of a plan that wait for the user's yes to a change. It blocks."""
        return self._consented.find_changed(plan)

    async def apply_plan(self, plan: ServerPlan) -> list[str]:
        """Replace the servers by those of a plan, and describe the changes; new ones start in the background.

        A cancellation is raised when the change is complete.
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
        waiting = [server for server in (*changes.replaced, *changes.added) if server not in used.configs]
        parts = {
            "removed": changes.removed,
            "changed": [server for server in changes.replaced if server not in waiting],
            "added": [server for server in changes.added if server not in waiting],
            "held back": waiting,
        }
        described = [f"servers {word}: {', '.join(names)}" for word, names in parts.items() if names]
        described += [
            f"server {server!r} stays as it is until the end of {', '.join(mcp.fleet.leases.find_holders(server))}"
            for server in changes.leased
        ]
        return [*described, *(str(note) for note in used.notes if str(note) not in known)]

    async def aclose(self) -> None:
        """Cancel the starts in the background."""
        for task in self._waking:
            task.cancel()
            await task.join()
