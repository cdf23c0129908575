"""Options of `indus serve`: defaults, and checks beyond click's."""

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
"""Default session limit of a gateway, whose sessions share its servers."""
CONNECTIONS = 2_048
REQUESTS = 2_048
REQUESTS_PER_TOKEN = 1_024
LIMIT_FLAGS = {
    "sessions": "--max-sessions",
    "connections": "--max-connections",
    "requests": "--max-requests",
    "requests_per_token": "--max-requests-per-token",
}
"""HTTP limit flags by parameter name."""
MOST = 65_536
"""Upper bound of a limit: the number of TCP ports."""
Names: TypeAlias = Literal["server", "plain"]
"""Item names: prefixed with the server, or unprefixed where no other server uses the same."""
TaskHandling: TypeAlias = Literal["wait", "refuse"]
"""Calls that need a task, from clients without task support: wait for the result, or let the server refuse."""
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
    """`None` means stdio."""
    transparent: str | None
    schemas: Schemas = "raw"
    view: View | None = None
    """A view for every client."""
    names: Names = "server"
    cluster: ClusterSettings | None = None
    """The cluster to join as a node."""
    tasks: TaskHandling = "wait"
    search: SearchOptions = field(default_factory=SearchOptions)
    page: PageMode = "off"
    """With HTTP: the page at `/ui`, read-only or full."""
    is_ui: bool = False
    """Whether this is `indus ui`, which always prints the page's address with its key."""
    opens_browser: bool = False
    """Whether to open the page in a browser once it's up."""


_FOR_UNINSTALL = ("name", "http", "no_token", "dry_run", "uninstall")


def check_entry_flags(context: click.Context) -> None:
    """Reject conflicting entry flags, and flags that have no effect with them.

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


_UNUSED_BY_RELAY = (
    "page", "schemas", "view", "names", "tasks", "search", "always_list", "profile", "tools", "no_mcp", "no_addons",
    "allow", "approval", "sandbox", "web_allow", "model", "base_url", "code",
)  # fmt: skip
"""Flags without effect on a relay."""


def refuse_unused(context: click.Context, *, profile: str, has_entry: bool) -> None:
    """Raise `click.UsageError` for flags that have no effect in combination with others."""
    if context.params["transparent"] is not None:
        unused = [key for key in _UNUSED_BY_RELAY if is_given_at_any_level(context, key)]
        if not has_entry and is_given(context, "name"):
            unused.append("name")  # the server reports its own; only a client configuration needs one
        for key in unused:
            flag = f"--{key.replace('_', '-')}"
            raise click.UsageError(f"--transparent and {flag} exclude each other", context)
    if profile != "all" and not is_given_at_any_level(context, "tools"):
        _refuse_flags(context, ("model", "base_url"), "means nothing without --profile all, which has sub-agents")
    if profile == "none":
        message = "means nothing without native tools: --profile none has none"
        _refuse_flags(context, ("tools", "sandbox", "web_allow"), message)


def _refuse_flags(context: click.Context, keys: Sequence[str], message: str) -> None:
    for key in keys:
        if is_given_at_any_level(context, key):
            raise click.UsageError(f"--{key.replace('_', '-')} {message}", context)


def find_named_view(context: click.Context, name: str | None, views: Mapping[str, View]) -> View | None:
    """Return the view named by `--view`, if any; `click.UsageError` if it doesn't exist."""
    if name is None or name in views:
        return None if name is None else views[name]
    known = f"there are: {', '.join(views)}" if views else "the setting serve.views has none"
    raise click.UsageError(f"--view {name!r}: there is no such view; {known}", context)


def is_given_at_any_level(context: click.Context, key: str) -> bool:
    """Return whether an option was given before or after the command name."""
    level: click.Context | None = context
    while level is not None:
        if is_given(level, key):
            return True
        level = level.parent
    return False


def is_given(context: click.Context, key: str) -> bool:
    """Return whether an option was given on this level's command line."""
    return context.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE


def parse_settings(
    context: click.Context, text: str, *, no_token: bool, hosts: Sequence[str], origins: Sequence[str]
) -> HttpSettings:
    """Parse the address of `--http` into HTTP host settings.

    Raises:
        click.UsageError: The address is invalid, or `--no-token` is used with one that other machines can reach.
    """
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings, is_loopback  # noqa: PLC0415 — over HTTP only

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
    """Return the host if it's a hostname or a complete IP address; reject anything else."""
    from ipaddress import IPv4Address, IPv6Address  # noqa: PLC0415 — over HTTP only

    six, host = match["six"], match["host"] or "127.0.0.1"
    try:
        if six is not None:
            IPv6Address(six)
        elif _NUMBER.search(host):  # "0" means every address of the machine, but doesn't look like it
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
    """Set the limits for sessions and streams. Each session of a relay starts its own server process."""
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
"""Flags that only mean something with `--auth`, by parameter name."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def auth_flags(command: click.Command) -> click.Command:
    """Add the access-token flags to a command."""
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
    """Build the access-token settings, or return `None` without `--auth`.

    Raises:
        click.UsageError: A URL is invalid, or a flag means nothing in this combination.
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
    """Reject URLs that aren't a server's, and unencrypted ones (RFC 8414 §2, RFC 9728 §1.2)."""
    try:
        parts = urlsplit(url)
        is_valid = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, is_valid = urlsplit(""), False
    if not is_valid or parts.scheme not in {"http", "https"} or parts.query or parts.fragment or parts.username:
        raise click.UsageError(f"{flag} {url!r}: write an https URL without query and fragment", context)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise click.UsageError(f"{flag} {url!r}: write https, since http is not encrypted", context)
