"""A session with more tools than its model is listed: it finds the others, and calls them as if they were listed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread
from tests.support.model_server import calls, model_server, says
from tests.support.servers import honest
from tests.support.sessions import SessionSetup, to_text

from induscode.deck.mcp.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.model_server import ModelServer

ECHO = "honest__echo"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def setup(tmp_path: Path, server: ModelServer) -> SessionSetup:
    setup = SessionSetup(tmp_path, server)
    setup.mount(honest("--tools", 200))
    return setup


def answers(server: ModelServer) -> list[str]:
    """List what the tools answered, in order, as the last request has it."""
    return [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]


@pytest.mark.process
def test_a_model_finds_a_tool_and_calls_it_by_call_tool_or_by_its_name(
    setup: SessionSetup, server: ModelServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = setup.cwd / ".indusvx"
    folder.mkdir(parents=True)
    (folder / "permissions.json").write_text('{"deny": ["honest__add"]}', encoding="utf-8")
    server.script[:] = [
        calls("find_tools", queries=["echo a text", "honest__add"]),
        calls("call_tool", name=ECHO, arguments={"text": "one"}),
        calls(ECHO, text="two"),
        calls("call_tool", name="honest__add", arguments={"a": 1, "b": 2}),
        calls("honest__ecko", text="three"),
        says("done"),
    ]
    assert setup.run_in_process(monkeypatch, output_format="stream-json") == 0
    listed = [[tool["function"]["name"] for tool in request["tools"]] for request in server.requests]
    assert {"read", "bash", "find_tools", "describe_tools", "call_tool"} <= {*listed[0]}
    assert not any(name.startswith("honest__") for name in listed[0])
    assert len({json.dumps(request["tools"]) for request in server.requests}) == 1, "the list stays the same"
    assert "those of the MCP servers honest among them" in to_text(server.requests[0])
    found, one, two, denied, unknown = answers(server)
    assert found.startswith(f"{ECHO}(text?: str)")
    assert "honest__add(" not in found
    assert [answer.splitlines()[1:-1] for answer in (one, two)] == [["one"], ["two"]], "fenced, as a server's"
    assert "it is denied" in denied
    assert "There is no tool named 'honest__ecko'. The nearest:\\nhonest__echo(" in unknown
    assert "honest__t" not in unknown, "the library would name every tool"
    events: list[dict[str, Any]] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    called = [event["name"] for event in events if event["type"] == "tool_call"]
    assert called[:4] == ["find_tools", ECHO, ECHO, "honest__add"], "permissions and records have the real tool"


@pytest.mark.process
def test_a_provider_that_searches_gets_deferred_tools_and_our_search(
    setup: SessionSetup, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.api = "anthropic"
    server.script[:] = [calls("search_tools", queries=["echo a text"]), calls(ECHO, text="one"), says("done")]
    assert setup.run_in_process(monkeypatch, model="anthropic:claude-sonnet-4-6", output_format="json") == 0
    first = {tool["name"]: tool for tool in server.requests[0]["tools"]}
    assert first[ECHO]["defer_loading"] is True
    assert "defer_loading" not in first["read"]
    assert not {"find_tools", "describe_tools", "call_tool"} & {*first}
    assert len({json.dumps(request["tools"]) for request in server.requests}) == 1, "the list stays the same"
    assert f'{{"tool_name": "{ECHO}", "type": "tool_reference"}}' in to_text(server.requests[1])
    assert '"one"' in to_text(server.requests[2])


@pytest.mark.process
async def test_the_ledger_records_what_was_looked_for_and_shown(
    setup: SessionSetup, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script[:] = [calls("find_tools", queries=["echo"], limit=1), says("done")]
    assert await to_thread.run_sync(lambda: setup.run_process().code) == 0
    store = await open_store()
    try:
        rows = [row for run in await store.runs() for row in await store.rows(run.run) if row.op == "search"]
    finally:
        await store.aclose()
    assert rows[0].facts["queries"] == ["echo"]
    assert rows[0].facts["found"] == [ECHO]
