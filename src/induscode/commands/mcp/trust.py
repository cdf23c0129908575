"""`indus mcp trust` and `untrust`: a person's word on servers that a project brings along.

One decision for each server, on all that it is; the answer is no unless somebody says yes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from induscode.commands.support.names import complete_server
from induscode.commands.support.output import can_ask_user, confirm, print_notes
from induscode.commands.support.runner import load_plan
from induscode.commands.support.servers import build_unknown_server, find_row
from induscode.deck.mcp.config.trust import TrustStore
from induscode.deck.mcp.config.writer import own_config_path
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.config.rows import ServerRow

_DECLINED = 1


@flags("--cwd")
@click.command("trust")
@click.argument("names", nargs=-1, metavar="[NAME]…", shell_complete=complete_server)
@click.option("--yes", is_flag=True, help="Say yes to the servers that are named, unasked.")
@click.pass_context
def trust(context: click.Context, names: tuple[str, ...], *, yes: bool, **_: object) -> int:
    """Consent to servers that the project brings: those named, or each that nobody consented to.

    Exit code 1 if one of them was declined.
    """
    plan = load_plan(read_invocation(context))
    rows = _asked_about(plan, names)
    if yes and not names:
        raise click.UsageError("--yes takes the names of the servers it is said to", context)
    if not rows:
        print_notes(note for note in plan.notes if note.message.startswith("skipped"))
        print_line("There is no server of this project that waits for consent.")
        return 0
    if not yes and not can_ask_user():
        waiting = " ".join(row.id for row in rows)
        said = f"Nobody is there to be asked: look at the file, then indus mcp trust --yes {waiting}"
        raise click.UsageError(said, context)
    store = TrustStore()
    declined = [row for row in rows if not _consented(store, row, yes=yes)]
    return _DECLINED if declined else 0


def _asked_about(plan: ServerPlan, names: Sequence[str]) -> list[ServerRow]:
    if not names:
        return list(plan.untrusted)
    rows = [find_row(plan, name) for name in dict.fromkeys(names)]
    for row in rows:
        if row.origin.scope != "project":
            print_line(f"{row.id}: stands in {row.origin.file}, which is yours: it needs no consent")
    return [row for row in rows if row.origin.scope == "project"]


def _consented(store: TrustStore, row: ServerRow, *, yes: bool) -> bool:
    """Show all that a server is, and take the answer for exactly that."""
    question = store.question(row)
    print_line(f"Server {question.server} of {question.file}")
    for line in question.lines:
        print_line(f"  {line}")
    for name in question.changed:
        print_line(f"  CHANGED since it was consented to: {name}")
    for warning in question.warnings:
        print_line(f"  WARNING: {warning}")
    if not yes and not confirm(f"Start server {question.server} from now on?"):
        print_line(f"{row.id}: not trusted")
        return False
    store.approve(row)
    print_line(f"{row.id}: trusted as it is")
    return True


@flags("--cwd")
@click.command("untrust")
@click.argument("names", nargs=-1, metavar="[NAME]…", shell_complete=complete_server)
@click.pass_context
def untrust(context: click.Context, names: tuple[str, ...], **_: object) -> int:
    """Take the consent back to the servers that are named, or to all of the project."""
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    ours = [row for row in plan.rows if row.origin.scope == "project"]
    store = TrustStore()
    # A server that stands in no file any more may still be consented to.
    files = [own_config_path("project", invocation.cwd), os.path.join(invocation.cwd, ".mcp.json")]
    for name in names or [row.id for row in ours]:
        revoked = [store.revoke(file, name) for file in files]
        if any(revoked):
            print_line(f"{name}: no longer trusted")
        elif name in {row.id for row in plan.rows}:
            print_status(f"{name}: nobody had consented to it")
        else:
            raise build_unknown_server(name, [row.id for row in ours])
    return 0
