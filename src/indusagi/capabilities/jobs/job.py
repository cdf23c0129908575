"""One command that goes on by itself: what it says, how it stands, its end."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import anyio
from anyio import to_thread

from indusagi.capabilities.jobs.lines import LineRing
from indusagi.capabilities.jobs.text import shows
from indusagi.capabilities.local.shell import LocalProcess
from indusagi.capabilities.ports import STOP_GRACE_MS
from indusagi.core.process.procfs import ResourceUsage, measure_usage
from indusagi.core.process.tree import ProcessTree, signal_group, signal_processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.jobs.lines import OutputLines
    from indusagi.capabilities.ports import ShellProcess

_GLANCE_S = 0.05


@dataclass(frozen=True, slots=True)
class JobState:
    """How a job stands."""

    state: Literal["running", "exited", "stopped"]
    exit_code: int | None
    """That of the command itself; None while it runs."""
    left: int
    """Processes that run on although the command itself has exited."""
    age_s: float

    @property
    def running(self) -> bool:
        """Whether anything of it still runs."""
        return self.state == "running"

    def __str__(self) -> str:
        if self.state == "running" and self.exit_code is not None:
            return f"running: {self.left} in the background, the command itself {describe_exit(self.exit_code)}"
        if self.state == "running" or self.exit_code is None:
            return self.state
        return f"{self.state}, {describe_exit(self.exit_code)}"


def describe_exit(code: int) -> str:
    """Say how a command ended; a shell tells of a signal by a code above 128."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    try:
        name = signal.Signals(number).name if number else ""
    except ValueError:
        name = ""
    if code < 0:
        return f"ended by {name or f'signal {number}'}"
    return f"exit code {code} ({name})" if name else f"exit code {code}"


def to_shell_exit_code(code: int | None) -> int | None:
    """Give an exit code as shells do, 128 and more for a signal, whoever saw the command end."""
    return code if code is None or code >= 0 else 128 - code


class JobStream:
    """One stream of a job: its last lines, and which of them were told."""

    def __init__(self) -> None:
        self.ring = LineRing()
        self.cursor = 0
        """The last line that was told."""

    def told(self, *, lines: int | None, since_last: bool) -> OutputLines:
        """Give lines, and remember which were given."""
        found = self.ring.last(lines) if lines is not None else self.ring.after(self.cursor if since_last else 0)
        self.cursor = found.last
        return found


class Job:
    """A command in the table of a session."""

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
        """The file with all of its output, if one could be made."""
        self.errors_path = errors_path
        """The file with what it wrote to standard error, if that is kept apart."""
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
        """Its output, and its standard error if that is apart."""
        return (self.output,) if self.errors is None else (self.output, self.errors)

    @property
    def over(self) -> bool:
        """Whether it is known that nothing of it runs any more."""
        return self._ended is not None

    @property
    def where(self) -> str:
        """Where more of its output is, as the end of a sentence; "" if it is nowhere."""
        try:
            self.process.read_output(0, 0)
        except OSError as exc:
            return f"; its output is kept no longer: {exc.strerror or exc}"
        return "" if self.path is None else f"; more of its output is in {self.path}"

    async def look(self) -> JobState:
        """See how it stands; what has ended by itself is put away."""
        if not self.over and self.process.exit_code is not None:
            self._left = len(await to_thread.run_sync(self.process.survivors))
            if not self._left:
                await self.process.wait()
                await self._put_away()
        return self.state()

    def state(self) -> JobState:
        """Tell how it stood when it was last looked at."""
        end = anyio.current_time() if self._ended is None else self._ended
        kind = "running" if not self.over else "stopped" if self._stopped else "exited"
        return JobState(kind, self.process.exit_code, self._left, end - self._started)

    async def facts(self) -> ResourceUsage:
        """Tell what its processes use."""
        return await to_thread.run_sync(self._facts)

    def _facts(self) -> ResourceUsage:
        return measure_usage([self.process.pid, *self.process.survivors()])

    async def poll(self, wait_ms: int, match: str | None) -> None:
        """Wait until it says something that was not told yet, or what `match` asks for, or ends."""
        begun: list[tuple[int, int]] = [
            one.ring.seen if one.ring.total == one.cursor else (-1, 0) for one in self.streams
        ]
        read: list[int] = [one.cursor for one in self.streams]
        with anyio.move_on_after(wait_ms / 1000):
            while (await self.look()).running:
                if match is None and [one.ring.seen for one in self.streams] != begun:
                    return
                if match is not None:
                    said = [one.ring.after(last) for one, last in zip(self.streams, read, strict=True)]
                    texts = [text for one in said for text in (*one.texts, one.open_line)]
                    if await to_thread.run_sync(shows, texts, match):
                        return
                    read = [one.last for one in said]
                await anyio.sleep(_GLANCE_S)

    async def skip(self) -> None:
        """Count all that a command said before it was adopted as told."""
        await self.process.wait()
        for one in self.streams:
            one.cursor = one.ring.total

    async def stop(self, first: signal.Signals = signal.SIGTERM) -> JobState:
        """End everything of it: the first signal, then SIGKILL; safe to call twice."""
        if (await self.look()).running:
            self._stopped = True
            grace_ms = STOP_GRACE_MS if first is signal.SIGTERM else await self._after(first)
            await self.process.stop(grace_ms=grace_ms)
            self._left = len(await to_thread.run_sync(self.process.survivors))
            await self._put_away()
        return self.state()

    async def _after(self, first: signal.Signals) -> int:
        """Send another signal than the usual one, and tell what patience is left after it."""
        if self.process.exit_code is None:
            # Who is seen before is found also when those who started it are gone.
            await to_thread.run_sync(self.process.survivors)
            signal_group(self.process.pid, first)
        elif self.process.mark:  # found one by one: the group may have lost its number with it
            await to_thread.run_sync(self._signal_left, first)
        with anyio.move_on_after(STOP_GRACE_MS / 1000, shield=True):
            while (await self.look()).running:  # noqa: ASYNC110 — as in poll
                await anyio.sleep(_GLANCE_S)
            return STOP_GRACE_MS
        return 0

    def _signal_left(self, number: int) -> None:
        signal_processes(ProcessTree(self.process.mark).list_running(None), number)

    async def _put_away(self) -> None:
        self._ended = anyio.current_time()
        with anyio.CancelScope(shield=True):
            await self.process.aclose()
