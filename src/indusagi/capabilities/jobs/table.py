"""The jobs of a session: one table, whoever starts them, and all of them end with the session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.context import PerContext
from indusagi.capabilities.jobs.job import Job
from indusagi.capabilities.local.shell import LocalShell
from indusagi.core.app_dirs import create_private_file, make_private_dir
from indusagi.core.ids import new_ulid

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.overflow import SessionDir
    from indusagi.capabilities.ports import Shell, ShellProcess

LIVE_JOBS = 32
_FINISHED_JOBS = 64
"""How many that are over can still be asked about."""


class JobLimitError(OSError):
    """As many jobs run as may run at once."""


class JobSessionError(JobLimitError):
    """There is no session in which a job could go on."""


class JobTable:
    """The jobs of one session, by their ids."""

    def __init__(self, prefix: str = "job", *, capture_dir: str | None = None) -> None:
        """Number the jobs under a prefix; their outputs go to the session, or beside the project.

        `capture_dir` is the name of a folder in the working directory of the context. Standard
        output and standard error are kept apart there, each in a file and a ring of its own.
        """
        self._prefix = prefix
        self._capture_dir = capture_dir
        self._jobs: dict[str, Job] = {}
        self._made = 0
        self._starting = 0
        self._bound = False
        self._keeps = True

    def bind(self, ctx: ToolContext) -> None:
        """Have all jobs ended with the context, and what the shell keeps removed."""
        self._keeps = ctx.keeps_jobs
        if self._bound:
            return
        self._bound = True
        if isinstance(ctx.shell, LocalShell):
            ctx.closing.add(ctx.shell.aclose)
        ctx.closing.add(self.aclose)

    def get(self, job_id: str) -> Job | None:
        """Find a job."""
        return self._jobs.get(job_id)

    def all(self) -> list[Job]:
        """List the jobs in the order in which they were started."""
        return list(self._jobs.values())

    async def start(self, ctx: ToolContext, command: str, cwd: str) -> Job:
        """Start a command as a job.

        Raises:
            JobLimitError: Too many are running.
            OSError: It cannot be started.
        """
        await self._make_room()
        self._starting += 1
        try:
            job_id = self._next_id()
            path = await self._capture_path(ctx, job_id)
            errors_path = self._errors_path(ctx, path)
            process = await _spawn(ctx.shell, command, cwd, path, errors_path)
            try:
                return self._add(job_id, process, command, cwd, path, errors_path)
            except BaseException:
                await process.aclose()
                raise
        finally:
            self._starting -= 1

    def _errors_path(self, ctx: ToolContext, path: str | None) -> str | None:
        """Name the file for standard error, where the table keeps it apart and the shell can."""
        if self._capture_dir is None or path is None or not isinstance(ctx.shell, LocalShell):
            return None
        return _errors_beside(path)

    def _next_id(self) -> str:
        self._made += 1
        return f"{self._prefix}-{self._made}"

    async def _capture_path(self, ctx: ToolContext, job_id: str) -> str | None:
        if self._capture_dir is not None:
            folder = os.path.join(ctx.cwd, self._capture_dir)
            made = await to_thread.run_sync(_path_beside, folder, job_id)
            if made is not None:
                return made
        return await capture_path(ctx.session_dir, "jobs")

    async def adopt(self, process: ShellProcess, command: str, cwd: str, path: str | None) -> Job:
        """Take in what a command has left in the background.

        Raises:
            JobLimitError: Too many are running.
        """
        await self._make_room()
        job = self._add(self._next_id(), process, command, cwd, path)
        await job.skip()
        return job

    def _add(
        self,
        job_id: str,
        process: ShellProcess,
        command: str,
        cwd: str,
        path: str | None,
        errors_path: str | None = None,
    ) -> Job:
        job = Job(job_id=job_id, command=command, cwd=cwd, process=process, path=path, errors_path=errors_path)
        self._jobs[job_id] = job
        return job

    async def _make_room(self) -> None:
        if not self._keeps:
            raise JobSessionError(
                "a job ends with this command, before anybody can ask for it: "
                "start it in a session, or in a shell (nohup COMMAND &)"
            )
        live = [job for job in self.all() if (await job.look()).running]
        if len(live) + self._starting >= LIVE_JOBS:
            raise JobLimitError(f"{LIVE_JOBS} jobs are running already: stop one of them first")
        over = [job for job in self.all() if job.over]
        for job in over[: max(len(over) - _FINISHED_JOBS, 0)]:
            del self._jobs[job.id]

    async def aclose(self) -> None:
        """End all jobs, side by side; what could not be ended is not waited for."""
        async with anyio.create_task_group() as tasks:
            for job in self.all():
                tasks.start_soon(job.stop)


async def _spawn(shell: Shell, command: str, cwd: str, path: str | None, errors_path: str | None) -> ShellProcess:
    if errors_path is None or not isinstance(shell, LocalShell):
        return await shell.spawn(command, cwd=cwd, output_path=path, with_input=True)
    return await shell.spawn(command, cwd=cwd, output_path=path, with_input=True, errors_path=errors_path)


async def capture_path(session: SessionDir, folder: str) -> str | None:
    """Name a new file of the session for an output; None if there can be none."""
    return await to_thread.run_sync(_capture_path, session, folder)


def _capture_path(session: SessionDir, folder: str) -> str | None:
    try:
        return os.path.join(make_private_dir(os.path.join(session.make(), folder)), f"{new_ulid()}.out")
    except OSError:
        return None


def _errors_beside(path: str) -> str:
    return f"{path.removesuffix('.out')}.err"


def _path_beside(folder: str, name: str) -> str | None:
    """Name a new file beside the project, where git does not see it; None if there can be none."""
    try:
        make_private_dir(folder)
        ignored = os.path.join(folder, ".gitignore")
        if not os.path.lexists(ignored):
            with os.fdopen(create_private_file(ignored), "wb") as file:
                file.write(b"*\n")
        path = os.path.join(folder, f"{name}.out")
        taken = any(map(os.path.lexists, (path, _errors_beside(path))))
        return os.path.join(folder, f"{new_ulid()}.out") if taken else path
    except OSError:
        return None


_TABLES: PerContext[JobTable] = PerContext(JobTable)


def jobs_of(ctx: ToolContext) -> JobTable:
    """Give the table of a session, which ends with it."""
    table = _TABLES.of(ctx)
    table.bind(ctx)
    return table
