"""The root command of `indus`: options from the flag table, commands loaded on use."""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete, shell_complete

from indusagi import __version__
from indusagi.core.faults import CoreError
from induscode.cli.terminal import hide_live_lines, is_interactive, print_line, print_status
from induscode.commands import COMPLETE_VARIABLE
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.launch.flags import flag_specs
from induscode.launch.invocation import Invocation
from induscode.launch.options import build_option, format_options, list_given_flags, read_invocation, require_agent

_PROMPT = 'indus -p "…"'
_COMMANDS = {
    "tools": LazyCommand("list, show and search the tools of the deck", "induscode.commands.tools"),
    "resources": LazyCommand("list and read the resources of servers", "induscode.commands.tools:resources"),
    "prompts": LazyCommand("list the prompts of servers, and get their messages", "induscode.commands.tools:prompts"),
    "call": LazyCommand("call one tool, read a resource, or get a prompt", "induscode.commands.call"),
    "try": LazyCommand("try a server before you add it", "induscode.commands.try_server"),
    "connect": LazyCommand("connect a client: Claude, Cursor, VS Code, Codex …", "induscode.commands.serve:connect"),
    "serve": LazyCommand("serve the deck and all servers as one MCP server", "induscode.commands.serve"),
    "cluster": LazyCommand("prepare and examine a cluster of gateways", "induscode.commands.cluster"),
    "ui": LazyCommand("look at servers, tools, calls and the ledger in a browser", "induscode.commands.serve:ui"),
    "acp": LazyCommand("work in an editor: the Agent Client Protocol over stdio", "induscode.frontends.acp"),
    "mcp": LazyCommand("add, trust and check MCP servers", "induscode.commands.mcp"),
    "connectors": LazyCommand(
        "add, examine and approve services described by OpenAPI", "induscode.commands.connectors"
    ),
    "addons": LazyCommand("list, trust and examine addons", "induscode.commands.addons"),
    "search": LazyCommand("fetch the model by which tools are found by meaning", "induscode.commands.tools:model"),
    "ledger": LazyCommand("history of tools, and what the model saw", "induscode.commands.ledger"),
    "calls": LazyCommand("recent tool calls: duration, result, errors", "induscode.commands.calls"),
    "top": LazyCommand("the calls of every server as they happen", "induscode.commands.calls:top"),
    "rewind": LazyCommand("return files and conversation to the state before a prompt", "induscode.commands.rewind"),
    "permissions": LazyCommand("say which rule decides about a call", "induscode.commands.permissions"),
    "approvals": LazyCommand("answer the calls of a gateway that wait for you", "induscode.commands.approvals"),
    "tokens": LazyCommand("create and revoke tokens of indus serve --http", "induscode.commands.tokens"),
    "models": LazyCommand("show which models are ready, and store their keys", "induscode.commands.models"),
    "secrets": LazyCommand("store secrets that rows and settings refer to", "induscode.commands.secrets"),
    "settings": LazyCommand("show, change and check the settings", "induscode.commands.settings"),
    "completion": LazyCommand("print the completion script of a shell", "induscode.commands.program"),
}


def run(arguments: Sequence[str]) -> int:
    """Run `indus` with these arguments and return its exit code."""
    if COMPLETE_VARIABLE in os.environ:
        return complete(_indus)
    try:
        # Don't use click's `main`: it turns a broken pipe into exit code 1 (https://click.palletsprojects.com/en/stable/exceptions/).
        with _indus.make_context("indus", list(arguments), obj=print_status) as context:
            code = _indus.invoke(context)
            return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exc:  # raised by click after `--help`
        return exc.exit_code
    except click.Abort:  # Ctrl-C or the end of input at a question of click
        raise KeyboardInterrupt from None
    except click.ClickException as exc:
        if isinstance(exc, click.NoSuchOption):
            closest = get_close_matches(exc.option_name, exc.possibilities or (), 1)
            exc = click.NoSuchOption(exc.option_name, possibilities=closest, ctx=exc.ctx)
        message = exc.format_message()
        stop = "" if message.endswith((".", "?", ")")) else "."
        # Our own messages have the answer; those of the parser don't.
        if type(exc) is not click.UsageError or message.startswith("Got unexpected"):
            named = exc.ctx.command_path if isinstance(exc, click.UsageError) and exc.ctx is not None else "indus"
            stop += f" See '{named.rstrip()} --help'."
        print_status(f"{message}{stop}")
        return exc.exit_code
    except CoreError as exc:
        print_status(str(exc))
        return 1
    finally:
        hide_live_lines()


def root_command() -> click.Group:
    """Return the root command."""
    return _indus


class _Indus(CommandGroup):
    """Lists options by group, and takes several words in one argument for the first prompt of a session."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and len(args[0].split()) > 1:
            return "", _session, args
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            if args[0] in self.table or "Did you mean" in exc.message:
                raise
            prompt = ctx.params.get("print")
            if prompt in {name for spec in flag_specs() for name in (spec.name, *spec.aliases)}:
                message = f"-p needs a prompt before {prompt}: {_PROMPT} {prompt}"
                raise click.UsageError(message, ctx) from None
            raise click.UsageError(f"{exc.message}. To ask a model: indus -p {shlex.quote(args[0])}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


@click.command(
    cls=_Indus,
    commands=_COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[build_option(spec) for spec in flag_specs()],
)
@click.version_option(__version__, "-V", "--version", message="indus %(version)s")
@click.pass_context
def _indus(context: click.Context, **_: object) -> int:
    """One gateway, one agent, one log for all your MCP tools."""
    if context.invoked_subcommand is not None:
        return 0
    invocation = read_invocation(context)
    if invocation.prompt is None:
        return _open_session(context, invocation)
    return _run_agent(invocation)


@click.command(params=[build_option(spec) for spec in flag_specs()], hidden=True)
@click.argument("prompt")
@click.pass_context
def _session(context: click.Context, prompt: str, **_: object) -> int:
    """Open a session with its first prompt."""
    invocation = read_invocation(context)
    if invocation.prompt is not None:
        raise click.UsageError(f"-p has a prompt already, so {prompt!r} is one too many")
    return _open_session(context, invocation, prompt)


def _open_session(context: click.Context, invocation: Invocation, prompt: str = "") -> int:
    if needing := {"--output-format", "--verbose", "--fail-on-denied"}.intersection(list_given_flags(context)):
        raise click.UsageError(f"{min(needing)} needs a prompt ({_PROMPT})")
    if not is_interactive():
        raise click.UsageError(f"There is no terminal: give a prompt ({_PROMPT}) or a command")
    if os.environ.get("TERM") in {"dumb", ""}:
        invocation = replace(invocation, plain=True)
    return _run_agent(invocation, prompt)


def _run_agent(invocation: Invocation, first: str = "") -> int:
    """Answer one prompt, or without one run the interactive session, with the `first` prompt if there's one.

    The garbage collector takes a fifth of the import time and finds nothing, so it's off until the session turns it on
    after its imports. At the end we freeze all objects (https://docs.python.org/3/library/gc.html#gc.freeze), so that
    the interpreter doesn't traverse them once more at exit.
    """
    if invocation.allow:
        from induscode.permissions import parse_flag_rules  # noqa: PLC0415 — for this flag

        parse_flag_rules(invocation)  # a wrong rule before a missing model
    require_agent()
    gc.disable()
    try:
        if invocation.prompt is None:
            from induscode.frontends.terminal.app import run_interactive  # noqa: PLC0415 — imports prompt_toolkit

            return run_interactive(invocation, first)
        from induscode.conversations.run import run_headless  # noqa: PLC0415 — imports the model loop

        return run_headless(invocation)
    finally:
        gc.freeze()
        gc.enable()


# -- completion (https://click.palletsprojects.com/en/stable/shell-completion/) ---------------

_NAME = "indus"
_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_HELP = """Print the completion script of a SHELL.

\b
bash:  eval "$(indus completion bash)"    in ~/.bashrc
zsh:   eval "$(indus completion zsh)"     in ~/.zshrc
fish:  indus completion fish | source     in ~/.config/fish/config.fish
"""


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(tuple(_SHELLS)))
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    """Print the completion script of a shell."""
    completer = _SHELLS[shell](context.find_root().command, {}, _NAME, COMPLETE_VARIABLE)
    # Don't use click's `source`: it starts a bash to read its version.
    print_line(completer.source_template % completer.source_vars())
    return 0


def complete(root: click.Command) -> int:
    """Answer the completion script: print possible completions of the line."""
    instruction = os.environ.get(COMPLETE_VARIABLE, "")
    try:
        return shell_complete(root, {}, _NAME, COMPLETE_VARIABLE, instruction)
    except click.UsageError:  # the line is already invalid
        return 0
