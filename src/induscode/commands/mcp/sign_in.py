"""`indus mcp login`, `logout` and `auth`: sign in to servers, sign out, and list sign-ins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
from anyio import to_thread

from indusagi.interop.auth.contract import AuthFault, ServerAuth
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.contract import StreamableHttpServerConfig
from induscode.boot.plans import load_plan
from induscode.cli.listing import Cell, Listing
from induscode.cli.output import as_json
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_status
from induscode.commands.groups import complete_server, open_prompt, print_signed_in, print_signed_out, sign_in_options
from induscode.launch.options import define_command, read_invocation
from induscode.servers.plan import STATE_REMEDIES, find_row, name_state
from induscode.servers.sign_in import SignInFacts, get_auth, read_sign_in, sign_in_to_server, sign_out_of_server

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.launch.invocation import Invocation
    from induscode.servers.sign_in import SignInWay

_FAILED = 1


@define_command("login", "--mcp", "--cwd")
@click.argument("name", shell_complete=complete_server)
@sign_in_options
def login(context: click.Context, name: str, *, way: SignInWay | None, port: int | None) -> int:
    """Sign in to the server NAME, in a browser on this machine unless --device or --paste is given.

    indus stores the sign-in and refreshes it automatically; see it with `indus mcp auth`.
    """
    return sign_in_and_check(read_invocation(context), name, way or "browser", port)


def sign_in_and_check(invocation: Invocation, name: str, way: SignInWay = "browser", port: int | None = None) -> int:
    """Sign in to a server interactively, start it once, and return the exit code."""
    from induscode.commands.mcp.doctor import check_server  # noqa: PLC0415 — imports the bridge

    config = _find_config(invocation, name)

    async def sign_in(cancel: CancelToken) -> int:
        try:
            await sign_in_to_server(config, open_prompt(way, cancel), device=way == "device", port=port)
        except AuthFault as fault:
            print_status(f"not signed in to {config.id!r}: {fault}")
            return _FAILED
        print_signed_in(config.id, await read_sign_in(config), get_auth(config).store)
        return 0

    if code := run_until_signal(sign_in):
        return code
    status = check_server(invocation, name)
    if status is None or status.fault is None:
        return 0
    print_status(str(status.fault))
    return _FAILED


@define_command("logout", "--mcp", "--cwd")
@click.argument("name", shell_complete=complete_server)
@click.option("--principal", metavar="SUBJECT", help="Sign out this user of a gateway, instead of you.")
def logout(context: click.Context, name: str, *, principal: str | None) -> int:
    """Sign out of the server NAME: its tokens are revoked at the issuer, and deleted here.

    NAME may be the URL of a server that is not configured any more. A running gateway ends the sessions of the user
    within two seconds.
    """
    is_url = name.lower().startswith(("http://", "https://"))
    config = _configure_url(name) if is_url else _find_config(read_invocation(context), name)

    async def work(_: CancelToken) -> int:
        try:
            confirmed = await (sign_out_of_server(config) if principal is None else _sign_out(config, principal))
        except AuthFault as fault:
            print_status(f"not signed out of {name!r}: {fault}")
            return _FAILED
        print_signed_out(name, confirmed)
        return 0

    return run_until_signal(work)


async def _sign_out(config: ServerConfig, principal: str) -> bool | None:
    """Sign a principal out of a server, of whichever issuers; returns and raises like `sign_out_of_server`."""
    from induscode.gateway.sign_in import UserCredentials, list_stored  # noqa: PLC0415 — for a gateway's users

    auth = get_auth(config)
    users = {user for user, _ in await to_thread.run_sync(list_stored, principal)}
    own = [replace(config, auth=replace(auth, store=UserCredentials(user), user=user)) for user in sorted(users)]
    answers = [await sign_out_of_server(one) for one in own]
    known = [one for one in answers if one is not None]
    return all(known) if known else None


@define_command("auth", "--mcp", "--cwd")
@as_json
def auth(context: click.Context, *, as_json: bool) -> int:
    """List the sign-ins: account, scopes, expiry and storage. Sends nothing, and never shows a token."""
    plan = load_plan(read_invocation(context))

    async def work(_: CancelToken) -> int:
        from induscode.connectors.sign_in import find_left_over  # noqa: PLC0415 — for `auth`

        found: list[SignInFacts] = []
        for row in plan.rows:
            config = plan.configs.get(row.id)
            if config is None:
                found.append(SignInFacts(name=row.id, state=plan.state_of(row)))
            elif (facts := await read_sign_in(config)) is not None:
                found.append(facts)
        left = await find_left_over(plan.configs.values())
        for resource in left:
            facts = await read_sign_in(_configure_url(resource))
            found += [] if facts is None else [facts]
        listing = Listing(
            "servers",
            found,
            ("NAME", "STATE", "WHO", "SCOPES", "EXPIRES", "STORED"),
            lambda facts: (
                *(facts.name, Cell("server removed", "yellow") if facts.name in left else name_state(facts.state)),
                *(one or "-" for one in (facts.account, " ".join(facts.scopes), facts.format_expiry(), facts.place)),
            ),
            to_json=SignInFacts.to_json,
            empty="No server behind a URL is configured: servers that are processes have no sign-in",
        )
        listing.show(as_json=as_json)
        for facts in () if as_json else found:
            if facts.problem:
                print_status(facts.problem)
        return 0

    return run_until_signal(work)


def _configure_url(url: str) -> ServerConfig:
    """Build the configuration of a server from just its URL."""
    return StreamableHttpServerConfig(url, url, auth=ServerAuth(store=CredentialFiles()))


def _find_config(invocation: Invocation, name: str) -> ServerConfig:
    """Return a startable server's configuration with its variables expanded."""
    plan = load_plan(invocation)
    row = find_row(plan, name)
    state = plan.state_of(row)
    if state != "startable":
        raise click.UsageError(f"Server {name!r}: {STATE_REMEDIES[state].format(name)}")
    return plan.configs[name]
