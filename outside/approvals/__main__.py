"""`python -m outside.approvals`: attempts to reuse, alter or outlive an approval, at one gateway and at three nodes.

The gateways are `indus serve` processes; the three share a broker. Ends with 1 if an attempt was accepted, a call
took effect that nobody approved, or one took none that somebody did.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import anyio

from outside.approvals.attempts import Score, attack
from outside.approvals.processes import open_processes

_WIDE_S = 600
_BRIEF_S = 2


async def run_sites(count: int, attempts: int, seed: int) -> Score:
    """Attack this many gateways."""
    with tempfile.TemporaryDirectory() as folder:
        wide, brief = Path(folder) / "wide", Path(folder) / "brief"
        wide.mkdir()
        brief.mkdir()
        async with open_processes(wide, count, _WIDE_S) as patient, open_processes(brief, count, _BRIEF_S) as hasty:
            return await attack(patient, hasty, attempts, seed)


def main() -> int:
    """Read the options, run, and print the table."""
    parser = argparse.ArgumentParser(prog="outside.approvals", description="Attack approvals.")
    parser.add_argument("--count", type=int, default=10_000, help="attempts at one gateway, and as many at three nodes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sites", type=int, choices=(1, 3), help="only at so many gateways")
    options = parser.parse_args()
    accepted = 0
    for sites in (1, 3) if options.sites is None else (options.sites,):
        began = time.monotonic()
        score = anyio.run(run_sites, sites, options.count, options.seed)
        for kind, number in sorted(score.attempts.items()):
            print(f"{number:7,} {score.accepted[kind]:4} {kind}")
        spent = time.monotonic() - began
        wrong = score.accepted["effects that nobody approved"]
        print(
            f"{sites} gateways: {score.attempts.total():,} attempts, {score.accepted.total() - wrong} accepted, "
            f"{wrong} effects that nobody approved; {score.expected.total():,} calls approved, "
            f"{score.lost} of them without effect; {spent:.0f} s",
            flush=True,
        )
        accepted += score.accepted.total() + score.lost
    return 1 if accepted else 0


if __name__ == "__main__":
    sys.exit(main())
