"""The client of the Chat Completions API: requests, answers and errors."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpcore2
import pytest
from pydantic_ai import BinaryContent
from pydantic_ai import exceptions as failures
from pydantic_ai.messages import (
    ImageUrl,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from tests.support.networks import to_fetch_error

from induscode.conversations.contract import RetryScheduled
from induscode.conversations.model_loop.chat_messages import build_connection_error, replace_images, write_messages
from induscode.conversations.model_loop.providers import (
    VERBATIM,
    SessionModel,
    open_model,
    retry_listener,
    to_model_fault,
)
from induscode.conversations.models import ModelChoice

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pydantic_ai.messages import ModelMessage

    from indusagi.net.address import FetchError
    from induscode.conversations.contract import RunEvent

pytestmark = pytest.mark.anyio

JSON = "application/json"
PROMPT: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("hi")])]


@dataclass(frozen=True)
class Answer:
    """One HTTP response of the stub server."""

    body: bytes | str = b""
    status: int = 200
    kind: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    """Whether the connection ends before the body does."""


@dataclass
class Peer:
    """A server with one scripted response for each request."""

    answers: list[Answer]
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    paths: list[str] = field(default_factory=list[str])


@contextmanager
def serve(*answers: Answer) -> Generator[Peer]:
    peer = Peer([*answers])

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            peer.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            peer.headers.append({name.lower(): value for name, value in self.headers.items()})
            peer.paths.append(self.path)
            answer = peer.answers.pop(0)
            body = answer.body.encode() if isinstance(answer.body, str) else answer.body
            self.send_response(answer.status)
            self.send_header("content-type", answer.kind)
            self.send_header("content-length", str(len(body) + answer.cut))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    peer.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c1', 'choices': [choice], **more}, ensure_ascii=False)}\n\n"


def call(arguments: str | None = "{}", **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("arguments", arguments),) if value is not None}
    if name := more.pop("name", None):
        function["name"] = name
    return {"tool_calls": [{**more, "function": function}]}


async def ask(
    url: str,
    messages: list[ModelMessage] | None = None,
    *,
    tools: Sequence[ToolDefinition] = (),
    key: str | None = "k",
    dialect: Any = "compatible",
) -> ModelResponse:
    parameters = ModelRequestParameters(function_tools=[*tools])
    async with SessionModel(open_model(ModelChoice(dialect, "m", url, key))) as model:
        async with model.request_stream(messages or PROMPT, None, parameters) as answer:
            async for _ in answer:
                pass
            return answer.get()


async def answer_to(*answers: Answer) -> ModelResponse:
    with serve(*answers) as peer:
        return await ask(peer.url)


def stream(*chunks: str, end: str = "data: [DONE]\n\n") -> Answer:
    return Answer("".join(chunks) + end)


# -- requests -------------------------------------------------------------------------------------


async def test_request_contains_conversation_and_tools_only() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "default": "é"}}}
    tool = ToolDefinition(name="t", description="T.", parameters_json_schema=schema, strict=False)
    request = ModelRequest(parts=[UserPromptPart("hi \ud800")], instructions="be brief")
    with serve(stream(chunk({"content": "yes"}, "stop"))) as peer:
        await ask(peer.url + "/", [request], tools=[tool])
    assert peer.paths == ["/v1/chat/completions"]
    assert peer.bodies == [
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi ?"}],
            "tool_choice": "auto",
            "tools": [{"type": "function", "function": {"name": "t", "description": "T.", "parameters": schema}}],
        }
    ]


@pytest.mark.parametrize("dialect", ["openai", "compatible"])
async def test_key_is_sent_if_set_and_account_headers_to_openai_only(
    monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj")
    done = stream(chunk({"content": "yes"}, "stop"))
    with serve(done, done) as peer:
        await ask(peer.url, dialect=dialect)
        await ask(peer.url, dialect=dialect, key=None)
    first, second = peer.headers
    assert (first["authorization"], second.get("authorization")) == ("Bearer k", None)
    ours = dialect == "openai"
    assert first.get("openai-organization") == ("org" if ours else None)
    assert first.get("openai-project") == ("proj" if ours else None)


def test_conversation_is_written_in_the_format_of_the_api() -> None:
    png = BinaryContent(b"p", media_type="image/png")
    files = [
        "look",
        TextContent("note"),
        png,
        BinaryContent(b"w", media_type="audio/wav"),
        BinaryContent(b"%PDF", media_type="application/pdf"),
        BinaryContent(b"a,\xff", media_type="text/csv"),
        BinaryContent(b"zip", media_type="application/zip"),
        ImageUrl("http://x/y.png"),
    ]
    messages: list[ModelMessage] = [
        ModelRequest(parts=[SystemPromptPart("sys"), UserPromptPart(files)]),
        ModelResponse(
            parts=[
                ThinkingPart("hm", id="reasoning_content", provider_name="local"),
                TextPart("one"),
                ToolCallPart("t", '{"a":1}', tool_call_id="c1"),
                TextPart("two"),
            ]
        ),
        ModelRequest(
            parts=[ToolReturnPart("t", "fine", tool_call_id="c1"), ToolReturnPart("t", ["see", png], tool_call_id="c2")]
        ),
        ModelResponse(parts=[ToolCallPart("t", {"b": 2}, tool_call_id="c3")]),
        ModelResponse(parts=[ThinkingPart("alone", id="reasoning", provider_name="local")]),
        ModelResponse(parts=[ThinkingPart("of another", provider_name="anthropic")]),
    ]
    written = write_messages(messages, ["briefing"], "local")
    assert [one["role"] for one in written] == [
        *("system", "system", "user", "assistant", "tool", "tool", "user"),
        *("assistant", "assistant"),
    ]
    assert written[2]["content"][:2] == [{"type": "text", "text": "look"}, {"type": "text", "text": "note"}]
    image, sound, document, table, rest, link = written[2]["content"][2:]
    assert image == {"type": "image_url", "image_url": {"url": "data:image/png;base64,cA=="}}
    assert sound == {"type": "input_audio", "input_audio": {"data": "dw==", "format": "wav"}}
    assert document["file"]["file_data"].startswith("data:application/pdf;base64,")
    assert table == {"type": "text", "text": "a,\ufffd"}
    assert "application/zip" in rest["text"]
    assert "left out" in link["text"]
    assert written[3] == {
        "role": "assistant",
        "reasoning_content": "hm",
        "content": "one\n\ntwo",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "t", "arguments": '{"a":1}'}}],
    }
    assert written[4] == {"role": "tool", "tool_call_id": "c1", "content": "fine"}
    assert image in written[6]["content"]
    assert written[7]["content"] is None
    assert written[7]["reasoning_content"] == ""  # DeepSeek wants it in every call of a turn
    assert written[8]["content"] == "<think>\nof another\n</think>"


# -- answers --------------------------------------------------------------------------------------


async def test_text_reasoning_and_calls_keep_their_order() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": "x"},
        "cost": 0.25,
    }
    found = await answer_to(
        stream(
            ": a comment\n\n",
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "let me "}),
            chunk({"reasoning_content": "see"}),
            chunk({"content": "Look\u2028"}),  # a line end in JSON, and none in an event stream
            chunk({"content": [{"type": "text", "text": "ing."}]}),
            chunk(call("", index=0, id="c1", name="one")),
            chunk(call('{"a":', index=0)),
            chunk(call("1}", index=0, name="one")),
            chunk(call('{"b":2}', index=1, id="c2", name="two")),
            chunk({"content": "Done."}),
            chunk(finish="tool_calls", model="m-2"),
            f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n",
        )
    )
    assert [(type(part).__name__, getattr(part, "content", None)) for part in found.parts] == [
        ("ThinkingPart", "let me see"),
        ("TextPart", "Look\u2028ing."),
        ("ToolCallPart", None),
        ("ToolCallPart", None),
        ("TextPart", "Done."),
    ]
    calls = [part for part in found.parts if isinstance(part, ToolCallPart)]
    assert [(one.tool_name, one.args, one.tool_call_id) for one in calls] == [
        ("one", '{"a":1}', "c1"),
        ("two", '{"b":2}', "c2"),
    ]
    assert (found.finish_reason, found.model_name) == ("tool_call", "m-2")
    assert (found.usage.input_tokens, found.usage.output_tokens) == (10, 4)
    assert (found.usage.cache_read_tokens, found.usage.cache_write_tokens) == (6, 0)
    assert float(found.usage.cost or 0) == 0.25
    assert found.provider_response_id == "c1"


@pytest.mark.parametrize("index", [0, None, {}])
async def test_calls_without_an_index_are_distinguished_by_id(index: Any) -> None:
    found = await answer_to(
        stream(
            chunk(call('{"a":1}', index=index, id="c1", name="one")),
            chunk(call('{"b":', index=index, id="c2", name="two")),
            chunk(call("2}", index=index, id="")),
            chunk(call(None, index=index)),
            chunk({"tool_calls": ["?"]}),
            chunk(finish="tool_calls"),
        )
    )
    assert [(one.tool_name, one.args) for one in found.parts if isinstance(one, ToolCallPart)] == [
        ("one", '{"a":1}'),
        ("two", '{"b":2}'),
    ]


async def test_reasoning_in_tags_is_not_text() -> None:
    pieces = ("<think>", "hm", "</think>", "yes")
    streamed = await answer_to(stream(*(chunk({"content": one}) for one in pieces)))
    message = {"role": "assistant", "content": "<think>hm</think>\n\nyes"}
    choices = [{"message": message, "finish_reason": "stop"}]
    whole = await answer_to(Answer(json.dumps({"choices": choices}), kind=JSON))
    for found in (streamed, whole):
        assert [type(part) for part in found.parts] == [ThinkingPart, TextPart]
        assert [part.content for part in found.parts if isinstance(part, TextPart)] == ["yes"]


@pytest.mark.parametrize("kind", [JSON, "application/json; charset=utf-8"])
async def test_answer_without_streaming_is_read(kind: str) -> None:
    calls = [
        {"id": "c1", "function": {"name": "one", "arguments": "{}"}},
        {"id": "c2", "function": {"name": "two", "arguments": {"b": 2}}},
        "?",
    ]
    message = {"role": "assistant", "content": "yes", "tool_calls": calls}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "model": "m-2"}
    found = await answer_to(Answer(json.dumps(body), kind=kind))
    assert [type(part) for part in found.parts] == [TextPart, ToolCallPart, ToolCallPart]
    assert found.finish_reason == "tool_call"
    assert [one.tool_call_id for one in found.parts if isinstance(one, ToolCallPart)] == ["c1", "c2"]


def test_images_of_prompts_are_replaced_and_results_of_any_kind_stay() -> None:
    png = BinaryContent(b"p", media_type="image/png")
    result = ToolReturnPart("count", 7, "1")
    plain = ModelRequest(parts=[result, UserPromptPart("look"), UserPromptPart(["look", "again"])])
    assert replace_images(plain) is plain
    changed = replace_images(ModelRequest(parts=[result, UserPromptPart(["look", png])]))
    assert changed.parts[0] is result
    assert isinstance(changed.parts[1], UserPromptPart)
    assert changed.parts[1].content == ["look", "[image/png, 1 bytes: left out, this model does not take it]"]


async def test_refusal_and_stream_with_another_content_type_are_read() -> None:
    body = chunk({"refusal": "I may not"}) + chunk(finish="stop")
    found = await answer_to(Answer(body, kind="text/plain"))
    assert [part.content for part in found.parts if isinstance(part, TextPart)] == ["I may not"]
    assert found.finish_reason == "stop"


@pytest.mark.parametrize(
    "odd",
    [
        "data: {}\n\n",
        'data: {"choices": null}\n\n',
        'data: {"choices": [null]}\n\n',
        'data: {"choices": [{"delta": null}]}\n\n',
        'data: {"choices": [{"delta": {"content": 5, "tool_calls": 5}}], "usage": 5}\n\n',
        "data: \n\n",
    ],
)
async def test_empty_chunks_are_ignored(odd: str) -> None:
    found = await answer_to(stream(odd, chunk({"content": "yes"}), odd))
    assert [part.content for part in found.parts if isinstance(part, TextPart)] == ["yes"]


# -- errors ---------------------------------------------------------------------------------------


async def fault_from(*answers: Answer) -> tuple[str, str]:
    with serve(*answers) as peer:
        with pytest.raises(failures.AgentRunError) as raised:
            await ask(peer.url)
    fault = to_model_fault(raised.value, peer.url)
    return fault.kind, str(fault)


def error(status: int, message: str = "no", **more: Any) -> Answer:
    body = json.dumps({"error": {"message": message, **more}})
    return Answer(body, status, JSON, {"x-should-retry": "false"})


def broken(said: str) -> Answer:
    return stream(f'data: {{"error": {said}}}\n\n')


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(401), "auth"),
        (error(403), "auth"),
        (error(400, code="invalid_api_key"), "auth"),
        (error(402), "quota"),
        (error(429, code="insufficient_quota"), "quota"),
        (error(429, type="insufficient_quota"), "quota"),
        (error(429), "rate_limit"),
        (error(404), "not_found"),
        (error(400, code="model_not_found"), "not_found"),
        (error(400, code="context_length_exceeded"), "context_window"),
        (error(400, "This model's maximum context length is 9 tokens"), "context_window"),
        (error(400, type="exceed_context_size_error", code=400), "context_window"),
        (error(500, "the request exceeds the available context size"), "context_window"),
        (error(400), "rejected"),
        (error(413), "rejected"),
        (error(422), "rejected"),
        (error(500), "server"),
        (error(503), "server"),
        (error(529), "server"),
        (error(418), "server"),
        (broken('{"message": "no", "code": "overloaded"}'), "server"),
        (broken('{"message": "no", "code": "rate_limit_error"}'), "rate_limit"),
        (broken('{"message": "no", "code": 401}'), "auth"),
        (broken('{"message": "no", "type": "server_error"}'), "server"),
        (broken('{"message": "no"}'), "server"),
        (broken('"no"'), "server"),
        (Answer('{"error": "no"}', kind=JSON), "server"),
    ],
)
async def test_error_keeps_its_kind_and_message(answer: Answer, kind: str) -> None:
    found, said = await fault_from(answer)
    assert found == kind
    assert "no" in said or "context" in said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer("<p>" + "x" * 900, 404, "text/html"), "…"),
        (Answer("bad gateway", 404, "text/plain"), "bad gateway"),
        (Answer("<html>hello</html>", kind="text/html"), "text/html without an answer"),
        (Answer("{}", kind=JSON), "without an answer"),
        (Answer("[1]", kind=JSON), "invalid JSON"),
        (stream("data: {not json\n\n"), "invalid JSON"),
        (stream(end=""), "without an answer"),
        (Answer("", 308, JSON, {"location": "http://127.0.0.1:9/v2"}), "127.0.0.1:9/v2"),
    ],
)
async def test_invalid_answer_is_reported_in_one_line(answer: Answer, said: str) -> None:
    _, told = await fault_from(answer)
    assert said in told
    assert "\n" not in told
    assert len(told) < 700


async def test_key_is_not_sent_to_a_redirect() -> None:
    with serve() as other:
        moved = Answer("", 307, JSON, {"location": other.url + "/chat/completions"})
        kind, said = await fault_from(moved)
    assert other.bodies == []
    assert (kind, other.url in said) == ("server", True)


async def test_broken_connection_is_reported() -> None:
    whole = Answer(chunk({"content": "half"}), cut=True)
    kind, said = await fault_from(whole)
    assert kind == "connection"
    assert "broke" in said


async def _add(events: list[RunEvent], event: RunEvent) -> None:
    events.append(event)


async def test_request_is_retried_after_transient_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.conversations.model_loop.providers._FIRST_DELAY_S", 0.01)
    waits = {"retry-after": "0"}
    passing = [Answer("", status, JSON, waits) for status in (503, 429)]
    with serve(*passing, stream(chunk({"content": "yes"}, "stop"))) as peer:
        said: list[RunEvent] = []
        token = retry_listener.set(partial(_add, said))
        await ask(peer.url)
        retry_listener.reset(token)
    assert len(peer.bodies) == 3
    described = [(one.reason, one.attempt, one.attempts) for one in said if isinstance(one, RetryScheduled)]
    assert described == [("The model is busy", 2, 10), ("Rate limited", 3, 10)]
    for dialect in ("compatible", "anthropic"):
        with serve(*[Answer("", 500, JSON, waits)] * 3) as peer:
            said.clear()
            token = retry_listener.set(partial(_add, said))
            with pytest.raises(failures.ModelHTTPError):
                await ask(peer.url, dialect=dialect)
            retry_listener.reset(token)
        assert (len(peer.bodies), len(said)) == (3, 2)
    for final in (Answer("", 400, JSON), Answer("", 429, JSON, {"retry-after": "3600"})):
        with serve(final) as peer, pytest.raises(failures.ModelHTTPError):
            await ask(peer.url)
        assert len(peer.bodies) == 1


async def test_unreachable_server_is_retried_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def wait(delay: float) -> None:
        waits.append(delay)

    with serve() as gone:
        pass
    monkeypatch.setattr(anyio, "sleep", wait)
    with pytest.raises(failures.ModelConnectionError) as raised:
        await ask(gone.url)
    fault = to_model_fault(raised.value, gone.url)
    assert (fault.kind, "Is the server running?" in str(fault)) == ("connection", True)
    assert len(waits) == 2
    assert waits[0] < waits[1] <= 1


async def test_certificates_are_loaded_unless_address_and_proxies_are_plain_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from induscode.conversations.model_loop import chat as model  # noqa: PLC0415 — its parts are private

    loaded: list[str] = []
    monkeypatch.setattr(model, "shared_tls", lambda: loaded.append("certificates"))
    for url, proxy, expected in (
        ("http://127.0.0.1/v1", "https://proxy:1", False),
        ("http://model.example/v1", "", False),
        ("http://model.example/v1", "https://proxy:1", True),
        ("https://model.example/v1", "", True),
    ):
        monkeypatch.setenv("http_proxy", proxy)
        await model.ChatModel("m", system="local", base_url=url, headers={}, profile=VERBATIM)._open("/models")
        assert bool(loaded) is expected, url
        loaded.clear()


async def test_first_requests_at_the_same_time_share_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    from induscode.conversations.model_loop import chat as module  # noqa: PLC0415 — its parts are private

    def open_network(**_: object) -> object:
        return object()

    found: list[object] = []
    both = threading.Barrier(2)
    monkeypatch.setattr(module, "shared_tls", both.wait)
    monkeypatch.setattr(module, "open_network", open_network)
    model = module.ChatModel("m", system="s", base_url="https://model.example/v1", headers={}, profile=VERBATIM)

    async def open_one() -> None:
        found.append((await model._open("/models"))[1])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_one)
        tasks.start_soon(open_one)
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpcore2.ConnectTimeout(""), "does not accept the connection in time"),
        (httpcore2.ReadTimeout(""), "does not answer in time"),
        (httpcore2.ReadError(""), "the connection broke: ReadError"),
    ],
)
def test_connection_error_names_the_cause(error: Exception, said: str) -> None:
    found = build_connection_error("m", cast("FetchError", to_fetch_error(error)))
    assert said in found.message
    assert isinstance(found, failures.ModelTimeoutError) == isinstance(error, httpcore2.TimeoutException)
