"""State directory of this user, private files in it, and a lock on a directory.

State goes to `$XDG_STATE_HOME/indus`, by default `~/.local/state/indus`
(https://specifications.freedesktop.org/basedir-spec/latest/). Directories have mode 0700 and files 0600, created
so that another user cannot have prepared the name.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_PRIVATE_DIR = 0o700
_PRIVATE_FILE = 0o600
_LONGEST_WAIT_S = 10.0
_PAUSE_S = 0.02


def state_dir() -> str:
    """Return the path of the state directory, which may be absent.

    Raises:
        OSError: The home directory is unknown.
    """
    root = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(root):  # the specification says to ignore a relative path
        # `expanduser` makes "/" of an empty HOME, and returns "~" for an unknown user.
        home = os.environ["HOME"] if "HOME" in os.environ else os.path.expanduser("~")
        if not os.path.isabs(home):
            raise OSError(f"no home directory ({home!r}): set HOME or XDG_STATE_HOME to a full path")
        root = os.path.join(home, ".local", "state")
    return os.path.join(root, "indus")


def make_private_dir(path: str) -> str:
    """Make a directory that only this user can enter, and return its absolute path.

    Missing parents are made private too; existing ones stay as they are.

    Raises:
        OSError: It cannot be made, or `path` is a link or belongs to another user.
    """
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # Absolute, and so without a trailing slash, which would follow a link.
    path = os.path.abspath(path)
    make_dirs(os.path.dirname(path), _PRIVATE_DIR)
    try:
        os.mkdir(path, _PRIVATE_DIR)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path!r} is not a directory of this user: remove it")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(path, _PRIVATE_DIR)
    return path


def make_dirs(path: str, mode: int = 0o777) -> None:
    """Make a directory and its missing parents, all of one mode; an existing one is fine.

    `os.makedirs` gives the mode to the last one only, and recurses too deeply on a very long path.

    Raises:
        OSError: One cannot be made, or a file stands in its place.
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


def create_private_file(path: str) -> int:
    """Create a file that only this user can read, and return its descriptor.

    Raises:
        OSError: `path` exists, as a link too, or its directory is absent.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)


def read_small_file(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> bytes:
    """Read a regular file of at most `limit` bytes.

    Raises:
        OSError: It cannot be read, is larger, or is a pipe, a directory or a device.
    """
    # With O_NONBLOCK the open of a pipe does not wait for a writer (fifo(7)).
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        if status.st_size > limit:
            message = f"it has {status.st_size:,} bytes, and at most {limit:,} are read"
            raise OSError(errno.EFBIG, message, path)
        chunks: list[bytes] = []
        left = limit
        while left and (chunk := os.read(handle, min(left, 1024 * 1024))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(handle)


def replace_private_file(path: str, data: bytes) -> None:
    """Write a file that only this user can read and rename it to `path` (rename(2)).

    Raises:
        OSError: It cannot be written; the old file stays, and the temporary one is removed.
    """
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        with os.fdopen(create_private_file(temporary), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


@contextmanager
def locked_directory(folder: str) -> Generator[None]:
    """Hold the exclusive lock of a directory among processes (flock(2)); blocks.

    The directory itself is locked, so no lock file is left in it.

    Raises:
        OSError: It cannot be opened, or another process holds the lock for more than ten seconds.
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
