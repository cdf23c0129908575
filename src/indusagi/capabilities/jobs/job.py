"""Job: a command that runs in the background of a session."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Literal

import anyio
from anyio import to_thread

from indusagi.capabilities.jobs.output import LineRing, has_line_with
from indusagi.capabilities.local.shell import LocalProcess
from indusagi.capabilities.ports import STOP_GRACE_MS
from indusagi.core.process.procfs import ResourceUsage, measure_usage
from indusagi.core.process.tree import ProcessTree, signal_group, signal_processes
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.jobs.output import OutputLines
    from indusagi.capabilities.ports import ShellProcess

_GLANCE_S = 0.05


@record
class JobState:
    """The state of a job."""

    state: Literal["running", "exited", "stopped"]
    exit_code: int | None
    """Of the command itself; None while it runs."""
    left: int
    """Processes that still run after the command itself has exited."""
    age_s: float

    @property
    def running(self) -> bool:
        """Whether a process of it still runs."""
        return self.state == "running"

    def __str__(self) -> str:
        if self.state == "running" and self.exit_code is not None:
            return f"running: {self.left} in the background, the command itself {describe_exit(self.exit_code)}"
        if self.state == "running" or self.exit_code is None:
            return self.state
        return f"{self.state}, {describe_exit(self.exit_code)}"


def describe_exit(code: int) -> str:
    """Describe an exit code; a shell reports a signal by a code above 128."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    try:
        name = signal.Signals(number).name if number else ""
    except ValueError:
        name = ""
    if code < 0:
        return f"ended by {name or f'signal {number}'}"
    return f"exit code {code} ({name})" if name else f"exit code {code}"


def to_shell_exit_code(code: int | None) -> int | None:
    """Convert an exit code to the convention of shells: 128 plus the number for a signal."""
    return code if code is None or code >= 0 else 128 - code


class JobStream:
    """One output stream of a job: its last lines, and the last one that was returned."""

    def __init__(self) -> None:
        self.ring = LineRing()
        self.cursor = 0
        """The number of the last returned line."""

    def read(self, *, lines: int | None, since_last: bool) -> OutputLines:
        """Return the last `lines`, or those since the last read, and move the cursor."""
        output = self.ring.last(lines) if lines is not None else self.ring.after(self.cursor if since_last else 0)
        self.cursor = output.last
        return output


class Job:
    """A background command of a session."""

    def __init__(
        self,
        *,
        job_id: str,
        command: str,
        cwd: str,
        process: ShellProcess,
        path: str | None,
        errors_path: str | None = None,
    ) -> None:
        self.id = job_id
        self.command = command
        self.cwd = cwd
        self.path = path
        """The file with its whole output, if it could be made."""
        self.errors_path = errors_path
        """The file with its standard error, if that is separate."""
        self.process = process
        self.output = JobStream()
        self.errors: JobStream | None = None
        """None if standard error is part of the output."""
        self._started = anyio.current_time()
        self._ended: float | None = None
        self._stopped = False
        self._left = 0
        process.follow(self.output.ring.feed)
        if errors_path is not None and isinstance(process, LocalProcess):
            errors = JobStream()
            if process.follow_errors(errors.ring.feed):
                self.errors = errors

    @property
    def streams(self) -> Sequence[JobStream]:
        """Its output, and its standard error if that is separate."""
        return (self.output,) if self.errors is None else (self.output, self.errors)

    @property
    def over(self) -> bool:
        """Whether all of its processes are known to have ended."""
        return self._ended is not None

    @property
    def where(self) -> str:
        """Where more of its output is, as the end of a sentence; "" without a file."""
        try:
            self.process.read_output(0, 0)
        except OSError as exc:
            return f"; its output is kept no longer: {exc.strerror or exc}"
        return "" if self.path is None else f"; more of its output is in {self.path}"

    async def look(self) -> JobState:
        """Update and return the state; a job that has ended by itself is closed."""
        if not self.over and self.process.exit_code is not None:
            self._left = len(await to_thread.run_sync(self.process.survivors))
            if not self._left:
                await self.process.wait()
                await self._close()
        return self.state()

    def state(self) -> JobState:
        """Return the state of the last `look`."""
        end = anyio.current_time() if self._ended is None else self._ended
        kind = "running" if not self.over else "stopped" if self._stopped else "exited"
        return JobState(kind, self.process.exit_code, self._left, end - self._started)

    async def usage(self) -> ResourceUsage:
        """Measure what its processes use."""
        return await to_thread.run_sync(lambda: measure_usage([self.process.pid, *self.process.survivors()]))

    async def poll(self, wait_ms: int, match: str | None) -> None:
        """Wait for unread output, or for a line with `match`, or for the end of the job."""
        before = [stream.ring.progress if stream.ring.total == stream.cursor else (-1, 0) for stream in self.streams]
        searched: list[int] = [stream.cursor for stream in self.streams]
        with anyio.move_on_after(wait_ms / 1000):
            while (await self.look()).running:
                if match is None and [stream.ring.progress for stream in self.streams] != before:
                    return
                if match is not None:
                    outputs = [stream.ring.after(last) for stream, last in zip(self.streams, searched, strict=True)]
                    texts = [text for output in outputs for text in output.all_texts]
                    if await to_thread.run_sync(has_line_with, texts, match):
                        return
                    searched = [output.last for output in outputs]
                await anyio.sleep(_GLANCE_S)

    async def skip(self) -> None:
        """Count the output before the adoption of a command as read."""
        await self.process.wait()
        for stream in self.streams:
            stream.cursor = stream.ring.total

    async def stop(self, first: signal.Signals = signal.SIGTERM) -> JobState:
        """End its process tree: the first signal, then SIGKILL; safe to call twice."""
        if (await self.look()).running:
            self._stopped = True
            grace_ms = STOP_GRACE_MS
            if first is not signal.SIGTERM:
                grace_ms = 0
                if self.process.exit_code is None:
                    # Listed before the signal: descendants are remembered when their parents have ended.
                    await to_thread.run_sync(self.process.survivors)
                    signal_group(self.process.pid, first)
                elif self.process.mark:  # one by one: the id of the group may have been reused
                    tree = ProcessTree(self.process.mark)
                    await to_thread.run_sync(lambda: signal_processes(tree.list_running(None), first))
                with anyio.move_on_after(STOP_GRACE_MS / 1000, shield=True):
                    while (await self.look()).running:  # noqa: ASYNC110 — as in poll
                        await anyio.sleep(_GLANCE_S)
                    grace_ms = STOP_GRACE_MS
            await self.process.stop(grace_ms=grace_ms)
            self._left = len(await to_thread.run_sync(self.process.survivors))
            await self._close()
        return self.state()

    async def _close(self) -> None:
        self._ended = anyio.current_time()
        with anyio.CancelScope(shield=True):
            await self.process.aclose()
