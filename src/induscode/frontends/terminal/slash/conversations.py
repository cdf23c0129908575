"""`/resume` and `/fork`: other conversations of this directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import is_ulid
from indusagi.core.time import now_ms
from induscode.cli.console import format_age
from induscode.conversations.stored_conversations import list_conversations
from induscode.frontends.terminal.slash import SlashCommand, SlashError
from induscode.frontends.terminal.slash.tasks import confirm_end_of_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.conversations.stored_conversations import ConversationSummary
    from induscode.frontends.terminal.slash import SlashHost

_SHOWN = 20
_MOST = 200


def list_conversation_commands() -> Sequence[SlashCommand]:
    """List the commands."""
    return (
        SlashCommand(
            name="resume", usage="[N|ID]", describe="list the conversations of this directory, or open one", run=_resume
        ),
        SlashCommand(name="fork", describe="go on in a copy of this conversation; it stays as it is", run=_fork),
    )


async def _list(host: SlashHost, limit: int) -> Sequence[ConversationSummary]:
    conversation = host.conversation
    return await to_thread.run_sync(
        lambda: list_conversations(conversation.invocation.cwd, limit=limit, without=conversation.transcript.id)
    )


async def _resume(host: SlashHost, rest: str) -> None:
    summaries = await _list(host, _MOST if rest and not rest.isdigit() else _SHOWN)
    if not rest:
        if not summaries:
            host.screen.show("there is no other conversation in this directory")
            return
        rows = [
            (str(number), format_age(summary.modified_ms, now_ms()), str(summary.messages), summary.id, summary.title)
            for number, summary in enumerate(summaries, 1)
        ]
        host.print_table(("N", "AGE", "MESSAGES", "ID", "FIRST PROMPT"), rows)
        host.screen.show("/resume N opens one")
        return
    if rest.isdigit() and not is_ulid(rest):
        if not 1 <= int(rest) <= len(summaries):
            raise SlashError(f"there is no conversation {rest}: /resume lists them")
        name = summaries[int(rest) - 1].id
    else:
        matches = [summary.id for summary in summaries if summary.id.startswith(rest.upper())]
        if len(matches) != 1:
            problem = "there is no conversation" if not matches else "several conversations begin with"
            raise SlashError(f"{problem} {rest!r} in this directory: /resume lists them")
        (name,) = matches
    if await confirm_end_of_jobs(host, "This conversation is closed."):
        _reopen(host, name, fork=False)


async def _fork(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("it takes no arguments")
    conversation = host.conversation
    if not conversation.transcript.messages():
        raise SlashError("the conversation is empty: there is nothing to copy")
    if conversation.transcript.failure is not None:
        raise SlashError(f"the conversation cannot be stored: {conversation.transcript.failure}")
    if await confirm_end_of_jobs(host, "The session is opened again with the copy."):
        _reopen(host, conversation.transcript.id, fork=True)


def _reopen(host: SlashHost, name: str, *, fork: bool) -> None:
    host.reopen(replace(host.conversation.invocation, resume=name, fork=fork, continue_last=False, prompt=None))
