"""Calls: the last ones as they come, plots over time, and one call with what belongs to it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from induscode.calls.database import CallFilter, open_calls
from induscode.calls.record import format_name
from induscode.calls.series import CallSeries, read_series
from induscode.calls.statistics import CallStatistics, format_duration, read_statistics
from induscode.ui.contract import PageError, PageView
from induscode.ui.html import Html, table, tag
from induscode.ui.parts import address, link, live, show_nothing, show_state, show_text, show_time
from induscode.ui.plots import draw_lines, draw_waterfall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from induscode.calls.database import Payload
    from induscode.calls.record import CallRecord
    from induscode.ui.contract import PageRequest

_WINDOWS = {"15min": 15_000, "1h": 60_000, "24h": 1_440_000, "7d": 10_080_000}
"""The times that can be looked at, with the milliseconds of one of their 60 steps."""
_STEPS = 60
_LIMIT = 100
_MOST_RELATED = 40
_HEADS = ("Number", "When", "Who", "Tool", "Took", "Outcome", "Tokens")


@record
class _Overview:
    calls: Sequence[CallRecord]
    series: CallSeries
    groups: Sequence[CallStatistics]


async def show_calls(page: PageRequest) -> PageView:
    """Show the last calls, their statistics and plots."""
    window = page.get("window") if page.get("window") in _WINDOWS else "1h"
    wanted = CallFilter(
        server=page.get("server") or None, tool=page.get("tool") or None, failed=page.get("failed") == "1"
    )
    overview = await to_thread.run_sync(_read_overview, wanted, window, page.get("order") == "slow")
    if overview is None:
        return PageView("Calls", show_nothing("No call has been recorded yet."), "calls")
    content = tag(
        "div",
        _build_filter(page, window),
        live("calls", "plots", _draw_plots(overview.series)),
        live(
            "calls",
            "calls",
            table(_HEADS, [_build_row(call) for call in reversed(overview.calls)], caption="Calls", numbers=(0, 4, 6)),
        ),
        tag("h2", "By tool"),
        live("calls", "tools", _show_statistics(overview.groups)),
    )
    return PageView("Calls", content, "calls")


def _read_overview(wanted: CallFilter, window: str, slow: bool) -> _Overview | None:
    database = open_calls()
    if database is None:
        return None
    with closing(database):
        calls = database.latest(wanted, _LIMIT, slowest=slow)
        series = read_series(database, now_ms(), _WINDOWS[window], _STEPS)
        return _Overview(calls[::-1] if slow else calls, series, read_statistics(database, "tool", wanted))


def _build_filter(page: PageRequest, window: str) -> Html:
    def field(name: str, label: str) -> Html:
        return tag(
            "span",
            tag("label", label, for_=f"by-{name}"),
            tag("input", id=f"by-{name}", name=name, value=page.get(name)),
        )

    def choose(name: str, label: str, choices: Mapping[str, str], chosen: str) -> Html:
        options = [tag("option", text, value=value, selected=value == chosen) for value, text in choices.items()]
        return tag("span", tag("label", label, for_=f"by-{name}"), tag("select", options, id=f"by-{name}", name=name))

    return tag(
        "form",
        choose("window", "Time", {name: name for name in _WINDOWS}, window),
        field("server", "Server"),
        field("tool", "Tool"),
        choose("failed", "Outcome", {"": "all", "1": "failed"}, page.get("failed")),
        choose("order", "Order", {"": "newest", "slow": "slowest"}, page.get("order")),
        tag("button", "Show", type_="submit"),
        method="get",
        action=address("/calls"),
        cls="filter",
    )


def _draw_plots(series: CallSeries) -> Html:
    ends = iso_utc(series.since_ms)[5:16].replace("T", " "), iso_utc(series.until_ms)[5:16].replace("T", " ")
    seconds = series.step_ms / 1_000
    tokens = sorted(series.tokens.items(), key=lambda item: -sum(item[1]))[:6]
    return tag(
        "div",
        draw_lines("Calls per second", {"all": [count / seconds for count in series.calls],
                                        "failed": [count / seconds for count in series.errors]}, ends),
        draw_lines("Duration", {"p50": [value / 1_000 for value in series.p50_us],
                                "p95": [value / 1_000 for value in series.p95_us]}, ends, " ms"),
        draw_lines("Tokens per server", dict(tokens), ends) if tokens else None,
        cls="plots",
    )  # fmt: skip


def _build_row(call: CallRecord) -> Sequence[Html | str]:
    who = " ".join(filter(None, (call.principal, call.client, call.agent))) or call.conversation or call.via
    outcome = call.outcome if not call.code else f"{call.outcome} ({call.code})"
    return (
        link(str(call.id), "/call", number=call.id),
        show_time(call.at_ms),
        who,
        call.shown_name,
        format_duration(call.duration_us),
        show_state(outcome),
        f"{call.tokens:,}",
    )


def _show_statistics(groups: Sequence[CallStatistics]) -> Html:
    rows = [
        (
            format_name(group.kind, group.server, group.name),
            f"{group.calls:,}",
            f"{group.errors:,}",
            *map(format_duration, (group.p50_us, group.p95_us, group.slowest_us)),
            f"{group.tokens:,}",
        )
        for group in groups[:_LIMIT]
    ]
    heads = ("Tool", "Calls", "Failed", "p50", "p95", "Slowest", "Tokens")
    return table(heads, rows, caption="Statistics by tool", numbers=range(1, 7))


async def show_call(page: PageRequest) -> PageView:
    """Show one call: its record, its texts if they are kept, and the calls of the same trace or turn."""
    number = page.get("number")
    found = await to_thread.run_sync(_read_call, int(number)) if number.isdecimal() and len(number) < 16 else None
    if found is None:
        raise PageError(f"There is no call {number!r}")
    call, payload, related = found
    facts = [(tag("dt", name), tag("dd", str(value))) for name, value in call.to_json().items() if value not in {"", 0}]
    first = min((one.at_ms for one in related), default=call.at_ms)
    bars = [
        (one.shown_name if one.server else f"native/{one.tool}", float(one.at_ms - first), one.duration_us / 1_000,
         "own" if one.id == call.id else "other" if one.outcome == "ok" else "failed")
        for one in related
    ]  # fmt: skip
    shared = "the same trace" if call.trace else "the same turn"
    waterfall = tag("section", tag("h2", f"Calls of {shared}"), draw_waterfall(f"Calls of {shared} over time", bars))
    texts = (
        [tag("h2", "Arguments"), show_text(payload.arguments), tag("h2", "Result"), show_text(payload.result)]
        if payload
        else (show_nothing("Its texts were not kept, or have expired: the setting calls.record says what is kept."))
    )
    content = tag("div", tag("dl", facts), waterfall if len(bars) > 1 else None, texts)
    return PageView(f"Call {call.id}", content, "calls")


def _read_call(number: int) -> tuple[CallRecord, Payload | None, Sequence[CallRecord]] | None:
    database = open_calls()
    if database is None:
        return None
    with closing(database):
        call, payload = database.find(number)
        return None if call is None else (call, payload, database.related(call, _MOST_RELATED))
