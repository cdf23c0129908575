"""`/tasks`: this conversation's background jobs and sub-agent tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

from anyio import to_thread

from indusagi.capabilities.jobs import Job
from indusagi.core.ids import is_ulid
from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.cli.terminal import format_age
from induscode.conversations.agents.sub_session import DelegatedTask, find_objective
from induscode.conversations.transcript import Transcript, find_answer_text, list_by_age, summarise_log
from induscode.deck.cards.task import describe_work, format_report
from induscode.frontends.terminal.slash import SlashCommand, SlashError, SlashHost, confirm

_LINES = 40
_MAX_SESSIONS = 20
_USAGE = "write /tasks, /tasks output N, /tasks stop N, or /tasks resume N [TEXT]"
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


async def confirm_end_of_jobs(host: SlashHost, reason: str) -> bool:
    """Ask before reopening the session ends running jobs or tasks. True if there are none."""
    from indusagi.capabilities.jobs import list_jobs  # noqa: PLC0415 — loaded with the deck

    jobs = [job for job in list_jobs(host.conversation.session.native.context) if (await job.look()).running]
    tasks = host.conversation.resources.delegate.list_running()
    counts = [format_count(len(jobs), "job", "jobs")] if jobs else []
    counts += [format_count(len(tasks), "task", "tasks")] if tasks else []
    if not counts:
        return True
    names = ", ".join((*(job.id for job in jobs), *(task.id for task in tasks)))
    verb = "ends" if len(jobs) + len(tasks) == 1 else "end"
    return await confirm(host, f"{reason} {' and '.join(counts)} {verb} with it: {names}. Go on?")


async def _run(host: SlashHost, rest: str) -> None:
    words = rest.split(maxsplit=2)
    is_valid = not words or (
        len(words) > 1 and (words[0] == "resume" or (words[0] in {"output", "stop"} and len(words) == 2))
    )
    if not is_valid:
        raise SlashError(_USAGE)
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
        await _stop(host, matches[0])
    else:
        await _resume(host, matches[0], words[2] if len(words) > 2 else _GO_ON)


async def _stop(host: SlashHost, row: _Task) -> None:
    if row.job is not None:
        state = await row.job.stop()
        host.screen.show(f"{row.id}: {state}")
        await host.conversation.state.save()
    elif row.task is None or row.task.is_over:
        raise SlashError(f"task {row.id} has ended; /tasks resume {row.id} goes on with it")
    else:
        row.task.cancel.cancel("the person")
        host.screen.show(f"{row.id}: stopping")


async def _resume(host: SlashHost, row: _Task, text: str) -> None:
    if row.job is not None:
        raise SlashError(f"{row.id} is a job: only tasks of agents go on")
    if row.task is not None and not row.task.is_over:
        raise SlashError(f"task {row.id} is running")
    host.screen.show(await host.conversation.resume_task(row.id, text))


async def _list_tasks(host: SlashHost) -> Sequence[_Task]:
    from indusagi.capabilities.jobs import list_jobs  # noqa: PLC0415 — loaded with the deck
    from indusagi.core.time import now_ms  # noqa: PLC0415 — with the list

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
        return [line for stream in task.job.streams for line in stream.last(_LINES).all_texts]

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
    run=_run,
)
