"""Delegated tasks: the runs of sub-agents that `/tasks` lists, with the facts for their reports."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from indusagi.core.text import clean_text, cut_text, format_count
from induscode.conversations.contract import ToolAnswered, ToolCalled
from induscode.deck.cards.checkpoint import CHECKPOINTED_TOOLS, path_of
from induscode.deck.cards.task import describe_work, format_report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.cancel import CancelToken
    from indusagi.core.tasks import BackgroundTask
    from induscode.conversations.contract import RunEvent
    from induscode.conversations.transcript import Transcript
    from induscode.deck.contract import DelegateReport

TaskState: TypeAlias = Literal["waiting", "running", "done", "ended early"]
AGENT_OP = "agent"
"""Row in a task's log with its agent's name and its objective."""
_MAX_OBJECTIVE_CHARS = 60


class TaskActivity:
    """A task's call counts by tool, and the files it wrote or edited, in order."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._pending: dict[str, str] = {}
        self._paths: dict[str, None] = {}
        self._calls: Counter[str] = Counter()
        self.last = ""
        """The last tool called."""

    def follow(self, event: RunEvent) -> None:
        """Count a call, and record its path when it succeeds."""
        if isinstance(event, ToolCalled):
            self.last = event.name
            self._calls[event.name] += 1
            path = path_of(event.arguments) if event.name in CHECKPOINTED_TOOLS else None
            if path is not None:
                self._pending[event.id] = path
        elif isinstance(event, ToolAnswered):
            path = self._pending.pop(event.id, None)
            if path is not None and not event.is_error:
                self._add(path)
            if event.name == "task":
                files = event.details.get("files")  # of a task of this task
                for path in files if isinstance(files, list) else ():
                    if isinstance(path, str):
                        self._add(path)

    @property
    def calls(self) -> Mapping[str, int]:
        """Number of calls by tool."""
        return dict(self._calls)

    def paths(self) -> tuple[str, ...]:
        """List the paths, relative to the working directory where possible."""
        return tuple(self._paths)

    def _add(self, path: str) -> None:
        full = os.path.normpath(os.path.join(self._cwd, os.path.expanduser(path)))
        self._paths.setdefault(full.removeprefix(os.path.join(self._cwd, "")))


@dataclass(slots=True, kw_only=True)
class DelegatedTask:
    """A run of a sub-agent."""

    id: str
    agent: str
    objective: str
    cancel: CancelToken
    """Ends the task."""
    activity: TaskActivity
    is_background: bool = False
    state: TaskState = "waiting"
    started: float = field(default_factory=monotonic)
    finished: float | None = None
    report: DelegateReport | None = None
    principal: str = ""
    """The gateway client that owns it; empty if clients have no identity."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    owner: BackgroundTask | None = None
    """Runs a background task."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.finished is not None

    @property
    def age_s(self) -> float:
        """Its running time so far, or in total."""
        return (monotonic() if self.finished is None else self.finished) - self.started

    @property
    def title(self) -> str:
        """The agent and the first words of the objective."""
        words = " ".join(clean_text(self.objective)[0].split())
        return f"{self.agent}: {cut_text(words, _MAX_OBJECTIVE_CHARS)}"

    def finish(self, report: DelegateReport) -> None:
        """End it with a report."""
        self.report, self.finished = report, monotonic()
        self.state = "done" if report.ok else "ended early"
        self.ended.set()

    def describe_state(self) -> str:
        """Describe the state in a few words."""
        calls = format_count(sum(self.activity.calls.values()), "call")
        if self.state == "running":
            return f"running, {calls}" + (f", last {self.activity.last}" if self.activity.last else "")
        reason = f" ({self.report.reason})" if self.report is not None and self.report.reason else ""
        return f"{self.state}{reason}, {calls}"

    def describe_end(self) -> str:
        """Describe the end in one line, for the user."""
        state = "is done" if self.state == "done" else self.describe_state()
        return f"task {self.id} ({self.title}) {state} after {self.age_s:.0f} s"

    def write_notice(self) -> str:
        """Write the report for the model."""
        assert self.report is not None
        head = f"Background task {self.id} ({self.title}) has ended. Its report:"
        return "\n".join((head, format_report(self.report), *describe_work(self.report)))


def find_objective(transcript: Transcript) -> str:
    """Return a task's original objective from its log."""
    objectives = [row.get("objective") for row in transcript.rows() if row.get("op") == AGENT_OP]
    return next((text for text in objectives if isinstance(text, str)), "")
