"""`/tasks`: jobs and tasks of agents, in a session without a terminal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from indusagi.core.cancel import CancelToken
from induscode.cli.dialog import Reply
from induscode.conversations.agents.sub_session import DelegatedTask, TaskActivity
from induscode.deck.contract import DelegateReport
from induscode.frontends.terminal.slash import SlashError, confirm_end_of_jobs
from induscode.frontends.terminal.slash.session import TASKS

if TYPE_CHECKING:
    from pathlib import Path

    from induscode.cli.dialog import Question


class Job:
    """A job of the session, as its table gives it."""

    id, command = "job-1", "make  \n all"

    def __init__(self) -> None:
        self.running = True
        stream = SimpleNamespace(last=lambda _: SimpleNamespace(all_texts=["one", "two"]))  # type: ignore[misc] — untyped
        self.streams = [stream]
        self.stopped = 0

    async def look(self) -> Any:
        return State(self.running)

    async def stop(self) -> str:
        self.stopped += 1
        return "stopped"


class State:
    """The state of a job."""

    age_s = 7.4

    def __init__(self, running: bool) -> None:
        self.running = running

    def __str__(self) -> str:
        return "running" if self.running else "ended"


class Host:
    """Collects what a command shows and asks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *jobs: Job, answer: Reply | None = None) -> None:
        self.tasks: dict[str, DelegatedTask] = {}
        self.shown: list[str] = []
        self.rows: list[tuple[str, ...]] = []
        self.asked: list[str] = []
        self.resumed: list[tuple[str, str]] = []
        self.saved = 0
        self._answer = answer or Reply("n")
        delegate = SimpleNamespace(
            tasks=self.tasks, list_running=lambda: [task for task in self.tasks.values() if not task.is_over]
        )
        self.conversation: Any = SimpleNamespace(
            session=SimpleNamespace(native=SimpleNamespace(context=None)),
            resources=SimpleNamespace(delegate=delegate),
            transcript=SimpleNamespace(directory=str(folder)),
            state=SimpleNamespace(save=self._save),
            resume_task=self._resume,
        )
        self.screen: Any = SimpleNamespace(show=self.shown.append, ask=self._ask)
        found = [*jobs]
        monkeypatch.setattr("indusagi.capabilities.jobs.list_jobs", lambda _context: found)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        monkeypatch.setattr("induscode.frontends.terminal.slash.session.list_jobs", lambda _context: found)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def print_table(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        assert heads == ("N", "ID", "STATE", "AGE", "WHAT")
        self.rows = rows

    async def _save(self) -> None:
        self.saved += 1

    async def _resume(self, task: str, text: str) -> str:
        self.resumed.append((task, text))
        return f"task {task} goes on"

    async def _ask(self, question: Question) -> Reply:
        self.asked.append(question.title)
        return self._answer

    def add(self, id: str, report: DelegateReport | None = None) -> DelegatedTask:
        """Add a task that runs, or has ended with a report."""
        facts: Any = {"agent": "scout", "objective": f"look at {id}", "activity": TaskActivity("/"), "state": "running"}
        task = DelegatedTask(id=id, cancel=CancelToken(), **facts)
        if report is not None:
            task.finish(report)
        self.tasks[id] = task
        return task

    def run(self, line: str = "") -> list[str]:
        self.shown.clear()
        anyio.run(TASKS.run, cast("Any", self), line)
        return self.shown


def test_jobs_and_tasks_are_listed_the_newest_task_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch, Job())
    host.add("t1")
    host.add("t2", DelegateReport(ok=False, text="half", reason="time"))
    host.run()
    assert [(number, id, state, what) for number, id, state, _, what in host.rows] == [
        ("1", "job-1", "running", "make all"),
        ("2", "t2", "ended early (time), 0 calls", "scout: look at t2"),
        ("3", "t1", "running, 0 calls", "scout: look at t1"),
    ]
    assert host.rows[0][3] == "7 s"


def test_a_session_without_any_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Host(tmp_path, monkeypatch).run() == ["there are no background jobs and no tasks"]


def test_output_of_a_task_is_its_report_and_its_state_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, monkeypatch, Job())
    host.add("t1")
    host.add("t2", DelegateReport(ok=True, text="all is well\nhere"))
    assert host.run("output t1") == ["running, 0 calls"]
    assert host.run("output 2")[:2] == ["all is well", "here"]
    assert host.run("output job-1") == ["one", "two"]


def test_a_job_and_a_task_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    host = Host(tmp_path, monkeypatch, job)
    task = host.add("t1")
    host.add("t2", DelegateReport(ok=True, text=""))
    assert host.run("stop job-1") == ["job-1: stopped"]
    assert (job.stopped, host.saved) == (1, 1)
    assert host.run("stop t1") == ["t1: stopping"]
    assert task.cancel.cancelled
    with pytest.raises(SlashError, match="task t2 has ended; /tasks resume t2 goes on with it"):
        host.run("stop t2")


def test_a_task_that_has_ended_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch, Job())
    host.add("t1")
    host.add("t2", DelegateReport(ok=True, text=""))
    assert host.run("resume t2") == ["task t2 goes on"]
    host.run("resume t2 and  look again")
    assert host.resumed == [("t2", "Go on where you stopped."), ("t2", "and  look again")]
    with pytest.raises(SlashError, match="task t1 is running"):
        host.run("resume t1")
    with pytest.raises(SlashError, match="job-1 is a job"):
        host.run("resume job-1")


@pytest.mark.parametrize("line", ["burn 1", "stop", "output", "stop 1 2", "resume"])
def test_other_words_are_answered_with_the_usage(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlashError, match="write /tasks, /tasks output N"):
        Host(tmp_path, monkeypatch, Job()).run(line)


def test_an_id_that_names_none_or_two_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, monkeypatch, Job())
    host.add("1")
    with pytest.raises(SlashError, match="there is no task '7'"):
        host.run("output 7")
    with pytest.raises(SlashError, match="several tasks have the id '1'"):
        host.run("output 1")


@pytest.mark.parametrize(
    ("reply", "goes_on"), [(Reply("y"), True), (Reply("n"), False), (Reply(cancelled=True), False)]
)
def test_work_that_would_end_is_asked_about(
    reply: Reply, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    host = Host(tmp_path, monkeypatch, job, answer=reply)
    host.add("t1")
    host.add("t2", DelegateReport(ok=True, text=""))
    assert anyio.run(confirm_end_of_jobs, cast("Any", host), "It starts anew.") is goes_on
    job.running = False
    host.add("t1", DelegateReport(ok=True, text=""))
    assert anyio.run(confirm_end_of_jobs, cast("Any", host), "It starts anew.")
    assert host.asked == ["It starts anew. 1 job and 1 task end with it: job-1, t1. Go on?"]
