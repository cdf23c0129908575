"""Mypy in strict mode accepts a user's program and sees the documented types, as pyright does in `make types`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.scripts import ROOT, unmeasured

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]  # mypy reads everything the first time
PROGRAM = Path(__file__).with_name("user_program.py")
BIN = Path(sys.executable).parent
MYPY = [str(BIN / "mypy"), "--strict", "--config-file", os.devnull]


def check(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MYPY, str(program)], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False, env=unmeasured()
    )


def test_mypy_accepts_the_program_of_a_user() -> None:
    done = check(PROGRAM)
    assert done.returncode == 0, done.stdout


def test_a_wrong_type_is_noticed(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    lines = (
        "from typing import assert_type",
        "from indusagi.core import CancelToken",
        "assert_type(CancelToken(), str)",
    )
    program.write_text("\n".join(lines), encoding="utf-8")
    done = check(program)
    assert done.returncode == 1
    assert '"CancelToken", not "str"' in done.stdout
