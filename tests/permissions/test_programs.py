"""The table of programs against the installed programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from induscode.deck.programs.git import Program
from induscode.deck.programs.table import PROGRAMS
from induscode.permissions.shell.arguments import find_problem
from induscode.permissions.shell.parse import parse_command

if TYPE_CHECKING:
    from collections.abc import Iterator

HELP = {
    "cp": ("--help",), "curl": ("--help", "all"), "date": ("--help",), "file": ("--help",),
    "find": ("--help",), "gzip": ("--help",), "ln": ("--help",), "make": ("--help",),
    "mkdir": ("--help",), "mv": ("--help",), "rm": ("--help",), "rmdir": ("--help",),
    "sed": ("--help",), "shuf": ("--help",), "sort": ("--help",), "tar": ("--help",),
    "touch": ("--help",), "uniq": ("--help",), "wget": ("--help",), "rg": ("--help",),
    "chmod": ("--help",), "chown": ("--help",), "pytest": ("--help",), "fd": ("--help",),
    "tree": ("--help",), "rsync": ("--help",), "unzip": ("-hh",), "zip": ("-h2",),
}  # fmt: skip


def list_options(program: Program) -> Iterator[str]:
    """List the harmless options of a program as written on a command line."""
    yield from (f"-{letter}" for letter in program.flags + program.values + program.optional)
    yield from (f"--{name.removesuffix('=')}" for name in program.long.split())
    yield from (f"-{name.removesuffix('=')}" for name in program.words.split())


_OPTION = re.compile(r"(?<![\w-])(--?)(?:\[no-\])?([A-Za-z0-9.][\w.-]*)")
_ACT = re.compile(
    r"(?:write|save|output|append|store|dump)s?\b.*\b(?:to|into|in)\b.*\b(?:FILE|<file>|file)\b"
    r"|\b(?:run|execute|exec|invoke|pipe)\b.*\b(?:CMD|COMMAND|PROG|PROGRAM|command|program|script)\b"
)
_NOT_ACTS = {
    "sort": {"--debug"},
    "tar": {"-O", "-f", "--file", "--list", "-c", "-r", "-u", "-A", "-d", "-W", "--verify"},
    "make": {"-n", "--dry-run", "--just-print"},
    "find": {"-print0"},
    "gzip": {"-c", "--stdout", "-d", "--decompress"},
    "zip": {"-r"},
    "file": {"-b", "--brief"},
}
"""Options with such words in their description that do no more than the program itself."""


@cache
def help_of(name: str) -> str | None:
    """Read the help text of a program; None if it is not installed."""
    path = shutil.which(name, path=f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin")
    if path is None:
        return None
    done = subprocess.run([path, *HELP[name]], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def options_in(text: str) -> set[str]:
    found = {f"{dashes}{name}" for dashes, name in _OPTION.findall(text)}
    return found | {one[: one.index("[")] for one in found if "[" in one}


def described(text: str) -> Iterator[tuple[set[str], str]]:
    """Split a help text into options and their descriptions."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if re.match(r"\s{1,8}-", line):
            more = [one for one in lines[at + 1 : at + 3] if re.match(r"\s{12,}[^-\s]", one)]
            head = re.split(r"\s{2,}", line.strip())[0]
            yield options_in(head), " ".join([line, *more])


@pytest.mark.process
@pytest.mark.parametrize("name", HELP)
def test_finding_d3_harmless_options_exist_in_the_program(name: str) -> None:
    text = help_of(name)
    if text is None:
        pytest.skip(f"{name} is not installed")
    known = options_in(text) | set(re.findall(r"(?<=[\s\[(|])-\w+", text))
    letters = {one[1] for one in known if re.fullmatch(r"-\w", one)}
    listed = set(list_options(PROGRAMS[name]))
    missing = {
        one for one in listed if one not in known and not (len(one) == 2 and (one[1] in letters or one[1] in text))
    }
    assert missing <= _OF_OTHER_VERSIONS.get(name, set())


_OF_OTHER_VERSIONS: dict[str, set[str]] = {
    "find": {"-and", "-not", "-or", "-a", "-o", "-newermt", "-newerct", "-newerat", "-false", "-ipath", "-samefile"},
    "gzip": {"--to-stdout", *(f"-{digit}" for digit in range(2, 9))},
    "zip": {f"-{digit}" for digit in range(1, 9)},
    "pytest": {"--cov", "--cov-branch", "--cov-report", "--no-cov"},  # of the plugin pytest-cov
    "rg": {"--no-heading"},
}
"""Options that the help text omits, or writes in another way."""


@pytest.mark.parametrize("name", HELP)
def test_finding_d3_options_whose_help_says_run_or_write_are_not_harmless(name: str) -> None:
    text = help_of(name)
    if text is None:
        pytest.skip(f"{name} is not installed")
    bounded = _NOT_ACTS.get(name, set()) | set(PROGRAMS[name].value_patterns)
    harmless = set(list_options(PROGRAMS[name])) - bounded
    wrong = {option: said for options, said in described(text) for option in options & harmless if _ACT.search(said)}
    assert wrong == {}


_NO_PROGRAMS = {"break", "cd", "continue", "dirs", "exit", "popd", "pushd", "return", "shift", "type"}
"""Words of the shell itself, which have no help text of their own."""
READERS = sorted(
    name
    for name, program in PROGRAMS.items()
    if program.any_options and name.isalnum() and name not in _NO_PROGRAMS | {"yes"}
)


@pytest.mark.parametrize("name", READERS)
def test_finding_d3_help_of_read_only_programs_names_no_harmful_option(name: str) -> None:
    path = shutil.which(name, path="/usr/bin:/bin")
    if path is None:
        pytest.skip(f"{name} is no program here")
    done = subprocess.run(
        [path, "--help"], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    acting = {option for options, said in described(done.stdout) for option in options if _ACT.search(said)}
    assert acting <= _READER_EXCEPTIONS.get(name, set())


_READER_EXCEPTIONS = {"tail": {"-c", "--bytes"}}


def _all_programs() -> Iterator[tuple[str, Program]]:
    waiting = [*PROGRAMS.items()]
    while waiting:
        name, program = waiting.pop()
        yield name, program
        waiting += [(f"{name} {sub}", one) for sub, one in program.subcommands.items()]


def test_finding_d3_no_option_is_both_harmless_and_acting() -> None:
    both = {
        name: found
        for name, program in _all_programs()
        if (found := set(list_options(program)) & set(program.acts.split()))
    }
    assert both == {}


@pytest.mark.parametrize("name", sorted(name for name, one in PROGRAMS.items() if one.acts))
def test_finding_d3_acting_option_is_a_problem_unless_the_rule_names_it(name: str) -> None:
    for option in PROGRAMS[name].acts.split():
        if not option.startswith("-"):
            continue
        words = parse_command(f"{name} {option} value").commands[0].words
        problem = find_problem(words, frozenset({0}))
        assert problem is not None, option
        if option.startswith("--") and len(option) > 6:
            shorter = parse_command(f"{name} {option[:-1]}=value").commands[0].words
            assert find_problem(shorter, frozenset({0})) is not None, option
