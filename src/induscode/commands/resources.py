"""`indus resources`: lists and reads server resources.

Lists come from the ledger. Servers that the ledger doesn't know are started once.
"""

from __future__ import annotations

import click

from induscode.cli.output import as_json
from induscode.commands.groups import CommandGroup, LazyCommand, complete_server, no_check
from induscode.launch.options import flags

_HERE = "induscode.commands.resources"

output_option = click.option(
    "--output",
    type=click.Choice(("text", "json", "raw")),
    default="text",
    show_default=True,
    help="Text safe for a terminal, JSON with everything, or the texts unchanged.",
)


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the resources and templates of servers", _HERE, "list_"),
        "read": LazyCommand("read a resource", _HERE, "read"),
    },
    default="list",
)
def command() -> None:
    """List and read the resources of servers."""


@flags("--mcp", "--cwd")
@click.command("list")
@click.argument("server", required=False, shell_complete=complete_server)
@as_json
@no_check
@click.pass_context
def list_(context: click.Context, *, as_json: bool, no_check: bool, **_: object) -> int:
    """List the resources and templates of SERVER, or of all servers, as `@server:uri`."""
    from induscode.boot.content import print_items  # noqa: PLC0415 — imports the bridge

    return print_items(context, ("resource", "template"), as_json=as_json, no_check=no_check)


@flags("--mcp", "--cwd")
@click.command("read")
@click.argument("resource", metavar="@SERVER:URI")
@output_option
@click.option("--save", metavar="DIR", help="Write images and other data to new files in DIR.")
@click.pass_context
def read(context: click.Context, resource: str, *, output: str, save: str | None, **_: object) -> int:
    """Read a resource: the same as `indus call @SERVER:URI`."""
    from induscode.commands.call import call_content  # noqa: PLC0415 — imports the bridge

    return call_content(context, resource if resource.startswith("@") else f"@{resource}", (), {}, output, save)
