"""Commands that only read run without a question; what may do more, or reads elsewhere, is asked about."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.permissions.support import StubShell, card, context, rules
from tests.support.sandboxes import skip_without

from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import SandboxState
from induscode.launch.invocation import Invocation
from induscode.launch.settings import APPROVAL_HARMLESS, Settings
from induscode.permissions import load_permissions
from induscode.permissions.check import Permissions
from induscode.permissions.plan_mode import PlanMode
from induscode.permissions.policy import ApprovalMode
from induscode.permissions.rules import Effect

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with a repository, a file, and a link that leads outside."""
    folder = tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret\n", encoding="utf-8")
    (folder / "link").symlink_to(tmp_path / "secret.txt")
    (folder / "sub" / "b.txt").write_text("three\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(folder)], check=True, timeout=60)
    return folder


async def decide(folder: Path, command: str, permissions: Permissions | None = None, **more: object) -> Effect:
    permissions = permissions or Permissions(harmless=True)
    decision = await permissions.preview(card("bash", folder), {"command": command, **more}, context(folder))  # type: ignore[dict-item]
    return decision.effect  # type: ignore[union-attr]


HARMLESS = [
    *("ls", "ls -la sub", "cat a.txt", "head -n 1 a.txt | wc -l", "seq 1 400 | tail -5", "echo done > /dev/null"),
    *("grep -rn one .", "find . -name '*.txt'", "wc -l < a.txt", "cd sub && cat b.txt", "pwd; date; uname -a"),
    *("sed -n 1,5p a.txt", "sort a.txt | uniq -c", "test -f a.txt && echo yes", "cat a.txt 2>&1", "LC_ALL=C ls"),
    *("git status", "git diff --stat", "git log --oneline -5", "git --no-pager show HEAD", "git ls-files sub"),
]
MORE = [
    *("rm a.txt", "cat a.txt > b.txt", "touch x", "sed -i s/a/b/ a.txt", "sort -o a.txt a.txt", "find . -delete"),
    *("find . -exec cat {} +", "curl example.org", "getent hosts example.org", "git fetch", "git add .", "git commit"),
    *("git -c core.pager=sh log", "git diff --ext-diff", "git log --output=x", "git diff --no-index /etc/passwd a.txt"),
    *("cat /etc/passwd", "cat ../secret.txt", "cat ~/.netrc", "cat link", "grep -f link a.txt", "grep -flink a.txt"),
    *("wc --files0-from=link", "grep -R secret .", "rg -L secret", "rg --follow secret", "rg --pre sh x", "cat *"),
    *("cat $x", "cat $(echo link)", "./ls", "bash -c ls", "env ls", "printenv", "ps aux", "python3 -c 1", "xargs ls"),
    *("ls && rm a.txt", "cat a.txt | sh", "cat < link", "cd .. && cat secret.txt", "cd sub && cat ../../secret.txt"),
    *("PATH=. ls", "GIT_EXTERNAL_DIFF=./x git diff", "ls {a,link}", "cat {a.txt,../secret.txt}", "sleep 600", "yes"),
    *("cd sub && git status", "git -C sub status", "alias ls=rm; ls", "eval ls", "sed 'w x' a.txt", "sed e a.txt"),
    *("printf -v PATH x", "tee x", "awk 1 a.txt", "while :; do ls; done", "ls &", ""),
]


@pytest.mark.parametrize("command", HARMLESS)
async def test_a_command_that_only_reads_the_workspace_runs_without_a_question(command: str, work: Path) -> None:
    assert await decide(work, command) is Effect.ALLOW
    assert await decide(work, command, Permissions()) is Effect.ASK, "the setting is off"
    held = Permissions(harmless=True, limits="this agent only reads")
    assert await decide(work, command, held) is Effect.ASK


@pytest.mark.parametrize("command", MORE)
async def test_a_command_that_may_do_more_is_asked_about(command: str, work: Path) -> None:
    assert await decide(work, command) is not Effect.ALLOW


@pytest.mark.parametrize("kind", ["none", "landlock", "off"])
async def test_without_bubblewrap_every_command_is_asked_about(kind: str, work: Path) -> None:
    shell = StubShell(str(work), SandboxState(kind=kind))  # type: ignore[arg-type]
    decision = await Permissions(harmless=True).preview(
        card("bash", work), {"command": "ls"}, make_local_context(work, shell=shell)
    )
    assert decision.effect is Effect.ASK  # type: ignore[union-attr]


async def test_a_rule_about_reading_holds_for_harmless_commands(work: Path) -> None:
    for text in ("read(a.txt)", "read(*.txt)", "grep(a.txt)", "read"):
        for effect in ("deny", "ask"):
            given = Permissions(rules(**{effect: text}), harmless=True)
            assert await decide(work, "cat a.txt", given) is not Effect.ALLOW, (effect, text)
            assert await decide(work, "grep -r x", given) is not Effect.ALLOW, (effect, text)
    denied = Permissions(rules(deny="bash(cat *)"), harmless=True)
    assert await decide(work, "cat a.txt", denied) is Effect.DENY
    assert await decide(work, "ls", denied) is Effect.ALLOW


async def test_a_background_command_is_asked_about(work: Path) -> None:
    assert await decide(work, "ls", background=True) is Effect.ASK


@pytest.mark.parametrize(
    "setting",
    [
        "[core]\n\tfsmonitor = ./evil", "[diff]\n\texternal = ./evil", '[diff "x"]\n\ttextconv = ./evil',
        '[filter "x"]\n\tclean = ./evil', "[include]\n\tpath = evil", "[core]\n\thooksPath = .", "[core] fsmonitor=./x",
        '[includeIf "gitdir:~/"]\n\tpath = x', "[extensions]\n\tpartialClone = evil", "[alias]\n\tstatus = !evil",
        '[remote "o"]\n\tpromisor = true', "[core]\n\tbare = false \\\n\tfsmonitor = x", "[CORE]\n\tFSMonitor = ./evil",
    ],
)  # fmt: skip
async def test_git_is_asked_about_where_a_repository_names_programs(setting: str, work: Path) -> None:
    with (work / ".git" / "config").open("a", encoding="utf-8") as file:
        file.write(f"\n{setting}\n")
    assert await decide(work, "git status") is Effect.ASK
    assert await decide(work, "ls") is Effect.ALLOW


async def test_git_is_asked_about_with_submodules_and_outside_a_repository(work: Path) -> None:
    (work / ".gitmodules").write_text("", encoding="utf-8")
    assert await decide(work, "git status") is Effect.ASK
    assert await decide(work / "sub", "git status") is Effect.ASK


async def test_a_program_of_the_workspace_is_asked_about(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "ls").write_text("#!/bin/sh\ntouch owned\n", encoding="utf-8")
    (work / "ls").chmod(0o755)
    for first in (str(work), ".", str(work / "sub" / "..")):
        monkeypatch.setenv("PATH", f"{first}{os.pathsep}{os.environ['PATH']}")
        assert await decide(work, "ls") is Effect.ASK
        monkeypatch.undo()


@pytest.mark.process
async def test_a_harmless_command_can_neither_write_nor_reach_the_network(work: Path) -> None:
    """Even if a program did more than its table says: `touch` stands for it."""
    skip_without("bubblewrap")
    async with make_local_context(work, shell=LocalShell(str(work))) as ctx:
        permissions = Permissions(harmless=True)
        result = await permissions.run(card("bash", work), {"command": "cat a.txt; git status --short"}, ctx)
        assert "two" in str(result.content)
        assert "network" in str(result.details["sandbox"])
        assert isinstance(ctx.shell, LocalShell)
        confined = ctx.shell.confine()
        done = await confined.exec("touch owned; cat /proc/net/dev | tail -n +3; git config core.fsmonitor")
        assert b"Read-only file system" in done.output
        assert done.output.count(b":") <= 3, "only the loopback"
        assert done.output.endswith(b"false\n")
        assert not (work / "owned").exists()
        unasked = Permissions(harmless=True, approval=ApprovalMode.ALL)
        assert not (await unasked.check(card("bash", work), {"command": "ls"}, ctx)).confined


@pytest.mark.parametrize(
    ("is_on", "mode"), [(True, PlanMode(approves=False)), (False, PlanMode(approves=False)), (True, None)]
)
async def test_only_a_conversation_with_the_setting_runs_it(is_on: bool, mode: PlanMode | None, work: Path) -> None:
    settings = Settings().with_flag(APPROVAL_HARMLESS, is_on)
    setup = load_permissions(Invocation(cwd=str(work), settings=settings), mode)
    effect = await decide(work, "ls", setup.permissions)
    assert effect is (Effect.ALLOW if is_on and mode is not None else Effect.ASK)
