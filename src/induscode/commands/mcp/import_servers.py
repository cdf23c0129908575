"""`indus mcp import`: copies servers that other programs are configured with into our own file.

A file of the user's is the user's word. One that came with the project is not: each of its servers
is shown whole, and copied only if somebody says yes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import click

from induscode.clients.places import PROGRAMS
from induscode.commands.mcp.add import consent, is_server_name, parse_server_row
from induscode.commands.support.foreign import discover_foreign, read_foreign
from induscode.commands.support.output import as_json, can_ask_user, confirm, print_notes, print_table, write_json
from induscode.commands.support.servers import scope_option, transport_of
from induscode.deck.mcp.config.trust import TrustStore
from induscode.deck.mcp.config.writer import edit_own_config, own_config_path, read_own_config
from induscode.deck.mcp.drift import same_json
from induscode.deck.mcp.redaction import Redaction
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.core.notes import Note
    from induscode.commands.support.foreign import ForeignServer
    from induscode.deck.mcp.config.rows import Scope


@dataclass(slots=True)
class _Candidate:
    """A server that could be copied."""

    server: ForeignServer
    conflict: str
    """Why it is not: empty if nothing speaks against it."""

    @property
    def secrets(self) -> int:
        """How many values of it are secrets that stand in its file."""
        known = Redaction([self.server.row.config])
        named = (self.server.fields.get(key) for key in ("env", "environment", "headers"))
        values = [one for part in named if isinstance(part, dict) for one in part.values()]
        return sum(isinstance(one, str) and "${" not in one and known.holds_secret(one) for one in values)

    def as_json(self) -> JsonObject:
        return {
            "name": self.server.name,
            "source": self.server.origin.dialect,
            "file": self.server.origin.file,
            "scope": self.server.origin.scope,
            "transport": transport_of(self.server.row.config),
            "secrets": self.secrets,
            "conflict": self.conflict,
        }


@flags("--cwd")
@click.command("import")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="PROGRAM|FILE",
    help=f"One of {', '.join(PROGRAMS)}, or a file; all of them if none is given.",
)
@click.option("--dry-run", is_flag=True, help="Show what there is, and write nothing.")
@click.option("--yes", is_flag=True, help="Copy servers that the project brings, unasked.")
@scope_option
@as_json
@click.pass_context
def command(
    context: click.Context,
    sources: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
    scope: str | None,
    as_json: bool,
    **_: object,
) -> int:
    """Copy servers that other programs are configured with into our own file."""
    cwd = read_invocation(context).cwd
    whose = cast("Scope", scope or "user")
    path = own_config_path(whose, cwd)
    servers, notes = _found(context, sources, cwd)
    print_notes(notes)
    candidates = _compared(servers, read_own_config(path).rows())
    if as_json:
        write_json({"file": path, "servers": [one.as_json() for one in candidates]})
    else:
        _show(candidates)
    if dry_run:
        return 0
    wanted = [one.server for one in candidates if not one.conflict and _agreed(one.server, yes=yes)]
    if wanted:
        _copied(path, whose, wanted, quiet=as_json)
    return 0


def _found(context: click.Context, sources: Sequence[str], cwd: str) -> tuple[Sequence[ForeignServer], Sequence[Note]]:
    programs = [one for one in sources if one in PROGRAMS] if sources else PROGRAMS
    servers, notes = discover_foreign(programs, cwd, os.environ)
    found, told = list(servers), list(notes)
    for source in sources:
        if source in PROGRAMS:
            continue
        path = os.path.join(cwd, os.path.expanduser(source))
        if not os.path.isfile(path):
            known = ", ".join(PROGRAMS)
            said = f"--from {source!r} is neither a file nor one of {known}"
            raise click.UsageError(said, context)
        more, said_of = read_foreign(path, "given", cwd)
        found.extend(more)
        told.extend(said_of)
    return found, told


def _compared(servers: Iterable[ForeignServer], ours: Mapping[str, JsonObject]) -> list[_Candidate]:
    """Find out which servers are new; of two that differ the first counts."""
    taken: dict[str, JsonObject] = {
        name: {key: value for key, value in row.items() if key != "name"} for name, row in ours.items()
    }
    found: list[_Candidate] = []
    for server in servers:
        known = taken.get(server.name)
        if not is_server_name(server.name):
            conflict = "its name cannot be used here"
        elif known is None:
            conflict = ""
            taken[server.name] = server.fields
        elif same_json(known, server.fields):
            conflict = "there already"
        else:
            conflict = "another of this name is there"
        found.append(_Candidate(server, conflict))
    return found


def _show(candidates: Sequence[_Candidate]) -> None:
    if not candidates:
        print_line("No servers were found.")
        return
    rows = [
        (
            one.server.name,
            one.server.origin.dialect,
            transport_of(one.server.row.config),
            one.secrets,
            one.conflict or "-",
            one.server.origin.file,
        )
        for one in candidates
    ]
    print_table(("NAME", "SOURCE", "TRANSPORT", "SECRETS", "CONFLICT", "FILE"), rows)


def _agreed(server: ForeignServer, *, yes: bool) -> bool:
    """Ask about a server that came with the project."""
    if server.origin.scope != "project" or yes:
        return True
    if not can_ask_user():
        said = "not copied: it came with the project, and nobody is there to be asked"
        print_status(f"server {server.name!r} of {server.origin}: {said} (--yes copies it)")
        return False
    question = TrustStore().question(server.row)
    print_line(f"Server {question.server} of {question.file}")
    for line in (*question.lines, *(f"WARNING: {one}" for one in question.warnings)):
        print_line(f"  {line}")
    return confirm(f"Copy server {question.server}?")


def _copied(path: str, whose: Scope, servers: Sequence[ForeignServer], *, quiet: bool) -> None:
    rows = {one.name: parse_server_row(one.name, one.fields, path, whose) for one in servers}
    with edit_own_config(path, private=whose == "user") as config:
        # Somebody may have added one of the same name meanwhile.
        new = [server for server in servers if server.name not in config.rows()]
        for server in new:
            config.put(server.name, server.fields)
    for server in new:
        if not quiet:
            print_line(f"Added server {server.name!r} to {path}")
        if whose == "project":
            consent(rows[server.name])
