"""Ledger views: the events of a run, and the deck a model saw at a turn or point in time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, cast

from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, parse_iso
from induscode.deck.mcp.store.history import (
    NOTABLE,
    deck_at,
    find_notable,
    format_detail,
    format_subject,
    summarize_run,
)
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    build_choice,
    build_field,
    build_filter,
    link,
    live,
    shorten,
    show_digest,
    show_json,
    show_moment,
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

_RUNS = 20
"""Runs shown at first."""
_RUN_LENGTH = 12
_MINUTE = re.compile(r"(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d")
_EVENTS, _ALL_EVENTS = 100, 5_000
"""Events of a run shown at first, and on request."""
_KINDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "": ("all", ()),
    "faults": ("faults", ("fault",)),
    "changes": ("changes", ("drift",)),
    "approvals": ("approvals", ("approve", "approval")),
}
"""Kinds of events to filter by: name, and events."""


async def show_timeline(page: PageRequest) -> PageView:
    """Show the last runs with their events, or the events of one by server."""
    store = page.source.session.store
    await store.flush()
    runs = await store.runs()
    if not runs:
        return PageView(
            "Timeline", show_nothing("No events yet. They appear after the first session or indus serve."), "timeline"
        )
    wanted = page.get("run")
    shown = live("items", "events", await (_show_run(page, wanted) if wanted else _show_runs(page, runs)))
    return PageView("Timeline", tag("div", _build_forms(page, wanted), shown), "timeline")


async def _read_rows(page: PageRequest, run: str) -> Sequence[Row]:
    """Read the events of a run that pass the filter."""
    server, (_, ops) = page.get("server"), _KINDS.get(page.get("kind"), _KINDS[""])
    return [
        row
        for row in await page.source.session.store.rows(run)
        if (not server or row.facts.get("server") == server) and (not ops or row.op in ops)
    ]


async def _show_runs(page: PageRequest, runs: Sequence[RunFacts]) -> Html:
    """Show a summary of each run, the newest first, with the events that matter."""
    own, limit = page.source.session.mcp.journal.run, len(runs) if page.get("all") == "1" else _RUNS
    shown: list[Html] = []
    for run in reversed(runs[-limit:]):
        rows = await _read_rows(page, run.run)
        if rows:
            events = [
                tag("li", _show_at(row), " ", tag("span", text, cls=f"state-{row.op}"))
                for row, text in find_notable(rows)
            ]
            link_to = link(run.run[:_RUN_LENGTH], "/timeline", run=run.run, server=page.get("server"))
            here = " (this page)" if run.run == own else ""
            heading = tag("h2", show_moment(parse_iso(run.began)), " run ", link_to, here)
            listed = tag("ul", events, cls="events") if events else None
            shown.append(tag("article", heading, tag("p", summarize_run(rows)), listed))
    more = None
    if len(runs) > limit:
        chosen = {key: page.get(key) for key in ("server", "kind")}
        more = tag("p", f"The last {limit} of {len(runs):,} runs. ", link("Show all", "/timeline", all=1, **chosen))
    return tag("div", shown or show_nothing("No such event."), more)


async def _show_run(page: PageRequest, run: str) -> Html:
    """Show the events of a run, grouped by server; groups with something to look at are open."""
    matching = await _read_rows(page, run)
    limit = _ALL_EVENTS if page.get("all") == "1" else _EVENTS
    shown = matching[-limit:]
    groups: dict[str, list[Row]] = {}
    for row in reversed(shown):
        groups.setdefault(str(row.facts.get("server", "")), []).append(row)
    sections = [
        tag(
            "details",
            tag("summary", tag("strong", server or "The run"), f": {_count_events(rows)}"),
            table(("Event", "When", "Subject", "Detail", "Deck"), [*map(_build_row, rows)], caption=f"Events {server}"),
            open=len(groups) == 1 or any(row.op in NOTABLE or row.op == "turn" for row in rows),
        )
        for server, rows in groups.items()
    ]
    more = None
    if len(shown) < len(matching) and limit == _EVENTS:
        chosen = {key: page.get(key) for key in ("server", "kind")}
        more = link(f"Show up to {_ALL_EVENTS:,}", "/timeline", run=run, all=1, **chosen)
    counted = f"{format_count(len(matching), 'event')} of the run {run}"
    cut = f", the last {limit}. " if len(shown) < len(matching) else ". "
    back = link("All runs", "/timeline")
    return tag("div", tag("p", counted, cut, more, " ", back), sections or show_nothing("No such event."))


def _count_events(rows: Sequence[Row]) -> str:
    counts = Counter(row.op for row in rows)
    return ", ".join(f"{count} × {op}" if count > 1 else op for op, count in counts.items())  # noqa: RUF001 — times


def _build_row(row: Row) -> Sequence[Html | str]:
    seen = link("what it saw", "/deck", run=row.run, turn=str(row.facts.get("turn"))) if row.op == "turn" else ""
    return show_state(row.op), _show_at(row), format_subject(row), shorten(format_detail(row)), seen


def _show_at(row: Row) -> Html:
    return show_moment(parse_iso(row.at))


def _build_forms(page: PageRequest, run: str) -> Html:
    kinds = {key: name for key, (name, _) in _KINDS.items()}
    fields = [
        build_choice("kind", "Events", kinds, page.get("kind")),
        build_field("server", "Server", page.get("server")),
    ]
    choose = build_filter("/timeline", "Show", fields, run=run)
    if not run:
        return choose
    fields = [build_field("turn", "Turn", "", "12", "number"), build_field("at", "or time", "", "14:02")]
    return tag("div", choose, build_filter("/deck", "What did the model see?", fields, run=run))


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
        tag(
            "p",
            "Run ",
            link(run, "/timeline", run=run),
            f", turn {record.turn}, up to ",
            show_moment(parse_iso(record.at)),
            ".",
        ),
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
    """Parse an RFC 3339 §5.6 time, local by default; without a date it's the first such time after the run began.

    A time without seconds means the end of its minute. Raises `PageError` if it doesn't parse.
    """
    try:
        if len(text) <= len("14:02:33"):
            since, given = datetime.fromisoformat(began).astimezone(), time.fromisoformat(text)
            wanted = datetime.combine(since.date(), given, given.tzinfo or since.tzinfo)
            wanted += timedelta(days=wanted.strftime("%H:%M:%S") < since.strftime("%H:%M:00"))
        else:
            wanted = datetime.fromisoformat(text)
        if _MINUTE.fullmatch(text):
            wanted = wanted.replace(second=59, microsecond=999_000)
        return iso_utc(round(wanted.timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise PageError(f"{text!r} is not a time: write 14:02 or 2026-11-15T14:02", 400) from None
