"""A process that calls a protected server whenever a line arrives, with the sign-ins of its user.

It sends its requests by the HTTP client alone, without a session.
"""

from __future__ import annotations

import sys

import anyio

from indusagi.interop.auth.contract import ServerAuth
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.client.http.client import open_http_client
from indusagi.interop.protocol_bridge.contract import StreamableHttpServerConfig

_CALL = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "whoami"}}'


async def main(url: str) -> None:
    """Answer each line of standard input with the result of a call, or with its fault."""
    config = StreamableHttpServerConfig("demo", url, auth=ServerAuth(store=CredentialFiles()))
    async with open_http_client(config) as http:

        async def call() -> None:
            async with http.request("POST", {"content-type": "application/json"}, _CALL) as response:
                print((await http.read_body(response)).decode(), flush=True)  # noqa: T201 — read by the test

        # Loads the token, and everything that a request needs.
        await call()
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            await call()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
