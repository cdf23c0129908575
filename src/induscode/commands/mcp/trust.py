"""`indus mcp trust` and `untrust` (consent to servers); `lock`, `diff` and `approve` (tool definitions).

Consent takes an explicit yes and covers one server exactly as it is. The last three commands connect to the servers.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import click
from anyio import to_thread

from indusagi.core.text import format_count
from induscode.addons.skills import SkillSet
from induscode.boot.plans import build_fault_note, is_in_workspace, load_plan, opened_store
from induscode.boot.runners import START_ONCE, attach_servers
from induscode.cli.output import (
    as_json,
    ask_consent,
    build_unknown_name,
    can_ask_user,
    digest_option,
    print_notes,
    write_json,
)
from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_line, print_status
from induscode.commands.groups import complete_server
from induscode.deck.mcp.capability import name_item
from induscode.deck.mcp.content import CONTENT_KINDS, ServerContent
from induscode.deck.mcp.drift import build_approval, command_line
from induscode.deck.mcp.lock import LOCK_NAME, compare_lock, read_lock, write_lock
from induscode.launch.options import flags, read_invocation
from induscode.servers.config.trust import TrustStore
from induscode.servers.config.writer import own_config_path
from induscode.servers.plan import build_unknown_server, find_row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.core.consent import Consent
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.deck.mcp.drift import Drift
    from induscode.servers.plan import ServerPlan

_DECLINED = 1
_DIFFERENT = 1
_FAULT = 3
_APPROVED = "approved as it is now"


@flags("--mcp", "--cwd")
@click.command("trust")
@click.argument("names", nargs=-1, metavar="[NAME]…", shell_complete=complete_server)
@click.option("--yes", is_flag=True, help="Consent to the named servers without a question.")
@digest_option
@click.pass_context
def trust(context: click.Context, names: tuple[str, ...], *, yes: bool, digests: tuple[str, ...], **_: object) -> int:
    """Consent to servers of the project: those named, or all without consent.

    With --mcp FILE: to changed servers of that file, which a running gateway holds back. Exit code 1 if you decline
    one.
    """
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    ours = [row for row in plan.rows if row.origin.scope != "user" and is_in_workspace(row, invocation.cwd)]
    rows = [row for row in ours if row.id not in plan.approved]
    if names:
        named = [find_row(plan, name) for name in dict.fromkeys(names)]
        rows = [row for row in named if row in ours]
        for row in named:
            if row not in rows:
                print_line(f"{row.id}: {row.origin.file} is your own file: it needs no consent")
    if yes and not names:
        raise click.UsageError("--yes takes the names of the servers to consent to")
    if not rows:
        print_notes(note for note in plan.notes if note.message.startswith("skipped"))
        print_line("There is no server of this project that waits for consent.")
        return 0
    if not yes and not can_ask_user():
        waiting = " ".join(row.id for row in rows)
        message = f"There is no terminal for a question: look at the file, then indus mcp trust --yes {waiting}"
        raise click.UsageError(message)
    store = TrustStore()
    code = 0
    for row in rows:
        question = store.question(row)
        if ask_consent(question, f"Trust {row.id} and start it in this project?", yes=yes, digests=digests):
            store.approve(row, question.digest)
            print_line(f"{row.id}: trusted as it is")
        else:
            print_line(f"{row.id}: not trusted")
            code = _DECLINED
    return code


@flags("--cwd")
@click.command("untrust")
@click.argument("names", nargs=-1, metavar="[NAME]…", shell_complete=complete_server)
@click.pass_context
def untrust(context: click.Context, names: tuple[str, ...], **_: object) -> int:
    """Revoke the consent to the named servers, or to all of the project."""
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    ours = [row for row in plan.rows if row.origin.scope == "project"]
    store = TrustStore()
    # The user may have consented to a server that's no longer in any file.
    files = [own_config_path("project", invocation.cwd), os.path.join(invocation.cwd, ".mcp.json")]
    for name in names or [row.id for row in ours]:
        revoked = [store.revoke(file, name) for file in files]
        if any(revoked):
            print_line(f"{name}: no longer trusted")
        elif name in {row.id for row in plan.rows}:
            print_status(f"{name}: there was no consent to it")
        else:
            raise build_unknown_server(name, [row.id for row in ours])
    return 0


# -- lock, diff, approve ----------------------------------------------------------------------


@asynccontextmanager
async def _connected(plan: ServerPlan) -> AsyncGenerator[tuple[BootedBridge, Sequence[BridgeCapability]]]:
    """Connect to the servers of a plan inside the block, and read their apps."""
    async with opened_store() as store:
        mcp = await attach_servers(plan, store, replace(START_ONCE, kinds=CONTENT_KINDS))
        try:
            for server in plan.configs:
                await mcp.wait_listed(server)
            await mcp.learn_neighbours()
            yield mcp, await ServerContent(mcp).read_apps()
        finally:
            await mcp.aclose()


def _report_faults(mcp: BootedBridge) -> bool:
    """Print which servers are missing, and return whether any are."""
    faults = [
        build_fault_note(server, status.fault) for server, status in mcp.status().items() if status.fault is not None
    ]
    left_out = [note for note in mcp.plan.notes if note.message.startswith("not started")]
    print_notes((*faults, *left_out))
    return bool(faults or left_out)


@flags("--mcp", "--cwd")
@click.command("lock")
@click.option("--check", is_flag=True, help="Write nothing; compare with the present lock file.")
@as_json
@click.pass_context
def lock(context: click.Context, *, check: bool, as_json: bool, **_: object) -> int:
    """Write the definitions of the project's tools and skills to .indusvx/mcp.lock.json, to be committed.

    Skips servers from the user's own files. Exit code 1 if there are more than cosmetic differences or something waits
    for approval, 3 if a server is missing.
    """
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    plan = plan.narrow([row.id for row in plan.rows if row.origin.scope != "user"])
    skills = [skill for skill in SkillSet(invocation.cwd).found.values() if skill.is_project]
    if not plan.rows and not skills:
        message = "The project has no servers of its own: indus mcp add -s project NAME …, or --mcp FILE"
        raise click.UsageError(message)
    path = os.path.join(invocation.cwd, LOCK_NAME)
    waiting = [skill.label for skill in skills if skill.consent != "trusted"]
    if waiting and not check:
        print_status(f"nothing was written: these skills wait for consent: indus addons trust {' '.join(waiting)}")
        return _DIFFERENT

    async def work(_: CancelToken) -> int:
        async with _connected(plan) as (mcp, contents):
            if _report_faults(mcp):
                print_status(f"the lock would be incomplete: nothing was {'compared' if check else 'written'}")
                return _FAULT
            items = (*mcp.items, *contents, *mcp.behaviours, *(skill.to_item() for skill in skills))
            return (_check_lock if check else _write_lock)(path, mcp, items, as_json=as_json)

    return run_until_signal(work)


def _write_lock(path: str, mcp: BootedBridge, items: Sequence[BridgeCapability], *, as_json: bool) -> int:
    waiting = mcp.enrolment.notes
    if waiting:
        print_notes(waiting)
        print_status("nothing was written: these tools wait for approval")
        return _DIFFERENT
    tools = len(mcp.capabilities)
    write_lock(path, items, mcp.plan.configs, {row.id: row.labels for row in mcp.plan.rows})
    if as_json:
        write_json({"file": path, "tools": tools, "others": len(items) - tools})
    else:
        others = f" and {format_count(len(items) - tools, 'other item')}" if len(items) > tools else ""
        print_line(f"Wrote the definitions of {format_count(tools, 'tool')}{others} to {path}")
    return 0


def _check_lock(path: str, mcp: BootedBridge, items: Sequence[BridgeCapability], *, as_json: bool) -> int:
    present = {item.ref: item.raw for item in items}
    # For changed tools, compare the definition the server lists now.
    present |= {drift.ref: drift.after for drift in mcp.enrolment.drifts if drift.after is not None}
    drifts = compare_lock(read_lock(path), present)
    _print_drifts(drifts, as_json=as_json)
    relabelled = [row.id for row in mcp.plan.rows if mcp.plan.locked_labels.get(row.id, {}) != row.labels]
    for server in relabelled:
        print_status(f"the labels of {server!r} aren't those in {path}: indus mcp labels {server}")
    if not drifts and not relabelled and not as_json:
        is_tools = all(ref.kind == "tool" for ref in present)
        what = ("tool is", "tools are") if is_tools else ("item is", "items are")
        print_line(f"{format_count(len(present), *what)} as {path} has them")
    return _DIFFERENT if relabelled or any(drift.disables for drift in drifts) else 0


def _print_drifts(
    drifts: Sequence[Drift], *, as_json: bool, approvals: Mapping[str, Consent] = MappingProxyType({})
) -> None:
    """Print changes, and per server the digest that approves exactly these."""
    if as_json:
        rows: list[JsonObject] = [
            {
                "server": drift.ref.server,
                "kind": drift.ref.kind,
                "tool": drift.ref.name,
                "added": drift.cause == "added",
                "cause": drift.cause,
                "findings": [one.as_json() for one in drift.findings],
                "grade": str(drift.grade),
                "fields": [*drift.fields],
                "before": drift.before,
                "after": drift.after,
            }
            for drift in drifts
        ]
        digests: JsonObject = {server: approval.digest for server, approval in approvals.items()}
        write_json({"drifts": rows, **({"digests": digests} if approvals else {})})
        return
    for drift in drifts:
        for line in drift.lines:
            print_line(line)
    for server, approval in approvals.items():
        command = command_line("indus", "mcp", "approve", server)
        print_line(f"To approve {approval.subject}: {command}; in a script: {command} --yes --digest {approval.digest}")


@flags("--mcp", "--cwd")
@click.command("diff")
@click.argument("server", required=False, shell_complete=complete_server)
@as_json
@click.pass_context
def diff(context: click.Context, server: str | None, *, as_json: bool, **_: object) -> int:
    """Show definitions that SERVER, or any server, has changed or added since you approved it.

    Exit code 1 if that disables something. A cosmetic change doesn't: the approved text stays in use. Pass the digest
    at the end to `approve --digest`.
    """
    plan = _load_servers(context, server)

    async def work(_: CancelToken) -> int:
        async with _connected(plan) as (mcp, _contents):
            has_faults = _report_faults(mcp)
            drifts = mcp.enrolment.drifts
        names = dict.fromkeys(drift.ref.server for drift in drifts)
        approvals = {name: build_approval(name, [one for one in drifts if one.ref.server == name]) for name in names}
        _print_drifts(drifts, as_json=as_json, approvals=approvals)
        if any(drift.disables for drift in drifts):
            return _DIFFERENT
        if has_faults:
            return _FAULT
        if not drifts and not as_json:
            print_line("No changed tools.")
        return 0

    return run_until_signal(work)


def _load_servers(context: click.Context, server: str | None) -> ServerPlan:
    plan = load_plan(read_invocation(context))
    if server is not None:
        return plan.narrow([find_row(plan, server).id])
    if not plan.rows:
        raise click.UsageError("There are no servers: 'indus mcp add' adds one")
    return plan


@flags("--mcp", "--cwd")
@click.command("approve")
@click.argument("server", shell_complete=complete_server)
@click.argument("tool", required=False)
@click.option("--yes", is_flag=True, help="Approve without a question, whatever it is; it's printed.")
@digest_option
@click.pass_context
def approve(
    context: click.Context, server: str, tool: str | None, *, yes: bool, digests: tuple[str, ...], **_: object
) -> int:
    """Show the definitions that SERVER has changed or added, or only TOOL, and approve them after a yes.

    Your yes covers exactly the definitions shown. In a script, `--yes --digest DIGEST` approves those from `indus mcp
    diff`, and `--yes` alone whatever the server says now. Exit code 1 if you decline, or they have changed since.
    """
    plan = _load_servers(context, server)

    async def work(_: CancelToken) -> int:
        async with _connected(plan) as (mcp, _contents):
            if _report_faults(mcp):
                return _FAULT
            waiting = mcp.enrolment.drifts
            wanted = [drift for drift in waiting if tool in {None, drift.ref.name}]
            if tool is not None and not wanted:
                names = [drift.ref.name for drift in waiting]
                raise build_unknown_name(f"No tool {tool!r} of {server!r} waits for approval", tool, names)
            if not wanted:
                print_line(f"No tool of {server!r} waits for approval.")
                return 0
            return await _approve(mcp, server, wanted, yes=yes, digests=digests)

    return run_until_signal(work)


async def _approve(
    mcp: BootedBridge, server: str, wanted: Sequence[Drift], *, yes: bool, digests: Sequence[str]
) -> int:
    """Show the changes and, after a yes, approve exactly these."""
    ask = partial(ask_consent, build_approval(server, wanted), "Approve this?", yes=yes, digests=digests)
    # In a thread, so that the servers keep running while the user reads.
    if not await to_thread.run_sync(ask, abandon_on_cancel=True):
        print_line("Nothing was approved.")
        return _DECLINED
    for drift in wanted:
        await mcp.allow(drift)
    changed = [drift.ref for drift in wanted if not mcp.enrolment.approve(drift.ref, drift.digest)]
    if not await mcp.journal.store.flush():
        print_status("the ledger could not store the approval: indus ledger verify")
        return _FAULT
    for drift in wanted:
        is_changed = drift.ref in changed
        print_line(f"{name_item(drift.ref)}: {'it has changed since you looked' if is_changed else _APPROVED}")
    return _DECLINED if changed else 0
