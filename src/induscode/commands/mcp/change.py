"""`indus mcp remove`, `enable` and `disable`: changes to a server in one of our own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from induscode.commands.support.names import complete_server
from induscode.commands.support.servers import own_place_of, scope_option
from induscode.deck.mcp.config.rows import is_switched_off
from induscode.deck.mcp.config.writer import change_row, edit_own_config
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_line

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject


@flags("--cwd")
@click.command("remove")
@click.argument("name", shell_complete=complete_server)
@scope_option
@click.pass_context
def remove(context: click.Context, name: str, *, scope: str | None, **_: object) -> int:
    """Take the server NAME out of our file, and forget the consent to it."""
    from induscode.deck.mcp.config.trust import TrustStore  # noqa: PLC0415 — for servers of a project

    path, whose = own_place_of(read_invocation(context).cwd, name, scope)
    with edit_own_config(path, private=whose == "user") as config:
        config.remove(name)
    if whose == "project":
        TrustStore().revoke(path, name)
    print_line(f"Removed server {name!r} from {path}")
    return 0


@flags("--cwd")
@click.command("enable")
@click.argument("name", shell_complete=complete_server)
@scope_option
@click.pass_context
def enable(context: click.Context, name: str, *, scope: str | None, **_: object) -> int:
    """Switch the server NAME on."""
    return _switched(context, name, scope, on=True)


@flags("--cwd")
@click.command("disable")
@click.argument("name", shell_complete=complete_server)
@scope_option
@click.pass_context
def disable(context: click.Context, name: str, *, scope: str | None, **_: object) -> int:
    """Switch the server NAME off; its row stays."""
    return _switched(context, name, scope, on=False)


def _switched(context: click.Context, name: str, scope: str | None, *, on: bool) -> int:
    path, whose = own_place_of(read_invocation(context).cwd, name, scope)

    def switch(row: JsonObject) -> JsonObject:
        if is_switched_off(row) is not on:
            return row
        kept = {key: value for key, value in row.items() if key not in {"enabled", "disabled"}}
        return kept if on else {**kept, "enabled": False}

    change_row(path, name, switch, private=whose == "user")
    print_line(f"Server {name!r} of {path} is switched {'on' if on else 'off'}")
    return 0
