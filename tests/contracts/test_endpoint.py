"""What every `ServerEndpoint` promises, tried on each way to a server: a pipe, and another node of a cluster."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from tests.support.broker import BrokerProcess, broker_process, name_node, new_cluster
from tests.support.servers import HONEST_TOOLS, honest

from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.contract import EndpointPhase, ProtocolFault, ServerEndpoint
from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
from induscode.cluster.node import open_node
from induscode.cluster.server_sessions import open_session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractAsyncContextManager

    from indusagi.runtime.contract import ToolProgress

    OpenWay = Callable[[BrokerProcess], AbstractAsyncContextManager[ServerEndpoint]]

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker")) as process:
        yield process


@asynccontextmanager
async def over_a_pipe(broker: BrokerProcess) -> AsyncGenerator[ServerEndpoint]:
    yield ServerEndpointImpl(honest())


@asynccontextmanager
async def at_another_node(broker: BrokerProcess) -> AsyncGenerator[ServerEndpoint]:
    settings = await new_cluster(broker)
    async with open_node(name_node(settings, "owner")) as owner:
        server = ServerEndpointImpl(honest(), open_session=partial(open_session, owner))
        await server.open()
        try:
            async with open_node(name_node(settings, "door")) as door:
                endpoint = ServerEndpointImpl(honest(), open_session=partial(open_session, door))
                try:
                    yield endpoint
                    assert not door.info.owned
                finally:
                    await endpoint.close()
        finally:
            await server.close()


@pytest.mark.parametrize("open_way", [over_a_pipe, at_another_node])
async def test_endpoint_opens_lists_calls_and_closes(open_way: OpenWay, broker: BrokerProcess) -> None:
    async with open_way(broker) as endpoint:
        assert endpoint.phase is EndpointPhase.IDLE
        with pytest.raises(ProtocolFault, match="is idle"):
            await endpoint.list_tools()
        await endpoint.open()
        assert endpoint.phase is EndpointPhase.READY
        tools = await endpoint.list_tools()
        assert [tool.ref.name for tool in tools] == list(HONEST_TOOLS)
        assert await endpoint.list_tools() is tools
        assert endpoint.status().tool_count == len(tools)

        said = await endpoint.invoke("echo", {"text": "Ω"})
        assert (said.content, said.is_error) == (({"type": "text", "text": "Ω"},), False)
        assert (await endpoint.invoke("fail", {})).is_error
        mixed = await endpoint.invoke("media", {})
        assert [block.get("type") for block in mixed.content if isinstance(block, dict)].count("image") == 1

        with pytest.raises(ProtocolFault) as refused:
            await endpoint.invoke("refuse", {})
        assert (refused.value.kind, refused.value.detail.server) == ("tool_error", "honest")
        with pytest.raises(ProtocolFault, match="must be an object"):
            await endpoint.invoke("echo", ["no object"])

        seen: list[ToolProgress] = []
        cancel = CancelToken()

        def stop(progress: ToolProgress) -> None:
            seen.append(progress)
            cancel.cancel("enough")

        with pytest.raises(ProtocolFault) as cancelled:
            await endpoint.invoke("slow", {"seconds": 30, "progress": 300}, cancel=cancel, on_progress=stop)
        assert (cancelled.value.kind, cancelled.value.detail.reason) == ("tool_error", "cancelled")
        assert (seen[0].done, seen[0].total) == (1, 300)

        await endpoint.close()
        await endpoint.close()
        assert endpoint.phase is EndpointPhase.CLOSED
        with pytest.raises(ProtocolFault) as closed:
            await endpoint.open()
        assert closed.value.kind == "not_connected"
