"""`indus tokens`: tokens for `indus serve --http`, by name, and principals that are locked out."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal

import click

from indusagi.core.json import JsonObject
from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.host.identity import ADMIN_SCOPE, CALL_SCOPE, LIST_SCOPE, SCOPES
from induscode.cli.listing import Listing, print_table
from induscode.cli.output import as_json, build_unknown_name, write_json
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import format_age, print_line, print_status
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.deck.mcp.store.events import filter_texts
from induscode.gateway.tokens import TokenEntry, TokenStore, TokenUse, find_day, generate_token, hash_token
from induscode.launch.options import define_command, read_invocation
from induscode.launch.settings import SERVE_VIEWS

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from induscode.deck.mcp.store import LedgerStore

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_SPAN = re.compile(r"(\d{1,6})(min|h|d)", re.ASCII)
_UNITS_MS = {"min": 60_000, "h": 3_600_000, "d": 86_400_000}
_HEADS = ("NAME", "STATE", "VIEW", "EXPIRES", "LAST USED", "FROM", "TODAY", "SCOPES")
_CLIENTS = "give it to one client, as Authorization: Bearer …; it's shown this once, and only its digest is kept"

_at_least_one = click.IntRange(1, 1_000_000_000_000)


@click.command(
    cls=CommandGroup,
    default="list",
    commands={
        "list": LazyCommand("list the tokens, with their last use", ":list_tokens"),
        "create": LazyCommand("create a token and print it, once", ":create"),
        "rotate": LazyCommand("replace a token by a new one", ":rotate"),
        "revoke": LazyCommand("end a token and its sessions", ":revoke"),
        "lock": LazyCommand("lock a principal of indus serve --auth out", ":lock"),
        "unlock": LazyCommand("let a principal in again", ":unlock"),
        "audit": LazyCommand("show the history of tokens, and who used them", ":audit"),
    },
)
def command() -> None:
    """Manage the tokens of indus serve --http. Without a command: list."""


@contextmanager
def _opened_store() -> Generator[TokenStore]:
    store = TokenStore()
    try:
        with closing(store):
            yield store
    except (OSError, ValueError, sqlite3.Error) as exc:
        message = f"the tokens in {store.path!r} cannot be read or written: {exc}"
        raise click.ClickException(f"{message} (without the file there are no tokens and no locks)") from exc


def _find(store: TokenStore, name: str, kind: Literal["token", "principal"] = "token") -> TokenEntry | None:
    return next((one for one in store.list_entries() if (one.kind, one.name) == (kind, name)), None)


def _require(store: TokenStore, name: str) -> TokenEntry:
    entry = _find(store, name)
    if entry is None:
        known = [one.name for one in store.list_entries() if one.kind == "token"]
        raise build_unknown_name(f"There is no token {name!r} (to see yours: indus tokens list)", name, known)
    return entry


def _put(store: TokenStore, entry: TokenEntry, known: TokenEntry | None, event: str, detail: str = "") -> TokenEntry:
    """Store a changed entry, and record the change in the ledger."""
    entry = replace(entry, changed_ms=max(now_ms(), 0 if known is None else known.changed_ms + 1))
    store.put(entry)
    by = f"{getuser()} at {gethostname()}"
    facts: JsonObject = {"name": entry.name, "subject": event, "detail": detail or f"by {by}", "by": by}

    async def record(_: CancelToken) -> int:
        from induscode.boot.plans import opened_store  # noqa: PLC0415 — opens the ledger
        from induscode.deck.mcp.store.journal import Journal  # noqa: PLC0415 — opens the ledger

        async with opened_store() as ledger:
            Journal(ledger).record("token", facts)
            await ledger.flush()
        return 0

    run_until_signal(record)
    return entry


# -- create, rotate, revoke -------------------------------------------------------------------


@define_command("create", "--cwd")
@click.argument("name")
@click.option("--view", metavar="NAME", help="Open only this view (the setting serve.views).")
@click.option(
    "--scopes",
    metavar="SCOPES",
    default=f"{LIST_SCOPE} {CALL_SCOPE}",
    show_default=True,
    help=f"Its scopes: {', '.join(SCOPES)}, {CALL_SCOPE}:SERVER.",
)
@click.option("--expires", metavar="AGE", help="End it after this time: 12h, 30d.")
@click.option("--calls-per-day", type=_at_least_one, metavar="N", help="The most calls per day (UTC).")
@click.option("--tokens-per-day", type=_at_least_one, metavar="N", help="The most tokens of calls per day.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Requests per second.")
def create(
    context: click.Context, name: str, *, view: str | None, scopes: str, expires: str | None, **limits: Any
) -> int:
    """Create the token NAME and print it, once. NAME is its principal in rules (@NAME) and call records."""
    if _NAME.fullmatch(name) is None:
        raise click.UsageError(f"{name!r}: use letters, digits, '.', '_' and '-' for a name, 64 at most")
    granted = _read_scopes(scopes)
    views = read_invocation(context).settings.get(SERVE_VIEWS)
    if view is not None and view not in views:
        known = f"there are: {', '.join(views)}" if views else "the setting serve.views has none"
        raise click.UsageError(f"--view {view!r}: there is no such view; {known}")
    if view is not None and ADMIN_SCOPE in granted:
        raise click.UsageError(f"--view {view}: a token for a view can't have the scope {ADMIN_SCOPE}")
    now, token = now_ms(), generate_token()
    entry = TokenEntry(
        name=name,
        digest=hash_token(token).hex(),
        view=view or "",
        scopes=granted,
        created_ms=now,
        expires_ms=0 if expires is None else now + _read_span(expires),
    )
    entry = replace(entry, **{key: value or 0 for key, value in limits.items()})
    with _opened_store() as store:
        known = _find(store, name)
        if known is not None and known.find_state(now) == "active":
            remedy = f"replace it with 'indus tokens rotate {name}', or revoke it first"
            raise click.UsageError(f"There is a token {name!r} already: {remedy}")
        _put(store, entry, known, "created")
    return _print_token(token, name)


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


def _print_token(token: str, name: str) -> int:
    print(token)  # noqa: T201 — the result of the command
    print_status(f"token {name!r}: {_CLIENTS}")
    return 0


@click.command("rotate")
@click.argument("name")
def rotate(name: str) -> int:
    """Replace the token NAME by a new one with the same limits, and end the sessions of the old one."""
    token = generate_token()
    with _opened_store() as store:
        known = _require(store, name)
        if reason := known.find_end(now_ms()):
            raise click.UsageError(f"{reason}: create it again")
        _put(store, replace(known, digest=hash_token(token).hex()), known, "rotated")
    return _print_token(token, name)


@click.command("revoke")
@click.argument("name")
def revoke(name: str) -> int:
    """End the token NAME: its sessions, streams and running calls end within two seconds, at all nodes."""
    with _opened_store() as store:
        known = _require(store, name)
        if known.revoked_ms:
            print_line(f"{name}: revoked already")
            return 0
        _put(store, replace(known, revoked_ms=now_ms()), known, "revoked")
    print_line(f"{name}: revoked")
    return 0


@click.command("lock")
@click.argument("principal")
def lock(principal: str) -> int:
    """Lock PRINCIPAL out, although the tokens of its issuer are still valid; its sessions end within two seconds."""
    with _opened_store() as store:
        known = _find(store, principal, "principal")
        entry = TokenEntry(kind="principal", name=principal, created_ms=now_ms(), revoked_ms=now_ms())
        _put(store, entry, known, "locked")
    print_line(f"{principal}: locked out")
    return 0


@click.command("unlock")
@click.argument("principal")
def unlock(principal: str) -> int:
    """Let PRINCIPAL in again."""
    with _opened_store() as store:
        known = _find(store, principal, "principal")
        if known is None or not known.revoked_ms:
            locked = [one.name for one in store.list_entries() if one.kind == "principal" and one.revoked_ms]
            raise build_unknown_name(f"{principal!r} isn't locked out", principal, locked)
        _put(store, replace(known, revoked_ms=0), known, "unlocked")
    print_line(f"{principal}: may sign in again")
    return 0


# -- list and audit ---------------------------------------------------------------------------


@click.command("list")
@as_json
def list_tokens(*, as_json: bool) -> int:
    """List tokens and locked-out principals, with their last use and today's (UTC)."""
    with _opened_store() as store:
        entries, uses = store.list_entries(), store.list_uses()
    entries = [one for one in entries if one.kind == "token" or one.revoked_ms]
    facts, now = {one.owner: _build_facts(one, uses) for one in entries}, now_ms()

    def format_cells(one: TokenEntry) -> tuple[object, ...]:
        used = facts[one.owner]
        if one.kind == "principal":
            return one.name, "locked out", "", "", "", "", "", ""
        last, start = int(str(used["last_ms"])), "never"
        return (
            one.name,
            used["state"],
            one.view or "all",
            iso_utc(one.expires_ms)[:16] if one.expires_ms else "never",
            format_age(last, now) if last else start,
            " ".join(filter(None, (str(used["client"]), str(used["address"])))),
            _format_today(one, used),
            " ".join(one.scopes),
        )

    empty = "No tokens yet. Try: indus tokens create NAME"
    listing = Listing("tokens", entries, _HEADS, format_cells, to_json=lambda one: facts[one.owner], empty=empty)
    return listing.show(as_json=as_json)


def _build_facts(entry: TokenEntry, uses: Sequence[TokenUse]) -> JsonObject:
    """Build the JSON form of an entry and its use on all machines, without its digest."""
    own, day = [use for use in uses if use.owner == entry.owner], find_day()
    last = max(own, key=lambda use: use.last_ms, default=TokenUse(owner=entry.owner))
    today = [use for use in own if use.day == day]
    facts = {key: value for key, value in entry.to_json().items() if key not in {"digest", "changed_ms"}}
    return {
        **facts,
        "state": entry.find_state(now_ms()) if entry.kind == "token" else "locked",
        "calls_today": sum(use.calls for use in today),
        "tokens_today": sum(use.tokens for use in today),
        "first_ms": min((use.first_ms for use in own), default=0),
        "last_ms": last.last_ms,
        "client": last.client,
        "address": last.address,
    }


def _format_today(entry: TokenEntry, used: JsonObject) -> str:
    calls = format_count(int(str(used["calls_today"])), "call")
    tokens = f"{used['tokens_today']:,} tokens"
    if entry.calls_per_day:
        calls = f"{used['calls_today']:,} of {format_count(entry.calls_per_day, 'call')}"
    if entry.tokens_per_day:
        tokens = f"{used['tokens_today']:,} of {format_count(entry.tokens_per_day, 'token')}"
    return f"{calls}, {tokens}"


@click.command("audit")
@click.argument("name", required=False)
@as_json
def audit(name: str | None, *, as_json: bool) -> int:
    """Show the events of tokens and principals from the ledger, and their calls from the call records.

    With NAME, only those of this token or principal.
    """
    events: list[JsonObject] = []

    async def read(_: CancelToken) -> int:
        from induscode.boot.plans import opened_store  # noqa: PLC0415 — opens the ledger

        async with opened_store() as ledger:
            events.extend(await _read_events(ledger))
        return 0

    run_until_signal(read)
    with _opened_store() as store:
        uses = store.list_uses()
    for use in uses:
        detail, owner = f"{use.client} {use.address}".strip(), use.owner.partition(":")[2]
        for event, at in (("first used", use.first_ms), ("last used", use.last_ms)):
            row: JsonObject = {"at": iso_utc(at), "name": owner, "event": event, "detail": detail}
            events += [row] if at else []
    events.sort(key=lambda row: str(row["at"]))
    events = [row for row in events if name in (None, row["name"])]
    calls = [row for row in _read_calls() if name in (None, row["name"])]
    if as_json:
        write_json({"events": events, "calls": calls})
        return 0
    heads, empty = ("AT", "NAME", "EVENT", "DETAIL"), "No events yet."
    Listing("events", events, heads, lambda row: [*row.values()], empty=empty).show(as_json=False)
    if calls:
        print_line("")
        print_table(("NAME", "CALLS", "FAILED", "TOKENS"), [[*row.values()] for row in calls])
    return 0


async def _read_events(ledger: LedgerStore) -> Sequence[JsonObject]:
    found: list[JsonObject] = []
    for run in await ledger.runs():
        for row in await ledger.rows(run.run):
            facts = row.facts
            if row.op == "token":
                name, event, detail = (facts.get(key) for key in ("name", "subject", "detail"))
            elif row.op == "client":
                name, event = facts.get("principal"), "connected"
                detail = " ".join([str(facts.get("client", "")), *filter_texts(facts.get("scopes"))]).strip()
            else:
                continue
            found.append({"at": row.at, "name": name, "event": event, "detail": detail})
    return found


def _read_calls() -> Sequence[JsonObject]:
    """Sum the calls of each principal up."""
    from induscode.calls.database import CallFilter, use_calls  # noqa: PLC0415 — for this command

    found: dict[str, Counter[str]] = {}
    measures = use_calls(lambda database: [*database.measures("principal", CallFilter())])
    for _, _, name, outcome, calls, tokens, _ in measures or ():
        counts = found.setdefault(name, Counter(calls=0, failed=0, tokens=0))
        counts.update(calls=calls, failed=calls * (outcome != "ok"), tokens=tokens)
    return [{"name": name, **counts} for name, counts in found.items() if name]
