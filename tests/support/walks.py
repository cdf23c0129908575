"""Traces of one call through the running program: which functions of `src` ran, in order, by file.

A trace counts distinct functions and distinct files between `start` and `stop`, in all threads of the process
(`sys.setprofile`, `threading.setprofile`). Comprehensions and generator expressions count as part of their function.
Run as a module it traces one walk and prints it: `python -m tests.support.walks remote|http|edit|card|turn`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.model_server import calls, model_server, says
from tests.support.scripts import ROOT, unmeasured
from tests.support.servers import honest

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

_SOURCE = str(ROOT / "src") + os.sep
_WRITER = "call records"
"""The thread that writes records of calls: it runs beside the calls."""


class Walk:
    """Functions of `src` that ran while a trace was on."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], int] = {}
        self._is_on = False

    @property
    def files(self) -> list[str]:
        """The files of the functions, in the order of their first call."""
        return list(dict.fromkeys(file for file, _ in self.functions))

    @property
    def calls(self) -> int:
        """How often a function ran or went on: each resumption of a coroutine counts."""
        return sum(self.functions.values())

    def start(self) -> None:
        """Forget what ran, and record from here."""
        self.functions.clear()
        self._is_on = True

    def stop(self) -> None:
        """Record nothing more."""
        self._is_on = False

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Record one call (a profile function, see `sys.setprofile`)."""
        if not self._is_on or event != "call" or not frame.f_code.co_filename.startswith(_SOURCE):
            return
        if threading.current_thread().name == _WRITER:
            return
        code = frame.f_code
        name = (
            code.co_qualname.removesuffix(f".<locals>.{code.co_name}") if code.co_name[0] == "<" else code.co_qualname
        )
        key = (code.co_filename.removeprefix(_SOURCE), name)
        self.functions[key] = self.functions.get(key, 0) + 1

    def keep_common(self, other: Walk) -> None:
        """Keep only functions that both walks ran: timers that happened to fire within one of them fall away."""
        pairs = (
            (key, min(count, other.functions[key])) for key, count in self.functions.items() if key in other.functions
        )
        self.functions = dict(pairs)

    def text(self) -> str:
        """The walk as text: each file with its functions, then the two counts."""
        lines: list[str] = []
        for file in self.files:
            lines.append(file)
            lines += [f"    {name} x{count}" for (at, name), count in self.functions.items() if at == file]
        counts = f"{len(self.functions)} functions in {len(self.files)} files, {self.calls:,} calls"
        return "\n".join([*lines, counts])


@contextmanager
def tracing() -> Generator[Walk]:
    """Install a walk as the profile function of this thread and of threads that start from here on."""
    walk = Walk()
    before = sys.getprofile()
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        yield walk
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def trace_edit(folder: Path) -> Walk:
    """Trace `edit` of a file of three lines, the second time, from the runner of the box and back."""
    from indusagi.capabilities import ToolRegistry, edit_tool, make_local_context, read_tool  # noqa: PLC0415 — traced
    from indusagi.runtime import ToolCall  # noqa: PLC0415 — as above

    async def edit_twice(walk: Walk) -> None:
        registry = ToolRegistry()
        for tool in (read_tool(), edit_tool()):
            registry.register(tool)
        runner = registry.to_tool_box(make_local_context(str(folder))).runner
        for name in ("first.txt", "second.txt"):
            (folder / name).write_text("one\ntwo\nthree\n", encoding="utf-8")
            await runner.run(ToolCall("1", "read", {"path": name}))
            edit: dict[str, Any] = {"path": name, "edits": [{"oldText": "two", "newText": "2"}]}
            walk.start()
            outcome = await runner.run(ToolCall("2", "edit", edit))
            walk.stop()
            assert not outcome.is_error, outcome

    with tracing() as walk:
        asyncio.run(edit_twice(walk))
    return walk


def trace_card(folder: Path) -> Walk:
    """Trace the second start of a configured server, asleep, from its row to the cards of its tools in a tool box."""
    from indusagi.capabilities import make_local_context  # noqa: PLC0415 — traced
    from induscode.boot.runners import load_mcp_capabilities  # noqa: PLC0415 — as above
    from induscode.deck.provision import ToolDeck  # noqa: PLC0415 — as above
    from induscode.launch.invocation import Invocation  # noqa: PLC0415 — as above

    config = honest(id="desk")
    row = {"command": config.command, "args": [*config.args], "env": dict(config.env), "start": "lazy"}
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"desk": row}}), encoding="utf-8")
    invocation = Invocation(cwd=str(folder), mcp=(str(file),))

    async def start_twice(walk: Walk) -> None:
        await (await load_mcp_capabilities(invocation)).aclose()
        deck = ToolDeck((), make_local_context(str(folder)))
        walk.start()
        bridge = await load_mcp_capabilities(invocation)
        listed = deck.graft(bridge.capabilities).into_tool_box().descriptors()
        walk.stop()
        try:
            assert "desk__echo" in {descriptor.name for descriptor in listed}
        finally:
            await bridge.aclose()
            await deck.context.aclose()

    with tracing() as walk:
        asyncio.run(start_twice(walk))
    return walk


def trace_remote_call(folder: Path) -> Walk:
    """Trace a call of a server's tool in `indus -p`, the second time, from the model loop and back."""
    from induscode.conversations.model_loop.loop import DeckToolset  # noqa: PLC0415 — as above
    from induscode.conversations.run import run_headless  # noqa: PLC0415 — as above
    from induscode.launch.invocation import Invocation  # noqa: PLC0415 — traced

    config = honest(id="desk")
    row = {"command": config.command, "args": [*config.args], "env": dict(config.env)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": row}}), encoding="utf-8")
    call_tool = DeckToolset.call_tool

    async def traced(self: DeckToolset, *arguments: Any) -> Any:
        walk.start()
        try:
            return await call_tool(self, *arguments)
        finally:
            walk.stop()

    say = calls("desk__echo", text="hello")
    with model_server(say, calls("desk__echo", text="again"), says("done")) as server, tracing() as walk:
        os.environ |= {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "key"}
        DeckToolset.call_tool = traced  # pyright: ignore[reportAttributeAccessIssue] — the same call, traced
        try:
            invocation = Invocation(
                cwd=str(folder), prompt="go", approval="all", model="openai:scripted", mcp=(str(folder / "mcp.json"),)
            )
            assert run_headless(invocation) == 0
        finally:
            DeckToolset.call_tool = call_tool
    return walk


def trace_turn(folder: Path) -> Walk:
    """Trace a turn of the interactive session, the second one: a prompt, a call of a server's tool, the answer.

    It begins when the prompt is taken and ends when the next one may come. The screen isn't up: frames depend on time.
    """
    from induscode.frontends.terminal.app import InteractiveApp  # noqa: PLC0415 — traced
    from induscode.launch.invocation import Invocation  # noqa: PLC0415 — as above

    import_module("induscode.frontends.terminal.markdown")  # the session imports it in a thread
    config = honest(id="desk")
    row = {"command": config.command, "args": [*config.args], "env": dict(config.env)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": row}}), encoding="utf-8")

    class TracedApp(InteractiveApp):
        """A session that gets two prompts and ends."""

        async def _next_message(self) -> str | None:
            nonlocal prompts
            walk.stop()
            prompt, *prompts = prompts
            if prompt == "second":
                walk.start()
            return prompt

        async def hold(self) -> None:
            """Open the conversation and answer the prompts."""
            await self._hold_conversation(self._invocation)

    prompts: list[str | None] = ["first", "second", None]
    script = [calls("desk__echo", text="a"), says("first done"), calls("desk__echo", text="b"), says("second done")]
    with model_server(*script) as server, tracing() as walk:
        os.environ |= {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "key"}
        invocation = Invocation(
            cwd=str(folder), approval="all", model="openai:scripted", mcp=(str(folder / "mcp.json"),)
        )
        asyncio.run(TracedApp(invocation).hold())
    assert len(server.requests) == len(script)
    return walk


_HTTP_CALLS = 6
_SERVE = """
import json, signal, sys, threading
from tests.support.walks import Walk
walk = Walk()
path = sys.argv.pop(1)
def toggle(number, frame):
    if number == signal.SIGUSR1:
        walk.start()
    else:
        walk.stop()
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump([[*key, count] for key, count in walk.functions.items()], file)
        import os; os.replace(path + ".part", path)
signal.signal(signal.SIGUSR1, toggle)
signal.signal(signal.SIGUSR2, toggle)
threading.setprofile(walk.profile)
sys.setprofile(walk.profile)
sys.argv[0] = "indus"
from induscode.__main__ import main
raise SystemExit(main())
"""


def trace_http_call(folder: Path) -> Walk:
    """Trace one HTTP `tools/call` in `indus serve --http` with a warm server, from the socket and back."""
    import http.client  # noqa: PLC0415 — beside its user
    import re  # noqa: PLC0415 — as above

    config = honest(id="desk")
    row = {"command": config.command, "args": [*config.args], "env": dict(config.env)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": row}}), encoding="utf-8")
    record = folder / "walk.json"
    words = ["serve", "--http", "127.0.0.1:0", "--no-token", "--mcp", str(folder / "mcp.json"), "-C", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(record), *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        env=unmeasured(),
    )
    assert process.stderr is not None
    connection = http.client.HTTPConnection("127.0.0.1", timeout=60)
    try:
        match = None
        while match is None:
            line = process.stderr.readline()
            assert line, "the gateway ended"
            match = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        connection.port = int(match[1])
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

        def send(method: str, params: dict[str, Any], number: int | None = 1) -> tuple[Any, dict[str, str]]:
            body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
            if number is not None:
                body["id"] = number
            connection.request("POST", "/mcp", json.dumps(body), headers)
            response = connection.getresponse()
            return response.read().decode(), dict(response.getheaders())

        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "walk", "version": "1"}}
        _, given = send("initialize", hello)
        headers["Mcp-Session-Id"] = {key.lower(): value for key, value in given.items()}["mcp-session-id"]
        send("notifications/initialized", {}, None)
        call = {"name": "desk__echo", "arguments": {"text": "hello"}}
        for _ in range(3):
            send("tools/call", call)
        walks: list[Walk] = []
        for _ in range(_HTTP_CALLS):
            process.send_signal(signal.SIGUSR1)  # Handled before the next request: the main thread sleeps.
            text, _ = send("tools/call", call)
            assert "hello" in text, text
            process.send_signal(signal.SIGUSR2)
            while not record.exists():
                send("ping", {})
            walks.append(Walk())
            rows = json.loads(record.read_text(encoding="utf-8"))
            walks[-1].functions = {(file, name): count for file, name, count in rows}
            record.unlink()
    finally:
        connection.close()
        process.terminate()
        process.communicate(timeout=60)
    walk, *others = walks
    for other in others:
        walk.keep_common(other)
    return walk


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"HOME": name, "XDG_STATE_HOME": f"{name}/state", "XDG_CONFIG_HOME": f"{name}/config"}
        (Path(name) / "project").mkdir()
        traces = {"remote": trace_remote_call, "http": trace_http_call, "edit": trace_edit}
        trace = (traces | {"card": trace_card, "turn": trace_turn})[sys.argv[1]]
        sys.stdout.write(trace(Path(name) / "project").text() + "\n")
