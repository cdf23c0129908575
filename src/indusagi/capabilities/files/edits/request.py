"""A change of a file as a tool was asked for it, and all that is to be said of it once worked out.

Both are plain facts, so that they can be handed to a process and back.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from indusagi.capabilities.files.edits.diff import compare, patch_of
from indusagi.capabilities.files.edits.excerpt import excerpt, showable
from indusagi.capabilities.files.edits.plan import LARGEST_FILE, Change, Refused, Shown, edited, overwritten, stale
from indusagi.capabilities.files.edits.syntax import broken_by, takes_long
from indusagi.capabilities.files.text.codec import digest_bytes
from indusagi.core.paths import is_within, parts_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.files.edits.plan import Replacement
    from indusagi.core.json import JsonValue

LARGEST_PATCH = 16 * 1024
"""Bytes of the patch that goes with an answer."""
LIGHT = 256 * 1024
"""Up to so many characters no single call takes longer than a hundredth of a second, whatever they
are; eight million can make one take half a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What was asked for, and what the session knows of the file."""

    path: str
    """As it was given."""
    resolved: str
    cwd: str
    gated: bool
    """Whether files must have been read before they are changed."""
    digest: str | None
    """That of what was read."""
    glance: Shown | None = None
    """The first lines of it that a refusal has shown."""
    edits: Sequence[Replacement] = ()
    content: str | None = None
    """All that the file is to hold, instead of edits."""

    def knows(self, data: bytes) -> bool:
        """Tell whether this is what was read."""
        return not self.gated or self.digest == digest_bytes(data)

    @property
    def unread(self) -> bool:
        """Whether the file must be read first."""
        return self.gated and self.digest is None

    def is_light(self, before: bytes | None) -> bool:
        """Tell whether it can be worked out in a thread without anybody noticing."""
        size = most = len(before or b"")
        for edit in self.edits:
            times = size // max(1, len(edit.old)) if edit.every else 1
            size += times * len(edit.new)
            most = max(most, size, len(edit.old))
        most = max(most, len(self.content or ""))
        return most <= LIGHT and not takes_long(self.resolved, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A change with what is said of it."""

    after: bytes
    digest: str
    """That of `after`."""
    created: bool
    changed: bool
    added: int
    removed: int
    excerpt: str
    patch: bytes
    whole: bool
    """Whether the patch is."""
    encoding: str
    """That of the lines in the patch."""
    wide: bool
    """The patch is one of the text: of the bytes nobody could read it."""
    unseen: bool
    glance: Shown | None = None
    """What is known of the file afterwards, where that is its first lines only."""
    notes: Sequence[str] = ()
    syntax_error: str | None = None
    facts: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])


def worked_out(task: Task, before: bytes | None) -> Made | Refused:
    """Work a change out from what stands in the file (None: there is none)."""
    change = _changed(task, before)
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
    name = _name_in(task.resolved, task.cwd)
    patch, whole = patch_of(diff, name, created=created, most=LARGEST_PATCH)
    changed = change.after != change.before
    former = None if created else change.former
    return Made(
        after=change.after,
        digest=digest_bytes(change.after),
        created=created,
        changed=changed,
        added=diff.added,
        removed=diff.removed,
        excerpt="" if created else excerpt(diff, encoding),
        patch=patch,
        whole=whole,
        encoding=encoding,
        wide=change.form.wide,
        unseen=change.unseen,
        glance=change.glance,
        notes=change.notes,
        syntax_error=broken_by(task.resolved, former, change.text) if changed else None,
        facts=change.facts,
    )


def _name_in(resolved: str, cwd: str) -> str:
    """Give the name of a file in a patch that is applied in `cwd`, or at the root."""
    root = os.path.realpath(cwd)
    return "/".join(parts_below(resolved, root if is_within(resolved, root) else "/"))


def _changed(task: Task, before: bytes | None) -> Change | Refused:
    if task.content is not None:
        return _overwritten(task, task.content, before)
    if before is None:
        return _created(task.edits, task.path)
    if not all(edit.old for edit in task.edits):
        message = "oldText is empty, which only makes a new file, and this one exists"
        return Refused("invalid_arguments", message)
    if task.knows(before):
        return edited(before, task.edits, task.path)
    known = _edited_in_glance(task, before)
    if known is not None:
        return known
    return _unknown(task, before) if task.unread else _edited_unseen(task, before)


def _edited_in_glance(task: Task, before: bytes) -> Change | None:
    """Edit the lines that a refusal has shown; None where the change goes beyond them."""
    glance = task.glance
    if glance is None or glance.digest != digest_bytes(before):
        return None
    change = edited(before, task.edits, task.path)
    if isinstance(change, Refused):
        return None
    diff = compare(before, change.after)
    last = max((diff.skipped + block.old_end for block in diff.blocks), default=0)
    if last > glance.lines:
        return None
    known = Shown(digest_bytes(change.after), glance.lines + diff.added - diff.removed, whole=False)
    return replace(change, unseen=True, glance=known)


def _overwritten(task: Task, content: str, before: bytes | None) -> Change | Refused:
    change = overwritten(before, content, task.path)
    if before is None or (isinstance(change, Change) and change.after == before):
        return change
    return change if task.knows(before) else _unknown(task, before)


def _edited_unseen(task: Task, before: bytes) -> Change | Refused:
    """Edit a file that somebody else has changed, where that is safe all the same."""
    change = edited(before, task.edits, task.path, exactly=True)
    if isinstance(change, Change):
        note = (
            "the file has changed since it was read; oldText still stood in it once, unchanged. "
            "Read it again before you rely on the rest"
        )
        facts = {**change.facts, "changedSinceRead": True}
        return replace(change, notes=(note, *change.notes), unseen=True, facts=facts)
    if change.code != "stale":
        return change
    message = f"it has changed since it was read, and {change.message}"
    return stale(before, "stale", message)


def _created(edits: Sequence[Replacement], path: str) -> Change | Refused:
    first, *more = edits
    if first.old:
        what = "To make it, give an empty oldText, or use write."
        return Refused("not_found", f"{os.strerror(errno.ENOENT)}. {what}")
    if not all(edit.old for edit in more):
        return Refused("invalid_arguments", "only the first of several edits can make the file")
    change = overwritten(None, first.new, path)
    if isinstance(change, Refused) or not more:
        return change
    change = edited(change.after, more, path)
    return change if isinstance(change, Refused) else replace(change, before=None, former="")


def _unknown(task: Task, data: bytes) -> Refused:
    """Refuse for a file that was not read, or is not any more what was read."""
    if task.unread:
        return stale(data, "not_read", "it has not been read yet")
    return stale(data, "stale", "it has changed since it was read")
