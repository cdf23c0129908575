"""`indus serve --transparent SERVER`: one server passed through as it is, under its own names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from induscode.commands.serve.recursion import marked
from induscode.commands.support.servers import find_row
from induscode.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.deck.mcp.boot import ServerPlan

_REMEDIES = {
    "untrusted": "nobody has consented to it: indus mcp trust {}",
    "changed": "it is not as it was when somebody consented to it: indus mcp trust {}",
    "unresolved": "one of its variables has no value",
}


def find_relay_server(plan: ServerPlan, name: str, above: Sequence[str]) -> ServerConfig | None:
    """Find the one server; None, and a word about it, if it must not be started.

    It is told below which rows it stands, those `above` and its own.

    Raises:
        click.UsageError: There is no server of this name.
    """
    left_out = [note for note in plan.notes if note.owner.startswith(f"server {name!r} of ")]
    if name not in {row.id for row in plan.rows} and left_out:
        raise click.UsageError(str(left_out[0]), click.get_current_context(silent=True))
    row = find_row(plan, name)
    state = plan.state_of(row)
    if state != "startable":
        print_status(f"server {name!r} is not started: {_REMEDIES[state].format(name)}")
        return None
    return marked(above, plan.configs[name])
