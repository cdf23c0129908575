"""What a host offers beside tools, in memory and in both eras: as our own endpoint and as the SDK's client meet it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.types import ListPromptsResult, ListResourcesResult, ListResourceTemplatesResult
from tests.support.host_clients import client_of
from tests.support.host_tools import Bench
from tests.support.waiting import until

from indusagi.interop import ProtocolFault, StdioServerConfig, create_provider_host, create_server_endpoint
from indusagi.interop.protocol_bridge.client.handlers import Handlers, current_caller
from indusagi.interop.protocol_bridge.client.skills import read_items
from indusagi.interop.protocol_bridge.host.catalog import ServedView
from indusagi.interop.protocol_bridge.host.content import ContentListing, build_content_row, cut_page, is_logged
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.interop.protocol_bridge.rpc.transport import linked_pair

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from indusagi.core.json import JsonObject
    from indusagi.interop import ServerEndpointImpl
    from indusagi.interop.protocol_bridge.contract import ItemKind
    from indusagi.interop.protocol_bridge.host.content import ContentClient
    from indusagi.runtime.contract import ProgressSink

WAYS = ["memory-modern", "memory-legacy"]
CONFIG = StdioServerConfig("s", "none")
ROWS: dict[str, list[JsonObject]] = {
    "resource": [{"uri": f"x:{number}", "name": f"n{number}"} for number in range(3)],
    "template": [{"uriTemplate": "x:{id}", "name": "t"}],
    "skill": [],
    "prompt": [{"name": "p", "arguments": [{"name": "who", "required": True}]}],
}


class Source:
    """A content source with a few rows."""

    def __init__(self) -> None:
        self.rows = {kind: [*rows] for kind, rows in ROWS.items()}
        self.listeners: dict[str, list[Callable[[], None]]] = {}
        self.clients: list[ContentClient] = []
        self.changes: list[str] = []
        self.changed: list[ItemKind] = []
        self.asked: list[JsonObject] = []

    def instructions(self) -> str | None:
        return "Read before you ask."

    def extensions(self) -> JsonObject:
        return {}

    def find_server(self, method: str, params: JsonObject) -> str | None:
        return None

    def refresh(self) -> list[ItemKind]:
        return self.changed

    async def list_content(self, kind: ItemKind) -> ContentListing:
        return ContentListing(self.rows[kind], 5)

    async def request(self, method: str, params: JsonObject, on_progress: ProgressSink | None = None) -> JsonObject:
        self.asked.append(params)
        if method == "resources/read":
            if params["uri"] == "x:none":
                raise RpcError(-32002, "no such resource", {"uri": "x:none"})
            return {"contents": [{"uri": params["uri"], "text": "here"}], "ttlMs": 7}
        if method == "prompts/get":
            caller = current_caller.get()
            assert caller is not None
            if params["name"] == "ask":
                asked = await caller.ask(
                    "elicitation/create", {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
                )
                return {"messages": [{"role": "user", "content": {"type": "text", "text": str(asked["action"])}}]}
            caller.notify("notifications/message", {"level": "info", "data": params["name"]})
            return {"messages": [{"role": "user", "content": {"type": "text", "text": str(params["arguments"])}}]}
        return {"completion": {"values": ["a", "b"]}}

    async def subscribe(self, uri: str, listener: Callable[[], None]) -> Callable[[], None]:
        if uri == "x:none":
            raise RpcError(-32602, "no such resource")
        self.listeners.setdefault(uri, []).append(listener)
        return lambda: self.listeners[uri].remove(listener)

    def add_client(self, client: ContentClient) -> Callable[[], None]:
        self.clients.append(client)
        return lambda: self.clients.remove(client)

    def change_client(self, client: ContentClient, method: str) -> None:
        self.changes.append(method)


@asynccontextmanager
async def endpoint_of(source: Source, handlers: Handlers | None = None) -> AsyncGenerator[ServerEndpointImpl]:
    ours, theirs = linked_pair()
    running = await create_provider_host(Bench().box(), content=source).connect(theirs)
    endpoint = create_server_endpoint(CONFIG, ours, handlers=handlers)
    await endpoint.open()
    try:
        yield endpoint
    finally:
        await endpoint.close()
        await running.cancel()


@pytest.mark.parametrize("way", WAYS)
async def test_the_clients_of_the_sdk_list_read_and_get(way: str) -> None:
    source = Source()
    async with client_of(create_provider_host(Bench().box(), content=source), way) as client:
        assert [str(one.uri) for one in (await client.list_resources()).resources] == ["x:0", "x:1", "x:2"]
        assert [one.uri_template for one in (await client.list_resource_templates()).resource_templates] == ["x:{id}"]
        assert [one.name for one in (await client.list_prompts()).prompts] == ["p"]
        read: Any = (await client.read_resource("x:1")).contents[0]
        assert read.text == "here"
        got: Any = (await client.get_prompt("p", {"who": "Ada"})).messages[0]
        assert got.content.text == "{'who': 'Ada'}"
        assert source.asked == [{"uri": "x:1"}, {"name": "p", "arguments": {"who": "Ada"}}]
        assert client.instructions == "Read before you ask."


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_whose_view_has_tools_only_reaches_no_content(way: str) -> None:
    view = ServedView(Bench().box())
    host = create_provider_host(Bench().box(), content=Source(), choose_view=lambda identity, client: view)
    async with client_of(host, way) as client:
        assert client.server_capabilities.resources is None
        for request in (client.list_resources(), client.read_resource("x:1"), client.get_prompt("p", {"who": "Ada"})):
            with pytest.raises(Exception, match="is not supported"):
                await request
    host.refresh_content()


async def test_our_own_endpoint_lists_what_the_host_offers_and_keeps_it_until_it_changes() -> None:
    source = Source()
    async with endpoint_of(source) as endpoint:
        assert [item.ref.name for item in await endpoint.list_items("resource")] == ["x:0", "x:1", "x:2"]
        assert [item.descriptor.name for item in await endpoint.list_items("prompt")] == ["s__p"]
        assert [item.ref.name for item in await endpoint.list_items("template")] == ["x:{id}"]
        assert (await endpoint.list_items("instructions"))[0].descriptor.description == "Read before you ask."
        source.rows["resource"].clear()
        assert len(await endpoint.list_items("resource")) == 3
        assert (endpoint.ttl_ms("resource"), endpoint.ttl_ms("tool")) == (5, 0)
        with pytest.raises(ProtocolFault, match="no such resource"):
            await endpoint.request("resources/read", {"uri": "x:none"})


async def test_updates_reach_the_endpoint_that_watches_them() -> None:
    source, heard = Source(), list[str]()

    def hear(method: str, params: JsonObject) -> None:
        if method.endswith("updated"):
            heard.append(str(params["uri"]))

    async with endpoint_of(source, Handlers(on_notification=hear)) as endpoint:
        await endpoint.watch_resource("x:1")
        await until(lambda: bool(source.listeners.get("x:1")))
        source.listeners["x:1"][0]()
        await until(lambda: heard == ["x:1"])
        await endpoint.unwatch_resource("x:1")
        await until(lambda: not source.listeners["x:1"])


async def test_a_client_with_a_handshake_subscribes_sets_its_level_and_leaves() -> None:
    source, frames = Source(), list[Any]()
    host = create_provider_host(Bench().box(), content=source)
    ours, theirs = linked_pair()
    running = await host.connect(theirs)
    ours.attach(frames.append, lambda _: None)

    async def ask(method: str, **params: Any) -> Any:
        number = len(frames)
        ours.send({"jsonrpc": "2.0", "id": f"{method} {number}", "method": method, "params": params})
        await until(lambda: any(frame.get("id") == f"{method} {number}" for frame in frames))
        return next(frame for frame in frames if frame.get("id") == f"{method} {number}")

    await ask("initialize", protocolVersion="2025-11-25", capabilities={"roots": {}})
    for _ in range(2):
        assert (await ask("resources/subscribe", uri="x:1"))["result"] == {}
    assert len(source.listeners["x:1"]) == 1
    assert (await ask("resources/subscribe", uri="x:none"))["error"]["code"] == -32602
    source.listeners["x:1"][0]()
    await until(lambda: frames[-1].get("params") == {"uri": "x:1"})
    await ask("logging/setLevel", level="error")
    assert (source.changes, source.clients[0].log_level) == (["logging/setLevel"], "error")
    assert "error" in await ask("logging/setLevel", level="loud")
    await ask("resources/unsubscribe", uri="x:1")
    assert source.listeners["x:1"] == []
    source.changed = ["template"]
    host.refresh_content()
    await until(lambda: frames[-1] == {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"})
    ours.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
    await until(lambda: source.changes[-1] == "notifications/roots/list_changed")
    await running.cancel()
    assert source.clients == []


async def test_a_prompt_may_ask_its_client_in_both_eras() -> None:
    from mcp_types import ElicitResult  # noqa: PLC0415 — the SDK is slow to load

    async def answer(*_: object) -> ElicitResult:
        return ElicitResult(action="decline")

    for way in WAYS:
        host = create_provider_host(Bench().box(), content=Source())
        async with client_of(host, way, elicitation_callback=answer) as client:
            with anyio.fail_after(60):
                got: Any = (await client.get_prompt("ask")).messages[0]
            assert got.content.text == "decline"


def test_pages_belong_to_their_list() -> None:
    rows: list[JsonObject] = [{"uri": str(number)} for number in range(2_500)]
    cursor, seen = None, list[Any]()
    while True:
        page = cut_page("resources", rows, cursor)
        found: Any = page["resources"]
        seen += found
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert seen == rows
    with pytest.raises(RpcError, match="begin again"):
        cut_page("resources", rows[:-1], page.get("nextCursor") or cut_page("resources", rows, None)["nextCursor"])


def test_a_field_of_a_wrong_type_is_dropped_from_a_row() -> None:
    odd: Any = {
        "uri": "own",
        "title": 1,
        "mimeType": "a/b",
        "vendor": None,
        "arguments": [{"name": 1}, {"name": "n"}, 2],
    }
    assert build_content_row("resource", "seen", odd) == {
        "uri": "seen",
        "mimeType": "a/b",
        "vendor": None,
        "arguments": [{"name": "n"}],
        "name": "own",
    }


@pytest.mark.parametrize(
    ("kind", "wrong", "kept"),
    [
        ("resource", {"annotations": {"audience": "user", "priority": "high", "own": 1}}, {"annotations": {"own": 1}}),
        (
            "resource",
            {"annotations": {"audience": ["user", "dog"], "priority": 2, "lastModified": "2025-02-30T00:00:00Z"}},
            {"annotations": {"audience": ["user"]}},
        ),
        ("resource", {"annotations": {"lastModified": "yesterday"}}, {"annotations": {}}),
        (
            "resource",
            {"annotations": {"priority": 0.5, "lastModified": "2025-01-12T15:00:58+01:00"}},
            {"annotations": {"priority": 0.5, "lastModified": "2025-01-12T15:00:58+01:00"}},
        ),
        ("resource", {"icons": [{"src": 5}, {"src": "x:y", "sizes": "any"}]}, {"icons": [{"src": "x:y"}]}),
        ("resource", {"size": 3.5}, {}),
        ("template", {"annotations": {"priority": True}}, {"annotations": {}}),
        (
            "prompt",
            {"arguments": [{"name": "a", "required": "maybe", "description": 5, "own": 6}, {"required": True}]},
            {"arguments": [{"name": "a", "own": 6}]},
        ),
    ],
)
def test_a_wrong_value_inside_of_a_field_does_not_cost_a_strict_client_its_list(
    kind: ItemKind, wrong: Any, kept: Any
) -> None:
    row = build_content_row(kind, "seen", wrong)
    identity = {"resource": "uri", "template": "uriTemplate", "prompt": "name"}[kind]
    assert row == {identity: "seen", "name": "seen", **kept}
    results = {"resource": ListResourcesResult, "template": ListResourceTemplatesResult, "prompt": ListPromptsResult}
    key = {"resource": "resources", "template": "resourceTemplates", "prompt": "prompts"}[kind]
    results[kind].model_validate_json(json.dumps({key: [row], "ttlMs": 0, "cacheScope": "private"}))


def test_a_level_is_compared_by_severity() -> None:
    assert [is_logged(level, "warning") for level in ("debug", "info", "warning", "alert", "odd")] == [
        False, False, True, True, True,
    ]  # fmt: skip
    assert not is_logged("alert", None)


def test_rows_that_cannot_be_shown_are_left_out_with_a_note() -> None:
    rows: list[Any] = [
        {"uri": "a:\u200bb", "name": "hidden"},
        {"name": "without"},
        {"uri": "a:c", "name": "n\u200bame", "size": 3, "annotations": {"lastModified": "now", "priority": 1}},
        7,
    ]
    items, notes = read_items("resource", rows, CONFIG)
    assert [(item.ref.name, item.descriptor.name) for item in items] == [("a:c", "indus://s/a:c")]
    assert items[0].raw == {"uri": "a:c", "name": "n\u200bame", "annotations": {"priority": 1}}
    definition = items[0].descriptor.definition
    assert definition is not None
    assert (definition["name"], definition["size"]) == ("name", 3)
    assert len(notes) == 4
    prompts, _ = read_items("prompt", [{"name": "p", "arguments": [{"name": "w\u200bho"}]}, {"name": "q"}], CONFIG)
    assert [prompt.ref.name for prompt in prompts] == ["q"]
