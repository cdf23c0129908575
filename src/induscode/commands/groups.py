"""Command groups with commands loaded on use, and shell completion of the names of servers and tools.

See https://click.palletsprojects.com/en/stable/complex/#lazily-loading-subcommands and
https://click.palletsprojects.com/en/stable/shell-completion/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from induscode.cli.output import build_unknown_name
from induscode.launch.options import read_invocation, refuse_unused_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from click.shell_completion import CompletionItem

    from indusagi.core.cancel import CancelToken
    from induscode.launch.invocation import Invocation

HELP = ("-h", "--help")


class LazyCommand(NamedTuple):
    """The module of a command, and its line in the help."""

    about: str
    module: str
    attribute: str = "command"


class CommandGroup(click.Group):
    """A group whose commands are loaded by name; without a name the default command runs."""

    def __init__(self, *args: Any, commands: Mapping[str, LazyCommand], default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = commands
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; an option in the first place belongs to the default command."""
        # Completion (`resilient_parsing`) lists the commands instead of running the default.
        is_named = bool(args) and (not args[0].startswith("-") or args[0] in HELP)
        if not is_named and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Load a command of the table; `resolve_command` refuses other names before."""
        from importlib import import_module  # noqa: PLC0415 — only for a command that runs

        row = self.table[cmd_name]
        return cast("click.Command", getattr(import_module(row.module), row.attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.about) for name, row in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a name.

        Raises:
            click.UsageError: There is none, or it does not take a flag that was given.
        """
        if args and args[0] not in self.table:
            raise build_unknown_name(f"There is no command {args[0]!r}", args[0], tuple(self.table), ctx)
        resolved = super().resolve_command(ctx, args)
        refuse_unused_flags(ctx, cast("click.Command", resolved[1]))
        return resolved


# -- completion -------------------------------------------------------------------------------


def complete_server(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a configured server; no server is started."""
    from induscode.boot.runner import load_plan  # noqa: PLC0415 — for a completion only
    from induscode.servers.listing import find_switched_off  # noqa: PLC0415 — for a completion only

    def list_names(invocation: Invocation) -> Iterable[tuple[str, str]]:
        for row in load_plan(invocation).rows:
            yield row.id, row.origin.scope
        for row in find_switched_off(invocation):
            yield row.name, "disabled"

    return _build_items(context, list_names, incomplete)


def complete_tool(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a native tool or of a known tool of a server; no server is started."""
    from induscode.boot.catalog import ToolListing, list_tools  # noqa: PLC0415 — imports the deck
    from induscode.cli.signals import run_until_signal  # noqa: PLC0415 — for a completion only

    def list_names(invocation: Invocation) -> Iterable[tuple[str, str]]:
        listings: list[ToolListing] = []

        async def list_all(_: CancelToken) -> int:
            listings.append(await list_tools(invocation, check=False))
            return 0

        run_until_signal(list_all)
        for listing in listings:
            for tool in listing.tools:
                yield tool.name, tool.descriptor.description.partition("\n")[0]

    return _build_items(context, list_names, incomplete)


def _build_items(
    context: click.Context, list_names: Callable[[Invocation], Iterable[tuple[str, str]]], incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # noqa: PLC0415 — for a completion only

    from indusagi.core.faults import CoreError  # noqa: PLC0415 — for a completion only

    try:
        names = dict(list_names(read_invocation(context)))
    except (click.ClickException, CoreError, OSError):
        return []  # a shell cannot show an error in the middle of a line
    return [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]
