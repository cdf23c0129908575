"""The rules that hold before a session begins: those of its user, and those of the project.

A project says in `.indusvx/permissions.json` what is denied in it and what is to be asked about:
`{"deny": ["bash(git push *)"], "ask": ["write(migrations/**)"]}`. It allows nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import read_small_file
from indusagi.core.notes import Note
from induscode.session.permissions.rules import Effect, Origin, Rule, rules_from_settings
from induscode.session.permissions.shell.place import project_rules_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonValue
    from induscode.session.permissions.store import RuleStore

_LARGEST_BYTES = 1024 * 1024


def standing_rules(store: RuleStore, cwd: str) -> tuple[Sequence[Rule], Sequence[Note]]:
    """Read all of them; what cannot be read is told, and everything is asked about."""
    rules, notes = store.load()
    of_project, said = _of_project(project_rules_path(cwd))
    return (*rules, *of_project), (*notes, *said)


def _of_project(path: str) -> tuple[Sequence[Rule], Sequence[Note]]:
    try:
        found: JsonValue = json.loads(read_small_file(path, _LARGEST_BYTES, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        return (), ()
    except (OSError, ValueError, RecursionError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no JSON"
        note = Note(path, f"its rules cannot be read: {why}", "everything is asked about meanwhile")
        return (Rule(effect=Effect.ASK, tool="*", origin=Origin.PROJECT, file=path),), (note,)
    return rules_from_settings(found, path, Origin.PROJECT)
