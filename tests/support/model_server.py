"""A scripted model server on the loopback with two streaming APIs.

`POST /v1/chat/completions` is the API of OpenAI and compatible servers
(https://platform.openai.com/docs/api-reference/chat), `POST /v1/messages` that of Anthropic
(https://docs.anthropic.com/en/api/messages), `GET /v1/models` the list of local servers. Every request takes the next
reply of the script, and its body is recorded.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

LIMIT_S = 60.0
"""Longer than any test takes."""


@dataclass(frozen=True)
class Reply:
    """One answer of the model: text, calls, an error, or a stalled stream."""

    text: Sequence[str] = ()
    """Pieces of the stream."""
    calls: Sequence[tuple[str, Mapping[str, object] | str]] = ()
    """Tools with their arguments; a string is sent unchanged, even invalid JSON."""
    status: int = 200
    error: str = ""
    finish: str | None = ""
    """Finish reason in the words of the API; with None the stream breaks off."""
    stalls: bool = False
    """Send the text, then nothing until the client closes the connection."""
    after: int = 0
    """Number of requests that must have arrived before it is sent; an error if they do not come."""
    delay_s: float = 0.0
    """Time before it is sent, for measurements."""


def says(*pieces: str) -> Reply:
    """Build a reply with text only."""
    return Reply(text=pieces)


def calls(name: str, /, **arguments: object) -> Reply:
    """Build a reply with one tool call."""
    return Reply(calls=((name, arguments),))


@dataclass
class ModelServer:
    """State of the server, for tests."""

    script: list[Reply]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Bodies of the requests, in order."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the model in the list."""
    props: dict[str, Any] = field(default_factory=dict[str, Any])
    """The settings that `GET /props` of llama.cpp gives."""
    arrivals: list[float] = field(default_factory=list[float])
    """When each request came, by the clock of `perf_counter`."""
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    speaking: threading.Event = field(default_factory=threading.Event)
    """Set when a stalled reply has sent its text."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a client has closed the connection during a reply."""
    ending: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    pick: Callable[[dict[str, Any], Reply], bool] = lambda body, reply: True
    """Whether a reply fits a request; the first one that does is taken."""
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def next_reply(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        """Record a request, and give the reply for it."""
        with self.lock:
            self.requests.append(body)
            self.arrivals.append(perf_counter())
            self.headers.append(headers)
            matches = [index for index, reply in enumerate(self.script) if self.pick(body, reply)]
            reply = self.script.pop(matches[0]) if matches else Reply(status=500, error="the script is at its end")
        with self.arrived:
            self.arrived.notify_all()
            if not self.arrived.wait_for(lambda: len(self.requests) >= reply.after, LIMIT_S):
                return Reply(status=500, error=f"fewer than {reply.after} requests came")
        self.ending.wait(reply.delay_s)
        return reply


@contextmanager
def model_server(*script: Reply) -> Generator[ModelServer]:
    """Run a server with a script."""
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
        """Log nothing."""

    def do_GET(self) -> None:
        row = {"id": "local-model", "object": "model", **self.server_state.facts}
        models = {"object": "list", "data": [row]}
        if self.path == "/props" and self.server_state.props:
            self._send_json(200, {"default_generation_settings": self.server_state.props})
            return
        self._send_json(200 if self.path == "/v1/models" else 404, models)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"]))
        body = cast("dict[str, Any]", json.loads(sent))
        reply = self.server_state.next_reply(body, {k.lower(): v for k, v in self.headers.items()})
        anthropic = self.path.startswith("/v1/messages")
        if reply.status != 200:
            kind = _ERRORS.get(reply.status, "api_error")
            error = {"type": kind, "message": reply.error}
            self._send_json(reply.status, {"type": "error", "error": error})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for event in _write_anthropic(reply) if anthropic else _write_openai(reply):
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

    def _send_json(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(data)


def _encode_arguments(arguments: Mapping[str, object] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _write_openai(reply: Reply) -> Iterator[bytes]:
    def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _format_data({**_CHUNK, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in reply.text:
        yield chunk({"content": piece})
    for index, (name, arguments) in enumerate(reply.calls):
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": f"call_{index}_{name}", "type": "function"}
        yield chunk({"tool_calls": [{**call, "function": function}]})
        text = _encode_arguments(arguments)
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    if reply.stalls or reply.finish is None:
        return
    yield chunk({}, reply.finish or ("tool_calls" if reply.calls else "stop"))
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield _format_data({**_CHUNK, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


_CHUNK: dict[str, object] = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1_790_000_000,
    "model": "scripted",
}


def _write_anthropic(reply: Reply) -> Iterator[bytes]:
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
    yield _format_event("message_start", {"message": message})
    index = 0
    if reply.text:
        yield from _write_block(index, {"type": "text", "text": ""}, "text_delta", "text", reply.text)
        index += 1
    for name, arguments in reply.calls:
        text = _encode_arguments(arguments)
        block: dict[str, object] = {"type": "tool_use", "id": f"toolu_{index}_{name}"}
        block |= {"name": name, "input": dict[str, object]()}
        halves = (text[: len(text) // 2], text[len(text) // 2 :])
        yield from _write_block(index, block, "input_json_delta", "partial_json", halves)
        index += 1
    if reply.stalls or reply.finish is None:
        return
    reason = reply.finish or ("tool_use" if reply.calls else "end_turn")
    stop = {"stop_reason": reason, "stop_sequence": None}
    yield _format_event("message_delta", {"delta": stop, "usage": {"output_tokens": 5}})
    yield _format_event("message_stop", {})


def _write_block(index: int, block: dict[str, object], kind: str, field: str, pieces: Sequence[str]) -> Iterator[bytes]:
    yield _format_event("content_block_start", {"index": index, "content_block": block})
    for piece in pieces:
        delta = {"type": kind, field: piece}
        yield _format_event("content_block_delta", {"index": index, "delta": delta})
    yield _format_event("content_block_stop", {"index": index})


def _format_event(event: str, value: dict[str, object]) -> bytes:
    return f"event: {event}\n".encode() + _format_data({"type": event, **value})


def _format_data(value: dict[str, object]) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
