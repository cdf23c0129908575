"""Speaking to the person at the terminal."""

import sys


def printable(text: str) -> str:
    """Show what a terminal would obey, or could not write, instead of sending it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def complain(message: str) -> None:
    """Put one line on standard error."""
    line = printable(" ".join(message.split()))
    print(f"indus: {line}", file=sys.stderr)  # noqa: T201 — standard error is for people


def tell(text: str) -> None:
    """Put text on standard output, line by line."""
    for line in text.splitlines():
        print(printable(line))  # noqa: T201 — the answer of a command goes to standard output
