"""Trace of a sandbox: the paths a server opens, changes and runs, and the addresses it connects to.

A thread answers the notifications of the filter that `inside_run` installs (seccomp_unotify(2)). It reads the arguments
from the memory of the waiting process and lets the call go on, so the trace can be fooled and holds nobody: mounts and
the egress proxy do. It tells apart what was there from what the sandbox hid by looking through the sandbox's own root.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import select
import socket
import struct
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from indusagi.capabilities.sandbox.behaviour import Behaviour, RefusedUse, SandboxPlaces, sort_texts
from indusagi.capabilities.sandbox.bubblewrap import SYSTEM, SYSTEM_LINKS
from indusagi.capabilities.sandbox.policy import PROTECTED
from indusagi.core.app_dirs import is_within, state_dir
from indusagi.core.secrets import find_credential_places

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from indusagi.capabilities.sandbox.behaviour import Key

Use: TypeAlias = Literal["probe", "read", "write", "program", "socket", "address"]
"""What a call does with its target. A `probe` only asks whether a path exists."""

SOCKET_NAME = ".trace.sock"
_ACCEPT_S = 30.0
_MAX_TARGETS = 5_000
_MAX_PATH = 4_096
_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
"""ioctls of linux/seccomp.h."""
_CONTINUE = 1
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_AT_FDCWD = 2**32 - 100
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _TracedCall(NamedTuple):
    """The arguments of one system call that matter."""

    use: Use
    path: int
    """The index of the path, or of the address."""
    folder: int = -1
    """The index of the directory's descriptor."""
    flags: int = -1
    """The index of the flags of open(2), or of the mode of access(2): they tell a read from a write."""


_CALLS: Final[tuple[tuple[int, int | None, _TracedCall], ...]] = (
    (257, 56, _TracedCall("read", 1, 0, 2)),  # openat
    (437, 437, _TracedCall("read", 1, 0, 2)),  # openat2
    (59, 221, _TracedCall("program", 0)),  # execve
    (322, 281, _TracedCall("program", 1, 0)),  # execveat
    (42, 203, _TracedCall("address", 1)),  # connect
    (258, 34, _TracedCall("write", 1, 0)),  # mkdirat
    (263, 35, _TracedCall("write", 1, 0)),  # unlinkat
    (266, 36, _TracedCall("write", 2, 1)),  # symlinkat
    (265, 37, _TracedCall("write", 3, 2)),  # linkat
    (264, 38, _TracedCall("write", 3, 2)),  # renameat
    (316, 276, _TracedCall("write", 3, 2)),  # renameat2
    (76, 45, _TracedCall("write", 0)),  # truncate
    (269, 48, _TracedCall("probe", 1, 0, 2)),  # faccessat
    (439, 439, _TracedCall("probe", 1, 0, 2)),  # faccessat2
    (262, 79, _TracedCall("probe", 1, 0)),  # newfstatat
    (332, 291, _TracedCall("probe", 1, 0)),  # statx
    (44, 206, _TracedCall("address", 4)),  # sendto
    (2, None, _TracedCall("read", 0, -1, 1)),  # open
    (85, None, _TracedCall("write", 0)),  # creat
    (83, None, _TracedCall("write", 0)),  # mkdir
    (84, None, _TracedCall("write", 0)),  # rmdir
    (87, None, _TracedCall("write", 0)),  # unlink
    (88, None, _TracedCall("write", 1)),  # symlink
    (86, None, _TracedCall("write", 1)),  # link
    (82, None, _TracedCall("write", 1)),  # rename
    (21, None, _TracedCall("probe", 0, -1, 1)),  # access
    (4, None, _TracedCall("probe", 0)),  # stat
    (6, None, _TracedCall("probe", 0)),  # lstat
)
"""Each with its numbers on x86_64 (asm/unistd_64.h) and aarch64 (asm-generic/unistd.h), which lacks the older calls."""
_OPENAT2: Final = 437
_MACHINES: Final = ("x86_64", "aarch64")


def list_calls() -> dict[int, _TracedCall]:
    """Return the calls to report on this machine, by number; empty if there's no table for it."""
    if platform.machine() not in _MACHINES:
        return {}
    column = _MACHINES.index(platform.machine())
    numbered = (((x86, arm)[column], call) for x86, arm, call in _CALLS)
    return {number: call for number, call in numbered if number is not None}


class Sighting(NamedTuple):
    """One target a server asked for."""

    use: Use
    target: str
    """A path in the sandbox, or `address:port` as the server connected to it."""
    allowed: bool
    """Whether the sandbox shows the path, and lets the server write to it if it wanted to. For an address, whether
    something in the sandbox listens there."""


class SandboxTrace:
    """Watches one server from its start to `close`, in a thread of its own."""

    def __init__(self) -> None:
        self.missing = "the server hasn't started"
        """Why nothing was observed; empty once the trace works."""
        self._sightings: dict[tuple[Use, str], bool] = {}
        self._calls = list_calls()
        self._lock = Lock()
        self._stop: tuple[int, int] | None = None
        self._thread: Thread | None = None
        self._root = -1
        """The root directory of the sandbox."""
        self._proxy = ""
        """The address of the proxy's forwarder, which isn't worth noting."""

    @property
    def sightings(self) -> list[Sighting]:
        """Everything seen so far, in order, each target once per use."""
        with self._lock:
            return [Sighting(use, target, allowed) for (use, target), allowed in self._sightings.items()]

    def open(self, path: str) -> None:
        """Listen for the launcher on the Unix socket `path`. Blocks.

        Raises:
            OSError: The socket can't be created.
        """
        self.close()
        listener = socket.socket(socket.AF_UNIX)
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
        try:  # the name of a socket has 107 bytes at most (unix(7))
            listener.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
            listener.listen(1)
        except OSError:
            listener.close()
            raise
        finally:
            os.close(folder)
        self._stop = os.pipe2(os.O_CLOEXEC)
        self._thread = Thread(target=self._run, args=(listener, self._stop[0]), name="trace of a sandbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Blocks for the call it's about."""
        stop, self._stop = self._stop, None
        if stop is None or self._thread is None:
            return
        os.close(stop[1])
        self._thread.join()
        os.close(stop[0])

    def _run(self, listener: socket.socket, stop: int) -> None:
        handle = -1
        try:
            with listener:
                handle = self._receive_handle(listener, stop)
            if handle >= 0:
                self.missing = ""
                self._serve(handle, stop)
        except OSError as exc:
            self.missing = str(exc)
        finally:
            for one in (handle, self._root):
                if one >= 0:
                    os.close(one)
            self._root = -1

    def _receive_handle(self, listener: socket.socket, stop: int) -> int:
        """Wait for the descriptor of the filter; -1 if there's none."""
        if listener not in select.select([listener, stop], [], [], _ACCEPT_S)[0]:
            return -1
        with listener.accept()[0] as channel:
            channel.settimeout(_ACCEPT_S)
            text, handles, _, _ = socket.recv_fds(channel, 1024, 1)
        self._proxy = text.decode("utf-8", "replace").rpartition("/")[2]
        if not handles:
            self.missing = text.decode("utf-8", "replace") or "the launcher gave no descriptor"
            return -1
        return handles[0]

    def _serve(self, handle: int, stop: int) -> None:
        """Answer calls until the last process of the sandbox has ended, or `close`."""
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(stop, select.POLLIN)
        while True:
            events = dict(poll.poll())
            if stop in events or events.get(handle, 0) & (select.POLLHUP | select.POLLERR):
                return
            notice = bytearray(_NOTICE.size)
            try:
                fcntl.ioctl(handle, _RECEIVE, notice)
            except (FileNotFoundError, InterruptedError):  # it ended, or a signal came
                continue
            identity, pid, _, number, _, _, *arguments = _NOTICE.unpack(notice)
            found = None
            try:
                with suppress(OSError, ValueError):
                    found = self._read_call(pid, number, arguments)
                if found is not None and found not in self._sightings:
                    # While it waits: afterwards the path may exist because of this very call.
                    self._note(pid, *found)
            finally:
                with suppress(OSError):  # it ended
                    fcntl.ioctl(handle, _SEND, _ANSWER.pack(identity, 0, 0, _CONTINUE))

    # -- one call ---------------------------------------------------------------------------

    def _read_call(self, pid: int, number: int, arguments: list[int]) -> tuple[Use, str] | None:
        """Read what a call is about; None if that's nothing to note.

        Raises:
            OSError: The process has ended, or we may not read its memory.
            ValueError: The path is no text, so no row can name it.
        """
        call = self._calls.get(number)
        if call is None:
            return None
        address = arguments[call.path]
        if call.use == "address":
            return _parse_address(_read_memory(pid, address, 128)) if address else None
        use: Use = call.use
        if call.flags >= 0:
            flags = arguments[call.flags]
            if number == _OPENAT2:
                flags = int.from_bytes(_read_memory(pid, flags, 8), "little")
            if flags & (os.W_OK if use == "probe" else _WRITES):
                use = "write"
        path = _read_memory(pid, address, _MAX_PATH).partition(b"\0")[0].decode()
        if not path:
            return None  # fstat(2) in the clothes of newfstatat
        if not path.startswith("/"):
            at = arguments[call.folder] & 0xFFFFFFFF if call.folder >= 0 else _AT_FDCWD
            path = os.path.join(os.readlink(f"/proc/{pid}/cwd" if at == _AT_FDCWD else f"/proc/{pid}/fd/{at}"), path)
        return use, os.path.normpath(path)

    def _note(self, pid: int, use: Use, target: str) -> None:
        if len(self._sightings) >= _MAX_TARGETS or target == self._proxy:
            return
        if self._root < 0:
            self._root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_CLOEXEC)
        if use == "address":
            allowed = _LOCAL.match(target) is not None and _find_port(target) in _list_open_ports(pid)
        else:
            allowed = self._is_allowed(use, target)
        with self._lock:
            self._sightings[use, target] = allowed

    def _is_allowed(self, use: Use, path: str) -> bool:
        if use != "write":
            return self._exists(path) or self._exists(os.path.realpath(path))
        while not self._exists(path) and path != "/":
            path = os.path.dirname(path)
        return os.access(path.lstrip("/") or ".", os.W_OK, dir_fd=self._root)

    def _exists(self, path: str) -> bool:
        try:
            os.stat(path.lstrip("/") or ".", dir_fd=self._root, follow_symlinks=False)
        except OSError:
            return False
        return True


_LOCAL = re.compile(r"127\.|0\.0\.0\.0:|\[::1?\]:")
_LISTENS = "0A"
_DNS = 53
"""Where a server looks up names if it sees no settings of a resolver."""


def _find_port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _list_open_ports(pid: int | str) -> set[int]:
    """List the TCP ports that something listens on in the network of a process (proc(5))."""
    ports: set[int] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as table:
            rows = (line.split() for line in table)
            ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENS}
    return ports


def _read_memory(pid: int, address: int, size: int) -> bytes:
    handle = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(handle, size, address)
    finally:
        os.close(handle)


def _parse_address(data: bytes) -> tuple[Use, str] | None:
    """Parse a socket address (sockaddr(3type)); None for families that reach nothing else."""
    family = int.from_bytes(data[:2], "little")
    if family == socket.AF_UNIX:
        path = data[2:110]
        return ("socket", path.partition(b"\0")[0].decode()) if path[:1] == b"/" else None
    port = int.from_bytes(data[2:4], "big")
    if family == socket.AF_INET:
        return "address", f"{socket.inet_ntop(socket.AF_INET, data[4:8])}:{port}"
    if family == socket.AF_INET6:
        return "address", f"[{socket.inet_ntop(socket.AF_INET6, data[8:24])}]:{port}"
    return None


# -- what the sightings mean ------------------------------------------------------------------

_SYSTEM: Final = (*SYSTEM, *SYSTEM_LINKS, "/etc", "/run", "/var")
_KERNEL: Final = ("/proc", "/sys", "/dev", "/tmp")
_MAX_SIBLINGS: Final = 8
"""More files of one directory than this are written as the directory."""


class SortedSightings:
    """What a trace saw, sorted into behaviour and refusals.

    A path counts as read or written if the server opened it, it exists, and you could grant it: no credentials, and
    nothing that runtimes look for everywhere (`~/.config`, `/etc`). Those others are `asked`.
    """

    def __init__(self, sightings: Iterable[Sighting], places: SandboxPlaces) -> None:
        self._places = places
        self._read: dict[str, None] = {}
        self._write: dict[str, None] = {}
        self._programs: dict[str, None] = {}
        self.asked: dict[RefusedUse, None] = {}
        """Refused, and perhaps not needed."""
        self.withheld: dict[RefusedUse, None] = {}
        """Refused, and never proposed."""
        self.addresses: dict[str, None] = {}
        """Connected to without the proxy."""
        self._credentials = [os.path.realpath(path) for path in find_credential_places(os.environ, places.home)]
        for one in sightings:
            if one.use == "address":
                if not one.allowed:
                    self.addresses[one.target] = None
            elif one.use == "program" and one.allowed:
                self._programs[os.path.basename(one.target)] = None
            else:
                self._sort_path(one)

    def build_behaviour(self, hosts: Iterable[str], *, with_asked: str | None = None) -> Behaviour:
        """Build the behaviour; `with_asked` counts the refused paths that start with it as needed."""
        read, write = {**self._read}, {**self._write}
        for one in self.asked:
            if with_asked is not None and one.target.startswith(with_asked):
                (write if one.key == "write" else read)[one.target] = None
        return Behaviour(
            hosts=sort_texts(hosts),
            read=_join_siblings(read),
            write=_join_siblings(write),
            programs=sort_texts(self._programs),
        )

    def _sort_path(self, one: Sighting) -> None:
        path, places = one.target, self._places
        for key, named, into in (("write", places.write, self._write), ("read", places.read, self._read)):
            text = next((text for folder, text in named if is_within(path, folder)), None)
            if text is not None and (one.use == "write") == (key == "write"):
                into[text] = None
                return
            if text is not None and one.use != "write":
                return
        if is_within(path, *_KERNEL) and not is_within(path, places.home, places.workspace or places.home):
            return
        if one.use == "write":
            self._sort_write(path, allowed=one.allowed)
        elif one.allowed:
            if one.use == "read" and not self._is_own(path) and not self._is_above(path):
                self._read[places.format(path)] = None
        elif os.path.lexists(path) and not self._is_above(path):
            is_plain = one.use == "read" and not self._is_usual(path)
            self._refuse(path, "read", needed=is_plain, is_socket=one.use == "socket")

    def _sort_write(self, path: str, *, allowed: bool) -> None:
        places = self._places
        in_workspace = places.workspace is not None and is_within(path, places.workspace)
        if allowed and in_workspace:
            self._write[places.format(_find_folder(path, places))] = None
        elif allowed and (not is_within(path, places.home) or self._is_usual(path)):
            return
        else:
            folder = _find_folder(path, places)
            # A directory of yours that the server's own home lacks, and one it could write to without a sandbox.
            if not is_within(places.home, folder) and os.access(folder, os.W_OK):
                if not allowed or os.path.lexists(path):
                    self._refuse(folder, "write", needed=in_workspace or not self._is_usual(folder))

    def _refuse(self, path: str, key: Key, *, needed: bool, is_socket: bool = False) -> None:
        shown = self._places.format(path)
        reason = ""
        if is_socket:
            reason = "a socket: whoever listens there acts with all your rights"
        elif self._holds_credentials(path):
            reason = "credentials"
        elif key == "write" and is_within(shown, *PROTECTED):
            reason = "programs outside the sandbox run what's there"
        if reason:
            self.withheld[RefusedUse(shown, key, reason)] = None
        elif needed:
            (self._write if key == "write" else self._read)[shown] = None
        else:
            self.asked[RefusedUse(shown, key)] = None

    def _is_above(self, path: str) -> bool:
        """Tell whether a path holds one of its own places, and so perhaps other projects."""
        places = self._places
        package = () if is_within(path, places.home) else places.package
        return any(is_within(one, path) for one in (places.home, places.workspace or "/", *package))

    def _is_own(self, path: str) -> bool:
        places = self._places
        own = (*_SYSTEM, *places.package, places.home, *(() if places.workspace is None else (places.workspace,)))
        return is_within(path, *own)

    def _is_usual(self, path: str) -> bool:
        """Tell whether runtimes look there on their own: the system, its package, and hidden files of a home."""
        if is_within(path, *_SYSTEM, *self._places.package):
            return True
        return is_within(path, self._places.home) and path[len(self._places.home) :].startswith("/.")

    def _holds_credentials(self, path: str) -> bool:
        real = os.path.realpath(path)
        is_environment = any(part == ".env" or part.startswith(".env.") for part in real.split("/"))
        return is_environment or is_within(real, *self._credentials, os.path.realpath(state_dir()))


def _find_folder(path: str, places: SandboxPlaces) -> str:
    """Return the directory to make writable for a path: files are often replaced by renaming another one."""
    folder = path
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return path if folder == places.home and os.path.lexists(path) else folder


def _join_siblings(paths: Iterable[str]) -> tuple[str, ...]:
    """Sort paths, dropping those inside others, and joining many of one directory."""
    counted: dict[str, int] = {}
    for path in paths:
        counted[os.path.dirname(path)] = counted.get(os.path.dirname(path), 0) + 1
    full = {folder for folder, count in counted.items() if count > _MAX_SIBLINGS and folder not in {"", "~", "/"}}
    wanted = sort_texts(folder if (folder := os.path.dirname(path)) in full else path for path in paths)
    return tuple(one for one in wanted if not any(other != one and is_within(one, other) for other in wanted))


class SandboxObserver:
    """Records what a server does in a sandbox whose profile names it, which also lets it reach every public host.

    With `reaches_private`, the proxy also connects it to addresses of this network, as `standard` does.
    """

    def __init__(self, *, reaches_private: bool = False) -> None:
        self.reaches_private = reaches_private
        self.trace = SandboxTrace()
        self.hosts: Collection[str] = ()
        """What it asked the proxy for; set, like the others, by the start of the sandbox."""
        self.blocked: Collection[str] = ()
        """What the proxy refused."""
        self.places = SandboxPlaces(home="/nonexistent", workspace=None, package=(), read=(), write=())

    def find_behaviour(self, *, with_asked: str | None = None) -> Behaviour:
        """Return what it has used so far.

        `with_asked` also counts what runtimes look for on their own, if it starts with this text.
        """
        return self._sort().build_behaviour(self.hosts, with_asked=with_asked)

    def find_refusals(self) -> list[RefusedUse]:
        """List what it asked for and was refused, beyond its behaviour."""
        found = self._sort()
        direct = [one for one in found.addresses if not _LOCAL.match(one) or _find_port(one) == _DNS]
        local = {_find_port(one) for one in found.addresses if one not in direct} & _list_open_ports("self")
        targets = {*self.blocked, *(f"localhost:{port}" for port in local)}
        refusals = [RefusedUse(host, "hosts", "an address of this machine or network") for host in sorted(targets)]
        if direct:
            reason = f"it connects to {direct[0]} without the proxy, so it can't be limited to hosts"
            refusals.append(RefusedUse("*", "hosts", reason))
        return [*found.withheld, *refusals, *found.asked]

    @property
    def note(self) -> str:
        """What couldn't be observed, or an empty string."""
        return f"the paths and programs it used are unknown: {self.trace.missing}" if self.trace.missing else ""

    def _sort(self) -> SortedSightings:
        return SortedSightings(self.trace.sightings, self.places)
