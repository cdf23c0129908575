"""`indus mcp add`, `add-json`, `install`, `remove`, `enable` and `disable`: change servers in our own files.

`search` finds servers in an MCP registry. Nothing from an entry runs until the user has seen the command, the package,
its version and our verification of it, and has agreed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from indusagi.capabilities.sandbox.profile import ENGINES, PROFILES, server_home
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.secrets import looks_secret
from indusagi.interop.protocol_bridge.contract import StdioServerConfig, needs_sign_in
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, ask_consent, can_ask_user, confirm, digest_option, print_notes
from induscode.cli.signals import run_for_result, run_until_signal
from induscode.cli.terminal import print_line, print_status
from induscode.commands.groups import complete_server
from induscode.launch.flags import split_list
from induscode.launch.invocation import Invocation
from induscode.launch.options import define_command, read_invocation
from induscode.launch.settings import REGISTRY_URL
from induscode.servers.config import discover_mcp_config
from induscode.servers.config.rows import Scope, ServerRow
from induscode.servers.config.trust import TrustStore, describe_row
from induscode.servers.config.writer import edit_own_config, own_config_path, read_own_config
from induscode.servers.edits import RELATIVE, add_row, choose_sandbox, find_former, remove_row, resolve_paths
from induscode.servers.plan import (
    build_fields,
    digest_place,
    find_own_file,
    parse_server_row,
    scope_option,
    switch_server,
)
from induscode.servers.remedies import format_server_command

if TYPE_CHECKING:
    from indusagi.interop.auth.secrets import SecretFiles
    from induscode.servers.plain_secrets import SecretMove
    from induscode.servers.registry import Installation

_REFERENCE = re.compile(r"\$\{[^}]+\}")
_MAX_INPUT_CHARS = 1024 * 1024
_CONSENTED = "You have consented to {!r} as it is; other users are asked: indus mcp trust"


class AddCommand(click.Command):
    """Adds a hint about `--` to unknown-option errors."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            if "--" in args:
                raise
            message = f"{exc.format_message()} Options of the server's command come after --"
            raise click.UsageError(message, ctx) from exc


no_check = click.option("--no-check", is_flag=True, help="Do not start it for a check.")
allow_tag = click.option(
    "--allow-tag", is_flag=True, help="The image may have a tag in place of a digest: it can change."
)
sandbox_option = click.option(
    "--sandbox",
    "profile",  # a session has a flag of the same name with another meaning
    type=click.Choice(("off", *PROFILES)),
    help="What its process may touch; standard by default where this machine has a sandbox.",
)
store_option = click.option(
    "--store-secrets/--keep-plain",
    "stores",
    default=None,
    help="Store values that look like secrets apart, with references in the row; or keep them in the file.",
)


@define_command("add", "--cwd", cls=AddCommand)
@click.argument("name")
@click.argument("target", nargs=-1, metavar="(URL | -- COMMAND [ARGUMENT]…)")
@scope_option
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable for the process.")
@click.option("-t", "--transport", type=click.Choice(("http", "sse", "stdio")), help="The transport.")
@click.option("-H", "--header", multiple=True, metavar="'NAME: VALUE'", help="A header of requests.")
@click.option("--timeout", metavar="SECONDS", help="How long a call may go without progress.")
@click.option("--startup-timeout", metavar="SECONDS", help="How long it may take to come up.")
@click.option("--include-tools", multiple=True, metavar="NAME,…", help="Only these of its tools.")
@click.option("--exclude-tools", multiple=True, metavar="NAME,…", help="None of these tools.")
@click.option("--required", is_flag=True, help="A run fails without it.")
@click.option("--start", type=click.Choice(("eager", "lazy")), help="When it starts: at once, or at the first call.")
@sandbox_option
@click.option("--image", metavar="NAME@sha256:DIGEST", help="Run the command in a container of this image.")
@click.option("--container", type=click.Choice(ENGINES), default="docker", show_default=True, help="With --image.")
@allow_tag
@click.option("--replace", is_flag=True, help="Replace a server of this name.")
@store_option
@no_check
def add(
    context: click.Context,
    name: str,
    target: tuple[str, ...],
    *,
    scope: str | None,
    replace: bool,
    stores: bool | None,
    no_check: bool,
    **options: Any,
) -> int:
    """Add the server NAME: a URL, or the COMMAND that starts it.

    ${VARIABLE} in a value is read from the environment when the server starts. Adding a server to the project trusts
    it. indus starts it once to check it.
    """
    where = cast("Scope", scope or "user")
    if where == "user":
        target = resolve_paths(target, read_invocation(context).cwd)
    fields = build_fields(target, options["transport"], options["header"], options["env"])
    for option, key in (("timeout", "tool_timeout_sec"), ("startup_timeout", "startup_timeout_sec")):
        if options[option] is not None:
            fields[key] = parse_seconds(option, options[option])
    for key in ("include_tools", "exclude_tools"):
        names = split_list(options[key])
        if names:
            fields[key] = [*names]
    if options["required"]:
        fields["required"] = True
    if options["start"]:
        fields["start"] = options["start"]
    if not options["image"]:
        cwd = read_invocation(context).cwd
        before = own_config_path(where, cwd) if replace else None
        fields, about = choose_sandbox(name, fields, options["profile"], cwd, before)
        return add_server(context, name, fields, where, about, replace=replace, check=not no_check, stores=stores)
    if options["profile"] or "url" in fields:
        raise click.UsageError("--image is for a command, and can't be used with --sandbox")
    tag: JsonObject = {"allow_tag": True} if options["allow_tag"] else {}
    fields["sandbox"] = {"container": options["container"], "image": options["image"], **tag}
    return add_server(context, name, fields, where, replace=replace, check=not no_check, stores=stores)


def parse_seconds(option: str, text: str) -> float:
    """Parse the value of an option like `startup_timeout`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise click.UsageError(f"--{option.replace('_', '-')} takes seconds, a number above 0, not {text!r}")
    return int(number) if number.is_integer() else number


@define_command("add-json", "--cwd")
@click.argument("name")
@click.argument("document", metavar="JSON|-")
@scope_option
@click.option("--replace", is_flag=True, help="Replace a server of this name.")
@store_option
@no_check
def add_json(
    context: click.Context,
    name: str,
    document: str,
    *,
    scope: str | None,
    replace: bool,
    stores: bool | None,
    no_check: bool,
) -> int:
    """Add the server NAME as a JSON object describes it; - reads it from standard input."""
    text = document
    if document == "-":
        text = "" if sys.stdin is None else sys.stdin.read(_MAX_INPUT_CHARS)
    try:
        fields: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"This is invalid JSON: {exc}") from exc
    if not is_json_object(fields):
        raise click.UsageError('The server must be a JSON object, like {"command": …}')
    where = cast("Scope", scope or "user")
    return add_server(context, name, fields, where, replace=replace, check=not no_check, stores=stores)


def add_server(
    context: click.Context,
    name: str,
    fields: JsonObject,
    scope: Scope,
    about: str = "",
    *,
    replace: bool,
    check: bool,
    stores: bool | None = None,
) -> int:
    """Add a server to one of our files, start it once as a check, and return the exit code.

    `about` is a line for the user. Secrets of the row are stored apart (`stores`), or the user is asked.
    """
    invocation = read_invocation(context)
    path = own_config_path(scope, invocation.cwd)
    parse_server_row(name, fields, path, scope)
    former = find_former(read_own_config(path), name, replace=replace)
    fields = store_secrets(path, name, fields, former, stores)
    row = add_row(name, fields, path, scope, replace=replace)
    print_line(f"Added server {name!r} to {path}")
    if about:
        print_line(about)
    if scope == "project":
        print_line(_CONSENTED.format(name))
    target = row.config
    command = target.command if isinstance(target, StdioServerConfig) else None
    if isinstance(target, StdioServerConfig) and target.sandbox is not None and target.sandbox.container is not None:
        command = target.sandbox.container.engine
    values = target.env if isinstance(target, StdioServerConfig) else target.headers
    plain = [key for key, value in values.items() if not _REFERENCE.search(value)]
    if scope == "project" and plain:
        problem = f"the value of {', '.join(plain)} is in a file of the project"
        print_status(f"{problem}: write ${{VARIABLE}} to take it from the environment")
    if isinstance(target, StdioServerConfig) and target.cwd is None:
        relative = next((word for word in (target.command, *target.args) if RELATIVE.match(word)), None)
        if relative is not None:
            print_status(
                f"{relative!r} is relative to the directory indus is started in: write the whole path, or a cwd"
            )
    if not check and command is not None and not _REFERENCE.search(command) and shutil.which(command) is None:
        print_status(f"the command {command!r} is not on PATH: {format_server_command('doctor', row.id)}")
    files = [used.origin.file for used in discover_mcp_config(invocation.cwd).rows if used.id == name]
    other = next((file for file in files if file != os.path.abspath(path)), None)
    if other is not None:
        print_status(f"{other} has a server {name!r} as well, and that one is used")
        return 0
    return _check_server(invocation, name) if check else 0


def store_secrets(
    path: str, name: str, fields: JsonObject, former: JsonObject | None, stores: bool | None
) -> JsonObject:
    """Store the secrets of a row apart if the user wants that, and return the row to write."""
    from indusagi.interop.auth.secrets import SecretFiles  # noqa: PLC0415 — imports the keyring's code
    from induscode.servers.plain_secrets import plan_move  # noqa: PLC0415 — for a new row

    store = SecretFiles()
    move = plan_move(name, fields, store.list_rows(), former)
    if move is None or stores is False:
        return fields
    if stores is None and not can_ask_user():
        places = ", ".join(secret.place for secret in move.secrets)
        remedy = f"indus secrets move {shlex.quote(name)} (--keep-plain: no such note)"
        print_status(f"server {name!r}: plain text in {path} looks like a secret: {places}. To keep it apart: {remedy}")
        return fields
    if not stores and not ask_to_store([move]):
        return fields
    keep_apart(store, [move])
    return move.build_row()


def ask_to_store(moves: Sequence[SecretMove]) -> bool:
    """Show what the secrets become, and ask whether to store them."""
    print_line("These look like secrets:")
    for move in moves:
        for line in move.describe():
            print_line(f"  {line}")
    return confirm("Store them apart (indus secrets), with only references in the file?")


def keep_apart(store: SecretFiles, moves: Sequence[SecretMove], *, quiet: bool = False) -> None:
    """Store secrets, and say where they are. Raises `SecretFault` if one can't be stored."""
    for move in moves:
        move.store(store)
    print_notes(store.notes)
    if not quiet:
        print_line(f"Stored: {', '.join(name for move in moves for name in move.names)} (indus secrets list)")


@define_command("move", "--cwd")
@click.argument("name", shell_complete=complete_server)
@scope_option
@click.option("--yes", is_flag=True, help="Move them without a question.")
def move_secrets(context: click.Context, name: str, *, scope: str | None, yes: bool) -> int:
    """Move the secrets that the row of the server NAME has in plain text into the store, after a question.

    The row in our file gets references instead. There's no copy of the file, which would have the secrets. Exit code 1
    if you decline.
    """
    from indusagi.interop.auth.secrets import SecretFiles  # noqa: PLC0415 — imports the keyring's code
    from induscode.servers.plain_secrets import plan_move  # noqa: PLC0415 — for this command

    path, whose = find_own_file(read_invocation(context).cwd, name, scope)
    fields, store = read_own_config(path).rows()[name], SecretFiles()
    move = plan_move(name, fields, store.list_rows())
    if move is None:
        print_line(f"Server {name!r} has no secrets in plain text in {path}")
        return 0
    if not yes and not can_ask_user():
        raise click.UsageError("There is no terminal for a question; --yes moves them")
    if not yes and not ask_to_store([move]):
        return 1
    keep_apart(store, [move])
    row = move.build_row()
    with edit_own_config(path, private=whose == "user") as config:
        if config.rows().get(name) != fields:
            raise click.UsageError(f"{path} has changed meanwhile: try again")
        config.put(name, row)
    if whose == "project":
        give_consent(parse_server_row(name, row, path, whose))
    print_line(f"Server {name!r} of {path} refers to them now")
    return 0


def _check_server(invocation: Invocation, name: str) -> int:
    """Start a server once and offer a sign-in if it needs one. Returns 1 if it failed, though it was added."""
    from induscode.commands.mcp.doctor import check_server  # noqa: PLC0415 — imports the bridge

    status = check_server(invocation, name)
    if status is None or not needs_sign_in(status.fault):
        return 0 if status is None or status.fault is None else 1
    if not can_ask_user() or not confirm(f"Server {name!r} wants a sign-in. Sign in now, in a browser?"):
        print_status(f"server {name!r} is added and needs a sign-in: {format_server_command('login', name)}")
        return 0
    from induscode.commands.mcp.sign_in import sign_in_and_check  # noqa: PLC0415 — for a sign-in

    sign_in_and_check(invocation, name)
    return 0


def give_consent(row: ServerRow) -> None:
    """Record consent: the user typed this server into a command."""
    TrustStore().approve(row, describe_row(row).digest)
    print_line(_CONSENTED.format(row.id))


# -- remove, enable, disable ------------------------------------------------------------------


@define_command("remove", "--cwd")
@click.argument("name", shell_complete=complete_server)
@scope_option
def remove(context: click.Context, name: str, *, scope: str | None) -> int:
    """Remove the server NAME from our file, and your consent to it. A later server of that name starts fresh."""
    path, whose = find_own_file(read_invocation(context).cwd, name, scope)
    remove_row(name, path, whose)
    print_line(f"Removed server {name!r} from {path}")
    home = server_home(name, os.path.realpath(path))
    if os.path.isdir(home):
        print_line(f"The home of its sandbox is kept: {home}")
    return _forget_row(path, name)


def _forget_row(path: str, name: str) -> int:
    """Record that a row is gone, so that we don't compare a new server of the same name with it."""
    from induscode.boot.plans import opened_store  # noqa: PLC0415 — opens the ledger
    from induscode.deck.mcp.store.journal import Journal  # noqa: PLC0415 — opens the ledger
    from induscode.deck.mcp.store.pins import forget_row  # noqa: PLC0415 — opens the ledger

    place = digest_place(path, name)

    async def record(_: CancelToken) -> int:
        async with opened_store() as store:
            await forget_row(store, lambda: Journal(store), name, place)
            await store.flush()
        return 0

    return run_until_signal(record)


@define_command("enable", "--cwd")
@click.argument("name", shell_complete=complete_server)
@scope_option
def enable(context: click.Context, name: str, *, scope: str | None) -> int:
    """Switch the server NAME on."""
    return _switch_server(context, name, scope, on=True)


@define_command("disable", "--cwd")
@click.argument("name", shell_complete=complete_server)
@scope_option
def disable(context: click.Context, name: str, *, scope: str | None) -> int:
    """Switch the server NAME off; its row stays in the file."""
    return _switch_server(context, name, scope, on=False)


def _switch_server(context: click.Context, name: str, scope: str | None, *, on: bool) -> int:
    print_line(switch_server(read_invocation(context).cwd, name, scope, on=on))
    return 0


# -- servers of a registry --------------------------------------------------------------------------


@define_command("search", "--cwd")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, metavar="N", help="At most N.")
@as_json
def search(context: click.Context, words: tuple[str, ...], *, limit: int, as_json: bool) -> int:
    """Find servers in the registry that have one of WORDS in their names, and all of them in names or descriptions.

    Registries only search names: a word that isn't in any name finds nothing by itself.
    """
    from induscode.servers.registry import RegistryClient  # noqa: PLC0415 — imports the web client

    url = read_invocation(context).settings.get(REGISTRY_URL)
    found = run_for_result(lambda _: RegistryClient(url).search(words, limit))
    rows: list[JsonObject] = [
        {"name": one.name, "version": one.version, "kinds": [*one.kinds], "description": one.description}
        for one in found
    ]
    return Listing(
        "servers",
        rows,
        ("NAME", "VERSION", "KINDS", "DESCRIPTION"),
        lambda row: [", ".join(map(str, one)) if isinstance(one, list) else one for one in row.values()],
        before={"registry": url},
        empty=f"No server of {url} matches.",
    ).show(as_json=as_json)


@define_command("install", "--cwd")
@click.argument("name")
@click.option("--version", default="latest", show_default=True, metavar="VERSION", help="The version of the server.")
@click.option("--kind", type=click.Choice(("npm", "pypi", "oci", "remote")), help="Which of its packages.")
@click.option("--as", "local", metavar="NAME", help="The name it gets here; the last part of its name by default.")
@click.option("-e", "--set", "values", multiple=True, metavar="NAME=VALUE", help="A value that it takes.")
@sandbox_option
@click.option("--yes", is_flag=True, help="Agree without a question.")
@digest_option
@allow_tag
@click.option("--replace", is_flag=True, help="Replace a server of this name.")
@scope_option
@store_option
@no_check
def install(
    context: click.Context,
    name: str,
    *,
    version: str,
    kind: str | None,
    local: str | None,
    values: tuple[str, ...],
    profile: str | None,
    yes: bool,
    digests: tuple[str, ...],
    allow_tag: bool,
    replace: bool,
    scope: str | None,
    stores: bool | None,
    no_check: bool,
) -> int:
    """Add the server NAME of the registry, such as io.github.owner/server, after a question.

    Pins the exact version. The server reads the values it needs from variables when it starts. As with every server,
    its tools are pinned when it first lists them.
    """
    from induscode.servers.registry import RegistryClient, build_installation, is_movable  # noqa: PLC0415 — imports the web client

    given: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.UsageError("--set: write NAME=VALUE")
        given[key] = text
    invocation = read_invocation(context)
    url = invocation.settings.get(REGISTRY_URL)
    server = run_for_result(lambda _: RegistryClient(url).read_server(name, version))
    made = build_installation(server, kind, given)
    if is_movable(made.package) and not allow_tag:
        digest = "run it by digest (indus mcp add --image NAME@sha256:DIGEST), or use --allow-tag"
        raise click.UsageError(f"{name} names its image by a tag, which another image can take: {digest}")
    own = local or re.sub(r"[^A-Za-z0-9_-]+", "-", name.rpartition("/")[2]).strip("-")
    where = cast("Scope", scope or "user")
    before = own_config_path(where, invocation.cwd) if replace else None
    fields, about = choose_sandbox(own, made.fields, profile, invocation.cwd, before)
    made = dataclasses.replace(made, fields=fields)
    try:
        if not ask_consent(made.describe(server, url, own, about), f"Add it as {own!r}?", yes=yes, digests=digests):
            print_status("nothing was added")
            return 1
    except click.UsageError as exc:
        print_status(f"nothing was added. {exc.message}")
        return 1
    fields, needed = _ask_for_values(own, made, stores)
    check = not no_check and not needed
    return add_server(context, own, fields, where, replace=replace, check=check, stores=stores)


def _ask_for_values(name: str, made: Installation, stores: bool | None) -> tuple[JsonObject, Sequence[str]]:
    """Ask for the secrets that a server needs, store them, and return its row and what's still needed."""
    if stores is False or not can_ask_user():
        return made.fields, made.needed
    from indusagi.interop.auth.secrets import SecretFiles  # noqa: PLC0415 — imports the keyring's code

    store, text, needed = SecretFiles(), compact_json(made.fields), list[str]()
    for variable in made.needed:
        hint = f"{variable}, hidden; Enter alone: read it from the environment at each start"
        value = click.prompt(hint, "", hide_input=True, show_default=False, err=True) if looks_secret(variable) else ""
        if value:
            store.set(f"{name}.{variable}", value)
            text = text.replace(f"${{{variable}}}", f"${{keyring:{name}.{variable}}}")
        else:
            needed.append(variable)
    print_notes(store.notes)
    return json.loads(text), needed
