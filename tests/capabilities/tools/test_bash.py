"""The tool `bash`, called as a model calls it, with real processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.sandboxes import NO_LANDLOCK
from tests.support.stops import kill_soon, past_its_limit
from tests.support.tools import box_of
from tests.support.waiting import is_alive, until

from indusagi.capabilities import jobs
from indusagi.capabilities.jobs import jobs_of
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import SandboxState
from indusagi.capabilities.sandbox.backend import SandboxBackend
from indusagi.capabilities.sandbox.landlock_run import landlock_abi
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.capabilities.tools.bash import bash_tool
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import ShellProcess
    from indusagi.capabilities.registry import RegistryToolBox
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome, ToolProgress

pytestmark = [pytest.mark.anyio, pytest.mark.process]
PROBE = "PROBE_OF_THIS_TEST"


def carriers(value: str) -> list[int]:
    """List the processes that were started with a variable of this value."""
    found: list[int] = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if value.encode() in Path(f"/proc/{pid}/environ").read_bytes() and is_alive(pid):
                found.append(pid)
        except OSError:
            continue
    return found


class Session:
    """A session with one tool."""

    def __init__(self, ctx: ToolContext) -> None:
        self.ctx = ctx
        self.box: RegistryToolBox = box_of(ctx, bash_tool())
        self.root = Path(ctx.cwd)

    async def run(self, command: str, **more: JsonValue) -> ToolOutcome:
        return await self.box.runner.run(ToolCall("1", "bash", {"command": command, **more}))

    async def text(self, command: str, **more: JsonValue) -> str:
        return str((await self.run(command, **more)).output)


@asynccontextmanager
async def session_in(root: Path, sandbox: Sandbox | None = None) -> AsyncGenerator[Session]:
    shell = LocalShell(str(root), sandbox=sandbox or Sandbox(mode="off"))
    async with make_local_context(root, shell=shell) as ctx:
        yield Session(ctx)


@pytest.fixture
async def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Session]:
    """A session after which nothing of it runs any more."""
    root = tmp_path / "work"
    root.mkdir()
    monkeypatch.setenv(PROBE, str(root))
    async with session_in(root) as opened:
        yield opened
    me = os.getpid()
    assert [pid for pid in carriers(f"{PROBE}={root}") if pid != me] == []


# -- what is answered ---------------------------------------------------------------------------


async def test_output_is_returned_in_order(session: Session) -> None:
    outcome = await session.run("echo out; echo err >&2; echo end")
    assert (outcome.output, outcome.is_error) == ("out\nerr\nend", False)
    assert outcome.details["exitCode"] == 0


async def test_empty_output_is_reported(session: Session) -> None:
    assert await session.text("true") == "(no output)"


async def test_failed_command_is_an_error_with_its_exit_code(session: Session) -> None:
    outcome = await session.run("echo oh; exit 3")
    assert (outcome.output, outcome.is_error) == ("oh\n[exit code 3]", True)
    assert (outcome.details["code"], outcome.details["exitCode"]) == ("failed", 3)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("kill -KILL $$", "[ended by SIGKILL]"),
        ("bash -c 'kill -SEGV $$'", "[exit code 139 (SIGSEGV)]"),
        ("exit 200", "[exit code 200]"),
    ],
)
async def test_signal_is_named(session: Session, command: str, said: str) -> None:
    assert (await session.text(command)).endswith(said)


@pytest.mark.parametrize(
    ("command", "benign"),
    [
        ("grep x /dev/null", True),
        ("cat /dev/null | grep x", True),
        ("cd . && grep x /dev/null", True),
        ("echo a > a; echo b > b; diff a b", True),
        ("echo a > a; echo b > b; cmp a b", True),
        ("test 1 -eq 2", True),
        ("[ -e nowhere ]", True),
        ("[[ a == b ]]", True),
        ("LC_ALL=C command grep x /dev/null", True),
        ("git init -q; git grep nothing", True),
        ("echo one\ngrep x /dev/null # and why", True),
        ("grep x nowhere", False),
        ("false", False),
        ("cd nowhere && grep x /dev/null", False),
        ("false && grep x /dev/null", False),
        ("grep x /dev/null && false", False),
        ("grep x /dev/null; exit 1", False),
        ("grep -q x /dev/null || exit 1", False),
        ("python3 -c 'exit(1)'", False),
    ],
)
async def test_probe_0_14_exit_code_one_of_grep_and_diff_is_not_an_error(
    session: Session, command: str, benign: bool
) -> None:
    outcome = await session.run(command)
    assert outcome.is_error is not benign
    assert "[exit code " in str(outcome.output)


async def test_escapes_and_overwritten_progress_are_removed(session: Session) -> None:
    command = r"printf '\033[31mred\033[0m \033]0;title\007x\n10%%\r50%%\r100%%\r\ndone\r\n'"
    assert await session.text(command) == "red x\n100%\ndone"


async def test_overstruck_letters_are_read_once(session: Session) -> None:
    assert await session.text(r"printf 'N\bNA\bA\n'") == "NA"


async def test_binary_output_is_reported_by_its_size(session: Session) -> None:
    outcome = await session.run("head -c 100000 /dev/urandom")
    assert outcome.output == f"[binary 100,000 bytes, kept in {outcome.details['path']}]"
    assert isinstance(outcome.details["path"], str)


async def test_long_output_shows_both_ends_and_is_kept_whole(session: Session) -> None:
    outcome = await session.run("seq 1 200000")
    text, path = str(outcome.output), Path(str(outcome.details["path"]))
    assert text.startswith("1\n2\n")
    assert text.endswith("\n200000")
    assert len(text) < 31_000
    assert f"The whole is in {path}" in text
    kept = await anyio.Path(path).read_text(encoding="utf-8")
    assert kept == "".join(f"{n}\n" for n in range(1, 200_001))
    assert (await anyio.Path(path).stat()).st_mode & 0o777 == 0o600
    head, _, tail = text.partition("left out")
    assert len(tail) > 3 * len(head)


async def test_output_shown_whole_leaves_no_file(session: Session) -> None:
    await session.run("echo short")
    made = await anyio.to_thread.run_sync(session.ctx.session_dir.make)
    assert [path async for path in (anyio.Path(made) / "tool-output").iterdir()] == []


async def test_nul_in_a_command_is_refused(session: Session) -> None:
    outcome = await session.run("echo \0")
    assert (outcome.is_error, outcome.details["code"]) == (True, "spawn")
    assert "NUL" in str(outcome.output)


async def test_command_runs_without_a_writable_home(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    outcome = await session.run("seq 1 100000")
    assert outcome.details["path"] is None
    assert "left out.]" in str(outcome.output)


async def test_output_that_cannot_be_kept_is_an_error(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("indusagi.capabilities.sandbox.capture.Capture.append", full)
    outcome = await session.run("echo word")
    assert (outcome.is_error, outcome.details["code"]) == (True, "failed")
    assert "No space left" in str(outcome.output)
    assert "(the command itself: exit code 0)" in str(outcome.output)


# -- where it runs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "cd sub",
        "cd sub; exit 3",
        "cd sub && exec true",
        "trap 'echo bye' EXIT; cd sub; exit 4",
        "trap 'exit 7' EXIT; cd sub",
        "trap - EXIT; cd sub",
        "set -euo pipefail; set -C; cd sub; false",
        "exec 3>&1; cd sub; echo x >&3",
        "cd sub; kill -TERM $$",
    ],
)
async def test_working_directory_carries_over_however_the_shell_ends(session: Session, command: str) -> None:
    (session.root / "sub").mkdir()
    await session.run(command)
    assert await session.text("pwd") == str(session.root / "sub")


async def test_trap_and_exit_status_of_the_command_are_kept(session: Session) -> None:
    command = "trap 'echo status $?' EXIT; trap 'echo hup' HUP; kill -HUP $$; trap -p HUP; exit 4"
    assert await session.text(command) == "hup\ntrap -- 'echo hup' SIGHUP\nstatus 4\n[exit code 4]"


async def test_subshell_does_not_change_the_working_directory(session: Session) -> None:
    (session.root / "sub").mkdir()
    await session.run("(cd sub; exec true); (cd sub)")
    assert await session.text("pwd") == str(session.root)


async def test_directory_outside_the_workspace_does_not_carry_over(session: Session) -> None:
    text = await session.text("cd /; echo moved")
    assert "ended in /, which is not in the workspace" in text
    assert await session.text("pwd") == str(session.root)


async def test_link_out_of_the_workspace_is_outside(session: Session) -> None:
    (session.root / "out").symlink_to("/usr")
    assert "not in the workspace" in await session.text("cd out")


async def test_removed_directory_is_replaced_by_the_workspace(session: Session) -> None:
    await session.run("mkdir sub; cd sub; rmdir ../sub")
    await session.run("mkdir other; cd other")
    (session.root / "other").rmdir()
    text = await session.text("pwd")
    assert text.startswith(str(session.root))
    assert "other is gone: started in" in text


async def test_cwd_argument_applies_to_one_command(session: Session) -> None:
    (session.root / "sub").mkdir()
    assert await session.text("pwd", cwd="sub") == str(session.root / "sub")
    assert await session.text("pwd") == str(session.root)


@pytest.mark.parametrize(("cwd", "code"), [("nowhere", "not_found"), ("file", "not_found")])
async def test_invalid_cwd_is_an_error(session: Session, cwd: str, code: str) -> None:
    (session.root / "file").touch()
    outcome = await session.run("pwd", cwd=cwd)
    assert (outcome.is_error, outcome.details["code"]) == (True, code)


async def test_output_is_not_taken_for_the_directory(session: Session) -> None:
    (session.root / "sub").mkdir()
    await session.run(f"echo {session.root}/sub; pwd")
    assert await session.text("pwd") == str(session.root)


async def test_bash_env_of_the_user_is_read(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    (session.root / "env.sh").write_text("greeting=hello\n")
    monkeypatch.setenv("BASH_ENV", str(session.root / "env.sh"))
    assert await session.text("echo $greeting; bash -c 'echo $greeting'") == "hello\nhello"


# -- nothing hangs --------------------------------------------------------------------------------


async def test_probe_0_9_background_child_does_not_delay_the_result(session: Session) -> None:
    """The command is over when the shell exits; a background process is a job."""
    with anyio.fail_after(60):
        outcome = await session.run("sleep 600 & echo done", timeoutMs=15_000)
    assert str(outcome.output).startswith("done\n[1 process runs on in the background as job-1")
    assert outcome.details["job"] == "job-1"
    assert not outcome.is_error


async def test_probe_0_10_daemon_in_another_session_does_not_delay_the_result(session: Session) -> None:
    with anyio.fail_after(60):
        outcome = await session.run("setsid sleep 600 & echo done", timeoutMs=15_000)
    assert outcome.details["job"] == "job-1"


@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM; touch ready; sleep 600",
        "trap '' TERM; sleep 600 & touch ready; wait; wait",
        "setsid sh -c 'touch ready; exec sleep 600'; wait",
    ],
)
async def test_probe_0_11_command_that_ignores_sigterm_is_killed_at_its_time_limit(
    session: Session, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_soon(monkeypatch)
    outcome = await past_its_limit(
        lambda: session.run(f"echo so far; {command}", timeoutMs=600_000), (session.root / "ready").exists, monkeypatch
    )
    assert (outcome.is_error, outcome.details["code"]) == (True, "timeout")
    assert str(outcome.output).startswith("so far\n[timed out after 600,000 ms")


async def test_probe_0_12_standard_input_is_empty(session: Session) -> None:
    assert await session.text("cat; read x; echo end $?", timeoutMs=15_000) == "end 1"


HANGS = {
    "vim": "vim -c %s/a/b/e -c w file",
    "git commit": "git init -q; echo a > a; git add a; git -c user.name=a -c user.email=b commit",
    "git rebase -i": (
        "git init -q; git config user.name a; git config user.email b;"
        " for n in 1 2; do git commit -q --allow-empty -m $n; done; git rebase -i HEAD~1"
    ),
    "git log": "git init -q; git config user.name a; git config user.email b;"
    " for n in $(seq 60); do git commit -q --allow-empty -m $n; done; git log",
    "less": "seq 1 1000 | less; less /etc/passwd",
    "more": "more /etc/passwd",
    "man": "man ls",
    "cat": "cat",
    "read": "read -p 'sure? ' answer",
    "ssh": "ssh -o ConnectTimeout=2 -p 1 127.0.0.1 true",
    "sudo": "sudo -k true",
    "python3": "python3",
    "bash": "bash",
    "apt-get": "apt-get install",
    "rm": "touch f; chmod 400 f; rm -i f",
    "passwd": "passwd",
    "git clone": "git clone http://127.0.0.1:1/x",
}


@pytest.mark.parametrize("name", list(HANGS))
async def test_prompting_programs_return(session: Session, name: str) -> None:
    if shutil.which(name.split(" ", maxsplit=1)[0]) is None and name != "read":
        pytest.skip(f"{name} is not installed")
    outcome = await session.run(HANGS[name], timeoutMs=25_000)
    assert outcome.details.get("ended") == "exited"


async def test_interactive_rebase_is_aborted(session: Session) -> None:
    outcome = await session.run(HANGS["git rebase -i"] + "; git log --format=%s")
    assert str(outcome.output).rstrip().endswith("2\n1")


# -- its end --------------------------------------------------------------------------------------


async def test_cancelled_command_is_ended_and_its_output_returned(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_soon(monkeypatch)
    token = CancelToken()
    outcomes: list[ToolOutcome] = []

    async def run() -> None:
        command = "echo so far; touch ready; trap '' TERM; setsid sleep 600 & sleep 600"
        call = ToolCall("1", "bash", {"command": command})
        outcomes.append(await session.box.runner.run(call, token))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until((session.root / "ready").exists)
        token.cancel("the user pressed a key")
    assert outcomes[0].details["code"] == "cancelled"
    assert str(outcomes[0].output).startswith("so far\n[stopped: the user pressed a key")


async def test_cancellation_of_the_task_ends_the_command(session: Session) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run, "touch ready; sleep 600")
        await until((session.root / "ready").exists)
        tasks.cancel_scope.cancel()
    assert tasks.cancel_scope.cancelled_caught
    left = [pid for pid in carriers(f"{PROBE}={session.root}") if pid != os.getpid()]
    assert left == []


async def test_progress_is_reported_while_the_command_runs(session: Session) -> None:
    told: list[ToolProgress] = []
    command = "echo one; until [ -e go ]; do sleep 0.05; done; echo two"

    def hear(progress: ToolProgress) -> None:
        told.append(progress)
        (session.root / "go").touch()

    await session.box.runner.run(ToolCall("1", "bash", {"command": command}), on_progress=hear)
    assert told[0].message == "one\n"
    assert told[0].done == 4


async def test_process_about_to_exit_does_not_become_a_job(session: Session) -> None:
    outcome = await session.run("echo x > >(cat)")
    assert "job" not in outcome.details


async def test_background_process_keeps_writing_and_ends_with_the_session(tmp_path: Path) -> None:
    async with session_in(tmp_path) as session:
        await session.run("(until [ -e go ]; do sleep 0.02; done; echo late; sleep 600) & echo now")
        job = jobs_of(session.ctx).get("job-1")
        assert job is not None
        (tmp_path / "go").touch()
        await job.poll(20_000, "late")
        assert job.output.read(lines=None, since_last=True).texts == ("late",)
        left = await anyio.to_thread.run_sync(job.process.survivors)
        assert left
    assert not any(map(is_alive, left))


async def test_background_process_is_ended_when_the_job_limit_is_reached(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LIVE_JOBS", 1)
    await session.run("sleep 600 &")
    outcome = await session.run("sleep 600 &")
    assert "ended what ran on in the background" in str(outcome.output)
    refused = await session.run("sleep 600", background=True)
    assert (refused.is_error, refused.details["code"]) == (True, "failed")


async def test_command_can_be_started_in_the_background(session: Session) -> None:
    outcome = await session.run("sleep 600", background=True)
    assert (outcome.details["job"], outcome.is_error) == ("job-1", False)
    assert is_alive(int(str(outcome.details["pid"])))


async def test_hundred_commands_run_concurrently(session: Session) -> None:
    texts: dict[int, str] = {}

    async def run(n: int) -> None:
        texts[n] = await session.text(f"echo {n}; echo {n} >&2")

    async with anyio.create_task_group() as tasks:
        for n in range(100):
            tasks.start_soon(run, n)
    assert texts == {n: f"{n}\n{n}" for n in range(100)}


# -- memory ---------------------------------------------------------------------------------------

MEASURED = """
import anyio, json, sys
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.capabilities.tools.bash import bash_tool

def rss():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

async def main(command, limit):
    shell = LocalShell(sys.argv[1], sandbox=Sandbox(mode="off"))
    async with make_local_context(sys.argv[1], shell=shell) as ctx:
        tool = bash_tool()
        await tool.run({"command": "seq 1 300000"}, ctx)
        before = rss()
        result = await tool.run({"command": command, "timeoutMs": limit}, ctx)
        print(json.dumps([rss() - before, result.content[0].text, dict(result.details)]))

anyio.run(main, sys.argv[2], int(sys.argv[3]))
"""


@pytest.mark.timeout(120)  # much is copied, on a machine that may be busy
@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("yes 0123456789abcdef | head -c 80000000; echo; echo the end", 100_000),
        ("head -c 80000000 /dev/zero | tr '\\0' x; echo; echo the end", 100_000),
        ("yes", 1_000),
    ],
)
async def test_r45_probe_0_13_memory_does_not_grow_with_the_output(command: str, limit: int, tmp_path: Path) -> None:
    done = await anyio.run_process([sys.executable, "-c", MEASURED, str(tmp_path), command, str(limit)], check=False)
    assert done.returncode == 0, done.stderr.decode()
    grown_kib, text, details = json.loads(done.stdout)
    assert grown_kib < 16 * 1024
    assert len(text) < 32_000
    if command == "yes":
        assert details["code"] == "timeout"
    else:
        assert text.endswith("the end")
        assert details["bytes"] > 80_000_000
        assert "Its first and last 32 MiB are in /" in text
    kept = anyio.Path(details["path"])
    assert (await kept.stat()).st_size < 65 * 1024 * 1024
    await kept.unlink()


# -- what it runs in ------------------------------------------------------------------------------


async def test_r39_secrets_do_not_reach_commands(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["CANARY_TOKEN", "OPENAI_API_KEY", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "GH_PAT"]
    for name in names:
        monkeypatch.setenv(name, "canary-4711")
    assert "canary-4711" not in await session.text("env; set; declare -p; cat /proc/self/environ")


async def test_missing_sandbox_is_noted_once_and_in_every_result(tmp_path: Path) -> None:
    async with session_in(tmp_path, Sandbox(mechanisms=())) as session:
        first, second = await session.run("echo a"), await session.run("echo b")
        assert "[commands run without a sandbox here: no mechanism is allowed]" in str(first.output)
        assert second.output == "b"
        assert second.details["sandbox"] == "none: no mechanism is allowed"


async def test_sandbox_lost_later_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bubblewrap may not start for a moment, for want of a descriptor."""
    none = SandboxState(kind="none", detail="lost")
    states = iter([SandboxState(kind="off"), none, none])

    def choose(*_: object) -> SandboxState:
        return next(states)

    async with session_in(tmp_path, Sandbox(mechanisms=())) as session:
        monkeypatch.setattr(SandboxBackend, "_choose", choose)
        said = [await session.text("echo a") for _ in range(3)]
    assert said == ["a", "a\n[commands run without a sandbox here: lost]", "a"]


async def test_required_sandbox_that_is_missing_stops_commands(tmp_path: Path) -> None:
    async with session_in(tmp_path, Sandbox(mode="required", mechanisms=())) as session:
        for more in ({}, {"background": True}):
            outcome = await session.run("touch ran", **more)
            assert (outcome.is_error, outcome.details["code"]) == (True, "denied")
            assert "install bubblewrap" in str(outcome.output)
    assert not (tmp_path / "ran").exists()


async def test_private_directory_is_removed_with_the_session(tmp_path: Path) -> None:
    async with session_in(tmp_path) as session:
        await session.run("true")
        shell = session.ctx.shell
        assert isinstance(shell, LocalShell)
        backend: SandboxBackend = shell._backend
        private = backend._private
        assert private is not None
        assert (await anyio.Path(private.root).stat()).st_mode & 0o777 == 0o700
    assert not await anyio.Path(private.root).exists()


async def test_local_context_uses_a_sandbox_by_default(tmp_path: Path) -> None:
    async with make_local_context(tmp_path) as ctx:
        state = (await Session(ctx).run("true")).details["sandbox"]
    assert str(state).split(" ", maxsplit=1)[0].strip(",:") in {"bubblewrap", "landlock", "none"}


async def test_parameter_names_of_other_agents_are_accepted(tmp_path: Path) -> None:
    async with session_in(tmp_path) as session:
        call = ToolCall("1", "bash", {"cmd": "echo hi", "timeout_ms": "5000"})
        assert (await session.box.runner.run(call)).output == "hi"


async def test_ambiguous_timeout_is_refused(session: Session) -> None:
    outcome = await session.run("sleep 0.1", timeout=30)
    assert outcome.is_error
    assert "did you mean 'timeoutMs'?" in str(outcome.output)


async def test_r42_invisible_characters_in_output_are_reported(session: Session) -> None:
    text = await session.text(r"echo plain; printf 'a\xe2\x80\xaeb\n'; exit 3")
    assert text.splitlines()[2:] == ["[hidden characters: text direction controls in line 2]", "[exit code 3]"]


@pytest.mark.skipif(not landlock_abi(), reason=NO_LANDLOCK)
async def test_first_result_says_what_the_sandbox_cannot_guard(tmp_path: Path) -> None:
    async with session_in(tmp_path, Sandbox(mechanisms=("landlock",))) as session:
        first, second = await session.text("true"), await session.text("true")
    assert "landlock, which cannot guard .git/hooks, .git/config" in first
    assert second == "(no output)"


async def test_shell_without_a_final_directory_changes_nothing(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indusagi.capabilities.local.shell._SHELLS", ("/bin/sh",))
    assert await session.text("cd /; echo $0") == "/bin/sh"
    assert await session.text("pwd") == str(session.root)


async def test_network_failure_in_the_sandbox_is_explained(tmp_path: Path) -> None:
    sandbox = Sandbox(network=False)
    async with session_in(tmp_path, sandbox) as session:
        outcome = await session.run("exec 3<>/dev/tcp/127.0.0.1/1")
        if "network off" not in str(outcome.details["sandbox"]):
            pytest.skip("the network cannot be closed here")
        assert "[the sandbox of commands has no network]" in str(outcome.output)


# -- what was shown was read ----------------------------------------------------------------------

SHOWING = (
    "cat f.txt",
    "cat -n 'f.txt'",
    'cat "sub/../f.txt"',
    "head -n 1 f.txt",
    "head -1 f.txt",
    "tail -n +1 -- f.txt",
    "sed -n '1,$p' f.txt",
    "sed -n 1p f.txt",
    "grep -n -A 1 'o.e' f.txt",
    "nl -ba f.txt",
)
NOT_SHOWING = (
    "cat f.txt > /dev/null",
    "cat f.txt | wc -l",
    "cat f.txt g.txt",
    "cat $F",
    "cat f.*",
    "wc f.txt",
    "sed 1d f.txt",
    "sed -n 1,2d f.txt",
    "sed -n -i p f.txt",
    "grep -c one f.txt",
    "grep absent f.txt",
    "cat absent.txt",
    "cat sub",
    "head -c 1 /dev/zero",
    "cat ''",
    "cat",
    "head -n",
    "cat big",
    "cat f.txt; echo two >> f.txt",
)


@pytest.mark.parametrize("command", [*SHOWING, *NOT_SHOWING])
async def test_file_printed_by_a_command_counts_as_read(session: Session, command: str) -> None:
    (session.root / "sub").mkdir()
    (session.root / "f.txt").write_text("one\n")
    (session.root / "g.txt").write_text("two\n")
    (session.root / "big").write_text("three\n" * 300_000)
    await session.run(command)
    state = session.ctx.framework.read_state
    assert state is not None
    known = state.digest(str(session.root / "f.txt"))
    digest = hashlib.sha256(b"one\n").hexdigest() if command in SHOWING else None
    assert known == digest
    assert state.digest(str(session.root / "big")) is None


async def test_file_that_changes_meanwhile_does_not_count_as_read(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = session.root / "f.txt"
    file.write_text("one\n")
    state = session.ctx.framework.read_state
    assert state is not None
    spawn = session.ctx.shell.spawn

    async def changed(*given: Any, **more: Any) -> ShellProcess:
        process = await spawn(*given, **more)
        await process.wait()
        await anyio.Path(file).write_text("two\n")
        return process

    monkeypatch.setattr(session.ctx.shell, "spawn", changed)
    await session.run("cat f.txt")
    assert state.digest(str(file)) is None

    async def removed(*given: Any, **more: Any) -> ShellProcess:
        process = await spawn(*given, **more)
        await process.wait()
        await anyio.Path(file).unlink()
        return process

    monkeypatch.setattr(session.ctx.shell, "spawn", removed)
    await session.run("cat f.txt")
    assert state.digest(str(file)) is None
