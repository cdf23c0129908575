"""Sub-sessions for the `task` card: a new history on the same servers, with the same permissions or fewer.

A sub-session gets its parent's deck, narrowed by its agent's list, and spends the parent's budget. Read-only
sub-sessions run concurrently; others run alone. Each holds a lease on the servers it may call until it ends. At a limit
it reports its partial result, with an id to resume it by.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from shutil import rmtree

import anyio
from anyio import to_thread

from indusagi.capabilities.context import ContextId, ToolContext
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import CoreError, describe_error
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.tasks import BackgroundTask, ReadWriteLock
from indusagi.runtime.calls import current_client
from indusagi.runtime.contract import ToolProgress
from induscode.conversations.agents.files import BUILT_IN, GENERAL, AgentDefinition, AgentFiles
from induscode.conversations.agents.sub_session import (
    AGENT_OP,
    CLOSING_S,
    DelegatedTask,
    ParentSession,
    SubSession,
    TaskActivity,
    TaskLevel,
    close_in_time,
    is_reading_deck,
    select_deck,
)
from induscode.conversations.transcript import ConversationError, Transcript
from induscode.deck.contract import DelegateReport, DelegateRequest

MOST_AT_ONCE = 4
"""Concurrent sub-agents in total; others wait."""
MOST_WAITING = 16
"""Unfinished background tasks."""
MOST_KEPT = 100
"""Resumable tasks of a gateway. Logs of older ones are deleted."""
_DEFAULT_TIMEOUT_S = 600.0


class SubSessions:
    """Runs sub-sessions. Created before its session; `attach` connects the two.

    Logs of tasks go to `directory`, and `most_kept` limits the resumable tasks. With `has_background`, tasks may run in
    the background, which requires notices to reach the model; `on_end` receives a line about each one that ends.
    """

    def __init__(
        self,
        directory: str,
        cwd: str,
        files: AgentFiles = BUILT_IN,
        *,
        has_background: bool = True,
        most_kept: int | None = None,
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._directory, self._cwd, self._most_kept = directory, cwd, most_kept
        self._agents: Mapping[str, AgentDefinition] = files.agents
        self.has_background = has_background
        self.tasks: dict[str, DelegatedTask] = {}
        """This run's tasks by id, oldest first."""
        self._on_end = on_end
        self._make_parent: Callable[[], Awaitable[ParentSession]] | None = None
        self._parent: ParentSession | None = None
        self._order = ReadWriteLock()
        self._nested: dict[ContextId, TaskLevel] = {}
        self._slots = anyio.Semaphore(MOST_AT_ONCE)
        self._notices: list[DelegatedTask] = []
        self._closing = CancelToken()

    def attach(self, parent: ParentSession) -> None:
        """Connect the session that starts tasks here."""
        self._parent = parent

    def attach_factory(self, make: Callable[[], Awaitable[ParentSession]]) -> None:
        """Connect a host that creates a parent for each task. If it raises a `CoreError`, that's the report."""
        self._make_parent = make

    def list_agents(self) -> Sequence[str]:
        """List the names of the agents."""
        return tuple(self._agents)

    def describe_agents(self) -> Mapping[str, str]:
        """Map agent names to descriptions."""
        return {name: agent.description for name, agent in self._agents.items()}

    def is_reading(self, agent: str | None, resume: str | None) -> bool:
        """Return whether a task is certainly read-only, as of now: the deck may change before it starts."""
        known = self._find(resume)
        if known is not None and not known.is_over:
            return True  # the call just waits for it
        name = agent or (GENERAL.name if resume is None else known.agent if known is not None else "")
        definition = self._agents.get(name)
        if definition is None:
            return False
        return definition.reads_only or (
            self._parent is not None and is_reading_deck(select_deck(self._parent.deck(), definition, depth=1))
        )

    async def run(self, request: DelegateRequest, ctx: ToolContext) -> DelegateReport:
        """Run a sub-session and return its report, or start it in the background and return its id."""
        level = self._nested.get(ctx.context_id)
        known = self._find(request.resume)
        if known is not None and not known.is_over:
            return await self._join(known, ctx)
        if request.background and (level is not None or not self.has_background):
            where = "here" if level is None else "for a task of a task"
            return _refuse(f"No task can run in the background {where}: call it without `background`.")
        try:
            if level is None:
                parent = self._parent if self._make_parent is None else await self._make_parent()
                if parent is None:
                    return _refuse("The session is not open yet.")
                level = TaskLevel(parent, order=self._order)
            agent, transcript = await self._open(request)
        except (OSError, CoreError) as exc:
            return _refuse(str(exc))
        token = CancelToken(self._closing) if request.background else CancelToken(ctx.cancel, self._closing)
        task = DelegatedTask(
            id=transcript.id,
            agent=agent.name,
            objective=request.objective,
            cancel=token,
            activity=TaskActivity(self._cwd),
            is_background=request.background,
            principal=_find_principal(),
        )
        work = partial(self._run_to_end, task, agent, request, level, transcript)
        if not request.background:
            await self._remember(task)
            return await work(ctx.report)
        if len(self.list_running()) >= MOST_WAITING:
            await close_in_time(partial(to_thread.run_sync, transcript.close))
            return _refuse(f"{MOST_WAITING} tasks have not ended yet: wait for one of them.")
        await self._remember(task)
        task.owner = BackgroundTask(f"task {task.id}")
        task.owner.start(self._run_in_background(task, work))
        text = (
            f"Task {task.id} runs in the background. A note gives you its report; `resume` with this id waits for it."
        )
        return DelegateReport(ok=True, text=text, id=task.id, is_running=True)

    def list_running(self) -> Sequence[DelegatedTask]:
        """List unfinished background tasks, oldest first."""
        return [task for task in self.tasks.values() if task.is_background and not task.is_over]

    async def wait_for_all(self, cancel: CancelToken) -> bool:
        """Wait for all background tasks. Return whether there are reports for the model."""
        with cancel.guard():
            for task in self.list_running():
                await task.ended.wait()
        return bool(self._notices)

    def take_notices(self) -> Sequence[str]:
        """Return new reports of background tasks for the model, each once."""
        notices, self._notices = self._notices, []
        return [task.write_notice() for task in notices]

    async def aclose(self) -> None:
        """End the tasks. Call this before closing the servers and the model."""
        self._closing.cancel("the end of the session")
        owners = [task.owner for task in self.tasks.values() if task.owner is not None]
        with anyio.move_on_after(CLOSING_S, shield=True):
            for owner in owners:
                await owner.wait()
        for owner in owners:
            owner.cancel()
            await owner.join()

    async def _join(self, task: DelegatedTask, ctx: ToolContext) -> DelegateReport:
        """Wait for a running task, and return its report here instead of in a notice."""
        with ctx.cancel.guard():
            await task.ended.wait()
        if task in self._notices:
            self._notices.remove(task)
        return task.report or _refuse("The wait was cancelled; the task goes on.")

    async def _open(self, request: DelegateRequest) -> tuple[AgentDefinition, Transcript]:
        """Open a task's log and find its agent: the requested one, or the one it started with.

        `ConversationError` if one of them is unknown.
        """
        name = request.resume or new_ulid()
        directory = self._name_log(name, _find_principal())
        if request.resume is not None and not (is_ulid(name) and await to_thread.run_sync(os.path.isdir, directory)):
            raise ConversationError(
                f"There is no task {name!r} to resume: call task again without resume to start one."
            )

        def open_log() -> tuple[AgentDefinition, Transcript]:
            transcript = Transcript(directory, self._cwd)
            stored = [str(row.get("name")) for row in transcript.rows() if row.get("op") == AGENT_OP]
            chosen = request.agent or (stored[-1] if stored else GENERAL.name)
            agent = self._agents.get(chosen)
            if agent is None:
                transcript.close()
                raise ConversationError(f"There is no agent {chosen!r}. There are: {', '.join(self._agents)}.")
            if chosen not in stored[-1:]:
                transcript.mark(AGENT_OP, name=chosen, objective=request.objective)
            return agent, transcript

        return await to_thread.run_sync(open_log)

    def _find(self, identity: str | None) -> DelegatedTask | None:
        """Find a task of the calling client. It can't see tasks of other principals."""
        task = self.tasks.get(identity or "")
        return task if task is not None and task.principal == _find_principal() else None

    def _name_log(self, identity: str, principal: str) -> str:
        # A principal's name may contain anything, so its digest names the directory.
        parts = [hashlib.sha256(principal.encode()).hexdigest()] if principal else []
        return os.path.join(self._directory, *parts, identity)

    async def _remember(self, task: DelegatedTask) -> None:
        self.tasks.pop(task.id, None)
        self.tasks[task.id] = task
        over = [known for known in self.tasks.values() if known.is_over]
        for known in over[: max(len(self.tasks) - self._most_kept, 0)] if self._most_kept is not None else ():
            del self.tasks[known.id]
            await to_thread.run_sync(partial(rmtree, self._name_log(known.id, known.principal), ignore_errors=True))

    async def _run_in_background(
        self, task: DelegatedTask, work: Callable[[Callable[[ToolProgress], None]], Awaitable[DelegateReport]]
    ) -> None:
        try:
            await work(lambda progress: None)
        except Exception as exc:  # noqa: BLE001 — boundary: a failed task is a report
            task.finish(_refuse(describe_error(exc), task.id))
        if not self._closing.cancelled:
            self._notices.append(task)
            self._on_end(task.describe_end())

    async def _run_to_end(
        self,
        task: DelegatedTask,
        agent: AgentDefinition,
        request: DelegateRequest,
        level: TaskLevel,
        transcript: Transcript,
        report_progress: Callable[[ToolProgress], None],
    ) -> DelegateReport:
        """Wait for a task's turn, run it, and release everything it holds."""
        report = _refuse("The task was cancelled.", task.id, "cancelled")
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(close_in_time, partial(to_thread.run_sync, transcript.close))
                # Whether the task is read-only is decided once, and holds until it ends.
                is_reading = is_reading_deck(select_deck(level.parent.deck(), agent, level.depth + 1))
                times = [float(agent.timeout_s)] if agent.timeout_s is not None else list[float]()
                times += [request.timeout_ms / 1_000] if request.timeout_ms is not None else []
                limit_s = min(times, default=_DEFAULT_TIMEOUT_S)
                with anyio.move_on_after(limit_s), task.cancel.guard():
                    await stack.enter_async_context(level.order.hold(shared=is_reading))
                    if level.depth and self._slots.value == 0:
                        # Waiting could deadlock: the parent tasks hold the slots.
                        report = _refuse(f"{MOST_AT_ONCE} agents run at once: do the work yourself.", task.id)
                        return report
                    await stack.enter_async_context(self._slots)
                    task.state = "running"
                if task.state == "waiting":
                    if not task.cancel.cancelled:
                        report = _refuse("Its turn did not come: other agents are at work.", task.id, "time")
                    return report
                run = SubSession(task, agent, request, level, transcript, is_reading, limit_s)
                report = await run.execute(stack, self._nested, report_progress)
                return report
        except ConversationError as exc:
            report = _refuse(str(exc), task.id)
            return report
        finally:
            task.finish(report)


def _find_principal() -> str:
    client = current_client.get()
    return "" if client is None else client.principal


def _refuse(text: str, identity: str | None = None, reason: str = "error") -> DelegateReport:
    return DelegateReport(ok=False, text=text, id=identity, reason=reason)
