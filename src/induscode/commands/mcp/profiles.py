"""`indus mcp doctor NAME --sandbox`: starts a server in each sandbox profile, and proposes the smallest that works."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import click

from indusagi.capabilities.sandbox.behaviour import RefusedUse
from indusagi.capabilities.sandbox.profile import ServerProfile, format_profile
from indusagi.core.json import JsonObject, compact_json
from indusagi.core.text import escape_unseen, format_count
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerConfig, StdioServerConfig
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint
from induscode.cli.output import write_json
from induscode.cli.signals import run_for_result
from induscode.cli.terminal import print_line, print_status
from induscode.servers.config.rows import ServerRow
from induscode.servers.learning import learn_behaviour
from induscode.servers.remedies import format_server_command

_UNWELL = 1


def compare_profiles(row: ServerRow, config: ServerConfig | None, *, may_be_bare: bool, is_json: bool) -> int:
    """Start a server in one profile after the other, and print where it lists what it lists otherwise.

    If `strict` isn't enough, it's watched too, as `indus mcp learn` does, and what that proposes is tried.

    Raises:
        click.UsageError: There's no process to start.
    """
    if not isinstance(config, StdioServerConfig):
        raise click.UsageError("--sandbox requires the NAME of a trusted server with a command")
    if config.sandbox is not None and config.sandbox.container is not None:
        raise click.UsageError(f"Server {config.id!r} runs in a container: its command isn't for this machine")
    # In the home that its row gives it, so that what it downloads now is there later.
    own = config.sandbox or ServerProfile(owner=os.path.realpath(row.origin.file))
    outcomes, profiles, refusals = run_for_result(lambda _: _try_profiles(config, own, may_be_bare=may_be_bare))
    wanted = next(iter(outcomes.values()))["tools"]
    fitting = [name for name in profiles if wanted is not None and outcomes[name]["tools"] == wanted]
    best = format_profile(profiles[fitting[0]]) if fitting else "off"
    if is_json:
        write_json({"name": config.id, "profiles": {**outcomes}, "fits": best})
        return 0 if fitting else _UNWELL
    for name, outcome in outcomes.items():
        tools = outcome["tools"]
        shown = format_count(len(tools), "tool") if isinstance(tools, list) else outcome["fault"]
        print_line(f"{name}: {shown}")
    for one in refusals:
        print_line(f"refused: {escape_unseen(str(one))}")
    if not fitting:
        needed = "it fails without one, too" if wanted is None else "name the paths or hosts it needs in its row"
        print_status(f"server {config.id!r} doesn't list its tools in any profile: {needed}")
        return _UNWELL
    learn = f"{format_server_command('learn', config.id)} calls its tools, and writes it"
    print_line(f'Put "sandbox": {compact_json(best)} into its row. Its calls may need more: {learn}.')
    return 0


async def _try_profiles(
    config: StdioServerConfig, own: ServerProfile, *, may_be_bare: bool
) -> tuple[dict[str, JsonObject], dict[str, ServerProfile], Sequence[RefusedUse]]:
    """Return what it lists in each profile, and the profiles, the smallest first."""
    outcomes: dict[str, JsonObject] = {}
    if may_be_bare:
        outcomes["off"] = await _list_tools(replace(config, sandbox=None))
    # First with a network, for what it downloads.
    profiles = {"standard": replace(own, name="standard"), "strict": replace(own, name="strict")}
    for name, profile in profiles.items():
        outcomes[name] = await _list_tools(replace(config, sandbox=profile))
    wanted = next(iter(outcomes.values()))["tools"]
    order, refusals = ["strict", "standard"], ()
    if wanted is not None and outcomes["strict"]["tools"] != wanted:
        run = await learn_behaviour(replace(config, sandbox=own))
        refusals = run.refusals
        if run.fault is None or (run.is_blocked and may_be_bare):  # the proposal may show it files of yours
            profiles["learned"] = run.profile
            outcomes["learned"] = await _list_tools(replace(config, sandbox=run.profile))
            order.insert(1, "learned")
    return outcomes, {name: profiles[name] for name in order}, refusals


async def _list_tools(config: StdioServerConfig) -> JsonObject:
    endpoint = create_server_endpoint(config)
    try:
        await endpoint.open()
        return {"tools": [*sorted(tool.ref.name for tool in await endpoint.list_tools())], "fault": None}
    except ProtocolFault as fault:
        return {"tools": None, "fault": str(fault)}
    finally:
        await endpoint.close()
