"""A provider host on standard streams, for tests that want a process: `python <this> [SECONDS|hurried]`.

SECONDS: how long calls may finish after the end of the input, instead of the default. `hurried`: a client that reads
nothing is given up sooner.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from tests.support.host_tools import Bench

from indusagi.core.cancel import ending_signals
from indusagi.interop import ProviderHostInfo, create_provider_host
from indusagi.interop.protocol_bridge.host import stdio
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits
from indusagi.runtime.contract import ToolResult


async def main() -> None:
    bench = Bench()

    async def loaded(arguments: object, ctx: object) -> ToolResult:
        return ToolResult.json([*sorted({name.partition(".")[0] for name in sys.modules})])

    async def noise(arguments: object, ctx: object) -> ToolResult:
        print("stray words")  # noqa: T201 — what tools should not do, and do
        os.write(1, b"more stray words\n")
        subprocess.run(["cat"], check=True)  # noqa: ASYNC221 — would take the client's words
        return ToolResult.text("quiet")

    bench.add("loaded", loaded)
    bench.add("noise", noise)
    limits = None
    if sys.argv[1:] == ["hurried"]:
        stdio._HANGUP_CHECK_S = stdio._FLUSH_S = 0.05
    elif len(sys.argv) > 1:
        limits = HostLimits(linger_s=float(sys.argv[1]))
    host = create_provider_host(bench.box(), ProviderHostInfo("child", "1.0"), limits=limits)
    async with ending_signals() as told:
        await host.serve_stdio(told)


asyncio.run(main())
