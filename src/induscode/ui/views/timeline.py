"""The ledger over time: the events of a run, and the deck that a model saw at a turn or at a moment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from indusagi.core.text import format_count
from indusagi.core.time import iso_utc
from induscode.deck.mcp.store.history import deck_at
from induscode.ui.contract import PageError, PageView
from induscode.ui.html import Html, table, tag
from induscode.ui.parts import address, link, show_json, show_nothing, show_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.store.events import Row, RunFacts
    from induscode.ui.contract import PageRequest

_RUNS = 50
_EVENTS, _ALL_EVENTS = 100, 5_000
"""Events that are shown at first, and on request."""


async def show_timeline(page: PageRequest) -> PageView:
    """Show the runs, and the events of one of them."""
    store = page.source.session.store
    await store.flush()
    runs = await store.runs()
    if not runs:
        return PageView("Timeline", show_nothing("Nothing has happened yet."), "timeline")
    wanted = page.get("run") or runs[-1].run
    rows = await store.rows(wanted)
    server = page.get("server")
    matching = [row for row in rows if not server or row.facts.get("server") == server]
    limit = _ALL_EVENTS if page.get("all") == "1" else _EVENTS
    shown = matching[-limit:]
    cells = [
        (row.at[11:19], show_state(row.op), _format_subject(row), _format_detail(row), _link_deck(row))
        for row in reversed(shown)
    ]
    more = None
    if len(shown) < len(matching) and limit == _EVENTS:
        more = link(f"Show up to {_ALL_EVENTS:,}", "/timeline", run=wanted, server=server, all=1)
    counted = f"{format_count(len(matching), 'event')} of the run {wanted}"
    content = tag(
        "div",
        _build_forms(page, runs, wanted),
        tag("p", counted, f", the last {limit}. " if len(shown) < len(matching) else "", more),
        table(("At (UTC)", "Event", "Subject", "Detail", "Deck"), cells, caption="Events"),
    )
    return PageView("Timeline", content, "timeline")


def _build_forms(page: PageRequest, runs: Sequence[RunFacts], wanted: str) -> Html:
    options = [
        tag(
            "option",
            f"{run.began[:19].replace('T', ' ')} ({run.rows} events)",
            value=run.run,
            selected=run.run == wanted,
        )
        for run in reversed(runs[-_RUNS:])
    ]
    choose = tag(
        "form",
        tag("label", "Run", for_="run"), tag("select", options, id="run", name="run"),
        tag("label", "Server", for_="server"), tag("input", id="server", name="server", value=page.get("server")),
        tag("button", "Show", type_="submit"), method="get", action=address("/timeline"), cls="filter",
    )  # fmt: skip
    travel = tag(
        "form",
        tag("input", type_="hidden", name="run", value=wanted),
        tag("label", "Turn", for_="turn"), tag("input", id="turn", name="turn", type_="number", min="1"),
        tag("label", "or time (UTC)", for_="at"), tag("input", id="at", name="at", placeholder="2026-11-15T14:02"),
        tag("button", "What did the model see?", type_="submit"), method="get", action=address("/deck"), cls="filter",
    )  # fmt: skip
    return tag("div", choose, travel)


def _format_subject(row: Row) -> str:
    facts = row.facts
    if row.op == "turn":
        return f"turn {facts.get('turn')}"
    named = facts.get("name") or facts.get("principal")
    tool = f"/{facts['tool']}" if "tool" in facts else ""
    return str(named or f"{facts.get('server', '')}{tool}" or facts.get("key", ""))


def _format_detail(row: Row) -> str:
    facts = row.facts
    return " ".join(str(facts[key]) for key in ("subject", "detail", "pin", "deck") if facts.get(key))[:300]


def _link_deck(row: Row) -> Html | str:
    return link("what it saw", "/deck", run=row.run, turn=str(row.facts.get("turn"))) if row.op == "turn" else ""


async def show_deck(page: PageRequest) -> PageView:
    """Show the deck of a run at a turn or at a moment."""
    run, turn, at = page.get("run"), page.get("turn"), page.get("at")
    store = page.source.session.store
    await store.flush()
    if run not in {one.run for one in await store.runs()}:
        raise PageError(f"There is no run {run!r}")
    moment = None
    if at and not turn:
        try:
            wanted = datetime.fromisoformat(at)  # RFC 3339 §5.6
            moment = iso_utc(round((wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)).timestamp() * 1_000))
        except (ValueError, OverflowError):
            raise PageError(f"{at!r} is not a time: write 2026-11-15T14:02", 400) from None
    record = await deck_at(store, run, turn=int(turn) if turn.isdecimal() else None, at=moment)
    if record is None:
        raise PageError(f"The run {run} has no turn {turn}" if turn else f"The run {run} had not begun by {moment}")
    shown = [
        tag(
            "details",
            tag("summary", one.name),
            tag("p", one.description),
            show_json(cast("JsonObject", dict(one.parameters))),
        )
        for one in record.descriptors
    ]
    enrolled = [
        (one.name, link(one.ref.server, "/server", name=one.ref.server), one.ref.name, tag("code", one.pin[:12]))
        for one in record.capabilities
    ]
    content = tag(
        "div",
        tag("p", f"Run {run}, turn {record.turn}, up to {record.at}."),
        tag("h2", f"A model was shown {format_count(len(record.descriptors), 'tool')}")
        if record.turn
        else show_nothing("No model had been asked yet."),
        shown,
        tag("h2", f"Enrolled from servers: {len(enrolled)}"),
        table(("Name", "Server", "Tool", "Pin"), enrolled, caption="Enrolled tools"),
        [tag("p", str(note), cls="fault") for note in record.notes],
    )
    return PageView("The deck as it was", content, "timeline")
