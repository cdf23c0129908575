"""Titles of calls: the same words in a question, in a call's line on a terminal, and in an editor."""

from __future__ import annotations

import json
import os
from collections.abc import Collection

from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.core.app_dirs import is_within
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from induscode.cli.terminal import escape_unprintable

_LONGEST_VALUE = 60
_LONGEST_SOURCE = 400
"""Characters of a text to look at; a line shows fewer."""
_PATH = ("path", *PATH_ALIASES)
_JOB = ("action", "id", "command")
_VERBS: dict[str, tuple[str, tuple[str, ...], Collection[str]]] = {
    "read": ("Read", _PATH, ()),
    "ls": ("List", _PATH, ()),
    "grep": ("Search", ("pattern",), ()),
    "find": ("Find", ("pattern",), ()),
    "write": ("Write", _PATH, "*"),
    "edit": ("Edit", _PATH, "*"),
    "bash": ("$", ("command",), ()),
    "process": ("Process", _JOB, ()),
    "bg-process": ("Process", _JOB, ()),
    "webfetch": ("Fetch", ("url",), ()),
    "websearch": ("Search the web", ("query",), ()),
    "todo": ("To-do list", (), "*"),
    "todo_read": ("Read to-do list", (), "*"),
    "todo_set": ("Set to-do list", (), "*"),
    "memory": ("Memory", ("action",), "*"),
    "task": ("Task", ("objective",), ()),
    "run_code": ("Run code", ("code",), "*"),
    "saas-action": ("Action", ("slug", "query"), ()),
    "enter_plan_mode": ("Enter plan mode", (), "*"),
    "exit_plan_mode": ("Plan", (), "*"),
}
"""Of the native tools: the verb, the arguments it's about, and those that aren't shown (`*`: all others)."""


@record
class CallTitle:
    """The effect of a call."""

    verb: str
    subject: str = ""
    """The main argument."""
    rest: str = ""
    """Other arguments, briefly."""

    def __str__(self) -> str:
        verb = "Run" if self.verb == "$" else self.verb
        return f"{verb} {self.subject}" if self.subject else verb


def describe_call(name: str, arguments: JsonValue, *, server: str = "", tool: str = "", cwd: str = "") -> CallTitle:
    """Describe a call of a native tool, or of a server's `tool`. Every character is visible, on one line."""
    given: JsonObject = arguments if is_json_object(arguments) else {}
    if server:
        verb, only = f"{to_one_line(server)} → {to_one_line(tool)}", next(iter(given.values()), None)
        if len(given) == 1 and isinstance(only, str):
            return CallTitle(verb, _format_value(shorten_path(only, cwd)))
        return CallTitle(verb, "", format_arguments(arguments))
    verb, keys, hidden = _VERBS.get(name, (to_one_line(name), (), ()))
    words = [value for key in keys if isinstance(value := given.get(key), str) and value]
    words = [*dict.fromkeys(words)] if keys is _JOB else words[:1]
    if keys is _PATH:
        words = [shorten_path(word, cwd) for word in words]
    subject = to_one_line(" ".join(words).removeprefix("https://") if name == "webfetch" else " ".join(words))
    others = {key: value for key, value in given.items() if key not in keys}
    rest = "" if hidden == "*" else format_arguments(others if is_json_object(arguments) else arguments)
    return CallTitle(verb, subject, rest)


def shorten_path(path: str, cwd: str) -> str:
    """Write an absolute path relative to the working directory, or to the home directory."""
    if not os.path.isabs(path):
        return path
    for root, prefix in ((cwd, ""), (os.path.expanduser("~"), "~/")):
        if root and path != root and is_within(path, root):
            return prefix + path[len(root.rstrip("/")) + 1 :]
    return path


def to_one_line(text: str) -> str:
    """Escape untrusted text and put it on one line."""
    return escape_unprintable(" ".join(text[:_LONGEST_SOURCE].split()))


def format_arguments(arguments: JsonValue) -> str:
    """Format arguments briefly: `path=src/a.py limit=20`."""
    if not is_json_object(arguments):
        return "" if arguments is None else _format_value(arguments)
    return " ".join(f"{to_one_line(name)}={_format_value(value)}" for name, value in arguments.items())


def _format_value(value: JsonValue) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a model's arguments may be anything
        text = repr(value)
    text = to_one_line(text)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
