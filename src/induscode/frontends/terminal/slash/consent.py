"""`/mcp trust`, `approve`, `diff` and `reload`: the user's decisions about servers and changed tools.

A yes covers exactly what's on screen: if a row or definition changes in the meantime, the user is asked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.text import escape_unseen, format_count
from induscode.boot.plans import BrokenConfigError
from induscode.cli.dialog import Choice, Question
from induscode.cli.output import build_unknown_name
from induscode.cli.terminal import escape_controls
from induscode.deck.mcp.drift import build_approval, name_item
from induscode.frontends.terminal.slash import SlashError, name_slash_commands
from induscode.servers.config.trust import TrustStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.conversations.servers import SessionServers
    from induscode.frontends.terminal.slash import SlashHost
    from induscode.servers.config.rows import ServerRow
    from induscode.servers.plan import ServerPlan

_YES_NO = (Choice(key="y", label="yes"), Choice(key="n", label="no"))


async def _confirm(host: SlashHost, title: str, lines: Sequence[str] = ()) -> bool:
    facts = tuple(map(escape_unseen, lines))
    reply = await host.screen.ask(Question(title=escape_unseen(title), lines=facts, choices=_YES_NO, default="n"))
    return reply.key == "y" and not reply.cancelled


async def ask_about_servers(host: SlashHost, servers: SessionServers, name: str | None) -> None:
    """Ask about one server or all that wait for consent, and start those with a yes.

    Raises:
        SlashError: The configuration is broken, or nothing waits for consent.
    """
    plan = await _read_plan(servers)
    held_back = await to_thread.run_sync(servers.find_held_back, plan)
    waiting = [row for row in plan.rows if row in held_back or row in plan.untrusted]
    rows = [row for row in waiting if name in {None, row.id}]
    if not rows and name is not None:
        raise SlashError(f"server {name!r} needs no consent")
    if not rows:
        raise SlashError("no server waits for consent")
    trusted = [row.id for row in rows if await _ask_about_server(host, row)]
    if not trusted:
        return
    # Reread: variables are only resolved after consent.
    changes = await servers.apply_plan(await _read_plan(servers))
    for change in changes:
        host.screen.show(name_slash_commands(change))
    started = [server for server in trusted if server in servers.mcp.plan.configs]
    await servers.mcp.wake(started)
    for server in trusted:
        status = servers.mcp.status_of(server) if server in started else None
        if status is not None:
            owner, tools = f"server {server!r}", format_count(status.tool_count, "tool")
            what = tools if status.fault is None else str(status.fault).removeprefix(f"{owner}: ")
            host.screen.show(f"{owner} is {status.phase}: {what}")
        else:  # it changed again, or a variable has no value
            host.screen.show(f"server {server!r} is not started: /mcp says why")


async def _ask_about_server(host: SlashHost, row: ServerRow) -> bool:
    """Show a server in full and store consent for exactly that."""
    store = TrustStore()
    question = await to_thread.run_sync(store.question, row)
    if not await _confirm(host, f"Trust {question.subject} and start it in this project?", question.details):
        host.screen.show(f"{row.id}: not trusted")
        return False
    await to_thread.run_sync(store.approve, row, question.digest)
    return True


async def reload_config(host: SlashHost, servers: SessionServers) -> None:
    """Reread and apply the configuration, asking about changed rows that are held back.

    Raises:
        SlashError: The configuration is broken; the servers stay as they are.
    """
    plan = await _read_plan(servers)
    held_back = await to_thread.run_sync(servers.find_held_back, plan)
    answers = [await _ask_about_server(host, row) for row in held_back]
    # Reread after a yes: a row that changed since the question is held back again.
    changes = await servers.apply_plan(await _read_plan(servers) if any(answers) else plan)
    for change in changes or ["the configuration is as it was"]:
        host.screen.show(name_slash_commands(change))


async def _read_plan(servers: SessionServers) -> ServerPlan:
    try:
        return await servers.read_plan()
    except BrokenConfigError as exc:
        raise SlashError(str(exc).partition("\n")[0]) from exc


async def show_drifts(host: SlashHost, servers: SessionServers, name: str | None) -> None:
    """Show how the tools of one server, or all, differ from the approved definitions."""
    await servers.mcp.wake(servers.mcp.eager_servers() if name is None else [name])
    drifts = [drift for drift in servers.mcp.enrolment.drifts if name in {None, drift.ref.server}]
    for drift in drifts:
        host.screen.show(drift.summary)
        host.screen.print(escape_controls(drift.diff()))
    if not drifts:
        host.screen.show("every tool is as it was approved")


async def approve_tools(host: SlashHost, servers: SessionServers, name: str, tool: str | None) -> None:
    """Show one or all changed tools of a server, and approve each with a yes.

    Raises:
        SlashError: No such tool waits for approval.
    """
    # Current definitions require a listing.
    await servers.mcp.wake([name])
    enrolment = servers.mcp.enrolment
    waiting = [drift for drift in enrolment.drifts if drift.disables and drift.ref.server == name]
    wanted = [drift for drift in waiting if tool in {None, drift.ref.name}]
    if not wanted and tool is not None:
        message = f"no tool {tool!r} of {name!r} waits for approval"
        raise SlashError(build_unknown_name(message, tool, [drift.ref.name for drift in waiting]).format_message())
    if not wanted:
        raise SlashError(f"no tool of {name!r} waits for approval")
    for drift in wanted:
        item = name_item(drift.ref)
        if not await _confirm(host, f"Approve {item} as it is now?", build_approval(name, [drift]).details):
            host.screen.show(f"{item}: not approved")
        elif not enrolment.approve(drift.ref, drift.digest):
            host.screen.show(f"{item}: it has changed again: /mcp approve {name}")
        else:
            host.screen.show(f"{item}: approved as it is now")
