"""Builds server rows from command-line words, for `indus mcp add` and `indus call --stdio/--url`."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from indusagi.interop.protocol_bridge.contract import QUALIFIER, StdioServerConfig
from induscode.cli.terminal import print_status
from induscode.servers.config import resolve_rows
from induscode.servers.config.rows import InvalidRowError, Origin, parse_row
from induscode.servers.config.trust import show_url
from induscode.servers.plan import ServerPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject
    from induscode.servers.config.rows import Scope, ServerRow

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A field name: RFC 9110 §5.1."""
_DIGEST_LETTERS = 6


def is_server_name(name: str) -> bool:
    """Tell whether a server in our files may have this name, which prefixes the names of its tools."""
    return _NAME.fullmatch(name) is not None


def parse_server_row(name: str, fields: JsonObject, path: str, scope: Scope) -> ServerRow:
    """Parse the fields of a row as if read from `path`, and print remarks.

    Raises `click.UsageError` if the name or a field is invalid.
    """
    if not is_server_name(name):
        raise _build_usage_error(
            f"{name!r} is not a valid name of a server: use letters, digits, '.', '_' and '-', at most 64"
        )
    try:
        row = parse_row(name, fields, Origin(path, scope, "indus"), expansion="shell")
    except InvalidRowError as exc:
        raise _build_usage_error(f"Server {name!r}: {exc}") from exc
    for remark in row.remarks:
        print_status(f"server {name!r}: {remark}")
    return row


def build_fields(
    target: Sequence[str], transport: str | None = None, headers: Sequence[str] = (), env: Sequence[str] = ()
) -> JsonObject:
    """Build the fields of a row from `target`: a URL, or a command and its arguments.

    Raises `click.UsageError` if the target is neither, or the options don't fit it.
    """
    if not target or not target[0]:
        raise _build_usage_error("Say where the server is: a URL, or -- and the command that starts it")
    is_url = target[0].lower().startswith(("http://", "https://"))
    if transport == "stdio" and is_url:
        raise _build_usage_error("A URL is reached by http or sse, not by stdio")
    if is_url:
        return _build_remote_fields(target, transport, headers, env)
    if "://" in target[0]:
        raise _build_usage_error(f"{target[0]!r} is not an address of a server: it starts with http:// or https://")
    if transport in {"http", "sse"}:
        raise _build_usage_error(f"With -t {transport} the server is a URL, not {target[0]!r}")
    if headers:
        raise _build_usage_error("-H is for a URL; a command takes variables: -e NAME=VALUE")
    fields: JsonObject = {"command": target[0]}
    if target[1:]:
        fields["args"] = [*target[1:]]
    variables: JsonObject = {}
    for text in env:
        name, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name) or "\0" in value:
            # Don't repeat the text: it may be the secret itself.
            raise _build_usage_error("-e takes NAME=VALUE, and a name has letters, digits and '_'")
        variables[name] = value
    return {**fields, "env": variables} if variables else fields


def _build_remote_fields(
    target: Sequence[str], transport: str | None, headers: Sequence[str], env: Sequence[str]
) -> JsonObject:
    url = target[0]
    if len(target) > 1:
        raise _build_usage_error(f"A URL stands alone: what is {target[1]!r} for?")
    if env:
        raise _build_usage_error("-e is for a command; a URL takes headers: -H 'NAME: VALUE'")
    try:
        is_valid = bool(urlsplit(url).hostname) and url.isprintable() and " " not in url
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _build_usage_error(f"{url!r} is not a valid address of a server")
    pairs: JsonObject = {}
    for text in headers:
        name, colon, value = text.partition(":")
        if not colon or not _HEADER.fullmatch(name) or not value.strip().isprintable():
            raise _build_usage_error("-H takes 'NAME: VALUE' in one line")
        pairs[name] = value.strip()
    fields: JsonObject = {"type": transport or "http", "url": url}
    return {**fields, "headers": pairs} if pairs else fields


def _build_usage_error(message: str) -> click.UsageError:
    return click.UsageError(message, click.get_current_context(silent=True))


# -- ad hoc servers ---------------------------------------------------------------------------


def plan_ad_hoc_server(context: click.Context, line: str | None, url: str | None, headers: Sequence[str]) -> ServerPlan:
    """Plan one unconfigured server: the command of `--stdio`, or the address of `--url`.

    Typing it implies consent. Its id includes a digest of the command or address, so the ledger recognizes it later.
    Raises `click.UsageError` if both or neither are present, or it's invalid.
    """
    if (line is None) == (url is None):
        raise click.UsageError("Give either --stdio COMMAND or --url URL; -H goes with --url", context)
    if context.params.get("mcp"):
        raise click.UsageError("--stdio and --url name the server: --mcp has no effect", context)
    try:
        target = shlex.split(line) if line is not None else [url or ""]
    except ValueError as exc:
        raise click.UsageError(f"--stdio: {exc}", context) from exc
    if not target:
        raise click.UsageError("--stdio takes the command that starts the server", context)
    fields = build_fields(target, headers=headers)
    # The id is the host or the last word that looks like a name, plus a digest of all words.
    if target[0].lower().startswith(("http://", "https://")):
        base = urlsplit(target[0]).hostname or "server"
    else:
        base = next((word for word in reversed(target) if re.search("[A-Za-z]{3}", word)), "")
    name = re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(base.rstrip("/"))).strip("-")[:24]
    digest = hashlib.sha256("\0".join(target).encode("utf-8", "replace")).hexdigest()
    server = f"{name or 'server'}-{digest[:_DIGEST_LETTERS]}"
    row = parse_server_row(server, fields, os.path.abspath("."), "user")
    configs, notes = resolve_rows([row], os.environ)
    return ServerPlan((row,), configs, {row.id: "trusted"}, notes)


def hide_ad_hoc_id(text: str, row: ServerRow) -> str:
    """Replace an ad hoc server's id in our messages, since no command or file knows it.

    The server goes by its address, tools by their plain names, and the sign-in becomes a header.
    """
    config = row.config
    shown = "the server"
    if not isinstance(config, StdioServerConfig):
        shown += f" at {show_url(config.url, row.expansion)}"
    hidden = {
        f"indus mcp login {row.id}": "give its token with -H 'Authorization: Bearer TOKEN'",
        f"server {row.id!r}": shown,
        f"{row.id}{QUALIFIER}": "",
    }
    for made_up, typed in hidden.items():
        text = text.replace(made_up, typed)
    return text
