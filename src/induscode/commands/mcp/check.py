"""Check of a server after it was added or signed in to: it is started once, and its state is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.text import format_count
from induscode.boot.runner import load_plan, opened_store
from induscode.cli.output import print_notes
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_line, print_status
from induscode.servers.remedies import format_server_command

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import EndpointStatus
    from induscode.launch.invocation import Invocation


def check_server(invocation: Invocation, name: str) -> EndpointStatus | None:
    """Start a server once, and print whether it is up; a server that wants a sign-in is left to the caller.

    Returns:
        Its state; None: it cannot be started, or a signal came.
    """
    plan = load_plan(invocation).narrow([name])
    found: list[EndpointStatus] = []

    async def start(_: CancelToken) -> int:
        from dataclasses import replace  # noqa: PLC0415 — for a check
        from time import monotonic  # noqa: PLC0415 — for a check

        from indusagi.interop.protocol_bridge.contract import needs_sign_in  # noqa: PLC0415 — imports the bridge
        from induscode.boot.runners import START_ONCE, attach_servers  # noqa: PLC0415 — imports the bridge
        from induscode.deck.mcp.content import CONTENT_KINDS  # noqa: PLC0415 — imports the bridge

        async with opened_store() as store:
            began = monotonic()
            # Everything it has is enrolled now, so that the first session knows it.
            mcp = await attach_servers(plan, store, replace(START_ONCE, kinds=CONTENT_KINDS))
            try:
                await mcp.wait_listed(name)
                took_s = monotonic() - began
                status = mcp.require_status(name)
            finally:
                await mcp.aclose()
            print_notes(store.notes)
        found.append(status)
        if status.fault is None:
            tools = format_count(status.tool_count, "tool")
            print_line(f"Server {name!r}: {status.phase}, {tools}, {took_s:.1f} s")
            print_notes(note for note in mcp.notes if note in status.notes)
        elif not needs_sign_in(status.fault):
            print_status(f"{status.fault}. The server stays added: {format_server_command('doctor', name)}")
        return 0

    if name not in plan.configs:  # one of its variables has no value, as a note says
        print_notes(plan.notes)
        return None
    run_until_signal(start)
    return found[0] if found else None
