"""`make demo`: five steps with the real program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.scripts import ROOT

# The demo gives up by itself after 120 seconds.
pytestmark = [pytest.mark.process, pytest.mark.timeout(145)]
DEMO = ROOT / "examples/demo"


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False, timeout=140)


def test_the_demo_shows_five_steps_and_what_the_readme_says_and_leaves_nothing_behind() -> None:
    done = run_python(str(DEMO / "demo.py"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert re.findall(r"^(\d)\. ", done.stdout, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert len(re.findall(r"^→ ", done.stdout, re.MULTILINE)) == 5
    assert len(done.stdout.splitlines()) <= 75
    assert re.search(r"p50: [\d.]+ ms direct, [\d.]+ ms through the gateway", done.stdout)
    assert done.stdout.endswith("processes left running: 0\n")
    (shown,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown in done.stdout
    assert list(Path.home().iterdir()) == []


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("demo.expect_texts(['one'], 'two')", "'two' was expected in:\none"),
        ("box.run('mcp', 'get', 'nothing')", "the exit code is 2 in place of 0:"),
        ("demo.Terminal(['echo', 'bye'], box.project, box.environment).wait_for(bool)", "bye"),
    ],
    ids=["missing text", "exit code", "terminal"],
)
def test_a_step_that_fails_says_why_and_the_demo_exits_with_1(tmp_path: Path, step: str, why: str) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(DEMO)!r})
import demo
def fail(box):
    {step}
    raise AssertionError("bye")
demo.STEPS = (("A step that fails", fail), ("A step that is left out", fail))
sys.exit(demo.main(Path({str(tmp_path)!r})))
"""
    done = run_python("-c", program)
    assert done.returncode == 1, done.stderr
    assert "FAILED: step 1: " in done.stdout
    assert why in done.stdout
    assert "left out" not in done.stdout
