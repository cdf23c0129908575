"""Mypy in strict mode accepts a user's program and sees the documented types, as pyright does in `make types`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.scripts import ROOT, unmeasured

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]  # mypy reads everything the first time
PROGRAM = Path(__file__).with_name("user_program.py")
MYPY = [str(Path(sys.executable).parent / "mypy"), "--strict", "--config-file", os.devnull]
WRONG = """from typing import assert_type
from indusagi.core import CancelToken
assert_type(CancelToken(), str)
"""


def test_mypy_accepts_the_program_of_a_user_and_notices_a_wrong_type(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG, encoding="utf-8")
    done = subprocess.run(
        [*MYPY, str(PROGRAM), str(wrong)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
        env=unmeasured(),
    )
    assert done.returncode == 1, done.stderr
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout
    assert "wrong.py:3: error:" in errors[0]  # from its cache, mypy names the path of an earlier run
    assert '"CancelToken", not "str"' in errors[0]
