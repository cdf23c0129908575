"""`indus prompts`: lists server prompts and gets their messages.

Lists come from the ledger. Servers that the ledger doesn't know are started once.
"""

from __future__ import annotations

import click

from induscode.cli.output import as_json
from induscode.commands.groups import CommandGroup, LazyCommand, complete_server, no_check
from induscode.commands.resources import output_option
from induscode.launch.options import flags

_HERE = "induscode.commands.prompts"


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the prompts of servers", _HERE, "list_"),
        "get": LazyCommand("get the messages of a prompt", _HERE, "get"),
    },
    default="list",
)
def command() -> None:
    """List the prompts of servers, and get their messages."""


@flags("--mcp", "--cwd")
@click.command("list")
@click.argument("server", required=False, shell_complete=complete_server)
@as_json
@no_check
@click.pass_context
def list_(context: click.Context, *, as_json: bool, no_check: bool, **_: object) -> int:
    """List the prompts of SERVER, or of all servers, as `/server:prompt`."""
    from induscode.boot.content import print_items  # noqa: PLC0415 — imports the bridge

    return print_items(context, ("prompt",), as_json=as_json, no_check=no_check)


@flags("--mcp", "--cwd")
@click.command("get")
@click.argument("prompt", metavar="/SERVER:PROMPT")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]…")
@output_option
@click.pass_context
def get(context: click.Context, prompt: str, arguments: tuple[str, ...], *, output: str, **_: object) -> int:
    """Get the messages of a prompt: the same as `indus call /SERVER:PROMPT KEY=VALUE`."""
    from induscode.commands.call import call_content  # noqa: PLC0415 — imports the bridge

    return call_content(context, prompt if prompt.startswith("/") else f"/{prompt}", arguments, {}, output, None)
