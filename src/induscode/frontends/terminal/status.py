"""The status row: model, context, tokens, cost, mode and servers, as much of it as fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from induscode.conversations.conversation import Conversation


def format_status(conversation: Conversation | None, width: int, *, busy: bool) -> str:
    """Format the row; parts that do not fit are left out from the right."""
    if conversation is None:
        return "starting…"
    usage = conversation.usage
    window, used = conversation.choice.context_window, conversation.context_tokens
    parts = [conversation.choice.label]
    if conversation.plan_mode.active:
        parts.insert(0, "plan mode")
    if busy:
        parts.insert(0, "working (Esc interrupts)")
    starting = [name for name, status in conversation.session.mcp.status().items() if status.phase == "connecting"]
    if starting:
        parts.append(f"starting {', '.join(starting)}")
    running = len(conversation.resources.delegate.list_running())
    if running:
        parts.append(f"{running} {'task' if running == 1 else 'tasks'} in the background")
    parts.append(
        f"context {used / window:.0%} of {format_tokens(window)}" if window else f"context {format_tokens(used)}"
    )
    if usage.requests:
        parts.append(f"{format_tokens(usage.input_tokens + usage.output_tokens)} tokens")
        if usage.cost_usd:
            parts.append(f"${usage.cost_usd:.2f}")
    row = parts[0]
    for part in parts[1:]:
        if len(row) + len(part) + 3 > width - 1:
            break
        row += f" · {part}"
    return row


def format_tokens(count: int) -> str:
    """Format a number of tokens: 950, 12.3k, 1.2M."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k".replace(".0k", "k") if count < 1_000_000 else f"{count / 1_000_000:.1f}M"
