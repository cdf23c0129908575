"""A relay on standard streams, as a process: `python <this> COMMAND [WORD…]` relays that server."""

from __future__ import annotations

import asyncio
import sys

from indusagi.core.cancel import ending_signals
from indusagi.interop import StdioServerConfig, create_relay_host


async def main() -> None:
    host = create_relay_host(StdioServerConfig("behind", sys.argv[1], sys.argv[2:]))
    async with ending_signals() as told:
        await host.serve_stdio(told)
    if "--loaded" in sys.argv:
        heavy = sorted({"mcp", "pydantic", "httpx2", "uvicorn"} & set(sys.modules))
        sys.stderr.write(f"loaded {heavy}\n")


asyncio.run(main())
