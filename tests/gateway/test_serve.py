"""`indus serve` over standard streams: what is served, what may be called, what is said of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ListToolsResult
from tests.commands.helpers import PYTHON, configured, faulty, held, one_line, project_file, row, user_file
from tests.commands.serving import CHANGED, VERSION, greeted, hello, serving, wait_for
from tests.support.forked import CONSTANTS
from tests.support.scripts import command, run, unmeasured
from tests.support.servers import HONEST_TOOLS, SERVERS, diary, fault
from tests.support.waiting import is_alive

from indusagi import __version__
from indusagi.core.text import clean_text, iter_strings
from indusagi.interop import StdioServerConfig, create_server_endpoint
from indusagi.interop.protocol_bridge.client.tools import read_tools
from indusagi.interop.protocol_bridge.host.catalog import ListingBuilder
from indusagi.interop.protocol_bridge.rpc.mcp_headers import MODERN_VERSIONS

pytestmark = pytest.mark.process

READ_ONLY = ["read", "ls", "grep", "find", "webfetch", "todo_read"]


def of(server: str) -> list[str]:
    return [f"{server}__{name}" for name in HONEST_TOOLS]


# -- what is served ---------------------------------------------------------------------------


def test_the_tools_of_all_servers_and_those_that_only_look_are_one_server(tmp_path: Path) -> None:
    configured(user_file(), {"b": row(), "a": row()})
    with serving(cwd=tmp_path) as gateway:
        said = gateway.greet()
        assert (said["serverInfo"]["name"], said["serverInfo"]["version"]) == ("indus", __version__)
        assert said["protocolVersion"] == VERSION
        assert gateway.tools() == [*READ_ONLY, *of("b"), *of("a")]
        assert gateway.text("a__echo", text="hello") == "hello"
        (tmp_path / "notes.txt").write_text("the word is pelican\n", encoding="utf-8")
        assert "pelican" in gateway.text("read", path="notes.txt")
        listed = gateway.ask("tools/list")["result"]["tools"]
        assert {tool["annotations"]["readOnlyHint"] for tool in listed[: len(READ_ONLY)]} == {True}
        lines = gateway.said().splitlines()
    assert lines == [
        "indus: serving over standard input and output as 'indus'",
        "indus: 24 tools from 2 servers (2 ready), 6 native tools",
    ]
    assert gateway.process.returncode == 0


async def test_our_own_bridge_is_a_client_like_any_other(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    config = StdioServerConfig("gateway", command(), ("serve",), cwd=str(tmp_path))
    endpoint = create_server_endpoint(config)
    await endpoint.open()
    try:
        tools = await endpoint.list_tools()
        assert [tool.ref.name for tool in tools] == [*READ_ONLY, *of("honest")]
        answer = await endpoint.invoke("honest__media", {})
        kinds = [block["type"] for block in answer.content]  # type: ignore[index,call-overload]
        assert kinds[:4] == ["text", "image", "audio", "resource_link"]
        assert (await endpoint.invoke("honest__fail", {})).is_error
        facts = endpoint.facts
        assert facts is not None
        assert facts.era == "modern"
    finally:
        await endpoint.close()


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        (["--profile", "none"], [], ["read", "write"]),
        (["--profile", "survey"], ["read", "bash", "write", "process"], ["memory", "task"]),
        (["--profile", "all"], ["read", "bash", "memory"], ["task", "saas-action", "websearch"]),
        (["--tools", "write"], ["write"], ["read"]),
        (["--tools", "read,ls", "--no-mcp"], ["read", "ls"], ["honest__echo", "grep"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_native_tools_join_as_they_are_asked_for(
    tmp_path: Path, words: list[str], there: list[str], absent: list[str]
) -> None:
    configured(user_file(), {"honest": row()})
    with greeted(*words, "--name", "mine", cwd=tmp_path) as gateway:
        tools = gateway.tools()
        assert [name for name in there if name not in tools] == []
        assert [name for name in absent if name in tools] == []
        assert ("honest__echo" in tools) == ("--no-mcp" not in words)
        assert "as 'mine'" in gateway.said()


SCRIPT = """
import json, sys
sys.argv = ["indus", "serve"]
from induscode.__main__ import main
code = main()
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""
HEAVY = {
    "mcp", "mcp_types", "pydantic", "pydantic_ai", "httpx", "httpx2", "httpcore2", "starlette",
    "uvicorn", "jsonschema", "rich", "prompt_toolkit", "openai", "anthropic",
}  # fmt: skip


def test_over_standard_streams_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    call = {"name": "honest__echo", "arguments": {"text": "x"}}
    frames = [
        hello(),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=unmeasured(),
        cwd=tmp_path,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.writelines(json.dumps(frame) + "\n" for frame in frames)
        process.stdin.flush()
        wanted = {0, 1, 2}
        while wanted:  # a server that comes late announces its tools meanwhile
            wanted.discard(json.loads(process.stdout.readline()).get("id"))
        _, errors = process.communicate(timeout=60)
    code, modules = json.loads(errors.splitlines()[-1])
    assert code == 0
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()


def test_what_servers_answer_is_passed_on_whole_and_native_tools_keep_their_budget(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    (tmp_path / "long.txt").write_text("word\n" * 40_000, encoding="utf-8")
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.text("honest__big", bytes=3_000_000) == "x" * 3_000_000
        assert len(gateway.text("grep", pattern="word")) < 60_000


def test_progress_and_cancel_reach_the_server_and_come_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"honest": row("--log", log)})
    with greeted(cwd=tmp_path) as gateway:
        slow = {"seconds": 20, "progress": 200}
        asked = gateway.send("tools/call", name="honest__slow", arguments=slow, _meta={"progressToken": "p"})
        gateway.until(lambda: "notifications/progress" in [one["method"] for one in gateway.heard])
        gateway.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": asked}})
        gateway.until(lambda: len(diary(log, "cancelled")) == 1)
        assert gateway.text("honest__echo", text="on") == "on"


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_what_a_server_asks_in_a_call_is_asked_of_the_client(tmp_path: Path, era: str) -> None:
    configured(user_file(), {"honest": row("--era", era)})
    with serving("--profile", "none", cwd=tmp_path) as gateway:
        gateway.greet(elicitation={})
        ask = {"method": "elicitation/create"}
        asked = gateway.send("tools/call", name="honest__ask", arguments=ask)
        gateway.until(lambda: bool(gateway.questions))
        (question,) = gateway.questions
        assert question["params"]["message"] == "Server 'honest' asks: What is your name?"
        given = {"action": "accept", "content": {"name": "Ada"}}
        gateway.write({"jsonrpc": "2.0", "id": question["id"], "result": given})
        assert gateway.answer(asked)["result"]["structuredContent"] == given


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_question_in_the_newer_protocol_names_its_server(tmp_path: Path, era: str) -> None:
    configured(user_file(), {"honest": row("--era", era)})
    stamped = modern(name="honest__ask", arguments={"method": "elicitation/create"})
    stamped["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"elicitation": {}}
    with serving("--profile", "none", cwd=tmp_path) as gateway:
        asked = gateway.ask("tools/call", **stamped)["result"]
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["message"] == "Server 'honest' asks: What is your name?"
        given = {"action": "accept", "content": {"name": "Ada"}}
        stamped |= {"inputResponses": {key: given}, "requestState": asked["requestState"]}
        assert gateway.ask("tools/call", **stamped)["result"]["structuredContent"] == given


# -- what may be called -----------------------------------------------------------------------


def test_what_would_be_asked_about_is_refused_with_the_flag_that_allows_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("pelican", encoding="utf-8")
    inside = tmp_path / "work"
    inside.mkdir()
    with greeted("--profile", "all", cwd=inside) as gateway:
        for name, arguments in (
            ("read", {"path": str(outside)}),
            ("webfetch", {"url": "https://example.org/"}),
            ("write", {"path": "new.txt", "content": "x"}),
            ("bash", {"command": "touch new.txt"}),
        ):
            answer = gateway.call(name, **arguments)
            assert answer["isError"]
            assert "this run cannot ask the user" in answer["content"][0]["text"]
            assert "--allow" in answer["content"][0]["text"]
        assert not (inside / "new.txt").exists()
    rules = ["--allow", f"read({outside})", "--approval", "auto-edit", "--profile", "survey"]
    with greeted(*rules, cwd=inside) as gateway:
        assert "pelican" in gateway.text("read", path=str(outside))
        assert not gateway.call("write", path="new.txt", content="x")["isError"]
    assert (inside / "new.txt").read_text(encoding="utf-8") == "x"


def test_rules_of_the_user_hold_for_tools_of_servers_too(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    state = Path(os.environ["HOME"]) / ".local" / "state" / "indus"
    state.mkdir(parents=True, mode=0o700)
    rules = state / "permissions.json"
    kept = [{"effect": "deny", "rule": "honest__add"}, {"effect": "ask", "rule": "honest__pid"}]
    rules.write_text(json.dumps({"version": 1, "rules": kept}), encoding="utf-8")
    rules.chmod(0o600)
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.text("honest__echo", text="free") == "free"
        denied = gateway.call("honest__add", a=1, b=2)
        assert denied["isError"]
        assert "it is denied" in denied["content"][0]["text"]
        asked = gateway.call("honest__pid")
        assert asked["isError"]
        assert "this run cannot ask the user" in asked["content"][0]["text"]


def test_rules_of_the_project_hold_for_tools_of_servers_too(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    rules = tmp_path / ".indusvx" / "permissions.json"
    rules.parent.mkdir()
    rules.write_text('{"deny": ["honest__add", "read(*.pem)"]}', encoding="utf-8")
    (tmp_path / "a.pem").write_text("x", encoding="utf-8")
    with greeted("--profile", "authoring", cwd=tmp_path) as gateway:
        assert gateway.text("honest__echo", text="free") == "free"
        for name, arguments in (("honest__add", {"a": 1, "b": 2}), ("read", {"path": "a.pem"})):
            denied = gateway.call(name, **arguments)
            assert denied["isError"]
            assert "it is denied" in denied["content"][0]["text"]


def test_a_server_of_the_project_waits_for_consent_and_comes_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(project_file(tmp_path), {"theirs": row("--log", log)})
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.tools() == READ_ONLY
        assert "it isn't trusted yet" in gateway.said()
        assert "indus mcp trust theirs" in gateway.said()
        assert not log.exists()
        assert run("mcp", "trust", "--yes", "theirs", cwd=tmp_path).returncode == 0
        assert gateway.until_tools(lambda tools: "theirs__echo" in tools) == [*READ_ONLY, *of("theirs")]
        assert gateway.text("theirs__echo", text="in") == "in"
        assert run("mcp", "untrust", "theirs", cwd=tmp_path).returncode == 0
        gateway.until_tools(lambda tools: tools == READ_ONLY)
        gateway.until(lambda: not any(is_alive(int(pid)) for pid in diary(log, "start")))


# -- servers that are late, fail or change ----------------------------------------------------


def test_what_is_known_of_a_server_is_listed_before_it_is_up(tmp_path: Path) -> None:
    configured(user_file(), {"late": held(tmp_path / "hold")})
    assert "late__echo" in run("tools", cwd=tmp_path).stdout
    (tmp_path / "hold").touch()
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.tools() == [*READ_ONLY, *of("late")]
        assert "from 1 server (1 starting)" in gateway.said()
        asked = gateway.send("tools/call", name="late__echo", arguments={"text": "now"})
        (tmp_path / "hold").unlink()
        assert gateway.answer(asked)["result"]["content"][0]["text"] == "now"


def test_a_server_that_takes_long_is_waited_for_a_while_and_then_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, "induscode.gateway.gateway:FIRST_S", 0.1)
    (tmp_path / "hold").touch()
    configured(user_file(), {"late": held(tmp_path / "hold"), "quick": row()})
    with greeted(cwd=tmp_path) as gateway:
        assert not {*gateway.tools()} & {*of("late")}
        gateway.until_tools(lambda tools: tools == [*READ_ONLY, *of("quick")])
        (tmp_path / "hold").unlink()
        assert gateway.until_tools(lambda tools: "late__echo" in tools) == [*READ_ONLY, *of("late"), *of("quick")]
        assert CHANGED in [said["method"] for said in gateway.heard]


def test_a_call_of_a_server_that_is_starting_for_the_first_time_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, "induscode.gateway.gateway:FIRST_S", 0.1)
    (tmp_path / "hold").touch()
    configured(user_file(), {"late": held(tmp_path / "hold")})
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.tools() == READ_ONLY
        asked = gateway.send("tools/call", name="late__echo", arguments={"text": "now"})
        wrong = gateway.send("tools/call", name="late__nothing", arguments={})
        other = gateway.send("tools/call", name="later__echo", arguments={})
        assert "no tool named 'later__echo'" in gateway.answer(other)["error"]["message"]
        (tmp_path / "hold").unlink()
        assert gateway.answer(asked)["result"]["content"][0]["text"] == "now"
        assert gateway.answer(wrong)["result"]["isError"]


def test_finding_a14_a_server_that_never_came_up_does_not_delay_the_first_list_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hold").touch()
    configured(user_file(), {"late": held(tmp_path / "hold"), "quick": row()})
    with monkeypatch.context() as short:
        short.setitem(CONSTANTS, "induscode.gateway.gateway:FIRST_S", 0.1)
        with greeted(cwd=tmp_path) as gateway:
            gateway.until_tools(lambda tools: tools == [*READ_ONLY, *of("quick")])
    monkeypatch.setitem(CONSTANTS, "induscode.gateway.gateway:FIRST_S", 600.0)
    with greeted(cwd=tmp_path) as gateway:  # it would wait for longer than the test may take
        assert gateway.tools() == [*READ_ONLY, *of("quick")]
        (tmp_path / "hold").unlink()
        gateway.until_tools(lambda tools: "late__echo" in tools)


def test_a_gateway_waits_for_a_server_whose_start_the_gateway_before_it_did_not_finish(tmp_path: Path) -> None:
    """The TypeScript SDK asks a first gateway for its protocol, ends it, and goes on with a second one."""
    hold, started = tmp_path / "hold", tmp_path / "started"
    hold.touch()
    late = held(hold)
    late["args"][-1] = f"touch {shlex.quote(str(started))}; {late['args'][-1]}"
    configured(user_file(), {"late": late})
    with greeted(cwd=tmp_path) as gateway:
        gateway.until(started.exists)
    started.unlink()
    with greeted(cwd=tmp_path) as gateway:
        asked = gateway.send("tools/list")
        gateway.until(started.exists)
        hold.unlink()
        tools = gateway.answer(asked)["result"]["tools"]
    assert [tool["name"] for tool in tools] == [*READ_ONLY, *of("late")]


def test_a_call_waits_for_the_next_try_of_a_server_that_failed_at_first(tmp_path: Path) -> None:
    hold, tried = tmp_path / "hold", tmp_path / "tried"
    hold.touch()
    late = held(hold)
    file = shlex.quote(str(tried))
    # A first try starts it twice: a server may have exited at a request of the newer protocol.
    late["args"][-1] = f"echo try >> {file}; test $(wc -l < {file}) -le 2 && exit 1; {late['args'][-1]}"
    configured(user_file(), {"late": late})
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.tools() == READ_ONLY
        gateway.until(lambda: len(tried.read_text("utf-8").split()) == 3)
        asked = gateway.send("tools/call", name="late__echo", arguments={"text": "now"})
        assert gateway.ask("ping")["result"] == {}
        hold.unlink()
        assert gateway.answer(asked)["result"]["content"][0]["text"] == "now"


def test_tools_that_stay_the_same_are_not_announced_to_a_client_that_listed_none(tmp_path: Path) -> None:
    """The Python SDK fails if it's told anything while it closes a session, however short that was."""
    configured(user_file(), {"honest": row()})
    assert "honest__echo" in run("tools", cwd=tmp_path).stdout
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.ask("resources/list")["result"]["resources"]
        gateway.listen(0.5)
        assert "notifications/tools/list_changed" not in [frame["method"] for frame in gateway.heard]


def test_a_server_that_fails_is_told_and_takes_nothing_with_it(tmp_path: Path) -> None:
    configured(user_file(), {"dies": faulty("exits"), "gone": {"command": "no-such-command"}, "ok": row()})
    with greeted(cwd=tmp_path) as gateway:
        assert gateway.tools() == [*READ_ONLY, *of("ok")]
        assert "API_KEY is missing" in gateway.said()
        assert "indus mcp doctor gone" in gateway.said()
        wait_for(lambda: "from 3 servers (1 ready, 2 failed)" in gateway.said())


def test_a_required_server_that_is_not_there_is_the_end(tmp_path: Path) -> None:
    configured(user_file(), {"gone": {"command": "no-such-command", "required": True}})
    done = run("serve", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "required and not ready: gone" in done.stderr


def test_a_killed_server_keeps_its_tools_and_comes_back(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    with greeted(cwd=tmp_path) as gateway:
        first = gateway.call("honest__pid")["structuredContent"]["pid"]
        os.kill(first, 9)
        assert gateway.tools() == [*READ_ONLY, *of("honest")]
        again: dict[str, Any] = {"isError": True}
        while again["isError"]:
            again = gateway.call("honest__pid")
        assert again["structuredContent"]["pid"] != first


def test_a_definition_that_changes_is_taken_out_and_told(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    with greeted(cwd=tmp_path) as gateway:
        gateway.call("honest__mutate", kind="describe")
        left = gateway.until_tools(lambda tools: bool(tools) and len(tools) < len(READ_ONLY) + len(HONEST_TOOLS))
        (missing,) = {*READ_ONLY, *of("honest")} - {*left}
        gateway.until(lambda: "is not the one that was approved" in gateway.said())
        answer = gateway.call(missing)
        assert answer["isError"]
        assert "indus mcp approve honest" in answer["content"][0]["text"]


def test_a_call_of_a_disabled_tool_by_its_plain_name_reaches_no_other_server(tmp_path: Path) -> None:
    configured(user_file(), {"one": row(), "two": row()})
    with greeted("--profile", "none", "--names", "plain", cwd=tmp_path) as gateway:
        before = gateway.tools()
        gateway.call("mutate", kind="describe")
        left = gateway.until_tools(lambda tools: bool(tools) and len(tools) < len(before))
        (missing,) = {*before} - {*left}
        assert f"two__{missing}" in left
        answer = gateway.call(missing)
        assert answer["isError"]
        assert "of server 'one' is disabled" in answer["content"][0]["text"]
        assert "indus mcp approve one" in answer["content"][0]["text"]


def test_what_a_server_lists_beyond_the_most_is_told(tmp_path: Path) -> None:
    configured(user_file(), {"many": row("--tools", 1_000)})
    told = f"more than 1,000; {len(HONEST_TOOLS):,} were left out"
    for _ in ("never seen", "from the ledger"):
        with greeted("--profile", "none", "--search", "off", cwd=tmp_path) as gateway:
            assert len(gateway.tools()) == 1_000
            gateway.until(lambda gateway=gateway: told in gateway.said())
            assert gateway.said().count("were left out") == 1


NAMELESS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "odd", "version": "1"}},
        "tools/list": {"tools": [{"name": f"t {n}", "inputSchema": n} for n in range(40)]},
    }
    said = answers.get(asked["method"])
    rest = {"result": said} if said else {"error": {"code": -32601, "message": "no"}}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **rest}), flush=True)
"""


def test_of_many_remarks_on_one_server_the_first_few_are_told(tmp_path: Path) -> None:
    configured(user_file(), {"odd": {"command": sys.executable, "args": ["-c", NAMELESS]}})
    with greeted("--profile", "none", cwd=tmp_path) as gateway:
        gateway.until(lambda: "further remarks" in gateway.said())
        assert gateway.said().count("server 'odd'") == 21


# -- misuse -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--stdio", "--http"], ["can't be used together"]),
        (["--http", "nonsense"], ["HOST:PORT"]),
        (["--http", "127.0.0.1:70000"], ["HOST:PORT"]),
        (["--http", "[]:7332"], ["HOST:PORT"]),
        (["--http", "[127.0.0.1]:7332"], ["neither the name of a host nor an address"]),
        (["--http", "[::1%a/b]:7332"], ["HOST:PORT"]),
        (["--http", "0:7332"], ["neither the name of a host nor an address"]),
        (["--http", "127.1:7332"], ["neither the name"]),
        (["--http", "0x7f000001:7332"], ["neither the name"]),
        (["--http", "evil.example/x?y#:80"], ["neither the name"]),
        (["--http", 'a"b:80'], ["neither the name"]),
        (["--http", "a..b:80"], ["neither the name"]),
        (["--http", "a-:80"], ["neither the name"]),
        (["--http", f"{'a' * 64}:80"], ["neither the name"]),
        (["--http", "0.0.0.0:0", "--no-token"], ["--no-token", "0.0.0.0"]),
        (["--no-token"], ["requires --http"]),
        (["--allowed-host", "a:1"], ["requires --http"]),
        (["--allowed-origin", "http://a"], ["requires --http"]),
        (["--sessions", "9"], ["--max-sessions requires --http"]),
        (["--max-connections", "9"], ["--max-connections requires --http"]),
        (["--max-requests", "9"], ["--max-requests requires --http"]),
        (["--max-requests-per-token", "9"], ["requires --http"]),
        (["--http", "--max-connections", "0"], ["--max-connections"]),
        (["--http", "--max-requests", "many"], ["--max-requests"]),
        (["--http", "--max-requests-per-token", "-1"], ["--max-requests-per-token"]),
        (["--http", "--sessions", "0"], ["--sessions"]),
        (["--http", "--transparent", "x", "--sessions", "17"], ["16 at most"]),
        (["--profile", "everything"], ["read-only", "coding"]),
        (["--name", "two words"], ["--name"]),
        (["--name", ""], ["--name"]),
        (["--tools", "raed"], ["read"]),
        (["--mcp", "no-such.json"], ["no such file"]),
        (["--allow", "read("], ["--allow"]),
        (["--transparent", "nobody"], ["no server 'nobody'"]),
        (["--transparent", "x", "--profile", "all"], ["can't be used together"]),
        (["--print-config", "emacs"], ["claude"]),
        (["--print-config", "codex", "--http", "0"], ["needs a fixed port"]),
        (["surplus"], ["surplus"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line(tmp_path: Path, words: list[str], parts: list[str]) -> None:
    one_line(run("serve", *words, cwd=tmp_path), *parts)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_place_to_serve(tmp_path: Path, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" serve {closed}', command()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert ("standard input and output are not open" in done.stderr) == ("2>" not in closed)


def test_c22_nonsense_on_standard_input_ends_nothing(tmp_path: Path) -> None:
    with greeted("--no-mcp", cwd=tmp_path) as gateway:
        assert gateway.process.stdin is not None
        for line in (b"\xff\xfe", b"{", b"[]", b"null", b"[" * 100_000, b"x" * 1_000_000):
            gateway.process.stdin.write(line + b"\n")
        gateway.process.stdin.flush()
        assert gateway.tools() == READ_ONLY


def test_the_values_of_fault_servers_are_not_obeyed_by_the_terminal(tmp_path: Path) -> None:
    config = fault("exits")
    configured(user_file(), {"bad\x1b[2J": {"command": config.command, "args": [*config.args]}})
    with greeted(cwd=tmp_path) as gateway:
        gateway.tools()
        assert "\x1b" not in gateway.said()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs to see sockets")
def test_c29_over_standard_streams_nothing_is_listened_on(tmp_path: Path) -> None:
    configured(user_file(), {"a": row()})
    with greeted(cwd=tmp_path) as gateway:
        gateway.tools()
        sockets: set[str] = set()
        for descriptor in os.listdir(f"/proc/{gateway.pid}/fd"):
            with suppress(FileNotFoundError):  # the gateway may close it at any time
                link = os.readlink(f"/proc/{gateway.pid}/fd/{descriptor}")
                if link.startswith("socket:["):
                    sockets.add(link[8:-1])
        tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
        lines = [
            line.split()
            for table in tables
            if table.exists()
            for line in table.read_text(encoding="utf-8").splitlines()[1:]
        ]
    listening = {words[9] for words in lines if words[3] == "0A"}
    assert not sockets & listening


# -- invisible characters and whole definitions -----------------------------------------------

HIDDEN = str(SERVERS / "hidden.py")
FORBIDDEN = ["\\udb40\\udc41", "\\u202e", "\\u200b", "\\u00ad", "\\u0007", "\\ufdd0"]


def hidden_row(hide: str, **more: Any) -> dict[str, Any]:
    return {"command": PYTHON[0], "args": [*PYTHON[1:], HIDDEN, "--hide", hide], "review": "note", **more}


def is_clean(value: Any) -> bool:
    return all(clean_text(text)[1] == 0 for text in iter_strings(value))


def modern(**params: Any) -> dict[str, Any]:
    stamp = "io.modelcontextprotocol/"
    meta: dict[str, Any] = {f"{stamp}protocolVersion": MODERN_VERSIONS[-1], f"{stamp}clientCapabilities": {}}
    return {"_meta": meta, **params}


@pytest.mark.parametrize("hide", FORBIDDEN)
def test_finding_d4_nothing_that_cannot_be_seen_reaches_a_client_and_calls_still_work(
    tmp_path: Path, hide: str
) -> None:
    configured(user_file(), {"h": hidden_row(hide)})
    given = {"colour": "red", "size": "small", "kind": "oil"}
    with serving("--profile", "none", cwd=tmp_path) as gateway:
        gateway.greet()
        answers = [
            gateway.ask("tools/list"),
            gateway.ask("tools/list", **modern()),
            gateway.ask("tools/call", name="h__paint", arguments=given),
            gateway.ask("tools/call", **modern(name="h__paint", arguments=given)),
            gateway.ask("tools/call", name="h__refuse", arguments={}),
            gateway.ask("tools/call", **modern(name="h__refuse", arguments={})),
        ]
        notes = gateway.said()
    assert all(map(is_clean, answers))
    assert is_clean(notes)
    (paint, _), schema = answers[0]["result"]["tools"], {"colour", "size", "kind", "code"}
    assert (paint["title"], paint["description"]) == ("Paint", "Paints.")
    assert {*paint["inputSchema"]["properties"]} == schema
    for answer in answers[2:4]:
        result = answer["result"]
        assert result["structuredContent"] == {"colour": "red", "list": ["a"]}
        own = json.loads(f'"{hide}"')
        assert json.loads(result["content"][3]["text"]) == {
            f"c{own}olour": "red",
            "size": f"s{own}mall",
            "kind": f"o{own}il",
        }


RICH: dict[str, Any] = {
    "title": "Rich",
    "inputSchema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"n": {"type": "integer", "default": 5, "examples": [1]}, "x": {"$ref": "#/definitions/x"}},
        "definitions": {"x": {"type": ["string", "null"], "default": None}},
        "anyOf": [{"required": ["n"]}, {"required": ["x"]}],
    },
    "outputSchema": {"type": "object", "properties": {"r": {"type": "number", "default": 1.5}}},
    "annotations": {"title": "R", "readOnlyHint": True, "vendor": {"a": 1}},
    "icons": [{"src": "https://example.invalid/i.png", "sizes": ["48x48"]}],
    "execution": {"taskSupport": "forbidden"},
    "_meta": {"vendor/key": [1, None]},
    "vendor": {"deep": [True]},
}


@pytest.mark.parametrize("stamped", [False, True], ids=["legacy", "modern"])
def test_finding_c7_a_client_gets_the_whole_definition_of_a_tool(tmp_path: Path, stamped: bool) -> None:
    long = {"description": "d" * 5_000, **RICH}
    configured(user_file(), {"r": row("--rich", json.dumps(long))})
    with serving("--profile", "none", cwd=tmp_path) as gateway:
        gateway.greet()
        listed = gateway.ask("tools/list", **(modern() if stamped else {}))["result"]["tools"]
        said = gateway.said()
    rich = next(tool for tool in listed if tool["name"] == "r__rich")
    assert rich == {"name": "r__rich", **long}
    assert "cut" not in said
    assert "wider" not in said


def test_finding_c2_schemas_model_is_what_a_model_of_a_session_sees(tmp_path: Path) -> None:
    long = {"description": "d" * 5_000, **RICH}
    configured(user_file(), {"r": row("--rich", json.dumps(long), descriptionLimit=3_000)})
    with serving("--profile", "none", "--schemas", "model", cwd=tmp_path) as gateway:
        gateway.greet()
        listed = gateway.ask("tools/list")["result"]["tools"]
        said = gateway.said()
    rich = next(tool for tool in listed if tool["name"] == "r__rich")
    properties = rich["inputSchema"]["properties"]
    assert properties["n"] == {"type": "integer", "default": 5}
    assert properties["x"]["default"] is None
    assert "anyOf" not in rich["inputSchema"]
    assert rich["description"].startswith("d" * 3_000 + "…")
    assert "the first 3,000 of the 5,000 characters of its description" in said


def test_finding_b12_a_definition_is_remarked_on_once_and_never_again(tmp_path: Path) -> None:
    long = {"description": "d" * 3_000 + "\u2066", **RICH}
    configured(user_file(), {"r": row("--rich", json.dumps(long), review="note")})
    said: list[str] = []
    for _ in range(2):
        with serving("--profile", "none", "--schemas", "model", cwd=tmp_path) as gateway:
            gateway.greet()
            gateway.ask("tools/call", name="r__rich", arguments={})
            said.append(gateway.said())
    for remark in ("characters of its description", "1 invisible character was removed"):
        assert [one.count(remark) for one in said] == [1, 0]
    whole = json.loads(run("tools", "list", "--json", cwd=tmp_path).stdout)["notes"]
    assert any("characters of its description" in note for note in whole)
    assert "characters of" not in run("tools", "list", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"title": 5},
        {"description": None},
        {"annotations": "none"},
        {"annotations": {"readOnlyHint": "yes", "title": 1}},
        {"outputSchema": []},
        {"icons": {"src": "x"}},
        {"icons": [{"href": "x"}, "y", {"src": "https://example.invalid/", "sizes": "any"}]},
        {"_meta": 1},
        {"execution": None},
        {"execution": {"taskSupport": 5}},
        {"icons": [{"src": "https://example.invalid/", "theme": "blue"}]},
    ],
)
async def test_a_field_of_a_wrong_type_does_not_cost_a_strict_client_its_list(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    tools, _ = read_tools([{"name": "t", **wrong}], StdioServerConfig("s", "true"))
    listed = ListingBuilder({"name": "n", "version": "1"}).build([tool.descriptor for tool in tools])
    for page in (listed.legacy, listed.modern):
        assert ListToolsResult.model_validate_json(page.encoded).tools[0].name == "s__t"


@pytest.mark.parametrize("words", [[], ["--profile", "all"], ["--profile", "none"], ["--tools", "bash,read"]])
def test_a_dry_run_lists_the_native_tools_that_are_served(words: list[str], tmp_path: Path) -> None:
    shown = run("serve", "--dry-run", "--no-mcp", *words, cwd=tmp_path).stdout
    with greeted("--no-mcp", *words, cwd=tmp_path) as gateway:
        assert sorted(gateway.tools()) == sorted(re.findall(r"^(\S+) +native ", shown, re.MULTILINE))
