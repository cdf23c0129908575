"""Process trees: finding and signalling descendants, with real processes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from indusagi.core.ids import new_ulid
from indusagi.core.process import tree
from indusagi.core.process.tree import MARK, Activity, ProcessTree, select_settled, signal_group, signal_processes

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

pytestmark = pytest.mark.process
SLEEP = ("sleep", "600")


@contextmanager
def leading(*argv: str, mark: str | None = None) -> Generator[subprocess.Popen[bytes]]:
    """Start the leader of a session, and kill its group afterwards."""
    env = dict(os.environ) if mark is None else {**os.environ, MARK: mark}
    process = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, env=env)
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def line_of(process: subprocess.Popen[bytes]) -> int:
    """Read a number that the process has printed."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def exit_of(process: subprocess.Popen[bytes]) -> None:
    """Wait for the exit of a process without collecting it."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_zombie_is_not_running() -> None:
    with leading("true") as process:
        exit_of(process)
        assert signal_group(process.pid, 0)
        assert ProcessTree(new_ulid()).list_running(process.pid) == []


def test_absent_group_is_reported() -> None:
    with leading("true") as process:
        process.wait()
        assert not signal_group(process.pid, 0)


def test_group_that_may_not_be_signalled_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", refuse)
        assert signal_group(1, signal.SIGTERM)


def test_processes_of_the_session_are_found_in_any_group() -> None:
    with leading("bash", "-c", "set -m; sleep 600 & echo $!; wait") as process:
        child = line_of(process)
        found = {one.pid: one for one in ProcessTree(new_ulid()).list_running(process.pid)}
        assert found.keys() == {process.pid, child}
        assert (found[child].group, found[child].session) == (child, process.pid)
        signal_processes(list(found.values()), signal.SIGKILL)
        process.wait()


def test_program_name_with_parentheses_and_digits_is_parsed(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    path = tmp_path / "a) Z 1 1 ("
    shutil.copy(sleep, path)
    with leading(str(path), "600") as process:
        assert [one.pid for one in ProcessTree(new_ulid()).list_running(process.pid)] == [process.pid]


def test_descendant_in_another_session_is_found_by_its_marker() -> None:
    mark = new_ulid()
    script = "setsid sh -c 'echo $$; exec sleep 600' &"
    with leading("sh", "-c", script, mark=mark) as process:
        child = line_of(process)
        exit_of(process)
        assert ProcessTree(new_ulid()).list_running(process.pid) == []
        while not (left := ProcessTree(mark).list_running(process.pid)):
            pass  # during execve(2) a process shows no environment
        assert [one.pid for one in left] == [child]
        assert ProcessTree(new_ulid()).list_running(None) == []
        signal_processes(ProcessTree(mark).list_running(None), signal.SIGKILL)


def test_descendant_without_session_and_environment_is_found_by_its_parent_and_remembered() -> None:
    script = "env -i setsid sh -c 'echo $$; exec sleep 600' & wait"
    with leading("sh", "-c", script) as process:
        child = line_of(process)
        tree = ProcessTree(new_ulid())
        assert {process.pid, child} <= {one.pid for one in tree.list_running(process.pid)}
        process.kill()
        process.wait()
        left = tree.list_running(None)
        assert {one.session for one in left} == {child}
        assert ProcessTree(new_ulid()).list_running(None) == []
        signal_processes(left, signal.SIGKILL)


def test_own_process_is_never_part_of_a_tree() -> None:
    tree = ProcessTree(new_ulid())
    tree.pipe = os.readlink("/proc/self/fd/1")
    assert os.getpid() not in {one.pid for one in tree.list_running(None)}


def test_marker_of_an_outer_program_is_found_beside_the_inner_one() -> None:
    outer, inner = new_ulid(), new_ulid()
    with leading("sh", "-c", "echo $$; sleep 600; :", mark=f"{outer} {inner}") as process:
        leader = line_of(process)
        assert leader in {one.pid for one in ProcessTree(outer).list_running(None)}
        assert leader in {one.pid for one in ProcessTree(inner).list_running(None)}


def test_process_that_is_being_replaced_is_found_by_its_marker_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = new_ulid()
    with leading(*SLEEP, mark=mark) as process:
        answers = [b"", b""]  # within execve(2)

        really = tree.read_proc_file

        def read(pid: int, name: str) -> bytes | None:
            is_replaced = pid == process.pid and name == "environ" and answers
            return answers.pop() if is_replaced else really(pid, name)

        monkeypatch.setattr(tree, "read_proc_file", read)
        assert process.pid in {one.pid for one in ProcessTree(mark).list_running(None)}
        assert answers == []


def test_process_that_was_started_during_the_listing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = new_ulid()
    started: list[subprocess.Popen[bytes]] = []
    listdir = os.listdir

    def list_and_start(path: str) -> list[str]:
        names = listdir(path)
        if path == "/proc" and not started:
            started.append(subprocess.Popen(SLEEP, env={**os.environ, MARK: mark}))
        return names

    monkeypatch.setattr(os, "listdir", list_and_start)
    found = [one.pid for one in ProcessTree(mark).list_running(None)]
    (process,) = started
    process.kill()
    process.wait()
    assert found == [process.pid]


def test_young_process_has_not_settled() -> None:
    with leading(*SLEEP) as process:
        (found,) = ProcessTree(new_ulid()).list_running(process.pid)
        later = replace(found, started=found.started + 100_000)
        former = replace(found, started=found.started - 100)
        assert select_settled([later, former]) == {former.key}


def test_other_process_with_the_same_pid_is_not_signalled() -> None:
    with leading(*SLEEP) as process:
        (found,) = ProcessTree(new_ulid()).list_running(process.pid)
        signal_processes([replace(found, started=found.started - 1)], signal.SIGKILL)
        assert ProcessTree(new_ulid()).list_running(process.pid) == [found]
        signal_processes([found], signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_process_is_signalled_by_pid_without_a_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with leading(*SLEEP) as process:
        signal_processes(ProcessTree(new_ulid()).list_running(process.pid), signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_process_that_may_not_be_signalled_does_not_spare_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(handle: int, number: int) -> None:
        tried.append(number)
        raise PermissionError

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with leading("sh", "-c", "sleep 600 & echo $!; wait") as process:
        line_of(process)
        signal_processes(ProcessTree(new_ulid()).list_running(process.pid), signal.SIGTERM)
        assert tried == [signal.SIGTERM] * 2


def test_without_procfs_only_the_group_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", missing)
    with leading(*SLEEP) as process:
        (found,) = ProcessTree(new_ulid()).list_running(process.pid)
        assert found.pid == process.pid
        assert ProcessTree(new_ulid()).list_running(process.pid) == [found]
        assert ProcessTree(new_ulid()).snapshot_children(process.pid) == [found]
        assert ProcessTree(new_ulid()).list_running(None) == []
        signal_processes([found], signal.SIGKILL)  # nothing is known of it, so it is left alone
        assert process.poll() is None
        process.kill()
        process.wait()
        assert ProcessTree(new_ulid()).list_running(process.pid) == []


def test_without_free_descriptors_only_the_group_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: str, flags: int) -> int:
        if path.endswith("/environ"):
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, flags)

    with leading(*SLEEP) as process, monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert ProcessTree(new_ulid()).list_running(None) == []
        process.kill()
        process.wait()
        assert ProcessTree(new_ulid()).list_running(process.pid) == []


@pytest.mark.parametrize(
    ("after", "lives"),
    [
        (Activity(1, 4_095, waited_s=0.2), False),
        (Activity(2), True),
        (Activity(bytes_moved=4_096), True),
        (Activity(waited_s=0.25), True),
        (Activity(processes=frozenset({(1, 1)})), True),
    ],
)
def test_a_tree_that_computes_reads_starts_programs_or_waits_for_a_core_shows_life(
    after: Activity, *, lives: bool
) -> None:
    assert after.shows_life_since(Activity()) is lives
