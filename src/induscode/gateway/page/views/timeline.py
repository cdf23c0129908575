"""Ledger views: the events of a run, and the deck a model saw at a turn or point in time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING, cast

from indusagi.core.text import format_count
from indusagi.core.time import iso_utc
from induscode.deck.mcp.store.history import deck_at
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    build_choice,
    build_field,
    build_filter,
    link,
    live,
    show_digest,
    show_json,
    show_nothing,
    show_prose,
    show_state,
    table,
    tag,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.store.events import Row, RunFacts
    from induscode.gateway.page.access import PageRequest

_RUNS = 50
_MINUTE = re.compile(r"(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d")
_EVENTS, _ALL_EVENTS = 100, 5_000
"""Events shown at first, and on request."""


async def show_timeline(page: PageRequest) -> PageView:
    """Show the runs and the events of one of them."""
    store = page.source.session.store
    await store.flush()
    runs = await store.runs()
    if not runs:
        return PageView(
            "Timeline", show_nothing("No events yet. They appear after the first session or indus serve."), "timeline"
        )
    wanted = page.get("run") or runs[-1].run
    rows = await store.rows(wanted)
    server = page.get("server")
    matching = [row for row in rows if not server or row.facts.get("server") == server]
    limit = _ALL_EVENTS if page.get("all") == "1" else _EVENTS
    shown = matching[-limit:]
    cells = [
        (
            *(show_state(row.op), row.at[11:19], _format_subject(row), _show_detail(row)),
            link("what it saw", "/deck", run=row.run, turn=str(row.facts.get("turn"))) if row.op == "turn" else "",
        )
        for row in reversed(shown)
    ]
    more = None
    if len(shown) < len(matching) and limit == _EVENTS:
        more = link(f"Show up to {_ALL_EVENTS:,}", "/timeline", run=wanted, server=server, all=1)
    counted = f"{format_count(len(matching), 'event')} of the run {wanted}"
    content = tag(
        "div",
        _build_forms(page, runs, wanted),
        live(
            "items",
            "events",
            tag("p", counted, f", the last {limit}. " if len(shown) < len(matching) else ".", more),
            table(("Event", "At (UTC)", "Subject", "Detail", "Deck"), cells, caption="Events") if cells
            else show_nothing("No such event."),
        ),
    )  # fmt: skip
    return PageView("Timeline", content, "timeline")


def _build_forms(page: PageRequest, runs: Sequence[RunFacts], wanted: str) -> Html:
    own = page.source.session.mcp.journal.run
    last = runs[-_RUNS:]
    if wanted not in {run.run for run in last}:
        last = [*(run for run in runs if run.run == wanted), *last]
    choices = {
        run.run: f"{run.began[:19].replace('T', ' ')}, {format_count(run.rows, 'event')}"
        + (" (this page)" if run.run == own else "")
        for run in reversed(last)
    }
    servers = build_field("server", "Server", page.get("server"))
    choose = build_filter("/timeline", "Show", [build_choice("run", "Run (UTC)", choices, wanted), servers])
    fields = [build_field("turn", "Turn", "", "12", "number"), build_field("at", "or time (UTC)", "", "14:02")]
    travel = build_filter("/deck", "What did the model see?", fields, run=wanted)
    return tag("div", choose, travel)


def _format_subject(row: Row) -> str:
    facts = row.facts
    if row.op == "turn":
        return f"turn {facts.get('turn')}"
    named = facts.get("name") or facts.get("principal")
    tool = f"/{facts['tool']}" if "tool" in facts else ""
    return str(named or f"{facts.get('server', '')}{tool}" or facts.get("key", ""))


def _show_detail(row: Row) -> Sequence[Html | str]:
    facts = row.facts
    texts = " ".join(str(facts[key]) for key in ("subject", "detail") if facts.get(key))[:300]
    return [texts, *(show_digest(str(facts[key])) for key in ("pin", "deck") if facts.get(key))]


async def show_deck(page: PageRequest) -> PageView:
    """Show a run's deck at a turn or point in time."""
    run, turn, at = page.get("run"), page.get("turn"), page.get("at")
    store = page.source.session.store
    await store.flush()
    runs = {one.run: one for one in await store.runs()}
    if run not in runs:
        raise PageError(f"There is no run {run!r}")
    moment = None
    if at and not turn:
        moment = _read_time(at, runs[run].began)
    record = await deck_at(store, run, turn=int(turn) if turn.isdecimal() else None, at=moment)
    if record is None:
        raise PageError(f"The run {run} has no turn {turn}" if turn else f"The run {run} had not begun by {moment}")
    shown = [
        tag(
            "details",
            tag("summary", one.name),
            show_prose(one.description),
            show_json(cast("JsonObject", dict(one.parameters))),
        )
        for one in record.descriptors
    ]
    enrolled = [
        (one.name, link(one.ref.server, "/server", name=one.ref.server), one.ref.name, show_digest(one.pin))
        for one in record.capabilities
    ]
    content = tag(
        "div",
        tag("p", "Run ", link(run, "/timeline", run=run), f", turn {record.turn}, up to {record.at}."),
        tag("h2", f"A model was shown {format_count(len(record.descriptors), 'tool')}")
        if record.turn
        else show_nothing("No model had been asked yet."),
        shown,
        tag("h2", f"Enrolled from servers: {len(enrolled)}"),
        table(("Name", "Server", "Tool", "Pin"), enrolled, caption="Enrolled tools"),
        [tag("p", str(note), cls="fault") for note in record.notes],
    )
    return PageView("The deck as it was", content, "timeline")


def _read_time(text: str, began: str) -> str:
    """Parse an RFC 3339 §5.6 time, UTC by default; without a date it's the first such time after the run began.

    A time without seconds means the end of its minute. Raises `PageError` if it doesn't parse.
    """
    try:
        if len(text) <= len("14:02:33"):
            since = datetime.fromisoformat(began)
            wanted = datetime.combine(since.date(), time.fromisoformat(text), UTC)
            wanted += timedelta(days=wanted.strftime("%H:%M:%S") < since.strftime("%H:%M:00"))
        else:
            wanted = datetime.fromisoformat(text)
        if _MINUTE.fullmatch(text):
            wanted = wanted.replace(second=59, microsecond=999_000)
        return iso_utc(round((wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)).timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise PageError(f"{text!r} is not a time: write 14:02 or 2026-11-15T14:02", 400) from None
