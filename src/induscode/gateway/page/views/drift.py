"""Changed definitions: what differs, how much it matters, and the person's decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.deck.mcp.drift import name_item
from induscode.gateway.page.contract import PageError, PageView
from induscode.gateway.page.html import Html, tag
from induscode.gateway.page.parts import address, build_form, live, show_diff, show_nothing, show_state

if TYPE_CHECKING:
    from induscode.deck.mcp.drift import DisabledTool, Drift
    from induscode.gateway.page.contract import PageRequest


async def show_drifts(page: PageRequest) -> PageView:
    """Show the definitions that differ from what was approved; with a sent form, approve or refuse one."""
    enrolment = page.source.session.mcp.enrolment
    said = await _decide(page) if page.form else None
    drifts = enrolment.drifts
    shown = {drift.ref for drift in drifts}
    # Known from an earlier run: the change itself is seen once the server is up.
    unseen = [tool for tool in enrolment.disabled if tool.ref not in shown]
    content = tag(
        "div",
        tag("p", said, role="status", cls="said") if said else None,
        live(
            "items",
            "drifts",
            [_build_drift(page, drift) for drift in drifts],
            [_build_unseen(tool) for tool in unseen],
            None if drifts or unseen else show_nothing("Every definition is as it was approved."),
        ),
    )  # fmt: skip
    return PageView("Drift", content, "drift")


def _build_unseen(tool: DisabledTool) -> Html:
    hint = tag("p", f"{tool.reason}. Start the server to see the change.")
    return tag("article", tag("h2", name_item(tool.ref)), hint, cls="fault")


def _build_drift(page: PageRequest, drift: Drift) -> Html:
    ref = drift.ref
    forms = None
    if page.user.rights.can_act and drift.disables:
        hidden = {"server": ref.server, "item": ref.name, "kind": ref.kind, "digest": drift.digest}
        forms = tag(
            "div",
            build_form(page.user, address("/drift"), button="Approve", look="danger", action="approve", **hidden),
            build_form(page.user, address("/drift"), button="Refuse", action="refuse", **hidden),
            cls="actions",
        )
    differs = "added by the server" if drift.is_added else ", ".join(drift.fields)
    consequence = "disabled until it is approved" if drift.disables else "the approved text stays in use"
    return tag(
        "article",
        tag("h2", name_item(ref), " ", show_state("added" if drift.is_added else f"{drift.grade} change")),
        tag("p", f"{differs}: {consequence}."),
        show_diff(drift.diff()),
        forms,
        cls="fault" if drift.disables else None,
    )


async def _decide(page: PageRequest) -> str:
    server, name, kind, digest = (page.get(key) for key in ("server", "item", "kind", "digest"))
    mcp = page.source.session.mcp
    wanted = [
        one for one in mcp.enrolment.drifts if (one.ref.server, one.ref.name, one.ref.kind) == (server, name, kind)
    ]
    # The decision is about exactly what was shown.
    changed = PageError(f"{server}/{name} has changed since you looked, or was decided elsewhere. Look once more.", 409)
    if not wanted or wanted[0].digest != digest:
        raise changed
    drift = wanted[0]
    named = name_item(drift.ref)
    if page.get("action") == "approve":
        if not page.source.approve(drift.ref, digest):
            raise changed
        return f"{named}: approved as it is now"
    mcp.journal.record_event(
        "drift", server, name, f"refused by a person: {drift.grade} change of {', '.join(drift.fields)}"
    )
    return f"{named} stays disabled. The ledger has your decision."
