"""Servers started three times each: what the deck has of them, beside what the SDK's client sees.

Many servers build definitions from unordered sets, and give another order at every start. The deck
is booted from one ledger, as `indus` does it: no start may disable a tool, and the definitions and
the answers must be those that the SDK's own client gets.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mcp import Client, StdioServerParameters

from indusagi.capabilities.local import make_local_context
from induscode.deck.mcp.boot import boot_bridge
from induscode.deck.mcp.drift import is_same_definition
from induscode.deck.mcp.store import open_store
from induscode.servers.plan import ServerPlan
from outside.visit import Visit, nothing_left, stdio

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.boot import BootedBridge
    from outside.servers import Server

STARTS = 3


async def visit_restarts(server: Server, ledger: Path) -> Visit:
    """Start a server again and again, and compare each time."""
    done = Visit(server.id, f"stdio, {STARTS} starts")
    with nothing_left(done) as watch:
        start = time.perf_counter()
        for _ in range(STARTS):
            theirs, answers = await _ask_sdk(server)
            store = await open_store(str(ledger))
            try:
                bridge = await boot_bridge(store, ServerPlan.from_configs([stdio(server)]))
                try:
                    await bridge.wait_started()
                    _compare(bridge, server.id, theirs, done)
                    await _call(bridge, server, answers, done)
                finally:
                    watch.look()
                    await bridge.aclose()
            finally:
                await store.aclose()
        done.ms = (time.perf_counter() - start) * 1000
        done.called = [call.tool for call in server.calls]
    return done


async def _ask_sdk(server: Server) -> tuple[list[JsonObject], list[tuple[bool, str]]]:
    """Have the SDK's client list the tools and make the calls."""
    command, *arguments = server.command
    parameters = StdioServerParameters(command=command, args=arguments, env=server.env)
    tools: list[JsonObject] = []
    answers: list[tuple[bool, str]] = []
    async with Client(parameters) as theirs:
        cursor: str | None = None
        while True:
            page = await theirs.list_tools(cursor=cursor)
            tools.extend(_plain(tool) for tool in page.tools)
            cursor = page.next_cursor
            if not cursor:
                break
        for call in server.calls:
            answer = _plain(await theirs.call_tool(call.tool, call.arguments))
            texts = [str(block.get("text", block)) for block in answer["content"]]
            answers.append((answer.get("isError", False), "\n".join(texts)))
    return tools, answers


def _plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


def _compare(bridge: BootedBridge, server: str, theirs: list[JsonObject], done: Visit) -> None:
    enrolment = bridge.enrolment
    for status in enrolment.status().values():
        if status.fault is not None:
            done.wrong.append(str(status.fault))
    done.wrong.extend(str(one.note) for one in enrolment.disabled)
    endpoint = bridge.fleet.endpoint(server)
    facts = endpoint and endpoint.facts
    done.spoken = f"{facts.era} {facts.version}" if facts else ""
    ours = {one.ref.name: one.raw for one in enrolment.ledger.live_capabilities()}
    done.tools = len(ours)
    if [*ours] != [row["name"] for row in theirs]:
        done.wrong.append("the SDK's client lists other tools")
    for row in theirs:
        raw = ours.get(str(row["name"]), {})
        # A null says what a missing field says, and the SDK leaves both out.
        if not is_same_definition({k: v for k, v in raw.items() if v is not None}, row):
            done.wrong.append(f"the SDK's client is told something else of {row['name']}")


async def _call(bridge: BootedBridge, server: Server, answers: list[tuple[bool, str]], done: Visit) -> None:
    live = {one.ref.name: one for one in bridge.capabilities}
    for call, theirs in zip(server.calls, answers, strict=True):
        if call.tool not in live:
            done.wrong.append(f"{server.id} has no tool {call.tool}")
            continue
        result = await live[call.tool].run(call.arguments, make_local_context("."))
        texts = [one.text if one.kind == "text" else str(one.value) for one in result.content]
        ours = result.is_error, "\n".join(texts)
        if ours != theirs or call.expected not in ours[1]:
            done.wrong.append(f"{call.tool} answered {ours!r:.200}, to the SDK {theirs!r:.200}")
