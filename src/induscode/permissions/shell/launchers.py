"""Programs that run other commands, as `launches` of the table of programs says.

A wrapper (`nohup`, `timeout`) adds nothing to the command it starts: rules are compared with that command. A runner
(`xargs`, `ssh`) starts what its arguments say in its own way: no rule allows it, and everything that it may start is
compared with deny rules.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from induscode.deck.programs.table import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

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
"""Programs that can copy another program, or give it another name."""
VARIABLE_SETTERS = names(
    "read mapfile readarray getopts let wait eval source . unset declare typeset local readonly export printf"
)
"""Builtins that assign variables in ways the parser does not follow."""


def base_name(text: str) -> str:
    """Give the name of a program without its directory."""
    return os.path.basename(text.rstrip("/"))


def find_launch(name: str) -> Launch | None:
    """Find how a program runs other commands; None if it doesn't, or only because of an option."""
    return PROGRAMS[name].launches if name in PROGRAMS else None


def find_runner(words: Sequence[Word]) -> str | None:
    """Describe why no rule allows a command; None if rules may."""
    name = base_name(words[0].shown)
    if len(words) > 1 and words[1].text in (PROGRAMS[name].subcommands if name in PROGRAMS else ()):
        return None
    if find_launch(name) == "runner" or name.startswith(_LOADERS):
        return f"{name} runs other commands"
    if name in SHELL_CHANGERS:
        return f"{name} changes what later commands mean"
    return None


def runs_input(words: Sequence[Word]) -> bool:
    """Tell whether a command runs its standard input: a shell without a script, most runners.

    The input of xargs and parallel becomes arguments; it is run if they start a shell, a runner or nothing named.
    """
    name, *arguments = (base_name(word.shown) for word in words)
    operands = [text for text in arguments if not text.startswith("-")]
    if name in {"xargs", "parallel"}:
        return not operands or any(map(find_launch, operands))
    return find_launch(name) == "runner" or (find_launch(name) == "shell" and not operands)


def find_shell_code(words: Sequence[Word]) -> Word | None:
    """Give the argument of a shell's `-c`; None if its commands are elsewhere."""
    options = [index for index, word in enumerate(words) if _RUNS_TEXT.fullmatch(word.shown)]
    for word in words[options[0] + 1 :] if options else ():
        if word.text is None or not word.text.startswith(("-", "+")):
            return word
    return None


_STARTS = frozenset({"{", "(", "!", "if", "for", "while", "until", "case", "function", "[[", "(("})


def unwrap_command(words: Sequence[Word]) -> Sequence[Word] | None:
    """Give the command that a wrapper starts, empty if there is none; None if it is uncertain.

    For `env` the assignments before the command are a part of the result.
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
            index += 1  # the next word is its value
    index += wrapper.further
    rest = words[index:]
    if not rest or words[0].shown == "env":
        return rest
    return None if rest[0].shown in _STARTS or "=" in rest[0].shown else rest


def is_lookup(words: Sequence[Word]) -> bool:
    """Tell whether this is `command -v name`, which looks up a name and runs nothing."""
    return len(words) > 1 and words[0].text == "command" and words[1].text in {"-v", "-V"}
