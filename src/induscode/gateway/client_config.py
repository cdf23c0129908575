"""`indus serve --print-config`, `--install` and `--uninstall`: this gateway's entry in a client's file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from shlex import quote
from typing import cast
from urllib.parse import quote as quote_url

import click

from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
from induscode.boot.catalog import list_native_tools
from induscode.boot.plans import load_plan
from induscode.cli.terminal import print_line, print_status
from induscode.conversations.contract import ExitCode
from induscode.gateway.options import SERVE_FLAGS, ServeOptions
from induscode.gateway.recursion import EVERYWHERE
from induscode.launch.flags import FlagKind, flag_specs
from induscode.launch.options import collect_values, read_invocation
from induscode.launch.views import View
from induscode.servers.clients import CLIENTS, TOKEN_VARIABLE, Address, Entry, build_own_command
from induscode.servers.clients.install import Change, InstallError, find_client_file, plan_install, plan_uninstall
from induscode.servers.plan import find_row

_ENTRY_FLAGS = ("stdio", "print_config", "install", "uninstall", "dry_run")
"""Flags about the entry itself; stdio is the default."""


def change_entry(context: click.Context, options: ServeOptions) -> int:
    """Print, install or uninstall the entry, depending on the flags; with `--dry-run` show the change."""
    params, name = context.params, options.name
    if (client := params["print_config"]) is not None:
        return print_entry(context, options, client)
    client = params["install"] or params["uninstall"]
    path = find_client_file(CLIENTS[client], os.environ)
    if params["install"] is None:
        url = None if options.settings is None else _build_address(options.settings, "--uninstall", options.view).url
        plan = partial(plan_uninstall, CLIENTS[client], name, path, url)
        done, unchanged = f"Removed server {name!r} from {path}", f"{path} has no server {name!r}"
        return _apply_change(plan, done, unchanged, dry_run=params["dry_run"])
    entry = _build_entry(context, options, client, "--install")
    plan = partial(plan_install, CLIENTS[client], entry, path)
    done, unchanged = f"Added server {name!r} to {path}", f"{path} has server {name!r} already"
    code = _apply_change(plan, done, unchanged, dry_run=params["dry_run"])
    if code == 0 and not params["dry_run"]:
        print_status(f"{CLIENTS[client].title} uses it after its next start")
        _explain_http(entry, client)
    return code


def print_entry(context: click.Context, options: ServeOptions, client: str) -> int:
    """Print the entry to standard output and its location to standard error."""
    entry = _build_entry(context, options, client, "--print-config")
    print(CLIENTS[client].format(entry))  # noqa: T201 — the result of the command, unescaped
    print_status(f"paste this into {CLIENTS[client].place}")
    print_status(f"or: indus serve {' '.join(map(quote, [*_format_flags(context), '--install', client]))}")
    add = CLIENTS[client].add_command
    if add is not None:
        print_status(f"or: {' '.join(map(quote, add(entry)))}")
    _explain_http(entry, client)
    return 0


def _apply_change(plan: Callable[[], Change], done: str, unchanged: str, *, dry_run: bool) -> int:
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


def _build_entry(context: click.Context, options: ServeOptions, client: str, flag: str) -> Entry:
    """Build the entry; `click.UsageError` if the client can't express the flags or the gateway wouldn't start."""
    # Check names the gateway resolves at startup, as an entry that never starts is useless.
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    if options.transparent is not None:
        find_row(plan, options.transparent)
    if invocation.tools:
        list_native_tools(invocation)
    address = None if options.settings is None else _build_address(options.settings, flag, options.view)
    command = (*build_own_command(), "serve", *_format_flags(context))
    entry = Entry(name=options.name, command=command, address=address)
    obstacle = CLIENTS[client].find_obstacle(entry)
    if obstacle is not None:
        raise click.UsageError(f"{flag} {client}: {obstacle}")
    return entry


def _explain_http(entry: Entry, client: str) -> None:
    """Print the requirements for an HTTP client: a running gateway, and the token."""
    if entry.address is None:
        return
    print_status(f"the gateway must run: {' '.join(map(quote, entry.command))}")
    if entry.address.with_token and client != "vscode":
        print_status(f"set {TOKEN_VARIABLE} to the token that the gateway prints when it creates one")


def _build_address(settings: HttpSettings, flag: str, view: View | None = None) -> Address:
    if settings.port == 0:
        raise click.UsageError(f"{flag} needs a fixed port")
    host = "127.0.0.1" if settings.host in EVERYWHERE else settings.host
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{settings.port}{settings.path}"
    auth = settings.auth
    if auth is not None and auth.public_url is not None:
        url = auth.public_url
    if view is not None:
        url = f"{url.rstrip('/')}/v/{quote_url(view.name, safe='')}"
    # With access tokens the client signs in itself.
    return Address(url=url, with_token=auth is None and not settings.without_token)


def _format_flags(context: click.Context) -> list[str]:
    """Format the given flags as words with absolute paths, as the client may start anywhere."""
    invocation, (values, given) = read_invocation(context), collect_values(context)
    files = [os.path.join(invocation.cwd, os.path.expanduser(path)) for path in invocation.mcp or ()]
    values |= {"cwd": invocation.cwd, "mcp": tuple(map(os.path.normpath, files)), "tools": invocation.tools}
    words: list[str] = []
    for spec in (*flag_specs(), *SERVE_FLAGS):
        if spec.key not in given or spec.key in _ENTRY_FLAGS:
            continue
        if spec.kind is FlagKind.SWITCH:
            words.append(spec.name)
        else:
            value = values[spec.key]
            for one in cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,)):
                words += [spec.name, str(one)]
    return words
