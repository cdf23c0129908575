"""`indus mcp doctor`: diagnoses servers and the installation."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
from asyncio import get_running_loop
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import click
from anyio import create_task_group

from indusagi import DISTRIBUTION
from indusagi.capabilities.leftovers import Receipt, end_leftover, find_leftover_jobs
from indusagi.capabilities.sandbox.behaviour import RefusedUse
from indusagi.capabilities.sandbox.profile import ServerProfile, format_profile
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json
from indusagi.core.text import clean_text, escape_unseen, format_count
from indusagi.interop.protocol_bridge.client.start import StartHistory
from indusagi.interop.protocol_bridge.contract import (
    ITEM_KINDS,
    EndpointStatus,
    ProtocolFault,
    RemoteTool,
    ServerConfig,
    StdioServerConfig,
    needs_sign_in,
    waits_for_user,
)
from indusagi.interop.protocol_bridge.endpoint import EndpointEvent, create_server_endpoint
from induscode.boot.plans import load_plan, opened_store
from induscode.boot.runners import START_ONCE, attach_servers, explain_slow_start
from induscode.calls.database import format_duration
from induscode.cli.listing import Cell, print_table
from induscode.cli.output import as_json, print_notes, write_json
from induscode.cli.signals import run_for_result, run_until_signal
from induscode.cli.terminal import print_line, print_status, show_live_line
from induscode.commands.groups import complete_server
from induscode.deck.mcp.content import CONTENT_KINDS
from induscode.deck.mcp.drift import DisabledTool, command_line
from induscode.deck.mcp.review import Finding
from induscode.deck.mcp.reviewer import Reviewer, open_reviewer
from induscode.deck.mcp.store.pins import StorePins, find_started_before, read_pins
from induscode.launch.invocation import Invocation
from induscode.launch.options import define_command, read_invocation
from induscode.servers.config.rows import ServerRow
from induscode.servers.labels import LABELS, propose_labels
from induscode.servers.plain_secrets import PlainRow, find_plain_rows
from induscode.servers.plan import (
    STATE_REMEDIES,
    ServerPlan,
    build_reference_facts,
    find_row,
    format_url,
    list_secret_warnings,
    name_state,
    name_transport,
)
from induscode.servers.remedies import advise, format_server_command

_UNWELL = 1
_MAX_STDERR_LINES = 10


@dataclass(slots=True)
class _Findings:
    """The diagnosis of one server."""

    name: str
    transport: str
    file: str
    trust: str
    target: str
    sandbox: JsonValue = None
    """Of a process: the profile it's held to."""
    labels: Sequence[str] = ()
    """What its tools are proposed to read and send, if nobody has confirmed it."""
    package: str | None = None
    """For a registry server: its package and whether we verified it."""
    handshake: str = "not tried"
    era: str | None = None
    version: str | None = None
    server: str | None = None
    tools: int | None = None
    latency_ms: int | None = None
    stderr: Sequence[str] = ()
    fault: str | None = None
    remedy: str | None = None
    notes: Sequence[str] = ()
    disabled: Sequence[DisabledTool] = ()
    findings: Sequence[Finding] = ()
    """What the review finds in its definitions."""
    has_labels: bool = False
    """Whether its row or the lock file has labels."""
    references: JsonObject = field(default_factory=dict[str, "JsonValue"])
    warnings: Sequence[str] = ()
    """For a server without consent: references that look like secrets."""
    state: str = ""
    """For people: the word that `indus mcp list` and `/mcp` show."""

    def as_json(self) -> JsonObject:
        hidden = {"references", "warnings", "has_labels", "state"}
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in hidden}
        values |= {"stderr": [*self.stderr], "notes": [*self.notes], "labels": [*self.labels]}
        values |= {key: [one.as_json() for one in getattr(self, key)] for key in ("disabled", "findings")}
        named = {"latencyMs" if key == "latency_ms" else key: value for key, value in values.items()}
        return {**named, **self.references}


@define_command("doctor", "--mcp", "--cwd")
@click.argument("name", required=False, shell_complete=complete_server)
@as_json
@click.option("--end-leftovers", is_flag=True, help="End jobs that a crashed run left running.")
@click.option(
    "--sandbox",
    "in_profiles",
    is_flag=True,
    help="Start NAME in each sandbox profile, and propose the smallest that works.",
)
def doctor(context: click.Context, name: str | None, *, as_json: bool, end_leftovers: bool, in_profiles: bool) -> int:
    """Examine the server NAME, or all servers, and say what to do. Exit code 1 if there is a problem.

    Starts each trusted server once, by itself, and leaves the ledger alone. Also lists jobs that a crashed run of indus
    left running.
    """
    invocation = read_invocation(context)
    if in_profiles:
        if name is None:
            raise click.UsageError("--sandbox requires the NAME of a server")
        whole = load_plan(replace(invocation, sandbox="auto"))  # a sandbox for it is what's looked for
        may_be_bare = invocation.sandbox != "required"
        row = find_row(whole, name)
        return compare_profiles(row, whole.configs.get(row.id), may_be_bare=may_be_bare, is_json=as_json)
    plan = load_plan(invocation)
    if name is not None:
        plan = plan.narrow([find_row(plan, name).id])
    examined, places = [_build_findings(row, plan) for row in plan.rows], plan.find_places()

    async def work(_: CancelToken) -> int:
        # A server that has never come up gets the longer first-start timeout.
        history = StartHistory()
        async with opened_store() as store:
            pins = await read_pins(store, plan.configs.values(), places)
            reviewer = await open_reviewer(store, plan, ("tool", *CONTENT_KINDS))
            for config in await find_started_before(store, plan.configs.values()):
                history.record_up(config)
        async with create_task_group() as tasks:
            for findings in examined:
                if findings.name in plan.configs:
                    config = plan.configs[findings.name]
                    tasks.start_soon(_examine, findings, config, pins, reviewer, history)
        return 0

    code = run_until_signal(work) if plan.configs else 0
    if code:
        return code
    leftovers = find_leftover_jobs() if name is None else []
    installation = check_installation() if name is None else ()
    plain = [row for row in find_plain_rows(invocation.cwd, os.environ) if name in {None, row.server}]
    print_notes(installation)
    _print_report(plan, examined, leftovers, plain, is_whole=name is None, as_json=as_json)
    if end_leftovers:
        leftovers = [job for job in leftovers if not _end_job(job)]
    unwell = any(findings.remedy for findings in examined) or leftovers or installation
    return _UNWELL if unwell else 0


def _end_job(job: Receipt) -> bool:
    has_ended = end_leftover(job)
    if has_ended:
        print_line(f"ended: process {job.pid}")
    else:
        print_status(f"process {job.pid} could not be ended")
    return has_ended


def _build_findings(row: ServerRow, plan: ServerPlan) -> _Findings:
    config = plan.configs.get(row.id, row.config)
    if isinstance(config, StdioServerConfig):
        container = None if config.sandbox is None else config.sandbox.container
        command = config.command if container is None else container.engine
        path = shutil.which(command)
        if path is None and config.cwd is not None:
            path = shutil.which(os.path.join(config.cwd, command))
        target = f"{command}: {'not found' if path is None else os.path.abspath(path)}"
    else:
        from indusagi.net.address import is_loopback  # noqa: PLC0415 — for servers at an address

        target, parts = format_url(row), urlsplit(config.url)
        if parts.scheme.lower() == "http" and not is_loopback(parts.hostname or ""):
            target += " (not encrypted: others on the way can read and change everything)"
    findings = _Findings(row.id, name_transport(config), row.origin.file, plan.consent[row.id], target)
    findings.sandbox = format_profile(config.sandbox) if isinstance(config, StdioServerConfig) else None
    findings.has_labels = bool(plan.find_labels(row.id))
    if row.registry is not None:
        from induscode.servers.registry import describe_verification  # noqa: PLC0415 — for servers of a registry

        package, sha256 = (clean_text(str(row.registry.get(key, "")))[0] for key in ("package", "sha256"))
        findings.package = f"{package} ({describe_verification(package, sha256)})"
    state = plan.state_of(row)
    findings.state = name_state(state)
    if state in {"untrusted", "changed"}:
        findings.remedy = f"look at it and consent to it: indus mcp trust {row.id}"
        findings.references = build_reference_facts(row)
        findings.warnings = list_secret_warnings(row)
    elif state == "unsandboxed":
        findings.fault, _, findings.remedy = STATE_REMEDIES[state].format(row.id).partition(": ")
    elif state == "unresolved":
        owner = f"server {row.id!r}"
        findings.fault = "; ".join(note.message for note in plan.notes if note.owner.startswith(owner))
        findings.remedy = "set the variable, or write a default into the row: ${NAME:-default}"
    return findings


async def _examine(
    findings: _Findings, config: ServerConfig, pins: StorePins, reviewer: Reviewer, history: StartHistory
) -> None:
    clock = get_running_loop().time
    started = clock()

    def handle_event(event: EndpointEvent) -> None:
        slow = endpoint.status().slow_start
        if event == "slow_start" and slow is not None:
            show_live_line(config.id, explain_slow_start(slow))

    endpoint = create_server_endpoint(config, on_event=handle_event, history=history)
    show_live_line(config.id, "starting")
    try:
        await endpoint.open()
        findings.latency_ms = round((clock() - started) * 1000)
        findings.handshake = "done"
        facts = endpoint.facts
        if facts is not None:
            findings.era, findings.version = facts.era, facts.version
            info = facts.server_info
            if info is not None:
                findings.server = " ".join(str(info[key]) for key in ("name", "version") if key in info)
        listed = [*await endpoint.list_tools()]
        findings.tools = len(listed)
        if not findings.has_labels:
            found = {label for tool in listed for label in propose_labels(tool.ref.name, tool.raw, config)}
            findings.labels = [label for label in LABELS if label in found]
        for kind in CONTENT_KINDS:
            with suppress(ProtocolFault):  # the status has a note about it
                listed += await endpoint.list_items(kind)
        for kind in ITEM_KINDS:
            reviewer.learn(config.id, kind, [item for item in listed if item.ref.kind == kind])
        findings.findings = reviewer.review_all((item.ref, item.raw) for item in listed)
        _add_disabled_tools(findings, listed, pins, reviewer)
        findings.notes = [note.message for note in endpoint.status().notes]
    except ProtocolFault as fault:
        connected = findings.handshake == "done"
        findings.handshake = (
            "done"
            if connected
            else "needs sign-in"
            if needs_sign_in(fault)
            else "waits for a secret"
            if waits_for_user(fault)
            else "failed"
        )
        findings.state = name_state(endpoint.phase, fault.detail.reason)
        findings.fault = str(fault).removeprefix(f"server {findings.name!r}: ")
        findings.stderr = fault.detail.stderr[-_MAX_STDERR_LINES:]
        advice = advise(findings.name, config, fault, os.environ, connected=connected)
        findings.remedy, findings.notes = advice.remedy, advice.notes
    finally:
        show_live_line(config.id, "")
        await endpoint.close()


def _add_disabled_tools(findings: _Findings, listed: Sequence[RemoteTool], pins: StorePins, reviewer: Reviewer) -> None:
    """Record the tools that are disabled because they changed since approval, or the review holds them."""
    disabled: list[DisabledTool] = []
    for remote in listed:
        try:
            drift = reviewer.judge(pins, remote).drift
        except NotJson:
            continue  # it has no digest, as a note of the listing says
        if drift is not None and drift.disables:
            disabled.append(drift.disable(remote.descriptor.name))
    findings.disabled = disabled
    if disabled:
        diff = command_line("indus", "mcp", "diff", findings.name)
        approve = command_line("indus", "mcp", "approve", findings.name)
        findings.remedy = f"look at what waits: {diff}; approve it: {approve}"


def _describe_sandbox(findings: _Findings) -> str:
    if findings.sandbox != "off":
        return f"sandbox: {findings.sandbox if isinstance(findings.sandbox, str) else compact_json(findings.sandbox)}"
    return f"sandbox: off. What fits: {format_server_command('doctor', findings.name)} --sandbox"


def _describe_labels(findings: _Findings) -> Sequence[str]:
    look = format_server_command("labels", findings.name)
    labels = ", ".join(findings.labels)
    return [f"labels: {labels} (proposed; look: {look}, then --confirm)"] if labels else []


def _print_report(
    plan: ServerPlan,
    examined: Sequence[_Findings],
    leftovers: Sequence[Receipt],
    plain: Sequence[PlainRow],
    *,
    is_whole: bool,
    as_json: bool,
) -> None:
    if as_json:
        jobs: list[JsonObject] = [{"pid": job.pid, "command": job.command, "cwd": job.cwd} for job in leftovers]
        servers, secrets = [findings.as_json() for findings in examined], [row.to_json() for row in plain]
        write_json({"servers": [*servers], "leftovers": jobs, "plainSecrets": [*secrets]})
        return
    print_notes(note for note in plan.notes if not note.message.startswith("not started"))
    if is_whole:
        _print_summary(examined)
    else:
        _print_details(examined[0])
    for row in plain:
        what = f"server {row.server!r} has secrets in plain text: {', '.join(row.places)}"
        print_line(escape_unseen(f"{row.file}: {what}"))
        print_line(escape_unseen(f"  Fix: {row.remedy}"))
    for job in leftovers:
        print_line(f"left running by a crashed run: process {job.pid}, {job.command}")
    if leftovers:
        print_line("  Fix: indus mcp doctor --end-leftovers")


def _print_summary(examined: Sequence[_Findings]) -> None:
    """Print a line for each server that works, and the cause and fix of each problem."""
    if not examined:
        print_line("No servers are configured. Add one: indus mcp add NAME -- COMMAND ARGUMENTS")
        return
    rows: list[Sequence[object]] = []
    for findings in examined:
        is_up = findings.handshake == "done" and findings.fault is None
        is_broken = findings.fault is not None and findings.state in {"ready", "failed"}
        mark = Cell("✗", "red") if is_broken else Cell("○", "yellow") if findings.remedy else Cell("✓", "green")
        if is_up:
            tools = "not listed" if findings.tools is None else format_count(findings.tools, "tool")
            lines = [f"{format_duration((findings.latency_ms or 0) * 1_000)}   {tools}"]
            lines += [f"{one.ref.kind} {one.ref.name!r} is blocked: {one.reason}" for one in findings.disabled]
        else:
            cause = (findings.fault or findings.state).partition(". Last output: ")[0]
            lines = [cause.removeprefix("failed: ")]
        # The last lines, without those of a traceback.
        lines += [line for line in findings.stderr if line.strip() and not line.startswith((" ", "\t", "Traceback "))][
            -_MAX_SHOWN_STDERR:
        ]
        lines += [f"WARNING: {warning}" for warning in findings.warnings]
        lines += [f"→ {findings.remedy}"] if findings.remedy else []
        rows += [(mark, findings.name, lines[0]), *(("", "", line) for line in lines[1:])]
    print_table(("", "", ""), rows)
    problems = sum(findings.remedy is not None for findings in examined)
    counts = (
        f"{format_count(len(examined), 'server')}, {format_count(problems, 'problem') if problems else 'no problem'}"
    )
    print_line(f"{counts}. Details of one: indus mcp doctor NAME")


_MAX_SHOWN_STDERR = 3


def _print_details(findings: _Findings) -> None:
    print_line(f"{findings.name} ({findings.transport}, {findings.file})")
    lines = [f"state: {findings.state}"]
    lines.append(f"{'command' if findings.transport == 'stdio' else 'address'}: {findings.target}")
    lines += [] if findings.sandbox is None else [_describe_sandbox(findings)]
    lines += [] if findings.package is None else [f"package: {findings.package}"]
    lines += [f"WARNING: {warning}" for warning in findings.warnings]
    if findings.handshake == "done":
        lines.append(f"protocol: {findings.version}, server: {findings.server or 'says no name'}")
        lines.append(f"tools: {'not listed' if findings.tools is None else findings.tools}")
        lines.append(f"latency: {findings.latency_ms} ms")
        lines += _describe_labels(findings)
    lines += [f"stderr: {line}" for line in findings.stderr]
    lines += [f"note: {note}" for note in findings.notes]
    lines += map(str, findings.findings)
    lines += [
        f"{tool.ref.kind} {tool.ref.name!r}: {tool.reason}; approve it: {tool.approve_command}"
        for tool in findings.disabled
    ]
    if findings.fault is not None:
        lines.append(f"fault: {findings.fault}")
    if findings.remedy is not None:
        lines.append(f"Fix: {findings.remedy}")
    for line in lines:
        print_line(f"  {line}")


# -- sandbox profiles -------------------------------------------------------------------------


def compare_profiles(row: ServerRow, config: ServerConfig | None, *, may_be_bare: bool, is_json: bool) -> int:
    """Start a server in one profile after the other, and print where it lists what it lists otherwise.

    If `strict` isn't enough, it's watched too, as `indus mcp learn` does, and what that proposes is tried.

    Raises `click.UsageError` if there's no process to start.
    """
    if not isinstance(config, StdioServerConfig):
        raise click.UsageError("--sandbox requires the NAME of a trusted server with a command")
    if config.sandbox is not None and config.sandbox.container is not None:
        raise click.UsageError(f"Server {config.id!r} runs in a container: its command isn't for this machine")
    # In the home that its row gives it, so that what it downloads now is there later.
    own = config.sandbox or ServerProfile(owner=os.path.realpath(row.origin.file))
    outcomes, profiles, refusals = run_for_result(lambda _: _try_profiles(config, own, may_be_bare=may_be_bare))
    wanted = next(iter(outcomes.values()))["tools"]
    fitting = [name for name in profiles if wanted is not None and outcomes[name]["tools"] == wanted]
    best = format_profile(profiles[fitting[0]]) if fitting else "off"
    if is_json:
        write_json({"name": config.id, "profiles": {**outcomes}, "fits": best})
        return 0 if fitting else _UNWELL
    for name, outcome in outcomes.items():
        tools = outcome["tools"]
        shown = format_count(len(tools), "tool") if isinstance(tools, list) else outcome["fault"]
        print_line(f"{name}: {shown}")
    for one in refusals:
        print_line(f"refused: {escape_unseen(str(one))}")
    if not fitting:
        needed = "it fails without one, too" if wanted is None else "name the paths or hosts it needs in its row"
        print_status(f"server {config.id!r} doesn't list its tools in any profile: {needed}")
        return _UNWELL
    learn = f"{format_server_command('learn', config.id)} calls its tools, and writes it"
    print_line(f'Put "sandbox": {compact_json(best)} into its row. Its calls may need more: {learn}.')
    return 0


async def _try_profiles(
    config: StdioServerConfig, own: ServerProfile, *, may_be_bare: bool
) -> tuple[dict[str, JsonObject], dict[str, ServerProfile], Sequence[RefusedUse]]:
    """Return what it lists in each profile, and the profiles, the smallest first."""
    from induscode.servers.learning import learn_behaviour  # noqa: PLC0415 — imports the tracer

    outcomes: dict[str, JsonObject] = {}
    if may_be_bare:
        outcomes["off"] = await _list_names(replace(config, sandbox=None))
    # First with a network, for what it downloads.
    profiles = {"standard": replace(own, name="standard"), "strict": replace(own, name="strict")}
    for name, profile in profiles.items():
        outcomes[name] = await _list_names(replace(config, sandbox=profile))
    wanted = next(iter(outcomes.values()))["tools"]
    order, refusals = ["strict", "standard"], ()
    if wanted is not None and outcomes["strict"]["tools"] != wanted:
        run = await learn_behaviour(replace(config, sandbox=own))
        refusals = run.refusals
        if run.fault is None or (run.is_blocked and may_be_bare):  # the proposal may show it files of yours
            profiles["learned"] = run.profile
            outcomes["learned"] = await _list_names(replace(config, sandbox=run.profile))
            order.insert(1, "learned")
    return outcomes, {name: profiles[name] for name in order}, refusals


async def _list_names(config: StdioServerConfig) -> JsonObject:
    endpoint = create_server_endpoint(config)
    try:
        await endpoint.open()
        return {"tools": [*sorted(tool.ref.name for tool in await endpoint.list_tools())], "fault": None}
    except ProtocolFault as fault:
        return {"tools": None, "fault": str(fault)}
    finally:
        await endpoint.close()


# -- the check after `add` --------------------------------------------------------------------


def check_server(invocation: Invocation, name: str) -> EndpointStatus | None:
    """Start a server once and print whether it's up. Offering a sign-in, if it needs one, is up to the caller.

    Returns its status, or `None` if it can't start or a signal interrupted us.
    """
    plan = load_plan(invocation).narrow([name])
    found: list[EndpointStatus] = []

    async def start(_: CancelToken) -> int:
        async with opened_store() as store:
            began = monotonic()
            show_live_line(name, "starting")
            # Enroll everything now, so that the first session already knows it.
            mcp = await attach_servers(plan, store, replace(START_ONCE, kinds=CONTENT_KINDS))
            try:
                await mcp.wait_listed(name)
                took_s = monotonic() - began
                status = mcp.require_status(name)
            finally:
                show_live_line(name, "")
                await mcp.aclose()
            print_notes(store.notes)
        found.append(status)
        if status.fault is None:
            tools = format_count(status.tool_count, "tool")
            print_line(f"Server {name!r}: {name_state(status.phase)}, {tools}, {took_s:.1f} s")
            print_notes(note for note in mcp.notes if note in status.notes)
        elif not needs_sign_in(status.fault):
            print_status(f"{status.fault}. Added anyway. To diagnose: {format_server_command('doctor', name)}")
        return 0

    if name not in plan.configs:  # one of its variables is unset, as a note says
        print_notes(plan.notes)
        return None
    run_until_signal(start)
    return found[0] if found else None


# -- installed files --------------------------------------------------------------------------------


_OTHERS = ("indusagi", "induscode")
_PACKAGES = ("indusagi/", "induscode/")
_MAX_NAMES = 3


def check_installation() -> Sequence[Note]:
    """Compare installed files with the distribution's RECORD, and look for conflicting distributions.

    `indusagi` and `induscode` on PyPI install packages and commands of the same names. Unlike the check at startup,
    this one (for `indus mcp doctor`) reads every file.
    RECORD: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    remedy = f"pip uninstall {' '.join(_OTHERS)} {DISTRIBUTION}, then install {DISTRIBUTION} again"
    notes = [
        Note(f"distribution {name} {other.version}", "has files of the same names as ours", remedy)
        for name in _OTHERS
        if (other := _find_distribution(name)) is not None
    ]
    own = _find_distribution(DISTRIBUTION)
    changed = () if own is None else _list_changed_files(own)
    if changed:
        names = ", ".join(changed[:_MAX_NAMES]) + (" …" if len(changed) > _MAX_NAMES else "")
        message = f"{len(changed)} of its files are not as they were installed: {names}"
        notes.append(Note(f"distribution {DISTRIBUTION}", message, remedy))
    return notes


def _list_changed_files(own: metadata.Distribution) -> Sequence[str]:
    """List our missing and modified files. A clone has none, since its RECORD doesn't list our packages.

    We read RECORD ourselves because `Distribution.files` omits missing files since Python 3.12.
    """
    changed: list[str] = []
    for name, digest, _size in csv.reader((own.read_text("RECORD") or "").splitlines()):
        mode, _, wanted = digest.partition("=")
        if not name.startswith(_PACKAGES) or mode != "sha256":
            continue
        try:
            data = Path(str(own.locate_file(name))).read_bytes()
        except OSError:
            changed.append(name)
            continue
        if base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() != wanted:
            changed.append(name)
    return changed


def _find_distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
