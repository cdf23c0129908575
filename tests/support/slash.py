"""Slash commands that are entered on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.terminal import Terminal

WIDE = 240
"""Columns in which no line of a command is wrapped."""


def wait_for_answer(terminal: Terminal, line: str, answer: str) -> None:
    """Enter a command, and wait for a text below it."""
    mark = f"> {line}\n"
    before = terminal.text.count(mark)
    terminal.enter(line)
    terminal.wait_for(lambda: terminal.text.count(mark) > before and answer in terminal.text.rpartition(mark)[2])
