"""Commands of `indus` as forks of one process per test run, instead of a start for each (see `fork_server`).

A forked command is a process like any other: its own descriptors, directory, variables, session, signals and exit
code. It differs where the start itself matters (what is loaded, variables of the interpreter, `/proc/PID/cmdline`):
such a test starts the command with `subprocess`. Under coverage every command is started: only a start is measured.

In a command the constants of `CONSTANTS` have the values given there, so that no test waits for a poll that isn't its
subject. A test may set more: `monkeypatch.setitem(CONSTANTS, "induscode.gateway.gateway:FIRST_S", 0.1)`. The
module is the one that reads the constant: what it imports by name is its own. What a command starts has its usual ones.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONSTANTS: dict[str, float] = {
    # How often files are looked at, and for how long one has to stay as it is.
    "induscode.boot.plans:ConfigFiles.poll_s": 0.02,
    "induscode.boot.plans:_STABLE_S": 0.01,
    # Approvals, connectors and sign-ins of other processes.
    "induscode.gateway.gateway:_APPROVAL_POLL_S": 0.05,
    # The first list waits for servers that are still unknown, on a busy machine too.
    "induscode.gateway.gateway:FIRST_S": 60.0,
    # A handshake waits for the instructions of servers.
    "indusagi.interop.protocol_bridge.host.session:_INSTRUCTIONS_TIMEOUT_S": 60.0,
    # Commands and first prompts wait for servers that are up, on a busy machine too.
    "induscode.commands.mcp.list_servers:LOOK_LIMIT_S": 60.0,
    "induscode.commands.mcp.list_servers:_IN_ORDER_S": 60.0,
    "induscode.boot.catalog:FIRST_PROMPT_LIMIT_S": 60.0,
    "induscode.boot.catalog:LOOK_LIMIT_S": 60.0,
    "induscode.boot.runners:LOOK_LIMIT_S": 60.0,
    "induscode.conversations.servers:FIRST_PROMPT_LIMIT_S": 60.0,
    "induscode.conversations.servers:_LISTS_LIMIT_S": 60.0,
    "induscode.commands.calls:_POLL_S": 0.02,
    "induscode.calls.recorder:GATHER_S": 0.02,
    # How long files are looked for that complete a mention.
    "induscode.frontends.terminal.complete:MAX_WALK_S": 60.0,
    # How soon a server that announces changes is listed again.
    "indusagi.interop.protocol_bridge.contract:ServerLimits.relist_gap_s": 0.05,
    # Redraws, the look at what the status line tells, and the first pause before a model is asked again.
    "induscode.frontends.terminal.screen:_FRAME_S": 0.005,
    "induscode.frontends.terminal.app:_WATCH_S": 0.02,
    # A question waits for a pause in typing.
    "induscode.frontends.terminal.screen:_PAUSE_S": 0.05,
    "induscode.conversations.model_loop.providers:_FIRST_DELAY_S": 0.01,
    # Sandboxes leave out the sockets of tests that run at the same time: one that vanishes can't be covered any more.
    "indusagi.core.secrets:_SETTLED_S": 3600.0,
}
"""Constants of the commands that tests start, as "module:NAME" or "module:Class.NAME"; of a dataclass it is the
default of a field that is given by keyword only.

Polls and pauses that a test waits for are shorter here, and limits that a slow machine might reach are longer.
"""
SERVER = Path(__file__).with_name("fork_server.py")
_OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG", "COVERAGE")
"""Variables that are read when an interpreter starts."""
_OF_NO_INTEREST = {"PYTHON_KEYRING_BACKEND", "PYTHONUNBUFFERED"}
"""Of those, the one that the program reads, and the one that a fork does without: its streams are always buffered."""
_LAUNCH = (
    "import fcntl, os, sys, termios; fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[2], sys.argv[2:])"
)
"""Makes the terminal the controlling one. A `preexec_fn` would do as well, but warns where threads run."""


class _ForkServer:
    """The connection to the process that forks, one for all workers of a run. It ends with the last connection."""

    def __init__(self) -> None:
        self.environ = dict(os.environ)
        # An abstract name, of which nothing is left: https://man7.org/linux/man-pages/man7/unix.7.html
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
        name = f"\0indus-tests-{run}" if os.uname().sysname == "Linux" else os.path.join(mkdtemp(), "forks")
        while True:
            self.control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self.control.connect(name)
                if self.control.recv(1):
                    atexit.register(self.control.close)
                    return
            except OSError:  # there's none yet, or it has just ended
                pass
            self.control.close()
            self._start(name)

    def _start(self, name: str) -> None:
        # Set by an import of this process or not: the server has to see its own imports set it.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDANTIC")}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            try:
                listening.bind(name)
            except OSError:  # another worker starts one
                return
            listening.listen()
            subprocess.run(
                [sys.executable, str(SERVER)],
                env=environ,
                stdin=listening.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )


_servers: list[_ForkServer] = []
"""At most one, started for the first command."""
_running: dict[int, ForkedCommand] = {}


def list_descriptors() -> set[int]:
    """List the descriptors that stay open until the end of the run."""
    return {server.control.fileno() for server in _servers}


def list_running() -> list[int]:
    """List the commands that have not ended, or whose end was not waited for."""
    return [*_running]


def list_alive() -> list[int]:
    """List the commands that have not ended, in any thread: the ids of the others may belong to new processes."""
    return [pid for pid, command in _running.copy().items() if command.is_alive()]


class ForkedCommand(subprocess.Popen[Any]):
    """`subprocess.Popen` of `indus` by a fork; all its methods and attributes are as documented there.

    The three overridden methods are internals of `Popen`, the same from Python 3.11 to 3.14: one creates the process,
    two collect its status.
    """

    def __init__(self, argv: Sequence[str | bytes], *, terminal: int | None = None, **options: Any) -> None:
        self._terminal = terminal
        """The descriptor of the process that becomes its controlling terminal."""
        self._connection: socket.socket | None = None
        super().__init__(argv, **options)

    def _execute_child(self, args: Sequence[str | bytes], *rest: Any) -> None:
        """Fork instead of starting a program; the parameters are those of `Popen` by position."""
        cwd, environ = rest[4], rest[5]
        ends, is_session_leader = rest[9:15], rest[20]
        if not _servers:
            _servers.append(_ForkServer())
        self._connection, theirs = socket.socketpair()
        request = {
            "argv": [os.fsdecode(word) for word in args],
            "cwd": os.fsdecode(cwd or os.getcwd()),
            "environ": dict(os.environ if environ is None else environ),
            "session": is_session_leader,
            "terminal": self._terminal,
            "constants": CONSTANTS,
        }
        given = [end if end >= 0 else number for number, end in enumerate((ends[0], ends[3], ends[5]))]
        with theirs:
            socket.send_fds(_servers[0].control, [b"+"], [theirs.fileno(), *given])
        self._connection.sendall(json.dumps(request).encode("ascii"))
        self._connection.shutdown(socket.SHUT_WR)
        self.pid = self._read_number()
        self._child_created = True
        _running[self.pid] = self
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _read_number(self) -> int:
        assert self._connection is not None
        line = b""
        while not line.endswith(b"\n"):
            part = self._connection.recv(1)
            assert part, "the process that forks has ended"
            line += part
        return int(line)

    def is_alive(self) -> bool:
        """Tell whether the process that forks has told of no end yet."""
        try:
            return self._connection is not None and not select.select([self._connection], [], [], 0)[0]
        except (OSError, ValueError):  # closed, since its end was waited for
            return False

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Return the process id and the wait status, or zeros while the process runs."""
        assert self._connection is not None
        if wait_flags & os.WNOHANG and not select.select([self._connection], [], [], 0)[0]:
            return 0, 0
        status = self._read_number()
        self._connection.close()
        del _running[self.pid]
        return self.pid, status

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None and self._connection is not None and self._connection.fileno() >= 0:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def start_command(
    argv: Sequence[str | bytes],
    *,
    environ: Mapping[str, str] | None = None,
    terminal: int | None = None,
    is_indus: bool = True,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start `indus` with arguments by a fork; by a start if `is_indus` is False or variables differ that matter there.

    `terminal` is the descriptor of the process that becomes the controlling terminal of its new session.
    """
    variables = dict(os.environ if environ is None else environ)
    former = _servers[0].environ if _servers else os.environ
    names = {name for name in {*variables, *former} if name.startswith(_OF_THE_INTERPRETER)} - _OF_NO_INTEREST
    is_plain = is_indus and all(variables.get(name) == former.get(name) for name in names)
    if is_plain and not any("COVERAGE" in name for name in names):
        return ForkedCommand(argv, env=variables, terminal=terminal, **options)
    launcher = [] if terminal is None else [sys.executable, "-I", "-S", "-c", _LAUNCH, str(terminal)]
    if is_plain:
        launcher += [sys.executable, str(SERVER), json.dumps(CONSTANTS)]
    return subprocess.Popen([*launcher, *argv], env=variables, **options)
