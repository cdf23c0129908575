"""`indus connectors`: turns OpenAPI documents into actions of `saas-action`.

Exit codes: 0 success, 1 a connector has a problem or the user declined, 2 usage error, 3 unusable document.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from anyio import to_thread
from click.shell_completion import CompletionItem

from indusagi.core.faults import CoreError
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.metadata import is_loopback
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, ask_consent, build_unknown_name, digest_option, write_json
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_line, print_status
from induscode.commands.groups import (
    CommandGroup,
    LazyCommand,
    open_prompt,
    print_signed_in,
    print_signed_out,
    sign_in_options,
)
from induscode.connectors.auth import (
    AUTH_FORMS,
    CONNECTOR_GRANTS,
    SECRET_METHODS,
    OAuthReference,
    check_variable,
    find_unset,
    parse_auth,
    parse_scopes,
)
from induscode.connectors.openapi import ConnectorFault
from induscode.connectors.store import ConnectorRow, ConnectorStore, check_name
from induscode.launch.options import define_command, read_invocation

if TYPE_CHECKING:
    from indusagi.capabilities.ports import WebSettings
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.connectors.auth import ConnectorAuth, ConnectorGrant, SecretMethod
    from induscode.connectors.sources import DocumentChange, SourceReading
    from induscode.servers.sign_in import SignInWay

_PROBLEM = 1
_FAULT = 3
_MAX_NOTES = 5


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the connectors", ":list_rows"),
        "add": LazyCommand("add a connector from an OpenAPI document", ":add"),
        "remove": LazyCommand("remove a connector", ":remove"),
        "login": LazyCommand("sign in to the service of a connector", ":login"),
        "logout": LazyCommand("sign out of the service of a connector", ":logout"),
        "doctor": LazyCommand("examine document, address, variables and sign-in of connectors", ":doctor"),
        "approve": LazyCommand("approve a changed document as it is now", ":approve"),
    },
    default="list",
)
def command() -> None:
    """Connect services that OpenAPI documents describe; a model uses them by saas-action."""


def complete_connector(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a connector's name."""
    rows, _ = ConnectorStore().read()
    return [CompletionItem(name, help=row.base_url) for name, row in rows.items() if name.startswith(incomplete)]


@define_command("list", "--cwd")
@as_json
def list_rows(_: click.Context, *, as_json: bool) -> int:
    """List the connectors with their base URL, credentials or sign-in, and number of operations."""
    store = ConnectorStore()
    rows = _read_rows(store)

    async def work(_: CancelToken) -> int:
        found = [(row, await _read_sign_in(store, row)) for row in rows.values()]
        return Listing(
            "connectors",
            found,
            ("NAME", "BASE URL", "AUTH", "OPERATIONS", "DOCUMENT"),
            lambda pair: _format_cells(*pair),
            to_json=lambda pair: {**_to_json(pair[0]), "signIn": pair[1]},
            empty="There are no connectors; add one: indus connectors add NAME SPEC",
        ).show(as_json=as_json)

    return run_until_signal(work)


@define_command("add", "--web-allow", "--cwd")
@click.argument("name")
@click.argument("spec", metavar="SPEC")
@click.option("--base-url", metavar="URL", help="Where requests go, instead of the first server of the document.")
@click.option(
    "--auth",
    metavar="KIND:…",
    help=f"Credentials by environment variable: {AUTH_FORMS}. Or oauth, oauth:SCHEME: a sign-in by OAuth.",
)
@click.option("--client-id", metavar="ID", default="", help="The client that you have registered at the service.")
@click.option("--client-secret", metavar="VARIABLE", default="", help="The environment variable with its secret.")
@click.option("--client-auth", type=click.Choice(SECRET_METHODS), help="How the secret is sent to the issuer.")
@click.option("--grant", type=click.Choice(CONNECTOR_GRANTS), help="Who signs in: a user, or the client itself.")
@click.option(
    "--scopes", metavar="SCOPES", default="", help="Scopes of the first sign-in; by default those for reading."
)
@as_json
def add(
    context: click.Context,
    name: str,
    spec: str,
    *,
    base_url: str | None,
    auth: str | None,
    client_id: str,
    client_secret: str,
    client_auth: SecretMethod | None,
    grant: ConnectorGrant | None,
    scopes: str,
    as_json: bool,
) -> int:
    """Add the connector NAME from SPEC: the file or URL of an OpenAPI document, 3.0 or 3.1, in JSON or YAML.

    This approves the current document: a later change disables the connector until you approve it. With --auth oauth,
    it also approves the document's sign-in addresses, which `indus connectors login NAME` uses.
    """
    invocation = read_invocation(context)
    store = ConnectorStore()
    try:
        check_name(name)
        reference = _parse_auth(auth, client_id, client_secret, client_auth, grant, scopes)
    except ConnectorFault as exc:
        raise click.UsageError(str(exc)) from exc
    if name in _read_rows(store):
        raise click.UsageError(f"There is a connector {name!r} already: indus connectors remove {name}")

    async def work(web: WebSettings, _: CancelToken) -> int:
        from induscode.connectors.sources import examine_source, normalize_source, read_bytes  # noqa: PLC0415 — imports the web client

        source = await to_thread.run_sync(normalize_source, spec, invocation.cwd)
        data = await read_bytes(source, web)
        reading = await to_thread.run_sync(examine_source, name, source, data, base_url, reference)
        await to_thread.run_sync(store.add, reading.row, reading.document)
        problem = await _find_address_problem(reading.row, web)
        _report_added(reading, problem, as_json=as_json)
        return 0

    return _run(context, work)


def _parse_auth(
    auth: str | None,
    client_id: str,
    variable: str,
    method: SecretMethod | None,
    grant: ConnectorGrant | None,
    scopes: str,
) -> ConnectorAuth | None:
    """Parse `--auth` and the options of its OAuth form; `ConnectorFault` if they contradict each other."""
    kind, _, scheme = (auth or "").partition(":")
    if kind != "oauth":
        if client_id or variable or method or grant or scopes:
            raise ConnectorFault("--client-id and the options beside it belong to --auth oauth")
        return None if auth is None else parse_auth(auth)
    if variable:
        check_variable(variable, "--client-secret")
    if (variable or method) and not (client_id and variable):
        raise ConnectorFault("a client with a secret needs --client-id ID and --client-secret VARIABLE")
    return OAuthReference(
        scheme=scheme,
        grant=grant or "authorization_code",
        client_id=client_id,
        secret_variable=variable,
        auth_method=method,
        scopes=parse_scopes(scopes),
    )


def _report_added(reading: SourceReading, problem: str | None, *, as_json: bool) -> None:
    row = reading.row
    for note in reading.notes[:_MAX_NOTES]:
        print_status(str(note))
    if len(reading.notes) > _MAX_NOTES:
        print_status(f"{len(reading.notes) - _MAX_NOTES} more operations are left out")
    warnings = _list_warnings(row, problem)
    for warning in warnings:
        print_status(warning)
    if as_json:
        write_json({**_to_json(row), "leftOut": [str(note) for note in reading.notes], "warnings": [*warnings]})
        return
    count = format_count(len(reading.operations), "operation")
    print_line(f"{row.name}: {count} at {row.base_url}, {_format_auth(row)}")
    if row.oauth is not None:
        print_line(f"  signs in at {row.sign_in_at}")
        if row.oauth.grant == "authorization_code":
            print_line(f"  sign in: indus connectors login {row.name}")


@define_command("remove", "--cwd")
@click.argument("name", shell_complete=complete_connector)
@as_json
def remove(context: click.Context, name: str, *, as_json: bool) -> int:
    """Remove a connector, its approved document and its sign-in."""
    store = ConnectorStore()
    row = _get_row(store, name)
    if row.oauth is not None:
        _run(context, lambda web, _: _sign_out(store, row, web, is_needed=False))
    store.remove(name)
    if as_json:
        write_json({"removed": name})
    else:
        print_line(f"{name}: removed")
    return 0


@define_command("doctor", "--web-allow", "--cwd")
@click.argument("name", required=False, shell_complete=complete_connector)
@as_json
def doctor(context: click.Context, name: str | None, *, as_json: bool) -> int:
    """Examine connectors: document, base URL, variables and sign-in. Sends no request to a service.

    Exit code 1 if one of them has a problem.
    """
    store = ConnectorStore()
    rows = _read_rows(store) if name is None else {name: _get_row(store, name)}

    async def work(web: WebSettings, _: CancelToken) -> int:
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
    facts = await _read_sign_in(store, row)
    if row.oauth is not None and facts is not None and row.oauth.grant == "authorization_code":
        if facts["state"] != "signed in":
            problem = facts["problem"] or facts["state"]
            problems.append(f"{problem}: indus connectors login {row.name}")
    return {**_to_json(row), "changed": change is not None, "signIn": facts, "problems": problems}


@define_command("approve", "--web-allow", "--cwd")
@click.argument("name", shell_complete=complete_connector)
@click.option("--yes", is_flag=True, help="Approve without asking.")
@digest_option
@as_json
def approve(context: click.Context, name: str, *, yes: bool, digests: tuple[str, ...], as_json: bool) -> int:
    """Show how the document of a connector has changed, and approve it as it is now."""
    store = ConnectorStore()
    row = _get_row(store, name)

    async def work(web: WebSettings, _: CancelToken) -> int:
        from induscode.connectors.sources import compare_rows, diff_operations, examine_again, read_bytes  # noqa: PLC0415 — imports the web client

        data = await read_bytes(row.source, web)
        reading = await to_thread.run_sync(examine_again, row, data)
        change = compare_rows(row, reading.row)
        diffs: Mapping[str, str] = {}
        if change is not None:
            try:
                document = await to_thread.run_sync(store.read_document, name)
                diffs = await to_thread.run_sync(diff_operations, row, document, reading)
            except ConnectorFault as exc:  # nothing to compare with
                print_status(str(exc))
            question = reading.describe(change, diffs)
            asked = f"Approve the document of {name} as it is now?"
            if not ask_consent(question, asked, yes=yes, digests=digests, quiet=as_json):
                print_status(f"{name}: not approved")
                return _PROBLEM
        await to_thread.run_sync(lambda: store.add(reading.row, reading.document, replace=True))
        if as_json:
            facts: JsonObject | None = None
            if change is not None:
                lists = {"added": change.added, "removed": change.removed, "changed": change.changed}
                moved = {"baseUrl": change.base_url, "signInAt": change.sign_in_at}
                facts = {**moved, **{kind: [*slugs] for kind, slugs in lists.items()}, "diffs": {**diffs}}
            write_json({**_to_json(reading.row), "change": facts})
        else:
            print_line(f"{name}: approved as it is" if change is not None else f"{name}: nothing has changed")
        return 0

    return _run(context, work)


# -- signing in ---------------------------------------------------------------------------------


@define_command("login", "--cwd")
@click.argument("name", shell_complete=complete_connector)
@sign_in_options
def login(context: click.Context, name: str, *, way: SignInWay | None, port: int | None) -> int:
    """Sign in to the service of the connector NAME, in a browser on this machine unless --device or --paste is given.

    indus stores the sign-in and refreshes it automatically; see it with `indus connectors list`.
    """
    store = ConnectorStore()
    row = _get_row(store, name)

    async def work(web: WebSettings, cancel: CancelToken) -> int:
        from induscode.connectors.sign_in import ConnectorSignIn  # noqa: PLC0415 — for a sign-in

        sign_in = ConnectorSignIn(store, row, os.environ, web.proxy)
        await sign_in.sign_in(open_prompt(way or "browser", cancel), device=way == "device", port=port)
        print_signed_in(name, await sign_in.read_facts(), sign_in.store)
        return 0

    return _run(context, work)


@define_command("logout", "--cwd")
@click.argument("name", shell_complete=complete_connector)
def logout(context: click.Context, name: str) -> int:
    """Sign out of the service of the connector NAME: its tokens are revoked at the issuer, and deleted here."""
    store = ConnectorStore()
    row = _get_row(store, name)
    return _run(context, lambda web, _: _sign_out(store, row, web, is_needed=True))


async def _sign_out(store: ConnectorStore, row: ConnectorRow, web: WebSettings, *, is_needed: bool) -> int:
    from induscode.connectors.sign_in import ConnectorSignIn  # noqa: PLC0415 — for a sign-out

    confirmed = await ConnectorSignIn(store, row, os.environ, web.proxy).sign_out()
    if confirmed is not None or is_needed:
        print_signed_out(row.name, confirmed)
    return 0


async def _read_sign_in(store: ConnectorStore, row: ConnectorRow) -> JsonObject | None:
    """Read the stored sign-in of a connector, or return `None` without one."""
    if row.oauth is None:
        return None
    from induscode.connectors.sign_in import ConnectorSignIn  # noqa: PLC0415 — for a connector that signs in

    facts = await ConnectorSignIn(store, row, os.environ).read_facts()
    return None if facts is None else facts.to_json()


# -- helpers ----------------------------------------------------------------------------------


def _run(context: click.Context, work: Callable[[WebSettings, CancelToken], Awaitable[int]]) -> int:
    """Run a command in an event loop. Connector faults exit with 3, sign-in faults with 1."""
    from induscode.connectors.live import web_settings  # noqa: PLC0415 — for requests to a service

    web = web_settings(read_invocation(context).settings)

    async def guarded(cancel: CancelToken) -> int:
        try:
            return await work(web, cancel)
        except (ConnectorFault, AuthFault) as exc:
            print_status(str(exc))
            return _FAULT if isinstance(exc, ConnectorFault) else _PROBLEM

    return run_until_signal(guarded)


def _read_rows(store: ConnectorStore) -> Mapping[str, ConnectorRow]:
    rows, is_damaged = store.read()
    if is_damaged:
        print_status(f"the store of connectors in {store.folder} is damaged; what cannot be read is left out")
    return rows


def _get_row(store: ConnectorStore, name: str) -> ConnectorRow:
    rows = _read_rows(store)
    if name not in rows:
        raise build_unknown_name(f"There is no connector {name!r}", name, tuple(rows))
    return rows[name]


def _format_cells(row: ConnectorRow, sign_in: JsonObject | None) -> tuple[object, ...]:
    auth = _format_auth(row) + (f", {sign_in['state']}" if sign_in is not None else "")
    return row.name, row.base_url, auth, len(row.digests) - 1, "changed" if row.changed else "approved"


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
    from indusagi.net.address import FetchError  # noqa: PLC0415 — imports the web client
    from indusagi.net.client import WebClient  # noqa: PLC0415 — imports the web client

    try:
        await WebClient(web).check_address(row.base_url)
    except FetchError as exc:
        return f"its base URL cannot be reached: {exc}"
    return None


def _list_warnings(row: ConnectorRow, problem: str | None) -> Sequence[str]:
    warnings = [] if problem is None else [problem]
    if row.auth is not None:
        warnings += [f"the variable {name} is not set here" for name in find_unset(row.auth.variables, os.environ)]
        if row.base_url.startswith("http://") and not is_loopback(row.base_url):
            warnings.append(f"{row.base_url} is not encrypted: the credentials can be read on the way")
    return warnings
