"""Commands that have commands: loaded when they are used, with one for those who name none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from induscode.launch.options import refuse_unused_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HELP = ("-h", "--help")


class Lazy(NamedTuple):
    """Where a command is, and what the help says about it."""

    about: str
    module: str
    attribute: str = "command"


class CommandGroup(click.Group):
    """A group whose commands are loaded by name; without a name the default one runs."""

    def __init__(self, *args: Any, commands: Mapping[str, Lazy], default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = commands
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words; an option in the first place belongs to the default command."""
        # A shell that asks how the line may go on is not to be sent to the default.
        given = bool(args) and (not args[0].startswith("-") or args[0] in HELP)
        if not given and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Load a command of the table; `resolve_command` lets no other name come here."""
        from importlib import import_module  # noqa: PLC0415 — only whoever runs a command pays

        row = self.table[cmd_name]
        return cast("click.Command", getattr(import_module(row.module), row.attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what there is without loading it."""
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
        found = super().resolve_command(ctx, args)
        refuse_unused_flags(ctx, cast("click.Command", found[1]))
        return found


def build_unknown_name(
    said: str, name: str, names: Sequence[str], ctx: click.Context | None = None
) -> click.UsageError:
    """Make the error of a name that nobody has, with the one that was probably meant."""
    from indusagi.capabilities.arguments import find_similar_name  # noqa: PLC0415 — for a mistyped name

    meant = find_similar_name(name, names)
    hint = f". Did you mean {meant!r}?" if meant else ""
    return click.UsageError(f"{said}{hint}", ctx or click.get_current_context(silent=True))
