"""`python -m bench.crossing`: two clients on the same servers, with colliding ids, tokens, subscriptions and tasks.

Both clients use the same request ids, the same progress token and the same resource at the same time, and each makes a
task; every text that reaches one of them carries a mark of its own request. What carries another client's mark has
crossed, and so has a notification about another client's task. Ends with 1 if anything has, or if an answer or an
update is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.capabilities.registry import ToolRegistry
from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.client.handlers import forwarding_handlers
from indusagi.interop.protocol_bridge.client.tasks import TASKS
from indusagi.interop.protocol_bridge.contract import ServerLimits, StdioServerConfig
from indusagi.interop.protocol_bridge.fleet import MountedTool
from indusagi.interop.protocol_bridge.host import ProviderHost, create_provider_host
from indusagi.interop.protocol_bridge.rpc.transport import linked_pair
from induscode.deck.mcp.boot import BootOptions, boot_bridge
from induscode.deck.mcp.content import CONTENT_KINDS, ServerContent
from induscode.deck.mcp.store import memory_store
from induscode.gateway.content import GatewayContent
from induscode.gateway.tasks import GatewayTasks
from induscode.servers.plan import ServerPlan

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.rpc.transport import MemoryTransport

_SERVERS = Path(__file__).parent.parent / "tests" / "servers"
_META = "io.modelcontextprotocol/"
_NOTE = "indus://shelf/note:///today"
_TOKEN = 1
_WAIT_S = 30.0


class Client:
    """One client of the gateway, which counts what reaches it."""

    def __init__(self, name: str, *, is_modern: bool) -> None:
        self.name = name
        self.is_modern = is_modern
        self.counts: Counter[str] = Counter()
        self._mark = ""
        self._own_tasks: set[JsonValue] = set()
        self._told_tasks: set[JsonValue] = set()
        self._transport: MemoryTransport | None = None
        self._answers: dict[JsonValue, asyncio.Future[JsonObject]] = {}

    async def connect(self, host: ProviderHost, stack: AsyncExitStack) -> None:
        """Connect to the gateway, and subscribe to the one resource."""
        ours, theirs = linked_pair()
        running = await host.connect(theirs)
        stack.push_async_callback(running.cancel)
        self._transport = ours
        ours.attach(self._receive, lambda _: None)
        if self.is_modern:
            wanted: JsonObject = {"notifications": {"resourceSubscriptions": [_NOTE]}}
            self._send(0, "subscriptions/listen", wanted)
        else:
            await self.request(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
            await self.request(0, "resources/subscribe", {"uri": _NOTE})

    async def run_round(self, number: int) -> None:
        """Call, read, get and touch, all under the ids that the other client uses too."""
        self._mark = f"{self.name}-{number}"
        book = f"indus://shelf/book://{self._mark}/text"
        requests: list[tuple[str, JsonObject]] = [
            ("tools/call", {"name": "shelf__work", "arguments": {"text": self._mark}}),
            ("resources/read", {"uri": book}),
            ("prompts/get", {"name": "shelf__greet", "arguments": {"who": self._mark}}),
            ("tools/call", {"name": "shelf__touch", "arguments": {}}),
        ]
        async with asyncio.TaskGroup() as tasks:
            for index, (method, params) in enumerate(requests, start=1):
                tasks.create_task(self._check(index, method, params, marked=index < len(requests)))
            tasks.create_task(self._run_task(len(requests) + 1))
        self.counts["crossed"] += len(self._told_tasks - self._own_tasks)

    async def _run_task(self, request_id: int) -> None:
        """Make a task, wait for its end and judge its result; a modern client of a legacy server gets the result."""
        call: JsonObject = {"name": "jobs__slow_compute", "arguments": {"seconds": 0, "label": self._mark}}
        answer = await self.request(request_id, "tools/call", call if self.is_modern else {**call, "task": {}})
        result = answer.get("result")
        task = result.get("task", result) if is_json_object(result) else None
        task_id = task.get("taskId") if is_json_object(task) else None
        if task_id is not None:
            self.counts["tasks"] += 1
            self._own_tasks.add(task_id)
            method = "tasks/get" if self.is_modern else "tasks/result"
            while True:
                answer = await self.request(request_id, method, {"taskId": task_id})
                result = answer.get("result")
                if not is_json_object(result) or result.get("status") not in {"working", "input_required"}:
                    break
        self._judge("answers", answer)

    async def _check(self, request_id: int, method: str, params: JsonObject, *, marked: bool) -> None:
        answer = await self.request(request_id, method, params)
        if marked:
            self._judge("answers", answer)

    async def request(self, request_id: int, method: str, params: JsonObject) -> JsonObject:
        """Send a request and wait for the answer."""
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        self._send(request_id, method, {**params, "_meta": {"progressToken": _TOKEN}})
        async with asyncio.timeout(_WAIT_S):
            return await answer

    def _send(self, request_id: int, method: str, params: JsonObject) -> None:
        assert self._transport is not None
        if self.is_modern:
            meta = params.get("_meta")
            stamped: JsonObject = {
                f"{_META}protocolVersion": "2026-07-28",
                f"{_META}clientCapabilities": {"extensions": {TASKS: {}}},
                f"{_META}logLevel": "debug",
            }
            params = {**params, "_meta": {**stamped, **(meta if is_json_object(meta) else {})}}
        self._transport.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    def _receive(self, frame: object) -> None:
        assert is_json_object(frame)
        method = frame.get("method")
        if method is None:
            answer = self._answers.get(frame.get("id"))
            if answer is not None and not answer.done():
                answer.set_result(frame)
            else:
                self.counts["stray"] += 1
        elif method == "notifications/progress":
            # The states of a task stand in for progress, and name nobody.
            if "the task is" not in str(frame):
                self._judge("progress", frame)
        elif method == "notifications/message":
            self._judge("messages", frame)
        elif method == "notifications/resources/updated":
            self.counts["updates"] += 1
        elif method == "notifications/tasks/status":
            params = frame.get("params")
            self._told_tasks.add(params.get("taskId") if is_json_object(params) else None)

    def _judge(self, what: str, frame: JsonObject) -> None:
        text = str(frame)
        self.counts[what] += 1
        if self._mark not in text or "error" in frame:
            self.counts["crossed"] += 1


@asynccontextmanager
async def open_gateway(era: str) -> AsyncGenerator[ProviderHost]:
    """Open a gateway in this process, in front of two server processes."""
    limits = ServerLimits(in_flight=64)
    files = {"shelf": "library.py", "jobs": "tasks.py"}
    configs = [
        StdioServerConfig(name, sys.executable, ["-I", "-S", str(_SERVERS / file), "--era", era], limits=limits)
        for name, file in files.items()
    ]
    store = await memory_store()
    content = GatewayContent()
    tasks = GatewayTasks(content)
    handlers = forwarding_handlers()
    handlers = replace(handlers, roots=content.answer_roots, on_notification=content.receive)
    bridge = await boot_bridge(
        store, ServerPlan.from_configs(configs), BootOptions(handlers=handlers, kinds=CONTENT_KINDS)
    )
    try:
        await bridge.wait_started()
        registry = ToolRegistry()
        for name in files:
            await bridge.fleet.wait_listed(name)
            endpoint = bridge.fleet.endpoint(name)
            assert endpoint is not None
            registry.register_all(MountedTool(bridge.fleet, tool).tool for tool in endpoint.known_tools or ())
        content.open(bridge, ServerContent(bridge), lambda _: False)
        content.listed.set()
        yield create_provider_host(registry.to_tool_box(make_inert_context()), content=content, tasks=tasks)
    finally:
        await bridge.aclose()
        await store.aclose()


async def cross(rounds: int, era: str, eras: Sequence[str] = ("legacy", "modern")) -> Counter[str]:
    """Run both clients for some rounds, and count what reached them."""
    clients = [Client(name, is_modern=one == "modern") for name, one in zip("ab", eras, strict=True)]
    async with open_gateway(era) as host, AsyncExitStack() as stack:
        for client in clients:
            await client.connect(host, stack)
        for number in range(rounds):
            async with asyncio.TaskGroup() as tasks:
                for client in clients:
                    tasks.create_task(client.run_round(number))
    return sum((client.counts for client in clients), Counter[str]())


def main(arguments: Sequence[str]) -> int:
    """Run every combination of eras, and return the exit code."""
    parser = argparse.ArgumentParser(prog="bench.crossing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000, help="rounds in all")
    rounds: int = parser.parse_args(arguments).rounds
    failed = 0
    combinations = [
        (era, eras)
        for era in ("legacy", "modern")
        for eras in (("legacy", "legacy"), ("legacy", "modern"), ("modern", "modern"))
    ]
    for era, eras in combinations:
        counts = asyncio.run(cross(rounds // len(combinations), era, eras))
        failed += counts["crossed"] + counts["stray"]
        shown = ", ".join(
            f"{what} {counts[what]:,}"
            for what in ("answers", "tasks", "progress", "messages", "updates", "crossed", "stray")
        )
        sys.stdout.write(f"server {era}, clients {' and '.join(eras)}: {shown}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
