"""`indus ledger`: shows the ledger's events, and the deck as a model saw it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

import click

from indusagi.core.json import JsonObject
from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, now_ms
from induscode.boot.plans import opened_store
from induscode.cli.listing import Cell, Listing
from induscode.cli.output import as_json, build_unknown_name, print_notes, write_json
from induscode.cli.signals import run_async
from induscode.cli.terminal import format_time, parse_time, print_line, print_status, print_text, stdout_console
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.deck.mcp.store import LedgerStore
from induscode.deck.mcp.store.events import Row, RunFacts, document_addresses
from induscode.deck.mcp.store.history import (
    DeckRecord,
    deck_at,
    find_notable,
    format_detail,
    format_subject,
    summarize_run,
)

_DAMAGED = 1
_RUN_LENGTH = 12
"""Letters of a run's name on a terminal: the time, and a bit more. `--run` takes them."""
_STYLES = {"fault": "red", "drift": "yellow", "approve": "green", "approval": "green"}
_EMPTY = "No events yet. They appear after the first session or indus serve."

run_option = click.option("--run", "run", metavar="RUN", help="Only this run (or the first letters of its name).")


@click.command(
    cls=CommandGroup,
    commands={
        "timeline": LazyCommand("list the runs with what happened, the newest last", ":timeline"),
        "show": LazyCommand("show the events of a tool, a key or a row", ":show"),
        "at": LazyCommand("show the deck as it was at a time", ":at"),
        "turn": LazyCommand("show the deck that a model saw at a turn", ":turn"),
        "verify": LazyCommand("check that the ledger is unchanged", ":verify"),
        "export": LazyCommand("write everything as JSON lines", ":export"),
    },
    default="timeline",
)
def command() -> None:
    """Show the history of tools, and what the model saw. Without a command: timeline."""


def with_store(command: Callable[..., Awaitable[int]]) -> Callable[..., int]:
    """Run an async command with the ledger as its first argument."""

    @run_async
    @wraps(command)
    async def run(*args: Any, **options: Any) -> int:
        async with opened_store() as store:
            return await command(store, *args, **options)

    return run


async def _find_run(store: LedgerStore, name: str) -> RunFacts:
    """Find a run by its name or a unique prefix of it."""
    runs = await store.runs()
    matches = [run for run in runs if run.run.startswith(name.upper())]
    exact = [run for run in runs if run.run == name]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        raise click.UsageError(f"{len(matches)} runs begin with {name!r}: give more of the name")
    raise click.UsageError(f"There is no run {name!r}: 'indus ledger' lists them")


async def _find_runs(store: LedgerStore, name: str | None) -> Sequence[RunFacts]:
    """Return the run of `--run`, or all runs without it."""
    return await store.runs() if name is None else [await _find_run(store, name)]


async def _read_documents(store: LedgerStore, rows: Sequence[Row]) -> dict[str, str]:
    """Read the documents that these rows refer to."""
    return dict(await store.documents({one for row in rows for one in document_addresses(row.op, row.facts)}))


# -- timeline and show ------------------------------------------------------------------------


@click.command("timeline")
@run_option
@click.option("--server", metavar="NAME", help="Only the events of this server.")
@click.option("--all", "shows_all", is_flag=True, help="Every event, as with --run.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N",
    help="The last N runs; with --all, --run or --json the last N events.  [default: 20, 100]",
)  # fmt: skip
@as_json
@with_store
async def timeline(
    store: LedgerStore, /, *, run: str | None, server: str | None, shows_all: bool, limit: int | None, as_json: bool
) -> int:
    """List the runs with their events, the newest last."""
    now = now_ms() if stdout_console() is not None else None

    def format_at(row: Row) -> Cell:
        return Cell(format_time(round(datetime.fromisoformat(row.at).timestamp() * 1000), now), "dim")

    def format_cells(row: Row) -> Sequence[object]:
        return format_at(row), row.run[:_RUN_LENGTH], row.op, format_subject(row), format_detail(row)

    if shows_all or as_json or run is not None:
        rows = await _read_latest(store, run, server, limit or 100)
        heads = ("WHEN", "RUN", "EVENT", "SUBJECT", "DETAIL")
        listing = Listing("rows", rows, heads, format_cells, to_json=_build_json, empty=_EMPTY)
        return listing.show(as_json=as_json)
    lines: list[Sequence[object]] = []
    for facts in (await store.runs())[-(limit or 20) :]:
        rows = [row for row in await store.rows(facts.run) if server is None or row.facts.get("server") == server]
        name = Cell(facts.run[:_RUN_LENGTH], "bold")
        lines += [(format_at(rows[0]), name, summarize_run(rows))] if rows else []
        lines += [(format_at(row), "", Cell(text, _STYLES.get(row.op, ""))) for row, text in find_notable(rows)]
    return Listing("runs", lines, ("WHEN", "RUN", "WHAT"), lambda line: line, empty=_EMPTY).show(as_json=False)


async def _read_latest(store: LedgerStore, run: str | None, server: str | None, limit: int) -> Sequence[Row]:
    events: list[Row] = []
    for facts in reversed(await _find_runs(store, run)):
        rows = await store.rows(facts.run)
        events[:0] = [row for row in rows if server is None or row.facts.get("server") == server]
        if len(events) >= limit:
            break
    # Concurrent runs interleave their rows.
    return sorted(events, key=lambda row: row.position)[-limit:]


def _build_json(row: Row) -> JsonObject:
    return {
        "position": row.position,
        "run": row.run,
        "seq": row.seq,
        "at": row.at,
        "event": row.op,
        "facts": row.facts,
        "digest": row.digest,
    }


@click.command("show")
@click.argument("key")
@as_json
@with_store
async def show(store: LedgerStore, /, key: str, *, as_json: bool) -> int:
    """Show the events of KEY: the key of an enrolment, a tool, or the number of a row."""
    rows = [row for run in await store.runs() for row in await store.rows(run.run)]
    matches: list[Row] = []
    for row in rows:
        enrolled = row.facts.get("key")
        tool = f"{row.facts.get('server')}/{row.facts.get('tool')}"
        is_prefix = key.startswith("bk_") and isinstance(enrolled, str) and enrolled.startswith(key)
        if is_prefix or key in (enrolled, row.facts.get("name"), tool, str(row.position)):
            matches.append(row)
    if not matches:
        names = {str(row.facts.get("name", "")) for row in rows} - {""}
        raise build_unknown_name(f"The ledger has nothing about {key!r}", key, sorted(names))
    documents = await _read_documents(store, matches)
    if as_json:
        write_json({"rows": [_build_json(row) for row in matches], "documents": documents})
        return 0
    for row in matches:
        print_line(f"{row.position}  {row.at}  {row.run}  {row.op}  {format_subject(row)}  {format_detail(row)}")
    for address, text in documents.items():
        print_line("")
        print_line(f"{address}:")
        print_text(text)
    return 0


# -- at and turn ------------------------------------------------------------------------------


@click.command("at")
@click.argument("time")
@run_option
@as_json
@with_store
async def at(store: LedgerStore, /, time: str, *, run: str | None, as_json: bool) -> int:
    """Show the deck as it was at TIME: 19:45 (today), or 2026-11-15T20:08, in local time unless it says otherwise."""
    try:
        at_ms = parse_time(time, now_ms())
        moment = iso_utc(at_ms)
    except (ValueError, OverflowError) as exc:
        raise click.UsageError(
            f"{time!r} is not a time: write 19:45, 2026-11-15T20:08 or 2026-11-15T21:08+01:00"
        ) from exc
    if run is not None:
        one = await _find_run(store, run)
    else:
        earlier = [facts for facts in await store.runs() if facts.began <= moment]
        if not earlier:
            raise click.UsageError(f"No run had begun by {format_time(at_ms)}: 'indus ledger' lists what there is")
        one = earlier[-1]
    record = await deck_at(store, one.run, at=moment)
    if record is None:
        raise click.UsageError(f"The run {one.run} had not begun by {moment}")
    return _print_deck(record, as_json=as_json)


@click.command("turn")
@click.argument("number", type=click.IntRange(min=1), metavar="N")
@run_option
@as_json
@with_store
async def turn(store: LedgerStore, /, number: int, *, run: str | None, as_json: bool) -> int:
    """Show the deck that a model saw at turn N, of the last run that had one."""
    runs = await _find_runs(store, run)
    for one in reversed(runs):
        record = await deck_at(store, one.run, turn=number)
        if record is not None:
            return _print_deck(record, as_json=as_json)
    where = f"The run {runs[0].run}" if run is not None else "The ledger"
    raise click.UsageError(f"{where} has no turn {number}: 'indus ledger' lists what there is")


def _print_deck(record: DeckRecord, *, as_json: bool) -> int:
    print_notes(record.notes)
    enrolled: list[JsonObject] = [
        {"name": one.name, "server": one.ref.server, "tool": one.ref.name, "pin": one.pin}
        for one in record.capabilities
    ]
    if as_json:
        write_json(
            {
                "run": record.run,
                "turn": record.turn,
                "at": record.at,
                "digest": record.digest,
                "shown": [one.name for one in record.descriptors],
                "text": record.text,
                "enrolled": enrolled,
            }
        )
        return 0
    print_line(f"run {record.run}, turn {record.turn}, up to {record.at}")
    if record.turn:
        print_line(f"deck {record.digest}: a model was shown {format_count(len(record.descriptors), 'tool')}")
    for one in record.descriptors:
        print_line(f"  {one.name}")
    print_line(f"enrolled from servers: {len(enrolled)}")
    for row in enrolled:
        print_line(f"  {row['name']} ({row['server']}/{row['tool']}, pin {str(row['pin'])[:12]})")
    return 0


# -- verify and export ------------------------------------------------------------------------


@click.command("verify")
@as_json
@with_store
async def verify(store: LedgerStore, /, *, as_json: bool) -> int:
    """Check that every row of the ledger is as it was written. Exit code 1 if not."""
    # Opening a damaged ledger sets it aside and leaves a note.
    damage = [str(note) for note in (*store.notes, *await store.verify())]
    rows = sum(run.rows for run in await store.runs())
    if as_json:
        write_json({"file": store.path, "rows": rows, "damage": damage})
    elif not damage:
        print_line(f"{store.path}: all {rows} rows are as they were written")
    for one in damage[len(store.notes) :]:
        print_status(one)
    return _DAMAGED if damage else 0


@click.command("export")
@run_option
@as_json
@with_store
async def export(store: LedgerStore, /, *, run: str | None, as_json: bool) -> int:
    """Write everything as JSON, one row per line and then the documents; one value with --json."""
    rows = [row for one in await _find_runs(store, run) for row in await store.rows(one.run)]
    documents = await _read_documents(store, rows)
    if as_json:
        write_json({"rows": [_build_json(row) for row in rows], "documents": documents})
        return 0
    for row in rows:
        write_json(_build_json(row), indent=None)
    for address, text in documents.items():
        write_json({"document": address, "text": text}, indent=None)
    return 0
