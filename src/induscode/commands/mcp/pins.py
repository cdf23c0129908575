"""`indus mcp lock`, `diff` and `approve`: what tools were, what they are, and whether that is fine.

All of them connect: what a server has is known from the server alone.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from indusagi.core.text import format_count
from induscode.commands.support.groups import build_unknown_name
from induscode.commands.support.names import complete_server
from induscode.commands.support.output import as_json, print_notes, write_json
from induscode.commands.support.runner import build_fault_note, load_plan, opened_store, run_until_signal
from induscode.commands.support.servers import find_row
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_line, print_status, print_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.boot import BootedBridge, ServerPlan
    from induscode.deck.mcp.drift import Drift

_DIFFERENT = 1
_FAULT = 3


@asynccontextmanager
async def _connected(plan: ServerPlan) -> AsyncGenerator[BootedBridge]:
    from induscode.boot.runners import START_ONCE, attach_servers  # noqa: PLC0415 — brings the bridge

    async with opened_store() as store:
        mcp = await attach_servers(plan, store, START_ONCE)
        try:
            yield mcp
        finally:
            await mcp.aclose()


def _failed(mcp: BootedBridge) -> bool:
    """Say which servers are not there, and tell whether there are any."""
    faults = [
        build_fault_note(server, status.fault) for server, status in mcp.status().items() if status.fault is not None
    ]
    left_out = [note for note in mcp.plan.notes if note.message.startswith("not started")]
    print_notes((*faults, *left_out))
    return bool(faults or left_out)


# -- lock -------------------------------------------------------------------------------------


@flags("--mcp", "--cwd")
@click.command("lock")
@click.option("--check", is_flag=True, help="Write nothing; compare with the lock there is.")
@as_json
@click.pass_context
def lock(context: click.Context, *, check: bool, as_json: bool, **_: object) -> int:
    """Write the definitions of the project's tools to .indusvx/mcp.lock.json, to be committed.

    With --check nothing is written. Exit code 1 if something differs or waits for approval, other
    than a cosmetic change, 3 if a server is not there. Servers of the user's own files are left
    out.
    """
    from induscode.deck.mcp.lock import LOCK_NAME  # noqa: PLC0415 — for those who lock

    invocation = read_invocation(context)
    plan = load_plan(invocation)
    plan = plan.narrow([row.id for row in plan.rows if row.origin.scope != "user"])
    if not plan.rows:
        said = "The project has no servers of its own: indus mcp add -s project NAME …, or --mcp FILE"
        raise click.UsageError(said, context)
    path = os.path.join(invocation.cwd, LOCK_NAME)

    async def work(_: CancelToken) -> int:
        async with _connected(plan) as mcp:
            if _failed(mcp):
                print_status("the lock would be incomplete: nothing was " + _done(check=check))
                return _FAULT
            return _checked(path, mcp, as_json=as_json) if check else _locked(path, mcp, as_json)

    return run_until_signal(work)


def _done(*, check: bool) -> str:
    return "compared" if check else "written"


def _locked(path: str, mcp: BootedBridge, as_json: bool) -> int:
    from induscode.deck.mcp.lock import write_lock  # noqa: PLC0415 — see lock

    waiting = mcp.enrolment.notes
    if waiting:
        print_notes(waiting)
        print_status("nothing was written: these tools wait for approval")
        return _DIFFERENT
    tools = mcp.capabilities
    write_lock(path, tools)
    if as_json:
        write_json({"file": path, "tools": len(tools)})
    else:
        print_line(f"Wrote the definitions of {format_count(len(tools), 'tool')} to {path}")
    return 0


def _checked(path: str, mcp: BootedBridge, *, as_json: bool) -> int:
    from induscode.deck.mcp.drift import compare_definitions  # noqa: PLC0415 — see lock
    from induscode.deck.mcp.lock import read_lock  # noqa: PLC0415 — see lock

    present = {one.ref: one.raw for one in mcp.capabilities}
    # As the servers list them now, which is not what the deck shows of a tool that has changed.
    present |= {one.ref: one.after for one in mcp.enrolment.drifts if one.after is not None}
    drifts = compare_definitions(read_lock(path), present)
    _show_drifts(drifts, as_json=as_json)
    if not drifts and not as_json:
        print_line(f"{format_count(len(present), 'tool is', 'tools are')} as {path} has them")
    return _DIFFERENT if any(one.disables for one in drifts) else 0


def _show_drifts(drifts: Sequence[Drift], *, as_json: bool) -> None:
    if as_json:
        rows: list[JsonObject] = [
            {
                "server": one.ref.server,
                "tool": one.ref.name,
                "grade": str(one.grade),
                "fields": [*one.fields],
                "before": one.before,
                "after": one.after,
            }
            for one in drifts
        ]
        write_json({"drifts": rows})
        return
    for one in drifts:
        print_line(f"{one.ref.server}/{one.ref.name}: {one.grade} ({', '.join(one.fields)})")
        print_text(one.diff())


# -- diff and approve -------------------------------------------------------------------------


@flags("--mcp", "--cwd")
@click.command("diff")
@click.argument("server", required=False, shell_complete=complete_server)
@as_json
@click.pass_context
def diff(context: click.Context, server: str | None, *, as_json: bool, **_: object) -> int:
    """Show tools that are not what was approved, of SERVER or of all.

    Exit code 1 if some of them are disabled because of that; a cosmetic change disables no tool.
    """
    plan = _wanted(context, server)

    async def work(_: CancelToken) -> int:
        async with _connected(plan) as mcp:
            failed = _failed(mcp)
            drifts = mcp.enrolment.drifts
        _show_drifts(drifts, as_json=as_json)
        if any(one.disables for one in drifts):
            return _DIFFERENT
        if failed:
            return _FAULT
        if not drifts and not as_json:
            print_line("Every tool is as it was approved.")
        return 0

    return run_until_signal(work)


def _wanted(context: click.Context, server: str | None) -> ServerPlan:
    plan = load_plan(read_invocation(context))
    if server is not None:
        return plan.narrow([find_row(plan, server).id])
    if not plan.rows:
        raise click.UsageError("There are no servers: 'indus mcp add' adds one", context)
    return plan


@flags("--mcp", "--cwd")
@click.command("approve")
@click.argument("server", shell_complete=complete_server)
@click.argument("tool", required=False)
@click.pass_context
def approve(context: click.Context, server: str, tool: str | None, **_: object) -> int:
    """Approve the tools of SERVER as they are now, or one TOOL of it. `diff` shows the changes."""
    plan = _wanted(context, server)

    async def work(_: CancelToken) -> int:
        async with _connected(plan) as mcp:
            if _failed(mcp):
                return _FAULT
            enrolment = mcp.enrolment
            waiting = [one.ref for one in enrolment.quarantined]
            wanted = [ref for ref in waiting if tool in {None, ref.name}]
            if tool is not None and not wanted:
                names = [ref.name for ref in waiting]
                raise build_unknown_name(f"No tool {tool!r} of {server!r} waits for approval", tool, names)
            for ref in wanted:
                enrolment.approve(ref)
                print_line(f"{ref.server}/{ref.name}: approved as it is now")
        if not wanted:
            print_line(f"No tool of {server!r} waits for approval.")
        return 0

    return run_until_signal(work)
