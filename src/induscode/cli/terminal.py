"""Plain output of the program: status lines on standard error, results on standard output."""

from __future__ import annotations

import os
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from induscode.cli.console import print_status_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_STDOUT, _STDERR = 1, 2
_output: Callable[[str], object] | None = None
"""Receives status lines while a screen is shown; None: they go to standard error."""
_held: list[str] | None = None
"""Status lines that wait for the end of a question; None without a question."""


def escape_unprintable(text: str) -> str:
    """Escape every character that a terminal would interpret or cannot write."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escape_controls(text: str) -> str:
    """Escape the characters that a terminal would interpret; keep newlines, tabs and every kind of space."""
    # Spaces of other scripts are harmless; U+2028 and U+2029 count as space and end a line.
    return "".join(
        c
        if c.isprintable() or c in "\n\t" or (c.isspace() and c >= "\xa0" and c not in "\u2028\u2029")
        else c.encode("unicode_escape").decode()
        for c in text
    )


def is_interactive() -> bool:
    """Return whether standard input and standard output are both a terminal."""
    # A stream that was closed when the process started is None.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def print_status(message: str) -> None:
    """Print one line for people on standard error; a closed standard error is ignored."""
    if _output is not None:
        _output(" ".join(message.split()))
        return
    # Started with it closed, Python has no standard error, and `print` would take standard output.
    if sys.stderr is None:
        return
    if _held is not None:
        _held.append(message)
        return
    line = escape_unprintable(" ".join(message.split()))
    try:
        if not print_status_line(sys.stderr, line):
            print(f"indus: {line}", file=sys.stderr)  # noqa: T201 — standard error is for people
    except OSError:
        redirect_to_null(_STDERR)


@contextmanager
def redirected_status_lines(output: Callable[[str], object]) -> Generator[None]:
    """Give status lines to a function inside the block, in the thread that prints them."""
    global _output
    _output = output
    try:
        yield
    finally:
        _output = None


@contextmanager
def held_status_lines() -> Generator[None]:
    """Hold status lines back inside the block, for a question on the terminal; they are printed at its end."""
    global _held
    held = _held = []
    try:
        yield
    finally:
        _held = None
        for message in held:
            print_status(message)


def print_line(text: str) -> None:
    """Print text on standard output, escaped; only a newline ends a line."""
    for line in text.split("\n"):
        print(escape_unprintable(line))  # noqa: T201 — the result of a command goes to standard output


def print_text(text: str) -> None:
    """Print text of several lines on standard output; CRLF becomes a newline, one newline ends it."""
    visible = escape_controls(text.replace("\r\n", "\n"))
    print(visible, end="" if visible.endswith("\n") else "\n")  # noqa: T201 — see print_line


def is_reader_gone() -> bool:
    """Return whether standard output is a pipe or a socket that its reader has closed; a file has no reader."""
    if sys.stdout is None:
        return False
    watched = select.poll()
    watched.register(_STDOUT, 0)  # POLLERR and POLLHUP are always reported: poll(2)
    return bool(watched.poll(0))


def redirect_to_null(descriptor: int) -> None:
    """Redirect a descriptor to the null device: Python flushes it at exit, which would fail once more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
