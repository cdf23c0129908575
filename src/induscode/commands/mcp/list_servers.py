"""`indus mcp list` and `get`: the configured servers, and their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from induscode.commands.support.groups import complete_server
from induscode.commands.support.output import as_json, print_notes, print_table, write_json
from induscode.commands.support.runner import load_plan, opened_store, run_until_signal
from induscode.commands.support.servers import (
    STATE_REMEDIES,
    build_config_facts,
    build_reference_facts,
    find_row,
    find_switched_off,
    list_secret_warnings,
    name_transport,
)
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import EndpointStatus
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.config.rows import ServerRow
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.store import LedgerStore
    from induscode.launch.invocation import Invocation

_NAMED = 3
"""Disabled tools that one line of the list names."""


@flags("--mcp", "--cwd")
@click.command("list")
@as_json
@click.option("--no-check", is_flag=True, help="Do not connect to them.")
@click.pass_context
def list_(context: click.Context, *, as_json: bool, no_check: bool, **_: object) -> int:
    """List the servers and their states.

    Trusted servers are connected to, unless --no-check is given. Exit code 0, also if some of them fail: the list says
    which, and why.
    """
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    status: dict[str, EndpointStatus] = {}
    tools: dict[str, int] = {}
    disabled: dict[str, Sequence[DisabledTool]] = {}

    async def read_states(_: CancelToken) -> int:
        async with opened_store() as store:
            if not no_check:
                from induscode.boot.runners import START_ONCE, attach_servers  # noqa: PLC0415 — imports the bridge

                mcp = await attach_servers(plan, store, START_ONCE)
                try:
                    status.update(mcp.status())
                finally:
                    await mcp.aclose()
            tools.update(await _count_known_tools(plan, store))
            # The last listing is in the ledger by now.
            disabled.update(await _read_disabled(plan, store))
        return 0

    code = run_until_signal(read_states) if plan.configs else 0
    if code:
        return code
    rows = [_build_row(row, plan, status.get(row.id), tools, disabled.get(row.id, ())) for row in plan.rows]
    rows += _list_switched_off(invocation)
    print_notes(note for note in plan.notes if _is_news(note.message))
    _print_rows(rows, as_json=as_json)
    return 0


def _is_news(message: str) -> bool:
    """Return whether a note says more than the table."""
    return not message.startswith(("not started", "switched off"))


async def _read_disabled(plan: ServerPlan, store: LedgerStore) -> Mapping[str, Sequence[DisabledTool]]:
    """Read the tools of each server that were disabled when it was last seen."""
    from induscode.deck.mcp.store.pins import read_disabled_tools  # noqa: PLC0415 — imports the ledger

    return await read_disabled_tools(store, plan.configs.values())


async def _count_known_tools(plan: ServerPlan, store: object) -> Mapping[str, int]:
    """Count the tools that each server had when it was last seen."""
    from induscode.deck.mcp.config.trust import server_identity  # noqa: PLC0415 — loaded with the ledger
    from induscode.deck.mcp.store import ThreadedStore  # noqa: PLC0415 — loaded with the ledger
    from induscode.deck.mcp.store.events import filter_texts  # noqa: PLC0415 — loaded with the ledger

    assert isinstance(store, ThreadedStore)
    identities = {server: server_identity(config) for server, config in plan.configs.items()}
    return {
        server: len(filter_texts(row.facts.get("tools")))
        for row in await store.latest("list")
        if (server := str(row.facts.get("server"))) in identities and row.facts.get("identity") == identities[server]
    }


def _build_row(
    row: ServerRow,
    plan: ServerPlan,
    status: EndpointStatus | None,
    tools: Mapping[str, int],
    disabled: Sequence[DisabledTool] = (),
) -> JsonObject:
    state = plan.state_of(row)
    fault: JsonValue = None
    phase = "unchecked" if state == "startable" else str(state)
    message = STATE_REMEDIES[state].format(row.id) if state != "startable" else ""
    count = tools.get(row.id)
    waiting = state in {"untrusted", "changed"}
    if waiting:
        message = " ".join([message, *(f"WARNING: {warning}" for warning in list_secret_warnings(row))])
    if state == "unresolved":
        message = next((note.message for note in plan.notes if repr(row.id) in note.owner), message)
    if status is not None and state == "startable":
        phase, count = str(status.phase), max(0, status.tool_count - len(disabled))
        if status.fault is not None:
            message = str(status.fault).removeprefix(f"server {row.id!r}: ")
            fault = {"kind": status.fault.kind, "reason": status.fault.detail.reason}
    if not message and disabled:
        message = _format_disabled(disabled)
    return {
        "name": row.id,
        "transport": name_transport(row.config),
        "phase": phase,
        "tools": count,
        "scope": row.origin.scope,
        "file": row.origin.file,
        "enabled": True,
        "required": row.required,
        "start": row.start,
        "fault": fault,
        "message": message,
        "disabled": [one.as_json() for one in disabled],
        **(build_reference_facts(row) if waiting else {}),
    }


def _format_disabled(disabled: Sequence[DisabledTool]) -> str:
    """Format which tools are disabled, with the commands that show and approve the changes."""
    from indusagi.core.text import format_count  # noqa: PLC0415 — loaded with the ledger
    from induscode.deck.mcp.drift import command_line  # noqa: PLC0415 — loaded with the ledger

    first, server = disabled[0], disabled[0].ref.server
    names = ", ".join(one.ref.name for one in disabled[:_NAMED])
    more = f" and {len(disabled) - _NAMED} more" if len(disabled) > _NAMED else ""
    all_of_them = command_line("indus", "mcp", "approve", server)
    approve = first.approve_command if len(disabled) == 1 else all_of_them
    number = format_count(len(disabled), "tool is", "tools are")
    message = f"{number} disabled, changed since approved: {names}{more}"
    return f"{message}; look: {first.diff_command}; approve: {approve}"


def _list_switched_off(invocation: Invocation) -> list[JsonObject]:
    return [
        {
            "name": one.name,
            "transport": None,
            "phase": "disabled",
            "tools": None,
            "scope": one.scope,
            "file": one.file,
            "enabled": False,
            "required": False,
            "start": None,
            "fault": None,
            "message": f"switched off: indus mcp enable {one.name}",
            "disabled": [],
        }
        for one in find_switched_off(invocation)
    ]


def _print_rows(rows: Sequence[JsonObject], *, as_json: bool) -> None:
    if as_json:
        write_json({"servers": rows})
    elif not rows:
        print_line("No servers are configured. Add one: indus mcp add NAME -- COMMAND ARGUMENTS")
    else:
        keys = ("name", "transport", "phase", "tools", "scope", "message")
        cells = [["-" if row[key] is None else row[key] for key in keys] for row in rows]
        print_table(tuple(key.upper() for key in keys), cells)


@flags("--mcp", "--cwd")
@click.command("get")
@click.argument("name", shell_complete=complete_server)
@as_json
@click.pass_context
def get(context: click.Context, name: str, *, as_json: bool, **_: object) -> int:
    """Show the server NAME, without starting it.

    References such as ${TOKEN} are shown as written, other values of variables and headers are hidden.
    """
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    off = next((one for one in _list_switched_off(invocation) if one["name"] == name), None)
    if off is not None and name not in {row.id for row in plan.rows}:
        facts = off
    else:
        row = find_row(plan, name)
        tools, disabled = _read_known(plan, name)
        facts = {**_build_row(row, plan, None, {}, disabled), "dialect": row.origin.dialect}
        facts |= {"consent": plan.consent[row.id], **build_config_facts(row)}
        facts |= {"variables": [*row.secrets], "tools": tools, **build_reference_facts(row)}
    if as_json:
        write_json(facts)
        return 0
    for key, value in facts.items():
        if key == "references" and isinstance(value, list):
            for one in value:
                print_line(f"reference: {_format_reference(one)}")
        elif key == "disabled" and isinstance(value, list):
            for one in value:
                print_line(f"disabled: {_format_disabled_tool(one)}")
        elif value not in (None, "", []):
            text = ", ".join(map(_format_value, value)) if isinstance(value, list) else _format_value(value)
            print_line(f"{key}: {text}")
    return 0


def _format_reference(value: JsonValue) -> str:
    assert isinstance(value, dict)
    secret = " (looks like a secret)" if value["looksSecret"] else ""
    return f"{value['written']} in {value['place']}, for {value['recipient']}{secret}"


def _format_disabled_tool(value: JsonValue) -> str:
    assert isinstance(value, dict)
    return (
        f"{_format_value(value['name'])} ({_format_value(value['reason'])}); approve: {_format_value(value['approve'])}"
    )


def _read_known(plan: ServerPlan, name: str) -> tuple[int | None, Sequence[DisabledTool]]:
    """Read from the ledger how many tools a server had, and which of them are disabled."""
    tools: dict[str, int] = {}
    disabled: dict[str, Sequence[DisabledTool]] = {}

    async def read_states(_: CancelToken) -> int:
        async with opened_store() as store:
            tools.update(await _count_known_tools(plan, store))
            disabled.update(await _read_disabled(plan, store))
        return 0

    if name in plan.configs:
        run_until_signal(read_states)
    return tools.get(name), disabled.get(name, ())


def _format_value(value: JsonValue) -> str:
    """Format a value in one line; its text cannot forge another line."""
    from indusagi.core.json import compact_json  # noqa: PLC0415 — loaded with the ledger

    return value if isinstance(value, str) and value.isprintable() else compact_json(value)
