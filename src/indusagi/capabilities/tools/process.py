"""`process`: manage jobs, the background commands of a session."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, cast

import anyio
from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.budget import OutputBudget, clip
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.jobs import (
    JOB,
    SHOWN_BYTES,
    SHOWN_LINES,
    Job,
    JobKind,
    JobState,
    JobTable,
    LineRing,
    OutputLines,
    has_line_with,
    hidden_note,
    jobs_of,
    plain_text,
    to_shell_exit_code,
)
from indusagi.capabilities.ports import LONGEST_WAIT_MS
from indusagi.capabilities.tool import DefinedTool, define_native_tool
from indusagi.capabilities.tools.bash import report_start_failure, resolve_start_directory
from indusagi.capabilities.tools.paths import path_given, path_trouble
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.text import clean_text, cut_text
from indusagi.runtime.contract import JsonSchema, Keep, TextContentBlock, ToolResult

_SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL")
_DESCRIPTION = (
    "Jobs in the background: servers, watchers, long builds. `start` {command} gives an id; "
    "`poll` {id} the lines since the last poll; `stop` {id} ends all it has started; `write` "
    "{id, input} types into it; `list`. Jobs end with the session. What bash left running is "
    "a job too."
)
_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["start", "list", "poll", "stop", "write"]},
        "command": {"type": "string"},
        "cwd": {"type": "string", "description": "start: where."},
        "id": {"type": "string", "description": "Such as job-1."},
        "sinceLast": {"type": "boolean", "description": "poll: false gives all lines kept."},
        "lines": {"type": "integer", "minimum": 1, "maximum": 2_000, "description": "poll: the last so many."},
        "waitMs": {
            "type": "integer",
            "minimum": 0,
            "maximum": LONGEST_WAIT_MS,
            "description": f"poll: wait for output, {LONGEST_WAIT_MS} at most.",
        },
        "match": {"type": "string", "description": "poll: wait for a line with this."},
        "input": {"type": "string", "description": "write: end a line with \\n."},
        "eof": {"type": "boolean", "description": "write: end its input."},
        "signal": {"type": "string", "enum": [*_SIGNALS], "description": "stop: default TERM; KILL follows after 3 s."},
    },
    "required": ["action"],
    "additionalProperties": False,
}
_ALIASES = {
    "cmd": "command",
    "job": "id",
    "jobId": "id",
    "job_id": "id",
    "since_last": "sinceLast",
    "wait_ms": "waitMs",
    "timeoutMs": "waitMs",
    "text": "input",
}
_SHOWN_COMMAND = 80
_WRITE_TIMEOUT_S = 5.0
"""How long to wait for a job to read its input."""
_SHOWN = OutputBudget(SHOWN_BYTES, SHOWN_LINES)


def process_tool() -> DefinedTool:
    """Create the `process` tool."""
    prepare = coerce_to(_SCHEMA, _ALIASES)
    return define_native_tool("process", "Background processes", _DESCRIPTION, _SCHEMA, _run, prepare)


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    return await run_action(jobs_of(ctx), arguments, ctx)


async def run_action(table: JobTable, arguments: JsonObject, ctx: ToolContext, kind: JobKind = JOB) -> ToolResult:
    """Run the requested action on the jobs of a table."""
    action = cast("str", arguments["action"])
    if action == "start":
        return await _start(table, arguments, ctx, kind)
    if action == "list":
        return await _list(table)
    job_id = arguments.get("id")
    if not isinstance(job_id, str):
        return ToolResult.error(f"{action} needs the id of a job", code="invalid_arguments")
    job = table.get(job_id)
    if job is None:
        known = ", ".join(job.id for job in table.all()) or "there are none"
        return ToolResult.error(f"no job is called {clean_text(job_id)[0]!r}: {known}", code="not_found")
    return await _ON_JOB[action](job, arguments)


async def _start(table: JobTable, arguments: JsonObject, ctx: ToolContext, kind: JobKind) -> ToolResult:
    command = arguments.get("command")
    if not isinstance(command, str):
        return ToolResult.error("start needs a command", code="invalid_arguments")
    try:
        cwd = await resolve_start_directory(path_given(arguments, "cwd"), ctx)
    except OSError as exc:
        return path_trouble(exc, path_given(arguments, "cwd"))
    try:
        job = await table.start(ctx, command, cwd, kind)
    except OSError as exc:
        return report_start_failure(exc)
    where = "" if job.path is None else f"; its output goes to {job.path}"
    return ToolResult.text(
        f"{job.id} started (pid {job.process.pid}){where}",
        id=job.id,
        pid=job.process.pid,
        path=job.path,
        sandbox=str(job.process.sandbox),
    )


async def _list(table: JobTable) -> ToolResult:
    rows: list[JsonValue] = []
    shown: list[str] = []
    for job in table.all():
        state = await job.look()
        row = _facts(job, state)
        line = _headline(job, state)
        if state.running:
            used = await job.usage()
            row |= {"cpuS": used.cpu_s, "rssBytes": used.rss_bytes, "ports": [*used.ports]}
            ports = f", listens on {', '.join(map(str, used.ports))}" if used.ports else ""
            line += f" [cpu {used.cpu_s:.1f} s, {used.rss_bytes // 1024:,} KiB{ports}]"
        rows.append(row)
        shown.append(line)
    return ToolResult.text("\n".join(shown) or "no jobs", jobs=rows)


async def _poll(job: Job, arguments: JsonObject) -> ToolResult:
    match = arguments.get("match")
    wanted = match if isinstance(match, str) and match else None
    wait_ms = arguments.get("waitMs", LONGEST_WAIT_MS if wanted is not None else 0)
    await job.poll(cast("int", wait_ms), wanted)
    state = await job.look()
    lines, since_last = cast("int | None", arguments.get("lines")), arguments.get("sinceLast") is not False
    output = await _read_stream(job.output, lines, since_last=since_last)
    errors = None if job.errors is None else await _read_stream(job.errors, lines, since_last=since_last)
    details = _facts(job, state) | output.details()
    if errors is not None:
        details["errors"] = errors.details()
    notes: list[str] = []
    if wanted is not None:
        texts = [*output.lines.all_texts, *(errors.lines.all_texts if errors is not None else ())]
        details["matched"] = await to_thread.run_sync(has_line_with, texts, wanted)
        if not details["matched"]:
            end = f"within {wait_ms} ms" if state.running else "before its end"
            notes.append(f"no line with {cut_text(clean_text(wanted)[0], 80)!r} came {end}")
    body = output.render(job.where)
    notes.extend(output.hidden_note(body[-1]))
    if errors is not None and (errors.text or errors.lines.dropped):
        error_body = errors.render("" if job.errors_path is None else f"; more of it is in {job.errors_path}")
        notes.extend(errors.hidden_note(error_body[-1]))
        body = [*body, "[standard error:]", *error_body]
    shown = [_headline(job, state), *body, *(f"[{note}]" for note in notes)]
    return ToolResult((TextContentBlock("\n".join(shown)),), details=details, keep=Keep.TAIL)


class _StreamOutput(NamedTuple):
    """The output of one stream since the last poll."""

    lines: OutputLines
    text: str
    """As a terminal would show it, with the open line marked."""

    def details(self) -> dict[str, JsonValue]:
        return {
            "firstLine": self.lines.first,
            "lines": len(self.lines.texts),
            "dropped": self.lines.dropped,
            "openLine": self.lines.open_line,
        }

    def hidden_note(self, shown: str) -> Sequence[str]:
        last = self.lines.last + bool(self.lines.open_line)
        return hidden_note(shown, last - shown.count("\n"))

    def render(self, where: str) -> Sequence[str]:
        lines, text = self.lines, self.text
        dropped = [f"[{lines.dropped:,} earlier lines are not kept{where}]"] if lines.dropped else []
        if not text:
            return [*dropped, "(nothing more was said)"]
        count = f"lines {lines.first:,} to {lines.last:,}" if lines.texts else f"after line {lines.last:,}"
        if not _SHOWN.admits(text):
            text = clip(text, _SHOWN, Keep.TAIL).tail
            count = f"{count}, of which the last are shown{where}"
        return [*dropped, f"[{count}]", text]


async def _read_stream(stream: LineRing, lines: int | None, *, since_last: bool) -> _StreamOutput:
    output = stream.read(lines=lines, since_last=since_last)
    text = await to_thread.run_sync(plain_text, "\n".join(output.all_texts).encode("utf-8", "replace"))
    return _StreamOutput(output, f"{text} [unfinished line]" if output.open_line else text)


async def _stop(job: Job, arguments: JsonObject) -> ToolResult:
    name = arguments.get("signal")
    first = signal.Signals[f"SIG{name}"] if isinstance(name, str) else signal.SIGTERM
    state = await job.stop(first)
    if state.left:
        return ToolResult.error(
            f"{_headline(job, state)}: {state.left} of its processes could not be ended",
            code="failed",
            **_facts(job, state),
        )
    return ToolResult.text(_headline(job, state), **_facts(job, state))


async def _write(job: Job, arguments: JsonObject) -> ToolResult:
    text, eof = arguments.get("input", ""), arguments.get("eof") is True
    try:
        data = cast("str", text).encode()
        with anyio.move_on_after(_WRITE_TIMEOUT_S) as timer:
            await job.process.write_input(data, close=eof)
    except (OSError, UnicodeEncodeError) as exc:
        return ToolResult.error(f"{job.id} could not be written to: {exc}", code="failed")
    end = " and the end of its input" if eof else ""
    if timer.cancelled_caught and (unread := job.process.unread_input()):
        text = f"queued for {job.id}: {len(data):,} bytes{end}, {unread:,} bytes unread"
        text += ". It gets them once it reads: don't send them again"
        return ToolResult.text(text, id=job.id, unread=unread)
    return ToolResult.text(f"{job.id} was given {len(data):,} bytes{end}", id=job.id)


_ON_JOB: dict[str, Callable[[Job, JsonObject], Awaitable[ToolResult]]] = {"poll": _poll, "stop": _stop, "write": _write}


def _headline(job: Job, state: JobState) -> str:
    command, _ = clean_text(" ".join(job.command.split()))
    about = f"pid {job.process.pid}, {state.age_s:.0f} s"
    return f"{job.id} {state} ({about}): {cut_text(command, _SHOWN_COMMAND)}"


def _facts(job: Job, state: JobState) -> dict[str, JsonValue]:
    return {
        "id": job.id,
        "pid": job.process.pid,
        "state": state.state,
        "exitCode": to_shell_exit_code(state.exit_code),
        "left": state.left,
        "ageS": state.age_s,
        "command": job.command,
        "path": job.path,
    }
