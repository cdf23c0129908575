"""What the gate knows of a program: which of its options and operands are harmless. Shapes only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Check: TypeAlias = Literal["awk", "npx", "printf", "script", "sed", "tar", "test"]
"""Programs whose operands say what they do: which function of `arguments` looks at them."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Harmless options of more than a letter behind one hyphen; with `=` those with a value."""
    acts: str = ""
    """Options that run a command or write a file."""
    any_options: bool = False
    """Whether no option runs or writes anything."""
    always_acts: bool = False
    """Whether its operands alone say what it runs, or where it writes."""
    numeric: bool = False
    """Whether `-5` is an option."""
    ends_options: bool = True
    """Whether `--` makes operands of all that follows."""
    options_first: bool = False
    """Whether options end at the first operand."""
    old_style: bool = False
    """Whether the first operand is a bundle of options: `tar cf`."""
    value_patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the values of some options must look like, by the option as it is written."""
    operand: str = ""
    """What a known operand must look like, as a pattern; anything if empty."""
    most_operands: int | None = None
    """How many operands it only reads; one more is a file it writes."""
    subcommands: Mapping[str, Program] = field(default_factory=dict[str, "Program"])
    argument_files: bool = False
    """Whether `@file` stands for the arguments in that file."""
    starts: bool = False
    """Whether its operands are another command with its arguments."""
    check: Check | None = None


ACTS = Program(always_acts=True)
PLAIN = Program()
INSIDE = r"(?![/~+-])(?!.*(?:\.\.|[=:])).+"
"""A path that stays below the directory."""
