"""Run `edit` and `write`; the first call imports this module.

We change a file while holding its lock, and only if the session has read its current content. The steps: take the lock,
read the file, plan the edit in a thread or worker, check that the file is still the same, replace it atomically, and
record its new content. The result reports the changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from anyio import CancelScope

from indusagi.capabilities.context import PerContext, ToolContext
from indusagi.capabilities.files.atomic_write import file_lock
from indusagi.capabilities.files.diff import replace_surrogates
from indusagi.capabilities.files.lines import format_path, format_path_below
from indusagi.capabilities.files.plan import EditPlan, EditRequest, plan_edit
from indusagi.capabilities.files.replace import MAX_FILE_BYTES, EditRefusal, Replacement, ShownLines
from indusagi.capabilities.tool import ChangePreview, approved_change
from indusagi.capabilities.tools.paths import path_given, path_trouble
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.text import find_invisible_kinds
from indusagi.runtime.contract import ToolResult

_EDIT_TEXTS = ("oldText", "newText", "replaceAll")
"""The arguments of a single edit."""


async def run_write(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Run a call of `write`."""
    return (await change_file(ctx, path_given(arguments), content=cast("str", arguments["content"]))).result


async def preview_write(arguments: JsonObject, ctx: ToolContext) -> ChangePreview:
    """Find the change that a call of `write` would make."""
    return await change_file(ctx, path_given(arguments), content=cast("str", arguments["content"]), dry_run=True)


async def run_edit(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Run a call of `edit`."""
    return (await _edit(arguments, ctx, dry_run=arguments.get("dryRun") is True)).result


async def preview_edit(arguments: JsonObject, ctx: ToolContext) -> ChangePreview:
    """Find the change that a call of `edit` would make."""
    return await _edit(arguments, ctx, dry_run=True)


async def _edit(arguments: JsonObject, ctx: ToolContext, *, dry_run: bool) -> ChangePreview:
    several, items, problem = arguments.get("edits"), list[JsonObject](), None
    single = [name for name in _EDIT_TEXTS if name in arguments]
    # Some models fill in every parameter.
    if isinstance(several, list) and (several or not single):
        items = cast("list[JsonObject]", several)
        # Accept the same change given in both forms.
        is_same = len(items) == 1 and all(
            (items[0].get(name) or None) == (arguments.get(name) or None) for name in _EDIT_TEXTS
        )
        if any(arguments.get(name) for name in single) and not is_same:
            problem = "give either edits, or oldText and newText"
        elif not items:
            problem = "edits is empty: give one at least"
    elif "oldText" in arguments and "newText" in arguments:
        items = [arguments]
    else:
        problem = "give oldText and newText, or edits"
    edits = [
        Replacement(cast("str", item["oldText"]), cast("str", item["newText"]), item.get("replaceAll") is True)
        for item in items
    ]
    if problem is None and any(edit.old == edit.new for edit in edits):
        problem = "oldText and newText are the same"
    if problem is not None:
        return ChangePreview(ToolResult.error(f"edit was not run: {problem}", code="invalid_arguments"))
    return await change_file(ctx, path_given(arguments), edits=edits, dry_run=dry_run)


_shown_lines: PerContext[dict[str, ShownLines]] = PerContext(dict[str, ShownLines])
"""The first lines of files that refusals have shown, by path; too few to count as read."""


async def change_file(
    ctx: ToolContext, path: str, *, edits: Sequence[Replacement] = (), content: str | None = None, dry_run: bool = False
) -> ChangePreview:
    """Apply the whole change to a file, or report why not.

    The change is a list of replacements, or else the complete new content. `dry_run` reports it without writing it.
    """
    state = ctx.framework.read_state
    try:
        checked = await ctx.fs.resolve(path, writing=True)
        resolved = str(checked)
        async with file_lock(resolved) as lock:
            request = EditRequest(
                path=path,
                resolved=resolved,
                cwd=ctx.cwd,
                must_be_read=state is not None,
                digest=None if state is None else state.digest(resolved),
                shown=_shown_lines.of(ctx).get(resolved),
                edits=edits,
                content=content,
            )
            before, plan = await _carry_out(ctx, request, checked, dry_run=dry_run)
    except TimeoutError as exc:
        return ChangePreview(ToolResult.error(f"{format_path(path)}: {exc.strerror}", code="timeout"))
    except OSError as exc:
        return ChangePreview(path_trouble(exc, path))
    name = format_path_below(resolved, ctx.cwd)
    if isinstance(plan, EditRefusal):
        message = replace_surrogates(f"{name}: {plan.message}")
        return ChangePreview(ToolResult.error(message, code=plan.code, path=resolved, **plan.facts))
    warning = () if lock.unshared is None else (f"{lock.unshared}: others may write there too",)
    result = _format_result(plan, name, resolved, (*plan.notes, *warning), dry_run=dry_run)
    return ChangePreview(result, before, plan.after)


async def _carry_out(
    ctx: ToolContext, request: EditRequest, checked: str, *, dry_run: bool
) -> tuple[bytes | None, EditPlan | EditRefusal]:
    """Read the file, plan the edit and write it. Return the text read, and the plan. The caller holds the lock.

    `checked` is the resolved path as returned by the `Fs` port, which may spare it a second check.
    """
    resolved, state = request.resolved, ctx.framework.read_state
    before: bytes | None
    try:
        before = await ctx.fs.read_bytes(checked, limit=MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        before = None
    if before is not None and len(before) > MAX_FILE_BYTES:
        size = (await ctx.fs.stat(checked)).size
        message = f"{size:,} bytes are too many to change here: {MAX_FILE_BYTES:,} at most; use a command"
        return before, EditRefusal("too_large", message, {"size": size})
    plan = await plan_edit(request, before)
    if isinstance(plan, EditRefusal):
        # Lines shown by a refusal count as read: the whole file, or its first lines.
        shown = plan.shown
        if state is not None and shown is not None and shown.whole:
            state.record(resolved, shown.digest)
        elif state is not None and shown is not None:
            _shown_lines.of(ctx)[resolved] = shown
        return before, plan
    if dry_run:
        return before, plan
    refusal: EditRefusal | None = None
    # Keep the file and its record in sync.
    with CancelScope(shield=True):
        refusal = await _write(ctx, checked, before, plan.after) if plan.changed else None
    if refusal is not None:
        return before, refusal
    # If the file contains unread lines, keep the old record.
    if state is not None and not plan.unseen:
        state.record(resolved, plan.digest)
    if plan.shown is not None:
        _shown_lines.of(ctx)[resolved] = plan.shown
    return before, plan


async def _write(ctx: ToolContext, resolved: str, before: bytes | None, after: bytes) -> EditRefusal | None:
    """Write the file, unless another program changed it since we read it, or since the user approved the change."""
    if (seen := approved_change.get()) is not None and (seen.before, seen.after) != (before, after):
        return EditRefusal("stale", "it has changed since the user approved the change; read it again")
    if before is None:
        if await ctx.fs.exists(resolved):
            return EditRefusal("stale", "another program has just made it; read it first")
        await ctx.fs.mkdir(os.path.dirname(resolved))
    elif await ctx.fs.read_bytes(resolved, limit=len(before) + 1) != before:
        return EditRefusal("stale", "another program has just changed it; read it again")
    await ctx.fs.write_file(resolved, after)
    return None


def _format_result(plan: EditPlan, name: str, resolved: str, notes: Sequence[str], *, dry_run: bool) -> ToolResult:
    # Decode the patch in an encoding that's reversible to its bytes.
    try:
        patch, patch_encoding = plan.patch.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        patch, patch_encoding = plan.patch.decode("latin-1"), "latin-1"
    details: dict[str, JsonValue] = {
        "path": resolved,
        "created": plan.created,
        "changed": plan.changed,
        "dryRun": dry_run,
        "added": plan.added,
        "removed": plan.removed,
        "bytes": len(plan.after),
        "diff": patch,
        "diffEncoding": patch_encoding,
        "diffOf": "text" if plan.wide else "bytes",
        "diffCut": not plan.patch_complete,
        **plan.facts,
    }
    if not plan.changed:
        return ToolResult.text(f"unchanged {name}: it has this content already", **details)
    verb = "create" if plan.created else "update"
    counts = f"(+{plan.added} −{plan.removed}, {len(plan.after):,} bytes)"  # noqa: RUF001 — a minus
    parts = [f"would {verb} {name} {counts}" if dry_run else f"{verb}d {name} {counts}", *notes]
    if plan.syntax_error is not None:
        details["syntaxError"] = plan.syntax_error
        parts.append(f"syntax error that was not there before: {plan.syntax_error}")
    invisible = sum(1 for _ in find_invisible_kinds(plan.excerpt))
    if invisible:
        parts.append(f"the lines below hold {invisible} characters that cannot be seen")
    if dry_run:
        parts.append(plan.patch.decode(plan.encoding, "replace"))
        parts.append("" if plan.patch_complete else "[the diff goes on]")
    else:
        parts.append(plan.excerpt)
    return ToolResult.text("\n".join(part for part in parts if part), **details)
