"""What is shown of an output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.jobs.exit_codes import explain_exit_code
from indusagi.capabilities.jobs.job import describe_exit
from indusagi.capabilities.jobs.text import is_binary, plain_text


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\ttext\n", "plain\ttext\n"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "textlink"),
        (b"\x1b(Bcharset\x1b=", "charset"),
        (b"a\x1b]0;no end\nb\nc\x1bPq\nd", "a\nb\nc\nd"),
        (b"a\x1bPpicture\nof lines\x1b\\b", "ab"),
        (b"a\xc2\x9b31mred\xc2\x9d0;title\xc2\x9cb\xc2\x84c", "aredbc"),
        (b"a\rb\rc\nd\r\n", "c\nd\n"),
        (b"N\x08NA\x08A", "NA"),
        (b"bell\x07 and \x00 nul", "bell and  nul"),
        ("häß \u202e".encode(), "häß \u202e"),
        (b"\xff", "\ufffd"),
    ],
)
def test_an_output_is_read_as_a_terminal_would_show_it(data: bytes, shown: str) -> None:
    assert plain_text(data) == shown


@given(st.binary(max_size=500))
def test_nothing_is_left_that_a_terminal_would_obey(data: bytes) -> None:
    shown = plain_text(data)
    assert not set(shown) & {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_plain_text_is_left_alone(text: str) -> None:
    assert plain_text(text.encode()) == text


@pytest.mark.parametrize(
    ("data", "binary"),
    [
        (b"", False),
        (b"text", False),
        ("日本語".encode() * 100, False),
        (b"\x1b[31m\x1b[0m" * 50, False),
        (b"\x7fELF\0\0", True),
        (bytes(range(128, 256)) * 10, True),
        ("é".encode() * 4095 + b"\xc3", False),
    ],
)
def test_bytes_are_told_from_text(data: bytes, binary: bool) -> None:
    assert is_binary(data) is binary


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
def test_how_a_command_ended_is_said_in_words(code: int, said: str) -> None:
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
        ("set -eu; cd a; grep x y", "nothing matched"),
        ("set -x; make; grep x y", "nothing matched"),
        ("[ -e a ] || exit 1; grep x y", None),
        ("if make; then exit 1; fi; grep x y", None),
        ("grep 'unfinished", None),
        ("cat <<END | grep x\nEND", None),
        ("echo grep", None),
        ("grep x " + "y" * 5_000, None),
    ],
)
def test_an_exit_code_of_one_means_what_the_last_program_means_by_it(command: str, answer: str | None) -> None:
    assert explain_exit_code(command, 1, "") == answer


def test_another_code_or_a_complaint_of_the_shell_is_a_failure() -> None:
    assert explain_exit_code("grep x y", 2, "") is None
    assert explain_exit_code("cd a && grep x y", 1, "bash: line 1: cd: a: No such file") is None


@given(st.text(max_size=200))
def test_any_command_can_be_judged(command: str) -> None:
    """The verdict is a sentence of ours or none, whatever the text of the command."""
    verdict = explain_exit_code(command, 1, command)
    assert verdict is None or (verdict and verdict not in command)
