"""bubblewrap: a view of the machine of its own for each command, where the system permits it.

The command sees the machine read-only, with the workspace and a private `/tmp` to write to, and of
the processes only its own. It is not told to die with the process that started it: what a command
leaves in the background is kept as a job. Whatever ends the tree of a command ends the first
process of its namespace, and with that all of it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox.policy import LOCAL_SOCKETS
from indusagi.core.paths import find_trusted_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.sandbox.policy import SandboxLayout

_PROBE_S = 10
_USERS = (
    ("--unshare-user", "--disable-userns"),
    # An older one leaves root its powers over the mounts, which are the walls.
    ("--unshare-user", "--cap-drop", "ALL"),
)
"""A user namespace that is nobody's to change, as the versions of bubblewrap know it."""


_USELESS = "bubblewrap does not work here: {}"


def find_bubblewrap(search_path: str, workspace: str) -> tuple[tuple[str, ...], str]:
    """Find a bubblewrap that works, by having it run something once.

    Args:
        search_path: Where programs are, as in `PATH`.
        workspace: What lies in here is never run: the repository may have brought it.

    Returns:
        The beginning of its command line, and "" or why there is none.
    """
    program = find_trusted_program("bwrap", search_path, workspace)
    if program is None:
        return (), "bubblewrap is not installed"
    try:
        return _tried(program)
    except OSError as exc:  # not remembered: there may have been no descriptor or no memory left
        return (), _USELESS.format(exc)


@cache
def _tried(program: str) -> tuple[tuple[str, ...], str]:
    said = ""
    for user in _USERS:
        said = _trial(program, user)
        if not said:
            return (program, *user), ""
    return (), _USELESS.format(said)


def _trial(program: str, user: Sequence[str]) -> str:
    from subprocess import DEVNULL, TimeoutExpired, run  # noqa: PLC0415 — see above

    argv = [program, *user, *_NAMESPACES, *_MACHINE, "--unshare-net", "--", "/bin/sh", "-c", _TRIAL]
    try:
        done = run(argv, stdin=DEVNULL, capture_output=True, timeout=_PROBE_S, check=False, env={}, cwd="/")
    except TimeoutExpired:
        return f"it did not end within {_PROBE_S} s"
    said = done.stderr.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else said or f"exit code {done.returncode}"


_TRIAL = """read -r inside outside users < /proc/self/uid_map
read -r first < /proc/1/comm
case "$users $first" in 1\\ *bwrap*) exit 0;; esac
echo "it runs commands without holding them in" >&2; exit 1"""
"""In a namespace of bubblewrap there is one user, and the first process is its own. Some containers
have a program of its name that only runs the command, and some have one user themselves."""
_NAMESPACES = ("--unshare-pid", "--unshare-ipc")
_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Where root changes the kernel, be it in a user namespace in which it has no other power."""
_MACHINE = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *(word for path in _KERNEL for word in ("--ro-bind-try", path, path)),
)


def bubblewrap_argv(
    start: Sequence[str], layout: SandboxLayout, masked: Sequence[str], private: PrivateDir, folder: str
) -> list[str]:
    """Give the command line that a command is put behind.

    Args:
        start: Its beginning, as it was found to work.
        layout: What the command may touch.
        masked: Protected paths that are not there: an empty folder stands for each meanwhile.
        private: The folder for temporary files.
        folder: Where the command starts.
    """
    argv = [*start, *_NAMESPACES, *_MACHINE]
    if layout.workspace == "/" and not layout.read_only:
        argv[argv.index("--ro-bind")] = "--bind"
    if not layout.network:
        argv.append("--unshare-net")
    argv += ["--bind", private.tmp, "/tmp"]
    argv += _mounts(layout, masked, private)
    return [*argv, "--chdir", folder, "--"]


def _mounts(layout: SandboxLayout, masked: Sequence[str], private: PrivateDir) -> Iterator[str]:
    kind = "--ro-bind" if layout.read_only else "--bind"
    if layout.workspace != "/":
        yield from (kind, layout.workspace, layout.workspace)
    for path in sorted(layout.writable):
        yield from ("--bind", path, path)
    for path in layout.held:  # what is mounted cannot be renamed
        yield from ("--bind", path, path)
    yield from ("--bind", private.notes, private.notes)
    yield from ("--ro-bind", private.preamble, private.preamble)
    for path in layout.hidden:
        yield from _empty(path) if os.path.isdir(path) else ("--ro-bind", "/dev/null", path)
    for path in layout.protected:
        # A link that leads nowhere is there, and cannot be bound.
        yield from _empty(path) if path in masked else ("--ro-bind-try", path, path)


def _empty(path: str) -> tuple[str, ...]:
    return ("--tmpfs", path, "--remount-ro", path)


def bubblewrap_lacks(layout: SandboxLayout) -> tuple[str, ...]:
    """Name what was asked for and is beyond bubblewrap."""
    names = (os.path.relpath(path, layout.workspace) for path in layout.links)
    return (LOCAL_SOCKETS, *(f"guard of {name}, which is a link" for name in names))


def is_bubblewrap_helper(pid: int) -> bool:
    """Tell whether a process is a bubblewrap that stands above a command; or is gone by now."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read() == b"bwrap\n"
    except FileNotFoundError:
        return os.path.isdir("/proc/self")
    except OSError:
        return True


class PrivateDir:
    """The folder of a shell's own: temporary files, and notes that a command leaves for us."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.tmp = os.path.join(root, "tmp")
        self.notes = os.path.join(root, "notes")
        self.preamble = os.path.join(root, "preamble.sh")

    def remove(self) -> None:
        """Remove the folder with all that commands have left there."""
        from shutil import rmtree  # noqa: PLC0415 — once for each shell, in a thread

        rmtree(self.root, ignore_errors=True)


class MaskedPaths:
    """The empty folders that bubblewrap makes on the host where a protected path is missing.

    They are taken away when the last command that needs them is over: a folder that is removed
    earlier uncovers the path for those that still run.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users: dict[str, int] = {}

    def hold(self, protected: Sequence[str]) -> tuple[str, ...]:
        """Say which of these have to be covered, and count a command that does so."""
        with self._lock:
            masked = tuple(path for path in protected if path in self._users or not os.path.lexists(path))
            for path in masked:
                self._users[path] = self._users.get(path, 0) + 1
        return masked

    def release(self, masked: Sequence[str]) -> None:
        """Count a command off, and remove the folders that nobody needs any more."""
        with self._lock:
            for path in masked:
                self._users[path] -= 1
                if not self._users[path]:
                    del self._users[path]
                    with suppress(OSError):
                        os.rmdir(path)


MASKS = MaskedPaths()
