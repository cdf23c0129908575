"""Call views: the latest calls, plots over time, and one call with related ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.records import record
from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.host.http.request import SiteResponse
from induscode.calls.database import (
    CallFilter,
    CallSeries,
    CallStatistics,
    format_duration,
    read_series,
    read_statistics,
    use_calls,
)
from induscode.calls.record import DECLINED, FAILED_OUTCOMES, CallRecord, format_export, format_name
from induscode.cli.terminal import format_time
from induscode.conversations.call_subjects import CallSubject, describe_subjects
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_choice,
    build_field,
    build_filter,
    draw_bar,
    draw_lines,
    link,
    live,
    render,
    shorten,
    show_facts,
    show_json,
    show_moment,
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
_BATCH = 1_000
"""Calls of an export to read at a time."""
_HEADS = ("Tool", "What", "Result", "Took", "When", "By")


@record
class _Overview:
    calls: Sequence[tuple[CallRecord, CallSubject]]
    series: CallSeries
    groups: Sequence[CallStatistics]
    is_cut: bool
    """Whether older calls of the time window are left out."""


async def show_calls(page: PageRequest) -> PageView:
    """Show the latest calls with statistics and plots, all filtered alike."""
    window = page.get("window") if page.get("window") in _WINDOWS else "1h"
    reading = partial(_read_overview, wanted=_read_filter(page), window=window, slow=page.get("order") == "slow")
    overview = await to_thread.run_sync(use_calls, partial(reading, cwd=_find_scope(page)))
    if overview is None:
        nothing = show_nothing("No calls yet. Calls of sessions, of `indus call` and of clients appear here.")
        return PageView("Calls", live("calls", "calls", nothing), "calls")
    rows = [_build_row(page, *pair) for pair in overview.calls]
    named = _WINDOWS[window][0]
    content = tag(
        "div",
        _build_filter(page, window),
        show_nothing("There were more calls: the figures are of the last 25,000.") if overview.is_cut else None,
        live("calls", "plots", _draw_plots(overview.series)),
        live(
            "calls",
            "calls",
            tag("p", f"The last {_MAX_CALLS}: narrow the filter to see others.") if len(rows) == _MAX_CALLS else None,
            table(_HEADS, rows, caption="Calls", numbers=(3,)) if rows
            else show_nothing(f"No such call in the last {named}."),
        ),
        _build_export(page),
        tag("h2", "By tool"),
        live("calls", "tools", _show_statistics(overview.groups)),
    )  # fmt: skip
    return PageView("Calls", content, "calls")


def _read_filter(page: PageRequest) -> CallFilter:
    return CallFilter(
        server=page.get("server") or None,
        tool=page.get("tool") or None,
        client=page.get("client") or None,
        failed=page.get("failed") == "1",
        declined=page.get("failed") == "declined",
    )


def _find_scope(page: PageRequest) -> str | None:
    """Return the directory whose conversations a user may read; `None` for all, which only who may act does."""
    return None if page.user.rights.can_act else page.source.session.invocation.cwd


def _read_overview(
    database: CallDatabase, wanted: CallFilter, window: str, *, slow: bool, cwd: str | None
) -> _Overview:
    now, step_ms = now_ms(), _WINDOWS[window][1]
    wanted, is_cut = database.limit(replace(wanted, since_ms=now - step_ms * _STEPS))
    series = read_series(database, now, step_ms, _STEPS, wanted)
    calls = database.latest(wanted, _MAX_CALLS, slowest=slow)
    calls = calls if slow else calls[::-1]
    described = zip(calls, describe_subjects(calls, cwd), strict=True)
    return _Overview([*described], series, read_statistics(database, "tool", wanted), is_cut)


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


def _build_export(page: PageRequest) -> Html:
    chosen = {name: page.get(name) for name in ("server", "tool", "client", "failed")}
    links = [
        link(name, "/calls/export", kind=kind, **chosen) for kind, name in (("jsonl", "JSON lines"), ("csv", "CSV"))
    ]
    return tag("p", "Export all such calls: ", links[0], " ", links[1], cls="faint")


async def export_calls(page: PageRequest) -> SiteResponse:
    """Send the calls of a filter as a file, a few at a time."""
    kind, wanted = page.get("kind"), _read_filter(page)
    if kind not in {"jsonl", "csv"}:
        raise PageError(f"There is no export {kind!r}", 400)

    def read_next(after: int) -> Sequence[CallRecord]:
        found = use_calls(lambda database: [*islice(database.stream(replace(wanted, after=after)), _BATCH)])
        return found or ()

    async def stream() -> AsyncGenerator[bytes]:
        after, is_first = 0, True
        while calls := await to_thread.run_sync(read_next, after):
            lines = format_export(calls, kind)
            if not is_first and kind == "csv":
                next(lines)  # the names of the columns
            yield "".join(lines).encode()
            after, is_first = calls[-1].id, False

    name = f"attachment; filename=calls.{kind}".encode()
    media = b"text/csv; charset=utf-8" if kind == "csv" else b"application/jsonl"
    headers = [(b"content-type", media), (b"content-disposition", name), (b"cache-control", b"no-store")]
    return SiteResponse(events=stream(), headers=headers)


def _draw_plots(series: CallSeries) -> Html:
    steps = range(len(series.calls) + 1)
    times = _name_times([series.since_ms + step * series.step_ms for step in steps])
    tokens = sorted(series.tokens.items(), key=lambda item: -sum(item[1]))[:6]
    unit, unit_ms = ("second", 1_000) if max(series.calls) * 1_000 >= series.step_ms else ("minute", 60_000)
    counts = {"all": series.calls, "failed": series.errors, "declined": series.declined}
    rates = {name: [count * unit_ms / series.step_ms for count in values] for name, values in counts.items()}

    def drop_gaps(values: Sequence[int]) -> Sequence[float | None]:
        # An interval without calls that ran has no duration.
        ran = zip(values, series.calls, series.declined, strict=True)
        return [value if count > declined else None for value, count, declined in ran]

    durations = {"p50": drop_gaps(series.p50_us), "p95": drop_gaps(series.p95_us)}
    return tag(
        "div",
        draw_lines(f"Calls per {unit}", rates, times),
        draw_lines("Duration", durations, times, lambda value: format_duration(round(value))),
        draw_lines("Tokens per server", dict(tokens), times),
        cls="plots",
    )


def _name_times(moments: Sequence[int]) -> Sequence[str]:
    """Name the times of a plot: without the date if all are of one day."""
    names = [format_time(at_ms)[5:16] for at_ms in moments]
    is_one_day = names[0][:5] == names[-1][:5]
    return [name[6:] for name in names] if is_one_day else names


def _format_took(call: CallRecord) -> Html | str:
    """Format how long a call ran, and apart from it how long it waited for the user."""
    took = "–" if call.outcome == DECLINED else format_duration(call.duration_us)  # noqa: RUF001 — a dash
    if not call.waited_us:
        return took
    waited = tag("span", f" waited {format_duration(call.waited_us)}", title="for your answer", cls="faint")
    return tag("span", took, waited)


def _build_row(page: PageRequest, call: CallRecord, subject: CallSubject) -> Sequence[Html | str]:
    result = [show_state(call.shown_outcome), f" {subject.change}" if subject.change else ""]
    return (
        link(call.shown_name, "/call", number=call.id),
        shorten(subject.what),
        tag("span", result),
        _format_took(call),
        show_moment(call.at_ms),
        _name_caller(page, call, subject),
    )


def _name_caller(page: PageRequest, call: CallRecord, subject: CallSubject) -> Html | str:
    """Name who made a call, with a link to its place in the conversation."""
    if subject.row is None or subject.cwd != page.source.session.invocation.cwd:
        return subject.by
    target = address("/session", id=call.conversation, row=subject.row)
    return tag("a", subject.by, href=f"{target}#row-{subject.row}")


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
            show_state(one.shown_outcome),
        )
        for one in related
    ]
    shared = "the same trace" if call.trace else "the same turn"
    waterfall = tag(
        "section",
        tag("h2", f"Calls of {shared}"),
        table(("Tool", "Over time", "Began", "Took", "Outcome"), rows, caption=f"Calls of {shared}", numbers=(2, 3)),
    )
    (subject,) = await to_thread.run_sync(describe_subjects, [call], _find_scope(page))
    cards = page.source.session.mcp.capabilities
    named = call.tool if call.kind == "tool" else ""
    if named and call.server:
        named = next((one.name for one in cards if (one.ref.server, one.ref.name) == (call.server, call.tool)), "")
    content = tag(
        "div",
        _show_record(page, call, subject, named),
        _show_texts(subject, payload),
        waterfall if len(rows) > 1 else None,
        _show_details(call),
    )
    return PageView(f"Call {call.id}", content, "calls")


def _show_texts(subject: CallSubject, payload: Payload | None) -> Sequence[Html]:
    """Show arguments and result, as recorded or else as the conversation has them."""
    found = {"Arguments": None, "Result": subject.result and show_text(subject.result)}
    if subject.arguments is not None:
        found["Arguments"] = show_json(subject.arguments)
    if payload is not None:
        found = {"Arguments": show_text(payload.arguments), "Result": show_text(payload.result)}
    if not any(found.values()):
        return [show_nothing("Arguments and result weren't recorded (setting: calls.record).")]
    return [render(tag("h2", name), text) for name, text in found.items() if text]


def _show_record(page: PageRequest, call: CallRecord, subject: CallSubject, name: str) -> Html:
    """Show the facts of a call; `name` is its tool's name in the deck, empty if that's gone."""
    turn = link(f"turn {call.turn}: what the model saw", "/deck", run=call.run, turn=call.turn) if call.turn else None
    again = f", attempt {call.attempt}" if call.attempt > 1 else ""
    change = f" {subject.change}" if subject.change else ""
    return show_facts({
        "What": subject.what,
        "Tool": link(call.shown_name, "/tool", name=name) if name else call.shown_name,
        "Result": [show_state(call.shown_outcome), change, again],
        "When": [show_moment(call.at_ms), " (", show_time(call.at_ms), ")"],
        "Took": "it didn't run" if call.outcome == DECLINED else format_duration(call.duration_us),
        "Waited": f"{format_duration(call.waited_us)} for your answer" if call.waited_us else None,
        "Allowed by": call.allowed_by,
        "By": _name_caller(page, call, subject),
        "Run": None if not call.run else [link(call.run, "/timeline", run=call.run), ", " if turn else "", turn],
    })  # fmt: skip


def _show_details(call: CallRecord) -> Html:
    facts = show_facts({
        "Entry point": call.via,
        "Conversation": tag("code", call.conversation) if call.conversation else None,
        "OpenTelemetry trace": tag("code", call.trace) if call.trace else None,
        "Arguments": f"{call.argument_bytes:,} bytes" + (f", digest {call.digest}" if call.digest else ""),
        "Result": f"{call.result_bytes:,} bytes" + (f", code {call.code}" if call.code else ""),
        "Tokens": f"about {call.tokens:,}",
        "Call id": tag("code", call.call) if call.call else None,
    })  # fmt: skip
    return tag("details", tag("summary", "Details"), facts)


def _read_call(database: CallDatabase, number: int) -> tuple[CallRecord, Payload | None, Sequence[CallRecord]] | None:
    call, payload = database.find(number)
    return None if call is None else (call, payload, database.related(call, _MAX_RELATED))
