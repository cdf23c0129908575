"""Where this user's own files of ours live, and how a private one is made.

State goes to `$XDG_STATE_HOME/indus` (by default `~/.local/state/indus`). Directories are 0700 and
files 0600, made so that nobody else can have prepared the name beforehand.
"""

import os
import stat

_PRIVATE_DIR = 0o700
_PRIVATE_FILE = 0o600


def state_dir() -> str:
    """Name the directory for state; it is not made here."""
    root = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path here is to be ignored.
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(root, "indus")


def make_private_dir(path: str) -> str:
    """Make `path` a directory that only this user can enter, and return it.

    Raises:
        OSError: It cannot be made, or it is a link or somebody else's.
    """
    os.makedirs(os.path.dirname(path), mode=_PRIVATE_DIR, exist_ok=True)
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


def create_private_file(path: str) -> int:
    """Create `path`, readable by this user alone, and return its descriptor.

    Raises:
        OSError: Something stands there already, be it a link, or the directory is not there.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
