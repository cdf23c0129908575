"""Runs `indus serve`: from its options to its exit code.

The host answers `initialize` before anything else is opened; `tools/list` waits for the first servers.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click

from indusagi import __version__
from indusagi.core.faults import CoreError
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerConfig
from indusagi.interop.protocol_bridge.host.boundary import handle_loop_error
from indusagi.interop.protocol_bridge.host.http.settings import is_loopback
from induscode.boot.plans import ConfigFiles, ConsentedRows, list_config_files, load_plan, usage_errors
from induscode.cli.output import can_ask_user
from induscode.cli.process import SignalState, handle_signals, non_blocking_stderr
from induscode.cli.terminal import print_status
from induscode.conversations.contract import ExitCode
from induscode.deck.mcp.boot import BootOptions
from induscode.gateway.composition import GatewayParts, open_gateway, print_note
from induscode.gateway.gateway import FIRST_S, Gateway, GatewayContext
from induscode.gateway.recursion import (
    EVERYWHERE,
    GatewayInfo,
    ListenAddress,
    add_ancestry,
    drop_own_address,
    read_ancestry,
    refuse_recursion,
)
from induscode.gateway.search_box import report_idle_patterns
from induscode.gateway.view_box import report_unknown_servers
from induscode.launch.settings import ADDONS_REQUIRED, SERVE_VIEWS
from induscode.permissions import InvalidRuleError
from induscode.servers.plan import STATE_REMEDIES, ServerPlan, find_row, name_trust_command

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host import ProviderHost
    from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
    from indusagi.interop.protocol_bridge.relay import RelayHost
    from induscode.gateway.options import ServeOptions
    from induscode.gateway.page.site import PageSite
    from induscode.launch.invocation import Invocation

_SERVING_COLLECTION = 5_000
"""New objects between collections. A call holds a few hundred until we send its response."""


def run_serve(invocation: Invocation, options: ServeOptions) -> int:
    """Serve until a signal or the end of standard input, and return the exit code."""
    with non_blocking_stderr():
        if options.cluster is not None and options.cluster.key is not None:
            from induscode.gateway.sharing import find_config_path  # noqa: PLC0415 — only with --cluster

            invocation = replace(invocation, cluster_config=find_config_path(options.cluster.node))
        files = list_config_files(invocation)
        # Before reading the files, so that a change while reading counts as one.
        watch = ConfigFiles(files) if files else None
        plan = load_plan(invocation)
        if options.cluster is None:  # a node also gets servers that its configuration doesn't have
            report_unknown_servers(invocation.settings.get(SERVE_VIEWS).values(), [row.id for row in plan.rows])
        settings = options.settings
        address = None if settings is None else ListenAddress(settings.host, settings.port)
        served = drop_own_address(plan, address)
        above = read_ancestry(os.environ)
        if options.transparent is not None:
            if required := invocation.settings.get(ADDONS_REQUIRED):
                message = f"--transparent passes bytes on, which the required addon {required[0]!r} does not see"
                raise click.UsageError(f"{message} (the setting addons.required)")
            return _run_relay(served, options.transparent, options, above)
        refusal = refuse_recursion(served, above)
        if refusal is not None:
            print_status(refusal)
            return int(ExitCode.USAGE)
        context = GatewayContext(
            invocation=invocation,
            options=options,
            plan=served,
            info=GatewayInfo(options.name, __version__),
            boot=BootOptions(reloadable=True, decorate_config=partial(add_ancestry, above)),
            address=address,
            consented=ConsentedRows(invocation.cwd, plan, lambda row: f"look at it: {name_trust_command(row)}"),
            watch=watch,
            files=files,
        )
        try:
            with usage_errors():
                return anyio.run(_run_gateway, context)
        except CoreError as exc:
            if isinstance(exc, InvalidRuleError):
                raise click.UsageError(str(exc)) from exc
            raise


# -- gateway ----------------------------------------------------------------------------------


async def _run_gateway(context: GatewayContext) -> int:
    async with AsyncExitStack() as stack:
        if context.options.cluster is not None:
            from induscode.gateway.sharing import join_cluster  # noqa: PLC0415 — only with --cluster

            joined = await join_cluster(stack, context, context.options.cluster)
            if joined is None:
                return int(ExitCode.FAILED)
            context = joined
        return await _GatewayRun(GatewayParts(context)).run()


class _GatewayRun:
    """Serves a gateway's host while its servers are opened and followed."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts, self._options = parts, parts.context.options
        self._what = f"as {parts.context.info.name!r}"
        self._up = anyio.Event()
        self._following = anyio.CancelScope()
        self._code = 0
        self._failure: Exception | None = None

    async def run(self) -> int:
        """Serve until a signal, the end of standard input or a failure, and return the exit code."""
        async with handle_signals() as signals, AsyncExitStack() as stack, anyio.create_task_group() as group:
            stack.push_async_callback(self._parts.searched.aclose)
            group.start_soon(self._serve, signals)
            try:
                gateway = await open_gateway(stack, self._parts, signals.end)
                if gateway is not None:
                    await self._follow(gateway, signals)
            except Exception as exc:  # noqa: BLE001 — raised again outside the group
                self._failure = exc
            if not signals.end.cancelled and not self._following.cancel_called:
                group.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return self._code or signals.code

    async def _serve(self, signals: SignalState) -> None:
        parts = self._parts
        code = await _serve(parts.host, parts.settings, signals, self._what, self._up, self._options, parts.site)
        self._code = self._code or code
        self._following.cancel()

    async def _follow(self, gateway: Gateway, signals: SignalState) -> None:
        """Follow the servers until the host ends, or a required one is missing."""
        _announce_stdio(self._options, self._what)
        with self._following:
            await gateway.wait_for_first()
            await self._up.wait()
            gateway.print_all_notes()
            if not self._report_missing(gateway):
                self._announce_tools(gateway)
                self._parts.ready.set()
                self._parts.host.settle_tools()
                spare_start_objects()
                await gateway.follow(self._parts.host, signals)
        if self._following.cancelled_caught and not self._parts.ready.is_set() and not signals.end.cancelled:
            # The client left immediately; still report missing servers.
            with anyio.move_on_after(FIRST_S):
                await gateway.session.mcp.wait_for_required()
            self._report_missing(gateway)

    def _announce_tools(self, gateway: Gateway) -> None:
        self._parts.lines.print_counts(gateway.summarize())
        settings = gateway.session.invocation.settings
        names = [tool.name for tool in gateway.box().descriptors()]
        renamed = [name for view in settings.get(SERVE_VIEWS).values() for name in view.rename.values()]
        report_idle_patterns(self._options.search, settings, [*names, *renamed])

    def _report_missing(self, gateway: Gateway) -> bool:
        """Print required servers that aren't ready, and return whether there are any."""
        missing = gateway.session.mcp.missing()
        if missing:
            print_status(f"required and not ready: {', '.join(missing)}")
            self._code = self._code or int(ExitCode.SERVER_MISSING)
        return bool(missing)


def _announce_stdio(options: ServeOptions, what: str) -> None:
    if not options.has_clients:
        print_status("offering servers to the cluster, and serving no clients")
    elif options.settings is None:
        print_status(f"serving over standard input and output {what}")
        if can_ask_user():
            print_status("an MCP client is meant to start this: indus connect")


def spare_start_objects() -> None:
    """Collect once, then exempt all startup objects from later collections.

    A gateway has fifty thousand of them. A full collection would visit them for 30 ms or more while calls wait.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SERVING_COLLECTION, *gc.get_threshold()[1:])


async def _serve(
    host: ProviderHost | RelayHost,
    settings: HttpSettings | None,
    signals: SignalState,
    what: str,
    up: anyio.Event,
    options: ServeOptions,
    site: PageSite | None = None,
) -> int:
    """Serve over stdio or HTTP until it ends, and signal through `up` once it's serving."""
    asyncio.get_running_loop().set_exception_handler(handle_loop_error)
    try:
        if not options.has_clients:
            up.set()
            await signals.end.wait()
            return 0
        if settings is None:
            up.set()
            await host.serve_stdio(signals.end)
            return 0
        async with host.serve_http(settings) as serving:
            await _announce_http(serving, settings, what, options, site)
            up.set()
            await signals.end.wait()
    except ProtocolFault as fault:
        print_status(f"{fault}{_find_port_remedy(fault.cause, options)}")
        return int(ExitCode.FAILED)
    return 0


async def _announce_http(
    serving: HttpHost, settings: HttpSettings, what: str, options: ServeOptions, site: PageSite | None
) -> None:
    """Print where the gateway serves. `indus ui` prints the page alone: it's what the user came for."""
    origin = serving.url.removesuffix(settings.path)
    if options.is_ui and site is not None:
        await site.announce(origin, serving.token, options)
        if options.shows_token:
            print_status(f"MCP clients: {serving.url}, token {serving.token}")
        return
    print_status(f"serving at {serving.url} {what}")
    if settings.host in EVERYWHERE and not settings.allowed_hosts:
        print_status("clients on other machines need --allowed-host NAME:PORT")
    if serving.connections < settings.connections:
        limit = f"--max-connections {settings.connections:,}: {serving.connections:,} are taken"
        print_status(f"{limit}, since the system allows too few open files (see ulimit -Hn)")
    _announce_access(settings, serving)
    if site is not None:
        await site.announce(origin, serving.token, options)


def _find_port_remedy(cause: BaseException | None, options: ServeOptions) -> str:
    """Name the flag for choosing another port if another process uses this one."""
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return ""
    return f" (choose another port: {'--port N' if options.is_ui else '--http PORT'}, 0 for a free one)"


def _announce_access(settings: HttpSettings, serving: HttpHost) -> None:
    """Print how clients get access, and who else might."""
    if settings.auth is not None:
        print_status(f"clients need an access token of {settings.auth.issuer}")
    elif serving.token_path is None:
        print_status("no token is asked: every program of this machine can call these tools")
    elif serving.token_is_new:
        print_status(f"token (shown once; it is kept in {serving.token_path}): {serving.token}")
    else:
        print_status(f"token: in {serving.token_path}")
    if settings.auth is None and not is_loopback(settings.host):
        print_status(
            "not encrypted: others on the network can read the token and all calls, unless a TLS proxy is in front"
        )


# -- relay ------------------------------------------------------------------------------------


def _run_relay(plan: ServerPlan, name: str, options: ServeOptions, above: Sequence[str]) -> int:
    """Serve the server `name` unchanged (`--transparent`)."""
    left_out = [note for note in plan.notes if note.owner.startswith(f"server {name!r} of ")]
    if name not in {row.id for row in plan.rows} and left_out:
        raise click.UsageError(str(left_out[0]))
    state = plan.state_of(find_row(plan, name))
    if state != "startable":
        reasons = (str(note) for note in left_out if note.message.startswith("not started"))
        print_status(next(reasons, f"server {name!r} is not started: {STATE_REMEDIES[state].format(name)}"))
        return int(ExitCode.SERVER_MISSING)
    auth = getattr(plan.configs[name], "auth", None)
    if auth is not None and (auth.settings.grant == "token_exchange" or auth.settings.per_user):
        message = "its clients would all be the gateway itself there; serve it without --transparent"
        what = "has sign-ins of users" if auth.settings.per_user else "has token exchange"
        raise click.UsageError(f"server {name!r} {what}: {message}")
    refusal = refuse_recursion(plan.narrow([name]), above)
    if refusal is not None:
        print_status(refusal)
        return int(ExitCode.USAGE)
    return anyio.run(_serve_relay, add_ancestry(above, plan.configs[name]), options)


async def _serve_relay(config: ServerConfig, options: ServeOptions) -> int:
    from indusagi.interop.protocol_bridge.relay import create_relay_host  # noqa: PLC0415 — for a relay

    async with handle_signals() as signals:
        host = create_relay_host(config)
        what = f"server {config.id!r} as it is"
        _announce_stdio(options, what)
        settings = options.settings
        if settings is not None and settings.auth is not None:
            from induscode.gateway.token_book import TokenBook  # noqa: PLC0415 — over HTTP only

            book = TokenBook()
            book.takes_tokens = False  # they have views and budgets
            settings = replace(settings, named=book, auth=replace(settings.auth, on_note=print_note))
        code = await _serve(host, settings, signals, what, anyio.Event(), options)
    return code or signals.code
