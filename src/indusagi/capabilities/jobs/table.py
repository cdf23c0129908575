"""Job table: the background commands of a session, which end with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
from anyio import to_thread

from indusagi.capabilities.context import CleanupStack, PerContext, ToolContext
from indusagi.capabilities.jobs.job import Job
from indusagi.capabilities.local.shell import LocalShell
from indusagi.core.app_dirs import create_private_file, make_private_dir
from indusagi.core.ids import new_ulid
from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.capabilities.budget import SessionDir
    from indusagi.capabilities.ports import ShellProcess

LIVE_JOBS = 32
_MAX_FINISHED_JOBS = 64
"""How many finished jobs to remember."""


class JobLimitError(OSError):
    """Too many concurrent jobs."""


class JobSessionError(JobLimitError):
    """The job would end with the command that starts it."""


@record
class JobKind:
    """How a tool names its jobs, and where their output goes."""

    prefix: str = "job"
    capture_dir: str | None = None
    """A directory in the workspace for the output, with stdout and stderr in separate files. By default, output goes
    to the session's directory."""


JOB = JobKind()


class JobTable:
    """The jobs of one session by id."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._count = 0
        self._starting = 0
        self._bound = False
        self._keeps = True

    def bind(self, ctx: ToolContext) -> None:
        """Terminate all jobs when the context closes."""
        self._keeps = ctx.keeps_jobs
        if self._bound:
            return
        self._bound = True
        _TABLES_BY_END.setdefault(ctx.closing, []).append(self)
        ctx.closing.add(self.aclose)

    def get(self, job_id: str) -> Job | None:
        """Find a job."""
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """List the jobs in start order."""
        return list(self._jobs.values())

    async def start(self, ctx: ToolContext, command: str, cwd: str, kind: JobKind = JOB) -> Job:
        """Start a command as a job.

        Raises `JobLimitError` if too many are running, and `OSError` if it can't be started.
        """
        await self._require_slot()
        self._starting += 1
        try:
            job_id = self._next_id(kind)
            path = await _choose_path(ctx, job_id, kind)
            errors_path = None
            if kind.capture_dir is None or path is None or not isinstance(ctx.shell, LocalShell):
                process = await ctx.shell.spawn(command, cwd=cwd, output_path=path, with_input=True)
            else:
                errors_path = _to_errors_path(path)
                process = await ctx.shell.spawn(
                    command, cwd=cwd, output_path=path, with_input=True, errors_path=errors_path
                )
            try:
                job = Job(job_id=job_id, command=command, cwd=cwd, process=process, path=path, errors_path=errors_path)
            except BaseException:
                await process.aclose()
                raise
            self._jobs[job_id] = job
            return job
        finally:
            self._starting -= 1

    def _next_id(self, kind: JobKind = JOB) -> str:
        self._count += 1
        return f"{kind.prefix}-{self._count}"

    async def adopt(self, process: ShellProcess, command: str, cwd: str, path: str | None) -> Job:
        """Turn the background processes of a command into a job. Raises `JobLimitError` if too many are running."""
        await self._require_slot()
        job = Job(job_id=self._next_id(), command=command, cwd=cwd, process=process, path=path)
        self._jobs[job.id] = job
        await job.skip()
        return job

    async def _require_slot(self) -> None:
        if not self._keeps:
            raise JobSessionError(
                "a job ends with this command, before its output can be read: "
                "start it in a session, or in a shell (nohup COMMAND &)"
            )
        live = [job for job in self.all() if (await job.look()).running]
        if len(live) + self._starting >= LIVE_JOBS:
            raise JobLimitError(f"{LIVE_JOBS} jobs are running already: stop one of them first")
        over = [job for job in self.all() if job.over]
        for job in over[: max(len(over) - _MAX_FINISHED_JOBS, 0)]:
            del self._jobs[job.id]

    async def aclose(self) -> None:
        """Terminate all jobs concurrently, giving up on processes that survive."""
        async with anyio.create_task_group() as tasks:
            for job in self.all():
                tasks.start_soon(job.stop)


async def _choose_path(ctx: ToolContext, job_id: str, kind: JobKind) -> str | None:
    if kind.capture_dir is not None:
        folder = os.path.join(ctx.cwd, kind.capture_dir)
        path = await to_thread.run_sync(_project_path, folder, job_id)
        if path is not None:
            return path
    return await capture_path(ctx.session_dir, "jobs")


async def capture_path(session: SessionDir, folder: str) -> str | None:
    """Return the path for a new output file of the session, or None if we can't create its directory."""
    try:
        parent = await to_thread.run_sync(lambda: make_private_dir(os.path.join(session.make(), folder)))
    except OSError:
        return None
    return os.path.join(parent, f"{new_ulid()}.out")


def _to_errors_path(path: str) -> str:
    return f"{path.removesuffix('.out')}.err"


def _project_path(folder: str, name: str) -> str | None:
    """Return the path for a new, git-ignored output file in the workspace; None if we can't create its directory."""
    try:
        make_private_dir(folder)
        gitignore = os.path.join(folder, ".gitignore")
        if not os.path.lexists(gitignore):
            with os.fdopen(create_private_file(gitignore), "wb") as file:
                file.write(b"*\n")
        path = os.path.join(folder, f"{name}.out")
        taken = any(map(os.path.lexists, (path, _to_errors_path(path))))
        return os.path.join(folder, f"{new_ulid()}.out") if taken else path
    except OSError:
        return None


_TABLES: PerContext[JobTable] = PerContext(JobTable)
_TABLES_BY_END: WeakKeyDictionary[CleanupStack, list[JobTable]] = WeakKeyDictionary()
"""Groups tables by the cleanup stack that ends their jobs."""


def jobs_of(ctx: ToolContext) -> JobTable:
    """Return the job table of a session."""
    table = _TABLES.of(ctx)
    table.bind(ctx)
    return table


def list_jobs(ctx: ToolContext) -> list[Job]:
    """List all jobs that end with a context, including the ones of its sub-sessions."""
    return [job for table in _TABLES_BY_END.get(ctx.closing, ()) for job in table.all()]
