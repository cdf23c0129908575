"""`python -m outside.cluster`: many seeded runs of faults, each with a checked history.

First the checker is checked: nodes that are broken in one way each must be caught. Ends with 1 if a broken node was not
caught, or if a history of the real ones is wrong; that history is written to `.outside/cluster`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.broker import BrokerProcess, broker_processes, find_leader

from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterFault, ClusterSettings
from induscode.cluster.key import ClusterKey, create_key
from induscode.cluster.opening import prepare_cluster
from outside.cluster.history import History, check_history
from outside.cluster.members import BREAKS, TOKEN, Break
from outside.cluster.plan import BATCH, Plan, PlannedFault, make_plan, plan_broker_fault
from outside.cluster.run import ClusterRun
from outside.install import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

_PREPARE_S = 60.0
_BROKEN_TRIES = 6
"""A fault has to hit the owner of a server: so many plans are tried for each broken node."""
_KEPT = ROOT / ".outside" / "cluster"


class Campaign:
    """Runs with the same three brokers."""

    def __init__(self, brokers: Sequence[BrokerProcess], folder: Path) -> None:
        self._brokers = brokers
        self._folder = folder
        self._key_file = folder / "cluster.key"
        self._key: ClusterKey | None = None
        self.counts: Counter[str] = Counter()
        self.wrong: list[int] = []

    def _settings(self, prefix: str) -> ClusterSettings:
        brokers = [broker.url for broker in self._brokers]
        return ClusterSettings(brokers=brokers, node="campaign", prefix=prefix, key=self._key)

    async def prepare(self) -> None:
        """Make the key, and the clusters that the runs use in turn."""
        self._key = await asyncio.to_thread(create_key, str(self._key_file))
        for prefix, lease_s in (*((f"f{number}", 1.0) for number in range(BATCH)), ("indus", 2.0)):
            give_up_at = time.monotonic() + _PREPARE_S
            while True:
                try:
                    async with open_broker(self._settings(prefix)) as broker:
                        await prepare_cluster(broker, replicas=len(self._brokers), lease_s=lease_s)
                    break
                except ClusterFault:
                    if time.monotonic() > give_up_at:
                        raise
                    await asyncio.sleep(0.2)

    async def run_batch(self, batch: int, plans: Sequence[Plan], broken: Break | None = None) -> list[list[str]]:
        """Run some plans at once, and return what is wrong with each."""
        fault = None if broken is not None or len(self._brokers) == 1 else plan_broker_fault(batch)
        assert self._key is not None
        well = asyncio.Event()
        runs: list[ClusterRun] = []
        for plan in plans:
            folder = Path(tempfile.mkdtemp(dir=self._folder, prefix=f"s{plan.seed}-"))
            ports = [broker.port for broker in self._brokers]
            runs.append(ClusterRun(plan, ports, folder, (self._key_file, self._key), broken))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fail_broker(fault, runs, well))
            histories = [tasks.create_task(run.run(well)) for run in runs]
        return [self._judge(run.plan, history.result(), broken) for run, history in zip(runs, histories, strict=True)]

    async def _fail_broker(self, fault: PlannedFault | None, runs: Sequence[ClusterRun], well: asyncio.Event) -> None:
        try:
            if fault is None:
                return
            await asyncio.sleep(fault.at_s)
            broker = (
                await self._find_leader(runs[0].plan.prefix) if fault.member is None else self._brokers[fault.member]
            )
            for run in runs:
                run.note(fault.what, text=f"broker {broker.name}, {fault.lasting_s:.2f} s")
            await asyncio.to_thread(broker.stop)
            await asyncio.sleep(fault.lasting_s)
            await asyncio.to_thread(broker.start)
            for run in runs:
                run.note(f"{fault.what} is over", text=f"broker {broker.name}")
            self.counts[fault.what] += len(runs)
        finally:
            well.set()

    async def _find_leader(self, prefix: str) -> BrokerProcess:
        try:
            async with open_broker(self._settings(prefix)) as opened:
                name = await find_leader(opened)
        except Exception as exc:  # noqa: BLE001 — they elect one: any of them will do
            print(f"no leader: {exc!r}", file=sys.stderr)
            return self._brokers[0]
        return next(one for one in self._brokers if one.name == name)

    def _judge(self, plan: Plan, history: History, broken: Break | None) -> list[str]:
        wrong = check_history(history)
        if broken is not None:
            return wrong
        counts = self.counts
        counts["runs"] += 1
        counts["runs with gateways as processes"] += plan.has_gateways
        counts["calls"] += len(history.calls)
        counts["effects"] += len(history.effects)
        counts["epochs"] += len({(effect.key, effect.epoch) for effect in history.effects})
        counts.update(f"outcome {outcome.kind}" for outcome in history.outcomes)
        counts.update(fault.what for fault in plan.faults)
        counts["ledger rows acknowledged"] += len(history.acknowledged)
        counts["runs in which this process stalled"] += any(fault.what == "stall" for fault in history.faults)
        if wrong:
            self.wrong.append(plan.seed)
            counts["violations"] += len(wrong)
            self._keep(plan, history, wrong)
        return wrong

    def _keep(self, plan: Plan, history: History, wrong: Sequence[str]) -> None:
        _KEPT.mkdir(parents=True, exist_ok=True)
        path = _KEPT / f"seed-{plan.seed}.jsonl"
        path.write_text("\n".join((*wrong, repr(plan), *history.list_lines())) + "\n", "utf-8")
        print(f"seed {plan.seed}: WRONG, the history is in {path.relative_to(ROOT)}")
        for line in wrong[:10]:
            print(f"  {line}")


async def check_checker(campaign: Campaign, seed: int) -> list[Break]:
    """Run broken nodes, and return those that the checker did not catch."""
    missed: list[Break] = []
    for broken in BREAKS:
        caught: list[str] = []
        for number in range(_BROKEN_TRIES):
            plan = make_broken_plan(seed + number, broken)
            [caught] = await campaign.run_batch(0, [plan], broken)
            if caught:
                break
        print(f"broken on purpose: {broken:8} {'caught: ' + caught[0] if caught else 'NOT CAUGHT'}", flush=True)
        if not caught:
            missed.append(broken)
    return missed


def make_broken_plan(seed: int, broken: Break) -> Plan:
    """Plan faults that show what a broken node does wrong: the owner is cut off from the brokers."""
    lasting_s = {"fencing": 1.6, "leases": 0.6, "retries": 0.2}[broken]
    count = 4 if broken == "retries" else 1
    cuts = tuple(PlannedFault(0.3 + 0.4 * number, "cut", None, lasting_s) for number in range(count))
    return Plan(seed, has_gateways=False, lease_s=1.0, faults=cuts)


async def run_campaign(seed: int, count: int, *, only: bool) -> int:
    """Run them all, and print the totals."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, broker_processes(Path(folder) / "brokers", token=TOKEN) as brokers:
        campaign = Campaign(brokers, Path(folder))
        await campaign.prepare()
        missed = [] if only else await check_checker(campaign, seed)
        seeds = range(seed, seed + count)
        batches = sorted({one // BATCH for one in seeds})
        for batch in batches:
            plans = [make_plan(one) for one in seeds if one // BATCH == batch]
            await campaign.run_batch(batch, plans)
            spent = time.monotonic() - began
            print(f"{campaign.counts['runs']:5} runs, {len(campaign.wrong)} wrong, {spent:.0f} s", flush=True)
    print(json.dumps({"seed": seed, "seconds": round(time.monotonic() - began), **campaign.counts}, indent=2))
    for one in campaign.wrong:
        print(f"again: make cluster-faults SEED={one} COUNT=1")
    return 1 if campaign.wrong or missed else 0


def main(arguments: Sequence[str]) -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="outside.cluster", description="Run faults in clusters.")
    parser.add_argument("--count", type=int, default=500, help="runs")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow it")
    parser.add_argument("--only", action="store_true", help="without the broken nodes that the checker must catch")
    options = parser.parse_args(arguments)
    return asyncio.run(run_campaign(options.seed, options.count, only=options.only))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
