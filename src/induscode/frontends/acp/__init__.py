"""`indus acp`: a session in an editor via the Agent Client Protocol (https://agentclientprotocol.com) over stdio.

Standard output carries only the protocol; everything else goes to standard error. The program ends with its standard
input, or on SIGINT, SIGTERM or SIGHUP within a time limit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import anyio
import click

from indusagi.core.cancel import ending_signals
from induscode.launch.invocation import Invocation
from induscode.launch.options import define_command, read_invocation, require_agent

_FRAME_BYTES = 64 * 1024 * 1024
"""Longest line from an editor, including images."""
_CLOSING_S = 20.0
"""Time limit for closing all sessions, after which the process exits."""


@define_command(
    "acp",
    "--model",
    "--base-url",
    "--context-window",
    "--max-requests",
    "--max-tokens",
    "--max-cost",
    "--tools",
    "--no-tools",
    "--mcp",
    "--no-mcp",
    "--no-addons",
    "--allow",
    "--approval",
    "--sandbox",
    "--web-allow",
)
def command(context: click.Context) -> int:
    """Work in an editor, by the Agent Client Protocol over stdio.

    The editor starts this command; docs/guides/editors.md has the entry for Zed, JetBrains, Neovim and Emacs.
    """
    require_agent()
    read_invocation(context)  # invalid flags end the program before the protocol starts

    def build_invocation(cwd: str) -> Invocation:
        try:
            return read_invocation(context, cwd)
        except click.UsageError as exc:
            raise ValueError(exc.format_message()) from exc

    return anyio.run(_serve, build_invocation)


async def _serve(build_invocation: Callable[[str], Invocation]) -> int:
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    from indusagi.interop.protocol_bridge.host.stdio import standard_streams  # noqa: PLC0415 — with the protocol only
    from induscode.cli.process import kill_descendants, non_blocking_stderr  # noqa: PLC0415 — as above
    from induscode.frontends.acp.agent import serve_editor  # noqa: PLC0415 — imports the session

    async with ending_signals() as token, standard_streams(_FRAME_BYTES) as transport:

        def exit_now() -> None:
            kill_descendants()
            os._exit(1)

        def limit_closing() -> None:
            get_running_loop().call_later(_CLOSING_S, exit_now)

        # An editor may never read standard error.
        with non_blocking_stderr():
            await serve_editor(transport, build_invocation, cancel=token, on_closing=limit_closing)
    # SIGTERM is the usual way to stop a server, like the end of its input.
    if not token.cancelled or token.reason == signal.SIGTERM.name:
        return 0
    return 128 + signal.Signals[token.reason or "SIGINT"].value
