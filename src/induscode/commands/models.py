"""`indus models`: shows which models can be used, with which keys, and stores keys."""

from __future__ import annotations

import os
import sys

import click

from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject
from indusagi.core.secrets import hide_in_urls
from indusagi.interop.auth.secrets import MAX_SECRET_BYTES, SecretFiles
from indusagi.net.address import FetchError, HttpPolicy, parse_url
from indusagi.net.client import CrossSiteRedirect, WebClient, WebRequest
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, can_ask_user, print_notes
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_line, print_status
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.conversations.models import (
    ANTHROPIC_DEFAULT,
    OPENAI_DEFAULT,
    PROVIDER_KEYS,
    InvalidAddressError,
    ModelKeys,
    NoModelError,
    choose_model,
    find_key_problem,
    find_keys,
    store_key,
)
from induscode.launch.options import define_command, read_invocation

_FAILED = 1
_REFUSED = (401, 403)
_ADDRESSES = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
_DEFAULTS = {"anthropic": ANTHROPIC_DEFAULT, "openai": OPENAI_DEFAULT}
_PROVIDER = click.Choice(tuple(PROVIDER_KEYS))


@click.command(
    cls=CommandGroup,
    default="list",
    commands={
        "list": LazyCommand("list the providers, and whether they're ready", ":list_models"),
        "login": LazyCommand("store the key of a provider", ":login"),
        "logout": LazyCommand("remove the stored key of a provider", ":logout"),
    },
)
def command() -> None:
    """Show which models can be used, and store their keys. Without a command: list."""


@define_command("list", "--model", "--base-url", "--cwd")
@click.option("--check", is_flag=True, help="Ask each provider whether it accepts the key.")
@as_json
def list_models(context: click.Context, *, check: bool, as_json: bool) -> int:
    """List the providers: whether each is ready, where its key comes from, and what's missing. Never shows a key.

    A key is looked for in its variable, then among the stored secrets. Exit code 1 if a session would find no model.
    """
    invocation = read_invocation(context)

    async def work(_: CancelToken) -> int:
        keys = await find_keys(os.environ)
        # The server of --base-url may need no key.
        providers = [name for name, variable in PROVIDER_KEYS.items() if name in _DEFAULTS or keys.describe(variable)]
        rows = [await _examine(keys, provider, check=check) for provider in providers]
        used, problem = "", ""
        try:
            choice = await choose_model(invocation, os.environ)
            used = choice.label + (f" at {hide_in_urls(choice.base_url)}" if choice.base_url else "")
        except (NoModelError, InvalidAddressError) as exc:
            problem = str(exc)
        Listing(
            "providers",
            rows,
            ("PROVIDER", "READY", "KEY FROM", "MODEL", "PROBLEM"),
            lambda row: (
                row["provider"],
                "yes" if row["ready"] else "no",
                *(row[key] or "-" for key in ("keyFrom", "model", "problem")),
            ),
            after={"used": used or None, "problem": problem or None},
        ).show(as_json=as_json)
        if not as_json and used:
            print_line(f"A session uses {used}")
        elif problem:
            print_status(problem)
        return 0 if used else _FAILED

    return run_until_signal(work)


async def _examine(keys: ModelKeys, provider: str, *, check: bool) -> JsonObject:
    origin = keys.describe(PROVIDER_KEYS[provider])
    problem = "" if origin else f"no key: indus models login {provider}"
    try:
        key = await keys.read(PROVIDER_KEYS[provider])
        if check and key and provider in _ADDRESSES:
            problem = await _ask_provider(provider, key)
    except NoModelError as exc:
        problem = str(exc)
    facts: JsonObject = {"provider": provider, "ready": not problem, "keyFrom": origin or None}
    return {**facts, "model": _DEFAULTS.get(provider), "problem": problem or None}


async def _ask_provider(provider: str, key: str) -> str:
    """Ask for a provider's list of models, and return why that failed, if it did."""
    address = os.environ.get(f"{provider.upper()}_BASE_URL") or _ADDRESSES[provider]
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    if provider == "openai":
        headers = {"authorization": f"Bearer {key}"}
    path = "/models" if address.rstrip("/").endswith("/v1") else "/v1/models"
    try:
        target = parse_url(address, with_user=True)
        client = WebClient(HttpPolicy(allow_private=(target.server,), ports=(target.port,)))
        answer = await client.send(WebRequest(address.rstrip("/") + path, headers=headers, follow="origin"))
    except FetchError as exc:
        return f"it doesn't answer ({exc.code})"
    if isinstance(answer, CrossSiteRedirect):
        return "it redirects to another site"
    if answer.status in _REFUSED:
        return f"it refuses the key (HTTP {answer.status}): indus models login {provider}"
    return "" if answer.status == 200 else f"it answers with HTTP {answer.status}"


@click.command("login")
@click.argument("provider", type=_PROVIDER)
def login(provider: str) -> int:
    """Store the key of PROVIDER: from a hidden prompt, or from standard input.

    It goes where `indus secrets` keeps secrets. `own` is the key for --base-url. A key in the provider's variable comes
    first.
    """
    if can_ask_user():
        key = str(click.prompt(f"Key of {provider}, hidden", hide_input=True, err=True))
    else:
        key = sys.stdin.read(MAX_SECRET_BYTES + 1)
    _store(provider, key)
    return 0


def _store(provider: str, key: str) -> None:
    if problem := find_key_problem(key):
        raise click.UsageError(problem)
    variable = PROVIDER_KEYS[provider]
    if can_ask_user():
        SecretFiles().unlock()
    print_notes(store_key(provider, key))
    print_line(f"The key of {provider} is stored as the secret {variable}")
    if os.environ.get(variable):
        print_status(f"the variable {variable} is set, and comes first: unset it")


@click.command("logout")
@click.argument("provider", type=_PROVIDER)
def logout(provider: str) -> int:
    """Remove the stored key of PROVIDER. Revoke it at the provider, too, if it isn't needed any more."""
    variable = PROVIDER_KEYS[provider]
    removed = SecretFiles().remove(variable)
    print_line(f"The key of {provider} is removed" if removed else f"No key of {provider} is stored")
    if os.environ.get(variable):
        print_status(f"the variable {variable} still has one")
    return 0
