"""`python -m outside.host_fuzz`: many random requests. Exit code 1 if one has no answer, or the gateway fails."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.support.issuer import running_issuer
from tests.support.waiting import until

from outside.host_fuzz.run import send_all

_ROOT = Path(__file__).parents[2]


async def fuzz(count: int, seed: int, folder: Path) -> int:
    """Start an issuer and a gateway, send the requests, and report."""
    log = folder / "log"
    async with running_issuer() as issuer:
        flags = ["--http", "127.0.0.1:0", "--auth", issuer.url, "--profile", "read-only", "--no-mcp"]
        flags += ["--max-rate-per-principal", "1000000"]
        variables = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
        with log.open("wb") as errors:
            gateway = await asyncio.create_subprocess_exec(
                str(_ROOT / ".venv/bin/indus"), "serve", *flags, cwd=folder, env=variables, stderr=errors
            )
        try:
            await until(lambda: "serving at" in log.read_text("utf-8"))
            found = re.search(r"serving at (\S+)", log.read_text("utf-8"))
            assert found is not None
            began = time.monotonic()
            report = await send_all(Random(seed), found[1], issuer, count)
            seconds = time.monotonic() - began
            is_alive = gateway.returncode is None
        finally:
            if gateway.returncode is None:
                gateway.terminate()
            code = await gateway.wait()
    said = log.read_text("utf-8", "replace")
    failures = [line for line in said.splitlines() if "failed in" in line]
    statuses = ", ".join(f"{status}: {number:,}" for status, number in sorted(report.statuses.items()))
    print(f"{count:,} requests in {seconds:.0f} s (seed {seed}): {statuses}")
    print(f"good requests that were not answered with 200: {dict(report.refused_good)}")
    print(
        f"gateway alive: {is_alive}, exit code {code}, tracebacks: {said.count('Traceback')}, failures: {len(failures)}"
    )
    print(*failures[:20], *report.unanswered[:5], sep="\n")
    is_good = is_alive and code == 0 and not report.unanswered and not report.refused_good
    return 0 if is_good and not failures and "Traceback" not in said else 1


def main() -> int:
    """Read the flags."""
    parser = argparse.ArgumentParser(prog="python -m outside.host_fuzz")
    parser.add_argument("--count", type=int, default=100_000, help="how many requests to send")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(fuzz(given.count, given.seed, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
