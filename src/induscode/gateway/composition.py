"""Composition root of `indus serve`: builds a gateway's parts in order, each from the ones before.

The host answers `initialize` before the servers are known. So there are two stages: `build_parts` builds the host and
everything it serves, `open_gateway` opens the session behind it. A `GatewayOpening` connects the two.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.app_dirs import state_dir
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host import create_provider_host
from induscode.boot.plans import plan_servers
from induscode.boot.session import open_session
from induscode.calls.record import CallOrigin
from induscode.cli.terminal import print_status
from induscode.deck.contract import DeckFramework, Profile
from induscode.deck.mcp.content import CONTENT_KINDS, ServerContent
from induscode.gateway.content import GatewayContent
from induscode.gateway.gateway import Gateway, GatewayContext, GatewayOpening
from induscode.gateway.page.serving import build_site, open_page
from induscode.gateway.recursion import drop_own_address
from induscode.gateway.searched_boxes import SearchedBoxes
from induscode.gateway.status_lines import StatusLines
from induscode.gateway.tasks import TASKS_FILE, GatewayTasks, TaskMap
from induscode.gateway.view_box import GatewayViews, check_view_tokens, read_view_tokens
from induscode.launch.extras import find_missing_agent
from induscode.launch.options import PROFILES
from induscode.launch.settings import SERVE_VIEWS
from induscode.permissions.gate import build_gateway_checks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from indusagi.core.cancel import CancelToken
    from indusagi.core.faults import Note
    from indusagi.interop.protocol_bridge.host import ProviderHost
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
    from induscode.calls.metrics import CallMetrics
    from induscode.cluster.sessions import TaskHandles
    from induscode.conversations.agents.delegate import SubSessions
    from induscode.gateway.options import ServeOptions
    from induscode.gateway.page.site import PageSite
    from induscode.launch.invocation import Invocation
    from induscode.launch.views import View
    from induscode.servers.plan import ServerPlan


@record
class GatewayInputs:
    """What a gateway is built from."""

    invocation: Invocation
    options: ServeOptions
    plan: ServerPlan
    context: GatewayContext


@record(kw_only=True)
class GatewayParts:
    """The parts of a gateway that exist before its session."""

    inputs: GatewayInputs
    lines: StatusLines
    opening: GatewayOpening
    content: GatewayContent
    tasks: GatewayTasks
    searched: SearchedBoxes
    ready: anyio.Event
    """Set once the first servers have listed their tools."""
    host: ProviderHost
    metrics: CallMetrics | None
    site: PageSite | None
    settings: HttpSettings | None


class ClusterJoinError(Exception):
    """The cluster can't be joined. The message is for the user."""


async def join_cluster(stack: AsyncExitStack, inputs: GatewayInputs) -> GatewayInputs:
    """Make the gateway a cluster node until `stack` closes, with the servers and the state of all nodes.

    Raises:
        ClusterJoinError: The broker doesn't answer, or the cluster's servers can't be written.
    """
    from induscode.cluster.contract import ClusterFault  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.node import open_node  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.opening import describe_fault  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.sessions import open_sessions  # noqa: PLC0415 — only with --cluster
    from induscode.cluster.shared.state import open_shared_state  # noqa: PLC0415 — only with --cluster
    from induscode.gateway.sharing import WATCH_S, GatewaySharing  # noqa: PLC0415 — only with --cluster

    invocation, options, plan, context = inputs.invocation, inputs.options, inputs.plan, inputs.context
    assert options.cluster is not None
    try:
        node = await stack.enter_async_context(open_node(options.cluster, guarded=True))
        sessions = await stack.enter_async_context(open_sessions(node))
        shared = await stack.enter_async_context(open_shared_state(node))
    except ClusterFault as fault:
        raise ClusterJoinError(f"the cluster cannot be joined: {describe_fault(fault)}") from fault
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
            raise ClusterJoinError(f"the servers of the cluster cannot be written: {exc}") from exc
        planned = await to_thread.run_sync(plan_servers, invocation, sharing.trust)
        held_back = await to_thread.run_sync(context.consented.hold_back, planned)
        plan = drop_own_address(held_back, context.address)
        if context.watch is not None:
            context.watch.poll_s = WATCH_S
        context = replace(context, hooks=sharing.build_hooks())
    boot = replace(context.options, open_session=node.open_session, node=node.info.node)
    if options.settings is not None:
        options = replace(options, settings=replace(options.settings, router=sessions))
    return GatewayInputs(invocation, options, plan, replace(context, options=boot, node=node))


# -- host -------------------------------------------------------------------------------------


def build_parts(inputs: GatewayInputs) -> GatewayParts:
    """Build the host of a gateway and everything it serves, still without servers."""
    options, context = inputs.options, inputs.context
    lines, opening, ready = StatusLines(context.schemas), GatewayOpening(), anyio.Event()
    content = GatewayContent(plain_names=options.names == "plain", single_client=options.settings is None)
    # Without servers (`--no-mcp`) it serves only tools.
    offered = content if inputs.plan.rows or context.watch is not None else None
    handles = _open_handles(inputs)
    task_map = _open_task_map() if handles is None else None
    tasks = GatewayTasks(content, task_map, print_note, handles, opening.intercepts_results)
    searched = SearchedBoxes(options.search, print_note, opening.record_search)
    views: Mapping[str, View] = inputs.invocation.settings.get(SERVE_VIEWS)
    tokens = read_view_tokens(views, os.environ)
    chosen = GatewayViews(opening.box, views, tokens, options.view, offered, searched.wrap) if views else None
    host = create_provider_host(
        searched.wrap(opening.box),
        context.info,
        ready=ready,
        choose_view=None if chosen is None else chosen.choose,
        content=offered,
        opened=opening.opened,
        tasks=None if offered is None else tasks,
    )
    metrics, settings, site = None, options.settings, build_site(options.page)
    if settings is not None:
        from induscode.calls.metrics import CallMetrics  # noqa: PLC0415 — over HTTP only

        check_view_tokens(tokens, views)
        metrics = CallMetrics(opening.count_dropped)
        auth = settings.auth and replace(settings.auth, on_identity=opening.record_client, on_note=print_note)
        more = [token.decode() for token in tokens]
        settings = replace(settings, auth=auth, metrics=metrics.render, more_tokens=more, site=site)
    return GatewayParts(
        inputs=inputs,
        lines=lines,
        opening=opening,
        content=content,
        tasks=tasks,
        searched=searched,
        ready=ready,
        host=host,
        metrics=metrics,
        site=site,
        settings=settings,
    )


def print_note(note: Note) -> None:
    """Print a note, even if printed before."""
    print_status(str(note))


def _open_handles(inputs: GatewayInputs) -> TaskHandles | None:
    """Return the sealer of task handles, or `None` outside a cluster."""
    node, key = inputs.context.node, None if inputs.options.cluster is None else inputs.options.cluster.key
    if node is None or key is None:
        return None
    from induscode.cluster.sessions import TaskHandles  # noqa: PLC0415 — only with --cluster

    return TaskHandles(node, key)


def _open_task_map() -> TaskMap | None:
    try:
        return TaskMap(os.path.join(state_dir(), TASKS_FILE))
    except OSError:
        return None  # the note about the ledger already reports it


# -- session ----------------------------------------------------------------------------------


async def open_gateway(stack: AsyncExitStack, parts: GatewayParts, end: CancelToken) -> Gateway | None:
    """Open the session behind the host until `stack` closes. Returns `None` after a signal to end."""
    from indusagi.interop.protocol_bridge.client.handlers import forwarding_handlers  # noqa: PLC0415 — with the bridge

    invocation, options, plan = parts.inputs.invocation, parts.inputs.options, parts.inputs.plan
    context, content = parts.inputs.context, parts.content
    value = PROFILES[options.profile]
    profile = None if value is None else Profile(value)
    with end.guard():
        agents = await _open_agents(stack, invocation) if profile is Profile.ALL else None
        handlers = replace(
            forwarding_handlers(),
            roots=content.answer_roots,
            on_notification=content.receive,
            follow_tasks=options.tasks == "wait",
        )
        session = await stack.enter_async_context(
            open_session(
                invocation,
                framework=DeckFramework(delegate=agents, observer=parts.metrics),
                profile=profile,
                plan=plan,
                wait=False,
                options=replace(context.options, handlers=handlers, kinds=CONTENT_KINDS),
                origin=CallOrigin(via="gateway", transport="pipe" if options.settings is None else "tcp"),
                on_note=parts.lines.print_note,
                share_store=context.hooks.share_store,
            )
        )
        if context.node is not None:
            context.node.follow(session.mcp.fleet)
        # In a thread, after starting the servers: it takes as long as they do.
        checks = await to_thread.run_sync(
            build_gateway_checks, invocation, profile is not None or session.addons.has_cards
        )
        gateway = Gateway(session, plan, context, context.hooks.limit_checks(checks), content, parts.lines)
        wrap = gateway.wrap_content if gateway.checks.checks_remote or session.addons.intercepts else None
        content.open(session.mcp, ServerContent(session.mcp, wrap, session.native.context), gateway.is_ourselves)
        if agents is not None:
            from induscode.gateway.agents import attach_gateway  # noqa: PLC0415 — with a model only

            stack.push_async_callback(agents.aclose)
            attach_gateway(agents, gateway, gateway.checks.posture)
        await parts.tasks.open()
        # Before the recorder of calls is closed.
        stack.push_async_callback(parts.tasks.aclose)
        open_page(stack, parts.site, gateway)
        parts.opening.open(gateway)
        return gateway
    return None


async def _open_agents(stack: AsyncExitStack, invocation: Invocation) -> SubSessions | None:
    if not (invocation.model or invocation.base_url):
        return None
    if (missing := find_missing_agent()) is not None:
        print_status(f"sub-agents are left out: {missing}")
        return None
    from induscode.gateway.agents import open_tasks  # noqa: PLC0415 — with a model only

    return await open_tasks(stack, invocation)
