"""A model's server on the loopback, which speaks two real dialects and says what a script tells it.

`POST /v1/chat/completions` is the streaming API of OpenAI and of all who follow it, `POST
/v1/messages` that of Anthropic, `GET /v1/models` the list that local servers give. Every request
takes the next reply of the script, and its body is kept.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

LIMIT_S = 20.0
"""Far beyond what anything here takes."""


@dataclass(frozen=True)
class Reply:
    """What the model does once: says something, calls tools, refuses, or falls silent."""

    text: Sequence[str] = ()
    """Piece by piece."""
    calls: Sequence[tuple[str, Mapping[str, object] | str]] = ()
    """Tools with their arguments; a string is sent as it is, be it JSON or not."""
    status: int = 200
    error: str = ""
    finish: str | None = ""
    """Why it ends, in the words of the dialect; None: it breaks off."""
    stalls: bool = False
    """Say the text and then nothing more, until the reader leaves."""


def says(*pieces: str) -> Reply:
    """Have the model say something and be done."""
    return Reply(text=pieces)


def calls(name: str, /, **arguments: object) -> Reply:
    """Have the model call one tool."""
    return Reply(calls=((name, arguments),))


@dataclass
class ModelServer:
    """The server as a test sees it."""

    script: list[Reply]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The bodies, in their order."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else is said of the model in the list."""
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    speaking: threading.Event = field(default_factory=threading.Event)
    """Set once a reply that stalls has said what it says."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set once a reader has left in the middle of a reply."""
    ending: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_reply(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        """Take a request, and give what is to be said to it."""
        with self.lock:
            self.requests.append(body)
            self.headers.append(headers)
            if not self.script:
                return Reply(status=500, error="the script is at its end")
            return self.script.pop(0)


@contextmanager
def model_server(*script: Reply) -> Generator[ModelServer]:
    """Serve a script."""
    state = ModelServer([*script])

    class Handler(_Handler):
        server_state = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="model server")
    thread.start()
    try:
        yield state
    finally:
        state.ending.set()
        server.shutdown()
        server.server_close()
        thread.join()


_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}


class _Handler(BaseHTTPRequestHandler):
    server_state: ModelServer
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        row = {"id": "local-model", "object": "model", **self.server_state.facts}
        models = {"object": "list", "data": [row]}
        self._whole(200 if self.path == "/v1/models" else 404, models)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"]))
        body = cast("dict[str, Any]", json.loads(sent))
        reply = self.server_state.next_reply(body, {k.lower(): v for k, v in self.headers.items()})
        anthropic = self.path.startswith("/v1/messages")
        if reply.status != 200:
            kind = _ERRORS.get(reply.status, "api_error")
            error = {"type": kind, "message": reply.error}
            self._whole(reply.status, {"type": "error", "error": error})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for event in _anthropic(reply) if anthropic else _openai(reply):
                self.wfile.write(event)
                self.wfile.flush()
            if reply.stalls:
                self._stall()
        except (BrokenPipeError, ConnectionResetError):
            self.server_state.left.set()

    def _stall(self) -> None:
        self.server_state.speaking.set()
        for _ in range(int(LIMIT_S / 0.02)):
            if self.server_state.ending.wait(0.02):
                return
            self.wfile.write(b": still here\n\n")
            self.wfile.flush()

    def _whole(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(data)


def _text(arguments: Mapping[str, object] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _openai(reply: Reply) -> Iterator[bytes]:
    def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _sse({**_CHUNK, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in reply.text:
        yield chunk({"content": piece})
    for index, (name, arguments) in enumerate(reply.calls):
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": f"call_{index}_{name}", "type": "function"}
        yield chunk({"tool_calls": [{**call, "function": function}]})
        text = _text(arguments)
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if reply.stalls or reply.finish is None:
        return
    yield chunk({}, reply.finish or ("tool_calls" if reply.calls else "stop"))
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield _sse({**_CHUNK, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


_CHUNK: dict[str, object] = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1_790_000_000,
    "model": "scripted",
}


def _anthropic(reply: Reply) -> Iterator[bytes]:
    message: dict[str, object] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    yield _named("message_start", {"message": message})
    index = 0
    if reply.text:
        yield from _block(index, {"type": "text", "text": ""}, "text_delta", "text", reply.text)
        index += 1
    for name, arguments in reply.calls:
        text = _text(arguments)
        block: dict[str, object] = {"type": "tool_use", "id": f"toolu_{index}_{name}"}
        block |= {"name": name, "input": dict[str, object]()}
        halves = (text[: len(text) // 2], text[len(text) // 2 :])
        yield from _block(index, block, "input_json_delta", "partial_json", halves)
        index += 1
    if reply.stalls or reply.finish is None:
        return
    reason = reply.finish or ("tool_use" if reply.calls else "end_turn")
    stop = {"stop_reason": reason, "stop_sequence": None}
    yield _named("message_delta", {"delta": stop, "usage": {"output_tokens": 5}})
    yield _named("message_stop", {})


def _block(index: int, block: dict[str, object], kind: str, field: str, pieces: Sequence[str]) -> Iterator[bytes]:
    yield _named("content_block_start", {"index": index, "content_block": block})
    for piece in pieces:
        delta = {"type": kind, field: piece}
        yield _named("content_block_delta", {"index": index, "delta": delta})
    yield _named("content_block_stop", {"index": index})


def _named(event: str, value: dict[str, object]) -> bytes:
    return f"event: {event}\n".encode() + _sse({"type": event, **value})


def _sse(value: dict[str, object]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
