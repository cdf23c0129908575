"""Stored conversations for an editor: the list, and one conversation's messages as updates.

https://agentclientprotocol.com/protocol/session-setup#loading-sessions. Shows everything the user saw, including
messages a compaction replaced for the model; messages hidden by a rewind stay hidden.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.core.text import clean_text, cut_text
from indusagi.core.time import iso_utc
from induscode.conversations.compaction import list_parts
from induscode.conversations.transcript import LOG_NAME, conversations_dir, find_cwd, list_by_age, remove_session_note
from induscode.deck.stores.line_log import decode_line
from induscode.frontends.acp.updates import KINDS, build_call, build_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.conversations.transcript import Transcript
    from induscode.frontends.acp.updates import CallIds

_TITLE = 80
_TITLE_ROWS = 20
"""Rows to search for a conversation's first prompt."""
_MAX_ROW_BYTES = 64 * 1024
_MAX_LISTED = 100


def list_conversations(cwd: str | None) -> list[JsonValue]:
    """List the conversations of a directory, or all, newest first. Blocks."""
    root = conversations_dir()
    rows: list[JsonValue] = []
    for modified, name in list_by_age(root):
        folder = find_cwd(os.path.join(root, name))
        if folder is None or cwd not in {None, folder}:
            continue
        title = _find_title(os.path.join(root, name, LOG_NAME))
        updated = iso_utc(modified // 1_000_000)
        rows.append({"sessionId": name, "cwd": folder, "updatedAt": updated, "title": title or None})
        if len(rows) == _MAX_LISTED:
            break
    return rows


def _find_title(path: str) -> str:
    """Return a conversation's first prompt."""
    try:
        with open(path, "rb") as file:
            for _ in range(_TITLE_ROWS):
                row = decode_line(file.readline(_MAX_ROW_BYTES).rstrip(b"\n"))
                message = None if row is None else row.get("message")
                for part in list_parts(message) if is_json_object(message) else ():
                    if part.get("part_kind") == "user-prompt":
                        text = " ".join(text for text, _ in _split_prompt(part.get("content")) if text)
                        return cut_text(" ".join(clean_text(text)[0].split()), _TITLE)
    except OSError:
        return ""
    return ""


def replay_messages(transcript: Transcript, cwd: str, remote: Collection[str], ids: CallIds) -> Iterator[JsonObject]:
    """Yield a conversation's messages as updates, oldest first; `remote` holds the names of server tools."""
    running: dict[str, tuple[str, str]] = {}
    for index, row in transcript.visible_rows():
        message = row.get("message")
        if row.get("op") != "message" or not is_json_object(message):
            continue
        for part in list_parts(message):
            kind, name = part.get("part_kind"), str(part.get("tool_name"))
            identity = str(part.get("tool_call_id"))
            if kind == "user-prompt":
                for text, image in _split_prompt(part.get("content")):
                    yield _build_chunk("user_message_chunk", index, text, image)
            elif kind == "text" and part.get("content"):
                yield _build_chunk("agent_message_chunk", index, str(part["content"]))
            elif kind == "tool-call":
                call, shown = ids.add(identity), "other" if name in remote else KINDS.get(name, "other")
                running[identity] = call, shown
                yield build_call(call, name, _parse_arguments(part.get("args")), shown, cwd)
            elif kind in {"tool-return", "retry-prompt"} and identity in running:
                yield _build_answer(*running.pop(identity), part)
    for identity, _ in running.values():  # interrupted
        yield {"sessionUpdate": "tool_call_update", "toolCallId": identity, "status": "failed"}


def _split_prompt(content: JsonValue) -> Iterator[tuple[str, JsonObject | None]]:
    """Yield the texts and images of a prompt."""
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, str):
            text = remove_session_note(item)
            if text:
                yield text, None
        elif is_json_object(item) and item.get("kind") == "binary":
            yield "", item


def _build_chunk(kind: str, index: int, text: str, image: JsonObject | None = None) -> JsonObject:
    content: JsonObject = {"type": "text", "text": text}
    if image is not None:
        content = {"type": "image", "data": str(image.get("data")), "mimeType": str(image.get("media_type"))}
    # Rows are append-only, so a position identifies a message for good.
    return {"sessionUpdate": kind, "content": content, "messageId": f"row-{index}"}


def _parse_arguments(arguments: JsonValue) -> JsonValue:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _build_answer(identity: str, kind: str, part: JsonObject) -> JsonObject:
    content = part.get("content")
    texts = content if isinstance(content, list) else [content]
    text = "\n".join(item for item in texts if isinstance(item, str))
    failed = part.get("part_kind") != "tool-return" or part.get("outcome", "success") != "success"
    failed = failed or text.startswith("Error: ")  # for APIs without an error flag
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": identity,
        "status": "failed" if failed else "completed",
        "content": [build_text(text, "other" if failed else kind)],
    }
