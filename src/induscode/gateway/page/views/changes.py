"""Changes: definitions that differ from the approved ones, seen here or by another process; approval and refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from indusagi.core.faults import CoreError
from induscode.deck.mcp.capability import name_item
from induscode.deck.mcp.drift import DisabledTool, Drift, build_approval
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_form,
    live,
    show_diff,
    show_findings,
    show_nothing,
    show_state,
    tag,
)

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageRequest


async def show_changes(page: PageRequest) -> PageView:
    """Show definitions that differ from the approved ones; approve or refuse one if its form was submitted."""
    enrolment = page.source.session.mcp.enrolment
    said = await _decide(page) if page.form else None
    drifts = enrolment.drifts
    shown = {drift.ref for drift in drifts}
    own = {tool.ref for tool in enrolment.disabled}
    unseen = [
        _show_unseen(page, tool, is_own=tool.ref in own)
        for tool in await page.source.list_blocked()
        if tool.ref not in shown
    ]
    content = tag(
        "div",
        tag("p", said, role="status", cls="said") if said else None,
        live(
            "items",
            "drifts",
            _build_joint_forms(page, drifts),
            [_build_drift(page, drift) for drift in drifts],
            unseen,
            None if drifts or unseen else show_nothing("No changed tools."),
        ),
    )  # fmt: skip
    return PageView("Changes", content, "changes")


def _show_unseen(page: PageRequest, tool: DisabledTool, *, is_own: bool) -> Html:
    """Show a change that an earlier run has seen, or (unless `is_own`) only another process has."""
    server = tool.ref.server
    seen = "" if is_own else " Another process has seen this; here the server still has the approved definition."
    target = address("/server", name=server)
    form = build_form(page.user, target, button=f"Restart {server}", action="restart")
    return tag(
        "article",
        tag("h2", name_item(tool.ref)),
        tag(
            "p",
            f"{tool.reason}.{seen} To see the change, restart the server or run ",
            tag("code", tool.diff_command),
            ".",
        ),
        tag("div", form, cls="actions") if page.user.rights.can_act else None,
        cls="fault",
    )


def _build_drift(page: PageRequest, drift: Drift) -> Html:
    ref, consent = drift.ref, build_approval(drift.ref.server, [drift])
    forms = None
    if page.user.rights.can_act and drift.disables:
        hidden = {"server": ref.server, "item": ref.name, "kind": ref.kind, "digest": consent.digest}
        forms = tag(
            "div",
            build_form(page.user, address("/changes"), button="Keep blocked", action="refuse", **hidden),
            build_form(page.user, address("/changes"), button="Approve", look="danger", action="approve", **hidden),
            cls="actions",
        )
    what = "What's new is" if ref.kind == "behaviour" else f"The {ref.kind} is"
    blocked = f"{what} blocked until you approve it"
    return tag(
        "article",
        tag("h2", name_item(ref), " ", show_state(drift.label)),
        tag("p", f"{drift.summary}. {blocked if drift.disables else 'The approved text stays in use'}."),
        show_findings(drift.findings),
        show_diff(drift.diff()),
        forms,
        cls="fault" if drift.disables else None,
    )


def _build_joint_forms(page: PageRequest, drifts: Sequence[Drift]) -> Html | None:
    """Build a button per server that approves all its definitions shown below."""
    forms: list[Html] = []
    for server in dict.fromkeys(drift.ref.server for drift in drifts) if page.user.rights.can_act else ():
        waiting = [drift for drift in drifts if drift.disables and drift.ref.server == server]
        if len(waiting) > 1:
            hidden = {"server": server, "digest": build_approval(server, waiting).digest}
            button = f"Approve all {len(waiting)} of {server}"
            form = build_form(page.user, address("/changes"), button=button, look="danger", action="approve", **hidden)
            forms.append(form)
    return tag("div", forms, cls="actions") if forms else None


async def _decide(page: PageRequest) -> str:
    server, name, kind, digest = (page.get(key) for key in ("server", "item", "kind", "digest"))
    mcp = page.source.session.mcp
    waiting = [one for one in mcp.enrolment.drifts if one.disables and one.ref.server == server]
    wanted = [one for one in waiting if (one.ref.name, one.ref.kind) == (name, kind)] if name else waiting
    if not wanted or (not name and page.get("action") != "approve"):
        raise PageError(f"{server}/{name} no longer waits for approval. Reload the page.", 409)
    drift = wanted[0]
    try:
        consent = build_approval(server, wanted)
        consent.check_digest(digest)
        for one in wanted if page.get("action") == "approve" else ():
            await mcp.allow(one)
            if not page.source.approve(one.ref, one.digest):
                consent.check_digest("")
    except (CoreError, OSError) as exc:
        raise PageError(str(exc), 409) from None
    named = name_item(drift.ref) if name else consent.subject
    if page.get("action") == "approve":
        return f"{named}: approved as it is now"
    mcp.journal.record_event(
        "drift", server, name, f"refused by a person: {drift.grade} change of {', '.join(drift.fields)}"
    )
    return f"{named} stays disabled. The ledger has your decision."
