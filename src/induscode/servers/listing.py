"""Configuration rows: lookup by name, whether in use or switched off, and their public facts."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

from indusagi.capabilities.sandbox.profile import format_profile
from indusagi.core.config_file import read_config_file
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.cli.output import build_unknown_name
from induscode.servers.config import list_config_paths, read_rows
from induscode.servers.config.dialects import detect_dialect
from induscode.servers.config.rows import is_switched_off
from induscode.servers.config.writer import change_row, own_config_path, read_own_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.launch.invocation import Invocation
    from induscode.servers.config.rows import Scope, ServerRow
    from induscode.servers.plan import ServerPlan

STATE_REMEDIES = {
    "untrusted": "it needs your consent: indus mcp trust {}",
    "changed": "it has changed since you consented to it: indus mcp trust {}",
    "unresolved": "one of its variables has no value",
}
"""Why a configured server doesn't start, with the command that helps. `{}` is its name."""


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


def find_switched_off(invocation: Invocation) -> Sequence[DisabledRow]:
    """List the rows switched off in this run's files."""
    if invocation.no_mcp:
        return ()
    files: list[tuple[str, Scope]] = []
    for name in invocation.mcp if invocation.mcp is not None else (invocation.cwd,):
        path = os.path.join(invocation.cwd, os.path.expanduser(name))
        if os.path.isdir(path):
            files += _list_all_files(path)
        else:
            files.append((path, "given"))
    rows: list[DisabledRow] = []
    for path, scope in files:
        document = read_config_file(path).document if os.path.isfile(path) else None
        dialect = detect_dialect(path, document) if is_json_object(document) else None
        if dialect is not None and is_json_object(document):
            rows.extend(
                DisabledRow(draft.name, path, scope)
                for draft in dialect.read_rows(document)
                if is_json_object(draft.fields) and is_switched_off(draft.fields)
            )
    return rows


def _list_all_files(folder: str) -> list[tuple[str, Scope]]:
    """List the files that could configure servers in a directory, existing or not."""
    return [*list_config_paths(folder), (os.path.join(folder, ".mcp.json"), "project")]


def list_own_files(cwd: str, scope: str | None) -> Sequence[tuple[str, Scope]]:
    """List our files, or just the one of a scope."""
    scopes: tuple[Scope, ...] = ("user", "project")
    return [(own_config_path(each, cwd), each) for each in scopes if scope in {None, each}]


def find_own_file(cwd: str, name: str, scope: str | None) -> tuple[str, Scope]:
    """Find which of our files has a server.

    Raises:
        click.UsageError: Neither has it, or both do and `scope` is missing.
        BridgeFault: A file can't be read.
    """
    places = list_own_files(cwd, scope)
    having = [place for place in places if name in read_own_config(place[0]).rows()]
    if len(having) == 1:
        return having[0]
    context = click.get_current_context(silent=True)
    if having:
        raise click.UsageError(f"{name!r} is in both files: choose one with -s user or -s project", context)
    ours = {path for path, _ in places}
    for path, whose in _list_all_files(cwd) if scope is None else ():
        if path not in ours and os.path.isfile(path) and any(row.id == name for row in read_rows(path, whose)[0]):
            raise click.UsageError(f"{name!r} is in {path}, which indus does not write: change it there", context)
    raise build_unknown_server(name, [server for path, _ in places for server in read_own_config(path).rows()])


def switch_server(cwd: str, name: str, scope: str | None, *, on: bool) -> str:
    """Switch a server on or off in one of our files and return a one-line message.

    Raises:
        click.UsageError: Neither has it, or both do and `scope` is missing.
        BridgeFault: The file can't be read or written.
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


def build_config_facts(row: ServerRow) -> JsonObject:
    """Build a row's facts, with references as written and without variable and header values."""
    config = row.config
    target: JsonObject
    if isinstance(config, StdioServerConfig):
        target = {"command": config.command, "args": [*config.args], "cwd": config.cwd, "env": [*config.env]}
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
    from induscode.servers.config.references import show_url  # noqa: PLC0415 — for servers with an address

    assert not isinstance(row.config, StdioServerConfig)
    return show_url(row.config.url, row.expansion)


def build_reference_facts(row: ServerRow) -> JsonObject:
    """Build the `references` key of a row's JSON, if it has references."""
    from induscode.servers.config.references import find_references  # noqa: PLC0415 — for rows without consent

    references = [reference.as_json() for reference in find_references(row)]
    return {"references": [*references]} if references else {}


def list_secret_warnings(row: ServerRow) -> Sequence[str]:
    """List warnings about a row's references that look like secrets, with their recipients."""
    from induscode.servers.config.references import find_references  # noqa: PLC0415 — for rows without consent

    return [reference.warning for reference in find_references(row) if reference.looks_secret]
