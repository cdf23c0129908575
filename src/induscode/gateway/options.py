"""The options of `indus serve`: their defaults, and the checks that click does not make."""

from __future__ import annotations

import os
import re
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import click

from indusagi.core.records import record
from induscode.gateway.recursion import EVERYWHERE
from induscode.launch.views import Schemas as Schemas
from induscode.launch.views import View
from induscode.search.options import SearchOptions
from induscode.servers.clients import DEFAULT_ADDRESS as DEFAULT_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from indusagi.interop.protocol_bridge.host.auth.resource import ResourceSettings
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
    from induscode.cluster.contract import ClusterSettings

NAME = "indus"
SESSIONS = 256
"""Sessions of a gateway by default: they share its servers."""
CONNECTIONS = 2_048
REQUESTS = 2_048
REQUESTS_PER_TOKEN = 1_024
LIMIT_FLAGS = {
    "sessions": "--max-sessions",
    "connections": "--max-connections",
    "requests": "--max-requests",
    "requests_per_token": "--max-requests-per-token",
}
"""The flag of each limit over HTTP, by the name of its parameter."""
MOST = 65_536
"""The largest value of a limit: the number of TCP ports."""
Names: TypeAlias = Literal["server", "plain"]
"""Names of servers' items: with the server before them, or their own where no other server has the same."""
TaskHandling: TypeAlias = Literal["wait", "refuse"]
"""Calls that need a task, of clients that know no tasks: their result is waited for, or the server refuses them."""
PageMode: TypeAlias = Literal["full", "read-only", "off"]
NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ADDRESS = re.compile(
    r"(?:(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^:\[\]]*)):)?(?P<port>\d{1,5})", re.ASCII
)
_LABEL = r"(?!-)[\w-]{1,63}(?<!-)"
_NAMED = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0[xX][\da-fA-F]*)\Z", re.ASCII)


@record(kw_only=True)
class ServeOptions:
    """The flags of `indus serve`, checked."""

    name: str
    profile: str
    settings: HttpSettings | None
    """None: stdio."""
    transparent: str | None
    schemas: Schemas = "raw"
    view: View | None = None
    """The view of every client."""
    names: Names = "server"
    cluster: ClusterSettings | None = None
    """The cluster that it is a node of."""
    tasks: TaskHandling = "wait"
    search: SearchOptions = field(default_factory=SearchOptions)
    page: PageMode = "off"
    """With HTTP: the page at `/ui`, for looking only or for everything."""
    is_ui: bool = False
    """Whether the page is what the command is for (`indus ui`): its address is printed with the key in any case."""
    opens_browser: bool = False
    """Whether the page is opened in a browser as soon as it is served."""


_FOR_UNINSTALL = ("name", "http", "no_token", "dry_run", "uninstall")


def check_entry_flags(context: click.Context) -> None:
    """Refuse two of `--print-config`, `--install` and `--uninstall`, and flags without an effect beside one of them.

    Raises:
        click.UsageError: There are such flags.
    """
    given = [key for key in ("print_config", "install", "uninstall") if context.params[key]]
    if len(given) > 1:
        first, second = (f"--{key.replace('_', '-')}" for key in given[:2])
        raise click.UsageError(f"{first} and {second} exclude each other", context)
    if context.params["dry_run"] and "print_config" in given:
        raise click.UsageError("--dry-run and --print-config exclude each other", context)
    if context.params["dry_run"] and not given and context.params["transparent"]:
        raise click.UsageError("--dry-run and --transparent exclude each other", context)
    if given == ["uninstall"]:
        for option in context.command.params:
            key = str(option.name)
            if key not in _FOR_UNINSTALL and is_given_at_any_level(context, key):
                message = f"{option.opts[-1]} means nothing beside --uninstall"
                raise click.UsageError(message, context)


_BESIDE_RELAY = (
    "page",
    "schemas",
    "view",
    "names",
    "tasks",
    "search",
    "always_list",
    "profile",
    "tools",
    "no_mcp",
    "no_addons",
    "allow",
    "approval",
    "sandbox",
    "web_allow",
    "model",
    "base_url",
    "code",
)
"""Flags without an effect on a relay."""


def refuse_unused(context: click.Context, *, profile: str, has_entry: bool) -> None:
    """Refuse flags that would have no effect beside others.

    Raises:
        click.UsageError: There is one.
    """
    if context.params["transparent"] is not None:
        unused = [key for key in _BESIDE_RELAY if is_given_at_any_level(context, key)]
        if not has_entry and is_given(context, "name"):
            unused.append("name")  # the server reports its own; only a client config needs one
        for key in unused:
            flag = f"--{key.replace('_', '-')}"
            raise click.UsageError(f"--transparent and {flag} exclude each other", context)
    if profile != "all" and not is_given_at_any_level(context, "tools"):
        for key in ("model", "base_url"):
            if is_given_at_any_level(context, key):
                flag = f"--{key.replace('_', '-')}"
                raise click.UsageError(f"{flag} means nothing without --profile all, which has sub-agents", context)
    if profile == "none":
        for key in ("tools", "sandbox", "web_allow"):
            if is_given_at_any_level(context, key):
                flag = f"--{key.replace('_', '-')}"
                message = f"{flag} means nothing without native tools: --profile none has none"
                raise click.UsageError(message, context)


def find_named_view(context: click.Context, name: str | None, views: Mapping[str, View]) -> View | None:
    """Find the view of `--view`; None without the flag.

    Raises:
        click.UsageError: There is no view of this name.
    """
    if name is None or name in views:
        return None if name is None else views[name]
    known = f"there are: {', '.join(views)}" if views else "the setting serve.views has none"
    raise click.UsageError(f"--view {name!r}: there is no such view; {known}", context)


def is_given_at_any_level(context: click.Context, key: str) -> bool:
    """Return whether an option stands before or after the name of the command."""
    level: click.Context | None = context
    while level is not None:
        if is_given(level, key):
            return True
        level = level.parent
    return False


def is_given(context: click.Context, key: str) -> bool:
    """Return whether an option stands on the command line of this level."""
    return context.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE


def parse_settings(
    context: click.Context, text: str, *, no_token: bool, hosts: Sequence[str], origins: Sequence[str]
) -> HttpSettings:
    """Parse the address of `--http` and build the settings of the HTTP host.

    Raises:
        click.UsageError: The address is invalid, or `--no-token` stands beside one that other machines can reach.
    """
    # Late: few serve over HTTP.
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings, is_loopback  # noqa: PLC0415 — as above

    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise click.UsageError(f"--http {text!r}: write HOST:PORT, or a port", context)
    host = _parse_host(context, text, match)
    if no_token and not is_loopback(host):
        raise click.UsageError(f"--no-token: {host} can be reached from elsewhere; 127.0.0.1 cannot", context)
    return HttpSettings(
        host=host, port=int(match["port"]), without_token=no_token, allowed_hosts=hosts, allowed_origins=origins
    )


def _parse_host(context: click.Context, text: str, match: re.Match[str]) -> str:
    """Return the host of an address if it is a name or a complete IP address, and refuse everything else."""
    from ipaddress import IPv4Address, IPv6Address  # noqa: PLC0415 — few serve over HTTP

    six, host = match["six"], match["host"] or "127.0.0.1"
    try:
        if six is not None:
            IPv6Address(six)
        elif _NUMBER.search(host):  # "0" is every address of a machine, and does not look like it
            IPv4Address(host)
        elif _NAMED.fullmatch(host) is None:
            raise ValueError(host)
    except ValueError:
        message = f"--http {text!r}: {six or host!r} is neither the name of a host nor an address"
        raise click.UsageError(message, context) from None
    return six or host


def limit_sessions(
    context: click.Context, settings: HttpSettings, sessions: int | None, *, is_relay: bool
) -> HttpSettings:
    """Set the number of sessions and streams; each session of a relay has a server process of its own."""
    most = settings.sessions
    if is_relay and sessions is not None and sessions > most:
        message = f"--max-sessions {sessions}: {most} at most with --transparent, each has its own server"
        raise click.UsageError(message, context)
    chosen = sessions or (most if is_relay else SESSIONS)
    return replace(settings, sessions=chosen, streams=max(settings.streams, chosen))


# -- auth -------------------------------------------------------------------------------------


SECRET_VARIABLE = "INDUS_SERVE_CLIENT_SECRET"
AUTH_FLAGS = {
    "audiences": "--audience",
    "public_url": "--public-url",
    "any_token_type": "--any-token-type",
    "introspect": "--introspect",
    "require_dpop": "--require-dpop",
    "dpop_nonce": "--dpop-nonce",
    "requests_per_principal": "--max-requests-per-principal",
    "rate_per_principal": "--max-rate-per-principal",
}
"""Flags that mean something beside `--auth` only, by the name of their parameter."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def auth_flags(command: click.Command) -> click.Command:
    """Give a command the flags of access tokens."""
    decorators: tuple[Callable[[click.Command], click.Command], ...] = (
        click.option(
            "--auth",
            metavar="ISSUER",
            help="With --http: accept access tokens of this authorization server (OAuth) instead of the token.",
        ),
        click.option(
            "--audience",
            "audiences",
            multiple=True,
            metavar="NAME",
            help="With --auth: the audience of accepted tokens (repeatable); the public URL by default.",
        ),
        click.option(
            "--public-url",
            metavar="URL",
            help="With --auth: where clients reach the gateway, if that is not the address it listens on.",
        ),
        click.option(
            "--any-token-type",
            is_flag=True,
            help="With --auth: also accept JWTs that are not marked as access tokens (at+jwt).",
        ),
        click.option(
            "--introspect",
            metavar="CLIENT_ID",
            help=f"With --auth: ask the issuer about each token, as this client; its secret is in {SECRET_VARIABLE}.",
        ),
        click.option(
            "--require-dpop", is_flag=True, help="With --auth: refuse tokens that are not bound to a key (DPoP)."
        ),
        click.option("--dpop-nonce", is_flag=True, help="With --auth: refuse DPoP proofs without a nonce of ours."),
        click.option(
            "--max-requests-per-principal",
            "requests_per_principal",
            type=click.IntRange(1),
            metavar="N",
            help="With --auth: the most requests at once of one principal; 256 by default.",
        ),
        click.option(
            "--max-rate-per-principal",
            "rate_per_principal",
            type=click.FloatRange(0, min_open=True),
            metavar="N",
            help="With --auth: the most requests per second of one principal; 200 by default.",
        ),
    )
    for add in reversed(decorators):
        command = add(command)
    return command


def parse_auth(
    context: click.Context, settings: HttpSettings, environ: Mapping[str, str] = os.environ
) -> ResourceSettings | None:
    """Build the settings of access tokens; None without `--auth`.

    Raises:
        click.UsageError: A URL is invalid, or a flag means nothing beside the others.
    """
    params = context.params
    issuer = params["auth"]
    if issuer is None:
        for key, flag in AUTH_FLAGS.items():
            if params[key]:
                raise click.UsageError(f"{flag} means nothing without --auth", context)
        return None
    from indusagi.interop.protocol_bridge.host.auth.resource import IntrospectionClient, ResourceSettings  # noqa: PLC0415 — few serve with it

    if settings.without_token:
        raise click.UsageError("--auth and --no-token exclude each other", context)
    _check_url(context, "--auth", issuer)
    public_url: str | None = params["public_url"]
    if public_url is not None:
        _check_url(context, "--public-url", public_url)
    elif settings.host in EVERYWHERE:
        message = f"--auth on {settings.host} needs --public-url: tokens are issued for the URL that clients use"
        raise click.UsageError(message, context)
    introspection = None
    if params["introspect"] is not None:
        if not environ.get(SECRET_VARIABLE):
            raise click.UsageError(f"--introspect needs the secret of the client in {SECRET_VARIABLE}", context)
        introspection = IntrospectionClient(client_id=params["introspect"], client_secret=environ[SECRET_VARIABLE])
    chosen = {"requests": params["requests_per_principal"], "rate": params["rate_per_principal"]}
    return ResourceSettings(
        issuer=issuer,
        public_url=public_url,
        audiences=params["audiences"],
        accepts_any_type=params["any_token_type"],
        introspection=introspection,
        requires_dpop=params["require_dpop"],
        requires_nonce=params["dpop_nonce"],
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _check_url(context: click.Context, flag: str, url: str) -> None:
    """Refuse what is no URL of a server, and one that is not encrypted (RFC 8414 §2, RFC 9728 §1.2)."""
    try:
        parts = urlsplit(url)
        is_valid = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, is_valid = urlsplit(""), False
    if not is_valid or parts.scheme not in {"http", "https"} or parts.query or parts.fragment or parts.username:
        raise click.UsageError(f"{flag} {url!r}: write an https URL without query and fragment", context)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise click.UsageError(f"{flag} {url!r}: write https, since http is not encrypted", context)
