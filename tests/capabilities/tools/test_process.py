"""The tool `process`, called as a model calls it, with real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import pytest
from anyio import to_thread
from tests.support.commands import PYTHON
from tests.support.stops import kill_soon
from tests.support.tools import box_of
from tests.support.waiting import is_alive, until

from indusagi.capabilities import jobs
from indusagi.capabilities.jobs import jobs_of
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalProcess, LocalShell
from indusagi.capabilities.sandbox.capture import Capture
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.capabilities.tools.bash import bash_tool
from indusagi.capabilities.tools.process import process_tool
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = [pytest.mark.anyio, pytest.mark.process]
STAY = "exec sleep 600"


class Session:
    """A session with the tools for commands."""

    def __init__(self, ctx: ToolContext) -> None:
        self.ctx = ctx
        self.root = Path(ctx.cwd)
        self._box = box_of(ctx, process_tool(), bash_tool())

    async def call(self, action: str, **more: JsonValue) -> ToolOutcome:
        call = ToolCall("1", "process", {"action": action, **more})
        return await self._box.runner.run(call)

    async def start(self, command: str) -> str:
        outcome = await self.call("start", command=command)
        assert not outcome.is_error, outcome.output
        return str(outcome.details["id"])

    async def bash(self, command: str) -> ToolOutcome:
        return await self._box.runner.run(ToolCall("1", "bash", {"command": command}))

    async def poll(self, job_id: str, match: str | None = None, **more: JsonValue) -> ToolOutcome:
        asked = more if match is None else {"match": match, **more}
        return await self.call("poll", id=job_id, **asked)


@pytest.fixture
async def session(tmp_path: Path) -> AsyncGenerator[Session]:
    shell = LocalShell(str(tmp_path), sandbox=Sandbox(mode="off"))
    async with make_local_context(tmp_path, shell=shell) as ctx:
        yield Session(ctx)


def lines_of(outcome: ToolOutcome) -> list[str]:
    """Give the lines that a poll has shown, without what stands above them."""
    return str(outcome.output).split("\n")[2:]


# -- start and poll -------------------------------------------------------------------------------


async def test_job_starts_and_its_output_is_polled(session: Session) -> None:
    started = await session.call("start", command=f"echo ready; {STAY}")
    assert str(started.output).startswith("job-1 started (pid ")
    outcome = await session.poll("job-1", "ready")
    assert lines_of(outcome) == ["ready"]
    assert (outcome.details["state"], outcome.details["matched"]) == ("running", True)
    assert str(outcome.output).startswith(f"job-1 running (pid {started.details['pid']}, ")


async def test_output_of_a_job_is_in_a_private_file(session: Session) -> None:
    started = await session.call("start", command="echo kept")
    await session.poll("job-1", waitMs=20_000)
    await until(lambda: _state_is_over(session))
    path = anyio.Path(str(started.details["path"]))
    assert await path.read_text(encoding="utf-8") == "kept\n"
    assert (await path.stat()).st_mode & 0o777 == 0o600
    assert (await path.parent.stat()).st_mode & 0o777 == 0o700
    assert not str(path).startswith(str(session.root))


async def _state_is_over(session: Session) -> bool:
    return (await session.poll("job-1")).details["state"] != "running"


async def test_poll_returns_unread_output(session: Session) -> None:
    job = await session.start(f"echo one; until [ -e go ]; do sleep 0.02; done; echo two; {STAY}")
    assert lines_of(await session.poll(job, "one")) == ["one"]
    assert "(nothing more was said)" in str((await session.poll(job)).output)
    (session.root / "go").touch()
    assert lines_of(await session.poll(job, waitMs=20_000)) == ["two"]
    assert lines_of(await session.poll(job, sinceLast=False)) == ["one", "two"]
    assert lines_of(await session.poll(job, lines=1)) == ["two"]


async def test_probe_0_16_lines_are_joined_from_pieces(session: Session) -> None:
    job = await session.start("printf AAAA; until [ -e go ]; do sleep 0.02; done; printf 'BBBB\\n\\n'; exec sleep 600")
    open_line = await session.poll(job, "AAAA")
    assert lines_of(open_line) == ["AAAA [unfinished line]"]
    assert open_line.details["lines"] == 0
    (session.root / "go").touch()
    assert lines_of(await session.poll(job, "BBBB")) == ["AAAABBBB", ""]


async def test_poll_matches_text_without_escapes(session: Session) -> None:
    job = await session.start(f"printf 'one\\nserver is \\033[32mre\\033[0mady at'; {STAY}")
    outcome = await session.poll(job, "is ready at")
    assert outcome.details["matched"] is True
    assert lines_of(outcome) == ["one", "server is ready at [unfinished line]"]


async def test_poll_returns_when_the_job_ends(session: Session) -> None:
    job = await session.start("exit 7")
    with anyio.fail_after(60):
        outcome = await session.poll(job, "never said")
    assert (outcome.details["state"], outcome.details["exitCode"]) == ("exited", 7)
    assert outcome.details["matched"] is False
    assert "job-1 exited, exit code 7" in str(outcome.output)


async def test_poll_returns_empty_after_its_wait(session: Session) -> None:
    job = await session.start(STAY)
    outcome = await session.poll(job, "never said", waitMs=50)
    assert outcome.details["state"] == "running"


async def test_dropped_lines_are_reported(session: Session) -> None:
    job = await session.start(f"seq 1 5000; {STAY}")
    outcome = await session.poll(job, "5000")
    assert outcome.details["dropped"] == 3_000
    assert outcome.details["firstLine"] == 3_001
    assert "3,000 earlier lines are not kept; more of its output is in /" in str(outcome.output)
    assert "[lines 3,001 to 5,000, of which the last are shown; " in str(outcome.output)
    assert str(outcome.output).endswith("\n5000")


async def test_job_is_polled_when_the_disk_is_full_with_a_note(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    await session.start("read -r x; seq 1 3000; echo end; read -r x")
    monkeypatch.setattr(Capture, "append", full)
    await session.call("write", id="job-1", input="go\n")
    outcome = await session.poll("job-1", "end")
    assert outcome.details["matched"] is True
    assert lines_of(outcome)[-1] == "end"
    said = "are not kept; its output is kept no longer: No space left on device]"
    assert said in str(outcome.output)


async def test_job_with_background_processes_is_running(session: Session) -> None:
    job = await session.start("sleep 600 & exit 3")
    await until(lambda: _left_is(session, job, 1))
    outcome = await session.poll(job)
    assert "running: 1 in the background, the command itself exit code 3" in str(outcome.output)
    stopped = await session.call("stop", id=job)
    assert (stopped.details["state"], stopped.details["left"]) == ("stopped", 0)


async def _left_is(session: Session, job: str, count: int) -> bool:
    return (await session.poll(job)).details["left"] == count


# -- stop -----------------------------------------------------------------------------------------


async def test_probe_0_15_stop_ends_the_process_tree_and_reports_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_soon(monkeypatch)
    job = await session.start(
        "sleep 600 & echo $!; setsid sleep 600 & echo $!; trap '' TERM; echo ready; sleep 600; wait"
    )
    said = lines_of(await session.poll(job, "ready"))
    outcome = await session.call("stop", id=job)
    assert (outcome.details["state"], outcome.details["left"]) == ("stopped", 0)
    assert not any(is_alive(int(pid)) for pid in said[:2])
    again = await session.call("stop", id=job)
    assert again.output == outcome.output
    assert not again.is_error


@pytest.mark.parametrize("name", ["INT", "KILL"])
async def test_stop_can_start_with_another_signal(session: Session, name: str) -> None:
    # Without child processes: bash drops a SIGINT if the program it waits for exits normally at that moment.
    script = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do :; done"
    job = await session.start(script)
    await session.poll(job, "ready")
    outcome = await session.call("stop", id=job, signal=name)
    assert outcome.details["exitCode"] == (9 if name == "INT" else 128 + 9)


async def test_job_that_ignores_another_signal_is_killed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_soon(monkeypatch)
    job = await session.start("trap '' INT; echo ready; while :; do sleep 0.02; done")
    await session.poll(job, "ready")
    outcome = await session.call("stop", id=job, signal="INT")
    assert outcome.details["state"] == "stopped"


async def test_another_signal_reaches_background_processes(session: Session) -> None:
    left = "import signal, time; signal.signal(2, lambda *_: exit(print('bye')))"
    script = f"{left}; open('up', 'w'); time.sleep(600)"
    await session.bash(f'setsid {PYTHON} -uc "{script}" &')
    await until((session.root / "up").exists)
    await session.call("stop", id="job-1", signal="INT")
    assert lines_of(await session.poll("job-1")) == ["bye"]


async def test_ended_job_is_not_stopped(session: Session) -> None:
    job = await session.start("exit 0")
    await session.poll(job, waitMs=20_000)
    await until(lambda: _state_is_over(session))
    assert (await session.call("stop", id=job)).details["state"] == "exited"


async def test_process_that_cannot_be_ended_is_reported(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await session.start(STAY)
    monkeypatch.setattr(LocalProcess, "survivors", lambda _: [4711])  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    outcome = await session.call("stop", id=job)
    assert (outcome.is_error, outcome.details["left"]) == (True, 1)
    assert "1 of its processes could not be ended" in str(outcome.output)


# -- write ----------------------------------------------------------------------------------------


async def test_job_input_can_be_written(session: Session) -> None:
    job = await session.start('while read -r line; do echo "heard $line"; done; echo over')
    await session.call("write", id=job, input="one\n")
    assert lines_of(await session.poll(job, "heard one")) == ["heard one"]
    outcome = await session.call("write", id=job, input="two", eof=True)
    assert outcome.output == "job-1 was given 3 bytes and the end of its input"
    assert "over" in lines_of(await session.poll(job, "over"))


async def test_a_repl_answers(session: Session) -> None:
    job = await session.start(f"{PYTHON} -i -q")
    await session.call("write", id=job, input="print(6 * 7)\n")
    assert "42" in str((await session.poll(job, "42")).output)


async def test_closed_input_of_a_job_is_an_error(session: Session) -> None:
    job = await session.start("exec sleep 600 <&-")
    await session.call("write", id=job, input="", eof=True)
    await until(lambda: _write_fails(session, job))


async def _write_fails(session: Session, job: str) -> bool:
    return (await session.call("write", id=job, input="x")).is_error


@pytest.mark.parametrize("eof", [False, True])
async def test_finding_f13_unread_input_is_queued_once(
    session: Session, eof: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indusagi.capabilities.tools.process._WRITE_TIMEOUT_S", 0.05)
    job = await session.start("until [ -e go ]; do sleep 0.01; done; head -c 1000000 | wc -c")
    outcome = await session.call("write", id=job, input="x" * 1_000_000, eof=eof)
    assert not outcome.is_error
    assert str(outcome.output).startswith("queued for job-1: 1,000,000 bytes")
    assert 0 < cast("int", outcome.details["unread"]) <= 1_000_000
    again = await session.call("write", id=job, input="x" * 1_000_000)
    assert again.is_error
    assert "bytes from before are still unread" in str(again.output)
    (session.root / "go").touch()
    assert "1000000" in str((await session.poll(job, r"\d+", waitMs=30_000)).output)


# -- list -----------------------------------------------------------------------------------------


async def test_empty_list_is_reported(session: Session) -> None:
    assert (await session.call("list")).output == "no jobs"


async def test_list_shows_usage_and_ports_of_jobs(session: Session) -> None:
    script = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0));"
        "print(f'port {s.getsockname()[1]}', flush=True); time.sleep(600)"
    )
    job = await session.start(f'{PYTHON} -c "{script}"')
    said = lines_of(await session.poll(job, "port"))
    port = int(said[0].split()[1])
    await session.start("true")
    await until(lambda: _is_over(session, "job-2"))
    outcome = await session.call("list")
    first, second = outcome.details["jobs"]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    assert (first["ports"], first["state"]) == ([port], "running")  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript]
    assert second["state"] == "exited"  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript]
    assert f"listens on {port}]" in str(outcome.output)


async def _is_over(session: Session, job: str) -> bool:
    return (await session.poll(job)).details["state"] != "running"


async def test_background_process_of_bash_is_listed(session: Session) -> None:
    await session._box.runner.run(ToolCall("1", "bash", {"command": "sleep 600 & echo hi"}))
    assert "job-1 running: 1 in the background" in str((await session.call("list")).output)
    assert (await session.call("stop", id="job-1")).details["state"] == "stopped"


# -- limits and refusals --------------------------------------------------------------------------


async def test_number_of_running_jobs_is_limited(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LIVE_JOBS", 2)
    for _ in range(2):
        await session.start(STAY)
    outcome = await session.call("start", command=STAY)
    assert outcome.output == "2 jobs are running already: stop one of them first"
    await session.call("stop", id="job-1")
    assert await session.start(STAY) == "job-3"


async def test_old_ended_jobs_are_forgotten(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_MAX_FINISHED_JOBS", 1)
    for number in range(1, 4):
        await session.start("true")
        await until(lambda number=number: _is_over(session, f"job-{number}"))
    await session.start(STAY)
    outcome = await session.poll("job-1")
    assert (outcome.is_error, outcome.details["code"]) == (True, "not_found")
    assert outcome.output == "no job is called 'job-1': job-3, job-4"


BAD = "invalid_arguments"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"action": "poll"}, BAD, "poll needs the id of a job"),
        ({"action": "stop", "id": "job-9"}, "not_found", "is called 'job-9': there are none"),
        ({"action": "start"}, BAD, "start needs a command"),
        ({"action": "start", "command": "echo \0"}, "spawn", "a command cannot hold a NUL"),
        ({"action": "start", "command": "true", "cwd": "no"}, "not_found", "no: No such file"),
        ({"action": "start", "command": "true", "cwd": "file"}, "not_found", "is not a directory"),
        ({"action": "start", "command": "true", "cwd": "/"}, "denied", "is outside the workspace"),
        ({"action": "start", "command": "x" * 200_000}, "spawn", "too long for the system"),
        ({"action": "dance"}, BAD, '"dance"'),
        ({"action": "poll", "id": "x", "waitMs": 30_001}, BAD, "30000"),
    ],
)
async def test_invalid_actions_are_errors(
    session: Session, arguments: dict[str, JsonValue], code: str, said: str
) -> None:
    (session.root / "file").touch()
    outcome = await session._box.runner.run(ToolCall("1", "process", {**arguments}))
    assert (outcome.is_error, outcome.details["code"]) == (True, code)
    assert said in str(outcome.output)
    kept = await to_thread.run_sync(session.ctx.session_dir.make)
    assert [name for _, _, names in os.walk(kept) for name in names] == []


async def test_missing_match_is_reported(session: Session) -> None:
    job = await session.start(f"echo other; {STAY}")
    outcome = await session.poll(job, "ready", waitMs=1)
    assert outcome.details["matched"] is False
    assert str(outcome.output).endswith("[no line with 'ready' came within 1 ms]")
    over = await session.start("true")
    ended = await session.poll(over, "ready")
    assert str(ended.output).endswith("[no line with 'ready' came before its end]")


async def test_r42_invisible_characters_of_a_job_are_reported(session: Session) -> None:
    hidden = "pass\\342\\200\\213word"
    job = await session.start(f"printf '1\n2\n{hidden}\n4\n'; read -r x; printf '{hidden}'; {STAY}")
    outcome = await session.poll(job, "4")
    assert str(outcome.output).endswith("[hidden characters: invisible characters in line 3]")
    await session.call("write", id=job, input="\n")
    outcome = await session.poll(job, "pass")
    assert str(outcome.output).endswith("[hidden characters: invisible characters in line 5]")


async def test_all_jobs_end_with_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_soon(monkeypatch)
    shell = LocalShell(str(tmp_path), sandbox=Sandbox(mode="off"))
    async with make_local_context(tmp_path, shell=shell) as ctx:
        session = Session(ctx)
        for _ in range(3):
            await session.start("trap '' TERM; setsid sleep 600 & sleep 600; wait")
        pids = [job.process.pid for job in jobs_of(ctx).all()]
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))


async def test_cancelled_start_leaves_no_process(session: Session) -> None:
    for steps in range(12):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.start, f"touch ran-{steps}; {STAY}")
                for _ in range(steps):
                    await anyio.sleep(0.001)
                scope.cancel()
    known = {job.process.pid for job in jobs_of(session.ctx).all()}
    children = {
        int(line.split()[0])
        for line in (await anyio.run_process(["ps", "-o", "pid,args", "--ppid", str(os.getpid())]))
        .stdout.decode()
        .splitlines()
        if "sleep 600" in line
    }
    assert children <= known


async def test_server_of_one_command_is_reachable_by_another(tmp_path: Path) -> None:
    """With the default sandbox of a session, whatever this machine has.

    The sandbox may say in a line below the output what it cannot guard.
    """
    async with make_local_context(tmp_path) as ctx:
        session = Session(ctx)
        script = (
            "import socket; s = socket.create_server(('127.0.0.1', 0));"
            "print(f'port {s.getsockname()[1]} open', flush=True);"
            "c, _ = s.accept(); c.sendall(b'served'); c.close()"
        )
        job = await session.start(f'{PYTHON} -c "{script}"')
        said = lines_of(await session.poll(job, "open"))
        port = said[0].split()[1]
        command = f"exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3"
        outcome = await session._box.runner.run(ToolCall("1", "bash", {"command": command}))
    assert str(outcome.output).splitlines()[0] == "served"
