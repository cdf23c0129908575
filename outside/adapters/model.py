"""A scripted model behind three APIs: Responses, Chat Completions and Messages.

It calls one tool as long as the request has no result of a tool, and then says a sentence. What the frameworks send is
kept: the results are read out of the requests as a model would see them.
"""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator

DONE = "That is all."
Row = dict[str, Any]


@dataclass(slots=True)
class Seen:
    """What reached the model: the tools, and the result of its call."""

    tools: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])
    images: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text of the result."""
        return "\n".join(self.texts)


class ScriptedModel:
    """The script of the server, and what it has seen."""

    def __init__(self) -> None:
        self.url = ""
        self.tool, self.arguments = "", dict[str, Any]()
        self._answers = count(1)
        self.seen = Seen()

    def expect(self, tool: str, **arguments: Any) -> Seen:
        """Call this tool in the next conversation, and forget the last one."""
        self.tool, self.arguments, self.seen = tool, arguments, Seen()
        return self.seen

    def new_id(self) -> str:
        """Return an id that no answer has had."""
        return f"id_{next(self._answers)}"

    def choose(self, names: list[str], has_result: bool) -> str | None:
        """Return the name of the tool to call; None for a sentence. A framework may put a prefix before the name."""
        if names:
            self.seen.tools = names
        named = [name for name in names if name == self.tool or name.endswith(f"__{self.tool}")]
        return None if has_result or not named else named[0]


@contextmanager
def scripted_model() -> Generator[ScriptedModel]:
    """Serve a model on loopback."""
    model = ScriptedModel()

    class Handler(_Handler):
        script = model

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    script: ScriptedModel

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        """Answer a request of a framework."""
        request: Row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        if path.endswith("/responses"):
            self._send(_answer_responses(self.script, request))
        elif path.endswith("/chat/completions"):
            self._send(_answer_chat(self.script, request))
        elif path.endswith("/messages"):
            answer = _answer_messages(self.script, request)
            if request.get("stream"):
                self._stream(answer)
            else:
                self._send(answer)
        else:
            self._send({"input_tokens": 1})

    def do_GET(self) -> None:
        """Answer everything else that a framework may ask."""
        self._send({"data": []})

    def _send(self, answer: Row) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, message: Row) -> None:
        """Write a message as events: https://docs.anthropic.com/en/docs/build-with-claude/streaming."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        (block,) = message["content"]
        is_call = block["type"] == "tool_use"
        start: Row = {**block, "input": {}} if is_call else {**block, "text": ""}
        delta: Row = {"type": "text_delta", "text": block.get("text")}
        if is_call:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        events: list[Row] = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self.close_connection = True


def _answer_responses(model: ScriptedModel, request: Row) -> Row:
    items = cast("list[Row]", request["input"]) if isinstance(request["input"], list) else []
    results = [item for item in items if item.get("type") == "function_call_output"]
    for result in results:
        _read_parts(model.seen, result["output"])
    name = model.choose([tool["name"] for tool in request.get("tools") or ()], bool(results))
    text: Row = {"type": "output_text", "text": DONE, "annotations": []}
    item: Row = {"type": "message", "id": model.new_id(), "role": "assistant", "status": "completed", "content": [text]}
    if name is not None:
        arguments = json.dumps(model.arguments)
        item = {"type": "function_call", "id": model.new_id(), "call_id": "c1", "name": name, "arguments": arguments}
    return {
        "id": model.new_id(),
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": "scripted",
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 1,
            "output_tokens": 1,
            "total_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _answer_chat(model: ScriptedModel, request: Row) -> Row:
    messages: list[Row] = request["messages"]
    results = [message for message in messages if message["role"] == "tool"]
    for message in results:
        _read_parts(model.seen, message["content"])
    if results:
        for message in messages[messages.index(results[-1]) :]:
            if message["role"] == "user":
                _read_parts(model.seen, message["content"])
    name = model.choose([tool["function"]["name"] for tool in request.get("tools") or ()], bool(results))
    message: Row = {"role": "assistant", "content": DONE}
    if name is not None:
        function = {"name": name, "arguments": json.dumps(model.arguments)}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        }
    choice = {"index": 0, "message": message, "finish_reason": "stop" if name is None else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": model.new_id(), "object": "chat.completion", "created": 0, "model": "scripted"}
    return {**head, "choices": [choice], "usage": usage}


def _answer_messages(model: ScriptedModel, request: Row) -> Row:
    blocks: list[Row] = [
        block for message in request["messages"] if isinstance(message["content"], list) for block in message["content"]
    ]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    for result in results:
        _read_parts(model.seen, result.get("content") or "")
        model.seen.is_error |= result.get("is_error") is True
    name = model.choose([tool["name"] for tool in request.get("tools") or ()], bool(results))
    block: Row = {"type": "text", "text": DONE}
    if name is not None:
        block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": model.arguments}
    head = {"id": model.new_id(), "type": "message", "role": "assistant", "model": "scripted", "stop_sequence": None}
    reason = "end_turn" if name is None else "tool_use"
    return {**head, "content": [block], "stop_reason": reason, "usage": {"input_tokens": 1, "output_tokens": 1}}


def _read_parts(seen: Seen, content: Any) -> None:
    """Read the parts of a result in the form of any of the APIs."""
    if isinstance(content, str):
        seen.texts.append(content)
        return
    for part in content:
        image = part.get("image_url")
        url = cast("Row", image)["url"] if isinstance(image, dict) else image
        if isinstance(url, str) and url.startswith("data:"):
            media_type, _, data = url.removeprefix("data:").partition(";base64,")
            seen.images.append((media_type, base64.b64decode(data)))
        elif part.get("type") == "image":
            source = part["source"]
            seen.images.append((source["media_type"], base64.b64decode(source["data"])))
        elif "text" in part:
            seen.texts.append(part["text"])
