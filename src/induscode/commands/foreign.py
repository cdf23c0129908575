"""Servers of other programs, found where these keep them and put into our own words.

Reading only. What cannot be said in our words is a reason to leave a server out, never a guess.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.core.notes import Note
from induscode.deck.mcp.config_file import read_config_file
from induscode.deck.mcp.dialects import DIALECTS, dialect_of
from induscode.deck.mcp.rows import BadRow, Origin, is_switched_off, project_of, server_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.mcp.dialects import Dialect
    from induscode.deck.mcp.rows import Scope, ServerRow

PROGRAMS = ("claude-desktop", "claude-code", "vscode", "cursor", "codex", "gemini", "opencode")
_TEXTS = ("command", "url", "cwd", "proxy")
_LISTS = ("args",)
_MAPS = ("env", "environment", "headers", "http_headers")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OURS = re.compile(r"\$\{")
_BARE = re.compile(rf"(?<!\$)\$({_NAME})")
_EDITOR = re.compile(r"\$\{([A-Za-z]+)(?::([^}]*))?\}")
_BRACES = re.compile(r"\{(env|file):([^}]*)\}")


class Unsayable(ValueError):
    """Something that our own file has no words for."""


@dataclass(frozen=True, slots=True)
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


def places(program: str, cwd: str, environ: Mapping[str, str]) -> Sequence[tuple[str, Scope]]:
    """Name the files in which a program keeps servers, of the user and of a project."""
    home = environ.get("HOME") or os.path.expanduser("~")
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    support = os.path.join(home, "Library", "Application Support")
    desktop = os.path.join("Claude", "claude_desktop_config.json")
    code = os.path.join("Code", "User", "mcp.json")
    codex = environ.get("CODEX_HOME") or os.path.join(home, ".codex")
    names = ("opencode.json", "opencode.jsonc")
    user: dict[str, Sequence[str]] = {
        "claude-desktop": (os.path.join(support, desktop), os.path.join(config, desktop)),
        "claude-code": (os.path.join(home, ".claude.json"),),
        "vscode": (os.path.join(support, code), os.path.join(config, code)),
        "cursor": (os.path.join(home, ".cursor", "mcp.json"),),
        "codex": (os.path.join(codex, "config.toml"),),
        "gemini": (os.path.join(home, ".gemini", "settings.json"),),
        "opencode": tuple(os.path.join(config, "opencode", name) for name in names),
    }
    project: dict[str, Sequence[str]] = {
        "claude-code": (os.path.join(cwd, ".mcp.json"),),
        "vscode": (os.path.join(cwd, ".vscode", "mcp.json"),),
        "cursor": (os.path.join(cwd, ".cursor", "mcp.json"),),
        "codex": (os.path.join(cwd, ".codex", "config.toml"),),
        "gemini": (os.path.join(cwd, ".gemini", "settings.json"),),
        "opencode": tuple(os.path.join(cwd, name) for name in names),
    }
    return (
        *((path, "user") for path in user[program]),
        *((path, "project") for path in project.get(program, ())),
    )


def read_foreign(
    path: str, scope: Scope, program: str | None = None
) -> tuple[Sequence[ForeignServer], Sequence[Note]]:
    """Read the servers of a file; what cannot be taken over is told in a note."""
    found = read_config_file(path)
    if found.trouble is not None:
        return (), (Note(f"file {path}", f"skipped: {found.trouble}", "correct it"),)
    document = found.document
    dialect = _dialect(path, document, program) if is_json_object(document) else None
    if dialect is None or not is_json_object(document):
        return (), (Note(f"file {path}", "skipped: it names no servers"),)
    origin = Origin(os.path.abspath(path), scope, dialect.name)
    servers: list[ForeignServer] = []
    notes: list[Note] = []
    for name, fields in dialect.drafts(document):
        try:
            servers.append(_taken(name, fields, origin, dialect))
        except (BadRow, Unsayable) as exc:
            notes.append(Note(f"server {name!r} of {origin}", f"left out: {exc}"))
    return servers, notes


def _dialect(path: str, document: JsonObject, program: str | None) -> Dialect | None:
    if program is None:
        return dialect_of(path, document)
    if program == "opencode" and DIALECTS["opencode-v2"].speaks(document):
        return DIALECTS["opencode-v2"]
    # Where an editor asks for nothing there are no `inputs`, and it is the editor's file still.
    speaks = DIALECTS[program].speaks(document) or (program == "vscode" and "servers" in document)
    return DIALECTS[program] if speaks else None


def _taken(name: str, fields: JsonValue, origin: Origin, dialect: Dialect) -> ForeignServer:
    if not is_json_object(fields):
        raise BadRow("it is no object")
    if is_switched_off(fields):
        raise BadRow("it is switched off in its file")
    said = _translator(dialect.expansion, project_of(origin))
    ours = {key: _translated(key, value, said) for key, value in fields.items()}
    row = server_row(name, ours, replace(origin, dialect="indus"), expansion="shell")
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

    return {"editor": editor, "braces": braces, "dollar": dollar, "none": _literal}.get(
        rule, lambda text: text
    )


def _literal(text: str) -> str:
    """Accept a text that has no variable in it, in our way of writing one."""
    if _OURS.search(text):
        raise Unsayable("it has ${…} in it, which would be taken for a variable")
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
    raise Unsayable(f"it needs {what}")


def _brace_word(found: re.Match[str]) -> str:
    if found[1] == "file":
        raise Unsayable(f"it needs the content of the file {found[2]!r}")
    return f"${{{found[2]}}}"


def discover_foreign(
    programs: Iterable[str], cwd: str, environ: Mapping[str, str]
) -> tuple[Sequence[ForeignServer], Sequence[Note]]:
    """Read the servers of programs, from every file of theirs that is there."""
    servers: list[ForeignServer] = []
    notes: list[Note] = []
    for program in programs:
        for path, scope in places(program, cwd, environ):
            if os.path.isfile(path):
                found, said = read_foreign(path, scope, program)
                servers.extend(found)
                notes.extend(note for note in said if "names no servers" not in note.message)
    return servers, notes
