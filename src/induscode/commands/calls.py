"""`indus calls` and `indus top`: list, summarize, export and watch the recorded calls of all runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from textwrap import indent
from typing import Any

import anyio
import click
from anyio import to_thread

from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, compact_json
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from induscode.calls.database import (
    GROUPS,
    NATIVE,
    CallDatabase,
    CallFilter,
    CallSeries,
    CallStatistics,
    Payload,
    format_duration,
    open_calls,
    read_series,
    read_statistics,
    use_calls,
)
from induscode.calls.record import COLUMNS, DECLINED, CallRecord, format_export, format_name
from induscode.cli.listing import Cell, Fit, GrowingTable, Listing, live_table, print_table
from induscode.cli.output import as_json, write_json
from induscode.cli.signals import run_async, run_until_signal
from induscode.cli.terminal import (
    format_time,
    handle_keys,
    is_reader_gone,
    parse_time,
    print_line,
    print_status,
    print_text,
    stdout_console,
)
from induscode.cluster.broker import Broker
from induscode.cluster.opening import KEY_FILE, key_option, read_keyed_settings, run_with_broker
from induscode.conversations.call_subjects import CallSubject, describe_subjects

_POLL_S = 0.2
_UNITS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_MAX_INT = 2**63 - 1
"""SQLite's largest integer: https://www.sqlite.org/datatype3.html#storage_classes_and_datatypes"""
_HEADS = ("CALL", "WHEN", "TOOL", "WHAT", "RESULT", "TOOK", "BY")
_FIT = Fit({"TOOL": 12, "WHAT": 10, "RESULT": 10, "BY": 10}, drop=("BY", "CALL"))
_FOLLOWED = ("00000", "00 Nov 00:00", "x" * 24, "x" * 32, "x" * 20, "1.24 ms", "x" * 32)
"""Cells as wide as the columns of `--follow`."""
_STYLES = {"ok": "green", DECLINED: "yellow", "cancelled": "yellow"}
_NO_MATCH = "No call matches."


class _CallNumber(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            hint = f"For statistics: indus calls --by {value if value in GROUPS else 'tool'}"
            raise click.UsageError(f"There is no call {value!r}. {hint}") from None


@click.command("calls")
@click.argument("number", type=_CallNumber(1, _MAX_INT), required=False)
@click.option("--follow", "-f", is_flag=True, help="Show calls as they come, until Ctrl+C.")
@click.option("--slow", is_flag=True, help="The slowest calls first.")
@click.option("--failed", is_flag=True, help="Only calls that failed.")
@click.option("--declined", is_flag=True, help="Only calls that you or a rule declined.")
@click.option("--by", type=click.Choice(GROUPS), help="Statistics by this: calls, failed, declined, p50, p95, tokens.")
@click.option("--server", metavar="NAME", help="Only calls of this server; * stands for any text.")
@click.option(
    "--tool",
    metavar="NAME",
    help="Only calls of this tool, resource or prompt, by its own name; * stands for any text.",
)
@click.option("--client", metavar="NAME", help="Only calls of this client; * stands for any text.")
@click.option(
    "--since", metavar="AGE|TIME", help="Only calls since then: 10min, 2h, 7d, 20:08 today, or 2026-11-15T20:08."
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MAX_INT),
    default=50,
    show_default=True,
    metavar="N",
    help="The most calls, or groups with --by.",
)
@click.option(
    "--cluster",
    "brokers",
    is_flag=False,
    flag_value="",
    metavar="[URL,…]",
    help="Calls of all nodes of a cluster; without URL at the brokers of the setting cluster.brokers.",
)
@key_option
@click.option(
    "--export", type=click.Choice(("jsonl", "csv")), help="Write all of them, or --limit N, as JSON lines or CSV."
)
@as_json
@click.pass_context
def command(
    context: click.Context,
    number: int | None,
    *,
    follow: bool,
    slow: bool,
    by: str | None,
    limit: int,
    export: str | None,
    brokers: str | None,
    as_json: bool,
    **wanted: Any,
) -> int:
    """List the last calls of tools and uses of resources and prompts, newest last; with NUMBER all about one.

    WHAT and BY come from the conversations. Records themselves hold sizes and digests, but no arguments or results
    unless the setting calls.record is payloads.
    """
    exclusive = {"--follow": follow, "--slow": slow, "--by": by, "--export": export, "NUMBER": number}
    has_limit = context.get_parameter_source("limit") is click.core.ParameterSource.COMMANDLINE
    _check_flags(context, [flag for flag, value in exclusive.items() if value], has_limit=has_limit)
    chosen = CallFilter(
        server=wanted["server"],
        tool=wanted["tool"],
        client=wanted["client"],
        failed=wanted["failed"],
        declined=wanted["declined"],
        since_ms=0 if wanted["since"] is None else parse_since(wanted["since"]),
    )
    if brokers is not None:
        return _list_cluster_calls(context, brokers, chosen, limit, as_json=as_json)
    if follow:
        return follow_calls(chosen, as_json=as_json)
    database = open_calls()
    if database is None:
        if as_json:
            write_json({"calls": [], "dropped": 0} if by is None else {"by": by, "groups": [], "dropped": 0})
        elif not export:
            print_line("No calls yet. Try: indus call ls")
        return 0
    with closing(database):
        if number is not None:
            return _show_call(*database.find(number), number=number, as_json=as_json)
        if export is not None:
            found = database.latest(chosen, limit) if has_limit else database.stream(chosen)
            for line in format_export(found, export):
                print(line, end="")  # noqa: T201 — the result of the command
        elif by is not None:
            _show_statistics(database, by, chosen, limit if has_limit else None, as_json=as_json)
        else:
            _list_calls(database, chosen, limit, slow=slow, as_json=as_json)
    return 0


def _check_flags(context: click.Context, given: Sequence[str], *, has_limit: bool) -> None:
    """Reject flags that can't be used together. `given` lists the flags that choose a kind of output."""
    for flag in {"--follow", "NUMBER"}.intersection(given) if has_limit else ():
        raise click.UsageError(f"--limit and {flag} can't be used together")
    params = context.params
    for name in ("server", "tool", "client", "since", "failed", "declined") if "NUMBER" in given else ():
        if params[name]:
            raise click.UsageError(f"--{name} and NUMBER can't be used together")
    if params["brokers"] is not None:
        given = ["--cluster", *given]
    elif KEY_FILE in context.meta:
        raise click.UsageError("--cluster-key requires --cluster")
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} can't be used together")
    if params["export"] and params["as_json"]:
        raise click.UsageError("--export and --json can't be used together")


def parse_since(text: str) -> int:
    """Parse an age (`10min`) or a time (RFC 3339) into Unix milliseconds, or raise a usage error."""
    unit, now = text.lstrip("0123456789"), now_ms()
    try:
        if unit in _UNITS and text != unit:
            return max(0, now - int(text.removesuffix(unit)) * _UNITS[unit] * 1_000)
        return max(0, parse_time(text, now))
    except ValueError as exc:
        raise click.UsageError(f"--since {text!r}: write 10min, 2h, 7d, 20:08 or 2026-11-15T20:08") from exc


# -- lists --------------------------------------------------------------------------------------


def _list_calls(database: CallDatabase, wanted: CallFilter, limit: int, *, slow: bool, as_json: bool) -> None:
    calls = database.latest(wanted, limit, slowest=slow)
    Listing(
        "calls",
        calls,
        _HEADS,
        _name_subjects(() if as_json else calls),
        to_json=CallRecord.to_json,
        after={"dropped": database.dropped()},
        empty=_NO_MATCH,
        fit=_FIT,
    ).show(as_json=as_json)
    if not as_json:
        _report_dropped(database)


def _report_dropped(database: CallDatabase) -> None:
    if dropped := database.dropped():
        print_status(f"{format_count(dropped, 'call')} could not be recorded")


def _name_subjects(calls: Sequence[CallRecord]) -> Callable[[CallRecord], Sequence[object]]:
    """Read the subjects of `calls` from their conversations, and return a formatter of the cells of one call."""
    subjects = dict(zip((id(call) for call in calls), describe_subjects(calls), strict=True))
    return lambda call: _format_cells(call, subjects[id(call)])


def _format_cells(call: CallRecord, subject: CallSubject) -> Sequence[object]:
    is_terminal = stdout_console() is not None
    return (
        Cell(call.id, "dim"),
        Cell(format_time(call.at_ms, now_ms() if is_terminal else None), "dim"),
        call.shown_name,
        subject.what or "-",
        Cell(_name_result(call), _STYLES.get(call.outcome, "red")),
        "-" if call.outcome == DECLINED else format_duration(call.duration_us),
        Cell(subject.by, "dim"),
    )


def _name_result(call: CallRecord) -> str:
    return call.shown_outcome + (f", attempt {call.attempt}" if call.attempt > 1 else "")


def _list_cluster_calls(context: click.Context, brokers: str, wanted: CallFilter, limit: int, *, as_json: bool) -> int:
    """List the last calls of all nodes, newest last."""
    from induscode.cluster.shared.state import read_calls  # noqa: PLC0415 — only with --cluster

    async def work(broker: Broker) -> int:
        found: list[tuple[str, CallRecord]] = []
        async for node, cells in read_calls(broker, len(COLUMNS)):
            call = CallRecord(0, *cells)  # type: ignore[arg-type] — sealed by a node
            if wanted.matches(call):
                found.append((node, call))
            if len(found) >= limit:
                break
        found.sort(key=lambda pair: pair[1].at_ms)
        format_cells = _name_subjects([call for _, call in found])
        return Listing(
            "calls",
            found,
            ("NODE", *_HEADS[1:]),
            lambda row: (row[0], *format_cells(row[1])[1:]),
            to_json=lambda row: {**row[1].to_json(), "node": row[0]},
            empty=_NO_MATCH,
            fit=_FIT,
        ).show(as_json=as_json)

    return run_with_broker(read_keyed_settings(context, brokers), work)


@run_async
async def follow_calls(wanted: CallFilter, *, as_json: bool) -> int:
    """Print calls as they come, until a signal or (with BrokenPipeError) until the pipe's reader is gone."""

    def read_next(after: int) -> list[CallRecord]:
        return use_calls(lambda database: list(database.stream(replace(wanted, after=after)))) or []

    newest = await to_thread.run_sync(use_calls, CallDatabase.newest) or 0
    table = GrowingTable(_HEADS, [(cell,) for cell in _FOLLOWED], fit=_FIT)
    while True:
        calls = await to_thread.run_sync(read_next, newest)
        format_cells = await to_thread.run_sync(_name_subjects, () if as_json else calls)
        for call in calls:
            newest = call.id
            if as_json:
                write_json(call.to_json(), indent=None)
            else:
                table.add(format_cells(call))
        if sys.stdout is not None:
            sys.stdout.flush()  # pipes are buffered
        if is_reader_gone():
            raise BrokenPipeError
        await anyio.sleep(_POLL_S)


def _show_call(call: CallRecord | None, payload: Payload | None, *, number: int, as_json: bool) -> int:
    if call is None:
        raise click.UsageError(f"There is no call {number}: 'indus calls' lists the last ones")
    if as_json:
        texts = {} if payload is None else {"arguments": payload.arguments, "result": payload.result}
        write_json({**call.to_json(), **texts})
        return 0
    (subject,) = describe_subjects([call])
    took = "it didn't run" if call.outcome == DECLINED else format_duration(call.duration_us)
    sizes = f"arguments {call.argument_bytes:,} bytes, result {call.result_bytes:,}, about {call.tokens:,} tokens"
    facts = {
        "what": subject.what,
        "result": _name_result(call),
        "when": format_time(call.at_ms),
        "took": f"{took}, after {format_duration(call.waited_us)} for your answer" if call.waited_us else took,
        "by": subject.by,
        "allowed by": call.allowed_by,
        "session": call.conversation,
        "deck": f"indus ledger turn {call.turn} --run {call.run}" if call.turn else "",
        "trace": call.trace,
        "size": sizes,
    }
    print_line(f"Call {call.id}: {call.shown_name}")
    for name, value in facts.items():
        if value:
            print_line(f"  {name + ':':<11} {value}")
    arguments = "" if subject.arguments is None else compact_json(subject.arguments)
    for name, text in (
        ("arguments", payload.arguments if payload else arguments),
        ("result", payload and payload.result),
    ):
        print_text(f"  {name}:\n{indent(text, '    ')}" if text else f"  {name}: not recorded (setting: calls.record)")
    return 0


# -- statistics ----------------------------------------------------------------------


def _show_statistics(database: CallDatabase, by: str, wanted: CallFilter, limit: int | None, *, as_json: bool) -> None:
    *found, everything = read_statistics(database, by, wanted)
    groups = found[:limit]

    def format_cells(group: CallStatistics) -> tuple[object, ...]:
        name = format_name(group.kind, group.server, group.name) or (NATIVE if by == "server" else "-")
        times = (format_duration(value) for value in (group.p50_us, group.p95_us, group.slowest_us))
        return name, group.calls, group.errors, group.declined, *times, group.tokens

    total = {key: value for key, value in everything.to_json(by).items() if key not in {by, "server"}}
    Listing(
        "groups",
        groups,
        (by.upper(), "CALLS", "FAILED", "DECLINED", "P50", "P95", "SLOWEST", "TOKENS"),
        format_cells,
        to_json=lambda group: group.to_json(by),
        before={"by": by},
        after={"all": total, "dropped": database.dropped()},
        total=[everything],
        fit=Fit({by.upper(): 12}, drop=("SLOWEST", "TOKENS", "P50")),
    ).show(as_json=as_json)
    if as_json:
        return
    if len(found) > len(groups):
        print_status(f"{format_count(len(found) - len(groups), 'further group')} left out by --limit")
    _report_dropped(database)


# -- indus top --------------------------------------------------------------------------------------


_STEPS = 30
_TOP_HEADS = ("SERVER", "CALLS", "FAILED", "DECLINED", "P50", "P95", "TOKENS", "CALLS OVER TIME")
_TOP_FIT = Fit({"SERVER": 12}, drop=("TOKENS", "P50", "CALLS OVER TIME", "DECLINED"))
_SORTS: Mapping[str, tuple[str, Callable[[CallSeries, str], float]]] = {
    "c": ("calls", lambda series, name: -sum(series.by_server[name])),
    "f": ("failed", lambda series, name: -series.failures[name]),
    "d": ("declined", lambda series, name: -series.refusals[name]),
    "l": ("latency (p95)", lambda series, name: -series.percentiles_us[name][1]),
    "t": ("tokens", lambda series, name: -sum(series.tokens[name])),
}
"""The column that each key sorts by."""
_BARS = "▁▂▃▄▅▆▇█"


@click.command("top")
@click.option(
    "--minutes", type=click.IntRange(1, 1440), default=5, show_default=True, metavar="N", help="The time shown."
)
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, metavar="S", help="Seconds."
)
@click.option("--once", is_flag=True, help="Show it once, and end; so does output that is not a terminal.")
@as_json
def top(*, minutes: int, interval: float, once: bool, as_json: bool) -> int:
    """Show the calls of every run of this user as they happen, until Ctrl-C.

    The figures match the page (indus ui) and indus calls: all come from the call records.
    """
    if as_json:
        write_json(_build_top_json(_read_series(minutes)))
        return 0
    if once or stdout_console() is None:
        rows, line = _format_top(_read_series(minutes), minutes)
        if rows:
            print_table(_TOP_HEADS, rows, _TOP_FIT)
        print_line(line)
        return 0

    async def watch(_: CancelToken) -> int:
        keys, pressed, order = list[str](), anyio.Event(), "c"

        def press(key: str) -> None:
            keys.append(key)
            pressed.set()

        with live_table(_TOP_FIT) as show, handle_keys(press):
            while "q" not in keys:
                order = next((key for key in reversed(keys) if key in _SORTS), order)
                keys.clear()
                rows, line = _format_top(await to_thread.run_sync(_read_series, minutes), minutes, order)
                names = ", ".join(f"{key} {name}" for key, (name, _) in _SORTS.items())
                show(_TOP_HEADS if rows else (), rows, f"{line}\nSort by: {names}. q ends it.")
                pressed = anyio.Event()
                with anyio.move_on_after(interval):
                    await pressed.wait()
        return 0

    return run_until_signal(watch)


def _read_series(minutes: int) -> CallSeries | None:
    """Read the calls of the last `minutes`, or return `None` if there's no database yet. Blocks."""
    return use_calls(lambda database: read_series(database, now_ms(), minutes * 60_000 // _STEPS, _STEPS))


def _format_top(series: CallSeries | None, minutes: int, order: str = "c") -> tuple[Sequence[Sequence[object]], str]:
    """Format a row per server and the summary line."""
    if series is None or not any(series.calls):
        return [], f"No call in the last {minutes} min."
    rank = _SORTS[order][1]
    rows: list[Sequence[object]] = []
    for server in sorted(series.by_server, key=lambda name: (rank(series, name), name)):
        p50, p95 = map(format_duration, series.percentiles_us[server])
        failed, declined = series.failures[server], series.refusals[server]
        rows.append((server, sum(series.by_server[server]), failed, declined, p50, p95, sum(series.tokens[server]),
                     draw_bars(series.by_server[server])))  # fmt: skip
    calls, errors = sum(series.calls), sum(series.errors)
    counted = [format_count(calls, "call") + f" in {minutes} min", f"{errors:,} failed"]
    if declined := sum(series.declined):
        counted.append(f"{declined:,} declined")
    return rows, f"{', '.join(counted)}, highest p95 {format_duration(max(series.p95_us))}."


def draw_bars(values: Sequence[int]) -> str:
    """Draw values as a sparkline, with blanks for intervals without calls."""
    top = max(values, default=0)
    if not top:
        return ""
    return "".join(" " if not value else _BARS[min(7, value * 8 // (top + 1))] for value in values)


def _build_top_json(series: CallSeries | None) -> JsonObject:
    if series is None:
        return {"servers": [], "calls": 0, "errors": 0, "declined": 0}
    servers: list[JsonObject] = [
        {
            "server": name,
            "calls": sum(calls),
            "failed": series.failures[name],
            "declined": series.refusals[name],
            "tokens": sum(series.tokens[name]),
            "p95_us": series.percentiles_us[name][1],
            "p50_us": [*series.latency_us[name]],
        }
        for name, calls in series.by_server.items()
    ]
    return {
        "since_ms": series.since_ms,
        "step_ms": series.step_ms,
        "servers": [*servers],
        "calls": sum(series.calls),
        "errors": sum(series.errors),
        "declined": sum(series.declined),
    }
