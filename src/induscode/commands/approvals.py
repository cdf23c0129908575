"""`indus approvals`: shows the calls of a gateway that wait for a person, and answers them."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from getpass import getuser
from socket import gethostname
from time import monotonic, sleep

import click

from indusagi.core.time import iso_utc, now_ms
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, ask_consent, build_unknown_name, digest_option, write_json
from induscode.cli.terminal import escape_unprintable, format_age, print_line, print_status
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.gateway.approvals.store import Approval, ApprovalState, ApprovalStore

_NOT_ANSWERED = 1
_TAKEN_S = 2.0
"""How long a gateway may need to take a yes."""
_POLL_S = 0.05
_HEADS = ("ID", "STATE", "ASKED", "BY", "CALL")


@click.command(
    cls=CommandGroup,
    default="list",
    commands={
        "list": LazyCommand("list the calls that wait", ":list_waiting"),
        "show": LazyCommand("show a call in full", ":show"),
        "approve": LazyCommand("let a call run, once", ":approve"),
        "deny": LazyCommand("refuse a call", ":deny"),
    },
)
def command() -> None:
    """Answer the calls of a gateway that wait for you."""


@contextmanager
def _opened_store() -> Generator[ApprovalStore]:
    try:
        with closing(ApprovalStore()) as store:
            yield store
    except (OSError, sqlite3.Error) as exc:
        raise click.ClickException(f"the requests for approval cannot be read: {exc}") from exc


def _find(store: ApprovalStore, start: str) -> Approval:
    approval = store.find(start)
    if approval is None:
        known = [one.id for one in store.list_all()]
        raise build_unknown_name(f"There is no call {start!r} that waits ('indus approvals list')", start, known)
    return approval


def _format_state(approval: Approval) -> str:
    is_over = approval.state is ApprovalState.WAITING and not approval.is_waiting()
    return (ApprovalState.EXPIRED if is_over else approval.state).value


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Those of the last day that were answered, too.")
@as_json
def list_waiting(*, everything: bool, as_json: bool) -> int:
    """List the calls that wait for an answer."""
    with _opened_store() as store:
        rows = store.list_all() if everything else store.list_waiting()
    now = now_ms()

    def format_cells(one: Approval) -> tuple[object, ...]:
        return one.id, _format_state(one), format_age(one.asked_ms, now), one.principal or one.client, one.title

    empty = "No call waits for approval."
    return Listing("approvals", rows, _HEADS, format_cells, to_json=Approval.to_json, empty=empty).show(as_json=as_json)


@click.command("show")
@click.argument("approval_id", metavar="ID")
@as_json
def show(approval_id: str, *, as_json: bool) -> int:
    """Show the call ID, with all arguments. Secrets in them are left out."""
    with _opened_store() as store:
        approval = _find(store, approval_id)
    if as_json:
        write_json(approval.to_json())
        return 0
    print_line(approval.consent.heading)
    answer = f" by {approval.answered_by}" if approval.answered_by else ""
    comment = f": {approval.comment}" if approval.comment else ""
    until = f", until {iso_utc(approval.expires_ms)}" if approval.is_waiting() else ""
    for line in (
        *approval.lines,
        f"digest: {approval.digest}",
        f"state: {_format_state(approval)}{answer}{comment}{until}",
    ):
        print_line(f"  {escape_unprintable(line)}")
    return 0


@click.command("approve")
@click.argument("approval_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Approve without a question; the call is printed.")
@digest_option
def approve(approval_id: str, *, yes: bool, digests: tuple[str, ...]) -> int:
    """Show the call ID and let it run after a yes, once.

    Your yes covers exactly this call: its caller, tool, definition and arguments. Exit code 1 if you decline, or it
    doesn't wait any more.
    """
    with _opened_store() as store:
        approval = _find(store, approval_id)
        if not approval.is_waiting():
            return _report_over(approval)
        if not ask_consent(approval.consent, "Allow this call, once?", yes=yes, digests=digests):
            print_line("Nothing was approved.")
            return _NOT_ANSWERED
        return _answer(store, approval, approve=True)


@click.command("deny")
@click.argument("approval_id", metavar="ID")
@click.option("--reason", metavar="TEXT", default="", help="Tells the model why.")
def deny(approval_id: str, *, reason: str) -> int:
    """Refuse the call ID."""
    with _opened_store() as store:
        return _answer(store, _find(store, approval_id), approve=False, comment=reason)


def _answer(store: ApprovalStore, approval: Approval, *, approve: bool, comment: str = "") -> int:
    by = f"{getuser()} at {gethostname()}"
    if not store.answer(approval.id, approval.digest, approve=approve, by=by, comment=comment):
        return _report_over(_find(store, approval.id))
    print_line(f"{approval.tool}: {'approved, this once' if approve else 'denied'}")
    if approve and not approval.node:  # another node's calls end there
        give_up_at = monotonic() + _TAKEN_S
        while (found := store.find(approval.id)) is not None and found.state is ApprovalState.APPROVED:
            if monotonic() > give_up_at:
                print_status(f"the gateway hasn't run it after {_TAKEN_S:g} s: it may have ended")
                break
            sleep(_POLL_S)
        if found is not None and found.state is ApprovalState.REFUSED:
            print_status("it didn't run: its server, definition or a rule has changed since it was asked")
            return _NOT_ANSWERED
    return 0


def _report_over(approval: Approval) -> int:
    print_status(f"the call {approval.id} waits no longer: {_format_state(approval)}")
    return _NOT_ANSWERED
