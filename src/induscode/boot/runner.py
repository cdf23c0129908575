"""What commands with servers share: the plan, the ledger, and notes about servers."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from indusagi.core.faults import Note
    from indusagi.interop.protocol_bridge.contract import ProtocolFault
    from induscode.deck.mcp.store import ThreadedStore
    from induscode.launch.invocation import Invocation
    from induscode.servers.plan import ServerPlan


_CLUSTER_REASONS = ("moved", "node_changed")
"""How a channel to another node ends, apart from the end of the server there."""


@contextmanager
def usage_errors() -> Generator[None]:
    """Turn errors about paths and names of the command line into usage errors, with exit code 2.

    Raises:
        click.UsageError: A path or a name does not exist.
    """
    from induscode.boot.plans import ConfigPathError  # noqa: PLC0415 — for commands with servers
    from induscode.deck.contract import BackendFault, UnknownCapability  # noqa: PLC0415 — for commands with servers

    try:
        yield
    except (ConfigPathError, UnknownCapability, BackendFault) as exc:
        context = click.get_current_context(silent=True)
        raise click.UsageError(str(exc), context) from exc


def load_plan(invocation: Invocation) -> ServerPlan:
    """Plan the servers of a run, without starting any.

    Raises:
        click.UsageError: A path of `--mcp` does not exist.
    """
    from induscode.boot.plans import check_named_configs, plan_servers  # noqa: PLC0415 — for commands with servers

    with usage_errors():
        check_named_configs(invocation)
        return plan_servers(invocation)


@asynccontextmanager
async def opened_store(*, report_notes: bool = True) -> AsyncGenerator[ThreadedStore]:
    """Open this user's ledger inside the block.

    Notes about a damaged or lost ledger are printed; without `report_notes` the caller does that.
    """
    from induscode.cli.output import print_notes  # noqa: PLC0415 — for commands with the ledger
    from induscode.deck.mcp.store import open_store  # noqa: PLC0415 — for commands with the ledger

    store = await open_store()
    printed = store.notes if report_notes else ()
    print_notes(printed)
    try:
        yield store
    finally:
        await store.aclose()
        if report_notes:
            print_notes(note for note in store.notes if note not in printed)


def build_fault_note(server: str, fault: ProtocolFault) -> Note:
    """Build the note of a server's fault; its remedy is the command that examines the server, or its cluster."""
    from indusagi.core.faults import Note  # noqa: PLC0415 — loaded with the servers
    from induscode.servers.remedies import format_server_command  # noqa: PLC0415 — on a fault

    owner = f"server {server!r}"
    remedy = "indus cluster status" if _is_of_cluster(fault) else format_server_command("doctor", server)
    return Note(owner, str(fault).removeprefix(f"{owner}: "), remedy)


def _is_of_cluster(fault: ProtocolFault) -> bool:
    """Return whether a fault lies between the nodes of a cluster, and not at the server."""
    from induscode.cluster.contract import ClusterFault  # noqa: PLC0415 — on a fault

    return isinstance(fault.cause, ClusterFault) or fault.detail.reason in _CLUSTER_REASONS


def build_silent_note(server: str, limit_s: float) -> Note:
    """Build the note of a server that didn't answer in time; its remedy is the command that waits longer."""
    from indusagi.core.faults import Note  # noqa: PLC0415 — loaded with the servers
    from induscode.servers.remedies import format_server_command  # noqa: PLC0415 — for a silent server

    remedy = f"{format_server_command('doctor', server)} waits longer"
    return Note(f"server {server!r}", f"no answer within {limit_s:g} s", remedy)


def build_unseen_note(server: str) -> Note:
    """Build the note of a server of which the ledger knows nothing; its remedy is the command that lists its tools."""
    from indusagi.core.faults import Note  # noqa: PLC0415 — loaded with the servers
    from induscode.servers.remedies import format_command  # noqa: PLC0415 — for a server that was never seen

    message = "nothing is known of its tools: it was never started"
    return Note(f"server {server!r}", message, f"{format_command('tools')} starts it once")
