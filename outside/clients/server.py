"""The server behind `indus serve` when clients visit it: plain lines of JSON, no protocol library.

What became of its slow tool it writes into the file named in the variable JOURNAL, a line at a
time, so that whoever waits for it, or judges it, sees what happened and not what was meant.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
NOTE = "shelf:///note"
"""A resource, by the server's own address."""
NOTED = "the third book is missing"
FAILURE = "the shelf is empty: fill it first"
STEPS = 3
_BETWEEN_S = 0.05
_NOTHING: JsonObject = {"type": "object", "properties": {}}
_TEXT: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS: list[JsonObject] = [
    {"name": "echo", "description": "Say it again.", "inputSchema": _TEXT},
    {"name": "picture", "description": "Show a picture.", "inputSchema": _NOTHING},
    {"name": "fail", "description": "Fail, and say why.", "inputSchema": _NOTHING},
    {"name": "steps", "description": "Go on in steps, and tell of each.", "inputSchema": _NOTHING},
    {"name": "slow", "description": "Go on until it is cancelled.", "inputSchema": _NOTHING},
]


class Server:
    """Answers what it is asked, and keeps an open call until it is cancelled."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._slow: list[JsonValue] = []

    def take(self, message: JsonObject) -> None:
        """Answer one message."""
        method, number, params = message.get("method"), message.get("id"), message.get("params")
        given = params if is_json_object(params) else {}
        if method == "notifications/cancelled" and given.get("requestId") in self._slow:
            self._slow.remove(given["requestId"])
            self._note("cancelled")
        if number is None or method is None:
            return
        if method == "tools/call":
            self._call(number, given)
        elif (make := _RESULTS.get(str(method))) is not None:
            self._answer(number, make(given))
        else:
            _send({"id": number, "error": {"code": -32601, "message": f"{method} is not known"}})

    def end(self) -> None:
        """Record the calls that were not cancelled before the connection closed."""
        for _ in self._slow:
            self._note("abandoned")

    def _call(self, number: JsonValue, params: JsonObject) -> None:
        name, arguments, meta = (params.get(key) for key in ("name", "arguments", "_meta"))
        if name == "slow":
            self._slow.append(number)
            self._note("started")
            return
        if name == "steps" and is_json_object(meta) and "progressToken" in meta:
            for step in range(1, STEPS + 1):
                told = {"progressToken": meta["progressToken"], "progress": step, "total": STEPS}
                _send({"method": "notifications/progress", "params": told})
                # The TypeScript client drops a step that it reads together with the answer.
                time.sleep(_BETWEEN_S)
        text = arguments.get("text") if is_json_object(arguments) else None
        self._answer(number, _result(str(name), str(text)))

    def _answer(self, number: JsonValue, result: JsonObject) -> None:
        _send({"id": number, "result": result})

    def _note(self, what: str) -> None:
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")


def _hello(params: JsonObject) -> JsonObject:
    return {
        "protocolVersion": params.get("protocolVersion", "2025-11-25"),
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "shelf", "version": "1"},
    }


def _prompt(params: JsonObject) -> JsonObject:
    arguments = params.get("arguments")
    book = arguments.get("book") if is_json_object(arguments) else None
    return {"messages": [{"role": "user", "content": {"type": "text", "text": f"Find {book}."}}]}


def _read(params: JsonObject) -> JsonObject:
    known = params.get("uri") == NOTE
    return {"contents": [{"uri": NOTE, "mimeType": "text/plain", "text": NOTED}] if known else []}


_RESULTS: dict[str, Callable[[JsonObject], JsonObject]] = {
    "initialize": _hello,
    "ping": lambda _: {},
    "tools/list": lambda _: {"tools": [*TOOLS]},
    "resources/list": lambda _: {"resources": [{"uri": NOTE, "name": "note", "mimeType": "text/plain"}]},
    "resources/read": _read,
    "prompts/list": lambda _: {"prompts": [{"name": "find", "arguments": [{"name": "book", "required": True}]}]},
    "prompts/get": _prompt,
}


def _result(name: str, text: str) -> JsonObject:
    if name == "picture":
        return {"content": [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]}
    if name == "fail":
        return {"content": [{"type": "text", "text": FAILURE}], "isError": True}
    return {"content": [{"type": "text", "text": text if name == "echo" else "all steps done"}]}


def _send(message: JsonObject) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the input ends."""
    server = Server(Path(os.environ["JOURNAL"]))
    for line in sys.stdin:
        message = json.loads(line)
        if is_json_object(message):
            server.take(message)
    server.end()


if __name__ == "__main__":
    main()
