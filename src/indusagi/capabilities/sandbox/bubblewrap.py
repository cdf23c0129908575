"""bubblewrap: run a command in separate mount, PID, IPC and user namespaces (https://github.com/containers/bubblewrap).

The command sees the machine read-only, can write to the workspace and a private `/tmp`, and only sees its own
processes. We don't use `--die-with-parent`, because background processes of a command become a job. Terminating the
process tree kills the first process of the PID namespace, and with it the kernel kills all the others
(pid_namespaces(7)).
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from functools import cache
from threading import Lock, Thread
from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox.policy import ABSTRACT_SOCKETS
from indusagi.core.app_dirs import find_trusted_program, is_within, remove_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.sandbox.policy import SandboxLayout

_PROBE_S = 10
_USERS = (
    ("--unshare-user", "--disable-userns"),
    # Before --disable-userns (0.8.0), root would keep its capabilities over the mounts.
    ("--unshare-user", "--cap-drop", "ALL"),
)
"""A user namespace that can't be nested, with the options of newer and older versions."""


_USELESS = "bubblewrap does not work here: {}"


def find_bubblewrap(search_path: str, workspace: str) -> tuple[tuple[str, ...], str]:
    """Find a working `bwrap`, running a probe in it once: the start of its command line, or the reason there's none.

    Programs in the workspace never run, since they may come from the repository.
    """
    program = find_trusted_program("bwrap", search_path, workspace)
    if program is None:
        return (), "bubblewrap is not installed"
    try:
        return _probe(program)
    except OSError as exc:  # don't cache: we may have run out of descriptors or memory
        return (), _USELESS.format(exc)


@cache
def _probe(program: str) -> tuple[tuple[str, ...], str]:
    failure = ""
    for user in _USERS:
        # Nearly always, it works without abstract sockets too, and one probe tells both.
        start = (program, *user)
        failure = "" if can_scope(start) else _try_probe(start)
        if not failure:
            return start, ""
    return (), _USELESS.format(failure)


@cache
def can_scope(start: tuple[str, ...]) -> bool:
    """Return whether this `bwrap` also works in a thread without abstract sockets; a setuid-root one doesn't.

    Raises:
        OSError: It can't be tried out now.
    """
    from indusagi.capabilities.sandbox.landlock_run import scope_thread  # noqa: PLC0415 — loads ctypes

    outcome: list[str | OSError] = []

    def probe() -> None:
        try:
            scope_thread()
        except OSError:  # these scopes are newer than Landlock
            return
        try:
            outcome.append(_try_probe(start))
        except OSError as exc:
            outcome.append(exc)

    thread = Thread(target=probe, name="probe of scopes")
    thread.start()
    thread.join()
    if outcome and isinstance(outcome[0], OSError):
        raise outcome[0]
    return outcome == [""]


def _try_probe(start: Sequence[str]) -> str:
    """Run the probe and return the reason it failed, or an empty string."""
    argv = [*start, *NAMESPACES, *_MACHINE, "--unshare-net", "--", "/bin/sh", "-c", _PROBE]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_S, check=False, env={}, cwd="/"
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {_PROBE_S} s"
    if done.returncode == 0:
        return ""
    return done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"


@cache
def can_bind_handles(program: str) -> bool:
    """Return whether this `bwrap` can mount what a descriptor stands for (0.10.0, and 0.8.0 of Debian 12)."""
    try:
        done = subprocess.run([program, "--help"], capture_output=True, timeout=_PROBE_S, check=False, env={})
    except (OSError, subprocess.SubprocessError):
        return False
    return b"--ro-bind-fd" in done.stdout


_PROBE = """read -r inside outside users < /proc/self/uid_map
read -r first < /proc/1/comm
case "$users $first" in 1\\ *bwrap*) exit 0;; esac
echo "it runs commands without holding them in" >&2; exit 1"""
"""In a bubblewrap namespace, one user is mapped (user_namespaces(7)) and process 1 is `bwrap`. Some containers have a
fake `bwrap` that just runs the command, and some map a single user themselves."""
NAMESPACES = ("--unshare-pid", "--unshare-ipc")
_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Kernel settings that root can write even in a user namespace without capabilities."""
_MACHINE = (
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *(word for path in _KERNEL for word in ("--ro-bind-try", path, path)),
)


def bubblewrap_argv(
    start: Sequence[str], layout: SandboxLayout, masked: Sequence[str], private: PrivateDir, folder: str
) -> list[str]:
    """Build the command prefix that runs a command in bubblewrap, from its `start` (see `find_bubblewrap`).

    An empty directory covers each of the `masked` paths, which are protected and missing.
    """
    argv = [*start, *NAMESPACES, *_MACHINE]
    if layout.workspace == "/" and not layout.read_only:
        argv[argv.index("--ro-bind")] = "--bind"
    if not layout.network:
        argv.append("--unshare-net")
    argv += ["--bind", private.tmp, "/tmp"]
    if layout.workspace != "/":
        argv += ["--ro-bind" if layout.read_only else "--bind", layout.workspace, layout.workspace]
    # Mount points can't be renamed, so mount the held directories too.
    for path in (*sorted(layout.writable), *layout.held, private.notes):
        argv += ["--bind", path, path]
    argv += ["--ro-bind", private.preamble, private.preamble]
    for path in layout.protected:
        # A dangling link exists but can't be bound.
        argv += cover_path(path) if path in masked else ("--ro-bind-try", path, path)
    # Must come after the protected paths, which may contain credentials.
    shown = (layout.workspace, *layout.writable)
    for path in layout.hidden:
        if is_within(path, "/tmp") and not is_within(path, *shown):
            continue  # the private /tmp covers it
        if not os.path.lexists(path):
            continue  # a socket that has just vanished; bubblewrap can't cover an absent path
        argv += cover_path(path)
    return [*argv, "--chdir", folder, "--"]


def cover_path(path: str) -> tuple[str, ...]:
    """Return the options that put nothing in place of a path: an empty directory, or an empty file."""
    if os.path.isdir(path) or not os.path.lexists(path):
        return ("--tmpfs", path, "--remount-ro", path)
    return ("--ro-bind", "/dev/null", path)


def limit_devices(start: Sequence[str], size: int) -> tuple[str, ...]:
    """Return the options that limit what files in memory can take, for a `bwrap` that can (0.8.0)."""
    if "--disable-userns" not in start:
        return ()
    return ("--perms", "1777", "--size", str(size), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")


def list_machine() -> tuple[str, ...]:
    """Return the options that show the whole machine, read-only."""
    return _MACHINE


SYSTEM = ("/usr", "/nix", "/gnu")
SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_SETTINGS = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl", "ca-certificates", "pki", "nsswitch.conf"),
    *("localtime", "timezone", "alternatives", "hosts", "passwd", "group", "mime.types"),
    *("protocols", "services", "fonts", "java-17-openjdk", "java-21-openjdk"),
)


def list_system() -> tuple[str, ...]:
    """Return the options that show the system's programs and libraries, and nothing else."""
    words = ["--dev", "/dev", "--proc", "/proc"]
    words += [word for path in (*_KERNEL, *SYSTEM) for word in ("--ro-bind-try", path, path)]
    for path in SYSTEM_LINKS:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind-try", path, path]
    for name in _SYSTEM_SETTINGS:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return tuple(words)


def bubblewrap_lacks(layout: SandboxLayout, *, scoped: bool) -> tuple[str, ...]:
    """List the requested restrictions bubblewrap can't enforce."""
    names = (os.path.relpath(path, layout.workspace) for path in layout.links)
    sockets = (ABSTRACT_SOCKETS,) if layout.network and not scoped else ()
    return (*sockets, *(f"guard of {name}, which is a link" for name in names))


def is_bubblewrap_helper(pid: int) -> bool:
    """Return whether a process is the `bwrap` above a command, or has ended."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read() == b"bwrap\n"
    except FileNotFoundError:
        return os.path.isdir("/proc/self")
    except OSError:
        return True


class PrivateDir:
    """The private directory of a shell: temporary files, the bash preamble and the files for final directories."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.tmp = os.path.join(root, "tmp")
        self.notes = os.path.join(root, "notes")
        self.preamble = os.path.join(root, "preamble.sh")

    def remove(self) -> None:
        """Remove the directory and everything commands left in it."""
        remove_tree(self.root)


class MaskedPaths:
    """The empty directories bubblewrap creates on the host to cover missing protected paths.

    We remove them after the last command that needs them; removing one earlier would uncover the path for commands
    that are still running.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users: dict[str, int] = {}

    def acquire(self, protected: Sequence[str]) -> tuple[str, ...]:
        """Return the paths to cover, adding a reference to each."""
        with self._lock:
            masked = tuple(path for path in protected if path in self._users or not os.path.lexists(path))
            for path in masked:
                self._users[path] = self._users.get(path, 0) + 1
        return masked

    def release(self, masked: Sequence[str]) -> None:
        """Drop a reference to each path, and remove unreferenced directories."""
        with self._lock:
            for path in masked:
                self._users[path] -= 1
                if not self._users[path]:
                    del self._users[path]
                    with suppress(OSError):
                        os.rmdir(path)


MASKS = MaskedPaths()
