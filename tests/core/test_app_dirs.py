from __future__ import annotations

import fcntl
import inspect
import os
import pwd
import stat
import sys
import threading
from pathlib import Path

import pytest

from indusagi.core import app_dirs
from indusagi.core.app_dirs import (
    create_private_file,
    locked_directory,
    make_dirs,
    make_private_dir,
    read_small_file,
    state_dir,
)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_state_directory_is_in_the_home_directory_by_default() -> None:
    assert state_dir() == str(Path.home() / ".local" / "state" / "indus")


def test_xdg_state_home_moves_the_state_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir() == str(tmp_path / "indus")


@pytest.mark.parametrize("value", ["", "relative/path", "."])
def test_relative_xdg_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", value)
    assert state_dir() == str(Path.home() / ".local" / "state" / "indus")


@pytest.mark.parametrize("home", ["", "relative", "~", "."])
def test_relative_home_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    with pytest.raises(OSError, match="set HOME or XDG_STATE_HOME to a full path"):
        state_dir()


def test_home_comes_from_the_password_database_without_home_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(uid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd(("me", "x", uid, uid, "", "/home/me", "/bin/sh"))

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", known)
    assert state_dir() == "/home/me/.local/state/indus"


def test_unknown_user_without_home_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(OSError, match="set HOME or XDG_STATE_HOME to a full path"):
        state_dir()


def test_xdg_state_home_needs_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir() == str(tmp_path / "indus")


def test_private_directory_is_closed_to_other_users(tmp_path: Path) -> None:
    path = make_private_dir(str(tmp_path / "a" / "b"))
    assert mode(path) == 0o700
    assert make_private_dir(path) == path


def test_new_parents_are_private_and_existing_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    former = os.umask(0)
    try:
        make_private_dir(str(tmp_path / "there" / "a" / "b" / "c"))
    finally:
        os.umask(former)
    made = [tmp_path / "there" / name for name in ("a", "a/b", "a/b/c")]
    assert [mode(path) for path in made] == [0o700] * 3
    assert mode(tmp_path / "there") == 0o755


def test_relative_path_starts_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_private_dir("x") == str(tmp_path / "x")
    assert mode(tmp_path / "x") == 0o700


def test_empty_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        make_private_dir("")
    assert mode(tmp_path) == 0o755


def test_existing_directory_is_closed_to_other_users(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    make_private_dir(str(path))
    assert mode(path) == 0o700


def test_c14_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("link", "link/", "link//", "link/."):
        with pytest.raises(PermissionError, match="remove it"):
            make_private_dir(f"{tmp_path}/{name}")


def test_c14_directory_of_another_user_is_refused_unchanged(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" if os.geteuid() == 0 else Path("/")
    if os.geteuid() == 0:
        theirs.mkdir()
        theirs.chmod(0o755)
        os.chown(theirs, 65534, 65534)
    before = mode(theirs)
    with pytest.raises(PermissionError, match="not a directory of this user"):
        make_private_dir(str(theirs))
    assert mode(theirs) == before


def test_c14_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="not a directory of this user"):
        make_private_dir(str(tmp_path / "file"))


def test_c14_private_file_is_not_created_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        create_private_file(str(tmp_path / "link"))
    assert not (tmp_path / "target").exists()


def test_private_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    os.close(create_private_file(str(tmp_path / "file")))
    assert mode(tmp_path / "file") == 0o600


def test_directories_can_be_nested_deeper_than_the_stack(tmp_path: Path) -> None:
    deep = os.path.join(tmp_path, *["d"] * 200)
    former = sys.getrecursionlimit()
    # Lowered, because a thousand directories take seconds.
    sys.setrecursionlimit(len(inspect.stack(0)) + 100)
    try:
        make_dirs(deep)
    finally:
        sys.setrecursionlimit(former)
    assert os.path.isdir(deep)


def test_file_in_place_of_a_parent_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileExistsError):
            make_dirs(str(path))


def test_directory_made_by_another_process_meanwhile_is_fine(tmp_path: Path) -> None:
    make_dirs(f"{tmp_path}/a/../b")  # once there is an a, there is its parent too
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_empty_path_makes_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_dirs("a/b")
    make_dirs("")
    assert os.listdir(tmp_path) == ["a"]


def test_only_a_small_regular_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10)
    assert read_small_file(file, 10) == b"x" * 10
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(file)
    assert read_small_file(tmp_path / "link", 10) == b"x" * 10
    for path, limit, follow in (
        (file, 9, True),
        (tmp_path, 10, True),
        (tmp_path / "fifo", 10, True),
        (tmp_path / "nowhere", 10, True),
        (tmp_path / "link", 10, False),
    ):
        with pytest.raises(OSError, match=r".+"):
            read_small_file(path, limit, follow=follow)


def test_one_thread_at_a_time_holds_the_lock_of_a_directory(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0", encoding="ascii")

    def count() -> None:
        for _ in range(20):
            with locked_directory(str(tmp_path)):
                counter.write_text(str(int(counter.read_text("ascii")) + 1), encoding="ascii")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text("ascii") == "80"
    assert os.listdir(tmp_path) == ["counter"]


def test_wait_for_the_lock_of_a_directory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_dirs, "_LONGEST_WAIT_S", 0.05)
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="held by another process") as caught, locked_directory(str(tmp_path)):
            pass
        assert caught.value.filename == str(tmp_path)
    finally:
        os.close(handle)
    with locked_directory(str(tmp_path)):
        pass
