"""Programs that run other commands, marked by `launches` in the program table.

A wrapper (`nohup`, `timeout`) adds nothing to the command it starts, so rules match that command. A runner (`xargs`,
`ssh`) interprets its arguments in its own way, so no rule allows it, and deny rules match everything it may start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from induscode.deck.programs.table import PROGRAMS

if TYPE_CHECKING:
    from induscode.deck.programs.git import Launch
    from induscode.permissions.shell.syntax import Word


def names(text: str) -> frozenset[str]:
    """Split a text into a set of names."""
    return frozenset(text.split())


_LOADERS = ("ld.so", "ld-linux", "ld-musl")
"""Names of the dynamic loader, which runs its argument: https://man7.org/linux/man-pages/man8/ld.so.8.html."""
_RUNS_TEXT = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
SHELL_CHANGERS = names(
    "alias unalias hash enable set shopt read mapfile readarray getopts let unset export declare"
    " typeset local readonly complete bind ulimit umask"
)
"""Builtins that can change the meaning of later names."""
MOVERS = frozenset({"cd", "pushd", "popd"})
COPIERS = names("alias cat cp dd hash install ln mv rsync tee")
"""Programs that can copy or rename another program."""
VARIABLE_SETTERS = names(
    "read mapfile readarray getopts let wait eval source . unset declare typeset local readonly export printf"
)
"""Builtins that assign variables in ways the parser doesn't follow."""


def base_name(text: str) -> str:
    """Return the name of a program without its directory."""
    return os.path.basename(text.rstrip("/"))


def find_launch(name: str) -> Launch | None:
    """Return how a program runs other commands, or `None` if it doesn't, or only with some option."""
    return PROGRAMS[name].launches if name in PROGRAMS else None


def find_runner(words: Sequence[Word]) -> str | None:
    """Return the reason why no rule can allow a command, or `None` if rules can."""
    name = base_name(words[0].shown)
    if len(words) > 1 and words[1].text in (PROGRAMS[name].subcommands if name in PROGRAMS else ()):
        return None
    if find_launch(name) == "runner" or name.startswith(_LOADERS):
        return f"{name} runs other commands"
    if name in SHELL_CHANGERS:
        return f"{name} changes what later commands mean"
    return None


def runs_input(words: Sequence[Word]) -> bool:
    """Return whether a command runs its standard input, like a shell without a script and most runners.

    For xargs and parallel, input becomes arguments. It runs if they start a shell or runner, or name no program.
    """
    name, *arguments = (base_name(word.shown) for word in words)
    operands = [text for text in arguments if not text.startswith("-")]
    if name in {"xargs", "parallel"}:
        return not operands or any(map(find_launch, operands))
    return find_launch(name) == "runner" or (find_launch(name) == "shell" and not operands)


def find_shell_code(words: Sequence[Word]) -> Word | None:
    """Return the argument of a shell's `-c`, if any."""
    options = [index for index, word in enumerate(words) if _RUNS_TEXT.fullmatch(word.shown)]
    for word in words[options[0] + 1 :] if options else ():
        if word.text is None or not word.text.startswith(("-", "+")):
            return word
    return None


_STARTS = frozenset({"{", "(", "!", "if", "for", "while", "until", "case", "function", "[[", "(("})


def unwrap_command(words: Sequence[Word]) -> Sequence[Word] | None:
    """Return the command that a wrapper starts (possibly empty), or `None` if that's uncertain.

    For `env`, the result includes the assignments before the command.
    """
    wrapper = PROGRAMS[words[0].shown]
    index = 1
    while index < len(words):
        text = words[index].text
        if text is None:
            return None
        if not text.startswith("-"):
            break
        index += 1
        if text == "--":
            break
        letters = text[1:]
        is_number = wrapper.numeric and letters.isdigit()
        if is_number or (letters and all(letter in wrapper.flags for letter in letters)):
            continue
        if not letters or letters[0] not in wrapper.values:
            return None
        if len(letters) == 1:
            index += 1  # skip its value
    index += wrapper.further
    rest = words[index:]
    if not rest or words[0].shown == "env":
        return rest
    return None if rest[0].shown in _STARTS or "=" in rest[0].shown else rest


def is_lookup(words: Sequence[Word]) -> bool:
    """Return whether this is `command -v name`, which just looks up a name."""
    return len(words) > 1 and words[0].text == "command" and words[1].text in {"-v", "-V"}
