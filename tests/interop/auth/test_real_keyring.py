"""Secrets in a real Secret Service: gnome-keyring in a session bus for this test alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.real_keyring import PASSWORD
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_SCRIPT = f"""
printf {PASSWORD.decode()} | gnome-keyring-daemon --daemonize --unlock --components=secrets >/dev/null
exec "$0" -m tests.support.real_keyring
"""


@pytest.mark.process
@pytest.mark.skipif(
    None in map(shutil.which, ("dbus-run-session", "gnome-keyring-daemon")), reason="needs gnome-keyring and dbus"
)
def test_a_server_waits_for_a_locked_keyring_and_starts_once_it_is_open(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    (tmp_path / ".local/share/keyrings").mkdir(parents=True)
    done = subprocess.run(
        ["dbus-run-session", "--", "sh", "-c", _SCRIPT, sys.executable],
        cwd=ROOT,
        env={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "value-in-the-keyring" not in done.stdout + done.stderr
