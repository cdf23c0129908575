"""Home: what needs you, the servers, the clients, and the last hour; three cards while there's nothing yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.text import format_count
from induscode.calls.database import CallDatabase, CallFilter, format_duration, use_calls
from induscode.gateway.page.html import Html, PageView, Topic, address, draw_bars, link, live, show_state, tag
from induscode.gateway.page.views.add import find_importable, name_programs
from induscode.gateway.page.views.clients import build_clients
from induscode.gateway.page.views.servers import build_actions, build_servers, read_hour

if TYPE_CHECKING:
    from induscode.calls.database import CallSeries
    from induscode.calls.record import CallRecord
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.page.html import Node
    from induscode.gateway.page.source import ServerSummary

_NEEDS: Sequence[Topic] = ("servers", "items", "approvals")
_WAITING = frozenset({"failed", "sign in", "not trusted"})


async def show_home(page: PageRequest) -> PageView:
    """Show the home, or three cards to start with."""
    servers = await page.source.list_servers()
    if not servers and page.user.rights.can_configure:
        return PageView("Home", tag("div", live("servers", "start", await _show_start(page))), "home")
    needs = await _list_needs(page, servers)
    content = tag(
        "div",
        live(_NEEDS, "needs", _show_needs(needs)),
        live(("servers", "calls"), "servers", await build_servers(page, servers, is_home=True)),
        live("calls", "clients", _head("Clients"), await build_clients(page)) if page.user.rights.is_owner else None,
        live("calls", "hour", await to_thread.run_sync(_show_hour)),
    )
    return PageView("Home", content, "home")


def _head(title: str, *buttons: Html | None) -> Html:
    return tag("div", tag("h2", title), buttons, cls="head")


async def _show_start(page: PageRequest) -> Html:
    found = await to_thread.run_sync(find_importable, page.source.session.invocation.cwd)
    cards = [("Add a server", "A command, a URL, or one of the registry.", "/add", "Add")]
    if found:
        text = f"{format_count(len(found), 'server')} found in {name_programs(found)}."
        cards.insert(0, ("Import your servers", text, "/add", "Import"))
    cards.append(
        ("Connect a client", "Claude Code, Cursor and others then use all your servers.", "/connect", "Connect")
    )
    return tag(
        "div",
        [
            tag("article", tag("h2", title), tag("p", text), tag("a", button, href=address(path), cls="button main"))
            for title, text, path, button in cards
        ],
        cls="cards",
    )


async def _list_needs(page: PageRequest, servers: Sequence[ServerSummary]) -> Sequence[tuple[Node, Node]]:
    """List the problems and questions that wait for you, each with its buttons."""
    needs: list[tuple[Node, Node]] = []
    decide = tag("a", "Decide", href=address("/approvals"), cls="button main")
    with suppress(OSError, sqlite3.Error):  # their view says why
        needs += [(one.title, decide) for one in await to_thread.run_sync(page.source.approvals.store.list_waiting)]
    review = tag("a", "Review change", href=address("/changes"), cls="button main")
    needs += [
        ((tag("strong", f"{tool.ref.server} → {tool.ref.name}"), " ", _say_why(tool)), review)
        for tool in await page.source.list_blocked()
    ]
    for server in servers:
        if server.state in _WAITING:
            shown = (tag("strong", server.name), " ", show_state(server.state), f" {server.message}")
            needs.append((shown, build_actions(page, server)))
    return needs


def _say_why(tool: DisabledTool) -> str:
    return f"changed its {', '.join(tool.fields)}" if tool.cause == "changed" and tool.fields else tool.reason


def _show_needs(needs: Sequence[tuple[Node, Node]]) -> Html | None:
    if not needs:
        return None
    rows = [tag("li", tag("span", text), tag("div", buttons, cls="actions")) for text, buttons in needs]
    return tag("section", _head(f"Needs you ({len(needs)})"), tag("ul", rows, cls="needs"))


def _show_hour() -> Node:
    read = use_calls(_read_hour)
    head = _head("Last hour", link("All calls", "/calls"))
    if read is None or not sum(read[0].calls):
        return (head, tag("p", "No calls.", cls="faint"))
    series, slowest = read
    counts = [
        format_count(sum(series.calls), "call"),
        f"{sum(series.errors)} failed",
        f"{sum(series.declined)} declined",
    ]
    shown = None
    if slowest is not None:
        name = f"{slowest.server} → {slowest.tool}" if slowest.server else slowest.tool
        shown = (" Slowest: ", name, " ", format_duration(slowest.duration_us))
    return (head, tag("p", " · ".join(counts), ".", shown), draw_bars(series.calls, "calls per 2 minutes", "hour"))


def _read_hour(database: CallDatabase) -> tuple[CallSeries, CallRecord | None]:
    series = read_hour(database)
    slowest = database.latest(CallFilter(since_ms=series.since_ms), 1, slowest=True)
    return series, slowest[0] if slowest else None
