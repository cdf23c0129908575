"""The servers of a run before any of them starts, and their rows: lookup by name, on or off, and public facts.

Doesn't import the bridge.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import click

from indusagi.capabilities.sandbox.profile import format_profile
from indusagi.core.config_file import read_config_file
from indusagi.core.json import JsonObject, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import hide_in_urls, holds_secret
from indusagi.interop.protocol_bridge.contract import (
    CLUSTER_PREFIX,
    QUALIFIER,
    RemoteToolRef,
    ServerConfig,
    StdioServerConfig,
)
from indusagi.interop.protocol_bridge.redaction import find_option_secrets
from induscode.cli.output import build_unknown_name
from induscode.cli.terminal import print_status
from induscode.core.consent import ConsentState, digest_facts
from induscode.core.faults import BridgeFault
from induscode.servers.config import list_all_paths, read_rows, resolve_rows
from induscode.servers.config.dialects import detect_dialect
from induscode.servers.config.rows import (
    REVIEW_MODES,
    VALUE_FIELDS,
    InvalidRowError,
    Origin,
    ReviewMode,
    Scope,
    ServerRow,
    find_project_dir,
    is_switched_off,
    parse_row,
)
from induscode.servers.config.trust import TrustStore, describe_row, find_references, show_arguments, show_url
from induscode.servers.config.writer import change_row, list_own_paths, own_config_path, read_own_config
from induscode.servers.labels import join_labels

if TYPE_CHECKING:
    from indusagi.core.faults import Note
    from indusagi.core.json import JsonValue
    from induscode.launch.invocation import Invocation
    from induscode.servers.labels import RowLabels


RowState: TypeAlias = Literal["startable", "untrusted", "changed", "unsandboxed", "unresolved"]
"""Ready to start, without consent, changed since consent, without a required sandbox, or with an unset variable."""


@record
class ServerPlan:
    """The servers of a run, before any of them starts."""

    rows: Sequence[ServerRow] = ()
    configs: Mapping[str, ServerConfig] = field(default_factory=dict[str, "ServerConfig"])
    """Trusted servers by id, with variables expanded. Excludes rows with unset variables."""
    consent: Mapping[str, ConsentState] = field(default_factory=dict[str, "ConsentState"])
    notes: Sequence[Note] = ()
    locked: Mapping[RemoteToolRef, JsonObject] = field(default_factory=dict["RemoteToolRef", "JsonObject"])
    """The project's locked definitions, which a tool seen for the first time must match."""
    configured: Sequence[str] = ()
    """The ids of all configured servers in order, even ones outside the plan: tool names depend on them."""
    approved: Collection[str] = ()
    """Ids of rows the user has approved exactly as they are. Other rows can be trusted because of their file."""
    locked_labels: Mapping[str, RowLabels] = field(default_factory=dict[str, "RowLabels"])
    """The labels in the project's lock file, by server."""
    requires_sandbox: bool = False
    """Whether a server only starts if its row names a sandbox."""
    review: ReviewMode = "hold"
    """The setting: what the review does with new definitions."""
    neighbours: Mapping[str, ServerConfig] = field(default_factory=dict[str, "ServerConfig"])
    """Trusted servers that `narrow` left out. New definitions are compared with theirs."""

    @classmethod
    def from_configs(cls, configs: Iterable[ServerConfig]) -> ServerPlan:
        """Plan these servers, all trusted."""
        return cls(configs={config.id: config for config in configs})

    @property
    def untrusted(self) -> Sequence[ServerRow]:
        """The rows without consent in their current form."""
        return tuple(row for row in self.rows if self.consent.get(row.id) != "trusted")

    @property
    def lazy(self) -> Collection[str]:
        """The ids of servers that start on first call."""
        return [row.id for row in self.rows if row.start == "lazy"]

    @property
    def growing(self) -> Collection[str]:
        """The ids of servers whose rows approve all additions (`"added": "allow"`)."""
        return {row.id for row in self.rows if row.added == "allow"}

    @property
    def reviews(self) -> Mapping[str, ReviewMode]:
        """What the review does for each server. Only rows in the user's own files can make it milder."""
        modes: dict[str, ReviewMode] = {}
        for row in self.rows:
            own: ReviewMode = row.review or self.review
            stricter = own if REVIEW_MODES.index(own) > REVIEW_MODES.index(self.review) else self.review
            modes[row.id] = own if row.origin.scope == "user" else stricter
        return modes

    def find_places(self) -> Mapping[str, str]:
        """Map each server to its place, a digest of file and name that survives edits of the row."""
        return {row.id: digest_place(row.origin.file, row.id) for row in self.rows}

    def find_labels(self, server: str) -> RowLabels:
        """Return the labels the user gave a server's tools; the lock file can only add some."""
        given = next((row.labels for row in self.rows if row.id == server), None) or {}
        locked = self.locked_labels.get(server)
        return given if locked is None else join_labels(given, locked)

    def state_of(self, row: ServerRow) -> RowState:
        """Return whether a row can start, or why not."""
        consent = self.consent.get(row.id, "unknown")
        if consent != "trusted":
            return "changed" if consent == "changed" else "untrusted"
        if row.id in self.configs:
            return "startable"
        return "unsandboxed" if self.requires_sandbox and has_no_sandbox(row.config) else "unresolved"

    def narrow(self, servers: Collection[str]) -> ServerPlan:
        """Return the plan for just these servers, without notes about others."""
        others = tuple(f"server {row.id!r} of " for row in self.rows if row.id not in servers)
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.id in servers),
            configs={server: config for server, config in self.configs.items() if server in servers},
            neighbours={
                **self.neighbours,
                **{server: config for server, config in self.configs.items() if server not in servers},
            },
            notes=tuple(note for note in self.notes if not note.owner.startswith(others)),
        )


def has_no_sandbox(config: ServerConfig) -> bool:
    """Return whether a server is a process of this machine that no sandbox holds."""
    if not isinstance(config, StdioServerConfig) or config.command.startswith(CLUSTER_PREFIX):
        return False
    return config.sandbox is None


def digest_place(file: str, server: str) -> str:
    """Digest the name of a server in a file."""
    return digest_facts([os.path.realpath(file), server])


# -- rows -------------------------------------------------------------------------------------


STATE_REMEDIES = {
    "untrusted": "it isn't trusted yet: indus mcp trust {}",
    "changed": "it has changed since you trusted it: indus mcp trust {}",
    "unsandboxed": "it has no sandbox, and one is required: "
    'put "sandbox": "standard" into its row, or what this finds: indus mcp doctor {} --sandbox',
    "unresolved": "one of its variables has no value",
}
"""Why a configured server doesn't start, with the command that helps. `{}` is its name."""
_WORDS = {
    **dict.fromkeys(("ready", "idle", "startable", "known", "asked", "built in"), "ready"),
    **dict.fromkeys(("connecting", "starting"), "starting"),
    **dict.fromkeys(("faulted", "unresolved", "unsandboxed"), "failed"),
    **dict.fromkeys(("untrusted", "changed"), "not trusted"),
    **dict.fromkeys(("disabled", "closing", "closed"), "off"),
    **dict.fromkeys(("unchecked", "unseen"), "-"),
}


def name_state(state: str, reason: str | None = None) -> str:
    """Return the word for a server's phase or its row's state, or "-" if it hasn't been tried. Others stay as they are.

    An idle server starts with its first call, unless a fault with this `reason` keeps it down.
    """
    if state in {"idle", "faulted"} and reason is not None:
        return "sign in" if reason == "sign_in" else "failed"
    return _WORDS.get(state, state)


def name_trust_command(row: ServerRow) -> str:
    """Return the command that shows a row and asks for consent."""
    named = f" --mcp {shlex.quote(row.origin.file)}" if row.origin.scope == "given" else ""
    return f"indus mcp trust {row.id}{named}"


scope_option = click.option(
    "-s", "--scope", type=click.Choice(("user", "project")), help="The file: the user's own, or the project's."
)


@record
class DisabledRow:
    """A server switched off in its file."""

    name: str
    file: str
    scope: Scope


def find_row(plan: ServerPlan, name: str) -> ServerRow:
    """Find the row of a server; raises `click.UsageError` if the name is unknown."""
    for row in plan.rows:
        if row.id == name:
            return row
    raise build_unknown_server(name, [row.id for row in plan.rows])


def build_unknown_server(name: str, names: Sequence[str]) -> click.UsageError:
    """Build the error for an unknown server."""
    if names:
        return build_unknown_name(f"There is no server {name!r} (there are: {', '.join(names)})", name, names)
    return build_unknown_name(f"There is no server {name!r}, and no other: 'indus mcp add' adds one", name, ())


def write_fields(row: ServerRow, fields: Mapping[str, JsonValue]) -> None:
    """Write fields of a row into our file, or remove those that are null, keeping the consent to the row. Blocks.

    Raises:
        BridgeFault: The file isn't ours, or the row has changed since it was read.
        InvalidRowError: A value is invalid.
        OSError: The file can't be written.
    """
    scope = row.origin.scope
    own = list_own_paths(scope, find_project_dir(row.origin))
    if os.path.realpath(row.origin.file) not in map(os.path.realpath, own):
        shown = compact_json({key: "…" if key in VALUE_FIELDS else value for key, value in fields.items()})[1:-1]
        raise BridgeFault(f"{row.origin.file} isn't a file of indus: put {shown} into the row of {row.id!r} yourself")

    def set_fields(before: Mapping[str, JsonValue]) -> JsonObject:
        return {key: value for key, value in {**before, **fields}.items() if key not in fields or value is not None}

    def change(present: JsonObject) -> JsonObject:
        if {**present, "name": row.id} != {**row.written, "name": row.id}:
            raise BridgeFault(f"the row of {row.id!r} in {row.origin.file} has changed since you looked; look again")
        return set_fields(present)

    store = TrustStore()
    is_trusted = scope == "project" and store.consent(row) == "trusted"
    changed = parse_row(row.id, set_fields(row.written), row.origin, expansion=row.expansion)
    if not change_row(row.origin.file, row.id, change, private=scope == "user"):
        raise BridgeFault(f"{row.origin.file} has no server {row.id!r} any more")
    if is_trusted:
        store.approve(changed, describe_row(changed).digest)


def list_run_files(invocation: Invocation) -> Sequence[tuple[str, Scope]]:
    """List every file that may configure servers of a run, existing or not."""
    files: list[tuple[str, Scope]] = []
    for name in () if invocation.no_mcp else invocation.mcp or (invocation.cwd,):
        path = os.path.join(invocation.cwd, os.path.expanduser(name))
        if os.path.isdir(path):
            files += list_all_paths(path)
        else:
            files.append((path, "given"))
    return files


def find_switched_off(invocation: Invocation) -> Sequence[DisabledRow]:
    """List the rows switched off in this run's files."""
    rows: list[DisabledRow] = []
    for path, scope in list_run_files(invocation):
        document = read_config_file(path).document if os.path.isfile(path) else None
        dialect = detect_dialect(path, document) if is_json_object(document) else None
        if dialect is not None and is_json_object(document):
            rows.extend(
                DisabledRow(draft.name, path, scope)
                for draft in dialect.read_rows(document)
                if is_json_object(draft.fields) and is_switched_off(draft.fields)
            )
    return rows


def list_own_files(cwd: str, scope: str | None) -> Sequence[tuple[str, Scope]]:
    """List our files, or just those of a scope. The user may have two."""
    scopes: tuple[Scope, ...] = ("user", "project")
    return [
        (path, each)
        for each in scopes
        if scope in {None, each}
        for path in list_own_paths(each, cwd)
        if os.path.lexists(path) or path == own_config_path(each, cwd)
    ]


def find_own_file(cwd: str, name: str, scope: str | None) -> tuple[str, Scope]:
    """Find which of our files has a server.

    Raises `click.UsageError` if neither has it, or both do and `scope` is missing, and `BridgeFault` if a file can't be
    read.
    """
    places = list_own_files(cwd, scope)
    having = [place for place in places if name in read_own_config(place[0]).rows()]
    if len({whose for _, whose in having}) == 1:
        return having[0]
    context = click.get_current_context(silent=True)
    if having:
        raise click.UsageError(f"{name!r} is in both files: choose one with -s user or -s project", context)
    ours = {path for path, _ in places}
    for path, whose in list_all_paths(cwd) if scope is None else ():
        if path not in ours and os.path.isfile(path) and any(row.id == name for row in read_rows(path, whose)[0]):
            raise click.UsageError(f"{name!r} is in {path}, which indus does not write: change it there", context)
    raise build_unknown_server(name, [server for path, _ in places for server in read_own_config(path).rows()])


def switch_server(cwd: str, name: str, scope: str | None, *, on: bool) -> str:
    """Switch a server on or off in one of our files and return a one-line message.

    Raises `click.UsageError` if neither has it, or both do and `scope` is missing, and `BridgeFault` if the file can't
    be read or written.
    """
    path, whose = find_own_file(cwd, name, scope)

    def switch(row: JsonObject) -> JsonObject:
        if is_switched_off(row) is not on:
            return row
        rest = {key: value for key, value in row.items() if key not in {"enabled", "disabled"}}
        return rest if on else {**rest, "enabled": False}

    change_row(path, name, switch, private=whose == "user")
    return f"Server {name!r} of {path} is switched {'on' if on else 'off'}"


def name_transport(config: ServerConfig) -> str:
    """Return a server's transport, in `mcp add -t` terms."""
    return {"stdio": "stdio", "sse": "sse", "streamable_http": "http"}[config.kind]


def name_way(row: ServerRow) -> str:
    """Name how we reach a server, with the sandbox its process runs in."""
    sandbox = row.config.sandbox if isinstance(row.config, StdioServerConfig) else None
    return name_transport(row.config) + ("" if sandbox is None else f", {sandbox.title} sandbox")


def build_config_facts(row: ServerRow) -> JsonObject:
    """Build a row's facts, with references as written and without variable and header values."""
    config = row.config
    target: JsonObject
    if isinstance(config, StdioServerConfig):
        target = {
            "command": config.command,
            "args": [*show_arguments(config.args, row.expansion)],
            "cwd": config.cwd,
            "env": [*config.env],
        }
        target["sandbox"] = format_profile(config.sandbox)
    else:
        target = {"url": format_url(row), "headers": [*config.headers]}
    include = config.include_tools
    return {
        **target,
        "includeTools": None if include is None else [*include],
        "excludeTools": [*config.exclude_tools],
        "startupTimeoutSec": config.limits.start_s,
        "toolTimeoutSec": config.limits.call_idle_s,
    }


def format_url(row: ServerRow) -> str:
    """Format a row's address, with references as written and without secrets."""
    assert not isinstance(row.config, StdioServerConfig)
    return show_url(row.config.url, row.expansion)


def build_reference_facts(row: ServerRow) -> JsonObject:
    """Build the `references` key of a row's JSON, if it has references."""
    references = [reference.as_json() for reference in find_references(row)]
    return {"references": [*references]} if references else {}


def find_unset(row: ServerRow, environ: Mapping[str, str]) -> str:
    """Find the first variable that a row refers to and that has no value, or return an empty text."""
    named = (found.name for found in find_references(row) if found.kind == "variable")
    return next((name for name in named if name not in environ), "")


def list_secret_warnings(row: ServerRow) -> Sequence[str]:
    """List warnings about a row's references that look like secrets, with their recipients."""
    return [reference.warning for reference in find_references(row) if reference.looks_secret]


# -- new rows ---------------------------------------------------------------------------------
#
# These come from command-line words, for `indus mcp add` and `indus call --stdio/--url`.


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field name: RFC 9110 §5.1."""
_DIGEST_LETTERS = 6


def is_server_name(name: str) -> bool:
    """Tell whether a server in our files may have this name, which prefixes the names of its tools."""
    return _NAME.fullmatch(name) is not None


def parse_server_row(name: str, fields: JsonObject, path: str, scope: Scope) -> ServerRow:
    """Parse the fields of a row as if read from `path`, and print remarks.

    Raises `click.UsageError` if the name or a field is invalid.
    """
    if not is_server_name(name):
        raise _build_usage_error(
            f"{name!r} is not a valid name of a server: use letters, digits, '.', '_' and '-', at most 64"
        )
    try:
        row = parse_row(name, fields, Origin(path, scope, "indus"), expansion="shell")
    except InvalidRowError as exc:
        raise _build_usage_error(f"Server {name!r}: {exc}") from exc
    for remark in row.remarks:
        print_status(f"server {name!r}: {remark}")
    return row


def build_fields(
    target: Sequence[str], transport: str | None = None, headers: Sequence[str] = (), env: Sequence[str] = ()
) -> JsonObject:
    """Build the fields of a row from `target`: a URL, or a command and its arguments.

    Raises `click.UsageError` if the target is neither, or the options don't fit it.
    """
    if not target or not target[0]:
        raise _build_usage_error("Say where the server is: a URL, or -- and the command that starts it")
    is_url = target[0].lower().startswith(("http://", "https://"))
    if transport == "stdio" and is_url:
        raise _build_usage_error("A URL is reached by http or sse, not by stdio")
    if is_url:
        return _build_remote_fields(target, transport, headers, env)
    if "://" in target[0]:
        raise _build_usage_error(f"{target[0]!r} is not an address of a server: it starts with http:// or https://")
    if transport in {"http", "sse"}:
        raise _build_usage_error(f"With -t {transport} the server is a URL, not {target[0]!r}")
    if headers:
        raise _build_usage_error("-H is for a URL; a command takes variables: -e NAME=VALUE")
    fields: JsonObject = {"command": target[0]}
    if target[1:]:
        fields["args"] = [*target[1:]]
    variables: JsonObject = {}
    for text in env:
        name, equals, value = text.partition("=")
        if not equals or not VARIABLE.fullmatch(name) or "\0" in value:
            # Don't repeat the text: it may be the secret itself.
            raise _build_usage_error("-e takes NAME=VALUE, and a name has letters, digits and '_'")
        variables[name] = value
    return {**fields, "env": variables} if variables else fields


def _build_remote_fields(
    target: Sequence[str], transport: str | None, headers: Sequence[str], env: Sequence[str]
) -> JsonObject:
    url = target[0]
    if len(target) > 1:
        raise _build_usage_error(f"A URL stands alone: what is {target[1]!r} for?")
    if env:
        raise _build_usage_error("-e is for a command; a URL takes headers: -H 'NAME: VALUE'")
    try:
        is_valid = bool(urlsplit(url).hostname) and url.isprintable() and " " not in url
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _build_usage_error(f"{hide_in_urls(url)!r} is not a valid address of a server")
    pairs: JsonObject = {}
    for text in headers:
        name, colon, value = text.partition(":")
        if not colon or not HEADER.fullmatch(name) or not value.strip().isprintable():
            raise _build_usage_error("-H takes 'NAME: VALUE' in one line")
        pairs[name] = value.strip()
    fields: JsonObject = {"type": transport or "http", "url": url}
    return {**fields, "headers": pairs} if pairs else fields


def _build_usage_error(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context(silent=True))


# -- ad hoc servers ---------------------------------------------------------------------------


def suggest_name(target: Sequence[str]) -> str:
    """Suggest a server's name: the host of its address, or the last word of its command that looks like a name."""
    if target[0].lower().startswith(("http://", "https://")):
        base = urlsplit(target[0]).hostname or ""
    else:
        secrets = {index for index, _, _ in find_option_secrets(target)}
        words = [word for index, word in enumerate(target) if index not in secrets and not holds_secret(word)]
        base = next((word for word in reversed(words) if re.search("[A-Za-z]{3}", word)), "")
    return re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(base.rstrip("/")))[:24].strip("-") or "server"


def plan_ad_hoc_server(
    context: click.Context, line: str | None, url: str | None, headers: Sequence[str], sandbox: str | None = None
) -> ServerPlan:
    """Plan one unconfigured server: the command of `--stdio`, or the address of `--url`.

    Typing it implies consent. Its id includes a digest of the command or address, so the ledger recognizes it later.
    Raises `click.UsageError` if both or neither are present, or it's invalid.
    """
    if (line is None) == (url is None):
        raise click.UsageError("Give either --stdio COMMAND or --url URL; -H goes with --url", context)
    if context.params.get("mcp"):
        raise click.UsageError("--stdio and --url name the server: --mcp has no effect", context)
    try:
        target = shlex.split(line) if line is not None else [url or ""]
    except ValueError as exc:
        raise click.UsageError(f"--stdio: {exc}", context) from exc
    if not target:
        raise click.UsageError("--stdio takes the command that starts the server", context)
    fields = build_fields(target, headers=headers) | ({"sandbox": sandbox} if sandbox and line is not None else {})
    digest = hashlib.sha256("\0".join(target).encode("utf-8", "replace")).hexdigest()
    server = f"{suggest_name(target)}-{digest[:_DIGEST_LETTERS]}"
    row = parse_server_row(server, fields, os.path.abspath("."), "user")
    configs, notes = resolve_rows([row], os.environ)
    return ServerPlan((row,), configs, {row.id: "trusted"}, notes)


def hide_ad_hoc_id(text: str, row: ServerRow) -> str:
    """Replace an ad hoc server's id in our messages, since no command or file knows it.

    The server goes by its address, tools by their plain names, and the sign-in becomes a header.
    """
    config = row.config
    shown = "the server"
    if not isinstance(config, StdioServerConfig):
        shown += f" at {show_url(config.url, row.expansion)}"
    hidden = {
        f"indus mcp login {row.id}": "give its token with -H 'Authorization: Bearer TOKEN'",
        f"server {row.id!r}": shown,
        f"{row.id}{QUALIFIER}": "",
    }
    for made_up, typed in hidden.items():
        text = text.replace(made_up, typed)
    return text
