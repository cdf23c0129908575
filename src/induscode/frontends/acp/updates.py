"""Updates for an editor: turn events and stored messages as `session/update` notifications.

https://agentclientprotocol.com/protocol/prompt-turn#3-agent-reports-output. A call is reported when the model makes it
and when it ends. File changes carry both texts, checklist changes the whole plan, and mode changes the mode's name. A
call still open when its turn is cancelled is reported as failed.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.core.app_dirs import is_within
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json, is_json_object
from indusagi.core.time import iso_utc
from induscode.cli.call_title import CallTitle, describe_call
from induscode.conversations.contract import RunEvent, TextDelta, ToolAdvanced, ToolAnswered, ToolCalled
from induscode.conversations.transcript import (
    Transcript,
    list_conversations,
    list_parts,
    parse_arguments,
    remove_session_note,
)
from induscode.permissions.plan_mode import ENTER, EXIT

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.rpc.connection import JsonRpcConnection
    from induscode.conversations.conversation import Conversation


_CHECKLISTS = frozenset({"todo_set", "todo"})


class UpdateChannel:
    """Sends the updates of one session."""

    def __init__(self, connection: JsonRpcConnection, writable: asyncio.Event, session: str) -> None:
        self.connection = connection
        self.session = session
        self.writable = writable

    def send(self, update: JsonObject) -> None:
        """Send one update."""
        self.connection.notify("session/update", {"sessionId": self.session, "update": update})

    def say(self, text: str, kind: str = "agent_message_chunk", message: str | None = None) -> None:
        """Send a message chunk; without a message id it's a message by itself."""
        content: JsonObject = {"type": "text", "text": text}
        self.send({"sessionUpdate": kind, "content": content, "messageId": message or new_ulid()})


class CallIds:
    """Session-unique call ids for an editor: some model servers reuse ids."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()

    def add(self, call_id: str) -> str:
        """Return the editor's id for a new call with this model id."""
        self._uses[call_id] += 1
        uses = self._uses[call_id]
        return call_id if uses == 1 else f"{call_id}#{uses}"


@dataclass(slots=True)
class OpenCall:
    """A call without a result yet."""

    id: str
    """The editor's id."""
    name: str
    kind: str
    path: str | None = None
    """The file `write` or `edit` changes."""
    old: str | None = None
    """The file's text before the call; `None` if it can't be shown."""


class SessionUpdates:
    """Turns the events of a session's turns into updates; `find_mode` returns the current mode."""

    def __init__(self, channel: UpdateChannel, conversation: Conversation, find_mode: Callable[[], str]) -> None:
        self.channel = channel
        self.calls: dict[str, OpenCall] = {}
        """Running calls by model id."""
        self.ids = CallIds()
        self._conversation = conversation
        self._find_mode = find_mode
        self._mode = find_mode()
        self._message = ""
        self._plan: JsonObject = build_plan(())

    async def handle(self, event: RunEvent) -> None:
        """Send the updates of one event."""
        await self.channel.writable.wait()  # while the editor isn't reading, the turn stays cancellable
        if isinstance(event, TextDelta):
            text = event.text
            if event.starts:
                # Editors join the chunks between two calls, so start a new passage as a paragraph.
                text = f"\n\n{text}" if self._message else text
                self._message = new_ulid()
            if text:
                self.channel.say(text, message=self._message)
        elif isinstance(event, ToolCalled):
            await self._handle_call(event)
        elif isinstance(event, ToolAdvanced):
            words = event.message or (
                f"{event.done:g}" if event.total is None else f"{event.done:g} of {event.total:g}"
            )
            call = self.calls.get(event.id)
            if call is not None:
                self._update(call.id, status="in_progress", content=[build_text(words, "other")])
        elif isinstance(event, ToolAnswered):
            await self._handle_answer(event)

    async def _handle_call(self, event: ToolCalled) -> None:
        self._message = ""
        cwd = self._conversation.invocation.cwd
        is_native = event.name not in self._conversation.map_servers()
        call = OpenCall(self.ids.add(event.id), event.name, KINDS.get(event.name, "other") if is_native else "other")
        if call.kind == "edit":
            call.path = find_path(event.arguments, cwd)
            if call.path is not None:
                call.old = await to_thread.run_sync(read_side, call.path, cwd)
        self.calls[event.id] = call
        title = describe_call(event.name, event.arguments, server=event.server, tool=event.tool, cwd=cwd)
        self.channel.send(build_call(call.id, event.name, event.arguments, call.kind, cwd, title))

    async def _handle_answer(self, event: ToolAnswered) -> None:
        call = self.calls.pop(event.id, None)
        if call is None:
            return  # a sub-agent's call, or an unknown tool
        fields: dict[str, JsonValue] = {"status": "failed" if event.is_error else "completed"}
        diff = await self._build_result_diff(event, call)
        if diff is None:
            fields["content"] = [build_text(event.text, call.kind if not event.is_error else "other")]
        else:
            fields["content"] = [diff]
            line = find_first_line(event)
            fields["locations"] = [{"path": diff["path"]} | ({} if line is None else {"line": line})]
        self._update(call.id, **fields)
        if event.name in _CHECKLISTS:
            self.send_plan()
        self.send_mode()

    async def _build_result_diff(self, event: ToolAnswered, call: OpenCall) -> JsonObject | None:
        """Build the diff of an applied change; `None` if nothing changed or it can't be shown."""
        path = event.details.get("path")
        is_changed = event.details.get("changed") is True and event.details.get("dryRun") is not True
        if call.kind != "edit" or event.is_error or not is_changed or not isinstance(path, str) or call.old is None:
            return None
        new = await to_thread.run_sync(read_side, path, self._conversation.invocation.cwd)
        return None if new is None else build_diff(path, call.old, new)

    def _update(self, call_id: str, **fields: JsonValue) -> None:
        self.channel.send({"sessionUpdate": "tool_call_update", "toolCallId": call_id, **fields})

    def finish_turn(self) -> None:
        """Report calls without a result as failed; the next turn starts a new message."""
        for call in self.calls.values():
            self._update(call.id, status="failed")
        self.calls.clear()
        self._message = ""
        self.send_mode()

    def send_mode(self) -> None:
        """Send the mode if it changed."""
        mode = self._find_mode()
        if mode != self._mode:
            self._mode = mode
            self.channel.send({"sessionUpdate": "current_mode_update", "currentModeId": mode})

    def send_plan(self) -> None:
        """Send the checklist as a plan if it changed."""
        from indusagi.capabilities.checklist import checklist_of  # noqa: PLC0415 — loaded with the deck

        context = self._conversation.session.native.context
        items = [(item.text, item.status, item.weight) for item in checklist_of(context).items]
        plan = build_plan(items)
        if plan != self._plan:
            self._plan = plan
            self.channel.send(plan)


def build_call(
    call_id: str, name: str, arguments: JsonValue, kind: str, cwd: str, title: CallTitle | None = None
) -> JsonObject:
    """Build the update that starts a call."""
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": call_id,
        "title": str(title or describe_call(name, arguments, cwd=cwd)),
        "kind": kind,
        "status": "in_progress",
        "locations": list_locations(name, arguments, cwd) if kind != "other" else [],
        "rawInput": describe_arguments(arguments),
    }


# -- tool view --------------------------------------------------------------------------------
#
# https://agentclientprotocol.com/protocol/tool-calls. Arguments and results are untrusted: titles are escaped, and only
# files inside the workspace are read for diffs.


KINDS = {
    **dict.fromkeys(("read", "ls"), "read"),
    **dict.fromkeys(("todo_read", "todo_set", "todo"), "think"),
    **dict.fromkeys(("grep", "find", "websearch"), "search"),
    "webfetch": "fetch",
    **dict.fromkeys(("write", "edit"), "edit"),
    **dict.fromkeys(("bash", "process", "bg-process"), "execute"),
    **dict.fromkeys((ENTER, EXIT), "switch_mode"),
}
"""Kinds of native tools; any other tool is `other`."""
_FENCED = frozenset({"read", "search", "execute"})
_LARGEST_TEXT = 512 * 1024
"""Size limit for a file sent as one side of a diff."""
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)", re.MULTILINE)


def find_path(arguments: JsonValue, cwd: str) -> str | None:
    """Return the absolute path a file tool's call is about."""
    if not is_json_object(arguments):
        return None
    for key in ("path", *PATH_ALIASES):
        path = arguments.get(key)
        if isinstance(path, str) and path and "\0" not in path:
            return os.path.normpath(os.path.join(cwd, os.path.expanduser(path)))
    return None


def list_locations(name: str, arguments: JsonValue, cwd: str) -> list[JsonValue]:
    """List the locations a call looks at, so that an editor can follow along."""
    path = find_path(arguments, cwd) if KINDS.get(name) in {"read", "edit", "search"} else None
    if path is None:
        return []
    line = arguments.get("offset") if is_json_object(arguments) else None
    return [{"path": path, "line": line}] if isinstance(line, int) and line > 0 else [{"path": path}]


def build_text(text: str, kind: str) -> JsonObject:
    """Build text for a call, fencing program output since editors render Markdown."""
    if kind in _FENCED and text:
        longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
        fence = "`" * (longest + 1)
        text = f"{fence}\n{text}\n{fence}"
    return {"type": "content", "content": {"type": "text", "text": text}}


# -- diffs ------------------------------------------------------------------------------------


def read_side(path: str, cwd: str) -> str | None:
    """Read a workspace file as one side of a diff: "" if it's missing, `None` if it can't be shown. Blocks."""
    if not is_within(os.path.realpath(path), os.path.realpath(cwd)):
        return None
    try:
        # Non-blocking: the path may lead to a pipe.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with open(handle, "rb", closefd=False) as file:
            data = file.read(_LARGEST_TEXT + 1)
        return data.decode("utf-8") if len(data) <= _LARGEST_TEXT else None
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(handle)


def build_diff(path: str, old: str | None, new: str) -> JsonObject:
    """Build a diff; a new file has no old text."""
    return {"type": "diff", "path": path, "oldText": old or None, "newText": new}


def find_first_line(event: ToolAnswered) -> int | None:
    """Return the first changed line in a `write` or `edit` result."""
    match = _HUNK.search(str(event.details.get("diff", "")))
    return int(match[1]) if match else None


def describe_arguments(arguments: JsonValue) -> JsonValue:
    """Return arguments for `rawInput`, or `None` if they aren't valid JSON."""
    try:
        compact_json(arguments)
    except NotJson:
        return None
    return arguments


# -- plans ------------------------------------------------------------------------------------

_STATUS = {"pending": "pending", "active": "in_progress", "done": "completed"}
_PRIORITY = {"low": "low", "normal": "medium", "high": "high"}


def build_plan(items: Sequence[tuple[str, str, str]]) -> JsonObject:
    """Build an editor's plan from checklist items (text, state, weight), omitting dropped ones."""
    entries: list[JsonValue] = [
        {"content": text, "priority": _PRIORITY[weight], "status": _STATUS[state]}
        for text, state, weight in items
        if state in _STATUS
    ]
    return {"sessionUpdate": "plan", "entries": entries}


# -- stored messages ----------------------------------------------------------------------------
#
# https://agentclientprotocol.com/protocol/session-setup#loading-sessions. Shows everything the user saw, including
# messages a compaction replaced for the model; messages hidden by a rewind stay hidden.


_MAX_LISTED = 100


def list_sessions(cwd: str | None) -> list[JsonValue]:
    """List the conversations of a directory, or all, newest first. Blocks."""
    return [
        {"sessionId": one.id, "cwd": one.cwd, "updatedAt": iso_utc(one.modified_ms), "title": one.title or None}
        for one in list_conversations(cwd, limit=_MAX_LISTED)
    ]


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
                yield build_call(call, name, parse_arguments(part), shown, cwd)
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
