"""`indus serve` as the clients meet it: a process of its own, in a home where nothing is set."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from indusagi.core.json import JsonObject

Transport: TypeAlias = Literal["stdio", "http"]
LOOPBACK = "127.0.0.1"
_PROGRAM = Path(sys.executable).parent / "indus"
_SERVER = Path(__file__).with_name("server.py")
_TOKEN = Path(".local/state/indus/serve-token")
_START_S = 20.0
_STOP_S = 10.0
_FOREIGN = ("XDG_", "INDUS_", "PYTHON", "VIRTUAL_ENV", "MCP_", "FASTMCP_", "OPENAI_", "LANG")
"""Variables that begin so could change what a client or `indus` does."""


class CannotServe(Exception):
    """`indus serve` did not do what it must do before or after a client comes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The command that is visited, and where it keeps what it keeps."""

    command: Sequence[str]
    env: Mapping[str, str]
    journal: Path

    @property
    def home(self) -> Path:
        """The home folder it finds."""
        return Path(self.env["HOME"])

    def happened(self) -> list[str]:
        """List what became of the slow tool so far."""
        return self.journal.read_text("utf-8").split()


@dataclass(frozen=True, slots=True)
class Target:
    """What a client is given: a command to start, or an address and what opens it."""

    subject: Subject
    url: str = ""
    token: str = field(default="", repr=False)

    @property
    def transport(self) -> Transport:
        """How it is reached."""
        return "http" if self.url else "stdio"

    def as_json(self) -> JsonObject:
        """Say it for a program."""
        said: JsonObject = {"journal": str(self.subject.journal)}
        if self.url:
            return {**said, "url": self.url, "headers": {"Authorization": f"Bearer {self.token}"}}
        return {**said, "command": [*self.subject.command], "env": {**self.subject.env}}


def make_subject(folder: Path, program: Sequence[str] = (str(_PROGRAM), "serve")) -> Subject:
    """Make an empty home and the file that names the one server."""
    home, journal, rows = folder / "home", folder / "journal", folder / "servers.json"
    home.mkdir()
    journal.touch()
    row = {"command": sys.executable, "args": [str(_SERVER)], "env": {"JOURNAL": str(journal)}}
    rows.write_text(json.dumps({"mcpServers": {"shelf": row}}), "utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    command = [*program, "--mcp", str(rows)]
    return Subject(command, {**env, "HOME": str(home), "LANG": "C.UTF-8"}, journal)


@contextmanager
def listening(subject: Subject) -> Generator[Target]:
    """Serve over HTTP for as long as a block lasts; the token is the one it makes by itself.

    Raises:
        CannotServe: It does not come to listen, or does not end well when it is told to.
    """
    port = _free_port()
    said = subject.journal.with_name("said")
    with said.open("wb") as file:
        process = subprocess.Popen(
            [*subject.command, "--http", f"{LOOPBACK}:{port}"],
            env=subject.env,
            cwd=subject.home,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        if not _opens(port, process):
            raise CannotServe(f"it does not listen: {said.read_text('utf-8', 'replace')[-500:]}")
        token = (subject.home / _TOKEN).read_text("utf-8").strip()
        yield Target(subject, f"http://{LOOPBACK}:{port}/mcp", token)
    finally:
        code = _stop_process(process)
    if code != 0:
        raise CannotServe(f"it ended with {code}: {said.read_text('utf-8', 'replace')[-500:]}")


def _opens(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)) == 0:
                return True
        time.sleep(0.02)
    return False


def _stop_process(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]
