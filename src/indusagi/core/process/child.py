"""A child process in the event loop: its pipes, its exit, the end of all that it has started.

asyncio has subprocesses of its own. They are not used because on Python 3.11 they start a thread
for each child, because what replaces those threads is a setting of the whole program that goes
wrong with two event loops, and because one that is cancelled while it starts leaves processes
behind. A descriptor of the process, where the system has them, needs none of that.

A process that has exited is collected last of all. Until then nobody else gets its number, which is
also that of its group and session: a signal to them never reaches a stranger.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Protocol, cast

from indusagi.core.ids import new_ulid
from indusagi.core.process.activity import read_activity, read_cpu_seconds
from indusagi.core.process.pipes import PipeReader, PipeWriter, abort_pipe
from indusagi.core.process.tree import (
    MARK,
    ProcessTree,
    pipe_name,
    select_settled,
    signal_group,
    signal_processes,
    unknown_process,
)
from indusagi.core.tasks import BackgroundTask, run_shielded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from indusagi.core.process.activity import Activity
    from indusagi.core.process.tree import ProcessInfo

_PR_SET_PDEATHSIG = 1
_REAP_S = 1.0
"""How long the kernel gets to end what was killed. What may not be signalled is left then."""
_LOOK_S = 5.0
"""How long to wait for the process list. A busy machine with thousands of them takes a second."""
INTERRUPT_S = 10.0
"""A gentle end: how long a tree that works may take after SIGINT before it gets SIGTERM."""
GENTLE_S = 60.0
"""A gentle end: the longest time after which a tree is killed although it still writes."""
_UNKNOWN_CODE = 255
"""What asyncio too says of a process that somebody else has collected."""
_libc: ctypes.CDLL | None = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChildListener(Protocol):
    """Hears of a child, in the event loop."""

    def stdout_received(self, data: bytes) -> None:
        """Take what it wrote to its standard output."""
        ...

    def stderr_received(self, data: bytes) -> None:
        """Take what it wrote to its standard error, if that is a pipe of its own."""
        ...

    def state_changed(self) -> None:
        """Look again: a pipe was closed, or the process is gone."""
        ...


class ChildProcess:
    """A process that leads a session and group of its own."""

    def __init__(self, listener: ChildListener) -> None:
        self.exited = asyncio.Event()
        self.output_ended = asyncio.Event()
        self.errors_ended = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.input_open = True
        self._listener = listener
        self._mark = new_ulid()
        self._kin = ProcessTree(self._mark)
        self._process: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._output = PipeReader(listener.stdout_received, self._output_lost)
        self._errors = PipeReader(listener.stderr_received, self._errors_lost)
        self._stdin: asyncio.WriteTransport | None = None
        # Whether the number of the process is still ours, and with it that of its group.
        self._numbered = True
        self._over = False
        self._ender = BackgroundTask("end a child")

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        *,
        with_input: bool = True,
        merged: bool = False,
        dies_with_us: bool = True,
        gentle: bool = False,
    ) -> None:
        """Start the process.

        Args:
            argv: The program and its arguments.
            env: Its whole environment; a mark of ours is added.
            cwd: Where it starts.
            with_input: Its standard input is a pipe; else it is empty.
            merged: Its standard error is its standard output.
            dies_with_us: On Linux, it is killed when the thread that made it ends, by kill -9 too.
                Then all of our memory is mapped anew for a moment: not for many small commands.
            gentle: It may be unpacking files that others need whole: it gets SIGTERM when we die,
                not SIGKILL, and time to obey.

        Raises:
            OSError: It cannot be started.
            ValueError: The command line cannot be used.
        """
        self._process = _popen(
            argv,
            stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            env={**env, MARK: _marks(self._mark)},
            cwd=cwd,
            preexec_fn=_dies_with(os.getpid(), signal.SIGTERM if gentle else signal.SIGKILL) if dies_with_us else None,
        )
        try:
            await run_shielded(self._connect(self._process), f"start {self.pid}")
        except BaseException:
            await self.end(0)
            raise

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._watch_exit(loop, process)
        self._kin.pipe = pipe_name(cast("IO[bytes]", process.stdout).fileno())
        await loop.connect_read_pipe(lambda: self._output, process.stdout)
        if process.stderr is None:
            self.errors_ended.set()
        else:
            await loop.connect_read_pipe(lambda: self._errors, process.stderr)
        if process.stdin is None:
            self.input_open = False
        else:
            writer = PipeWriter(self.writable, self._input_lost)
            self._stdin, _ = await loop.connect_write_pipe(lambda: writer, process.stdin)

    def _watch_exit(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not Linux, or no descriptor left
            self._watch_exit_in_a_thread(loop, process)
            return

        def gone() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            code = _peek(process)
            # Whoever else has collected it, they have given its number away.
            self._numbered = self._numbered and code is not None
            self._exit(_UNKNOWN_CODE if code is None else code)

        loop.add_reader(descriptor, gone)

    def _watch_exit_in_a_thread(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        def gone(*, left: bool) -> None:
            self._numbered = left
            self._exit(process.returncode)

        def wait() -> None:
            process.wait()
            # This has collected it, so its number is ours only as long as others use it. Asked
            # at once, and not again: later the answer may be about a stranger.
            left = signal_group(process.pid, 0)
            with suppress(RuntimeError):  # the loop has ended before the process
                loop.call_soon_threadsafe(lambda: gone(left=left))

        threading.Thread(target=wait, daemon=True, name=f"wait for {process.pid}").start()

    def _exit(self, code: int) -> None:
        self._exit_code = code
        self.exited.set()
        if self._over and self._process is not None:
            self._process.poll()
        self._listener.state_changed()

    def _output_lost(self) -> None:
        self.output_ended.set()
        self._listener.state_changed()

    def _errors_lost(self) -> None:
        self.errors_ended.set()
        self._listener.state_changed()

    def _input_lost(self) -> None:
        self.input_open = False
        self.writable.set()
        self._listener.state_changed()

    @property
    def pid(self) -> int:
        """The process, once started."""
        return cast("subprocess.Popen[bytes]", self._process).pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._exit_code

    @property
    def mark(self) -> str:
        """What the environment of every process that it starts carries."""
        return self._mark

    @property
    def output_open(self) -> bool:
        """Whether more may come of its standard output."""
        return not self.output_ended.is_set()

    @property
    def errors_open(self) -> bool:
        """Whether more may come of its standard error, if that is a pipe of its own."""
        return not self.errors_ended.is_set()

    def write(self, data: bytes) -> None:
        """Write to its standard input; nothing happens when nobody reads it any more."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    def close_input(self) -> None:
        """End its standard input once what was written to it is through."""
        if self._stdin is not None:
            self._stdin.close()

    def hold_output(self) -> None:
        """Read nothing more of its standard output until `release_output`: it will have to wait."""
        self._output.pause()

    def release_output(self) -> None:
        """Read its standard output again."""
        self._output.resume()

    @property
    def unwritten(self) -> int:
        """How many bytes wait to be taken by its standard input."""
        return 0 if self._stdin is None else self._stdin.get_write_buffer_size()

    async def activity(self) -> Activity | None:
        """Tell what its whole tree has done so far; None where the system does not tell."""
        return await asyncio.to_thread(lambda: read_activity(self._left()))

    async def cpu_seconds(self) -> float | None:
        """Tell how much CPU time the process itself has used; None if unknown."""
        return await asyncio.to_thread(read_cpu_seconds, self.pid)

    def hold_errors(self) -> None:
        """Read nothing more of its standard error until `release_errors`."""
        self._errors.pause()

    def release_errors(self) -> None:
        """Read its standard error again."""
        self._errors.resume()

    def stop_reading(self) -> None:
        """Take nothing more of what it writes."""
        self._output.close()
        self._errors.close()

    # -- the end ------------------------------------------------------------------------------

    async def end(self, grace_s: float, *, drain_s: float = 0.0, by_input: bool = True, gentle: bool = False) -> None:
        """End the process and all it has started: end of input, SIGTERM, SIGKILL; collect it.

        Safe to call twice, and from any task; the first call decides. A cancelled caller waits for
        the end all the same, which comes within the grace (twice, where there is an input), a
        second, and what the process list takes. What cannot be ended by then, because it may not be
        signalled or because the kernel holds it, is left alone, and `exit_code` stays None.

        Args:
            grace_s: How long it may take to put its affairs in order, before each signal.
            drain_s: How long to wait for the end of its output once it is gone; what is in the
                pipe then is still read. Without this the rest of its output is dropped.
            by_input: Whether the end of its input is to tell it first.
            gentle: For a tree that may be unpacking: end of input and SIGINT, as Ctrl-C in a shell;
                then SIGTERM; SIGKILL only once it has written nothing for the grace, or after
                `GENTLE_S`. The end then may take that long.
        """
        if self._process is None:
            return
        if not self._ender.started:
            asking = self._ask_gently(grace_s) if gentle else self._ask(grace_s, by_input)
            self._ender.start(self._end(asking, drain_s, gentle=gentle))
        await self._ender.join()

    async def _end(self, asking: Coroutine[object, object, bool], drain_s: float, *, gentle: bool) -> None:
        nobody_left = False
        try:
            nobody_left = await asking
        except asyncio.CancelledError:
            # The loop ends: there is no time to wait, but a tree that unpacks is not cut off.
            if gentle:
                self._signal_group(signal.SIGTERM)
                nobody_left = True
            raise
        finally:
            # This task too can be cancelled, by the end of the loop: the signal comes first.
            if not nobody_left:
                self._signal_group(signal.SIGKILL)
            try:
                if not nobody_left:
                    # In one go: a thread for the signal might come too late.
                    left = await self._looked(lambda: signal_processes(self._left(), signal.SIGKILL))
                    await self._gone_within(_REAP_S, signal.SIGKILL, left, set())
                await self._drain(drain_s)
            finally:
                self._let_go()

    async def _ask(self, grace_s: float, by_input: bool) -> bool:
        """Have all of them end by themselves, and tell whether it is known that nobody is left."""
        if by_input and grace_s > 0 and self._stdin is not None and not self.exited.is_set():
            await self._looked(lambda: self._kin.snapshot_children(self.pid))
            self._stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.exited.wait()
        left = await self._looked(self._left)
        if self.exited.is_set() and not left:
            return True
        asked = self.pid if self._signal_group(signal.SIGTERM) else None
        told = select_settled(one for one in left if one.group == asked)
        await self._gone_within(grace_s, signal.SIGTERM, left, told)
        return False

    async def _ask_gently(self, grace_s: float) -> bool:
        """End a tree as Ctrl-C in a shell would, and wait while it works."""
        await self._looked(lambda: self._kin.snapshot_children(self.pid))
        if self._stdin is not None:
            self._stdin.close()
        now = asyncio.get_running_loop().time
        last = now() + GENTLE_S
        self._signal_group(signal.SIGINT)
        if await self._gone_or_idle(grace_s, min(last, now() + INTERRUPT_S)):
            return True
        self._signal_group(signal.SIGTERM)
        return await self._gone_or_idle(grace_s, last)

    async def _gone_or_idle(self, idle_s: float, until: float) -> bool:
        """Wait until the tree is gone (True), writes nothing for a while, or has had its time."""
        now = asyncio.get_running_loop().time
        before: Activity | None = None
        idle_since, pause_s = now(), 0.02
        while True:
            left = await self._looked(self._left)
            if self.exited.is_set() and not left:
                return True
            done = await asyncio.to_thread(read_activity, left)
            if done is None:
                # Nothing can be seen: time is all that can be given.
                until = min(until, idle_since + max(idle_s, INTERRUPT_S))
            elif before is None or done.shows_life_since(before) or done.shows_writes_since(before):
                before, idle_since = done, now()
            if now() >= until or (done is not None and now() - idle_since >= idle_s):
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)

    async def _looked(self, look: Callable[[], list[ProcessInfo]]) -> list[ProcessInfo]:
        """List who still runs, as far as threads and the process list answer in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                return await asyncio.to_thread(look)
        return [unknown_process(self.pid)]

    def descendants(self) -> list[ProcessInfo]:
        """List who still runs of all it has started; reads the process list: not for the loop."""
        return [found for found in self._left() if found.pid != self.pid]

    def _left(self) -> list[ProcessInfo]:
        return self._kin.left(self.pid if self._numbered else None)

    def _signal_group(self, number: int) -> bool:
        return self._numbered and signal_group(self.pid, number)

    async def _gone_within(
        self, patience_s: float, number: int, left: list[ProcessInfo], told: set[tuple[int, int]]
    ) -> None:
        """Signal all the others, also those who were only about to start; wait for their end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                pause_s = 0.005
                while left:
                    others = [found for found in left if found.name not in told]
                    await asyncio.to_thread(signal_processes, others, number)
                    told |= select_settled(others)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, 0.1)
                    left = await asyncio.to_thread(self._left)
                await self.exited.wait()

    async def _drain(self, patience_s: float) -> None:
        if patience_s <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.output_ended.wait()
                await self.errors_ended.wait()
        if not self.output_ended.is_set():
            self._output.take_the_rest()
        if not self.errors_ended.is_set():
            self._errors.take_the_rest()

    def _let_go(self) -> None:
        process = cast("subprocess.Popen[bytes]", self._process)
        self._over = True
        if self.exited.is_set():
            process.poll()
        if self._stdin is not None and self.input_open:
            abort_pipe(self._stdin)
        self.stop_reading()
        connected = (self._stdin, self._output.transport, self._errors.transport)
        for pipe, transport in zip((process.stdin, process.stdout, process.stderr), connected, strict=True):
            if pipe is not None and transport is None:
                pipe.close()


def _popen(
    argv: Sequence[str],
    *,
    stdin: int,
    stderr: int,
    env: Mapping[str, str],
    cwd: str | None,
    preexec_fn: Callable[[], None] | None,
) -> subprocess.Popen[bytes]:
    """Start a process in this thread: the one whose end it may have been told to share."""
    return subprocess.Popen(
        argv,
        bufsize=0,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=preexec_fn,
    )


def _marks(mark: str) -> str:
    above = os.environ.get(MARK)
    return f"{above} {mark}" if above else mark


def _peek(process: subprocess.Popen[bytes]) -> int | None:
    """Tell how a process has ended and leave it uncollected; None if somebody has collected it."""
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None
    if found is None:  # pragma: no cover — nobody asks before it has ended
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _dies_with(parent: int, number: signal.Signals) -> Callable[[], None] | None:
    """Have the kernel signal the child when the thread that started it ends, kill -9 included."""
    if _libc is None:  # pragma: no cover — macOS
        return None
    prctl = _libc.prctl

    def in_child() -> None:  # pragma: no cover — runs between fork and exec
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return in_child
