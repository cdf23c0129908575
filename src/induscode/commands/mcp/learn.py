"""`indus mcp learn`: start a server in an observing sandbox, and pin what it does with the profile that fits."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click
from anyio import to_thread

from indusagi.capabilities.sandbox.behaviour import describe_behaviour, parse_behaviour
from indusagi.capabilities.sandbox.profile import ServerProfile, format_profile
from indusagi.core.json import compact_json, is_json_object
from indusagi.core.text import escape_unseen
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.boot.plans import load_plan, opened_store
from induscode.cli.output import as_json, ask_consent, digest_option, write_json
from induscode.cli.signals import run_for_result
from induscode.cli.terminal import print_line, print_status
from induscode.commands.groups import complete_server
from induscode.core.consent import build_consent
from induscode.deck.mcp.capability import build_behaviour, definition_pin
from induscode.deck.mcp.drift import command_line
from induscode.deck.mcp.lock import lock_behaviour
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.mcp.store.pins import StorePins, load_pins, read_pins
from induscode.launch.options import flags, read_invocation
from induscode.servers.learning import learn_behaviour, write_profile
from induscode.servers.plan import find_row

if TYPE_CHECKING:
    from indusagi.capabilities.sandbox.behaviour import Behaviour
    from indusagi.core.json import JsonObject
    from induscode.core.consent import Consent
    from induscode.servers.config.rows import ServerRow
    from induscode.servers.learning import LearnedRun
    from induscode.servers.plan import ServerPlan

_DECLINED = 1
_FAILED = 3


@flags("--mcp", "--cwd")
@click.command("learn")
@click.argument("name", shell_complete=complete_server)
@click.option(
    "--call",
    "calls",
    nargs=2,
    multiple=True,
    metavar="TOOL ARGUMENTS",
    help="Also call TOOL with a JSON object of arguments.",
)
@click.option(
    "--seconds", type=click.FloatRange(0, 3600), default=0, metavar="N", help="Watch it for N seconds after the calls."
)
@click.option("--yes", is_flag=True, help="Write the profile without a question; it's printed.")
@digest_option
@as_json
@click.pass_context
def learn(
    context: click.Context,
    name: str,
    *,
    calls: tuple[tuple[str, str], ...],
    seconds: float,
    yes: bool,
    digests: tuple[str, ...],
    as_json: bool,
    **_: object,
) -> int:
    """Learn what the server NAME needs, and write the smallest sandbox profile that works into its row.

    Starts it in a sandbox: strict, or standard if it fails there. It sees the workspace and what its row names, but not
    your home, and reaches public hosts only. It lists everything, and calls the tools that only read and need no
    arguments. Hosts, paths and programs it used are pinned with the profile: a new host later is blocked until you
    approve it. Exit code 1 if you decline, 3 if it doesn't start.
    """
    plan = load_plan(replace(read_invocation(context), sandbox="auto"))  # a sandbox for it is what's looked for
    row, config = find_row(plan, name), plan.configs.get(name)
    if not isinstance(config, StdioServerConfig):
        raise click.UsageError(f"{name!r} isn't a trusted server with a command: only those have a sandbox")
    if config.sandbox is None:
        config = replace(config, sandbox=ServerProfile(owner=os.path.realpath(row.origin.file)))
    wanted = [(tool, _parse_arguments(text)) for tool, text in calls]
    run = run_for_result(lambda _: learn_behaviour(config, wanted, seconds=seconds))
    before = run_for_result(lambda _: _read_approved(plan, config))
    behaviour = run.behaviour if before is None else before | run.behaviour
    consent = _build_consent(row, run, before, behaviour)
    if as_json and not yes:
        write_json({**_build_facts(run), "digest": consent.digest})
        return _FAILED if run.fault else 0
    _print_run(run)
    if run.fault is not None and not run.is_blocked:
        print_status(f"server {name!r} doesn't start in a sandbox: {run.fault}")
        return _FAILED
    if not ask_consent(consent, "Write this profile into its row?", yes=yes, digests=digests):
        print_line("Nothing was written.")
        return _DECLINED
    write_profile(row, run.profile)
    is_stored = run_for_result(lambda _: _store(config, row, behaviour))
    print_line(f"Wrote the profile of {name!r} to {row.origin.file}")
    if run.is_blocked:
        again = command_line("indus", "mcp", "learn", name)
        print_line(f"It looked for something that this profile now allows. To see what it does then: {again}")
    if not is_stored:
        print_status("the ledger could not store the behaviour: indus ledger verify")
    return 0 if is_stored else _FAILED


def _parse_arguments(text: str) -> JsonObject:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"--call takes a JSON object of arguments: {exc}") from exc
    if not is_json_object(arguments):
        raise click.UsageError('--call takes a tool and a JSON object of arguments, like \'{"path": "."}\'')
    return arguments


async def _read_approved(plan: ServerPlan, config: StdioServerConfig) -> Behaviour | None:
    """Read the behaviour that was learned before."""
    async with opened_store() as store:
        pins = await read_pins(store, [config], await to_thread.run_sync(plan.find_places))
    pins.locked = plan.locked
    raw = pins.find_approved(build_behaviour(config.id).ref)
    return None if raw is None else parse_behaviour(raw)


def _build_consent(row: ServerRow, run: LearnedRun, before: Behaviour | None, behaviour: Behaviour) -> Consent:
    lines = [*describe_behaviour(behaviour, before)]
    lines.append(f"sandbox: {compact_json(format_profile(run.profile))}")
    lines.append(run.profile.describe())
    facts: JsonObject = {"row": row.written, "profile": format_profile(run.profile), "behaviour": behaviour.as_json()}
    return build_consent(f"behaviour of server {row.id!r} of {row.origin.file}", facts, lines)


def _build_facts(run: LearnedRun) -> JsonObject:
    return {
        "profile": format_profile(run.profile),
        "behaviour": run.behaviour.as_json(),
        "tools": [*run.tools],
        "calls": [{"tool": one.tool, "arguments": one.arguments, "failure": one.failure} for one in run.calls],
        "refused": [{"target": one.target, "key": one.key, "reason": one.reason} for one in run.refusals],
        "fault": None if run.fault is None else str(run.fault),
        "unobserved": run.note or None,
    }


def _print_run(run: LearnedRun) -> None:
    for call in run.calls:
        print_line(f"called {call.tool}: {'ok' if call.failure is None else f'failed: {call.failure}'}")
    for one in run.refusals:
        print_line(f"refused: {escape_unseen(str(one))}")
    if run.note:
        print_status(run.note)


async def _store(config: StdioServerConfig, row: ServerRow, behaviour: Behaviour) -> bool:
    """Pin a behaviour in the ledger, and in the lock file if that has the server."""
    item = build_behaviour(config.id, behaviour)
    async with opened_store() as store:
        journal = Journal(store, [config])
        pins = StorePins(journal)
        await load_pins(pins, store, [config])
        pins.approve(item.ref, item.raw)
        journal.record_listing(config.id, (), (), item.ref.kind)
        journal.record_event("approve", config.id, item.ref.name, definition_pin(item.raw))
        is_stored = await store.flush()
    await to_thread.run_sync(partial(lock_behaviour, row, item.raw))
    return is_stored
