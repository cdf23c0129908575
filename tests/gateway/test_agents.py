"""The `task` card of a gateway: offered where a model is named, on the servers of the gateway, checked strictly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import configured, row, user_file, write_views
from tests.commands.serving import greeted
from tests.support.addons import add_project_addon, build_source
from tests.support.model_server import ModelServer, Reply, calls, model_server, says
from tests.support.scripts import run
from tests.support.sessions import to_text
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    with model_server() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        yield server


ALL = ("--model", "openai:scripted", "--profile", "all")


def call_task(gateway: Any, **arguments: object) -> dict[str, Any]:
    result: dict[str, Any] = gateway.ask("tools/call", name="task", arguments=arguments)["result"]
    return result


def test_task_runs_on_the_servers_of_the_gateway(model: ModelServer, tmp_path: Path) -> None:
    configured(user_file(), {"srv": row()})
    model.script[:] = (calls("srv__echo", text="pelican"), says("the report"))
    with greeted(*ALL, "--allow", "srv__echo", cwd=tmp_path) as gateway:
        assert "task" in gateway.tools()
        listed = {tool["name"]: tool for tool in gateway.ask("tools/list")["result"]["tools"]}
        assert "background" not in listed["task"]["inputSchema"]["properties"]
        result = call_task(gateway, objective="look", agent="general")
    assert result["content"][0]["text"] == "the report"
    assert "pelican" in to_text(model.requests[1])
    names = {tool["function"]["name"] for tool in model.requests[0]["tools"]}
    assert {"read", "srv__echo"} <= names
    assert not {"task", "saas-action", "enter_plan_mode"} & names


def test_agent_of_a_gateway_calls_nothing_that_a_run_without_a_person_refuses(
    model: ModelServer, tmp_path: Path
) -> None:
    configured(user_file(), {"srv": row()})
    model.script[:] = (
        Reply(calls=(("srv__echo", {"text": "x"}), ("write", {"path": "made.txt", "content": "x"}))),
        says("I may not"),
    )
    with greeted(*ALL, cwd=tmp_path) as gateway:
        assert gateway.text("srv__echo", text="hello") == "hello"  # the client has its own way to ask
        result = call_task(gateway, objective="do it")
    assert result["content"][0]["text"] == "I may not"
    assert to_text(model.requests[1]).count("this run cannot ask the user. To allow it") == 2
    assert not (tmp_path / "made.txt").exists()


def test_key_in_the_environment_alone_offers_no_agents(model: ModelServer, tmp_path: Path) -> None:
    with greeted("--profile", "all", cwd=tmp_path) as gateway:
        assert "task" not in gateway.tools()
    assert model.requests == []


def test_model_without_the_profile_that_has_agents_is_refused(tmp_path: Path) -> None:
    done = run("serve", "--model", "openai:scripted", cwd=tmp_path)
    assert done.returncode == 2
    assert "--model requires --profile all" in done.stderr


@pytest.mark.anyio
async def test_server_that_a_task_uses_stays_until_its_end(model: ModelServer, tmp_path: Path) -> None:
    configured(user_file(), {"srv": row()})
    script = [calls("srv__echo", text="one"), Reply(calls=(("srv__echo", {"text": "two"}),), after=3), says("done")]
    model.script[:] = script
    with greeted(*ALL, "--allow", "srv__echo", cwd=tmp_path) as gateway:
        call = gateway.send("tools/call", name="task", arguments={"objective": "look"})
        await until(lambda: len(model.requests) == 2)
        user_file().write_text(json.dumps({"mcpServers": {}}), encoding="utf-8")
        await until(lambda: "waits for the end of the tasks that use it" in gateway.said())
        with model.arrived:  # the held reply is sent now
            model.requests.append({})
            model.arrived.notify_all()
        answer = gateway.answer(call)["result"]
        assert answer["content"][0]["text"] == "done"
        assert "two" in to_text(model.requests[-1])
        await until(lambda: "the configuration has changed: removed srv" in gateway.said())
        await until(lambda: "srv__echo" not in gateway.tools())


def test_calls_of_an_agent_pass_the_interceptors_and_keep_to_the_view_of_the_client(
    model: ModelServer, tmp_path: Path
) -> None:
    configured(user_file(), {"srv": row()})
    write_views(small={"tools": ["task", "ls", "srv__echo", "lucky"]})
    hooks = """
        def before(self, call):
            return Deny("no pelicans") if "pelican" in str(call.arguments) and call.is_sub_agent else None
    """
    lucky = "define_tool(ToolSpec('lucky', 'A number.', {'type': 'object'}, lambda arguments, ctx: None))"
    add_project_addon(tmp_path, "strict", build_source(hooks, f"interceptors=[Hooks()], cards=[{lucky}]"))
    model.script[:] = (Reply(calls=(("srv__echo", {"text": "pelican"}), ("read", {"path": "a.txt"}))), says("done"))
    with greeted(*ALL, "--allow", "srv__echo", "--view", "small", cwd=tmp_path) as gateway:
        gateway.until_tools(lambda tools: "srv__echo" in tools)
        call_task(gateway, objective="look", agent="general")
    assert {tool["function"]["name"] for tool in model.requests[0]["tools"]} == {"ls", "srv__echo", "lucky"}
    answers = to_text(model.requests[1])
    assert "the addon 'strict' denies it: no pelicans" in answers


def test_model_of_an_agent_that_cannot_be_used_is_named_in_the_report(model: ModelServer, tmp_path: Path) -> None:
    folder = tmp_path / ".indusvx" / "agents"
    folder.mkdir(parents=True)
    (folder / "other.md").write_text("---\ndescription: x\nmodel: anthropic:m\n---\nLook.", encoding="utf-8")
    model.script[:] = (says("done"),)
    with greeted(*ALL, cwd=tmp_path) as gateway:
        result = call_task(gateway, objective="look", agent="other")
    assert "the model anthropic:m of other was not used" in result["content"][0]["text"]
