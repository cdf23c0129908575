"""The tools: what each is called with, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult, LoggingLevel, TextContent, Tool

from outside.conformance.server import schemas
from outside.conformance.server.asking import Asked, ask, can_answer, form, roots, sample, shown
from outside.conformance.server.content import audio, embedded, image, said
from outside.conformance.server.logs import log

if TYPE_CHECKING:
    from mcp_types import ContentBlock

    from outside.conformance.server.asking import Questions

Result = CallToolResult | InputRequiredResult
Run = Callable[[Asked, CallToolRequestParams], Awaitable[Result]]
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Act:
    """A tool and what it does."""

    run: Run
    takes: Mapping[str, Any]

    def listed(self, name: str) -> Tool:
        """The tool as it stands in the list."""
        about = f"For the conformance suite: {name.replace('_', ' ')}."
        return Tool(name=name, description=about, input_schema=dict(self.takes))


def _giving(*content: ContentBlock, wrong: bool = False) -> Run:
    async def run(ctx: Asked, params: CallToolRequestParams) -> Result:
        return CallToolResult(content=list(content), is_error=wrong)

    return run


def _asking(questions: Callable[[Mapping[str, Any]], Questions], state: str | None = None) -> Run:
    async def run(ctx: Asked, params: CallToolRequestParams) -> Result:
        answers = await ask(ctx, params, questions(params.arguments or {}), state)
        if isinstance(answers, InputRequiredResult):
            return answers
        # What was never asked for is left alone: it may be anything.
        known = [answers[key] for key in questions(params.arguments or {})]
        return said("\n".join(["state-ok" if state else "answered", *map(shown, known)]))

    return run


def _always(**questions: Any) -> Callable[[Mapping[str, Any]], Questions]:
    return lambda arguments: questions


def _logging(*lines: str, level: LoggingLevel = "info") -> Run:
    async def run(ctx: Asked, params: CallToolRequestParams) -> Result:
        for line in lines:
            await log(ctx, level, line)
            await anyio.sleep(_PAUSE_S)
        return said("logged")

    return run


async def _progress(ctx: Asked, params: CallToolRequestParams) -> Result:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"{done} of 100")
        await anyio.sleep(_PAUSE_S)
    return said("done")


async def _reconnect(ctx: Asked, params: CallToolRequestParams) -> Result:
    """Leave the client without its stream; it has to come back for the result."""
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await anyio.sleep(_PAUSE_S)
    return said("came back")


async def _stream(ctx: Asked, params: CallToolRequestParams) -> Result:
    """Say something first, so that the answer is one of several messages."""
    await ctx.session.report_progress(0, 1)
    return await _asking(_always(name=form("What is your name?", name=schemas.TEXT)))(ctx, params)


async def _ask_what_it_can(ctx: Asked, params: CallToolRequestParams) -> Result:
    all_of_them = {
        "name": form("What is your name?", name=schemas.TEXT),
        "capital": sample("What is the capital of France?"),
        "folders": roots(),
    }
    questions = {key: asked for key, asked in all_of_them.items() if can_answer(ctx, asked)}
    return await _asking(lambda arguments: questions)(ctx, params)


async def _rounds(ctx: Asked, params: CallToolRequestParams) -> Result:
    """Ask for one thing, then, in the knowledge of it, for another."""
    if params.request_state != "second":
        first = await ask(ctx, params, {"step1": form("Your name?", name=schemas.TEXT)}, "first")
        if isinstance(first, InputRequiredResult):
            return first
    questions = {"step2": form("Your favourite colour?", color=schemas.TEXT)}
    second = await ask(ctx, params, questions, "second")
    if isinstance(second, InputRequiredResult):
        return second
    return said(shown(second["step2"]))


_NAME = _always(user_name=form("What is your name?", name=schemas.TEXT))
_CAPITAL = _always(capital_question=sample("What is the capital of France?"))
_CONFIRM = _always(confirm=form("Please confirm", ok=schemas.YES_OR_NO))
_ALL = _always(
    user_name=form("What is your name?", name=schemas.TEXT), greeting=sample("Greet somebody"), client_roots=roots()
)
_MIXED = (
    TextContent(text="Several kinds of content:"),
    image(),
    embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
)
_TEXT = _giving(TextContent(text="This is a simple text response for testing."))
_EMBEDDED = embedded("test://embedded-resource", "text/plain", "An embedded resource.")
_FAILED = TextContent(text="This tool fails, as it should.")
_ACCOUNT = {"username": schemas.TEXT, "email": schemas.TEXT}


def _plain() -> dict[str, Run]:
    return {
        "test_simple_text": _TEXT,
        "test_image_content": _giving(image()),
        "test_audio_content": _giving(audio()),
        "test_embedded_resource": _giving(_EMBEDDED),
        "test_multiple_content_types": _giving(*_MIXED),
        "test_error_handling": _giving(_FAILED, wrong=True),
        "test_tool_with_progress": _progress,
        "test_tool_with_logging": _logging("started", "working", "completed"),
        "test_logging_tool": _logging("only for those who asked"),
        "test_reconnection": _reconnect,
        "test_streaming_elicitation": _stream,
        "test_missing_capability": _asking(_always(question=sample("Anything?"))),
        "test_elicitation_sep1034_defaults": _asking(_always(person=form("Is this right?", **schemas.DEFAULTS))),
        "test_elicitation_sep1330_enums": _asking(_always(choice=form("Which ones?", **schemas.CHOICES))),
        "test_input_required_result_elicitation": _asking(_NAME),
        "test_input_required_result_sampling": _asking(_CAPITAL),
        "test_input_required_result_list_roots": _asking(_always(client_roots=roots())),
        "test_input_required_result_request_state": _asking(_CONFIRM, "confirming"),
        "test_input_required_result_tampered_state": _asking(_CONFIRM, "confirming"),
        "test_input_required_result_multiple_inputs": _asking(_ALL, "all of them"),
        "test_input_required_result_multi_round": _rounds,
        "test_input_required_result_capabilities": _ask_what_it_can,
    }


def acts() -> dict[str, Act]:
    """Give the tools by name."""
    return {
        **{name: Act(run, schemas.NOTHING) for name, run in _plain().items()},
        "json_schema_2020_12_tool": Act(_TEXT, schemas.RICH),
        "test_x_mcp_header": Act(_TEXT, schemas.HEADER),
        "test_sampling": Act(_asking(lambda given: {"reply": sample(given["prompt"])}), schemas.of_text("prompt")),
        "test_elicitation": Act(
            _asking(lambda given: {"user": form(given["message"], **_ACCOUNT)}), schemas.of_text("message")
        ),
    }
