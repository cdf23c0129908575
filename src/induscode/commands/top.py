"""`indus top`: shows live call rates, durations, failures and tokens per server, for all runs."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import anyio
import click
from anyio import to_thread

from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from induscode.calls.database import open_calls
from induscode.calls.statistics import format_duration, read_series
from induscode.cli.console import stdout_console
from induscode.cli.listing import live_table, print_table
from induscode.cli.output import as_json, write_json
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.calls.statistics import CallSeries

_STEPS = 30
_HEADS = ("SERVER", "CALLS", "PER SECOND", "FAILED", "P50", "P95", "TOKENS", "LATENCY OVER TIME")
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
def command(*, minutes: int, interval: float, once: bool, as_json: bool) -> int:
    """Show the calls of every run of this user as they happen, until Ctrl-C.

    The figures match the page (indus ui) and indus calls: all come from the call records.
    """
    if as_json:
        write_json(_build_json(_read(minutes)))
        return 0
    if once or stdout_console() is None:
        rows, line = _format(_read(minutes), minutes)
        if rows:
            print_table(_HEADS, rows)
        print_line(line)
        return 0

    async def watch(_: CancelToken) -> int:
        with live_table() as show:
            while True:
                rows, line = _format(await to_thread.run_sync(_read, minutes), minutes)
                show(_HEADS, rows, f"{line}  Ctrl-C ends it.")
                await anyio.sleep(interval)

    return run_until_signal(watch)


def _read(minutes: int) -> CallSeries | None:
    """Read the calls of the last `minutes`, or return `None` if there's no database yet. Blocks."""
    database = open_calls()
    if database is None:
        return None
    with closing(database):
        return read_series(database, now_ms(), minutes * 60_000 // _STEPS, _STEPS)


def _format(series: CallSeries | None, minutes: int) -> tuple[Sequence[Sequence[object]], str]:
    """Format a row per server and the summary line."""
    if series is None or not any(series.calls):
        return [], f"No call in the last {minutes} min."
    seconds = minutes * 60
    rows: list[Sequence[object]] = []
    for server, values in sorted(series.latency_us.items(), key=lambda item: -series.counts[item[0]]):
        count, tokens, failed = series.counts[server], sum(series.tokens[server]), series.failures[server]
        p50, p95 = map(format_duration, series.percentiles_us[server])
        rows.append((server, count, f"{count / seconds:.2f}", failed, p50, p95, tokens, draw_bars(values)))
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


def _build_json(series: CallSeries | None) -> JsonObject:
    if series is None:
        return {"servers": [], "calls": 0, "errors": 0, "declined": 0}
    servers: list[JsonObject] = [
        {
            "server": name,
            "calls": count,
            "failed": series.failures[name],
            "tokens": sum(series.tokens[name]),
            "p95_us": series.percentiles_us[name][1],
            "p50_us": [*series.latency_us[name]],
        }
        for name, count in series.counts.items()
    ]
    return {
        "since_ms": series.since_ms,
        "step_ms": series.step_ms,
        "servers": [*servers],
        "calls": sum(series.calls),
        "errors": sum(series.errors),
        "declined": sum(series.declined),
    }
