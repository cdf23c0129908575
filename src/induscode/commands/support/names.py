"""Shell completion of the names of servers and tools.

Both are read from the configuration and the ledger; no server is started. A completion that fails
gives no names: a shell cannot show an error in the middle of a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from indusagi.core.faults import CoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from indusagi.core.cancel import CancelToken
    from induscode.launch.invocation import Invocation


def complete_server(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """List the configured servers whose name begins so."""
    from induscode.commands.support.runner import load_plan  # noqa: PLC0415 — for a completion only
    from induscode.commands.support.servers import find_switched_off  # noqa: PLC0415 — for a completion only

    def list_names(invocation: Invocation) -> Iterable[tuple[str, str]]:
        for row in load_plan(invocation).rows:
            yield row.id, row.origin.scope
        for one in find_switched_off(invocation):
            yield one.name, "disabled"

    return _items(context, list_names, incomplete)


def complete_tool(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """List the native tools and the known tools of servers whose name begins so."""
    from induscode.commands.support.catalog import Listing, list_tools  # noqa: PLC0415 — brings the deck
    from induscode.commands.support.runner import run_until_signal  # noqa: PLC0415 — for a completion only

    def list_names(invocation: Invocation) -> Iterable[tuple[str, str]]:
        listings: list[Listing] = []

        async def look(_: CancelToken) -> int:
            listings.append(await list_tools(invocation, check=False))
            return 0

        run_until_signal(look)
        for listing in listings:
            for tool in listing.tools:
                yield tool.name, tool.descriptor.description.partition("\n")[0]

    return _items(context, list_names, incomplete)


def _items(
    context: click.Context, list_names: Callable[[Invocation], Iterable[tuple[str, str]]], incomplete: str
) -> list[CompletionItem]:
    from induscode.launch.options import read_invocation  # noqa: PLC0415 — for a completion only

    try:
        names = dict(list_names(read_invocation(context)))
    except (click.ClickException, CoreError, OSError):
        return []
    return [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]
