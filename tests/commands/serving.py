"""A gateway as a process, and a client that speaks to it line by line."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.forked import start_command
from tests.support.scripts import command
from tests.support.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

Json = dict[str, Any]
CHANGED = "notifications/tools/list_changed"
VERSION = "2025-06-18"


def hello(identity: int = 0) -> Json:
    """Make the first request of a client of the older protocol."""
    who = {"name": "test", "version": "1"}
    params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": who}
    return {"jsonrpc": "2.0", "id": identity, "method": "initialize", "params": params}


class Gateway:
    """One `indus serve`, and its only client."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.heard: list[Json] = []
        """Notifications, in their order."""
        self.lines: list[bytes] = []
        """Everything that came on standard output."""
        self.questions: list[Json] = []
        """What we were asked."""
        self._ids = 0
        self._rest = b""
        self._answers: dict[object, Json] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        """Give what it has said to people."""
        return self.log.read_text(encoding="utf-8")

    def send(self, method: str, **params: Any) -> int:
        """Ask without waiting."""
        self._ids += 1
        self.write({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params})
        return self._ids

    def write(self, frame: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(frame).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> Json:
        """Ask, and wait for the answer."""
        return self.answer(self.send(method, **params))

    def answer(self, identity: int) -> Json:
        self.until(lambda: identity in self._answers)
        return self._answers.pop(identity)

    def greet(self, **capabilities: Any) -> Json:
        """Shake hands."""
        first = hello()
        first["params"]["capabilities"] = capabilities
        self.write(first)
        answer = self.answer(0)["result"]
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.ask("tools/list")["result"]["tools"]]

    def call(self, name: str, **arguments: Any) -> Json:
        return self.ask("tools/call", name=name, arguments=arguments)["result"]

    def text(self, name: str, **arguments: Any) -> str:
        return self.call(name, **arguments)["content"][0]["text"]

    def until(self, condition: Callable[[], bool]) -> None:
        """Listen until something is so."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"waited too long; it said: {self.said()}"
            self.listen(0.02)

    def until_tools(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Ask for the list again whenever it is said to have changed, until it is as it should."""
        seen = -1
        found: list[str] = []
        end = time.monotonic() + LIMIT_S
        while not condition(found):
            assert time.monotonic() < end, f"{found}; it said: {self.said()}"
            if seen != len(self.heard):
                seen = len(self.heard)
                found = self.tools()
            else:
                self.listen(0.02)
        return found

    def listen(self, seconds: float) -> None:
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        if not select.select([handle], [], [], seconds)[0]:
            return
        data = os.read(handle, 1 << 20)
        assert data, f"it has ended; it said: {self.said()}"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.lines.append(line)
            frame = json.loads(line)
            if "method" in frame and "id" in frame:
                self.questions.append(frame)
            elif "method" in frame:
                self.heard.append(frame)
            else:
                self._answers[frame["id"]] = frame

    def leave(self) -> int:
        """Say the last word, and wait for the end."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        return self.process.wait(LIMIT_S)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so, when nobody can be asked."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def serving(*words: str, cwd: Path, **variables: str) -> Generator[Gateway]:
    """Run `indus serve` as long as the block runs."""
    log = cwd / f"said-{time.monotonic_ns()}.txt"
    with log.open("wb") as errors:
        process = start_command(
            [command(), "serve", *words],
            environ={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=cwd,
        )
    gateway = Gateway(process, log)
    try:
        yield gateway
    finally:
        if process.poll() is None:
            process.terminate()
        gateway.leave()


@contextmanager
def greeted(*words: str, cwd: Path, **variables: str) -> Generator[Gateway]:
    """Run `indus serve`, and shake hands with it."""
    with serving(*words, cwd=cwd, **variables) as gateway:
        gateway.greet()
        yield gateway
