"""`indus resources` and `indus prompts`: list, read and get what servers offer besides tools.

Lists come from the ledger. Servers that the ledger doesn't know are started once.
"""

from __future__ import annotations

import click

from induscode.cli.output import as_json
from induscode.commands.groups import CommandGroup, LazyCommand, complete_server, no_check, output_option
from induscode.launch.options import flags

_server = click.argument("server", required=False, shell_complete=complete_server)
_servers = flags("--mcp", "--cwd")


@click.command(
    "resources",
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the resources and templates of servers", ":list_resources"),
        "read": LazyCommand("read a resource", ":read"),
    },
    default="list",
)
def resources() -> None:
    """List and read the resources of servers."""


@click.command(
    "prompts",
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the prompts of servers", ":list_prompts"),
        "get": LazyCommand("get the messages of a prompt", ":get"),
    },
    default="list",
)
def prompts() -> None:
    """List the prompts of servers, and get their messages."""


@_servers
@click.command("list")
@_server
@as_json
@no_check
@click.pass_context
def list_resources(context: click.Context, *, as_json: bool, no_check: bool, **_: object) -> int:
    """List the resources and templates of SERVER, or of all servers, as `@server:uri`."""
    from induscode.boot.content import print_items  # noqa: PLC0415 — imports the bridge

    return print_items(context, ("resource", "template"), as_json=as_json, no_check=no_check)


@_servers
@click.command("list")
@_server
@as_json
@no_check
@click.pass_context
def list_prompts(context: click.Context, *, as_json: bool, no_check: bool, **_: object) -> int:
    """List the prompts of SERVER, or of all servers, as `/server:prompt`."""
    from induscode.boot.content import print_items  # noqa: PLC0415 — imports the bridge

    return print_items(context, ("prompt",), as_json=as_json, no_check=no_check)


@_servers
@click.command("read")
@click.argument("resource", metavar="@SERVER:URI")
@output_option
@click.option("--save", metavar="DIR", help="Write images and other data to new files in DIR.")
@click.pass_context
def read(context: click.Context, resource: str, *, output: str, save: str | None, **_: object) -> int:
    """Read a resource: the same as `indus call @SERVER:URI`."""
    from induscode.commands.call import call_content  # noqa: PLC0415 — imports the bridge

    return call_content(context, resource if resource.startswith("@") else f"@{resource}", (), {}, output, save)


@_servers
@click.command("get")
@click.argument("prompt", metavar="/SERVER:PROMPT")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]…")
@output_option
@click.pass_context
def get(context: click.Context, prompt: str, arguments: tuple[str, ...], *, output: str, **_: object) -> int:
    """Get the messages of a prompt: the same as `indus call /SERVER:PROMPT KEY=VALUE`."""
    from induscode.commands.call import call_content  # noqa: PLC0415 — imports the bridge

    return call_content(context, prompt if prompt.startswith("/") else f"/{prompt}", arguments, {}, output, None)
