"""Conversations on disk: every message as it comes, for whoever goes on with it later.

A conversation is a private directory under the state of this user, named by its id. Its log says
where it was held, and holds each message and what deck was shown. One process writes it at a time.

What a conversation has read of files, kept with it, so that it holds after `--continue`.

A row names the path, the digest of the bytes and the lines that were shown. A file that has changed
since has another digest: it counts as changed, and the tools say so.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from shutil import rmtree
from typing import TYPE_CHECKING

from indusagi.capabilities.read_state import ReadState
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


class ConversationError(CoreError):
    """There is no such conversation, or it cannot be gone on with."""


class Transcript:
    """One conversation, open for more. The methods block: call them in a thread."""

    def __init__(self, directory: str, cwd: str) -> None:
        """Open the conversation in a directory, and make both if they are not there.

        Raises:
            OSError: It cannot be opened.
            ConversationError: Another process is at it.
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
            raise ConversationError(f"the conversation {self.id} is open in another process: wait for its end") from exc

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
        ConversationError: There is none to go on with.
    """
    root = conversations_dir()
    if resume is not None:
        if not is_ulid(resume) or not os.path.isfile(os.path.join(root, resume, _LOG)):
            raise ConversationError(f"there is no conversation {resume!r}; --continue takes the last one")
        return Transcript(os.path.join(root, resume), cwd)
    if last:
        found = last_conversation(cwd, root)
        if found is None:
            raise ConversationError(f"there is no conversation in {cwd} to go on with")
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


_OP = "read"


class ConversationReadState(ReadState):
    """The read state of a conversation: what its log holds, and what is read from now on."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript
        self._unkept: deque[dict[str, str | int]] = deque()
        for row in transcript.rows():
            if row.get("op") == _OP:
                self._restore(row)

    def _restore(self, row: JsonObject) -> None:
        path, digest = row.get("path"), row.get("digest")
        first, last = row.get("first"), row.get("last")
        if isinstance(path, str) and isinstance(digest, str):
            lines = (first, last) if isinstance(first, int) and isinstance(last, int) else None
            super().record(path, digest, lines)
        elif isinstance(path, str):
            super().forget(path)

    def record(self, path: str, digest: str, lines: tuple[int, int] | None = None) -> None:
        """Remember that the bytes with this digest are what stood at `path`."""
        super().record(path, digest, lines)
        row: dict[str, str | int] = {"path": path, "digest": digest}
        if lines is not None:
            row |= {"first": lines[0], "last": lines[1]}
        self._unkept.append(row)

    def forget(self, path: str) -> None:
        """Drop what is known of `path`; an unknown one is fine."""
        super().forget(path)
        self._unkept.append({"path": path})

    def keep(self, message: JsonObject) -> None:
        """Add a message to the conversation, and what was read on the way to it. It blocks.

        In this order: what was read without being told to the model does not count.
        """
        self._transcript.keep(message)
        while self._unkept:
            self._transcript.mark(_OP, **self._unkept.popleft())
