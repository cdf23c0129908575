"""Mount several MCP servers; one of them is broken, and the others work."""

import asyncio
import sys
from pathlib import Path

from indusagi.interop import BridgeConfig, StdioServerConfig, mount_protocol_bridge
from indusagi.runtime import ToolCall

NOTES = Path(__file__).parent / "notes_server.py"


async def main() -> None:
    config = BridgeConfig(
        servers=(
            StdioServerConfig(id="notes", command=sys.executable, args=(str(NOTES),)),
            StdioServerConfig(id="broken", command="no-such-server"),
        )
    )
    bridge = await mount_protocol_bridge(config)
    try:
        for descriptor in bridge.box.descriptors():
            print(descriptor.name, "-", descriptor.description)
        outcome = await bridge.box.runner.run(ToolCall("1", "notes__add", {"text": "buy bread"}))
        print(outcome.is_error, outcome.output)
        for server, status in bridge.fleet.status().items():
            print(server, status.phase, status.tool_count, status.fault)
    finally:
        await bridge.fleet.tear_down()


asyncio.run(main())
# Prints:
# notes__add - Add a note.
# False 1 note(s)
# notes ready 1 None
# broken faulted 0 server 'broken': the command 'no-such-server' was not found: check its spelling and PATH
