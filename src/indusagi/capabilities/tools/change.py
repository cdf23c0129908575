"""How a tool changes a file: nobody else does meanwhile, and what was not read is not lost.

Under the lock of the file: read it, work the change out in a thread, look whether the file is still
the same, write it in one step, and remember what stands there. The answer says what has changed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import CancelScope, to_thread

from indusagi.capabilities.context import PerContext
from indusagi.capabilities.files.edits.excerpt import showable
from indusagi.capabilities.files.edits.plan import LARGEST_FILE, Refused, Shown
from indusagi.capabilities.files.edits.request import Task
from indusagi.capabilities.files.edits.task_apart import worked_out_soon
from indusagi.capabilities.files.paths.locks import file_lock
from indusagi.capabilities.files.text.display import format_path, format_path_below
from indusagi.capabilities.tools.paths import path_trouble
from indusagi.core.text import find_invisible_kinds
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.files.edits.plan import Replacement
    from indusagi.capabilities.files.edits.request import Made
    from indusagi.core.json import JsonValue


async def change_file(
    ctx: ToolContext, path: str, *, edits: Sequence[Replacement] = (), content: str | None = None, dry_run: bool = False
) -> ToolResult:
    """Change a file, or say why not; never leaves it half changed.

    Args:
        ctx: Where the tool was called.
        path: The file, as it was given.
        edits: What is replaced in it.
        content: All that it is to hold, instead.
        dry_run: Nothing is written.
    """
    try:
        resolved = await ctx.fs.resolve(path, writing=True)
        state = ctx.framework.read_state
        async with file_lock(resolved) as held:
            task = Task(
                path=path,
                resolved=resolved,
                cwd=ctx.cwd,
                gated=state is not None,
                digest=None if state is None else state.digest(resolved),
                glance=_glances.of(ctx).get(resolved),
                edits=edits,
                content=content,
            )
            made = await _made(ctx, task, dry_run=dry_run)
    except TimeoutError as exc:
        return ToolResult.error(f"{format_path(path)}: {exc.strerror}", code="timeout")
    except OSError as exc:
        return path_trouble(exc, path)
    shown = await to_thread.run_sync(format_path_below, resolved, ctx.cwd)
    if isinstance(made, Refused):
        return ToolResult.error(showable(f"{shown}: {made.message}"), code=made.code, path=resolved, **made.facts)
    if held.unshared is not None:
        made = replace(made, notes=(*made.notes, f"{held.unshared}: others may write there too"))
    return _told(made, shown, resolved, dry_run=dry_run)


async def _made(ctx: ToolContext, task: Task, *, dry_run: bool) -> Made | Refused:
    before = await _content(ctx, task.resolved)
    if isinstance(before, Refused):
        return before
    made = await worked_out_soon(task, before)
    if isinstance(made, Refused):
        _remember_shown(ctx, task.resolved, made.shown)
        return made
    if dry_run:
        return made
    if made.changed:
        # From here on the file and what is remembered of it change together.
        with CancelScope(shield=True):
            refused = await _written(ctx, task.resolved, before, made.after)
            if refused is not None:
                return refused
    # Where somebody else has written meanwhile, what the session knows is still what it had read.
    state = ctx.framework.read_state
    if state is not None and not made.unseen:
        state.record(task.resolved, made.digest)
    if made.glance is not None:
        _glances.of(ctx)[task.resolved] = made.glance
    return made


_glances: PerContext[dict[str, Shown]] = PerContext(dict[str, Shown])
"""By path, the first lines of files that refusals have shown; too little to count as read."""


def _remember_shown(ctx: ToolContext, resolved: str, shown: Shown | None) -> None:
    """Count what a refusal has shown as read: all of a file, or its first lines."""
    state = ctx.framework.read_state
    if state is None or shown is None:
        return
    if shown.whole:
        state.record(resolved, shown.digest, (1, shown.lines) if shown.lines else None)
    else:
        _glances.of(ctx)[resolved] = shown


async def _content(ctx: ToolContext, resolved: str) -> bytes | Refused | None:
    """Read all of a file that may be missing."""
    try:
        size = (await ctx.fs.stat(resolved)).size
    except FileNotFoundError:
        return None
    if size <= LARGEST_FILE:
        data = await ctx.fs.read_bytes(resolved, limit=LARGEST_FILE + 1)
        if len(data) <= LARGEST_FILE:
            return data
        size = len(data)
    message = f"{size:,} bytes are too many to change here: {LARGEST_FILE:,} at most; use a command"
    return Refused("too_large", message, {"size": size})


async def _written(ctx: ToolContext, resolved: str, before: bytes | None, after: bytes) -> Refused | None:
    """Write, unless somebody else has changed the file since it was read."""
    if before is None:
        if await ctx.fs.exists(resolved):
            return Refused("stale", "it was made by somebody else just now; read it first")
        await ctx.fs.mkdir(os.path.dirname(resolved))
    elif await ctx.fs.read_bytes(resolved, limit=len(before) + 1) != before:
        return Refused("stale", "it was changed by somebody else just now; read it again")
    await ctx.fs.write_file(resolved, after)
    return None


def _told(made: Made, shown: str, resolved: str, *, dry_run: bool) -> ToolResult:
    counts = f"(+{made.added} −{made.removed}, {len(made.after):,} bytes)"  # noqa: RUF001 — a minus
    facts: dict[str, JsonValue] = {
        "path": resolved,
        "created": made.created,
        "changed": made.changed,
        "dryRun": dry_run,
        "added": made.added,
        "removed": made.removed,
        "bytes": len(made.after),
        **_patch_facts(made),
        **made.facts,
    }
    if not made.changed:
        return ToolResult.text(f"unchanged {shown}: it has this content already", **facts)
    if made.syntax_error is not None:
        facts["syntaxError"] = made.syntax_error
    done = "created" if made.created else "updated"
    wording = {"created": "create", "updated": "update"}
    head = f"would {wording[done]} {shown} {counts}" if dry_run else f"{done} {shown} {counts}"
    parts = [head, *made.notes, *_warnings(made)]
    if dry_run:
        parts.append(made.patch.decode(made.encoding, "replace"))
        parts.append("" if made.whole else "[the diff goes on]")
    else:
        parts.append(made.excerpt)
    return ToolResult.text("\n".join(part for part in parts if part), **facts)


def _warnings(made: Made) -> list[str]:
    warnings: list[str] = []
    if made.syntax_error is not None:
        warnings.append(f"syntax error that was not there before: {made.syntax_error}")
    hidden = sum(1 for _ in find_invisible_kinds(made.excerpt))
    if hidden:
        warnings.append(f"the lines below hold {hidden} characters that cannot be seen")
    return warnings


def _patch_facts(made: Made) -> dict[str, JsonValue]:
    """Give the patch as text such that its encoding leads back to the bytes of it."""
    try:
        text, encoding = made.patch.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        text, encoding = made.patch.decode("latin-1"), "latin-1"
    return {
        "diff": text,
        "diffEncoding": encoding,
        "diffOf": "text" if made.wide else "bytes",
        "diffCut": not made.whole,
    }
