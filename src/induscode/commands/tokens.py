"""`indus tokens`: tokens for `indus serve --http`, by name, and principals that are locked out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from indusagi.core.json import JsonObject
from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.host.identity import CALL_SCOPE, LIST_SCOPE, SCOPES
from induscode.cli.listing import Listing, print_table
from induscode.cli.output import as_json, build_unknown_name, write_json
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import format_age, print_line, print_status
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.deck.mcp.store.events import filter_texts
from induscode.gateway.token_changes import (
    create_token,
    find_entry,
    opened_tokens,
    put_entry,
    revoke_token,
    rotate_token,
)
from induscode.gateway.tokens import TokenEntry, TokenUse, find_day
from induscode.launch.options import define_command, read_invocation
from induscode.launch.settings import SERVE_VIEWS

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from induscode.deck.mcp.store import LedgerStore

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


def _record(facts: JsonObject) -> None:
    """Record the change of a token or lock in the ledger."""

    async def record(_: CancelToken) -> int:
        from induscode.boot.plans import opened_store  # noqa: PLC0415 — opens the ledger
        from induscode.deck.mcp.store.journal import Journal  # noqa: PLC0415 — opens the ledger

        async with opened_store() as ledger:
            Journal(ledger).record("token", facts)
            await ledger.flush()
        return 0

    run_until_signal(record)


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
    views = read_invocation(context).settings.get(SERVE_VIEWS)
    token, facts = create_token(name, view or "", scopes, expires or "", views, limits)
    _record(facts)
    return _print_token(token, name)


def _print_token(token: str, name: str) -> int:
    print(token)  # noqa: T201 — the result of the command
    print_status(f"token {name!r}: {_CLIENTS}")
    return 0


@click.command("rotate")
@click.argument("name")
def rotate(name: str) -> int:
    """Replace the token NAME by a new one with the same limits, and end the sessions of the old one."""
    token, facts = rotate_token(name)
    _record(facts)
    return _print_token(token, name)


@click.command("revoke")
@click.argument("name")
def revoke(name: str) -> int:
    """End the token NAME: its sessions, streams and running calls end within two seconds, at all nodes."""
    facts = revoke_token(name)
    if facts is None:
        print_line(f"{name}: revoked already")
        return 0
    _record(facts)
    print_line(f"{name}: revoked")
    return 0


@click.command("lock")
@click.argument("principal")
def lock(principal: str) -> int:
    """Lock PRINCIPAL out, although the tokens of its issuer are still valid; its sessions end within two seconds."""
    with opened_tokens() as store:
        known = find_entry(store, principal, "principal")
        entry = TokenEntry(kind="principal", name=principal, created_ms=now_ms(), revoked_ms=now_ms())
        facts = put_entry(store, entry, known, "locked")
    _record(facts)
    print_line(f"{principal}: locked out")
    return 0


@click.command("unlock")
@click.argument("principal")
def unlock(principal: str) -> int:
    """Let PRINCIPAL in again."""
    with opened_tokens() as store:
        known = find_entry(store, principal, "principal")
        if known is None or not known.revoked_ms:
            locked = [one.name for one in store.list_entries() if one.kind == "principal" and one.revoked_ms]
            raise build_unknown_name(f"{principal!r} isn't locked out", principal, locked)
        facts = put_entry(store, replace(known, revoked_ms=0), known, "unlocked")
    _record(facts)
    print_line(f"{principal}: may sign in again")
    return 0


# -- list and audit ---------------------------------------------------------------------------


@click.command("list")
@as_json
def list_tokens(*, as_json: bool) -> int:
    """List tokens and locked-out principals, with their last use and today's (UTC)."""
    with opened_tokens() as store:
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
    with opened_tokens() as store:
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
