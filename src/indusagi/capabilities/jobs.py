"""Background commands: jobs, and the table of a session's, which end with it."""

from __future__ import annotations

import codecs
import os
import re
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Literal
from weakref import WeakKeyDictionary

import anyio
from anyio import to_thread

from indusagi.capabilities.budget import OutputBudget, SessionDir, clip
from indusagi.capabilities.context import CleanupStack, PerContext, ToolContext
from indusagi.capabilities.files.codec import HEAD_BYTES, is_binary
from indusagi.capabilities.files.lines import describe_invisible
from indusagi.capabilities.local.shell import LocalProcess, LocalShell
from indusagi.capabilities.ports import STOP_GRACE_MS, ShellProcess
from indusagi.capabilities.sandbox.capture import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES
from indusagi.core.app_dirs import create_private_file, make_private_dir
from indusagi.core.ids import new_ulid
from indusagi.core.process.tree import ProcessTree, ResourceUsage, measure_usage, signal_group, signal_processes
from indusagi.core.records import record
from indusagi.runtime.contract import Keep

_POLL_INTERVAL_S = 0.05


@record
class JobState:
    """A snapshot of a job."""

    state: Literal["running", "exited", "stopped"]
    exit_code: int | None
    """Exit code of the command itself; None while it runs."""
    left: int
    """Number of processes still running after the command itself has exited."""
    age_s: float

    @property
    def running(self) -> bool:
        """Whether any of its processes is running."""
        return self.state == "running"

    def __str__(self) -> str:
        if self.state == "running" and self.exit_code is not None:
            return f"running: {self.left} in the background, the command itself {describe_exit(self.exit_code)}"
        if self.state == "running" or self.exit_code is None:
            return self.state
        return f"{self.state}, {describe_exit(self.exit_code)}"


def describe_exit(code: int) -> str:
    """Describe an exit code. Shells report a signal as a code above 128."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    try:
        name = signal.Signals(number).name if number else ""
    except ValueError:
        name = ""
    if code < 0:
        return f"ended by {name or f'signal {number}'}"
    return f"exit code {code} ({name})" if name else f"exit code {code}"


def to_shell_exit_code(code: int | None) -> int | None:
    """Convert an exit code to the shell convention: 128 + signal number."""
    return code if code is None or code >= 0 else 128 - code


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
        """The file with the full output, if we could create one."""
        self.errors_path = errors_path
        """The file with stderr, if separate."""
        self.process = process
        self.output = LineRing()
        self.errors: LineRing | None = None
        """None if stderr is part of the output."""
        self._started = anyio.current_time()
        self._ended: float | None = None
        self._stopped = False
        self._left = 0
        process.follow(self.output.feed)
        if errors_path is not None and isinstance(process, LocalProcess):
            errors = LineRing()
            if process.follow_errors(errors.feed):
                self.errors = errors

    @property
    def streams(self) -> Sequence[LineRing]:
        """The output, plus stderr if separate."""
        return (self.output,) if self.errors is None else (self.output, self.errors)

    @property
    def over(self) -> bool:
        """Whether we know that all its processes have ended."""
        return self._ended is not None

    @property
    def where(self) -> str:
        """Sentence fragment that says where to find more output; empty if there's no file."""
        try:
            self.process.read_output(0, 0)
        except OSError as exc:
            return f"; its output is kept no longer: {exc.strerror or exc}"
        return "" if self.path is None else f"; more of its output is in {self.path}"

    async def look(self) -> JobState:
        """Refresh and return the state. Closes a job that has ended by itself."""
        if not self.over and self.process.exit_code is not None:
            self._left = len(await to_thread.run_sync(self.process.survivors))
            if not self._left:
                await self.process.wait()
                await self._close()
        return self.state()

    def state(self) -> JobState:
        """Return the state as of the last `look`."""
        end = anyio.current_time() if self._ended is None else self._ended
        kind = "running" if not self.over else "stopped" if self._stopped else "exited"
        return JobState(kind, self.process.exit_code, self._left, end - self._started)

    async def usage(self) -> ResourceUsage:
        """Measure the resource usage of its processes."""
        return await to_thread.run_sync(lambda: measure_usage([self.process.pid, *self.process.survivors()]))

    async def poll(self, wait_ms: int, match: str | None) -> None:
        """Wait for unread output, a line containing `match`, or the end of the job."""
        before = [stream.progress if stream.total == stream.cursor else (-1, 0) for stream in self.streams]
        searched: list[int] = [stream.cursor for stream in self.streams]
        with anyio.move_on_after(wait_ms / 1000):
            while (await self.look()).running:
                if match is None and [stream.progress for stream in self.streams] != before:
                    return
                if match is not None:
                    outputs = [stream.after(last) for stream, last in zip(self.streams, searched, strict=True)]
                    texts = [text for output in outputs for text in output.all_texts]
                    if await to_thread.run_sync(has_line_with, texts, match):
                        return
                    searched = [output.last for output in outputs]
                await anyio.sleep(_POLL_INTERVAL_S)

    async def skip(self) -> None:
        """Mark all output before the command became a job as read."""
        await self.process.wait()
        for stream in self.streams:
            stream.cursor = stream.total

    async def stop(self, first: signal.Signals = signal.SIGTERM) -> JobState:
        """Terminate its process tree with `first`, then SIGKILL; safe to call twice."""
        if (await self.look()).running:
            self._stopped = True
            grace_ms = STOP_GRACE_MS
            if first is not signal.SIGTERM:
                grace_ms = 0
                if self.process.exit_code is None:
                    # List them before signalling, so we remember descendants of processes that exit.
                    await to_thread.run_sync(self.process.survivors)
                    signal_group(self.process.pid, first)
                elif self.process.mark:  # one by one: the group id may have been reused
                    tree = ProcessTree(self.process.mark)
                    await to_thread.run_sync(lambda: signal_processes(tree.list_running(None), first))
                with anyio.move_on_after(STOP_GRACE_MS / 1000, shield=True):
                    while (await self.look()).running:  # noqa: ASYNC110 — as in poll
                        await anyio.sleep(_POLL_INTERVAL_S)
                    grace_ms = STOP_GRACE_MS
            await self.process.stop(grace_ms=grace_ms)
            self._left = len(await to_thread.run_sync(self.process.survivors))
            await self._close()
        return self.state()

    async def _close(self) -> None:
        self._ended = anyio.current_time()
        with anyio.CancelScope(shield=True):
            await self.process.aclose()


# -- output -----------------------------------------------------------------------------------
#
# `LineRing` splits output into lines as it arrives: a chunk may end within a character, a line stays open until its
# newline, and a carriage return overwrites the line. The line count, line length and total size are all bounded.
# `plain_text` strips escape sequences, overwritten progress bars and control characters.


RING_LINES = 2_000
LINE_CHARS = 8 * 1024
RING_CHARS = 2 * 1024 * 1024
"""2,000 lines of maximum length would take 16 MiB."""
SPLIT_MARK = " …[line goes on]"
SHOWN_BYTES = 30_000
SHOWN_LINES = 1_900
_WHOLE_BYTES = 1024 * 1024
"""Read outputs up to this size in full: a progress bar writes a lot and leaves little."""
# Every alternative starts with the same character; otherwise a megabyte takes fifty times as long. See ECMA-48 for the
# sequences (https://ecma-international.org/publications-and-standards/standards/ecma-48/).
_ESCAPES = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor moves
    # Control strings: titles, clipboards. Unterminated ones end with the line, or we'd lose the rest.
    r"|[\]PX^_](?:[^\x07\x1b]*(?:\x07|\x1b\\)|[^\x07\x1b\n]*)"
    r"|[ -/]*[0-~])"  # everything else
)
_SHORT_ESCAPE = re.compile(r"[\x80-\x9f]")
"""C1 control characters: an escape and the following character in one."""
_OVERSTRUCK = re.compile(r"[^\n]\x08")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_BYTES = bytes({*range(32), 127} - {*b"\t\n"})
"""The same without C1, which `_SHORT_ESCAPE` handles."""


@record
class OutputLines:
    """Consecutive lines of an output."""

    first: int
    """1-based number of the first line."""
    texts: tuple[str, ...]
    dropped: int
    """Number of requested lines that have been dropped."""
    open_line: str
    """The text after the last newline."""

    @property
    def last(self) -> int:
        """Number of the last complete line."""
        return self.first + len(self.texts) - 1

    @property
    def all_texts(self) -> tuple[str, ...]:
        """The complete lines, plus the open one unless it's empty."""
        return (*self.texts, self.open_line) if self.open_line else self.texts


class LineRing:
    """The last lines of an output, fed from one thread and read from another."""

    def __init__(self) -> None:
        self.cursor = 0
        """Number of the last line returned by `read`."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lock = Lock()
        self._lines: deque[str] = deque()
        self._chars = 0
        self.total = 0
        """Number of complete lines so far."""
        self._open = ""

    @property
    def progress(self) -> tuple[int, int]:
        """Changes with every write: (complete lines, length of the open line)."""
        return self.total, len(self._open)

    def feed(self, data: bytes) -> None:
        """Append a chunk of output."""
        first, *more = self._decoder.decode(data).split("\n")
        complete, open_line = list[str](), self._open + first
        if more:
            complete, open_line = [open_line, *more[:-1]], more[-1]
            if max(map(len, complete)) > LINE_CHARS or any("\r" in line for line in complete):
                complete = [part for line in complete for part in _split_line(line)]
        # A trailing carriage return may be the first half of a line ending.
        open_line = open_line[open_line.rfind("\r", 0, -1) + 1 :]
        if len(open_line) > LINE_CHARS:
            *parts, open_line = _split_line(open_line)
            complete += parts
        # Hold the lock for this part only, so readers don't wait long however much the command writes.
        with self._lock:
            self._open = open_line
            self.total += len(complete)
            kept = complete[-RING_LINES:]
            self._lines.extend(kept)
            self._chars += sum(map(len, kept))
            while len(self._lines) > RING_LINES or self._chars > RING_CHARS:
                self._chars -= len(self._lines.popleft())

    def read(self, *, lines: int | None, since_last: bool) -> OutputLines:
        """Return the last `lines` or everything since the last read, and advance the cursor."""
        output = self.last(lines) if lines is not None else self.after(self.cursor if since_last else 0)
        self.cursor = output.last
        return output

    def after(self, number: int) -> OutputLines:
        """Return the kept lines after line `number`."""
        with self._lock:
            oldest = self.total - len(self._lines) + 1
            first = max(number + 1, oldest)
            texts = tuple(self._lines)[first - oldest :]
            return OutputLines(first, texts, first - number - 1, self._open.removesuffix("\r"))

    def last(self, count: int) -> OutputLines:
        """Return the last `count` lines."""
        return self.after(max(self.total - count, 0))


def _split_line(line: str) -> list[str]:
    """Return a complete line the way a terminal shows it, split into parts if it's too long."""
    shown = line.removesuffix("\r")
    shown = shown[shown.rfind("\r") + 1 :]
    if len(shown) <= LINE_CHARS:
        return [shown]
    parts = [shown[start : start + LINE_CHARS] + SPLIT_MARK for start in range(0, len(shown), LINE_CHARS)]
    return [*parts[:-1], parts[-1].removesuffix(SPLIT_MARK)]


def plain_text(data: bytes) -> str:
    """Decode output the way a terminal would show it."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if b"\xc2" in data:
        text = _SHORT_ESCAPE.sub(lambda match: f"\x1b{chr(ord(match[0]) - 0x40)}", text)
    text = _remove(_ESCAPES, text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    if "\x08" in text:
        text = _remove(_OVERSTRUCK, text)
    return text.encode().translate(None, _CONTROL_BYTES).decode()


def _remove(pattern: re.Pattern[str], text: str) -> str:
    """Remove all matches. Unlike `sub`, this releases the GIL between matches."""
    kept: list[str] = []
    start = 0
    for match in pattern.finditer(text):
        kept.append(text[start : match.start()])
        start = match.end()
    return "".join((*kept, text[start:])) if kept else text


def has_line_with(lines: Iterable[str], text: str) -> bool:
    """Return whether any line, as displayed, contains `text`."""
    return any(text in line or (_CONTROLS.search(line) and text in plain_text(line.encode())) for line in lines)


def hidden_note(text: str, first: int = 1) -> Sequence[str]:
    """Describe invisible characters in an output that starts at line `first`; empty if it has none."""
    note = describe_invisible(enumerate(text.split("\n"), first))
    return [note] if note else []


@record
class RenderedOutput:
    """The part of an output we send to the model."""

    text: str
    whole: bool
    """Whether it's the full output."""


def render_output(process: ShellProcess, path: str | None) -> RenderedOutput:
    """Read the output of a command and cut it for the model, mentioning the `path` of the whole. Blocks.

    Raises `OSError` if the output couldn't be stored.
    """
    size = process.output_size()
    if is_binary(process.read_output(0, HEAD_BYTES)):
        where = "" if path is None else f", kept in {path}"
        return RenderedOutput(f"[binary {size:,} bytes{where}]", whole=False)
    budget = OutputBudget(SHOWN_BYTES, SHOWN_LINES)
    if size <= _WHOLE_BYTES:
        text = plain_text(process.read_output())
        if budget.admits(text):
            return RenderedOutput(text, whole=True)
        clipping = clip(text, budget, Keep.ENDS)
        head, tail = clipping.head, clipping.tail
    else:  # clip each end by itself, since it may be short: programs overwrite progress bars
        head = clip(plain_text(process.read_output(0, _WHOLE_BYTES // 4)), budget, Keep.ENDS).head
        tail_budget = OutputBudget(SHOWN_BYTES * 4 // 5, SHOWN_LINES * 4 // 5)
        tail = clip(plain_text(process.read_output(size - _WHOLE_BYTES)), tail_budget, Keep.TAIL).tail
    is_complete = size <= KEPT_HEAD_BYTES + KEPT_TAIL_BYTES
    what = "The whole is" if is_complete else "Its first and last 32 MiB are"
    where = "" if path is None else f" {what} in {path}: read it with an offset."
    left_out = max(size - len(head.encode()) - len(tail.encode()), 0)
    text = f"{head.rstrip()}\n[… about {left_out:,} of {size:,} bytes left out.{where}]\n{tail}"
    return RenderedOutput(text, whole=False)


LIVE_JOBS = 32
_MAX_FINISHED_JOBS = 64
"""How many finished jobs to remember."""


class JobLimitError(OSError):
    """Too many concurrent jobs, or one that would end with the command that starts it."""


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
            raise JobLimitError(
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
