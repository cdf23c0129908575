"""The flags of `indus serve`, in the order of its help; `induscode.launch.flags` has those it shares with a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from induscode.cluster.contract import CAPACITY, CREDENTIALS_VARIABLE
from induscode.cluster.opening import CREDENTIALS_HELP, KEY_HELP
from induscode.launch.flags import FlagGroup, FlagKind, FlagSection, FlagSpec, choice
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
from induscode.servers.clients import CLIENT_NAMES, DEFAULT_ADDRESS

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


_serving = FlagSection(FlagGroup.SERVING)
_http, _auth, _node = (FlagSection(FlagGroup.SERVING, needs) for needs in ("--http", "--auth", "--cluster"))


def _limit(name: str, of: str, default: int, *aliases: str, key: str = "") -> FlagSpec:
    schema: JsonObject = {"type": "integer", "minimum": 1, "maximum": _MOST}
    return _http.value(name, "N", f"the most {of}; {default:,} by default.", *aliases, schema=schema, key=key)


def _choose(name: str, describe: str, choices: Any, default: str) -> FlagSpec:
    return _serving.value(name, None, describe, schema=choice(*get_args(choices)), default=default)


_clients = choice(*CLIENT_NAMES)

SERVE_FLAGS: tuple[FlagSpec, ...] = (
    _serving.switch("--stdio", "Serve the client that starts this process (the default).", excludes=("--cluster",)),
    _serving.value(
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
    _serving.value(
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
    _serving.value("--view", "NAME", "Show every client the tools of this view only (the setting serve.views)."),
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
    _serving.of(
        TOOL_SEARCH_MODE,
        FlagKind.VALUE,
        "List three tools by which a client finds and calls all others: always (on), never (off), or where the list "
        "would be too long (auto, the default).",
    ),
    _serving.of(
        TOOL_SEARCH_ALWAYS_LIST,
        FlagKind.MANY,
        "A tool that stays listed where tools are searched; * stands for any text (repeatable).",
        metavar="NAME",
    ),
    _http.value(
        "--page",
        None,
        "the page at /ui, full (the default), for looking only, or none.",
        schema=choice(*get_args(PageMode)),
    ),
    _serving.value("--name", None, "The name it is served under.", default=NAME),
    _serving.value("--transparent", "SERVER", "Pass one server through, unchanged.", excludes=("--cluster",)),
    _serving.value(
        "--print-config",
        None,
        "Print the entry to paste into a client instead of serving.",
        schema=_clients,
        excludes=("--cluster", "--dry-run"),
    ),
    _serving.value(
        "--install",
        None,
        "Put the entry into the client's own file instead of serving; a copy is kept.",
        schema=_clients,
        excludes=("--print-config", "--cluster"),
    ),
    _serving.value(
        "--uninstall",
        None,
        "Remove the entry from the client's own file instead of serving; a copy is kept.",
        schema=_clients,
        excludes=("--print-config", "--install", "--cluster"),
    ),
    _serving.switch(
        "--dry-run",
        "Show which tools each view has, and serve nothing; with --install or --uninstall: show the change.",
        excludes=("--cluster",),
    ),
    _http.value("--auth", "ISSUER", "accept access tokens of this authorization server (OAuth) instead of the token."),
    _auth.many("--audience", "NAME", "the audience of accepted tokens (repeatable); the public URL by default."),
    _auth.value("--public-url", "URL", "where clients reach the gateway, if that is not the address it listens on."),
    _auth.switch("--any-token-type", "also accept JWTs that are not marked as access tokens (at+jwt)."),
    _auth.value(
        "--introspect",
        "CLIENT_ID",
        f"ask the issuer about each token, as this client; its secret is in {SECRET_VARIABLE}.",
        variable=SECRET_VARIABLE,
    ),
    _auth.switch("--require-dpop", "refuse tokens that are not bound to a key (DPoP)."),
    _auth.switch("--dpop-nonce", "refuse DPoP proofs without a nonce of ours."),
    _auth.value(
        "--max-requests-per-principal",
        "N",
        "the most requests at once of one principal; 256 by default.",
        schema={"type": "integer", "minimum": 1},
    ),
    _auth.value(
        "--max-rate-per-principal",
        "N",
        "the most requests per second of one principal; 200 by default.",
        schema={"type": "number", "exclusiveMinimum": 0},
    ),
    _serving.of(
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
