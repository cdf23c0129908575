"""How a tool changes a file: nobody else does meanwhile, and what was not read is not lost.

Under the lock of the file: read it, work the change out in a thread, look whether the file is still
the same, write it in one step, and remember what stands there. The answer says what has changed.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from anyio import CancelScope, to_thread

from indusagi.capabilities.files.change import LARGEST_FILE, Change, Refused, stale
from indusagi.capabilities.files.codec import digest_bytes
from indusagi.capabilities.files.diff import compare, patch_of
from indusagi.capabilities.files.excerpt import excerpt, showable
from indusagi.capabilities.files.locks import file_lock
from indusagi.capabilities.files.syntax import broken_by
from indusagi.capabilities.tools.paths import path_trouble, shown_path
from indusagi.core.text import clean_text
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonValue

LARGEST_PATCH = 16 * 1024
"""Bytes of the patch that goes with an answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the session knows of a file."""

    gated: bool
    """Whether files must have been read before they are changed."""
    digest: str | None

    def knows(self, data: bytes) -> bool:
        """Tell whether this is what was read."""
        return not self.gated or self.digest == digest_bytes(data)

    @property
    def unread(self) -> bool:
        """Whether the file must be read first."""
        return self.gated and self.digest is None


Work: TypeAlias = "Callable[[bytes | None, Seen], Change | Refused]"
"""Works a change out from what stands in the file (None: there is none). Runs in a thread."""


async def change_file(
    ctx: ToolContext, path: str, work: Work, *, dry_run: bool = False
) -> ToolResult:
    """Change a file, or say why not; never leaves it half changed."""
    try:
        resolved = await ctx.fs.resolve(path, writing=True)
        async with file_lock(resolved):
            made = await _made(ctx, resolved, work, dry_run=dry_run)
    except TimeoutError as exc:
        return ToolResult.error(f"{clean_text(path)[0]}: {exc.strerror}", code="timeout")
    except OSError as exc:
        return path_trouble(exc, path)
    shown = await to_thread.run_sync(shown_path, resolved, ctx.cwd)
    if isinstance(made, Refused):
        return ToolResult.error(
            showable(f"{shown}: {made.message}"), code=made.code, path=resolved, **made.facts
        )
    return await _told(made, shown, resolved, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Made:
    """A change with what is said of it."""

    change: Change
    digest: str
    added: int
    removed: int
    excerpt: str
    patch: bytes
    whole: bool
    encoding: str
    """That of the lines in the patch."""


async def _made(ctx: ToolContext, resolved: str, work: Work, *, dry_run: bool) -> _Made | Refused:
    before = await _content(ctx, resolved)
    if isinstance(before, Refused):
        return before
    state = ctx.framework.read_state
    seen = Seen(state is not None, None if state is None else state.digest(resolved))
    task = partial(_worked_out, work, before, seen, resolved, ctx.cwd)
    # What was worked out in vain is nobody's, so a cancelled call need not wait for it.
    made = await to_thread.run_sync(task, abandon_on_cancel=True)
    if isinstance(made, Refused) or dry_run:
        return made
    if made.change.after != before:
        # From here on the file and what is remembered of it change together.
        with CancelScope(shield=True):
            refused = await _written(ctx, resolved, made.change)
            if refused is not None:
                return refused
    # Where somebody else has written meanwhile, what the session knows is still what it had read.
    if state is not None and not made.change.unseen:
        state.record(resolved, made.digest)
    return made


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


async def _written(ctx: ToolContext, resolved: str, change: Change) -> Refused | None:
    """Write, unless somebody else has changed the file since it was read."""
    if change.before is None:
        if await ctx.fs.exists(resolved):
            return Refused("stale", "it was made by somebody else just now; read it first")
        await ctx.fs.mkdir(os.path.dirname(resolved))
    elif await ctx.fs.read_bytes(resolved, limit=len(change.before) + 1) != change.before:
        return Refused("stale", "it was changed by somebody else just now; read it again")
    await ctx.fs.write_file(resolved, change.after)
    return None


def _worked_out(
    work: Work, before: bytes | None, seen: Seen, resolved: str, cwd: str
) -> _Made | Refused:
    change = work(before, seen)
    if isinstance(change, Refused):
        return change
    if len(change.after) > LARGEST_FILE:
        message = f"the file would have {len(change.after):,} bytes: {LARGEST_FILE:,} at most"
        return Refused("too_large", message)
    old, new, encoding = change.before or b"", change.after, change.form.encoding
    if change.form.wide:
        # A patch of such bytes would be read by nobody: it is one of the text.
        old, new = (showable(text).encode("utf-8") for text in (change.former, change.text))
        encoding = "utf-8"
    diff = compare(old, new)
    created = change.before is None
    return _Made(
        change,
        digest_bytes(change.after),
        diff.added,
        diff.removed,
        "" if created else excerpt(diff, encoding),
        *patch_of(diff, _name_in(resolved, cwd), created=created, most=LARGEST_PATCH),
        encoding,
    )


def _name_in(resolved: str, cwd: str) -> str:
    """Give the name of a file in a patch that is applied in `cwd`, or at the root."""
    root = os.path.realpath(cwd)
    inside = resolved.startswith(root.rstrip("/") + "/")
    return os.path.relpath(resolved, root) if inside else resolved.lstrip("/")


async def _told(made: _Made, shown: str, resolved: str, *, dry_run: bool) -> ToolResult:
    change = made.change
    counts = f"(+{made.added} −{made.removed}, {len(change.after):,} bytes)"  # noqa: RUF001 — a minus
    facts: dict[str, JsonValue] = {
        "path": resolved,
        "created": change.before is None,
        "changed": change.after != change.before,
        "dry_run": dry_run,
        "added": made.added,
        "removed": made.removed,
        "bytes": len(change.after),
        **_patch_facts(made),
        **change.facts,
    }
    if change.after == change.before:
        return ToolResult.text(f"unchanged {shown}: it has this content already", **facts)
    wrong = await to_thread.run_sync(
        broken_by,
        resolved,
        None if change.before is None else change.former,
        change.text,
        abandon_on_cancel=True,
    )
    if wrong is not None:
        facts["syntax_error"] = wrong
    done = "created" if change.before is None else "updated"
    wording = {"created": "create", "updated": "update"}
    head = f"would {wording[done]} {shown} {counts}" if dry_run else f"{done} {shown} {counts}"
    parts = [head, *change.notes, *_warnings(made, wrong)]
    if dry_run:
        parts.append(made.patch.decode(made.encoding, "replace"))
        parts.append("" if made.whole else "[the diff goes on]")
    else:
        parts.append(made.excerpt)
    return ToolResult.text("\n".join(part for part in parts if part), **facts)


def _warnings(made: _Made, wrong: str | None) -> list[str]:
    warnings: list[str] = []
    if wrong is not None:
        warnings.append(f"syntax error that was not there before: {wrong}")
    hidden = clean_text(made.excerpt)[1]
    if hidden:
        warnings.append(f"the lines below hold {hidden} characters that cannot be seen")
    return warnings


def _patch_facts(made: _Made) -> dict[str, JsonValue]:
    """Give the patch as text such that its encoding leads back to the bytes of it."""
    try:
        text, encoding = made.patch.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        text, encoding = made.patch.decode("latin-1"), "latin-1"
    return {
        "diff": text,
        "diff_encoding": encoding,
        "diff_of": "text" if made.change.form.wide else "bytes",
        "diff_cut": not made.whole,
    }


def unknown(data: bytes, seen: Seen) -> Refused:
    """Refuse for a file that was not read, or is not any more what was read."""
    if seen.unread:
        return stale(data, "not_read", "it has not been read yet; read it first.")
    return stale(data, "stale", "it has changed since it was read; read it again.")


def missing(what: str) -> Refused:
    """Refuse for a file that is not there."""
    return Refused("not_found", f"{os.strerror(errno.ENOENT)}. {what}")
