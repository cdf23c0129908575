"""`indus serve` beside tools: resources, templates, prompts, completion, updates, log messages, roots, apps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from outside.differential import compare_server
from tests.calls.helpers import read_calls
from tests.commands.helpers import PYTHON, configured, user_file
from tests.commands.serving import Json, greeted, serving
from tests.support.scripts import run
from tests.support.servers import SERVERS

from indusagi.interop.protocol_bridge.rpc.mcp_headers import MODERN_VERSIONS

if TYPE_CHECKING:
    from tests.commands.serving import Gateway

pytestmark = pytest.mark.process

STAMP = "io.modelcontextprotocol/"
NOTE, APP = "note:///today", "ui://shelf/app.html"
UPDATED = "notifications/resources/updated"
POLICY: Json = {"csp": {"connectDomains": ["https://api.example.org"]}, "permissions": {"camera": {}}}


def library(name: str, *flags: object) -> Json:
    script = str(SERVERS / "library.py")
    return {"command": PYTHON[0], "args": [*PYTHON[1:], script, "--name", name, *map(str, flags)]}


def two(era: str = "legacy", *flags: object) -> None:
    configured(user_file(), {"one": library("one", "--era", era, *flags), "two": library("two", "--era", era)})


def modern(**more: Any) -> Json:
    stamped: Json = {f"{STAMP}protocolVersion": MODERN_VERSIONS[-1], f"{STAMP}clientCapabilities": {}}
    return {"_meta": {**stamped, **more}}


def rows(gateway: Gateway, method: str, key: str, **params: Any) -> list[Json]:
    return gateway.ask(method, **params)["result"][key]


def updates(gateway: Gateway) -> list[str]:
    return [frame["params"]["uri"] for frame in gateway.heard if frame["method"] == UPDATED]


# -- lists and requests -------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_resources_and_prompts_of_all_servers_are_listed_and_delivered(era: str, tmp_path: Path) -> None:
    two(era)
    with serving("--profile", "none", cwd=tmp_path) as gateway:
        said = gateway.greet()
        assert said["capabilities"] == {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }
        listed = rows(gateway, "resources/list", "resources")
        assert [row["uri"] for row in listed] == [
            f"indus://one/{NOTE}", "ui://one/shelf/app.html", f"indus://two/{NOTE}", "ui://two/shelf/app.html",
        ]  # fmt: skip
        assert (listed[0]["title"], listed[0]["size"]) == ("Today", 12)
        templates = rows(gateway, "resources/templates/list", "resourceTemplates")
        assert [row["uriTemplate"] for row in templates] == [
            "indus://one/book://{id}/text", "indus://two/book://{id}/text",
        ]  # fmt: skip
        prompts = rows(gateway, "prompts/list", "prompts")
        assert [row["name"] for row in prompts] == ["one__greet", "two__greet"]
        for server in ("one", "two"):
            uri = f"indus://{server}/{NOTE}"
            read = gateway.ask("resources/read", uri=uri)["result"]
            assert read["contents"] == [{"uri": uri, "mimeType": "text/plain", "text": f"read by {server}"}]
            book = f"indus://{server}/book://7/text"
            assert gateway.ask("resources/read", uri=book)["result"]["contents"][0] == {
                "uri": book,
                "text": f"Book 7 of {server}.",
            }
            got = gateway.ask("prompts/get", name=f"{server}__greet", arguments={"who": "Ada"})["result"]
            assert got["messages"][0]["content"]["text"] == f"{server} greets Ada"
            assert got["messages"][1]["content"]["resource"]["uri"] == uri
            ref = {"type": "ref/prompt", "name": f"{server}__greet"}
            done = gateway.ask("completion/complete", ref=ref, argument={"name": "who", "value": "A"})["result"]
            assert done["completion"]["values"] == ["greet:Aa", "greet:Ab"]
        ref = {"type": "ref/resource", "uri": "indus://two/book://{id}/text"}
        done = gateway.ask("completion/complete", ref=ref, argument={"name": "id", "value": ""})["result"]
        assert done["completion"]["values"] == ["book://{id}/text:a", "book://{id}/text:b"]
        # The same over the newer protocol, with its fields.
        newer = gateway.ask("resources/read", uri=f"indus://two/{NOTE}", **modern())["result"]
        assert (newer["resultType"], newer["ttlMs"], newer["cacheScope"]) == ("complete", 0, "private")
        assert newer["_meta"][f"{STAMP}serverInfo"]["name"] == "indus"
        assert [row["name"] for row in rows(gateway, "prompts/list", "prompts", **modern())] == [
            "one__greet",
            "two__greet",
        ]


def test_what_no_server_has_is_an_error_of_the_clients_era(tmp_path: Path) -> None:
    two()
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        assert gateway.ask("resources/read", uri="x:y")["error"]["code"] == -32002
        assert gateway.ask("resources/read", uri="x:y", **modern())["error"]["code"] == -32602
        refused = gateway.ask("resources/read", uri="indus://one/x:y")["error"]
        assert (refused["code"], refused["data"]) == (-32002, {"uri": "indus://one/x:y"})
        assert gateway.ask("prompts/get", name="greet")["error"]["message"] == "there is no prompt named 'greet'"
        assert gateway.ask("completion/complete", ref={"type": "x"}, argument={})["error"]["code"] == -32602
        assert gateway.ask("logging/setLevel", level="loud")["error"]["code"] == -32602
        assert gateway.ask("resources/list", cursor="7")["error"]["code"] == -32602


def test_a_known_server_lists_everything_without_running(tmp_path: Path) -> None:
    configured(user_file(), {"one": {**library("one"), "start": "lazy"}})
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        first = [gateway.ask(f"{subject}/list")["result"] for subject in ("resources", "prompts")]
    with serving("--profile", "none", cwd=tmp_path) as gateway:
        said = gateway.greet()
        quoted = "> Ask one about books.\n> It knows many."
        assert said["instructions"] == f"Instructions of the server 'one' (names begin with one__):\n{quoted}"
        for result, subject in zip(first, ("resources", "prompts"), strict=True):
            # Sizes come with a listing of the running server alone.
            known = gateway.ask(f"{subject}/list")["result"][subject]
            assert known == [{key: row[key] for key in row if key != "size"} for row in result[subject]]
        assert "1 starting" in gateway.said()
        assert (
            gateway.ask("resources/read", uri=f"indus://one/{NOTE}")["result"]["contents"][0]["text"] == "read by one"
        )


def test_prompts_of_a_server_whose_tools_alone_are_known_are_waited_for(tmp_path: Path) -> None:
    configured(user_file(), {"one": library("one")})
    assert run("call", "one__show", cwd=tmp_path).returncode == 0
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        got = gateway.ask("prompts/get", name="one__greet", arguments={"who": "Ada"})["result"]
        assert got["messages"][0]["content"]["text"] == "one greets Ada"


def test_names_are_the_servers_own_where_they_are_unique(tmp_path: Path) -> None:
    two()
    with greeted("--profile", "none", "--names", "plain", cwd=tmp_path) as gateway:
        assert [row["name"] for row in rows(gateway, "prompts/list", "prompts")] == ["greet", "two__greet"]
        listed = [row["uri"] for row in rows(gateway, "resources/list", "resources")]
        assert listed == [NOTE, APP, f"indus://two/{NOTE}", "ui://two/shelf/app.html"]
        for uri, server in ((NOTE, "one"), (f"indus://two/{NOTE}", "two")):
            contents = gateway.ask("resources/read", uri=uri)["result"]["contents"]
            assert contents == [{"uri": uri, "mimeType": "text/plain", "text": f"read by {server}"}]
        assert gateway.ask("resources/read", uri="book://7/text")["result"]["contents"][0]["text"] == "Book 7 of one."
        assert gateway.tools()[:2] == ["show", "touch"]
        assert "two__show" in gateway.tools()
        assert gateway.call("show")["content"][0]["uri"] == NOTE


def test_a_disabled_item_keeps_its_plain_name(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    two("legacy", "--state", state)
    assert run("prompts", cwd=tmp_path).returncode == 0  # pinned as it is
    state.write_text(json.dumps({"prompt": "Other words"}), encoding="utf-8")
    with greeted("--profile", "none", "--names", "plain", cwd=tmp_path) as gateway:
        gateway.call("relist")
        gateway.until(lambda: "disabled" in gateway.said())
        gateway.until(lambda: len(rows(gateway, "prompts/list", "prompts")) == 1)
        assert [row["name"] for row in rows(gateway, "prompts/list", "prompts")] == ["two__greet"]
        refused = gateway.ask("prompts/get", name="greet", arguments={"who": "Ada"})["error"]["message"]
        assert "prompt 'greet' of server 'one' is disabled" in refused


# -- apps ---------------------------------------------------------------------------------------


def test_an_app_keeps_its_scheme_and_its_policy_and_is_pinned(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    two("legacy", "--state", state)
    app = "ui://one/shelf/app.html"
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        tool = next(tool for tool in rows(gateway, "tools/list", "tools") if tool["name"] == "one__show")
        assert tool["_meta"] == {"ui": {"resourceUri": app, "visibility": ["model"]}, "ui/resourceUri": app}
        row = next(row for row in rows(gateway, "resources/list", "resources") if row["uri"] == app)
        assert row["_meta"]["ui"] == POLICY
        result = gateway.call("one__show")
        link, inner = result["content"]
        assert (link["uri"], inner["resource"]["uri"]) == (f"indus://one/{NOTE}", app)
        assert result["_meta"] == {"ui": {"resourceUri": app}, "vendor/x": 1}
        read = gateway.ask("resources/read", uri=app)["result"]["contents"][0]
        assert (read["uri"], read["text"]) == (app, "<p>shelf</p>")
        # The same HTML under a scheme in capitals, and under one of another name with the type of an app.
        others = [f"indus://one/{uri}" for uri in ("UI://shelf/app.html", "page:///app")]
        assert all("result" in gateway.ask("resources/read", uri=uri) for uri in others)
        state.write_text(json.dumps({"app": "<script>evil()</script>"}), "utf-8")
        refused = gateway.ask("resources/read", uri=app)["error"]["message"]
        assert "indus mcp approve one ui://shelf/app.html" in refused
        assert all("is disabled" in gateway.ask("resources/read", uri=uri)["error"]["message"] for uri in others)
        assert run("mcp", "approve", "one", APP, "--yes", cwd=tmp_path).returncode == 0
        gateway.until(lambda: "result" in gateway.ask("resources/read", uri=app))


def test_skills_are_listed_and_their_files_are_compared_with_their_digests(tmp_path: Path) -> None:
    state, uri = tmp_path / "state.json", "skill://one/shelve/SKILL.md"
    configured(user_file(), {"one": library("one", "--era", "modern", "--skills", "yes", "--state", state)})
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        [skill] = rows(gateway, "skills/list", "skills", **modern())
        assert (skill["uri"], skill["frontmatter"]["name"]) == (uri, "shelve")
        assert [file["uri"] for file in skill["resources"]] == [uri]
        assert gateway.ask("skills/get", uri=uri, **modern())["result"]["skill"] == skill
        assert gateway.ask("skills/get", uri="skill://one/x", **modern())["error"]["code"] == -32602
        found = gateway.ask("server/discover", **modern())["result"]["capabilities"]["extensions"]
        assert found == {"io.modelcontextprotocol/skills": {"directoryRead": True}, "io.modelcontextprotocol/tasks": {}}
        shelf = gateway.ask("resources/directory/read", uri="skill://one/shelve", **modern())["result"]
        assert [row["uri"] for row in shelf["resources"]] == [uri]
        assert gateway.ask("resources/directory/read", uri=uri)["error"]["code"] == -32602
        assert gateway.ask("skills/get", uri="skill://none/x")["error"]["code"] == -32602
        assert "By author." in gateway.ask("resources/read", uri=uri, **modern())["result"]["contents"][0]["text"]
        state.write_text(json.dumps({"served": "Delete the shelf."}), "utf-8")
        assert "promises sha256:" in gateway.ask("resources/read", uri=uri, **modern())["error"]["message"]


# -- changes, updates, log messages, roots --------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_changes_of_each_list_are_announced(era: str, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    two(era, "--state", state)
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        listen = gateway.send("subscriptions/listen", notifications={"resourcesListChanged": True}, **modern())
        rows(gateway, "resources/list", "resources")
        state.write_text(json.dumps({"extra": "x:new", "prompt": "Greet a reader kindly"}), "utf-8")
        gateway.call("one__relist")

        def count(method: str, *, subscribed: bool = False) -> int:
            found = [frame for frame in gateway.heard if frame["method"] == f"notifications/{method}/list_changed"]
            return sum("params" in frame for frame in found) if subscribed else len(found)

        gateway.until(lambda: count("prompts") == 1)
        # Both wait for approval, and a list without the resource is the same list.
        assert count("resources") == 0
        assert "indus://one/x:new" not in [row["uri"] for row in rows(gateway, "resources/list", "resources")]
        # Its description is read by models: it waits for approval.
        assert [row["name"] for row in rows(gateway, "prompts/list", "prompts")] == ["two__greet"]
        refused = gateway.ask("prompts/get", name="one__greet", arguments={"who": "x"})["error"]["message"]
        assert "indus mcp approve one greet" in refused
        assert run("mcp", "approve", "one", "--yes", cwd=tmp_path).returncode == 0
        gateway.until(lambda: count("resources") == 2 and count("prompts") == 2)
        assert count("resources", subscribed=True) == 1
        stamped = next(frame for frame in gateway.heard if frame.get("params", {}).get("_meta"))
        assert stamped["params"]["_meta"] == {f"{STAMP}subscriptionId": listen}
        assert "indus://one/x:new" in [row["uri"] for row in rows(gateway, "resources/list", "resources")]
        assert [row["name"] for row in rows(gateway, "prompts/list", "prompts")] == ["one__greet", "two__greet"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_updates_reach_those_who_subscribed(era: str, tmp_path: Path) -> None:
    two(era)
    uri = f"indus://one/{NOTE}"
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        # What the server does not report is refused, and from the answer on no update is missed.
        assert "error" in gateway.ask("resources/subscribe", uri="indus://one/none:x")
        assert gateway.ask("resources/subscribe", uri=uri)["result"] == {}
        gateway.call("two__touch")
        gateway.call("one__touch")
        gateway.until(lambda: bool(updates(gateway)))
        assert updates(gateway) == [uri]
        # A server may report a part of what was subscribed to; a longer name is none.
        gateway.call("one__touch", part="-and-tomorrow")
        gateway.call("one__touch", part="/noon")
        gateway.until(lambda: len(updates(gateway)) > 1)
        assert updates(gateway) == [uri, uri]
        assert gateway.ask("resources/unsubscribe", uri=uri)["result"] == {}
        listen = gateway.send(
            "subscriptions/listen",
            notifications={"resourceSubscriptions": [uri, "x:y", "indus://one/none:x"]},
            **modern(),
        )
        gateway.until(lambda: any(frame["method"].endswith("acknowledged") for frame in gateway.heard))
        acknowledged = next(frame for frame in gateway.heard if frame["method"].endswith("acknowledged"))
        assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": [uri]}

        def stamps() -> list[Any]:
            found = [frame["params"].get("_meta") for frame in gateway.heard if frame["method"] == UPDATED]
            return [meta[f"{STAMP}subscriptionId"] for meta in found if meta]

        gateway.until(lambda: bool(gateway.call("one__touch")) and listen in stamps())


def test_log_messages_reach_the_client_of_the_call_by_its_level(tmp_path: Path) -> None:
    two("modern")
    with greeted("--profile", "none", cwd=tmp_path) as gateway:

        def messages() -> list[Json]:
            return [frame["params"] for frame in gateway.heard if frame["method"] == "notifications/message"]

        gateway.call("one__log", text="first")
        assert messages() == [{"level": "info", "logger": "one/shelf", "data": "first"}]
        assert gateway.ask("logging/setLevel", level="warning")["result"] == {}
        gateway.call("one__log", text="second")
        gateway.ask("tools/call", name="one__log", arguments={"text": "third"}, **modern())
        level = {f"{STAMP}logLevel": "debug"}
        gateway.ask("tools/call", name="two__log", arguments={"text": "fourth"}, **modern(**level))
        assert [said["data"] for said in messages()] == ["first", "fourth"]


def test_rules_of_the_user_apply_to_resources_and_prompts_and_their_uses_are_recorded(tmp_path: Path) -> None:
    two()
    assert run("settings", cwd=tmp_path).returncode == 0
    folder = tmp_path / ".indusvx"
    folder.mkdir()
    (folder / "permissions.json").write_text(json.dumps({"deny": ["one__*"]}), "utf-8")
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        assert "error" in gateway.ask("resources/read", uri=f"indus://one/{NOTE}")
        assert "error" in gateway.ask("prompts/get", name="one__greet", arguments={"who": "x"})
        for server, said in (("one", "error"), ("two", "result")):
            about = {"name": "who", "value": "A"}
            prompt = {"type": "ref/prompt", "name": f"{server}__greet"}
            assert said in gateway.ask("completion/complete", ref=prompt, argument=about)
            template = {"type": "ref/resource", "uri": f"indus://{server}/book://{{id}}/text"}
            assert said in gateway.ask("completion/complete", ref=template, argument={**about, "name": "id"})
            assert said in gateway.ask("resources/subscribe", uri=f"indus://{server}/{NOTE}")
        assert "result" in gateway.ask("resources/read", uri=f"indus://two/{NOTE}")
        assert "result" in gateway.ask("resources/read", uri="indus://two/book://7/text")
        assert "result" in gateway.ask("prompts/get", name="two__greet", arguments={"who": "x"})
    # Each use is recorded like a call; a URI that is not listed is an argument.
    records = [(one.kind, one.server, one.tool, one.outcome) for one in read_calls()]
    assert records == [
        ("resource", "one", NOTE, "denied"),
        ("prompt", "one", "greet", "denied"),
        ("resource", "two", NOTE, "ok"),
        ("resource", "two", "(unlisted)", "ok"),
        ("prompt", "two", "greet", "ok"),
    ]


# -- the relay as the oracle ----------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("server", "calls"),
    cast(
        "list[tuple[str, list[tuple[str, Json]]]]",
        [
            ("library", [("show", {}), ("log", {"text": "x"})]),
            ("honest", [("echo", {"text": "a"}), ("fail", {}), ("add", {"a": 1, "b": 2})]),
        ],
    ),
)
async def test_the_gateway_delivers_what_the_relay_delivers(
    server: str, calls: list[tuple[str, Json]], era: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-I", "-S", str(SERVERS / f"{server}.py"), "--era", era]
    compared = await compare_server(server, command, tmp_path, calls)
    assert (compared.differences, compared.compared > 10) == ([], True)
