"""What every `Shell` promises, tried on each of them with real processes."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import stat
import sys
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.scripts import unmeasured
from tests.support.stops import give_up_soon, past_its_limit
from tests.support.waiting import is_alive, until

from indusagi.capabilities.local import shell as local_shell
from indusagi.capabilities.local.shell import LocalProcess, LocalShell
from indusagi.capabilities.ports import DEFAULT_TIMEOUT_MS, STOP_GRACE_MS, Ended, Shell
from indusagi.capabilities.sandbox import capture
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.core.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from indusagi.capabilities.ports import ShellProcess

pytestmark = [pytest.mark.anyio, pytest.mark.process]


def unconfined(cwd: str) -> Shell:
    """Give a shell whose commands have the process numbers that we see."""
    return LocalShell(cwd, sandbox=Sandbox(mode="off"))


@pytest.fixture(params=[unconfined])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    make: Callable[[str], Shell] = request.param
    return make(str(tmp_path))


@asynccontextmanager
async def started(shell: Shell, command: str, *, output_path: str | None = None) -> AsyncGenerator[ShellProcess]:
    process = await shell.spawn(command, output_path=output_path)
    try:
        yield process
    finally:
        await process.aclose()


async def test_exec_returns_output_and_exit_code(shell: Shell) -> None:
    result = await shell.exec("echo out; echo err >&2; exit 3")
    assert (result.ended, result.exit_code) == (Ended.EXITED, 3)
    assert (result.output, result.output_bytes) == (b"out\nerr\n", 8)


async def test_signal_is_a_negative_exit_code(shell: Shell) -> None:
    assert (await shell.exec("kill -USR1 $$")).exit_code == -signal.SIGUSR1


async def test_command_starts_in_the_workspace_or_in_cwd(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert (await shell.exec("ls -d sub")).output == b"sub\n"
    assert (await shell.exec("basename $(pwd)", cwd="sub")).output == b"sub\n"
    assert (await shell.exec("basename $(pwd)", cwd=str(tmp_path / "sub"))).output == b"sub\n"


async def test_variables_are_added_to_the_environment(shell: Shell) -> None:
    result = await shell.exec('echo "$COLOUR $HOME"', env={"COLOUR": "green"})
    assert result.output.decode() == f"green {os.environ['HOME']}\n"


async def test_standard_input_is_empty(shell: Shell) -> None:
    assert (await shell.exec("cat; echo end", timeout_ms=5_000)).output == b"end\n"


async def test_commands_do_not_read_our_standard_input(shell: Shell, tmp_path: Path) -> None:
    kind = type(shell)
    code = f"""
import asyncio
from {kind.__module__} import {kind.__name__} as Kind
print(asyncio.run(Kind({str(tmp_path)!r}).exec("cat; echo end")).output)
"""
    done = await anyio.run_process([sys.executable, "-c", code], input=b"a secret", env=unmeasured(), check=True)
    assert done.stdout == b"b'end\\n'\n"


async def test_absent_directory_is_an_os_error(shell: Shell) -> None:
    with pytest.raises(FileNotFoundError):
        await shell.exec("true", cwd="nowhere")


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("echo \0", {}, "a command cannot hold a NUL"),
        ("echo \ud800", {}, "a command cannot hold half a surrogate pair"),
        ("true", {"cwd": "a\0b"}, "a working directory cannot hold a NUL"),
        ("true", {"cwd": "\udbff"}, "a working directory cannot hold half"),
        ("true", {"env": {"A": "b\0"}}, "the variable 'A' cannot hold a NUL"),
        ("true", {"env": {"A": "\ud800"}}, "the variable 'A' cannot hold half"),
        ("true", {"env": {"\ud800": "b"}}, "the name of a variable cannot hold half"),
        ("true", {"env": {"A\0": "b"}}, "the name of a variable cannot hold a NUL"),
        ("true", {"env": {"A=B": "c"}}, "'A=B' cannot be the name of a variable"),
        ("true", {"env": {"": "c"}}, "'' cannot be the name of a variable"),
        ("true", {"output_path": "a\0b"}, "the path of an output file cannot hold a NUL"),
        ("true", {"output_path": "\ud800"}, "the path of an output file cannot hold half"),
    ],
)
async def test_invalid_strings_are_an_os_error(shell: Shell, command: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OSError, match=said) as caught:
        await shell.spawn(command, **options)
    assert caught.value.errno == errno.EINVAL


async def test_directory_with_a_name_that_is_not_utf_8_is_usable(shell: Shell, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).mkdir()
    assert (await shell.exec("basename $(pwd)", cwd=name)).output == b"caf\xe9\n"


async def test_r46_command_is_over_at_its_exit_and_background_child_is_ended(shell: Shell) -> None:
    result = await shell.exec("sleep 600 & echo $!", timeout_ms=20_000)
    assert result.ended is Ended.EXITED
    assert not is_alive(int(result.output))


async def test_command_past_its_time_limit_is_ended_with_its_output(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "echo before; touch ready; exec sleep 600"
    result = await past_its_limit(
        lambda: shell.exec(command, timeout_ms=600_000), (tmp_path / "ready").exists, monkeypatch
    )
    assert (result.ended, result.output) == (Ended.TIMEOUT, b"before\n")
    assert result.exit_code == -signal.SIGTERM


async def test_command_that_ignores_sigterm_is_killed(shell: Shell) -> None:
    async with started(shell, "trap '' TERM; echo ready; sleep 600 & wait; wait") as process:
        await until(lambda: b"ready" in process.read_output())
        assert await process.stop(grace_ms=100) == -signal.SIGKILL
        assert await process.stop() == -signal.SIGKILL


async def test_cancelled_command_is_ended(shell: Shell) -> None:
    token = CancelToken()
    token.cancel()
    result = await shell.exec("sleep 600", cancel=token)
    assert result.ended is Ended.CANCELLED


async def test_cancelled_task_ends_the_command(shell: Shell, tmp_path: Path) -> None:
    async def run() -> None:
        await shell.exec("echo $$ > pid; exec sleep 600")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").stat().st_size > 0)
        tasks.cancel_scope.cancel()
    assert not is_alive(int((tmp_path / "pid").read_text(encoding="utf-8")))


async def test_long_output_is_cut_in_the_middle_and_counted(shell: Shell) -> None:
    result = await shell.exec("yes | head -c 1000000")
    assert result.output_bytes == 1_000_000
    assert len(result.output) < 300_000
    assert b"\n[737856 bytes left out]\n" in result.output


async def test_endless_output_is_ended_before_it_fills_the_disk(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_shell, "OUTPUT_CAP_BYTES", 1_000_000)
    result = await shell.exec("yes", timeout_ms=20_000)
    assert result.ended is Ended.OUTPUT_LIMIT


async def test_spawned_command_runs_until_stopped(shell: Shell) -> None:
    async with started(shell, "echo ready; exec sleep 600") as process:
        await until(lambda: b"ready" in process.read_output())
        assert process.exit_code is None
        assert is_alive(process.pid)
        assert await process.stop() == -signal.SIGTERM
        assert process.exit_code == -signal.SIGTERM


async def test_output_of_a_spawned_command_is_read_in_parts(shell: Shell) -> None:
    async with started(shell, "printf 0123456789; exit 4") as process:
        assert await process.wait() == 4
        assert process.output_size() == 10
        assert process.read_output(2, 3) == b"234"
        assert process.read_output(8) == b"89"
        assert process.read_output(99) == b""


async def test_output_of_a_spawned_command_can_go_to_a_private_file(shell: Shell, tmp_path: Path) -> None:
    async with started(shell, "echo kept", output_path="out.txt") as process:
        await process.wait()
        assert process.read_output() == b"kept\n"
    assert (tmp_path / "out.txt").read_bytes() == b"kept\n"
    assert stat.S_IMODE((tmp_path / "out.txt").stat().st_mode) == 0o600


async def test_existing_output_file_is_not_overwritten(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        await shell.spawn("echo x", output_path="out.txt")
    assert (tmp_path / "out.txt").read_bytes() == b"precious"


async def test_aclose_ends_the_group_and_can_be_repeated(shell: Shell) -> None:
    process = await shell.spawn("sleep 600 & echo $!; wait")
    await until(lambda: b"\n" in process.read_output())
    child = int(process.read_output())
    await process.aclose()
    await process.aclose()
    assert not is_alive(child)
    assert not is_alive(process.pid)


async def test_many_commands_run_concurrently(shell: Shell) -> None:
    outputs: dict[int, bytes] = {}

    async def run(n: int) -> None:
        outputs[n] = (await shell.exec(f"echo {n}")).output

    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(run, n)
    assert outputs == {n: b"%d\n" % n for n in range(20)}


# -- the output comes out whole ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo one; echo two > /dev/stderr; echo three", b"one\ntwo\nthree\n"),
        ("echo one; echo two >> /dev/stderr; echo three", b"one\ntwo\nthree\n"),
        ("echo first; echo hello | tee /dev/stderr; echo last", b"first\nhello\nhello\nlast\n"),
        ("echo a; truncate -s 10G /proc/self/fd/1 2> /dev/null; echo b", b"a\nb\n"),
    ],
)
async def test_command_that_reopens_its_output_loses_nothing(shell: Shell, command: str, output: bytes) -> None:
    result = await shell.exec(command)
    assert (result.ended, result.output) == (Ended.EXITED, output)


async def test_output_written_before_the_exit_is_complete(shell: Shell) -> None:
    result = await shell.exec("head -c 3000000 /dev/zero; sleep 600 &", timeout_ms=20_000)
    assert (result.ended, result.output_bytes) == (Ended.EXITED, 3_000_000)


async def test_later_output_of_a_background_child_is_captured(shell: Shell) -> None:
    command = "(until [ -e go ]; do sleep 0.01; done; echo late) & echo now"
    async with started(shell, command) as process:
        assert await process.wait() == 0
        assert process.read_output() == b"now\n"
        assert await process.wait() == 0
        assert (await shell.exec("touch go")).exit_code == 0
        await until(lambda: process.read_output() == b"now\nlate\n")


async def test_output_on_sigterm_is_kept(shell: Shell) -> None:
    command = "trap 'sleep 0.2; echo tidied; exit 7' TERM; echo ready; while :; do sleep 0.02; done"
    async with started(shell, command) as process:
        await until(lambda: b"ready" in process.read_output())
        assert await process.stop() == 7
        assert process.read_output().endswith(b"tidied\n")


async def test_output_over_the_cap_is_dropped_during_the_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_shell, "OUTPUT_CAP_BYTES", 100_000)
    result = await shell.exec("trap 'head -c 5000000 /dev/zero; exit 7' TERM; while :; do echo; done")
    assert (result.ended, result.exit_code) == (Ended.OUTPUT_LIMIT, 7)
    assert 100_000 < result.output_bytes < 1_000_000


class SlowDisk:
    """A disk that writes nothing until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.going = threading.Event()
        self.asked = threading.Event()
        self.largest = 0
        self._append = capture.Capture.append
        monkeypatch.setattr(capture.Capture, "append", lambda file, data: self.append(file, data))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def append(self, file: capture.Capture, data: bytes) -> None:
        self.asked.set()
        self.largest = max(self.largest, len(data))
        assert self.going.wait(60)
        self._append(file, data)


async def test_output_waiting_for_a_slow_disk_is_kept(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = SlowDisk(monkeypatch)
    async with started(shell, "echo first; until [ -e go ]; do sleep 0.01; done; echo last") as it:
        await until(disk.asked.is_set)
        assert it.output_size() == 0
        await anyio.Path(tmp_path / "go").touch()
        await until(lambda: it.exit_code is not None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.stop)
            # The pipe is emptied when the patience with it ends, while the disk still writes.
            await anyio.sleep(0.3)
            disk.going.set()
        assert it.read_output() == b"first\nlast\n"


async def test_wait_includes_the_output(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    async with started(shell, "echo word") as process:
        await until(lambda: process.exit_code == 0 and disk.asked.is_set())
        asyncio.get_running_loop().call_later(0.1, disk.going.set)
        assert await process.wait() == 0
        assert process.read_output() == b"word\n"


async def test_slow_disk_blocks_the_command_instead_of_filling_memory(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    async with started(shell, "head -c 5000000 /dev/zero") as process:
        await until(disk.asked.is_set)
        asyncio.get_running_loop().call_later(0.1, disk.going.set)
        await until(lambda: process.output_size() == 5_000_000)
    assert disk.largest <= 1024 * 1024


async def test_late_output_of_a_helper_is_awaited(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_shell, "_DRAIN_S", 20)
    command = "(until [ -e go ]; do sleep 0.01; done; echo late) & echo now"
    async with started(shell, command) as process:
        await until(lambda: process.exit_code == 0)
        asyncio.get_running_loop().call_later(0.1, (tmp_path / "go").touch)
        await process.wait()
        assert process.read_output() == b"now\nlate\n"


async def test_capture_is_closed_after_the_last_write(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    process = await shell.spawn("echo first")
    await until(disk.asked.is_set)
    with anyio.move_on_after(0.1) as scope:
        await process.aclose()
    assert scope.cancelled_caught
    disk.going.set()  # whether the file is closed now is seen by the check for leaks


async def test_limit_already_exceeded_is_reported_at_once(shell: Shell) -> None:
    async with started(shell, "echo word; exec sleep 600") as process:
        assert isinstance(process, LocalProcess)
        await until(lambda: process.output_size() == 5)
        told: list[bool] = []
        process.limit_output(5, lambda: told.append(False))
        process.limit_output(4, lambda: told.append(True))
        assert told == [True]


async def test_output_that_cannot_be_kept_is_an_os_error(shell: Shell) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            await shell.exec("yes", timeout_ms=20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# -- nothing is left behind -------------------------------------------------------------------


def carriers(value: str) -> list[str]:
    """List the processes that were started with a variable of this value."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if value.encode() in file.read():
                    found.append(pid)
        except OSError:
            continue
    return found


PROBE = "PROBE_OF_THIS_TEST"


@pytest.mark.parametrize(
    "command",
    [
        "timeout 600 sleep 600; echo done",
        "set -m; sleep 600 & wait",
        "set -m; (trap '' TERM; while :; do sleep 0.1; done) & wait",
        "setsid sleep 600 & sleep 600",
        "setsid setsid sh -c 'sleep 600 & sleep 600' & exec sleep 600",
    ],
)
async def test_descendants_are_ended_with_the_command(shell: Shell, command: str, tmp_path: Path) -> None:
    probe = f"{PROBE}={tmp_path}"
    process = await shell.spawn(f"{command} #", env={PROBE: str(tmp_path)})
    await until(lambda: len(carriers(probe)) > 1)
    await process.stop(grace_ms=300)
    assert carriers(probe) == []
    await process.aclose()


@pytest.mark.parametrize(
    "command", ["set -m; sleep 600 > /dev/null 2>&1 &", "setsid sleep 600 &", "setsid sleep 600 &> /dev/null &"]
)
async def test_descendants_left_at_the_exit_are_ended(shell: Shell, command: str, tmp_path: Path) -> None:
    result = await shell.exec(command, env={PROBE: str(tmp_path)})
    assert (result.ended, result.exit_code) == (Ended.EXITED, 0)
    assert carriers(f"{PROBE}={tmp_path}") == []


@pytest.mark.parametrize("step_s", [0, 0.0005])
async def test_start_cancelled_at_any_step_leaves_nothing(shell: Shell, step_s: float, tmp_path: Path) -> None:
    await shell.exec("true")
    before = len(os.listdir("/proc/self/fd"))
    for steps in range(0, 41, 2):
        work = shell.spawn("sleep 600 & setsid sleep 600 & wait", env={PROBE: str(tmp_path)})
        task = asyncio.create_task(work)  # noqa: TID251 — cancelled below
        for _ in range(steps):
            await asyncio.sleep(step_s)
        task.cancel()
        try:
            await (await task).aclose()
        except asyncio.CancelledError:
            pass
    assert carriers(f"{PROBE}={tmp_path}") == []
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_repeatedly_cancelled_task_still_ends_the_command(shell: Shell, tmp_path: Path) -> None:
    command = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    process = await shell.spawn(command, env={PROBE: str(tmp_path)})
    await until(lambda: b"ready" in process.read_output())
    task = asyncio.create_task(process.stop(grace_ms=300))  # noqa: TID251 — as above
    for _ in range(5):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert carriers(f"{PROBE}={tmp_path}") == []
    await process.aclose()


async def test_cancelled_scope_does_not_interrupt_the_end(shell: Shell, tmp_path: Path) -> None:
    command = "trap 'sleep 0.2; : >tidied; exit' TERM; echo ready; while :; do sleep 0.02; done"
    process = await shell.spawn(command)
    await until(lambda: b"ready" in process.read_output())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await process.stop()
    assert (tmp_path / "tidied").exists()
    assert not is_alive(process.pid)
    await process.aclose()


@pytest.mark.parametrize("first", ["", "set -m; "])
async def test_stop_waits_for_all_descendants(shell: Shell, first: str, tmp_path: Path) -> None:
    slow = "trap 'sleep 0.3; : >tidied; exit' TERM; echo ready; while :; do sleep 0.02; done"
    async with started(shell, f"{first}({slow}) & exec sleep 600") as process:
        await until(lambda: b"ready" in process.read_output())
        assert await process.stop() == -signal.SIGTERM
        assert (tmp_path / "tidied").exists()


def test_timeouts_are_the_documented_ones() -> None:
    assert STOP_GRACE_MS == 3_000
    assert DEFAULT_TIMEOUT_MS == 120_000
    assert local_shell.OUTPUT_CAP_BYTES == 64 * 1024 * 1024


# -- which processes a signal reaches --------------------------------------------------------------------


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the signals that are sent from here on."""
    sent: list[int] = []
    for module, name in ((os, "kill"), (os, "killpg"), (signal, "pidfd_send_signal")):
        monkeypatch.setattr(module, name, lambda target, number: sent.append(number))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    return sent


async def test_ended_tree_is_not_signalled(shell: Shell, signals: list[int]) -> None:
    async with started(shell, "exit 3") as process:
        assert await process.wait() == 3
        assert await process.stop() == 3
    assert signals == []


async def test_stop_after_the_end_signals_nothing(shell: Shell, request: pytest.FixtureRequest) -> None:
    process = await shell.spawn("sleep 600 & wait")
    await process.stop()
    signals: list[int] = request.getfixturevalue("signals")
    await process.stop()
    await process.aclose()
    assert signals == []


async def test_deadline_holds_for_processes_that_cannot_be_signalled(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root one may signal everybody, so the refusal of the system is played here."""

    def refuse(target: int, number: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    kill = os.kill
    for module, name in ((os, "kill"), (os, "killpg"), (signal, "pidfd_send_signal")):
        monkeypatch.setattr(module, name, refuse)
    give_up_soon(monkeypatch)
    command = "echo $$; touch ready; exec sleep 600"
    result = await past_its_limit(
        lambda: shell.exec(command, timeout_ms=600_000), (tmp_path / "ready").exists, monkeypatch
    )
    assert (result.ended, result.exit_code) == (Ended.TIMEOUT, -signal.SIGKILL)
    pid = int(result.output)
    assert is_alive(pid)
    kill(pid, signal.SIGKILL)
    await until(lambda: not os.path.exists(f"/proc/{pid}"))  # it is collected all the same


# -- input, followers, survivors, the last directory ----------------------------------------------


async def test_command_with_input_can_be_written_to(shell: Shell) -> None:
    process = await shell.spawn("while read -r line; do echo got $line; done", with_input=True)
    await process.write_input(b"one\n")
    await until(lambda: process.read_output() == b"got one\n")
    await process.write_input(b"two\n", close=True)
    assert await process.wait() == 0
    assert process.read_output() == b"got one\ngot two\n"
    with pytest.raises(BrokenPipeError):
        await process.write_input(b"three\n")
    await process.aclose()


async def test_command_without_input_cannot_be_written_to(shell: Shell) -> None:
    async with started(shell, "exec sleep 600") as process:
        with pytest.raises(BrokenPipeError, match="its standard input is closed"):
            await process.write_input(b"x")


async def test_large_input_is_written_with_backpressure(shell: Shell) -> None:
    process = await shell.spawn("wc -c", with_input=True)
    await process.write_input(b"x" * 3_000_000, close=True)
    assert await process.wait() == 0
    assert process.read_output().strip() == b"3000000"
    await process.aclose()


@pytest.mark.parametrize("closed", [True, False])
async def test_stop_sends_sigterm_without_waiting_for_end_of_input(shell: Shell, closed: bool) -> None:
    process = await shell.spawn(
        "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.02; done", with_input=True
    )
    await until(lambda: b"ready" in process.read_output())
    if closed:
        await process.write_input(b"", close=True)
    with anyio.fail_after(60):
        assert await process.stop(grace_ms=600_000) == 5
    assert process.read_output().endswith(b"asked\n")
    await process.aclose()


async def test_cancelled_stop_ends_a_command_with_input(shell: Shell) -> None:
    process = await shell.spawn("trap '' TERM; echo ready; while :; do sleep 0.02; done", with_input=True)
    await until(lambda: b"ready" in process.read_output())
    task = asyncio.create_task(process.stop(grace_ms=200))  # noqa: TID251 — cancelled below
    await asyncio.sleep(0.05)
    task.cancel()
    with anyio.fail_after(60), pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(process.pid)
    await process.aclose()


async def test_sink_receives_all_output_from_the_first_byte(shell: Shell) -> None:
    async with started(shell, "echo first; until [ -e go ]; do sleep 0.01; done; seq 1 9999") as it:
        await until(lambda: it.output_size() == 6)
        heard: list[bytes] = []
        threads: set[int] = set()

        def hear(piece: bytes) -> None:
            heard.append(piece)
            threads.add(threading.get_ident())

        it.follow(hear)
        assert (await shell.exec("touch go")).exit_code == 0
        assert await it.wait() == 0
        assert b"".join(heard) == it.read_output()
        assert threading.get_ident() not in threads


async def test_sink_added_during_a_write_receives_that_piece(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    async with started(shell, "echo word") as process:
        await until(disk.asked.is_set)
        heard: list[bytes] = []
        process.follow(heard.append)
        disk.going.set()
        await process.wait()
        assert heard == [b"word\n"]


async def test_survivors_are_listed(shell: Shell) -> None:
    async with started(shell, "sleep 600 & setsid sleep 600 & echo $!") as process:
        await process.wait()
        left = await anyio.to_thread.run_sync(process.survivors)
        assert len(left) == 2
        assert int(process.read_output()) in left
        assert process.pid not in left
        assert process.mark
    assert not any(map(is_alive, left))


async def test_command_without_descendants_has_no_survivors(shell: Shell) -> None:
    async with started(shell, "true") as process:
        await process.wait()
        assert await anyio.to_thread.run_sync(process.survivors) == []


async def test_final_directory_of_the_shell_is_known(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with started(shell, "cd sub; exit 1") as process:
        await process.wait()
        assert await process.final_cwd() == str(tmp_path / "sub")
    async with started(shell, "cd sub; kill -9 $$") as process:
        await process.wait()
        assert await process.final_cwd() is None
    assert await process.final_cwd() is None


@pytest.mark.parametrize("planted", ["ln -sf /etc/passwd", "rm -f x; mkfifo", "mkdir", "printf 'a\\0b' >"])
async def test_forged_final_directory_is_ignored(shell: Shell, planted: str) -> None:
    command = f"{planted} $__indus_cwd_file; kill -9 $$"
    async with started(shell, command) as process:
        await process.wait()
        with anyio.fail_after(60):
            assert await process.final_cwd() is None


# -- a very long output ---------------------------------------------------------------------------


@pytest.fixture
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "KEPT_HEAD_BYTES", 10_000)
    monkeypatch.setattr(capture, "KEPT_TAIL_BYTES", 20_000)


@pytest.mark.usefixtures("_small_files")
async def test_first_and_last_part_of_a_very_long_output_are_kept(shell: Shell, tmp_path: Path) -> None:
    async with started(shell, "seq -w 1 99999", output_path="out.txt") as process:
        await process.wait()
        whole = b"".join(b"%05d\n" % n for n in range(1, 100_000))
        assert process.output_size() == len(whole)
        assert process.read_output(0, 10_000) == whole[:10_000]
        assert process.read_output(9_000, 500) == whole[9_000:9_500]
        assert process.read_output(len(whole) - 20_000) == whole[-20_000:]
        assert process.read_output(len(whole) - 7) == whole[-7:]
        assert process.read_output(50_000) == whole[-20_000:]
        assert process.read_output() == whole[:10_000] + whole[-20_000:]
        assert (tmp_path / "out.txt").stat().st_size <= 30_000
    left_out = b"\n[%d bytes left out]\n" % (len(whole) - 30_000)
    kept = (tmp_path / "out.txt").read_bytes()
    assert kept == whole[:10_000] + left_out + whole[-20_000:]


@pytest.mark.usefixtures("_small_files")
async def test_output_file_that_cannot_be_reordered_stays(shell: Shell, tmp_path: Path) -> None:
    async with started(shell, "seq -w 1 99999", output_path="out.txt") as process:
        await process.wait()
        (tmp_path / "out.txt.ordered").mkdir()
    assert (tmp_path / "out.txt").stat().st_size == 30_000


@pytest.mark.usefixtures("_small_files")
async def test_full_disk_at_the_end_leaves_no_second_file(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    async with started(shell, "seq -w 1 99999", output_path="out.txt") as process:
        await process.wait()
    assert os.listdir(tmp_path) == ["out.txt"]
