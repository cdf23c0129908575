"""`indus serve`: the deck and all configured servers, as one MCP server.

Standard output belongs to the protocol; whatever is said to people goes to standard error.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import click

from indusagi.core.records import record
from induscode.clients.entry import CLIENTS
from induscode.launch.options import flags, invocation_from
from induscode.launch.profiles import ProfileChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings

DEFAULT_ADDRESS = "127.0.0.1:7332"
NAME = "indus"
SESSIONS = 256
"""Of a gateway, by default: they share its servers, and cost little."""
CONNECTIONS = 2_048
REQUESTS = 2_048
REQUESTS_PER_TOKEN = 1_024
LIMIT_FLAGS = {
    "sessions": "--max-sessions",
    "connections": "--max-connections",
    "requests": "--max-requests",
    "requests_per_token": "--max-requests-per-token",
}
"""The flag of each limit of a gateway over HTTP, by the key of its value."""
_MOST = 65_536
"""The largest limit that can be given: there are no more ports for connections."""
Schemas: TypeAlias = Literal["raw", "model"]
"""How tools of servers are listed: as they define them, or as a model in a session sees them."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ADDRESS = re.compile(
    r"(?:(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^:\[\]]*)):)?(?P<port>\d{1,5})", re.ASCII
)
_LABEL = r"(?!-)[\w-]{1,63}(?<!-)"
_NAMED = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0[xX][\da-fA-F]*)\Z", re.ASCII)


@record(kw_only=True)
class ServeOptions:
    """What is served, to whom, and under which name."""

    name: str
    profile: str
    settings: HttpSettings | None
    """None: over standard input and output."""
    transparent: str | None
    schemas: Schemas = "raw"


@flags(*("--tools", "--mcp", "--no-mcp", "--allow", "--approval", "--sandbox", "--web-allow", "--cwd"))
@click.command("serve")
@click.option("--stdio", is_flag=True, help="Serve whoever starts this process (the default).")
@click.option(
    "--http",
    metavar="[HOST:]PORT",
    is_flag=False,
    flag_value=DEFAULT_ADDRESS,
    help=f"Serve at an address instead; {DEFAULT_ADDRESS} if none is given, 0 for a free port.",
)
@click.option("--sse", is_flag=True, help="With --http: also speak the old transport, at /sse.")
@click.option("--no-token", is_flag=True, help="With --http on this machine alone: ask no token.")
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="NAME:PORT",
    help="With --http: a further name under which it may be addressed (repeatable).",
)
@click.option(
    "--allowed-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="With --http: a page that may speak to it (repeatable).",
)
@click.option(
    "--max-sessions",
    "--sessions",
    "sessions",
    type=click.IntRange(1, _MOST),
    metavar="N",
    help=f"With --http: so many clients of the older protocol at once; {SESSIONS} by default.",
)
@click.option(
    "--max-connections",
    "connections",
    type=click.IntRange(1, _MOST),
    metavar="N",
    help=f"With --http: so many connections at once; {CONNECTIONS:,} by default.",
)
@click.option(
    "--max-requests",
    "requests",
    type=click.IntRange(1, _MOST),
    metavar="N",
    help=f"With --http: so many requests at once; {REQUESTS:,} by default.",
)
@click.option(
    "--max-requests-per-token",
    "requests_per_token",
    type=click.IntRange(1, _MOST),
    metavar="N",
    help="With --http: so many requests at once of one session, or of one token without "
    f"sessions; {REQUESTS_PER_TOKEN:,} by default.",
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
@click.option("--name", default=NAME, show_default=True, help="The name it is served under.")
@click.option("--transparent", metavar="SERVER", help="Pass one server through, unchanged.")
@click.option(
    "--print-config",
    type=click.Choice(tuple(CLIENTS)),
    help="Print the entry to paste into a client instead of serving.",
)
@click.option(
    "--install",
    type=click.Choice(tuple(CLIENTS)),
    help="Put the entry into the client's own file instead of serving; a copy is kept.",
)
@click.option(
    "--uninstall",
    type=click.Choice(tuple(CLIENTS)),
    help="Take the entry out of the client's own file instead of serving; a copy is kept.",
)
@click.option("--dry-run", is_flag=True, help="With --install or --uninstall: show the change, write nothing.")
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
    name: str,
    transparent: str | None,
    print_config: str | None,
    install: str | None,
    uninstall: str | None,
    dry_run: bool,
    **_: object,
) -> int:
    """Serve the native tools and those of all configured servers as one MCP server.

    Servers are attached as everywhere: trust and pins apply, and files that change are read again
    (SIGHUP: at once). SIGTERM and the end of standard input end it well.
    """
    limits = {flag: context.params[key] for key, flag in LIMIT_FLAGS.items()}
    only_http: dict[str, object] = {"--sse": sse, "--no-token": no_token, **limits}
    only_http |= {"--allowed-host": hosts, "--allowed-origin": origins}
    _check(context, stdio=stdio, http=http, only_http=only_http)
    if _NAME.fullmatch(name) is None:
        said = f"--name {name!r}: use letters, digits, _ and -, 64 at most"
        raise click.UsageError(said, context)
    _check_entry_flags(context)
    _refuse_unused(context, profile=profile, entry_is_made=bool(print_config or install))
    settings = None
    if http is not None:
        settings = _settings(context, http, sse=sse, no_token=no_token, hosts=hosts, origins=origins)
        settings = _limit_sessions(context, settings, sessions, is_relay=transparent is not None)
        settings = replace(
            settings,
            connections=connections or CONNECTIONS,
            requests=requests or REQUESTS,
            requests_each=requests_per_token or REQUESTS_PER_TOKEN,
        )
    invocation = invocation_from(context)
    if invocation.tools and not was_given(context, "profile"):
        profile = "all"  # those that are named were asked for
    options = ServeOptions(name=name, profile=profile, settings=settings, transparent=transparent, schemas=schemas)
    if print_config is not None:
        from induscode.commands.serve.client_config import print_entry  # noqa: PLC0415 — for this alone

        return print_entry(context, options, print_config)
    if install is not None:
        from induscode.commands.serve.client_config import install_entry  # noqa: PLC0415 — as above

        return install_entry(context, options, install, dry_run=dry_run)
    if uninstall is not None:
        from induscode.commands.serve.client_config import uninstall_entry  # noqa: PLC0415 — as above

        return uninstall_entry(context, options, uninstall, dry_run=dry_run)
    from induscode.commands.serve.signals import install_early_handlers  # noqa: PLC0415 — for this alone

    install_early_handlers()
    from induscode.commands.serve.run import run_serve  # noqa: PLC0415 — brings the bridge

    return run_serve(invocation, options)


def _check(context: click.Context, *, stdio: bool, http: str | None, only_http: dict[str, object]) -> None:
    if stdio and http is not None:
        raise click.UsageError("--stdio and --http exclude each other", context)
    for flag, given in only_http.items():
        if given and http is None:
            raise click.UsageError(f"{flag} means nothing without --http", context)


_FOR_UNINSTALL = ("name", "http", "sse", "no_token", "dry_run", "uninstall")


def _check_entry_flags(context: click.Context) -> None:
    """Refuse two of the flags that serve nothing, and what has no effect beside one of them.

    Raises:
        click.UsageError: There are such flags.
    """
    given = [key for key in ("print_config", "install", "uninstall") if context.params[key]]
    if len(given) > 1:
        first, second = (f"--{key.replace('_', '-')}" for key in given[:2])
        raise click.UsageError(f"{first} and {second} exclude each other", context)
    if context.params["dry_run"] and not {"install", "uninstall"} & {*given}:
        raise click.UsageError("--dry-run means nothing without --install", context)
    if given == ["uninstall"]:
        for option in context.command.params:
            key = str(option.name)
            if key not in _FOR_UNINSTALL and given_anywhere(context, key):
                said = f"{option.opts[-1]} means nothing beside --uninstall"
                raise click.UsageError(said, context)


_BESIDE_RELAY = ("schemas", "profile", "tools", "no_mcp", "allow", "approval", "sandbox", "web_allow")
"""Keys of flags without an effect on one server that is passed through unchanged."""


def _refuse_unused(context: click.Context, *, profile: str, entry_is_made: bool) -> None:
    """Refuse flags that would have no effect beside others.

    Raises:
        click.UsageError: There is one.
    """
    if context.params["transparent"] is not None:
        unused = [key for key in _BESIDE_RELAY if given_anywhere(context, key)]
        if not entry_is_made and was_given(context, "name"):
            unused.append("name")  # the server has its own; an entry of a client needs one
        for key in unused:
            flag = f"--{key.replace('_', '-')}"
            raise click.UsageError(f"--transparent and {flag} exclude each other", context)
    if profile == "none":
        for key in ("tools", "sandbox", "web_allow"):
            if given_anywhere(context, key):
                flag = f"--{key.replace('_', '-')}"
                said = f"{flag} means nothing without native tools: --profile none has none"
                raise click.UsageError(said, context)


def given_anywhere(context: click.Context, key: str) -> bool:
    """Tell whether an option stands before or after the name of the command."""
    level: click.Context | None = context
    while level is not None:
        if was_given(level, key):
            return True
        level = level.parent
    return False


def was_given(context: click.Context, key: str) -> bool:
    """Tell whether an option stands in the command line, and is not there by default."""
    return context.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE


def _settings(
    context: click.Context, given: str, *, sse: bool, no_token: bool, hosts: Sequence[str], origins: Sequence[str]
) -> HttpSettings:
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings  # noqa: PLC0415 — few serve over HTTP

    found = _ADDRESS.fullmatch(given)
    if found is None or int(found["port"]) > 65_535:
        raise click.UsageError(f"--http {given!r}: write HOST:PORT, or a port", context)
    host = _host(context, given, found)
    if no_token:
        from indusagi.interop.protocol_bridge.host.http.auth import is_loopback  # noqa: PLC0415 — as above

        if not is_loopback(host):
            said = f"--no-token: {host} can be reached from elsewhere; 127.0.0.1 cannot"
            raise click.UsageError(said, context)
    return HttpSettings(
        host=host,
        port=int(found["port"]),
        without_token=no_token,
        sse=sse,
        allowed_hosts=hosts,
        allowed_origins=origins,
    )


def _host(context: click.Context, given: str, found: re.Match[str]) -> str:
    """Find out who is meant; what is no name and no number would be a part of an address."""
    from ipaddress import IPv4Address, IPv6Address  # noqa: PLC0415 — few serve over HTTP

    six, host = found["six"], found["host"] or "127.0.0.1"
    try:
        if six is not None:
            IPv6Address(six)
        elif _NUMBER.search(host):  # "0" is every address of a machine, and does not look like it
            IPv4Address(host)
        elif _NAMED.fullmatch(host) is None:
            raise ValueError(host)
    except ValueError:
        said = f"--http {given!r}: {six or host!r} is neither the name of a host nor an address"
        raise click.UsageError(said, context) from None
    return six or host


def _limit_sessions(
    context: click.Context, settings: HttpSettings, sessions: int | None, *, is_relay: bool
) -> HttpSettings:
    """Say how many sessions there may be; behind a relay each has a process of its own."""
    most = settings.sessions
    if is_relay and sessions is not None and sessions > most:
        said = f"--max-sessions {sessions}: {most} at most with --transparent, each has its own server"
        raise click.UsageError(said, context)
    chosen = sessions or (most if is_relay else SESSIONS)
    return replace(settings, sessions=chosen, streams=max(settings.streams, chosen))
