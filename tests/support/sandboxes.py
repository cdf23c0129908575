"""The sandboxes that this machine has, for tests that need one."""

from __future__ import annotations

import os
import shutil
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.sandbox.bubblewrap import find_bubblewrap
from indusagi.capabilities.sandbox.landlock_run import landlock_abi

if TYPE_CHECKING:
    from pathlib import Path

_FETCHED = os.path.join(sys.prefix, "bubblewrap", "bin", "bwrap")
"""Where `make setup` has put bubblewrap if the system has none that works."""
NO_BUBBLEWRAP = "bubblewrap isn't installed, or doesn't work here"
NO_LANDLOCK = "this system has no Landlock"
NOT_COVERED = {NO_BUBBLEWRAP: "the bubblewrap sandbox", NO_LANDLOCK: "the Landlock sandbox"}
"""What a run has not covered if it has skipped tests for this reason."""


def offer_bubblewrap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process, and all that it starts, find the bubblewrap of `make setup`.

    It is copied into a folder, since no program of the working directory, where `.venv` lies, is ever trusted. The
    variable `NO_BUBBLEWRAP` leaves it out, for a run as on a machine without.
    """
    path = os.environ.get("PATH", os.defpath)
    wanted = os.path.exists(_FETCHED) and not os.environ.get("NO_BUBBLEWRAP")
    if wanted and not find_bubblewrap(path, os.getcwd())[0]:
        shutil.copy(_FETCHED, folder)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{path}")
    has_bubblewrap()  # which blocks the first time, so it is asked before any event loop runs


@cache
def has_bubblewrap() -> bool:
    """Tell whether bubblewrap works for the tests."""
    return bool(find_bubblewrap(os.environ.get("PATH", os.defpath), os.getcwd())[0])


def skip_without(mechanism: str) -> None:
    """Skip the test if this machine lacks the sandbox `bubblewrap` or `landlock`."""
    if mechanism == "bubblewrap" and not has_bubblewrap():
        pytest.skip(NO_BUBBLEWRAP)
    if mechanism == "landlock" and not landlock_abi():
        pytest.skip(NO_LANDLOCK)
