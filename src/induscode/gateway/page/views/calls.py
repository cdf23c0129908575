"""Call views: the latest calls, plots over time, and one call with related ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from induscode.calls.database import (
    CallFilter,
    CallSeries,
    CallStatistics,
    format_duration,
    read_series,
    read_statistics,
    use_calls,
)
from induscode.calls.record import DECLINED, FAILED_OUTCOMES, CallRecord, format_name
from induscode.gateway.page.html import (
    FAILED,
    Html,
    PageError,
    PageView,
    build_choice,
    build_field,
    build_filter,
    draw_bar,
    draw_lines,
    link,
    live,
    show_facts,
    show_nothing,
    show_state,
    show_text,
    show_time,
    table,
    tag,
)

if TYPE_CHECKING:
    from induscode.calls.database import CallDatabase, Payload
    from induscode.gateway.page.access import PageRequest

_WINDOWS = {"15min": ("15 minutes", 15_000), "1h": ("1 hour", 60_000), "24h": ("24 hours", 1_440_000),
            "7d": ("7 days", 10_080_000)}  # fmt: skip
"""Selectable time windows: name, and milliseconds per step (60 steps each)."""
_STEPS = 60
_MAX_CALLS = 100
_MAX_RELATED = 40
_HEADS = ("Tool", "Outcome", "Took", "Tokens", "Who", "When", "Number")


@record
class _Overview:
    calls: Sequence[CallRecord]
    series: CallSeries
    groups: Sequence[CallStatistics]


async def show_calls(page: PageRequest) -> PageView:
    """Show the latest calls with statistics and plots, all filtered alike."""
    window = page.get("window") if page.get("window") in _WINDOWS else "1h"
    wanted = CallFilter(
        server=page.get("server") or None,
        tool=page.get("tool") or None,
        client=page.get("client") or None,
        failed=page.get("failed") == "1",
        declined=page.get("failed") == "declined",
    )
    reading = partial(_read_overview, wanted=wanted, window=window, slow=page.get("order") == "slow")
    overview = await to_thread.run_sync(use_calls, reading)
    if overview is None:
        nothing = show_nothing("No calls yet. Calls of sessions, of `indus call` and of clients appear here.")
        return PageView("Calls", live("calls", "calls", nothing), "calls")
    rows = [_build_row(call) for call in overview.calls]
    named = _WINDOWS[window][0]
    content = tag(
        "div",
        _build_filter(page, window),
        live("calls", "plots", _draw_plots(overview.series)),
        live(
            "calls",
            "calls",
            tag("p", f"The last {_MAX_CALLS}: narrow the filter to see others.") if len(rows) == _MAX_CALLS else None,
            table(_HEADS, rows, caption="Calls", numbers=(2, 3, 6)) if rows
            else show_nothing(f"No such call in the last {named}."),
        ),
        tag("h2", "By tool"),
        live("calls", "tools", _show_statistics(overview.groups)),
    )  # fmt: skip
    return PageView("Calls", content, "calls")


def _read_overview(database: CallDatabase, wanted: CallFilter, window: str, *, slow: bool) -> _Overview:
    series = read_series(database, now_ms(), _WINDOWS[window][1], _STEPS, wanted)
    wanted = replace(wanted, since_ms=series.since_ms)
    calls = database.latest(wanted, _MAX_CALLS, slowest=slow)
    return _Overview(calls if slow else calls[::-1], series, read_statistics(database, "tool", wanted))


def _build_filter(page: PageRequest, window: str) -> Html:
    fields = [
        build_choice("window", "Time", {key: name for key, (name, _) in _WINDOWS.items()}, window),
        build_field("server", "Server", page.get("server"), "git*"),
        build_field("tool", "Tool", page.get("tool")),
        build_field("client", "Client", page.get("client")),
        build_choice("failed", "Outcome", {"": "all", "1": "failed", "declined": "declined"}, page.get("failed")),
        build_choice("order", "Order", {"": "newest", "slow": "slowest"}, page.get("order")),
    ]
    return build_filter("/calls", "Show", fields)


def _draw_plots(series: CallSeries) -> Html:
    ends = _name_times(series.since_ms, series.until_ms)
    seconds = series.step_ms / 1_000
    tokens = sorted(series.tokens.items(), key=lambda item: -sum(item[1]))[:6]

    def to_ms(values: Sequence[int]) -> Sequence[float | None]:
        # An interval without calls has no duration.
        return [value / 1_000 if count else None for value, count in zip(values, series.calls, strict=True)]

    return tag(
        "div",
        draw_lines("Calls per second", {"all": [count / seconds for count in series.calls],
                                        FAILED: [count / seconds for count in series.errors]}, ends),
        draw_lines("Duration", {"p50": to_ms(series.p50_us), "p95": to_ms(series.p95_us)}, ends, " ms"),
        draw_lines("Tokens per server", dict(tokens), ends),
        cls="plots",
    )  # fmt: skip


def _name_times(since_ms: int, until_ms: int) -> tuple[str, str]:
    first, last = (iso_utc(at_ms)[5:16].replace("T", " ") for at_ms in (since_ms, until_ms))
    if first[:5] == last[:5]:
        first, last = first[6:], last[6:]
    return first, f"{last} UTC"


def _format_time(call: CallRecord) -> str:
    """Format how long a call ran and how long it waited for the user."""
    took = "did not run" if call.outcome == DECLINED else format_duration(call.duration_us)
    return f"{took}, asked {format_duration(call.waited_us)}" if call.waited_us else took


def _build_row(call: CallRecord) -> Sequence[Html | str]:
    return (
        link(call.shown_name, "/call", number=call.id),
        show_state(call.shown_outcome),
        _format_time(call),
        f"{call.tokens:,}",
        call.caller or call.via,
        show_time(call.at_ms),
        f"{call.id}",
    )


def _show_statistics(groups: Sequence[CallStatistics]) -> Html:
    rows = [
        (
            format_name(group.kind, group.server, group.name),
            f"{group.calls:,}",
            f"{group.errors:,}",
            f"{group.declined:,}",
            *map(format_duration, (group.p50_us, group.p95_us, group.slowest_us)),
            f"{group.tokens:,}",
        )
        for group in groups[:_MAX_CALLS]
    ]
    heads = ("Tool", "Calls", "Failed", "Declined", "p50", "p95", "Slowest", "Tokens")
    return table(heads, rows, caption="Statistics by tool", numbers=range(1, 8))


async def show_call(page: PageRequest) -> PageView:
    """Show one call: its record, its texts if recorded, and the calls of the same trace or turn."""
    number = page.get("number")
    found = None
    if number.isdecimal() and len(number) < 16:
        found = await to_thread.run_sync(use_calls, partial(_read_call, number=int(number)))
    if found is None:
        raise PageError(f"There is no call {number!r}")
    call, payload, related = found
    first = min((one.at_ms for one in related), default=call.at_ms)
    end = max((one.at_ms - first + one.duration_us / 1_000 for one in related), default=1.0)
    rows = [
        (
            one.shown_name if one.id == call.id else link(one.shown_name, "/call", number=one.id),
            draw_bar(
                f"from {one.at_ms - first} ms, for {format_duration(one.duration_us)}",
                float(one.at_ms - first),
                one.duration_us / 1_000,
                end,
                "own" if one.id == call.id else "failed" if one.outcome in FAILED_OUTCOMES else "other",
            ),
            f"+{one.at_ms - first:,} ms",
            format_duration(one.duration_us),
            show_state(one.outcome),
        )
        for one in related
    ]
    shared = "the same trace" if call.trace else "the same turn"
    waterfall = tag(
        "section",
        tag("h2", f"Calls of {shared}"),
        table(("Tool", "Over time", "Began", "Took", "Outcome"), rows, caption=f"Calls of {shared}", numbers=(2, 3)),
    )
    texts = (
        [tag("h2", "Arguments"), show_text(payload.arguments), tag("h2", "Result"), show_text(payload.result)]
        if payload
        else show_nothing("Arguments and result weren't recorded, or have expired (setting: calls.record).")
    )
    cards = page.source.session.mcp.capabilities
    named = call.tool if call.kind == "tool" else ""
    if named and call.server:
        named = next((one.name for one in cards if (one.ref.server, one.ref.name) == (call.server, call.tool)), "")
    content = tag("div", _show_record(call, named), waterfall if len(rows) > 1 else None, texts)
    return PageView(f"Call {call.id}", content, "calls")


def _show_record(call: CallRecord, name: str) -> Html:
    """Show the facts of a call; `name` is its tool's name in the deck, empty if that's gone."""
    turn = link(f"turn {call.turn}: what the model saw", "/deck", run=call.run, turn=call.turn) if call.turn else None
    again = f", attempt {call.attempt}" if call.attempt > 1 else ""
    return show_facts({
        "Called": link(call.shown_name, "/tool", name=name) if name else call.shown_name,
        "Outcome": [show_state(call.outcome), f" {call.code}" if call.code else "", again],
        "When": [iso_utc(call.at_ms), " (", show_time(call.at_ms), ")"],
        "Took": _format_time(call),
        "Allowed by": call.allowed_by,
        "Client": " ".join(filter(None, (call.client, f"through the {call.via}" if call.via else ""))),
        "Principal": call.principal,
        "Sub-agent": call.agent,
        "Conversation": link(call.conversation, "/session", id=call.conversation) if call.conversation else None,
        "Run": None if not call.run else [link(call.run, "/timeline", run=call.run), ", " if turn else "", turn],
        "OpenTelemetry trace": tag("code", call.trace) if call.trace else None,
        "Arguments": f"{call.argument_bytes:,} bytes" + (f", digest {call.digest}" if call.digest else ""),
        "Result": f"{call.result_bytes:,} bytes",
        "Tokens": f"about {call.tokens:,}",
        "Call id": tag("code", call.call) if call.call else None,
    })  # fmt: skip


def _read_call(database: CallDatabase, number: int) -> tuple[CallRecord, Payload | None, Sequence[CallRecord]] | None:
    call, payload = database.find(number)
    return None if call is None else (call, payload, database.related(call, _MAX_RELATED))
