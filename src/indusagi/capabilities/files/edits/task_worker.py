"""The process that works a change out, and what goes between it and us: a request, an answer.

Nothing is loaded here that a change does not need, so that the process starts quickly.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from indusagi.capabilities.files.edits.plan import Refused, Replacement, Shown
from indusagi.capabilities.files.edits.request import Made, Task, worked_out
from indusagi.capabilities.worker.message import packed, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject


def request(task: Task, before: bytes | None) -> list[bytes]:
    """Write what the process is to do."""
    texts = [text for edit in task.edits for text in (edit.old, edit.new)]
    facts: JsonObject = {
        "path": task.path,
        "resolved": task.resolved,
        "cwd": task.cwd,
        "gated": task.gated,
        "digest": task.digest,
        "glance": _facts_of(task.glance),
        "is_new": before is None,
        "every": [edit.every for edit in task.edits],
    }
    if task.content is not None:
        texts = [task.content]
    return packed(facts, [before or b"", *(_encoded(text) for text in texts)])


def _requested(data: bytes) -> tuple[Task, bytes | None]:
    given, (before, *parts) = unpacked(data)
    facts: dict[str, Any] = {**given}
    is_new, every = facts.pop("is_new"), facts.pop("every")
    texts = [_decoded(part) for part in parts]
    pairs = zip(texts[::2], texts[1::2], every, strict=True) if every else ()
    edits = [Replacement(old, new, all_of_them) for old, new, all_of_them in pairs]
    glance = _shown(facts.pop("glance"))
    task = Task(**facts, glance=glance, edits=edits, content=None if every else texts[0])
    return task, None if is_new else before


def _reply(found: Made | Refused) -> list[bytes]:
    facts: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(found)}
    if isinstance(found, Refused):
        return packed({**facts, "shown": _facts_of(found.shown)}, [])
    facts["glance"] = _facts_of(found.glance)
    return packed(facts, [facts.pop("after"), facts.pop("patch")])


def answer(pieces: Sequence[bytes]) -> Made | Refused:
    """Read what the process has written."""
    try:
        given, parts = unpacked(b"".join(pieces))
    except ValueError:
        return Refused("failed", "the process that works it out ended without an answer")
    facts: dict[str, Any] = {**given}
    if not parts:
        shown = _shown(facts.pop("shown"))
        return Refused(**facts, shown=shown)
    after, patch = parts
    notes, glance = tuple(facts.pop("notes")), _shown(facts.pop("glance"))
    return Made(**facts, notes=notes, glance=glance, after=after, patch=patch)


def _facts_of(shown: Shown | None) -> JsonObject | None:
    return None if shown is None else asdict(shown)


def _shown(facts: dict[str, Any] | None) -> Shown | None:
    return None if facts is None else Shown(**facts)


def _encoded(text: str) -> bytes:
    # Half a pair of surrogates is refused where the text is looked at, and not on the way there.
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def main() -> int:
    """Answer the one request on standard input: what the process is for."""
    task, before = _requested(sys.stdin.buffer.read())
    for piece in _reply(worked_out(task, before)):
        sys.stdout.buffer.write(piece)
    return 0
