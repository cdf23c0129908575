"""What recorded calls were about and who asked for them, for people.

Call records hold no arguments, but the conversation's log does. This joins both by run, turn and call id, so that
nothing is stored twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence, Set
from contextlib import suppress

from indusagi.core.ids import is_ulid
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import cut_text
from induscode.calls.record import CallRecord
from induscode.cli.call_title import describe_call
from induscode.conversations.transcript import (
    LOG_NAME,
    conversations_dir,
    find_prompt_text,
    format_content,
    list_parts,
    parse_arguments,
    shorten_prompt,
)
from induscode.deck.stores.line_log import decode_line

_MAX_BYTES = 256 * 1024 * 1024
"""How much to read for one list of calls. The calls of further logs stay without a subject."""
_MARKS = (b'{"op":"start"', b'{"op":"turn"')
_MESSAGE = b'{"op":"message"'
_PROMPT = b'"part_kind":"user-prompt"'
_MAX_RESULT = 20_000
_CHANGE = re.compile(r"^[^\n]*\((\+\d+ −\d+), ")  # noqa: RUF001 — a minus
_CALL_ID = re.compile(rb'"tool_call_id":"([^"\\]+)"')
_ENTRY_POINTS = {"call": "indus call", "session": "session", "gateway": "gateway"}


@record(kw_only=True)
class CallSubject:
    """What a call was about, and for whom."""

    by: str
    """The client, or the first words of the prompt in quotes."""
    what: str = ""
    """The file, the command or the arguments, on one line; empty if they're unknown."""
    row: int | None = None
    """Where the conversation's log has the call, or at least its turn."""
    cwd: str = ""
    """The conversation's working directory."""
    arguments: JsonValue = None
    result: str = ""
    """The start of the result, as the model read it."""

    @property
    def change(self) -> str:
        """How many lines an edit added and removed, such as `+1` and `-2`."""
        found = _CHANGE.search(self.result)
        return "" if found is None else found[1]


def describe_subjects(calls: Sequence[CallRecord], cwd: str | None = None) -> list[CallSubject]:
    """Describe calls, in their order. Blocks: it reads the logs of their conversations.

    With `cwd`, it only reads conversations of this working directory.
    """
    wanted: dict[str, set[str]] = {}
    for call in calls:
        if is_ulid(call.conversation):
            wanted.setdefault(call.conversation, set()).add(call.call)
    logs: dict[str, _Log] = {}
    left = _MAX_BYTES
    for conversation, ids in wanted.items():
        path = os.path.join(conversations_dir(), conversation, LOG_NAME)
        with suppress(OSError):  # it was removed, or belongs to another machine
            left -= os.stat(path).st_size
            if left >= 0:
                log = _Log()
                log.read(path, ids, cwd)
                logs[conversation] = log
    return [_describe(call, logs.get(call.conversation, _Log())) for call in calls]


def _describe(call: CallRecord, log: _Log) -> CallSubject:
    row, node = log.turns.get((call.run, call.turn), (None, ""))
    row, arguments = log.calls.get((call.run, call.turn, call.call), (row, None))
    prompt = log.prompts.get(node, "")
    by = " ".join(filter(None, (call.principal, call.client)))
    by = by or (f'"{prompt}"' if prompt else _ENTRY_POINTS.get(call.via, call.via))
    what = "" if arguments is None else describe_arguments(call, arguments, log.cwd)
    return CallSubject(
        by=f"{call.agent}: {by}" if call.agent else by,
        what=what,
        row=row,
        cwd=log.cwd,
        arguments=arguments,
        result=log.results.get((call.run, call.turn, call.call), ""),
    )


def describe_arguments(call: CallRecord, arguments: JsonValue, cwd: str = "") -> str:
    """Name the file or command of a call, or else its arguments, on one line."""
    title = describe_call(call.tool, arguments, server=call.server, tool=call.tool, cwd=cwd)
    return title.subject or title.rest


class _Log:
    """The parts of a conversation's log that name calls."""

    def __init__(self) -> None:
        self.cwd = ""
        self.turns: dict[tuple[str, int], tuple[int, str]] = {}
        """The row of each turn, and the checkpoint node it shares with its prompt."""
        self.prompts: dict[str, str] = {}
        """The first words of each node's prompt."""
        self.calls: dict[tuple[str, int, str], tuple[int, JsonValue]] = {}
        """The row and the arguments of each call."""
        self.results: dict[tuple[str, int, str], str] = {}
        self._run, self._turn, self._node = "", 0, ""
        self._last: dict[str, tuple[str, int, str]] = {}
        """The last call with each id: models may use an id again."""

    def read(self, path: str, wanted: Set[str], cwd: str | None) -> None:
        """Read the turns, prompts and `wanted` calls of a file, and decode no other line."""
        with open(path, "rb") as file:
            for index, line in enumerate(file):
                if not _is_wanted(line, wanted):
                    continue
                row = decode_line(line.rstrip(b"\n"))
                if row is None:
                    break  # like every reader of this log
                self._add(index, row)
                if cwd not in {None, self.cwd}:
                    self.cwd = ""
                    break

    def _add(self, index: int, row: JsonObject) -> None:
        message, turn = row.get("message"), row.get("turn")
        if isinstance(turn, int):
            self._run, self._turn, self._node = str(row.get("run", "")), turn, str(row.get("node", ""))
            self.turns.setdefault((self._run, turn), (index, self._node))
        elif is_json_object(message):
            if prompt := find_prompt_text(message):
                self.prompts.setdefault(self._node, shorten_prompt(prompt))
            for part in list_parts(message):
                kind, identity = part.get("part_kind"), str(part.get("tool_call_id"))
                if kind == "tool-call":
                    key = self._last[identity] = self._run, self._turn, identity
                    self.calls[key] = index, parse_arguments(part)
                elif kind in {"tool-return", "retry-prompt"} and identity in self._last:
                    self.results[self._last.pop(identity)] = cut_text(format_content(part.get("content")), _MAX_RESULT)
        else:
            self.cwd = str(row.get("cwd", self.cwd))


def _is_wanted(line: bytes, wanted: Set[str]) -> bool:
    start = line.find(b"{")
    if not line.startswith(_MESSAGE, start):
        return line.startswith(_MARKS, start)
    return _PROMPT in line or not wanted.isdisjoint(one.decode() for one in _CALL_ID.findall(line))
