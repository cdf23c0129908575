"""`indus mcp labels`: show what servers' tools read and send, and confirm or change it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from induscode.boot.plans import LOOK_LIMIT_S, load_plan, opened_store
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, ask_consent, build_unknown_name, digest_option, print_notes
from induscode.cli.signals import run_for_result
from induscode.cli.terminal import print_line
from induscode.commands.groups import complete_server
from induscode.core.consent import build_consent
from induscode.launch.options import define_command, read_invocation
from induscode.servers.labels import (
    LABELS,
    WHOLE_SERVER,
    InvalidLabelsError,
    ToolLabels,
    find_labels,
    format_labels,
    parse_labels,
)
from induscode.servers.plan import find_row, write_fields
from induscode.servers.remedies import format_server_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from indusagi.core.json import JsonObject
    from induscode.servers.labels import Label
    from induscode.servers.plan import ServerPlan

_DECLINED = 1
_HEADS = ("TOOL", "LABELS", "FROM")


@define_command("labels", "--mcp", "--cwd")
@click.argument("name", shell_complete=complete_server)
@click.argument("tool", required=False)
@click.option("--set", "given", metavar="LABELS", help=f"Give it these: {', '.join(LABELS)}, or none.")
@click.option("--confirm", is_flag=True, help="Give its tools the labels proposed now, after a question.")
@click.option("--reset", is_flag=True, help="Take the labels you gave away; they're proposed again.")
@click.option("--yes", is_flag=True, help="Confirm without a question.")
@digest_option
@as_json
def labels(
    context: click.Context,
    name: str,
    tool: str | None,
    *,
    given: str | None,
    confirm: bool,
    reset: bool,
    yes: bool,
    digests: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show the labels of the tools of the server NAME, or give labels to NAME or its TOOL.

    private: reads secrets or data of users. untrusted: returns text that anyone may have written. outward: sends data
    out. The flow guard asks before a call sends data out, once both of the others were read. Exit code 1 if you
    decline.
    """
    if (given is not None) + confirm + reset > 1:
        raise click.UsageError("Use one of --set, --confirm and --reset")
    plan = load_plan(read_invocation(context))
    row = find_row(plan, name)
    before = row.labels
    if given is not None:
        rows = {**before, tool or WHOLE_SERVER: _parse(given)}
        write_fields(row, {"labels": format_labels(rows)})
        print_line(f"{_name(name, tool)}: {_format(rows[tool or WHOLE_SERVER])}")
        return 0
    if reset:
        rows = {key: value for key, value in before.items() if tool not in {None, key}}
        write_fields(row, {"labels": format_labels(rows) if rows else None})
        print_line(f"{_name(name, tool)}: proposed again")
        return 0
    found = run_for_result(lambda _: _find_labels(plan.narrow([name])))
    if tool is not None:
        if tool not in found:
            raise build_unknown_name(f"There is no tool {tool!r} of {name!r}", tool, [*found])
        found = {tool: found[tool]}
    proposed = {key: tuple(one.labels) for key, one in found.items() if not one.is_confirmed}
    if not confirm:
        shown: list[JsonObject] = [
            {"tool": key, "labels": [*one.labels], "confirmed": one.is_confirmed, "from": {**one.labels}}
            for key, one in found.items()
        ]
        Listing(
            "tools",
            shown,
            _HEADS,
            lambda one: [one["tool"], _format(found[str(one["tool"])].labels), _explain(found[str(one["tool"])])],
            before={"server": name},
            empty="It has listed no tools.",
        ).show(as_json=as_json)
        if proposed and not as_json:
            print_line(f"To confirm what's proposed: {format_server_command('labels', name)} --confirm")
        return 0
    if not proposed:
        print_line(f"There is nothing to confirm for {_name(name, tool)}.")
        return 0
    lines = [f"{key}: {_format(value)}" for key, value in proposed.items()]
    facts: JsonObject = {"row": row.written, "labels": format_labels(proposed)}
    consent = build_consent(f"labels of server {name!r} of {row.origin.file}", facts, lines)
    if not ask_consent(consent, "Give its tools these labels?", yes=yes, digests=digests):
        print_line("Nothing was changed.")
        return _DECLINED
    write_fields(row, {"labels": format_labels({**before, **proposed})})
    print_line(f"{_name(name, tool)}: confirmed")
    return 0


async def _find_labels(plan: ServerPlan) -> Mapping[str, ToolLabels]:
    """Find the labels of a server's tools, as last listed; one that was never up is started."""
    from induscode.boot.runners import START_ONCE, attach_servers  # noqa: PLC0415 — imports the bridge

    async with opened_store() as store:
        mcp = await attach_servers(plan, store, replace(START_ONCE, only=()), wait=False)
        try:
            if not mcp.capabilities:
                await mcp.wake([*plan.configs], LOOK_LIMIT_S, until_listed=True)
            print_notes(plan.notes)
            return {
                card.ref.name: find_labels(
                    card.ref.name, card.raw, plan.configs.get(card.ref.server), plan.find_labels(card.ref.server)
                )
                for card in mcp.capabilities
            }
        finally:
            await mcp.aclose()


def _parse(text: str) -> tuple[Label, ...]:
    try:
        return parse_labels([*(() if text == "none" else text.split(","))])[WHOLE_SERVER]
    except InvalidLabelsError:
        raise click.UsageError(f"--set {text!r}: write {', '.join(LABELS)}, joined by commas, or none") from None


def _name(server: str, tool: str | None) -> str:
    return server if tool is None else f"{server} {tool}"


def _format(labels: Iterable[str]) -> str:
    return ", ".join(labels) or "none"


def _explain(found: ToolLabels) -> str:
    if found.is_confirmed:
        return "you"
    return "; ".join(f"{label}: {reason}" for label, reason in found.labels.items()) or "nothing says otherwise"
