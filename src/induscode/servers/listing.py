"""Rows of the configuration: found by name, in use or switched off, and their public facts."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import click

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
"""Why a server that is configured is not started, with the command that helps; `{}` is its name."""


def name_trust_command(row: ServerRow) -> str:
    """Name the command that shows a row, and agrees to it."""
    named = f" --mcp {shlex.quote(row.origin.file)}" if row.origin.scope == "given" else ""
    return f"indus mcp trust {row.id}{named}"


scope_option = click.option(
    "-s", "--scope", type=click.Choice(("user", "project")), help="The file: the user's own, or the project's."
)


@record
class DisabledRow:
    """A server that is switched off in its file."""

    name: str
    file: str
    scope: Scope


def find_row(plan: ServerPlan, name: str) -> ServerRow:
    """Find the row of a server.

    Raises:
        click.UsageError: The name is unknown.
    """
    for row in plan.rows:
        if row.id == name:
            return row
    raise build_unknown_server(name, [row.id for row in plan.rows])


def build_unknown_server(name: str, names: Sequence[str]) -> click.UsageError:
    """Build the error of an unknown server."""
    if names:
        return build_unknown_name(f"There is no server {name!r} (there are: {', '.join(names)})", name, names)
    return build_unknown_name(f"There is no server {name!r}, and no other: 'indus mcp add' adds one", name, ())


def find_switched_off(invocation: Invocation) -> Sequence[DisabledRow]:
    """List the rows that are switched off in the files of this run."""
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
            drafts = dialect.read_rows(document)
            rows.extend(
                DisabledRow(draft.name, path, scope)
                for draft in drafts
                if is_json_object(draft.fields) and is_switched_off(draft.fields)
            )
    return rows


def _list_all_files(folder: str) -> list[tuple[str, Scope]]:
    """List the files that may configure servers in a directory, existing or not."""
    return [*list_config_paths(folder), (os.path.join(folder, ".mcp.json"), "project")]


def list_own_files(cwd: str, scope: str | None) -> Sequence[tuple[str, Scope]]:
    """List our own files, or the one of a scope."""
    scopes: tuple[Scope, ...] = ("user", "project")
    return [(own_config_path(each, cwd), each) for each in scopes if scope in {None, each}]


def find_own_file(cwd: str, name: str, scope: str | None) -> tuple[str, Scope]:
    """Find which of our own files has a server.

    Raises:
        click.UsageError: None has it, or both have it and no scope is given.
        BridgeFault: A file cannot be read.
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
    """Switch a server on or off in one of our own files, and say so in one line.

    Raises:
        click.UsageError: None has it, or both have it and no scope is given.
        BridgeFault: The file cannot be read or written.
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
    """Return the transport of a server, as `mcp add -t` names it."""
    return {"stdio": "stdio", "sse": "sse", "streamable_http": "http"}[config.kind]


def build_config_facts(row: ServerRow) -> JsonObject:
    """Build the facts of a row: references as written, without the values of variables and headers."""
    config = row.config
    target: JsonObject
    if isinstance(config, StdioServerConfig):
        target = {"command": config.command, "args": [*config.args], "cwd": config.cwd, "env": [*config.env]}
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
    """Format the address of a row, with references as written and without secrets."""
    from induscode.servers.config.references import show_url  # noqa: PLC0415 — for servers with an address

    assert not isinstance(row.config, StdioServerConfig)
    return show_url(row.config.url, row.expansion)


def build_reference_facts(row: ServerRow) -> JsonObject:
    """Build the key `references` of the JSON of a row; nothing if it has no references."""
    from induscode.servers.config.references import find_references  # noqa: PLC0415 — for rows without consent

    references = [reference.as_json() for reference in find_references(row)]
    return {"references": [*references]} if references else {}


def list_secret_warnings(row: ServerRow) -> Sequence[str]:
    """List warnings about references of a row that look like secrets, with the receiver of each."""
    from induscode.servers.config.references import find_references  # noqa: PLC0415 — for rows without consent

    return [reference.warning for reference in find_references(row) if reference.looks_secret]
