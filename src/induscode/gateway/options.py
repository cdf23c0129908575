"""The flags of `indus serve`, in the order of its help, and the options they become.

`induscode.launch.flags` has the flags it shares with a session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import click

from indusagi.core.records import record
from indusagi.core.secrets import hide_in_urls
from indusagi.interop.protocol_bridge.host.auth.resource import IntrospectionClient, PageClient, ResourceSettings
from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings, is_loopback
from induscode.cluster.broker import MISSING_EXTRA
from induscode.cluster.contract import CAPACITY, CREDENTIALS_VARIABLE, ClusterSettings, find_node_name
from induscode.cluster.key import ClusterKey, read_any_key
from induscode.cluster.opening import CREDENTIALS_HELP, KEY_HELP, add_credentials, find_key_file, load_key, read_brokers
from induscode.gateway.recursion import EVERYWHERE
from induscode.gateway.tokens import Budget
from induscode.launch.flags import FlagGroup, FlagKind, FlagSection, FlagSpec, choice
from induscode.launch.options import PROFILES, is_given, is_given_at_any_level, refuse_combinations
from induscode.launch.settings import (
    APPROVALS_MODE,
    CALLS_PER_DAY,
    CLUSTER_AFFINITY,
    CLUSTER_BROKERS,
    CLUSTER_CREDENTIALS,
    CLUSTER_IDLE,
    CLUSTER_KEY_FILE,
    SERVE_VIEWS,
    TOKENS_PER_DAY,
    TOOL_SEARCH_ALWAYS_LIST,
    TOOL_SEARCH_MODE,
)
from induscode.launch.views import Schemas, View
from induscode.search.options import SearchOptions, read_search_options
from induscode.servers.clients import CLIENTS, DEFAULT_ADDRESS

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.launch.invocation import Invocation

Names: TypeAlias = Literal["server", "plain"]
"""Item names: prefixed with the server, or unprefixed where no other server uses the same."""
TaskHandling: TypeAlias = Literal["wait", "refuse"]
"""Calls that need a task, from clients without task support: wait for the result, or let the server refuse."""
PageMode: TypeAlias = Literal["full", "read-only", "off"]

NAME = "indus"
SESSIONS = 256
"""Default session limit of a gateway, whose sessions share its servers."""
CONNECTIONS = 2_048
REQUESTS = 2_048
REQUESTS_PER_TOKEN = 1_024
PRINCIPAL_REQUESTS = 256
PRINCIPAL_RATE = 200.0
SECRET_VARIABLE = "INDUS_SERVE_CLIENT_SECRET"
_MOST = 65_536
"""Upper bound of a limit: the number of TCP ports."""


_client, _transport, _tools, _permission, _cluster = map(
    FlagSection, (FlagGroup.CLIENTS, FlagGroup.TRANSPORT, FlagGroup.TOOLS, FlagGroup.PERMISSION, FlagGroup.CLUSTER)
)
_http, _page, _limits, _sign_in = (
    FlagSection(group, "--http") for group in (FlagGroup.TRANSPORT, FlagGroup.PAGE, FlagGroup.LIMITS, FlagGroup.SIGN_IN)
)
_auth, _node = FlagSection(FlagGroup.SIGN_IN, "--auth"), FlagSection(FlagGroup.CLUSTER, "--cluster")


def _limit(name: str, of: str, default: int, *aliases: str, key: str = "") -> FlagSpec:
    schema: JsonObject = {"type": "integer", "minimum": 1, "maximum": _MOST}
    return _limits.value(name, "N", f"the most {of}; {default:,} by default.", *aliases, schema=schema, key=key)


def _choose(name: str, describe: str, choices: Any, default: str) -> FlagSpec:
    return _tools.value(name, None, describe, schema=choice(*get_args(choices)), default=default)


_clients = choice(*CLIENTS)

SERVE_FLAGS: tuple[FlagSpec, ...] = (
    _client.value(
        "--install",
        "CLIENT",
        "Put the entry into the file of CLIENT (claude, cursor, vscode …) instead of serving; a copy is kept. The same "
        "as indus connect CLIENT.",
        schema=_clients,
        excludes=("--print-config", "--cluster"),
    ),
    _client.value(
        "--uninstall",
        "CLIENT",
        "Remove the entry from the file of CLIENT instead of serving; a copy is kept.",
        schema=_clients,
        excludes=("--print-config", "--install", "--cluster"),
    ),
    _client.switch(
        "--dry-run",
        "Show which tools each view has, and serve nothing; with --install or --uninstall: show the change.",
        excludes=("--cluster",),
    ),
    _client.value(
        "--print-config",
        "CLIENT",
        "Print the entry to paste into a client instead of serving.",
        schema=_clients,
        excludes=("--cluster", "--dry-run"),
    ),
    _client.value("--name", None, "The name it is served under.", default=NAME),
    _transport.switch("--stdio", "Serve the client that starts this process (the default).", excludes=("--cluster",)),
    _transport.value(
        "--http",
        "[HOST:]PORT",
        f"Serve at an address instead; {DEFAULT_ADDRESS} if none is given, 0 for a free port.",
        bare=DEFAULT_ADDRESS,
        excludes=("--stdio",),
    ),
    _http.switch("--no-token", "require no token; only on a loopback address.", excludes=("--auth",)),
    _http.many("--allowed-host", "NAME:PORT", "a further Host header that is accepted (repeatable)."),
    _http.many("--allowed-origin", "ORIGIN", "an Origin header of web pages that is accepted (repeatable)."),
    _limit("--max-sessions", "sessions at once", SESSIONS, "--sessions"),
    _limit("--max-connections", "connections at once", CONNECTIONS),
    # A session has a flag of the same name with another meaning.
    _limit("--max-requests", "requests at once", REQUESTS, key="http_requests"),
    _limit(
        "--max-requests-per-token",
        "requests at once of one session, or of one token without sessions",
        REQUESTS_PER_TOKEN,
    ),
    _limits.value(
        "--max-requests-per-principal",
        "N",
        f"the most requests at once of one principal; {PRINCIPAL_REQUESTS} by default.",
        schema={"type": "integer", "minimum": 1},
    ),
    _limits.value(
        "--max-rate-per-principal",
        "N",
        f"the most requests per second of one principal; {PRINCIPAL_RATE:g} by default.",
        schema={"type": "number", "exclusiveMinimum": 0},
    ),
    _tools.value(
        "--profile",
        None,
        "Native tools: read-only ones, the coding set (which writes and runs commands), all with the app cards, or "
        "none.",
        schema=choice(*PROFILES),
        default="read-only",
    ),
    _choose(
        "--schemas",
        "Tools of servers: as the server defines them (raw), or reduced to what every model provider takes (model).",
        Schemas,
        "raw",
    ),
    _tools.value("--view", "NAME", "Show every client the tools of this view only (the setting serve.views)."),
    _choose(
        "--names",
        "Tools, prompts and resources of servers: named with their server, or by their own names where these are "
        "unique (plain).",
        Names,
        "server",
    ),
    _choose(
        "--tasks",
        "Calls that a server answers with a task only, of clients that know no tasks: wait for the result on their "
        "behalf, or let the server refuse them.",
        TaskHandling,
        "wait",
    ),
    _tools.of(
        TOOL_SEARCH_MODE,
        FlagKind.VALUE,
        "List three tools by which a client finds and calls all others: always (on), never (off), or where the list "
        "would be too long (auto, the default).",
    ),
    _tools.of(
        TOOL_SEARCH_ALWAYS_LIST,
        FlagKind.MANY,
        "A tool that stays listed where tools are searched; * stands for any text (repeatable).",
        metavar="NAME",
    ),
    _permission.of(
        APPROVALS_MODE,
        FlagKind.VALUE,
        "Calls that need a person: wait for one (ask), or are refused (deny). By default, only calls that an ask rule "
        "names wait, where somebody can answer.",
    ),
    _page.value(
        "--page",
        None,
        "the page at /ui, full (the default), for looking only, or none.",
        schema=choice(*get_args(PageMode)),
    ),
    _transport.value("--transparent", "SERVER", "Pass one server through, unchanged.", excludes=("--cluster",)),
    _sign_in.value(
        "--auth", "ISSUER", "accept access tokens of this authorization server (OAuth) instead of the token."
    ),
    _auth.many("--audience", "NAME", "the audience of accepted tokens (repeatable); the public URL by default."),
    _auth.value("--public-url", "URL", "where clients reach the gateway, if that is not the address it listens on."),
    _auth.switch("--any-token-type", "also accept JWTs that are not marked as access tokens (at+jwt)."),
    _auth.value(
        "--introspect",
        "CLIENT_ID",
        f"ask the issuer about each token, as this client; its secret is in {SECRET_VARIABLE}.",
        variable=SECRET_VARIABLE,
    ),
    _auth.value(
        "--page-client",
        "CLIENT_ID",
        "the client by which browsers sign in to the page at the issuer, with its secret in "
        f"{SECRET_VARIABLE} if it has one; by default, indus registers one.",
        variable=SECRET_VARIABLE,
    ),
    _auth.switch("--require-dpop", "refuse tokens that are not bound to a key (DPoP)."),
    _auth.switch("--dpop-nonce", "refuse DPoP proofs without a nonce of ours."),
    _cluster.of(
        CLUSTER_BROKERS,
        FlagKind.VALUE,
        "With --http: join the cluster of these NATS brokers; servers run on one node and are used by all.",
        metavar="URL,…",
    ),
    _node.of(CLUSTER_KEY_FILE, FlagKind.VALUE, KEY_HELP, metavar="FILE"),
    _node.of(CLUSTER_CREDENTIALS, FlagKind.VALUE, CREDENTIALS_HELP, metavar="FILE", variable=CREDENTIALS_VARIABLE),
    _node.value("--node", "NAME", "the name of this node; the machine's by default."),
    _node.value(
        "--capacity",
        "N",
        f"the most servers that this node runs for the cluster; {CAPACITY} by default.",
        schema={"type": "integer", "minimum": 1, "maximum": 10_000},
    ),
    _node.of(
        CLUSTER_IDLE,
        FlagKind.VALUE,
        "With --cluster: stop a server that is not called for so long, until its next call; by default never.",
        metavar="SECONDS",
        schema=CLUSTER_IDLE.values.schema,
    ),
    _node.switch("--doors-only", "serve clients, and run no server here."),
    _node.switch(
        "--offer-only",
        "run the servers of this machine only, for rows whose command is cluster:NODE/SERVER.",
        excludes=("--doors-only",),
    ),
)
"""The flags that only `indus serve` takes."""


# -- options ----------------------------------------------------------------------------------------


_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ADDRESS = re.compile(
    r"(?:(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^:\[\]]*)):)?(?P<port>\d{1,5})", re.ASCII
)
_LABEL = r"(?!-)[\w-]{1,63}(?<!-)"
_NAMED = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)
_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0[xX][\da-fA-F]*)\Z", re.ASCII)


@record(kw_only=True)
class ServeOptions:
    """The flags of `indus serve`, checked."""

    name: str = NAME
    profile: str
    settings: HttpSettings | None
    """`None` means stdio."""
    transparent: str | None = None
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
    approvals: str | None = None
    """Overrides the setting approvals.mode."""
    budget: Budget = field(default_factory=Budget)
    """Limits per day of each principal of the authorization server."""
    is_ui: bool = False
    """Whether this is `indus ui`, which always prints the page's address with its key."""
    shows_token: bool = False
    """For `indus ui`: whether to print the address and token for MCP clients, too."""
    opens_browser: bool = False
    """Whether to open the page in a browser once it's up."""

    @property
    def has_clients(self) -> bool:
        """Whether this gateway serves clients: a node may only offer its servers."""
        return self.settings is not None or self.cluster is None


def read_serve_options(context: click.Context, invocation: Invocation) -> ServeOptions:
    """Check the flags of `indus serve` and turn them into options."""
    params = context.params
    refuse_combinations(context, SERVE_FLAGS)
    if _NAME_PATTERN.fullmatch(params["name"]) is None:
        raise click.UsageError(f"--name {params['name']!r}: use letters, digits, _ and -, 64 at most")
    _check_entry_flags(context)
    cluster = parse_cluster(context)
    _refuse_unused(context)
    is_relay = params["transparent"] is not None
    settings = None if params["http"] is None else _parse_http(context, is_relay=is_relay)
    # A tool named by --tools may be in any profile.
    profile = "all" if invocation.tools and not is_given(context, "profile") else params["profile"]
    return ServeOptions(
        name=params["name"],
        profile=profile,
        settings=settings,
        transparent=params["transparent"],
        schemas=params["schemas"],
        names=params["names"],
        tasks=params["tasks"],
        approvals=params["approvals"],
        search=read_search_options(invocation.settings, params["search"], params["always_list"]),
        page="off" if settings is None or is_relay else params["page"] or "full",
        view=_find_named_view(params["view"], invocation.settings.get(SERVE_VIEWS)),
        budget=Budget(calls=invocation.settings.get(CALLS_PER_DAY), tokens=invocation.settings.get(TOKENS_PER_DAY)),
        cluster=None if cluster is None else complete_cluster(context, cluster, invocation),
    )


_FOR_UNINSTALL = ("name", "http", "no_token", "dry_run", "uninstall")


def _check_entry_flags(context: click.Context) -> None:
    """Raise `click.UsageError` for flags that have no effect with `--uninstall` or `--dry-run`."""
    params = context.params
    if params["dry_run"] and params["transparent"] and not (params["install"] or params["uninstall"]):
        raise click.UsageError("--dry-run and --transparent can't be used together")
    if params["uninstall"]:
        for option in context.command.params:
            key = str(option.name)
            if key not in _FOR_UNINSTALL and is_given_at_any_level(context, key):
                raise click.UsageError(f"{option.opts[-1]} and --uninstall can't be used together")


_UNUSED_BY_RELAY = (
    "page", "approvals", "schemas", "view", "names", "tasks", "search", "always_list", "profile", "tools", "no_mcp",
    "no_addons", "allow", "approval", "web_allow", "model", "base_url", "code", "flow",
)  # fmt: skip
"""Flags without effect on a relay."""


def _refuse_unused(context: click.Context) -> None:
    """Raise `click.UsageError` for flags that have no effect with `--transparent` or a profile."""
    params = context.params
    profile = params["profile"]
    if params["transparent"] is not None:
        unused = [key for key in _UNUSED_BY_RELAY if is_given_at_any_level(context, key)]
        if not (params["print_config"] or params["install"]) and is_given(context, "name"):
            unused.append("name")  # the server reports its own; only a client configuration needs one
        for key in unused:
            flag = f"--{key.replace('_', '-')}"
            raise click.UsageError(f"--transparent and {flag} can't be used together")
    if profile != "all" and not is_given_at_any_level(context, "tools"):
        _refuse_flags(context, ("model", "base_url"), "requires --profile all, which has sub-agents")
    if profile == "none":
        message = "requires native tools: --profile none has none"
        _refuse_flags(context, ("tools", "web_allow"), message)


def _refuse_flags(context: click.Context, keys: Sequence[str], message: str) -> None:
    for key in keys:
        if is_given_at_any_level(context, key):
            raise click.UsageError(f"--{key.replace('_', '-')} {message}")


def _find_named_view(name: str | None, views: Mapping[str, View]) -> View | None:
    """Return the view named by `--view`, if any; `click.UsageError` if it doesn't exist."""
    if name is None or name in views:
        return None if name is None else views[name]
    known = f"there are: {', '.join(views)}" if views else "the setting serve.views has none"
    raise click.UsageError(f"--view {name!r}: there is no such view; {known}")


def _parse_http(context: click.Context, *, is_relay: bool) -> HttpSettings:
    """Parse the address of `--http`, its limits and its access into HTTP host settings."""
    params = context.params
    text, no_token = params["http"], params["no_token"]
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise click.UsageError(f"--http {text!r}: write HOST:PORT, or a port")
    host = _parse_host(text, match)
    if no_token and not is_loopback(host):
        raise click.UsageError(f"--no-token: {host} can be reached from elsewhere; 127.0.0.1 cannot")
    settings = HttpSettings(
        host=host,
        port=int(match["port"]),
        without_token=no_token,
        allowed_hosts=params["allowed_host"],
        allowed_origins=params["allowed_origin"],
        connections=params["max_connections"] or CONNECTIONS,
        requests=params["http_requests"] or REQUESTS,
        requests_each=params["max_requests_per_token"] or REQUESTS_PER_TOKEN,
        principal_requests=params["max_requests_per_principal"] or PRINCIPAL_REQUESTS,
        principal_rate=params["max_rate_per_principal"] or PRINCIPAL_RATE,
    )
    # Each session of a relay starts its own server process.
    sessions, most = params["max_sessions"], settings.sessions
    if is_relay and sessions is not None and sessions > most:
        message = f"--max-sessions {sessions}: {most} at most with --transparent, each has its own server"
        raise click.UsageError(message)
    sessions = sessions or (most if is_relay else SESSIONS)
    auth = None if params["auth"] is None else _parse_auth(context, settings)
    return replace(settings, sessions=sessions, streams=max(settings.streams, sessions), auth=auth)


def _parse_host(text: str, match: re.Match[str]) -> str:
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
        raise click.UsageError(message) from None
    return six or host


# -- auth -------------------------------------------------------------------------------------


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def _parse_auth(context: click.Context, settings: HttpSettings) -> ResourceSettings:
    """Build the access-token settings."""
    params = context.params
    issuer = params["auth"]
    _check_url("--auth", issuer)
    public_url: str | None = params["public_url"]
    if public_url is not None:
        _check_url("--public-url", public_url)
    elif settings.host in EVERYWHERE:
        message = f"--auth on {settings.host} needs --public-url: tokens are issued for the URL that clients use"
        raise click.UsageError(message)
    introspection, secret = None, ""
    if params["introspect"] is not None or params["page_client"] is not None:
        from indusagi.interop.auth.secrets import reveal_variable  # noqa: PLC0415 — as above

        secret = reveal_variable(SECRET_VARIABLE, os.environ)
    if params["introspect"] is not None:
        if not secret:
            raise click.UsageError(f"--introspect needs the secret of the client in {SECRET_VARIABLE}")
        introspection = IntrospectionClient(client_id=params["introspect"], client_secret=secret)
    return ResourceSettings(
        issuer=issuer,
        public_url=public_url,
        audiences=params["audience"],
        accepts_any_type=params["any_token_type"],
        introspection=introspection,
        page_client=PageClient(client_id=params["page_client"] or "", client_secret=secret or None),
        requires_dpop=params["require_dpop"],
        requires_nonce=params["dpop_nonce"],
    )


def _check_url(flag: str, url: str) -> None:
    """Reject URLs that aren't a server's, and unencrypted ones (RFC 8414 §2, RFC 9728 §1.2)."""
    try:
        parts = urlsplit(url)
        is_valid = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, is_valid = urlsplit(""), False
    if not is_valid or parts.scheme not in {"http", "https"} or parts.query or parts.fragment or parts.username:
        raise click.UsageError(f"{flag} {hide_in_urls(url)!r}: write an https URL without query and fragment")
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise click.UsageError(f"{flag} {hide_in_urls(url)!r}: write https, since http is not encrypted")


# -- nodes of a cluster -----------------------------------------------------------------------


def parse_cluster(context: click.Context) -> ClusterSettings | None:
    """Read the brokers and this node; return `None` without `--cluster`."""
    params = context.params
    if params["cluster"] is None:
        return None
    if params["http"] is None and not params["offer_only"]:
        raise click.UsageError("--cluster needs --http: clients reach a node over HTTP")
    try:
        brokers = read_brokers([params["cluster"]])
    except ValueError as exc:
        raise click.UsageError(f"--cluster: {exc}") from exc
    try:
        node = find_node_name(params["node"])
    except ValueError as exc:
        raise click.UsageError(f"--node {exc}") from exc
    role = "offers" if params["offer_only"] else "doors" if params["doors_only"] else "all"
    return ClusterSettings(brokers=brokers, node=node, role=role, capacity=params["capacity"] or CAPACITY)


def complete_cluster(context: click.Context, cluster: ClusterSettings, invocation: Invocation) -> ClusterSettings:
    """Add settings, this machine's sandboxes, credentials, and the key of the cluster or of an offering node."""
    if find_spec("nats") is None:
        raise click.UsageError(MISSING_EXTRA)
    from indusagi.capabilities.sandbox.backend import list_server_sandboxes  # noqa: PLC0415 — for a node

    settings = invocation.settings
    cluster = replace(cluster, sandboxes=" ".join(list_server_sandboxes(invocation.cwd)))
    idle_s = context.params["idle_stop"]
    idle_s = settings.get(CLUSTER_IDLE) if idle_s is None else idle_s
    cluster = replace(cluster, affinity=settings.get(CLUSTER_AFFINITY), idle_s=idle_s)
    cluster = add_credentials(context, cluster, settings, context.params["broker_credentials"])
    key_file = context.params["cluster_key"]
    if cluster.role == "offers":
        return _add_offer_key(context, cluster, find_key_file(settings, key_file))
    return replace(cluster, key=load_key(context, settings, key_file))


def _add_offer_key(context: click.Context, cluster: ClusterSettings, path: str) -> ClusterSettings:
    """Add an offering node's key, which contains its name, or the cluster's key."""
    try:
        key = read_any_key(path)
    except FileNotFoundError as exc:
        remedy = (
            f"make one with `indus cluster offer-key {cluster.node}` where the key of the cluster is, and copy it here"
        )
        raise click.UsageError(f"--offer-only needs a key, and there is none at {path}: {remedy}") from exc
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--cluster-key: {exc}") from exc
    if isinstance(key, ClusterKey):
        return replace(cluster, key=key)
    if context.params["node"] not in {None, key.node}:
        raise click.UsageError(f"--node {cluster.node!r}: the key at {path} is that of {key.node!r}")
    return replace(cluster, offer=key, node=key.node)
