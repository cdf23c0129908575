"""The file of the store: made private, set aside when it is damaged, and a witness of its end.

The witness is a small file beside it that says up to which row the store was known to be written. A
store that ends before that has lost its tail, be it that somebody put back an old copy.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, state_dir
from indusagi.core.ids import new_ulid

_SIDES = ("-wal", "-shm")
_WITNESS = "-end"
_WITNESS_BYTES = 20 + 1 + 64 + 1


def store_path() -> str:
    """Name the file of this user's store.

    Raises:
        OSError: There is no home directory.
    """
    return os.path.join(state_dir(), "ledger.db")


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """How far a store was known to be written."""

    position: int
    digest: str


def prepare(path: str) -> bool:
    """Make sure of a private file, and tell whether it was made just now.

    Raises:
        OSError: It cannot be made, or is a link or somebody else's.
    """
    make_private_dir(os.path.dirname(os.path.abspath(path)))
    try:
        os.close(create_private_file(path))
        return True
    except FileExistsError:
        pass
    # Looked at by name: closing a descriptor of a database drops the locks of every connection
    # that this process has to it.
    for name in (path, *(path + side for side in _SIDES)):
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{name!r} is not a file of this user: remove it")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.chmod(name, 0o600)
    return False


def identity_of(path: str) -> tuple[int, int]:
    """Tell which file stands under a name.

    Raises:
        OSError: None does.
    """
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def set_aside(path: str, identity: tuple[int, int] | None, fresh: str | None = None) -> str | None:
    """Give a damaged store another name, and tell it; None if another process was first.

    With a `fresh` file, that one takes its place: at no moment is there nothing under the name, in
    which another process would begin anew.

    Raises:
        OSError: It cannot be renamed.
    """
    aside = f"{path}.corrupt-{new_ulid()}"
    try:
        if identity is not None and identity_of(path) != identity:
            return None
        if fresh is None or not _link(path, aside):
            os.rename(path, aside)
    except FileNotFoundError:
        return None
    # What was written last may stand in these only; under the same name it is found again.
    for side in (*_SIDES, _WITNESS):
        try:
            os.rename(path + side, aside + side)
        except FileNotFoundError:
            continue
    if fresh is not None:
        os.replace(fresh, path)
    return aside


def _link(path: str, name: str) -> bool:
    """Give a file a second name; False where the file system has no such thing."""
    try:
        os.link(path, name, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def files_aside(path: str) -> list[str]:
    """Name the damaged files that were set aside and are still there."""
    folder, name = os.path.split(path)
    try:
        found = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        os.path.join(folder, one)
        for one in found
        if one.startswith(f"{name}.corrupt-") and not one.endswith((*_SIDES, _WITNESS))
    )


def forget_end(path: str) -> None:
    """Take the witness of a store that is gone out of the way; it stays under another name.

    Raises:
        OSError: It cannot be renamed.
    """
    os.replace(path + _WITNESS, f"{path}{_WITNESS}.gone")


def ends_of_removed(path: str) -> list[str]:
    """Name the witness of a store that was removed, if it is still there."""
    gone = f"{path}{_WITNESS}.gone"
    return [gone] if os.path.lexists(gone) else []


def remove(path: str) -> None:
    """Remove a database that is not in use, with its sides; one that is not there is fine."""
    for name in (path, *(path + side for side in _SIDES)):
        with suppress(FileNotFoundError):
            os.unlink(name)


def read_end(path: str) -> ChainEnd | None:
    """Read the witness; None if there is none, or it says nothing."""
    try:
        found = read_small_file(path + _WITNESS, _WITNESS_BYTES + 1, follow=False)
        position, _, digest = found.decode("ascii").partition(" ")
        return ChainEnd(int(position), digest.rstrip("\n"))
    except (OSError, ValueError):
        return None


def write_end(path: str, end: ChainEnd) -> None:
    """Say how far the store is written; never less than was said before.

    It is one write to one place, after the store itself has it. Failing at it loses no row, so
    nothing is made of that.
    """
    known = read_end(path)
    if known is not None and known.position >= end.position:
        return
    text = f"{end.position:020d} {end.digest}\n"
    # With O_NONBLOCK a pipe without a reader is an error, not a wait without end.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path + _WITNESS, flags, 0o600)
        try:
            os.pwrite(handle, text.encode("ascii"), 0)
        finally:
            os.close(handle)
    except OSError:
        return
