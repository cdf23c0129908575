"""Where the rules of a user and of a project are kept; light, for those who only look.

The rules that a user has made for always, in one private file outside of every project.

Two processes wait for each other, a reader sees the old file or the new one, and a file that cannot
be read is set aside before anything is written: what it may have denied is asked about meanwhile.

The rules that hold before a session begins: those of its user, and those of the project.

A project says in `.indusvx/permissions.json` what is denied in it and what is to be asked about:
`{"deny": ["bash(git push *)"], "ask": ["write(migrations/**)"]}`. It allows nothing.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import make_private_dir, read_small_file, replace_private_file, state_dir
from indusagi.core.clock import iso_utc, now_ms
from indusagi.core.ids import new_ulid
from indusagi.core.json import is_json_object
from indusagi.core.locks import locked_directory
from indusagi.core.notes import Note
from induscode.session.permissions.rules import Effect, Rule, RuleOrigin, parse_rule, rules_from_settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from indusagi.core.json import JsonObject, JsonValue


_FILE_NAME = "permissions.json"


def rules_path() -> str:
    """Give the file of the user; never inside a project.

    Raises:
        OSError: There is no home directory.
    """
    return os.path.join(state_dir(), _FILE_NAME)


def project_rules_path(cwd: str) -> str:
    """Give the file in which a project says what is denied in it."""
    return os.path.join(cwd, ".indusvx", _FILE_NAME)


def has_rules(cwd: str) -> bool:
    """Tell whether there is one of these files, in whatever state."""
    if os.path.lexists(project_rules_path(cwd)):
        return True
    try:
        return os.path.lexists(rules_path())
    except OSError:
        return False


_VERSION = 1
_LARGEST_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class _Content:
    rows: list[JsonObject] = field(default_factory=list["JsonObject"])
    unsandboxed: list[str] = field(default_factory=list[str])
    damaged: bool = False


class RuleStore:
    """Rules of this user. Nothing here is for the event loop."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """Where they are kept; never inside a project.

        Raises:
            OSError: There is no home directory.
        """
        return self._path or rules_path()

    def load(self) -> tuple[Sequence[Rule], Sequence[Note]]:
        """Read the rules; those that cannot be read are told, and asked about."""
        try:
            path = self.path
        except OSError:
            return (), ()
        content = _read(path)
        rules: list[Rule] = []
        notes: list[Note] = []
        if content.damaged:
            notes.append(Note(path, "it cannot be read", "it is set aside at the next change"))
            rules.append(_ask_about_everything(path))
        for row in content.rows:
            rule = _rule_of(row, path)
            if isinstance(rule, Note):
                notes.append(rule)
                rules.append(_ask_about_everything(path))
            else:
                rules.append(rule)
        return tuple(rules), tuple(notes)

    def add(self, rules: Iterable[Rule]) -> None:
        """Keep rules; one that is there already is kept once.

        Raises:
            OSError: They cannot be kept.
        """
        with _changing(self.path) as content:
            for rule in rules:
                row = _row_of(rule)
                known = [{**old, "at": None} for old in content.rows]
                if {**row, "at": None} not in known:
                    content.rows.append(row)

    def remove(self, text: str, workspace: str | None) -> int:
        """Drop the rules of this text that hold in a workspace, and tell how many there were.

        Raises:
            OSError: It cannot be kept.
        """
        with _changing(self.path) as content:
            kept = [row for row in content.rows if row.get("rule") != text or row.get("workspace") != workspace]
            count = len(content.rows) - len(kept)
            content.rows[:] = kept
        return count

    def unsandboxed(self, workspace: str) -> bool:
        """Tell whether rules may allow commands there although nothing holds them in."""
        try:
            return workspace in _read(self.path).unsandboxed
        except OSError:
            return False

    def allow_unsandboxed(self, workspace: str) -> None:
        """Have rules allow commands in a workspace although nothing holds them in.

        Raises:
            OSError: It cannot be kept.
        """
        with _changing(self.path) as content:
            if workspace not in content.unsandboxed:
                content.unsandboxed.append(workspace)


def _ask_about_everything(path: str) -> Rule:
    return Rule(effect=Effect.ASK, tool="*", origin=RuleOrigin.USER, file=path)


def _row_of(rule: Rule) -> JsonObject:
    return {
        "effect": rule.effect.value,
        "rule": str(rule),
        "workspace": rule.workspace,
        "server": rule.server,
        "pin": rule.pin,
        "at": iso_utc(now_ms()),
    }


def _rule_of(row: JsonObject, path: str) -> Rule | Note:
    text, effect = row.get("rule"), row.get("effect")
    if not isinstance(text, str) or effect not in set(Effect):
        return Note(path, f"a row of it is no rule: {json.dumps(row)[:200]}", "remove the row")
    rule = parse_rule(text, Effect(str(effect)), RuleOrigin.USER, path)
    if isinstance(rule, Note):
        return rule
    places = {name: row.get(name) for name in ("workspace", "server", "pin")}
    if not all(value is None or isinstance(value, str) for value in places.values()):
        return Note(path, f"rule {text!r} does not say where it holds", "remove the row")
    said = {name: None if value is None else str(value) for name, value in places.items()}
    return replace(rule, **said)


def _read(path: str) -> _Content:
    try:
        found: JsonValue = json.loads(read_small_file(path, _LARGEST_BYTES, follow=False))
    except FileNotFoundError:
        return _Content()
    except (OSError, ValueError, RecursionError):
        return _Content(damaged=True)
    rows = found.get("rules") if is_json_object(found) else None
    places = found.get("unsandboxed", []) if is_json_object(found) else None
    if not isinstance(rows, list) or not isinstance(places, list):
        return _Content(damaged=True)
    objects = [row for row in rows if is_json_object(row)]
    return _Content(objects, [place for place in places if isinstance(place, str)], damaged=len(objects) != len(rows))


@contextmanager
def _changing(path: str) -> Generator[_Content]:
    """Read, let the caller change, and write in one step; two processes wait for each other."""
    folder = make_private_dir(os.path.dirname(path))
    with locked_directory(folder):
        content = _read(path)
        if content.damaged:
            os.replace(path, f"{path}.corrupt-{new_ulid()}")
        yield content
        _write(path, content)


def _write(path: str, content: _Content) -> None:
    rows: list[JsonValue] = [*content.rows]
    text = json.dumps({"version": _VERSION, "rules": rows, "unsandboxed": content.unsandboxed}, indent=1)
    replace_private_file(path, text.encode("utf-8"))


_LARGEST_PROJECT_FILE = 1024 * 1024


def load_startup_rules(store: RuleStore, cwd: str) -> tuple[Sequence[Rule], Sequence[Note]]:
    """Read all of them; what cannot be read is told, and everything is asked about."""
    rules, notes = store.load()
    of_project, said = _of_project(project_rules_path(cwd))
    return (*rules, *of_project), (*notes, *said)


def _of_project(path: str) -> tuple[Sequence[Rule], Sequence[Note]]:
    try:
        found: JsonValue = json.loads(read_small_file(path, _LARGEST_PROJECT_FILE, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        return (), ()
    except (OSError, ValueError, RecursionError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no JSON"
        note = Note(path, f"its rules cannot be read: {why}", "everything is asked about meanwhile")
        return (Rule(effect=Effect.ASK, tool="*", origin=RuleOrigin.PROJECT, file=path),), (note,)
    return rules_from_settings(found, path, RuleOrigin.PROJECT)
