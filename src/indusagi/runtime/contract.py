"""Contract between an agent loop and a toolbox: descriptors, calls, results, the runner.

A loop shows `box.descriptors()` to a model and passes each of its `ToolCall`s to `box.runner`. The runner returns a
`ToolOutcome` even for failed or unknown tools, and only raises if its task is cancelled.

A result holds text blocks, and JSON blocks for everything else. An image, a resource or a block type of a later MCP
revision is a JSON block with the object as it arrived
(https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias, cast

from indusagi.core.cancel import CancelToken
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonLike, JsonObject, JsonValue
from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.core.text import CleanText

JsonSchema: TypeAlias = Mapping[str, JsonLike]
"""A JSON Schema (https://json-schema.org/draft/2020-12) for arguments or results."""

_NO_DETAILS: Mapping[str, JsonValue] = MappingProxyType({})


@record
class TextContentBlock:
    """Text for the model."""

    kind: ClassVar[Literal["text"]] = "text"
    text: str
    extra: JsonObject | None = None
    """Other fields of an MCP block (`annotations`, `_meta`)."""

    def __post_init__(self) -> None:
        # Fail here, where the mistake is made.
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a text block holds text, not {type(self.text).__name__}")


@record
class JsonContentBlock:
    """Any JSON value, for example an MCP block other than text."""

    kind: ClassVar[Literal["json"]] = "json"
    value: JsonValue


ToolContentBlock: TypeAlias = TextContentBlock | JsonContentBlock


def project_content(content: Sequence[ToolContentBlock]) -> JsonValue:
    """Fold blocks into one value: a single text block to its string, a single JSON block to its value.

    Zero or several blocks become an array of tagged objects, so nothing is lost.
    """
    if len(content) == 1:
        (block,) = content
        return block.text if isinstance(block, TextContentBlock) else block.value
    return [
        {"type": block.kind, "text": block.text}
        if isinstance(block, TextContentBlock)
        else {"type": block.kind, "value": block.value}
        for block in content
    ]


@record
class ToolDescriptor:
    """A tool as described to a model."""

    name: str
    description: str
    parameters: JsonSchema
    title: str | None = field(default=None, kw_only=True)
    """Display name; never used to look up the tool."""
    annotations: Mapping[str, JsonValue] | None = field(default=None, kw_only=True)
    """Hints in the MCP spelling (`readOnlyHint`, …). They grant no permission."""
    output_schema: JsonSchema | None = field(default=None, kw_only=True)
    definition: Mapping[str, JsonValue] | None = field(default=None, kw_only=True, compare=False, repr=False)
    """A remote tool's complete definition from its server, for MCP clients."""

    @property
    def reads_only(self) -> bool:
        """Whether the annotations say that the tool changes nothing. Grants no permission."""
        annotations = self.annotations
        if self.definition is not None:
            hints = self.definition.get("annotations")
            annotations = hints if isinstance(hints, dict) else None
        return (annotations or {}).get("readOnlyHint") is True


@record
class ToolCall:
    """One call by a model."""

    id: str
    name: str
    input: JsonValue
    """Arguments as the model sent them: normally an object, but any JSON value is possible."""


class Keep(StrEnum):
    """Which part of a result to keep if it exceeds the output budget."""

    HEAD = "head"
    TAIL = "tail"
    ENDS = "ends"


@record
class ToolResult:
    """The result of a tool."""

    content: Sequence[ToolContentBlock]
    is_error: bool = False
    structured: JsonValue = field(default=None, kw_only=True)
    """The result as one JSON value, for tools with an output schema."""
    details: Mapping[str, JsonValue] = field(default_factory=lambda: _NO_DETAILS, kw_only=True)
    """Facts for programs (an error `code`, counts, paths), hidden from the model."""
    keep: Keep = field(default=Keep.HEAD, kw_only=True)

    def __post_init__(self) -> None:
        # Copy: changing the caller's list must not change the result.
        content = tuple(self.content)
        object.__setattr__(self, "content", content)
        if type(self.keep) is not Keep:
            object.__setattr__(self, "keep", Keep(self.keep))
        if self.details is not _NO_DETAILS:
            object.__setattr__(self, "details", MappingProxyType(dict(self.details)))
        for block in content:
            if not isinstance(block, (TextContentBlock, JsonContentBlock)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"a result holds content blocks, not {type(block).__name__}")

    @classmethod
    def text(cls, text: str, **details: JsonValue) -> ToolResult:
        """Make a text result."""
        return cls((TextContentBlock(text),), details=details)

    @classmethod
    def json(cls, value: JsonValue, **details: JsonValue) -> ToolResult:
        """Make a JSON result."""
        return cls((JsonContentBlock(value),), details=details)

    @classmethod
    def error(cls, message: str, *, code: str, **details: JsonValue) -> ToolResult:
        """Make an error result with a message for the model and a `code` for programs."""
        return cls((TextContentBlock(message),), is_error=True, details={"code": code, **details})

    @classmethod
    def stopped(cls, name: str, cancel: CancelToken) -> ToolResult:
        """Make the result of a tool that a cancelled token stopped or kept from running."""
        return cls.error(f"{name} was stopped: {cancel.reason}", code="cancelled")


def clean_result(result: ToolResult, clean: CleanText) -> ToolResult:
    """Clean all strings in a result from another party: blocks, structured content and details.

    `details["unseen"]` counts the changed characters, if any. Don't clean results of native tools: file contents must
    stay intact.
    """
    from indusagi.core.text import clean_json  # noqa: PLC0415 — compiles large patterns

    total = 0
    blocks: list[ToolContentBlock] = []
    for block in result.content:
        if isinstance(block, TextContentBlock):
            text, count = clean(block.text)
            extra, more = clean_json(block.extra, clean)
            count += more
            cleaned: ToolContentBlock = TextContentBlock(text, cast("JsonObject | None", extra))
        else:
            value, count = clean_json(block.value, clean)
            cleaned = JsonContentBlock(value)
        blocks.append(cleaned if count else block)
        total += count
    structured, in_structured = clean_json(result.structured, clean)
    details, in_details = clean_json(dict(result.details), clean)
    total += in_structured + in_details
    if not total:
        return result
    counted: JsonObject = {**cast("JsonObject", details), "unseen": total}
    return replace(result, content=blocks, structured=structured, details=counted)


@record
class ToolOutcome:
    """A result with the id of its call."""

    id: str
    result: ToolResult

    @classmethod
    def from_output(cls, call_id: str, output: JsonValue, *, is_error: bool = False) -> ToolOutcome:
        """Make an outcome from a plain value: text from a string, otherwise JSON."""
        block = TextContentBlock(output) if isinstance(output, str) else JsonContentBlock(output)
        return cls(call_id, ToolResult((block,), is_error))

    @property
    def output(self) -> JsonValue:
        """The content as one value, see `project_content`."""
        return project_content(self.result.content)

    @property
    def content(self) -> Sequence[ToolContentBlock]:
        """The blocks of the result."""
        return self.result.content

    @property
    def is_error(self) -> bool:
        """Whether the call failed; the content then gives the reason."""
        return self.result.is_error

    @property
    def structured(self) -> JsonValue:
        """The result as one JSON value, for tools with an output schema."""
        return self.result.structured

    @property
    def details(self) -> Mapping[str, JsonValue]:
        """Facts for programs, hidden from the model."""
        return self.result.details


@record
class ToolProgress:
    """Progress of a running call."""

    done: float
    total: float | None = None
    message: str = ""


ProgressSink: TypeAlias = Callable[[ToolProgress], None]


class ToolRunner(Protocol):
    """Runs calls."""

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call; a failure becomes an error outcome."""
        ...


class PreparingRunner(Protocol):
    """A runner that can prepare calls, for code that decides about calls by their arguments."""

    async def prepare(self, call: ToolCall) -> ToolCall | ToolOutcome:
        """Copy, correct and check a call's arguments, or return the outcome if they don't fit.

        `run` uses the returned call's arguments unchanged.
        """
        ...


class CallsByName:
    """Mixin with a short form of calling tools."""

    __slots__ = ()

    async def call(
        self: ToolBox,
        name: str,
        arguments: Mapping[str, JsonLike] | None = None,
        /,
        *,
        cancel: CancelToken | None = None,
        **more: JsonLike,
    ) -> ToolOutcome:
        """Call a tool: `await box.call("read", path="a.txt")`. A failure becomes an error outcome.

        `arguments` is for names that aren't valid in Python, and for an argument called `cancel`.
        """
        given = cast("JsonObject", {**(arguments or {}), **more})
        return await self.runner.run(ToolCall(f"call_{new_ulid()}", name, given), cancel)


class ToolBox(Protocol):
    """The tools a loop may call, and their runner."""

    @property
    def runner(self) -> ToolRunner:
        """Runs the calls."""
        ...

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools in a stable order."""
        ...
