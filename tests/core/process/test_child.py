"""Child process: pipes, exit, and the end of its process tree."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.waiting import is_alive, until

from indusagi.core.process import child as child_module
from indusagi.core.process.child import ChildProcess
from indusagi.core.process.tree import MARK, ProcessTree

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core.process.tree import ProcessInfo

pytestmark = [pytest.mark.anyio, pytest.mark.process]


class Listener:
    """Collects the output."""

    def __init__(self) -> None:
        self.output = b""
        self.errors = b""

    def stdout_received(self, data: bytes) -> None:
        self.output += data

    def stderr_received(self, data: bytes) -> None:
        self.errors += data

    def state_changed(self) -> None:
        pass


@asynccontextmanager
async def running(script: str, **options: Any) -> AsyncGenerator[tuple[ChildProcess, Listener]]:
    """Start a shell script, and kill its process tree afterwards."""
    listener = Listener()
    child = ChildProcess(listener)
    await child.start(["/bin/sh", "-c", script], os.environ, None, **options)
    try:
        yield child, listener
    finally:
        await child.end(0)


def is_collected(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True
    return False


async def test_child_has_three_pipes() -> None:
    async with running("read line; echo got $line; echo error >&2; exit 3") as (child, heard):
        child.write(b"this\n")
        await child.exited.wait()
        await until(lambda: not child.output_open and not child.errors_open)
        assert (heard.output, heard.errors, child.exit_code) == (b"got this\n", b"error\n", 3)


async def test_stderr_can_be_merged_and_stdin_empty() -> None:
    options = {"with_input": False, "merge_stderr": True}
    async with running("cat; echo out; echo error >&2; echo out", **options) as (child, heard):
        await child.output_ended.wait()
        assert (heard.output, heard.errors) == (b"out\nerror\nout\n", b"")
        assert not child.input_open
        assert not child.errors_open
        child.write(b"to nobody")


async def test_child_environment_has_its_own_marker_beside_outer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[bytes] = []
    for above in (None, None, "OUTER"):
        if above is not None:
            monkeypatch.setenv(MARK, above)
        async with running(f'printf %s "${MARK}"') as (child, heard):
            await child.output_ended.wait()
            marks.append(heard.output)
    assert len({*marks}) == 3
    assert marks[2].startswith(b"OUTER ")


async def test_process_is_reaped_last_so_that_its_pid_is_not_reused() -> None:
    async with running("sleep 600 & exit 5") as (child, _):
        await child.exited.wait()
        assert child.exit_code == 5
        assert not is_collected(child.pid)
        await child.end(1)
        assert is_collected(child.pid)


async def test_pid_of_a_process_reaped_by_other_code_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("read line; sleep 600 & echo $!; exit 3") as (child, heard):
        child.write(b"\n")
        os.waitpid(child.pid, 0)  # noqa: ASYNC222 — before the loop can look
        await child.exited.wait()
        await until(lambda: heard.output.endswith(b"\n"))
        assert child.exit_code == 255
        sent: list[int] = []
        monkeypatch.setattr(child_module, "signal_group", lambda group, number: sent.append(number))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        await child.end(0)
        assert sent == []
        assert not is_alive(int(heard.output))


async def test_ending_a_child_closes_its_input_first() -> None:
    async with running("cat > /dev/null; exit 4") as (child, _):
        await child.end(10)
        assert child.exit_code == 4


async def test_closing_input_is_closed_once() -> None:
    """Its transport tells of the end in the next round of the loop, and would do so twice."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with running("cat") as (child, _):
        child.close_input()
        child._release()
        await until(lambda: not child.input_open)
    assert told == []


async def test_first_caller_of_end_decides_and_the_others_wait() -> None:
    async with running("trap '' TERM; echo ready; exec sleep 600", with_input=False) as (child, heard):
        await until(lambda: heard.output == b"ready\n")
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(child.end(0.2))
        assert child.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("shed", ["", "env -i "])
async def test_descendant_in_another_session_gets_sigterm_before_sigkill(shed: str) -> None:
    asked = "trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.02; done"
    script = f'{shed}setsid /bin/sh -c "{asked}" & wait'
    async with running(script, with_input=False) as (child, heard):
        await until(lambda: heard.output == b"ready\n")
        await child.end(20, drain_s=1)
        # One that is young when it is asked is asked again.
        assert heard.output.startswith(b"ready\nasked\n")


async def test_descendant_in_another_session_that_ignores_sigterm_is_killed() -> None:
    deaf = "trap '' TERM; echo $$; while :; do sleep 0.02; done"
    script = f'env -i setsid /bin/sh -c "{deaf}" & wait'.replace("$$", r"\$\$")
    async with running(script, with_input=False) as (child, heard):
        await until(lambda: heard.output.endswith(b"\n"))
        await child.end(0)
        assert not is_alive(int(heard.output))


@pytest.mark.parametrize("rest", ["; exit 3", "; sleep 600"])
async def test_orphan_without_session_and_environment_is_found_by_its_output_pipe(rest: str) -> None:
    script = f"(env -i setsid sh -c 'echo $$; exec sleep 600' &){rest}"
    async with running(script, with_input=False) as (child, heard):
        await until(lambda: heard.output.endswith(b"\n"))
        orphan = int(heard.output)
        assert orphan in {found.pid for found in await asyncio.to_thread(child.descendants)}
        await child.end(1)
        assert not is_alive(orphan)


async def test_process_started_during_the_end_gets_sigterm() -> None:
    script = "trap 'setsid sleep 600 & wait; exit 7' TERM; echo ready; while :; do sleep 0.02; done"
    async with running(script, with_input=False) as (child, heard):
        await until(lambda: heard.output == b"ready\n")
        await child.end(20)
        assert child.exit_code == 7


async def test_end_needs_no_free_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_SCAN_S", 0.02)
    monkeypatch.setattr(child_module, "_REAP_S", 0.2)
    busy = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        async with running("exec sleep 600", with_input=False) as (child, _):
            asyncio.get_running_loop().set_default_executor(threads)
            threads.submit(busy.wait)
            try:
                await asyncio.wait_for(child.end(0.02), 20)
            finally:
                busy.set()
            await child.exited.wait()
            assert is_collected(child.pid)


@pytest.mark.skipif(
    not os.path.exists(f"/proc/self/task/{os.getpid()}/children"),
    reason="this system does not tell the children of a process",
)
@pytest.mark.parametrize(("script", "grace_s"), [("exit 3", 0), ("exec cat > /dev/null", 20)])
async def test_childless_process_is_ended_with_one_scan_of_the_process_list(
    script: str, grace_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(f"echo ready; {script}") as (child, heard):
        await until(lambda: heard.output == b"ready\n")
        if not grace_s:
            await child.exited.wait()
        looks: list[int | None] = []

        def left(_: ProcessTree, leader: int | None) -> list[ProcessInfo]:
            looks.append(leader)
            return []

        monkeypatch.setattr(ProcessTree, "list_running", left)
        await child.end(grace_s)
        assert looks == [child.pid]


async def test_orphan_of_a_process_that_exits_at_end_of_input_is_found() -> None:
    """It has neither session, environment nor pipe, but was listed before its parent ended."""
    orphan = "env -i setsid sleep 600 > /dev/null 2>&1 & echo $!"
    async with running(f"{orphan}; cat > /dev/null; exit 4") as (child, heard):
        await until(lambda: heard.output.endswith(b"\n"))
        await child.end(20)
        assert child.exit_code == 4
        assert not is_alive(int(heard.output))


async def test_survivors_are_killed_when_scanning_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scanning thousands of processes takes longer than `_REAP_S`."""
    look, pauses = ProcessTree.list_running, iter([0.0])

    def slowly(tree: ProcessTree, leader: int | None) -> list[ProcessInfo]:
        time.sleep(next(pauses, 0.25))
        return look(tree, leader)

    script = "setsid sh -c 'echo $$; trap \"\" TERM; exec sleep 600' & exit 3"
    async with running(script, with_input=False) as (child, heard):
        await until(lambda: heard.output.endswith(b"\n"))
        monkeypatch.setattr(ProcessTree, "list_running", slowly)
        monkeypatch.setattr(child_module, "_REAP_S", 0.2)
        await child.end(0)
        monkeypatch.undo()
        await until(lambda: not is_alive(int(heard.output)))


async def test_ending_a_child_that_was_never_started_signals_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[tuple[object, ...]] = []

    def record(*sent: object) -> None:
        signals.append(sent)

    for name in ("kill", "killpg"):
        monkeypatch.setattr(f"os.{name}", record)
    child = ChildProcess(Listener())
    await child.end(1)
    assert (signals, child.exited.is_set()) == ([], False)


async def test_paused_output_is_read_after_resume() -> None:
    async with running("echo first; read line; echo second") as (child, heard):
        await until(lambda: heard.output == b"first\n")
        child.pause_output()
        child.write(b"\n")
        await child.exited.wait()
        assert heard.output == b"first\n"
        child.resume_output()
        await child.output_ended.wait()
        assert heard.output == b"first\nsecond\n"


@pytest.mark.parametrize("written", [100, 60_000])
async def test_rest_of_the_pipe_is_read_when_draining(written: int) -> None:
    script = f"read line; head -c {written} /dev/zero"
    async with running(script) as (child, heard):
        child.pause_output()
        child.write(b"\n")
        await child.exited.wait()
        await child.end(0, drain_s=0.01)
        assert len(heard.output) == written


async def test_endless_output_is_dropped_at_the_end() -> None:
    async with running("echo; exec yes", with_input=False) as (child, heard):
        await until(lambda: len(heard.output) > 0)
        child.pause_output()
        await child.end(0, drain_s=0.01)
        assert len(heard.output) < 4 * 1024 * 1024


async def test_process_that_cannot_be_signalled_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(target: int, number: int) -> None:
        raise PermissionError

    async with running("exec sleep 600") as (child, _):
        child.write(bytes(1_000_000))
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", refuse)
            patch.setattr(signal, "pidfd_send_signal", refuse)
            patch.setattr("indusagi.core.process.child._REAP_S", 0.1)
            await child.end(0)
        assert child.exit_code is None
        assert is_alive(child.pid)
        await until(lambda: not child.input_open and not child.output_open)
        os.kill(child.pid, signal.SIGKILL)
        await child.exited.wait()
        assert child.exit_code == -signal.SIGKILL
        assert is_collected(child.pid)


async def test_failed_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError("no more pipes")

    child = ChildProcess(Listener())
    monkeypatch.setattr(asyncio.get_running_loop(), "connect_read_pipe", fail)
    with pytest.raises(OSError, match="no more pipes"):
        await child.start(["/bin/sleep", "600"], os.environ, None)
    assert not is_alive(child.pid)
    assert is_collected(child.pid)


# -- where a process has no descriptor --------------------------------------------------------


@pytest.fixture
def _no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.usefixtures("_no_descriptors")
async def test_exit_is_noticed_without_a_pidfd() -> None:
    async with running("exit 3") as (child, _):
        await child.exited.wait()
        assert child.exit_code == 3


@pytest.mark.usefixtures("_no_descriptors")
async def test_group_of_a_reaped_process_is_ended() -> None:
    async with running("sleep 600 & echo $!; exit 3") as (child, heard):
        await child.exited.wait()
        await until(lambda: heard.output.endswith(b"\n"))
        await child.end(1)
        assert not is_alive(int(heard.output))


@pytest.mark.usefixtures("_no_descriptors")
async def test_reaped_process_without_a_group_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("exit 3") as (child, _):
        await child.exited.wait()
        sent: list[int] = []
        monkeypatch.setattr(child_module, "signal_group", lambda group, number: sent.append(number))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        await child.end(0)
        assert sent == []


# -- the end of the loop ----------------------------------------------------------------------


async def test_sigkill_comes_before_the_next_await() -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    async with running(script, with_input=False) as (child, heard):
        await until(lambda: heard.output == b"ready\n")
        task = asyncio.create_task(child.end(600))  # noqa: TID251 — cancelled below
        await asyncio.sleep(0.05)
        while not task.done():
            child._ender.cancel()
            await asyncio.sleep(0)
        await child.exited.wait()
        assert child.exit_code == -signal.SIGKILL
        assert is_collected(child.pid)


def test_end_of_the_loop_kills_a_child_that_is_being_ended() -> None:
    pids: list[int] = []

    async def leave_it() -> None:
        heard = Listener()
        child = ChildProcess(heard)
        script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
        await child.start(["/bin/sh", "-c", script], os.environ, None, with_input=False)
        await until(lambda: heard.output == b"ready\n")
        pids.append(child.pid)
        task = asyncio.create_task(child.end(600))  # noqa: TID251 — left to the loop on purpose
        await asyncio.sleep(0.05)
        assert not task.done()

    asyncio.run(leave_it())
    assert not is_alive(pids[0])
    assert is_collected(pids[0])
