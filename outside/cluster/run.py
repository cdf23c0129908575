"""One run: members, clients that call all the time, faults by plan, and the history of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from induscode.cluster.contract import ClusterFault, ClusterSettings
from outside.cluster.history import Call, FaultEvent, History, Outcome
from outside.cluster.ledgers import read_ledgers
from outside.cluster.members import TOKEN, Break, GatewayMember, LocalMember, Member, StuckError, make_servers

if TYPE_CHECKING:
    from induscode.cluster.key import ClusterKey
    from outside.cluster.plan import Plan, PlannedFault

KEYS = 2
MEMBERS = 3
_CLIENTS = 2
"""Of each member."""
_SETTLE_S = 40.0
_LEFT_S = 5.0
_STALL_S = 0.05
"""A pause of this process beyond which a node in it may not end its servers in time."""
_LOOK_S = 0.02
_WAITS_S = (0.0, 0.0, 0.002, 0.02, 0.05)


class ClusterRun:
    """A run of a plan; `run` returns its history."""

    def __init__(
        self, plan: Plan, ports: Sequence[int], folder: Path, key: tuple[Path, ClusterKey], broken: Break | None = None
    ) -> None:
        self.plan = plan
        self._key_file, self._key = key
        self.history = History()
        self._ports = ports
        self._folder = folder
        self._broken: Break | None = broken
        self._effects = folder / "effects.jsonl"
        self._keys = [f"s{plan.seed}k{number}" for number in range(KEYS)]
        self._servers = make_servers(self._keys, self._effects)
        self._members: list[Member] = []
        self._started: list[Member] = []
        """Also those that another one has replaced."""
        self._born = 0
        self._is_over = False
        self._sent = 0
        self._stalled_s = 0.0

    # -- members ----------------------------------------------------------------------------

    def _make_member(self) -> Member:
        self._born += 1
        name = f"s{self.plan.seed}n{self._born}"
        if self.plan.has_gateways:
            return GatewayMember(name, self._servers, self._ports, self._folder, self._key_file)
        settings = ClusterSettings(brokers=[], node=name, prefix=self.plan.prefix, key=self._key)
        member = LocalMember(settings, self._servers, self._ports)
        member.broken = self._broken
        return member

    async def _start_member(self, place: int | None = None) -> None:
        """Start a member, in the place of another one or as one more; brokers that elect a leader make it wait."""
        give_up_at = time.monotonic() + _SETTLE_S
        while True:
            member = self._make_member()
            try:
                await member.start()
            except (ClusterFault, RuntimeError, TimeoutError):
                await _stop_quietly(member)
                if time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(0.1)
                continue
            break
        self._started.append(member)
        if place is None:
            self._members.append(member)
        else:
            self._members[place] = member

    async def _stop_member(self, member: Member) -> None:
        try:
            await member.stop()
        except StuckError as exc:
            self.history.stuck.append(str(exc))

    # -- clients ----------------------------------------------------------------------------

    async def _call(self, member: Member, key: str, wait_s: float, linger_s: float) -> Outcome:
        self._sent += 1
        call = f"{self.plan.seed}-{self._sent}"
        self.history.calls.append(Call(time.monotonic(), call, key, member.name))
        outcome = await member.call(key, {"call": call, "wait_s": wait_s, "linger_s": linger_s})
        self.history.outcomes.append(outcome)
        return outcome

    async def _be_client(self, place: int, number: int) -> None:
        """Call one server after the other at one member, until the faults are over."""
        chosen = random.Random(f"{self.plan.seed} {place} {number}")
        while not self._is_over:
            member = self._members[place]
            if member.is_up:
                key = chosen.choice(self._keys)
                outcome = await self._call(member, key, chosen.choice(_WAITS_S), chosen.choice(_WAITS_S))
                if outcome.kind != "error":
                    await asyncio.sleep(chosen.uniform(0.0, 0.03))
                    continue
            await asyncio.sleep(chosen.uniform(0.05, 0.15))

    async def _settle(self, member: Member, key: str) -> None:
        began, stalled_s = time.monotonic(), self._stalled_s
        outcome = None
        # A machine on which this process does not run makes no statement.
        while time.monotonic() - began - 3 * (self._stalled_s - stalled_s) < _SETTLE_S:
            outcome = await self._call(member, key, 0.0, 0.0)
            if outcome.kind == "answer":
                return
            await asyncio.sleep(0.05)
        self.history.unanswered.append(f"{key} at {member.name} ({'' if outcome is None else outcome.text})")

    # -- faults -----------------------------------------------------------------------------

    def note(self, what: str, node: str = "", text: str = "") -> None:
        """Take a fault into the history."""
        self.history.faults.append(FaultEvent(time.monotonic(), what, node, text))

    async def _fail(self, fault: PlannedFault, began: float) -> None:
        await asyncio.sleep(max(0.0, began + fault.at_s - time.monotonic()))
        place = await self._find_owner() if fault.member is None else fault.member
        member = self._members[place]
        delay = f", {fault.delay_s:g} s each way" if fault.what == "delay" else ""
        self.note(fault.what, member.name, f"{fault.lasting_s:.2f} s{delay}")
        if fault.what == "join":
            await self._start_member()
        elif fault.what in {"leave", "end"}:
            await self._stop_member(member)
            await self._start_member(place)
        elif fault.what == "kill server":
            self._kill_server()
        elif isinstance(member, LocalMember):
            await self._fail_local(member, fault, place)
        else:
            await self._fail_gateway(member, fault, place)
        self.note(f"{fault.what} is over", member.name)

    async def _find_owner(self) -> int:
        """Find the member whose server took effect last, once one has."""
        names = [member.name for member in self._members]
        give_up_at = time.monotonic() + _SETTLE_S
        while time.monotonic() < give_up_at:
            history = History()
            history.read_effects(self._effects)
            for effect in reversed(history.effects):
                if effect.node in names[:MEMBERS]:
                    return names.index(effect.node)
            await asyncio.sleep(_LOOK_S)
        return 0

    async def _fail_local(self, member: LocalMember, fault: PlannedFault, place: int) -> None:
        if fault.what == "sleep":
            member.slept_s += 2 * fault.lasting_s
        elif fault.what == "drain":
            if member.node is not None:
                with suppress(ClusterFault):
                    await member.node.membership.ask(member.node.info.instance, {"op": "drain"})
            await asyncio.sleep(fault.lasting_s)
            await self._stop_member(member)
            await self._start_member(place)
        else:
            await self._fail_network(member, fault)

    async def _fail_gateway(self, member: GatewayMember, fault: PlannedFault, place: int) -> None:
        if fault.what == "stop":
            member.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.lasting_s)
            member.signal(signal.SIGCONT)
        elif fault.what == "kill":
            member.signal(signal.SIGKILL)
            if member.process is not None:
                await member.process.wait()
            await asyncio.sleep(fault.lasting_s)
            await self._stop_member(member)
            await self._start_member(place)
        else:
            await self._fail_network(member, fault)

    async def _fail_network(self, member: Member, fault: PlannedFault) -> None:
        proxy = member.proxy
        if fault.what == "cut":
            proxy.cut()
        elif fault.what == "delay":
            proxy.delay_s = fault.delay_s
        elif fault.what == "hold up":
            proxy.hold("up")
        elif fault.what == "hold down":
            proxy.hold("down")
        else:
            proxy.hold("up", "down")
        await asyncio.sleep(fault.lasting_s)
        await proxy.release()

    def _kill_server(self) -> None:
        states = [outcome.state for outcome in self.history.outcomes if outcome.state is not None]
        if states:
            with suppress(ProcessLookupError):
                os.kill(states[-1][1], signal.SIGKILL)

    async def _watch_stalls(self) -> None:
        """Take note when this process itself did not run for a while."""
        while not self._is_over:
            before = time.monotonic()
            await asyncio.sleep(_LOOK_S)
            late = time.monotonic() - before - _LOOK_S
            if late > _STALL_S:
                self._stalled_s += late
                for member in self._members:
                    self.note("stall", member.name, f"{late:.3f} s")

    # -- the run ----------------------------------------------------------------------------

    async def run(self, brokers_are_well: asyncio.Event) -> History:
        """Run it: start the members, let the faults happen, wait until all is well, and stop."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(MEMBERS):
                    tasks.create_task(self._start_member())
            async with asyncio.TaskGroup() as clients:
                clients.create_task(self._watch_stalls())
                for place in range(MEMBERS):
                    for number in range(_CLIENTS):
                        clients.create_task(self._be_client(place, number))
                began = time.monotonic()
                async with asyncio.TaskGroup() as tasks:
                    for fault in self.plan.faults:
                        tasks.create_task(self._fail(fault, began))
                    tasks.create_task(brokers_are_well.wait())
                async with asyncio.TaskGroup() as tasks:
                    for member in self._members:
                        if member.is_up:
                            for key in self._keys:
                                tasks.create_task(self._settle(member, key))
                self._is_over = True
        finally:
            self._is_over = True
            for member in self._started:
                await self._stop_member(member)
        await self._look_for_servers()
        if self.plan.has_gateways:
            brokers = [f"nats://{TOKEN}@127.0.0.1:{port}" for port in self._ports]
            settings = ClusterSettings(brokers=brokers, node="checker", prefix=self.plan.prefix, key=self._key)
            await read_ledgers(self.history, settings, sorted(self._folder.glob("s*n*/**/ledger.db")))
        self.history.read_effects(self._effects)
        return self.history

    async def _look_for_servers(self) -> None:
        """Take down servers that are left when all members have gone; one that is ending gets a moment."""
        left: list[int] = []
        give_up_at = time.monotonic() + _LEFT_S
        while time.monotonic() < give_up_at:
            left = find_processes(str(self._effects))
            if not left:
                return
            await asyncio.sleep(_LOOK_S)
        self.history.stuck.append(f"servers are left: {left}")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def find_processes(word: str) -> list[int]:
    """Find the processes with a word among their arguments."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


async def _stop_quietly(member: Member) -> None:
    with suppress(ClusterFault, RuntimeError, StuckError):
        await member.stop()
