"""`indus mcp import`: copies servers from other programs' configuration into our own file.

Servers from the user's files are copied as they are. Those from a project's file are shown in full and need a yes.
Servers that our format can't express leave a note.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import anyio
import click

from indusagi.core.text import escape_unseen
from induscode.cli.dialog import Choice, Question
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, ask_consent, can_ask_user, print_notes
from induscode.cli.terminal import is_interactive, print_line, print_status
from induscode.commands.mcp.configure import ask_to_store, keep_apart, store_option
from induscode.launch.options import define_command, read_invocation
from induscode.servers.clients import PROGRAMS
from induscode.servers.clients.foreign import compare_servers, copy_servers, discover_foreign, read_foreign
from induscode.servers.config.trust import describe_row
from induscode.servers.config.writer import own_config_path, read_own_config
from induscode.servers.plan import has_no_sandbox, scope_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.servers.clients.foreign import ForeignServer
    from induscode.servers.config.rows import Scope


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
    candidates = compare_servers(servers, read_own_config(path).rows())
    rows = [candidate.as_json() for candidate in candidates]
    heads = [
        head
        for head in ("NAME", "SOURCE", "TRANSPORT", "SECRETS", "CONFLICT", "FILE")
        if head not in {"SECRETS", "CONFLICT"} or any(row[head.lower()] for row in rows)
    ]
    Listing(
        "servers",
        rows,
        heads,
        lambda row: ["-" if row[head.lower()] == "" else row[head.lower()] for head in heads],
        before={"file": path},
        empty="No servers were found.",
    ).show(as_json=as_json)
    if dry_run:
        return 0
    wanted = [candidate.server for candidate in candidates if not candidate.conflict]
    if wanted and not yes and not as_json and is_interactive():
        wanted = _choose_servers(wanted)
    else:
        wanted = [server for server in wanted if _ask_copy(server, yes=yes)]
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


def _choose_servers(servers: Sequence[ForeignServer]) -> Sequence[ForeignServer]:
    """Have the user mark the servers to copy; those that come with the project are shown in full, and not marked."""
    from induscode.frontends.terminal.plain import ask_once  # noqa: PLC0415 — imports prompt_toolkit

    keyed = {str(number): server for number, server in enumerate(servers, 1)}
    theirs = [server for server in servers if server.origin.scope == "project"]
    consents = [describe_row(server.row) for server in theirs]
    question = Question(
        title="Copy which servers?",
        lines=tuple(escape_unseen(line) for one in consents for line in (one.heading, *one.details)),
        choices=tuple(Choice(key=key, label=escape_unseen(server.row.id)) for key, server in keyed.items()),
        marks=True,
        marked=tuple(key for key, server in keyed.items() if server not in theirs),
    )
    reply = anyio.run(ask_once, question)
    return [server for key, server in keyed.items() if key in reply.marked]


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
    new = copy_servers(path, whose, servers)
    for row in () if quiet else new:
        print_line(f"Added server {row.id!r} to {path}")
        if whose == "project":
            print_line(f"You have consented to {row.id!r} as it is; other users are asked: indus mcp trust")
    bare = [row.id for row in new if has_no_sandbox(row.config)]
    if bare and not quiet:
        print_line(f"Without a sandbox: {', '.join(bare)}. To see which fits: indus mcp doctor NAME --sandbox")
