"""`indus rewind`: restores files, a conversation, or both to the state before a prompt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import click

from induscode.cli.listing import Listing
from induscode.cli.output import as_json, can_ask_user, confirm, write_json
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import escape_unprintable, print_line, print_status
from induscode.conversations.rewind import StoredRewind, list_rewind_points
from induscode.conversations.transcript import ConversationError
from induscode.launch.options import define_command, read_cwd

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.conversations.rewind import RewindPoint, RewindPreview, RewindResult, RewindScope

_USAGE = 2
_LEFT = 1
"""Exit code if a file stays as it is, or the user says no."""


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
            session = _RewindSession(cwd, conversation, stack)
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


class _RewindSession(StoredRewind):
    """A rewind at a terminal."""

    def run(
        self, point: RewindPoint, scope: RewindScope, insist: Sequence[str], *, dry_run: bool, yes: bool, json: bool
    ) -> int:
        """Preview the rewind, ask (outside the event loop), and do it."""

        async def show_preview(_: CancelToken) -> int:
            self.show_preview(await self.preview(point, scope), scope, insist, json=json and not can_rewind)
            return 0

        async def rewind_to_point(_: CancelToken) -> int:
            return self.show_result(await self.rewind(point, scope, insist), json=json)

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
            list_rewind_points(self.transcript, self.checkpoints),
            ("TO", "TIME", "FILES", "BEFORE"),
            lambda point: (point.number, point.at, len(point.files), point.title),
            to_json=lambda point: {
                "number": point.number,
                "kind": point.kind,
                "at": point.at,
                "title": point.title,
                "files": [self.shorten(path) for path in point.files],
            },
            before={"conversation": self.transcript.id, "workspace": self.workspace},
            empty="The conversation has no prompts yet.",
        ).show(as_json=json)

    def show_preview(self, preview: RewindPreview, scope: RewindScope, insist: Sequence[str], *, json: bool) -> None:
        """Print what a rewind would do."""
        if json:
            steps: list[JsonObject] = [
                {"path": self.shorten(step.path), "action": step.action, "conflict": step.conflict}
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
        for line in self.describe_preview(preview, scope, insist):
            # Escaped, so that a name with a newline can't forge a line.
            print_line(f"  {escape_unprintable(line)}")

    def show_result(self, result: RewindResult, *, json: bool) -> int:
        """Print the result and return the exit code."""
        done, left = ((), ()) if result.files is None else (result.files.done, result.files.left)
        if json:
            rows: list[JsonObject] = [{"path": self.shorten(path), "reason": reason} for path, reason in left]
            paths = [self.shorten(path) for path in done]
            write_json({"changed": [*paths], "left": [*rows], "messages": result.messages})
        else:
            print_line(f"{result}. `indus rewind` lists the point that undoes this.")
        for path, reason in left:
            print_status(f"{self.shorten(path)} stays as it is: {reason}")
        return _LEFT if left else 0
