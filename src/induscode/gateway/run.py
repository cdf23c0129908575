"""Runs `indus serve`: from its options to its exit code.

The host answers `initialize` before anything else is opened; `tools/list` waits for the first servers.
"""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import click
from anyio import to_thread

from indusagi import __version__
from indusagi.capabilities.registry import ToolRegistry
from indusagi.core.app_dirs import state_dir
from indusagi.core.faults import CoreError
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from indusagi.interop.protocol_bridge.host import create_provider_host
from indusagi.interop.protocol_bridge.host.boundary import handle_loop_error
from induscode.boot.config_watch import ConsentedRows, list_config_files
from induscode.boot.plans import load_plan, plan_servers, usage_errors
from induscode.boot.session import open_session
from induscode.calls.record import CallOrigin
from induscode.cli.collector import spare_start_objects
from induscode.cli.output import can_ask_user
from induscode.cli.process import handle_signals, non_blocking_stderr
from induscode.cli.terminal import print_status
from induscode.conversations.contract import ExitCode
from induscode.deck.contract import DeckFramework, Profile
from induscode.deck.mcp.boot import BootOptions
from induscode.deck.mcp.content import CONTENT_KINDS, ServerContent
from induscode.gateway.content import GatewayContent
from induscode.gateway.gateway import FIRST_S, ClientRecorder, Gateway, GatewayContext
from induscode.gateway.page.serving import announce_page, build_site, open_page
from induscode.gateway.recursion import (
    EVERYWHERE,
    GatewayInfo,
    ListenAddress,
    add_ancestry,
    drop_own_address,
    read_ancestry,
    refuse_recursion,
)
from induscode.gateway.reload import FileWatch
from induscode.gateway.searched_boxes import SearchedBoxes, report_idle_patterns
from induscode.gateway.tasks import TASKS_FILE, GatewayTasks, TaskMap
from induscode.gateway.view_box import GatewayViews, check_view_tokens, read_view_tokens, report_unknown_servers
from induscode.launch.extras import find_missing_agent
from induscode.launch.options import PROFILES
from induscode.launch.settings import ADDONS_REQUIRED, SERVE_VIEWS
from induscode.permissions.gate import build_gateway_checks
from induscode.servers.listing import name_trust_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.faults import Note
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.host import ProviderHost
    from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.interop.protocol_bridge.relay import RelayHost
    from indusagi.runtime.contract import ToolBox
    from induscode.calls.metrics import CallMetrics
    from induscode.cli.process import SignalState
    from induscode.cluster.sessions import TaskHandles
    from induscode.gateway.options import ServeOptions
    from induscode.gateway.page.site import PageSite
    from induscode.launch.invocation import Invocation
    from induscode.servers.plan import ServerPlan


def run_serve(invocation: Invocation, options: ServeOptions) -> int:
    """Serve until a signal or the end of standard input, and return the exit code.

    Raises:
        click.UsageError: The flags or the configuration are unusable.
    """
    with non_blocking_stderr():
        if options.cluster is not None and options.cluster.key is not None:
            from induscode.gateway.sharing import find_config_path  # noqa: PLC0415 — only with --cluster

            invocation = replace(invocation, cluster_config=find_config_path(options.cluster.node))
        files = list_config_files(invocation)
        # Before reading the files, so that a change while reading counts as one.
        watch = FileWatch(files) if files else None
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
                raise click.UsageError(
                    f"{message} (the setting addons.required)", click.get_current_context(silent=True)
                )
            return _run_relay(served, options.transparent, options, above)
        refusal = refuse_recursion(served, above)
        if refusal is not None:
            print_status(refusal)
            return int(ExitCode.USAGE)
        context = GatewayContext(
            info=GatewayInfo(options.name, __version__),
            options=BootOptions(reloadable=True, decorate_config=partial(add_ancestry, above)),
            address=address,
            consented=ConsentedRows(invocation.cwd, plan, lambda row: f"look at it: {name_trust_command(row)}"),
            watch=watch,
            files=files,
            schemas=options.schemas,
            has_principals=settings is not None and settings.auth is not None,
        )
        try:
            with usage_errors():
                return anyio.run(_run_gateway, invocation, options, served, context)
        except CoreError as exc:
            from induscode.permissions import InvalidRuleError  # noqa: PLC0415 — only for this error

            if isinstance(exc, InvalidRuleError):
                raise click.UsageError(str(exc), click.get_current_context(silent=True)) from exc
            raise


# -- gateway ----------------------------------------------------------------------------------


async def _run_gateway(invocation: Invocation, options: ServeOptions, plan: ServerPlan, context: GatewayContext) -> int:
    if options.cluster is None:
        return await _run_host(invocation, options, plan, context)
    from induscode.cluster.contract import ClusterFault  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.node import open_node  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.opening import describe_fault  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.sessions import open_sessions  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.shared.state import open_shared_state  # noqa: PLC0415 — only with --cluster
    from induscode.gateway.sharing import WATCH_S, GatewaySharing  # noqa: PLC0415 — only with --cluster

    async with AsyncExitStack() as stack:
        try:
            node = await stack.enter_async_context(open_node(options.cluster, guarded=True))
            sessions = await stack.enter_async_context(open_sessions(node))
            shared = await stack.enter_async_context(open_shared_state(node))
        except ClusterFault as fault:
            print_status(f"the cluster cannot be joined: {describe_fault(fault)}")
            return int(ExitCode.FAILED)
        node.on_note.add(print_status)
        others = [info.node for info in node.membership.list_nodes() if info.node != node.info.node]
        print_status(f"node {node.info.node!r} of a cluster, with {', '.join(others) or 'no other node yet'}")
        if shared is None:
            print_status("no key of the cluster: its ledger and its approvals stay on this machine")
        else:
            sharing = GatewaySharing(shared, invocation)
            stack.push_async_callback(sharing.calls.close)
            try:
                await to_thread.run_sync(sharing.write_servers)
            except OSError as exc:
                print_status(f"the servers of the cluster cannot be written: {exc}")
                return int(ExitCode.FAILED)
            planned = await to_thread.run_sync(plan_servers, invocation, sharing.trust)
            held_back = await to_thread.run_sync(context.consented.hold_back, planned)
            plan = drop_own_address(held_back, context.address)
            if context.watch is not None:
                context.watch.poll_s = WATCH_S
            context = replace(context, hooks=sharing.build_hooks())
        boot = replace(context.options, open_session=node.open_session, node=node.info.node)
        if options.settings is not None:
            options = replace(options, settings=replace(options.settings, router=sessions))
        return await _run_host(invocation, options, plan, replace(context, options=boot, node=node))


async def _run_host(invocation: Invocation, options: ServeOptions, plan: ServerPlan, context: GatewayContext) -> int:
    gateways: list[Gateway] = []
    up, ready = anyio.Event(), anyio.Event()

    def box() -> ToolBox:
        return gateways[0].box() if gateways else ToolRegistry().to_tool_box(make_inert_context())

    searched = SearchedBoxes(options.search, _print_note)
    clients = ClientRecorder()
    views, tokens = invocation.settings.get(SERVE_VIEWS), dict[bytes, str]()
    opened = anyio.Event()
    content = GatewayContent(plain_names=options.names == "plain", single_client=options.settings is None)
    # Without servers (`--no-mcp`) it serves only tools.
    offered = content if plan.rows or context.watch is not None else None
    handles = _open_handles(options, context)
    task_map = _open_task_map() if handles is None else None
    tasks = GatewayTasks(content, task_map, _print_note, handles)
    choose_view = None
    if views:
        tokens = read_view_tokens(views, os.environ)
        choose_view = GatewayViews(box, views, tokens, options.view, offered, searched.wrap).choose
    host = create_provider_host(
        searched.wrap(box),
        context.info,
        ready=ready,
        choose_view=choose_view,
        content=offered,
        opened=opened,
        tasks=None if offered is None else tasks,
    )
    settings = _report_auth(options.settings, clients.record)
    metrics = None
    if settings is not None:
        from induscode.calls.metrics import CallMetrics  # noqa: PLC0415 — over HTTP only

        check_view_tokens(tokens, views)
        metrics = CallMetrics()
        settings = replace(settings, metrics=metrics.render, more_tokens=[token.decode() for token in tokens])
    site = build_site(options.page)
    settings = None if settings is None else replace(settings, site=site)
    following = anyio.CancelScope()
    what = f"as {context.info.name!r}"
    codes: list[int] = []
    failures: list[Exception] = []

    async with handle_signals() as signals, AsyncExitStack() as stack, anyio.create_task_group() as group:
        stack.push_async_callback(searched.aclose)

        async def serve() -> None:
            codes.append(await _serve(host, settings, signals, what, up, options, site))
            following.cancel()

        group.start_soon(serve)
        try:
            gateway = await _open_gateway(stack, invocation, options, plan, context, signals, metrics, content)
            if gateway is not None:
                await tasks.open()
                tasks.holds_back = lambda: gateway.session.addons.intercepts
                # Before the recorder of calls is closed.
                stack.push_async_callback(tasks.aclose)
                gateways.append(gateway)
                clients.open(gateway.session.mcp)
                searched.journal = gateway.session.mcp.journal
                opened.set()
                open_page(stack, site, gateway)
                _announce_stdio(options, what)
                with following:
                    codes.extend(await _follow_servers(gateway, options, host, signals, up, ready))
                if following.cancelled_caught and not ready.is_set() and not signals.end.cancelled:
                    # The client left immediately; still report missing servers.
                    await gateway.wait_for_required(FIRST_S)
                    codes.extend(_report_missing(gateway))
        except Exception as exc:  # noqa: BLE001 — raised again outside the group
            failures.append(exc)
        if not signals.end.cancelled and not following.cancel_called:
            group.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return next((code for code in codes if code), 0) or signals.code


def _open_handles(options: ServeOptions, context: GatewayContext) -> TaskHandles | None:
    """Return the sealer of task handles, or `None` outside a cluster."""
    key = None if options.cluster is None else options.cluster.key
    if context.node is None or key is None:
        return None
    from induscode.cluster.sessions import TaskHandles  # noqa: PLC0415 — only with --cluster

    return TaskHandles(context.node, key)


def _open_task_map() -> TaskMap | None:
    try:
        return TaskMap(os.path.join(state_dir(), TASKS_FILE))
    except OSError:
        return None  # the note about the ledger already reports it


def _print_note(note: Note) -> None:
    print_status(str(note))


def _report_auth(
    settings: HttpSettings | None, on_identity: Callable[[ClientIdentity], None] | None = None
) -> HttpSettings | None:
    """Make the host report clients, and print why the token issuer is unusable."""
    if settings is None or settings.auth is None:
        return settings
    return replace(settings, auth=replace(settings.auth, on_identity=on_identity, on_note=_print_note))


async def _open_gateway(
    stack: AsyncExitStack,
    invocation: Invocation,
    options: ServeOptions,
    plan: ServerPlan,
    context: GatewayContext,
    signals: SignalState,
    metrics: CallMetrics | None,
    content: GatewayContent,
) -> Gateway | None:
    """Open the session and its permission checks on `stack`. Returns `None` after a signal to end."""
    from indusagi.interop.protocol_bridge.client.handlers import forwarding_handlers  # noqa: PLC0415 — with the bridge

    value = PROFILES[options.profile]
    profile = None if value is None else Profile(value)
    with signals.end.guard():
        tasks = None
        without_agent = find_missing_agent()
        if profile is Profile.ALL and (invocation.model or invocation.base_url) and without_agent is not None:
            print_status(f"sub-agents are left out: {without_agent}")
        elif profile is Profile.ALL and (invocation.model or invocation.base_url):
            from induscode.gateway.agents import open_tasks  # noqa: PLC0415 — with a model only

            tasks = await open_tasks(stack, invocation)
        handlers = replace(
            forwarding_handlers(),
            roots=content.answer_roots,
            on_notification=content.receive,
            follow_tasks=options.tasks == "wait",
        )
        session = await stack.enter_async_context(
            open_session(
                invocation,
                framework=DeckFramework(delegate=tasks, observer=metrics),
                profile=profile,
                plan=plan,
                wait=False,
                options=replace(context.options, handlers=handlers, kinds=CONTENT_KINDS),
                origin=CallOrigin(via="gateway"),
                share_store=context.hooks.share_store,
            )
        )
        if context.node is not None:
            context.node.follow(session.mcp.fleet)
        recorder, telemetry = session.calls.recorder, session.calls.telemetry
        if metrics is not None and recorder is not None:
            metrics.find_dropped = lambda: recorder.dropped
        if telemetry is not None:
            telemetry.transport = "pipe" if options.settings is None else "tcp"
        # In a thread, after starting the servers: it takes as long as they do.
        checks = await to_thread.run_sync(
            build_gateway_checks, invocation, profile is not None or session.addons.has_cards
        )
        checks = context.hooks.limit_checks(checks)
        gateway = Gateway(session, plan, context, checks, content)
        is_checked = checks.checks_remote or session.addons.intercepts
        wrap = gateway.wrap_content if is_checked else None
        content.open(session.mcp, ServerContent(session.mcp, wrap, session.native.context), gateway.is_ourselves)
        if tasks is not None:
            from induscode.gateway.agents import attach_gateway  # noqa: PLC0415 — with a model only

            stack.push_async_callback(tasks.aclose)
            attach_gateway(tasks, gateway, checks.posture)
        return gateway
    return None


async def _follow_servers(
    gateway: Gateway,
    options: ServeOptions,
    host: ProviderHost,
    signals: SignalState,
    up: anyio.Event,
    ready: anyio.Event,
) -> Sequence[int]:
    """Wait for the first servers, then follow all of them; return only if a required one is missing."""
    await gateway.wait_for_first()
    await up.wait()
    gateway.print_all_notes()
    missing = _report_missing(gateway)
    if missing:
        return missing
    print_status(gateway.summarize(has_clients=_has_clients(options)))
    settings = gateway.session.invocation.settings
    renamed = [name for view in settings.get(SERVE_VIEWS).values() for name in view.rename.values()]
    report_idle_patterns(options.search, settings, [*(tool.name for tool in gateway.box().descriptors()), *renamed])
    ready.set()
    host.settle_tools()
    spare_start_objects()
    await gateway.follow(host, signals)
    return ()


def _report_missing(gateway: Gateway) -> Sequence[int]:
    """Print required servers that aren't ready, and return the exit code if there are any."""
    missing = gateway.session.mcp.missing()
    if not missing:
        return ()
    print_status(f"required and not ready: {', '.join(missing)}")
    return (int(ExitCode.SERVER_MISSING),)


def _has_clients(options: ServeOptions) -> bool:
    """Return whether this gateway serves clients: a node may only offer its servers."""
    return options.settings is not None or options.cluster is None


def _announce_stdio(options: ServeOptions, what: str) -> None:
    if options.settings is None and not _has_clients(options):
        print_status("offering servers to the cluster, and serving no clients")
    elif options.settings is None:
        print_status(f"serving over standard input and output {what}")
        if can_ask_user():
            print_status("an MCP client is meant to start this: see indus serve --install")


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
        if not _has_clients(options):
            up.set()
            await signals.end.wait()
            return 0
        if settings is None:
            up.set()
            await host.serve_stdio(signals.end)
            return 0
        async with host.serve_http(settings) as serving:
            print_status(f"serving at {serving.url} {what}")
            if settings.host in EVERYWHERE and not settings.allowed_hosts:
                print_status("clients on other machines need --allowed-host NAME:PORT")
            if serving.connections < settings.connections:
                limit = f"--max-connections {settings.connections:,}: {serving.connections:,} are taken"
                print_status(f"{limit}, since the system allows too few open files (see ulimit -Hn)")
            _announce_access(settings, serving)
            if site is not None:
                await announce_page(site, serving.url.removesuffix(settings.path), serving.token, options)
            up.set()
            await signals.end.wait()
    except ProtocolFault as fault:
        print_status(f"{fault}{_find_port_remedy(fault.cause, options)}")
        return int(ExitCode.FAILED)
    return 0


def _find_port_remedy(cause: BaseException | None, options: ServeOptions) -> str:
    """Name the flag for choosing another port if another process uses this one."""
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return ""
    return f" (choose another port: {'--port N' if options.is_ui else '--http PORT'}, 0 for a free one)"


def _announce_access(settings: HttpSettings, serving: HttpHost) -> None:
    """Print how clients get access."""
    if settings.auth is not None:
        print_status(f"clients need an access token of {settings.auth.issuer}")
    elif serving.token_path is None:
        print_status("no token is asked: every program of this machine can call these tools")
    elif serving.token_is_new:
        print_status(f"token (shown once; it is kept in {serving.token_path}): {serving.token}")
    else:
        print_status(f"token: in {serving.token_path}")


# -- relay ------------------------------------------------------------------------------------


def _run_relay(plan: ServerPlan, name: str, options: ServeOptions, above: Sequence[str]) -> int:
    """Serve the server `name` unchanged (`--transparent`)."""
    from induscode.servers.listing import STATE_REMEDIES, find_row  # noqa: PLC0415 — for a relay

    left_out = [note for note in plan.notes if note.owner.startswith(f"server {name!r} of ")]
    if name not in {row.id for row in plan.rows} and left_out:
        raise click.UsageError(str(left_out[0]), click.get_current_context(silent=True))
    state = plan.state_of(find_row(plan, name))
    if state != "startable":
        print_status(f"server {name!r} is not started: {STATE_REMEDIES[state].format(name)}")
        return int(ExitCode.SERVER_MISSING)
    auth = getattr(plan.configs[name], "auth", None)
    if auth is not None and auth.settings.grant == "token_exchange":
        message = "its clients would all be the gateway itself there; serve it without --transparent"
        raise click.UsageError(f"server {name!r} has token exchange: {message}", click.get_current_context(silent=True))
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
        code = await _serve(host, _report_auth(options.settings), signals, what, anyio.Event(), options)
    return code or signals.code
