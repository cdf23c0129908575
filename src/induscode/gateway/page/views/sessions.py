"""Conversation views: the working directory's conversations, and one with its messages, plan and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import is_ulid
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.text import cut_text
from induscode.conversations.kept_state import CHECKLIST_OP, PLAN_OP
from induscode.conversations.rewind import RewindPoint, find_rewind_points
from induscode.conversations.transcript import (
    COMPACT_OP,
    FORK_OP,
    REWIND_OP,
    conversations_dir,
    find_cwd,
    find_visible_rows,
    format_content,
    list_conversations,
    read_rows,
    remove_session_note,
)
from induscode.deck.stores.checkpoints import read_changed_paths
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    link,
    shorten,
    shorten_path,
    show_nothing,
    show_prose,
    show_state,
    show_text,
    show_time,
    table,
    tag,
)

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageRequest

_MAX_CONVERSATIONS = 100
_MAX_PART_CHARS = 20_000
_MAX_ROWS = 2_000
_MAX_FILES = 5
"""Changed files named per checkpoint."""
_NAMES = {
    "user-prompt": "Prompt",
    "text": "Answer",
    "thinking": "Thinking",
    "tool-call": "Call",
    "tool-return": "Result",
    "retry-prompt": "Refused",
    "system-prompt": "System prompt",
}
_STATES = {"active": "doing", "pending": "open"}
"""Checklist states with another name on the page."""


async def show_sessions(page: PageRequest) -> PageView:
    """List the conversations of the working directory."""
    cwd = page.source.session.invocation.cwd
    summaries = await to_thread.run_sync(lambda: list_conversations(cwd, limit=_MAX_CONVERSATIONS))
    rows = [
        (link(one.title or "(no prompt)", "/session", id=one.id), show_time(one.modified_ms), str(one.messages), one.id)
        for one in summaries
    ]
    content = tag(
        "div",
        tag("p", "Conversations of ", tag("code", shorten_path(cwd), title=cwd)),
        table(("Conversation", "Last change", "Messages", "Id"), rows, caption="Conversations", numbers=(2,)) if rows
        else show_nothing("There are none yet. A session in this directory begins one: run indus"),
    )  # fmt: skip
    return PageView("Sessions", content, "sessions")


async def show_session(page: PageRequest) -> PageView:
    """Show a conversation's plan, checkpoints and messages, without rows hidden by a rewind."""
    name, cwd = page.get("id"), page.source.session.invocation.cwd
    directory = os.path.join(conversations_dir(), name)
    if not is_ulid(name) or await to_thread.run_sync(find_cwd, directory) != cwd:
        raise PageError(f"There is no conversation {name!r} of this directory")
    rows = await to_thread.run_sync(read_rows, directory)
    changed = await to_thread.run_sync(read_changed_paths, os.path.join(directory, "checkpoints"))
    visible = {index for index, _ in find_visible_rows(rows)}
    points = [point for point in find_rewind_points(rows, lambda node: changed.get(node, ())) if point.row in visible]
    numbered = [*enumerate(rows)]
    parts = [part for index, row in numbered[-_MAX_ROWS:] if index in visible for part in _show_row(row)]
    left_out = (
        show_nothing(f"The first {len(rows) - _MAX_ROWS:,} rows are left out.") if len(rows) > _MAX_ROWS else None
    )
    hidden = len(rows) - len(visible)
    content = tag(
        "div",
        tag("p", "Continue it: ", tag("code", f"indus --resume {name}")),
        _show_plan([row for index, row in numbered if index in visible]),
        _show_points(name, cwd, points),
        tag("h2", "Transcript"),
        show_nothing(f"A rewind has hidden {hidden} rows.") if hidden else None,
        left_out,
        parts,
    )
    return PageView(points[0].title if points else "Conversation", content, "sessions")


def _show_plan(rows: Sequence[JsonObject]) -> Html | None:
    """Show plan mode and the checklists as of the last row."""
    is_planning, lists = False, dict[str, list[tuple[str, str]]]()
    for row in rows:
        items = row.get("items")
        if row.get("op") == PLAN_OP:
            is_planning = row.get("active") is True
        elif row.get("op") == CHECKLIST_OP and isinstance(items, list):
            lists[str(row.get("list"))] = [
                (str(item.get("text", item.get("task", ""))), str(item.get("status", item.get("state", ""))))
                for item in items
                if is_json_object(item)
            ]
    found = [pair for items in lists.values() for pair in items]
    if not found and not is_planning:
        return None
    listed = [tag("li", show_state(_STATES.get(state, state)), f" {text}") for text, state in found]
    return tag(
        "section",
        tag("h2", "Plan"),
        tag("p", "Plan mode is on: nothing is changed until the plan is approved.") if is_planning else None,
        tag("ul", listed, cls="checklist") if listed else None,
    )


def _show_points(conversation: str, cwd: str, points: Sequence[RewindPoint]) -> Html | None:
    if not points:
        return None
    rows = [
        (
            point.title,
            str(point.number),
            point.at[:19].replace("T", " "),
            ", ".join(os.path.relpath(path, cwd) for path in point.files[:_MAX_FILES])
            + (f" and {len(point.files) - _MAX_FILES} more" if len(point.files) > _MAX_FILES else ""),
        )
        for point in points
    ]
    return tag(
        "section",
        tag("h2", "Checkpoints"),
        tag("p", "Return to one of them: ", tag("code", f"indus rewind --conversation {conversation} --to N")),
        table(("Before", "Number", "At (UTC)", "Files changed after it"), rows, caption="Checkpoints", numbers=(1,)),
    )


def _show_row(row: JsonObject) -> Sequence[Html]:
    message = row.get("message")
    if is_json_object(message):
        parts = message.get("parts")
        return [_show_part(part) for part in parts if is_json_object(part)] if isinstance(parts, list) else ()
    op, at = row.get("op"), str(row.get("at", ""))[11:19]
    if op == "turn":
        run, turn = str(row.get("run", "")), str(row.get("turn", ""))
        return (tag("p", f"Turn {turn}, {at} · ", link("what the model saw", "/deck", run=run, turn=turn), cls="mark"),)
    texts = {
        "model": f"The model is {row.get('model')}",
        REWIND_OP: f"Rewound ({row.get('scope')}) to {row.get('to')}",
        COMPACT_OP: "The messages above were summarized for the model",
        FORK_OP: "A copy of another conversation up to here",
    }
    return (tag("p", f"{texts[str(op)]}, {at}", cls="mark"),) if op in texts else ()


def _show_part(part: JsonObject) -> Html:
    kind = str(part.get("part_kind"))
    name = part.get("tool_name")
    title = f"{_NAMES.get(kind, kind)}{f': {name}' if name else ''}"
    value = part.get("args") if kind == "tool-call" else part.get("content")
    text = cut_text(format_content(value), _MAX_PART_CHARS)
    if kind == "user-prompt":
        return tag("article", tag("h3", title), show_prose(remove_session_note(text)), cls="person")
    if kind == "text":
        return tag("article", tag("h3", title), show_prose(text))
    failed = part.get("outcome") not in {None, "success"} or kind == "retry-prompt"
    state = [" ", show_state("error")] if failed else None
    preview = tag("span", f" {shorten(text)}", cls="faint")
    return tag("details", tag("summary", title, state, preview), show_text(text), cls="part")
