"""Tool calls from another library's models: checked by the gate, run by the toolbox, converted for the model."""

from __future__ import annotations

import base64
import binascii
import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import anyio
from anyio import to_thread

from indusagi.adapters.blocking import BlockingToolBox
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.protocols import offers
from indusagi.core.records import record
from indusagi.core.tasks import ReadWriteLock
from indusagi.runtime.calls import current_check
from indusagi.runtime.contract import (
    PreparingRunner,
    TextContentBlock,
    ToolBox,
    ToolCall,
    ToolDescriptor,
    ToolOutcome,
    ToolResult,
    ToolRunner,
)

ResultT = TypeVar("ResultT")


class AdapterCalls:
    """The toolbox behind an adapter, which may be the one from `open_deck_sync`: then it works in its own thread.

    The `gate` decides about each call, one at a time; it's optional if the toolbox checks its calls, otherwise this
    raises `MissingGateError`. `cancel` stops running calls with an error outcome, and prevents new ones.
    """

    def __init__(self, box: ToolBox, gate: Gate | None, cancel: CancelToken | None) -> None:
        require_gate(box, gate)
        self._blocking = box if isinstance(box, BlockingToolBox) else None
        self._box = box.toolbox if isinstance(box, BlockingToolBox) else box
        self._gate, self._cancel = gate, cancel
        self._asking = anyio.Lock()

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the current tools, blocking on a toolbox in another thread."""
        return (self._blocking or self._box).descriptors()

    async def read_descriptors(self) -> Sequence[ToolDescriptor]:
        """List the current tools without blocking the event loop."""
        return self._box.descriptors() if self._blocking is None else await self._blocking.read_descriptors()

    async def run(self, call: ToolCall) -> ToolOutcome:
        """Run a call; denials and failures become error outcomes. Cancelling the task cancels the call."""
        return await self._in_loop(self._run, call)

    async def run_for_model(self, call: ToolCall) -> ModelContent:
        """Run a call and convert its result."""
        return to_model_content((await self.run(call)).result)

    async def run_all(self, calls: Sequence[ToolCall]) -> Sequence[ModelContent]:
        """Run the calls of one response: read-only tools concurrently, others alone and in order."""
        return await self._in_loop(self._run_all, calls)

    def run_sync(self, call: ToolCall) -> ToolOutcome:
        """Run a call from a thread without an event loop.

        Raises `TypeError` if the toolbox belongs to an event loop.
        """
        return self._require_blocking().wait_for(self._run, call)

    def run_all_sync(self, calls: Sequence[ToolCall]) -> Sequence[ModelContent]:
        """Run the calls of one response from a thread without an event loop.

        Raises `TypeError` if the toolbox belongs to an event loop.
        """
        return self._require_blocking().wait_for(self._run_all, calls)

    def _require_blocking(self) -> BlockingToolBox:
        if self._blocking is None:
            raise TypeError("a call without await needs the toolbox of open_deck_sync or open_blocking")
        return self._blocking

    async def _in_loop(self, work: Callable[..., Awaitable[ResultT]], argument: object) -> ResultT:
        if self._blocking is None:
            return await work(argument)
        return await self._blocking.call_async(work, argument)

    async def _run(self, call: ToolCall) -> ToolOutcome:
        runner, gate, cancel = self._box.runner, self._gate, self._cancel or CancelToken()
        # The runner answers calls of unknown tools.
        if gate is None or cancel.cancelled or all(tool.name != call.name for tool in self._box.descriptors()):
            return await self._run_unless_cancelled(runner, call, cancel)
        prepared = await runner.prepare(call) if offers(runner, PreparingRunner) else call
        if isinstance(prepared, ToolOutcome):
            return prepared

        async def check(call: ToolCall) -> ToolResult | None:
            async with self._asking:
                return await check_call(gate, call)

        with cancel.guard():  # a gate may wait for the user
            refusal = await check(prepared)
            if refusal is not None:
                return ToolOutcome(call.id, refusal)
        current_check.set(check)  # for an interceptor that changes the arguments
        try:
            return await self._run_unless_cancelled(runner, prepared, cancel)
        finally:
            current_check.set(None)

    @staticmethod
    async def _run_unless_cancelled(runner: ToolRunner, call: ToolCall, cancel: CancelToken) -> ToolOutcome:
        # Checked here too, because the runner may be the program's own.
        if cancel.cancelled:
            return ToolOutcome(call.id, ToolResult.stopped(call.name, cancel))
        return await runner.run(call, cancel)

    async def _run_all(self, calls: Sequence[ToolCall]) -> Sequence[ModelContent]:
        reading = {tool.name for tool in self._box.descriptors() if is_read_only(tool)}
        contents: dict[int, ModelContent] = {}
        order = ReadWriteLock()

        async def run_one(place: int, call: ToolCall) -> None:
            async with order.hold(shared=call.name in reading):
                contents[place] = to_model_content((await self._run(call)).result)

        async with anyio.create_task_group() as tasks:
            for place, call in enumerate(calls):
                tasks.start_soon(run_one, place, call)
        return [contents[place] for place in range(len(calls))]


class PlainTools(ABC):
    """The tools of a toolbox for an API of plain JSON: runs the calls of a response and answers them."""

    def __init__(self, calls: AdapterCalls) -> None:
        self.calls = calls

    @abstractmethod
    def read(self, response: Any) -> tuple[Sequence[dict[str, Any]], Sequence[ToolCall]]:
        """Return the model's part of a conversation, and the calls in it."""

    @abstractmethod
    def answer(
        self, output: Sequence[dict[str, Any]], calls: Sequence[ToolCall], contents: Sequence[ModelContent]
    ) -> list[dict[str, Any]]:
        """Build the next part of the conversation: the model's, and the results."""

    async def run(self, response: Any) -> list[dict[str, Any]]:
        """Run the calls of a response, which may be the library's object or its JSON.

        Return what to append to the next request: the model's part and the results. Empty if there are no calls.
        """
        output, calls = self.read(response)
        return self.answer(output, calls, await self.calls.run_all(calls)) if calls else []

    def run_sync(self, response: Any) -> list[dict[str, Any]]:
        """Like `run`, without `await`, for a toolbox from `open_deck_sync`."""
        output, calls = self.read(response)
        return self.answer(output, calls, self.calls.run_all_sync(calls)) if calls else []


def is_read_only(tool: ToolDescriptor) -> bool:
    """Return whether a tool says that it changes nothing. Affects the order of calls, not permissions."""
    return (tool.annotations or {}).get("readOnlyHint") is True


def copy_parameters(tool: ToolDescriptor) -> dict[str, Any]:
    """Copy a tool's schema for a library, which may change it."""
    return copy.deepcopy(dict(tool.parameters))


def parse_arguments(text: str) -> JsonValue:
    """Parse a call's arguments. Invalid JSON stays text: the tool's own check explains it to the model."""
    try:
        return cast("JsonValue", json.loads(text)) if text else {}
    except (ValueError, RecursionError):
        return text


# -- libraries --------------------------------------------------------------------------------


class _PydanticModel(Protocol):
    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]: ...


def to_plain_object(value: Any) -> dict[str, Any]:
    """Convert a client library's object (a pydantic model) or a mapping to a dictionary, as received.

    Raises `TypeError` if it's neither.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if offers(value, _PydanticModel):
        return value.model_dump(mode="json", exclude_unset=True)
    raise TypeError(f"neither a JSON object nor a response of a client library: {type(value).__name__}")


@contextmanager
def explain_missing(distribution: str) -> Generator[None]:
    """Name the package to install if an adapter's library is missing or too old.

    Raises `ImportError` if it's missing or too old.
    """
    try:
        yield
    except ImportError as exc:
        raise ImportError(f"this adapter needs {distribution}: pip install {distribution}", name=exc.name) from exc


# -- gate -------------------------------------------------------------------------------------
#
# A gate receives a `GateRequest` and returns True, False, or a text with the reason for the model. A plain function
# runs in a thread, so it may wait for the user; an async one runs in the event loop. A call runs only after True: a
# gate that raises has denied the call.


@record(kw_only=True)
class GateRequest:
    """A call that waits for a decision. It runs exactly as shown."""

    tool: str
    arguments: JsonValue
    title: str
    """What will happen, in one line of printable ASCII characters."""
    reasons: tuple[str, ...] = ()
    """Why the gate was asked, if rules say so."""


GateAnswer: TypeAlias = bool | str
Gate: TypeAlias = Callable[[GateRequest], GateAnswer | Awaitable[GateAnswer]]


class MissingGateError(TypeError):
    """An adapter without a gate got a toolbox that checks no calls."""


def allow_all(_: GateRequest) -> bool:
    """Allow every call: the gate of a program whose tools may all run."""
    return True


def is_gated(box: ToolBox) -> bool:
    """Return whether a toolbox decides about its calls itself, as the one from `open_deck` does."""
    return getattr(box, "is_gated", False) is True


def require_gate(box: ToolBox, gate: Gate | None) -> None:
    """Reject a toolbox whose calls nothing checks.

    Raises `MissingGateError` if there's no gate, and the toolbox doesn't check its calls.
    """
    if gate is None and not is_gated(box):
        raise MissingGateError(
            "this toolbox runs every call of a model unasked: give gate=FUNCTION, which decides about each call, "
            "or gate=allow_all (indusagi.adapters.calls)"
        )


def build_gate_request(call: ToolCall) -> GateRequest:
    """Build the request for a call about which nothing else is known."""
    title = f"{json.dumps(call.name)[1:-1]} {format_arguments(call.input)}"
    # Copy, so that changes by the gate don't run.
    arguments = copy.deepcopy({**call.input} if isinstance(call.input, dict) else call.input)
    return GateRequest(tool=call.name, arguments=arguments, title=title)


def format_arguments(arguments: JsonValue) -> str:
    """Format arguments as one line of ASCII, with every character visible."""
    return json.dumps(arguments, default=repr)


async def ask_gate(gate: Gate, request: GateRequest) -> str | None:
    """Return the reason the gate denied the call (possibly empty), or `None` if it may run."""
    try:
        if iscoroutinefunction(gate) or iscoroutinefunction(getattr(gate, "__call__", None)):  # noqa: B004 — the method itself
            answer = gate(request)
        else:
            answer = await to_thread.run_sync(gate, request, abandon_on_cancel=True)
        if isawaitable(answer):
            answer = await cast("Awaitable[GateAnswer]", answer)
    except Exception as exc:  # noqa: BLE001 — boundary: the gate belongs to the embedding program
        return f"asking failed: {type(exc).__name__}: {exc}"
    if answer is True:
        return None
    return answer if isinstance(answer, str) else ""


async def check_call(gate: Gate, call: ToolCall) -> ToolResult | None:
    """Return the result of a denied call, or None if it may run."""
    refusal = await ask_gate(gate, build_gate_request(call))
    if refusal is None:
        return None
    suffix = f": {refusal}" if refusal else ""
    return ToolResult.error(f"{call.name} was not run: the user declined{suffix}", code="denied")


# -- results as models receive them -----------------------------------------------------------------


IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
DOCUMENT_TYPES = frozenset({"application/pdf"})
_MAX_ATTACHMENT_BYTES = 20 * 1024 * 1024
"""Every provider rejects larger requests."""


@record
class Attachment:
    """An image or document in a result or next to a prompt."""

    data: bytes
    media_type: str

    @property
    def is_image(self) -> bool:
        """Whether it's an image rather than a document."""
        return self.media_type in IMAGE_TYPES

    @property
    def file_name(self) -> str:
        """File name for libraries that want one."""
        return f"attachment.{self.media_type.rpartition('/')[2]}"

    def encode(self) -> str:
        """Return the data as base64."""
        return base64.b64encode(self.data).decode("ascii")

    def to_data_url(self) -> str:
        """Return the data as a URL: https://www.rfc-editor.org/rfc/rfc2397."""
        return f"data:{self.media_type};base64,{self.encode()}"


@record
class ModelContent:
    """A result as the model receives it. Errors are text only: no provider accepts images with an error mark."""

    text: str
    attachments: Sequence[Attachment] = ()
    is_error: bool = False

    @property
    def marked_text(self) -> str:
        """Text for an API without an error mark: a failure starts with `Error:`."""
        return f"Error: {self.text}" if self.is_error else self.text


def to_model_content(result: ToolResult) -> ModelContent:
    """Convert a result to text and attachments; the text mentions content that no model accepts."""
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
    if result.is_error and attachments:
        texts.append(f"[left out of a failed answer: {', '.join(file.media_type for file in attachments)}]")
        attachments = []
    return ModelContent("\n".join(texts), tuple(attachments), result.is_error)


def _convert_value(value: JsonValue) -> str | Attachment | tuple[str, Attachment]:
    """Convert an MCP content block (https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result)."""
    if is_json_object(value):
        if value.get("type") in ("image", "audio"):
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
    if media_type not in IMAGE_TYPES | DOCUMENT_TYPES or len(data) > _MAX_ATTACHMENT_BYTES:
        return f"[{name}: {media_type}, {len(data):,} bytes, left out: no model takes it]"
    return Attachment(data, media_type)
