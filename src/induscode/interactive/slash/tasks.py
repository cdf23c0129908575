"""`/tasks`: background jobs and sub-sessions of this conversation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import is_ulid
from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.console import format_age
from induscode.interactive.slash import SlashCommand, SlashError
from induscode.session.dialog import Choice, Question
from induscode.session.stored_conversations import find_answer_text, summarise_log
from induscode.session.transcript import Transcript, list_by_age

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.jobs.job import Job
    from induscode.interactive.slash import SlashHost

_LINES = 40
_MOST_SESSIONS = 20
_USAGE = "write /tasks, /tasks output N, or /tasks stop N"


@record
class _Task:
    """A row of the list: a job, or the directory of a sub-session."""

    id: str
    state: str
    age: str
    title: str
    job: Job | None = None
    directory: str = ""


def list_task_commands() -> Sequence[SlashCommand]:
    """List the commands."""
    describe = "background jobs and sub-sessions: list, show the output, stop"
    return (SlashCommand(name="tasks", usage="[output N|stop N]", describe=describe, run=_run),)


async def list_running_jobs(host: SlashHost) -> Sequence[Job]:
    """List the jobs that run now."""
    from indusagi.capabilities.jobs.table import list_jobs  # noqa: PLC0415 — loaded with the deck

    jobs = list_jobs(host.conversation.session.native.context)
    return [job for job in jobs if (await job.look()).running]


async def confirm_end_of_jobs(host: SlashHost, reason: str) -> bool:
    """Ask before the session is opened again while jobs run, which end then; True without jobs."""
    jobs = await list_running_jobs(host)
    if not jobs:
        return True
    names = ", ".join(job.id for job in jobs)
    title = f"{reason} {format_count(len(jobs), 'job ends', 'jobs end')} with it: {names}. Go on?"
    choices = (Choice(key="y", label="yes"), Choice(key="n", label="no"))
    reply = await host.screen.ask(Question(title=title, choices=choices, default="n"))
    return reply.key == "y" and not reply.cancelled


async def _run(host: SlashHost, rest: str) -> None:
    words = rest.split()
    if words and (words[0] not in {"output", "stop"} or len(words) != 2):
        raise SlashError(_USAGE)
    tasks = await _list_tasks(host)
    if not words:
        if not tasks:
            host.screen.show("there are no background jobs and no sub-sessions")
            return
        rows = [
            (str(number), task.id, task.state, task.age, " ".join(task.title.split()))
            for number, task in enumerate(tasks, 1)
        ]
        host.print_table(("N", "ID", "STATE", "AGE", "WHAT"), rows)
        return
    action, name = words
    matches = [task for number, task in enumerate(tasks, 1) if name in {str(number), task.id}]
    if len(matches) != 1:
        problem = "there is no task" if not matches else "several tasks have the id"
        raise SlashError(f"{problem} {name!r}: /tasks lists them by number")
    (task,) = matches
    if action == "output":
        lines = await _read_output(task)
        for line in lines or ["(no output)"]:
            host.screen.show(line)
    elif task.job is None:
        raise SlashError("a sub-session runs during a turn only: Esc stops the turn")
    else:
        state = await task.job.stop()
        host.screen.show(f"{task.id}: {state}")
        await host.conversation.state.save()


async def _list_tasks(host: SlashHost) -> Sequence[_Task]:
    from indusagi.capabilities.jobs.table import list_jobs  # noqa: PLC0415 — loaded with the deck
    from indusagi.core.time import now_ms  # noqa: PLC0415 — with the list

    tasks: list[_Task] = []
    for job in list_jobs(host.conversation.session.native.context):
        state = await job.look()
        tasks.append(_Task(job.id, str(state), f"{state.age_s:.0f} s", job.command, job=job))
    root = os.path.join(host.conversation.transcript.directory, "tasks")

    def read_sessions() -> list[_Task]:
        found: list[_Task] = []
        for modified_ns, name in list_by_age(root)[:_MOST_SESSIONS]:
            path = os.path.join(root, name)
            summary = summarise_log(path, modified_ns // 1_000_000) if is_ulid(name) else None
            if summary is not None:
                age = format_age(summary.modified_ms, now_ms())
                state = format_count(summary.messages, "message")
                found.append(_Task(name, state, age, summary.title, directory=path))
        return found

    return [*tasks, *await to_thread.run_sync(read_sessions)]


async def _read_output(task: _Task) -> Sequence[str]:
    """Read the last lines of a job, or the report of a sub-session; what the model polls next stays unread."""
    if task.job is not None:
        await task.job.look()
        return [line for stream in task.job.streams for line in stream.ring.last(_LINES).all_texts]

    def read_report() -> Sequence[str]:
        transcript = Transcript(task.directory, "")
        try:
            texts = [text for message in transcript.messages() if (text := find_answer_text(message))]
        finally:
            transcript.close()
        return texts[-1].splitlines() if texts else []

    return await to_thread.run_sync(read_report)
