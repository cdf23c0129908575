"""`indus serve --print-config`, `--install` and `--uninstall`: these flags as a client's entry."""

from __future__ import annotations

import os
from shlex import quote
from typing import TYPE_CHECKING

import click

from induscode.clients.entry import CLIENTS, TOKEN_VARIABLE, Address, Entry, own_command
from induscode.clients.install import InstallError, client_file, plan_install, plan_uninstall
from induscode.commands.serve import LIMIT_FLAGS, given_anywhere, was_given
from induscode.commands.serve.recursion import EVERYWHERE
from induscode.launch.options import invocation_from
from induscode.session.contract import ExitCode
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
    from induscode.clients.install import Change
    from induscode.commands.serve import ServeOptions


def print_entry(context: click.Context, options: ServeOptions, client: str) -> int:
    """Print what is to be pasted, and nothing else, on standard output.

    Raises:
        click.UsageError: No entry can be made of what was given.
    """
    entry = _entry(context, options, client, "--print-config")
    print(CLIENTS[client].write(entry))  # noqa: T201 — the answer of the command, as it is
    print_status(f"this belongs into {CLIENTS[client].place}")
    print_status(f"or: indus serve {' '.join(map(quote, [*_words(context), '--install', client]))}")
    add = CLIENTS[client].add_command
    if add is not None:
        print_status(f"or: {' '.join(map(quote, add(entry)))}")
    _mention_gateway(entry, client)
    return 0


def install_entry(context: click.Context, options: ServeOptions, client: str, *, dry_run: bool) -> int:
    """Put the entry into the client's file, or show what would change in it.

    Raises:
        click.UsageError: No entry can be made of what was given.
    """
    entry = _entry(context, options, client, "--install")
    path = client_file(CLIENTS[client], os.environ)
    code = _carry_out(
        lambda: plan_install(CLIENTS[client], entry, path),
        f"Added server {entry.name!r} to {path}",
        f"{path} has server {entry.name!r} already",
        dry_run=dry_run,
    )
    if code == 0 and not dry_run:
        print_status(f"{CLIENTS[client].title} has it after its next start")
        _mention_gateway(entry, client)
    return code


def uninstall_entry(context: click.Context, options: ServeOptions, client: str, *, dry_run: bool) -> int:
    """Take the entry out of the client's file, or show what would change in it."""
    settings = options.settings
    url = None if settings is None else _address(context, settings, "--uninstall").url
    path = client_file(CLIENTS[client], os.environ)
    return _carry_out(
        lambda: plan_uninstall(CLIENTS[client], options.name, path, url),
        f"Removed server {options.name!r} from {path}",
        f"{path} has no server {options.name!r}",
        dry_run=dry_run,
    )


def _carry_out(plan: Callable[[], Change], done: str, unchanged: str, *, dry_run: bool) -> int:
    try:
        change = plan()
        if change.is_empty:
            print_line(unchanged)
        elif dry_run:
            print_line(change.diff())
        else:
            backup = change.apply()
            print_line(done if backup is None else f"{done} (before: {backup})")
    except InstallError as exc:
        print_status(str(exc))
        return int(ExitCode.FAILED)
    return 0


def _entry(context: click.Context, options: ServeOptions, client: str, flag: str) -> Entry:
    """Make the entry of what was given.

    Raises:
        click.UsageError: This client has no words for it.
    """
    address = None if options.settings is None else _address(context, options.settings, flag)
    words = (*own_command(), "serve", *_words(context))
    entry = Entry(name=options.name, command=words, address=address)
    trouble = CLIENTS[client].trouble_with(entry)
    if trouble is not None:
        raise click.UsageError(f"{flag} {client}: {trouble}", context)
    return entry


def _mention_gateway(entry: Entry, client: str) -> None:
    """Say what a client needs that does not start the gateway itself."""
    if entry.address is None:
        return
    print_status(f"the gateway must run: {' '.join(map(quote, entry.command))}")
    if entry.address.with_token and client != "vscode":
        print_status(f"set {TOKEN_VARIABLE} to the token that the gateway shows when it is made")


def _address(context: click.Context, settings: HttpSettings, flag: str) -> Address:
    if settings.port == 0:
        raise click.UsageError(f"{flag} needs a port that stays the same", context)
    host = "127.0.0.1" if settings.host in EVERYWHERE else settings.host
    name = f"[{host}]" if ":" in host else host
    path = "/sse" if settings.sse else settings.path
    url = f"http://{name}:{settings.port}{path}"
    return Address(url=url, with_token=not settings.without_token, sse=settings.sse)


def _words(context: click.Context) -> list[str]:
    """Write down again what was given, so that it means the same wherever it is started."""
    invocation = invocation_from(context)
    words: list[str] = []
    if given_anywhere(context, "cwd"):
        words += ["--cwd", invocation.cwd]
    for path in invocation.mcp or ():
        whole = os.path.join(invocation.cwd, os.path.expanduser(path))
        words += ["--mcp", os.path.normpath(whole)]
    for tool in invocation.tools or ():
        words += ["--tools", tool]
    for rule in invocation.allow:
        words += ["--allow", rule]
    if given_anywhere(context, "web_allow"):
        for host in context.params["web_allow"] or context.find_root().params["web_allow"]:
            words += ["--web-allow", host]
    words += ["--no-mcp"] * invocation.no_mcp
    for key in ("approval", "sandbox"):
        if given_anywhere(context, key):
            words += [f"--{key}", str(getattr(invocation, key))]
    return [*words, *_own_words(context)]


def _own_words(context: click.Context) -> list[str]:
    given = context.params
    words: list[str] = []
    keys = ("http", *LIMIT_FLAGS, "profile", "schemas", "name", "transparent")
    for key in keys:
        if was_given(context, key):
            words += [LIMIT_FLAGS.get(key, f"--{key}"), str(given[key])]
    for key in ("sse", "no_token"):
        words += [f"--{key.replace('_', '-')}"] * bool(given[key])
    for flag, key in (("--allowed-host", "hosts"), ("--allowed-origin", "origins")):
        for value in given[key]:
            words += [flag, value]
    return words
