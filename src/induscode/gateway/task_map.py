"""The map of a gateway's tasks on disk: which task of which server an id stands for, and whose it is.

One private SQLite file of this user, shared by its gateways. A row is written before a client learns the id, so that
the client can come again after a restart of the gateway. The rows that expire first leave when there are too many. A
row names its owner by a digest. All functions block.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import quote

from indusagi.core.app_dirs import SQLITE_SIDE_FILES, prepare_database_file
from indusagi.core.ids import new_ulid
from indusagi.core.records import record

TASKS_FILE = "tasks.db"
"""The name of the file in the state directory."""
MOST_TASKS = 10_000
"""Beyond it the tasks that end first are forgotten."""
_APPLICATION_ID = 0x7461736B
"""Marks the file: https://www.sqlite.org/pragma.html#pragma_application_id."""
_BUSY_S = 5.0
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS tasks (id TEXT PRIMARY KEY, server TEXT NOT NULL, own TEXT NOT NULL, "
    "owner TEXT NOT NULL, expires_ms INTEGER NOT NULL, UNIQUE (server, own)) WITHOUT ROWID"
)
_COLUMNS = "id, server, own, owner, expires_ms"


@record
class TaskRow:
    """One task that a client holds."""

    id: str
    """What the client knows."""
    server: str
    own: str
    """The server's own id."""
    owner: str
    """Digest of the client's token or principal."""
    expires_ms: int


class TaskMap:
    """The file; opened by its first use."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def read_all(self, now_ms: int) -> Iterable[TaskRow]:
        """Read what hasn't expired, and remove rows past the most: a clock that jumps ahead removes nothing.

        Raises:
            OSError: The file cannot be created, or belongs to another user.
            sqlite3.Error: It cannot be used.
        """
        with self._lock:
            connection = self._open()
            past_the_most = "SELECT id FROM tasks ORDER BY expires_ms DESC LIMIT -1 OFFSET ?"
            connection.execute(f"DELETE FROM tasks WHERE id IN ({past_the_most})", (MOST_TASKS,))
            query = f"SELECT {_COLUMNS} FROM tasks WHERE expires_ms > ? ORDER BY expires_ms"
            return [TaskRow(*row) for row in connection.execute(query, (now_ms,))]

    def find(self, task_id: str) -> TaskRow | None:
        """Find a row, also one that another gateway has written; raises as `read_all`."""
        with self._lock:
            row = self._open().execute(f"SELECT {_COLUMNS} FROM tasks WHERE id = ?", (task_id,)).fetchone()
        return None if row is None else TaskRow(*row)

    def write(self, row: TaskRow) -> None:
        """Write a row, in place of earlier ones of this task; raises as `read_all`."""
        with self._lock:
            connection = self._open()
            connection.execute("DELETE FROM tasks WHERE server = ? AND own = ?", (row.server, row.own))
            connection.execute(
                f"INSERT INTO tasks ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
                (row.id, row.server, row.own, row.owner, row.expires_ms),
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = self._create()
            except sqlite3.DatabaseError as exc:
                if isinstance(exc, sqlite3.OperationalError):  # locked, or the disk is full
                    raise
                # A damaged map is worth less than the tasks to come.
                aside = f"{self.path}.corrupt-{new_ulid()}"
                for side in ("", *SQLITE_SIDE_FILES):
                    with suppress(FileNotFoundError):
                        os.rename(self.path + side, aside + side)
                self._connection = self._create()
        return self._connection

    def _create(self) -> sqlite3.Connection:
        prepare_database_file(self.path)
        # Used under the lock, by one thread of the pool after the other. Each statement is a transaction.
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL").close()
            connection.execute("PRAGMA synchronous = NORMAL").close()
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            if application not in {0, _APPLICATION_ID}:
                raise sqlite3.OperationalError(f"{self.path!r} is of another program")
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        except BaseException:
            connection.close()
            raise
        return connection
