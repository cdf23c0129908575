"""`indus mcp list`, `get` and `logs`: show the configured servers, their states and their past faults."""

from __future__ import annotations

from asyncio import TaskGroup, get_running_loop
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio
import click

from indusagi.capabilities.sandbox.profile import format_profile
from indusagi.core.json import compact_json
from indusagi.core.text import format_count
from indusagi.interop.protocol_bridge.contract import ITEM_KINDS, StdioServerConfig
from induscode.boot.plans import LOOK_LIMIT_S, build_silent_note, load_plan, opened_store
from induscode.calls.database import format_duration
from induscode.cli.listing import Fit, GrowingTable, live_table
from induscode.cli.output import as_json, print_notes, write_json
from induscode.cli.signals import run_async, run_for_result
from induscode.cli.terminal import print_line, show_live_line, stdout_console
from induscode.commands.groups import complete_server
from induscode.deck.mcp.content import CONTENT_KINDS
from induscode.deck.mcp.drift import command_line, describe_causes
from induscode.deck.mcp.review import count_findings
from induscode.deck.mcp.reviewer import open_reviewer
from induscode.deck.mcp.store.events import filter_texts
from induscode.deck.mcp.store.pins import read_disabled_tools
from induscode.launch.options import define_command, flags, read_invocation
from induscode.search.options import estimate_definition
from induscode.servers.config.trust import server_identity
from induscode.servers.labels import format_labels
from induscode.servers.plan import (
    STATE_REMEDIES,
    build_config_facts,
    build_reference_facts,
    find_row,
    find_switched_off,
    list_secret_warnings,
    name_state,
    name_transport,
    name_way,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import EndpointStatus
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.review import Finding
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Row
    from induscode.launch.invocation import Invocation
    from induscode.servers.config.rows import ServerRow
    from induscode.servers.plan import ServerPlan

_KEYS = ("name", "transport", "phase", "tools", "scope", "message")
_HEADS = ("NAME", "TRANSPORT", "STATE", "TOOLS", "SCOPE", "MESSAGE")
_WATCH_HEADS = ("NAME", "TRANSPORT", "STATE", "TOOLS", "TOKENS", "ANSWER", "RESTARTS", "MESSAGE")
_FIT = Fit({"MESSAGE": 24}, drop=("SCOPE", "RESTARTS", "TRANSPORT", "TOKENS", "ANSWER"), wraps=True)
_DEBOUNCE_S = 0.05
"""`--watch` redraws once for all changes within this time."""
_LOGGED_EVENTS = frozenset({"connect", "ready", "fault", "drift", "approve"})
"""The ledger events that `logs` shows."""
_NO_SERVERS = "No servers are configured. Add one: indus mcp add NAME -- COMMAND ARGUMENTS"
_IN_ORDER_S = 1.0
"""How long a slow server may hold up the rows that follow it in the files."""
_MAX_NAMES = 3
"""How many disabled tools a row names."""


@flags("--mcp", "--cwd")
@click.command("list")
@as_json
@click.option("--no-check", is_flag=True, help="Do not connect to them.")
@click.option("--watch", is_flag=True, help="Keep them connected, and show every change, until Ctrl-C.")
@click.pass_context
def list_(context: click.Context, *, as_json: bool, no_check: bool, watch: bool, **_: object) -> int:
    """List the servers and their states.

    Connects to trusted servers for up to five seconds, and shows each state as soon as it's known. The exit code is 0
    even if some fail: the list says which, and why.
    """
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    if watch:
        if as_json or no_check:
            raise click.UsageError("--watch shows a table of connected servers: no --json, no --no-check")
        return _watch_servers(plan)
    # The table already says why a server isn't started.
    print_notes(note for note in plan.notes if not note.message.startswith(("not started", "switched off")))
    off = _list_switched_off(invocation)
    if not plan.rows and not off:
        write_json({"servers": []}) if as_json else print_line(_NO_SERVERS)
        return 0
    checks = bool(plan.configs) and not no_check
    if checks and not as_json and stdout_console() is not None:
        _show_live(plan, off)
    else:
        _list_rows(plan, off, checks=checks, as_json=as_json)
    return 0


def _list_rows(plan: ServerPlan, off: Sequence[JsonObject], *, checks: bool, as_json: bool) -> None:
    """Print each row as soon as its server answers."""
    names = [str(row["name"]) for row in off] + [row.id for row in plan.rows]
    columns = (names, [name_way(row) for row in plan.rows] or ("stdio",), ("not trusted",), (), ("project",))
    table = None if as_json else GrowingTable(_HEADS, columns, numbers=("TOOLS",), fit=_FIT)
    rows: list[JsonObject] = []

    def show(row: JsonObject) -> None:
        rows.append(row)
        if table is not None:
            table.add(_list_cells(row))

    if not checks:
        states = run_for_result(lambda _: _read_states(plan, reviews=as_json))
        for row in plan.rows:
            show(_build_row(row, plan, states))
    else:
        run_for_result(lambda _: _check_servers(plan, show, show_live_line))
    rows.sort(key=lambda row: plan.configured.index(str(row["name"])))
    for row in off:
        show(row)
    if as_json:
        write_json({"servers": [*rows]})


def _show_live(plan: ServerPlan, off: Sequence[JsonObject]) -> None:
    """Show all servers at once on the terminal, and replace the state of each as soon as it's known."""
    unknown, phase = _States({}, {}, {}, {}), _KEYS.index("phase")
    cells = {row.id: _list_cells(_build_row(row, plan, unknown)) for row in plan.rows}
    for name in plan.configs:
        cells[name][phase] = "checking…"
    with live_table(_FIT) as redraw:

        def show(row: JsonObject) -> None:
            cells[str(row["name"])] = _list_cells(row)
            redraw(_HEADS, [*cells.values(), *map(_list_cells, off)], "")

        def show_start(name: str, text: str) -> None:
            if cells[name][phase] == "checking…":  # a later row has its own message
                cells[name][-1] = text
            redraw(_HEADS, [*cells.values(), *map(_list_cells, off)], "")

        redraw(_HEADS, [*cells.values(), *map(_list_cells, off)], "")
        run_for_result(lambda _: _check_servers(plan, show, show_start))


class _OrderedRows:
    """Passes rows on in configuration order, and after `end_order` as they come."""

    def __init__(self, rows: Sequence[ServerRow], show: Callable[[JsonObject], None]) -> None:
        self._waiting = [row.id for row in rows]
        self._show = show
        self._ready: dict[str, JsonObject] = {}
        self._is_in_order = True

    def add(self, facts: JsonObject) -> None:
        self._ready[str(facts["name"])] = facts
        for name in [*self._waiting]:
            if name in self._ready:
                self._waiting.remove(name)
                self._show(self._ready[name])
            elif self._is_in_order:
                return

    def end_order(self) -> None:
        self._is_in_order = False
        for name in [name for name in self._waiting if name in self._ready]:
            self.add(self._ready[name])


async def _check_servers(
    plan: ServerPlan, show: Callable[[JsonObject], None], show_start: Callable[[str, str], None]
) -> None:
    """Connect to the servers and show each row as soon as we know its state, and slow starts with `show_start`."""
    from induscode.boot.runners import START_ONCE, StartAnnouncer, attach_servers  # noqa: PLC0415 — imports the bridge

    ordered = _OrderedRows(plan.rows, show)
    async with opened_store() as store:
        options = replace(START_ONCE, only=(), on_event=StartAnnouncer(show_start))
        mcp = await attach_servers(plan, store, options, wait=False)

        async def check(row: ServerRow) -> None:
            starting = await mcp.wake([row.id], LOOK_LIMIT_S) if row.id in plan.configs else ()
            facts = _build_row(row, plan, _read_present_states(mcp, [row.id]))
            if starting and not facts["message"]:
                facts["message"] = str(build_silent_note(row.id, LOOK_LIMIT_S)).partition(": ")[2]
            ordered.add(facts)

        ordering = get_running_loop().call_later(_IN_ORDER_S, ordered.end_order)
        try:
            async with TaskGroup() as tasks:
                for row in plan.rows:
                    tasks.create_task(check(row))
        finally:
            ordering.cancel()
            await mcp.aclose()


@run_async
async def _watch_servers(plan: ServerPlan) -> int:
    """Redraw the table whenever a server changes."""
    from induscode.boot.runners import START_ONCE, attach_servers  # noqa: PLC0415 — imports the bridge
    from induscode.deck.mcp.boot import BootOptions  # noqa: PLC0415 — imports the bridge

    changed = anyio.Event()
    options = BootOptions(lazy=(), reloadable=True, on_event=lambda _: changed.set(), retention=START_ONCE.retention)
    async with opened_store() as store:
        mcp = await attach_servers(plan, store, options, wait=False)
        try:
            with live_table(_FIT) as show:
                while True:
                    changed = anyio.Event()
                    states = _read_present_states(mcp, [row.id for row in plan.rows])
                    rows = [_build_row(row, plan, states) for row in plan.rows]
                    figures = _measure_servers(mcp)
                    cells = [
                        [*_list_cells(row)[:4],
                         *figures.get(str(row["name"]), ("-", "-", "-")), row["message"]]
                        for row in rows
                    ]  # fmt: skip
                    nothing = "" if cells else f"{_NO_SERVERS}  "
                    show(_WATCH_HEADS if cells else (), cells, f"{nothing}Ctrl-C ends it.")
                    await changed.wait()
                    await anyio.sleep(_DEBOUNCE_S)
        finally:
            await mcp.aclose()


def _measure_servers(mcp: BootedBridge) -> dict[str, tuple[object, object, object]]:
    """Return the definition tokens, last response time and restart count of each server."""
    tokens: dict[str, int] = {}
    for card in mcp.capabilities:
        tokens[card.ref.server] = tokens.get(card.ref.server, 0) + estimate_definition(card.descriptor)
    return {
        name: (
            tokens.get(name, 0),
            "-" if status.answer_s is None else format_duration(round(status.answer_s * 1_000_000)),
            status.restarts,
        )
        for name, status in mcp.status().items()
    }


class _States(NamedTuple):
    """Server states by server id."""

    status: dict[str, EndpointStatus]
    """Only for connected servers."""
    tools: dict[str, int]
    """Tool counts, as last seen."""
    disabled: dict[str, Sequence[DisabledTool]]
    """Disabled tools, as last seen."""
    findings: dict[str, Sequence[Finding]]
    """What the review finds in their definitions."""


def _read_present_states(mcp: BootedBridge, servers: Sequence[str]) -> _States:
    """Read the states of connected servers, with the ledger's tools for servers that aren't up."""
    known = {server: status for server in servers if (status := mcp.status_of(server)) is not None}
    counts: dict[str, int] = {}
    for card in mcp.capabilities:
        counts[card.ref.server] = counts.get(card.ref.server, 0) + 1
    disabled: dict[str, list[DisabledTool]] = {}
    for tool in mcp.disabled:
        disabled.setdefault(tool.ref.server, []).append(tool)
    findings = {server: mcp.enrolment.list_findings(server) for server in known}
    return _States(known, counts, {**disabled}, findings)


async def _read_states(plan: ServerPlan, *, reviews: bool) -> _States:
    """Read the states from the ledger, without connecting. A review takes as long as all of the rest."""
    states = _States({}, {}, {}, {})
    if not plan.configs:
        return states
    async with opened_store() as store:
        for row in await store.latest("list"):
            config = plan.configs.get(str(row.facts.get("server")))
            is_of_tools = "kind" not in row.facts
            if config is not None and is_of_tools and row.facts.get("identity") == server_identity(config):
                states.tools[config.id] = len(filter_texts(row.facts.get("tools")))
        states.disabled.update(await read_disabled_tools(store, plan.configs.values(), *ITEM_KINDS))
        if reviews:
            reviewer = await open_reviewer(store, plan, ("tool", *CONTENT_KINDS))
            states.findings.update((server, reviewer.review_server(server)) for server in plan.configs)
    return states


def _list_cells(facts: JsonObject) -> list[JsonValue]:
    cells = ["-" if facts[key] is None else facts[key] for key in _KEYS]
    cells[_KEYS.index("phase")] = _name_phase(facts)
    sandbox = facts["sandbox"]
    profile = sandbox.get("container", sandbox.get("profile")) if isinstance(sandbox, dict) else sandbox
    if profile not in {None, "off"}:
        cells[1] = f"{cells[1]}, {profile} sandbox"
    return cells


def _name_phase(facts: JsonObject) -> str:
    fault = facts["fault"]
    return name_state(str(facts["phase"]), str(fault["reason"]) if isinstance(fault, dict) else None)


def _build_row(row: ServerRow, plan: ServerPlan, states: _States) -> JsonObject:
    status, disabled = states.status.get(row.id), states.disabled.get(row.id, ())
    state = plan.state_of(row)
    fault: JsonValue = None
    phase = "unchecked" if state == "startable" else str(state)
    message = STATE_REMEDIES[state].format(row.id) if state != "startable" else ""
    count = states.tools.get(row.id)
    waiting = state in {"untrusted", "changed"}
    if waiting:
        message = " ".join([message, *(f"WARNING: {warning}" for warning in list_secret_warnings(row))])
    if state == "unresolved":
        message = next((note.message for note in plan.notes if repr(row.id) in note.owner), message)
    if status is not None and state == "startable":
        phase = str(status.phase)
        if phase not in {"idle", "connecting"}:  # not listed yet, so the ledger's count stands
            count = max(0, status.tool_count - sum(one.ref.kind == "tool" for one in disabled))
        if status.fault is not None:
            message = str(status.fault).removeprefix(f"server {row.id!r}: ").removeprefix("failed: ")
            fault = {"kind": status.fault.kind, "reason": status.fault.detail.reason}
    findings = states.findings.get(row.id, ())
    if not message and not disabled and findings:
        message = f"{count_findings(findings)}; look: {command_line('indus', 'mcp', 'get', row.id)}"
    if not message and disabled:
        names = ", ".join(tool.ref.name for tool in disabled[:_MAX_NAMES])
        more = f" and {len(disabled) - _MAX_NAMES} more" if len(disabled) > _MAX_NAMES else ""
        all_of_them = command_line("indus", "mcp", "approve", disabled[0].ref.server)
        approve = disabled[0].approve_command if len(disabled) == 1 else all_of_them
        noun = "tool" if all(one.ref.kind == "tool" for one in disabled) else "item"
        number = format_count(len(disabled), f"{noun} is", f"{noun}s are")
        message = f"{number} disabled, {describe_causes(disabled)}: {names}{more}"
        message += f"; look: {disabled[0].diff_command}; approve: {approve}"
    return {
        "name": row.id,
        "transport": name_transport(row.config),
        "sandbox": format_profile(row.config.sandbox) if isinstance(row.config, StdioServerConfig) else None,
        "labels": format_labels(row.labels) if row.labels else None,
        "phase": phase,
        "tools": count,
        "scope": row.origin.scope,
        "file": row.origin.file,
        "enabled": True,
        "required": row.required,
        "start": row.start,
        "fault": fault,
        "message": message,
        "disabled": [one.as_json() for one in disabled],
        "findings": [one.as_json() for one in findings],
        **(build_reference_facts(row) if waiting else {}),
    }


def _list_switched_off(invocation: Invocation) -> list[JsonObject]:
    return [
        {
            "name": one.name,
            "transport": None,
            "sandbox": None,
            "labels": None,
            "phase": "disabled",
            "tools": None,
            "scope": one.scope,
            "file": one.file,
            "enabled": False,
            "required": False,
            "start": None,
            "fault": None,
            "message": f"switched off: indus mcp enable {one.name}",
            "disabled": [],
            "findings": [],
        }
        for one in find_switched_off(invocation)
    ]


@flags("--mcp", "--cwd")
@click.command("get")
@click.argument("name", shell_complete=complete_server)
@as_json
@click.pass_context
def get(context: click.Context, name: str, *, as_json: bool, **_: object) -> int:
    """Show the server NAME, without starting it.

    Shows references such as ${TOKEN} as written, and hides all other values of variables and headers.
    """
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    off = next((one for one in _list_switched_off(invocation) if one["name"] == name), None)
    if off is not None and name not in {row.id for row in plan.rows}:
        facts = off
    else:
        row = find_row(plan, name)
        states = run_for_result(lambda _: _read_states(plan.narrow([name]), reviews=True))
        facts = {**_build_row(row, plan, states), "dialect": row.origin.dialect}
        facts |= {"consent": plan.consent[row.id], **build_config_facts(row)}
        facts |= {"variables": [*row.secrets], **build_reference_facts(row)}
    if as_json:
        write_json(facts)
        return 0
    for key, value in {**facts, "phase": _name_phase(facts)}.items():
        if key in {"references", "disabled", "findings"}:
            for item in cast("list[JsonObject]", value):
                if key == "findings":
                    kind, name, place = item["kind"], _format_value(item["name"]), item["place"]
                    print_line(f"{item['severity']}: {kind} {name}, {place}: {item['message']} [{item['check']}]")
                elif key == "references":
                    secret = " (looks like a secret)" if item["looksSecret"] else ""
                    print_line(f"reference: {item['written']} in {item['place']}, for {item['recipient']}{secret}")
                else:
                    tool, reason, approve = (_format_value(item[part]) for part in ("name", "reason", "approve"))
                    print_line(f"disabled: {tool} ({reason}); approve: {approve}")
        elif value not in (None, "", "-", []):
            text = ", ".join(map(_format_value, value)) if isinstance(value, list) else _format_value(value)
            print_line(f"{key}: {text}")
    return 0


def _format_value(value: JsonValue) -> str:
    """Format a value in one line, so that its text can't forge another line."""
    return value if isinstance(value, str) and value.isprintable() else compact_json(value)


# -- logs -------------------------------------------------------------------------------------


@define_command("logs", "--mcp", "--cwd")
@click.argument("name", shell_complete=complete_server)
@as_json
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="The last N entries."
)
@run_async
async def logs(context: click.Context, name: str, *, as_json: bool, limit: int) -> int:
    """Show the faults of the server NAME, with its last lines on standard error.

    They come from the ledger, which redacts known secrets.
    """
    async with opened_store() as store:
        rows = await _read_entries(store, name, limit)
    if not rows:
        find_row(load_plan(read_invocation(context)), name)
    entries: list[JsonObject] = [
        {
            "at": row.at,
            "run": row.run,
            "event": row.op,
            "subject": row.facts.get("subject", ""),
            "detail": row.facts.get("detail", ""),
        }
        for row in rows
    ]
    if as_json:
        write_json({"server": name, "entries": entries})
        return 0
    for entry in entries:
        for line in str(entry["detail"]).split("\n"):
            print_line(f"{entry['at']}  {entry['event']}  {entry['subject']}  {line}".rstrip())
    if not entries:
        print_line(f"Nothing has happened at server {name!r} yet.")
    return 0


async def _read_entries(store: LedgerStore, name: str, limit: int) -> Sequence[Row]:
    """Read the last `limit` events of a server, oldest first."""
    events: list[Row] = []
    for run in reversed(await store.runs()):
        rows = [row for row in await store.rows(run.run) if row.facts.get("server") == name]
        events[:0] = [row for row in rows if row.op in _LOGGED_EVENTS]
        if len(events) >= limit:
            break
    return events[-limit:]
