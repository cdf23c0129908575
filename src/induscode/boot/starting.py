"""What a person at a terminal is told while servers start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from induscode.terminal import complain

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import SlowStart
    from indusagi.interop.protocol_bridge.fleet import FleetEvent


def announce_slow_start(event: FleetEvent) -> None:
    """Tell of a start that takes long; only where standard error is a terminal."""
    slow = event.status.slow_start
    if event.event == "slow_start" and slow is not None:
        show_slow_start(event.server, slow)


def show_slow_start(server: str, slow: SlowStart) -> None:
    """Put the line of a slow start on standard error, if that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        complain(describe_slow_start(server, slow))


def describe_slow_start(server: str, slow: SlowStart) -> str:
    """Say in one line which server takes long to start, and why it may."""
    start = "first start" if slow.first else "start"
    if slow.package_manager is None:
        return f"{start} of {server!r}: still waiting for its first answer"
    if slow.first:
        return f"{start} of {server!r}: {slow.package_manager} may be downloading it"
    return f"{start} of {server!r}: waiting for {slow.package_manager}"
