"""The flags of `indus serve`, in the order of its help; `induscode.launch.flags` has those it shares with a session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from induscode.cluster.contract import CAPACITY, CREDENTIALS_VARIABLE
from induscode.cluster.opening import CREDENTIALS_HELP, KEY_HELP
from induscode.launch.flags import FlagGroup, FlagKind, FlagSpec, choice, flag_of
from induscode.launch.options import PROFILES
from induscode.launch.settings import (
    CLUSTER_BROKERS,
    CLUSTER_CREDENTIALS,
    CLUSTER_IDLE,
    CLUSTER_KEY_FILE,
    TOOL_SEARCH_ALWAYS_LIST,
    TOOL_SEARCH_MODE,
)
from induscode.launch.views import Schemas
from induscode.servers.clients import CLIENTS, DEFAULT_ADDRESS

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

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
SECRET_VARIABLE = "INDUS_SERVE_CLIENT_SECRET"
_MOST = 65_536
"""Upper bound of a limit: the number of TCP ports."""


def _make(kind: FlagKind, name: str, describe: str, *aliases: str, **facts: Any) -> FlagSpec:
    return FlagSpec(name, aliases, kind, FlagGroup.SERVING, describe, **facts)


_switch, _value, _many = (partial(_make, kind) for kind in (FlagKind.SWITCH, FlagKind.VALUE, FlagKind.MANY))


def _limit(name: str, of: str, default: int, *aliases: str, key: str = "") -> FlagSpec:
    describe = f"With --http: the most {of}; {default:,} by default."
    schema: JsonObject = {"type": "integer", "minimum": 1, "maximum": _MOST}
    return _value(name, describe, *aliases, metavar="N", schema=schema, needs="--http", key=key)


_client = partial(_value, schema=choice(*CLIENTS))

SERVE_FLAGS: tuple[FlagSpec, ...] = (
    _switch("--stdio", "Serve the client that starts this process (the default).", excludes=("--cluster",)),
    _value(
        "--http",
        f"Serve at an address instead; {DEFAULT_ADDRESS} if none is given, 0 for a free port.",
        metavar="[HOST:]PORT",
        bare=DEFAULT_ADDRESS,
        excludes=("--stdio",),
    ),
    _switch("--sse", "Was removed.", hidden=True),
    _switch("--no-token", "With --http on a loopback address: require no token.", needs="--http", excludes=("--auth",)),
    _many(
        "--allowed-host",
        "With --http: a further Host header that is accepted (repeatable).",
        metavar="NAME:PORT",
        needs="--http",
    ),
    _many(
        "--allowed-origin",
        "With --http: an Origin header of web pages that is accepted (repeatable).",
        metavar="ORIGIN",
        needs="--http",
    ),
    _limit("--max-sessions", "sessions at once", SESSIONS, "--sessions"),
    _limit("--max-connections", "connections at once", CONNECTIONS),
    # A session has a flag of the same name with another meaning.
    _limit("--max-requests", "requests at once", REQUESTS, key="http_requests"),
    _limit(
        "--max-requests-per-token",
        "requests at once of one session, or of one token without sessions",
        REQUESTS_PER_TOKEN,
    ),
    _value(
        "--profile",
        "Native tools: read-only ones, the coding set (which writes and runs commands), all with the app cards, or "
        "none.",
        schema=choice(*PROFILES),
        default="read-only",
    ),
    _value(
        "--schemas",
        "Tools of servers: as the server defines them (raw), or reduced to what every model provider takes (model).",
        schema=choice(*get_args(Schemas)),
        default="raw",
    ),
    _value("--view", "Show every client the tools of this view only (the setting serve.views).", metavar="NAME"),
    _value(
        "--names",
        "Tools, prompts and resources of servers: named with their server, or by their own names where these are "
        "unique (plain).",
        schema=choice(*get_args(Names)),
        default="server",
    ),
    _value(
        "--tasks",
        "Calls that a server answers with a task only, of clients that know no tasks: wait for the result on their "
        "behalf, or let the server refuse them.",
        schema=choice(*get_args(TaskHandling)),
        default="wait",
    ),
    flag_of(
        TOOL_SEARCH_MODE,
        FlagKind.VALUE,
        FlagGroup.SERVING,
        "List three tools by which a client finds and calls all others: always (on), never (off), or where the list "
        "would be too long (auto, the default).",
    ),
    flag_of(
        TOOL_SEARCH_ALWAYS_LIST,
        FlagKind.MANY,
        FlagGroup.SERVING,
        "A tool that stays listed where tools are searched; * stands for any text (repeatable).",
        metavar="NAME",
    ),
    _value(
        "--page",
        "With --http: the page at /ui, full (the default), for looking only, or none.",
        schema=choice(*get_args(PageMode)),
        needs="--http",
    ),
    _value("--name", "The name it is served under.", default=NAME),
    _value("--transparent", "Pass one server through, unchanged.", metavar="SERVER", excludes=("--cluster",)),
    _client(
        "--print-config",
        "Print the entry to paste into a client instead of serving.",
        excludes=("--cluster", "--dry-run"),
    ),
    _client(
        "--install",
        "Put the entry into the client's own file instead of serving; a copy is kept.",
        excludes=("--print-config", "--cluster"),
    ),
    _client(
        "--uninstall",
        "Remove the entry from the client's own file instead of serving; a copy is kept.",
        excludes=("--print-config", "--install", "--cluster"),
    ),
    _switch(
        "--dry-run",
        "Show which tools each view has, and serve nothing; with --install or --uninstall: show the change.",
        excludes=("--cluster",),
    ),
    # Access tokens.
    _value(
        "--auth",
        "With --http: accept access tokens of this authorization server (OAuth) instead of the token.",
        metavar="ISSUER",
        needs="--http",
    ),
    _many(
        "--audience",
        "With --auth: the audience of accepted tokens (repeatable); the public URL by default.",
        metavar="NAME",
        needs="--auth",
    ),
    _value(
        "--public-url",
        "With --auth: where clients reach the gateway, if that is not the address it listens on.",
        metavar="URL",
        needs="--auth",
    ),
    _switch(
        "--any-token-type",
        "With --auth: also accept JWTs that are not marked as access tokens (at+jwt).",
        needs="--auth",
    ),
    _value(
        "--introspect",
        f"With --auth: ask the issuer about each token, as this client; its secret is in {SECRET_VARIABLE}.",
        metavar="CLIENT_ID",
        needs="--auth",
        variable=SECRET_VARIABLE,
    ),
    _switch("--require-dpop", "With --auth: refuse tokens that are not bound to a key (DPoP).", needs="--auth"),
    _switch("--dpop-nonce", "With --auth: refuse DPoP proofs without a nonce of ours.", needs="--auth"),
    _value(
        "--max-requests-per-principal",
        "With --auth: the most requests at once of one principal; 256 by default.",
        metavar="N",
        schema={"type": "integer", "minimum": 1},
        needs="--auth",
    ),
    _value(
        "--max-rate-per-principal",
        "With --auth: the most requests per second of one principal; 200 by default.",
        metavar="N",
        schema={"type": "number", "exclusiveMinimum": 0},
        needs="--auth",
    ),
    # Nodes of a cluster.
    flag_of(
        CLUSTER_BROKERS,
        FlagKind.VALUE,
        FlagGroup.SERVING,
        "With --http: join the cluster of these NATS brokers; servers run on one node and are used by all.",
        metavar="URL,…",
    ),
    flag_of(CLUSTER_KEY_FILE, FlagKind.VALUE, FlagGroup.SERVING, KEY_HELP, metavar="FILE", needs="--cluster"),
    flag_of(
        CLUSTER_CREDENTIALS,
        FlagKind.VALUE,
        FlagGroup.SERVING,
        CREDENTIALS_HELP,
        metavar="FILE",
        needs="--cluster",
        variable=CREDENTIALS_VARIABLE,
    ),
    _value(
        "--node", "With --cluster: the name of this node; the machine's by default.", metavar="NAME", needs="--cluster"
    ),
    _value(
        "--capacity",
        f"With --cluster: the most servers that this node runs for the cluster; {CAPACITY} by default.",
        metavar="N",
        schema={"type": "integer", "minimum": 1, "maximum": 10_000},
        needs="--cluster",
    ),
    flag_of(
        CLUSTER_IDLE,
        FlagKind.VALUE,
        FlagGroup.SERVING,
        "With --cluster: stop a server that is not called for so long, until its next call; by default never.",
        metavar="SECONDS",
        schema=CLUSTER_IDLE.values.schema,
        needs="--cluster",
    ),
    _switch("--doors-only", "With --cluster: serve clients, and run no server here.", needs="--cluster"),
    _switch(
        "--offer-only",
        "With --cluster: run the servers of this machine only, for rows whose command is cluster:NODE/SERVER.",
        needs="--cluster",
        excludes=("--doors-only",),
    ),
)
"""The flags that only `indus serve` takes."""
