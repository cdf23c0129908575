"""Every example runs and prints what its last comment says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
EXAMPLES = ROOT / "examples"
PRINTING = sorted(path for path in EXAMPLES.glob("*.py") if "\n# Prints:\n" in path.read_text(encoding="utf-8"))


def run_python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", PRINTING, ids=lambda path: path.stem)
def test_an_example_prints_what_its_last_comment_says(path: Path) -> None:
    _, _, comment = path.read_text(encoding="utf-8").partition("\n# Prints:\n")
    expected = "".join(line.removeprefix("# ") for line in comment.splitlines(keepends=True))
    assert run_python(str(path)) == expected


def test_the_served_tools_are_called_through_indus() -> None:
    command = shlex.join([sys.executable, "examples/serve_tools.py"])
    done = run("call", "--stdio", command, "greet", "name=Ada", cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "hello Ada\n")


def test_the_in_memory_test_passes() -> None:
    # As in a project of the reader's own: without the settings of this repository.
    options = ("-q", "-c", os.devnull, "--rootdir", str(EXAMPLES), "-p", "no:cacheprovider")
    output = run_python("-m", "pytest", *options, "examples/test_greeter.py")
    assert "1 passed" in output


def test_the_gateway_configuration_is_read_without_starting_a_server() -> None:
    path = EXAMPLES / "gateway/servers.json"
    done = run("mcp", "list", "--mcp", str(path), "--no-check", "--json", cwd=ROOT)
    names = {row["name"] for row in json.loads(done.stdout)["servers"]}
    assert names == set(json.loads(path.read_text(encoding="utf-8"))["servers"])


def test_every_example_is_listed() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"({path.name})" in page
