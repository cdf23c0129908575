"""Call the tools of whatever `indusagi` is installed here: `python -P program.py`.

One request per line on standard input, answers as lines of JSON on standard output. It runs in the
environment of whoever is measured, ours or another, so it imports nothing of `bench` and knows both
by the few names they share. Beside every call a task looks how late the event loop wakes it up.

    {"op": "open", "cwd": path}                      make a session there
    {"op": "listen"}                                 -> {"secret": port, "entry": port}
    {"op": "call", "calls": [[tool, arguments], ...], "together": bool, "watch": bool}
                                                     -> a line for each call, then a last one
    {"op": "sessions", "count": n}                   make sessions, use each once, drop them
    {"op": "close"}                                  end the session
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, TextIO, cast
from urllib.parse import parse_qs, urlsplit

_PAUSE_S = 0.005
_LONG_PAUSE_S = 0.25
_LONGEST_TEXT = 4_000_000
_MEMORY = 8 << 30
"""A subject that holds all it is told is to fail, and not to take the machine with it."""


class _Lateness:
    """The longest that the event loop kept a task waiting."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.off = False
        """Set while something is timed to which a task that wakes up all the time matters."""

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            due = perf_counter() + _PAUSE_S
            await asyncio.sleep(_PAUSE_S if not self.off else _LONG_PAUSE_S)
            self.seconds = max(self.seconds, perf_counter() - due)

    def taken(self) -> float:
        """Give the longest since the last look."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class _Ports:
    """Two servers on the loopback interface: a forbidden one, and one that redirects there.

    The second serves `/to?url=…` as a redirect and `/file?path=…` as a page.
    """

    def __init__(self) -> None:
        self.reached = 0
        self.secret = 0
        self.entry = 0
        self._servers: list[asyncio.Server] = []

    async def listen(self) -> None:
        """Open both."""
        first = await asyncio.start_server(self._count, "127.0.0.1", 0)
        self.secret = cast("int", first.sockets[0].getsockname()[1])
        self._servers.append(first)
        for host in ("127.0.0.2", "::1"):
            try:
                self._servers.append(await asyncio.start_server(self._count, host, self.secret))
            except OSError:  # this machine has no such address
                continue
        entry = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.entry = cast("int", entry.sockets[0].getsockname()[1])
        self._servers.append(entry)

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached += 1
        await _answer(reader, writer, "200 OK", b"the secret", "text/plain")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readline()).decode("latin-1").split(" ")
        target = urlsplit(asked[1] if len(asked) > 1 else "/")
        given = parse_qs(target.query)
        if "url" in given:
            # As bytes: some of these are what no careful server would send.
            where = given["url"][0].encode("utf-8", "surrogateescape")
            await _answer(reader, writer, "302 Found", b"", "text/plain", where)
            return
        with open(given["path"][0], "rb") as file:  # noqa: ASYNC230 — nothing is timed before it
            body = file.read()
        await _answer(reader, writer, "200 OK", body, "text/html; charset=utf-8")


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    status: str,
    body: bytes,
    kind: str,
    location: bytes | None = None,
) -> None:
    try:
        while (await asyncio.wait_for(reader.readline(), 1)).strip():
            pass
        where = b"" if location is None else b"Location: " + location + b"\r\n"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + where + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()


class _Session:
    """The tools of the `indusagi` that is installed here, in one working directory."""

    def __init__(self, cwd: str, ports: _Ports) -> None:
        self._kernel: Any = importlib.import_module("indusagi.capabilities")
        self._call: Any = importlib.import_module("indusagi.runtime").ToolCall
        try:
            ours: Any = importlib.import_module("indusagi.capabilities.tools")
        except ModuleNotFoundError:
            tool_type = self._kernel.DefinedTool
            self._context: Any = self._kernel.make_local_context(cwd)
            named = cast("dict[str, Any]", vars(self._kernel))
            found: list[Any] = [each for each in named.values() if isinstance(each, tool_type)]
            self._tools: dict[str, Any] | None = {tool.name: tool for tool in found}
            self._box: Any = None
            return
        self._context = self._kernel.make_local_context(cwd, framework=self._framework(ports))
        registry = self._kernel.ToolRegistry()
        registry.register_all(ours.native_tools())
        self._tools, self._box = None, registry.to_tool_box(self._context)

    def _framework(self, ports: _Ports) -> Any:
        egress: Any = importlib.import_module("indusagi.capabilities.ports")
        # The ports are open, so that what is refused is refused for where it leads.
        allowed = [f"127.0.0.1:{ports.entry}"] if ports.entry else []
        web = egress.WebSettings(ports=(80, 443, ports.secret), allow_private=allowed)
        return self._kernel.Framework(read_state=self._kernel.ReadState(), web=web)

    async def call(self, tool: str, arguments: object) -> tuple[bool, object]:
        """Call a tool; give whether it is an error, and its answer."""
        call = self._call("call-1", tool, arguments)
        try:
            if self._tools is None:
                outcome = await self._box.runner.run(call)
            else:
                outcome = await self._tools[tool].invoke(call, self._context)
        except Exception as exc:  # noqa: BLE001 — boundary: whatever the subject raises
            return True, f"raised {type(exc).__name__}: {exc}"
        return bool(outcome.is_error), outcome.output

    async def close(self) -> None:
        """End it in the way that its makers have provided."""
        if hasattr(self._context, "aclose"):
            await self._context.aclose()
        else:
            self._kernel.reset_process_table()


class _Program:
    """Reads requests and answers them."""

    def __init__(self, requests: TextIO, answers: TextIO) -> None:
        self._requests = requests
        self._answers = answers
        self._late = _Lateness()
        self._ports = _Ports()
        self._session: _Session | None = None
        self._cwd = "."

    async def serve(self) -> None:
        """Go on until the requests end."""
        watch = asyncio.get_running_loop().create_task(self._late.watch())
        do = {
            "open": self._open,
            "listen": self._listen,
            "call": self._calls,
            "sessions": self._sessions,
            "close": self._close,
        }
        while line := await asyncio.to_thread(self._requests.readline):
            request = cast("dict[str, Any]", json.loads(line))
            await do[request["op"]](request)
        watch.cancel()

    def _say(self, **facts: object) -> None:
        self._answers.write(f"{json.dumps(facts)}\n")
        self._answers.flush()

    async def _listen(self, _request: Mapping[str, Any]) -> None:
        await self._ports.listen()
        self._say(done=True, secret=self._ports.secret, entry=self._ports.entry)

    async def _open(self, request: Mapping[str, Any]) -> None:
        self._cwd = cast("str", request["cwd"])
        self._session = _Session(self._cwd, self._ports)
        self._say(done=True)

    async def _calls(self, request: Mapping[str, Any]) -> None:
        calls = cast("list[tuple[str, object]]", request["calls"])
        gc.collect()
        self._late.off = not request["watch"]
        await asyncio.sleep(4 * _PAUSE_S)
        before = _resident()
        _forget_peak()
        if request["together"]:
            async with asyncio.TaskGroup() as group:
                for number, (tool, arguments) in enumerate(calls):
                    group.create_task(self._one(number, tool, arguments))
        else:
            for number, (tool, arguments) in enumerate(calls):
                await self._one(number, tool, arguments)
        self._say(done=True, before=before, peak=_peak())

    async def _one(self, number: int, tool: str, arguments: object) -> None:
        assert self._session is not None
        self._late.taken()
        reached = self._ports.reached
        started = perf_counter()
        failed, output = await self._session.call(tool, arguments)
        seconds = perf_counter() - started
        if not self._late.off:
            # One turn more, or what held the loop up at the very end would not be seen.
            await asyncio.sleep(2 * _PAUSE_S)
        self._say(
            number=number,
            seconds=seconds,
            late=self._late.taken(),
            error=failed,
            text=_text(output)[:_LONGEST_TEXT],
            reached=self._ports.reached - reached,
        )

    async def _sessions(self, request: Mapping[str, Any]) -> None:
        for number in range(20):
            await self._measure_memory(number)
        gc.collect()
        before = _resident()
        for number in range(cast("int", request["count"])):
            await self._measure_memory(number)
        gc.collect()
        self._say(done=True, before=before, peak=_resident())

    async def _measure_memory(self, number: int) -> None:
        """Use a session for a list of its own, and let go of it."""
        items = [{"id": str(n), "text": f"{number} {n} {'x' * 400}", "status": "pending"} for n in range(100)]
        await _Session(self._cwd, self._ports).call("todo_set", {"items": items})

    async def _close(self, _request: Mapping[str, Any]) -> None:
        if self._session is not None:
            await self._session.close()
        self._say(done=True)


def _text(output: object) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, Mapping):
        pairs = cast("Mapping[str, object]", output).items()
        return "\n".join(f"{name}: {_text(value)}" for name, value in pairs)
    if isinstance(output, Iterable):
        return "\n".join(_text(part) for part in cast("Iterable[object]", output))
    for name in ("text", "value"):
        if hasattr(output, name):
            return _text(getattr(output, name))
    return str(output)


def _status(field: str) -> int | None:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _resident() -> int:
    return _status("VmRSS:") or _most_ever()


def _peak() -> int:
    return _status("VmHWM:") or _most_ever()


def _most_ever() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _forget_peak() -> None:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:  # then the peak is that of the whole process: no less than the truth
        return


def main() -> None:
    """Move our own channel out of the way of the tools' children, and serve."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    asyncio.run(_Program(requests, answers).serve())


if __name__ == "__main__":
    main()
