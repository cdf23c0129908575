"""`indus serve --print-config`: the flags that were given, as the entry of a client."""

from __future__ import annotations

import os
from shlex import quote
from typing import TYPE_CHECKING

import click

from induscode.commands.serve import LIMIT_FLAGS, given_anywhere, was_given
from induscode.commands.serve_entry import CLIENTS, TOKEN_VARIABLE, Address, Entry, own_command
from induscode.commands.serve_loop import EVERYWHERE
from induscode.launch.options import invocation_from
from induscode.terminal import complain

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host_settings import HttpSettings
    from induscode.commands.serve import ServeOptions


def print_entry(context: click.Context, options: ServeOptions, client: str) -> int:
    """Print what is to be pasted, and nothing else, on standard output.

    Raises:
        click.UsageError: No entry can be made of what was given.
    """
    address = None if options.settings is None else _address(context, options.settings, client)
    words = (*own_command(), "serve", *_words(context))
    entry = Entry(name=options.name, command=words, address=address)
    trouble = CLIENTS[client].trouble_with(entry)
    if trouble is not None:
        raise click.UsageError(f"--print-config {client}: {trouble}; give it another name", context)
    print(CLIENTS[client].write(entry))  # noqa: T201 — the answer of the command, as it is
    complain(f"this belongs into {CLIENTS[client].place}")
    if address is not None:
        complain(f"the gateway must run: {' '.join(map(quote, words))}")
        if address.with_token and client != "vscode":
            complain(f"set {TOKEN_VARIABLE} to the token that the gateway shows when it is made")
    return 0


def _address(context: click.Context, settings: HttpSettings, client: str) -> Address:
    if settings.port == 0:
        raise click.UsageError("--print-config needs a port that stays the same", context)
    if settings.sse and client == "codex":
        raise click.UsageError("codex does not speak the old transport: leave out --sse", context)
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
    words += ["--no-mcp"] * invocation.no_mcp
    for key in ("approval", "sandbox"):
        if given_anywhere(context, key):
            words += [f"--{key}", str(getattr(invocation, key))]
    return [*words, *_own_words(context)]


def _own_words(context: click.Context) -> list[str]:
    given = context.params
    words: list[str] = []
    keys = ("http", *LIMIT_FLAGS, "profile", "name", "transparent")
    for key in keys:
        if was_given(context, key):
            words += [LIMIT_FLAGS.get(key, f"--{key}"), str(given[key])]
    for key in ("sse", "no_token"):
        words += [f"--{key.replace('_', '-')}"] * bool(given[key])
    for flag, key in (("--allowed-host", "hosts"), ("--allowed-origin", "origins")):
        for value in given[key]:
            words += [flag, value]
    return words
