"""Runs what a command does in an event loop, and ends it when somebody wants it to end."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from indusagi.core.cancel import CancelToken
    from indusagi.core.notes import Note
    from indusagi.interop.protocol_bridge.contract import ProtocolFault
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.store import ThreadedStore
    from induscode.launch.invocation import Invocation


def run_until_signal(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    """Run `work` to its end, or until a signal stops it; give the exit code."""

    async def stopped(token: CancelToken) -> int:
        with token.guard():
            return await work(token)
        return 0

    return run_with_signals(stopped)


def run_with_signals(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    """Run `work`, which is told by the token of a signal and ends by itself; give the exit code."""
    import anyio  # noqa: PLC0415 — for commands that need a loop

    return anyio.run(_signalled, work)


async def _signalled(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    from indusagi.core.signals import ending_signals  # noqa: PLC0415 — as above
    from induscode.session.contract import signal_code  # noqa: PLC0415 — as above

    async with ending_signals() as token:
        code = await work(token)
    return code if token.reason is None else signal_code(token.reason)


@contextmanager
def usage_errors() -> Generator[None]:
    """Tell what a person mistyped as such.

    Raises:
        click.UsageError: A path or a name that was given does not exist.
    """
    from induscode.boot.runners import ConfigPathError  # noqa: PLC0415 — for those with servers
    from induscode.deck.contract import BackendFault, UnknownCapability  # noqa: PLC0415 — as above

    try:
        yield
    except (ConfigPathError, UnknownCapability, BackendFault) as exc:
        context = click.get_current_context(silent=True)
        raise click.UsageError(str(exc), context) from exc


def load_plan(invocation: Invocation) -> ServerPlan:
    """Find out which servers there are, without starting any.

    Raises:
        click.UsageError: A path that was given leads nowhere.
    """
    from induscode.boot.runners import plan_servers  # noqa: PLC0415 — for those with servers

    with usage_errors():
        return plan_servers(invocation)


@asynccontextmanager
async def opened_store(*, tell_notes: bool = True) -> AsyncGenerator[ThreadedStore]:
    """Open this user's ledger, and close it.

    What is wrong with it goes to standard error, so that every command that looks into a damaged
    or lost ledger says so; without `tell_notes` the caller does that.
    """
    from induscode.commands.support.output import print_notes  # noqa: PLC0415 — not for a session
    from induscode.deck.mcp.store import open_store  # noqa: PLC0415 — for those who look into it

    store = await open_store()
    told = store.notes if tell_notes else ()
    print_notes(told)
    try:
        yield store
    finally:
        await store.aclose()
        if tell_notes:
            print_notes(note for note in store.notes if note not in told)


def build_fault_note(server: str, fault: ProtocolFault) -> Note:
    """Build the note of a server's fault; its remedy is the command that examines the server."""
    from indusagi.core.notes import Note  # noqa: PLC0415 — loaded with the servers

    owner = f"server {server!r}"
    return Note(owner, str(fault).removeprefix(f"{owner}: "), f"indus mcp doctor {server}")
