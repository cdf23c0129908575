"""Where a session keeps its files, and how those of sessions long gone are swept out."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities import budget as spill
from indusagi.capabilities.budget import RETENTION_DAYS, SessionDir
from indusagi.core.app_dirs import state_dir
from indusagi.core.ids import new_ulid
from indusagi.core.time import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable

OLD, YOUNG = RETENTION_DAYS + 0.1, RETENTION_DAYS - 0.1


def sessions() -> Path:
    folder = Path(state_dir()) / "sessions"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def age(path: Path, days: float = OLD) -> Path:
    """Let a path look as if it was last written that long ago."""
    moment = now_ms() / 1_000 - days * 24 * 3_600
    os.utime(path, (moment, moment), follow_symlinks=False)
    return path


def session(days: float = OLD, *, name: str | None = None) -> Path:
    """Make a session with a file in a folder, all of that age."""
    folder = sessions() / (name or new_ulid())
    output = folder / "tool-output"
    output.mkdir(parents=True)
    (output / "a.txt").write_text("kept", encoding="utf-8")
    for path in (output / "a.txt", output, folder):
        age(path, days)
    return folder


def test_sessions_older_than_a_week_are_removed() -> None:
    old, young = session(OLD), session(YOUNG)
    SessionDir().make()
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.parametrize("jump", [60, 400])
def test_finding_r8_a_clock_that_jumps_removes_no_session(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    kept = [session(1), session(2)]
    jumped_ms = now_ms() + jump * 86_400_000
    monkeypatch.setattr(spill, "now_ms", lambda: jumped_ms)
    SessionDir().make()
    session(-jump)
    SessionDir().make()
    assert [folder.exists() for folder in kept] == [True, True]
    session(-jump - 2)
    jumped_ms += 2 * 86_400_000
    SessionDir().make()  # use on a second day: the clock is right
    assert [folder.exists() for folder in kept] == [False, False]


@pytest.mark.parametrize("inner", [".", "tool-output", "tool-output/a.txt"])
def test_session_with_a_recent_file_stays(inner: str) -> None:
    folder = session(OLD)
    age(folder / inner, YOUNG)
    SessionDir().make()
    assert (folder / "tool-output" / "a.txt").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("name", ["old", "backup-2024", "0" * 25, "0" * 25 + "u"])
def test_other_names_are_not_removed(name: str) -> None:
    folder = session(OLD, name=name)
    SessionDir().make()
    assert (folder / "tool-output" / "a.txt").exists()


def test_links_are_neither_followed_nor_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").touch()
    link = sessions() / new_ulid()
    link.symlink_to(age(tmp_path))
    age(link)
    really, listed = os.scandir, list[str]()

    def noted(path: str) -> object:
        listed.append(os.fspath(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", noted)
    spill._sweep(str(sessions()))
    assert (link.is_symlink(), (tmp_path / "data").exists(), listed) == (True, True, [])


def test_link_inside_a_session_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "young").touch()
    old = session(OLD)
    for target in ("young", "."):
        (old / target.replace(".", "folder")).symlink_to(tmp_path / target)
    for path in (old / "young", old / "folder", old):
        age(path)
    SessionDir().make()
    assert (old.exists(), (tmp_path / "young").exists()) == (False, True)


def test_file_with_the_name_of_a_session_is_not_removed() -> None:
    file = sessions() / new_ulid()
    file.touch()
    age(file)
    SessionDir().make()
    assert file.exists()


def test_session_removed_meanwhile_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = session(OLD)
    really = os.scandir

    def after_another_sweeper(path: str) -> object:
        spill._sweep(str(sessions()))
        return really(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", once(after_another_sweeper, really))
        spill._sweep(str(sessions()))
    assert not folder.exists()


def once(first: Callable[[str], object], then: Callable[[str], object]) -> Callable[[str], object]:
    """Give a function that is `first` when it is called for the first time, and then `then`."""
    turns = iter([first])
    return lambda path: next(turns, then)(path)


def test_unreadable_directories_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = session(OLD)

    def refuse(path: str) -> object:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refuse)
        spill._sweep(str(sessions()))
        patched.setattr(os, "listdir", refuse)
        spill._sweep(str(sessions()))
    assert folder.exists()


def test_session_that_cannot_be_removed_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write into a read-only directory: what refuses here is the removal itself.
    folder = session(OLD)

    def refuse(path: str, **_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        patched.setattr(os, "rmdir", refuse)
        made = SessionDir().make()
    assert (folder.exists(), os.path.isdir(made)) == (True, True)


def test_session_has_one_directory() -> None:
    own = SessionDir()
    assert own.make() == own.make()
    assert Path(own.save("a", "x")).parent == Path(own.save("b", "y")).parent


def test_concurrent_saves_share_one_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(2)

    def wait_for_another_thread(path: str) -> None:
        try:
            meeting.wait(0.1)
        except threading.BrokenBarrierError:  # the lock admits one thread
            pass

    monkeypatch.setattr(spill, "_sweep", wait_for_another_thread)
    own = SessionDir()
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(own.save, "probe", str(n)) for n in range(8)]
        saved = [job.result() for job in jobs]
    assert len({os.path.dirname(path) for path in saved}) == 1
    assert len(os.listdir(sessions())) == 1


def test_session_directory_is_independent_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = SessionDir("session")
    made = own.make()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (own.make(), made) == (made, str(tmp_path / "session"))


def test_without_home_nothing_is_made_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for home in ("", "~"):
        monkeypatch.setenv("HOME", home)
        with pytest.raises(OSError, match="no home directory"):
            SessionDir().save("probe", "text")
    assert os.listdir(tmp_path) == []
