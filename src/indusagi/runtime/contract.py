"""The vocabulary between an agent loop and whatever holds its tools. Shapes only.

A loop reads `box.descriptors()`, shows them to a model, and hands each `ToolCall` the model makes
to `box.runner`. What comes back is a `ToolOutcome`, also when the tool failed or does not exist:
a runner raises nothing but the cancellation of the task it runs in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, TypeAlias

from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonLike, JsonValue
from indusagi.runtime.content import JsonContentBlock, TextContentBlock, ToolContentBlock, project_content

JsonSchema: TypeAlias = Mapping[str, JsonLike]
"""A JSON Schema (2020-12) that describes an object of arguments, or a result."""


_NO_DETAILS: Mapping[str, JsonValue] = MappingProxyType({})


def _no_details() -> Mapping[str, JsonValue]:
    return _NO_DETAILS


@dataclass(frozen=True, slots=True)
class ToolDescriptor:
    """What a model is told about one tool."""

    name: str
    description: str
    parameters: JsonSchema
    title: str | None = field(default=None, kw_only=True)
    """A name for people; never used to find the tool."""
    annotations: Mapping[str, JsonValue] | None = field(default=None, kw_only=True)
    """Hints in the MCP spelling (`readOnlyHint`, …). They inform; they never permit."""
    output_schema: JsonSchema | None = field(default=None, kw_only=True)
    definition: Mapping[str, JsonValue] | None = field(default=None, kw_only=True, compare=False, repr=False)
    """All that the server of a remote tool says of it, for clients that take it whole."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call a model makes."""

    id: str
    name: str
    input: JsonValue
    """The arguments as the model sent them: normally an object, but a model may send anything."""


class Keep(StrEnum):
    """Which part of an answer matters most, should it be too long to show."""

    HEAD = "head"
    TAIL = "tail"
    ENDS = "ends"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answers."""

    content: Sequence[ToolContentBlock]
    is_error: bool = False
    structured: JsonValue = field(default=None, kw_only=True)
    """The same answer as one JSON value, for tools that declare an output schema."""
    details: Mapping[str, JsonValue] = field(default_factory=_no_details, kw_only=True)
    """Facts for programs (an error `code`, counts, paths). The model does not see them."""
    keep: Keep = field(default=Keep.HEAD, kw_only=True)

    def __post_init__(self) -> None:
        # A caller's list must not be able to change a result that was already handed out.
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
        """Answer with text."""
        return cls((TextContentBlock(text),), details=details)

    @classmethod
    def json(cls, value: JsonValue, **details: JsonValue) -> ToolResult:
        """Answer with a JSON value."""
        return cls((JsonContentBlock(value),), details=details)

    @classmethod
    def error(cls, message: str, *, code: str, **details: JsonValue) -> ToolResult:
        """Answer with a failure that the model can read; `code` is for programs."""
        return cls((TextContentBlock(message),), is_error=True, details={"code": code, **details})


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A result on its way back to the loop, under the id of the call it answers."""

    id: str
    result: ToolResult

    @classmethod
    def from_output(cls, call_id: str, output: JsonValue, *, is_error: bool = False) -> ToolOutcome:
        """Make an outcome from a flat value: a string becomes text, anything else JSON."""
        block = TextContentBlock(output) if isinstance(output, str) else JsonContentBlock(output)
        return cls(call_id, ToolResult((block,), is_error))

    @property
    def output(self) -> JsonValue:
        """The content as one value; see `project_content`."""
        return project_content(self.result.content)

    @property
    def content(self) -> Sequence[ToolContentBlock]:
        """The blocks, as the tool gave them."""
        return self.result.content

    @property
    def is_error(self) -> bool:
        """Whether the call failed; the content then says why."""
        return self.result.is_error

    @property
    def structured(self) -> JsonValue:
        """The answer as one JSON value, for tools that declare an output schema."""
        return self.result.structured

    @property
    def details(self) -> Mapping[str, JsonValue]:
        """Facts for programs that the model does not see."""
        return self.result.details


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """How far a running call has come."""

    done: float
    total: float | None = None
    message: str = ""


ProgressSink: TypeAlias = Callable[[ToolProgress], None]


class ToolRunner(Protocol):
    """Runs calls."""

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call to its end, and answer with an error outcome whatever goes wrong."""
        ...


class ToolBox(Protocol):
    """The tools a loop may call: what they are, and who runs them."""

    @property
    def runner(self) -> ToolRunner:
        """Who runs the calls."""
        ...

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools, in an order that does not change between two calls of this method."""
        ...
