"""`indus connectors`: services described by OpenAPI documents, as actions of `saas-action`.

Exit codes: 0 done, 1 a connector has a problem or an approval was declined, 2 words that make no sense, 3 a document
that cannot be read or used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from indusagi.core.text import format_count
from induscode.commands.support.groups import CommandGroup, LazyCommand
from induscode.commands.support.output import (
    as_json,
    build_unknown_name,
    can_ask_user,
    confirm,
    print_table,
    write_json,
)
from induscode.commands.support.runner import run_until_signal
from induscode.connectors.auth import AUTH_FORMS, parse_auth
from induscode.connectors.faults import ConnectorFault
from induscode.connectors.store import ConnectorStore, check_name
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from indusagi.capabilities.ports import WebSettings
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.connectors.sources import DocumentChange, SourceReading
    from induscode.connectors.store import ConnectorRow

_HERE = "induscode.commands.connectors"
_THIS_MACHINE = frozenset({"127.0.0.1", "::1", "localhost"})
_PROBLEM = 1
_FAULT = 3
_SHOWN_NOTES = 5


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the connectors", _HERE, "list_rows"),
        "add": LazyCommand("add a connector from an OpenAPI document", _HERE, "add"),
        "remove": LazyCommand("remove a connector", _HERE, "remove"),
        "doctor": LazyCommand("examine document, address and variables of connectors", _HERE, "doctor"),
        "approve": LazyCommand("approve a changed document as it is now", _HERE, "approve"),
    },
    default="list",
)
def command() -> None:
    """Connect services that OpenAPI documents describe; a model uses them by saas-action."""


def complete_connector(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a connector."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 — for a completion only

    rows, _ = ConnectorStore().read()
    return [CompletionItem(name, help=row.base_url) for name, row in rows.items() if name.startswith(incomplete)]


@flags("--cwd")
@click.command("list")
@as_json
def list_rows(*, as_json: bool, **_: object) -> int:
    """List the connectors with their base URL, credentials and number of operations."""
    rows = _read_rows(ConnectorStore())
    if as_json:
        write_json({"connectors": [_to_json(row) for row in rows.values()]})
        return 0
    if not rows:
        print_line("There are no connectors; add one: indus connectors add NAME SPEC")
        return 0
    cells = [
        [row.name, row.base_url, _format_auth(row), len(row.digests) - 1, "changed" if row.changed else "approved"]
        for row in rows.values()
    ]
    print_table(("NAME", "BASE URL", "AUTH", "OPERATIONS", "DOCUMENT"), cells)
    return 0


@flags("--web-allow", "--cwd")
@click.command("add")
@click.argument("name")
@click.argument("spec", metavar="SPEC")
@click.option("--base-url", metavar="URL", help="Where requests go, instead of the first server of the document.")
@click.option("--auth", metavar="KIND:…", help=f"Credentials by environment variable: {AUTH_FORMS}.")
@as_json
@click.pass_context
def add(
    context: click.Context, name: str, spec: str, *, base_url: str | None, auth: str | None, as_json: bool, **_: object
) -> int:
    """Add the connector NAME from SPEC: the file or URL of an OpenAPI document, 3.0 or 3.1, in JSON or YAML.

    The document is approved as it is now: a later change disables the connector until it is approved.
    """
    invocation = read_invocation(context)
    store = ConnectorStore()
    try:
        check_name(name)
        reference = None if auth is None else parse_auth(auth)
    except ConnectorFault as exc:
        raise click.UsageError(str(exc), context) from exc
    if name in _read_rows(store):
        message = f"There is a connector {name!r} already: indus connectors remove {name}"
        raise click.UsageError(message, context)

    async def work(web: WebSettings) -> int:
        from anyio import to_thread  # noqa: PLC0415 — for a command that runs

        from induscode.connectors.sources import examine_source, normalize_source, read_bytes  # noqa: PLC0415 — imports the web client

        source = normalize_source(spec, invocation.cwd)
        data = await read_bytes(source, web)
        reading = await to_thread.run_sync(examine_source, name, source, data, base_url, reference)
        await to_thread.run_sync(store.add, reading.row, reading.document)
        problem = await _find_address_problem(reading.row, web)
        _report_added(reading, problem, as_json=as_json)
        return 0

    return _run(context, work)


def _report_added(reading: SourceReading, problem: str | None, *, as_json: bool) -> None:
    row = reading.row
    for note in reading.notes[:_SHOWN_NOTES]:
        print_status(str(note))
    if len(reading.notes) > _SHOWN_NOTES:
        print_status(f"{len(reading.notes) - _SHOWN_NOTES} more operations are left out")
    warnings = _list_warnings(row, problem)
    for warning in warnings:
        print_status(warning)
    if as_json:
        left_out: list[JsonValue] = [str(note) for note in reading.notes]
        write_json({**_to_json(row), "leftOut": left_out, "warnings": [*warnings]})
        return
    count = format_count(len(reading.operations), "operation")
    print_line(f"{row.name}: {count} at {row.base_url}, {_format_auth(row)}")


@flags("--cwd")
@click.command("remove")
@click.argument("name", shell_complete=complete_connector)
@as_json
@click.pass_context
def remove(context: click.Context, name: str, *, as_json: bool, **_: object) -> int:
    """Remove a connector and its approved document."""
    store = ConnectorStore()
    _get_row(context, store, name)
    store.remove(name)
    if as_json:
        write_json({"removed": name})
    else:
        print_line(f"{name}: removed")
    return 0


@flags("--web-allow", "--cwd")
@click.command("doctor")
@click.argument("name", required=False, shell_complete=complete_connector)
@as_json
@click.pass_context
def doctor(context: click.Context, name: str | None, *, as_json: bool, **_: object) -> int:
    """Examine connectors: document, base URL and variables. No request is sent to a service.

    Exit code 1 if one of them has a problem.
    """
    store = ConnectorStore()
    rows = _read_rows(store) if name is None else {name: _get_row(context, store, name)}

    async def work(web: WebSettings) -> int:
        findings = [await _examine(store, row, web) for row in rows.values()]
        if as_json:
            write_json({"connectors": [*findings]})
        for finding in () if as_json else findings:
            problems = finding["problems"]
            assert isinstance(problems, list)
            print_line(f"{finding['name']}: {'ok' if not problems else format_count(len(problems), 'problem')}")
            for problem in problems:
                print_line(f"  {problem}")
        return _PROBLEM if any(finding["problems"] for finding in findings) else 0

    return _run(context, work)


async def _examine(store: ConnectorStore, row: ConnectorRow, web: WebSettings) -> JsonObject:
    from dataclasses import replace  # noqa: PLC0415 — for a command that runs

    from anyio import to_thread  # noqa: PLC0415 — for a command that runs

    from indusagi.core.faults import CoreError  # noqa: PLC0415 — for a command that runs
    from indusagi.core.time import now_ms  # noqa: PLC0415 — for a command that runs
    from induscode.connectors.sources import find_change, read_bytes  # noqa: PLC0415 — imports the web client

    problems: list[JsonValue] = []
    try:
        await to_thread.run_sync(store.read_document, row.name)
    except CoreError as exc:
        problems.append(str(exc))
    change: DocumentChange | None = None
    try:
        data = await read_bytes(row.source, web)
        change = await to_thread.run_sync(find_change, row, data)
        await to_thread.run_sync(store.update, replace(row, checked_ms=now_ms(), changed=change is not None))
    except CoreError as exc:
        problems.append(f"{exc}; the approved document stays in use")
    if change is not None:
        problems.append(f"disabled, since its document has changed: {change}; indus connectors approve {row.name}")
    problems += _list_warnings(row, await _find_address_problem(row, web))
    return {**_to_json(row), "changed": change is not None, "problems": problems}


@flags("--web-allow", "--cwd")
@click.command("approve")
@click.argument("name", shell_complete=complete_connector)
@click.option("--yes", is_flag=True, help="Approve without asking.")
@as_json
@click.pass_context
def approve(context: click.Context, name: str, *, yes: bool, as_json: bool, **_: object) -> int:
    """Approve the document of a connector as it is now, after showing what has changed."""
    store = ConnectorStore()
    row = _get_row(context, store, name)

    async def work(web: WebSettings) -> int:
        from anyio import to_thread  # noqa: PLC0415 — for a command that runs

        from induscode.connectors.sources import compare_rows, examine_again, read_bytes  # noqa: PLC0415 — imports the web client

        data = await read_bytes(row.source, web)
        reading = await to_thread.run_sync(examine_again, row, data)
        change = compare_rows(row, reading.row)
        if change is not None and not as_json:
            _print_change(change)
        if change is not None and not yes:
            if not can_ask_user():
                raise click.UsageError("There is no terminal to ask on: look at the changes, then use --yes", context)
            if not confirm(f"Approve the document of {name} as it is now?"):
                print_line(f"{name}: not approved")
                return _PROBLEM
        await to_thread.run_sync(lambda: store.add(reading.row, reading.document, replace=True))
        if as_json:
            facts: JsonObject | None = None
            if change is not None:
                lists = {"added": change.added, "removed": change.removed, "changed": change.changed}
                facts = {"baseUrl": change.base_url, **{kind: [*slugs] for kind, slugs in lists.items()}}
            write_json({**_to_json(reading.row), "change": facts})
        else:
            print_line(f"{name}: approved as it is" if change is not None else f"{name}: nothing has changed")
        return 0

    return _run(context, work)


def _print_change(change: DocumentChange) -> None:
    if change.base_url is not None:
        print_line(f"base URL: {change.base_url}")
    for name, slugs in (("added", change.added), ("removed", change.removed), ("changed", change.changed)):
        for slug in slugs:
            print_line(f"{name}: {slug}")


# -- what the commands share ------------------------------------------------------------------


def _run(context: click.Context, work: Callable[[WebSettings], Awaitable[int]]) -> int:
    """Run a command in an event loop; a fault of a connector is printed and gives exit code 3."""
    from induscode.boot.session import web_settings  # noqa: PLC0415 — imports the deck

    web = web_settings(read_invocation(context).settings)

    async def guarded(_: CancelToken) -> int:
        try:
            return await work(web)
        except ConnectorFault as exc:
            print_status(str(exc))
            return _FAULT

    return run_until_signal(guarded)


def _read_rows(store: ConnectorStore) -> Mapping[str, ConnectorRow]:
    rows, is_damaged = store.read()
    if is_damaged:
        print_status(f"the store of connectors in {store.folder} is damaged; what cannot be read is left out")
    return rows


def _get_row(context: click.Context, store: ConnectorStore, name: str) -> ConnectorRow:
    rows = _read_rows(store)
    if name not in rows:
        raise build_unknown_name(f"There is no connector {name!r}", name, tuple(rows), context)
    return rows[name]


def _format_auth(row: ConnectorRow) -> str:
    return "no credentials" if row.auth is None else str(row.auth)


def _to_json(row: ConnectorRow) -> JsonObject:
    return {
        "name": row.name,
        "source": row.source,
        "baseUrl": row.base_url,
        "auth": None if row.auth is None else str(row.auth),
        "operations": len(row.digests) - 1,
        "changed": row.changed,
    }


async def _find_address_problem(row: ConnectorRow, web: WebSettings) -> str | None:
    from indusagi.capabilities.ports import FetchError  # noqa: PLC0415 — imports the web client
    from indusagi.capabilities.web.client import WebClient  # noqa: PLC0415 — imports the web client

    try:
        await WebClient(web).check_address(row.base_url)
    except FetchError as exc:
        return f"its base URL cannot be reached: {exc}"
    return None


def _list_warnings(row: ConnectorRow, problem: str | None) -> Sequence[str]:
    warnings = [] if problem is None else [problem]
    if row.auth is not None:
        warnings += [f"the variable {name} is not set here" for name in row.auth.find_missing(os.environ)]
        if row.base_url.startswith("http://") and urlsplit(row.base_url).hostname not in _THIS_MACHINE:
            warnings.append(f"{row.base_url} is not encrypted: the credentials can be read on the way")
    return warnings
