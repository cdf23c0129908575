"""`/rewind`: returns files, conversation, or both to the state before a prompt."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.core.text import format_count
from induscode.cli.dialog import Choice, Question
from induscode.cli.terminal import escape_unprintable
from induscode.conversations.rewind import list_rewind_points, preview_rewind, rewind
from induscode.frontends.terminal.slash import SlashCommand, SlashError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.conversations.rewind import RewindPoint, RewindPreview, RewindScope
    from induscode.frontends.terminal.slash import SlashHost

_SCOPES = ("files", "talk", "both")
_USAGE = "write /rewind, or /rewind N with files, talk or both"
_SHOWN = 20
_ACTIONS = {"write": "is restored", "delete": "is removed"}


def list_rewind_commands() -> Sequence[SlashCommand]:
    """List the commands."""
    describe = "return files, conversation or both to the state before a prompt"
    return (SlashCommand(name="rewind", usage="[N] [files|talk|both]", describe=describe, run=_run),)


async def _run(host: SlashHost, rest: str) -> None:
    words = rest.split()
    scope = cast("RewindScope", words.pop() if words and words[-1] in _SCOPES else "both")
    if len(words) > 1 or (words and not words[0].isdigit()) or (not words and rest):
        raise SlashError(_USAGE)
    conversation = host.conversation
    transcript, checkpoints = conversation.transcript, conversation.resources.checkpoints
    points = await to_thread.run_sync(list_rewind_points, transcript, checkpoints)
    if not words:
        if not points:
            raise SlashError("the conversation has no prompts yet")
        rows = [(str(point.number), point.at[11:19], str(len(point.files)), point.title) for point in points[-_SHOWN:]]
        host.print_table(("N", "TIME", "FILES", "BEFORE"), rows)
        host.screen.show("/rewind N returns to the state before that prompt")
        return
    point = next((point for point in points if point.number == int(words[0])), None)
    if point is None:
        raise SlashError(f"there is no point {words[0]}: /rewind lists them")
    fs = conversation.session.native.context.fs
    preview = await preview_rewind(point, scope, transcript, checkpoints, fs)
    insist = await _ask(host, point, preview, scope)
    if insist is None:
        host.screen.show("nothing was changed")
        return
    result = await rewind(point, scope, transcript, checkpoints, fs, insist=insist)
    if scope != "files":
        await conversation.restore_state()
    parts = [] if result.files is None else [f"{format_count(len(result.files.done), 'path')} restored"]
    parts += [_describe_messages(result.messages)] if result.messages else []
    host.screen.show(f"{'; '.join(parts) or 'nothing changed'}; the last point of /rewind undoes this")
    for path, reason in () if result.files is None else result.files.left:
        host.screen.show(f"{_shorten(host, path)} stays as it is: {reason}")


async def _ask(host: SlashHost, point: RewindPoint, preview: RewindPreview, scope: RewindScope) -> Sequence[str] | None:
    """Show what would happen and ask; give the paths to insist on, None for a no."""
    conflicts = [step.path for step in preview.steps if step.conflict]
    lines = [
        f"{_shorten(host, step.path)}: "
        + ("stays, another program has changed it" if step.conflict else _ACTIONS[step.action])
        for step in preview.steps
    ]
    if not preview.steps and scope != "talk":
        lines.append("no file changes")
    if scope != "files":
        lines.append(_describe_messages(preview.messages))
    lines += [f"note: {note}" for note in preview.notes]
    choices = [Choice(key="y", label="yes"), Choice(key="n", label="no")]
    if conflicts:
        choices.insert(1, Choice(key="a", label="yes, and restore what another program has changed too"))
    question = Question(
        title=escape_unprintable(f"Back to the state before: {point.title}"),
        lines=tuple(map(escape_unprintable, lines)),
        choices=tuple(choices),
        default="n",
    )
    reply = await host.screen.ask(question)
    if reply.cancelled or reply.key not in {"y", "a"}:
        return None
    return conflicts if reply.key == "a" else ()


def _describe_messages(count: int) -> str:
    if count < 0:
        return f"{format_count(-count, 'message')} back in the conversation"
    return f"{format_count(count, 'message')} hidden from the conversation"


def _shorten(host: SlashHost, path: str) -> str:
    return path.removeprefix(os.path.join(host.conversation.invocation.cwd, ""))
