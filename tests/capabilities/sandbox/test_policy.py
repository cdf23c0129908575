"""What a setting comes to in a given workspace."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.sandbox.backend import landlock_argv
from indusagi.capabilities.sandbox.bubblewrap import PrivateDir, bubblewrap_argv, is_bubblewrap_helper
from indusagi.capabilities.sandbox.landlock_run import landlock_abi, list_without
from indusagi.capabilities.sandbox.policy import Sandbox, find_git_directories, resolve_layout

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence
    from pathlib import Path

HOME_LESS = pytest.mark.parametrize("home", ["", "relative"])


def argv_for(sandbox: Sandbox, workspace: str, masked: Sequence[str] = ()) -> list[str]:
    layout = resolve_layout(sandbox, workspace)
    return bubblewrap_argv(["bwrap"], layout, masked, PrivateDir("/private"), workspace)


def test_workspace_without_repository_has_no_git_paths(tmp_path: Path) -> None:
    layout = resolve_layout(Sandbox(), str(tmp_path))
    assert layout.protected == (str(tmp_path / ".indusvx"), str(tmp_path / ".indus"))
    assert find_git_directories(str(tmp_path)) == []


@pytest.mark.parametrize("said", ["nonsense", "gitdir: a\0b", ""])
def test_invalid_git_file_has_no_git_paths(said: str, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(said, encoding="utf-8")
    assert find_git_directories(str(tmp_path)) == []


def test_worktree_has_its_own_and_the_shared_git_directory(tmp_path: Path) -> None:
    own = tmp_path / "main" / ".git" / "worktrees" / "x"
    own.mkdir(parents=True)
    (tmp_path / ".git").write_text("gitdir: main/.git/worktrees/x\n", encoding="utf-8")
    assert find_git_directories(str(tmp_path)) == [str(own)]
    (own / "commondir").write_text("../..\n", encoding="utf-8")
    assert find_git_directories(str(tmp_path)) == [str(own), str(tmp_path / "main" / ".git")]


def test_workspace_in_a_hidden_directory_is_readable(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    (keys / "project").mkdir(parents=True)
    sandbox = Sandbox(hidden=(str(keys),))
    assert str(keys) not in resolve_layout(sandbox, str(keys / "project")).hidden
    assert str(keys) in resolve_layout(sandbox, str(tmp_path)).hidden


def test_folders_above_a_hidden_path_are_held_up_to_the_workspace(tmp_path: Path) -> None:
    """Otherwise a command renames one of them, and makes another in its place."""
    key = tmp_path / "a" / "b" / "key"
    key.parent.mkdir(parents=True)
    key.touch()
    layout = resolve_layout(Sandbox(hidden=("a/b/key",)), str(tmp_path))
    assert layout.held == (str(tmp_path / "a"), str(tmp_path / "a" / "b"))


@HOME_LESS
def test_without_home_the_state_directory_is_not_hidden(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    assert resolve_layout(Sandbox(hidden=()), str(tmp_path)).hidden == ()


def test_read_only_paths_need_no_protection(tmp_path: Path) -> None:
    assert resolve_layout(Sandbox(read_only=True), str(tmp_path)).protected == ()


def test_root_directory_can_be_the_workspace() -> None:
    argv = argv_for(Sandbox(hidden=(), protected=()), "/")
    assert argv[argv.index("/") - 1] == "--bind"
    assert argv.count("/") == 3  # the bind, and where it starts
    closed = argv_for(Sandbox(read_only=True, network=False, hidden=()), "/")
    assert closed[closed.index("/") - 1] == "--ro-bind"
    assert "--unshare-net" in closed


def test_hidden_paths_are_mounted_after_writable_ones(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "token").touch()
    hidden = (str(tmp_path / "keys"), str(tmp_path / "token"))
    argv = argv_for(Sandbox(hidden=hidden), str(tmp_path), (str(tmp_path / ".indus"),))
    opened = argv.index(str(tmp_path))
    assert argv[argv.index(hidden[0]) - 1] == "--tmpfs"
    assert argv[argv.index(hidden[1]) - 1] == "/dev/null"
    assert min(map(argv.index, hidden)) > opened


def test_landlock_readable_paths_exclude_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "other").touch()
    (tmp_path / "link").symlink_to("keys")
    read = list_without("/", [str(tmp_path / "keys")])
    assert str(tmp_path / "other") in read
    assert "/usr" in read
    for hidden in (tmp_path / "keys", tmp_path / "link", tmp_path):
        assert str(hidden) not in read
    assert list_without("/", []) == ["/"]


def test_landlock_rules_list_hidden_and_readable_paths(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    keys = str(tmp_path / "keys")
    private = PrivateDir(str(tmp_path / "keys" / "private"))
    layout = resolve_layout(Sandbox(hidden=(keys,), read_only=True), "/usr")
    rules = json.loads(landlock_argv(layout, private)[-1])
    assert (rules["hidden"], rules["read"]) == ([keys, "/dev"], [private.root])
    assert "/usr" not in rules["write"]


def test_landlock_command_line_stays_short(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    for number in range(2_000):
        (tmp_path / f"{number:0100}").touch()
    layout = resolve_layout(Sandbox(hidden=(str(tmp_path / "keys"),)), "/usr")
    assert len(landlock_argv(layout, PrivateDir("/private"))[-1]) < 4_096
    assert len(list_without(str(tmp_path), [str(tmp_path / "keys")])) == 2_000


def test_unreadable_directory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").mkdir()
    listed = os.listdir

    def refuse(path: str) -> list[str]:
        if path == str(tmp_path):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    read = list_without("/", [str(tmp_path / "keys")])
    assert not any(path.startswith(str(tmp_path)) for path in read)


def test_ended_or_unreadable_process_is_not_a_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_bubblewrap_helper(2**22 + 1)
    assert not is_bubblewrap_helper(os.getpid())

    def refuse(*_: object) -> None:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr("builtins.open", refuse)
    assert is_bubblewrap_helper(os.getpid())


@pytest.mark.parametrize(("answer", "abi"), [(-1, 0), (1, 1), (6, 6)])
def test_finding_e10_the_landlock_version_is_the_answer_of_the_kernel(
    answer: int, abi: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See landlock_create_ruleset(2): flag 1 asks for the version; an error means no Landlock."""
    asked: list[tuple[object, ...]] = []

    class Libc:
        def __init__(self, _: None) -> None: ...

        def syscall(self, number: int, attributes: None, size: ctypes.c_size_t, flags: int) -> int:
            asked.append((number, attributes, size.value, flags))
            return answer

    monkeypatch.setattr("ctypes.CDLL", Libc)
    assert (landlock_abi(), asked) == (abi, [(444, None, 0, 1)])
