"""Running the installed commands as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.forked import start_command

ROOT = Path(__file__).parents[2]
NAMES = ("indus", "indusr", "indusagir")


def command(name: str = "indus") -> str:
    """Give the path of an installed command."""
    path = Path(sys.executable).parent / name
    assert path.exists(), f"{path} is missing: run make setup"
    return str(path)


def unmeasured() -> dict[str, str]:
    """Give the environment for a process that coverage must not look into."""
    return {name: value for name, value in os.environ.items() if "COVERAGE" not in name}


def run(
    *arguments: str | bytes, name: str = "indus", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return _run_to_end([command(name), *arguments], subprocess.DEVNULL, cwd=cwd, environ={**os.environ, **variables})


def run_with_input(source: str | int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run `indus` to its end with a text, or a descriptor, as its standard input."""
    return _run_to_end([command(), *arguments], source, cwd=cwd)


def _run_to_end(argv: list[str | bytes], source: str | int, **options: Any) -> subprocess.CompletedProcess[str]:
    process = start_command(
        argv,
        stdin=subprocess.PIPE if isinstance(source, str) else source,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="surrogateescape",
        **options,
    )
    with process:
        try:
            out, err = process.communicate(source if isinstance(source, str) else None, timeout=60)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_on_terminal(
    *arguments: str | bytes, cwd: Path | None = None, answer: tuple[str, str] = ("", ""), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with a terminal as its standard input and output.

    Once the first text of `answer` is shown, type the second.
    """
    wanted, keys = map(str.encode, answer)
    ours, theirs = os.openpty()
    try:
        child = start_command(
            [command(), *arguments],
            environ={**os.environ, **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            cwd=cwd,
        )
    finally:
        os.close(theirs)
    shown = b""
    try:
        with child:
            while part := _read_terminal(ours):
                shown += part
                if keys and wanted in shown:
                    os.write(ours, keys)
                    keys = b""
            _, said = child.communicate(timeout=60)
    finally:
        os.close(ours)
    text = shown.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    return subprocess.CompletedProcess(child.args, child.returncode, text, said.decode())


def _read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux: EIO, as soon as the other side is closed
        return b""
