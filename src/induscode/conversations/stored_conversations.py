"""List of stored conversations: what a person needs to recognise one, without opening it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from induscode.conversations.transcript import LOG_NAME, conversations_dir, find_cwd, list_by_age, remove_session_note
from induscode.deck.stores.line_log import decode_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject

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
