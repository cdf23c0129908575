"""What every `Shell` promises, tried on each of them with real processes."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.waiting import is_alive, until

from indusagi.capabilities import local_shell
from indusagi.capabilities.backends import Ended, Shell
from indusagi.capabilities.local_shell import LocalShell
from indusagi.core.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from indusagi.capabilities.backends import ShellProcess

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(params=[LocalShell])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    make: Callable[[str], Shell] = request.param
    return make(str(tmp_path))


@asynccontextmanager
async def started(
    shell: Shell, command: str, *, output_path: str | None = None
) -> AsyncGenerator[ShellProcess]:
    process = await shell.spawn(command, output_path=output_path)
    try:
        yield process
    finally:
        await process.aclose()


async def test_a_command_gives_its_output_and_exit_code(shell: Shell) -> None:
    result = await shell.exec("echo out; echo err >&2; exit 3")
    assert (result.ended, result.exit_code) == (Ended.EXITED, 3)
    assert (result.output, result.output_bytes) == (b"out\nerr\n", 8)


async def test_a_command_ended_by_a_signal_has_a_negative_exit_code(shell: Shell) -> None:
    assert (await shell.exec("kill -USR1 $$")).exit_code == -signal.SIGUSR1


async def test_a_command_starts_in_the_shells_directory_or_in_the_one_given(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    assert (await shell.exec("ls -d sub")).output == b"sub\n"
    assert (await shell.exec("basename $(pwd)", cwd="sub")).output == b"sub\n"
    assert (await shell.exec("basename $(pwd)", cwd=str(tmp_path / "sub"))).output == b"sub\n"


async def test_variables_are_added_to_the_environment(shell: Shell) -> None:
    result = await shell.exec('echo "$COLOUR $HOME"', env={"COLOUR": "green"})
    assert result.output.decode() == f"green {os.environ['HOME']}\n"


async def test_standard_input_is_empty(shell: Shell) -> None:
    assert (await shell.exec("cat; echo end", timeout_ms=5_000)).output == b"end\n"


async def test_a_directory_that_is_not_there_is_an_os_error(shell: Shell) -> None:
    with pytest.raises(FileNotFoundError):
        await shell.exec("true", cwd="nowhere")


async def test_a_command_with_a_nul_is_an_os_error(shell: Shell) -> None:
    with pytest.raises(OSError, match="NUL"):
        await shell.exec("echo \0")


async def test_r46_a_command_is_over_when_it_exits_and_its_background_child_is_ended(
    shell: Shell,
) -> None:
    result = await shell.exec("sleep 600 & echo $!", timeout_ms=20_000)
    assert result.ended is Ended.EXITED
    assert not is_alive(int(result.output))


async def test_a_command_past_its_time_is_ended_and_what_it_wrote_is_kept(shell: Shell) -> None:
    result = await shell.exec("echo before; sleep 600", timeout_ms=200)
    assert (result.ended, result.output) == (Ended.TIMEOUT, b"before\n")
    assert result.exit_code == -signal.SIGTERM


async def test_a_command_that_ignores_sigterm_is_killed(shell: Shell) -> None:
    async with started(shell, "trap '' TERM; echo ready; sleep 600 & wait; wait") as process:
        await until(lambda: b"ready" in process.read_output())
        assert await process.stop(grace_ms=100) == -signal.SIGKILL
        assert await process.stop() == -signal.SIGKILL


async def test_a_cancelled_command_is_ended(shell: Shell) -> None:
    token = CancelToken()
    token.cancel()
    result = await shell.exec("sleep 600", cancel=token)
    assert result.ended is Ended.CANCELLED


async def test_the_cancellation_of_the_task_ends_the_command_and_passes(
    shell: Shell, tmp_path: Path
) -> None:
    async def run() -> None:
        await shell.exec("echo $$ > pid; exec sleep 600")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").stat().st_size > 0)
        tasks.cancel_scope.cancel()
    assert not is_alive(int((tmp_path / "pid").read_text(encoding="utf-8")))


async def test_long_output_is_shown_by_its_ends_and_counted_in_full(shell: Shell) -> None:
    result = await shell.exec("yes | head -c 1000000")
    assert result.output_bytes == 1_000_000
    assert len(result.output) < 300_000
    assert b"\n[737856 bytes left out]\n" in result.output


async def test_endless_output_is_ended_before_it_fills_the_disk(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_shell, "OUTPUT_CAP_BYTES", 1_000_000)
    result = await shell.exec("yes", timeout_ms=20_000)
    assert result.ended is Ended.OUTPUT_LIMIT


async def test_a_started_command_runs_until_it_is_stopped(shell: Shell) -> None:
    async with started(shell, "echo ready; exec sleep 600") as process:
        await until(lambda: b"ready" in process.read_output())
        assert process.exit_code is None
        assert is_alive(process.pid)
        assert await process.stop() == -signal.SIGTERM
        assert process.exit_code == -signal.SIGTERM


async def test_a_started_command_can_be_waited_for_and_its_output_read_in_parts(
    shell: Shell,
) -> None:
    async with started(shell, "printf 0123456789; exit 4") as process:
        assert await process.wait() == 4
        assert process.output_size() == 10
        assert process.read_output(2, 3) == b"234"
        assert process.read_output(8) == b"89"
        assert process.read_output(99) == b""


async def test_the_output_of_a_started_command_can_go_to_a_private_file(
    shell: Shell, tmp_path: Path
) -> None:
    async with started(shell, "echo kept", output_path="out.txt") as process:
        await process.wait()
        assert process.read_output() == b"kept\n"
    assert (tmp_path / "out.txt").read_bytes() == b"kept\n"
    assert stat.S_IMODE((tmp_path / "out.txt").stat().st_mode) == 0o600


async def test_an_output_file_that_is_there_already_is_not_overwritten(
    shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "out.txt").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        await shell.spawn("echo x", output_path="out.txt")
    assert (tmp_path / "out.txt").read_bytes() == b"precious"


async def test_closing_ends_the_whole_group_and_can_be_done_twice(shell: Shell) -> None:
    process = await shell.spawn("sleep 600 & echo $!; wait")
    await until(lambda: b"\n" in process.read_output())
    child = int(process.read_output())
    await process.aclose()
    await process.aclose()
    assert not is_alive(child)
    assert not is_alive(process.pid)


async def test_many_commands_run_side_by_side(shell: Shell) -> None:
    outputs: dict[int, bytes] = {}

    async def run(n: int) -> None:
        outputs[n] = (await shell.exec(f"echo {n}")).output

    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(run, n)
    assert outputs == {n: b"%d\n" % n for n in range(20)}
