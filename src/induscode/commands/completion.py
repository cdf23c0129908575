"""`indus completion`: prints the completion script of a shell, and answers its requests.

See https://click.palletsprojects.com/en/stable/shell-completion/.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete, shell_complete

from induscode.cli.terminal import print_line
from induscode.commands import COMPLETE_VARIABLE

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
    # Not by click's `source`, which starts a bash to read its version.
    print_line(completer.source_template % completer.source_vars())
    return 0


def complete(root: click.Command) -> int:
    """Answer a request of the completion script: print how the line may go on."""
    instruction = os.environ.get(COMPLETE_VARIABLE, "")
    try:
        return shell_complete(root, {}, _NAME, COMPLETE_VARIABLE, instruction)
    except click.UsageError:  # the line is invalid already
        return 0
