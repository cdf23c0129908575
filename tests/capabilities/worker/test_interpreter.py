"""A Python of our own runs our modules, and nothing of where it is started."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import unmeasured

from indusagi.capabilities.worker import limits
from indusagi.capabilities.worker.interpreter import library_of, own_python
from indusagi.capabilities.worker.limits import limit_ourselves

if TYPE_CHECKING:
    from pathlib import Path


def run(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=20, check=False, env=unmeasured())


@pytest.mark.process
def test_a_module_in_the_working_directory_is_not_found(tmp_path: Path) -> None:
    """The library that is looked for may be missing, and a stranger may have put one there."""
    (tmp_path / "missing_library.py").write_text("print('of a stranger')", encoding="utf-8")
    assert library_of("missing_library") == ""
    done = run(own_python("missing_library", library=""), tmp_path)
    assert "No module named 'missing_library'" in done.stderr
    assert done.stdout == ""


@pytest.mark.process
def test_a_library_is_found_where_it_is_installed(tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    installed.mkdir()
    elsewhere.mkdir()
    code = "import sys\ndef main(*given): print(given, sys.flags.isolated)"
    (installed / "some_library.py").write_text(code, encoding="utf-8")
    done = run(own_python("some_library", "x", library=str(installed)), elsewhere)
    assert (done.stdout, done.stderr) == ("('x',) 1\n", "")


def test_a_library_lies_in_the_directory_that_is_searched_for_it() -> None:
    assert library_of("pytest") in sys.path


@pytest.mark.process
def test_a_process_holds_itself_to_its_limits(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = {[*sys.path]!r}\n"
        "import resource\n"
        f"from {limits.__name__} import limit_ourselves\n"
        "limit_ourselves(20, 1 << 30)\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU)[0])\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    )
    assert run([sys.executable, "-c", code], tmp_path).stdout == f"20\n{1 << 30}\n"


def test_a_limit_that_cannot_be_set_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(_limit: int, most: tuple[int, int]) -> None:
        tried.append(most[0])
        raise ValueError("a stricter one holds")

    monkeypatch.setattr("resource.setrlimit", refuse)
    limit_ourselves(1, 2)
    assert tried == [2, 1]
