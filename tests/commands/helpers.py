"""Configurations, terminals and pipes for tests of the commands."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.forked import start_command
from tests.support.scripts import command, run, run_with_input
from tests.support.servers import SERVERS

from indusagi.capabilities.sandbox.backend import list_server_sandboxes

if TYPE_CHECKING:
    from collections.abc import Mapping

Done = subprocess.CompletedProcess[str]
PYTHON = [sys.executable, "-I", "-S"]
SLOW_S = "indusagi.interop.protocol_bridge.client.start:StartPolicy.slow_s"
"""In `CONSTANTS`: how long a start takes of which a person is told."""
CLOSE_S = "indusagi.interop.protocol_bridge.contract:ServerLimits.close_s"
"""In `CONSTANTS`: how long a server may take to exit at the end of its input, and again at SIGTERM."""
HONEST = [*PYTHON, str(SERVERS / "honest.py")]


def row(*flags: object, **more: Any) -> dict[str, Any]:
    """Make the row of a server without faults."""
    return {"command": HONEST[0], "args": [*HONEST[1:], *map(str, flags)], **more}


def faulty(mode: str, *words: object, **more: Any) -> dict[str, Any]:
    """Make the row of a server with a fault."""
    script = str(SERVERS / "fault.py")
    return {"command": PYTHON[0], "args": [*PYTHON[1:], script, mode, *map(str, words)], **more}


def held(hold: Path, *flags: object, command: Path | None = None) -> dict[str, Any]:
    """Make the row of a server without faults that does not start while there is a file `hold`.

    It is started by way of a shell; `command` is where the script for it is written, if its name matters.
    """
    line = f"exec {shlex.join([*HONEST, '--hold', str(hold), *map(str, flags)])}"
    if command is None:
        return {"command": "sh", "args": ["-c", line]}
    command.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    command.chmod(0o755)
    return {"command": str(command)}


def in_sandbox(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sandbox that the row of a new command gets on this machine."""
    has_one = "standard" in list_server_sandboxes(os.getcwd())
    return {**fields, "sandbox": "standard"} if has_one and "command" in fields else {**fields}


def user_file() -> Path:
    """Name our own file of the user."""
    return Path(os.environ["HOME"]) / ".config" / "indus" / "mcp.json"


def project_file(cwd: Path) -> Path:
    """Name our own file of a project."""
    return cwd / ".indusvx" / "mcp.json"


def configured(path: Path, servers: Mapping[str, Any]) -> Path:
    """Write a configuration."""
    return replace_file(path, json.dumps({"servers": servers}))


def replace_file(path: Path, text: str) -> Path:
    """Write a file at once: a gateway that watches it never sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return path


def servers_of(path: Path) -> dict[str, Any]:
    """Read the servers of a configuration."""
    return json.loads(path.read_text(encoding="utf-8"))["servers"]


def told(*arguments: str, cwd: Path, **variables: str) -> Any:
    """Run a command that writes JSON, and read it."""
    done = run(*arguments, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def piped(text: str, *arguments: str, cwd: Path) -> Done:
    """Run a command with something on its standard input."""
    return run_with_input(text, *arguments, cwd=cwd)


def typed(text: str, *arguments: str, cwd: Path) -> Done:
    """Run a command with a person at the terminal who types this."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, text.encode())
        return run_with_input(theirs, *arguments, cwd=cwd)
    finally:
        os.close(ours)
        os.close(theirs)


def one_line(done: Done, *parts: str, code: int = 2) -> None:
    """Check that bad input was told in one clear line, and nothing else happened."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("indus: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def on_terminal(
    *arguments: str, cwd: Path, columns: int = 80, release: tuple[str, Path] | None = None, **variables: str
) -> str:
    """Run a command whose output goes to a terminal of this width, and give what it wrote.

    Once it has written the text of `release`, the file that is named there is removed.
    """
    ours, theirs = os.openpty()
    try:
        process = start_command(
            [command(), *arguments],
            environ={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
        )
    finally:
        os.close(theirs)
    parts: list[bytes] = []
    try:
        while part := os.read(ours, 65_536):
            parts.append(part)
            if release is not None and release[0].encode() in b"".join(parts):
                release[1].unlink(missing_ok=True)
    except OSError:  # EIO: the other end of the terminal is closed, see pty(7)
        pass
    finally:
        os.close(ours)
        process.wait(60)
    return b"".join(parts).decode().replace("\r\n", "\n")


def write_views(**views: object) -> None:
    """Write the views of the user's settings."""
    path = user_file().parents[1] / "indus" / "settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"serve": {"views": views}}), encoding="utf-8")
