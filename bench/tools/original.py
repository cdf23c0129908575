"""The public original, as a black box: installed into an environment of its own, and only run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.row import CannotMeasure
from bench.tools.subject import Subject

PINS = ("indusagi==0.1.5", "induscode==0.1.6")
_HOME = Path(".bench/original")
_INSTALL_S = 300.0
_START_S = 60.0
_TRY = "import indusagi.capabilities as c; c.make_local_context, c.DefinedTool, c.bash_tool"


def original(home: Path = _HOME) -> Subject:
    """Give the original; it is installed if it is not there.

    Raises:
        CannotMeasure: It cannot be installed, or does not run.
    """
    python = home.absolute() / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(home)], _INSTALL_S)
    try:
        _run([str(python), "-I", "-c", _TRY], _START_S)
    except CannotMeasure:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *PINS], _INSTALL_S)
        _run([str(python), "-I", "-c", _TRY], _START_S)
    return Subject("the original", str(python))


def _run(command: list[str], limit_s: float) -> None:
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotMeasure(f"the original: {name}: {exc}") from exc
    if done.returncode:
        # The last line alone: the rest of a traceback would quote the original's source.
        reason = (done.stderr.strip() or "it does not say why").splitlines()[-1]
        raise CannotMeasure(f"the original: {name} ended with {done.returncode}: {reason}")
