"""`indus ledger`: what was enrolled when, and what a model was shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from indusagi.core.text import format_count
from induscode.commands.support.groups import CommandGroup, Lazy, build_unknown_name
from induscode.commands.support.output import as_json, print_notes, print_table, write_json
from induscode.commands.support.runner import opened_store, run_until_signal
from induscode.console import find_shortest_prefix, format_age, stdout_console
from induscode.terminal import print_line, print_status, print_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.store import ThreadedStore
    from induscode.deck.mcp.store.events import Row, RunFacts
    from induscode.deck.mcp.store.history import DeckRecord

_HERE = "induscode.commands.ledger"
_DAMAGED = 1
_SHOWN_KEY = 15

run_option = click.option("--run", "run", metavar="RUN", help="Of this run (or its first letters).")


@click.command(
    cls=CommandGroup,
    commands={
        "timeline": Lazy("list what happened, the last at the end", _HERE, "timeline"),
        "show": Lazy("show all that is known of a tool, a key or a row", _HERE, "show"),
        "at": Lazy("show the deck as it was at a time", _HERE, "at"),
        "turn": Lazy("show the deck that a model saw at a turn", _HERE, "turn"),
        "verify": Lazy("look whether the ledger is what was written", _HERE, "verify"),
        "export": Lazy("write all of it as JSON, a row a line", _HERE, "export"),
    },
    default="timeline",
)
def command() -> None:
    """Tell what was enrolled when, and what a model saw. Without a command: timeline."""


def _with_store(work: Callable[[ThreadedStore], Awaitable[int]]) -> int:
    async def opened(_: CancelToken) -> int:
        async with opened_store() as store:
            return await work(store)

    return run_until_signal(opened)


async def _run_named(store: ThreadedStore, given: str) -> RunFacts:
    """Find a run by its name, or by letters that only its name begins with.

    Raises:
        click.UsageError: None is meant, or several may be.
    """
    runs = await store.runs()
    found = [run for run in runs if run.run.startswith(given.upper())]
    exact = [run for run in runs if run.run == given]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if found:
        said = f"{len(found)} runs begin with {given!r}: give more of the name"
        raise click.UsageError(said, click.get_current_context(silent=True))
    raise build_unknown_name(f"There is no run {given!r}: 'indus ledger' lists them", given, ())


# -- timeline and show ------------------------------------------------------------------------


@click.command("timeline")
@run_option
@click.option("--server", metavar="NAME", help="Only what this server did.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
    help="The last N rows.",
)  # fmt: skip
@as_json
def timeline(*, run: str | None, server: str | None, limit: int, as_json: bool) -> int:
    """List what happened, the last at the end."""

    async def work(store: ThreadedStore) -> int:
        rows = await _latest(store, run, server, limit)
        if as_json:
            write_json({"rows": [_as_json(row) for row in rows]})
        elif not rows:
            print_line("Nothing has happened yet.")
        else:
            times, names = _times_and_runs(rows)
            cells = [
                (time, name, row.op, _subject(row), _said(row))
                for row, time, name in zip(rows, times, names, strict=True)
            ]
            print_table(("AT", "RUN", "EVENT", "SUBJECT", "DETAIL"), cells)
        return 0

    return _with_store(work)


def _times_and_runs(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Give the time and the run of each row; on a terminal how long ago, and a short name.

    The short name is one that `--run` takes.
    """
    if stdout_console() is None:
        return [row.at for row in rows], [row.run for row in rows]
    from datetime import datetime  # noqa: PLC0415 — for a terminal only

    from indusagi.core.clock import now_ms  # noqa: PLC0415 — for a terminal only

    now = now_ms()
    times = [round(datetime.fromisoformat(row.at).timestamp() * 1000) for row in rows]
    length = find_shortest_prefix([row.run for row in rows])
    return [format_age(time, now) for time in times], [row.run[:length] for row in rows]


async def _latest(store: ThreadedStore, run: str | None, server: str | None, limit: int) -> Sequence[Row]:
    runs = [await _run_named(store, run)] if run is not None else await store.runs()
    found: list[Row] = []
    for one in reversed(runs):
        rows = await store.rows(one.run)
        found[:0] = [row for row in rows if server is None or row.facts.get("server") == server]
        if len(found) >= limit:
            break
    # Runs that go on at the same time have their rows among each other's.
    return sorted(found, key=lambda row: row.position)[-limit:]


def _as_json(row: Row) -> JsonObject:
    return {
        "position": row.position,
        "run": row.run,
        "seq": row.seq,
        "at": row.at,
        "event": row.op,
        "facts": row.facts,
        "digest": row.digest,
    }


def _subject(row: Row) -> str:
    facts = row.facts
    if row.op == "turn":
        return f"turn {facts.get('turn')}"
    if row.op == "retire":
        return str(facts.get("key", ""))[:_SHOWN_KEY]
    named = facts.get("name")
    if isinstance(named, str):
        return named
    tool = f"/{facts['tool']}" if "tool" in facts else ""
    return f"{facts.get('server', '')}{tool}"


def _said(row: Row) -> str:
    facts = row.facts
    if row.op == "turn":
        return f"deck {str(facts.get('deck'))[:12]}"
    if row.op in {"run", "list"}:
        noun = "server" if row.op == "run" else "tool"
        named = facts.get(f"{noun}s")
        return format_count(len(named), noun) if isinstance(named, list) else ""
    if row.op in {"enroll", "pin"}:
        return str(facts.get("key", facts.get("pin", "")))[:_SHOWN_KEY]
    return f"{facts.get('subject', '')} {facts.get('detail', '')}".strip().partition("\n")[0]


@click.command("show")
@click.argument("key")
@as_json
def show(key: str, *, as_json: bool) -> int:
    """Show all that is known of KEY: the key of an enrolment, a tool, or the number of a row."""

    async def work(store: ThreadedStore) -> int:
        from induscode.deck.mcp.store.events import document_addresses  # noqa: PLC0415 — brings hashing

        rows = [row for run in await store.runs() for row in await store.rows(run.run)]
        found = [row for row in rows if _is_about(row, key)]
        if not found:
            names = {str(row.facts.get("name", "")) for row in rows} - {""}
            raise build_unknown_name(f"The ledger has nothing about {key!r}", key, sorted(names))
        wanted = {one for row in found for one in document_addresses(row.op, row.facts)}
        documents = dict(await store.documents(wanted))
        if as_json:
            write_json({"rows": [_as_json(row) for row in found], "documents": documents})
            return 0
        for row in found:
            print_line(f"{row.position}  {row.at}  {row.run}  {row.op}  {_subject(row)}  {_said(row)}")
        for address, text in documents.items():
            print_line("")
            print_line(f"{address}:")
            print_text(text)
        return 0

    return _with_store(work)


def _is_about(row: Row, key: str) -> bool:
    facts = row.facts
    names = (facts.get("key"), facts.get("name"), f"{facts.get('server')}/{facts.get('tool')}")
    if key in names or str(row.position) == key:
        return True
    enrolled = facts.get("key")
    return key.startswith("bk_") and isinstance(enrolled, str) and enrolled.startswith(key)


# -- the deck as it was -----------------------------------------------------------------------


@click.command("at")
@click.argument("time")
@run_option
@as_json
def at(time: str, *, run: str | None, as_json: bool) -> int:
    """Show the deck as it was at TIME, such as 2026-11-15T20:08 (UTC, unless it says otherwise)."""
    moment = _moment(time)

    async def work(store: ThreadedStore) -> int:
        from induscode.deck.mcp.store.history import deck_at  # noqa: PLC0415 — brings the ledger

        if run is not None:
            one = await _run_named(store, run)
        else:
            begun = [one for one in await store.runs() if one.began <= moment]
            if not begun:
                said = f"No run had begun by {moment}: 'indus ledger' lists what there is"
                raise click.UsageError(said, click.get_current_context(silent=True))
            one = begun[-1]
        record = await deck_at(store, one.run, at=moment)
        if record is None:
            said = f"The run {one.run} had not begun by {moment}"
            raise click.UsageError(said, click.get_current_context(silent=True))
        return _show_deck(record, as_json=as_json)

    return _with_store(work)


def _moment(given: str) -> str:
    """Read a time, and give it the way the ledger writes it.

    Raises:
        click.UsageError: It is none.
    """
    from datetime import UTC, datetime  # noqa: PLC0415 — for those who look back

    from indusagi.core.clock import iso_utc  # noqa: PLC0415 — as above

    try:
        found = datetime.fromisoformat(given)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
        return iso_utc(round(found.timestamp() * 1000))
    except (ValueError, OverflowError) as exc:
        said = f"{given!r} is no time: write 2026-11-15T20:08 or 2026-11-15T21:08+01:00"
        raise click.UsageError(said, click.get_current_context(silent=True)) from exc


@click.command("turn")
@click.argument("number", type=click.IntRange(min=1), metavar="N")
@run_option
@as_json
def turn(number: int, *, run: str | None, as_json: bool) -> int:
    """Show the deck that a model saw at turn N, of the last run that had one."""

    async def work(store: ThreadedStore) -> int:
        from induscode.deck.mcp.store.history import deck_at  # noqa: PLC0415 — brings the ledger

        runs = [await _run_named(store, run)] if run is not None else await store.runs()
        for one in reversed(runs):
            record = await deck_at(store, one.run, turn=number)
            if record is not None:
                return _show_deck(record, as_json=as_json)
        where = f"The run {runs[0].run}" if run is not None else "The ledger"
        said = f"{where} has no turn {number}: 'indus ledger' lists what there is"
        raise click.UsageError(said, click.get_current_context(silent=True))

    return _with_store(work)


def _show_deck(record: DeckRecord, *, as_json: bool) -> int:
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


# -- the whole of it --------------------------------------------------------------------------


@click.command("verify")
@as_json
def verify(*, as_json: bool) -> int:
    """Look whether the ledger is what was written, all of it. Exit code 1 if it is not."""

    async def work(store: ThreadedStore) -> int:
        # One that was found damaged when it was opened is set aside by now, and told so.
        damage = [str(note) for note in (*store.notes, *await store.verify())]
        rows = sum(run.rows for run in await store.runs())
        if as_json:
            write_json({"file": store.path, "rows": rows, "damage": damage})
        elif not damage:
            print_line(f"{store.path}: all {rows} rows are as they were written")
        for one in damage[len(store.notes) :]:
            print_status(one)
        return _DAMAGED if damage else 0

    return _with_store(work)


@click.command("export")
@run_option
@as_json
def export(*, run: str | None, as_json: bool) -> int:
    """Write all of it as JSON, a row a line and then the documents; one value with --json."""

    async def work(store: ThreadedStore) -> int:
        from induscode.deck.mcp.store.events import document_addresses  # noqa: PLC0415 — brings hashing

        runs = [await _run_named(store, run)] if run is not None else await store.runs()
        rows = [row for one in runs for row in await store.rows(one.run)]
        wanted = {one for row in rows for one in document_addresses(row.op, row.facts)}
        documents = dict(await store.documents(wanted))
        if as_json:
            write_json({"rows": [_as_json(row) for row in rows], "documents": documents})
            return 0
        for row in rows:
            write_json(_as_json(row), indent=None)
        for address, text in documents.items():
            write_json({"document": address, "text": text}, indent=None)
        return 0

    return _with_store(work)
