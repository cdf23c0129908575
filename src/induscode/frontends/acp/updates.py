"""Updates for an editor: the events of a turn as `session/update` notifications.

https://agentclientprotocol.com/protocol/prompt-turn#3-agent-reports-output. A call is reported when the model makes it
and when it ends; a change of a file carries both texts, a change of a checklist the whole plan, and a change of the
mode its name. A call that a cancelled turn leaves open is reported as failed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import new_ulid
from induscode.conversations.contract import TextDelta, ToolAdvanced, ToolAnswered, ToolCalled
from induscode.frontends.acp.tool_view import (
    KINDS,
    build_diff,
    build_plan,
    build_text,
    describe_arguments,
    find_first_line,
    find_path,
    format_title,
    list_locations,
    propose_diffs,
    read_side,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.rpc.connection import JsonRpcConnection
    from induscode.conversations.contract import RunEvent
    from induscode.conversations.conversation import Conversation

_CHECKLISTS = frozenset({"todo_set", "todo"})


class UpdateChannel:
    """Sends the updates of one session."""

    def __init__(self, connection: JsonRpcConnection, writable: asyncio.Event, session: str) -> None:
        self.connection = connection
        self.session = session
        self._writable = writable

    def send(self, update: JsonObject) -> None:
        """Send an update."""
        self.connection.notify("session/update", {"sessionId": self.session, "update": update})

    async def wait_writable(self) -> None:
        """Wait while the editor does not read; the turn can be cancelled meanwhile."""
        await self._writable.wait()

    def say(self, text: str, kind: str = "agent_message_chunk", message: str | None = None) -> None:
        """Send a piece of a message; without an id of the message it is one of its own."""
        content: JsonObject = {"type": "text", "text": text}
        self.send({"sessionUpdate": kind, "content": content, "messageId": message or new_ulid()})


class CallIds:
    """Ids of calls for an editor: each names one call of the session. Some model servers use an id again."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()

    def add(self, call_id: str) -> str:
        """Give the id for a new call that has this id for the model."""
        self._uses[call_id] += 1
        uses = self._uses[call_id]
        return call_id if uses == 1 else f"{call_id}#{uses}"


@dataclass(slots=True)
class OpenCall:
    """A call without a result so far."""

    id: str
    """Its id for the editor."""
    name: str
    kind: str
    path: str | None = None
    """The file that `write` or `edit` changes."""
    old: str | None = None
    """Its text before the call; None if it cannot be shown."""
    diffs: list[JsonValue] = field(default_factory=list["JsonValue"])
    """What the call would change, as far as its arguments tell."""


class SessionUpdates:
    """Turns the events of a session's turns into updates."""

    def __init__(self, channel: UpdateChannel, conversation: Conversation, find_mode: Callable[[], str]) -> None:
        """Take the channel, the conversation, and a function that gives the present mode."""
        self.channel = channel
        self.calls: dict[str, OpenCall] = {}
        """Calls that are running, by their ids for the model."""
        self.ids = CallIds()
        self._conversation = conversation
        self._find_mode = find_mode
        self._mode = find_mode()
        self._message = ""
        self._plan: JsonObject = build_plan(())

    # -- events -------------------------------------------------------------------------------

    async def handle(self, event: RunEvent) -> None:
        """Send the updates of one event."""
        await self.channel.wait_writable()
        if isinstance(event, TextDelta):
            text = event.text
            if event.starts:
                # Editors join the pieces between two calls: a new passage is a new paragraph.
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
            call.diffs = propose_diffs(event.name, event.arguments, call.path, call.old)
        self.calls[event.id] = call
        update = build_call(call.id, event.name, event.arguments, call.kind, cwd)
        self.channel.send({**update, "content": call.diffs})

    async def _handle_answer(self, event: ToolAnswered) -> None:
        call = self.calls.pop(event.id, None)
        if call is None:
            return  # of a sub-agent, or of a tool that does not exist
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
        """Build the diff of a change that was made; None if there was none, or if it cannot be shown."""
        path = event.details.get("path")
        is_changed = event.details.get("changed") is True and event.details.get("dryRun") is not True
        if call.kind != "edit" or event.is_error or not is_changed or not isinstance(path, str) or call.old is None:
            return None
        new = await to_thread.run_sync(read_side, path, self._conversation.invocation.cwd)
        return None if new is None else build_diff(path, call.old, new)

    def _update(self, call_id: str, **fields: JsonValue) -> None:
        self.channel.send({"sessionUpdate": "tool_call_update", "toolCallId": call_id, **fields})

    def finish_turn(self) -> None:
        """Report calls that have no result as failed; the next turn begins a new message."""
        for call in self.calls.values():
            self._update(call.id, status="failed")
        self.calls.clear()
        self._message = ""
        self.send_mode()

    # -- state --------------------------------------------------------------------------------

    def send_mode(self) -> None:
        """Send the mode if it has changed."""
        mode = self._find_mode()
        if mode != self._mode:
            self._mode = mode
            self.channel.send({"sessionUpdate": "current_mode_update", "currentModeId": mode})

    def send_plan(self) -> None:
        """Send the checklist as a plan if they have changed."""
        from indusagi.capabilities.checklist import checklist_of  # noqa: PLC0415 — loaded with the deck

        context = self._conversation.session.native.context
        items = [(item.text, item.status, item.weight) for item in checklist_of(context).items]
        plan = build_plan(items)
        if plan != self._plan:
            self._plan = plan
            self.channel.send(plan)


def build_call(call_id: str, name: str, arguments: JsonValue, kind: str, cwd: str) -> JsonObject:
    """Build the update that begins a call."""
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": call_id,
        "title": format_title(name, arguments),
        "kind": kind,
        "status": "in_progress",
        "locations": list_locations(name, arguments, cwd) if kind != "other" else [],
        "rawInput": describe_arguments(arguments),
    }
