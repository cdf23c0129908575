"""Questions of a first start: which model answers, and which servers of the project may start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.text import format_count
from induscode.cli.dialog import Choice, Question
from induscode.conversations.models import (
    LOCAL_PORTS,
    PROVIDER_KEYS,
    InvalidAddressError,
    check_address,
    find_key_problem,
    store_key,
)
from induscode.frontends.terminal.slash import mark
from induscode.servers.config.trust import TrustStore

if TYPE_CHECKING:
    from induscode.frontends.terminal.slash import SlashHost, SlashScreen
    from induscode.launch.invocation import Invocation
    from induscode.servers.config.rows import ServerRow


_PROVIDERS = {"1": ("anthropic", "Anthropic"), "2": ("openai", "OpenAI")}
_MODELS = Question(
    title="Which model should answer?",
    choices=(
        Choice(key="1", label="Anthropic: paste a key, or set ANTHROPIC_API_KEY"),
        Choice(key="2", label="OpenAI: paste a key, or set OPENAI_API_KEY"),
        Choice(
            key="3",
            label=f"Ollama, llama.cpp, or another address (nothing answers on {', '.join(map(str, LOCAL_PORTS))})",
        ),
        Choice(key="4", label="No model: use indus as a gateway (indus ui)", refuses=True),
    ),
    default="1",
)


async def set_up_model(screen: SlashScreen, invocation: Invocation) -> Invocation | None:
    """Ask which model answers, and store a pasted key. Return the invocation to try, or `None` without a model."""
    reply = await screen.ask(_MODELS)
    if reply.key in _PROVIDERS:
        provider, name = _PROVIDERS[reply.key]
        reply = await screen.ask(Question(title=f"Key of {name}", check=find_key_problem, secret=True))
        if reply.cancelled:
            return None
        for note in await to_thread.run_sync(store_key, provider, reply.text):
            screen.show(f"note: {note}")
        screen.show(f"The key is stored as the secret {PROVIDER_KEYS[provider]}: indus models shows it")
        return invocation
    if reply.key != "3":
        return None
    reply = await screen.ask(Question(title="Address, such as http://127.0.0.1:8080/v1", check=_find_address_problem))
    return None if reply.cancelled else replace(invocation, base_url=reply.text.strip())


def _find_address_problem(text: str) -> str | None:
    try:
        check_address(text.strip())
    except InvalidAddressError as exc:
        return str(exc)
    return None


async def ask_about_servers(host: SlashHost, rows: Sequence[ServerRow]) -> Sequence[str]:
    """Show servers in full, ask which may start, and store the consent. Return the names of those."""
    store = TrustStore()
    questions = await to_thread.run_sync(lambda: [store.question(row) for row in rows])
    files = ", ".join(dict.fromkeys(row.origin.file for row in rows))
    lines = [
        line
        for row, question in zip(rows, questions, strict=True)
        for line in (f"{row.id}:", *(f"  {one}" for one in question.details))
    ]
    title = f"This project configures {format_count(len(rows), 'MCP server')} ({files}). Start which?"
    marked = await mark(host, title, lines, [row.id for row in rows])
    chosen = [(row, question) for row, question in zip(rows, questions, strict=True) if row.id in marked]
    for row, question in chosen:
        await to_thread.run_sync(store.approve, row, question.digest)
    return [row.id for row, _ in chosen]


async def ask_about_new_servers(host: SlashHost) -> Sequence[str]:
    """Ask once about the servers of the project that wait for consent. Return the names of those with a yes."""
    servers, store = host.conversation.servers, TrustStore()
    waiting = () if servers is None else servers.plan.untrusted
    rows = await to_thread.run_sync(lambda: [row for row in waiting if not store.is_postponed(row)])
    if servers is None or not rows:
        return ()
    trusted = await ask_about_servers(host, rows)
    await to_thread.run_sync(lambda: store.postpone([row for row in rows if row.id not in trusted]))
    if trusted:
        await servers.apply_plan(await servers.read_plan())
    return trusted
