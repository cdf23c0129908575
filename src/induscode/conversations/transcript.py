"""Conversations on disk: one append-only log for each, which `--continue` and `--resume` read.

A conversation is a private directory in this user's state directory, named by its id. The log records the working
directory, every message, the deck of every turn, which files were read, and what `KeptState` stores. Rows are only ever
appended, and rows of another version are kept and ignored. A file lock admits one process at a time.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from contextlib import suppress
from shutil import copytree, ignore_patterns, rmtree
from threading import Lock
from typing import TYPE_CHECKING

from indusagi.capabilities.context import ReadState
from indusagi.core.app_dirs import create_private_file, make_private_dir, state_dir
from indusagi.core.faults import CoreError
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from indusagi.core.time import DAY_MS, find_safe_now, iso_utc, now_ms
from induscode.deck.stores.line_log import LineLog, decode_line, read_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue

KEEP = 200
"""Number of conversations that are kept, of scripts (`-p`) and of others each."""
KEEP_DAYS = 30
LOG_NAME = "transcript.log"
_SCRIPTED = "scripted"
"""A file in the directory of a conversation that no user has opened yet, only a script (`-p`)."""
_READ_OP = "read"
REWIND_OP = "rewind"
COMPACT_OP = "compact"
FORK_OP = "fork"
_MESSAGE_OP = "message"
_MS_NS = 1_000_000
_FIRST_LINE = 64 * 1024


class ConversationError(CoreError):
    """A conversation is absent, or cannot be continued."""


class Transcript:
    """One open conversation. The methods block: call them in a thread."""

    def __init__(self, directory: str, cwd: str) -> None:
        """Open the conversation in `directory`; create both if they are absent.

        Raises:
            OSError: The log cannot be opened.
            ConversationError: Another process has the conversation open.
        """
        self.directory = make_private_dir(directory)
        self.id = os.path.basename(self.directory)
        self.failure: str | None = None
        """Why the log is no longer written; None while it is."""
        self._writing = Lock()
        self._lock = os.open(os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                message = f"the conversation {self.id} is open in another process: wait for its end"
                raise ConversationError(message) from exc
            self._log = LineLog(os.path.join(self.directory, LOG_NAME))
        except BaseException:
            os.close(self._lock)
            raise
        if not self._log.rows:
            self.mark("start", cwd=cwd)

    def rows(self) -> Sequence[JsonObject]:
        """Give all rows, the oldest first."""
        return tuple(self._log.rows)

    def visible_rows(self, until: int | None = None) -> Sequence[tuple[int, JsonObject]]:
        """Give the rows that `find_visible_rows` finds, with `until` as they were before that position."""
        return find_visible_rows(self._log.rows[:until])

    def messages(self) -> Sequence[JsonObject]:
        """Give the messages that a model receives, the oldest first.

        Those that a rewind has hidden are left out; a compaction replaces the messages before the row `first` by its
        summary.
        """
        return tuple(message for _, message in self.numbered_messages())

    def numbered_messages(self) -> Sequence[tuple[int, JsonObject]]:
        """Give what `messages` gives, with the position of each row; a summary has the position of its compaction."""
        rows = self.visible_rows()
        messages: list[tuple[int, JsonObject]] = []
        for index, row in reversed(rows):
            summary, first = row.get("summary"), row.get("first")
            if row.get("op") == COMPACT_OP and is_json_object(summary) and isinstance(first, int):
                messages.append((index, summary))
                rows = [(number, kept) for number, kept in rows if number >= first]
                break
        for index, row in rows:
            message = row.get("message")
            if row.get("op") == _MESSAGE_OP and is_json_object(message):
                messages.append((index, message))
        return messages

    def add_message(self, message: JsonObject) -> None:
        """Append a message."""
        self.append_rows([{"op": _MESSAGE_OP, "message": message}])

    def mark(self, op: str, **facts: JsonValue) -> None:
        """Append a row about the conversation itself."""
        self.append_rows([build_row(op, facts)])

    def append_rows(self, rows: Sequence[JsonObject]) -> None:
        """Append rows with one write; a failure is stored in `failure`."""
        # A full disk does not end the conversation; rows behind a gap would mislead a later run.
        with self._writing:  # sub-agents record their turns in threads of their own
            if self.failure is not None:
                return
            try:
                self._log.extend(rows)
            except OSError as exc:
                self.failure = str(exc)

    def close(self) -> None:
        """Close the log, and release the lock."""
        self._log.close()
        os.close(self._lock)


def build_row(op: str, facts: Mapping[str, JsonValue]) -> JsonObject:
    """Build a row with the present time."""
    return {"op": op, "at": iso_utc(now_ms()), **facts}


def add_session_note(prompt: str, facts: Sequence[str]) -> str:
    """Add facts of the session to a prompt, as a note for the model."""
    text = "\n".join(facts)
    return f"{prompt}\n\n<session-note>\n{text}\n</session-note>" if facts else prompt


def remove_session_note(prompt: str) -> str:
    """Give a prompt as the person wrote it."""
    return prompt.partition("\n\n<session-note>\n")[0]


def find_visible_rows(rows: Sequence[JsonObject]) -> Sequence[tuple[int, JsonObject]]:
    """Find the rows that no rewind has hidden, with their positions, the oldest first.

    A rewind is a row with the position `before`: the rows from there up to it are hidden. A later rewind to the
    position of such a row shows them again.
    """
    numbered = list(enumerate(rows))
    parts: list[Sequence[tuple[int, JsonObject]]] = []
    end = len(numbered)
    for index, row in reversed(numbered):
        before = row.get("before")
        if row.get("op") == REWIND_OP and index < end and isinstance(before, int) and 0 <= before <= index:
            parts.append(numbered[index:end])
            end = before
    parts.append(numbered[:end])
    return [row for part in reversed(parts) for row in part]


class ConversationReadState(ReadState):
    """Read state that is stored with the conversation, and restored when it is continued.

    A row holds the path, the digest of the bytes and the lines that were shown. A file with another digest has changed
    since, and the tools say so.
    """

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript
        self._pending: deque[dict[str, str | int]] = deque()
        self.restore()

    def restore(self) -> None:
        """Restore what the conversation holds, such as after a rewind. It blocks."""
        self._files.clear()
        for _, row in self._transcript.visible_rows():
            path, digest = row.get("path"), row.get("digest")
            first, last = row.get("first"), row.get("last")
            if row.get("op") != _READ_OP or not isinstance(path, str):
                continue
            if isinstance(digest, str):
                lines = (first, last) if isinstance(first, int) and isinstance(last, int) else None
                super().record(path, digest, lines)
            else:
                super().forget(path)

    def record(self, path: str, digest: str, lines: tuple[int, int] | None = None) -> None:
        """Record that `path` held the bytes with this digest."""
        super().record(path, digest, lines)
        row: dict[str, str | int] = {"path": path, "digest": digest}
        if lines is not None:
            row |= {"first": lines[0], "last": lines[1]}
        self._pending.append(row)

    def forget(self, path: str) -> None:
        """Drop the record of `path`, if there is one."""
        super().forget(path)
        self._pending.append({"path": path})

    def save_message(self, message: JsonObject) -> None:
        """Append a message to the conversation, then the reads that led to it. It blocks.

        The order matters: a read that the model never received does not count.
        """
        rows: list[JsonObject] = [{"op": _MESSAGE_OP, "message": message}]
        while self._pending:
            rows.append(build_row(_READ_OP, self._pending.popleft()))
        self._transcript.append_rows(rows)


# -- the directory of all conversations ---------------------------------------------------------


def conversations_dir() -> str:
    """Give the directory of all conversations.

    Raises:
        OSError: There is no home directory.
    """
    return os.path.join(state_dir(), "conversations")


def open_transcript(
    cwd: str, *, resume: str | None = None, last: bool = False, fork: bool = False, scripted: bool = False
) -> Transcript:
    """Open conversation `resume`, the `last` one in `cwd`, or a new one. It blocks.

    With `fork` a copy of it is opened, under a new id. Conversations that only scripts have opened (`scripted`) make
    room for each other, never at the cost of the others.

    Raises:
        OSError: The log cannot be opened.
        ConversationError: The conversation is absent or in use.
    """
    root = conversations_dir()
    name, is_new = resume, False
    if resume is not None:
        if not is_ulid(resume) or not os.path.isfile(os.path.join(root, resume, LOG_NAME)):
            raise ConversationError(f"there is no conversation {resume!r}; --continue takes the last one")
    elif last:
        name = find_last_conversation(cwd, root)
        if name is None:
            raise ConversationError(f"there is no conversation in {cwd} to go on with")
    if name is None:
        make_private_dir(root)
        remove_old_conversations(root)
        name, is_new = new_ulid(), True
    elif fork:
        name = fork_conversation(name, root)
    transcript = Transcript(os.path.join(root, name), cwd)
    mark = os.path.join(transcript.directory, _SCRIPTED)
    with suppress(OSError):  # the mark only decides how long the conversation is kept
        if scripted and is_new:
            os.close(create_private_file(mark))
        elif not scripted:
            os.unlink(mark)
    return transcript


def fork_conversation(name: str, root: str) -> str:
    """Copy a conversation with all that belongs to it, and give the id of the copy. It blocks.

    Its files are only ever appended to: a copy that is made while it is open holds what was complete then.

    Raises:
        OSError: It could not be copied; nothing is left of the copy.
    """
    copy = new_ulid()
    path = os.path.join(root, copy)
    try:
        copytree(os.path.join(root, name), path, symlinks=True, ignore=ignore_patterns("lock", "*.corrupt-*"))
        log = LineLog(os.path.join(path, LOG_NAME))
        try:
            log.append(build_row(FORK_OP, {"from": name}))
        finally:
            log.close()
    except BaseException:
        rmtree(path, ignore_errors=True)
        raise
    return copy


def find_last_conversation(cwd: str, root: str) -> str | None:
    """Find the conversation in a working directory that was written last."""
    return next((name for _, name in list_by_age(root) if find_cwd(os.path.join(root, name)) == cwd), None)


def find_cwd(directory: str) -> str | None:
    """Find the working directory of the conversation in `directory`; None if its log cannot be read."""
    try:
        with open(os.path.join(directory, LOG_NAME), "rb") as file:
            row = decode_line(file.readline(_FIRST_LINE).rstrip(b"\n"))
    except OSError:
        return None
    cwd = None if row is None else row.get("cwd")
    return cwd if isinstance(cwd, str) else None


def read_rows(directory: str) -> Sequence[JsonObject]:
    """Read the rows of the log in `directory` up to a damaged one, without opening the conversation. It blocks."""
    return read_lines(os.path.join(directory, LOG_NAME))


def remove_old_conversations(root: str) -> None:
    """Remove conversations past `KEEP_DAYS` or past the newest `KEEP` of their kind; one that is in use stays.

    A clock that jumps ahead removes nothing.
    """
    found = list_by_age(root)
    safe_ms = find_safe_now(now_ms(), [modified // _MS_NS for modified, _ in found])
    oldest = (safe_ms - KEEP_DAYS * DAY_MS) * _MS_NS
    counts = {True: 0, False: 0}
    for modified, name in found:
        directory = os.path.join(root, name)
        is_scripted = os.path.exists(os.path.join(directory, _SCRIPTED))
        counts[is_scripted] += 1
        if (counts[is_scripted] > KEEP or modified < oldest) and not _is_in_use(directory):
            rmtree(directory, ignore_errors=True)


def list_by_age(root: str) -> list[tuple[int, str]]:
    """List modification times and names, the newest first."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    entries: list[tuple[int, str]] = []
    for name in filter(is_ulid, names):
        try:
            entries.append((os.stat(os.path.join(root, name, LOG_NAME)).st_mtime_ns, name))
        except OSError:  # not a conversation, or removed meanwhile
            continue
    return sorted(entries, reverse=True)


def _is_in_use(directory: str) -> bool:
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


# -- stored conversations ---------------------------------------------------------------------


_TITLE = 120
_MESSAGE = b'{"op":"message"'
_BODY = b"{"


@record(kw_only=True)
class ConversationSummary:
    """A stored conversation."""

    id: str
    modified_ms: int
    title: str
    """The first words of its first prompt."""
    messages: int
    """Number of messages in its log."""


def list_conversations(
    cwd: str, *, limit: int, directory: str | None = None, without: str | None = None
) -> Sequence[ConversationSummary]:
    """List the conversations of a working directory that were written last, the newest first. It blocks.

    `directory` has all of them instead of the usual directory; `without` is left out.
    """
    root = directory or conversations_dir()
    summaries: list[ConversationSummary] = []
    for modified_ns, name in list_by_age(root):
        if len(summaries) == limit:
            break
        path = os.path.join(root, name)
        if name == without or find_cwd(path) != cwd:
            continue
        summary = summarise_log(path, modified_ns // 1_000_000)
        if summary is not None and summary.messages:
            summaries.append(summary)
    return summaries


def summarise_log(directory: str, modified_ms: int) -> ConversationSummary | None:
    """Read the log in a directory; only the first prompt is decoded. It blocks."""
    title, messages = "", 0
    try:
        with open(os.path.join(directory, LOG_NAME), "rb") as file:
            for line in file:
                start = line.find(_BODY)
                if start < 0 or not line.startswith(_MESSAGE, start):
                    continue
                messages += 1
                if not title:
                    row = decode_line(line.rstrip(b"\n"))
                    message = None if row is None else row.get("message")
                    title = find_prompt_text(message) if is_json_object(message) else ""
    except OSError:
        return None
    shown = cut_text(" ".join(clean_text(title)[0].split()), _TITLE)
    return ConversationSummary(id=os.path.basename(directory), modified_ms=modified_ms, title=shown, messages=messages)


def find_prompt_text(message: JsonObject) -> str:
    """Find what a person has written in a message; empty if it holds no prompt."""
    texts = _list_texts(message, "user-prompt") if message.get("kind") == "request" else []
    return remove_session_note("\n".join(texts))


def find_answer_text(message: JsonObject) -> str:
    """Find what a model has said in a message; empty if it said nothing."""
    return "\n".join(_list_texts(message, "text")) if message.get("kind") == "response" else ""


def find_last_exchange(messages: Sequence[JsonObject]) -> tuple[str, str]:
    """Find the last prompt and the last text of the model after it."""
    prompt = answer = ""
    for message in reversed(messages):
        answer = answer or find_answer_text(message)
        prompt = find_prompt_text(message)
        if prompt:
            break
    return prompt, answer


def _list_texts(message: JsonObject, kind: str) -> list[str]:
    parts = message.get("parts")
    texts: list[str] = []
    for part in parts if isinstance(parts, list) else ():
        content = part.get("content") if is_json_object(part) and part.get("part_kind") == kind else None
        items = content if isinstance(content, list) else [content]
        texts.extend(item for item in items if isinstance(item, str) and item)
    return texts
