"""What `login` and `logout` of servers and of connectors share: the options, the prompt, and what is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from induscode.cli.output import print_notes
from induscode.cli.terminal import print_line, print_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.cancel import CancelToken
    from indusagi.interop.auth.contract import CredentialStore
    from induscode.servers.sign_in.prompts import PersonPrompt, SignInWay
    from induscode.servers.sign_in.state import SignInFacts

Command = TypeVar("Command", bound="Callable[..., object]")


def sign_in_options(command: Command) -> Command:
    """Add the options of a sign-in: `way` and `port`."""
    port = click.option(
        "--port", type=click.IntRange(1, 65_535), metavar="N", help="The port of the redirect on this machine."
    )
    paste = click.option(
        "--paste", "way", flag_value="paste", help="Paste the address at which a browser anywhere ends."
    )
    device = click.option("--device", "way", flag_value="device", help="Enter a code on another device.")
    return device(paste(port(command)))


def open_prompt(way: SignInWay, cancel: CancelToken) -> PersonPrompt:
    """Open the prompt to the person at the terminal, or at standard input."""
    from induscode.conversations.line_dialog import find_line_dialog  # noqa: PLC0415 — for a sign-in
    from induscode.servers.sign_in.prompts import PersonPrompt, StandardInputDialog  # noqa: PLC0415 — for a sign-in

    return PersonPrompt(find_line_dialog(cancel) or StandardInputDialog(), paste=way == "paste")


def print_signed_in(name: str, facts: SignInFacts | None, store: CredentialStore) -> None:
    """Print who has signed in and where that is stored."""
    from indusagi.interop.auth.storage import CredentialFiles  # noqa: PLC0415 — for a sign-in

    who = f" as {facts.account}" if facts is not None and facts.account else ""
    where = f", stored in {facts.place}" if facts is not None and facts.place else ""
    print_line(f"Signed in to {name!r}{who}{where}")
    if isinstance(store, CredentialFiles):
        print_notes(store.notes)


def print_signed_out(name: str, confirmed: bool | None) -> None:
    """Print that a sign-in has ended; `confirmed` is None if there was none."""
    if confirmed is None:
        print_line(f"There is no sign-in to {name!r}")
        return
    print_line(f"Signed out of {name!r}")
    if not confirmed:
        print_status("the issuer has not confirmed the revocation: the tokens may be valid until they expire")
