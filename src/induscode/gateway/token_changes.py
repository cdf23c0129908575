"""Changes of named tokens and locks, by a command or the page. Each returns the facts that the ledger records."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal

import click

from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.host.identity import ADMIN_SCOPE, CALL_SCOPE, SCOPES
from induscode.cli.output import build_unknown_name
from induscode.gateway.tokens import TokenEntry, TokenStore, generate_token, hash_token

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SPAN = re.compile(r"(\d{1,6})(min|h|d)", re.ASCII)
_UNITS_MS = {"min": 60_000, "h": 3_600_000, "d": 86_400_000}


@contextmanager
def opened_tokens() -> Generator[TokenStore]:
    """Open the file of this machine's tokens; raises `click.ClickException` if it's unusable."""
    store = TokenStore()
    try:
        with closing(store):
            yield store
    except (OSError, ValueError, sqlite3.Error) as exc:
        message = f"the tokens in {store.path!r} cannot be read or written: {exc}"
        raise click.ClickException(f"{message} (without the file there are no tokens and no locks)") from exc


def find_entry(store: TokenStore, name: str, kind: Literal["token", "principal"] = "token") -> TokenEntry | None:
    """Find a token or a principal."""
    return next((one for one in store.list_entries() if (one.kind, one.name) == (kind, name)), None)


def _require(store: TokenStore, name: str) -> TokenEntry:
    entry = find_entry(store, name)
    if entry is None:
        known = [one.name for one in store.list_entries() if one.kind == "token"]
        raise build_unknown_name(f"There is no token {name!r} (to see yours: indus tokens list)", name, known)
    return entry


def put_entry(store: TokenStore, entry: TokenEntry, known: TokenEntry | None, event: str) -> JsonObject:
    """Store a changed entry, and return the facts for the ledger."""
    entry = replace(entry, changed_ms=max(now_ms(), 0 if known is None else known.changed_ms + 1))
    store.put(entry)
    by = f"{getuser()} at {gethostname()}"
    return {"name": entry.name, "subject": event, "detail": f"by {by}", "by": by}


def create_token(
    name: str, view: str, scopes: str, expires: str, views: Collection[str], limits: Mapping[str, Any]
) -> tuple[str, JsonObject]:
    """Create a named token, and return it with the facts for the ledger; `click.UsageError` if it can't be. Blocks."""
    if _NAME.fullmatch(name) is None:
        raise click.UsageError(f"{name!r}: use letters, digits, '.', '_' and '-' for a name, 64 at most")
    granted = _read_scopes(scopes)
    if view and view not in views:
        known = f"there are: {', '.join(views)}" if views else "the setting serve.views has none"
        raise click.UsageError(f"--view {view!r}: there is no such view; {known}")
    if view and ADMIN_SCOPE in granted:
        raise click.UsageError(f"--view {view}: a token for a view can't have the scope {ADMIN_SCOPE}")
    now, token = now_ms(), generate_token()
    entry = TokenEntry(
        name=name,
        digest=hash_token(token).hex(),
        view=view,
        scopes=granted,
        created_ms=now,
        expires_ms=now + _read_span(expires) if expires else 0,
    )
    entry = replace(entry, **{key: value or 0 for key, value in limits.items()})
    with opened_tokens() as store:
        known = find_entry(store, name)
        if known is not None and known.find_state(now) == "active":
            remedy = f"replace it with 'indus tokens rotate {name}', or revoke it first"
            raise click.UsageError(f"There is a token {name!r} already: {remedy}")
        return token, put_entry(store, entry, known, "created")


def rotate_token(name: str) -> tuple[str, JsonObject]:
    """Replace a token by a new one with the same limits; returns and raises like `create_token`. Blocks."""
    token = generate_token()
    with opened_tokens() as store:
        known = _require(store, name)
        if reason := known.find_end(now_ms()):
            raise click.UsageError(f"{reason}: create it again")
        return token, put_entry(store, replace(known, digest=hash_token(token).hex()), known, "rotated")


def revoke_token(name: str) -> JsonObject | None:
    """End a token, and return the facts for the ledger, or `None` if it had ended. Blocks."""
    with opened_tokens() as store:
        known = _require(store, name)
        return None if known.revoked_ms else put_entry(store, replace(known, revoked_ms=now_ms()), known, "revoked")


def _read_scopes(text: str) -> tuple[str, ...]:
    scopes = tuple(dict.fromkeys(re.split(r"[\s,]+", text.strip())))
    for scope in scopes:
        if scope not in SCOPES and not scope.startswith(f"{CALL_SCOPE}:"):
            known = f"{', '.join(SCOPES)} and {CALL_SCOPE}:SERVER"
            raise click.UsageError(f"--scopes {scope!r}: there is no such scope; use {known}")
    return scopes


def _read_span(text: str) -> int:
    match = _SPAN.fullmatch(text)
    if match is None or not int(match[1]):
        raise click.UsageError(f"--expires {text!r}: write 30min, 12h or 30d")
    return int(match[1]) * _UNITS_MS[match[2]]
