"""`/mcp`: states, tools and logs of the session's servers; start, stop, enable and disable them; consent.

A yes to `trust` or `approve` covers exactly what's on screen: if a row or definition changes in the meantime, the user
is asked again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import click
from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.text import format_count
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.protocol_bridge.contract import EndpointPhase, EndpointStatus, ProtocolFault
from induscode.boot.plans import BrokenConfigError
from induscode.cli.output import build_unknown_name
from induscode.cli.terminal import escape_controls
from induscode.conversations.servers import RELOAD, SessionServers
from induscode.deck.mcp.capability import name_item
from induscode.deck.mcp.drift import build_approval, describe_causes
from induscode.deck.mcp.review import count_findings
from induscode.frontends.terminal.render import format_duration
from induscode.frontends.terminal.slash import SlashCommand, SlashError, confirm, name_slash_commands, pick, split_words
from induscode.frontends.terminal.slash.first_start import ask_about_servers
from induscode.search.options import estimate_definition
from induscode.servers.config.trust import TrustStore
from induscode.servers.plan import (
    STATE_REMEDIES,
    build_unknown_server,
    find_switched_off,
    list_secret_warnings,
    name_state,
    name_way,
    switch_server,
)
from induscode.servers.remedies import advise
from induscode.servers.sign_in import PersonPrompt, read_sign_in, sign_in_to_server, sign_out_of_server

if TYPE_CHECKING:
    from induscode.frontends.terminal.slash import SlashHost
    from induscode.servers.config.rows import ServerRow
    from induscode.servers.plan import ServerPlan

    Run: TypeAlias = Callable[[SlashHost, SessionServers, Sequence[str]], Awaitable[None]]
    """Runs an action with its words."""
    NamedRun: TypeAlias = Callable[[SlashHost, SessionServers, str], Awaitable[None]]
    """Runs an action whose only word is the name of a server."""


_MARKS = {"ready": "✓", "failed": "✗"}
_ACTS = {
    "ready": ("tools", "logs", "restart", "disconnect", "disable"),
    "starting": ("logs", "disable"),
    "failed": ("logs", "restart", "disable"),
    "sign in": ("login", "logs", "disable"),
    "not trusted": ("trust", "disable"),
    "off": ("enable", "connect", "logs"),
}
_HEADS = ("NAME", "VIA", "STATE", "SINCE", "TOOLS", "TOKENS", "ANSWER", "RESTARTS")
_SAVE, _DEVICE, _PASTE = "--save", "--device", "--paste"


# -- table ------------------------------------------------------------------------------------


async def _list_rows(host: SlashHost, servers: SessionServers) -> Sequence[tuple[tuple[str, ...], str, str]]:
    """List each server's cells, its problem in one line, and the remedy."""
    found = [await _describe_server(servers, row) for row in servers.plan.rows]
    known = {row.id for row in servers.plan.rows}
    for one in await to_thread.run_sync(find_switched_off, host.conversation.invocation):
        if one.name not in known:
            cells = (one.name, "-", "off", "-", "-", "-", "-", "-")
            found.append((cells, f"switched off in {one.file}", f"/mcp enable {one.name}"))
    if not found:
        without = host.conversation.invocation.no_mcp
        none = "no servers are configured: indus mcp add NAME -- COMMAND ARGUMENTS adds one"
        host.screen.show("Started with --no-mcp." if without else none)
    return found


def _name_state(status: EndpointStatus) -> str:
    return name_state(status.phase, None if status.fault is None else status.fault.detail.reason)


async def _choose_server(host: SlashHost, servers: SessionServers) -> None:
    """Have the user pick a server, and what to do with it."""
    rows = await _list_rows(host, servers)
    if not rows:
        return
    width = max(len(cells[0]) for cells, _, _ in rows)
    labels: list[str] = []
    for cells, message, _ in rows:
        facts = [f"{cells[4]} tools", f"{cells[5]} tokens", cells[6]] if cells[2] == "ready" else [cells[2], message]
        text = "  ".join(fact for fact in facts if not fact.startswith("-"))
        labels.append(f"{_MARKS.get(cells[2], '○')} {cells[0]:<{width}}  {text}")
    counts = Counter(cells[2] for cells, _, _ in rows)
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    add = "+ add a server"
    chosen = await pick(host, f"MCP servers · {summary}", [*labels, add])
    if chosen == len(rows):
        host.screen.show("indus mcp add NAME -- COMMAND ARGUMENTS, or a URL; then /mcp reload")
    if chosen is None or chosen == len(rows):
        return
    (name, _, word, *_), message, remedy = rows[chosen]
    if message:
        host.screen.show(f"{name}: {message}")
        host.screen.show(f"  Fix: {remedy}")
    acts = _ACTS[word]
    act = await pick(host, name, [f"{one:<10}  {_ACTIONS[one][0].rpartition(': ')[2]}" for one in acts])
    if act is not None:
        await _ACTIONS[acts[act]][1](host, servers, [name])


async def _show_servers(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> None:
    _take_no_words(words)
    found = await _list_rows(host, servers)
    if not found:
        return
    rows = [cells for cells, _, _ in found]
    messages = [(f"{cells[0]}: {message}", remedy) for cells, message, remedy in found if message]
    host.print_table(_HEADS, rows)
    for message, remedy in messages:
        host.screen.show(message)
        if remedy:
            host.screen.show(f"  Fix: {remedy}")


async def _describe_server(servers: SessionServers, row: ServerRow) -> tuple[tuple[str, ...], str, str]:
    """Return a server's cells, its problem in one line, and the remedy."""
    mcp, name, transport = servers.mcp, row.id, name_way(row)
    if name in servers.switched_off:
        cells = (name, transport, "off", "-", "-", "-", "-", "-")
        return cells, "switched off for this session", f"/mcp enable {name}"
    state = mcp.plan.state_of(row)
    status = mcp.status_of(name)
    if state != "startable" or status is None:
        cells = (name, transport, name_state(state), "-", "-", "-", "-", "-")
        return cells, *_explain_state(servers, row)
    shown = [card for card in mcp.capabilities if card.ref.server == name]
    disabled = [tool for tool in mcp.disabled if tool.ref.server == name]
    count = max(status.tool_count, len(shown) + len(disabled))
    age = servers.phases.get_age(name)
    cells = (
        name,
        transport,
        _name_state(status),
        "-" if age is None else format_duration(age),
        f"{len(shown)} of {count}",
        f"{sum(estimate_definition(card.descriptor) for card in shown):,}",
        "-" if status.answer_s is None else f"{status.answer_s * 1000:,.0f} ms",
        str(status.restarts),
    )
    if status.fault is not None:
        return cells, *await _explain_fault(servers, status, status.fault)
    if disabled:
        noun = "tool" if all(tool.ref.kind == "tool" for tool in disabled) else "item"
        number = format_count(len(disabled), f"{noun} is", f"{noun}s are")
        names = ", ".join(tool.ref.name for tool in disabled)
        return cells, f"{number} disabled, {describe_causes(disabled)}: {names}", f"/mcp approve {name}"
    findings = mcp.enrolment.list_findings(name)
    return cells, f"{count_findings(findings)}: /mcp tools {name}" if findings else "", ""


def _explain_state(servers: SessionServers, row: ServerRow) -> tuple[str, str]:
    """Return why a server isn't started, and the remedy."""
    plan = servers.mcp.plan
    state = plan.state_of(row)
    if state == "startable":
        return "", ""
    if state == "changed" and row.origin.scope != "project":
        return "it is not as it was when the file was named", RELOAD
    if state == "unresolved":
        notes = [note for note in plan.notes if note.owner.startswith(f"server {row.id!r} of ")]
        return (notes[0].message if notes else STATE_REMEDIES[state]), "set the variable, then /mcp reload"
    message, _, remedy = name_slash_commands(STATE_REMEDIES[state].format(row.id)).partition(": ")
    return " ".join([message, *(f"WARNING: {warning}" for warning in list_secret_warnings(row))]), remedy


async def _explain_fault(servers: SessionServers, status: EndpointStatus, fault: ProtocolFault) -> tuple[str, str]:
    """Return a server's fault in one line, and the remedy."""
    name = status.server
    config = servers.mcp.plan.configs[name]
    message = " ".join(str(fault).removeprefix(f"server {name!r}: ").split())
    if status.next_try_s is not None:
        message += f" (next try in {status.next_try_s:.0f} s)"
    connected = status.phase is EndpointPhase.READY
    # In a thread, as it looks for lock files of package managers. The thread doesn't see the command line's flags, so
    # the remedy omits them, as a slash command should.
    advice = await to_thread.run_sync(partial(advise, name, config, fault, os.environ, connected=connected))
    return message, name_slash_commands(advice.remedy)


# -- starting and stopping --------------------------------------------------------------------


async def _connect(host: SlashHost, servers: SessionServers, name: str) -> None:
    status = _require_startable(servers, name)
    if status.phase is EndpointPhase.READY:
        raise SlashError(f"server {name!r} is connected")
    is_over = status.phase in {EndpointPhase.CLOSED, EndpointPhase.FAULTED}
    await _start(host, servers, name, servers.mcp.fleet.restart if is_over else servers.mcp.fleet.wake)


async def _restart(host: SlashHost, servers: SessionServers, name: str) -> None:
    _require_startable(servers, name)
    _require_free(servers, name)
    await _start(host, servers, name, servers.mcp.fleet.restart)


async def _start(host: SlashHost, servers: SessionServers, name: str, start: Callable[[str], Awaitable[None]]) -> None:
    """Start a server, wait until it's up or failed, and report which."""
    began = monotonic()
    try:
        with _awaiting(servers, [name]):
            await start(name)
        await _report_start(host, servers, servers.mcp.require_status(name), began)
    except ProtocolFault as fault:
        raise SlashError(str(fault)) from fault


@contextmanager
def _awaiting(servers: SessionServers, names: Collection[str]) -> Generator[None]:
    """Leave the faults of these servers to `_report_start` inside the block."""
    servers.phases.awaited = names
    try:
        yield
    finally:
        servers.phases.awaited = ()


async def _report_start(host: SlashHost, servers: SessionServers, status: EndpointStatus, began: float) -> None:
    """Report a start: the tools and, from one second on, the time it took; or the fault with its remedy."""
    name, word = status.server, _name_state(status)
    if status.fault is not None:
        message, remedy = await _explain_fault(servers, status, status.fault)
        host.screen.show(f"{'○' if word == 'sign in' else '✗'} {name}: {message}")
        host.screen.show(f"  Fix: {remedy}")
        return
    took = monotonic() - began - (servers.phases.get_age(name) or 0)
    facts = [format_count(status.tool_count, "tool")] if word == "ready" else [word]
    facts += [format_duration(took)] if took >= 1 else []
    host.screen.show(f"{_MARKS.get(word, '○')} {name}: {', '.join(facts)}")


async def _disconnect(host: SlashHost, servers: SessionServers, name: str) -> None:
    status = _require_startable(servers, name)
    if status.phase in {EndpointPhase.IDLE, EndpointPhase.CLOSED}:
        raise SlashError(f"server {name!r} is not connected")
    _require_free(servers, name)
    await servers.mcp.fleet.stop(name)
    host.screen.show(f"server {name!r} is disconnected; calls of its tools fail until /mcp connect {name}")


def _require_free(servers: SessionServers, name: str) -> None:
    """Raise `SlashError` if a sub-agent uses the server."""
    holders = servers.mcp.fleet.leases.find_holders(name)
    if holders:
        raise SlashError(f"server {name!r} is used by {', '.join(holders)}: wait for its end, or /tasks stop it")


def _require_startable(servers: SessionServers, name: str) -> EndpointStatus:
    """Return a server's status, or raise `SlashError` with the remedy if it can't be started."""
    if name in servers.switched_off:
        raise SlashError(f"server {name!r} is switched off for this session: /mcp enable {name}")
    row = next((row for row in servers.plan.rows if row.id == name), None)
    if row is None:
        raise SlashError(f"server {name!r} is switched off in its file: /mcp enable {name}")
    status = servers.mcp.status_of(name)
    message, remedy = _explain_state(servers, row)
    if message or status is None:
        raise SlashError(f"server {name!r} is not started: {message} ({remedy})")
    return status


# -- signing in and out -----------------------------------------------------------------------


async def _login(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> None:
    """Sign in to a server, via browser unless a flag says otherwise."""
    ways = [word for word in words if word in {_DEVICE, _PASTE}]
    name = await _take_name(host, servers, [word for word in words if word not in ways])
    _take_no_words(ways[1:])
    _require_startable(servers, name)
    config = servers.mcp.plan.configs[name]
    try:
        await sign_in_to_server(config, PersonPrompt(host.screen, paste=ways == [_PASTE]), device=ways == [_DEVICE])
        facts = await read_sign_in(config)
    except AuthFault as fault:
        raise SlashError(f"not signed in: {fault}") from fault
    who = f" as {facts.account}" if facts is not None and facts.account else ""
    host.screen.show(f"signed in to {name!r}{who}")
    # A live connection picks up the new sign-in on its next request.
    if _require_startable(servers, name).phase is not EndpointPhase.READY:
        await _start(host, servers, name, servers.mcp.fleet.restart)


async def _logout(host: SlashHost, servers: SessionServers, name: str) -> None:
    _require_startable(servers, name)
    _require_free(servers, name)
    try:
        confirmed = await sign_out_of_server(servers.mcp.plan.configs[name])
    except AuthFault as fault:
        raise SlashError(f"not signed out: {fault}") from fault
    if confirmed is None:
        raise SlashError(f"there is no sign-in to {name!r}")
    host.screen.show(f"signed out of {name!r}" + ("" if confirmed else "; the issuer has not confirmed it"))
    await servers.mcp.fleet.stop(name)


# -- switching on and off ---------------------------------------------------------------------


async def _switch(host: SlashHost, servers: SessionServers, words: Sequence[str], *, on: bool) -> None:
    name = await _take_name(host, servers, [word for word in words if word != _SAVE])
    word = "on" if on else "off"
    if _SAVE in words:
        switch = partial(switch_server, host.conversation.invocation.cwd, name, None, on=on)
        try:
            host.screen.show(await to_thread.run_sync(switch))
        except click.ClickException as exc:
            raise SlashError(name_slash_commands(exc.format_message())) from exc
        servers.switched_off.discard(name)
        servers.switched_on.discard(name)
        _show_changes(host, await servers.apply_changes())
        return
    configured = any(row.id == name for row in servers.plan.rows)
    if on == (configured and name not in servers.switched_off):
        raise SlashError(f"server {name!r} is switched {word} already")
    plan = servers.plan
    if not on:
        servers.switched_off.add(name)
    elif configured:
        servers.switched_off.discard(name)
    else:  # switched off in its file
        servers.switched_on.add(name)
        try:
            plan = await _read_plan(servers)
        except SlashError:
            servers.switched_on.discard(name)
            raise
    changes = await servers.apply_plan(plan)
    host.screen.show(f"server {name!r} is switched {word} for this session; {_SAVE} writes it to its file")
    _show_changes(host, changes)


def _show_changes(host: SlashHost, changes: Sequence[str]) -> None:
    for change in changes:
        host.screen.show(name_slash_commands(change))


# -- tools and logs ---------------------------------------------------------------------------


async def _show_tools(host: SlashHost, servers: SessionServers, name: str) -> None:
    mcp = servers.mcp
    shown = [card for card in mcp.capabilities if card.ref.server == name]
    disabled = [tool for tool in mcp.disabled if tool.ref.server == name]
    rows = [
        (card.name, f"{estimate_definition(card.descriptor):,}", card.descriptor.description.strip().partition("\n")[0])
        for card in shown
    ]
    rows += [(tool.name, "-", f"{tool.reason}: {name_slash_commands(tool.approve_command)}") for tool in disabled]
    if rows:
        host.print_table(("NAME", "TOKENS", "DESCRIPTION"), rows)
    owner = f"server {name!r}, tool "
    for note in mcp.enrolment.notes:
        if note.owner.startswith(owner) and note.message.startswith("left out: "):
            host.screen.show(f"{note.owner.removeprefix(owner)}: {note.message}")
    for finding in mcp.enrolment.list_findings(name):
        host.screen.show(str(finding))
    if not rows:
        host.screen.show(f"no tool of server {name!r} is known: /mcp connect {name} starts it")


async def _show_logs(host: SlashHost, servers: SessionServers, name: str) -> None:
    try:
        lines = servers.mcp.fleet.read_log(name)
    except ProtocolFault:
        lines = ()  # switched off for this session
    for line in lines:
        host.screen.show(line)
    if not lines:
        host.screen.show(
            f"server {name!r} has written nothing in this session; indus mcp logs {name} shows earlier ones"
        )


# -- words ------------------------------------------------------------------------------------


def _take_no_words(words: Sequence[str]) -> None:
    if words:
        raise SlashError(f"what is {words[0]!r} for? The command takes no further word")


async def _take_name(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> str:
    """Return the server name, a command's only word; `SlashError` if it's missing, unknown or not the only one."""
    names = [row.id for row in servers.plan.rows]
    if not words:
        raise SlashError(f"name the server: {', '.join(names)}" if names else "there are no servers")
    _take_no_words(words[1:])
    if words[0] not in names:
        names += [one.name for one in await to_thread.run_sync(find_switched_off, host.conversation.invocation)]
    if words[0] not in names:
        raise SlashError(build_unknown_server(words[0], names).format_message())
    return words[0]


# -- consent ------------------------------------------------------------------------------------


async def _trust(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> None:
    """Ask about one server or all that wait for consent, and start those with a yes."""
    name = await _take_name(host, servers, words) if words else None
    plan = await _read_plan(servers)
    held_back = await to_thread.run_sync(servers.find_held_back, plan)
    waiting = [row for row in plan.rows if row in held_back or row in plan.untrusted]
    rows = [row for row in waiting if name in {None, row.id}]
    if not rows:
        raise SlashError("no server waits for consent" if name is None else f"server {name!r} needs no consent")
    if name is None:
        trusted = await ask_about_servers(host, rows)
    else:
        trusted = [row.id for row in rows if await _ask_about_server(host, row)]
    if not trusted:
        return
    # Reread: variables are only resolved after consent.
    plan, began = await _read_plan(servers), monotonic()
    with _awaiting(servers, trusted):
        changes = await servers.apply_plan(plan)
        others = [one for one in changes if not {*one.removeprefix("servers changed: ").split(", ")} <= {*trusted}]
        _show_changes(host, others)
        started = [server for server in trusted if server in servers.mcp.plan.configs]
        await servers.mcp.wake(started)
    for server in trusted:
        status = servers.mcp.status_of(server) if server in started else None
        if status is not None:
            await _report_start(host, servers, status, began)
        else:  # it changed again, or a variable has no value
            host.screen.show(f"server {server!r} is not started: /mcp says why")


async def _ask_about_server(host: SlashHost, row: ServerRow) -> bool:
    """Show a server in full and store consent for exactly that."""
    store = TrustStore()
    question = await to_thread.run_sync(store.question, row)
    if not await confirm(host, f"Trust {question.subject} and start it in this project?", question.details):
        host.screen.show(f"{row.id}: not trusted")
        return False
    await to_thread.run_sync(store.approve, row, question.digest)
    return True


async def _reload(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> None:
    """Reread and apply the configuration, asking about changed rows that are held back."""
    _take_no_words(words)
    plan = await _read_plan(servers)
    held_back = await to_thread.run_sync(servers.find_held_back, plan)
    answers = [await _ask_about_server(host, row) for row in held_back]
    # Reread after a yes: a row that changed since the question is held back again.
    changes = await servers.apply_plan(await _read_plan(servers) if any(answers) else plan)
    _show_changes(host, changes or ["the configuration is as it was"])


async def _read_plan(servers: SessionServers) -> ServerPlan:
    try:
        return await servers.read_plan()
    except BrokenConfigError as exc:
        raise SlashError(str(exc).partition("\n")[0]) from exc


async def _diff(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> None:
    """Show how the tools of one server, or all, differ from the approved definitions."""
    name = await _take_name(host, servers, words) if words else None
    await servers.mcp.wake(servers.mcp.eager_servers() if name is None else [name])
    drifts = [drift for drift in servers.mcp.enrolment.drifts if name in {None, drift.ref.server}]
    for drift in drifts:
        for line in drift.headlines:
            host.screen.show(line)
        host.screen.print(escape_controls(drift.diff()))
    if not drifts:
        host.screen.show("no changed tools")


async def _approve(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> None:
    """Show one or all changed tools of a server, and approve each with a yes."""
    _take_no_words(words[2:])
    name, tool = await _take_name(host, servers, words[:1]), words[1] if len(words) > 1 else None
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
        if not await confirm(host, f"Approve {item} as it is now?", build_approval(name, [drift]).details):
            host.screen.show(f"{item}: not approved")
            continue
        try:
            await servers.mcp.allow(drift)
        except (CoreError, OSError) as exc:
            raise SlashError(str(exc)) from exc
        if not enrolment.approve(drift.ref, drift.digest):
            host.screen.show(f"{item}: it has changed again: /mcp approve {name}")
        else:
            host.screen.show(f"{item}: approved as it is now")


# -- the command ------------------------------------------------------------------------------


def _take_one(run: NamedRun) -> Run:
    """Make an action of a function that takes a server's name."""

    async def run_named(host: SlashHost, servers: SessionServers, words: Sequence[str]) -> None:
        await run(host, servers, await _take_name(host, servers, words))

    return run_named


_ACTIONS: Mapping[str, tuple[str, Run]] = {
    "list": ("show the servers", _show_servers),
    "connect": ("NAME: start a server", _take_one(_connect)),
    "disconnect": ("NAME: stop a server", _take_one(_disconnect)),
    "restart": ("NAME: start a server again", _take_one(_restart)),
    "login": ("NAME [--device|--paste]: sign in to a server", _login),
    "logout": ("NAME: sign out of a server", _take_one(_logout)),
    "enable": (f"NAME [{_SAVE}]: switch a server on for this session", partial(_switch, on=True)),
    "disable": (f"NAME [{_SAVE}]: switch a server off for this session", partial(_switch, on=False)),
    "tools": ("NAME: list the tools of a server", _take_one(_show_tools)),
    "logs": ("NAME: show standard error and log messages", _take_one(_show_logs)),
    "trust": ("[NAME]: consent to servers of the project", _trust),
    "approve": ("NAME [TOOL]: approve changed tools", _approve),
    "diff": ("[NAME]: show how tools differ from what was approved", _diff),
    "reload": ("read the configuration again", _reload),
}


async def _run(host: SlashHost, rest: str) -> None:
    servers = host.conversation.servers
    assert servers is not None  # a session with slash commands follows its configuration
    if not rest and host.screen.can_mark:
        await _choose_server(host, servers)
        return
    action, *words = split_words(rest) or ["list"]
    if action not in _ACTIONS:
        raise SlashError(f"/mcp has no action {action!r}; there are: {', '.join(_ACTIONS)}")
    await _ACTIONS[action][1](host, servers, words)


MCP = SlashCommand(
    name="mcp",
    usage="[ACTION NAME]",
    describe="servers: states, tools, logs, start, stop, consent",
    actions={name: about for name, (about, _) in _ACTIONS.items()},
    run=_run,
)
