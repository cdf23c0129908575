"""Server views: all states, costs and faults; one server with its configuration, log, tools and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast, get_args

from anyio import to_thread

from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from induscode.calls.database import CallDatabase, CallFilter, CallSeries, format_duration, read_series, use_calls
from induscode.gateway.page.html import (
    Html,
    Node,
    PageError,
    PageView,
    address,
    build_form,
    draw_bars,
    link,
    link_outside,
    live,
    render,
    run_action,
    shorten,
    shorten_path,
    show_facts,
    show_findings,
    show_moment,
    show_nothing,
    show_state,
    show_text,
    table,
    tag,
)
from induscode.gateway.page.source import ServerAction, ServerSummary

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageRequest

_HEADS = ("Server", "State", "Transport", "Tools", "Tokens", "Last hour", "Median", "")
_STEPS, _STEP_MS = 30, 120_000
"""Bars: one hour in two-minute steps."""
_MAX_TOOLS = 25
"""Tools listed in a server's view; a link leads to the rest."""
_LABELS: Mapping[str, str] = {
    "start": "Start", "stop": "Stop", "restart": "Restart", "sign-in": "Sign in", "trust": "Review and trust",
}  # fmt: skip
_BUSY: Mapping[str, str] = {"start": "Starting…", "stop": "Stopping…", "restart": "Restarting…"}


async def show_servers(page: PageRequest) -> PageView:
    """Show all servers."""
    servers = await page.source.list_servers()
    section = live("servers", "servers", await build_servers(page, servers))
    return PageView("Servers", tag("div", section), "servers")


async def build_servers(
    page: PageRequest, servers: Sequence[ServerSummary], *, is_home: bool = False
) -> Sequence[Node]:
    """Build the table of all servers with its summary, or the first steps; `is_home` leaves problems out."""
    add = tag("a", "Add a server", href=address("/add"), cls="button") if page.user.rights.can_configure else None
    if not servers:
        return [show_nothing("No servers yet."), add]
    series = await to_thread.run_sync(use_calls, read_hour)
    ready = sum(server.state == "ready" for server in servers)
    tools, tokens = format_count(sum(one.tools for one in servers), "tool"), sum(one.tokens for one in servers)
    summary = f"{ready} of {len(servers)} ready. {tools}, about {tokens:,} tokens."
    rows = [_build_row(page, server, series) for server in servers]
    if is_home:
        rows = [
            (link(server.name, "/server", name=server.name), *row[1:-1])
            for server, row in zip(servers, rows, strict=True)
        ]
    title = [tag("h2", "Servers"), " "] if is_home else None
    head = tag("div", tag("div", title, tag("span", summary, cls="faint"), cls="title"), add, cls="head")
    return [head, table(_HEADS[: len(rows[0])], rows, caption="Servers", numbers=(3, 4, 6))]


def read_hour(database: CallDatabase) -> CallSeries:
    """Read the calls of the last hour in the steps of the bars."""
    return read_series(database, now_ms(), _STEP_MS, _STEPS, database.limit(CallFilter())[0])


def _build_row(page: PageRequest, server: ServerSummary, series: CallSeries | None) -> Sequence[Node]:
    path = "/server" if server.is_on else "/row"
    median = "" if series is None else series.percentiles_us.get(server.name, (0, 0))[0]
    return (
        [
            link(server.name, path, name=server.name),
            tag("p", server.message, cls="problem") if server.message else None,
        ],
        show_state(server.state),
        server.transport,
        _count_tools(server) if server.is_on else "",
        f"{server.tokens:,}" if server.is_on else "",
        _draw_calls(server, series),
        format_duration(median) if median else "",
        build_actions(page, server) or "",
    )


def _count_tools(server: ServerSummary) -> str:
    return f"{server.tools}" + (f" (+{server.disabled} blocked)" if server.disabled else "")


def _draw_calls(server: ServerSummary, series: CallSeries | None) -> Node:
    calls = () if series is None else series.by_server.get(server.name, ())
    return (draw_bars(calls, "calls per 2 minutes"), f" {sum(calls):,}") if any(calls) else ""


def build_actions(page: PageRequest, server: ServerSummary) -> Html | None:
    """Build the buttons of a server: the fix of its problem first."""
    if not page.user.rights.can_act:
        return None
    target, buttons = address("/server", name=server.name), list[Html]()
    if page.user.rights.can_configure and server.variable:
        href = f"{address('/row', name=server.name, set=server.variable)}#variables"
        buttons.append(tag("a", f"Set {server.variable}", href=href, cls="button main"))
    for action in server.actions:
        if action == "trust":
            buttons.append(tag("a", _LABELS[action], href=target, cls="button main"))
            continue
        label = "Retry" if action == "start" and server.state == "failed" else _LABELS[action]
        busy = _BUSY.get(action)
        buttons.append(build_form(page.user, target, button=label, busy=busy, action=action))
    if server.state == "failed" and server.actions:
        buttons.append(tag("a", "Show log", href=f"{target}#log", cls="button"))
    if page.user.rights.can_configure:
        buttons.append(tag("a", "Change", href=address("/row", name=server.name), cls="button"))
    return tag("div", buttons, cls="actions") if buttons else None


def _explain(server: ServerSummary) -> Html:
    remedy = tag("p", "Fix: ", tag("code", server.remedy)) if server.remedy else None
    return tag("article", tag("p", server.message), remedy, cls="fault" if server.state == "failed" else "warning")


async def show_server(page: PageRequest) -> PageView:
    """Show one server, after running the action of a submitted form."""
    name = page.get("name")
    said = await run_action(page, dict.fromkeys(get_args(ServerAction), _act))
    server = next((one for one in await page.source.list_servers() if one.name == name), None)
    if server is None:
        raise PageError(f"There is no server {name!r}")
    log = [*page.source.session.mcp.fleet.read_log(name)] if page.source.session.mcp.status_of(name) is not None else []
    cards = [card for card in page.source.session.mcp.capabilities if card.ref.server == name]
    findings = page.source.session.mcp.enrolment.list_findings(name)
    series = await to_thread.run_sync(use_calls, read_hour)
    answer = None if server.answer_s is None else format_duration(round(server.answer_s * 1_000_000))
    question = await to_thread.run_sync(page.source.ask_consent, name)
    config = show_text("\n".join(question.details))
    consent = _ask_consent(page, server, question.digest, config)
    facts = show_facts({
        "State": show_state(server.state),
        "Transport": server.transport,
        "Configured": [f"{server.scope}: ", tag("code", shorten_path(server.file), title=server.file)],
        "Labels": server.labels,
        "Tools": f"{_count_tools(server)}, about {server.tokens:,} tokens",
        "Last answer": answer,
        "Last hour": _draw_calls(server, series) or None,
        "Restarts": str(server.restarts),
    })  # fmt: skip
    tools = [(link(card.ref.name, "/tool", name=card.name), shorten(card.description)) for card in cards[:_MAX_TOOLS]]
    content = tag(
        "div",
        said,
        live(
            "servers",
            "server",
            consent,
            facts,
            [_explain(server) if server.message else None, build_actions(page, server)] if consent is None else None,
            None if consent else [tag("h2", "Configuration"), config],
            tag("h2", "Tools"),
            table(("Tool", "Description"), tools, caption="Tools") if tools
            else show_nothing("None while it is not connected." if server.state != "ready" else "It offers none."),
            tag("p", link(f"All {len(cards)} tools", "/tools", server=name)) if len(cards) > len(tools) else None,
            [tag("h2", "Review"), show_findings(findings)] if findings else None,
        ),
        tag("h2", "Log", id="log"),
        live("log", "log", _show_log(log) if log else show_nothing("It has written nothing.")),
    )  # fmt: skip
    return PageView(name, content, "servers")


def _show_log(lines: Sequence[str]) -> Html:
    """Show a log with times; equal lines in a row become one with their number."""
    shown: list[Node] = []
    for text, group in groupby(lines, str):
        same = [*group]
        at_ms = getattr(same[-1], "at_ms", 0)
        times = tag("span", f" ×{len(same)}", cls="faint") if len(same) > 1 else None  # noqa: RUF001 — times
        shown.append([show_moment(at_ms) if at_ms else None, " " if at_ms else None, text, times, "\n"])
    return tag("pre", shown, cls="text log", tabindex=0)


def _ask_consent(page: PageRequest, server: ServerSummary, digest: str, config: Html) -> Html | None:
    if "trust" not in server.actions or not page.user.rights.can_act:
        return None
    target = address("/server", name=server.name)
    return tag(
        "article",
        tag("h2", "Your consent"),
        tag("p", "This project configures this server. If you trust it, it runs exactly this:"),
        config,
        build_form(page.user, target, button="Trust and start", look="danger", action="trust", digest=digest),
        cls="warning",
    )


async def _act(page: PageRequest) -> Node:
    action = cast("ServerAction", page.get("action"))
    reply = await page.source.act(page.get("name"), action, page.form.get("digest", ""))
    return reply.message, render(" ", link_outside("Open the sign-in page", reply.url)) if reply.url else None
