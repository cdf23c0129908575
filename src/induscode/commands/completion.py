"""`indus completion`: the script by which a shell completes what is typed after `indus`."""

from __future__ import annotations

import os

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete, shell_complete

from induscode.commands import COMPLETE_VARIABLE
from induscode.terminal import print_line

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
    made = _SHELLS[shell](context.find_root().command, {}, _NAME, COMPLETE_VARIABLE)
    # Not by its own `source`, which starts a bash to ask for its version.
    print_line(made.source_template % made.source_vars())
    return 0


def complete(root: click.Command) -> int:
    """Answer a shell that runs the script and asks how a line may go on."""
    instruction = os.environ.get(COMPLETE_VARIABLE, "")
    try:
        return shell_complete(root, {}, _NAME, COMPLETE_VARIABLE, instruction)
    except click.UsageError:  # the line is wrong already: there is no way on
        return 0
