"""Tool calls as an editor shows them: title, kind, places in files, and the texts of a change.

https://agentclientprotocol.com/protocol/tool-calls. Arguments and results are foreign: titles are escaped, and a file
is read for its diff only inside the workspace.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.core.json import NotJson, compact_json, is_json_object
from indusagi.core.paths import is_within
from indusagi.core.text import cut_text
from induscode.cli.terminal import escape_unprintable
from induscode.permissions.plan_mode import ENTER, EXIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.conversations.contract import ToolAnswered

KINDS = {
    "read": "read",
    "ls": "read",
    "todo_read": "think",
    "todo_set": "think",
    "todo": "think",
    "grep": "search",
    "find": "search",
    "websearch": "search",
    "webfetch": "fetch",
    "write": "edit",
    "edit": "edit",
    "bash": "execute",
    "process": "execute",
    "bg-process": "execute",
    ENTER: "switch_mode",
    EXIT: "switch_mode",
}
"""Kinds of the native tools; every other tool is `other`."""
_FENCED = frozenset({"read", "search", "execute"})
_SUBJECTS = ("path", *PATH_ALIASES, "command", "pattern", "query", "url", "objective", "action")
"""Arguments that tell a call from others of the same tool."""
_TITLE = 120
_LARGEST_TEXT = 512 * 1024
"""Bytes of a file that are sent as a side of a diff."""
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)", re.MULTILINE)


def format_title(name: str, arguments: JsonValue) -> str:
    """Format the title of a call: the tool, and what it is about."""
    subject: JsonValue = None
    if is_json_object(arguments):
        subject = next((arguments[key] for key in _SUBJECTS if isinstance(arguments.get(key), str)), None)
    words = " ".join(str(subject).split()) if subject is not None else ""
    return escape_unprintable(cut_text(f"{name} {words}".strip(), _TITLE))


def find_path(arguments: JsonValue, cwd: str) -> str | None:
    """Find the absolute path that a call of a file tool is about."""
    if not is_json_object(arguments):
        return None
    for key in ("path", *PATH_ALIASES):
        path = arguments.get(key)
        if isinstance(path, str) and path and "\0" not in path:
            return os.path.normpath(os.path.join(cwd, os.path.expanduser(path)))
    return None


def list_locations(name: str, arguments: JsonValue, cwd: str) -> list[JsonValue]:
    """List the places that a call looks at, so that an editor can follow it."""
    path = find_path(arguments, cwd) if KINDS.get(name) in {"read", "edit", "search"} else None
    if path is None:
        return []
    line = arguments.get("offset") if is_json_object(arguments) else None
    return [{"path": path, "line": line}] if isinstance(line, int) and line > 0 else [{"path": path}]


def build_text(text: str, kind: str) -> JsonObject:
    """Build a text for a call; output of a program is fenced, since editors show Markdown."""
    if kind in _FENCED and text:
        longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
        fence = "`" * (longest + 1)
        text = f"{fence}\n{text}\n{fence}"
    return {"type": "content", "content": {"type": "text", "text": text}}


# -- diffs --------------------------------------------------------------------------------------


def read_side(path: str, cwd: str) -> str | None:
    """Read a file of the workspace as one side of a diff; "" if it is absent, None if it cannot be shown. It blocks."""
    if not is_within(os.path.realpath(path), os.path.realpath(cwd)):
        return None
    try:
        # Without blocking: the path may lead to a pipe.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with open(handle, "rb", closefd=False) as file:
            data = file.read(_LARGEST_TEXT + 1)
        return data.decode("utf-8") if len(data) <= _LARGEST_TEXT else None
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(handle)


def build_diff(path: str, old: str | None, new: str) -> JsonObject:
    """Build a diff; a file that is created has no old text."""
    return {"type": "diff", "path": path, "oldText": old or None, "newText": new}


def propose_diffs(name: str, arguments: JsonValue, path: str | None, old: str | None) -> list[JsonValue]:
    """Build the diffs that a call of `write` or `edit` would make, for the question about it."""
    if path is None or not is_json_object(arguments):
        return []
    if name == "write":
        content = arguments.get("content")
        return [build_diff(path, old, content)] if isinstance(content, str) and old is not None else []
    edits = arguments.get("edits")
    diffs: list[JsonValue] = []
    for edit in edits if isinstance(edits, list) else [arguments]:
        before, after = (edit.get("oldText"), edit.get("newText")) if is_json_object(edit) else (None, None)
        if isinstance(before, str) and isinstance(after, str):
            diffs.append(build_diff(path, before, after))
    return diffs


def find_first_line(event: ToolAnswered) -> int | None:
    """Find the first changed line in the result of `write` or `edit`."""
    match = _HUNK.search(str(event.details.get("diff", "")))
    return int(match[1]) if match else None


def describe_arguments(arguments: JsonValue) -> JsonValue:
    """Give arguments for `rawInput`; what JSON cannot carry is left out."""
    try:
        compact_json(arguments)
    except NotJson:
        return None
    return arguments


# -- plans --------------------------------------------------------------------------------------

_STATUS = {
    "pending": "pending",
    "active": "in_progress",
    "in_progress": "in_progress",
    "done": "completed",
    "completed": "completed",
}
_PRIORITY = {"low": "low", "normal": "medium", "high": "high"}


def build_plan(items: Sequence[tuple[str, str, str]]) -> JsonObject:
    """Build the plan of an editor from items of checklists: text, state and weight. Dropped items are left out."""
    entries: list[JsonValue] = [
        {"content": text, "priority": _PRIORITY[weight], "status": _STATUS[state]}
        for text, state, weight in items
        if state in _STATUS
    ]
    return {"sessionUpdate": "plan", "entries": entries}
