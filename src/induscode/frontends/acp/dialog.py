"""Questions to the user of an editor: `session/request_permission`, and `elicitation/create` for free text.

https://agentclientprotocol.com/protocol/tool-calls#requesting-permission. A question's choices become options, and its
call carries the facts and the proposed change. Editors have no field for the reason of a no. A question without an
answer counts as no: the editor closed it, cancelled the turn, or can't ask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

from indusagi.core.ids import new_ulid
from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestOptions,
    RpcError,
)
from induscode.cli.dialog import Reply
from induscode.cli.terminal import escape_controls, escape_unprintable, print_status
from induscode.conversations.tool_calls import current_call
from induscode.frontends.acp.updates import build_text

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.cli.dialog import Question
    from induscode.frontends.acp.updates import SessionUpdates

_ATTEMPTS = 5
"""How often to ask for a text until it's valid."""
_UNANSWERED = Reply(cancelled=True)


class EditorDialog:
    """Asks the user of an editor, one question at a time, and shows the output of commands as messages.

    `takes_text` is the capability `elicitation.form`.
    """

    width = 80

    def __init__(self, *, takes_text: bool) -> None:
        self.updates: SessionUpdates | None = None
        """Where to send questions; `None` until the session is open, when nothing can be asked."""
        self._takes_text = takes_text
        self._asking = anyio.Lock()

    def show(self, text: str, /) -> None:
        """Show one line as a separate message."""
        if self.updates is None:
            print_status(text)
        else:
            self.updates.channel.say(f"{escape_unprintable(text)}\n\n")

    def print(self, text: str) -> None:
        """Show the finished text of a command verbatim."""
        if self.updates is not None and text.strip():
            self.updates.channel.say(f"```\n{escape_controls(text).rstrip()}\n```\n\n")

    async def ask(self, question: Question, /) -> Reply:
        """Ask a question and wait for the answer."""
        updates = self.updates
        if updates is None or question.secret or not (question.choices or self._takes_text):
            return _UNANSWERED
        async with self._asking:
            try:
                return await (self._choose if question.choices else self._ask_text)(updates, question)
            except (RpcError, InvalidResponseError, ConnectionClosedError) as exc:
                print_status(f"the editor did not answer a question: {exc}")
                return _UNANSWERED

    async def _choose(self, updates: SessionUpdates, question: Question) -> Reply:
        """Ask for permission. A question outside a call is shown as a call by itself."""
        call = updates.calls.get(current_call.get())
        identity = f"question-{new_ulid()}" if call is None else call.id
        if call is None:
            updates.channel.send(
                {"sessionUpdate": "tool_call", "toolCallId": identity, "title": question.title, "status": "pending"}
            )
        facts = build_text("\n".join(question.lines), "execute")
        content: list[JsonValue] = [*(call.diffs if call is not None else ()), *([facts] if question.lines else ())]
        tool_call: JsonObject = {
            "toolCallId": identity,
            "title": question.title,
            "status": "pending",
            "kind": "other" if call is None else call.kind,
            "content": content,
        }
        options: list[JsonValue] = [
            {
                "optionId": choice.key,
                "name": choice.label.removesuffix(", and say what to do instead"),
                "kind": "reject_once" if choice.refuses else "allow_always" if choice.lasts else "allow_once",
            }
            for choice in question.choices
        ]
        reply = await self._request(updates, "session/request_permission", {"toolCall": tool_call, "options": options})
        outcome = reply.get("outcome")
        chosen = outcome.get("optionId") if is_json_object(outcome) and outcome.get("outcome") == "selected" else None
        choice = next((choice for choice in question.choices if choice.key == chosen), None)
        if call is None:
            refused = choice is None or choice.refuses
            end: JsonObject = {"toolCallId": identity, "status": "failed" if refused else "completed"}
            updates.channel.send({"sessionUpdate": "tool_call_update", **end})
        elif choice is not None and not choice.refuses:
            updates.channel.send({"sessionUpdate": "tool_call_update", "toolCallId": identity, "status": "in_progress"})
        return _UNANSWERED if choice is None else Reply(choice.key)

    async def _ask_text(self, updates: SessionUpdates, question: Question) -> Reply:
        message = "\n".join((question.title, *question.lines))
        field: JsonObject = {"type": "string", "title": question.title}
        schema: JsonObject = {"type": "object", "properties": {"answer": field}, "required": ["answer"]}
        for _ in range(_ATTEMPTS):
            params: JsonObject = {"mode": "form", "message": message, "requestedSchema": schema}
            reply = await self._request(updates, "elicitation/create", params)
            content = reply.get("content")
            answer = content.get("answer") if is_json_object(content) else None
            if reply.get("action") != "accept" or not isinstance(answer, str):
                return _UNANSWERED
            problem = None if question.check is None else question.check(answer)
            if problem is None:
                return Reply(text=answer)
            message = f"{problem}\n{question.title}"
        return _UNANSWERED

    async def _request(self, updates: SessionUpdates, method: str, params: JsonObject) -> JsonObject:
        """Send a request and wait as long as the user takes, or until the turn ends."""
        channel = updates.channel
        options = RequestOptions(math.inf)
        return await channel.connection.request(method, {"sessionId": channel.session, **params}, options)
