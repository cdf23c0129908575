"""`indus completion`: scripts that shells take, and answers to what they ask."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import one_line
from tests.support.scripts import command, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_its_script(tmp_path: Path, shell: str) -> None:
    done = run("completion", shell, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_INDUS_COMPLETE={shell}_complete" in done.stdout
    path = shutil.which(shell)
    if path is None:
        return
    checked = subprocess.run([path, "-n"], input=done.stdout, capture_output=True, text=True, timeout=60, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("indus mc", ["mcp"]),
        ("indus mcp add", ["add", "add-json"]),
        ("indus mcp un", ["untrust"]),
        ("indus ledger ver", ["verify"]),
        ("indus mcp list --no", ["--no-check"]),
        ("indus --output-format str", ["stream-json"]),
        ("indus nothing ", []),
    ],
)
def test_a_line_is_completed(tmp_path: Path, line: str, answers: list[str]) -> None:
    done = run(cwd=tmp_path, _INDUS_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(line.split(" ")) - 1))
    assert [one.partition(",")[2] for one in done.stdout.splitlines()] == answers
    assert done.stderr == ""


def test_bash_completes_what_is_typed(tmp_path: Path) -> None:
    script = run("completion", "bash", cwd=tmp_path).stdout
    asked = (
        f'{script}\nCOMP_WORDS=(indus led); COMP_CWORD=1; _indus_completion indus; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    bash = shutil.which("bash")
    assert bash is not None
    script_folder = command().rpartition("/")[0]
    done = subprocess.run(
        [bash, "-c", f'PATH="{script_folder}:$PATH"\n{asked}'], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ledger\n"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "Missing argument"),
        (["tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["bash", "x"], "unexpected extra argument (x)"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, words: list[str], part: str) -> None:
    one_line(run("completion", *words, cwd=tmp_path), part)
