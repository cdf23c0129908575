"""Commands for the session itself, such as `/rewind`, `/model` and `/resume`, and the table of all commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.capabilities.jobs import Job, list_jobs
from indusagi.core.cancel import CancelToken
from indusagi.core.ids import is_ulid
from indusagi.core.json import JsonObject, compact_json, estimate_tokens
from indusagi.core.records import record
from indusagi.core.secrets import hide_in_urls
from indusagi.core.text import format_count
from indusagi.core.time import iso_utc, now_ms
from induscode.cli.dialog import Choice, Question
from induscode.cli.terminal import escape_unprintable, format_age
from induscode.conversations.agents.sub_session import DelegatedTask, find_objective
from induscode.conversations.compaction import CompactionError, estimate_message
from induscode.conversations.contract import Usage
from induscode.conversations.conversation import USAGE_OP, Conversation
from induscode.conversations.models import InvalidAddressError, NoModelError
from induscode.conversations.prompt import list_names
from induscode.conversations.rewind import describe_messages, list_rewind_points, preview_rewind, rewind
from induscode.conversations.transcript import (
    Transcript,
    find_answer_text,
    list_by_age,
    list_conversations,
    summarise_log,
)
from induscode.deck.cards.task import describe_work, format_report
from induscode.frontends.terminal.render import format_tokens
from induscode.frontends.terminal.slash import SlashCommand, SlashError, SlashHost, confirm_end_of_jobs, pick
from induscode.frontends.terminal.slash.conversation import CONVERSATION
from induscode.frontends.terminal.slash.mcp import MCP
from induscode.frontends.terminal.slash.prompts import (
    MEMORY,
    list_prompt_commands,
    list_skill_commands,
    load_custom_commands,
)
from induscode.frontends.terminal.slash.tools import ADDONS, PERMISSIONS, TOOLS
from induscode.search.options import estimate_definition

if TYPE_CHECKING:
    from induscode.conversations.rewind import RewindPoint, RewindPreview, RewindScope
    from induscode.deck.stores import FileCheckpoints

_SCOPES = ("files", "talk", "both")
_USAGE = "write /rewind, or /rewind N with files, talk or both"
_LISTED = 20
_ACTIONS = {"write": "is restored", "delete": "is removed"}


async def _rewind(host: SlashHost, rest: str) -> None:
    words = rest.split()
    scope = cast("RewindScope", words.pop() if words and words[-1] in _SCOPES else "both")
    if len(words) > 1 or (words and not words[0].isdigit()) or (not words and rest):
        raise SlashError(_USAGE)
    conversation = host.conversation
    transcript, checkpoints = conversation.transcript, conversation.resources.checkpoints
    points = await to_thread.run_sync(list_rewind_points, transcript, checkpoints)
    if words:
        point = next((point for point in points if point.number == int(words[0])), None)
        if point is None:
            raise SlashError(f"there is no point {words[0]}: /rewind lists them")
    else:
        if not points:
            raise SlashError("the conversation has no prompts yet")
        newest = points[: -_LISTED - 1 : -1]
        rows = await to_thread.run_sync(lambda: [_describe_point(point, checkpoints) for point in newest])
        chosen = await pick(host, "Go back to the state before", rows)
        if chosen is None:
            return
        point = newest[chosen]
    fs = conversation.session.native.context.fs
    preview = await preview_rewind(point, scope, transcript, checkpoints, fs)
    insist = await _ask(host, point, preview, scope)
    if insist is None:
        host.screen.show("nothing was changed")
        return
    result = await rewind(point, scope, transcript, checkpoints, fs, insist=insist)
    if scope != "files":
        await conversation.restore_state()
        host.screen.offer_draft(point.prompt)
    host.screen.show(f"{result}. Undo: /rewind, first entry")
    for path, reason in () if result.files is None else result.files.left:
        host.screen.show(f"{_shorten(host, path)} stays as it is: {reason}")


def _describe_point(point: RewindPoint, checkpoints: FileCheckpoints) -> str:
    """Describe a point in one row: number, time, first words, changes. Blocks."""
    row = f"{point.number}  {point.at[11:16]}  {point.title}"
    if not point.files:
        return row
    added, removed = checkpoints.count_lines(point.node)
    return f"{row}  +{added} −{removed} in {format_count(len(point.files), 'file')}"  # noqa: RUF001 — a minus


async def _ask(host: SlashHost, point: RewindPoint, preview: RewindPreview, scope: RewindScope) -> Sequence[str] | None:
    """Preview the rewind and ask. Return the conflicting paths to overwrite, or `None` for no."""
    conflicts = [step.path for step in preview.steps if step.conflict]
    lines = [
        f"{_shorten(host, step.path)}: "
        + ("stays, another program has changed it" if step.conflict else _ACTIONS[step.action])
        for step in preview.steps
    ]
    if not preview.steps and scope != "talk":
        lines.append("no file changes")
    if scope != "files":
        lines.append(describe_messages(preview.messages))
    lines += [f"note: {note}" for note in preview.notes]
    choices = [Choice(key="y", label="yes"), Choice(key="n", label="no")]
    if conflicts:
        choices.insert(1, Choice(key="a", label="yes, and restore what another program has changed too"))
    question = Question(
        title=escape_unprintable(f"Back to the state before: {point.title}"),
        lines=tuple(map(escape_unprintable, lines)),
        choices=tuple(choices),
        default="n",
    )
    reply = await host.screen.ask(question)
    return {"y": (), "a": conflicts}.get(reply.key)


def _shorten(host: SlashHost, path: str) -> str:
    return path.removeprefix(os.path.join(host.conversation.invocation.cwd, ""))


# -- session ---------------------------------------------------------------------------------


_KEYS = (
    ("Enter", "send the message, during a turn too"),
    ("Alt-Enter, \\ Enter", "begin a new line"),
    ("Esc", "stop the turn; twice without one: /rewind"),
    ("Ctrl-C", "stop the turn; twice: leave"),
    ("Shift-Tab", "switch the mode"),
    ("Up, Ctrl-R", "earlier messages; search them. Up takes queued messages back"),
    ("Ctrl-G, Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("@PATH", "attach a file or a picture"),
    ("Ctrl-V", "attach the picture in the clipboard"),
    ("!COMMAND", "run a shell command; the model gets its output with your next message"),
    ("/NAME", "run a command: /help lists them"),
)


async def _show_help(host: SlashHost, rest: str) -> None:
    name, commands = rest.removeprefix("/"), host.commands
    if name == "keys":
        host.print_table(("KEY", ""), [*_KEYS])
        return
    if name and name not in commands:
        raise SlashError(f"unknown command /{name}: type / to see all")
    shown = [commands[name]] if name else commands.values()
    rows = [(f"/{command.name} {command.usage}".rstrip(), command.describe) for command in shown]
    host.print_table(("COMMAND", ""), rows)
    if not name:
        host.screen.show("? lists the keys")


async def _leave(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("this command takes no arguments")
    host.leave()


async def _set_plan_mode(host: SlashHost, rest: str) -> None:
    mode = host.conversation.plan_mode
    if rest not in {"", "on", "off"}:
        raise SlashError("write /plan on, /plan off, or /plan to switch")
    mode.active = not mode.active if not rest else rest == "on"
    await host.conversation.state.save()
    host.screen.show(f"plan mode is {'on: only read-only tools run' if mode.active else 'off'}")


async def _switch_model(host: SlashHost, rest: str) -> None:
    conversation = host.conversation
    if not rest:
        choice = conversation.choice
        address = f" at {hide_in_urls(choice.base_url)}" if choice.base_url else ""
        window = f", reads {format_tokens(choice.context_window)} tokens" if choice.context_window else ""
        host.screen.show(f"{choice.label}{address}{window}")
        return
    if len(rest.split()) > 1:
        raise SlashError("write one name: anthropic:NAME, openai:NAME, or NAME at --base-url")
    try:
        await conversation.switch_model(rest)
    except (NoModelError, InvalidAddressError) as exc:
        raise SlashError(str(exc)) from exc
    host.screen.show(f"Model: {conversation.choice.label}")
    deck = conversation.session.deck()  # the next turn's deck, which knows what's left out
    if deck.hidden:
        host.screen.show(f"{format_count(len(deck.hidden), 'tool')} are found by search, not listed")
    if conversation.limit.left_out:
        host.screen.show(f"its context window has no room for {list_names(conversation.limit.left_out)}")


async def _show_cost(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("this command takes no arguments")
    total = sum_usage(host.conversation.transcript.rows())
    rows: list[tuple[str, ...]] = []
    for name, usage in (("this session", host.conversation.usage), ("this conversation", total)):
        is_known = usage.cost_usd is not None and (usage.cost_usd > 0 or not usage.requests)
        cost = f"${usage.cost_usd:.2f}" if is_known else f"no price known for {host.conversation.choice.name}"
        rows.append((name, f"{usage.requests:,}", f"{usage.input_tokens:,}", f"{usage.output_tokens:,}", cost))
    host.print_table(("", "REQUESTS", "INPUT", "OUTPUT", "COST"), rows)
    if total.cost_usd is None:
        host.screen.show(f"no price known for {host.conversation.choice.label}")
    cached = total.cache_read_tokens
    if cached:
        host.screen.show(f"of the input, {format_count(cached, 'token')} came from the cache of the provider")


def sum_usage(rows: Sequence[JsonObject]) -> Usage:
    """Sum the usage of all turns of a conversation, including hidden messages."""
    total = Usage(cost_usd=0.0)
    for row in rows:
        if row.get("op") == USAGE_OP:
            counts = [
                count if isinstance(count := row.get(name), int) else 0
                for name in ("requests", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
            ]
            cost = row.get("cost_usd")
            total = total.add(Usage(*counts, cost_usd=float(cost) if isinstance(cost, (int, float)) else None))
    return total


# -- conversations ----------------------------------------------------------------------------


_MAX_SEARCHED = 200


async def _resume(host: SlashHost, rest: str) -> None:
    cwd, present = host.conversation.invocation.cwd, host.conversation.transcript.id
    limit = _LISTED if rest.isdigit() else _MAX_SEARCHED
    summaries = await to_thread.run_sync(partial(list_conversations, cwd, limit=limit, without=present))
    if rest == "--json":
        for summary in summaries:
            facts = {"id": summary.id, "title": summary.title, "messages": summary.messages}
            host.screen.show(compact_json({**facts, "modified": iso_utc(summary.modified_ms)}))
        return
    if not rest:
        if not summaries:
            host.screen.show("there is no other conversation in this directory")
            return
        rows = [
            f"{format_age(summary.modified_ms, now_ms()):>9}  {summary.title}  "
            f"{format_count(summary.messages, 'message')}"
            for summary in summaries
        ]
        chosen = await pick(host, "Continue which conversation?", rows)
        if chosen is None:
            return
        name = summaries[chosen].id
    elif rest.isdigit() and not is_ulid(rest):
        if not 1 <= int(rest) <= len(summaries):
            raise SlashError(f"there is no conversation {rest}: /resume lists them")
        name = summaries[int(rest) - 1].id
    else:
        matches = [summary.id for summary in summaries if summary.id.startswith(rest.upper())]
        if len(matches) != 1:
            problem = "there is no conversation" if not matches else "several conversations begin with"
            raise SlashError(f"{problem} {rest!r} in this directory: /resume lists them")
        (name,) = matches
    if await confirm_end_of_jobs(host, "This conversation is closed."):
        _reopen(host, name, fork=False)


async def _fork(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("this command takes no arguments")
    conversation = host.conversation
    if not conversation.transcript.messages():
        raise SlashError("the conversation is empty: there is nothing to copy")
    if conversation.transcript.failure is not None:
        raise SlashError(f"the conversation cannot be stored: {conversation.transcript.failure}")
    if await confirm_end_of_jobs(host, "The session is opened again with the copy."):
        _reopen(host, conversation.transcript.id, fork=True)


def _reopen(host: SlashHost, name: str, *, fork: bool) -> None:
    host.reopen(replace(host.conversation.invocation, resume=name, fork=fork, continue_last=False, prompt=None))


# -- tasks ------------------------------------------------------------------------------------


_OUTPUT_LINES = 40
_MAX_SESSIONS = 20
_TASKS_USAGE = "write /tasks, /tasks output N, /tasks stop N, or /tasks resume N [TEXT]"
_GO_ON = "Go on where you stopped."


@record
class _Task:
    """A row of the list: a job, a task of this run, or an earlier task's directory."""

    id: str
    state: str
    age: str
    title: str
    job: Job | None = None
    task: DelegatedTask | None = None
    directory: str = ""


async def _change_tasks(host: SlashHost, rest: str) -> None:
    words = rest.split(maxsplit=2)
    is_valid = not words or (
        len(words) > 1 and (words[0] == "resume" or (words[0] in {"output", "stop"} and len(words) == 2))
    )
    if not is_valid:
        raise SlashError(_TASKS_USAGE)
    tasks = await _list_tasks(host)
    if not words:
        if not tasks:
            host.screen.show("there are no background jobs and no tasks")
            return
        rows = [
            (str(number), task.id, task.state, task.age, " ".join(task.title.split()))
            for number, task in enumerate(tasks, 1)
        ]
        host.print_table(("N", "ID", "STATE", "AGE", "WHAT"), rows)
        return
    action, name = words[:2]
    matches = [task for number, task in enumerate(tasks, 1) if name in {str(number), task.id}]
    if len(matches) != 1:
        problem = "there is no task" if not matches else "several tasks have the id"
        raise SlashError(f"{problem} {name!r}: /tasks lists them by number")
    if action == "output":
        for line in await _read_output(matches[0]) or ["(no output)"]:
            host.screen.show(line)
    elif action == "stop":
        await _stop_task(host, matches[0])
    else:
        await _resume_task(host, matches[0], words[2] if len(words) > 2 else _GO_ON)


async def _stop_task(host: SlashHost, row: _Task) -> None:
    if row.job is not None:
        state = await row.job.stop()
        host.screen.show(f"{row.id}: {state}")
        await host.conversation.state.save()
    elif row.task is None or row.task.is_over:
        raise SlashError(f"task {row.id} has ended; /tasks resume {row.id} goes on with it")
    else:
        row.task.cancel.cancel("the person")
        host.screen.show(f"{row.id}: stopping")


async def _resume_task(host: SlashHost, row: _Task, text: str) -> None:
    if row.job is not None:
        raise SlashError(f"{row.id} is a job: only tasks of agents go on")
    if row.task is not None and not row.task.is_over:
        raise SlashError(f"task {row.id} is running")
    host.screen.show(await host.conversation.resume_task(row.id, text))


async def _list_tasks(host: SlashHost) -> Sequence[_Task]:
    tasks: list[_Task] = []
    for job in list_jobs(host.conversation.session.native.context):
        state = await job.look()
        tasks.append(_Task(job.id, str(state), f"{state.age_s:.0f} s", job.command, job=job))
    present = host.conversation.resources.delegate.tasks
    root = os.path.join(host.conversation.transcript.directory, "tasks")
    for task in reversed(present.values()):
        path = os.path.join(root, task.id)
        row = _Task(task.id, task.describe_state(), f"{task.age_s:.0f} s", task.title, task=task, directory=path)
        tasks.append(row)

    def read_sessions() -> list[_Task]:
        found: list[_Task] = []
        for modified_ns, name in list_by_age(root)[:_MAX_SESSIONS]:
            path = os.path.join(root, name)
            if name in present:
                continue
            summary = summarise_log(path, modified_ns // 1_000_000) if is_ulid(name) else None
            if summary is not None:
                age = format_age(summary.modified_ms, now_ms())
                state, title = format_count(summary.messages, "message"), summary.title
                if not title:  # it never started
                    with closing(Transcript(path, "")) as transcript:
                        title = find_objective(transcript)
                found.append(_Task(name, state, age, title, directory=path))
        return found

    return [*tasks, *await to_thread.run_sync(read_sessions)]


async def _read_output(task: _Task) -> Sequence[str]:
    """Read a job's last lines or a task's report, without consuming the output the model polls next."""
    if task.job is not None:
        await task.job.look()
        return [line for stream in task.job.streams for line in stream.last(_OUTPUT_LINES).all_texts]

    if task.task is not None:
        # Its log is still open while it runs.
        report = task.task.report
        if report is None:
            return [task.task.describe_state()]
        return [*format_report(report).splitlines(), *describe_work(report)]

    def read_report() -> Sequence[str]:
        with closing(Transcript(task.directory, "")) as transcript:
            texts = [text for message in transcript.messages() if (text := find_answer_text(message))]
        return texts[-1].splitlines() if texts else []

    return await to_thread.run_sync(read_report)


TASKS = SlashCommand(
    name="tasks",
    usage="[output N|stop N|resume N]",
    describe="background jobs and tasks of agents: list, show the output, stop, go on",
    actions={"output": "N: show it", "stop": "N: end it", "resume": "N [TEXT]: go on with a task"},
    run=_change_tasks,
)


# -- context ----------------------------------------------------------------------------------


_WIDEST = 72
_NUMBER = 7
_LONGEST_NAME = 24
_LARGEST_TOOLS = 3
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


@record
class ContextPart:
    """Part of the context window, in estimated tokens."""

    name: str
    tokens: int


def measure_parts(conversation: Conversation) -> tuple[Sequence[ContextPart], Sequence[ContextPart]]:
    """Estimate the parts of the next request, and the size of each server's tool, the largest first."""
    box = conversation.search.open_box(conversation.session.deck())
    servers = conversation.map_servers()
    owners: dict[str, int] = {}
    tools: list[ContextPart] = []
    for descriptor in box.descriptors():
        size = estimate_definition(descriptor)
        owner = servers.get(descriptor.name)
        name = "native tools" if owner is None else f"tools of {owner}"
        owners[name] = owners.get(name, 0) + size
        tools += [] if owner is None else [ContextPart(descriptor.name, size)]
    prompt = conversation.render_system_prompt()
    messages = sum(map(estimate_message, conversation.transcript.messages()))
    parts = (
        ContextPart("system prompt", estimate_tokens(prompt)),
        *(ContextPart(name, size) for name, size in owners.items()),
        ContextPart("messages", messages),
    )
    return parts, sorted(tools, key=lambda tool: -tool.tokens)


def format_parts(parts: Sequence[ContextPart], window: int | None, width: int) -> Sequence[str]:
    """Format parts as lines with bars, fitted to a width."""
    used = sum(part.tokens for part in parts)
    rows = [*parts, ContextPart("together", used)]
    if window is not None:
        rows.append(ContextPart("free", max(0, window - used)))
    total = max(1, window or used)
    longest = min(_LONGEST_NAME, max(len(escape_unprintable(part.name)) for part in rows))
    bar = min(width - 1, _WIDEST) - longest - _NUMBER - 2
    lines: list[str] = []
    for part in rows:
        name = escape_unprintable(part.name)
        name = name if len(name) <= longest else f"{name[: longest - 1]}…"
        eighths = 0 if not part.tokens else max(1, round(min(1.0, part.tokens / total) * max(bar, 0) * 8))
        drawn = "█" * (eighths // 8) + _EIGHTHS[eighths % 8] if bar > 0 else ""
        lines.append(f"{name:<{longest}} {format_tokens(part.tokens):>{_NUMBER}} {drawn}".rstrip())
    return lines


async def _show_context(host: SlashHost, rest: str) -> None:
    if rest:
        raise SlashError("this command takes no arguments")
    conversation = host.conversation
    window = conversation.choice.context_window
    parts, tools = measure_parts(conversation)
    for line in format_parts(parts, window, host.screen.width):
        host.screen.show(line)
    if tools:
        largest = ", ".join(f"{tool.name} {format_tokens(tool.tokens)}" for tool in tools[:_LARGEST_TOOLS])
        host.screen.show(f"Largest tools of servers: {largest}. /mcp disable NAME switches a server off")
    if window is None:
        host.screen.show("Context size unknown. Set it with --context-window N.")
    if conversation.context_tokens:
        host.screen.show(f"Last request: {format_tokens(conversation.context_tokens)} tokens (reported by the model)")


async def _compact(host: SlashHost, rest: str) -> None:
    host.screen.show("Summarizing… esc to cancel")
    try:
        report = await host.conversation.compact(rest, cancel=CancelToken())
    except CompactionError as exc:
        raise SlashError(f"nothing was changed: {exc}") from exc
    host.screen.show(str(report))


# -- the table --------------------------------------------------------------------------------


COMMANDS = tuple(
    sorted(
        (
            ADDONS,
            *CONVERSATION,
            SlashCommand(
                name="compact",
                usage="[INSTRUCTIONS]",
                describe="summarize older messages to free context",
                run=_compact,
            ),
            SlashCommand(name="context", describe="what fills the context window", run=_show_context),
            SlashCommand(name="cost", describe="requests, tokens and cost of this conversation", run=_show_cost),
            SlashCommand(name="exit", describe="leave the session", run=_leave),
            SlashCommand(name="fork", describe="continue in a copy", run=_fork),
            SlashCommand(name="help", usage="[COMMAND]", describe="list the commands", run=_show_help),
            MCP,
            MEMORY,
            SlashCommand(
                name="model", usage="[NAME]", describe="show the model, or switch to another", run=_switch_model
            ),
            PERMISSIONS,
            SlashCommand(
                name="plan", usage="[on|off]", describe="plan mode: only read-only tools run", run=_set_plan_mode
            ),
            SlashCommand(name="quit", describe="leave the session", run=_leave),
            SlashCommand(
                name="resume", usage="[N|ID|--json]", describe="pick a conversation of this directory", run=_resume
            ),
            SlashCommand(
                name="rewind",
                usage="[N] [files|talk|both]",
                describe="return files, conversation or both to the state before a prompt",
                run=_rewind,
            ),
            TASKS,
            TOOLS,
        ),
        key=lambda command: command.name,
    )
)
"""The built-in commands, by name."""


async def load_commands(conversation: Conversation, on_note: Callable[[str], None]) -> dict[str, SlashCommand]:
    """Load the built-in commands, those of the user's and the project's Markdown files, and the servers' prompts.

    A file never replaces a built-in command. `on_note` receives a line about each skipped file.
    """
    table = {command.name: command for command in COMMANDS}
    custom, notes = await to_thread.run_sync(load_custom_commands, conversation.invocation.cwd, table)
    for note in notes:
        on_note(note)
    table |= custom
    return {**table, **list_skill_commands(conversation, table), **list_prompt_commands(conversation)}
