"""The view of calls that need a person: each in full, with a form bound to its digest, and the last ones answered."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from induscode.gateway.approvals.store import Approval
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_form,
    live,
    show_moment,
    show_nothing,
    show_text,
    show_time,
    table,
    tag,
)

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageRequest

_MOST_ANSWERED: Final = 20
_HEADS: Final = ("Call", "Asked", "For", "Outcome", "Answered by")


async def show_approvals(page: PageRequest) -> PageView:
    """Show the calls that wait, after answering one if its form was submitted."""
    try:
        said = await _answer(page) if page.form else None
        known = await to_thread.run_sync(page.source.approvals.store.list_all)
    except (OSError, sqlite3.Error) as exc:
        raise PageError(f"The requests for approval cannot be read: {exc}", 500) from exc
    waiting = [one for one in reversed(known) if one.is_waiting()]
    rows = [_build_row(one) for one in known if not one.is_waiting()][:_MOST_ANSWERED]
    content = tag(
        "div",
        tag("p", said, role="status", cls="said") if said else None,
        live(
            "approvals",
            "approvals",
            [_build_request(page, one) for one in waiting] or show_nothing("No call waits for you."),
            [tag("h2", "The last ones"), table(_HEADS, rows, caption="Requests that wait no longer")] if rows else None,
        ),
    )
    return PageView("Approvals", content, "home")


def _build_row(approval: Approval) -> Sequence[Html | str]:
    state = "expired" if approval.state == "waiting" else approval.state.value
    outcome = f"{state}: {approval.comment}" if approval.comment else state
    by = approval.principal or approval.client
    return approval.title, show_time(approval.asked_ms), by, outcome, approval.answered_by


def _build_request(page: PageRequest, approval: Approval) -> Html:
    rights, principal = page.user.rights, page.user.principal
    forms = None
    if rights.can_act:
        hidden = {"approval": approval.id, "digest": approval.digest}
        field = f"reason-{approval.id}"
        reason = tag("label", "Reason ", tag("input", id=field, name="reason", autocomplete="off"), for_=field)
        target = address("/approvals")
        forms = tag(
            "div",
            build_form(page.user, target, button="Allow once", look="danger", action="approve", **hidden),
            build_form(page.user, target, reason, button="Deny", action="deny", **hidden),
            cls="actions",
        )
    # Another principal's arguments are for those who may decide about them.
    is_shown = not principal or rights.can_operate or principal == approval.principal
    until = show_moment(approval.expires_ms)
    node = f" at node {approval.node}" if approval.node else ""
    return tag(
        "article",
        tag("h2", approval.title),
        tag("p", "Asked ", show_time(approval.asked_ms), f"{node}. Without an answer, it's refused at ", until, "."),
        show_text("\n".join(approval.lines)) if is_shown else None,
        forms,
        cls="warning",
    )


async def _answer(page: PageRequest) -> str:
    approval_id, digest, is_yes = page.get("approval"), page.get("digest"), page.get("action") == "approve"
    queue, by = page.source.approvals, page.user.principal or "the page's user"
    if not await queue.answer(approval_id, digest, approve=is_yes, by=by, comment=page.get("reason")):
        raise PageError("This call doesn't wait any more, or isn't the one you looked at. Look once more.", 409)
    return "Allowed: it runs now, once." if is_yes else "Denied."
