"""`indus cluster verify` and the commands about what the nodes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from induscode.commands.support.cluster import broker_option, key_option, read_keyed_settings, run_with_broker
from induscode.commands.support.output import as_json, print_table, write_json
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker
    from induscode.cluster.shared.verify import ClusterReport

_FAILED = 1


@click.command("verify")
@broker_option
@key_option
@as_json
@click.pass_context
def verify(context: click.Context, *, brokers: str | None, key_file: str | None, as_json: bool) -> int:
    """Verify the ledgers of all nodes: every row, every anchor, and this machine's ledger against the brokers' copy.

    Exit code 1 if anything is not as it was published.
    """
    return verify_ledgers(context, brokers, key_file, as_json=as_json)


def verify_ledgers(context: click.Context, brokers: str | None, key_file: str | None, *, as_json: bool) -> int:
    """Verify the ledgers of all nodes, print what was found, and return the exit code."""
    from induscode.cluster.shared.verify import verify_cluster  # noqa: PLC0415 — not for the help
    from induscode.deck.mcp.store import open_store  # noqa: PLC0415 — not for the help

    async def work(broker: Broker) -> int:
        store = await open_store()
        try:
            report = await verify_cluster(broker, store)
        finally:
            await store.aclose()
        if as_json:
            write_json(report.to_json())
        else:
            _print_report(report)
        return _FAILED if report.problems else 0

    return run_with_broker(read_keyed_settings(context, brokers, key_file), work)


def _print_report(report: ClusterReport) -> None:
    if report.chains:
        rows: list[tuple[object, ...]] = []
        for chain, state in report.chains.items():
            here = "this machine" if chain == report.own_chain else ""
            span = f"{state.base.position + 1}-{state.head.position}"
            rows.append((state.node, chain, span, state.withheld, state.head.digest[:12], here))
        print_table(("NODE", "CHAIN", "ROWS", "WITHHELD", "HEAD", ""), rows)
    print_line(f"{report.messages:,} messages, {report.anchors:,} anchors")
    if report.own_chain:
        waiting = f", {report.unpublished:,} rows are not published yet" if report.unpublished else ""
        print_line(f"this machine: {report.own_rows:,} rows are as they were published{waiting}")
    for problem in report.problems:
        print_status(str(problem))
    if not report.problems:
        print_line("everything is as it was published")
