from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from indusagi.core.places import create_private_file, make_private_dir, state_dir


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_state_lives_below_the_home_directory_by_default() -> None:
    assert state_dir() == str(Path.home() / ".local" / "state" / "indus")


def test_xdg_state_home_moves_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir() == str(tmp_path / "indus")


@pytest.mark.parametrize("value", ["", "relative/path", "."])
def test_a_relative_xdg_state_home_is_ignored(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", value)
    assert state_dir() == str(Path.home() / ".local" / "state" / "indus")


def test_a_private_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = make_private_dir(str(tmp_path / "a" / "b"))
    assert mode(path) == 0o700
    assert make_private_dir(path) == path


def test_a_directory_that_others_could_enter_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    make_private_dir(str(path))
    assert mode(path) == 0o700


def test_c14_a_link_prepared_by_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="remove it"):
        make_private_dir(str(tmp_path / "link"))


def test_c14_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="not a directory of this user"):
        make_private_dir(str(tmp_path / "file"))


def test_c14_a_private_file_never_goes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        create_private_file(str(tmp_path / "link"))
    assert not (tmp_path / "target").exists()


def test_a_private_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    os.close(create_private_file(str(tmp_path / "file")))
    assert mode(tmp_path / "file") == 0o600
