"""Requests of clients for resources and prompts, in memory: which server they reach, and under which names."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.gateway.test_parts import offered, open_content, prompt
from tests.interop.test_users import acting

from indusagi.interop.protocol_bridge.client.handlers import current_server
from indusagi.interop.protocol_bridge.contract import EndpointPhase, ProtocolFault, RemoteToolRef
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.runtime.calls import current_user
from induscode.deck.mcp.content import ContentRefused
from induscode.gateway.content import GatewayContent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.interop.protocol_bridge.fleet import FleetEvent

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

    async def open_item(self, ref: RemoteToolRef) -> Any:
        return await self.wake(ref.server)

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


async def test_an_answer_is_never_given_to_another_request() -> None:
    content, servers = open_two()
    for _ in range(2):
        await content.request("resources/read", {"uri": "indus://one/note:1"})
        await content.request("prompts/get", {"name": "two__hi"})
    assert servers.asked == [("read", "one", "note:1"), ("prompt", "two", "hi", None)] * 2


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
    for ask in (content.list_content("prompt"), content.subscribe("indus://two/x:1", lambda: None)):
        with anyio.move_on_after(0):
            await ask
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


# -- what servers are told --------------------------------------------------------------------


class Endpoint:
    """A connected server that records what it's told."""

    phase = EndpointPhase.READY

    def __init__(self, id: str = "one", era: str = "legacy", *, logs: bool = True, fault: bool = False) -> None:
        self.told: list[Any] = []
        self.config = SimpleNamespace(id=id)
        self.facts: Any = SimpleNamespace(era=era, offers=["logging"].__contains__ if logs else [].__contains__)
        self._fault = fault

    def _tell(self, *told: Any) -> None:
        self.told.append(told)
        if self._fault:
            raise ProtocolFault("timeout", "late")

    async def watch_resource(self, uri: str) -> None:
        self._tell("watch", uri)

    async def unwatch_resource(self, uri: str) -> None:
        self._tell("unwatch", uri)

    async def request(self, method: str, params: Any) -> None:
        self._tell(method, params)

    def notify(self, method: str) -> None:
        self._tell(method)


class Client:
    """A client with a handshake."""

    user = ""

    def __init__(self, level: str | None = None, **capabilities: Any) -> None:
        self.log_level = self.level_set = level
        self.capabilities = capabilities
        self.received: list[Any] = []

    def notify(self, method: str, params: Any) -> None:
        self.received.append(params)

    async def ask(self, method: str, params: Any) -> Any:
        return {"roots": [method]}


@asynccontextmanager
async def follow(content: GatewayContent, *endpoints: Endpoint) -> AsyncGenerator[None]:
    """Run the content's own requests to these servers, and wait for them at the end of the block."""
    known = {endpoint.config.id: endpoint for endpoint in endpoints}
    fleet = cast("Any", content._bridge).fleet
    fleet.find_session, fleet.endpoints = known.get, lambda: [*known.values()]
    async with anyio.create_task_group() as tasks:
        content.follow(tasks)
        yield
    content.follow(None)


def ready(server: str, event: str = "phase", phase: EndpointPhase = EndpointPhase.READY) -> FleetEvent:
    return cast("Any", SimpleNamespace(server=server, event=event, status=SimpleNamespace(phase=phase)))


LEVEL = ("logging/setLevel", {"level": "info"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, [("watch", "note:1"), LEVEL]),
        ({"era": "modern"}, [("watch", "note:1")]),
        ({"logs": False}, [("watch", "note:1")]),
        ({"fault": True}, [("watch", "note:1")]),
        ({"id": "two"}, []),
    ],
)
async def test_a_server_that_comes_up_again_is_told_what_clients_have_set(options: Any, told: list[Any]) -> None:
    endpoint = Endpoint(**options)
    content, _ = open_two()
    await content.subscribe("indus://one/note:1", lambda: None)
    for level in ("error", "info", "odd", None):
        content.add_client(cast("Any", Client(level)))
    async with follow(content, endpoint):
        content.handle_event(ready("one"))
        content.handle_event(ready("one", "phase", EndpointPhase.FAULTED))
        content.handle_event(ready("one", "tools"))
    assert endpoint.told == told


async def test_a_server_that_has_not_answered_yet_is_told_nothing() -> None:
    content, _ = open_two()
    endpoint = Endpoint()
    endpoint.facts = None
    content.add_client(cast("Any", Client("info")))
    async with follow(content, endpoint):
        content.handle_event(ready("one"))
    content.handle_event(ready("one"))  # nobody follows servers any more
    assert endpoint.told == []


async def test_a_level_is_passed_on_and_changed_roots_only_to_older_servers_that_a_client_sees() -> None:
    content, _ = open_two()
    old, modern, hidden, down = Endpoint(), Endpoint("two", "modern"), Endpoint("three"), Endpoint("four")
    down.phase = EndpointPhase.FAULTED
    async with follow(content, old, modern, hidden, down):
        leave = content.add_client(cast("Any", Client("info", roots={})), lambda server: server != "three")
        content.add_client(cast("Any", Client()))
        assert [end.told for end in (old, modern, hidden, down)] == [
            [("notifications/roots/list_changed",)],
            [],
            [],
            [],
        ]
        content.change_client(cast("Any", Client("info")), "logging/setLevel")
    assert [end.told[-1:] for end in (old, modern, hidden, down)] == [[LEVEL], [], [LEVEL], []]
    leave()
    leave()
    assert len(content._clients) == 1


@pytest.mark.parametrize(("listens_again", "told"), [(False, [("unwatch", "note:1")]), (True, [])])
async def test_a_server_is_told_when_nobody_watches_a_resource_any_more(listens_again: bool, told: list[Any]) -> None:
    content, _ = open_two()
    for endpoint in (Endpoint(), Endpoint(fault=True)):
        async with follow(content, endpoint):
            stop = await content.subscribe("indus://one/note:1", lambda: None)
            stop()
            if listens_again:  # before the request to the server has begun
                content._listeners["one", "note:1"] = [lambda: None]
        assert endpoint.told == told
        content._listeners.clear()


@pytest.mark.parametrize(
    ("server", "uri", "heard"),
    [
        ("one", "note:1", ["note"]),
        ("one", "note:1/part", ["note"]),
        ("one", "note:10", []),
        ("one", "dir:/a", ["dir"]),
        ("two", "note:1", []),
        (None, "note:1", []),
        ("one", 1, []),
    ],
)
async def test_an_update_reaches_who_watches_the_resource_or_the_whole_of_a_part(
    server: str | None, uri: Any, heard: list[str]
) -> None:
    content = open_content(offered("one", "note:1", "resource"), offered("one", "dir:/", "resource"))
    Servers(content)
    called: list[str] = []
    await content.subscribe("indus://one/note:1", lambda: called.append("note"))
    await content.subscribe("indus://one/dir:/", lambda: called.append("dir"))
    token = current_server.set(server)
    content.receive("notifications/resources/updated", {"uri": uri})
    current_server.reset(token)
    assert called == heard


@pytest.mark.parametrize(
    ("options", "logger", "shown"),
    [
        ({"single_client": True}, "db", "one/db"),
        ({"single_client": True}, None, "one"),
        ({"single_client": True, "plain_names": True}, "db", "db"),
        ({}, "db", None),
    ],
)
async def test_a_message_outside_of_a_call_reaches_the_only_client_by_its_level(
    options: dict[str, bool], logger: str | None, shown: str | None
) -> None:
    content = open_content(prompt("one", "hi"), **options)
    every, few, blind = Client("debug"), Client("error"), Client("debug")
    for client in (every, few):
        content.add_client(cast("Any", client))
    content.add_client(cast("Any", blind), lambda _: False)
    token = current_server.set("one")
    params: dict[str, Any] = {"level": "info", "data": "x", "_meta": {}}
    if logger is not None:
        params["logger"] = logger
    content.receive("notifications/message", params)
    current_server.reset(token)
    assert every.received == ([] if shown is None else [{"level": "info", "data": "x", "logger": shown}])
    assert (few.received, blind.received) == ([], [])


async def test_roots_are_those_of_the_only_client_that_has_some() -> None:
    content, _ = open_two()
    with pytest.raises(RpcError, match="which client it is meant for"):
        await content.answer_roots({})
    content.add_client(cast("Any", Client()))
    leave = content.add_client(cast("Any", Client(roots={})))
    assert await content.answer_roots({}) == {"roots": ["roots/list"]}
    content.add_client(cast("Any", Client(roots={})))
    with pytest.raises(RpcError, match="which client it is meant for"):
        await content.answer_roots({})
    leave()
    assert await content.answer_roots({}) == {"roots": ["roots/list"]}


@pytest.mark.parametrize("method", ["skills/get", "resources/directory/read"])
async def test_a_skill_that_nobody_has_is_an_invalid_parameter(method: str) -> None:
    content, servers = open_two()
    with pytest.raises(RpcError) as unknown:
        await content.request(method, {"uri": "x:1"})
    assert (unknown.value.code, unknown.value.data, servers.asked) == (-32602, {"uri": "x:1"}, [])

    async def refuse(server: str, uri: str) -> Any:
        raise ContentRefused(f"{server} {uri} has changed")

    cast("Any", servers).get_skill = cast("Any", servers).read_directory = refuse
    with pytest.raises(RpcError, match="one note:1 has changed") as refused:
        await content.request(method, {"uri": "indus://one/note:1"})
    assert refused.value.code == -32602


async def test_updates_and_roots_stay_with_the_user_of_a_session() -> None:
    content, _ = open_two()
    fleet = cast("Any", content._bridge).fleet

    def name_session(server: str) -> str:
        return f"{server} of {current_user.get()}" if current_user.get() else server

    fleet.name_session = name_session
    heard: list[str] = []
    for user in ("alice", "bob", ""):
        with acting(user):
            await content.subscribe("indus://one/note:1", partial(heard.append, user))
            client = Client(roots={})
            client.user = user
            content.add_client(cast("Any", client))
    for user in ("alice", "", "bob", "carol"):
        with acting(user):
            token = current_server.set("one")
            content.receive("notifications/resources/updated", {"uri": "note:1"})
            found = [client.user for client in content._with_roots("one")]
            current_server.reset(token)
            assert found == ([user] if user in {"alice", "bob"} else [] if user else ["alice", "bob", ""])
    assert heard == ["alice", "", "bob"]
    endpoint = Endpoint()
    async with follow(content, endpoint):
        fleet.find_session = {"one of bob": endpoint}.get
        with acting("bob"):
            content.restore_user(cast("Any", endpoint), "bob")
        with acting("carol"):
            content.restore_user(cast("Any", endpoint), "carol")
    assert endpoint.told[-1:] == [("watch", "note:1")]
    assert len([one for one in endpoint.told if one[0] == "watch"]) == 1
