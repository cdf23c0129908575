"""A process that calls a protected server whenever a line arrives, with the sign-ins of its user.

It sends its requests by the guarded HTTP client alone: loading the SDK would take longer than the test.
"""

from __future__ import annotations

import sys

import anyio

from indusagi.interop.auth.contract import ServerAuth
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.client.http.guard import open_guarded_client
from indusagi.interop.protocol_bridge.contract import StreamableHttpServerConfig

_CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "whoami"}}


async def main(url: str) -> None:
    """Answer each line of standard input with the result of a call, or with its fault."""
    config = StreamableHttpServerConfig("demo", url, auth=ServerAuth(store=CredentialFiles()))
    async with open_guarded_client(config) as (client, _):
        # Loads the token, and everything that a request needs.
        print((await client.post(url, json=_CALL)).text, flush=True)  # noqa: T201 — read by the test
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            print((await client.post(url, json=_CALL)).text, flush=True)  # noqa: T201 — read by the test


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
