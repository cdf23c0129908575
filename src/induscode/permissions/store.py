"""Stored rules: the user's "always" rules, and the project's.

The user's rules are in one private file outside any project. Writers lock its directory, and readers see either the old
file or the new one. The next change sets a damaged file aside; until then, every call needs the user's permission.

A project can deny calls, or require a question, in `.indusvx/permissions.json`:
`{"deny": ["bash(git push *)"], "ask": ["write(migrations/**)"]}`. It can't allow anything.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import PrivateJsonFile, read_small_file, state_dir
from indusagi.core.faults import Note
from indusagi.core.json import is_json_object
from indusagi.core.time import iso_utc, now_ms
from induscode.permissions.rules import Effect, Rule, RuleOrigin, ask_about_everything, parse_rule, parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.core.json import JsonObject, JsonValue

_FILE_NAME = "permissions.json"
_VERSION = 1
_MAX_BYTES = 4 * 1024 * 1024
_MAX_PROJECT_BYTES = 1024 * 1024


def rules_path() -> str:
    """Return the path of the user's rules.

    Raises:
        OSError: The user has no home directory.
    """
    return os.path.join(state_dir(), _FILE_NAME)


def project_rules_path(cwd: str) -> str:
    """Return the path of a project's rules."""
    return os.path.join(cwd, ".indusvx", _FILE_NAME)


def has_rules(cwd: str) -> bool:
    """Return whether either file exists, even if damaged."""
    if os.path.lexists(project_rules_path(cwd)):
        return True
    try:
        return os.path.lexists(rules_path())
    except OSError:
        return False


def load_startup_rules(store: RuleStore, cwd: str) -> tuple[Sequence[Rule], Sequence[Note]]:
    """Load the user's and the project's rules. An unreadable file becomes a rule that asks about everything."""
    rules, notes = store.load()
    path = project_rules_path(cwd)
    try:
        settings: JsonValue = json.loads(read_small_file(path, _MAX_PROJECT_BYTES, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        return rules, notes
    except (OSError, ValueError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not JSON"
        note = Note(path, f"its rules cannot be read: {reason}", "until it's fixed, every call needs your permission")
        return (*rules, ask_about_everything(RuleOrigin.PROJECT, path)), (*notes, note)
    project_rules, problems = parse_settings(settings, path, RuleOrigin.PROJECT)
    return (*rules, *project_rules), (*notes, *problems)


@dataclass(slots=True)
class _Content:
    rows: list[JsonObject] = field(default_factory=list["JsonObject"])
    unsandboxed: list[str] = field(default_factory=list[str])


class RuleStore:
    """The user's "always" rules. The methods block: call them in a thread."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """Path of the file.

        Raises:
            OSError: The user has no home directory.
        """
        return self._path or rules_path()

    def _file(self) -> PrivateJsonFile[_Content]:
        return PrivateJsonFile(self.path, _MAX_BYTES, _parse_content, _dump_content)

    def load(self) -> tuple[Sequence[Rule], Sequence[Note]]:
        """Load the rules. An unreadable row or file becomes a rule that asks about everything."""
        try:
            path = self.path
        except OSError:
            return (), ()
        content, damaged = self._file().read()
        rules: list[Rule] = []
        notes: list[Note] = []
        if damaged:
            notes.append(Note(path, "it cannot be read", "it is set aside at the next change"))
            rules.append(ask_about_everything(RuleOrigin.USER, path))
        for row in content.rows:
            rule = parse_rule_row(row, path)
            if isinstance(rule, Note):
                notes.append(rule)
                rule = ask_about_everything(RuleOrigin.USER, path)
            rules.append(rule)
        return tuple(rules), tuple(notes)

    def add(self, rules: Iterable[Rule]) -> None:
        """Store rules, without duplicates.

        Raises:
            OSError: The file can't be written.
        """
        with self._file().change() as content:
            for rule in rules:
                row: JsonObject = {**dump_rule(rule), "at": iso_utc(now_ms())}
                if {**row, "at": None} not in [{**old, "at": None} for old in content.rows]:
                    content.rows.append(row)

    def remove(self, rule: Rule) -> int:
        """Remove the rows with the effect, text and scope of a rule, and return their number.

        Raises:
            OSError: The file can't be written.
        """
        facts = dump_rule(rule)
        with self._file().change() as content:
            rows = [row for row in content.rows if any(row.get(key) != value for key, value in facts.items())]
            count = len(content.rows) - len(rows)
            content.rows[:] = rows
        return count

    def allows_unsandboxed(self, workspace: str) -> bool:
        """Return whether rules may allow commands in a workspace without a sandbox."""
        try:
            return workspace in self._file().read()[0].unsandboxed
        except OSError:
            return False


def dump_rule(rule: Rule) -> JsonObject:
    """Convert a rule to a row for `parse_rule_row`."""
    return {
        "effect": rule.effect.value,
        "rule": str(rule),
        "workspace": rule.workspace,
        "server": rule.server,
        "pin": rule.pin,
    }


def parse_rule_row(row: JsonObject, path: str) -> Rule | Note:
    """Parse a row of the file `path`, or return a note about its mistake."""
    text, effect = row.get("rule"), row.get("effect")
    if not isinstance(text, str) or effect not in set(Effect):
        return Note(path, f"a row is not a rule: {json.dumps(row)[:200]}", "remove the row")
    rule = parse_rule(text, Effect(str(effect)), RuleOrigin.USER, path)
    if isinstance(rule, Note):
        return rule
    scope: dict[str, str | None] = {}
    for name in ("workspace", "server", "pin"):
        value = row.get(name)
        if value is not None and not isinstance(value, str):
            return Note(path, f"rule {text!r} does not say where it holds", "remove the row")
        scope[name] = value
    return replace(rule, **scope)


def _parse_content(document: JsonValue) -> tuple[_Content, bool]:
    rows = document.get("rules") if is_json_object(document) else None
    workspaces = document.get("unsandboxed", []) if is_json_object(document) else None
    if not isinstance(rows, list) or not isinstance(workspaces, list):
        return _Content(), True
    objects = [row for row in rows if is_json_object(row)]
    return _Content(objects, [name for name in workspaces if isinstance(name, str)]), len(objects) != len(rows)


def _dump_content(content: _Content) -> JsonValue:
    return {"version": _VERSION, "rules": [*content.rows], "unsandboxed": [*content.unsandboxed]}
