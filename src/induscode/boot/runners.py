"""Attaches the servers of a run, for sessions, calls, lists and gateways alike: one fleet and one ledger.

On a terminal, announces servers that are slow to start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import monotonic

from anyio import CancelScope, to_thread

from indusagi.interop.protocol_bridge.client.start import Supervision
from indusagi.interop.protocol_bridge.contract import EndpointPhase, SlowStart
from indusagi.interop.protocol_bridge.fleet import FleetEvent
from induscode.boot.plans import canon_tool_name as canon_tool_name  # documented as part of this module
from induscode.boot.plans import plan_servers
from induscode.cli.terminal import print_status
from induscode.deck.mcp.boot import BootedBridge, BootOptions, boot_bridge
from induscode.deck.mcp.store import LedgerStore
from induscode.launch.invocation import Invocation
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
    from induscode.deck.mcp.store import open_store  # noqa: PLC0415 — for a caller without a store

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
    """Attach the servers of a plan. Without `options.on_event`, announce slow starts on standard error.

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
    """Announces servers that start slowly, and when they're ready, by default on standard error if it's a terminal."""

    def __init__(self, output: Callable[[str], None] | None = None) -> None:
        self._output = output or _print_on_terminal
        self._began: dict[str, float] = {}
        self._slow: set[str] = set()

    def __call__(self, event: FleetEvent) -> None:
        """Handle a fleet event; print at most one line."""
        server, status = event.server, event.status
        if event.event == "slow_start" and status.slow_start is not None:
            self._slow.add(server)
            self._output(f"{server}: {explain_slow_start(status.slow_start)}")
        elif event.event == "phase" and status.phase is EndpointPhase.CONNECTING:
            self._began[server] = monotonic()
        elif server in self._slow and status.phase is EndpointPhase.READY:
            self._slow.discard(server)
            seconds = monotonic() - self._began.get(server, monotonic())
            self._output(f"{server} ready ({seconds:.0f} s)")


def show_slow_start(server: str, slow: SlowStart) -> None:
    """Announce a slow start, if standard error is a terminal."""
    _print_on_terminal(f"{server}: {explain_slow_start(slow)}")


def _print_on_terminal(line: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print_status(line)


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
