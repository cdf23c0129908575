"""Commands about the conversation and its project, such as `/clear`, `/diff` and `/export`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi import __version__
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, compact_json
from indusagi.core.text import format_count
from induscode.cli.terminal import escape_controls
from induscode.conversations.transcript import find_answer_text, find_last_exchange, find_prompt_text, list_parts
from induscode.frontends.terminal.render import format_tokens
from induscode.frontends.terminal.slash import SlashCommand, SlashError, confirm_end_of_jobs

if TYPE_CHECKING:
    from induscode.conversations.contract import RunEvent
    from induscode.frontends.terminal.slash import SlashHost

_DIFF = (
    "git --no-pager -c core.fsmonitor=false diff --no-ext-diff --no-textconv HEAD"
    " && git ls-files --others --exclude-standard | sed 's/^/new file: /'"
)
_INIT = (
    "Look at this project and write AGENTS.md in its root, or improve the one there: its purpose, how to build,"
    " check and test it (try that where it's safe), where things are, and the conventions a newcomer can't guess."
    " At most 80 lines. State facts that you've seen in files; leave out what holds for every project."
)


def _refuse_words(rest: str) -> None:
    if rest:
        raise SlashError("this command takes no arguments")


async def _clear(host: SlashHost, rest: str) -> None:
    _refuse_words(rest)
    if await confirm_end_of_jobs(host, "This conversation is closed."):
        host.reopen(replace(host.conversation.invocation, resume=None, fork=False, continue_last=False, prompt=None))


async def _diff(host: SlashHost, rest: str) -> None:
    """Show the changes since the last commit. Git runs in the sandbox: a repository's settings may name programs."""
    _refuse_words(rest)
    conversation = host.conversation

    async def ignore(_: RunEvent) -> None:
        pass

    text = await conversation.run_command(_DIFF, sink=ignore, cancel=CancelToken(), dialog=host.screen)
    host.screen.print(escape_controls(text.strip("\n") or "no changes since the last commit"))


async def _init(host: SlashHost, rest: str) -> None:
    host.prompt(f"{_INIT} {rest}".strip())


async def _show_status(host: SlashHost, rest: str) -> None:
    _refuse_words(rest)
    conversation = host.conversation
    choice, mcp = conversation.choice, conversation.session.mcp
    checks = conversation.permissions.permissions
    phases = [str(status.phase) for status in mcp.status().values()]
    context = f"{format_tokens(conversation.context_tokens)} tokens"
    if choice.context_window:
        context += f" of {format_tokens(choice.context_window)}"
    facts = {
        "version": f"indus {__version__}, Python {sys.version.partition(' ')[0]}",
        "directory": conversation.invocation.cwd,
        "conversation": conversation.transcript.id,
        "model": choice.label + (f" at {choice.base_url}" if choice.base_url else ""),
        "context": context,
        "mode": "plan" if conversation.plan_mode.active else "" if checks is None else checks.approval.value,
        "servers": f"{phases.count('ready')} of {len(phases)} ready" if phases else "none",
        "tools": format_count(len(conversation.session.deck().shown()), "tool"),
    }
    for name, value in facts.items():
        host.screen.show(f"{name + ':':<13} {value}")


async def _copy(host: SlashHost, rest: str) -> None:
    _refuse_words(rest)
    _, answer = find_last_exchange(host.conversation.transcript.messages())
    if not answer:
        raise SlashError("there is no answer to copy yet")
    host.screen.copy(answer)
    host.screen.show(f"Sent {format_count(len(answer), 'character')} to the terminal's clipboard")


async def _export(host: SlashHost, rest: str) -> None:
    conversation = host.conversation
    messages = conversation.transcript.messages()
    if not messages:
        raise SlashError("the conversation is empty")
    text = "\n\n".join(list_paragraphs(messages)) + "\n"

    def write() -> str:
        name = os.path.expanduser(rest or f"{conversation.transcript.id}.md")
        path = os.path.join(conversation.invocation.cwd, name)
        with open(path, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        return path

    try:
        path = await to_thread.run_sync(write)
    except FileExistsError:
        raise SlashError(f"{rest} exists: give another name") from None
    host.screen.show(f"Exported {format_count(len(messages), 'message')} to {path}")


def list_paragraphs(messages: Sequence[JsonObject]) -> Iterator[str]:
    """Yield a conversation as Markdown: its prompts, answers and calls."""
    for message in messages:
        if prompt := find_prompt_text(message):
            yield f"## {prompt}"
        if answer := find_answer_text(message):
            yield answer
        for part in list_parts(message):
            if part.get("part_kind") == "tool-call":
                args = part.get("args")
                yield f"- `{part.get('tool_name')} {args if isinstance(args, str) else compact_json(args)}`"


CONVERSATION = (
    SlashCommand(name="clear", describe="start a new conversation", run=_clear),
    SlashCommand(name="copy", describe="copy the last answer to the clipboard", run=_copy),
    SlashCommand(name="diff", describe="changes since the last commit", run=_diff),
    SlashCommand(name="export", usage="[FILE]", describe="write the conversation to a Markdown file", run=_export),
    SlashCommand(name="init", usage="[WISHES]", describe="have the model write AGENTS.md", run=_init),
    SlashCommand(name="new", describe="start a new conversation, like /clear", run=_clear),
    SlashCommand(name="status", describe="version, model, mode, context and servers", run=_show_status),
)
