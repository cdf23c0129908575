"""Clients: those of this machine, and connecting one: its file changes exactly as shown, with a backup."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.core.time import now_ms
from induscode.calls.database import CallDatabase, use_calls
from induscode.core.consent import Consent, build_consent
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_form,
    link,
    live,
    run_action,
    shorten_path,
    show_diff,
    show_state,
    show_text,
    show_time,
    table,
    tag,
)
from induscode.servers.clients import CLIENTS, Client, Entry, build_own_command
from induscode.servers.clients.install import (
    Change,
    InstallError,
    find_client_file,
    find_clients,
    plan_install,
    plan_uninstall,
)

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.page.html import Node

ENTRY: Final = "indus"
"""The name of our entry in a client's file."""
_DAY_MS: Final = 24 * 3_600_000
_PAGE: Final = frozenset({"", "page"})
"""What the page and sessions record as their client."""


async def build_clients(page: PageRequest) -> Html:
    """Build the table of clients: those of this machine, and those that called in the last day."""
    found = await to_thread.run_sync(find_clients, os.environ)
    calls = dict(await to_thread.run_sync(use_calls, _read_day) or {})
    rows: list[Sequence[Node]] = []
    for one in found:
        known = next((name for name in calls if _is_name_of(one.client, name)), None)
        count, last_ms = calls.pop(known, (0, 0)) if known is not None else (0, 0)
        state = "connected" if one.entry else "found"
        href = address("/client", name=one.client.program)
        button = tag("a", "Details" if one.entry else "Connect", href=href, cls="button")
        rows.append(
            (
                one.client.title,
                show_state(state),
                show_time(last_ms) if last_ms else "",
                f"{count:,}" if count else "",
                button,
            )
        )
    rows += [
        (name, show_state("connected"), show_time(last_ms), f"{count:,}", "")
        for name, (count, last_ms) in calls.items()
        if name not in _PAGE
    ]
    others = [
        link(client.title, "/client", name=client.program)
        for client in {one.program: one for one in CLIENTS.values()}.values()
        if client.program not in {one.client.program for one in found}
    ]
    shown = table(("Client", "State", "Last call", "Calls in a day", ""), rows, caption="Clients", numbers=(3,))
    more = tag("details", tag("summary", "Connect another client"), tag("p", [(one, " ") for one in others]))
    return tag("div", shown if rows else None, more)


def _read_day(database: CallDatabase) -> dict[str, tuple[int, int]]:
    return dict(database.list_clients(now_ms() - _DAY_MS))


def _is_name_of(client: Client, name: str) -> bool:
    """Tell whether a client calls itself so: Cursor is `cursor-vscode`."""
    own = name.lower().replace(" ", "-")
    return own.startswith((client.program, client.title.lower().replace(" ", "-")))


async def show_clients(page: PageRequest) -> PageView:
    """Show the clients."""
    return PageView("Connect a client", live("calls", "clients", await build_clients(page)), "home")


async def show_client(page: PageRequest) -> PageView:
    """Show what connecting a client changes, and its snippet; change its file if the form was submitted."""
    client = CLIENTS.get(page.get("name"))
    if client is None:
        raise PageError(f"There is no client {page.get('name')!r}")
    action = page.form.get("action", "")

    async def change(_: PageRequest) -> Node:
        backup = await to_thread.run_sync(_apply, client, action == "connect", page.get("digest"))
        done = "Connected" if action == "connect" else "Disconnected"
        kept = "" if backup is None else f" The file as it was: {shorten_path(backup)}."
        return f"{done}. {client.title} notices at its next start.{kept}"

    said = await run_action(page, {"connect": change, "disconnect": change})
    return PageView(client.title, tag("div", said, await to_thread.run_sync(_show, page, client)), "home")


def _build_entry(client: Client) -> Entry:
    found = next((one for one in find_clients(os.environ) if one.client is client and one.entry), None)
    return Entry(name=(found and found.entry) or ENTRY, command=(*build_own_command(), "serve"))


def _plan(client: Client, *, connects: bool) -> Change:
    entry, path = _build_entry(client), find_client_file(client, os.environ)
    return plan_install(client, entry, path) if connects else plan_uninstall(client, entry.name, path)


def _describe(change: Change) -> Consent:
    return build_consent(f"file {change.path}", [change.before, change.after], change.diff().splitlines())


def _apply(client: Client, connects: bool, digest: str) -> str | None:
    change = _plan(client, connects=connects)
    _describe(change).check_digest(digest)
    return None if change.is_empty else change.apply()


def _show(page: PageRequest, client: Client) -> Html:
    target, entry = address("/client", name=client.program), _build_entry(client)
    parts: list[Node] = []
    try:
        add, remove = _plan(client, connects=True), _plan(client, connects=False)
    except InstallError as exc:
        parts.append(tag("p", str(exc), role="alert", cls="said"))
    else:
        for change, action, button in ((add, "connect", "Connect"), (remove, "disconnect", "Disconnect")):
            if change.is_empty or (action == "disconnect" and not add.is_empty):
                continue
            file = "is made" if change.before is None else "changes, and a copy stays next to it"
            form = build_form(page.user, target, button=button, look="main" if action == "connect" else "",
                              action=action, digest=_describe(change).digest)  # fmt: skip
            parts += [
                tag("p", "The file ", tag("code", shorten_path(change.path), title=change.path), f" {file}:"),
                show_diff(change.diff()),
                form if page.user.rights.can_configure else None,
            ]
        if add.is_empty:
            parts.insert(0, tag("p", show_state("connected"), f" by the entry {entry.name!r}."))
    snippet = (tag("p", f"It belongs into {client.place}."), show_text(client.format(entry)))
    by_hand = tag("details", tag("summary", "By hand"), snippet)
    return tag("div", tag("p", link("Back", "")), parts, by_hand)
