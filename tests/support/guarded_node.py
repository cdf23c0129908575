"""A program for the tests: a guarded node with the honest server; it prints the server's pid, and waits."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import cast

from tests.support.broker import KEY
from tests.support.servers import honest

from indusagi.interop.protocol_bridge.contract import BridgeConfig
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from induscode.cluster.contract import ClusterSettings
from induscode.cluster.node import open_node
from induscode.cluster.server_sessions import open_session


async def main() -> None:
    broker, prefix, name = sys.argv[1:]
    settings = ClusterSettings(brokers=[broker], prefix=prefix, node=name, key=KEY)
    async with open_node(settings, guarded=True) as node:
        fleet = ServerFleetImpl(open_session=partial(open_session, node))
        node.follow(fleet)
        try:
            await fleet.start(BridgeConfig([honest()]))
            endpoint = fleet.endpoint("honest")
            assert endpoint is not None
            result = await endpoint.invoke("pid", {})
            found = {**cast("dict[str, int]", result.structured), "lease": node.info.lease}
            sys.stdout.write(f"{json.dumps(found)}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
        finally:
            await fleet.tear_down()


if __name__ == "__main__":
    asyncio.run(main())
