"""Composition root of `indus serve`: builds a gateway's parts in order, each from the ones before.

The host answers `initialize` before the servers are known. So there are two stages: `GatewayParts` has the host and
everything it serves, `open_gateway` opens the session behind it. A `GatewayOpening` connects the two.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
from anyio import to_thread

from indusagi.core.app_dirs import state_dir
from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.client.handlers import forwarding_handlers
from indusagi.interop.protocol_bridge.host import create_provider_host
from induscode.boot.session import open_session
from induscode.calls.record import CallOrigin
from induscode.cli.terminal import print_status
from induscode.deck.contract import DeckFramework, Profile
from induscode.deck.mcp.content import CONTENT_KINDS, ServerContent
from induscode.gateway.approvals.queue import ApprovalMode, ApprovalOptions, ApprovalQueue
from induscode.gateway.content import GatewayContent
from induscode.gateway.gateway import Gateway, GatewayContext, GatewayOpening
from induscode.gateway.search_box import SearchedBoxes
from induscode.gateway.status_lines import StatusLines
from induscode.gateway.tasks import TASKS_FILE, GatewayTasks, TaskMap
from induscode.gateway.view_box import GatewayViews, read_view_tokens
from induscode.launch.options import PROFILES, find_missing_agent
from induscode.launch.settings import APPROVALS_MODE, APPROVALS_NOTIFY, APPROVALS_WAIT_S, SERVE_VIEWS
from induscode.permissions import build_gateway_checks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.host.catalog import ServedView
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.runtime.calls import CallingClient
    from induscode.calls.telemetry import CallMetrics
    from induscode.cluster.sessions import TaskHandles
    from induscode.conversations.agents.delegate import SubSessions
    from induscode.gateway.page.site import PageSite
    from induscode.gateway.sign_in import UserSignIns
    from induscode.gateway.token_book import TokenBook
    from induscode.permissions.confirm import Approver

# -- host -------------------------------------------------------------------------------------


class GatewayParts:
    """The host of a gateway and everything it serves, still without servers."""

    def __init__(self, context: GatewayContext) -> None:
        options = context.options
        self.context = context
        self.lines = StatusLines(options.schemas)
        self.opening = opening = GatewayOpening()
        self.content = GatewayContent(plain_names=options.names == "plain", single_client=options.settings is None)
        # Without servers (`--no-mcp`) it serves only tools.
        offered = self.content if context.plan.rows or context.watch is not None else None
        handles: TaskHandles | None = None
        task_map: TaskMap | None = None
        if context.node is not None and options.cluster is not None and options.cluster.key is not None:
            from induscode.cluster.sessions import TaskHandles  # noqa: PLC0415 — only with --cluster

            handles = TaskHandles(context.node, options.cluster.key)
        else:
            with suppress(OSError):  # the note about the ledger already reports it
                task_map = TaskMap(os.path.join(state_dir(), TASKS_FILE))
        self.tasks = GatewayTasks(self.content, task_map, print_note, handles, opening.intercepts_results)
        self.searched = SearchedBoxes(options.search, print_note, opening.record_search)
        views = context.invocation.settings.get(SERVE_VIEWS)
        tokens = read_view_tokens(views, os.environ, over_http=options.settings is not None)
        self.views = GatewayViews(opening.box, views, options.view, offered, self.searched.wrap)
        self.book: TokenBook | None = None
        if options.settings is not None:
            from induscode.gateway.token_book import TokenBook  # noqa: PLC0415 — over HTTP only

            node = "" if context.node is None else context.node.info.node
            self.book = TokenBook(default=options.budget, node=node, grant=context.hooks.grant)
            self.book.on_ended.add(partial(self.tasks.cancel, self.book.find_end))
            self.book.report, self.book.has_users = opening.record_client, options.settings.auth is not None
        self.ready = anyio.Event()
        """Set once the first servers have listed their tools."""
        self.host = create_provider_host(
            self.searched.wrap(opening.box),
            context.info,
            ready=self.ready,
            choose_view=self._choose_view if views or self.book is not None else None,
            content=offered,
            opened=opening.opened,
            tasks=None if offered is None else self.tasks,
        )
        self.metrics: CallMetrics | None = None
        self.site: PageSite | None = None
        if options.page != "off":
            from induscode.gateway.page.access import PageAccess  # noqa: PLC0415 — over HTTP only
            from induscode.gateway.page.site import PageSite  # noqa: PLC0415 — over HTTP only

            self.site = PageSite(PageAccess() if self.book is None else PageAccess(self.book.find_end), options.page)
        self.settings = settings = options.settings
        if settings is not None:
            from induscode.calls.telemetry import CallMetrics  # noqa: PLC0415 — over HTTP only

            self.metrics = CallMetrics(opening.count_dropped)
            auth = settings.auth and replace(settings.auth, on_identity=opening.record_client, on_note=print_note)
            self.settings = replace(
                settings,
                auth=auth,
                metrics=self.metrics.render,
                view_tokens=tokens,
                named=self.book,
                views=self.views.list_open(),
                site=self.site,
            )

    def _choose_view(self, identity: ClientIdentity, client: CallingClient) -> ServedView | None:
        if self.book is not None:
            self.book.note_client(identity, client)
        return self.views.choose(identity, client)


def print_note(note: Note) -> None:
    """Print a note, even if printed before."""
    print_status(str(note))


def build_queue(context: GatewayContext) -> ApprovalQueue:
    """Build the queue of calls that wait for a person, from flags and settings."""
    options, settings = context.options, context.invocation.settings
    mode = options.approvals or settings.get(APPROVALS_MODE)
    return ApprovalQueue(
        ApprovalOptions(
            mode=cast("ApprovalMode | None", mode),
            wait_s=settings.get(APPROVALS_WAIT_S),
            target=settings.get(APPROVALS_NOTIFY),
            has_page=options.page == "full",
            node="" if context.node is None else context.node.info.node,
        )
    )


# -- session ----------------------------------------------------------------------------------


@asynccontextmanager
async def _open_users(gateway: Gateway, parts: GatewayParts) -> AsyncGenerator[UserSignIns]:
    """Let users sign in to servers inside the block."""
    from induscode.gateway.sign_in import UserSignIns  # noqa: PLC0415 — with access tokens

    def find_page() -> str:
        return "" if parts.site is None else parts.site.url

    async with UserSignIns(gateway.session.mcp, find_page, parts.book, parts.context.hooks.table) as users:
        users.sessions.on_ready.add(parts.content.restore_user)
        await to_thread.run_sync(users.report_vault)
        yield users


async def open_gateway(stack: AsyncExitStack, parts: GatewayParts, end: CancelToken) -> Gateway | None:
    """Open the session behind the host until `stack` closes. Returns `None` after a signal to end."""
    context, content = parts.context, parts.content
    invocation, options = context.invocation, context.options
    value = PROFILES[options.profile]
    profile = None if value is None else Profile(value)
    with end.guard():
        agents: SubSessions | None = None
        if profile is Profile.ALL and (invocation.model or invocation.base_url):
            if (missing := find_missing_agent()) is not None:
                print_status(f"sub-agents are left out: {missing}")
            else:
                from induscode.gateway.agents import open_tasks  # noqa: PLC0415 — with a model only

                agents = await open_tasks(stack, invocation)
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
                plan=context.plan,
                wait=False,
                options=replace(context.boot, handlers=handlers, kinds=CONTENT_KINDS),
                origin=CallOrigin(via="gateway", transport="pipe" if options.settings is None else "tcp"),
                on_note=parts.lines.print_note,
                share_store=context.hooks.share_store,
            )
        )
        if context.node is not None:
            context.node.follow(session.mcp.fleet)
        if parts.book is not None:
            parts.book.write_event = partial(session.mcp.journal.record, "token")
        approvals = build_queue(context)
        approvals.hide = session.mcp.hide_secrets
        approvals.write_event = partial(session.mcp.journal.record, "approval")
        stack.callback(approvals.store.close)

        def open_approver() -> Approver:
            from induscode.gateway.approvals.approver import GatewayApprover  # noqa: PLC0415 — for a gateway with rules

            return GatewayApprover(approvals, lambda facts: gateway.look_at(facts))

        # In a thread, after starting the servers: it takes as long as they do.
        checks = await to_thread.run_sync(
            build_gateway_checks, invocation, profile is not None or session.addons.has_cards, open_approver
        )
        checks = context.hooks.limit_checks(checks)
        gateway = Gateway(session, context, checks, content, parts.lines, approvals, parts.book)
        if parts.settings is not None and parts.settings.auth is not None:
            gateway.user_sign_ins = await stack.enter_async_context(_open_users(gateway, parts))
        if checks.flow is not None:
            checks.flow.connect(session.mcp)
            parts.tasks.on_adopted.add(checks.flow.adopt_task)
        is_checked = gateway.checks.checks_remote or checks.flow is not None
        wrap = gateway.wrap_content if is_checked or session.addons.intercepts else None
        content.open(
            session.mcp,
            ServerContent(session.mcp, wrap, session.native.context),
            gateway.is_ourselves,
            gateway.denies_item,
            parts.book,
        )
        if agents is not None:
            from induscode.gateway.agents import attach_gateway  # noqa: PLC0415 — with a model only

            stack.push_async_callback(agents.aclose)
            attach_gateway(agents, gateway, gateway.checks.posture)
        await parts.tasks.open()
        # Before the recorder of calls is closed.
        stack.push_async_callback(parts.tasks.aclose)
        if parts.site is not None:
            parts.site.show_gateway(gateway, stack)
        parts.opening.open(gateway)
        return gateway
    return None
