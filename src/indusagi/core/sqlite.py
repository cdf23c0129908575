"""Private SQLite files, marked with the program they belong to, and migrated when they're opened.

Connections wait for other writers, use a write-ahead log (https://www.sqlite.org/wal.html) and commit each statement;
`transaction` groups several. All functions block.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import quote

from indusagi.core.app_dirs import PRIVATE_FILE, create_private_file, make_private_dir, state_dir
from indusagi.core.ids import new_ulid
from indusagi.core.records import record

BUSY_S = 5.0
"""How long to wait for another writer."""
_RETRY_S = 0.01
SIDE_FILES = ("-wal", "-shm")
"""Suffixes of a database's side files: https://www.sqlite.org/tempfiles.html."""
_OUTSIDE_CODES = frozenset(
    {
        sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_AUTH,
    }
)  # fmt: skip
"""Result codes whose cause is outside the file: https://www.sqlite.org/rescode.html."""


class ForeignDatabaseError(sqlite3.OperationalError):
    """The file belongs to another program or a later version of this one."""


class NewerDatabaseError(ForeignDatabaseError):
    """A later version of this program wrote the file."""


@record(kw_only=True)
class DatabaseFormat:
    """What a file contains."""

    application_id: int
    """Marks the file: https://www.sqlite.org/pragma.html#pragma_application_id."""
    version: int
    upgrades: Mapping[int, Sequence[str]]
    """The statements that bring a file of each older version to the current one. 0 is a new file."""
    pragmas: Sequence[str] = ("synchronous = NORMAL",)


# -- connections ------------------------------------------------------------------------------


def connect(path: str | None, form: DatabaseFormat, *, any_thread: bool = False) -> sqlite3.Connection:
    """Open and migrate an existing file, or a database in memory.

    Raises:
        ForeignDatabaseError: The file belongs to another program, or a later version wrote it. It's unchanged.
        sqlite3.Error: The file can't be opened.
    """
    where = f"file:{quote(path)}?mode=rw" if path else ":memory:"
    connection = sqlite3.connect(
        where, timeout=BUSY_S, isolation_level=None, uri=path is not None, check_same_thread=not any_thread
    )
    try:
        # In one transaction: another process may be creating the file.
        connection.execute("BEGIN")
        _find_version(connection, form)
        connection.execute("ROLLBACK")
        _use_wal(connection)
        for pragma in ("trusted_schema = OFF", *form.pragmas):
            connection.execute(f"PRAGMA {pragma}").close()
        migrate(connection, form)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite doesn't wait if another process does the same, so this does."""
    give_up_at = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def connect_read_only(path: str) -> sqlite3.Connection:
    """Open an existing file for reading; raises `sqlite3.Error` if that fails."""
    return sqlite3.connect(f"file:{quote(path)}?mode=ro", timeout=BUSY_S, isolation_level=None, uri=True)


class LazyDatabase:
    """A private file that threads use one after the other, opened on first use. All methods block.

    Raises:
        OSError: The file can't be created, or belongs to another user.
        sqlite3.Error: The file is unusable.
    """

    def __init__(self, path: str | None, name: str, form: DatabaseFormat, *, is_replaceable: bool = True) -> None:
        """Use a file, by default the one of this `name` in the state directory. A damaged one may be replaceable."""
        self._path, self._name = path, name
        self._form, self._is_replaceable = form, is_replaceable
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path or os.path.join(state_dir(), self._name)

    def _open(self) -> sqlite3.Connection:
        """Return the connection; the caller holds the lock."""
        if self._connection is None and self._is_replaceable:
            self._connection, _ = create_or_replace(self.path, self._form, any_thread=True)
        elif self._connection is None:
            prepare_database_file(self.path)
            self._connection = connect(self.path, self._form, any_thread=True)
        return self._connection

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def create_or_replace(
    path: str, form: DatabaseFormat, *, any_thread: bool = False
) -> tuple[sqlite3.Connection, str | None]:
    """Open a file, creating it if it's missing. A damaged one is set aside; its new path is returned too.

    Raises:
        OSError: It can't be created, or belongs to another user.
        sqlite3.Error: It can't be opened, though it isn't damaged: see `connect`.
    """
    prepare_database_file(path)
    try:
        return connect(path, form, any_thread=any_thread), None
    except sqlite3.Error as exc:
        if not is_damage(exc):
            raise
    aside = set_aside(path)
    prepare_database_file(path)
    return connect(path, form, any_thread=any_thread), aside


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Take the write lock, then apply all changes of a block, or none."""
    connection.execute("BEGIN IMMEDIATE")  # https://www.sqlite.org/lang_transaction.html
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some failures roll back by themselves
            connection.execute("ROLLBACK")
        raise


def migrate(connection: sqlite3.Connection, form: DatabaseFormat) -> None:
    """Migrate the tables to the current version, or leave the database unchanged. Raises like `connect`."""
    with transaction(connection):
        found = _find_version(connection, form)
        if found is None or found < form.version:
            for statement in form.upgrades[found or 0]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {form.application_id}")
            connection.execute(f"PRAGMA user_version = {form.version}")


def read_pragma(connection: sqlite3.Connection, name: str) -> int:
    """Read a number."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _find_version(connection: sqlite3.Connection, form: DatabaseFormat) -> int | None:
    """Find the version of a file, or return `None` for a new one. Raises `ForeignDatabaseError`."""
    application, version = read_pragma(connection, "application_id"), read_pragma(connection, "user_version")
    if application != form.application_id:
        if version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise ForeignDatabaseError("it is the database of another program")
        return None
    if version > form.version:
        raise NewerDatabaseError(f"its version is {version}, and this program knows {form.version}")
    return version


# -- files ------------------------------------------------------------------------------------


def is_damage(failure: BaseException) -> bool:
    """Tell whether a failure means that the file is damaged.

    A damaged file can make SQLite and its readers raise anything (a flipped bit in the schema: `OverflowError`), so
    every failure does unless its cause is known to be outside the file (full disk, lock, permissions).
    """
    code: int | None = getattr(failure, "sqlite_errorcode", None)
    # Without a code, Python itself couldn't read the database's content.
    is_inside = code is None or code & 0xFF not in _OUTSIDE_CODES
    return is_inside and not isinstance(failure, ForeignDatabaseError | OSError)


def prepare_database_file(path: str) -> bool:
    """Make a database and its side files private; return whether the database is new.

    Raises `OSError` if it can't be created, is a link, or belongs to another user.
    """
    make_private_dir(os.path.dirname(os.path.abspath(path)))
    with suppress(FileExistsError):
        os.close(create_private_file(path))
        return True
    # By name: closing any descriptor of a database drops the locks of all of this process's connections to it
    # (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    for name in (path, *(path + side for side in SIDE_FILES)):
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{name!r} is not a file of this user: remove it")
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.chmod(name, PRIVATE_FILE)
    return False


def file_identity(path: str) -> tuple[int, int]:
    """Return the device and inode of a path; raises `OSError` if it doesn't exist."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def set_aside(path: str, identity: tuple[int, int] | None = None, fresh: str | None = None) -> str | None:
    """Rename a damaged file and return its new path, or `None` if another process has already replaced it.

    A `fresh` file atomically takes its place, so no other process finds the path empty and starts a new one. Raises
    `OSError` if it can't be renamed.
    """
    aside = f"{path}.corrupt-{new_ulid()}"
    try:
        if identity is not None and file_identity(path) != identity:
            return None
        linked = False
        if fresh is not None:
            # Add a second name to keep the first. Some file systems lack hard links.
            with suppress(OSError, NotImplementedError):
                os.link(path, aside, follow_symlinks=False)
                linked = True
        if not linked:
            os.rename(path, aside)
    except FileNotFoundError:
        return None
    # The last rows may be only in these files; SQLite finds them under the new name.
    for side in SIDE_FILES:
        with suppress(FileNotFoundError):
            os.rename(path + side, aside + side)
    if fresh is not None:
        os.replace(fresh, path)
    return aside


def list_set_aside(path: str) -> list[str]:
    """List the damaged files set aside earlier that still exist."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    # "-end": a file earlier versions kept next to the ledger.
    return sorted(
        os.path.join(folder, other)
        for other in names
        if other.startswith(f"{name}.corrupt-") and not other.endswith((*SIDE_FILES, "-end"))
    )


def remove_database(path: str) -> None:
    """Remove an unused database and its side files, if they exist."""
    for name in (path, *(path + side for side in SIDE_FILES)):
        with suppress(FileNotFoundError):
            os.unlink(name)
