"""Status lines about slow starts of servers, on a terminal."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.contract import EndpointPhase
from induscode.terminal import print_status

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import SlowStart
    from indusagi.interop.protocol_bridge.fleet import FleetEvent


class StartAnnouncer:
    """Prints which servers start slowly, and when each of them is ready."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._slow: set[str] = set()

    def __call__(self, event: FleetEvent) -> None:
        """Handle an event of the fleet; print at most one line."""
        server, status = event.server, event.status
        if event.event == "slow_start" and status.slow_start is not None:
            self._slow.add(server)
            show_slow_start(server, status.slow_start)
        elif event.event == "phase" and status.phase is EndpointPhase.CONNECTING:
            self._began[server] = monotonic()
        elif server in self._slow and status.phase is EndpointPhase.READY:
            self._slow.discard(server)
            seconds = monotonic() - self._began.get(server, monotonic())
            _print_on_terminal(f"server {server!r} is ready after {seconds:.0f} s")


def show_slow_start(server: str, slow: SlowStart) -> None:
    """Print the line of a slow start, if standard error is a terminal."""
    _print_on_terminal(describe_slow_start(server, slow))


def _print_on_terminal(line: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print_status(line)


def describe_slow_start(server: str, slow: SlowStart) -> str:
    """Describe a slow start in one line, with its probable cause."""
    start = "first start" if slow.first else "start"
    if slow.package_manager is None:
        return f"{start} of {server!r}: still waiting for its first answer"
    if slow.first:
        return f"{start} of {server!r}: {slow.package_manager} may be downloading it"
    return f"{start} of {server!r}: waiting for {slow.package_manager}"
