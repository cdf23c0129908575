"""Child processes in the event loop: pipes, exit status, and ending the whole process tree.

We don't use asyncio's subprocesses. On Python 3.11 they start a thread per child; the alternative, a child watcher, is
global to the program and breaks with two event loops; and a cancelled start leaks processes. A pidfd
(https://man7.org/linux/man-pages/man2/pidfd_open.2.html) has none of these problems.

An exited child is reaped last. Until then the kernel doesn't reuse its pid, which is also its process group and session
id, so signals to them never hit another program.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Protocol, cast

from indusagi.core.ids import new_ulid
from indusagi.core.process.tree import (
    MARK,
    ProcessTree,
    pipe_name,
    read_activity,
    read_cpu_demand,
    select_settled,
    signal_group,
    signal_processes,
    unknown_process,
)
from indusagi.core.tasks import BackgroundTask, run_shielded

if TYPE_CHECKING:
    from indusagi.core.process.tree import Activity, CpuDemand, ProcessInfo


_PIECE_BYTES = 64 * 1024
_REST_BYTES = 1024 * 1024
"""How much to read from a pipe at the end: the largest pipe of an unprivileged user (pipe(7))."""


class PipeReader(asyncio.Protocol):
    """Our reading end of a pipe."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self.transport: asyncio.ReadTransport | None = None
        self.data_received = on_data  # pyright: ignore[reportAttributeAccessIssue] — its parameter may have any name
        self._on_end = on_end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.ReadTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the pipe."""
        self._on_end()

    def pause(self) -> None:
        """Leave the data in the pipe."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None:
            self.transport.resume_reading()

    def close(self) -> None:
        """Close the pipe."""
        if self.transport is not None:
            self.transport.close()

    def read_rest(self) -> None:
        """Read the rest of the pipe, at most `_REST_BYTES`, since a process may be filling it."""
        if self.transport is None or self.transport.is_closing():
            return
        descriptor: int = self.transport.get_extra_info("pipe").fileno()
        for _ in range(_REST_BYTES // _PIECE_BYTES):
            try:
                data = os.read(descriptor, _PIECE_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self.data_received(data)


class PipeWriter(asyncio.BaseProtocol):
    """Our writing end of a pipe."""

    def __init__(self, writable: asyncio.Event, on_end: Callable[[], None]) -> None:
        self.pause_writing = writable.clear
        self.resume_writing = writable.set
        self._on_end = on_end

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the pipe."""
        self._on_end()


_PR_SET_PDEATHSIG = 1
_REAP_S = 1.0
"""Time for the kernel to end killed processes. After that we leave processes alone that we may not signal."""
_SCAN_S = 5.0
"""Timeout for reading the process list. It takes a second on a busy machine with thousands of processes."""
INTERRUPT_S = 10.0
"""Gentle end: how long an active tree gets between SIGINT and SIGTERM."""
GENTLE_S = 60.0
"""Gentle end: kill the tree after this time even if it's still writing."""
_UNKNOWN_CODE = 255
"""Exit code if other code reaped the process, as in asyncio."""
_libc: ctypes.CDLL | None = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChildListener(Protocol):
    """Callbacks of a child process, called in the event loop."""

    def stdout_received(self, data: bytes) -> None:
        """Handle data from standard output."""
        ...

    def stderr_received(self, data: bytes) -> None:
        """Handle data from standard error, unless it's merged into standard output."""
        ...

    def state_changed(self) -> None:
        """Handle a closed pipe or the exit of the process."""
        ...


class KeptOutput:
    """A `ChildListener` that keeps the first bytes of the output and the last bytes of the errors."""

    def __init__(self, first_bytes: int = 0, last_error_bytes: int = 0) -> None:
        self.data = bytearray()
        self.errors = b""
        self._first_bytes = first_bytes
        self._last_error_bytes = last_error_bytes

    def stdout_received(self, data: bytes) -> None:
        """Keep the data, up to the limit."""
        self.data += data[: self._first_bytes - len(self.data)]

    def stderr_received(self, data: bytes) -> None:
        """Keep the end of the data."""
        errors = self.errors + data
        self.errors = errors[max(0, len(errors) - self._last_error_bytes) :]

    def state_changed(self) -> None:
        """Ignore it: the owner waits for the child's events."""


class ChildProcess:
    """A process that leads its own session and process group."""

    def __init__(self, listener: ChildListener) -> None:
        self.exited = asyncio.Event()
        self.output_ended = asyncio.Event()
        self.errors_ended = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.input_open = True
        self.mark = new_ulid()
        """Marker in the environment of its descendants."""
        self._listener = listener
        self._tree = ProcessTree(self.mark)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_launcher: Callable[[int], bool] | None = None
        self.exit_code: int | None = None
        """None while it runs; negative for a signal."""
        self.output = PipeReader(listener.stdout_received, lambda: self._close_pipe(self.output_ended))
        self.errors = PipeReader(listener.stderr_received, lambda: self._close_pipe(self.errors_ended))
        self._stdin: asyncio.WriteTransport | None = None
        # Whether the pid, and so the process group id, still belongs to our child.
        self._owns_pid = True
        self._released = False
        self._ender = BackgroundTask("end a child")

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        *,
        with_input: bool = True,
        merge_stderr: bool = False,
        die_with_parent: bool = True,
        gentle: bool = False,
        confine: Callable[[], None] | None = None,
        handles: Sequence[int] = (),
        is_launcher: Callable[[int], bool] | None = None,
    ) -> None:
        """Start the process.

        Args:
            argv: Program and arguments.
            env: The whole environment; our marker is added to any that are in it.
            cwd: Working directory.
            with_input: Connect standard input to a pipe instead of the null device.
            merge_stderr: Send standard error to standard output.
            die_with_parent: Have the Linux kernel kill it when the thread that started it ends, even by kill -9
                (`PR_SET_PDEATHSIG`). The fork then copies our page tables: too slow for many small commands.
            gentle: It may be installing files, so it gets SIGTERM instead of SIGKILL when we die.
            confine: Restricts the calling thread and so the process, which is then started in a thread just for it.
            handles: Descriptors it inherits, under the same numbers.
            is_launcher: Tells a process whose end would kill the others at once, which a gentle end spares.

        Raises:
            OSError: It can't be started.
            ValueError: `argv` or `env` holds a NUL character.
        """
        self._is_launcher = is_launcher
        above = (*os.environ.get(MARK, "").split(), *env.get(MARK, "").split())
        marks = " ".join(dict.fromkeys((*above, self.mark)))
        parent, number = os.getpid(), signal.SIGTERM if gentle else signal.SIGKILL
        prctl = None if _libc is None else _libc.prctl

        def set_death_signal() -> None:  # pragma: no cover — runs between fork and exec, on Linux
            # The kernel sends `number` to the child when the thread that started it ends, PR_SET_PDEATHSIG(2const):
            # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
            if os.getppid() != parent:  # the parent died before the call
                os._exit(1)

        def fork() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                bufsize=0,
                stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merge_stderr else subprocess.PIPE,
                env={**env, MARK: marks},
                cwd=cwd,
                start_new_session=True,
                pass_fds=handles,
                preexec_fn=set_death_signal if die_with_parent and prctl is not None else None,
            )

        # PR_SET_PDEATHSIG is tied to the forking thread, so fork in this one if possible.
        self._process = fork() if confine is None else await _fork_in_own_thread(confine, fork, stay=die_with_parent)
        try:
            await run_shielded(self._connect(self._process), f"start {self.pid}")
        except BaseException:
            await self.end(0)
            raise

    async def _connect(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._watch_exit(loop, process)
        self._tree.pipe = pipe_name(cast("IO[bytes]", process.stdout).fileno())
        await loop.connect_read_pipe(lambda: self.output, process.stdout)
        if process.stderr is None:
            self.errors_ended.set()
        else:
            await loop.connect_read_pipe(lambda: self.errors, process.stderr)
        if process.stdin is None:
            self.input_open = False
        else:

            def lose_input() -> None:
                self.input_open = False
                self._close_pipe(self.writable)

            writer = PipeWriter(self.writable, lose_input)
            self._stdin, _ = await loop.connect_write_pipe(lambda: writer, process.stdin)

    def _watch_exit(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not Linux, or out of descriptors
            self._watch_exit_in_thread(loop, process)
            return

        def collect_exit() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            status = None
            with suppress(ChildProcessError):
                # WNOWAIT keeps the process a zombie, see waitid(2).
                status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if status is None:  # reaped by other code: the pid may have been reused
                self._owns_pid = False
                self._set_exit_code(_UNKNOWN_CODE)
            else:
                self._set_exit_code(status.si_status if status.si_code == os.CLD_EXITED else -status.si_status)

        loop.add_reader(descriptor, collect_exit)

    def _watch_exit_in_thread(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        def wait() -> None:
            process.wait()
            # The process is reaped now, so its pid is reserved only while its group has members. Check the group once:
            # later the answer may be about another program.
            has_group = signal_group(process.pid, 0)

            def collect_exit() -> None:
                self._owns_pid = has_group
                self._set_exit_code(process.returncode)

            with suppress(RuntimeError):  # the loop ended before the process
                loop.call_soon_threadsafe(collect_exit)

        threading.Thread(target=wait, daemon=True, name=f"wait for {process.pid}").start()

    def _set_exit_code(self, code: int) -> None:
        self.exit_code = code
        self.exited.set()
        if self._released and self._process is not None:
            self._process.poll()
        self._listener.state_changed()

    def _close_pipe(self, ended: asyncio.Event) -> None:
        ended.set()
        self._listener.state_changed()

    @property
    def pid(self) -> int:
        """The process id, once started."""
        return cast("subprocess.Popen[bytes]", self._process).pid

    @property
    def output_open(self) -> bool:
        """Whether more standard output may come."""
        return not self.output_ended.is_set()

    @property
    def errors_open(self) -> bool:
        """Whether more standard error may come, unless it's merged."""
        return not self.errors_ended.is_set()

    @property
    def unwritten(self) -> int:
        """Bytes waiting for room in the pipe of its standard input."""
        return 0 if self._stdin is None else self._stdin.get_write_buffer_size()

    def write(self, data: bytes, *, report_unread: bool = False) -> int:
        """Write to its standard input, or drop the data if that's closed; return how many bytes wait for room.

        With `report_unread`, `writable` is clear while any byte waits for room in the pipe, not just many.
        """
        if self._stdin is None or self._stdin.is_closing():
            return 0
        if report_unread:
            self._stdin.set_write_buffer_limits(0)
        self._stdin.write(data)
        return self._stdin.get_write_buffer_size()

    unread_input = unwritten

    def close_input(self) -> None:
        """Close its standard input after writing pending data."""
        if self._stdin is not None:
            self._stdin.close()

    def pause_output(self) -> None:
        """Stop reading standard output until `resume_output`; the process blocks once the pipe is full."""
        self.output.pause()

    def resume_output(self) -> None:
        """Resume reading standard output."""
        self.output.resume()

    def stop_reading(self) -> None:
        """Close both output pipes."""
        self.output.close()
        self.errors.close()

    def read_rest(self) -> None:
        """Read the rest of the pipes: after the exit, everything the process itself wrote."""
        for ended, reader in ((self.output_ended, self.output), (self.errors_ended, self.errors)):
            if not ended.is_set():
                reader.read_rest()

    async def activity(self) -> Activity | None:
        """Read the activity of the process tree; None where the system doesn't report it."""
        return await asyncio.to_thread(lambda: read_activity(self._list_running()))

    async def cpu_demand(self) -> CpuDemand | None:
        """Read the CPU demand of the process and its descendants; None if unknown."""
        return await asyncio.to_thread(read_cpu_demand, self.pid)

    def descendants(self) -> list[ProcessInfo]:
        """List its running descendants. Reads the process list: call it in a worker thread."""
        return [process for process in self._list_running() if process.pid != self.pid]

    def _list_running(self) -> list[ProcessInfo]:
        return self._tree.list_running(self.pid if self._owns_pid else None)

    # -- ending the tree ------------------------------------------------------------------------

    async def end(
        self, grace_s: float, *, drain_s: float = 0.0, close_input: bool = True, gentle: bool = False
    ) -> None:
        """End the process tree: close the input, SIGTERM, SIGKILL; then reap the process.

        Safe to call twice and from any task; the first call's arguments count. A cancelled caller still waits for the
        end, which takes at most `grace_s` (twice with an input), one second, and the time to read the process list.
        Processes that we may not signal or that hang in the kernel are left alone; `exit_code` then stays None.

        Args:
            grace_s: Time to exit before the next signal.
            drain_s: Time to wait for the end of the output after the exit, before reading the rest of the pipe. With 0
                the rest of the output is dropped.
            close_input: Whether to ask for the exit by closing the input first.
            gentle: The tree may be installing files: close the input and send SIGINT, like Ctrl-C in a shell; then
                SIGTERM; SIGKILL only after `grace_s` without activity, or after `GENTLE_S`.
        """
        if self._process is None:
            return
        if not self._ender.started:
            request = self._request_exit_gently(grace_s) if gentle else self._request_exit(grace_s, close_input)
            self._ender.start(self._end(request, drain_s, gentle=gentle))
        await self._ender.join()

    async def _end(self, request: Coroutine[object, object, bool], drain_s: float, *, gentle: bool) -> None:
        is_empty = False
        try:
            is_empty = await request
        except asyncio.CancelledError:
            # The event loop is ending and we can't wait, but don't cut off a tree that's installing files.
            if gentle:
                self._signal_group(signal.SIGTERM)
                is_empty = True
            raise
        finally:
            # The end of the loop cancels this task too, so signal before the next await.
            if not is_empty:
                self._signal_group(signal.SIGKILL)
            try:
                if not is_empty:
                    # Scan and kill in one thread: a second thread might be cancelled first.
                    left = await self._scan_processes(lambda: signal_processes(self._list_running(), signal.SIGKILL))
                    await self._signal_until_exited(_REAP_S, signal.SIGKILL, left, set())
                if drain_s > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(drain_s):
                            await self.output_ended.wait()
                            await self.errors_ended.wait()
                    self.read_rest()
            finally:
                self._release()

    async def _request_exit(self, grace_s: float, close_input: bool) -> bool:
        """Ask the tree to exit; return True if no process remains."""
        if close_input and grace_s > 0 and self._stdin is not None and not self.exited.is_set():
            await self._scan_processes(lambda: self._tree.snapshot_children(self.pid))
            self._stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.exited.wait()
        left = await self._scan_processes(self._list_running)
        if self.exited.is_set() and not left:
            return True
        group = self.pid if self._signal_group(signal.SIGTERM) else None
        signalled = select_settled(process for process in left if process.group == group)
        await self._signal_until_exited(grace_s, signal.SIGTERM, left, signalled)
        return False

    async def _request_exit_gently(self, grace_s: float) -> bool:
        """Ask the tree to exit like Ctrl-C in a shell, and wait while it's active."""
        await self._scan_processes(lambda: self._tree.snapshot_children(self.pid))
        if self._stdin is not None:
            self._stdin.close()
        now = asyncio.get_running_loop().time
        last = now() + GENTLE_S
        await self._signal_gently(signal.SIGINT)
        if await self._wait_while_active(grace_s, min(last, now() + INTERRUPT_S)):
            return True
        await self._signal_gently(signal.SIGTERM)
        return await self._wait_while_active(grace_s, last)

    async def _signal_gently(self, number: int) -> None:
        is_launcher = self._is_launcher
        if is_launcher is None:
            self._signal_group(number)
            return

        def signal_others() -> list[ProcessInfo]:
            return signal_processes([one for one in self._list_running() if not is_launcher(one.pid)], number)

        await self._scan_processes(signal_others)

    async def _wait_while_active(self, idle_s: float, until: float) -> bool:
        """Wait until no process remains (return True), the tree has been idle for `idle_s`, or the time is `until`."""
        now = asyncio.get_running_loop().time
        before: Activity | None = None
        idle_since, pause_s = now(), 0.02
        while True:
            left = await self._scan_processes(self._list_running)
            if self.exited.is_set() and not left:
                return True
            activity = await asyncio.to_thread(read_activity, left)
            if activity is None:
                # This system doesn't report activity: wait for a fixed time.
                until = min(until, idle_since + max(idle_s, INTERRUPT_S))
            elif before is None or activity.shows_life_since(before) or activity.shows_writes_since(before):
                before, idle_since = activity, now()
            if now() >= until or (activity is not None and now() - idle_since >= idle_s):
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)

    async def _scan_processes(self, scan: Callable[[], list[ProcessInfo]]) -> list[ProcessInfo]:
        """Run `scan` in a thread; after a timeout return a placeholder for the unknown tree."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SCAN_S):
                return await asyncio.to_thread(scan)
        return [unknown_process(self.pid)]

    def _signal_group(self, number: int) -> bool:
        return self._owns_pid and signal_group(self.pid, number)

    async def _signal_until_exited(
        self, patience_s: float, number: int, left: list[ProcessInfo], signalled: set[tuple[int, int]]
    ) -> None:
        """Signal the processes in `left` but not in `signalled`, and any they still start; wait until all exit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                pause_s = 0.005
                while left:
                    others = [process for process in left if process.key not in signalled]
                    await asyncio.to_thread(signal_processes, others, number)
                    signalled |= select_settled(others)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, 0.1)
                    left = await asyncio.to_thread(self._list_running)
                await self.exited.wait()

    def _release(self) -> None:
        process = cast("subprocess.Popen[bytes]", self._process)
        self._released = True
        if self.exited.is_set():
            process.poll()
        # abort() on a transport that is closing and has an empty buffer would call connection_lost twice.
        stdin = self._stdin
        if stdin is not None and self.input_open and (not stdin.is_closing() or stdin.get_write_buffer_size()):
            stdin.abort()
        self.stop_reading()
        connected = (self._stdin, self.output.transport, self.errors.transport)
        for pipe, transport in zip((process.stdin, process.stdout, process.stderr), connected, strict=True):
            if pipe is not None and transport is None:
                pipe.close()


async def _fork_in_own_thread(
    confine: Callable[[], None], fork: Callable[[], subprocess.Popen[bytes]], *, stay: bool
) -> subprocess.Popen[bytes]:
    """Fork in a new thread after restricting it. Don't cancel the caller while it waits.

    With `stay`, the thread lasts as long as the child, whose death signal is tied to it.
    """
    loop = asyncio.get_running_loop()
    started: asyncio.Future[subprocess.Popen[bytes]] = loop.create_future()

    def run() -> None:
        try:
            confine()
            process = fork()
        except Exception as exc:  # noqa: BLE001 — re-raised in the caller
            loop.call_soon_threadsafe(started.set_exception, exc)
        else:
            loop.call_soon_threadsafe(started.set_result, process)
            if stay:
                with suppress(OSError):  # reaped already
                    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    threading.Thread(target=run, name="start a confined process", daemon=True).start()
    return await started


async def run_for_output(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None, within_s: float, first_bytes: int
) -> tuple[int | None, bytes]:
    """Run a command without input and return its exit code and the first bytes of its output. Drops its errors.

    Raises `TimeoutError` if it took longer, and `OSError` or `ValueError` if it can't be started.
    """
    output = KeptOutput(first_bytes)
    child = ChildProcess(output)
    try:
        async with asyncio.timeout(within_s):
            await child.start(argv, env, cwd, with_input=False)
            await child.output_ended.wait()
            await child.exited.wait()
    finally:
        await child.end(0.5, drain_s=0.5)
    return child.exit_code, bytes(output.data)
