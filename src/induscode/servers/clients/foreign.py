"""Servers of other programs' configuration files, in our format.

Servers that our format can't express leave a note. The files of other programs stay as they are.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from indusagi.core.config_file import read_config_file
from indusagi.core.faults import Note
from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import SecretReference, SecretText, parse_secret_text
from indusagi.interop.protocol_bridge.redaction import Redaction
from induscode.servers.clients import DEFAULT_ADDRESS, config_places, is_own_row
from induscode.servers.config.dialects import detect_dialect, find_dialect
from induscode.servers.config.rows import (
    VALUE_FIELDS,
    InvalidRowError,
    Origin,
    find_project_dir,
    is_switched_off,
    parse_row,
)
from induscode.servers.config.trust import TrustStore, describe_row
from induscode.servers.config.writer import edit_own_config
from induscode.servers.plan import is_server_name, name_transport, parse_server_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.servers.config.dialects import Dialect, RawRow
    from induscode.servers.config.rows import Scope, ServerRow

_OWN_ADDRESS = f"http://{DEFAULT_ADDRESS}/mcp"
_TEXTS = ("command", "url", "cwd", "proxy")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_BARE = re.compile(rf"(?<!\$)\$({_NAME})")
_EDITOR = re.compile(r"\$\{([A-Za-z]+)(?::([^}]*))?\}")
_BRACES = re.compile(r"\{(env|file):([^}]*)\}")


class UntranslatableError(ValueError):
    """Our format can't express a value."""


@record
class ForeignServer:
    """A server from another program's configuration."""

    row: ServerRow
    """The row in our format."""
    fields: JsonObject
    origin: Origin


def read_foreign(
    path: str, scope: Scope, cwd: str, program: str | None = None
) -> tuple[Sequence[ForeignServer], Sequence[Note]]:
    """Read the servers of a file that apply to `cwd`, with a note for each one skipped."""
    content = read_config_file(path)
    if content.trouble is not None:
        return (), (Note(f"file {path}", f"skipped: {content.trouble}", "correct it"),)
    document = content.document
    dialect: Dialect | None = None
    if is_json_object(document):
        dialect = detect_dialect(path, document) if program is None else find_dialect(program, document)
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
        if is_own_row(draft.fields, _OWN_ADDRESS, draft.name):
            notes.append(Note(f"server {draft.name!r} of {origin}", "left out: it's this gateway itself"))
            continue
        try:
            servers.append(_translate_server(draft.name, draft.fields, origin, dialect))
        except (InvalidRowError, UntranslatableError) as exc:
            notes.append(Note(f"server {draft.name!r} of {origin}", f"left out: {exc}"))
    for project, number in elsewhere.items():
        count = "1 server is" if number == 1 else f"{number} servers are"
        remedy = f"indus mcp import -C {quote(project)}"
        notes.append(Note(f"project {project} of {origin}", f"left out: {count} for it", remedy))
    return servers, notes


def _is_for(draft: RawRow, cwd: str) -> bool:
    """Return whether a server applies to a directory. Claude Code stores servers by repository root."""
    if draft.project is None:
        return True
    wanted, folder = os.path.realpath(draft.project), os.path.realpath(cwd)
    while wanted != folder:
        above = os.path.dirname(folder)
        if above == folder or os.path.lexists(os.path.join(folder, ".git")):
            return False
        folder = above
    return True


def _translate_server(name: str, fields: JsonValue, origin: Origin, dialect: Dialect) -> ForeignServer:
    if not is_json_object(fields):
        raise InvalidRowError("it is not an object")
    if is_switched_off(fields):
        raise InvalidRowError("it is switched off in its file")
    rule, folder = dialect.expansion, find_project_dir(origin)
    ours: JsonObject = {}
    for key, value in fields.items():
        if key in _TEXTS:
            ours[key] = _translate_variables(value, rule, folder)
        elif key == "args" and isinstance(value, list):
            ours[key] = [_translate_variables(item, rule, folder) for item in value]
        elif key in VALUE_FIELDS and is_json_object(value):
            ours[key] = {part: _translate_variables(item, rule, folder) for part, item in value.items()}
        else:
            ours[key] = value
    row = parse_row(name, ours, replace(origin, dialect="indus"), expansion="shell")
    return ForeignServer(row, ours, origin)


def _translate_variables(value: JsonValue, rule: str, folder: str) -> JsonValue:
    """Translate the variables in a string from the syntax `rule` into ours. References to secrets stay."""
    if not isinstance(value, str):
        return value
    text = parse_secret_text(value)
    if isinstance(text, SecretText):
        return "".join(_keep_part(part, rule, folder) for part in text.parts)
    if rule in {"braces", "secrets"} and "${" in value:
        raise UntranslatableError("it has ${…} in it, which would be taken for a variable")
    if rule == "dollar":
        return _BARE.sub(r"${\1}", value)
    if rule == "editor":
        return _EDITOR.sub(lambda match: _translate_editor_variable(match[1], match[2], folder), value)
    if rule == "braces":
        file = next((match[2] for match in _BRACES.finditer(value) if match[1] == "file"), None)
        if file is not None:
            raise UntranslatableError(f"it needs the content of the file {file!r}")
        return _BRACES.sub(r"${\2}", value)
    return value


def _keep_part(part: str | SecretReference, rule: str, folder: str) -> str:
    if isinstance(part, str):
        return str(_translate_variables(part, rule, folder))
    if part.kind == "file" and not part.name.startswith(("/", "~")):
        raise UntranslatableError(f"it needs the file {part.name!r}, relative to its own: write the full path")
    return part.written


def _translate_editor_variable(kind: str, name: str | None, folder: str) -> str:
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


def discover_foreign(
    programs: Iterable[str], cwd: str, environ: Mapping[str, str]
) -> tuple[Sequence[ForeignServer], Sequence[Note]]:
    """Read the servers of these programs from all their existing files."""
    servers: list[ForeignServer] = []
    notes: list[Note] = []
    for program in programs:
        for path, scope in config_places(program, cwd, environ):
            if os.path.isfile(path):
                more, remarks = read_foreign(path, scope, cwd, program)
                servers.extend(more)
                notes.extend(note for note in remarks if "names no servers" not in note.message)
    return servers, notes


# -- candidates -------------------------------------------------------------------------------


@record
class Candidate:
    """A server we might copy."""

    server: ForeignServer
    conflict: str
    """Why we won't copy it, or empty."""

    @property
    def secrets(self) -> int:
        """The number of literal secrets in its variables and headers."""
        known = Redaction([self.server.row.config])
        named = (self.server.fields.get(key) for key in VALUE_FIELDS)
        values = [value for part in named if isinstance(part, dict) for value in part.values()]
        return sum(isinstance(value, str) and "${" not in value and known.holds_secret(value) for value in values)

    def as_json(self) -> JsonObject:
        """Return the facts for `--json`."""
        return {
            "name": self.server.row.id,
            "source": self.server.origin.dialect,
            "file": self.server.origin.file,
            "scope": self.server.origin.scope,
            "transport": name_transport(self.server.row.config),
            "secrets": self.secrets,
            "conflict": self.conflict,
        }


def compare_servers(servers: Iterable[ForeignServer], ours: Mapping[str, JsonObject]) -> list[Candidate]:
    """Check servers against ours and each other. The first one of a name wins."""
    taken: dict[str, JsonObject] = {
        name: {key: value for key, value in row.items() if key != "name"} for name, row in ours.items()
    }
    candidates: list[Candidate] = []
    for server in servers:
        known = taken.get(server.row.id)
        if not is_server_name(server.row.id):
            conflict = "its name cannot be used here"
        elif known is None:
            conflict = ""
            taken[server.row.id] = server.fields
        elif compact_json(known, sort_keys=True) == compact_json(server.fields, sort_keys=True):
            conflict = "there already"
        else:
            conflict = "another of this name is there"
        candidates.append(Candidate(server, conflict))
    return candidates


def copy_servers(path: str, scope: Scope, servers: Sequence[ForeignServer]) -> Sequence[ServerRow]:
    """Copy servers into one of our files, and return the new rows. Blocks; raises like `edit_own_config`."""
    rows = [parse_server_row(server.row.id, server.fields, path, scope) for server in servers]
    with edit_own_config(path, private=scope == "user") as config:
        # Another process may have just added a server of the same name.
        new = [row for row in rows if row.id not in config.rows()]
        for row, server in zip(rows, servers, strict=True):
            if row in new:
                config.put(row.id, server.fields)
    for row in new if scope == "project" else ():
        TrustStore().approve(row, describe_row(row).digest)
    return new
