"""Conversations: those of this working directory, and one of them with its messages, plan and checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import is_ulid
from indusagi.core.json import compact_json, is_json_object
from indusagi.core.text import cut_text
from induscode.session.stored_conversations import list_conversations
from induscode.session.transcript import conversations_dir, find_cwd, read_rows
from induscode.ui.contract import PageError, PageView
from induscode.ui.html import Html, table, tag
from induscode.ui.parts import link, show_nothing, show_text, show_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.ui.contract import PageRequest

_MOST = 100
_LONGEST = 20_000
"""Characters of one part of a message that are shown."""
_ROWS = 2_000
_NAMES = {
    "user-prompt": "Prompt",
    "text": "Answer",
    "thinking": "Thinking",
    "tool-call": "Call",
    "tool-return": "Result",
    "retry-prompt": "Refused",
    "system-prompt": "System prompt",
}
_MARKS = {"turn", "plan", "checklist", "rewind", "compact", "fork", "model"}


async def show_sessions(page: PageRequest) -> PageView:
    """List the conversations of the working directory."""
    cwd = page.source.session.invocation.cwd
    summaries = await to_thread.run_sync(lambda: list_conversations(cwd, limit=_MOST))
    rows = [
        (link(one.title or "(no prompt)", "/session", id=one.id), show_time(one.modified_ms), str(one.messages))
        for one in summaries
    ]
    content = tag(
        "div",
        tag("p", "Conversations of ", tag("code", cwd)),
        table(("Conversation", "Last change", "Messages"), rows, caption="Conversations", numbers=(2,)) if rows
        else show_nothing('There are none. `indus` opens one, and so does indus -p "…"'),
    )  # fmt: skip
    return PageView("Sessions", content, "sessions")


async def show_session(page: PageRequest) -> PageView:
    """Show the messages of a conversation."""
    name, cwd = page.get("id"), page.source.session.invocation.cwd
    directory = os.path.join(conversations_dir(), name)
    if not is_ulid(name) or await to_thread.run_sync(find_cwd, directory) != cwd:
        raise PageError(f"There is no conversation {name!r} of this directory")
    rows = await to_thread.run_sync(read_rows, directory)
    parts = [part for row in rows[-_ROWS:] for part in _show_row(row)]
    left_out = show_nothing(f"The first {len(rows) - _ROWS:,} rows are left out.") if len(rows) > _ROWS else None
    resume = tag(
        "p",
        "Continue it: ",
        tag("code", f"indus --resume {name}"),
        "; return to a point: ",
        tag("code", f"indus rewind --conversation {name}"),
    )
    return PageView("Conversation", tag("div", resume, left_out, parts), "sessions")


def _show_row(row: JsonObject) -> Sequence[Html]:
    message = row.get("message")
    if is_json_object(message):
        parts = message.get("parts")
        return [_show_part(part) for part in parts if is_json_object(part)] if isinstance(parts, list) else ()
    op = row.get("op")
    if op not in _MARKS:
        return ()
    facts = {key: value for key, value in row.items() if key not in {"op", "at"} and value not in (None, "", [], {})}
    return (tag("p", f"{op} {row.get('at', '')} ", tag("code", cut_text(compact_json(facts), 400)), cls="faint"),)


def _show_part(part: JsonObject) -> Html:
    kind = str(part.get("part_kind"))
    name = part.get("tool_name")
    title = f"{_NAMES.get(kind, kind)}{f': {name}' if name else ''}"
    value = part.get("args") if kind == "tool-call" else part.get("content")
    body = show_text(cut_text(_to_text(value), _LONGEST))
    if kind in {"tool-call", "tool-return", "thinking", "system-prompt"}:
        return tag("details", tag("summary", title), body, cls="part")
    return tag("article", tag("h2", title), body, cls="part")


def _to_text(value: JsonValue) -> str:
    if isinstance(value, list):
        return "\n".join(map(_to_text, value))
    return value if isinstance(value, str) else "" if value is None else compact_json(value)
