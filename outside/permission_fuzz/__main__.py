"""`python -m outside.permission_fuzz`: both laws, over many commands. Exit code 1 if one is broken."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from outside.permission_fuzz.laws import find_hidden, find_overruns
from outside.permission_fuzz.run import Playground


def main() -> int:
    """Generate, check and run commands, and report what should not have happened."""
    parser = argparse.ArgumentParser(prog="python -m outside.permission_fuzz")
    parser.add_argument("--count", type=int, default=10_000, help="how many commands to generate")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        playground = Playground(Path(folder))
        allowed, overruns = find_overruns(playground, given.seed, given.count)
        hiding, hidden = find_hidden(playground, given.seed, max(200, given.count // 5))
    lines = [
        f"{given.count} commands, {allowed} allowed by rules, {len(overruns)} did more than that",
        *(f"  {outcome}" for outcome in overruns),
        f"{hiding} spellings ran the denied program, {len(hidden)} of them passed under all",
        *(f"  {command!r}" for command in hidden),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if overruns or hidden else 0


if __name__ == "__main__":
    sys.exit(main())
