"""Runs a gateway: from its options to its exit code."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
import click
from anyio import to_thread

from indusagi import __version__
from indusagi.capabilities.registry import ToolRegistry
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from indusagi.interop.protocol_bridge.host import create_provider_host
from induscode.boot.session import open_session
from induscode.commands.serve.gateway import FIRST_S, Gateway, GatewayContext
from induscode.commands.serve.permissions import serving_gate
from induscode.commands.serve.recursion import (
    EVERYWHERE,
    GatewayInfo,
    Listening,
    ancestry,
    marked,
    refusal,
    stripped_loop,
    without_ourselves,
)
from induscode.commands.serve.reload import ConsentedRows, FileWatch, config_files
from induscode.commands.serve.signals import serving_signals
from induscode.commands.serve.stderr import non_blocking_stderr
from induscode.commands.support.output import can_ask_user
from induscode.commands.support.runner import load_plan, usage_errors
from induscode.deck.contract import Profile
from induscode.deck.mcp.boot import BootOptions
from induscode.launch.profiles import PROFILES
from induscode.session.contract import ExitCode
from induscode.session.permissions import InvalidRuleError
from induscode.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.host import ProviderHost
    from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
    from indusagi.runtime.contract import ToolBox
    from induscode.commands.serve import ServeOptions
    from induscode.commands.serve.signals import SignalState
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.launch.invocation import Invocation


class Host(Protocol):
    """What can be served: a box of tools, or one server passed through."""

    async def serve_stdio(self, stop: CancelToken | None = None) -> None:
        """Serve whoever started this process."""
        ...

    def serve_http(self, settings: HttpSettings | None = None) -> AbstractAsyncContextManager[HttpHost]:
        """Serve at an address while the block runs."""
        ...


def run_serve(invocation: Invocation, options: ServeOptions) -> int:
    """Serve until somebody ends it, and give the exit code.

    Raises:
        click.UsageError: What was given makes no sense.
    """
    with non_blocking_stderr():
        return _run(invocation, options)


def _run(invocation: Invocation, options: ServeOptions) -> int:
    files = () if invocation.no_mcp else config_files(invocation)
    # Before the files are read: what changes while they are is a change.
    watch = FileWatch(files) if files else None
    read = load_plan(invocation)
    listening = _listening(options.settings)
    plan = without_ourselves(read, listening)
    above = ancestry(os.environ)
    if options.transparent is not None:
        return _relay(invocation, plan, options, above)
    why = refusal(plan, above) or stripped_loop(invocation, os.environ)
    if why is not None:
        print_status(why)
        return int(ExitCode.USAGE)
    frame = GatewayContext(
        info=GatewayInfo(options.name, __version__),
        options=BootOptions(reloadable=True, decorate_config=partial(marked, above)),
        listening=listening,
        agreed=ConsentedRows(invocation.cwd, read),
        watch=watch,
        files=files,
        schemas=options.schemas,
    )
    try:
        with usage_errors():
            return anyio.run(_gateway, invocation, options, plan, frame)
    except InvalidRuleError as exc:
        raise click.UsageError(str(exc), click.get_current_context(silent=True)) from exc


def _listening(settings: HttpSettings | None) -> Listening | None:
    return None if settings is None else Listening(settings.host, settings.port)


# -- the gateway ------------------------------------------------------------------------------


async def _gateway(invocation: Invocation, options: ServeOptions, plan: ServerPlan, frame: GatewayContext) -> int:
    gateways: list[Gateway] = []
    up, ready = anyio.Event(), anyio.Event()

    def box() -> ToolBox:
        return gateways[0].box() if gateways else ToolRegistry().to_tool_box(make_inert_context())

    # Served before anything else is opened: `initialize` is answered at once, whatever starts.
    host = create_provider_host(box, frame.info, ready=ready)
    following = anyio.CancelScope()
    what = f"as {frame.info.name!r}"
    ends: list[int] = []
    failures: list[Exception] = []

    async with serving_signals() as told, AsyncExitStack() as stack, anyio.create_task_group() as tasks:

        async def front() -> None:
            ends.append(await _fronted(host, options.settings, told, what, up))
            following.cancel()

        tasks.start_soon(front)
        try:
            gateway = await _open_gateway(stack, invocation, options, plan, frame, told)
            if gateway is not None:
                gateways.append(gateway)
                _tell_streams(options.settings, what)
                with following:
                    ends.extend(await _follow_servers(gateway, host, told, up, ready))
                if following.cancelled_caught and not ready.is_set() and not told.end.cancelled:
                    # The client left at once; what is missing is told all the same.
                    await gateway.required_servers(FIRST_S)
                    ends.extend(_tell_missing(gateway))
        except Exception as exc:  # noqa: BLE001 — raised again outside of the group
            failures.append(exc)
        if not told.end.cancelled and not following.cancel_called:
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return next((code for code in ends if code), 0) or told.code


async def _open_gateway(
    stack: AsyncExitStack,
    invocation: Invocation,
    options: ServeOptions,
    plan: ServerPlan,
    frame: GatewayContext,
    told: SignalState,
) -> Gateway | None:
    """Open what is served; None if it was told to end meanwhile. The stack closes it in peace."""
    from indusagi.interop.protocol_bridge.client.handlers import forwarding_handlers  # noqa: PLC0415 — with the bridge

    named = PROFILES[options.profile]
    profile = None if named is None else Profile(named)
    # What is opened here stays open beyond the scope, and is closed in peace whatever happens.
    with told.end.guard():
        session = await stack.enter_async_context(
            open_session(
                invocation,
                profile=profile,
                plan=plan,
                wait=False,
                options=replace(frame.options, handlers=forwarding_handlers()),
            )
        )
        # In a thread, and after the servers were started: it takes as long as they do.
        gate = await to_thread.run_sync(serving_gate, invocation, profile is not None)
        return Gateway(session, plan, frame, gate)
    return None


async def _follow_servers(
    gateway: Gateway, host: ProviderHost, told: SignalState, up: anyio.Event, ready: anyio.Event
) -> Sequence[int]:
    """Have the first servers up and follow all of them; clients are met meanwhile.

    Returns only if a server is missing that is required, with the exit code.
    """
    await gateway.first_servers()
    await up.wait()
    gateway.mention_all()
    missing = _tell_missing(gateway)
    if missing:
        return missing
    print_status(gateway.summary())
    ready.set()
    await gateway.follow(host, told)
    return ()


def _tell_missing(gateway: Gateway) -> Sequence[int]:
    """Tell which required servers are not ready; give the exit code that says so, if there are."""
    missing = gateway.session.mcp.missing()
    if not missing:
        return ()
    print_status(f"required and not ready: {', '.join(missing)}")
    return (int(ExitCode.SERVER_MISSING),)


def _tell_streams(settings: HttpSettings | None, what: str) -> None:
    if settings is None:
        print_status(f"serving over standard input and output {what}")
        if can_ask_user():
            print_status("an MCP client is meant to start this: see indus serve --install")


async def _fronted(host: Host, settings: HttpSettings | None, told: SignalState, what: str, up: anyio.Event) -> int:
    """Serve over the one way or the other until it is over; `up` is set as soon as it serves."""
    try:
        if settings is None:
            up.set()
            await host.serve_stdio(told.end)
            return 0
        async with host.serve_http(settings) as serving:
            _tell_address(serving, settings, what)
            up.set()
            await told.end.wait()
    except ProtocolFault as fault:
        print_status(str(fault))
        return int(ExitCode.FAILED)
    return 0


def _tell_address(serving: HttpHost, settings: HttpSettings, what: str) -> None:
    print_status(f"serving at {serving.url} {what}")
    if settings.host in EVERYWHERE and not settings.allowed_hosts:
        print_status("whoever comes from elsewhere needs --allowed-host NAME:PORT")
    if serving.connections < settings.connections:
        limit = f"--max-connections {settings.connections:,}: {serving.connections:,} are taken"
        print_status(f"{limit}, since the system allows too few open files (see ulimit -Hn)")
    if settings.sse:
        print_status(f"for old clients: {serving.url.removesuffix(settings.path)}/sse")
    if serving.token_path is None:
        print_status("no token is asked: every program of this machine can call these tools")
    elif serving.token_is_new:
        print_status(f"token (shown once; it is kept in {serving.token_path}): {serving.token}")
    else:
        print_status(f"token: in {serving.token_path}")


# -- one server, passed through ---------------------------------------------------------------


def _relay(invocation: Invocation, plan: ServerPlan, options: ServeOptions, above: Sequence[str]) -> int:
    from induscode.commands.serve.relay import find_relay_server  # noqa: PLC0415 — for a relay

    name = options.transparent
    assert name is not None
    config = find_relay_server(plan, name, above)
    if config is None:
        return int(ExitCode.SERVER_MISSING)
    why = refusal(plan.narrow([name]), above) or stripped_loop(invocation, os.environ)
    if why is not None:
        print_status(why)
        return int(ExitCode.USAGE)
    return anyio.run(_relayed, config, options)


async def _relayed(config: ServerConfig, options: ServeOptions) -> int:
    from indusagi.interop.protocol_bridge.relay import create_relay_host  # noqa: PLC0415 — for a relay

    async with serving_signals() as told:
        host = create_relay_host(config)
        what = f"server {config.id!r} as it is"
        _tell_streams(options.settings, what)
        code = await _fronted(host, options.settings, told, what, anyio.Event())
    return code or told.code
