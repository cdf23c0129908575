"""The user's state directory, private files in it, a directory lock, and shared JSON documents.

State goes to `$XDG_STATE_HOME/indus`, by default `~/.local/state/indus`
(https://specifications.freedesktop.org/basedir-spec/latest/). Directories have mode 0700 and files 0600, created
so that no other user can have prepared the name.

Several processes may read and change a JSON document in a private file. Readers see the old document or the new one.
Writers lock the directory while they read, change and replace the file. They rename a damaged file to `….corrupt-…`
instead of overwriting it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import merge
from typing import Any, Generic, TypeVar

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonValue

# -- paths ------------------------------------------------------------------------------------


T = TypeVar("T")
_CHUNK_ITEMS = 4_000


def is_within(path: str, *folders: str) -> bool:
    """Return whether an absolute path is one of the directories or lies within one, component by component."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def parts_below(path: str, folder: str) -> list[str]:
    """Return the components of a path relative to `folder`, which contains it."""
    return [part for part in path[len(folder) :].split("/") if part]


def find_trusted_program(name: str, search_path: str, workspace: str) -> str | None:
    """Find a program in `search_path`, skipping relative entries and programs in the workspace.

    A repository could contain a program of that name, or a link to one. Blocks: reads directories.
    """
    from shutil import which  # noqa: PLC0415 — only callers that run programs pay

    root = os.path.realpath(workspace)
    for entry in search_path.split(os.pathsep):
        if os.path.isabs(entry) and not is_within(os.path.realpath(entry), root):
            # One entry at a time: there may be a trusted program after a link into the workspace.
            program = which(name, path=entry)
            if program is not None and not is_within(os.path.realpath(program), root):
                return program
    return None


def sort_in_chunks(items: Sequence[T], key: Callable[[T], Any]) -> list[T]:
    """Sort in chunks, for a worker thread: `sorted` holds the GIL for the whole list and stalls the event loop."""
    if len(items) <= _CHUNK_ITEMS:
        return sorted(items, key=key)
    chunks = (sorted(items[start : start + _CHUNK_ITEMS], key=key) for start in range(0, len(items), _CHUNK_ITEMS))
    return list(merge(*chunks, key=key))


# -- private files and directories ------------------------------------------------------------


_PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LONGEST_WAIT_S = 10.0
_MAX_POINTER_BYTES = 1024 * 1024
"""git rejects a larger `.git` file too."""
_PAUSE_S = 0.02


def state_dir() -> str:
    """Return the path of the state directory, which may not exist.

    Raises `OSError` if the home directory is unknown.
    """
    root = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(root):  # the specification says to ignore a relative path
        # `expanduser` turns an empty HOME into "/", and returns "~" for an unknown user.
        home = os.environ["HOME"] if "HOME" in os.environ else os.path.expanduser("~")
        if not os.path.isabs(home):
            raise OSError(f"no home directory ({home!r}): set HOME or XDG_STATE_HOME to a full path")
        root = os.path.join(home, ".local", "state")
    return os.path.join(root, "indus")


def config_home(environ: Mapping[str, str] = os.environ) -> str:
    """Return the directory of the user's configuration files, `$XDG_CONFIG_HOME` or `~/.config`."""
    home = environ.get("HOME") or os.path.expanduser("~")
    return environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")


def make_private_dir(path: str) -> str:
    """Make a directory that only this user can enter, and return its absolute path.

    Missing parents are made private too; existing ones stay unchanged. Raises `OSError` if it can't be made, or `path`
    is a link or belongs to another user.
    """
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # Absolute, so no trailing slash, which would follow a link.
    path = os.path.abspath(path)
    make_dirs(os.path.dirname(path), _PRIVATE_DIR)
    with suppress(FileExistsError):
        os.mkdir(path, _PRIVATE_DIR)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path!r} is not a directory of this user: remove it")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(path, _PRIVATE_DIR)
    return path


def make_dirs(path: str, mode: int = 0o777) -> None:
    """Make a directory and its missing parents, all with one mode; it may already exist.

    `os.makedirs` sets the mode of the last one only, and recurses too deeply on a very long path. Raises `OSError` if
    one can't be made, or a file is in its place.
    """
    missing: list[str] = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, mode)
        except FileExistsError:
            if not os.path.isdir(directory):
                raise


def remove_tree(path: str) -> None:
    """Remove a directory with all it contains as far as possible, however deep it is, and whatever its modes."""
    from shutil import rmtree  # noqa: PLC0415 — once per session, in a thread
    from subprocess import DEVNULL, TimeoutExpired, run  # noqa: PLC0415

    with suppress(OSError, RecursionError):  # before Python 3.13, it recurses
        rmtree(path)
        return
    script = 'chmod -R u+rwx "$0"; exec rm -rf "$0"'
    with suppress(OSError, TimeoutExpired):
        run(["/bin/sh", "-c", script, path], env={}, cwd="/", stdin=DEVNULL, stderr=DEVNULL, timeout=60, check=False)


def create_private_file(path: str) -> int:
    """Create a file that only this user can read, and return its descriptor.

    Raises `OSError` if `path` exists, even as a link, or its directory doesn't.
    """
    return os.open(path, _NEW_FILE, PRIVATE_FILE)


def read_small_file(
    path: str | os.PathLike[str], limit: int, *, follow: bool = True, dir_fd: int | None = None, private: bool = False
) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises `OSError` if it can't be read, is larger, or is a pipe, a directory or a device. With `private`, also if it
    isn't the user's, or others may read or change it.
    """
    # O_NONBLOCK keeps the open of a pipe from waiting for a writer (fifo(7)).
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if status.st_size > limit:
            message = f"it has {status.st_size:,} bytes, and at most {limit:,} are read"
            raise OSError(errno.EFBIG, message, path)
        mode = stat.S_IMODE(status.st_mode)
        if private and (mode & 0o177 or status.st_uid != os.geteuid()):
            message = f"it has the mode {mode:04o}: chmod 600 it" if mode & 0o177 else "it belongs to another user"
            raise PermissionError(errno.EPERM, message, path)
        chunks: list[bytes] = []
        left = limit
        while left and (chunk := os.read(handle, min(left, 1024 * 1024))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(handle)


def read_git_pointer(path: str, prefix: str, base: str) -> str | None:
    """Read where a file of git points to, without links; None if it's none of git's (gitrepository-layout(5))."""
    try:
        content = os.fsdecode(read_small_file(path, _MAX_POINTER_BYTES))
    except OSError:
        return None
    if not content.startswith(prefix) or "\0" in content:
        return None
    return os.path.realpath(os.path.join(base, content.removeprefix(prefix).strip()))


def replace_file(path: str, data: bytes, *, mode: int | None = PRIVATE_FILE, sync: bool = True) -> None:
    """Write a new file and rename it to `path` (rename(2)), so readers see the old content or the new.

    By default only this user can read it; a `mode` of None uses the umask's default. With `sync`, the content survives
    power loss once this returns. After an `OSError` the old file stays, and the temporary one is removed.
    """
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        handle = os.open(temporary, _NEW_FILE, 0o666 if mode is None else PRIVATE_FILE)
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.write(data)
            file.flush()
            if sync:
                os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


@contextmanager
def locked_directory(folder: str) -> Generator[None]:
    """Hold a directory's exclusive lock between processes (flock(2)); blocks.

    Locks the directory itself, so no lock file remains in it. Raises `OSError` if it can't be opened, or another
    process holds the lock for more than ten seconds.
    """
    import fcntl  # noqa: PLC0415 — only writers of state pay

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LONGEST_WAIT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = "it is held by another process: try again"
                    raise TimeoutError(errno.ETIMEDOUT, message, folder) from None
            time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(handle)


class PrivateJsonFile(Generic[T]):
    """A JSON document in a private file, whose directory is made private. The methods block: call them in a thread.

    A file of more than `largest_bytes` counts as damaged. `parse` returns a document's content, and whether it's
    damaged; None stands for a missing document. `dump` converts content to a document.
    """

    def __init__(
        self,
        path: str,
        largest_bytes: int,
        parse: Callable[[JsonValue], tuple[T, bool]],
        dump: Callable[[T], JsonValue],
    ) -> None:
        self._path = path
        self._largest_bytes = largest_bytes
        self._parse = parse
        self._dump = dump

    def read(self) -> tuple[T, bool]:
        """Return the content, and whether the file is damaged or unreadable."""
        try:
            document: JsonValue = json.loads(read_small_file(self._path, self._largest_bytes, follow=False))
        except FileNotFoundError:
            return self._parse(None)[0], False
        except (OSError, ValueError, RecursionError):
            return self._parse(None)[0], True
        return self._parse(document)

    @contextmanager
    def change(self) -> Generator[T]:
        """Yield the content to change, and write it if the block ends without an error.

        Raises `OSError` if the file can't be written, or another process holds the lock for too long.
        """
        with locked_directory(make_private_dir(os.path.dirname(self._path))):
            content, damaged = self.read()
            if damaged:
                os.replace(self._path, f"{self._path}.corrupt-{new_ulid()}")
            yield content
            replace_file(self._path, json.dumps(self._dump(content), indent=1).encode("utf-8"))
