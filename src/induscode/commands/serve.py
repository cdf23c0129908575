"""`indus serve`: serves the deck and all configured servers as one MCP server.

Standard output carries only the protocol; status lines go to standard error.
"""

from __future__ import annotations

import click

from induscode.gateway.flags import SERVE_FLAGS
from induscode.gateway.options import read_serve_options
from induscode.launch.options import add_flags, flags, read_invocation


@flags(*("--tools", "--mcp", "--no-mcp", "--no-addons", "--allow", "--approval", "--sandbox", "--web-allow", "--cwd"))
@flags("--model", "--base-url", "--code")
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
