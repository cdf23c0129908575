"""Adapter for pydantic-ai: a toolbox as a toolset.

It reads the toolbox before every request, passes arguments to the tools as the model wrote them, returns images and
documents as `BinaryContent`, and raises `ToolFailed` on failure. Cancelling the run cancels the call. Calls of a tool
that isn't read-only run alone.

https://ai.pydantic.dev/toolsets/
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

from indusagi.adapters.calls import AdapterCalls, Gate, ModelContent, explain_missing, is_read_only, parse_arguments
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonValue
from indusagi.runtime.contract import ToolBox, ToolCall, ToolDescriptor

with explain_missing("pydantic-ai-slim"):
    from pydantic_ai import BinaryContent
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.tools import RunContext, ToolDefinition
    from pydantic_ai.toolsets.abstract import AbstractToolset, ToolsetTool


def to_pydantic_ai(
    box: ToolBox, *, gate: Gate | None = None, cancel: CancelToken | None = None, id: str = "indus"
) -> AbstractToolset[Any]:
    """Give a toolbox to an agent of pydantic-ai.

    Raises `MissingGateError` if there's no gate, and the toolbox doesn't check its calls.
    """
    return _AdapterToolset(AdapterCalls(box, gate, cancel), id)


class NonObjectArguments(dict[str, Any]):
    """Wraps arguments that aren't a JSON object; the tool's own check explains the error to the model."""

    def __init__(self, value: JsonValue) -> None:
        super().__init__()
        self.value = value


class PassThroughValidator:
    """Accepts any arguments: the tool checks them itself."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        """Parse arguments, passing on invalid JSON as text."""
        text = input if isinstance(input, str) else bytes(input).decode("utf-8", "replace")
        return self.validate_python(parse_arguments(text))

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        """Accept parsed arguments unchanged."""
        return cast("dict[str, Any]", input) if isinstance(input, dict) else NonObjectArguments(input)


class ToolBoxToolset(AbstractToolset[Any]):
    """A toolset of descriptors and calls, which subclasses provide.

    A model may repeat a call that pydantic-ai rejected itself `max_retries` times.
    """

    def __init__(self, id: str, max_retries: int = 1) -> None:
        self._id = id
        self._max_retries = max_retries

    @property
    def id(self) -> str:
        """Id of the toolset."""
        return self._id

    @abstractmethod
    async def list_tools(self, ctx: RunContext[Any]) -> list[tuple[ToolDescriptor, bool]]:
        """List the current tools, each with whether its calls run alone."""
        ...

    @abstractmethod
    async def run_call(self, call: ToolCall) -> ModelContent:
        """Run a call."""
        ...

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Build the definitions of the current tools."""
        tools: dict[str, ToolsetTool[Any]] = {}
        for descriptor, is_sequential in await self.list_tools(ctx):
            definition = ToolDefinition(
                name=descriptor.name,
                description=descriptor.description,
                parameters_json_schema=cast("dict[str, Any]", dict(descriptor.parameters)),
                strict=False,
                sequential=is_sequential,
            )
            tools[descriptor.name] = ToolsetTool(
                toolset=self, tool_def=definition, max_retries=self._max_retries, args_validator=PassThroughValidator()
            )
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Run a call and return its result in the library's types. Raises `ToolFailed` if the call failed."""
        arguments = tool_args.value if isinstance(tool_args, NonObjectArguments) else tool_args
        return self.to_return(await self.run_call(ToolCall(ctx.tool_call_id or name, name, arguments)), name)

    def to_return(self, content: ModelContent, name: str) -> Any:
        """Convert the result of a call of tool `name`. Raises `ToolFailed` if the call failed."""
        if content.is_error:
            raise ToolFailed(content.text)
        files = [BinaryContent(file.data, media_type=file.media_type) for file in content.attachments]
        return [content.text, *files] if files else content.text


class _AdapterToolset(ToolBoxToolset):
    def __init__(self, calls: AdapterCalls, id: str) -> None:
        super().__init__(id)
        self._calls = calls

    async def list_tools(self, ctx: RunContext[Any]) -> list[tuple[ToolDescriptor, bool]]:
        return [(tool, not is_read_only(tool)) for tool in await self._calls.read_descriptors()]

    async def run_call(self, call: ToolCall) -> ModelContent:
        return await self._calls.run_for_model(call)
