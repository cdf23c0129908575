"""The table of programs as it was reviewed: a change of what is harmless is made here a second time."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from induscode.deck.programs.git import Program
from induscode.deck.programs.table import MODULES, PROGRAMS
from induscode.permissions.shell.arguments import find_problem, starts_commands
from induscode.permissions.shell.parse import parse_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REVIEWED = Path(__file__).with_name("reviewed_programs.txt")


def describe(name: str, program: Program) -> Iterator[str]:
    """Describe a program and its subcommands, a line for each; fields with their default are left out."""
    default = Program()
    facts = [
        f"{one.name}={value!r}"
        for one in fields(program)
        if one.name != "subcommands" and (value := getattr(program, one.name)) != getattr(default, one.name)
    ]
    yield " ".join(" ".join([f"{name}:", *facts]).replace(r"\n", " ").split())
    for sub, one in sorted(program.subcommands.items()):
        yield from describe(f"{name} {sub}", one)


def describe_all(programs: Mapping[str, Program]) -> list[str]:
    """Describe programs; those that are alike share their lines."""
    alike: dict[str, list[str]] = {}
    for name, program in sorted(programs.items()):
        alike.setdefault("\n".join(describe("*", program)), []).append(name)
    return [line for text, names in alike.items() for line in (" ".join(names), *text.splitlines())]


def test_the_table_is_the_reviewed_one() -> None:
    found = [*describe_all(PROGRAMS), "-- modules of python", *describe_all(MODULES)]
    if os.environ.get("INDUS_APPROVE"):
        REVIEWED.write_text("\n".join(found) + "\n", "utf-8")
    assert found == REVIEWED.read_text("utf-8").splitlines()


@pytest.mark.parametrize(
    ("command", "is_covered"),
    [
        # Only the first operand is the name of a package, or a format.
        ("npx create-app git", True), ("npx git create-app", False), ("npx ruff", True), ("npx env", False),
        ("npx xargs", False), ("npx ./x", False), ("printf %s %n", True), ("printf %n %s", False),
        # `@file` stands for arguments in some programs.
        ("ruff check @f", False), ("ruff format @f", False), ("mypy @f", False), ("tsc @f", False), ("cat @f", True),
        ("ruff check f", True), ("ruff format f", True),
        # A further operand is a file that is written.
        ("uniq a", True), ("uniq a b", False), ("hostname", True), ("hostname x", False), ("man ls", True),
        # `-5` is an option of some programs.
        ("git log -5", True), ("sort -5", False),
        ("test -t 1", True), ("test -t x", False), ("test 1 -eq 2", True), ("test a -eq 2", False),
        ("test 1 -eq b", False), ("test -n x", True), ("test -v x", False), ("test a = b", True),
        ("python3 -m pytest x", True), ("python3 -m http.server", False), ("python3 x.py", True),
        ("python3", False), ("python3 --version", True), ("node inspect", False), ("node x.js", True),
        ("sed -n 1,5p f", True), ("sed 's/a/b/;p' f", True), ("sed 'w f' f", False), ("sed", False),
        ("awk '{print $1}' f", True), ("awk '{print > f}' f", False), ("awk", False),
        ("tar", False), ("tar tf x.tar", True), ("tar -xf host:x", False), ("tar -xf ./a:b", True),
        ("curl -d @f x.org", False), ("curl -d a x.org", True), ("curl -H @f x.org", False), ("curl -o f x.org", False),
        ("curl -o /dev/null x.org", True),
    ],
)  # fmt: skip
def test_a_rule_for_any_arguments_covers_what_is_harmless_alone(command: str, *, is_covered: bool) -> None:
    words = parse_command(command).commands[0].words
    assert (find_problem(words) is None) is is_covered


@pytest.mark.parametrize(
    ("command", "run"),
    [("env", []), ("env A=1", ["env A=1"]), ("env A=1 ls", ["ls"]), ("env A=1 B=2 ls -l", ["ls -l"]), ("nohup", []),
     ("nohup ls", ["ls"]), ("[ -f x ]", ["test -f x"])],
)  # fmt: skip
def test_a_wrapper_is_looked_through_and_kept_if_it_starts_nothing(command: str, run: list[str]) -> None:
    found = parse_command(command).commands
    assert [" ".join(word.shown for word in one.words) for one in found] == run


@pytest.mark.parametrize(
    ("name", "starts"),
    [("ls", False), ("git", False), ("npx", True), ("uv", True), ("uvx", True), ("unheard-of", True)],
)
def test_programs_that_take_their_arguments_for_a_command_are_known(name: str, *, starts: bool) -> None:
    assert starts_commands(name) is starts
