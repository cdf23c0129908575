"""Resources and prompts of servers in memory: what is checked, cleaned, refused and observed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault, RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.mcp.content import CONTENT_KINDS, ContentRefused, ServerContent, UnlistedPrompt, describe_failure
from induscode.deck.mcp.drift import DisabledTool, DriftGrade

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ItemKind

pytestmark = pytest.mark.anyio
HIDDEN = "visible\u200b"
"""A text with a character that nobody sees."""


def item(server: str, name: str, kind: ItemKind, **raw: Any) -> BridgeCapability:
    descriptor = ToolDescriptor(f"{server}__{name}", "", {"type": "object"})
    return BridgeCapability.from_definition(descriptor, RemoteToolRef(server, name, kind), {"name": name, **raw})


@dataclass
class Bridge:
    """Servers in memory: `gone` is not there, `asleep` must be woken."""

    items: Sequence[BridgeCapability] = ()
    disabled: Sequence[DisabledTool] = ()
    content_is: DisabledTool | None = None
    """What the check of the content of an app finds."""
    results: dict[str, JsonObject] = field(default_factory=dict[str, Any])
    asked: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    checked: list[str] = field(default_factory=list[str])
    awake: set[str] = field(default_factory=lambda: {"lib"})
    listed: set[str] = field(default_factory=lambda: {"lib"})
    """Servers whose items were listed in this run."""
    disabled_by_listing: Sequence[DisabledTool] = ()
    """What turns out to be disabled when a server lists its items."""
    options: Any = field(default_factory=lambda: SimpleNamespace(kinds=CONTENT_KINDS))

    @property
    def ledger(self) -> Any:
        return self

    def live_items(self, kind: ItemKind) -> list[BridgeCapability]:
        return [one for one in self.items if one.ref.kind == kind]

    def live_capabilities_for_server(self, server: str, kind: ItemKind) -> list[BridgeCapability]:
        return [one for one in self.live_items(kind) if one.ref.server == server]

    def find(self, ref: RemoteToolRef) -> tuple[str, BridgeCapability] | None:
        return next((("key", one) for one in self.items if one.ref == ref), None)

    @property
    def enrolment(self) -> Any:
        return SimpleNamespace(list_servers=lambda: ["lib", "asleep"], check_content=self.check_content)

    def check_content(self, content: BridgeCapability) -> DisabledTool | None:
        self.checked.append(content.ref.name)
        return self.content_is

    @property
    def fleet(self) -> Any:
        return self

    def endpoint(self, server: str) -> Any:
        if server == "gone":
            return None
        return SimpleNamespace(
            known_tools=() if server in self.awake else None,
            known_items=partial(self.known_items, server),
            list_items=partial(self.list_items, server),
            request=self.request,
            facts=None,
        )

    def known_items(self, server: str, _: ItemKind) -> tuple[()] | None:
        return () if server in self.listed else None

    async def list_items(self, server: str, kind: ItemKind) -> None:
        self.asked.append(("list", server, kind))
        self.disabled = (*self.disabled, *self.disabled_by_listing)

    async def reach(self, server: str) -> Any:
        if server not in {*self.awake, "gone"}:
            self.asked.append(("wake", server))
            self.awake.add(server)
        return self.endpoint(server)

    async def request(self, method: str, params: JsonObject, **_: object) -> JsonObject:
        self.asked.append((method, params))
        return self.results.get(method, {})


def open_content(**facts: Any) -> tuple[ServerContent, Bridge]:
    bridge = Bridge(**facts)
    return ServerContent(cast("Any", bridge)), bridge


def rows(uri: str, mime: str) -> dict[str, JsonObject]:
    return {"resources/read": {"contents": [{"uri": uri, "mimeType": mime, "text": HIDDEN}]}}


@pytest.mark.parametrize(
    ("uri", "mime", "is_app"),
    [
        ("note:///a", "text/plain", False),
        ("note:///a", "text/html", False),
        ("ui://shelf/a", "text/plain", True),
        ("UI://shelf/a", "text/plain", True),
        ("note:///a", "text/html;profile=mcp-app", True),
        ("note:///a", "Text/HTML;Profile=MCP-App", True),
    ],
)
async def test_apps_are_compared_with_their_pin_and_other_texts_are_cleaned(uri: str, mime: str, is_app: bool) -> None:
    content, bridge = open_content(results=rows(uri, mime))
    text = cast("Any", await content.read_resource("lib", uri))["contents"][0]["text"]
    assert (bridge.checked, text == HIDDEN) == ([uri] if is_app else [], is_app)


async def test_an_app_with_another_content_is_refused() -> None:
    uri = "ui://shelf/a"
    changed = DisabledTool(RemoteToolRef("lib", uri, "content"), uri, DriftGrade.ROUTING, ["text"])
    content, _ = open_content(results=rows(uri, "text/html"), content_is=changed)
    with pytest.raises(ContentRefused, match="not the one that was approved"):
        await content.read_resource("lib", uri)


async def test_a_resource_without_contents_is_passed_on() -> None:
    for uri in ("note:///a", "ui://shelf/a"):
        content, bridge = open_content(results={"resources/read": {"_meta": {"a": 1}}})
        assert await content.read_resource("lib", uri) == {"_meta": {"a": 1}}
        assert bridge.checked == []


@pytest.mark.parametrize("kind", ["resource", "prompt"])
async def test_a_disabled_item_is_never_asked_for(kind: ItemKind) -> None:
    ref = RemoteToolRef("lib", "x:1", kind)
    disabled = [DisabledTool(RemoteToolRef("lib", "x:2", kind), "n", DriftGrade.ROUTING),
                DisabledTool(ref, "n", DriftGrade.ROUTING)]  # fmt: skip
    content, bridge = open_content(disabled=disabled, items=[item("lib", "x:1", kind)])
    with pytest.raises(ContentRefused):
        await (content.read_resource("lib", "x:1") if kind == "resource" else content.get_prompt("lib", "x:1"))
    assert bridge.asked == []


async def use(content: ServerContent, ref: RemoteToolRef) -> object:
    """Make the request that an item of a kind is for."""
    match ref.kind:
        case "prompt":
            return await content.get_prompt(ref.server, ref.name)
        case "skill":
            return await content.get_skill(ref.server, ref.name)
        case "template":
            return await content.complete(ref.server, {"ref": {"uri": ref.name}})
        case _:
            return await content.read_resource(ref.server, ref.name)


@pytest.mark.parametrize("kind", ["prompt", "skill", "template", "resource"])
async def test_finding_x1_an_item_that_changed_while_its_server_slept_is_never_asked_for(kind: ItemKind) -> None:
    ref = RemoteToolRef("asleep", "x://1", kind)
    changed = DisabledTool(ref, "n", DriftGrade.ROUTING)
    content, bridge = open_content(items=[item("asleep", "x://1", kind)], disabled_by_listing=[changed])
    with pytest.raises(ContentRefused, match="not the one that was approved"):
        await use(content, ref)
    assert bridge.asked == [("wake", "asleep"), ("list", "asleep", kind)]


async def test_finding_x1_a_completion_for_a_disabled_prompt_is_never_asked_for() -> None:
    ref = RemoteToolRef("lib", "hi", "prompt")
    content, bridge = open_content(disabled=[DisabledTool(ref, "n", DriftGrade.ROUTING)])
    with pytest.raises(ContentRefused):
        await content.complete("lib", {"ref": {"type": "ref/prompt", "name": "hi"}})
    assert bridge.asked == []


async def test_finding_x1_a_skill_is_described_as_it_was_approved_and_an_unlisted_one_not_at_all() -> None:
    approved = item("lib", "skill://a/SKILL.md", "skill", description="approved")
    content, bridge = open_content(items=[approved], results={"skills/get": {"skill": {"description": "other"}}})
    assert await content.get_skill("lib", "skill://a/SKILL.md") == {"skill": approved.raw}
    with pytest.raises(ContentRefused, match="lists no skill"):
        await content.get_skill("lib", "skill://b/SKILL.md")
    assert bridge.asked == []


@pytest.mark.parametrize(
    ("kind", "held", "uri", "is_refused"),
    [
        ("resource", "ui://app", "UI://app", True),
        ("resource", "ui://app", "ui://%61pp", True),
        ("resource", "ui://app", "ui://%2561pp", False),
        ("resource", "ui://app", "ui://other", False),
        ("resource", "file:///a", "file:///A", True),
        ("resource", "file:///a", "file:///live", False),
        ("resource", "FILE:///LIVE", "file:///live", False),
        ("template", "note:///{id}", "note:///1", True),
        ("template", "note:///{id}", "other:///1", False),
        ("template", "file:///{id}", "file:///live", False),
        ("template", "open:///{id}", "open:///1", False),
        ("skill", "skill://held/SKILL.md", "skill://held/SKILL.md", True),
        ("skill", "skill://held/SKILL.md", "skill://held/run.sh", True),
        ("skill", "skill://held/SKILL.md", "Skill://Held/run.sh", True),
        ("skill", "skill://live/more/SKILL.md", "skill://live/more/run.sh", True),
        ("skill", "skill://live/more/SKILL.md", "skill://live/run.sh", False),
        ("skill", "skill://SKILL.md", "skill://live/run.sh", False),
        ("skill", "skill://both/SKILL.md", "skill://both/SKILL.md", True),
        ("prompt", "ui://app", "ui://app", False),
    ],
)
async def test_finding_x2_a_disabled_item_is_refused_under_every_spelling(
    kind: ItemKind, held: str, uri: str, is_refused: bool
) -> None:
    live = [
        item("lib", "file:///live", "resource"),
        item("lib", "skill://both/SKILL.md", "resource"),
        item("lib", "skill://live/SKILL.md", "skill"),
        item("lib", "open:///{name}", "template"),
    ]
    disabled = DisabledTool(RemoteToolRef("lib", held, kind), "n", DriftGrade.ROUTING)
    content, bridge = open_content(items=live, disabled=[disabled])
    if is_refused:
        with pytest.raises(ContentRefused):
            await content.read_resource("lib", uri)
    else:
        await content.read_resource("lib", uri)
    assert bridge.asked == ([] if is_refused else [("resources/read", {"uri": uri})])


async def test_a_server_is_woken_once_and_one_that_is_gone_is_a_fault() -> None:
    content, bridge = open_content()
    for _ in range(2):
        await content.complete("asleep", {"ref": {"uri": "x:{y}"}})
    assert [one for one in bridge.asked if one[0] == "wake"] == [("wake", "asleep")]
    with pytest.raises(ProtocolFault, match="server 'gone' is not there any more") as failed:
        await content.complete("gone", {"ref": {"uri": "x:{y}"}})
    assert (failed.value.kind, failed.value.detail.reason) == ("not_connected", "not_found")


async def test_only_listed_prompts_are_got_and_what_they_say_is_cleaned() -> None:
    content, bridge = open_content(items=[item("lib", "hi", "prompt")], results={"prompts/get": {"text": HIDDEN}})
    assert await content.get_prompt("lib", "hi") != {"text": HIDDEN}
    await content.get_prompt("lib", "hi", {"who": "Ada"})
    asked: list[tuple[Any, ...]] = [("prompts/get", {"name": "hi"})]
    asked.append(("prompts/get", {"name": "hi", "arguments": {"who": "Ada"}}))
    assert bridge.asked == asked
    bridge.asked.clear()
    with pytest.raises(UnlistedPrompt, match="lists no prompt 'bye'"):
        await content.get_prompt("lib", "bye")
    assert bridge.asked == []


def test_items_are_listed_in_the_order_of_the_configuration() -> None:
    names = [("other", "1"), ("asleep", "2"), ("lib", "3"), ("asleep", "4")]
    content, _ = open_content(items=[item(server, name, "prompt") for server, name in names])
    assert [one.ref.name for one in content.list_items("prompt")] == ["3", "2", "4", "1"]


async def test_every_app_is_read_and_a_server_that_fails_is_left_out() -> None:
    apps = [item("gone", "ui://a", "resource"), item("lib", "note:b", "resource"), item("lib", "ui://c", "resource")]
    content, bridge = open_content(items=apps, results=rows("ui://c", "text/html"))
    assert [one.ref.name for one in await content.read_apps()] == ["ui://c"]
    assert bridge.checked == ["ui://c"]


@pytest.mark.parametrize(
    ("failure", "code", "rpc"),
    [
        (ContentRefused("no"), "drift", None),
        (UnlistedPrompt("no"), "unknown_prompt", None),
        (ProtocolFault("not_connected", "no", detail=FaultDetail()), "not_connected", None),
        (ProtocolFault("protocol", "no", detail=FaultDetail(rpc_code=-32602)), "refused", -32602),
    ],
)
def test_a_failure_is_described_with_its_code(failure: Any, code: str, rpc: int | None) -> None:
    found = describe_failure(failure, "lib")
    assert (found.is_error, found.details.get("code"), found.details.get("server")) == (True, code, "lib")
    assert found.details.get("rpcCode") == rpc
