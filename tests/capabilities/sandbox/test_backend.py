"""What commands cannot do behind each kind of wall that this machine has; tried for real."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread
from tests.support.commands import PYTHON
from tests.support.sandboxes import has_bubblewrap, skip_without
from tests.support.stops import kill_soon, past_its_limit
from tests.support.waiting import is_alive, until

from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import Ended, SandboxMissing, SandboxState
from indusagi.capabilities.sandbox import backend, bubblewrap
from indusagi.capabilities.sandbox.bubblewrap import MASKS
from indusagi.capabilities.sandbox.landlock_run import landlock_abi
from indusagi.capabilities.sandbox.policy import Sandbox, resolve_layout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from indusagi.capabilities.ports import ShellResult
    from indusagi.capabilities.sandbox.policy import Mechanism

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture(params=["bubblewrap", "landlock"])
def mechanism(request: pytest.FixtureRequest) -> Mechanism:
    skip_without(request.param)
    return request.param


@pytest.fixture
def bubblewrapped() -> Mechanism:
    skip_without("bubblewrap")
    return "bubblewrap"


def workspace_in(folder: Path) -> Path:
    """Make a workspace with a repository, beside a neighbour."""
    work = folder / "work"
    work.mkdir()
    (folder / "neighbour").write_text("private\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    return work


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return workspace_in(tmp_path)


@pytest.fixture(params=["/tmp", "/var/tmp"])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A workspace where temporary files are private, and one beside files that can be seen."""
    with TemporaryDirectory(dir=request.param) as folder:
        yield workspace_in(Path(folder).resolve())


@asynccontextmanager
async def shell_in(root: Path, sandbox: Sandbox) -> AsyncGenerator[LocalShell]:
    shell = LocalShell(str(root), sandbox=sandbox)
    try:
        yield shell
    finally:
        await shell.aclose()


async def run(root: Path, command: str, sandbox: Sandbox) -> ShellResult:
    async with shell_in(root, sandbox) as shell:
        return await shell.exec(command, timeout_ms=20_000)


def tree(path: Path) -> dict[str, bytes]:
    """Give all that is in a folder."""
    return {
        str(found.relative_to(path)): found.read_bytes() if found.is_file() else b"/"
        for found in sorted(path.rglob("*"))
    }


# -- what is written ------------------------------------------------------------------------------

OUTSIDE = {
    "plainly": "echo x > {target}",
    "over what is there": "echo x >> {neighbour}",
    "by truncation": ": > {neighbour}",
    "by removal": "rm -f {neighbour}",
    "by renaming": "mv {neighbour} stolen",
    "through a link": "ln -s {outside} link; echo x > link/target",
    "by a hard link": "ln {neighbour} hard && echo x > hard",
    "from another session": "setsid -w sh -c 'echo x > {target}'",
    "from python": "{python} -c \"open('{target}', 'w')\"",
    "from git": "git init -q {target}",
    "from the background": "(echo x > {target}) & wait",
    "as a folder": "mkdir {target}",
    "as a socket": "{python} -c \"import socket; socket.socket(socket.AF_UNIX).bind('{target}')\"",
}


@pytest.mark.parametrize("way", list(OUTSIDE))
async def test_r47_paths_outside_the_workspace_are_not_writable(way: str, mechanism: Mechanism, place: Path) -> None:
    root, outside = place, place.parent
    before = {name: data for name, data in tree(outside).items() if not name.startswith("work")}
    command = OUTSIDE[way].format(
        target=outside / "target", neighbour=outside / "neighbour", outside=outside, python=PYTHON
    )
    result = await run(root, command, Sandbox(mechanisms=(mechanism,)))
    assert result.ended is Ended.EXITED
    after = {name: data for name, data in tree(outside).items() if not name.startswith("work")}
    assert after == before


async def test_workspace_and_temporary_files_are_writable(mechanism: Mechanism, root: Path) -> None:
    command = (
        "set -e; mkdir a b; echo x > a/f; mv a/f b/g; ln b/g h; rm h; : > b/g; echo y > /dev/null;"
        "echo z > /dev/stderr; mktemp; echo q > $TMPDIR/t; (echo bg > bg) & wait; git add -A;"
        "git -c user.name=a -c user.email=b commit -qm first; git log --format=%s"
    )
    result = await run(root, command, Sandbox(mechanisms=(mechanism,)))
    assert result.exit_code == 0, result.output
    assert result.output.endswith(b"first\n")


async def test_temporary_files_last_as_long_as_the_shell(mechanism: Mechanism, root: Path) -> None:
    async with shell_in(root, Sandbox(mechanisms=(mechanism,))) as shell:
        await shell.exec("echo kept > $TMPDIR/file")
        assert (await shell.exec("cat $TMPDIR/file")).output == b"kept\n"
        private = shell._backend._private
        assert private is not None
        assert os.listdir(private.notes) == []
    assert not await anyio.Path(private.root).exists()


async def test_further_paths_can_be_made_writable(mechanism: Mechanism, root: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    sandbox = Sandbox(mechanisms=(mechanism,), writable=(str(tmp_path / "more"), "~/missing"))
    assert (await run(root, f"echo x > {tmp_path}/more/file", sandbox)).exit_code == 0
    assert (tmp_path / "more" / "file").read_text() == "x\n"


async def test_workspace_can_be_read_only(mechanism: Mechanism, root: Path) -> None:
    before = tree(root)
    sandbox = Sandbox(mechanisms=(mechanism,), read_only=True)
    result = await run(root, "echo x > file; echo y > $TMPDIR/f && cat $TMPDIR/f", sandbox)
    assert result.output.endswith(b"y\n")
    assert tree(root) == before


# -- what is protected in the workspace -----------------------------------------------------------

PROTECTED = {
    "a hook": "echo x > .git/hooks/pre-commit",
    "a setting of git": "git config core.hooksPath /tmp/x; echo x >> .git/config",
    "a missing folder of ours": "mkdir -p .indusvx && echo x > .indusvx/mcp.json",
    "the other one": "mkdir -p .indus; echo x > .indus/y",
    "by renaming the folder": "mv .git/hooks old; mkdir .git/hooks; echo x > .git/hooks/y",
    "by renaming the repository": "mv .git new; mkdir -p .git/hooks; echo x > .git/hooks/y",
    "by naming other hooks": "cp -r .git new; echo x > new/hooks/y; echo ../new > .git/commondir",
    "by settings of the worktree": "echo '[core] hooksPath = x' > .git/config.worktree",
    "by putting another in its place": "mkdir new; rmdir .indusvx; mv new .indusvx",
    "from python": "{python} -c \"import os; os.makedirs('.indusvx/x')\"",
    "from another session": "setsid -w sh -c 'mkdir .indusvx/x'",
    "with git": "git init -q .indusvx",
    "with a link": "ln -s /tmp .indusvx; rm -rf .indusvx; ln -s /tmp .indusvx",
    "by mounting": "umount .indusvx; mount -o remount,rw .indusvx; mkdir .indusvx/x",
}


@pytest.mark.parametrize("way", list(PROTECTED))
async def test_r47_c13_protected_paths_stay_unchanged(way: str, bubblewrapped: Mechanism, root: Path) -> None:
    before = tree(root)
    command = PROTECTED[way].format(python=PYTHON)
    result = await run(root, command, Sandbox(mechanisms=(bubblewrapped,)))
    assert result.ended is Ended.EXITED
    after = {path: kept for path, kept in tree(root).items() if path[:3] not in {"new", "old"}}
    assert after == before
    assert not (root / ".indusvx").exists()


async def test_repository_with_protected_hooks_is_usable(bubblewrapped: Mechanism, root: Path) -> None:
    who = "git -c user.name=a -c user.email=b"
    command = (
        f"set -e; echo x > file; git add file; {who} commit -qm one; echo y > file; {who} stash -q;"
        f" {who} stash pop -q; git branch other; git gc -q; git worktree add -q sub;"
        " git worktree remove sub; git log --format=%s"
    )
    result = await run(root, command, Sandbox(mechanisms=(bubblewrapped,)))
    assert (result.output, result.exit_code) == (b"one\n", 0)
    assert (root / "file").read_text() == "y\n"


async def test_c13_absent_protected_path_stays_covered_until_the_last_command_ends(
    bubblewrapped: Mechanism, root: Path
) -> None:
    async with shell_in(root, Sandbox(mechanisms=(bubblewrapped,))) as shell:
        first = await shell.spawn("touch one; until [ -e go ]; do sleep 0.02; done")
        second = await shell.spawn(
            "touch two; until [ -e on ]; do sleep 0.02; done; mkdir .indusvx/x; mkdir .indus/y; :"
        )
        await until(lambda: (root / "one").exists() and (root / "two").exists())
        (root / "go").touch()
        await first.wait()
        await first.aclose()
        assert (root / ".indusvx").exists()
        (root / "on").touch()
        await second.wait()
        await second.aclose()
        await second.aclose()
    assert not (root / ".indusvx").exists()
    assert not (root / ".indus").exists()
    assert MASKS._users == {}


async def test_protected_paths_are_readable(bubblewrapped: Mechanism, root: Path) -> None:
    (root / ".indusvx").mkdir()
    (root / ".indusvx" / "settings").write_text("ours\n")
    sandbox = Sandbox(mechanisms=(bubblewrapped,))
    result = await run(root, "cat .indusvx/settings; git config core.bare", sandbox)
    assert result.output == b"ours\nfalse\n"
    assert (root / ".indusvx" / "settings").exists()


async def test_hooks_of_a_linked_worktree_are_protected(bubblewrapped: Mechanism, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for command in (
        "git init -q main",
        "git -C main -c user.name=a -c user.email=b commit -q --allow-empty -m x",
        "git -C main worktree add -q ../linked",
        "mv linked/.git x; mv main/.git real; ln -s ../real main/.git; mv x linked/.git",
        "sed -i s,main/.git,real, linked/.git",
    ):
        await anyio.run_process(command, cwd=work, check=True)
    folder = work / "linked"
    assert (folder / ".git").is_file()
    before = tree(work / "real" / "hooks")
    sandbox = Sandbox(mechanisms=(bubblewrapped,), writable=(str(work),))
    result = await run(folder, "echo x > ../real/hooks/post-checkout; echo x >> ../real/config", sandbox)
    assert result.output.count(b"Read-only file system") == 2
    assert tree(work / "real" / "hooks") == before
    said = (folder / ".git").read_bytes()
    own = "../real/worktrees/linked"
    result = await run(folder, f"mv .git x; rm -f .git; mkdir .git; mv {own} {own}2; echo y > {own}/commondir", sandbox)
    assert (folder / ".git").read_bytes() == said
    assert tree(folder).keys() == {".git"}
    assert (work / "real" / "worktrees" / "linked" / "commondir").read_text() == "../..\n"


async def test_settings_of_a_worktree_are_protected(bubblewrapped: Mechanism, root: Path) -> None:
    settings = "git config extensions.worktreeConfig true && git config --worktree a.b c"
    await anyio.run_process(settings, cwd=root, check=True)
    sandbox = Sandbox(mechanisms=(bubblewrapped,))
    result = await run(root, "git config --worktree a.b d; git config a.b", sandbox)
    assert result.output.endswith(b"\nc\n")
    assert b"config.worktree" in result.output


async def test_protected_link_is_reported_as_unguarded(bubblewrapped: Mechanism, root: Path) -> None:
    (root / ".git").rename(root / "real")
    (root / ".git").symlink_to("real")
    shutil.move(root / "real" / "hooks", root / "hooks")
    (root / "real" / "hooks").symlink_to("../hooks")
    async with shell_in(root, Sandbox(mechanisms=(bubblewrapped,))) as shell:
        state = await shell.sandbox_state()
    assert state.lacks == ("guard of .git, which is a link", "guard of real/hooks, which is a link")


async def test_landlock_reports_unguarded_sockets(root: Path) -> None:
    skip_without("landlock")
    with TemporaryDirectory(dir="/var/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/socket")
        server.listen()
        reach = f"import socket; socket.socket(socket.AF_UNIX).connect('{folder}/socket')"
        sandbox = Sandbox(mechanisms=("landlock",), hidden=())
        reached = await run(root, f'{PYTHON} -c "{reach}"', sandbox)
        async with shell_in(root, sandbox) as shell:
            state = await shell.sandbox_state()
    assert reached.exit_code == 0
    assert "guard of local sockets" in state.lacks


async def test_landlock_reports_unguarded_modes(root: Path) -> None:
    skip_without("landlock")
    neighbour = root.parent / "neighbour"
    sandbox = Sandbox(mechanisms=("landlock",))
    await run(root, f"chmod 600 {neighbour}", sandbox)
    assert neighbour.stat().st_mode & 0o777 == 0o600
    async with shell_in(root, sandbox) as shell:
        assert "guard of modes and times of files" in (await shell.sandbox_state()).lacks


async def test_landlock_reports_what_it_lacks(root: Path) -> None:
    skip_without("landlock")
    async with shell_in(root, Sandbox(mechanisms=("landlock",))) as shell:
        state = await shell.sandbox_state()
    assert "guard of protected paths in the workspace" in state.lacks
    assert str(state).startswith(f"landlock (abi {landlock_abi()}), network open, without guard")


# -- what is read ---------------------------------------------------------------------------------


async def test_keys_of_the_user_are_hidden(mechanism: Mechanism, root: Path) -> None:
    home = Path(os.environ["HOME"])
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("canary-4711")
    (home / ".netrc").write_text("canary-4711")
    (home / ".local" / "state" / "indus").mkdir(parents=True)
    (home / ".local" / "state" / "indus" / "trust.json").write_text("canary-4711")
    (home / "notes").write_text("harmless")
    command = "cat ~/.ssh/id ~/.netrc ~/.local/state/indus/trust.json; cp -r ~/.ssh here; cat here/*"
    result = await run(root, command, Sandbox(mechanisms=(mechanism,)))
    assert b"canary-4711" not in result.output
    assert all(b"canary" not in data for data in tree(root).values())


async def test_other_files_are_readable(mechanism: Mechanism, root: Path) -> None:
    home = Path(os.environ["HOME"])
    (home / ".ssh").mkdir()
    sandbox = Sandbox(mechanisms=(mechanism,))
    result = await run(root, "head -1 /etc/passwd && ls / /etc > /dev/null && git --version", sandbox)
    assert result.exit_code == 0


async def test_r39_environment_of_this_process_is_hidden(mechanism: Mechanism, root: Path) -> None:
    """A canary among the variables this process was started with is out of reach."""
    script = f"""
import anyio
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.sandbox.policy import Sandbox

async def main():
    shell = LocalShell({str(root)!r}, sandbox=Sandbox(mechanisms=({mechanism!r},)))
    command = "env; cat /proc/$PPID/environ /proc/[0-9]*/environ | tr '\\\\0' '\\\\n'; true"
    print((await shell.exec(command)).output.decode(errors="replace"))

anyio.run(main)
"""
    env = {**os.environ, "CANARY_TOKEN": "canary-4711"}
    done = await anyio.run_process([sys.executable, "-c", script], env=env, check=True)
    assert b"PATH=" in done.stdout
    assert b"canary-4711" not in done.stdout


# -- processes and network ------------------------------------------------------------------------


async def test_other_processes_cannot_be_signalled(mechanism: Mechanism, root: Path) -> None:
    if mechanism == "landlock" and landlock_abi() < 6:
        pytest.skip("this Landlock knows nothing of signals")
    other = await anyio.open_process(["sleep", "600"])
    try:
        result = await run(root, f"kill -9 {other.pid}", Sandbox(mechanisms=(mechanism,)))
        assert result.exit_code != 0
        assert is_alive(other.pid)
    finally:
        other.kill()
        await other.aclose()


@pytest.mark.parametrize("allowed", [True, False])
async def test_network_follows_the_setting(mechanism: Mechanism, root: Path, allowed: bool) -> None:
    if mechanism == "landlock" and landlock_abi() < 4:
        pytest.skip("this Landlock knows nothing of networks")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sandbox = Sandbox(mechanisms=(mechanism,), network=allowed)
        result = await run(root, f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected", sandbox)
    assert (result.output == b"connected\n") is allowed


async def test_background_processes_are_found_and_ended(mechanism: Mechanism, root: Path) -> None:
    async with shell_in(root, Sandbox(mechanisms=(mechanism,))) as shell:
        process = await shell.spawn("setsid sleep 600 & sleep 600 & echo done")
        assert await process.wait() == 0
        left = await anyio.to_thread.run_sync(process.survivors)
        assert len(left) == 2
        assert all(map(is_alive, left))
        await process.aclose()
        assert not any(map(is_alive, left))


async def test_process_without_session_and_environment_is_ended_in_the_namespace(
    bubblewrapped: Mechanism, root: Path
) -> None:
    async with shell_in(root, Sandbox(mechanisms=(bubblewrapped,))) as shell:
        async with await shell.spawn(
            "env -i setsid sh -c 'touch up; exec sleep 600' >/dev/null 2>&1 & until [ -e up ]; do sleep 0.02; done"
        ) as process:
            await process.wait()
            left = await to_thread.run_sync(process.survivors)
            names = [await anyio.Path(f"/proc/{pid}/comm").read_text() for pid in left]
            assert names in (["sleep\n"], ["sh\n"])
        assert not any(map(is_alive, left))
        async with await shell.spawn("exit 0") as process:
            await process.wait()
            assert list(await to_thread.run_sync(process.survivors)) == []


async def test_writer_without_a_reader_is_ended_by_sigpipe(mechanism: Mechanism, root: Path) -> None:
    result = await run(root, "yes | head -n 1", Sandbox(mechanisms=(mechanism,)))
    assert result.output == b"y\n"


async def test_command_past_its_time_limit_is_ended_in_its_sandbox(
    mechanism: Mechanism, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_soon(monkeypatch)
    async with shell_in(root, Sandbox(mechanisms=(mechanism,))) as shell:
        command = "echo so far; trap '' TERM; setsid sh -c 'touch ready; exec sleep 600'"
        result = await past_its_limit(
            lambda: shell.exec(command, timeout_ms=600_000), (root / "ready").exists, monkeypatch
        )
    assert (result.ended, result.output) == (Ended.TIMEOUT, b"so far\n")


async def test_shell_records_its_final_directory(mechanism: Mechanism, root: Path) -> None:
    (root / "sub").mkdir()
    async with shell_in(root, Sandbox(mechanisms=(mechanism,))) as shell:
        process = await shell.spawn("cd sub; exit 3")
        assert await process.wait() == 3
        assert await process.final_cwd() == str(root / "sub")
        assert await process.final_cwd() == str(root / "sub")
        await process.aclose()


# -- which backend is chosen ------------------------------------------------------------------------


async def test_first_working_mechanism_is_used(root: Path) -> None:
    async with shell_in(root, Sandbox()) as shell:
        state = await shell.sandbox_state()
    wanted = "bubblewrap" if has_bubblewrap() else "landlock" if landlock_abi() else "none"
    assert state.kind == wanted


def a_bubblewrap_that(does: str, folder: Path) -> str:
    """Put a program of that name into a folder of its own, and give the path for programs."""
    folder.mkdir()
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo 'No permissions to create a namespace' >&2; exit 1", "No permissions to create"),
        ("exit 3", "exit code 3"),
        ("exec sleep 600", "did not end within"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "without holding them in"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec unshare -r "$@"', "without holding them in"),
    ],
)
async def test_broken_bubblewrap_is_not_used(
    does: str, said: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "unshare" in does and (await anyio.run_process("unshare -r true", check=False)).returncode:
        pytest.skip("a namespace cannot be made here")
    if "sleep" in does:
        monkeypatch.setattr(bubblewrap, "_PROBE_S", 0.05)
    monkeypatch.setenv("PATH", a_bubblewrap_that(does, tmp_path / "bin"))
    async with shell_in(root, Sandbox(mechanisms=("bubblewrap",))) as shell:
        state = await shell.sandbox_state()
    assert state.kind == "none"
    assert state.detail.startswith("bubblewrap does not work here: ")
    assert said in state.detail


async def test_bubblewrap_that_could_not_be_started_is_probed_again(
    bubblewrapped: Mechanism, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_bubblewrap_that(f'exec {shlex.quote(shutil.which("bwrap") or "")} "$@"', tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    async with shell_in(root, Sandbox(mechanisms=(bubblewrapped,))) as shell:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", refuse)
            state = await shell.sandbox_state()
        assert (state.kind, "Too many open files" in state.detail) == ("none", True)
        assert (await shell.sandbox_state()).kind == "bubblewrap"


async def test_older_bubblewrap_is_used_with_older_options(
    bubblewrapped: Mechanism, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shlex.quote(shutil.which("bwrap") or "")
    does = f'case "$*" in *--disable-userns*) exit 1;; esac; exec {real} "$@"'
    path = a_bubblewrap_that(does, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    neighbour = place.parent / "neighbour"
    way_out = f"mount -o remount,bind,rw /; echo x > {neighbour}; rm -f {neighbour}"
    command = f"echo ran; ({way_out}) 2>/dev/null"
    result = await run(place, command, Sandbox(mechanisms=(bubblewrapped,)))
    assert result.output == b"ran\n"
    assert neighbour.read_text() == "private\n"


async def test_missing_sandbox_is_explained(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(backend, "_find_landlock", lambda: (0, "this system has no Landlock"))
    async with shell_in(root, Sandbox()) as shell:
        state = await shell.sandbox_state()
    assert str(state) == "none: bubblewrap is not installed; this system has no Landlock"


async def test_required_sandbox_that_is_missing_refuses_commands_with_a_remedy(root: Path) -> None:
    with pytest.raises(SandboxMissing, match="install bubblewrap"):
        await run(root, "touch ran", Sandbox(mode="required", mechanisms=()))
    assert not (root / "ran").exists()


async def test_required_network_isolation_that_is_missing_refuses_commands(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_find_landlock", lambda: (3, ""))
    sandbox = Sandbox(mode="required", mechanisms=("landlock",), network=False)
    with pytest.raises(SandboxMissing, match="guard of protected paths"):
        await run(root, "true", sandbox)


@pytest.mark.parametrize(
    ("abi", "network", "lacks"),
    [
        (1, True, ("guard of protected paths in the workspace", "guard against truncation of files")),
        (3, False, ("guard of protected paths in the workspace", "guard of the network")),
        (7, False, ("guard of protected paths in the workspace", "guard of UDP")),
    ],
)
def test_landlock_lacks_depend_on_its_version(abi: int, network: bool, lacks: tuple[str, ...], root: Path) -> None:
    layout = resolve_layout(Sandbox(network=network), str(root))
    always = ("guard of local sockets", "guard of modes and times of files")
    assert backend.landlock_lacks(abi, layout) == (*always, *lacks)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (SandboxState(kind="off", detail="switched off"), "none: switched off"),
        (SandboxState(kind="bubblewrap", network=False), "bubblewrap, network off"),
        (SandboxState(kind="landlock", detail="abi 4", lacks=("a",)), "landlock (abi 4), network open, without a"),
    ],
)
def test_sandbox_state_is_formatted(state: SandboxState, shown: str) -> None:
    assert str(state) == shown


async def test_absent_working_directory_leaves_no_covers(bubblewrapped: Mechanism, root: Path) -> None:
    async with shell_in(root, Sandbox(mechanisms=(bubblewrapped,))) as shell:
        with pytest.raises(FileNotFoundError):
            await shell.spawn("true", cwd="nowhere")
        with pytest.raises(FileExistsError):
            await shell.spawn("true", output_path="/etc/passwd")
    assert MASKS._users == {}


async def test_dangling_protected_link_does_not_stop_commands(mechanism: Mechanism, root: Path) -> None:
    (root / ".indusvx").symlink_to("nowhere")
    assert (await run(root, "echo ran", Sandbox(mechanisms=(mechanism,)))).output == b"ran\n"


async def test_inner_shell_does_not_record_its_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indusagi.capabilities.local.shell._SHELLS", ("/bin/sh",))
    async with shell_in(root, Sandbox(mode="off")) as shell:
        process = await shell.spawn("bash -c 'cd /'")
        await process.wait()
        assert await process.final_cwd() is None
        await process.aclose()


async def test_root_can_use_the_workspace_of_another_user(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can")
    os.chown(root, 65534, 65534)
    async with shell_in(root, Sandbox()) as shell:
        state = await shell.sandbox_state()
        result = await shell.exec("touch made")
    assert state.kind == ("landlock" if landlock_abi() else "none")
    assert result.exit_code == 0, result.output
    assert (root / "made").exists()


async def test_absent_workspace_has_a_sandbox_state(tmp_path: Path) -> None:
    async with shell_in(tmp_path / "nowhere", Sandbox()) as shell:
        assert (await shell.sandbox_state()).kind in {"bubblewrap", "landlock", "none"}


async def test_kernel_settings_are_read_only(mechanism: Mechanism, root: Path) -> None:
    """Asked without writing: a test must not change the machine if the sandbox is missing."""
    levers = [
        *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger"),
        *("/sys/kernel/uevent_helper", "/sys/power/state", "/dev/mem", "/dev/kmsg"),
    ]
    script = (
        "import os, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try: os.close(os.open(path, os.O_WRONLY))\n"
        "    except OSError: continue\n"
        "    print(path)\n"
    )
    (root / "try.py").write_text(script, encoding="utf-8")
    command = f"{PYTHON} -S try.py {' '.join(levers)}; echo tried"
    result = await run(root, command, Sandbox(mechanisms=(mechanism,)))
    assert result.output == b"tried\n"


async def test_sockets_of_program_launchers_are_hidden(
    bubblewrapped: Mechanism, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory(dir="/var/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        path = f"{folder}/docker.sock"
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        server.bind(path)
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('{path}')"
        command = f'{PYTHON} -S -c "{script}" && echo reached'
        open_to_all = await run(root, command, Sandbox(mechanisms=(bubblewrapped,), hidden=()))
        closed = await run(root, command, Sandbox(mechanisms=(bubblewrapped,)))
    assert open_to_all.output == b"reached\n"
    assert b"reached" not in closed.output
