"""Rewind: returns a conversation, the files, or both to the state before a prompt.

The conversation's checkpoints hold the earlier contents of files that `write`, `edit` and commands changed. A rewind
records the current contents before it restores them. The transcript is append-only, so a rewind is just a row. It's
also a rewind point, so that going back to it undoes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from anyio import to_thread

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.conversations.transcript import REWIND_OP, Transcript, find_prompt_text, open_transcript, shorten_prompt

if TYPE_CHECKING:
    from contextlib import ExitStack

    from indusagi.capabilities.ports import Fs
    from induscode.deck.stores.checkpoints import FileCheckpoints, RestoreResult, RestoreStep

RewindScope: TypeAlias = Literal["files", "talk", "both"]
_TURN_OP = "turn"
_DONE = {"write": "restored", "delete": "removed"}


@record(kw_only=True)
class RewindPoint:
    """A state to return to: before a prompt, or before an earlier rewind."""

    number: int
    """Position among all points of the conversation, which never changes."""
    kind: Literal["prompt", "rewind"]
    at: str
    """The time, as RFC 3339."""
    title: str
    """The first words of the prompt, or a description of the rewind."""
    prompt: str
    """The whole prompt; empty for a rewind."""
    node: str
    """The checkpoint node."""
    row: int
    """The first row of the transcript that a rewind to this point hides."""
    files: tuple[str, ...]
    """Paths changed between this point and the next."""


@record(kw_only=True)
class RewindPreview:
    """The effects of a rewind."""

    point: RewindPoint
    steps: tuple[RestoreStep, ...]
    """Files that would change. Those with a conflict stay unless the caller insists."""
    messages: int
    """Number of messages that would leave the conversation, or (negative) return to it."""
    notes: tuple[str, ...]
    """Limitations of the rewind, for users."""


@record(kw_only=True)
class RewindResult:
    """The outcome of a rewind."""

    files: RestoreResult | None
    messages: int

    def __str__(self) -> str:
        parts = [] if self.files is None else [f"restored {format_count(len(self.files.done), 'path')}"]
        verb = "removed" if self.messages > 0 else "brought back"
        parts += [f"{verb} {format_count(abs(self.messages), 'message')}"] if self.messages else []
        return (", ".join(parts) or "nothing changed").capitalize()


def list_rewind_points(
    transcript: Transcript, checkpoints: FileCheckpoints, *, hidden: bool = False
) -> Sequence[RewindPoint]:
    """List the points of a conversation, oldest first, optionally including `hidden` ones. Blocks.

    Rewinding to a hidden point is valid too, for example to restore a file that the first attempt skipped.
    """
    changed = checkpoints.list_changed_paths()
    points = find_rewind_points(transcript.rows(), lambda node: changed.get(node, ()))
    visible = {index for index, _ in transcript.visible_rows()}
    return [point for point in points if hidden or point.row in visible]


def find_rewind_points(
    rows: Sequence[JsonObject], find_changed_paths: Callable[[str], Sequence[str]]
) -> Sequence[RewindPoint]:
    """Find the points in the rows of a conversation, oldest first. `find_changed_paths` returns a node's paths."""
    points: list[RewindPoint] = []
    nodes: set[str] = set()
    for index, row in enumerate(rows):
        op, node = row.get("op"), str(row.get("node", ""))
        if op == _TURN_OP and node and node not in nodes:
            nodes.add(node)
            kind, prompt = "prompt", _find_prompt(rows[index:], node)
            title = shorten_prompt(prompt) or "(the prompt was not stored)"
        elif op == REWIND_OP:
            kind, prompt, title = "rewind", "", f"rewind ({row.get('scope')}) to {row.get('to')}"
        else:
            continue
        files = tuple(find_changed_paths(node)) if node else ()
        at, number = str(row.get("at", "")), len(points) + 1
        facts: dict[str, Any] = {"title": title, "prompt": prompt, "node": node, "row": index, "files": files}
        points.append(RewindPoint(number=number, kind=kind, at=at, **facts))
    return points


def _find_prompt(rows: Sequence[JsonObject], node: str) -> str:
    """Return the prompt whose first turn is the first of these rows; empty if it wasn't stored."""
    for row in rows:
        if row.get("op") == _TURN_OP and row.get("node") != node:
            break
        message = row.get("message")
        if is_json_object(message) and (prompt := find_prompt_text(message)):
            return prompt
    return ""


async def preview_rewind(
    point: RewindPoint, scope: RewindScope, transcript: Transcript, checkpoints: FileCheckpoints, fs: Fs
) -> RewindPreview:
    """Determine the effects of a rewind; `OSError` if the checkpoints can't be read or don't have this point."""
    steps: tuple[RestoreStep, ...] = ()
    notes: tuple[str, ...] = ()
    if scope != "talk":
        steps = tuple(step for step in await checkpoints.preview(point.node, fs) if step.action != "none")
        notes = tuple(await to_thread.run_sync(checkpoints.notes_since, point.node))
    messages = 0 if scope == "files" else count_hidden_messages(point, transcript)
    return RewindPreview(point=point, steps=steps, messages=messages, notes=notes)


def count_hidden_messages(point: RewindPoint, transcript: Transcript) -> int:
    """Count the messages that a rewind to a point hides, or (negative) shows again."""
    now, then = transcript.visible_rows(), transcript.visible_rows(point.row)
    return sum(row.get("op") == "message" for _, row in now) - sum(row.get("op") == "message" for _, row in then)


def describe_messages(count: int) -> str:
    """Describe how many messages a rewind hides, or brings back if the count is negative."""
    change = "back in" if count < 0 else "hidden from"
    return f"{format_count(abs(count), 'message')} {change} the conversation"


def rewind_conversation(
    point: RewindPoint, transcript: Transcript, *, scope: RewindScope = "talk", node: str = ""
) -> int:
    """Hide everything from a point on, and return `count_hidden_messages`. Blocks.

    A prompt starts a turn, and all calls before it have results, so calls and results stay paired. `node` is the
    checkpoint node to undo the file changes of the same rewind. `OSError` if the transcript can't be written.
    """
    hidden = 0
    facts: dict[str, str | int] = {"scope": scope, "to": point.number}
    if scope != "files":
        hidden = count_hidden_messages(point, transcript)
        facts["before"] = point.row
    if node:
        facts["node"] = node
    transcript.mark(REWIND_OP, **facts)
    if transcript.failure is not None:
        raise OSError(f"the rewind was not recorded: {transcript.failure}")
    return hidden


async def rewind(
    point: RewindPoint,
    scope: RewindScope,
    transcript: Transcript,
    checkpoints: FileCheckpoints,
    fs: Fs,
    *,
    insist: Collection[str] = (),
) -> RewindResult:
    """Return to a point: first the files, then the conversation.

    A file that another program has changed since stays unless its absolute path is in `insist`.

    Raises:
        OSError: Recording the current files failed (no file changed), or the transcript can't be written.
    """
    restored = None
    if scope == "talk":
        node = f"{REWIND_OP}-{new_ulid()}"
        await to_thread.run_sync(checkpoints.begin, node)
    else:
        restored = await checkpoints.restore(point.node, fs, insist=insist)
        node = restored.safety
    messages = await to_thread.run_sync(partial(rewind_conversation, point, transcript, scope=scope, node=node))
    return RewindResult(files=restored, messages=messages)


def find_workspace(transcript: Transcript) -> str:
    """Return the working directory of a conversation."""
    cwd = transcript.rows()[0].get("cwd") if transcript.rows() else None
    return cwd if isinstance(cwd, str) else os.getcwd()


class StoredRewind:
    """A stored conversation, opened for a rewind."""

    def __init__(self, cwd: str, conversation: str | None, stack: ExitStack) -> None:
        """Open the conversation, or the last one in `cwd`, and its checkpoints; `stack` closes them. Blocks.

        Raises:
            ConversationError: It doesn't exist, or another process has it open.
            OSError: It can't be read.
        """
        # Both load modules that a conversation's views and listings don't need.
        from indusagi.capabilities.local import make_local_context  # noqa: PLC0415 — see above
        from induscode.deck.stores import FileCheckpoints  # noqa: PLC0415 — see above

        self.transcript = open_transcript(cwd, resume=conversation, last=conversation is None)
        stack.callback(self.transcript.close)
        self.checkpoints = FileCheckpoints(os.path.join(self.transcript.directory, "checkpoints"))
        stack.callback(self.checkpoints.close)
        self.workspace = find_workspace(self.transcript)
        self._fs = make_local_context(self.workspace).fs
        self.points = list_rewind_points(self.transcript, self.checkpoints, hidden=True)

    async def preview(self, point: RewindPoint, scope: RewindScope) -> RewindPreview:
        """Determine the effects of a rewind (see `preview_rewind`)."""
        return await preview_rewind(point, scope, self.transcript, self.checkpoints, self._fs)

    async def rewind(self, point: RewindPoint, scope: RewindScope, insist: Collection[str] = ()) -> RewindResult:
        """Return to a point (see `rewind`)."""
        return await rewind(point, scope, self.transcript, self.checkpoints, self._fs, insist=insist)

    def shorten(self, path: str) -> str:
        """Write a path relative to the workspace."""
        return path.removeprefix(os.path.join(self.workspace, ""))

    def describe_preview(
        self, preview: RewindPreview, scope: RewindScope, insist: Collection[str] = ()
    ) -> Iterator[str]:
        """Describe the effects of a rewind, one per line."""
        for step in preview.steps:
            path, word = self.shorten(step.path), _DONE[step.action]
            if step.conflict and step.path not in insist:
                word = f"stays: another program has changed it since (--insist {path} restores it)"
            yield f"{path}: {word}"
        if not preview.steps and scope != "talk":
            yield "no file changes"
        if scope != "files":
            yield describe_messages(preview.messages)
        yield from (f"note: {note}" for note in preview.notes)
