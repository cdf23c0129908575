"""Views of a gateway beside tools: resources, templates, prompts and skills are selected like tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.commands.helpers import PYTHON, configured, user_file
from tests.commands.serving import greeted, serving
from tests.gateway.test_views import write_views
from tests.support.scripts import run
from tests.support.servers import SERVERS

from indusagi.interop.protocol_bridge.contract import LISTED_KINDS, RemoteToolRef
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.interop.protocol_bridge.uris import UriMap
from induscode.gateway.content import GatewayContent, KnownItems
from induscode.gateway.view_box import ViewContent, has_dot_segment
from induscode.launch.views import parse_views

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ItemKind

pytestmark = pytest.mark.anyio

OWN: dict[ItemKind, list[str]] = {
    "resource": ["file:///public/a", "file:///private/b", "ui://app.html"],
    "template": ["file:///public/{path}"],
    "prompt": ["review", "deploy"],
    "skill": ["skill://tidy/SKILL.md"],
}
IDENTITY: dict[ItemKind, str] = {"prompt": "name", "template": "uriTemplate"}


class Content(GatewayContent):
    """The content of the servers `git` and `web`, which both have the same; what is asked is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.listed.set()
        self.asked: list[tuple[str, JsonObject]] = []
        self.servers = ["git", "web"]
        self.refresh()

    def _build_items(self, kind: ItemKind) -> KnownItems:
        refs: dict[str, RemoteToolRef] = {}
        for server in getattr(self, "servers", ()):
            for own in OWN[kind]:
                name = f"{server}__{own}" if kind == "prompt" else UriMap(server).to_host(own)
                refs[name] = RemoteToolRef(server, own, kind)
        return KnownItems([{IDENTITY.get(kind, "uri"): name, "title": "T", "name": name} for name in refs], refs)

    def _find_resource(self, uri: str) -> tuple[str, str]:
        for server in self.servers:
            if (own := UriMap(server).to_server(uri)) is not None:
                return server, own
        raise RpcError(-32002, "no server has this resource")

    async def request(self, method: str, params: JsonObject, on_progress: object = None) -> JsonObject:
        self.asked.append((method, params))
        return {}

    async def subscribe(self, uri: str, listener: object) -> Any:
        self.asked.append(("subscribe", {"uri": uri}))
        return lambda: None


def view(**fields: Any) -> tuple[Content, ViewContent]:
    content = Content()
    return content, ViewContent(content, parse_views({"v": fields})["v"], lambda: ())


async def names(content: ViewContent, kind: ItemKind) -> list[str]:
    return [str(row[IDENTITY.get(kind, "uri")]) for row in (await content.list_content(kind)).rows]


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, (6, 2, 4, 2)),
        ({"read_only": True}, (6, 2, 4, 2)),
        ({"servers": ["git"]}, (3, 1, 2, 1)),
        ({"servers": ["native"]}, (0, 0, 0, 0)),
        ({"tools": ["*"]}, (0, 0, 0, 0)),
        ({"prompts": ["git__*"]}, (0, 0, 2, 0)),
        ({"resources": ["indus://web/file:///public/*"]}, (1, 1, 0, 0)),
        ({"resources": ["ui://*", "skill://git/*"], "prompts": ["*__review"]}, (2, 0, 2, 1)),
        ({"servers": ["web"], "resources": ["indus://git/*"]}, (0, 0, 0, 0)),
    ],
)
async def test_a_view_selects_content_by_server_and_by_name(fields: JsonObject, counts: tuple[int, ...]) -> None:
    _, content = view(**fields)
    assert tuple([len(await names(content, kind)) for kind in LISTED_KINDS]) == counts
    assert bool(content.extensions()) == bool(counts[3])


async def test_what_a_view_hides_cannot_be_used() -> None:
    inner, content = view(prompts=["git__review"], resources=["indus://git/file:///public/*"])
    hidden: list[tuple[str, JsonObject]] = [
        ("prompts/get", {"name": "git__deploy"}),
        ("prompts/get", {"name": "web__review"}),
        ("resources/read", {"uri": "indus://git/file:///private/b"}),
        ("resources/read", {"uri": "indus://web/file:///public/a"}),
        ("resources/read", {"uri": "indus://git/file:///public/../private/b"}),
        ("resources/read", {"uri": "indus://git/file:///public/%252e%252e%2Fprivate/b"}),
        ("resources/read", {"uri": "indus://git/file:///public/x?at=..\\private\\b"}),
        ("resources/read", {"uri": "nothing:"}),
        ("skills/get", {"uri": "skill://git/tidy/SKILL.md"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "git__deploy"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "indus://web/file:///public/{path}"}}),
    ]
    for method, params in hidden:
        with pytest.raises(RpcError, match=r"no prompt named|no server has"):
            await content.request(method, params)
        assert content.find_server(method, params) is None
    with pytest.raises(RpcError):
        await content.subscribe("indus://git/file:///private/b", lambda: None)
    assert inner.asked == []
    shown: list[tuple[str, JsonObject]] = [
        ("prompts/get", {"name": "git__review"}),
        ("resources/read", {"uri": "indus://git/file:///public/a"}),
        ("resources/read", {"uri": "indus://git/file:///public/unlisted..txt"}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "indus://git/file:///public/{path}"}}),
        ("completion/complete", {"ref": "invalid"}),
    ]
    for method, params in shown:
        await content.request(method, params)
    await content.subscribe("indus://git/file:///public/a", lambda: None)
    assert inner.asked == [*shown, ("subscribe", {"uri": "indus://git/file:///public/a"})]
    assert content.find_server(*shown[0]) == "git"


async def test_a_prompt_is_renamed_and_a_resource_keeps_its_uri() -> None:
    uri = "indus://git/file:///public/a"
    renamed = {"git__review": "review", "git__deploy": "web__deploy", uri: "the list"}
    inner, content = view(rename=renamed, describe={"git__review": "Ours.", uri: "Of today."})
    # A name that another prompt has is not given.
    assert await names(content, "prompt") == ["review", "git__deploy", "web__review", "web__deploy"]
    assert (await content.list_content("prompt")).rows[0]["description"] == "Ours."
    expected = {"uri": uri, "name": "the list", "title": "the list", "description": "Of today."}
    assert (await content.list_content("resource")).rows[0] == expected
    skill = "skill://git/tidy/SKILL.md"
    _, changed = view(rename={skill: "x"}, describe={skill: "x"})
    assert (await changed.list_content("skill")).rows[0] == inner.known_items("skill").rows[0]
    await content.request("prompts/get", {"name": "review"})
    await content.request("completion/complete", {"ref": {"type": "ref/prompt", "name": "review"}})
    ref = {"type": "ref/prompt", "name": "git__review"}
    assert inner.asked == [("prompts/get", {"name": "git__review"}), ("completion/complete", {"ref": ref})]
    with pytest.raises(RpcError):
        await content.request("prompts/get", {"name": "git__review"})


async def test_a_disabled_prompt_says_why_under_the_name_of_the_view_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, content = view(rename={"git__gone": "lost"})
    # The gateway finds a disabled prompt, which it does not list, and refuses it with the reason.
    gone: JsonObject = {"name": "git__gone"}

    def find_server(_: str, params: JsonObject) -> str | None:
        return "git" if params == gone else None

    monkeypatch.setattr(inner, "find_server", find_server)
    await content.request("prompts/get", {"name": "lost"})
    assert inner.asked == [("prompts/get", gone)]
    with pytest.raises(RpcError, match="no prompt named 'git__gone'"):
        await content.request("prompts/get", gone)


async def test_only_changes_of_what_is_shown_are_announced() -> None:
    inner, content = view(servers=["git"])
    assert content.refresh() == []
    for kind in LISTED_KINDS:
        await content.list_content(kind)
    assert content.shows_server("git")
    assert not content.shows_server("web")
    inner.servers = ["git"]
    assert set(inner.refresh()) == set(LISTED_KINDS)
    assert content.refresh() == []
    inner.servers = []
    inner.refresh()
    assert set(content.refresh()) == set(LISTED_KINDS)
    assert content.refresh() == []


@given(st.lists(st.sampled_from(["a", "..", "%2e%2e", "%252E.", "b..c", ".", "?x=", "%"])), st.sampled_from("/\\"))
def test_a_dot_segment_is_found_however_it_is_escaped(parts: list[str], slash: str) -> None:
    dots = {"..", "%2e%2e", "%252E."}
    assert has_dot_segment("x://h/" + slash.join(parts)) == bool(dots & set(parts))


def test_a_uri_that_is_escaped_very_often_counts_as_one_with_a_dot_segment() -> None:
    # Each decoding reads all of it: with 2 MB of escapes of escapes, to decode them all would take hours.
    assert has_dot_segment("x://h/%" + "25" * 1_000_000 + "41")


def library(name: str) -> JsonObject:
    return {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "library.py"), "--name", name]}


@pytest.mark.process
def test_a_client_of_a_view_is_served_its_part_of_the_content(tmp_path: Path) -> None:
    configured(user_file(), {"one": library("one"), "two": library("two")})
    write_views(small={"servers": ["two"], "rename": {"two__greet": "hello"}, "describe": {"two__greet": "Ours."}})
    with greeted("--view", "small", "--profile", "none", cwd=tmp_path) as gateway:
        listed = gateway.ask("resources/list")["result"]["resources"]
        assert [row["uri"] for row in listed] == ["indus://two/note:///today", "ui://two/shelf/app.html"]
        assert [row["name"] for row in gateway.ask("prompts/list")["result"]["prompts"]] == ["hello"]
        got = gateway.ask("prompts/get", name="hello", arguments={"who": "Ada"})["result"]
        assert got["messages"][0]["content"]["text"] == "two greets Ada"
        read = gateway.ask("resources/read", uri="indus://two/book://7/text")["result"]
        assert read["contents"][0]["text"] == "Book 7 of two."
        refused = gateway.ask("resources/read", uri="indus://one/note:///today")["error"]
        assert (refused["code"], refused["message"]) == (-32002, "no server has this resource")
        assert "error" in gateway.ask("resources/subscribe", uri="indus://one/note:///today")
    with serving("--view", "small", "--profile", "none", cwd=tmp_path) as gateway:
        instructions = gateway.greet()["instructions"]
        assert "'two'" in instructions
        assert "'one'" not in instructions
    shown = run("serve", "--dry-run", "--view", "small", "--profile", "none", cwd=tmp_path).stdout
    assert [line.split()[:4] for line in shown.splitlines() if line.startswith("hello ")] == [
        ["hello", "two", "two__greet", "Ours."]
    ]
    assert "2 resources, 1 template, 1 prompt" in shown
    assert "indus://one/" not in shown
