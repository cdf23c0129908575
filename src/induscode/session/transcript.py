"""Conversations on disk: every message as it comes, for whoever goes on with it later.

A conversation is a private directory under the state of this user, named by its id. Its log says
where it was held, and holds each message and what deck was shown. One process writes it at a time.
"""

from __future__ import annotations

import fcntl
import os
from shutil import rmtree
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import make_private_dir, state_dir
from indusagi.core.clock import iso_utc, now_ms
from indusagi.core.faults import CoreError
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.json import is_json_object
from induscode.deck.stores.line_log import LineLog, decode_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject

KEEP = 200
"""How many conversations are kept."""
KEEP_DAYS = 30
_LOG = "transcript.log"
_DAY_NS = 24 * 3_600 * 1_000_000_000
_FIRST_LINE = 64 * 1024


class NoConversation(CoreError):
    """There is no such conversation, or it cannot be gone on with."""


class Transcript:
    """One conversation, open for more. The methods block: call them in a thread."""

    def __init__(self, directory: str, cwd: str) -> None:
        """Open the conversation in a directory, and make both if they are not there.

        Raises:
            OSError: It cannot be opened.
            NoConversation: Another process is at it.
        """
        self.directory = make_private_dir(directory)
        self.id = os.path.basename(self.directory)
        self.trouble: str | None = None
        """Why nothing more is kept, if that is so."""
        self._lock = os.open(os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._hold()
            self._log = LineLog(os.path.join(self.directory, _LOG))
        except BaseException:
            os.close(self._lock)
            raise
        if not self._log.rows:
            self.mark("start", cwd=cwd)

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise NoConversation(f"the conversation {self.id} is open in another process: wait for its end") from exc

    def rows(self) -> Sequence[JsonObject]:
        """Give everything there is, the oldest first."""
        return tuple(self._log.rows)

    def messages(self) -> Sequence[JsonObject]:
        """Give the messages, the oldest first."""
        rows = (row.get("message") for row in self.rows() if row.get("op") == "message")
        return tuple(message for message in rows if is_json_object(message))

    def keep(self, message: JsonObject) -> None:
        """Add a message."""
        self._add({"op": "message", "message": message})

    def mark(self, op: str, **facts: str | int) -> None:
        """Add a row about the conversation itself."""
        self._add({"op": op, "at": iso_utc(now_ms()), **facts})

    def _add(self, row: JsonObject) -> None:
        # A full disk is no reason to stop talking; what follows a gap would only mislead.
        if self.trouble is not None:
            return
        try:
            self._log.append(row)
        except OSError as exc:
            self.trouble = str(exc)

    def close(self) -> None:
        """Give it up, so that another process can go on with it."""
        self._log.close()
        os.close(self._lock)


def conversations_dir() -> str:
    """Name the directory of all conversations.

    Raises:
        OSError: There is no home directory.
    """
    return os.path.join(state_dir(), "conversations")


def open_transcript(cwd: str, *, resume: str | None = None, last: bool = False) -> Transcript:
    """Open the conversation that was asked for; a new one if none was. It blocks.

    Raises:
        OSError: It cannot be opened.
        NoConversation: There is none to go on with.
    """
    root = conversations_dir()
    if resume is not None:
        if not is_ulid(resume) or not os.path.isfile(os.path.join(root, resume, _LOG)):
            raise NoConversation(f"there is no conversation {resume!r}; --continue takes the last one")
        return Transcript(os.path.join(root, resume), cwd)
    if last:
        found = last_conversation(cwd, root)
        if found is None:
            raise NoConversation(f"there is no conversation in {cwd} to go on with")
        return Transcript(os.path.join(root, found), cwd)
    make_private_dir(root)
    sweep(root)
    return Transcript(os.path.join(root, new_ulid()), cwd)


def last_conversation(cwd: str, root: str) -> str | None:
    """Find the conversation in a working directory that was written to last."""
    for _, name in sorted(_by_age(root), reverse=True):
        if _held_in(os.path.join(root, name, _LOG)) == cwd:
            return name
    return None


def sweep(root: str) -> None:
    """Remove conversations that are too old or too many; one that is in use stays."""
    found = sorted(_by_age(root), reverse=True)
    oldest = now_ms() * 1_000_000 - KEEP_DAYS * _DAY_NS
    for place, (written, name) in enumerate(found):
        if (place >= KEEP or written < oldest) and not _in_use(os.path.join(root, name)):
            rmtree(os.path.join(root, name), ignore_errors=True)


def _by_age(root: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    try:
        names = os.listdir(root)
    except OSError:
        return []
    for name in filter(is_ulid, names):
        try:
            found.append((os.stat(os.path.join(root, name, _LOG)).st_mtime_ns, name))
        except OSError:  # no conversation, or gone meanwhile
            continue
    return found


def _held_in(log: str) -> str | None:
    try:
        with open(log, "rb") as file:
            line = file.readline(_FIRST_LINE)
    except OSError:
        return None
    row = decode_line(line.rstrip(b"\n"))
    cwd = None if row is None else row.get("cwd")
    return cwd if isinstance(cwd, str) else None


def _in_use(directory: str) -> bool:
    try:
        handle = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
