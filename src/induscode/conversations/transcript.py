"""Conversations on disk: an append-only log each, which `--continue` and `--resume` read.

Each conversation has a private directory, named by its id, in the user's state directory. The log records the working
directory, messages, the deck of every turn, file reads, and the rows of `KeptState`. It ignores rows of other versions
but never deletes them. A file lock admits one process at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from shutil import copytree, ignore_patterns, rmtree
from threading import Lock

from indusagi.capabilities.context import ReadState
from indusagi.core.app_dirs import create_private_file, make_private_dir, state_dir
from indusagi.core.faults import CoreError
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from indusagi.core.time import DAY_MS, find_safe_now, iso_utc, now_ms
from induscode.deck.stores.line_log import LineLog, decode_line, read_lines

KEEP = 200
"""Conversations to keep: this many from scripts (`-p`), and as many others."""
KEEP_DAYS = 30
LOG_NAME = "transcript.log"
_SCRIPTED = "scripted"
"""Marker file of a conversation that only scripts (`-p`) have opened."""
_READ_OP = "read"
REWIND_OP = "rewind"
COMPACT_OP = "compact"
FORK_OP = "fork"
_MESSAGE_OP = "message"
_MS_NS = 1_000_000
_MAX_FIRST_LINE = 64 * 1024


class ConversationError(CoreError):
    """A conversation doesn't exist or can't be continued."""


class OpenElsewhereError(ConversationError):
    """Another process has the conversation open."""

    def __init__(self, name: str) -> None:
        super().__init__(f"conversation {name} is open elsewhere: close it there first, or add --fork to open a copy")
        self.name = name


class Transcript:
    """The log of an open conversation. Its methods block: call them in a thread."""

    def __init__(self, directory: str, cwd: str) -> None:
        """Open the conversation in `directory`, creating both if necessary.

        Raises:
            OSError: The log can't be opened.
            OpenElsewhereError: Another process has the conversation open.
        """
        self.directory = make_private_dir(directory)
        self.id = os.path.basename(self.directory)
        self.path = os.path.join(self.directory, LOG_NAME)
        self.failure: str | None = None
        """The error that stopped writing to the log, if any."""
        self._writing = Lock()
        self._lock = os.open(os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise OpenElsewhereError(self.id) from exc
            self._log = LineLog(self.path)
        except BaseException:
            os.close(self._lock)
            raise
        if not self._log.rows:
            self.mark("start", cwd=cwd)

    def rows(self) -> Sequence[JsonObject]:
        """Return all rows, oldest first."""
        return tuple(self._log.rows)

    def visible_rows(self, until: int | None = None) -> Sequence[tuple[int, JsonObject]]:
        """Return the visible rows with their positions (see `find_visible_rows`), optionally as of row `until`."""
        return find_visible_rows(self._log.rows[:until])

    def messages(self) -> Sequence[JsonObject]:
        """Return the messages to send to a model, oldest first.

        A rewind hides messages. A compaction replaces the messages before row `first` with its summary.
        """
        return tuple(message for _, message in self.numbered_messages())

    def numbered_messages(self) -> Sequence[tuple[int, JsonObject]]:
        """Return `messages` with their row positions. A summary has the position of its compaction."""
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
        """Append rows in one write, and store an error in `failure`."""
        # A full disk doesn't end the conversation, but rows after a gap would mislead a later run.
        with self._writing:  # sub-agents record their turns in other threads
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
    """Build a row with the current time."""
    return {"op": op, "at": iso_utc(now_ms()), **facts}


def add_session_note(prompt: str, facts: Sequence[str]) -> str:
    """Add facts about the session to a prompt, as a note for the model."""
    text = "\n".join(facts)
    return f"{prompt}\n\n<session-note>\n{text}\n</session-note>" if facts else prompt


def remove_session_note(prompt: str) -> str:
    """Return a prompt as the user wrote it."""
    return prompt.partition("\n\n<session-note>\n")[0]


def find_visible_rows(rows: Sequence[JsonObject]) -> Sequence[tuple[int, JsonObject]]:
    """Find the rows that no rewind hides, with their positions, oldest first.

    A rewind row hides the rows from position `before` up to itself. A later rewind to its own position shows them
    again.
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
    """Read state that survives in the conversation's log.

    A row holds the path and the digest of the bytes. If a file's digest differs, it has changed since,
    and the tools say so.
    """

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript
        self._pending: deque[dict[str, str]] = deque()
        self.restore()

    def restore(self) -> None:
        """Restore the state from the log, for example after a rewind. Blocks."""
        self._digests.clear()
        for _, row in self._transcript.visible_rows():
            path, digest = row.get("path"), row.get("digest")
            if row.get("op") != _READ_OP or not isinstance(path, str):
                continue
            if isinstance(digest, str):
                super().record(path, digest)
            else:
                super().forget(path)

    def record(self, path: str, digest: str) -> None:
        """Record that `path` held the bytes with this digest."""
        super().record(path, digest)
        self._pending.append({"path": path, "digest": digest})

    def forget(self, path: str) -> None:
        """Drop the record of `path`, if any."""
        super().forget(path)
        self._pending.append({"path": path})

    def save_message(self, message: JsonObject) -> None:
        """Append a message to the conversation, then the reads that led to it. Blocks.

        The order matters: a read that never reached the model doesn't count.
        """
        rows: list[JsonObject] = [{"op": _MESSAGE_OP, "message": message}]
        while self._pending:
            rows.append(build_row(_READ_OP, self._pending.popleft()))
        self._transcript.append_rows(rows)


# -- the directory of all conversations ---------------------------------------------------------


def conversations_dir() -> str:
    """Return the directory of all conversations; `OSError` if the user has no home directory."""
    return os.path.join(state_dir(), "conversations")


def open_transcript(
    cwd: str, *, resume: str | None = None, last: bool = False, fork: bool = False, scripted: bool = False
) -> Transcript:
    """Open conversation `resume`, the `last` one in `cwd`, or a new one. Blocks.

    `fork` opens a copy under a new id. Conversations that only scripts opened (`scripted`) have a separate quota, so
    they never displace others.

    Raises:
        OSError: The log can't be opened.
        ConversationError: The conversation doesn't exist or is in use.
    """
    root = conversations_dir()
    name, is_new = resume, False
    if resume is not None:
        if not is_ulid(resume) or not os.path.isfile(os.path.join(root, resume, LOG_NAME)):
            raise ConversationError(f"there is no conversation {resume!r}; --continue takes the last one")
    elif last:
        name = find_last_conversation(cwd, root)
        if name is None:
            raise ConversationError(f"there is no conversation in {cwd} to continue")
    if name is None:
        make_private_dir(root)
        remove_old_conversations(root)
        name, is_new = new_ulid(), True
    elif fork:
        name = fork_conversation(name, root)
    transcript = Transcript(os.path.join(root, name), cwd)
    mark = os.path.join(transcript.directory, _SCRIPTED)
    with suppress(OSError):  # the mark only affects retention
        if scripted and is_new:
            os.close(create_private_file(mark))
        elif not scripted:
            os.unlink(mark)
    return transcript


def fork_conversation(name: str, root: str) -> str:
    """Copy a conversation's directory and return the id of the copy. Blocks.

    Copying an open conversation is safe because its files only ever grow. A copy that failed is removed.
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
    """Find the most recent conversation of a working directory."""
    return next((name for _, name in list_by_age(root) if find_cwd(os.path.join(root, name)) == cwd), None)


def find_cwd(directory: str) -> str | None:
    """Return the working directory of the conversation in `directory`, or `None` if its log is unreadable."""
    try:
        with open(os.path.join(directory, LOG_NAME), "rb") as file:
            row = decode_line(file.readline(_MAX_FIRST_LINE).rstrip(b"\n"))
    except OSError:
        return None
    cwd = None if row is None else row.get("cwd")
    return cwd if isinstance(cwd, str) else None


def read_rows(directory: str) -> Sequence[JsonObject]:
    """Read the log's rows up to the first damaged one, without opening the conversation. Blocks."""
    return read_lines(os.path.join(directory, LOG_NAME))


def remove_old_conversations(root: str) -> None:
    """Remove unused conversations older than `KEEP_DAYS` or beyond the newest `KEEP` of their kind.

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
    """List modification times and names, newest first."""
    try:
        names = os.listdir(root)
    except OSError:
        return []
    entries: list[tuple[int, str]] = []
    for name in filter(is_ulid, names):
        try:
            entries.append((os.stat(os.path.join(root, name, LOG_NAME)).st_mtime_ns, name))
        except OSError:  # not a conversation, or just removed
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


# -- listing ------------------------------------------------------------------------------------

_MAX_TITLE = 120
_MAX_WORDS = 72
_MESSAGE = b'{"op":"message"'
_BODY = b"{"


@record(kw_only=True)
class ConversationSummary:
    """A stored conversation."""

    id: str
    cwd: str
    modified_ms: int
    title: str
    """The first words of its first prompt."""
    messages: int
    """Number of messages in its log."""


def list_conversations(cwd: str | None, *, limit: int, without: str = "") -> Sequence[ConversationSummary]:
    """List the most recent conversations of a working directory, or of all, except `without`. Blocks.

    The newest comes first. Conversations without messages are left out.
    """
    root = conversations_dir()
    found = ((modified_ns, os.path.join(root, name)) for modified_ns, name in list_by_age(root) if name != without)
    summaries = (
        summarise_log(path, modified_ns // _MS_NS)
        for modified_ns, path in found
        if (stored := find_cwd(path)) is not None and cwd in {None, stored}
    )
    return [*islice((summary for summary in summaries if summary is not None and summary.messages), limit)]


def summarise_log(directory: str, modified_ms: int) -> ConversationSummary | None:
    """Summarise the log in a directory, decoding only the first prompt. Blocks."""
    title, messages, cwd = "", 0, find_cwd(directory) or ""
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
    shown = cut_text(" ".join(clean_text(title)[0].split()), _MAX_TITLE)
    identity = os.path.basename(directory)
    return ConversationSummary(id=identity, cwd=cwd, modified_ms=modified_ms, title=shown, messages=messages)


def find_prompt_text(message: JsonObject) -> str:
    """Return the user's prompt in a message, or an empty string."""
    return remove_session_note("\n".join(_list_texts(message, "user-prompt")))


def shorten_prompt(prompt: str) -> str:
    """Return the first words of a prompt, on one line."""
    words = " ".join(clean_text(prompt)[0].split())
    return words if len(words) <= _MAX_WORDS else f"{words[: _MAX_WORDS - 1]}…"


def find_answer_text(message: JsonObject) -> str:
    """Return the model's text in a message, or an empty string."""
    return "\n".join(_list_texts(message, "text")) if message.get("kind") == "response" else ""


def find_last_exchange(messages: Sequence[JsonObject]) -> tuple[str, str]:
    """Return the last prompt, and the model's last text after it."""
    prompt = answer = ""
    for message in reversed(messages):
        answer = answer or find_answer_text(message)
        prompt = find_prompt_text(message)
        if prompt:
            break
    return prompt, answer


def list_parts(message: JsonObject) -> Sequence[JsonObject]:
    """List the parts of a message."""
    parts = message.get("parts")
    return [part for part in parts if is_json_object(part)] if isinstance(parts, list) else []


def parse_arguments(part: JsonObject) -> JsonValue:
    """Return the arguments of a call; models may write anything."""
    arguments = part.get("args")
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def format_content(content: JsonValue) -> str:
    """Return the content of a part as text."""
    if isinstance(content, list):
        return "\n".join(map(format_content, content))
    return content if isinstance(content, str) else "" if content is None else compact_json(content)


def _list_texts(message: JsonObject, kind: str) -> list[str]:
    texts: list[str] = []
    for part in list_parts(message):
        content = part.get("content") if part.get("part_kind") == kind else None
        items = content if isinstance(content, list) else [content]
        texts.extend(item for item in items if isinstance(item, str) and item)
    return texts
