"""The answer of a tool as a model gets it: text, and what is not text beside it.

Finds a model that turns in circles: the same call, the same answer, again and again.

Only calls that bring nothing new count. As soon as a call brings something that was not seen
before, counting starts again: a test that fails in the same words after another edit is no circle.

A call of the model on its way to a card and back, whatever loop the model runs in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import anyio

from indusagi.core.faults import CoreError
from indusagi.core.json import NotJson, compact_json, is_json_object
from indusagi.runtime.content import TextContentBlock
from induscode.session.contract import ToolAdvanced, ToolAnswered, ToolCalled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.content import ToolContentBlock
    from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolProgress, ToolResult
    from induscode.deck.toolbox import DeckToolBox
    from induscode.session.contract import Sink


PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
DOCUMENTS = frozenset({"application/pdf"})
_LARGEST_BYTES = 20 * 1024 * 1024
"""Larger requests are refused by every provider."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """Something that is not text."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ModelContent:
    """An answer, ready to be put into a request."""

    text: str
    attachments: Sequence[Attachment] = ()


def to_model_content(result: ToolResult) -> ModelContent:
    """Turn an answer into what a model can take; what it cannot take is named in the text."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    for block in result.content:
        text, attachment = _block(block)
        if text is not None:
            texts.append(text)
        if attachment is not None:
            attachments.append(attachment)
    if not result.content and result.structured is not None:
        texts.append(compact_json(result.structured))
    return ModelContent("\n".join(texts), tuple(attachments))


def _block(block: ToolContentBlock) -> tuple[str | None, Attachment | None]:
    if isinstance(block, TextContentBlock):
        return block.text, None
    value = block.value
    if is_json_object(value):
        if value.get("type") in {"image", "audio"}:
            return _media(value, str(value.get("type")), value.get("data"))
        resource = value.get("resource")
        if value.get("type") == "resource" and is_json_object(resource):
            return _resource(resource)
    return compact_json(value), None


def _resource(resource: JsonObject) -> tuple[str | None, Attachment | None]:
    uri = resource.get("uri")
    text = resource.get("text")
    if isinstance(text, str):
        return f"[resource {uri}]\n{text}", None
    if "blob" in resource:
        said, attachment = _media(resource, "resource", resource.get("blob"))
        return (said if attachment is None else f"[resource {uri}: attached]"), attachment
    return compact_json(resource), None


def _media(owner: JsonObject, what: str, encoded: JsonValue) -> tuple[str | None, Attachment | None]:
    media_type = str(owner.get("mimeType") or "application/octet-stream").partition(";")[0].strip()
    named = f"{what} {owner['uri']}" if "uri" in owner else what
    data = _decoded(encoded)
    if data is None:
        return f"[{named}: left out, its content is not valid base64]", None
    if media_type not in PICTURES | DOCUMENTS or len(data) > _LARGEST_BYTES:
        return f"[{named}: {media_type}, {len(data):,} bytes, left out: no model takes it]", None
    return None, Attachment(data, media_type)


def _decoded(encoded: JsonValue) -> bytes | None:
    if not isinstance(encoded, str):
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None


Finding: TypeAlias = Literal["fine", "tell", "stop"]

TELL_AT = 3
STOP_AT = 6


class RepeatDetector:
    """Counts the calls of one run."""

    def __init__(self, tell_at: int = TELL_AT, stop_at: int = STOP_AT) -> None:
        self._tell_at, self._stop_at = tell_at, stop_at
        self._known: set[str] = set()
        self._again: Counter[str] = Counter()

    def note(self, name: str, arguments: JsonValue, answer: str) -> Finding:
        """Take a call with its answer, and tell what is to be done about it."""
        key = _digest(name, arguments, answer)
        if key not in self._known:
            self._known.add(key)
            self._again.clear()
            return "fine"
        self._again[key] += 1
        times = self._again[key] + 1
        if times >= self._stop_at:
            return "stop"
        return "tell" if times == self._tell_at else "fine"


def describe_repetition(name: str, times: int = TELL_AT) -> str:
    """Say to the model what it does."""
    return (
        f"[{name} has given this same answer to this same call {times} times. It will not change "
        "by itself: do something else, or say what is in the way.]"
    )


def _digest(name: str, arguments: JsonValue, answer: str) -> str:
    try:
        given = compact_json(arguments, sort_keys=True)
    except NotJson:
        given = repr(arguments)
    text = "\0".join((name, given, answer))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class RepeatedCallError(CoreError):
    """The model does the same thing over and over."""


class _NonObjectArguments(dict[str, Any]):
    """Arguments that are no object, on their way to the kernel, which says what is wrong."""

    def __init__(self, value: JsonValue) -> None:
        super().__init__()
        self.value = value


class PassThroughValidator:
    """Lets everything pass: the kernel checks arguments against the schema it was given."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        """Read arguments; what is no JSON is passed on as text."""
        try:
            value = cast("JsonValue", json.loads(input))
        except (ValueError, RecursionError):
            value = input if isinstance(input, str) else bytes(input).decode("utf-8", "replace")
        return self.validate_python(value)

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        """Take arguments as they are."""
        return cast("dict[str, Any]", input) if isinstance(input, dict) else _NonObjectArguments(input)


def restore_arguments(arguments: dict[str, Any]) -> JsonValue:
    """Give the arguments that `PassThroughValidator` let pass, as the model wrote them."""
    return arguments.value if isinstance(arguments, _NonObjectArguments) else arguments


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model is told."""

    text: str
    is_error: bool
    attachments: Sequence[Attachment] = ()


class ToolCalls:
    """Runs the calls of one run, tells of them, and finds out when they go in circles."""

    def __init__(self, sink: Sink, cancel: CancelToken) -> None:
        self._sink, self._cancel = sink, cancel
        self._guard = RepeatDetector()

    async def run(self, box: DeckToolBox, call: ToolCall) -> Answer:
        """Run a call.

        Raises:
            RepeatedCallError: It has brought the same answer too often.
            OSError: What is told cannot be written: nobody reads it any more.
        """
        await self._sink(ToolCalled(call.id, call.name, call.input))
        outcome = await self._ran(box, call)
        answer = to_model_content(outcome.result)
        media = tuple(one.media_type for one in answer.attachments)
        if outcome.is_error and media:
            # No provider takes pictures in an answer that says that something failed.
            said = f"{answer.text}\n[left out of a failed answer: {', '.join(media)}]"
            answer, media = ModelContent(said), ()
        code = outcome.details.get("code")
        told = ToolAnswered(call.id, call.name, answer.text, outcome.is_error, media)
        await self._sink(replace(told, code=str(code) if code else None))
        text = self._checked(call.name, call.input, answer.text)
        return Answer(text, outcome.is_error, answer.attachments)

    async def missed(self, identity: str, name: str, said: str) -> None:
        """Tell of a call of a tool that is not there.

        Raises:
            RepeatedCallError: It was called too often.
        """
        await self._sink(ToolAnswered(identity, name, said, is_error=True, code="unknown_tool"))
        self._checked(name, None, said)

    def _checked(self, name: str, arguments: JsonValue, text: str) -> str:
        finding = self._guard.note(name, arguments, text)
        if finding == "stop":
            raise RepeatedCallError(name)
        return f"{text}\n\n{describe_repetition(name)}" if finding == "tell" else text

    async def _ran(self, box: DeckToolBox, call: ToolCall) -> ToolOutcome:
        """Run the call while whoever listens hears of its progress."""
        send, receive = anyio.create_memory_object_stream["ToolProgress"](64)

        def advanced(progress: ToolProgress) -> None:
            try:
                send.send_nowait(progress)
            except anyio.WouldBlock:
                return  # somebody reads slower than the tool tells: the next one says more

        outcome: ToolOutcome | None = None
        failed: list[OSError] = []
        with send, receive:
            async with anyio.create_task_group() as tasks:

                async def relay() -> None:
                    async for one in receive:
                        said = ToolAdvanced(call.id, call.name, one.done, one.total, one.message)
                        try:
                            await self._sink(said)
                        except OSError as exc:
                            failed.append(exc)
                            tasks.cancel_scope.cancel()

                tasks.start_soon(relay)
                outcome = await box.runner.run(call, self._cancel, on_progress=advanced)
                send.close()
        if failed:
            raise failed[0]
        assert outcome is not None
        return outcome
