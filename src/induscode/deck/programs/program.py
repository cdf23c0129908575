"""The facts about one program that permissions, saved rules and checkpoints need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from indusagi.core.records import record

Check: TypeAlias = Literal["awk", "npx", "printf", "script", "sed", "tar", "test"]
"""The function of `arguments` for a program whose operands say what it does."""

Launch: TypeAlias = Literal["runner", "shell", "wrapper"]
"""How a program runs other commands: as its arguments or its input say, as a shell, or as they are."""


@record(kw_only=True)
class Program:
    """One program, or one subcommand of it."""

    flags: str = ""
    """Harmless short options without a value."""
    values: str = ""
    """Harmless short options with a value, joined or as the next word."""
    optional: str = ""
    """Harmless short options with a value that can only be joined."""
    long: str = ""
    """Harmless long options; with `=` at the end those that need a value."""
    words: str = ""
    """Harmless options of several letters behind one hyphen; with `=` at the end those with a value."""
    acts: str = ""
    """Options that run a command or write a file."""
    any_options: bool = False
    """Whether every option is harmless."""
    always_acts: bool = False
    """Whether its operands alone make it run or write something."""
    numeric: bool = False
    """Whether `-5` is an option."""
    ends_options: bool = True
    """Whether `--` ends the options (POSIX Utility Syntax Guideline 10)."""
    options_first: bool = False
    """Whether options end at the first operand."""
    old_style: bool = False
    """Whether the first operand is a bundle of options: `tar cf`."""
    value_patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Patterns for the values of some options, by the option as it is written."""
    operand: str = ""
    """Pattern for a known operand; empty for any."""
    most_operands: int | None = None
    """Number of operands that it reads; a further one is a file that it writes."""
    subcommands: Mapping[str, Program] = field(default_factory=dict[str, "Program"])
    argument_files: bool = False
    """Whether `@file` stands for the arguments in that file."""
    starts: bool = False
    """Whether its operands are another command with its arguments."""
    fetches: bool = False
    """Whether it may fetch the command that it starts: only a rule that names the command covers it."""
    further: int = 0
    """How many of its operands say what it does, such as the target of `make`; of a wrapper, how many come before the
    command."""
    launches: Launch | None = None
    check: Check | None = None


ACTS = Program(always_acts=True)
PLAIN = Program()
INSIDE = r"(?![/~+-])(?!.*(?:\.\.|[=:])).+"
"""A path below the working directory."""
