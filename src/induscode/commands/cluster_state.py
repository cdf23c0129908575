"""`indus cluster verify`, `config`, `rotate-key` and `offer-key`: the nodes' shared state and the keys that seal it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import wraps
from getpass import getuser
from typing import Any

import click
from anyio import to_thread

from indusagi.core.config_file import read_config_file
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, now_ms
from induscode.cli.listing import print_table
from induscode.cli.output import as_json, ask_consent, digest_option, print_notes, write_json
from induscode.cli.terminal import print_line, print_status
from induscode.cluster.broker import Broker
from induscode.cluster.contract import find_node_name
from induscode.cluster.key import write_new_key
from induscode.cluster.opening import (
    KEY_FILE,
    broker_option,
    find_key_file,
    key_option,
    load_key,
    read_keyed_settings,
    read_settings,
    run_with_broker,
)
from induscode.cluster.proofs import issue_offer_key, revoke_offer_key
from induscode.cluster.shared.ledger import ClusterReport, verify_cluster
from induscode.cluster.shared.rotation import rotate_key
from induscode.cluster.shared.table import SharedTable, open_table
from induscode.commands.cluster import cluster_options
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.core.consent import Consent, build_consent
from induscode.deck.mcp.store import open_store
from induscode.deck.mcp.store.database import store_path
from induscode.launch.options import read_invocation
from induscode.permissions.rules import RuleOrigin, parse_settings
from induscode.servers.config import UnusableFileError, read_named_rows
from induscode.servers.config.trust import describe_row

_FAILED = 1


@click.command("verify")
@cluster_options
def verify(context: click.Context, *, as_json: bool) -> int:
    """Verify the ledgers of all nodes: every row, every anchor, and this machine's ledger against the brokers' copy.

    Exit code 1 if anything is not as it was published.
    """
    try:
        has_ledger = os.path.exists(store_path())
    except OSError:
        has_ledger = False

    async def work(broker: Broker) -> int:
        store = await open_store() if has_ledger else None
        try:
            report = await verify_cluster(broker, store)
        finally:
            if store is not None:
                await store.aclose()
        if as_json:
            write_json(report.to_json())
        else:
            _print_report(report)
        return _FAILED if report.problems else 0

    return run_with_broker(read_keyed_settings(context), work)


def _print_report(report: ClusterReport) -> None:
    if report.chains:
        rows: list[tuple[object, ...]] = []
        for chain, state in report.chains.items():
            here = "this machine" if chain == report.own_chain else ""
            span = f"{state.base.position + 1}-{state.head.position}"
            rows.append((state.node, chain, span, state.withheld, state.head.digest[:12], here))
        print_table(("NODE", "CHAIN", "ROWS", "WITHHELD", "HEAD", ""), rows)
    print_line(f"{format_count(report.messages, 'message')}, {format_count(report.anchors, 'anchor')}")
    if report.own_chain:
        waiting = f", {report.unpublished:,} rows are not published yet" if report.unpublished else ""
        print_line(f"this machine: {report.own_rows:,} rows are as they were published{waiting}")
    for problem in report.problems:
        print_status(str(problem))
    if not report.problems:
        print_line("everything is as it was published")


# -- config -----------------------------------------------------------------------------------


@click.command(
    cls=CommandGroup,
    commands={
        "show": LazyCommand("show the servers and rules of the cluster", ":show"),
        "push": LazyCommand("put the servers of a file into the cluster", ":push"),
        "remove": LazyCommand("remove servers from the cluster", ":remove"),
        "rules": LazyCommand("put the rules of a file into the cluster, or remove them", ":rules"),
    },
    default="show",
)
def config() -> None:
    """Show and change the servers and rules that all nodes apply. Without a command: show."""


def _change(context: click.Context, work: Callable[[SharedTable], Awaitable[int]]) -> int:
    """Run `work` with the shared table."""

    async def run(broker: Broker) -> int:
        return await work(await open_table(broker, print_status))

    return run_with_broker(read_keyed_settings(context), run)


def with_table(command: Callable[..., Awaitable[int]]) -> Callable[..., int]:
    """Run an async command with the shared table as its first argument."""

    @wraps(command)
    def run(context: click.Context, **options: Any) -> int:
        return _change(context, lambda table: command(table, **options))

    return broker_option(key_option(click.pass_context(run)))


@click.command("show")
@as_json
@with_table
async def show(table: SharedTable, *, as_json: bool) -> int:
    """Show the servers and rules of the cluster, and how many consents and approved definitions are shared.

    Values of variables and headers are not shown.
    """
    servers = {str(value.get("name")): value for value in table.list("server").values()}
    rules = [value.get("rules") for value in table.list("rules").values()]
    counts: JsonObject = {"consents": len(table.list("consent")), "pins": len(table.list("pin"))}
    if as_json:
        rows: JsonObject = {name: _describe(value.get("row")) for name, value in sorted(servers.items())}
        write_json({"servers": rows, "rules": rules[0] if rules else None, **counts})
        return 0
    for name, value in sorted(servers.items()):
        print_line(f"{name}: {_describe(value.get('row'))} ({value.get('by')}, {value.get('at')})")
    for document in rules:
        print_line(f"rules: {compact_json(document)}")
    consents = format_count(len(table.list("consent")), "consent")
    print_line(f"{consents}, {format_count(len(table.list('pin')), 'approved definition')}")
    return 0


def _describe(row: JsonValue) -> str:
    """Return a server's URL or command line, without its variables."""
    fields = row if is_json_object(row) else {}
    arguments = fields.get("args")
    words = [fields.get("command"), *(arguments if isinstance(arguments, list) else ())]
    return str(fields.get("url") or " ".join(str(word) for word in words if word is not None))


@click.command("push")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--yes", is_flag=True, help="Put them there without a question.")
@digest_option
@broker_option
@key_option
@click.pass_context
def push(context: click.Context, *, file: str, yes: bool, digests: tuple[str, ...]) -> int:
    """Put the servers of FILE ({"mcpServers": {…}}) into the cluster: every node that serves clients gets them at once.

    This is consent for all nodes, so it shows each server first. The key of the cluster seals values of variables;
    ${NAME} gets its value at the node that runs the server. Exit code 1 if you decline.
    """
    rows, consent = _read_rows(file)
    question = f"Trust {', '.join(rows)} and start on the nodes of the cluster?"
    if not ask_consent(consent, question, yes=yes, digests=digests):
        return _FAILED

    async def work(table: SharedTable) -> int:
        for name, row in rows.items():
            value: JsonObject = {"name": name, "row": row, "by": getuser(), "at": iso_utc(now_ms())}
            await table.put(table.build_key("server", name), value)
        print_line(f"in the cluster: {', '.join(rows)}")
        return 0

    return _change(context, work)


def _read_rows(file: str) -> tuple[Mapping[str, JsonObject], Consent]:
    """Read and check the servers of a file, and build the consent question."""
    try:
        found = read_named_rows(file)
    except UnusableFileError as exc:
        raise click.UsageError(str(exc)) from exc
    document = read_config_file(file).document
    servers = document.get("mcpServers") if is_json_object(document) else None
    if not is_json_object(servers):
        raise click.UsageError(f'{file}: write the servers as {{"mcpServers": {{…}}}}')
    rows = [row for row in found.rows if row.id in servers]
    print_notes(found.notes)
    if not rows:
        raise click.UsageError(f"{file}: there is no server in it")
    questions = {row.id: describe_row(row) for row in rows}
    lines = [line for name, one in questions.items() for line in (f"server {name}", *(f"  {it}" for it in one.details))]
    facts: JsonObject = {name: one.digest for name, one in questions.items()}
    consent = build_consent(f"servers of {os.path.realpath(file)} on every node of the cluster", facts, lines)
    # Push exactly what we show, even if the file changes in between.
    return {row.id: row.written for row in rows}, consent


@click.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@with_table
async def remove(table: SharedTable, *, names: tuple[str, ...]) -> int:
    """Remove servers from the cluster: all nodes stop them. Exit code 1 if one is not there."""
    unknown = [name for name in names if table.build_key("server", name) not in table.list("server")]
    for name in dict.fromkeys(names):
        if name not in unknown:
            await table.put(table.build_key("server", name), None)
            print_line(f"removed: {name}")
    if unknown:
        print_status(f"not in the cluster: {', '.join(unknown)}")
    return _FAILED if unknown else 0


@click.command("rules")
@click.argument("file", type=click.Path(exists=True, dir_okay=False), required=False)
@click.option("--remove", "is_removed", is_flag=True, help="Remove the rules of the cluster.")
@broker_option
@key_option
@click.pass_context
def rules(context: click.Context, *, file: str | None, is_removed: bool) -> int:
    """Put the rules of FILE ({"deny": […], "ask": […]}) into the cluster: calls at every node have to pass them.

    They can only restrict: a file with `allow` is rejected, and so is a call that needs approval: no user is there.
    """
    if (file is None) is not is_removed:
        raise click.UsageError("name a FILE, or use --remove")
    document = None if file is None else _read_rules(file)

    async def work(table: SharedTable) -> int:
        key = table.build_key("rules")
        if document is None:
            await table.put(key, None)
        else:
            await table.put(key, {"rules": document, "by": getuser(), "at": iso_utc(now_ms())})
        print_line("the cluster has no rules any more" if document is None else f"the cluster has the rules of {file}")
        return 0

    return _change(context, work)


def _read_rules(file: str) -> JsonValue:
    found = read_config_file(file)
    if found.trouble is not None:
        raise click.UsageError(f"{file}: {found.trouble}")
    if is_json_object(found.document) and found.document.get("allow"):
        raise click.UsageError(f"{file}: the rules of a cluster only take away: leave 'allow' out of it")
    _, notes = parse_settings(found.document, file, RuleOrigin.PROJECT)
    if notes:
        raise click.UsageError(str(notes[0]))
    return found.document


# -- keys -------------------------------------------------------------------------------------


@click.command("rotate-key")
@cluster_options
def rotate(context: click.Context, *, as_json: bool) -> int:
    """Replace the key of the cluster, after it has leaked or from time to time. All nodes have to be stopped.

    Reseals shared servers, rules and approved definitions. Ledgers and call records stay as they are: the new key file
    opens them up to their current end. Machines with the old file are locked out until they get the new one. If a
    rotation is interrupted, the next one finishes it.
    """
    settings, key_file = read_invocation(context).settings, context.meta.get(KEY_FILE)
    path, old = find_key_file(settings, key_file, is_written=True), load_key(context, settings, key_file)

    async def work(broker: Broker) -> int:
        broker.settings = replace(broker.settings, key=old)
        done = await rotate_key(broker, path)
        if as_json:
            write_json({"key_file": path, "entries": done.entries, "left_out": done.left_out})
            return 0
        count = format_count(done.entries, "shared entry", "shared entries")
        print_line(f"the key of the cluster is replaced; {count} sealed again")
        if done.left_out:
            print_line(f"left out: {done.left_out} (consents are shared again by their nodes)")
        print_line("keys of offering nodes count no more: issue them again (indus cluster offer-key NODE)")
        print_line(f"copy {path} to every node that serves clients, then start them")
        return 0

    return run_with_broker(read_settings(context), work)


@click.command("offer-key")
@click.argument("node")
@click.option("--out", "out_file", metavar="FILE", help="Where the key is written; NODE.key in this folder by default.")
@click.option("--revoke", "is_revoked", is_flag=True, help="Revoke the key of NODE instead.")
@broker_option
@key_option
@click.pass_context
def offer_key(context: click.Context, *, node: str, out_file: str | None, is_revoked: bool) -> int:
    """Issue a key to NODE, a machine that only offers its servers (indus serve --offer-only).

    Its holder can offer servers under this name, but can neither read nor forge messages of other nodes. A second key
    for the same node revokes the first.
    """
    try:
        find_node_name(node)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if out_file is not None and is_revoked:
        raise click.UsageError("--out and --revoke can't be used together")
    path = out_file or f"{node}.key"
    if not is_revoked and os.path.lexists(path):
        raise click.UsageError(f"{path} is there already: name another file with --out")
    settings = read_keyed_settings(context)

    async def work(broker: Broker) -> int:
        key = settings.key
        assert key is not None
        if is_revoked:
            had_key = await revoke_offer_key(broker, key, node)
            print_line(f"the key of {node} is revoked" if had_key else f"{node} has no key")
            return 0 if had_key else _FAILED
        offer = await issue_offer_key(broker, key, node)
        try:
            await to_thread.run_sync(write_new_key, path, offer)
        except OSError as exc:
            print_status(f"the key can't be written: {exc}")
            return _FAILED
        print_line(f"key of {node}: {path}; copy it to that machine, and remove it here")
        print_line(f"there: indus serve --offer-only --cluster URL --cluster-key {os.path.basename(path)}")
        return 0

    return run_with_broker(settings, work)
