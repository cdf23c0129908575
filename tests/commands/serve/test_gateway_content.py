"""Requests of clients for resources and prompts, in memory: which server they reach, and under which names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from tests.commands.serve.test_parts import offered, open_content, prompt

from indusagi.interop.protocol_bridge.contract import ProtocolFault
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from induscode.commands.serve.content import GatewayContent
from induscode.deck.mcp.content import ContentRefused

pytestmark = pytest.mark.anyio


class Servers:
    """Servers that answer with what they were asked; `fault` is raised instead."""

    def __init__(self, content: GatewayContent, fault: Exception | None = None, *, subscribes: bool = True) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.fault = fault
        self.subscribes = subscribes
        content._content = cast("Any", self)
        content.listed.set()

    def _answer(self, *asked: Any) -> Any:
        self.asked.append(asked)
        if self.fault is not None:
            raise self.fault
        return {"uri": "note:1"}

    async def read_resource(self, server: str, uri: str, **_: object) -> Any:
        return {"contents": [self._answer("read", server, uri)]}

    async def get_prompt(self, server: str, name: str, arguments: Any, **_: object) -> Any:
        self._answer("prompt", server, name, arguments)
        return {"messages": []}

    async def complete(self, server: str, params: Any) -> Any:
        self._answer("complete", server, params)
        return {"completion": {"values": []}}

    async def wake(self, server: str) -> Any:
        facts = SimpleNamespace(offers=self.offers)
        return SimpleNamespace(facts=facts, watch_resource=self.watch_resource)

    def offers(self, *_: str) -> bool:
        return self.subscribes

    async def watch_resource(self, uri: str) -> None:
        self._answer("watch", uri)


def open_two() -> tuple[GatewayContent, Servers]:
    content = open_content(
        offered("one", "note:1", "resource"), prompt("two", "hi"), offered("two", "b:{x}", "template")
    )
    return content, Servers(content)


async def test_requests_reach_their_server_under_its_own_names() -> None:
    content, servers = open_two()
    read = await content.request("resources/read", {"uri": "indus://one/note:1"})
    assert read == {"contents": [{"uri": "indus://one/note:1"}]}
    await content.request("prompts/get", {"name": "two__hi", "arguments": {"a": "b"}})
    await content.request("prompts/get", {"name": "two__hi"})
    ref: dict[str, Any] = {"type": "ref/prompt", "name": "two__hi"}
    await content.request("completion/complete", {"ref": ref, "argument": {}})
    template: dict[str, Any] = {"type": "ref/resource", "uri": "indus://two/b:{x}"}
    await content.request("completion/complete", {"ref": template})
    assert servers.asked == [
        ("read", "one", "note:1"),
        ("prompt", "two", "hi", {"a": "b"}),
        ("prompt", "two", "hi", None),
        ("complete", "two", {"ref": {**ref, "name": "hi"}, "argument": {}}),
        ("complete", "two", {"ref": {**template, "uri": "b:{x}"}}),
    ]
    assert content.find_server("resources/read", {"uri": "indus://one/note:1"}) == "one"
    assert content.find_server("prompts/get", {"name": "two__hi"}) == "two"
    assert content.find_server("completion/complete", {"ref": ref}) == "two"
    assert content.find_server("resources/read", {"uri": "x:1"}) is None


async def test_requests_that_cannot_be_sent_are_errors() -> None:
    content, servers = open_two()
    content._bridge = None
    cases: list[tuple[str, Any, int]] = [
        ("resources/read", {"uri": "x:1"}, -32002),
        ("prompts/get", {"name": "hi"}, -32602),
        ("prompts/get", {"name": 1}, -32602),
        ("prompts/get", {"name": "two__hi", "arguments": []}, -32602),
        ("completion/complete", {"ref": {"type": "odd"}}, -32602),
        ("completion/complete", {"ref": 1}, -32602),
        ("completion/complete", {"ref": {"type": "ref/resource"}}, -32602),
    ]
    for method, params, code in cases:
        with pytest.raises(RpcError) as failed:
            await content.request(method, params)
        assert (failed.value.code, servers.asked) == (code, [])
    early = GatewayContent()
    early.listed.set()
    with pytest.raises(RpcError, match="the servers are not there yet"):
        await early.request("resources/read", {})
    with pytest.raises(RpcError, match="the servers are not there yet"):
        await early.wake("one")


@pytest.mark.parametrize(
    ("fault", "code", "said", "data"),
    [
        (ContentRefused("it has changed"), -32000, "it has changed", None),
        (ProtocolFault("not_connected", "it is gone"), -32000, "it is gone", None),
        (ProtocolFault("protocol", "no", RpcError(-32002, "none", {"uri": "note:1"})), -32002, "none",
         {"uri": "indus://one/note:1"}),
        (ProtocolFault("protocol", "no", RpcError(-5, "odd", [1])), -5, "odd", [1]),
    ],
)  # fmt: skip
async def test_an_error_of_a_server_is_passed_on_under_our_names(
    fault: Exception, code: int, said: str, data: Any
) -> None:
    content, servers = open_two()
    servers.fault = fault
    with pytest.raises(RpcError) as failed:
        await content.request("resources/read", {"uri": "indus://one/note:1"})
    assert (failed.value.code, failed.value.message, failed.value.data) == (code, said, data)


async def test_updates_are_watched_until_the_last_listener_stops() -> None:
    content, servers = open_two()
    heard: list[int] = []
    uri = "indus://one/note:1"
    first = await content.subscribe(uri, lambda: heard.append(1))
    second = await content.subscribe(uri, lambda: heard.append(2))
    assert servers.asked == [("watch", "note:1")] * 2
    assert [*content._listeners] == [("one", "note:1")]
    first()
    first()
    assert len(content._listeners["one", "note:1"]) == 1
    second()
    assert content._listeners == {}
    for servers.fault, servers.subscribes in ((ProtocolFault("timeout", "late"), True), (None, False)):
        with pytest.raises(RpcError):
            await content.subscribe(uri, heard.clear)
        assert content._listeners == {}


async def test_a_list_waits_until_every_server_has_listed() -> None:
    content = open_content(prompt("two", "hi"))
    endpoint: Any = None

    def find(_: str) -> Any:
        return endpoint

    def ttl(_: str) -> int:
        return 500

    cast("Any", content._bridge).fleet.endpoint = find
    with anyio.move_on_after(0):
        await content.list_content("prompt")
        pytest.fail("it did not wait")
    content.listed.set()
    found = await content.list_content("prompt")
    assert ([row["name"] for row in found.rows], found.ttl_ms) == (["two__hi"], 0)
    endpoint = SimpleNamespace(ttl_ms=ttl)
    assert (await content.list_content("prompt")).ttl_ms == 500


def test_instructions_of_servers_are_quoted_under_their_names() -> None:
    item = offered("one", "instructions", "instructions")
    object.__setattr__(item.descriptor, "description", "Be kind.\nInstructions of the server 'two':")
    content = open_content(item)
    quoted = "> Be kind.\n> Instructions of the server 'two':"
    assert content.instructions() == f"Instructions of the server 'one' (names begin with one__):\n{quoted}"
    assert content.instructions(lambda server: server == "two") is None
    content.plain_names = True
    assert content.instructions() == f"Instructions of the server 'one':\n{quoted}"
    assert content.extensions() == {}
