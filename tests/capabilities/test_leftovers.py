"""Commands left by a crash are found by their receipts, and ended; other processes are left alone."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread
from tests.support.scripts import run
from tests.support.tools import box_of
from tests.support.waiting import is_alive, running, until

from indusagi.capabilities import leftovers
from indusagi.capabilities.jobs import jobs_of
from indusagi.capabilities.leftovers import (
    Receipt,
    end_leftover,
    find_leftover_jobs,
    make_owned_dir,
    remove_abandoned_dirs,
    remove_receipt,
    write_receipt,
)
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.capabilities.tools.process import process_tool
from indusagi.core.ids import new_ulid
from indusagi.core.process import tree
from indusagi.core.process.tree import ProcessInfo, measure_usage, read_start_time
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext

pytestmark = [pytest.mark.anyio, pytest.mark.process]
CRASHES = """
import anyio, os, signal, sys
from indusagi.capabilities.jobs import jobs_of
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.sandbox.policy import Sandbox

async def main(cwd):
    shell = LocalShell(cwd, sandbox=Sandbox(mode="off"))
    ctx = make_local_context(cwd, shell=shell)
    job = await jobs_of(ctx).start(ctx, "setsid sleep 600 & echo ready; exec sleep 600", cwd)
    await job.poll(20_000, "ready")
    os.kill(os.getpid(), signal.SIGKILL)

anyio.run(main, sys.argv[1])
"""


HOLDS_A_SHELL = """
import anyio, sys
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.sandbox.policy import Sandbox

async def main(cwd, command):
    await LocalShell(cwd, sandbox=Sandbox(mode="off")).exec(command)

anyio.run(main, *sys.argv[1:])
"""


def receipts_dir() -> Path:
    return Path(os.environ["HOME"]) / ".local" / "state" / "indus" / "jobs"


def context_in(folder: Path) -> ToolContext:
    shell = LocalShell(str(folder), sandbox=Sandbox(mode="off"))
    return make_local_context(folder, shell=shell)


async def crash_in(folder: Path) -> Receipt:
    """Have a process of ours start a job and die; give the job's receipt."""
    # Whoever is killed leaves its temporary files behind: here they go with the test.
    env = {**os.environ, "TMPDIR": str(folder)}
    argv = [sys.executable, "-c", CRASHES, str(folder)]
    done = await anyio.run_process(argv, check=False, env=env)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (receipt,) = await to_thread.run_sync(find_leftover_jobs)
    return receipt


async def test_command_left_by_a_crash_is_found_and_ended(tmp_path: Path) -> None:
    receipt = await crash_in(tmp_path)
    assert receipt.command.endswith("exec sleep 600")
    assert receipt.cwd == str(tmp_path)
    assert is_alive(receipt.pid)
    assert await to_thread.run_sync(end_leftover, receipt)
    await until(lambda: not is_alive(receipt.pid))
    assert await to_thread.run_sync(find_leftover_jobs) == []
    assert os.listdir(receipts_dir()) == []


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "alive"])
async def test_finding_d7_a_command_whose_owner_is_killed_is_found_and_ended(
    tmp_path: Path, signalled: signal.Signals
) -> None:
    """A command in the foreground, with a child and with one that has a session of its own."""
    # Other workers run this test too, so the numbers of the sleeps are unique.
    one, two, three = (f"60{digit}.{os.getpid():08}{signalled:02}" for digit in range(3))
    command = f"setsid sleep {one} & (sleep {two}; true) & echo $$ > started; exec sleep {three}"
    argv = [sys.executable, "-c", HOLDS_A_SHELL, str(tmp_path), command]
    owner = await anyio.open_process(argv, env={**os.environ, "TMPDIR": str(tmp_path)})
    sleeps = [["sleep", seconds] for seconds in (one, two, three)]
    try:
        await until(lambda: all(len(running(*words)) == 1 for words in sleeps))
        await until(lambda: receipts_dir().is_dir() and len(os.listdir(receipts_dir())) == 1)
        owner.send_signal(signalled)
        if signalled is signal.SIGKILL:
            await owner.wait()
        said = await to_thread.run_sync(lambda: run("mcp", "doctor", "--end-leftovers", cwd=tmp_path))
        leader = (tmp_path / "started").read_text(encoding="utf-8").strip()
        left = [running(*words) for words in sleeps]
        if signalled is signal.SIGKILL:
            assert left == [[], [], []]
            assert f"ended: process {leader}" in said.stdout
            assert await to_thread.run_sync(find_leftover_jobs) == []
            assert os.listdir(receipts_dir()) == []
        else:
            assert all(len(found) == 1 for found in left)
            assert "ended" not in said.stdout
    finally:
        if owner.returncode is None:
            owner.kill()
        await owner.aclose()
        for receipt in await to_thread.run_sync(find_leftover_jobs):
            await to_thread.run_sync(end_leftover, receipt)


async def test_the_temporary_directory_of_a_crash_is_removed_once_its_command_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = await crash_in(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def remove_the_right_ones() -> None:
        (folder,) = tmp_path.glob("indus-*")
        (others := tmp_path / "indus-others").mkdir()
        (linked := tmp_path / "indus-linked").symlink_to(folder)
        (folder / "tmp" / "link").symlink_to(others)
        remove_abandoned_dirs()
        assert folder.is_dir()
        assert end_leftover(receipt)
        assert find_leftover_jobs() == []
        owner = (folder / "owner").read_text(encoding="ascii")
        pid, started, machine = owner.split(" ", 2)
        ours = f"{os.getpid()} {read_start_time(os.getpid())} {machine}"
        for kept in (ours, f"{pid} {started} another boot", "no owner at all"):
            (folder / "owner").write_text(kept, encoding="ascii")
            remove_abandoned_dirs()
            assert folder.is_dir(), kept
        (folder / "owner").write_text(owner, encoding="ascii")
        made = Path(make_owned_dir())
        assert {*tmp_path.glob("indus-*")} == {made, others, linked}
        assert (others.is_dir(), linked.is_symlink()) == (True, True)

    await to_thread.run_sync(remove_the_right_ones)


async def test_finding_d7_a_command_that_is_over_leaves_no_receipt(tmp_path: Path) -> None:
    async with context_in(tmp_path) as ctx:
        # The receipt names the process, so it is written after the start.
        done = await ctx.shell.exec(f"until ls {receipts_dir()} 2>/dev/null | grep .; do :; done")
        assert len(done.output.split()) == 1
        assert os.listdir(receipts_dir()) == []


async def test_who_ignores_the_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_GRACE_S", 0.3)
    receipt = await crash_in(tmp_path)
    sent: dict[int, None] = {}

    def drop(found: list[ProcessInfo], number: int) -> list[ProcessInfo]:
        sent[number] = None
        return found

    monkeypatch.setattr(tree, "signal_processes", drop)
    assert not await to_thread.run_sync(end_leftover, receipt)
    assert [*sent] == [signal.SIGTERM, signal.SIGKILL]
    monkeypatch.undo()
    assert await to_thread.run_sync(end_leftover, receipt)


async def test_other_process_with_the_pid_of_a_receipt_is_left_alone(tmp_path: Path) -> None:
    """Whoever does not carry the mark is not signalled, whatever its number."""
    stranger = await anyio.open_process(["sleep", "600"])
    try:
        started = await to_thread.run_sync(read_start_time, stranger.pid)
        assert started is not None
        receipt = Receipt(new_ulid(), stranger.pid, started, 1, 0, "sleep", str(tmp_path))
        assert await to_thread.run_sync(end_leftover, receipt)
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        await stranger.aclose()


async def test_job_of_a_running_session_is_not_a_leftover(tmp_path: Path) -> None:
    async with context_in(tmp_path) as ctx:
        job = await jobs_of(ctx).start(ctx, "exec sleep 600", str(tmp_path))
        assert len(os.listdir(receipts_dir())) == 1
        (path,) = receipts_dir().iterdir()
        said = json.loads(await anyio.Path(path).read_text(encoding="utf-8"))
        assert (said["pid"], said["owner_pid"]) == (job.process.pid, os.getpid())
        assert (await anyio.Path(path).stat()).st_mode & 0o777 == 0o600
        assert await to_thread.run_sync(find_leftover_jobs) == []
    assert os.listdir(receipts_dir()) == []


async def test_invalid_receipts_are_skipped(tmp_path: Path) -> None:
    assert await to_thread.run_sync(find_leftover_jobs) == []
    receipts_dir().mkdir(parents=True)
    for name, content in {
        "notes.txt": "mine",
        f"{new_ulid()}.json": "{",
        f"{new_ulid()} .json": "{}",
        f"{new_ulid()}.json ": "{}",
    }.items():
        (receipts_dir() / name).write_text(content, encoding="utf-8")
    (receipts_dir() / f"{new_ulid()}.json").symlink_to("/etc/passwd")
    (receipts_dir() / f"{new_ulid()}.json").write_text('{"pid": 1}', encoding="utf-8")
    assert await to_thread.run_sync(find_leftover_jobs) == []


async def test_reused_pid_is_another_owner(tmp_path: Path) -> None:
    async with context_in(tmp_path) as ctx:
        # A process in the middle of execve(2) has no environment yet.
        job = await jobs_of(ctx).start(ctx, "echo up; read -r word", str(tmp_path))
        await job.poll(20_000, "up")
        (path,) = receipts_dir().iterdir()
        written = Receipt(**json.loads(await anyio.Path(path).read_text(encoding="utf-8")))
        stale = replace(written, owner_started=written.owner_started - 1)
        text = json.dumps({name: getattr(stale, name) for name in Receipt.__annotations__})
        await anyio.Path(path).write_text(text, encoding="utf-8")
        assert await to_thread.run_sync(find_leftover_jobs) == [stale]
        await job.stop()


async def test_job_runs_without_a_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    async with context_in(tmp_path) as ctx:
        box = box_of(ctx, process_tool())
        call = ToolCall("1", "process", {"action": "start", "command": "exec sleep 600"})
        outcome = await box.runner.run(call)
        assert (outcome.is_error, outcome.details["path"]) == (False, None)
        poll = ToolCall("2", "process", {"action": "poll", "id": "job-1"})
        assert "job-1 running" in str((await box.runner.run(poll)).output)


def test_receipt_needs_start_times(tmp_path: Path) -> None:
    assert write_receipt(new_ulid(), 2**22 + 1, "gone", str(tmp_path)) is None


def test_receipt_can_be_removed_twice(tmp_path: Path) -> None:
    (tmp_path / "receipt").touch()
    (tmp_path / "other").touch()
    for _ in range(2):
        remove_receipt(str(tmp_path / "receipt"))
        assert os.listdir(tmp_path) == ["other"]


def test_ended_process_has_no_usage() -> None:
    gone = 2**22 + 1
    assert measure_usage([gone]).rss_bytes == 0
    assert read_start_time(gone) is None


def test_running_process_has_usage() -> None:
    facts = measure_usage([os.getpid()])
    assert facts.rss_bytes > 1024 * 1024
    assert facts.cpu_s > 0
