"""`indus serve` and `indus ui`: serve the deck and all configured servers as one MCP server, the latter with a page.

Standard output carries only the protocol; status lines go to standard error.
"""

from __future__ import annotations

import click

from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
from induscode.gateway.options import (
    CONNECTIONS,
    REQUESTS,
    REQUESTS_PER_TOKEN,
    SERVE_FLAGS,
    SESSIONS,
    ServeOptions,
    read_serve_options,
)
from induscode.launch.options import ProfileChoice, add_flags, define_command, flags, read_invocation


@flags(*("--tools", "--mcp", "--no-mcp", "--no-addons", "--allow", "--approval", "--sandbox", "--web-allow", "--cwd"))
@flags("--model", "--base-url", "--code", "--flow")
@add_flags(SERVE_FLAGS)
@click.command("serve")
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


# -- indus ui ---------------------------------------------------------------------------------------


@define_command("ui", "--mcp", "--no-mcp", "--tools", "--no-tools", "--no-addons", "--allow", "--cwd")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="The port; a free one by default.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--read-only", is_flag=True, help="For looking: nothing can be called, started or approved.")
@click.option(
    "--profile", type=ProfileChoice(), default="read-only", show_default=True, help="The native tools that are shown."
)
def ui(context: click.Context, *, port: int, no_browser: bool, read_only: bool, profile: str) -> int:
    """Show servers, tools, changed definitions, calls and the ledger on a page in the browser, until Ctrl-C.

    The page is served on 127.0.0.1 and opens with the address that is printed. MCP clients can use the same address
    with the path /mcp, as with indus serve --http.
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
    )
    return run_serve(read_invocation(context), options)
