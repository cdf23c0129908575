"""Client for a model on a Chat Completions server, with streamed responses.

API: https://platform.openai.com/docs/api-reference/chat. OpenAI, compatible providers and local servers speak it. The
`openai` package does the same and more, but importing it would add nearly the import time of the whole model loop to
every start: docs/decisions/0040-chat-client.md.

It reads server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) and, from servers without
streaming, a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from anyio import move_on_after, to_thread
from pydantic_ai import exceptions as failures
from pydantic_ai.messages import FinishReason, PartStartEvent, TextPart, ThinkingPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.usage import RequestUsage

from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.time import now_ms
from indusagi.net.address import FetchError, HttpPolicy, WebUrl, parse_url
from indusagi.net.client import EventParser, get_media_type
from indusagi.net.dial import HttpAnswer, Network, find_proxy, open_network, shared_tls
from induscode.conversations.model_loop.chat_messages import (
    REASONING_FIELDS,
    THINKING_TAGS,
    build_connection_error,
    build_status_error,
    build_stream_error,
    parse_body,
    write_messages,
    write_tool,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.profiles import ModelProfile
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext


_END = "[DONE]"
_ENDED: JsonObject = {}
"""Chunk for the end of a complete stream."""
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
}


@dataclass
class ChatStream(StreamedResponse):
    """Streamed response: text, reasoning and tool calls as pydantic-ai parts."""

    response: HttpAnswer
    name: str
    system: str
    address: str
    started: datetime = field(default_factory=lambda: datetime.fromtimestamp(now_ms() / 1000, UTC))
    calls: dict[object, tuple[str, object]] = field(default_factory=dict[Any, Any])
    """Maps an index to the id of the current call and the key of its part."""
    segment: int = 0
    """How often reasoning or a call has interrupted the text."""
    open_text: bool = False

    @property
    def model_name(self) -> str:
        """Model name as reported by the server."""
        return self.name

    @property
    def provider_name(self) -> str:
        """Provider name."""
        return self.system

    @property
    def provider_url(self) -> str:
        """Address of the API."""
        return self.address

    @property
    def timestamp(self) -> datetime:
        """Start time of the response."""
        return self.started

    async def close_stream(self) -> None:
        """Close the connection, which stops the server."""
        await self.response.aclose()

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        try:
            async for chunk in _read_chunks(self.response, self.name):
                if chunk is _ENDED:
                    self.provider_details = {"ended": True, **(self.provider_details or {})}
                for event in self._take_chunk(chunk):
                    yield event
        except FetchError as exc:
            raise build_connection_error(self.name, exc) from exc
        if self.finish_reason is None and not self.cancelled:
            self.finish_reason = "stop"  # some servers send no reason

    def _take_chunk(self, chunk: JsonObject) -> Iterator[ModelResponseStreamEvent]:
        if isinstance(model := chunk.get("model"), str) and model:
            self.name = model
        if isinstance(answer_id := chunk.get("id"), str) and answer_id:
            self.provider_response_id = answer_id
        if is_json_object(usage := chunk.get("usage")):
            details = usage.get("prompt_tokens_details")
            cached = details if is_json_object(details) else {}
            cost = usage.get("cost")  # OpenRouter sends it
            # Some servers send usage with every chunk; the last one has the total.
            self._usage = RequestUsage(
                input_tokens=_read_count(usage, "prompt_tokens"),
                output_tokens=_read_count(usage, "completion_tokens"),
                cache_read_tokens=_read_count(cached, "cached_tokens"),
                cache_write_tokens=_read_count(cached, "cache_write_tokens"),
                cost=Decimal(str(cost)) if isinstance(cost, int | float) else None,
            )
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not is_json_object(choice):
            return
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = _FINISH_REASONS.get(reason)
            self.provider_details = {**(self.provider_details or {}), "finish_reason": reason}
        if is_json_object(delta := choice.get("delta")):
            yield from self._take_delta(delta)

    def _take_delta(self, delta: JsonObject) -> Iterator[ModelResponseStreamEvent]:
        for name in REASONING_FIELDS:
            if isinstance(thought := delta.get(name), str) and thought:
                self._end_text()
                yield from self._parts_manager.handle_thinking_delta(
                    vendor_part_id=(name, self.segment), id=name, content=thought, provider_name=self.system
                )
                break
        # A refusal replaces the text and gives the reason.
        if text := _join_text(delta.get("content") or delta.get("refusal")):
            for event in self._parts_manager.handle_text_delta(
                vendor_part_id=("text", self.segment), content=text, thinking_tags=THINKING_TAGS
            ):
                if isinstance(event, PartStartEvent):
                    self.open_text = isinstance(event.part, TextPart)
                    if isinstance(event.part, ThinkingPart):
                        event.part.id, event.part.provider_name = "content", self.system
                yield event
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if is_json_object(call):
                yield from self._take_call(call)

    def _take_call(self, call: JsonObject) -> Iterator[ModelResponseStreamEvent]:
        self._end_text()
        function = call.get("function")
        fields = function if is_json_object(function) else {}
        call_id, place = call.get("id"), call.get("index")
        index = place if isinstance(place, int) else None
        new_id = call_id if isinstance(call_id, str) and call_id else None
        known, key = self.calls.get(index, ("", None))
        # Some servers send index 0 for every call, or no index, so a new id starts a new call.
        if key is None or (new_id is not None and new_id != known):
            known, key = new_id or "", (index, len(self.calls), new_id)
            self.calls[index] = (known, key)
            name = fields.get("name")
        else:
            name = None  # some servers repeat the name in every piece
        arguments = fields.get("arguments")
        yield from self._parts_manager.handle_tool_call_delta_events(
            vendor_part_id=key,
            tool_name=name if isinstance(name, str) else None,
            args=arguments if isinstance(arguments, str | dict) else None,
            tool_call_id=new_id,
        )

    def _end_text(self) -> None:
        if self.open_text:
            self.segment += 1
            self.open_text = False


async def _read_chunks(response: HttpAnswer, model: str) -> AsyncIterator[JsonObject]:
    """Read the chunks of a response. A server without streaming sends one JSON object."""
    kind = get_media_type(response.headers)
    count = 0
    if kind == "application/json":
        for chunk in _split_answer(_parse_chunk(await _read_text(response), model)):
            count += 1
            yield chunk
    else:
        async for data in _read_events(response):
            if data == _END:
                yield _ENDED
                break
            if data:
                count += 1
                yield _parse_chunk(data, model)
    if not count:
        raise failures.UnexpectedModelBehavior(
            f"its server sent {kind or 'something'} without an answer in it: check the address"
        )


async def _read_events(response: HttpAnswer) -> AsyncIterator[str]:
    parser = EventParser(sys.maxsize)
    async for piece in response.pieces:
        for event in parser.feed(piece):
            yield event.data.decode("utf-8", "replace").strip()
    for event in parser.feed(b"\n\n"):  # some servers don't end their last event
        yield event.data.decode("utf-8", "replace").strip()


async def _read_text(response: HttpAnswer) -> str:
    return b"".join([piece async for piece in response.pieces]).decode("utf-8", "replace")


def _parse_chunk(text: str, model: str) -> JsonObject:
    value = parse_body(text)
    if not is_json_object(value):
        raise failures.UnexpectedModelBehavior(f"its server sent invalid JSON: {value!r:.200}")
    if value.get("error"):
        raise build_stream_error(model, value["error"])
    return value


def _split_answer(answer: JsonObject) -> Iterator[JsonObject]:
    """Split a non-streamed response into chunks."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if is_json_object(choice) else None
    if not is_json_object(choice) or not is_json_object(message):
        return
    calls = message.get("tool_calls")
    numbered = [
        {"index": index, **call} if is_json_object(call) else call
        for index, call in enumerate(calls if isinstance(calls, list) else [])
    ]
    text = _join_text(message.get("content"))
    start, end = THINKING_TAGS
    thought, closed, rest = text.removeprefix(start).partition(end)
    if text.startswith(start) and closed:
        for piece in (start, thought, end):
            yield {"choices": [{"delta": {"content": piece}}]}
        text = rest.lstrip()
    delta = cast("JsonObject", {**message, "content": text, "tool_calls": numbered})
    yield {**answer, "choices": [{**choice, "delta": delta}]}


def _join_text(content: object) -> str:
    """Join the text of a delta, which some servers send as a list of parts."""
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if is_json_object(part)]
    return "".join(text for text in texts if isinstance(text, str))


def _read_count(counts: JsonObject, key: str) -> int:
    count = counts.get(key)
    return count if isinstance(count, int) and count > 0 else 0


_CONNECT_TIMEOUT_S = 30.0
_READ_TIMEOUT_S = 600.0
_IDLE_CONNECTIONS = 4
_LIST_LIMIT_S = 5.0
"""Time limit for the list of models after a request for an unknown one."""
_MAX_LISTED = 5
_MAX_NAME_CHARS = 100


class ChatModel(Model[Any]):
    """Client for one model on one server. It owns the connections, so enter it before the first request."""

    def __init__(
        self, name: str, *, system: str, base_url: str, headers: Mapping[str, str], profile: ModelProfile
    ) -> None:
        """Create a client for model `name` of provider `system`, with the API at `base_url`."""
        super().__init__(profile=profile)
        self._name, self._system, self._address = name, system, base_url
        self._headers = {"user-agent": HttpPolicy().user_agent, "accept": "application/json", **headers}
        self._network: Network | None = None

    @property
    def model_name(self) -> str:
        """Model name as configured."""
        return self._name

    @property
    def system(self) -> str:
        """Provider name."""
        return self._system

    @property
    def base_url(self) -> str:
        """Address of the API."""
        return self._address

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        if self._network is not None:
            await self._network.aclose()
            self._network = None

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Send a request and read the whole response."""
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[ChatStream]:
        """Send a request and stream the response."""
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        instructions = self._get_instruction_parts(messages, parameters) or []
        body: dict[str, Any] = {
            "messages": write_messages(messages, [part.content for part in instructions], self._system),
            "model": self._name,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools := [write_tool(tool) for tool in parameters.declared_tool_defs.values()]:
            body |= {"tool_choice": "auto", "tools": tools}
        # OpenAI's reasoning models reject the older name; compatible servers may not know the newer one.
        values = cast("Mapping[str, object]", settings or {})
        limit = "max_completion_tokens" if self._system == "openai" else "max_tokens"
        for name, key in (("max_tokens", limit), ("temperature", "temperature"), ("stop_sequences", "stop")):
            if (value := values.get(name)) is not None:
                body[key] = value
        response = await self._send(body)
        try:
            yield ChatStream(parameters, response, self._name, self._system, self._address)
        finally:
            await response.aclose()

    async def _open(self, path: str) -> tuple[WebUrl, Network]:
        target = parse_url(self._address.rstrip("/") + path, with_user=True)
        if self._network is None:
            proxy = find_proxy(target)
            # In a thread: it loads certificates, which takes longer than a local server's response.
            needs_tls = "https" in {target.scheme, "" if proxy is None else proxy.scheme}
            tls = await to_thread.run_sync(shared_tls) if needs_tls else None
            self._network = self._network or open_network(  # another request may have opened it by now
                connect_s=_CONNECT_TIMEOUT_S,
                tls=tls,
                proxy=proxy,
                keepalive=_IDLE_CONNECTIONS,
                silence_s=_READ_TIMEOUT_S,
            )
        return target, self._network

    async def _send(self, body: Mapping[str, Any]) -> HttpAnswer:
        """Send a request; `ModelAPIError` if it fails."""
        # A lone surrogate has no UTF-8 form, and servers reject it as a JSON escape (RFC 8259 §8.2).
        # Messages one by one, because encoding a long conversation as one value takes many times its size.
        encode = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
        messages = ",".join(map(encode, body["messages"]))
        others = encode({name: value for name, value in body.items() if name != "messages"})
        text = f'{{"messages":[{messages}],{others.removeprefix("{")}'
        try:
            target, network = await self._open("/chat/completions")
            headers = {"content-type": "application/json", **self._headers, **target.authorization}
            # A redirect is an error, so that the key never goes to another address.
            response = await network.send("POST", target, headers, text.encode("utf-8", "replace"))
            if 200 <= response.status < 300:
                return response
            try:
                refusal = await _read_text(response)
            finally:
                await response.aclose()
        except FetchError as exc:
            raise build_connection_error(self._name, exc) from exc
        error = build_status_error(self._name, response.status, refusal, dict(response.headers))
        if isinstance(error, failures.ModelNotFoundError) and (names := await self._list_similar_models()):
            error.add_note(f"its server has: {', '.join(names)}")
        raise error

    async def _list_similar_models(self) -> Sequence[str]:
        """List models of the server, similar names first; none if it doesn't tell them in time."""
        from difflib import get_close_matches  # noqa: PLC0415 — only for a name that is unknown

        page: object = None
        with move_on_after(_LIST_LIMIT_S), suppress(FetchError):
            target, network = await self._open("/models")
            response = await network.send("GET", target, {**self._headers, **target.authorization})
            try:
                page = parse_body(await _read_text(response)) if response.status == 200 else None
            finally:
                await response.aclose()
        rows = page.get("data") if is_json_object(page) else None
        ids = [row.get("id") for row in rows if is_json_object(row)] if isinstance(rows, list) else []
        names = [name for name in ids if isinstance(name, str) and len(name) <= _MAX_NAME_CHARS]
        return get_close_matches(self._name, names, _MAX_LISTED, cutoff=0)
