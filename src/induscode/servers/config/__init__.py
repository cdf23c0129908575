"""Configuration files: the user's and the project's servers, with notes about unusable entries."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from indusagi.core.app_dirs import config_home
from indusagi.core.config_file import read_config_file
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import ServerConfig
from induscode.servers.config.dialects import Dialect, RawRow, UnresolvedVariableError, detect_dialect
from induscode.servers.config.rows import InvalidRowError, Origin, Scope, ServerRow, is_switched_off, parse_row

_SWITCHED_OFF = "switched off in its file"
_EXAMPLE = 'it needs {"mcpServers": {"NAME": {"command": "…"}}}, see docs/guides/add-servers.md'


@record
class DiscoveredConfig:
    """The servers of several files, each id once, with notes about skipped ones."""

    rows: Sequence[ServerRow] = ()
    notes: Sequence[Note] = ()
    files: Sequence[str] = ()
    """The existing files, in reading order."""


def load_mcp_config(path_or_cwd: str | os.PathLike[str]) -> list[ServerConfig]:
    """Read one file, or the conventional files of a directory in order.

    Calling this implies consent to their content: variables are expanded. Skips unusable servers, which
    `discover_mcp_config` reports.
    """
    target = os.fspath(path_or_cwd)
    if os.path.isfile(target):
        places: Iterable[tuple[str, Scope]] = [(target, "given")]
    else:
        places = list_config_paths(target)
    return [config for path, scope in places for config in parse_config_file(path, scope)]


def parse_config_file(path: str | os.PathLike[str], scope: Scope = "given") -> list[ServerConfig]:
    """Read the servers of one file, with variables expanded.

    Skips invalid rows and ones with unset variables; an unreadable file has no servers. `discover_mcp_config` reports
    the reasons.
    """
    configs: list[ServerConfig] = []
    for row in read_rows(os.fspath(path), scope)[0]:
        try:
            configs.append(row.resolve(os.environ))
        except UnresolvedVariableError:
            continue
    return configs


def server_config_from_row(row: JsonObject) -> ServerConfig | None:
    """Parse a server from a row with a `name`, or return `None` if it's unusable."""
    name = row.get("name")
    origin = Origin("a row", "given", "servers")
    if not isinstance(name, str) or is_switched_off(row):
        return None
    try:
        return parse_row(name, row, origin).resolve(os.environ)
    except (InvalidRowError, UnresolvedVariableError):
        return None


def discover_mcp_config(path_or_cwd: str | os.PathLike[str], *, switched_on: Collection[str] = ()) -> DiscoveredConfig:
    """Read one file, or all conventional files of a directory, and choose one row per id.

    Within a file, the last row of an id wins. Across files, the user's take precedence over the project's, and among
    the user's, the first in conventional order wins. Rows in `switched_on` count even if they're switched off.
    """
    target = os.fspath(path_or_cwd)
    if os.path.isfile(target):
        return merge_config_files([(target, "given")], switched_on=switched_on)
    return merge_config_files(list_all_paths(target), switched_on=switched_on)


def list_config_paths(cwd: str) -> Sequence[tuple[str, Scope]]:
    """List the conventional files and their scopes, in order.

    The user's file follows the XDG specification: https://specifications.freedesktop.org/basedir-spec/latest/. Older
    versions wrote it into `indusvx` there.
    """
    home = os.environ.get("HOME") or os.path.expanduser("~")
    legacy = os.path.join(home, ".indusvx", "agent")
    return (
        (os.path.join(cwd, ".indusvx", "mcp.json"), "project"),
        *((os.path.join(config_home(), name, "mcp.json"), "user") for name in ("indus", "indusvx")),
        (os.path.join(legacy, "mcp.json"), "user"),
        (os.path.join(legacy, "mcp-servers.json"), "user"),
    )


def list_all_paths(folder: str) -> Sequence[tuple[str, Scope]]:
    """List every file that could configure servers in a directory, existing or not."""
    return (*list_config_paths(folder), (os.path.join(folder, ".mcp.json"), "project"))


def merge_config_files(paths: Iterable[tuple[str, Scope]], *, switched_on: Collection[str] = ()) -> DiscoveredConfig:
    """Read files and choose one row per id."""
    notes: list[Note] = []
    files: list[str] = []
    kept: dict[str, ServerRow] = {}
    for path, scope in paths:
        if not os.path.lexists(path):
            continue
        files.append(path)
        rows, remarks = read_rows(path, scope, switched_on=switched_on)
        notes.extend(remarks)
        for row in rows:
            rival = kept.setdefault(row.id, row)
            # The user's files take precedence over the project's.
            winner, loser = (row, rival) if rival.origin.scope == "project" != row.origin.scope else (rival, row)
            kept[row.id] = winner
            if (winner.config, winner.auth) != (loser.config, loser.auth):
                reason = f"left out: {winner.origin.file} has a server of this name"
                notes.append(Note(f"server {row.id!r} of {loser.origin}", reason, "give one another name"))
    new, old = (path for path, _ in list_config_paths("")[1:3])
    if {new, old} <= {*files}:
        notes.append(
            Note(f"file {old}", "your servers are in two files, and this is the old one", f"move them to {new}")
        )
    return DiscoveredConfig(tuple(kept.values()), tuple(notes), tuple(files))


_KEYS = ("servers", "mcpServers", "mcp_servers", "mcp", "context_servers", "amp.mcpServers")
"""The keys of servers in all dialects."""


class UnusableFileError(ValueError):
    """A configuration file has no usable server. The message has the position, reason and remedy."""


def read_named_rows(path: str, *, switched_on: Collection[str] = ()) -> DiscoveredConfig:
    """Read a file the user named. Problems that are notes elsewhere are errors here.

    Raises `UnusableFileError` if it's unreadable, invalid, or has no usable server.
    """
    found = read_config_file(path)
    if found.trouble is not None:
        place = "" if found.line is None else f":{found.line}:{found.column}"
        raise UnusableFileError(f"{path}{place}: {found.trouble}; correct it")
    if not is_json_object(found.document):
        raise UnusableFileError(f"{path}:1:1: it is not an object; {_EXAMPLE}")
    trouble = find_shape_problem(found.document)
    if trouble is not None:
        raise UnusableFileError(f"{path}: {trouble}; {_EXAMPLE}")
    if detect_dialect(path, found.document) is None:
        raise UnusableFileError(f"{path}: it names no servers; {_EXAMPLE}")
    rows, notes = read_rows(path, "given", switched_on=switched_on)
    unusable = [note for note in notes if note.message.startswith("skipped: ")]
    if unusable and not rows and not any(note.message == _SWITCHED_OFF for note in notes):
        raise UnusableFileError(f"{unusable[0].owner}: {unusable[0].message}; correct it")
    return DiscoveredConfig(rows, notes, (path,))


def find_shape_problem(document: JsonObject) -> str | None:
    """Describe a servers key with a value of the wrong type, if any."""
    for key in _KEYS:
        rows = document.get(key, {})
        if not is_json_object(rows) and not (key == "servers" and isinstance(rows, list)):
            return f"{key!r} is not an object"
    return None


def read_rows(
    path: str, scope: Scope, *, switched_on: Collection[str] = ()
) -> tuple[Sequence[ServerRow], Sequence[Note]]:
    """Read the servers of one file. Invalid rows don't affect the others."""
    found = read_config_file(path)
    if found.trouble is not None:
        return (), (Note(f"file {path}", f"skipped: {found.trouble}", "correct it"),)
    notes = [Note(f"file {path}", f"the key {key!r} occurs twice; the last one counts") for key in found.repeated]
    document = found.document
    dialect = detect_dialect(path, document) if is_json_object(document) else None
    if dialect is None or not is_json_object(document):
        notes.append(Note(f"file {path}", "skipped: it names no servers", "see docs/guides/add-servers.md"))
        return (), notes
    rows: dict[str, ServerRow] = {}
    origin = Origin(os.path.abspath(path), scope, dialect.name)
    for number, raw in enumerate(dialect.read_rows(document), start=1):
        owner = f"server {raw.name!r} of {origin}" if raw.name else f"row {number} of {origin}"
        if is_json_object(raw.fields) and is_switched_off(raw.fields) and raw.name not in switched_on:
            notes.append(Note(owner, _SWITCHED_OFF))
            continue
        row = _parse_row(owner, raw, origin, dialect, notes)
        if row is None:
            continue
        if row.id in rows and rows[row.id] != row:
            notes.append(Note(f"server {row.id!r} of {origin}", "it occurs twice; the last one counts"))
        rows[row.id] = row
    return tuple(rows.values()), notes


def parse_given_rows(servers: Mapping[str, JsonObject], given_by: str) -> tuple[Sequence[ServerRow], Sequence[Note]]:
    """Parse servers supplied by an editor or program, without expanding variables. Invalid ones become notes."""
    origin = Origin(given_by, "given", "acp" if given_by == "the editor" else "rows")
    rows: list[ServerRow] = []
    notes: list[Note] = []
    for name, fields in servers.items():
        try:
            rows.append(parse_row(name, fields, origin))
        except InvalidRowError as exc:
            notes.append(Note(f"server {name!r} of {origin}", f"skipped: {exc}"))
    return rows, notes


def _parse_row(owner: str, raw: RawRow, origin: Origin, dialect: Dialect, notes: list[Note]) -> ServerRow | None:
    if not is_json_object(raw.fields) or not is_json_object(raw.written):
        notes.append(Note(owner, "skipped: it is not an object"))
        return None
    try:
        row = parse_row(raw.name, raw.fields, origin, expansion=dialect.expansion, written=raw.written)
    except InvalidRowError as exc:
        notes.append(Note(owner, f"skipped: {exc}"))
        return None
    notes.extend(Note(owner, remark) for remark in row.remarks)
    return row


def resolve_rows(
    rows: Iterable[ServerRow], environ: Mapping[str, str]
) -> tuple[Mapping[str, ServerConfig], Sequence[Note]]:
    """Resolve the variables of rows, skipping rows with unset variables with a note."""
    resolved: dict[str, ServerConfig] = {}
    notes: list[Note] = []
    for row in rows:
        try:
            resolved[row.id] = row.resolve(environ)
        except UnresolvedVariableError as exc:
            notes.append(Note(f"server {row.id!r} of {row.origin}", f"not started: {exc}"))
    return resolved, notes
