"""`/context` and `/compact`: what fills the context window of the model, and how it is emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.cancel import CancelToken
from indusagi.core.json import estimate_tokens
from indusagi.core.records import record
from induscode.cli.terminal import escape_unprintable
from induscode.conversations.compaction import CompactionError, estimate_message
from induscode.frontends.terminal.slash import SlashCommand, SlashError
from induscode.frontends.terminal.status import format_tokens
from induscode.search.options import estimate_definition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.conversations.conversation import Conversation
    from induscode.frontends.terminal.slash import SlashHost

_WIDEST = 72
_NUMBER = 7
_LONGEST_NAME = 24
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


@record
class ContextPart:
    """A part of the context window, in estimated tokens."""

    name: str
    tokens: int


def list_context_commands() -> Sequence[SlashCommand]:
    """List the commands."""
    return (
        SlashCommand(name="context", describe="what fills the context window", run=_show_context),
        SlashCommand(
            name="compact", usage="[INSTRUCTIONS]", describe="replace the older messages by a summary", run=_compact
        ),
    )


def measure_parts(conversation: Conversation) -> Sequence[ContextPart]:
    """Estimate the parts of the next request: system prompt, tools by server, messages."""
    box = conversation.search.open_box(conversation.session.deck())
    servers = conversation.map_servers()
    tools: dict[str, int] = {}
    for descriptor in box.descriptors():
        size = estimate_definition(descriptor)
        owner = servers.get(descriptor.name)
        name = "native tools" if owner is None else f"tools of {owner}"
        tools[name] = tools.get(name, 0) + size
    prompt = conversation.render_system_prompt()
    messages = sum(map(estimate_message, conversation.transcript.messages()))
    return (
        ContextPart("system prompt", estimate_tokens(prompt)),
        *(ContextPart(name, size) for name, size in tools.items()),
        ContextPart("messages", messages),
    )


def format_parts(parts: Sequence[ContextPart], window: int | None, width: int) -> Sequence[str]:
    """Format parts as lines with bars that fit a width."""
    used = sum(part.tokens for part in parts)
    rows = [*parts, ContextPart("together", used)]
    if window is not None:
        rows.append(ContextPart("free", max(0, window - used)))
    total = max(1, window or used)
    longest = min(_LONGEST_NAME, max(len(escape_unprintable(part.name)) for part in rows))
    bar = min(width - 1, _WIDEST) - longest - _NUMBER - 2
    lines: list[str] = []
    for part in rows:
        name = escape_unprintable(part.name)
        name = name if len(name) <= longest else f"{name[: longest - 1]}…"
        eighths = 0 if not part.tokens else max(1, round(min(1.0, part.tokens / total) * max(bar, 0) * 8))
        drawn = "█" * (eighths // 8) + _EIGHTHS[eighths % 8] if bar > 0 else ""
        lines.append(f"{name:<{longest}} {format_tokens(part.tokens):>{_NUMBER}} {drawn}".rstrip())
    return lines


async def _show_context(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("it takes no arguments")
    conversation = host.conversation
    window = conversation.choice.context_window
    for line in format_parts(measure_parts(conversation), window, host.screen.width):
        host.screen.show(line)
    if window is None:
        host.screen.show("the context window is unknown: --context-window N gives it")
    if conversation.context_tokens:
        host.screen.show(f"last request, as the model counts: {format_tokens(conversation.context_tokens)}")


async def _compact(host: SlashHost, rest: str) -> None:
    host.screen.show("the model writes a summary (Esc cancels)")
    try:
        report = await host.conversation.compact(rest, cancel=CancelToken())
    except CompactionError as exc:
        raise SlashError(f"nothing was changed: {exc}") from exc
    host.screen.show(str(report))
