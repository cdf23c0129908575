"""`indus serve`: serves the deck and all configured servers as one MCP server.

Standard output carries only the protocol; status lines go to standard error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import click

from induscode.gateway.cluster import cluster_flags, complete_cluster, parse_cluster
from induscode.gateway.options import (
    AUTH_FLAGS,
    CONNECTIONS,
    DEFAULT_ADDRESS,
    LIMIT_FLAGS,
    MOST,
    NAME,
    NAME_PATTERN,
    REQUESTS,
    REQUESTS_PER_TOKEN,
    SESSIONS,
    Names,
    PageMode,
    Schemas,
    ServeOptions,
    TaskHandling,
    auth_flags,
    check_entry_flags,
    find_named_view,
    is_given,
    limit_sessions,
    parse_auth,
    parse_settings,
    refuse_unused,
)
from induscode.launch.options import ProfileChoice, flags, read_invocation
from induscode.launch.settings import SERVE_VIEWS
from induscode.search.options import SearchMode, read_search_options
from induscode.servers.clients import CLIENT_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable


def _limit(*names: str, of: str, default: int) -> Callable[[Any], Any]:
    about = f"With --http: the most {of}; {default:,} by default."
    return click.option(*names, type=click.IntRange(1, MOST), metavar="N", help=about)


@flags(*("--tools", "--mcp", "--no-mcp", "--no-addons", "--allow", "--approval", "--sandbox", "--web-allow", "--cwd"))
@flags("--model", "--base-url", "--code")
@auth_flags
@cluster_flags
@click.command("serve")
@click.option("--stdio", is_flag=True, help="Serve the client that starts this process (the default).")
@click.option(
    "--http",
    metavar="[HOST:]PORT",
    is_flag=False,
    flag_value=DEFAULT_ADDRESS,
    help=f"Serve at an address instead; {DEFAULT_ADDRESS} if none is given, 0 for a free port.",
)
@click.option("--sse", is_flag=True, hidden=True)
@click.option("--no-token", is_flag=True, help="With --http on a loopback address: require no token.")
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="NAME:PORT",
    help="With --http: a further Host header that is accepted (repeatable).",
)
@click.option(
    "--allowed-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="With --http: an Origin header of web pages that is accepted (repeatable).",
)
@_limit("--max-sessions", "--sessions", "sessions", of="sessions at once", default=SESSIONS)
@_limit("--max-connections", "connections", of="connections at once", default=CONNECTIONS)
@_limit("--max-requests", "requests", of="requests at once", default=REQUESTS)
@_limit(
    "--max-requests-per-token",
    "requests_per_token",
    of="requests at once of one session, or of one token without sessions",
    default=REQUESTS_PER_TOKEN,
)
@click.option(
    "--profile",
    type=ProfileChoice(),
    default="read-only",
    show_default=True,
    help="Native tools: read-only ones, the coding set (which writes and runs commands), "
    "all with the app cards, or none.",
)
@click.option(
    "--schemas",
    type=click.Choice(get_args(Schemas)),
    default="raw",
    show_default=True,
    help="Tools of servers: as the server defines them (raw), or reduced to what every model provider takes (model).",
)
@click.option("--view", metavar="NAME", help="Show every client the tools of this view only (the setting serve.views).")
@click.option(
    "--names",
    type=click.Choice(get_args(Names)),
    default="server",
    show_default=True,
    help="Tools, prompts and resources of servers: named with their server, or by their own names where these are "
    "unique (plain).",
)
@click.option(
    "--tasks",
    type=click.Choice(get_args(TaskHandling)),
    default="wait",
    show_default=True,
    help="Calls that a server answers with a task only, of clients that know no tasks: wait for the result on their "
    "behalf, or let the server refuse them.",
)
@click.option(
    "--search",
    type=click.Choice(get_args(SearchMode)),
    help="List three tools by which a client finds and calls all others: always (on), never (off), or where the list "
    "would be too long (auto, the default).",
)
@click.option(
    "--always-list",
    multiple=True,
    metavar="NAME",
    help="A tool that stays listed where tools are searched; * stands for any text (repeatable).",
)
@click.option(
    "--page",
    type=click.Choice(get_args(PageMode)),
    help="With --http: the page at /ui, full (the default), for looking only, or none.",
)
@click.option("--name", default=NAME, show_default=True, help="The name it is served under.")
@click.option("--transparent", metavar="SERVER", help="Pass one server through, unchanged.")
@click.option(
    "--print-config", type=click.Choice(CLIENT_NAMES), help="Print the entry to paste into a client instead of serving."
)
@click.option(
    "--install",
    type=click.Choice(CLIENT_NAMES),
    help="Put the entry into the client's own file instead of serving; a copy is kept.",
)
@click.option(
    "--uninstall",
    type=click.Choice(CLIENT_NAMES),
    help="Remove the entry from the client's own file instead of serving; a copy is kept.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show which tools each view has, and serve nothing; with --install or --uninstall: show the change.",
)
@click.pass_context
def command(
    context: click.Context,
    *,
    stdio: bool,
    http: str | None,
    sse: bool,
    no_token: bool,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    sessions: int | None,
    connections: int | None,
    requests: int | None,
    requests_per_token: int | None,
    profile: str,
    schemas: Schemas,
    view: str | None,
    names: Names,
    tasks: TaskHandling,
    search: SearchMode | None,
    always_list: tuple[str, ...],
    page: PageMode | None,
    name: str,
    transparent: str | None,
    print_config: str | None,
    install: str | None,
    uninstall: str | None,
    dry_run: bool,
    **_: object,
) -> int:
    """Serve the native tools and the tools of all configured servers as one MCP server.

    Trust and pins apply as in every command. Reloads changed configuration files (at once after SIGHUP). SIGTERM and
    the end of standard input stop it with exit code 0.
    """
    if sse:
        message = "--sse was removed: leave it out, and connect clients by Streamable HTTP (http), at /mcp"
        raise click.UsageError(message, context)
    limits = {flag: context.params[key] for key, flag in LIMIT_FLAGS.items()}
    only_http: dict[str, object] = {"--no-token": no_token, "--page": page, **limits}
    only_http |= {"--allowed-host": hosts, "--allowed-origin": origins, "--auth": context.params["auth"]}
    only_http |= {flag: context.params[key] for key, flag in AUTH_FLAGS.items()}
    if stdio and http is not None:
        raise click.UsageError("--stdio and --http exclude each other", context)
    for flag, value in only_http.items():
        if value and http is None:
            raise click.UsageError(f"{flag} means nothing without --http", context)
    if NAME_PATTERN.fullmatch(name) is None:
        raise click.UsageError(f"--name {name!r}: use letters, digits, _ and -, 64 at most", context)
    check_entry_flags(context)
    cluster = parse_cluster(context)
    refuse_unused(context, profile=profile, has_entry=bool(print_config or install))
    settings = None
    if http is not None:
        settings = parse_settings(context, http, no_token=no_token, hosts=hosts, origins=origins)
        settings = limit_sessions(context, settings, sessions, is_relay=transparent is not None)
        settings = replace(
            settings,
            connections=connections or CONNECTIONS,
            requests=requests or REQUESTS,
            requests_each=requests_per_token or REQUESTS_PER_TOKEN,
            auth=parse_auth(context, settings),
        )
    invocation = read_invocation(context)
    if invocation.tools and not is_given(context, "profile"):
        profile = "all"  # a tool named by --tools may be in any profile
    options = ServeOptions(
        name=name,
        profile=profile,
        settings=settings,
        transparent=transparent,
        schemas=schemas,
        names=names,
        tasks=tasks,
        search=read_search_options(invocation.settings, search, always_list),
        page="off" if http is None or transparent is not None else page or "full",
        view=find_named_view(context, view, invocation.settings.get(SERVE_VIEWS)),
        cluster=None if cluster is None else complete_cluster(context, cluster, invocation.settings),
    )
    if print_config or install or uninstall:
        from induscode.gateway.client_config import change_entry  # noqa: PLC0415 — for these flags

        return change_entry(context, options)
    if dry_run:
        from induscode.gateway.dry_run import show_views  # noqa: PLC0415 — for this flag

        return show_views(invocation, options)
    from induscode.gateway.run import run_serve  # noqa: PLC0415 — brings the bridge

    return run_serve(invocation, options)
