"""Exit codes of foreground commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.jobs import describe_exit
from indusagi.capabilities.tools.bash import explain_exit_code


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (137, "exit code 137 (SIGKILL)"),
        (-15, "ended by SIGTERM"),
        (-99, "ended by signal 99"),
        (255, "exit code 255"),
    ],
)
def test_exit_code_is_described(code: int, said: str) -> None:
    assert describe_exit(code) == said


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("grep 'a && b; c' file", "nothing matched"),
        ('X="a; b" /usr/bin/rg "x | y"', "nothing matched"),
        ("make; diff a b", "they differ"),
        ("cd a && mkdir -p b && grep x y", "nothing matched"),
        ("a | b | grep x", "nothing matched"),
        ("grep x y 2>&1", "nothing matched"),
        ("( grep x y )", "nothing matched"),
        ("grep x y &", "nothing matched"),
        *((f"{word} grep x y", "nothing matched") for word in ("command", "builtin", "time", "nice", "env")),
        ("if a; then grep x y; fi", None),
        ("{ grep x y; }", None),
        ("git diff --exit-code", "they differ"),
        ("diff <(sort a) <(sort b)", "they differ"),
        ("grep -c x $(ls f | head)", "nothing matched"),
        ("[ -f x ] && echo y", "not so"),
        ("grep -q x y && echo found && printf '%s' z", "nothing matched"),
        ("make && echo y", None),
        ("[ -f x ] && make", None),
        ("[ -f x ] || echo y", None),
        ("git", None),
        ("", None),
        ("X=1", None),
        ("# grep", None),
        ("make && grep x y", None),
        ("make || grep x y", None),
        ("set -e; make; grep x y", None),
        ("set -euo pipefail\nmake | grep x", None),
        ("set -o pipefail; make | grep x", None),
        ("set -eu; cd a; grep x y", None),
        ("set -x; make; grep x y", "nothing matched"),
        ("[ -e a ] || exit 1; grep x y", None),
        ("if make; then exit 1; fi; grep x y", None),
        ("grep 'unfinished", None),
        ("cat <<END | grep x\nEND", None),
        ("echo grep", None),
        ("grep x " + "y" * 5_000, None),
    ],
)
def test_exit_code_one_is_explained_by_the_last_program(command: str, answer: str | None) -> None:
    assert explain_exit_code(command, 1, "") == answer


def test_other_codes_and_shell_messages_are_failures() -> None:
    assert explain_exit_code("grep x y", 2, "") is None
    assert explain_exit_code("cd a && grep x y", 1, "bash: line 1: cd: a: No such file") is None


@given(st.text(max_size=200))
def test_explaining_an_exit_code_never_raises(command: str) -> None:
    """The verdict is a sentence of ours or none, whatever the text of the command."""
    verdict = explain_exit_code(command, 1, command)
    assert verdict is None or (verdict and verdict not in command)
