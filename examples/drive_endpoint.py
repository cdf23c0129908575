"""Drive one endpoint by hand: open, list, call, meet a fault, close."""

import asyncio
import sys
from pathlib import Path

from indusagi.interop import (
    EndpointPhase,
    StdioServerConfig,
    create_server_endpoint,
    is_protocol_fault,
    is_usable_phase,
)

NOTES = Path(__file__).parent / "notes_server.py"


async def main() -> None:
    endpoint = create_server_endpoint(StdioServerConfig(id="notes", command=sys.executable, args=(str(NOTES),)))
    assert endpoint.phase == EndpointPhase.IDLE
    try:
        await endpoint.open()
        if is_usable_phase(endpoint.phase):
            for tool in await endpoint.list_tools():
                print(tool.descriptor.name, "->", tool.ref.name)
            result = await endpoint.invoke("add", {"text": "call Ada"})
            print(result.is_error, result.content)
            await endpoint.invoke("remove", {})
    except Exception as exc:
        if not is_protocol_fault(exc):
            raise
        print("fault:", exc.kind, exc.detail.rpc_code)
    finally:
        await endpoint.close()
    print(endpoint.phase)


asyncio.run(main())
# Prints:
# notes__add -> add
# False ({'type': 'text', 'text': '1 note(s)'},)
# fault: tool_error -32601
# closed
