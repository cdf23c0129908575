"""`indus serve` and `indus ui`: serve the deck and all configured servers as one MCP server, the latter with a page.

Standard output carries only the protocol; status lines go to standard error.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
from induscode.cli.listing import Cell, Listing
from induscode.cli.output import as_json, build_unknown_name
from induscode.gateway.options import (
    CONNECTIONS,
    REQUESTS,
    REQUESTS_PER_TOKEN,
    SERVE_FLAGS,
    SESSIONS,
    ServeOptions,
    read_serve_options,
)
from induscode.launch.options import GroupedCommand, ProfileChoice, add_flags, define_command, flags, read_invocation
from induscode.servers.clients import CLIENTS

if TYPE_CHECKING:
    from induscode.servers.clients.install import FoundClient


@flags(*("--tools", "--mcp", "--no-mcp", "--no-addons", "--allow", "--approval", "--sandbox", "--web-allow", "--cwd"))
@flags("--model", "--base-url", "--code", "--flow")
@add_flags(SERVE_FLAGS)
@click.command("serve", cls=GroupedCommand)
@click.pass_context
def command(context: click.Context, **_: object) -> int:
    """Serve the native tools and the tools of all configured servers as one MCP server.

    Trust and pins apply as in every command. Reloads changed configuration files (at once after SIGHUP). SIGTERM and
    the end of standard input stop it with exit code 0.
    """
    invocation = read_invocation(context)
    options = read_serve_options(context, invocation)
    if any(context.params[key] for key in ("print_config", "install", "uninstall")):
        from induscode.gateway.client_config import change_entry  # noqa: PLC0415 — for these flags

        return change_entry(context, options)
    if context.params["dry_run"]:
        from induscode.gateway.dry_run import show_views  # noqa: PLC0415 — for this flag

        return show_views(invocation, options)
    from induscode.gateway.run import run_serve  # noqa: PLC0415 — brings the bridge

    return run_serve(invocation, options)


# -- indus connect ----------------------------------------------------------------------------


@click.command("connect", context_settings={"ignore_unknown_options": True})
@click.argument("client", required=False)
@click.argument("serve_flags", nargs=-1, metavar="[FLAGS OF SERVE]…", type=click.UNPROCESSED)
@click.option("--dry-run", is_flag=True, help="Show the change, and write nothing.")
@click.option("--remove", is_flag=True, help="Disconnect: remove the entry again.")
@as_json
@click.pass_context
def connect(
    context: click.Context,
    client: str | None,
    serve_flags: tuple[str, ...],
    *,
    dry_run: bool,
    remove: bool,
    as_json: bool,
) -> int:
    """Connect CLIENT: add one entry for all your servers to its own file; a copy is kept.

    Without CLIENT, list the clients on this machine. Flags of indus serve go into the entry: indus connect claude
    --profile coding. It's the same as indus serve --install CLIENT.
    """
    if client is None:
        if dry_run or remove:
            raise click.UsageError(f"Name the client: {', '.join(CLIENTS)}")
        return _list_clients(as_json=as_json)
    if as_json:
        raise click.UsageError("--json lists clients: leave out CLIENT")
    if client not in CLIENTS:
        raise build_unknown_name(f"There is no client {client!r} (there are: {', '.join(CLIENTS)})", client, [*CLIENTS])
    words = ["--uninstall" if remove else "--install", client, *(["--dry-run"] if dry_run else []), *serve_flags]
    with command.make_context("serve", words, parent=context.parent) as serving:
        return command.invoke(serving)


def _list_clients(*, as_json: bool) -> int:
    from induscode.servers.clients.install import find_clients  # noqa: PLC0415 — for this list

    def format_cells(one: FoundClient) -> Sequence[object]:
        hint = "" if one.entry else f"indus connect {one.name}"
        state = Cell("connected", "green") if one.entry else "not connected"
        return one.name, state, hint or f"as {one.entry!r} in {one.path}"

    return Listing(
        "clients",
        find_clients(os.environ),
        ("CLIENT", "STATE", "DETAILS"),
        format_cells,
        to_json=lambda one: {"name": one.name, "title": one.client.title, "file": one.path, "entry": one.entry},
        empty=f"No client found on this machine. indus connect takes: {', '.join(CLIENTS)}",
    ).show(as_json=as_json)


# -- indus ui ---------------------------------------------------------------------------------------


@define_command("ui", "--mcp", "--no-mcp", "--tools", "--no-tools", "--no-addons", "--allow", "--cwd")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="The port; a free one by default.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--show-token", "shows_token", is_flag=True, help="Print the address and token for MCP clients, too.")
@click.option("--read-only", is_flag=True, help="For looking: nothing can be called, started or approved.")
@click.option(
    "--profile", type=ProfileChoice(), default="read-only", show_default=True, help="The native tools that are shown."
)
def ui(context: click.Context, *, port: int, no_browser: bool, shows_token: bool, read_only: bool, profile: str) -> int:
    """Show servers, tools, changed definitions, calls and the ledger on a page in the browser, until Ctrl-C.

    The page is served on 127.0.0.1 and opens with the address that is printed. MCP clients can use the same address
    with the path /mcp, as with indus serve --http, and the token of --show-token.
    """
    from induscode.gateway.run import run_serve  # noqa: PLC0415 — imports the bridge

    settings = HttpSettings(
        port=port,
        sessions=SESSIONS,
        streams=SESSIONS,
        connections=CONNECTIONS,
        requests=REQUESTS,
        requests_each=REQUESTS_PER_TOKEN,
    )
    options = ServeOptions(
        profile=profile,
        settings=settings,
        page="read-only" if read_only else "full",
        opens_browser=not no_browser,
        is_ui=True,
        shows_token=shows_token,
    )
    return run_serve(read_invocation(context), options)
