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
