"""Where this user's own files of ours live, and how a private one is made.

State goes to `$XDG_STATE_HOME/indus` (by default `~/.local/state/indus`). Directories are 0700 and
files 0600, made so that nobody else can have prepared the name beforehand.
"""

import errno
import os
import stat

_PRIVATE_DIR = 0o700
_PRIVATE_FILE = 0o600


def state_dir() -> str:
    """Name the directory for state; it is not made here.

    Raises:
        OSError: There is no home directory to put it in.
    """
    root = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path here is to be ignored.
    if not os.path.isabs(root):
        root = os.path.join(_home(), ".local", "state")
    return os.path.join(root, "indus")


def _home() -> str:
    # `expanduser` makes "/" of an empty HOME, and gives back "~" when nobody knows this user.
    home = os.environ["HOME"] if "HOME" in os.environ else os.path.expanduser("~")
    if not os.path.isabs(home):
        raise OSError(f"no home directory ({home!r}): set HOME or XDG_STATE_HOME to a full path")
    return home


def make_private_dir(path: str) -> str:
    """Make `path` a directory that only this user can enter, and return its absolute path.

    What is missing above it is made for this user alone as well; what is there stays as it is.

    Raises:
        OSError: It cannot be made, or it is a link or somebody else's.
    """
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    # Absolute, and so without a slash at the end, which would look through a link.
    path = os.path.abspath(path)
    make_dirs(os.path.dirname(path), _PRIVATE_DIR)
    try:
        os.mkdir(path, _PRIVATE_DIR)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path!r} is not a directory of this user: remove it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, _PRIVATE_DIR)
    return path


def make_dirs(path: str, mode: int = 0o777) -> None:
    """Make a directory and those missing above it, all of one mode; one that is there is fine.

    `os.makedirs` gives the mode to the last one only, and runs out of stack on a very deep path.

    Raises:
        OSError: One cannot be made, or something else stands in its place.
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
    """Create `path`, readable by this user alone, and return its descriptor.

    Raises:
        OSError: Something stands there already, be it a link, or the directory is not there.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)


def read_small_file(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> bytes:
    """Read a regular file of `limit` bytes at most; nothing else is waited for or read.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger.
    """
    # With O_NONBLOCK a pipe is not waited for.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        if found.st_size > limit:
            said = f"it has {found.st_size:,} bytes, and at most {limit:,} are read"
            raise OSError(errno.EFBIG, said, path)
        chunks: list[bytes] = []
        left = limit
        while left and (chunk := os.read(handle, min(left, 1024 * 1024))):
            chunks.append(chunk)
            left -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(handle)


def replace_private_file(path: str, data: bytes) -> None:
    """Put a file that only this user can read in the place of `path`, in one step.

    Raises:
        OSError: It cannot be written; what was there stays, and nothing else is left behind.
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
