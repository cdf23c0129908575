"""Named tokens of the gateway: a new one is shown once, and each can be replaced or ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.host.identity import CALL_SCOPE, LIST_SCOPE
from induscode.core.consent import Consent, build_consent
from induscode.gateway.page.html import (
    Html,
    PageView,
    address,
    build_entry,
    build_form,
    run_action,
    show_nothing,
    show_state,
    show_time,
    table,
    tag,
)
from induscode.gateway.token_changes import create_token, find_entry, opened_tokens, revoke_token, rotate_token
from induscode.launch.settings import SERVE_VIEWS

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.page.html import Node
    from induscode.gateway.tokens import TokenEntry

_ENDS: Final = {
    "": "never",
    "12h": "after 12 hours",
    "7d": "after 7 days",
    "30d": "after 30 days",
    "90d": "after 90 days",
}
_SCOPES: Final = {f"{LIST_SCOPE} {CALL_SCOPE}": "list and call tools", LIST_SCOPE: "only list tools"}


async def show_tokens(page: PageRequest) -> PageView:
    """Show the named tokens, after the action of a submitted form."""
    said = await run_action(page, {"create": _create, "rotate": _rotate, "revoke": _revoke})
    entries, last = await to_thread.run_sync(_read)
    rows = [
        (
            one.name,
            show_state(one.find_state(now_ms())),
            one.view or "all",
            iso_utc(one.expires_ms)[:16] if one.expires_ms else "never",
            show_time(last[one.owner]) if last.get(one.owner) else "never",
            " ".join(one.scopes),
            _build_actions(page, one),
        )
        for one in entries
    ]
    heads = ("Name", "State", "View", "Ends", "Last used", "Scopes", "")
    listed = table(heads, rows, caption="Tokens") if rows else show_nothing("No tokens yet.")
    form = _build_form(page) if page.user.rights.can_configure else None
    return PageView("Tokens", tag("div", said, listed, form), "tokens")


def _read() -> tuple[list[TokenEntry], dict[str, int]]:
    with opened_tokens() as store:
        last: dict[str, int] = {}
        for use in store.list_uses():
            last[use.owner] = max(use.last_ms, last.get(use.owner, 0))
        return [one for one in store.list_entries() if one.kind == "token"], last


def _describe(entry: TokenEntry) -> Consent:
    return build_consent(f"token {entry.name!r}", entry.to_json(), ())


def _build_actions(page: PageRequest, entry: TokenEntry) -> Html | str:
    if not page.user.rights.can_configure or entry.find_end(now_ms()):
        return ""
    target = partial(build_form, page.user, address("/tokens"), name=entry.name, digest=_describe(entry).digest)
    buttons = (target(button="Replace", action="rotate"), target(button="End it", look="danger", action="revoke"))
    return tag("div", buttons, cls="actions")


def _build_form(page: PageRequest) -> Html:
    views = page.source.session.invocation.settings.get(SERVE_VIEWS)
    fields = (
        build_entry("name", "Name", "Of the client that gets it, such as phone.", required=True),
        build_entry("view", "What it sees", choices={"": "everything", **{name: f"view {name}" for name in views}}),
        build_entry("scopes", "What it may do", choices=_SCOPES, value=next(iter(_SCOPES))),
        build_entry("expires", "Ends", choices=_ENDS, value="30d"),
    )
    form = build_form(page.user, address("/tokens"), fields, button="Create", look="main", action="create")
    return tag("section", tag("h2", "New token"), form)


async def _create(page: PageRequest) -> Node:
    views = page.source.session.invocation.settings.get(SERVE_VIEWS)
    given = (page.get("name").strip(), page.get("view"), page.get("scopes"), page.get("expires"))
    return _show_new(page, *await to_thread.run_sync(lambda: create_token(*given, views, {})))


async def _rotate(page: PageRequest) -> Node:
    await to_thread.run_sync(_check, page)
    return _show_new(page, *await to_thread.run_sync(rotate_token, page.get("name")))


async def _revoke(page: PageRequest) -> Node:
    await to_thread.run_sync(_check, page)
    facts = await to_thread.run_sync(revoke_token, page.get("name"))
    if facts is not None:
        page.source.session.mcp.journal.record("token", facts)
    return f"{page.get('name')} has ended. Its sessions and calls end within two seconds."


def _check(page: PageRequest) -> None:
    with opened_tokens() as store:
        entry = find_entry(store, page.get("name"))
    if entry is not None:
        _describe(entry).check_digest(page.get("digest"))


def _show_new(page: PageRequest, token: str, facts: JsonObject) -> Node:
    page.source.session.mcp.journal.record("token", facts)
    return (
        f"The token {facts['name']}, for its client, as Authorization: Bearer …. It's shown this once.",
        " ",
        tag("code", token),
    )
