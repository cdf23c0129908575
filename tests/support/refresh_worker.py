"""A process that calls a protected server whenever a line arrives, with the sign-ins of its user."""

from __future__ import annotations

import sys

import anyio

from indusagi.interop.auth.contract import ServerAuth
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.contract import ProtocolFault, StreamableHttpServerConfig
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint


async def main(url: str) -> None:
    """Answer each line of standard input with the result of a call, or with its fault."""
    config = StreamableHttpServerConfig("demo", url, auth=ServerAuth(store=CredentialFiles()))
    endpoint = create_server_endpoint(config)
    await endpoint.open()
    print("ready", flush=True)  # noqa: T201 — read by the test
    try:
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            try:
                result = await endpoint.invoke("whoami", {})
                answer = str(result.content)
            except ProtocolFault as fault:
                answer = f"fault: {fault}"
            print(answer, flush=True)  # noqa: T201 — read by the test
    finally:
        await endpoint.close()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
