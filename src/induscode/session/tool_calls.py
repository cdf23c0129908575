"""Tool calls of a model: run, reported as events, and turned into content that a model accepts.

The module is independent of the library that runs the model loop. A call that repeats an earlier call with the same
result is counted; the model is warned, and the run is ended if it goes on.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import anyio

from indusagi.core.faults import CoreError
from indusagi.core.json import NotJson, compact_json, is_json_object
from indusagi.runtime.contract import TextContentBlock
from induscode.deck.contract import can_overlap
from induscode.session.contract import Attachment, ToolAdvanced, ToolAnswered, ToolCalled
from induscode.session.read_write_lock import ReadWriteLock
from induscode.session.transcript import add_session_note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolProgress, ToolResult
    from induscode.deck.provision import DeckToolBox
    from induscode.session.contract import EventSink

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
DOCUMENT_TYPES = frozenset({"application/pdf"})
_LARGEST_ATTACHMENT = 20 * 1024 * 1024
"""Every provider refuses larger requests."""
_PROGRESS_BUFFER = 64
WARN_AT = 3
STOP_AT = 6
RepeatAction: TypeAlias = Literal["continue", "warn", "stop"]


current_call: ContextVar[str] = ContextVar("current_call", default="")
"""Id of the call that runs in this task, for questions about it; empty outside of a call."""


class RepeatedCallError(CoreError):
    """The model repeats the same call with the same result."""


# -- arguments ----------------------------------------------------------------------------------


class NonObjectArguments(dict[str, Any]):
    """Carrier for arguments that are not a JSON object; the tool's own check explains the error to the model."""

    def __init__(self, value: JsonValue) -> None:
        super().__init__()
        self.value = value


class PassThroughValidator:
    """Argument validator that accepts everything: the tool checks its arguments itself."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        """Parse arguments; invalid JSON is passed on as text."""
        try:
            value = cast("JsonValue", json.loads(input))
        except (ValueError, RecursionError):
            value = input if isinstance(input, str) else bytes(input).decode("utf-8", "replace")
        return self.validate_python(value)

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        """Accept parsed arguments unchanged."""
        return cast("dict[str, Any]", input) if isinstance(input, dict) else NonObjectArguments(input)


# -- results ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelContent:
    """A result as the model receives it."""

    text: str
    attachments: Sequence[Attachment] = ()
    is_error: bool = False


def to_model_content(result: ToolResult) -> ModelContent:
    """Convert a result to text and attachments; content that no model accepts is named in the text."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in result.content:
        part = block.text if isinstance(block, TextContentBlock) else _convert_value(block.value)
        if isinstance(part, Attachment):
            attachments.append(part)
        elif isinstance(part, str):
            texts.append(part)
        else:
            texts.append(part[0])
            attachments.append(part[1])
    if not result.content and result.structured is not None:
        texts.append(compact_json(result.structured))
    return ModelContent("\n".join(texts), tuple(attachments), result.is_error)


def _convert_value(value: JsonValue) -> str | Attachment | tuple[str, Attachment]:
    """Convert an MCP content block (https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result)."""
    if is_json_object(value):
        if value.get("type") in {"image", "audio"}:
            return _decode_media(value, str(value.get("type")), value.get("data"))
        resource = value.get("resource")
        if value.get("type") == "resource" and is_json_object(resource):
            uri, text = resource.get("uri"), resource.get("text")
            if isinstance(text, str):
                return f"[resource {uri}]\n{text}"
            if "blob" not in resource:
                return compact_json(resource)
            part = _decode_media(resource, "resource", resource.get("blob"))
            return part if isinstance(part, str) else (f"[resource {uri}: attached]", part)
    return compact_json(value)


def _decode_media(block: JsonObject, kind: str, encoded: JsonValue) -> str | Attachment:
    media_type = str(block.get("mimeType") or "application/octet-stream").partition(";")[0].strip()
    name = f"{kind} {block['uri']}" if "uri" in block else kind
    try:
        data = base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    except (binascii.Error, ValueError):
        data = None
    if data is None:
        return f"[{name}: left out, its content is not valid base64]"
    if media_type not in IMAGE_TYPES | DOCUMENT_TYPES or len(data) > _LARGEST_ATTACHMENT:
        return f"[{name}: {media_type}, {len(data):,} bytes, left out: no model takes it]"
    return Attachment(data, media_type)


# -- repetition ---------------------------------------------------------------------------------


class RepeatDetector:
    """Counts calls of one run that give the same result for the same arguments.

    A call with a new result starts the count again: a test that fails with the same output after another edit is
    progress, not repetition.
    """

    def __init__(self, warn_at: int = WARN_AT, stop_at: int = STOP_AT) -> None:
        self._warn_at, self._stop_at = warn_at, stop_at
        self._seen: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def record(self, name: str, arguments: JsonValue, answer: str) -> RepeatAction:
        """Record a call with its answer, and say what to do about it."""
        try:
            encoded = compact_json(arguments, sort_keys=True)
        except NotJson:
            encoded = repr(arguments)
        text = "\0".join((name, encoded, answer))
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._seen:
            self._seen.add(key)
            self._repeats.clear()
            return "continue"
        self._repeats[key] += 1
        times = self._repeats[key] + 1
        if times >= self._stop_at:
            return "stop"
        return "warn" if times == self._warn_at else "continue"


def describe_repetition(name: str, times: int = WARN_AT) -> str:
    """Write the warning that the model receives with a repeated result."""
    return (
        f"[{name} has given this same answer to this same call {times} times. It will not change "
        "by itself: do something else, or say what is in the way.]"
    )


# -- calls --------------------------------------------------------------------------------------


class ToolCalls:
    """Runs the calls of one run, reports them as events, and ends the run on repetition."""

    def __init__(self, sink: EventSink, cancel: CancelToken, notices: Callable[[], Sequence[str]] = tuple) -> None:
        """Take the sink of events, the token that ends calls, and what the model is told with a result."""
        self._sink, self._cancel, self._notices = sink, cancel, notices
        self._repeats = RepeatDetector()
        self._order = ReadWriteLock()

    async def run(self, toolbox: DeckToolBox, call: ToolCall) -> ModelContent:
        """Run a call while its progress is reported; one that changes something runs alone.

        Raises:
            RepeatedCallError: The call gave the same result too often.
            OSError: The sink failed: its reader is gone.
        """
        card = toolbox.runner.cards.get(call.name)
        async with self._order.hold(shared=card is None or can_overlap(card, call.input)):
            content = await self._run(toolbox, call)
        text = add_session_note(content.text, self._notices())
        return ModelContent(text, content.attachments, content.is_error)

    async def _run(self, toolbox: DeckToolBox, call: ToolCall) -> ModelContent:
        await self._sink(ToolCalled(call.id, call.name, call.input))
        send, receive = anyio.create_memory_object_stream["ToolProgress"](_PROGRESS_BUFFER)

        def buffer_progress(progress: ToolProgress) -> None:
            try:
                send.send_nowait(progress)
            except anyio.WouldBlock:
                return  # the sink is slower than the tool: a later report replaces this one

        outcome: ToolOutcome | None = None
        failures: list[OSError] = []
        with send, receive:
            async with anyio.create_task_group() as tasks:

                async def report_progress() -> None:
                    async for progress in receive:
                        event = ToolAdvanced(call.id, call.name, progress.done, progress.total, progress.message)
                        try:
                            await self._sink(event)
                        except OSError as exc:
                            failures.append(exc)
                            tasks.cancel_scope.cancel()

                tasks.start_soon(report_progress)
                current_call.set(call.id)
                outcome = await toolbox.runner.run(call, self._cancel, on_progress=buffer_progress)
                send.close()
        if failures:
            raise failures[0]
        assert outcome is not None
        content = to_model_content(outcome.result)
        media = tuple(attachment.media_type for attachment in content.attachments)
        if content.is_error and media:
            # No provider accepts images in a result that is marked as an error.
            text = f"{content.text}\n[left out of a failed answer: {', '.join(media)}]"
            content, media = ModelContent(text, is_error=True), ()
        details = outcome.result.details
        code = str(details["code"]) if details.get("code") else None
        await self._sink(ToolAnswered(call.id, call.name, content.text, content.is_error, media, code, details))
        action = self._repeats.record(call.name, call.input, content.text)
        if action == "stop":
            raise RepeatedCallError(call.name)
        if action == "warn":
            text = f"{content.text}\n\n{describe_repetition(call.name)}"
            return ModelContent(text, content.attachments, content.is_error)
        return content

    async def report_unknown_tool(self, call_id: str, name: str, message: str) -> None:
        """Report a call of a tool that is absent from the deck.

        Raises:
            RepeatedCallError: The tool was called too often.
        """
        await self._sink(ToolAnswered(call_id, name, message, is_error=True, code="unknown_tool"))
        if self._repeats.record(name, None, message) == "stop":
            raise RepeatedCallError(name)
