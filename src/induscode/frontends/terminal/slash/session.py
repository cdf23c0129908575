"""`/help`, `/plan`, `/model`, `/cost`, `/exit` and `/quit`: the session itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.text import format_count
from induscode.conversations.contract import Usage
from induscode.conversations.conversation import USAGE_OP
from induscode.conversations.models import InvalidAddressError, NoModelError
from induscode.conversations.prompt import list_names
from induscode.frontends.terminal.slash import SlashCommand, SlashError
from induscode.frontends.terminal.status import format_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject
    from induscode.frontends.terminal.slash import SlashHost

_KEYS = (
    "Esc stops the turn, Ctrl-C too (twice: leave), Shift-Tab switches plan mode, @ completes a file, "
    "Alt-Enter or \\ at the end begins a new line"
)


def list_session_commands(commands: Mapping[str, SlashCommand]) -> Sequence[SlashCommand]:
    """List the commands; `/help` shows those of `commands`, which may be filled later."""

    async def show_help(host: SlashHost, rest: str) -> None:
        name = rest.removeprefix("/")
        if name and name not in commands:
            raise SlashError(f"there is no command /{name}: /help lists them")
        shown = [commands[name]] if name else commands.values()
        rows = [(f"/{command.name} {command.usage}".rstrip(), command.describe) for command in shown]
        host.print_table(("COMMAND", ""), rows)
        if not name:
            host.screen.show(_KEYS)

    return (
        SlashCommand(name="help", usage="[COMMAND]", describe="list the commands", run=show_help),
        SlashCommand(name="plan", usage="[on|off]", describe="plan mode: only read-only tools run", run=_set_plan_mode),
        SlashCommand(name="model", usage="[NAME]", describe="show the model, or switch to another", run=_switch_model),
        SlashCommand(name="cost", describe="requests, tokens and cost of this conversation", run=_show_cost),
        SlashCommand(name="exit", describe="leave the session", run=_leave),
        SlashCommand(name="quit", describe="leave the session", run=_leave),
    )


async def _leave(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("it takes no arguments")
    host.leave()


async def _set_plan_mode(host: SlashHost, rest: str) -> None:
    mode = host.conversation.plan_mode
    if rest not in {"", "on", "off"}:
        raise SlashError("write /plan on, /plan off, or /plan to switch")
    mode.active = not mode.active if not rest else rest == "on"
    await host.conversation.state.save()
    host.screen.show(f"plan mode is {'on: only read-only tools run' if mode.active else 'off'}")


async def _switch_model(host: SlashHost, rest: str) -> None:
    conversation = host.conversation
    if not rest:
        choice = conversation.choice
        address = f" at {choice.base_url}" if choice.base_url else ""
        window = f", reads {format_tokens(choice.context_window)} tokens" if choice.context_window else ""
        host.screen.show(f"{choice.label}{address}{window}")
        return
    if len(rest.split()) > 1:
        raise SlashError("write one name: anthropic:NAME, openai:NAME, or NAME at --base-url")
    try:
        await conversation.switch_model(rest)
    except (NoModelError, InvalidAddressError) as exc:
        raise SlashError(str(exc)) from exc
    host.screen.show(f"{conversation.choice.label} answers from now on")
    deck = conversation.session.deck()  # the next one: it says what is left out
    if deck.hidden:
        host.screen.show(f"{format_count(len(deck.hidden), 'tool')} are found by search, not listed")
    if conversation.limit.left_out:
        host.screen.show(f"its context window has no room for {list_names(conversation.limit.left_out)}")


async def _show_cost(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("it takes no arguments")
    total = sum_usage(host.conversation.transcript.rows())
    rows: list[tuple[str, ...]] = []
    for name, usage in (("this session", host.conversation.usage), ("this conversation", total)):
        is_known = usage.cost_usd is not None and (usage.cost_usd > 0 or not usage.requests)
        cost = f"${usage.cost_usd:.2f}" if is_known else "unknown"
        rows.append((name, f"{usage.requests:,}", f"{usage.input_tokens:,}", f"{usage.output_tokens:,}", cost))
    host.print_table(("", "REQUESTS", "INPUT", "OUTPUT", "COST"), rows)
    cached = total.cache_read_tokens
    if cached:
        host.screen.show(f"of the input, {format_count(cached, 'token')} came from the cache of the provider")


def sum_usage(rows: Sequence[JsonObject]) -> Usage:
    """Sum the usage of all turns of a conversation, those of hidden messages included."""
    total = Usage(cost_usd=0.0)
    for row in rows:
        if row.get("op") == USAGE_OP:
            counts = [
                count if isinstance(count := row.get(name), int) else 0
                for name in ("requests", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
            ]
            cost = row.get("cost_usd")
            total = total.add(Usage(*counts, cost_usd=float(cost) if isinstance(cost, (int, float)) else None))
    return total
