"""Command output: notes for users, JSON for programs, questions on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from indusagi.core.text import escape_unseen
from induscode.cli.terminal import print_line, print_status

if TYPE_CHECKING:
    from indusagi.core.faults import Note
    from indusagi.core.json import JsonLike
    from induscode.core.consent import Consent

as_json = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
digest_option = click.option(
    "--digest", "digests", multiple=True, metavar="DIGEST", help="With --yes: only to what was shown with this digest."
)


def write_json(value: JsonLike, *, indent: int | None = 2) -> None:
    """Print one JSON value on standard output, in ASCII so that it can't contain terminal escapes."""
    print(json.dumps(value, indent=indent))  # noqa: T201 — the result of a command


def print_notes(notes: Iterable[Note]) -> None:
    """Print notes on standard error, one line each."""
    for note in notes:
        print_status(str(note))


def confirm(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; anything but yes means no."""
    print(escape_unseen(question), end=" [y/N] ", flush=True)  # noqa: T201 — a question to the user
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def ask_consent(
    consent: Consent, question: str, *, yes: bool = False, digests: Sequence[str] = (), quiet: bool = False
) -> bool:
    """Show `consent`, ask `question`, and return whether the user agrees to exactly that.

    With `yes`, the user already agreed: to anything, or only to what has one of the `digests`. `quiet` then
    prints nothing.
    """
    if not (quiet and yes):
        print_line(consent.heading)
        for line in (*consent.details, f"digest: {consent.digest}"):
            print_line(f"  {line}")
    if digests and consent.digest not in digests:
        print_status(f"{consent.subject}: it has changed since you looked; look at it again")
        return False
    if not yes and not can_ask_user():
        message = f"There is no terminal to ask on: look at it, then use --yes --digest {consent.digest}"
        raise click.UsageError(message)
    return yes or confirm(question)


def can_ask_user() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def build_unknown_name(
    message: str, name: str, names: Sequence[str], ctx: click.Context | None = None
) -> click.UsageError:
    """Build the error for an unknown name, with a suggestion."""
    from indusagi.capabilities.arguments import find_similar_name  # noqa: PLC0415 — for a mistyped name

    similar = find_similar_name(name, names)
    hint = f". Did you mean {similar!r}?" if similar else ""
    return click.UsageError(f"{message}{hint}", ctx)
