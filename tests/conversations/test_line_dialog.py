"""Questions on a terminal in line mode, with a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import Mock

import anyio
import pytest
from anyio import to_thread

from indusagi.core.cancel import CancelToken
from induscode.cli.dialog import Choice, Question, Reply
from induscode.cli.terminal import print_status
from induscode.conversations import line_dialog
from induscode.conversations.line_dialog import LineDialog, find_choice, find_line_dialog

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.anyio

CHOICES = (
    Choice(key="y", label="Yes"),
    Choice(key="s", label="yes, for this session"),
    Choice(key="n", label="no", takes_text=True),
)
QUESTION = Question(title="bash wants to run: ls", lines=('tool: "bash"',), choices=CHOICES, default="n")
WAIT_S = 60


class Terminal:
    """The person's side of a pseudo-terminal."""

    def __init__(self) -> None:
        self.ours, self.theirs = os.openpty()
        self.path = os.ttyname(self.theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def read_until(self, text: str) -> str:
        """Read what is shown until it holds a text; give everything since the last such call."""
        while text not in self.seen:
            self.seen += os.read(self.ours, 65_536).decode()
        end = self.seen.index(text) + len(text)
        shown, self.seen = self.seen[:end], self.seen[end:]
        return shown

    def modes(self) -> list[object]:
        return termios.tcgetattr(self.theirs)

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


@contextmanager
def opened() -> Generator[Terminal]:
    terminal = Terminal()
    try:
        yield terminal
    finally:
        terminal.close()


async def answer(
    terminal: Terminal, question: Question, *steps: tuple[str, str], cancel: CancelToken | None = None
) -> Reply:
    """Put a question, and type each text once the text before it is shown."""
    dialog = LineDialog(terminal.path, cancel)

    async def type_answers() -> None:
        for shown, text in steps:
            await to_thread.run_sync(terminal.read_until, shown)
            await to_thread.run_sync(terminal.type, text)

    reply = Reply()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(type_answers)
            reply = await dialog.ask(question)
    return reply


@pytest.mark.parametrize(
    ("typed", "reply"),
    [
        ("y\n", Reply("y")),
        ("Y\n", Reply("y")),
        ("yes\n", Reply("y")),
        ("s\n", Reply("s")),
        ("\n", Reply("n")),
        ("n not on Fridays\n", Reply("n", "not on Fridays")),
        ("no, later\n", Reply("n", "later")),
        ("\x04", Reply(cancelled=True)),
        ("abc\x04\x04", Reply(cancelled=True)),
    ],
)
async def test_one_line_answers_a_question(typed: str, reply: Reply) -> None:
    with opened() as terminal:
        assert await answer(terminal, QUESTION, ("Enter: n): ", typed)) == reply


async def test_question_shows_its_facts_and_choices() -> None:
    with opened() as terminal:
        await answer(terminal, QUESTION, ("bash wants to run: ls\r\n", ""), ('  tool: "bash"\r\n', ""), ("[y] ", "y\n"))


async def test_no_alone_is_followed_by_the_reason() -> None:
    with opened() as terminal:
        first = ("Enter: n): ", "n\n")
        assert await answer(terminal, QUESTION, first, ("why?", "too slow\n")) == Reply("n", "too slow")
    with opened() as terminal:
        assert await answer(terminal, QUESTION, first, ("why?", "\n")) == Reply("n")
    with opened() as terminal:
        assert await answer(terminal, QUESTION, first, ("why?", "\x04")) == Reply(cancelled=True)


@pytest.mark.parametrize("typed", ["yes but only the first\n", "x\n", "ys\n"])
async def test_unclear_answer_is_asked_about_again(typed: str) -> None:
    with opened() as terminal:
        steps = (("Enter: n): ", typed), ("Type y, s or n and press Enter.", "y\n"))
        assert await answer(terminal, QUESTION, *steps) == Reply("y")


async def test_endless_unclear_answers_count_as_cancelled() -> None:
    with opened() as terminal:
        steps = [("Enter: n): ", "x\n")] * 20
        assert await answer(terminal, QUESTION, *steps) == Reply(cancelled=True)


async def test_free_text_is_checked() -> None:
    question = Question(title="How many?", check=lambda text: None if text.isdigit() else "Type a number.")
    with opened() as terminal:
        steps = (("answer: ", "many\n"), ("Type a number.", " 12 \n"))
        assert await answer(terminal, question, *steps) == Reply(text="12")


async def test_secret_is_not_echoed_and_the_modes_are_restored() -> None:
    with opened() as terminal:
        before = terminal.modes()
        question = Question(title="Password?", secret=True)
        assert await answer(terminal, question, ("answer: ", "hunter2\n")) == Reply(text="hunter2")
        assert terminal.modes() == before
        terminal.type("end\n")
        assert "hunter2" not in await to_thread.run_sync(terminal.read_until, "end")


def test_secret_is_hidden_while_all_other_modes_stay() -> None:
    with opened() as terminal:
        before = termios.tcgetattr(terminal.theirs)
        with line_dialog._input_modes(terminal.theirs, hidden=True):
            during = termios.tcgetattr(terminal.theirs)
        assert during[3] == (before[3] & ~termios.ECHO) | termios.ECHONL
        assert (during[:3], during[4:]) == (before[:3], before[4:])
        assert termios.tcgetattr(terminal.theirs) == before


async def test_text_typed_before_the_question_is_no_answer() -> None:
    with opened() as terminal:
        terminal.type("y\n")
        assert await answer(terminal, QUESTION, ("Enter: n): ", "n\n"), ("why?", "\n")) == Reply("n")


@pytest.mark.parametrize("secret", [False, True])
async def test_cancel_token_ends_an_open_question(secret: bool) -> None:
    token = CancelToken()
    with opened() as terminal:
        before = terminal.modes()
        dialog = LineDialog(terminal.path, token)
        replies: list[Reply] = []

        async def ask() -> None:
            replies.append(await dialog.ask(Question(title="?", secret=secret)))

        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await to_thread.run_sync(terminal.read_until, "answer: ")
                token.cancel("SIGINT")
        assert replies == [Reply(cancelled=True)]
        assert terminal.modes() == before
        assert await dialog.ask(QUESTION) == Reply(cancelled=True)  # it stays cancelled


async def test_cancelled_scope_leaves_no_thread_and_a_sane_terminal() -> None:
    with opened() as terminal:
        before = terminal.modes()
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(LineDialog(terminal.path).ask, Question(title="?", secret=True))
                await to_thread.run_sync(terminal.read_until, "answer: ")
                assert terminal.modes() != before
                tasks.cancel_scope.cancel()
        assert terminal.modes() == before


async def test_cancelled_task_leaves_no_thread_and_a_sane_terminal() -> None:
    # The connection of a server cancels the tasks of its requests without a scope.
    with opened() as terminal:
        before = terminal.modes()
        with anyio.fail_after(WAIT_S):
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(LineDialog(terminal.path).ask(Question(title="?", secret=True)))
                await to_thread.run_sync(terminal.read_until, "answer: ")
                task.cancel()
        assert task.cancelled()
        assert terminal.modes() == before


async def test_closed_terminal_counts_as_cancelled() -> None:
    terminal = Terminal()
    os.close(terminal.ours)
    try:
        # Its other end stays open: another process would be given its path for a new terminal.
        assert await LineDialog(terminal.path).ask(QUESTION) == Reply(cancelled=True)
    finally:
        os.close(terminal.theirs)


async def test_terminal_that_hangs_up_ends_the_question() -> None:
    terminal = Terminal()
    replies: list[Reply] = []

    async def ask() -> None:
        replies.append(await LineDialog(terminal.path).ask(QUESTION))

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await to_thread.run_sync(terminal.read_until, "Enter: n): ")
            os.close(terminal.ours)
    os.close(terminal.theirs)
    assert replies == [Reply(cancelled=True)]


async def test_status_lines_wait_for_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with opened() as terminal:
        dialog = LineDialog(terminal.path)
        with anyio.fail_after(WAIT_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(dialog.ask, QUESTION)
                await to_thread.run_sync(terminal.read_until, "Enter: n): ")
                print_status("progress")
                assert capsys.readouterr().err == ""
                await to_thread.run_sync(terminal.type, "y\n")
        assert capsys.readouterr().err == "indus: progress\n"
        dialog.show("shown")
        assert capsys.readouterr().err == "indus: shown\n"


def test_process_without_a_terminal_has_no_dialog(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_line_dialog() is None  # standard error is captured
    monkeypatch.setattr(sys, "stderr", None)
    assert find_line_dialog() is None


def test_dialog_is_found_on_the_terminal_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as terminal, open(terminal.path, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(line_dialog, "_TERMINAL", "/nonexistent")
        assert find_line_dialog() is None  # standard input is no terminal
        monkeypatch.setattr(sys, "stdin", stream)
        assert find_line_dialog() is not None


def test_terminal_of_another_process_group_is_not_asked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as terminal, open(terminal.path, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(line_dialog, "_TERMINAL", terminal.path)
        assert find_line_dialog() is None  # it controls no process
        for distance in (1, 0):
            monkeypatch.setattr(os, "tcgetpgrp", Mock(return_value=os.getpgrp() + distance))
            assert (find_line_dialog() is None) == bool(distance)


def test_choice_without_a_default_needs_a_key() -> None:
    question = Question(title="?", choices=CHOICES)
    assert find_choice(question, "") is None
    assert find_choice(question, "n") == (CHOICES[2], "")
