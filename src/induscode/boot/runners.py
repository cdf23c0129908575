"""Attaches the servers of a run, for sessions, calls, lists and gateways alike: one fleet and one ledger.

On a terminal, shows which servers are slow to start. Commands fetch resources and prompts of servers here, by
`@server:uri` and `/server:prompt`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import click
from anyio import CancelScope, to_thread

from indusagi.capabilities.context import ToolContext
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.start import Supervision
from indusagi.interop.protocol_bridge.contract import EndpointPhase, ItemKind, ProtocolFault, SlowStart
from indusagi.interop.protocol_bridge.fleet import FleetEvent
from indusagi.runtime.contract import ToolOutcome, ToolResult
from induscode.boot.plans import (
    LOOK_LIMIT_S,
    build_fault_note,
    build_silent_note,
    build_unseen_note,
    load_plan,
    opened_store,
    plan_servers,
)
from induscode.boot.plans import canon_tool_name as canon_tool_name  # documented as part of this module
from induscode.cli.listing import Listing
from induscode.cli.output import build_unknown_name, print_notes
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import show_live_line
from induscode.deck.contract import Capability
from induscode.deck.mcp.boot import BootedBridge, BootOptions, boot_bridge
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.mcp.content import CONTENT_KINDS, ContentRefused, ServerContent, describe_failure, to_content_blocks
from induscode.deck.mcp.store import LedgerStore, open_store
from induscode.deck.mcp.store.pins import read_pinned
from induscode.launch.invocation import Invocation
from induscode.launch.options import read_invocation
from induscode.servers.config.trust import TrustStore
from induscode.servers.plan import ServerPlan

_NO_RESTART_S = 3_600.0
START_ONCE = BootOptions(lazy=(), supervision=Supervision(first_s=_NO_RESTART_S, longest_s=_NO_RESTART_S))
"""Starts every server just once, so that a listing command shows its first failure."""


async def load_mcp_capabilities(
    invocation: Invocation,
    store: LedgerStore | str | None = None,
    options: BootOptions | None = None,
    *,
    trust: TrustStore | None = None,
    wait: bool = True,
) -> BootedBridge:
    """Attach the servers of a run, from all its files, to one fleet and one ledger.

    Pass the result to `deck.graft` to add the servers' tools, and close it with `aclose` in the calling task. Without a
    `store`, it opens and closes the user's own; a string instead of a store is the working directory. With `wait`,
    return once every eager server has come up or failed, or after `options.wait_s`. Raises `ConfigPathError` if a path
    in `--mcp` doesn't exist or has no usable server.
    """
    invocation = replace(invocation, cwd=store) if isinstance(store, str) else invocation
    plan = await to_thread.run_sync(partial(plan_servers, invocation, trust, must_have_servers=True))
    if store is not None and not isinstance(store, str):
        return await attach_servers(plan, store, options, wait=wait)
    own = await open_store()
    try:
        bridge = await attach_servers(plan, own, options, wait=wait)
    except BaseException:
        await own.aclose()
        raise
    bridge.owns_store = True
    return bridge


async def attach_servers(
    plan: ServerPlan, store: LedgerStore, options: BootOptions | None = None, *, wait: bool = True
) -> BootedBridge:
    """Attach the servers of a plan. Without `options.on_event`, show slow starts on a terminal.

    With `wait`, return once every eager server has come up or failed, or after `options.wait_s`.
    """
    options = options or BootOptions()
    if not plan.rows and not options.reloadable:
        return BootedBridge(store, plan)
    bridge = await boot_bridge(store, plan, replace(options, on_event=options.on_event or StartAnnouncer()))
    try:
        if wait:
            await bridge.wait_started()
    except BaseException:
        # Cancelled: stop the starting servers here, before the loop ends.
        with CancelScope(shield=True):
            await bridge.aclose()
        raise
    return bridge


# -- slow starts ------------------------------------------------------------------------------


class StartAnnouncer:
    """Shows a live line for each server that's slow to start, until it's up, has failed or is closed."""

    def __init__(self, show: Callable[[str, str], None] = show_live_line) -> None:
        self._show = show
        self._slow: set[str] = set()

    def __call__(self, event: FleetEvent) -> None:
        """Handle a fleet event."""
        server, status = event.server, event.status
        if event.event == "slow_start" and status.slow_start is not None:
            self._slow.add(server)
            self._show(server, explain_slow_start(status.slow_start))
        elif server in self._slow and status.phase is not EndpointPhase.CONNECTING:
            self._slow.discard(server)
            self._show(server, "")


def explain_slow_start(slow: SlowStart) -> str:
    """Return the probable cause of a slow start."""
    if slow.package_manager is None:
        return "no answer yet"
    return f"{slow.package_manager} may be downloading it" if slow.first else f"starting ({slow.package_manager})"


def __getattr__(name: str) -> object:
    """Resolve `build_session_tools_with_addons`, which is documented as part of this module."""
    if name != "build_session_tools_with_addons":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from induscode.boot import session  # noqa: PLC0415 — the session is built on this module

    return session.build_session_tools_with_addons


# -- resources and prompts --------------------------------------------------------------------


MARKS = {"@": "resource", "/": "prompt"}
"""Prefixes that distinguish resources and prompts from tools."""
_MAX_ABOUT = 100


def parse_reference(text: str, plan: ServerPlan) -> tuple[str, str]:
    """Split `@server:uri` or `/server:prompt` after a configured server id.

    Raises `click.UsageError` if it doesn't name a configured server and an item.
    """
    servers = sorted((row.id for row in plan.rows), key=len, reverse=True)
    for server in servers:
        if text[1:].startswith(f"{server}:") and len(text) > len(server) + 2:
            return server, text[len(server) + 2 :]
    named = text[1:].partition(":")[0]
    what = "uri" if text.startswith("@") else "prompt"
    if named in servers:
        message = f"{text!r} names no {what}: write {text[0]}{named}:{what}"
        raise click.UsageError(message, click.get_current_context(silent=True))
    raise build_unknown_name(f"there is no server {named!r}: write {text[0]}server:{what}", named, servers)


@asynccontextmanager
async def open_content(
    plan: ServerPlan,
    wrap: Callable[[Capability], Capability] | None = None,
    context: ToolContext | None = None,
    handlers: Handlers | None = None,
    *,
    starts_unseen: bool = True,
    wait: bool = True,
) -> AsyncGenerator[tuple[BootedBridge, ServerContent]]:
    """Attach the servers of a plan inside the block: known ones asleep, others started.

    Without `starts_unseen`, skip the others. Without `wait`, the caller has to wait for them.
    """
    options = BootOptions(lazy=tuple(plan.configs), kinds=CONTENT_KINDS, handlers=handlers)
    async with opened_store() as store:
        if not starts_unseen:
            plan = plan.narrow([*await read_pinned(store, plan.configs.values())])
        bridge = await attach_servers(plan, store, options, wait=wait)
        try:
            yield bridge, ServerContent(bridge, wrap, context)
        finally:
            await bridge.aclose()


def print_items(
    context: click.Context, server: str | None, kinds: Sequence[ItemKind], *, as_json: bool, no_check: bool
) -> int:
    """Print the items of these kinds, from one server or all of them."""
    plan = load_plan(read_invocation(context))
    if server is not None:
        if server not in {row.id for row in plan.rows}:
            raise build_unknown_name(f"there is no server {server!r}", server, [row.id for row in plan.rows], context)
        plan = plan.narrow([server])
    items: list[BridgeCapability] = []

    async def work(_: CancelToken) -> int:
        async with open_content(plan, starts_unseen=not no_check, wait=False) as (bridge, content):
            if not no_check:
                starting = await bridge.list_content(LOOK_LIMIT_S)
                print_notes(build_silent_note(server, LOOK_LIMIT_S) for server in starting)
            print_notes(build_unseen_note(server) for server in plan.configs if server not in bridge.plan.configs)
            items.extend(item for kind in kinds for item in content.list_items(kind))
            faults = [(server, status.fault) for server, status in bridge.status().items()]
            print_notes(build_fault_note(server, fault) for server, fault in faults if fault is not None)
            print_notes(note for note in bridge.enrolment.notes if any(f", {kind} " in note.owner for kind in kinds))
        return 0

    code = run_until_signal(work)
    Listing(
        f"{kinds[0]}s",
        items,
        ("NAME", "TITLE", "DESCRIPTION"),
        lambda item: (describe_reference(item), item.descriptor.title or "", _shorten(item)),
        to_json=lambda item: {
            "server": item.ref.server,
            "kind": item.ref.kind,
            "name": item.name,
            "definition": item.raw,
        },
        empty="" if code else f"The servers have no {kinds[0]}s.",
    ).show(as_json=as_json)
    return code


def _shorten(item: BridgeCapability) -> str:
    text = " ".join(item.description.split())
    return text if len(text) <= _MAX_ABOUT else f"{text[: _MAX_ABOUT - 1].rstrip()}…"


def describe_reference(item: BridgeCapability) -> str:
    """Format an item's reference for the command line and sessions, such as `@server:uri`."""
    mark = "/" if item.ref.kind == "prompt" else "@"
    return f"{mark}{item.ref.server}:{item.ref.name}"


async def fetch_content(
    content: ServerContent, server: str, kind: str, name: str, arguments: JsonObject
) -> ToolOutcome:
    """Read a resource or get a prompt; failures become error outcomes."""
    try:
        if kind == "resource":
            result = await content.read_resource(server, name)
        else:
            result = await content.get_prompt(server, name, arguments)
    except (ContentRefused, ProtocolFault) as failure:
        return ToolOutcome("", describe_failure(failure, server))
    return ToolOutcome("", ToolResult(to_content_blocks(result), structured=result))
