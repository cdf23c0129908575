"""`indus rewind`: restores files, a conversation, or both to the state before a prompt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import click

from indusagi.capabilities.local import make_local_context
from indusagi.core.text import format_count
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, can_ask_user, confirm, write_json
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import escape_unprintable, print_line, print_status
from induscode.conversations.rewind import describe_messages, find_workspace, list_rewind_points, preview_rewind, rewind
from induscode.conversations.transcript import ConversationError, open_transcript
from induscode.deck.stores import FileCheckpoints
from induscode.launch.options import define_command, read_cwd

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.conversations.rewind import RewindPoint, RewindPreview, RewindResult, RewindScope

_USAGE = 2
_LEFT = 1
"""Exit code if a file stays as it is, or the user says no."""
_DONE = {"write": "restored", "delete": "removed"}


@define_command("rewind", "--cwd")
@click.option("--conversation", metavar="ID", help="This conversation instead of the last one here.")
@click.option("--to", "number", type=int, metavar="N", help="The point to return to, by its number in the list.")
@click.option("--files", "scope", flag_value="files", help="Only the files.")
@click.option("--talk", "scope", flag_value="talk", help="Only the conversation.")
@click.option("--both", "scope", flag_value="both", default=True, help="The files and the conversation (default).")
@click.option("--dry-run", is_flag=True, help="Only show what would happen.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--insist", multiple=True, metavar="PATH", help="Restore a file that another program has changed, too.")
@as_json
def command(
    context: click.Context,
    *,
    conversation: str | None,
    number: int | None,
    scope: str,
    dry_run: bool,
    yes: bool,
    insist: tuple[str, ...],
    as_json: bool,
) -> int:
    """Return to the state before a prompt. Without --to: list the points.

    Restores files changed by write, edit and commands, after recording their current state: a rewind becomes a point
    in the list too, and going back to it undoes it.
    """
    cwd = read_cwd(context)
    if number is None and (dry_run or yes or insist):
        raise click.UsageError("--dry-run, --yes and --insist need --to N")
    paths = [os.path.abspath(os.path.join(cwd, path)) for path in insist]
    try:
        with ExitStack() as stack:
            session = RewindSession(cwd, conversation, stack)
            if number is None:
                return session.show_points(json=as_json)
            wanted = [point for point in session.points if point.number == number]
            if not wanted:
                raise click.UsageError(f"There is no point {number}: `indus rewind` lists them")
            return session.run(wanted[0], cast("RewindScope", scope), paths, dry_run=dry_run, yes=yes, json=as_json)
    except ConversationError as exc:
        raise click.UsageError(str(exc)) from exc
    except OSError as exc:
        print_status(str(exc))
        return _LEFT


class RewindSession:
    """A stored conversation, opened for a rewind."""

    def __init__(self, cwd: str, conversation: str | None, stack: ExitStack) -> None:
        """Open the conversation and its checkpoints; `stack` closes them.

        Raises:
            ConversationError: It doesn't exist, or another process has it open.
            OSError: It can't be read.
        """
        self._transcript = open_transcript(cwd, resume=conversation, last=conversation is None)
        stack.callback(self._transcript.close)
        self._checkpoints = FileCheckpoints(os.path.join(self._transcript.directory, "checkpoints"))
        stack.callback(self._checkpoints.close)
        self._workspace = find_workspace(self._transcript)
        self._fs = make_local_context(self._workspace).fs
        self.points = list_rewind_points(self._transcript, self._checkpoints, hidden=True)
        self._shown = list_rewind_points(self._transcript, self._checkpoints)

    def run(
        self, point: RewindPoint, scope: RewindScope, insist: Sequence[str], *, dry_run: bool, yes: bool, json: bool
    ) -> int:
        """Preview the rewind, ask (outside the event loop), and do it."""

        async def show_preview(_: CancelToken) -> int:
            preview = await preview_rewind(point, scope, self._transcript, self._checkpoints, self._fs)
            self.show_preview(preview, scope, insist, json=json and not can_rewind)
            return 0

        async def rewind_to_point(_: CancelToken) -> int:
            result = await rewind(point, scope, self._transcript, self._checkpoints, self._fs, insist=insist)
            return self.show_result(result, json=json)

        can_rewind = not dry_run and (yes or can_ask_user())
        if not (yes and can_rewind):
            code = run_until_signal(show_preview)
            if code or dry_run:
                return code
            if not can_rewind:
                print_status("nothing was changed: there is no terminal to ask on, give --yes")
                return _USAGE
            if not confirm(f"Rewind to {point.number}?"):
                return _LEFT
        return run_until_signal(rewind_to_point)

    def show_points(self, *, json: bool) -> int:
        """Print the points."""
        return Listing(
            "points",
            self._shown,
            ("TO", "TIME", "FILES", "BEFORE"),
            lambda point: (point.number, point.at, len(point.files), point.title),
            to_json=lambda point: {
                "number": point.number,
                "kind": point.kind,
                "at": point.at,
                "title": point.title,
                "files": [self._shorten(path) for path in point.files],
            },
            before={"conversation": self._transcript.id, "workspace": self._workspace},
            empty="The conversation has no prompts yet.",
        ).show(as_json=json)

    def show_preview(self, preview: RewindPreview, scope: RewindScope, insist: Sequence[str], *, json: bool) -> None:
        """Print what a rewind would do."""
        if json:
            steps: list[JsonObject] = [
                {"path": self._shorten(step.path), "action": step.action, "conflict": step.conflict}
                for step in preview.steps
            ]
            write_json(
                {
                    "to": preview.point.number,
                    "scope": scope,
                    "steps": [*steps],
                    "messages": preview.messages,
                    "notes": [*preview.notes],
                }
            )
            return
        print_line(f"Back to the state before: {preview.point.title}")
        for step in preview.steps:
            # Escaped, so that a name with a newline can't forge a line.
            path, word = escape_unprintable(self._shorten(step.path)), _DONE[step.action]
            if step.conflict and step.path not in insist:
                word = f"stays: another program has changed it since (--insist {path} restores it)"
            print_line(f"  {path}: {word}")
        if not preview.steps and scope != "talk":
            print_line("  no file changes")
        if scope != "files":
            print_line(f"  {describe_messages(preview.messages)}")
        for note in preview.notes:
            print_line(f"  note: {escape_unprintable(note)}")

    def show_result(self, result: RewindResult, *, json: bool) -> int:
        """Print the result and return the exit code."""
        done, left = ((), ()) if result.files is None else (result.files.done, result.files.left)
        if json:
            rows: list[JsonObject] = [{"path": self._shorten(path), "reason": reason} for path, reason in left]
            paths = [self._shorten(path) for path in done]
            write_json({"changed": [*paths], "left": [*rows], "messages": result.messages})
        else:
            parts = [] if result.files is None else [f"{format_count(len(done), 'path')} restored"]
            parts += [describe_messages(result.messages)] if result.messages else []
            print_line(f"{'; '.join(parts) or 'nothing changed'}. `indus rewind` lists the point that undoes this.")
        for path, reason in left:
            print_status(f"{self._shorten(path)} stays as it is: {reason}")
        return _LEFT if left else 0

    def _shorten(self, path: str) -> str:
        return path.removeprefix(os.path.join(self._workspace, ""))
