"""`indus ui`: serves the gateway's page on this machine and opens it in a browser."""

from __future__ import annotations

import click

from induscode.gateway.flags import CONNECTIONS, REQUESTS, REQUESTS_PER_TOKEN, SESSIONS
from induscode.gateway.options import ServeOptions
from induscode.launch.options import ProfileChoice, flags, read_invocation


@flags("--mcp", "--no-mcp", "--tools", "--no-tools", "--no-addons", "--allow", "--cwd")
@click.command("ui")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="The port; a free one by default.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--read-only", is_flag=True, help="For looking: nothing can be called, started or approved.")
@click.option(
    "--profile", type=ProfileChoice(), default="read-only", show_default=True, help="The native tools that are shown."
)
@click.pass_context
def command(context: click.Context, *, port: int, no_browser: bool, read_only: bool, profile: str, **_: object) -> int:
    """Show servers, tools, changed definitions, calls and the ledger on a page in the browser, until Ctrl-C.

    The page is served on 127.0.0.1 and opens with the address that is printed. MCP clients can use the same address
    with the path /mcp, as with indus serve --http.
    """
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings  # noqa: PLC0415 — imports the bridge
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
