"""A server that is named on the command line and stands in no configuration.

Typing its command or address is consent to it. Its id is made of both and of a digest, so that the
ledger knows it again and keeps it apart from every other.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.deck.mcp.boot import ServerPlan

_DIGEST_LETTERS = 6


def plan_ad_hoc_server(context: click.Context, line: str | None, url: str | None, headers: Sequence[str]) -> ServerPlan:
    """Make the plan of one server: the command of `--stdio`, or the address of `--url`.

    Raises:
        click.UsageError: There is not exactly one of them, or it cannot be a server.
    """
    from induscode.commands.mcp.add import parse_server_row, server_fields  # noqa: PLC0415 — for this option
    from induscode.deck.mcp.boot import ServerPlan  # noqa: PLC0415 — brings the deck
    from induscode.deck.mcp.config import resolve_rows  # noqa: PLC0415 — as above

    if (line is None) == (url is None):
        said = "Give either --stdio COMMAND or --url URL; -H goes with --url"
        raise click.UsageError(said, context)
    if context.params.get("mcp"):
        raise click.UsageError("--stdio and --url name the server: --mcp has no effect", context)
    target = _split_command(context, line) if line is not None else [url or ""]
    fields = server_fields(target, headers)
    row = parse_server_row(_make_id(target), fields, os.path.abspath("."), "user")
    configs, notes = resolve_rows([row], os.environ)
    return ServerPlan((row,), configs, {row.id: "trusted"}, notes)


def _split_command(context: click.Context, line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as exc:
        raise click.UsageError(f"--stdio: {exc}", context) from exc
    if not words:
        raise click.UsageError("--stdio takes the command that starts the server", context)
    return words


def _make_id(target: Sequence[str]) -> str:
    """Make an id of the last word that looks like a name, and a digest of all words."""
    if target[0].lower().startswith(("http://", "https://")):
        base = urlsplit(target[0]).hostname or "server"
    else:
        base = next((word for word in reversed(target) if re.search("[A-Za-z]{3}", word)), "")
    name = re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(base.rstrip("/"))).strip("-")[:24]
    digest = hashlib.sha256("\0".join(target).encode("utf-8", "replace")).hexdigest()
    return f"{name or 'server'}-{digest[:_DIGEST_LETTERS]}"
