"""Lazily loaded command groups, shell completion of server and tool names, and sign-in options.

See https://click.palletsprojects.com/en/stable/complex/#lazily-loading-subcommands and
https://click.palletsprojects.com/en/stable/shell-completion/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from indusagi.core.faults import CoreError
from induscode.cli.output import build_unknown_name, print_notes
from induscode.cli.signals import run_for_result
from induscode.cli.terminal import print_line, print_status
from induscode.launch.options import read_invocation, refuse_unused_flags

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.interop.auth.contract import CredentialStore
    from induscode.launch.invocation import Invocation
    from induscode.servers.sign_in import PersonPrompt, SignInFacts, SignInWay

HELP = ("-h", "--help")
no_check = click.option("--no-check", is_flag=True, help="Start no server, not even an unknown one.")
output_option = click.option(
    "--output",
    type=click.Choice(("text", "json", "raw")),
    default="text",
    show_default=True,
    help="Format of the result: text safe for a terminal, JSON with everything, or the texts unchanged.",
)


class LazyCommand(NamedTuple):
    """A command's line in the help, and where to import it from."""

    about: str
    place: str
    """`module:name` as in entry points; by default the group's module, and the name `command`."""


class CommandGroup(click.Group):
    """Loads commands by name, and without one runs the default command, if there's one."""

    def __init__(
        self,
        *args: Any,
        commands: Mapping[str, LazyCommand],
        default: str = "",
        takes_name: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.table = commands
        self.default = default
        self.takes_name = takes_name
        """Whether a word that is no command is the argument of the default command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. A leading option belongs to the default command."""
        # Completion (`resilient_parsing`) lists the commands instead of running the default.
        is_named = bool(args) and (not args[0].startswith("-") or args[0] in HELP)
        if self.default and not is_named and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in table order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Import a command from the table; `resolve_command` has already rejected other names."""
        module, _, name = self.table[cmd_name].place.partition(":")
        module = module or cast("Callable[..., object]", self.callback).__module__
        return cast("click.Command", getattr(import_module(module), name or "command"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.about) for name, row in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by name, and check that it takes the flags given before it."""
        if args and args[0] not in self.table:
            unknown = build_unknown_name(f"There is no command {args[0]!r}", args[0], tuple(self.table), ctx)
            if not self.takes_name or "Did you mean" in unknown.message:
                raise unknown
            args = [self.default, *args]
        resolved = super().resolve_command(ctx, args)
        refuse_unused_flags(ctx, cast("click.Command", resolved[1]))
        return resolved


# -- completion -------------------------------------------------------------------------------


def complete_server(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a configured server, without starting any."""
    from induscode.boot.plans import load_plan  # noqa: PLC0415 — for a completion only
    from induscode.servers.plan import find_switched_off  # noqa: PLC0415 — for a completion only

    def list_names(invocation: Invocation) -> Iterable[tuple[str, str]]:
        for row in load_plan(invocation).rows:
            yield row.id, row.origin.scope
        for row in find_switched_off(invocation):
            yield row.name, "disabled"

    return _build_items(context, list_names, incomplete)


def complete_tool(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a native tool or a known server tool, without starting servers."""
    from induscode.boot.catalog import list_tools  # noqa: PLC0415 — imports the deck

    def list_names(invocation: Invocation) -> Iterable[tuple[str, str]]:
        for tool in run_for_result(lambda _: list_tools(invocation, check=False)).tools:
            yield tool.name, tool.descriptor.description.partition("\n")[0]

    return _build_items(context, list_names, incomplete)


def _build_items(
    context: click.Context, list_names: Callable[[Invocation], Iterable[tuple[str, str]]], incomplete: str
) -> list[CompletionItem]:
    try:
        names = dict(list_names(read_invocation(context)))
    except (click.ClickException, click.exceptions.Exit, CoreError, OSError):
        return []  # a shell can't show an error in the middle of a line
    return [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]


# -- sign in ----------------------------------------------------------------------------------


Command = TypeVar("Command", bound="Callable[..., object]")


def sign_in_options(command: Command) -> Command:
    """Add the sign-in options, `way` and `port`."""
    port = click.option(
        "--port", type=click.IntRange(1, 65_535), metavar="N", help="The port of the redirect on this machine."
    )
    paste = click.option(
        "--paste", "way", flag_value="paste", help="Paste the address at which a browser anywhere ends."
    )
    device = click.option("--device", "way", flag_value="device", help="Enter a code on another device.")
    return device(paste(port(command)))


def open_prompt(way: SignInWay, cancel: CancelToken) -> PersonPrompt:
    """Prompt the user on the terminal, or else on standard input."""
    from induscode.conversations.line_dialog import find_line_dialog  # noqa: PLC0415 — for a sign-in
    from induscode.servers.sign_in import PersonPrompt, StandardInputDialog  # noqa: PLC0415 — for a sign-in

    return PersonPrompt(find_line_dialog(cancel) or StandardInputDialog(), paste=way == "paste")


def print_signed_in(name: str, facts: SignInFacts | None, store: CredentialStore) -> None:
    """Print the signed-in account and where we store its tokens."""
    from indusagi.interop.auth.storage import CredentialFiles  # noqa: PLC0415 — for a sign-in

    who = f" as {facts.account}" if facts is not None and facts.account else ""
    where = f", stored in {facts.place}" if facts is not None and facts.place else ""
    print_line(f"Signed in to {name!r}{who}{where}")
    if isinstance(store, CredentialFiles):
        print_notes(store.notes)


def print_signed_out(name: str, confirmed: bool | None) -> None:
    """Print the result of a sign-out; `confirmed` is `None` if there was no sign-in."""
    if confirmed is None:
        print_line(f"There is no sign-in to {name!r}")
        return
    print_line(f"Signed out of {name!r}")
    if not confirmed:
        print_status("the issuer has not confirmed the revocation: the tokens may be valid until they expire")
