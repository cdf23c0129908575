"""Conversation views: the working directory's conversations, one with its messages and plan, and its rewind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import takewhile
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.core.faults import CoreError
from indusagi.core.ids import is_ulid
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.text import cut_text
from indusagi.core.time import parse_iso
from induscode.cli.call_title import describe_call
from induscode.conversations.kept_state import CHECKLIST_OP, PLAN_OP
from induscode.conversations.rewind import RewindPoint, RewindScope, StoredRewind, find_rewind_points
from induscode.conversations.transcript import (
    COMPACT_OP,
    FORK_OP,
    REWIND_OP,
    conversations_dir,
    find_cwd,
    find_visible_rows,
    format_content,
    list_conversations,
    list_parts,
    parse_arguments,
    read_rows,
    remove_session_note,
)
from induscode.core.consent import Consent
from induscode.core.consent import build_consent as build_consent_facts
from induscode.deck.stores.checkpoints import read_changed_paths
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_consent,
    link,
    shorten,
    shorten_path,
    show_diff,
    show_moment,
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
    """Show a conversation: its messages, each prompt with its rewind, and its plan."""
    name, directory = await _find_conversation(page)
    rows = await to_thread.run_sync(read_rows, directory)
    changed = await to_thread.run_sync(read_changed_paths, os.path.join(directory, "checkpoints"))
    points = {point.row: point for point in find_rewind_points(rows, lambda node: changed.get(node, ()))}
    visible = find_visible_rows(rows)
    wanted = page.get("row")
    first = max(0, len(rows) - _MAX_ROWS)
    if wanted.isdecimal() and int(wanted[:9]) < first:
        first = max(0, int(wanted[:9]) - _MAX_ROWS // 10)
    talk = _Talk(page, name, points, [row for _, row in visible])
    shown = [talk.show_row(index, row) for index, row in visible if first <= index < first + _MAX_ROWS]
    earlier = None
    if first:
        before = max(0, first - _MAX_ROWS)
        earlier = tag("p", link(f"Show the {first:,} rows before", "/session", id=name, row=before), cls="faint")
    hidden = len(rows) - len(visible)
    content = tag(
        "div",
        tag("p", "Continue it: ", tag("code", f"indus --resume {name}")),
        show_nothing(f"A rewind has hidden {hidden} rows.") if hidden else None,
        earlier,
        shown,
        _show_plan([row for _, row in visible]),
    )
    title = next((point.title for point in points.values() if point.kind == "prompt"), "Conversation")
    return PageView(title, content, "sessions")


async def _find_conversation(page: PageRequest) -> tuple[str, str]:
    """Return the id and the directory of the wanted conversation of this working directory."""
    name, cwd = page.get("id"), page.source.session.invocation.cwd
    directory = os.path.join(conversations_dir(), name)
    if not is_ulid(name) or await to_thread.run_sync(find_cwd, directory) != cwd:
        raise PageError(f"There is no conversation {name!r} of this directory")
    return name, directory


# -- rewind -----------------------------------------------------------------------------------


_SCOPES: Mapping[str, str] = {"both": "Files and messages", "files": "Files only", "talk": "Messages only"}


async def show_rewind(page: PageRequest) -> PageView:
    """Preview a rewind, with a form that does exactly that."""
    name, _ = await _find_conversation(page)
    number, scope = page.get("to"), page.get("scope") or "both"
    if scope not in _SCOPES:
        raise PageError(f"There is no scope {scope!r}", 400)
    back = tag("p", link("To the conversation", "/session", id=name))
    try:
        with ExitStack() as stack:
            cwd = page.source.session.invocation.cwd
            stored = await to_thread.run_sync(StoredRewind, cwd, name, stack)
            point = next((one for one in stored.points if f"{one.number}" == number), None)
            if point is None:
                raise PageError(f"There is no point {number!r} to return to")
            consent = await _describe_rewind(stored, point, cast("RewindScope", scope))
            if page.form:
                consent.check_digest(page.form.get("digest", ""))
                result = await stored.rewind(point, cast("RewindScope", scope))
                left = () if result.files is None else result.files.left
                text = f"{result}. To undo this, use “Undo this rewind” in the conversation."
                said = [tag("p", text, role="status", cls="said")]
                said += [tag("p", f"{stored.shorten(path)} stays as it is: {reason}") for path, reason in left]
                return PageView("Rewound", tag("div", said, back), "sessions")
    except (CoreError, OSError) as exc:
        said = tag("p", str(exc), role="alert", cls="said")
        return PageView("Rewind", tag("div", said, back), "sessions", 409)
    others = [
        tag("strong", text) if key == scope else link(text, "/session/rewind", id=name, to=number, scope=key)
        for key, text in _SCOPES.items()
    ]
    target = address("/session/rewind", id=name, to=number, scope=scope)
    question = show_text("\n".join(consent.details))
    if page.user.rights.can_configure:
        question = build_consent(page.user, target, consent, button="Rewind", action="rewind")
    return PageView("Rewind", tag("div", tag("p", [[one, " "] for one in others]), question, back), "sessions")


async def _describe_rewind(stored: StoredRewind, point: RewindPoint, scope: RewindScope) -> Consent:
    """Build the question about a rewind, which covers each file and message that would change."""
    preview = await stored.preview(point, scope)
    lines = [*stored.describe_preview(preview, scope)]
    facts: JsonObject = {"conversation": stored.transcript.id, "to": point.number, "scope": scope, "effects": [*lines]}
    subject = "undo of the rewind" if point.kind == "rewind" else f"return to the state before “{point.title}”"
    return build_consent_facts(subject, facts, lines)


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


class _Talk:
    """Shows the rows of a conversation."""

    def __init__(
        self, page: PageRequest, name: str, points: Mapping[int, RewindPoint], rows: Sequence[JsonObject]
    ) -> None:
        self._cwd, self._name = page.source.session.invocation.cwd, name
        self._points = points
        self._can_rewind = page.user.rights.can_configure
        parts = [part for row in rows if is_json_object(message := row.get("message")) for part in list_parts(message)]
        self._results = {str(one.get("tool_call_id")): one for one in parts if one.get("part_kind") == "tool-return"}
        self._calls = {str(one.get("tool_call_id")) for one in parts if one.get("part_kind") == "tool-call"}

    def show_row(self, index: int, row: JsonObject) -> Html:
        """Show a row, as the target of links to it."""
        message, point = row.get("message"), self._points.get(index)
        shown = [self._show_part(part) for part in list_parts(message)] if is_json_object(message) else []
        mark = None if is_json_object(message) else self._show_mark(row)
        return tag("div", mark, self._offer_rewind(point) if point else None, shown, id=f"row-{index}", cls="row")

    def _offer_rewind(self, point: RewindPoint) -> Html | None:
        paths = [os.path.relpath(path, self._cwd) for path in point.files[:_MAX_FILES]]
        more = f" and {len(point.files) - _MAX_FILES} more" if len(point.files) > _MAX_FILES else ""
        changed = f" Changed files: {', '.join(paths)}{more}" if paths else ""
        if not self._can_rewind:
            return tag("p", changed, cls="faint") if changed else None
        text = "Undo this rewind" if point.kind == "rewind" else "Rewind to here"
        target = address("/session/rewind", id=self._name, to=point.number)
        return tag("p", tag("a", text, href=target, cls="button"), tag("span", changed, cls="faint"), cls="actions")

    def _show_mark(self, row: JsonObject) -> Html | None:
        op, at = str(row.get("op")), show_moment(parse_iso(str(row.get("at", ""))))
        if op == "turn":
            run, turn = str(row.get("run", "")), str(row.get("turn", ""))
            seen = link("what the model saw", "/deck", run=run, turn=turn)
            return tag("p", f"Turn {turn}, ", at, " · ", seen, cls="mark")
        texts = {
            "model": f"The model is {row.get('model')}",
            REWIND_OP: f"Rewound ({row.get('scope')}) to {row.get('to')}",
            COMPACT_OP: "The messages above were summarized for the model",
            FORK_OP: "A copy of another conversation up to here",
        }
        return tag("p", texts[op], ", ", at, cls="mark") if op in texts else None

    def _show_part(self, part: JsonObject) -> Html | None:
        kind, name = str(part.get("part_kind")), str(part.get("tool_name") or "")
        if kind == "tool-call":
            return self._show_call(part, name)
        if kind == "tool-return" and str(part.get("tool_call_id")) in self._calls:
            return None  # shown with its call
        title = f"{_NAMES.get(kind, kind)}{f': {name}' if name else ''}"
        text = cut_text(format_content(part.get("content")), _MAX_PART_CHARS)
        if kind == "user-prompt":
            return tag("article", tag("h2", title), show_prose(remove_session_note(text)), cls="person")
        if kind == "text":
            return tag("article", tag("h2", title), show_prose(text))
        state = [" ", show_state("error")] if kind == "retry-prompt" or _has_failed(part) else None
        preview = tag("span", f" {shorten(text)}", cls="faint")
        return tag("details", tag("summary", title, state, preview), show_text(text), cls="part")

    def _show_call(self, part: JsonObject, name: str) -> Html:
        """Show a call with its result; edits as diffs."""
        arguments, result = parse_arguments(part), self._results.get(str(part.get("tool_call_id")))
        title = describe_call(name, arguments, cwd=self._cwd)
        diff = build_edit_diff(name, arguments)
        given = show_text(cut_text(format_content(part.get("args")), _MAX_PART_CHARS)) if diff is None else diff
        answer = None
        if result is not None:
            answer = show_text(cut_text(format_content(result.get("content")), _MAX_PART_CHARS))
        state = [" ", show_state("error")] if result is not None and _has_failed(result) else None
        summary = tag("summary", str(title), state, tag("span", f" {title.rest}", cls="faint") if title.rest else None)
        return tag("details", summary, given, answer, cls="part", open=diff is not None)


def _has_failed(part: JsonObject) -> bool:
    return part.get("outcome") not in {None, "success"}


def build_edit_diff(name: str, arguments: JsonValue) -> Html | None:
    """Show the texts that an `edit` or `write` call replaces, as a diff; `None` for other calls and other names."""
    if name not in {"edit", "write"} or not is_json_object(arguments):
        return None
    given = arguments.get("edits")
    edits = [one for one in given if is_json_object(one)] if isinstance(given, list) else [arguments]
    if name == "write":
        edits = [{"newText": arguments["content"]}] if "content" in arguments else []
    if not edits or not all("newText" in edit for edit in edits):
        return None
    path = next((str(arguments[key]) for key in ("path", *PATH_ALIASES) if key in arguments), "")
    lines = [f"--- {path}", f"+++ {path}"]
    for edit in edits:
        old, new = (cut_text(str(edit.get(key) or ""), _MAX_PART_CHARS).split("\n") for key in ("oldText", "newText"))
        old = [] if old == [""] else old
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
        lines += ["@@", *(f" {line}" for line in old[:same])]
        lines += [*(f"-{line}" for line in old[same:]), *(f"+{line}" for line in new[same:])]
    return show_diff("\n".join(lines))
