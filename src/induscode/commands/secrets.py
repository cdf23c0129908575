"""`indus secrets`: stores named secrets, and lists and checks the references to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

import click
from click.shell_completion import CompletionItem

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.core.secrets import SecretReference, find_references, parse_secret, parse_secret_text
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.auth.secrets import MAX_SECRET_BYTES, SecretFault, SecretFiles, read_secret
from indusagi.interop.auth.storage import VaultKind, VaultRow
from induscode.boot.plans import plan_servers
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, build_unknown_name, can_ask_user, print_notes
from induscode.cli.terminal import format_age, print_line, print_status
from induscode.cluster.contract import CREDENTIALS_VARIABLE
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.connectors.store import ConnectorStore
from induscode.conversations.models import list_key_references
from induscode.gateway.options import SECRET_VARIABLE
from induscode.launch.invocation import Invocation
from induscode.launch.options import define_command, read_invocation
from induscode.launch.settings import SERVE_VIEWS
from induscode.servers.config.rows import find_project_dir
from induscode.servers.config.trust import find_references as find_row_references
from induscode.servers.plan import STATE_REMEDIES

_FAILED = 1
_VARIABLES = (CREDENTIALS_VARIABLE, SECRET_VARIABLE)
_PLACES: Mapping[VaultKind, str] = {"keyring": "keyring", "sealed": "sealed file", "plain": "private file"}


@click.command(
    cls=CommandGroup,
    default="list",
    commands={
        "set": LazyCommand("store a secret", ":set_secret"),
        "list": LazyCommand("list the stored secrets and their uses", ":list_secrets"),
        "move": LazyCommand(
            "move the secrets of a server's row into the store", "induscode.commands.mcp.configure:move_secrets"
        ),
        "remove": LazyCommand("remove a secret", ":remove"),
        "check": LazyCommand("read every secret that your configuration refers to", ":check"),
    },
)
def command() -> None:
    """Store secrets, which rows and settings refer to as ${keyring:NAME}."""


@record
class Use:
    """A reference in the configuration."""

    reference: SecretReference
    place: str
    blocked: str = ""
    """Why it isn't read: its row needs consent, or can't be used."""


def find_uses(invocation: Invocation) -> Iterator[Use]:
    """Yield the references in rows, settings and connectors, without reading any."""
    plan = plan_servers(invocation)
    for row in plan.rows:
        state = plan.state_of(row)
        blocked = "" if state == "startable" else STATE_REMEDIES[state].format(row.id)
        for found in find_row_references(row):
            if (reference := parse_secret(found.written, find_project_dir(row.origin))) is not None:
                yield Use(reference, f"server {row.id!r} of {row.origin}: {found.place}", blocked)
    views = invocation.settings.get(SERVE_VIEWS).values()
    texts: dict[str, object] = {
        **{f"setting {key}": value.value for key, value in invocation.settings.given.items()},
        f"setting {SERVE_VIEWS.key}": [view.token_env for view in views],
        **{f"the model key {name}": text for name, text in list_key_references(os.environ).items()},
        **{f"variable {name}": parse_secret_text(os.environ.get(name, "")) for name in _VARIABLES},
    }
    for place, value in texts.items():
        yield from (Use(reference, place) for reference in find_references(value))
    for row in ConnectorStore().read()[0].values():
        for text in () if row.auth is None else row.auth.variables:
            if (reference := parse_secret(text)) is not None:
                yield Use(reference, f"connector {row.name!r}")


def _complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in SecretFiles().list_rows() if name.startswith(incomplete)]


@click.command("set")
@click.argument("name", shell_complete=_complete)
@click.argument("value", nargs=-1, metavar="")
@click.option("--file", "in_file", is_flag=True, help="Keep it in a private file, not in the keyring.")
def set_secret(name: str, value: tuple[str, ...], *, in_file: bool) -> int:
    """Store the secret NAME: from a hidden prompt, or from standard input.

    It goes into the keyring, or without one into a file that only you can read, sealed if INDUS_CREDENTIALS_KEY is set.
    The value is never an argument: every user of the machine sees those in the process list.
    """
    if value:
        raise click.UsageError("The value is never an argument; leave it out, and type it or pipe it in")
    store = SecretFiles()
    secret = _read_value(name)
    while True:
        try:
            vault = store.set(name, secret, keyring=not in_file)
        except SecretFault as fault:
            if not fault.is_locked or not can_ask_user():
                raise
            print_status("The keyring is locked.")
            answer = click.prompt("Unlock it and press Enter, or type 'file' to use a private file", "", err=True)
            in_file = answer.strip().lower() == "file"
            if not in_file:
                store.unlock()
            continue
        print_notes(store.notes)
        print_line(f"Secret {name!r} is stored ({_PLACES[vault]}); refer to it as ${{keyring:{name}}}")
        return 0


def _read_value(name: str) -> str:
    if can_ask_user():
        return str(click.prompt(f"Value of {name!r}, hidden", hide_input=True, err=True))
    data = sys.stdin.buffer.read(MAX_SECRET_BYTES + 2)
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise click.ClickException("the value isn't text in UTF-8") from None


@define_command("list", "--mcp", "--no-mcp", "--cwd")
@as_json
def list_secrets(context: click.Context, *, as_json: bool) -> int:
    """List the stored secrets: where each is kept, when it changed, and its uses. Never shows a value."""
    uses = [use for use in find_uses(read_invocation(context)) if use.reference.kind == "keyring"]
    now = now_ms()

    def list_places(name: str) -> list[str]:
        return list(dict.fromkeys(use.place for use in uses if use.reference.name == name))

    def format_cells(row: VaultRow) -> tuple[str, ...]:
        name = str(row.facts["name"])
        return name, _PLACES[row.vault], format_age(row.saved_ms, now), "; ".join(list_places(name)) or "-"

    def to_json(row: VaultRow) -> JsonObject:
        name = str(row.facts["name"])
        facts: JsonObject = {"name": name, "vault": row.vault, "place": row.place, "changed": iso_utc(row.saved_ms)}
        return {**facts, "usedBy": [*list_places(name)]}

    rows = list(SecretFiles().list_rows().values())
    heads, empty = ("NAME", "PLACE", "CHANGED", "USES"), "No secret is stored; store one: indus secrets set NAME"
    return Listing("secrets", rows, heads, format_cells, to_json=to_json, empty=empty).show(as_json=as_json)


@define_command("remove", "--mcp", "--no-mcp", "--cwd")
@click.argument("name", shell_complete=_complete)
def remove(context: click.Context, name: str) -> int:
    """Remove the secret NAME, and list the references to it."""
    store = SecretFiles()
    known = list(store.list_rows())
    if name not in known:
        raise build_unknown_name(f"There is no secret {name!r}", name, known, context)
    store.remove(name)
    print_line(f"Secret {name!r} is removed")
    for use in find_uses(read_invocation(context)):
        if (use.reference.kind, use.reference.name) == ("keyring", name):
            print_status(f"{use.place} still refers to it")
    return 0


@define_command("check", "--mcp", "--no-mcp", "--cwd")
@as_json
def check(context: click.Context, *, as_json: bool) -> int:
    """Read every secret that rows, settings and connectors refer to, and print problems. Exit code 1 if there are any.

    Runs the commands of ${cmd:…}. Rows without your consent are listed, and nothing of them is read.
    """
    uses, problems = list(find_uses(read_invocation(context))), dict[SecretReference, str]()
    for use in uses:
        if not use.blocked and use.reference not in problems:
            try:
                read_secret(use.reference)
                problems[use.reference] = ""
            except SecretFault as fault:
                problems[use.reference] = str(fault)

    def format_result(use: Use) -> str:
        return f"not read: {use.blocked}" if use.blocked else problems[use.reference] or "ok"

    def to_json(use: Use) -> JsonObject:
        problem = use.blocked or problems[use.reference]
        state = "blocked" if use.blocked else "problem" if problem else "ok"
        return {"reference": use.reference.written, "usedBy": use.place, "state": state, "problem": problem or None}

    Listing(
        "references",
        uses,
        ("REFERENCE", "PLACE", "RESULT"),
        lambda use: (use.reference.written, use.place, format_result(use)),
        to_json=to_json,
        empty="Nothing refers to a secret.",
    ).show(as_json=as_json)
    return _FAILED if any(problems.values()) else 0
