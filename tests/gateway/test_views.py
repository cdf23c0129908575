"""Views of a gateway: each client sees its own tools, under its own names, and can call no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import httpx2
import pytest
from tests.commands.helpers import configured, row, user_file, write_views
from tests.commands.serving import greeted
from tests.support.scripts import run
from tests.support.searched import SearchableTools

from indusagi.interop import HttpSettings, create_provider_host
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.runtime.calls import CallingClient
from indusagi.runtime.contract import ToolBox, ToolCall, ToolDescriptor
from induscode.commands import program
from induscode.gateway.view_box import GatewayViews, ViewBox, read_view_tokens
from induscode.launch.views import View, find_view, parse_views

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio


class Box(SearchableTools):
    """Tools of two servers and a native one; `git__gone` is disabled."""

    def __init__(self) -> None:
        super().__init__(
            [
                ToolDescriptor("read", "Read.", {}, annotations={"readOnlyHint": True}),
                remote("git__log", readOnlyHint=True),
                remote("git__push"),
                remote("web__get", readOnlyHint=True),
            ]
        )

    def answers_unlisted(self, name: str) -> bool:
        return name == "git__gone"


def remote(name: str, **hints: bool) -> ToolDescriptor:
    definition: JsonObject = {"name": name, "description": "Raw.", "inputSchema": {}, "annotations": {**hints}}
    return ToolDescriptor(name, "Shown.", {"type": "object"}, definition=definition)


def names(view: View) -> list[str]:
    return [descriptor.name for descriptor in ViewBox(Box(), view).descriptors()]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["read", "git__log", "git__push", "web__get"]),
        ({"servers": ["git"]}, ["git__log", "git__push"]),
        ({"servers": ["native", "w*"]}, ["read", "web__get"]),
        ({"tools": ["*__l*", "w*t", "read"]}, ["read", "git__log", "web__get"]),
        ({"tools": ["git__lo?", "git__[l]og"]}, []),
        ({"prompts": ["*"]}, []),
        ({"read_only": True}, ["read", "git__log", "web__get"]),
        ({"servers": []}, []),
        ({"rename": {"git__log": "history"}}, ["read", "history", "git__push", "web__get"]),
        ({"rename": {"git__log": "git__push"}}, ["read", "git__log", "git__push", "web__get"]),
        ({"tools": ["git__log"], "rename": {"git__log": "web__get"}}, ["git__log"]),
    ],
)
def test_a_view_shows_what_its_fields_say(fields: JsonObject, expected: list[str]) -> None:
    assert names(parse_views({"v": fields})["v"]) == expected


async def test_a_hidden_tool_is_unknown_and_a_renamed_one_is_called_by_its_own_name() -> None:
    inner = Box()
    box = ViewBox(inner, View(name="v", servers=("git",), rename={"git__log": "history"}))
    for name in ("web__get", "read", "git__log", "nothing"):
        outcome = await box.run(ToolCall("1", name, {}))
        assert outcome.details["code"] == "unknown_tool"
    assert (await box.run(ToolCall("1", "history", {}))).structured == {"called": "git__log"}
    assert box.find_server("history") == "git"
    assert [call.name for call in inner.called] == ["git__log"]


async def test_a_disabled_tool_says_why_only_where_it_would_be_shown() -> None:
    shown, hidden = ViewBox(Box(), View(name="v", servers=("git",))), ViewBox(Box(), View(name="v", servers=("web",)))
    assert (shown.answers_unlisted("git__gone"), hidden.answers_unlisted("git__gone")) == (True, False)
    assert (await shown.run(ToolCall("1", "git__gone", {}))).structured == {"called": "git__gone"}


async def test_finding_x3_a_read_only_view_passes_on_no_call_of_a_disabled_tool() -> None:
    # It may be approved by the time the call arrives, and nobody knows whether it only reads.
    inner = Box()
    box = ViewBox(inner, View(name="v", read_only=True))
    assert not box.answers_unlisted("git__gone")
    assert (await box.run(ToolCall("1", "git__gone", {}))).details["code"] == "unknown_tool"
    assert [call.name for call in inner.called] == []


async def test_a_disabled_tool_says_why_under_the_name_of_the_view_alone() -> None:
    inner = Box()
    box = ViewBox(inner, View(name="v", rename={"git__gone": "lost", "web__gone": "git__gone"}))
    assert [box.answers_unlisted(name) for name in ("lost", "git__gone", "web__gone")] == [True, False, False]
    assert (await box.run(ToolCall("1", "lost", {}))).structured == {"called": "git__gone"}
    assert (await box.run(ToolCall("1", "git__gone", {}))).details["code"] == "unknown_tool"
    assert box.find_server("lost") == "git"
    # A name that is not given is not the name of the disabled tool either.
    kept = ViewBox(inner, View(name="v", rename={"git__gone": "read"}))
    assert (kept.answers_unlisted("git__gone"), kept.answers_unlisted("read")) == (True, False)


def test_descriptions_and_schemas_are_those_of_the_view() -> None:
    view = View(name="v", describe={"git__log": "Ours."})
    log = ViewBox(Box(), view).descriptors()[1]
    assert log.description == "Ours."
    assert log.definition is not None
    assert log.definition["description"] == "Ours."
    reduced = ViewBox(Box(), View(name="v", schemas="model", describe={"git__log": "Ours."})).descriptors()[1]
    assert (reduced.definition, reduced.description) == (None, "Ours.")


def test_the_token_comes_before_the_principal_and_the_principal_before_the_name() -> None:
    views = parse_views({"a": {"clients": ["ed*"]}, "b": {"principals": ["ada"]}, "c": {"token_env": "T"}})
    assert find_view(views, named="c", principal="ada", client="editor") is views["c"]
    assert find_view(views, principal="ada", client="editor") is views["b"]
    assert find_view(views, principal="eve", client="editor") is views["a"]
    assert find_view(views, client="other") is None


def test_tokens_are_read_from_variables_and_an_unset_one_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    views = parse_views({"a": {"token_env": "A"}, "b": {"token_env": "B"}, "c": {}})
    assert read_view_tokens(views, {"A": " secret\n"}) == {"secret": "a"}
    assert "view 'b': B is not set" in capsys.readouterr().err


def test_two_views_cannot_have_one_token() -> None:
    views = parse_views({"narrow": {"token_env": "A", "read_only": True}, "wide": {"token_env": "B"}})
    with pytest.raises(click.UsageError, match="view 'wide': the token in B is that of the view 'narrow'"):
        read_view_tokens(views, {"A": "x" * 32, "B": "x" * 32})


@pytest.mark.parametrize("token", ["short", "ü" * 40])
def test_a_token_that_no_client_could_use_is_named_with_its_view_and_variable(token: str) -> None:
    views = parse_views({"phone": {"token_env": "PHONE"}})
    assert read_view_tokens(views, {"PHONE": token})
    with pytest.raises(click.UsageError, match="view 'phone': the token in PHONE needs 32 ASCII characters or more"):
        read_view_tokens(views, {"PHONE": token}, over_http=True)


def test_a_box_is_built_again_only_after_a_change() -> None:
    boxes: list[Any] = [Box()]
    views = parse_views({"v": {}})
    viewed = GatewayViews(lambda: boxes[-1], views, forced=views["v"])
    served = viewed.choose(ClientIdentity(), CallingClient("anything"))
    assert served is not None
    assert served.content is None
    source: Any = served.box
    first = source()
    assert source() is first
    boxes.append(Box())
    assert source() is not first
    assert GatewayViews(lambda: boxes[-1], views).choose(ClientIdentity(), CallingClient()) is None


async def test_each_token_and_each_client_gets_its_own_list_over_http() -> None:
    box, one, two = Box(), "a" * 32, "b" * 32
    views = parse_views(
        {"phone": {"token_env": "T", "servers": ["web"]}, "editor": {"clients": ["ed"], "rename": {"git__log": "log"}}}
    )
    typed: ToolBox = box
    viewed = GatewayViews(lambda: typed, views)
    host = create_provider_host(lambda: typed, choose_view=viewed.choose)
    async with (
        host.serve_http(HttpSettings(tokens=(one,), view_tokens={two: "phone"}, views=viewed.list_open())) as serving,
        httpx2.AsyncClient() as http,
    ):

        async def ask(token: str, client: str, method: str, **params: Any) -> Any:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"},
            }
            headers = {
                "authorization": f"Bearer {token}",
                "accept": "application/json, text/event-stream",
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": method,
            }
            if "name" in params:
                headers["mcp-name"] = params["name"]
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
            answer = (await http.post(serving.url, json=message, headers=headers)).json()
            return answer.get("result", answer.get("error"))

        async def list_names(token: str, client: str) -> list[str]:
            return [tool["name"] for tool in (await ask(token, client, "tools/list"))["tools"]]

        assert await list_names(one, "other") == ["read", "git__log", "git__push", "web__get"]
        assert await list_names(one, "ed") == ["read", "log", "git__push", "web__get"]
        assert await list_names(two, "other") == ["web__get"]
        # A client with a view of its token cannot name itself out of it.
        assert await list_names(two, "ed") == ["web__get"]
        assert (await ask(one, "ed", "tools/call", name="log", arguments={}))["structuredContent"] == {
            "called": "git__log"
        }
        refused = await ask(two, "other", "tools/call", name="git__push", arguments={})
        assert "there is no tool named 'git__push'" in refused["message"]
    assert [call.name for call in box.called] == ["git__log"]
    assert host.find_target("tools/call", {"name": "log"}) == ("tools/call", "git")


@pytest.mark.process
def test_a_dry_run_shows_each_view_and_what_it_does_not_change(tmp_path: Path) -> None:
    write_views(
        look={"clients": ["ed*"], "read_only": True, "tools": ["ls", "read"], "rename": {"ls": "list"}},
        odd={"rename": {"absent": "x", "ls": "read", "grep": "find_tools", "find": "find it"}},
    )
    shown = run("serve", "--no-mcp", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0
    assert "view 'look': client ed*" in shown.stdout
    renamed = [line.split()[:3] for line in shown.stdout.splitlines() if line.startswith("list ")]
    assert renamed == [["list", "native", "ls"]]
    assert "2 tools" in shown.stdout
    assert "every other client:" in shown.stdout
    assert "view 'odd': it changes 'absent', which it does not show" in shown.stderr
    for name in ("ls", "grep", "find"):
        assert f"view 'odd': {name!r} keeps its name" in shown.stderr
    assert "'find it' is none for a tool: use letters, digits, _ and -, 64 at most" in shown.stderr
    assert "there is no server" not in shown.stderr
    assert "every other client" not in run("serve", "--view", "look", "--no-mcp", "--dry-run", cwd=tmp_path).stdout


@pytest.mark.process
def test_a_dry_run_starts_no_server_and_names_the_command_that_does(tmp_path: Path) -> None:
    write_views(odd={"servers": ["honset", "ho*", "native"]})
    log = tmp_path / "log"
    configured(user_file(), {"honest": row("--log", log)})
    shown = run("serve", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0
    assert "server 'honest': nothing is known of its tools: it was never started (indus tools starts" in shown.stderr
    assert "no-check" not in shown.stderr
    assert "view 'odd': there is no server 'honset'" in shown.stderr
    assert "'ho*'" not in shown.stderr
    for kind in ("prompts", "resources"):
        assert "server 'honest': nothing is known" in run(kind, "list", "--no-check", cwd=tmp_path).stderr
    assert not log.exists()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tolls": ["private"]}, "and 'tolls' is none of them.\n"),
        ({"tools": 5, "servers": ["private"]}, "of the view 'look', not 5.\n"),
    ],
)
def test_an_invalid_field_of_a_view_is_named_without_the_rest_of_the_views(
    capsys: pytest.CaptureFixture[str], fields: dict[str, Any], said: str
) -> None:
    write_views(look=fields, other={"servers": ["private"]})
    assert program.run(["serve", "--no-mcp", "--dry-run"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "private" not in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--view", "nothing"], "there is no such view; there are: look"),
        (["--dry-run", "--transparent", "x"], "--dry-run and --transparent can't be used together"),
        (["--dry-run", "--print-config", "claude"], "--dry-run and --print-config can't be used together"),
    ],
)
def test_flags_of_views_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    write_views(look={})
    assert program.run(["-C", str(tmp_path), "serve", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.process
def test_a_gateway_shows_its_client_the_named_view(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    write_views(small={"servers": ["honest"], "tools": ["honest__echo"], "rename": {"honest__echo": "say"}})
    with greeted("--view", "small", cwd=tmp_path) as gateway:
        assert gateway.until_tools(lambda tools: tools == ["say"]) == ["say"]
        assert gateway.text("say", text="hi") == "hi"
        assert "no tool named" in gateway.ask("tools/call", name="honest__add", arguments={})["error"]["message"]
