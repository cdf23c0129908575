"""The prompts: what there is, filling them in, and proposing what to fill in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

from outside.conformance.server import schemas
from outside.conformance.server.asking import Asked, ask, form, shown
from outside.conformance.server.content import embedded, image

if TYPE_CHECKING:
    from mcp_types import ContentBlock

_ASKING = "test_input_required_result_prompt"
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    _ASKING: (),
}
EXTRA = "test_sometimes_there"
"""A prompt that comes and goes, so that the list can change."""


def listed(*, with_extra: bool) -> list[Prompt]:
    """List them."""
    names = [*_ARGUMENTS, EXTRA] if with_extra else [*_ARGUMENTS]
    return [_list_prompts(name) for name in names]


async def get(ctx: Asked, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    """Fill one in.

    Raises:
        MCPError: There is none of that name, or an argument is missing.
    """
    given = params.arguments or {}
    if missing := [name for name in _find_prompt(params.name) if name not in given]:
        raise MCPError(INVALID_PARAMS, f"{params.name} needs {', '.join(missing)}")
    if params.name == _ASKING:
        questions = {"user_context": form("Which context?", context=schemas.TEXT)}
        answers = await ask(ctx, params, questions)
        if isinstance(answers, InputRequiredResult):
            return answers
        return _messages(TextContent(text=shown(answers["user_context"])))
    return _messages(*_fill_template(params.name, given))


async def complete(ctx: Asked, params: CompleteRequestParams) -> CompleteResult:
    """Propose what begins as the argument does."""
    begun = params.argument.value
    values = [f"{begun}{end}" for end in ("", "-one", "-two")]
    return CompleteResult(completion=Completion(values=values, total=len(values), has_more=False))


def _fill_template(name: str, given: dict[str, str]) -> list[ContentBlock]:
    if name == "test_prompt_with_arguments":
        filled = ", ".join(f"{key}='{value}'" for key, value in given.items())
        return [TextContent(text=f"Prompt with arguments: {filled}")]
    if name == "test_prompt_with_embedded_resource":
        content = embedded(given["resourceUri"], "text/plain", "What is in the resource.")
        return [content, TextContent(text="Please look at the resource above.")]
    if name == "test_prompt_with_image":
        return [image(), TextContent(text="Please look at the image above.")]
    return [TextContent(text="This is a simple prompt for testing.")]


def _find_prompt(name: str) -> tuple[str, ...]:
    if name == EXTRA:
        return ()
    try:
        return _ARGUMENTS[name]
    except KeyError:
        raise MCPError(INVALID_PARAMS, f"there is no prompt {name}") from None


def _list_prompts(name: str) -> Prompt:
    arguments = [
        PromptArgument(name=wanted, description=f"What to put for {wanted}", required=True)
        for wanted in _find_prompt(name)
    ]
    return Prompt(name=name, description=f"The prompt {name}", arguments=arguments or None)


def _messages(*blocks: ContentBlock) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=block) for block in blocks])
