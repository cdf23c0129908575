"""`indus mcp add` and `add-json`: another server in one of our own files."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import click

from indusagi.core.json import is_json_object
from indusagi.core.text import format_count
from induscode.commands.support.output import print_notes
from induscode.commands.support.runner import load_plan, opened_store, run_until_signal
from induscode.commands.support.servers import scope_option
from induscode.deck.mcp.config.rows import InvalidRowError, Origin, parse_row
from induscode.deck.mcp.config.writer import edit_own_config, own_config_path
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.mcp.config.rows import Scope, ServerRow
    from induscode.launch.invocation import Invocation

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REFERENCE = re.compile(r"\$\{[^}]+\}")
_LARGEST_INPUT = 1024 * 1024


class _AddCommand(click.Command):
    """Reminds of `--` where the option of a server was taken for one of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            if "--" in args:
                raise
            said = f"{exc.format_message()} Options of the server's command come after --"
            raise click.UsageError(said, ctx) from exc


def _option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(*names, **settings)


no_check = _option("--no-check", is_flag=True, help="Do not start it to see whether it works.")


@flags("--cwd")
@click.command("add", cls=_AddCommand)
@click.argument("name")
@click.argument("target", nargs=-1, metavar="(URL | -- COMMAND [ARGUMENT]…)")
@scope_option
@_option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable for the process.")
@_option("-t", "--transport", type=click.Choice(("http", "sse", "stdio")), help="How it is reached.")
@_option("-H", "--header", multiple=True, metavar="'NAME: VALUE'", help="A header of requests.")
@_option("--timeout", metavar="SECONDS", help="How long a call may go without progress.")
@_option("--startup-timeout", metavar="SECONDS", help="How long it may take to come up.")
@_option("--include-tools", multiple=True, metavar="NAME,…", help="Only these of its tools.")
@_option("--exclude-tools", multiple=True, metavar="NAME,…", help="None of these tools.")
@_option("--required", is_flag=True, help="A run without it makes no sense.")
@_option("--start", type=click.Choice(("eager", "lazy")), help="At once, or by the first call.")
@_option("--replace", is_flag=True, help="Take the place of a server of this name.")
@no_check
@click.pass_context
def add(
    context: click.Context,
    name: str,
    target: tuple[str, ...],
    *,
    scope: str | None,
    replace: bool,
    no_check: bool,
    **options: Any,
) -> int:
    """Add the server NAME: a URL, or the COMMAND that starts it.

    ${VARIABLE} in a value is taken from the environment when the server is started. A server that
    is added to the project is consented to as it is. It is started once, to say how it is.
    """
    fields = {**_target(target, options), **_behaviour(options)}
    where = cast("Scope", scope or "user")
    return _add_server(context, name, fields, where, replace=replace, check=not no_check)


@flags("--cwd")
@click.command("add-json")
@click.argument("name")
@click.argument("document", metavar="JSON|-")
@scope_option
@_option("--replace", is_flag=True, help="Take the place of a server of this name.")
@no_check
@click.pass_context
def add_json(
    context: click.Context, name: str, document: str, *, scope: str | None, replace: bool, no_check: bool, **_: object
) -> int:
    """Add the server NAME as a JSON object describes it; - reads it from standard input."""
    text = document
    if document == "-":
        text = "" if sys.stdin is None else sys.stdin.read(_LARGEST_INPUT)
    try:
        fields: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"This is invalid JSON: {exc}", context) from exc
    if not is_json_object(fields):
        raise click.UsageError('The server must be a JSON object, like {"command": …}', context)
    where = cast("Scope", scope or "user")
    return _add_server(context, name, fields, where, replace=replace, check=not no_check)


def _add_server(
    context: click.Context, name: str, fields: JsonObject, scope: Scope, *, replace: bool, check: bool
) -> int:
    cwd = read_invocation(context).cwd
    path = own_config_path(scope, cwd)
    row = parse_server_row(name, fields, path, scope)
    with edit_own_config(path, private=scope == "user") as config:
        if name in config.rows() and not replace:
            said = f"{path} has a server {name!r}: give another name, or --replace"
            raise click.UsageError(said, context)
        config.put(name, fields)
    print_line(f"Added server {name!r} to {path}")
    if scope == "project":
        consent(row)
    warn(row, scope)
    stronger = _in_force(cwd, name, path)
    if stronger is not None:
        print_status(f"{stronger} has a server {name!r} as well, and that one is used")
    elif check:
        return try_server(read_invocation(context), name)
    return 0


def try_server(invocation: Invocation, name: str) -> int:
    """Start a server once and tell how it is; 0 also if it fails, since it was added."""
    plan = load_plan(invocation).narrow([name])

    async def start(_: CancelToken) -> int:
        from time import monotonic  # noqa: PLC0415 — for this alone

        from induscode.boot.runners import START_ONCE, attach_servers  # noqa: PLC0415 — brings the bridge

        async with opened_store() as store:
            began = monotonic()
            mcp = await attach_servers(plan, store, START_ONCE)
            took_s = monotonic() - began
            try:
                status = mcp.status()[name]
            finally:
                await mcp.aclose()
            print_notes(store.notes)
        if status.fault is None:
            tools = format_count(status.tool_count, "tool")
            print_line(f"Server {name!r}: {status.phase}, {tools}, {took_s:.1f} s")
            print_notes(note for note in mcp.notes if note in status.notes)
        else:
            print_status(f"{status.fault}. The server stays added: indus mcp doctor {name}")
        return 0

    if name not in plan.configs:  # a variable of it has no value, which a note says
        print_notes(plan.notes)
        return 0
    return run_until_signal(start)


def consent(row: ServerRow) -> None:
    """Take the typing of a command for consent to the server that it names."""
    from induscode.deck.mcp.config.trust import TrustStore  # noqa: PLC0415 — for servers of a project

    TrustStore().approve(row)
    print_line(f"You have consented to {row.id!r} as it is; everybody else is asked: indus mcp trust")


def is_server_name(name: str) -> bool:
    """Tell whether a server of ours may be called this; names of tools begin with it."""
    return _NAME.fullmatch(name) is not None


def parse_server_row(name: str, fields: JsonObject, path: str, scope: Scope) -> ServerRow:
    """Make the row, as it will be read.

    Raises:
        click.UsageError: It is none.
    """
    context = click.get_current_context(silent=True)
    if not is_server_name(name):
        said = f"{name!r} is no name for a server: use letters, digits, '.', '_' and '-', at most 64"
        raise click.UsageError(said, context)
    try:
        row = parse_row(name, fields, Origin(path, scope, "indus"), expansion="shell")
    except InvalidRowError as exc:
        raise click.UsageError(f"Server {name!r}: {exc}", context) from exc
    for remark in row.remarks:
        print_status(f"server {name!r}: {remark}")
    return row


def warn(row: ServerRow, scope: Scope) -> None:
    """Say what will probably go wrong, or is better done another way."""
    from indusagi.interop.protocol_bridge.contract import StdioServerConfig  # noqa: PLC0415 — light, but only here

    config = row.config
    secrets = config.env if isinstance(config, StdioServerConfig) else config.headers
    plain = [one for one, value in secrets.items() if not _REFERENCE.search(value)]
    if scope == "project" and plain:
        said = f"the value of {', '.join(plain)} stands in a file of the project"
        print_status(f"{said}: write ${{VARIABLE}} to take it from the environment")
    if isinstance(config, StdioServerConfig):
        if not _REFERENCE.search(config.command) and shutil.which(config.command) is None:
            print_status(f"the command {config.command!r} is not on PATH: indus mcp doctor {row.id}")


# -- from the words of the command ------------------------------------------------------------


def _usage(said: str) -> click.UsageError:
    return click.UsageError(said, click.get_current_context(silent=True))


def _target(target: Sequence[str], options: dict[str, Any]) -> JsonObject:
    """Read what is to be reached or started.

    Raises:
        click.UsageError: It is neither an address nor a command, or the options do not fit it.
    """
    if not target or not target[0]:
        raise _usage("Say where the server is: a URL, or -- and the command that starts it")
    transport: str | None = options["transport"]
    is_url = target[0].lower().startswith(("http://", "https://"))
    if transport == "stdio" and is_url:
        raise _usage("A URL is reached by http or sse, not by stdio")
    if is_url:
        return _remote(target, options)
    if "://" in target[0]:
        raise _usage(f"{target[0]!r} is not an address of a server: it starts with http:// or https://")
    if transport in {"http", "sse"}:
        raise _usage(f"With -t {transport} the server is a URL, not {target[0]!r}")
    if options["header"]:
        raise _usage("-H is for a URL; a command takes variables: -e NAME=VALUE")
    fields: JsonObject = {"command": target[0]}
    if target[1:]:
        fields["args"] = [*target[1:]]
    if options["env"]:
        fields["env"] = dict(_variable(one) for one in options["env"])
    return fields


def server_fields(target: Sequence[str], headers: Sequence[str]) -> JsonObject:
    """Give the fields of the row of a server: a URL with headers, or the words of a command.

    Raises:
        click.UsageError: It is neither an address nor a command.
    """
    return _target(target, {"transport": None, "header": headers, "env": ()})


def _remote(target: Sequence[str], options: dict[str, Any]) -> JsonObject:
    url = target[0]
    if len(target) > 1:
        raise _usage(f"A URL stands alone: what is {target[1]!r} for?")
    if options["env"]:
        raise _usage("-e is for a command; a URL takes headers: -H 'NAME: VALUE'")
    try:
        good = bool(urlsplit(url).hostname) and url.isprintable() and " " not in url
    except ValueError:
        good = False
    if not good:
        raise _usage(f"{url!r} is no address of a server")
    fields: JsonObject = {"type": options["transport"] or "http", "url": url}
    if options["header"]:
        fields["headers"] = dict(_header(one) for one in options["header"])
    return fields


def _variable(given: str) -> tuple[str, JsonValue]:
    # What was given is not repeated: it may be the secret itself.
    name, equals, value = given.partition("=")
    if not equals or not _VARIABLE.fullmatch(name) or "\0" in value:
        raise _usage("-e takes NAME=VALUE, and a name has letters, digits and '_'")
    return name, value


def _header(given: str) -> tuple[str, JsonValue]:
    name, colon, value = given.partition(":")
    value = value.strip()
    if not colon or not _HEADER.fullmatch(name) or not value.isprintable():
        raise _usage("-H takes 'NAME: VALUE' in one line")
    return name, value


def _behaviour(options: dict[str, Any]) -> JsonObject:
    from induscode.launch.flags import split_list  # noqa: PLC0415 — the one way to read a list

    fields: JsonObject = {}
    seconds = (("timeout", "tool_timeout_sec"), ("startup_timeout", "startup_timeout_sec"))
    for option, key in seconds:
        if options[option] is not None:
            fields[key] = _seconds(option, options[option])
    for key in ("include_tools", "exclude_tools"):
        names = split_list(options[key])
        if names:
            fields[key] = [*names]
    if options["required"]:
        fields["required"] = True
    if options["start"]:
        fields["start"] = options["start"]
    return fields


def _seconds(option: str, given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        name = option.replace("_", "-")
        raise _usage(f"--{name} takes seconds, a number above 0, not {given!r}")
    return int(number) if number.is_integer() else number


def _in_force(cwd: str, name: str, path: str) -> str | None:
    """Tell which other file's server of this name is used instead, if one is."""
    from induscode.deck.mcp.config import discover_mcp_config  # noqa: PLC0415 — after a change

    for row in discover_mcp_config(cwd).rows:
        if row.id == name and os.path.abspath(path) != row.origin.file:
            return row.origin.file
    return None
