"""Servers of other programs, found where these keep them and put into our own words.

Reading only. What cannot be said in our words is a reason to leave a server out, never a guess.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from indusagi.core.config_file import read_config_file
from indusagi.core.json import is_json_object
from indusagi.core.notes import Note
from indusagi.core.records import record
from induscode.clients.places import config_places
from induscode.deck.mcp.config.dialects import detect_dialect, find_dialect
from induscode.deck.mcp.config.rows import InvalidRowError, Origin, find_project_dir, is_switched_off, parse_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.mcp.config.dialects import Dialect, RawRow
    from induscode.deck.mcp.config.rows import Scope, ServerRow

_TEXTS = ("command", "url", "cwd", "proxy")
_LISTS = ("args",)
_MAPS = ("env", "environment", "headers", "http_headers")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OURS = re.compile(r"\$\{")
_BARE = re.compile(rf"(?<!\$)\$({_NAME})")
_EDITOR = re.compile(r"\$\{([A-Za-z]+)(?::([^}]*))?\}")
_BRACES = re.compile(r"\{(env|file):([^}]*)\}")


class UntranslatableError(ValueError):
    """Something that our own file has no words for."""


@record
class ForeignServer:
    """A server of another program."""

    row: ServerRow
    """As our file would have it."""
    fields: JsonObject
    origin: Origin

    @property
    def name(self) -> str:
        """What it is called."""
        return self.row.id


def read_foreign(
    path: str, scope: Scope, cwd: str, program: str | None = None
) -> tuple[Sequence[ForeignServer], Sequence[Note]]:
    """Read the servers of a file that are for `cwd`; what is left out is told in a note."""
    found = read_config_file(path)
    if found.trouble is not None:
        return (), (Note(f"file {path}", f"skipped: {found.trouble}", "correct it"),)
    document = found.document
    dialect: Dialect | None = None
    if is_json_object(document):
        known = program is not None
        dialect = find_dialect(program, document) if known else detect_dialect(path, document)
    if dialect is None or not is_json_object(document):
        return (), (Note(f"file {path}", "skipped: it names no servers"),)
    origin = Origin(os.path.abspath(path), scope, dialect.name)
    servers: list[ForeignServer] = []
    notes: list[Note] = []
    elsewhere: Counter[str] = Counter()
    for draft in dialect.read_rows(document):
        if not _is_for(draft, cwd):
            elsewhere[str(draft.project)] += 1
            continue
        try:
            servers.append(_taken(draft.name, draft.fields, origin, dialect))
        except (InvalidRowError, UntranslatableError) as exc:
            notes.append(Note(f"server {draft.name!r} of {origin}", f"left out: {exc}"))
    for project, number in elsewhere.items():
        count = "1 server is" if number == 1 else f"{number} servers are"
        remedy = f"indus mcp import -C {quote(project)}"
        notes.append(Note(f"project {project} of {origin}", f"left out: {count} for it", remedy))
    return servers, notes


def _is_for(draft: RawRow, cwd: str) -> bool:
    """Tell whether a server is meant for a folder: Claude Code keeps them by root of repository."""
    if draft.project is None:
        return True
    wanted, folder = os.path.realpath(draft.project), os.path.realpath(cwd)
    while wanted != folder:
        above = os.path.dirname(folder)
        if above == folder or os.path.lexists(os.path.join(folder, ".git")):
            return False
        folder = above
    return True


def _taken(name: str, fields: JsonValue, origin: Origin, dialect: Dialect) -> ForeignServer:
    if not is_json_object(fields):
        raise InvalidRowError("it is no object")
    if is_switched_off(fields):
        raise InvalidRowError("it is switched off in its file")
    said = _translator(dialect.expansion, find_project_dir(origin))
    ours = {key: _translated(key, value, said) for key, value in fields.items()}
    row = parse_row(name, ours, replace(origin, dialect="indus"), expansion="shell")
    return ForeignServer(row, ours, origin)


def _translated(key: str, value: JsonValue, said: Callable[[str], str]) -> JsonValue:
    """Put the variables of a field into our words; what is no text stays as it is."""
    if key in _TEXTS and isinstance(value, str):
        return said(value)
    if key in _LISTS and isinstance(value, list):
        return [said(one) if isinstance(one, str) else one for one in value]
    if key in _MAPS and is_json_object(value):
        return {name: said(one) if isinstance(one, str) else one for name, one in value.items()}
    return value


def _translator(rule: str, folder: str) -> Callable[[str], str]:
    def editor(text: str) -> str:
        return _EDITOR.sub(lambda found: _editor_word(found[1], found[2], folder), text)

    def braces(text: str) -> str:
        return _BRACES.sub(_brace_word, _literal(text))

    def dollar(text: str) -> str:
        return _BARE.sub(r"${\1}", text)

    return {"editor": editor, "braces": braces, "dollar": dollar, "none": _literal}.get(rule, lambda text: text)


def _literal(text: str) -> str:
    """Accept a text that has no variable in it, in our way of writing one."""
    if _OURS.search(text):
        raise UntranslatableError("it has ${…} in it, which would be taken for a variable")
    return text


def _editor_word(kind: str, name: str | None, folder: str) -> str:
    if kind == "env" and name:
        return f"${{{name}}}"
    if kind == "userHome":
        return "${HOME}"
    if kind in {"workspaceFolder", "workspaceRoot"}:
        return folder
    if kind == "workspaceFolderBasename":
        return os.path.basename(folder)
    if kind == "pathSeparator":
        return os.sep
    what = f"the input {name!r}, which an editor asks for" if kind == "input" else f"${{{kind}}}"
    raise UntranslatableError(f"it needs {what}")


def _brace_word(found: re.Match[str]) -> str:
    if found[1] == "file":
        raise UntranslatableError(f"it needs the content of the file {found[2]!r}")
    return f"${{{found[2]}}}"


def discover_foreign(
    programs: Iterable[str], cwd: str, environ: Mapping[str, str]
) -> tuple[Sequence[ForeignServer], Sequence[Note]]:
    """Read the servers of programs, from every file of theirs that is there."""
    servers: list[ForeignServer] = []
    notes: list[Note] = []
    for program in programs:
        for path, scope in config_places(program, cwd, environ):
            if os.path.isfile(path):
                found, said = read_foreign(path, scope, cwd, program)
                servers.extend(found)
                notes.extend(note for note in said if "names no servers" not in note.message)
    return servers, notes
