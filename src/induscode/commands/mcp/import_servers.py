"""`indus mcp import`: copies servers from other programs' configuration into our own file.

Servers from the user's files are copied as they are. Those from a project's file are shown in full and need a yes.
Servers that our format can't express leave a note.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, cast

import click

from indusagi.core.config_file import read_config_file
from indusagi.core.faults import Note
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import SecretReference, SecretText, parse_secret_text
from indusagi.interop.protocol_bridge.redaction import Redaction
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, ask_consent, can_ask_user, print_notes
from induscode.cli.terminal import print_line, print_status
from induscode.commands.mcp.configure import ask_to_store, give_consent, keep_apart, store_option
from induscode.deck.mcp.drift import same_json
from induscode.launch.options import define_command, read_invocation
from induscode.servers.clients import DEFAULT_ADDRESS, PROGRAMS, config_places, is_own_row
from induscode.servers.config.dialects import detect_dialect, find_dialect
from induscode.servers.config.rows import InvalidRowError, Origin, find_project_dir, is_switched_off, parse_row
from induscode.servers.config.trust import describe_row
from induscode.servers.config.writer import edit_own_config, own_config_path, read_own_config
from induscode.servers.plan import has_no_sandbox, is_server_name, name_transport, parse_server_row, scope_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.servers.config.dialects import Dialect, RawRow
    from induscode.servers.config.rows import Scope, ServerRow

_OWN_ADDRESS = f"http://{DEFAULT_ADDRESS}/mcp"
_TEXTS = ("command", "url", "cwd", "proxy")
_MAPS = ("env", "environment", "headers", "http_headers")
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
        elif key in _MAPS and is_json_object(value):
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


# -- the command ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Candidate:
    """A server we might copy."""

    server: ForeignServer
    conflict: str
    """Why we won't copy it, or empty."""

    @property
    def secrets(self) -> int:
        """The number of literal secrets in its variables and headers."""
        known = Redaction([self.server.row.config])
        named = (self.server.fields.get(key) for key in ("env", "environment", "headers"))
        values = [value for part in named if isinstance(part, dict) for value in part.values()]
        return sum(isinstance(value, str) and "${" not in value and known.holds_secret(value) for value in values)

    def as_json(self) -> JsonObject:
        return {
            "name": self.server.row.id,
            "source": self.server.origin.dialect,
            "file": self.server.origin.file,
            "scope": self.server.origin.scope,
            "transport": name_transport(self.server.row.config),
            "secrets": self.secrets,
            "conflict": self.conflict,
        }


@define_command("import", "--cwd")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="PROGRAM|FILE",
    help=f"One of {', '.join(PROGRAMS)}, or a file; all of them if none is given.",
)
@click.option("--dry-run", is_flag=True, help="List the servers, and write nothing.")
@click.option("--yes", is_flag=True, help="Copy servers of the project without a question.")
@store_option
@scope_option
@as_json
def command(
    context: click.Context,
    sources: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
    stores: bool | None,
    scope: str | None,
    as_json: bool,
) -> int:
    """Copy servers from the configuration of other programs into our own file.

    The files of other programs stay as they are. Secrets in plain text go into the keyring if you agree.
    """
    cwd = read_invocation(context).cwd
    whose = cast("Scope", scope or "user")
    path = own_config_path(whose, cwd)
    programs = [source for source in sources if source in PROGRAMS] if sources else PROGRAMS
    servers, notes = discover_foreign(programs, cwd, os.environ)
    for source in sources:
        if source in PROGRAMS:
            continue
        file = os.path.join(cwd, os.path.expanduser(source))
        if not os.path.isfile(file):
            message = f"--from {source!r} is neither a file nor one of {', '.join(PROGRAMS)}"
            raise click.UsageError(message)
        more, remarks = read_foreign(file, "given", cwd)
        servers, notes = [*servers, *more], [*notes, *remarks]
    print_notes(notes)
    candidates = _compare_servers(servers, read_own_config(path).rows())
    heads = ("NAME", "SOURCE", "TRANSPORT", "SECRETS", "CONFLICT", "FILE")
    Listing(
        "servers",
        [candidate.as_json() for candidate in candidates],
        heads,
        lambda row: ["-" if row[head.lower()] == "" else row[head.lower()] for head in heads],
        before={"file": path},
        empty="No servers were found.",
    ).show(as_json=as_json)
    if dry_run:
        return 0
    wanted = [
        candidate.server for candidate in candidates if not candidate.conflict and _ask_copy(candidate.server, yes=yes)
    ]
    if wanted:
        _copy_servers(path, whose, _store_secrets(wanted, stores, quiet=as_json), quiet=as_json)
    return 0


def _store_secrets(servers: Sequence[ForeignServer], stores: bool | None, *, quiet: bool) -> Sequence[ForeignServer]:
    """Store the secrets of servers apart if the user wants that, and return the servers to copy."""
    from indusagi.interop.auth.secrets import SecretFiles  # noqa: PLC0415 — imports the keyring's code
    from induscode.servers.plain_secrets import plan_move  # noqa: PLC0415 — for servers to copy

    store = SecretFiles()
    taken = store.list_rows()
    moves = {
        server.row.id: move
        for server in servers
        if (move := plan_move(server.row.id, server.fields, taken)) is not None
    }
    if not moves or stores is False:
        return servers
    if stores is None and (quiet or not can_ask_user()):
        what = f"secrets in plain text are copied, too: {', '.join(moves)}"
        print_status(f"{what}. To keep them apart: --store-secrets, or indus secrets move NAME (--keep-plain: no note)")
        return servers
    if not stores and not ask_to_store([*moves.values()]):
        return servers
    keep_apart(store, [*moves.values()], quiet=quiet)
    files = dict.fromkeys(server.origin.file for server in servers if server.row.id in moves)
    print_status(f"the secrets are still in plain text in {', '.join(files)}, which stay as they are")
    return [
        replace(server, fields=moves[server.row.id].build_row()) if server.row.id in moves else server
        for server in servers
    ]


def _compare_servers(servers: Iterable[ForeignServer], ours: Mapping[str, JsonObject]) -> list[_Candidate]:
    """Check servers against ours and each other. The first one of a name wins."""
    taken: dict[str, JsonObject] = {
        name: {key: value for key, value in row.items() if key != "name"} for name, row in ours.items()
    }
    candidates: list[_Candidate] = []
    for server in servers:
        known = taken.get(server.row.id)
        if not is_server_name(server.row.id):
            conflict = "its name cannot be used here"
        elif known is None:
            conflict = ""
            taken[server.row.id] = server.fields
        elif same_json(known, server.fields):
            conflict = "there already"
        else:
            conflict = "another of this name is there"
        candidates.append(_Candidate(server, conflict))
    return candidates


def _ask_copy(server: ForeignServer, *, yes: bool) -> bool:
    """Ask before copying a project's server."""
    if server.origin.scope != "project" or yes:
        return True
    if not can_ask_user():
        reason = "not copied: it comes with the project, and there is no terminal for a question"
        print_status(f"server {server.row.id!r} of {server.origin}: {reason} (--yes copies it)")
        return False
    return ask_consent(describe_row(server.row), f"Copy server {server.row.id}?")


def _copy_servers(path: str, whose: Scope, servers: Sequence[ForeignServer], *, quiet: bool) -> None:
    rows = {server.row.id: parse_server_row(server.row.id, server.fields, path, whose) for server in servers}
    with edit_own_config(path, private=whose == "user") as config:
        # Another process may have just added a server of the same name.
        new = [server for server in servers if server.row.id not in config.rows()]
        for server in new:
            config.put(server.row.id, server.fields)
    for server in new:
        if not quiet:
            print_line(f"Added server {server.row.id!r} to {path}")
        if whose == "project":
            give_consent(rows[server.row.id])
    bare = [server.row.id for server in new if has_no_sandbox(server.row.config)]
    if bare and not quiet:
        print_line(f"Without a sandbox: {', '.join(bare)}. To see which fits: indus mcp doctor NAME --sandbox")
