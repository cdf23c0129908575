"""Speaking to the person at the terminal."""

import os
import sys

from induscode.console import print_error

_STANDARD_ERROR = 2


def printable(text: str) -> str:
    """Show what a terminal would obey, or could not write, instead of sending it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible(text: str) -> str:
    """Show what a terminal would obey, and keep every kind of space, tabs and ends of lines."""
    return "".join(c if _is_harmless(c) else c.encode("unicode_escape").decode() for c in text)


def _is_harmless(c: str) -> bool:
    if c.isprintable() or c in "\n\t":
        return True
    # The spaces of other scripts; two more characters that count as space end a line.
    return c.isspace() and c >= "\xa0" and c not in "\u2028\u2029"


def is_interactive() -> bool:
    """Tell whether standard input and standard output are both a terminal."""
    # Python has None in the place of a stream that was closed when the process started.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def print_status(message: str) -> None:
    """Put one line on standard error; when nobody can be told, that is no trouble of its own."""
    # Started with it closed, Python has no standard error at all, and `print` would take the other.
    if sys.stderr is None:
        return
    line = printable(" ".join(message.split()))
    try:
        if not print_error(sys.stderr, line):
            print(f"indus: {line}", file=sys.stderr)  # noqa: T201 — standard error is for people
    except OSError:
        redirect_to_null(_STANDARD_ERROR)


def print_line(text: str) -> None:
    """Put text on standard output, line by line; only a newline ends a line."""
    for line in text.split("\n"):
        print(printable(line))  # noqa: T201 — the answer of a command goes to standard output


def print_text(text: str) -> None:
    """Put a text of several lines on standard output; Windows' ends of lines are ends of lines."""
    shown = visible(text.replace("\r\n", "\n"))
    print(shown, end="" if shown.endswith("\n") else "\n")  # noqa: T201 — see tell


def redirect_to_null(descriptor: int) -> None:
    """Send what is still to be written nowhere: at exit, Python would try and fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
