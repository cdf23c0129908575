"""The servers of a configuration, found by their names, whether they are in use or not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from indusagi.core.config_file import read_config_file
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.commands.support.groups import build_unknown_name
from induscode.deck.mcp.config import list_config_paths, read_rows
from induscode.deck.mcp.config.dialects import detect_dialect
from induscode.deck.mcp.config.rows import is_switched_off
from induscode.deck.mcp.config.writer import own_config_path, read_own_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.config.rows import Scope, ServerRow
    from induscode.launch.invocation import Invocation

STATE_REMEDIES = {
    "untrusted": "it needs your consent: indus mcp trust {}",
    "changed": "it has changed since you consented to it: indus mcp trust {}",
    "unresolved": "one of its variables has no value",
}
"""Why a server that is configured is not started, with the command that helps; `{}` is its name."""

scope_option = click.option(
    "-s", "--scope", type=click.Choice(("user", "project")), help="Whose file: the user's own, or the project's."
)


@record
class SwitchedOff:
    """A server that its file says is not to be used."""

    name: str
    file: str
    scope: Scope


def find_row(plan: ServerPlan, name: str) -> ServerRow:
    """Find the row of a name.

    Raises:
        click.UsageError: There is none.
    """
    for row in plan.rows:
        if row.id == name:
            return row
    raise build_unknown_server(name, [row.id for row in plan.rows])


def build_unknown_server(name: str, names: Sequence[str]) -> click.UsageError:
    """Make the error of a server that is not configured."""
    if names:
        return build_unknown_name(f"There is no server {name!r} (there are: {', '.join(names)})", name, names)
    return build_unknown_name(f"There is no server {name!r}, and no other: 'indus mcp add' adds one", name, ())


def find_switched_off(invocation: Invocation) -> Sequence[SwitchedOff]:
    """List the rows that are switched off in the files that are looked at."""
    found: list[SwitchedOff] = []
    for path, scope in _places(invocation):
        document = read_config_file(path).document if os.path.isfile(path) else None
        dialect = detect_dialect(path, document) if is_json_object(document) else None
        if dialect is not None and is_json_object(document):
            drafts = dialect.read_rows(document)
            found.extend(
                SwitchedOff(draft.name, path, scope)
                for draft in drafts
                if is_json_object(draft.fields) and is_switched_off(draft.fields)
            )
    return found


def _places(invocation: Invocation) -> Iterable[tuple[str, Scope]]:
    folders = [invocation.cwd]
    if invocation.mcp is not None:
        folders.clear()
        for given in invocation.mcp:
            path = os.path.join(invocation.cwd, os.path.expanduser(given))
            if not os.path.isdir(path):
                yield path, "given"
            else:
                folders.append(path)
    for folder in folders:
        yield from list_config_paths(folder)
        yield os.path.join(folder, ".mcp.json"), "project"


def own_places(cwd: str, scope: str | None) -> Sequence[tuple[str, Scope]]:
    """Name our own files, or the one of a scope."""
    scopes: tuple[Scope, ...] = ("user", "project")
    return [(own_config_path(one, cwd), one) for one in scopes if scope in {None, one}]


def own_place_of(cwd: str, name: str, scope: str | None) -> tuple[str, Scope]:
    """Find which of our own files has a server.

    Raises:
        click.UsageError: None has, or both have and nobody said which is meant.
        BridgeFault: A file cannot be read.
    """
    places = own_places(cwd, scope)
    having = [place for place in places if name in read_own_config(place[0]).rows()]
    if len(having) == 1:
        return having[0]
    context = click.get_current_context(silent=True)
    if having:
        said = f"{name!r} stands in both files: say which one with -s user or -s project"
        raise click.UsageError(said, context)
    elsewhere = _elsewhere(cwd, name)
    if elsewhere is not None and scope is None:
        said = f"{name!r} stands in {elsewhere}, which is not written by indus: change it there"
        raise click.UsageError(said, context)
    raise build_unknown_server(name, [one for path, _ in places for one in read_own_config(path).rows()])


def _elsewhere(cwd: str, name: str) -> str | None:
    ours = {path for path, _ in own_places(cwd, None)}
    others = [*list_config_paths(cwd), (os.path.join(cwd, ".mcp.json"), "project")]
    for path, scope in others:
        if path not in ours and os.path.isfile(path):
            if any(row.id == name for row in read_rows(path, scope)[0]):  # type: ignore[arg-type]
                return path
    return None


def transport_of(config: ServerConfig) -> str:
    """Name the way a server is reached, as `mcp add -t` does."""
    return {"stdio": "stdio", "sse": "sse", "streamable_http": "http"}[config.kind]


def config_facts(row: ServerRow) -> JsonObject:
    """Tell what a server is made from: references as written, other values left out."""
    config = row.config
    shown: JsonObject
    if isinstance(config, StdioServerConfig):
        shown = {"command": config.command, "args": [*config.args], "cwd": config.cwd, "env": [*config.env]}
    else:
        shown = {"url": format_url(row), "headers": [*config.headers]}
    include = config.include_tools
    return {
        **shown,
        "includeTools": None if include is None else [*include],
        "excludeTools": [*config.exclude_tools],
        "startupTimeoutSec": config.limits.start_s,
        "toolTimeoutSec": config.limits.call_idle_s,
    }


def format_url(row: ServerRow) -> str:
    """Show the address of a row: where it leads, references as written, secrets hidden."""
    from induscode.deck.mcp.config.references import show_url  # noqa: PLC0415 — for those who show one

    assert not isinstance(row.config, StdioServerConfig)
    return show_url(row.config.url, row.expansion)


def reference_facts(row: ServerRow) -> JsonObject:
    """List the references of a row for `--json`, under `references`; nothing if it has none."""
    from induscode.deck.mcp.config.references import find_references  # noqa: PLC0415 — the same

    found = [one.as_json() for one in find_references(row)]
    return {"references": [*found]} if found else {}


def secret_warnings(row: ServerRow) -> Sequence[str]:
    """Name the references of a row that look like secrets, and who would get them."""
    from induscode.deck.mcp.config.references import find_references  # noqa: PLC0415 — the same

    return [one.warning for one in find_references(row) if one.looks_secret]
