"""One editor session: a conversation in its own task, answering prompts in order.

The task opens the conversation, runs its turns and closes it. Editor requests wait for it; cancelling a turn yields a
normal response: https://agentclientprotocol.com/protocol/prompt-turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
from anyio import to_thread

from indusagi.adapters.calls import Attachment
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import CoreError, describe_error
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    ConnectionClosedError,
    InvalidResponseError,
    JsonRpcConnection,
    RequestOptions,
    RpcError,
)
from induscode.boot.plans import ConfigPathError
from induscode.cli.dialog import Question, Reply
from induscode.cli.terminal import escape_controls, escape_unprintable, print_status
from induscode.conversations.contract import RunResult
from induscode.conversations.conversation import Conversation
from induscode.conversations.mentions import attach_resources
from induscode.conversations.models import NoModelError
from induscode.conversations.opening import open_conversation
from induscode.conversations.run import USAGE_ERRORS
from induscode.conversations.tool_calls import current_call
from induscode.conversations.transcript import find_cwd
from induscode.frontends.acp.updates import SessionUpdates, UpdateChannel, build_diff, build_text, replay_messages
from induscode.frontends.terminal.slash import SlashCommand, SlashError, parse_line
from induscode.frontends.terminal.slash.session import load_commands
from induscode.launch.invocation import Invocation
from induscode.permissions.check import Permissions

AUTH_REQUIRED = -32000
"""https://agentclientprotocol.com/protocol/schema#errorcode"""
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}
"""https://agentclientprotocol.com/protocol/prompt-turn#stop-reasons, by finish reason of the last answer."""


@record
class EditorPrompt:
    """An editor's prompt as the model receives it."""

    text: str
    attachments: Sequence[Attachment] = ()


@dataclass(slots=True)
class _QueuedPrompt:
    prompt: EditorPrompt
    cancel: CancelToken
    response: asyncio.Future[JsonObject]


class EditorSession:
    """An editor session; `run` is its task. `takes_text` says whether the editor can ask the user for text."""

    # Set before `opened` is done.
    modes: SessionModes
    updates: SessionUpdates
    commands: EditorCommands

    def __init__(
        self, invocation: Invocation, connection: JsonRpcConnection, writable: asyncio.Event, *, takes_text: bool
    ) -> None:
        self.id = ""
        """Id of the conversation, once open."""
        self.ended = asyncio.Event()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the conversation is open, or holds the error if opening failed."""
        self._invocation = invocation
        self._connection, self._writable = connection, writable
        self._dialog = EditorDialog(takes_text=takes_text)
        self._leaving = CancelToken()
        self._prompts: deque[_QueuedPrompt] = deque()
        self._arrived = asyncio.Event()

    # -- editor requests ----------------------------------------------------------------------

    async def prompt(self, prompt: EditorPrompt) -> JsonObject:
        """Answer a prompt after earlier ones and return the response.

        Cancelling the request cancels the turn and waits for its end. `RpcError` if the model or the session failed.
        """
        response: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        queued = _QueuedPrompt(prompt, CancelToken(self._leaving), response)
        if self.ended.is_set():
            raise RpcError(INTERNAL_ERROR, "the session has ended")
        self._prompts.append(queued)
        self._arrived.set()
        try:
            return await asyncio.shield(response)
        except asyncio.CancelledError:
            queued.cancel.cancel("the editor")
            await asyncio.wait({response})
            raise

    def cancel(self) -> None:
        """Cancel the running turn and all queued prompts."""
        for queued in self._prompts:
            queued.cancel.cancel("the editor")

    def close(self) -> None:
        """End the session, cancelling a running turn. Sets `ended` when everything is closed."""
        self._leaving.cancel("the end of the session")
        self._arrived.set()

    def replay(self) -> None:
        """Send the conversation's messages so far."""
        conversation, updates = self.commands.conversation, self.updates
        cwd, remote = conversation.invocation.cwd, conversation.map_servers()
        for update in replay_messages(conversation.transcript, cwd, remote, updates.ids):
            updates.channel.send(update)

    def announce(self) -> None:
        """Send the plan and the commands."""
        self.updates.send_plan()
        self.commands.announce()

    # -- task ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open the conversation, answer prompts until the session closes, and close it."""
        try:
            async with AsyncExitStack() as stack:
                conversation: Conversation | None = None
                with self._leaving.guard():
                    conversation = await stack.enter_async_context(
                        open_conversation(
                            self._invocation, follow_config=True, dialog=self._dialog, on_note=self._show_note
                        )
                    )
                if conversation is None:
                    raise RpcError(INTERNAL_ERROR, "the session was closed while it was opened")
                await self._prepare(conversation)
                self.opened.set_result(None)
                await self._answer_prompts(conversation)
        except Exception as exc:  # noqa: BLE001 — boundary: a failing session leaves the others running
            if self.opened.done():
                print_status(f"session {self.id}: {describe_error(exc)}")
            else:
                self.opened.set_exception(to_rpc_error(exc))
        finally:
            self.ended.set()
            for queued in self._prompts:
                _respond(queued, RpcError(INTERNAL_ERROR, "the session has ended"))

    async def _prepare(self, conversation: Conversation) -> None:
        stored = await to_thread.run_sync(find_cwd, conversation.transcript.directory)
        if stored not in {None, conversation.invocation.cwd}:
            raise invalid(f"the session {conversation.transcript.id} belongs to {stored}: load it with that cwd")
        self.id = conversation.transcript.id
        checks = conversation.permissions.permissions
        assert checks is not None
        self.modes = SessionModes(checks)
        channel = UpdateChannel(self._connection, self._writable, self.id)
        self._dialog.updates = self.updates = SessionUpdates(channel, conversation, self.modes.find_current)
        self.commands = EditorCommands(conversation, channel, self._dialog)
        await self.commands.load()

    async def _answer_prompts(self, conversation: Conversation) -> None:
        # Some notes come late: servers report faults while they start.
        pending_notes = [*conversation.notes]
        shown: set[str] = set()
        while not self._leaving.cancelled:
            if not self._prompts:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            queued = self._prompts[0]
            try:
                pending_notes += conversation.list_notes()
                for note in dict.fromkeys(pending_notes):
                    if note not in shown:
                        self._show_note(note)
                shown.update(pending_notes)
                pending_notes.clear()
                _respond(queued, await self._answer(conversation, queued))
            except Exception as exc:  # noqa: BLE001 — boundary: a failing turn doesn't end the session
                _respond(queued, to_rpc_error(exc))
            finally:
                self.updates.finish_turn()
                self._prompts.remove(queued)

    async def _answer(self, conversation: Conversation, queued: _QueuedPrompt) -> JsonObject:
        """Run a command or a model turn and return the response."""
        text = queued.prompt.text
        try:
            for change in await conversation.reload_config():
                self._show_note(change)
        except ConfigPathError as exc:
            self._show_note(f"{exc}; the servers stay as they were")
        if self.commands.knows(text):
            with queued.cancel.guard():
                text = await self.commands.run(text)
            if not text or queued.cancel.cancelled:
                return {"stopReason": "cancelled" if queued.cancel.cancelled else "end_turn"}
        with queued.cancel.guard():
            await conversation.wait_for_servers()
        if queued.cancel.cancelled:
            return {"stopReason": "cancelled"}
        with queued.cancel.guard():
            text, notes = await attach_resources(text, conversation.session)
            for note in notes:
                self._show_note(note)
        result = await conversation.run_turn(
            text, sink=self.updates.handle, cancel=queued.cancel, attachments=queued.prompt.attachments
        )
        if result.note:
            self._show_note(result.note)
        return {"stopReason": self._to_stop_reason(result)}

    def _to_stop_reason(self, result: RunResult) -> str:
        if result.reason == "done":
            return _STOP_REASONS.get(result.finish, "end_turn")
        if result.reason == "cancelled":
            return "cancelled"
        if result.reason == "error":
            is_refused = result.fault is not None and result.fault.kind == "auth"
            raise RpcError(AUTH_REQUIRED if is_refused else INTERNAL_ERROR, result.message)
        self._show_note(result.message)
        return "max_turn_requests" if result.reason == "limit" else "end_turn"

    def _show_note(self, note: str) -> None:
        print_status(note)
        self._dialog.show(f"note: {note}")


def _respond(queued: _QueuedPrompt, response: JsonObject | RpcError) -> None:
    if queued.response.done():
        return  # the editor is gone
    if isinstance(response, RpcError):
        queued.response.set_exception(response)
    else:
        queued.response.set_result(response)


def invalid(message: str) -> RpcError:
    """Build the error for an unusable parameter."""
    return RpcError(INVALID_PARAMS, message)


def to_rpc_error(exc: Exception) -> RpcError:
    """Convert a failure to the error an editor shows."""
    if isinstance(exc, RpcError):
        return exc
    if isinstance(exc, NoModelError):
        return RpcError(AUTH_REQUIRED, str(exc))
    if isinstance(exc, USAGE_ERRORS):
        return invalid(str(exc))
    is_known = isinstance(exc, (CoreError, OSError))
    return RpcError(INTERNAL_ERROR, str(exc) if is_known else describe_error(exc))


# -- modes ------------------------------------------------------------------------------------
#
# https://agentclientprotocol.com/protocol/session-modes. The modes of `Permissions`, with names for the editor.


_MODES = {
    "ask": ("Ask", "Asks before it changes, runs or sends something"),
    "auto-edit": ("Accept edits", "Changes files of the workspace without asking"),
    "plan": ("Plan", "Only reads, until you approve a plan"),
    "all": ("All", "Asks about nothing, except what a rule names"),
}


class SessionModes:
    """The modes of one conversation."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions

    def find_current(self) -> str:
        """Return the current mode, which the model or an approved plan may have changed."""
        return self._permissions.mode

    def change(self, name: str) -> None:
        """Change the mode; `RpcError` if it doesn't exist."""
        try:
            self._permissions.change_mode(name or "(none)")
        except ValueError as exc:
            raise invalid(str(exc)) from exc

    def describe(self) -> JsonObject:
        """Describe the modes for the editor."""
        modes: list[JsonValue] = [
            {"id": name, "name": _MODES[name][0], "description": _MODES[name][1]} for name in self._permissions.modes
        ]
        return {"currentModeId": self.find_current(), "availableModes": modes}


# -- commands ---------------------------------------------------------------------------------
#
# https://agentclientprotocol.com/protocol/slash-commands. The terminal's commands, except those that leave the session
# or open another one, which the editor does. Command output becomes a session message.


_TERMINAL_ONLY = frozenset({"clear", "copy", "exit", "fork", "help", "new", "quit", "resume"})


class EditorCommands:
    """The slash commands of one session, and the `SlashHost` they run on."""

    def __init__(self, conversation: Conversation, channel: UpdateChannel, dialog: EditorDialog) -> None:
        self.conversation = conversation
        self.screen = dialog
        self.commands: Mapping[str, SlashCommand] = {}
        self._channel = channel
        self._prompt = ""

    async def load(self) -> None:
        """Load built-in, user and project commands."""
        commands = await load_commands(self.conversation, self.conversation.notes.append)
        self.commands = {name: command for name, command in commands.items() if name not in _TERMINAL_ONLY}

    def announce(self) -> None:
        """Send the list of commands."""
        listed: list[JsonValue] = []
        for command in self.commands.values():
            row: JsonObject = {"name": command.name, "description": command.describe}
            if command.usage:
                row["input"] = {"hint": command.usage}
            listed.append(row)
        self._channel.send({"sessionUpdate": "available_commands_update", "availableCommands": listed})

    def knows(self, text: str) -> bool:
        """Return whether a prompt is a command; anything else goes to the model."""
        return text.startswith("/") and parse_line(text)[0] in self.commands

    async def run(self, line: str) -> str:
        """Run a command and return its prompt for the model, if it has one."""
        name, rest = parse_line(line)
        self._prompt = ""
        try:
            await self.commands[name].run(self, rest)
        except SlashError as exc:
            self.screen.show(str(exc))
        except (CoreError, OSError) as exc:
            self.screen.show(f"/{name} failed: {exc}")
        return self._prompt

    # -- for commands -------------------------------------------------------------------------

    def print_table(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        """Show a Markdown table, escaping its cells."""
        lines = [heads, tuple("---" for _ in heads), *rows]
        cells = ([" ".join(escape_unprintable(cell).replace("|", "\\|").split()) for cell in line] for line in lines)
        self._channel.say("\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n\n")

    def reopen(self, invocation: Invocation) -> None:
        """Raise: only the editor opens sessions."""
        raise SlashError("the editor opens conversations: start a new one there")

    def prompt(self, text: str) -> None:
        """Send a prompt to the model after the command."""
        self._prompt = text

    def leave(self) -> None:
        """Raise: only the editor closes sessions."""
        raise SlashError("the editor ends the session")


# -- questions ----------------------------------------------------------------------------------
#
# https://agentclientprotocol.com/protocol/tool-calls#requesting-permission: `session/request_permission`, and
# `elicitation/create` for free text. A question's choices become options, and its call carries the facts and the
# proposed change. Editors have no field for the reason of a no. A question without an answer counts as no: the editor
# closed it, cancelled the turn, or can't ask.


_ATTEMPTS = 5
"""How often to ask for a text until it's valid."""
_UNANSWERED = Reply(cancelled=True)


class EditorDialog:
    """Asks the user of an editor, one question at a time, and shows the output of commands as messages.

    `takes_text` is the capability `elicitation.form`.
    """

    width = 80
    can_mark = False

    def __init__(self, *, takes_text: bool) -> None:
        self.updates: SessionUpdates | None = None
        """Where to send questions; `None` until the session is open, when nothing can be asked."""
        self._takes_text = takes_text
        self._asking = anyio.Lock()

    def show(self, text: str) -> None:
        """Show one line as a separate message."""
        if self.updates is None:
            print_status(text)
        else:
            self.updates.channel.say(f"{escape_unprintable(text)}\n\n")

    def print(self, text: str) -> None:
        """Show the finished text of a command verbatim."""
        if self.updates is not None and text.strip():
            self.updates.channel.say(f"```\n{escape_controls(text).rstrip()}\n```\n\n")

    def offer_draft(self, text: str) -> None:
        """Do nothing: the protocol can't change the input line."""

    def copy(self, text: str) -> None:
        """Do nothing: the editor copies."""

    async def ask(self, question: Question) -> Reply:
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
        change = question.change
        diffs = [] if change is None else [build_diff(change.path, change.before, change.after)]
        texts = [build_text(question.markdown, "other")] if question.markdown else []
        texts += [build_text("\n".join(question.lines), "execute")] if question.lines else []
        content: list[JsonValue] = [*diffs, *texts]
        place = question.place()
        tool_call: JsonObject = {
            "toolCallId": identity,
            "title": " ".join(filter(None, (question.title, place and f"({place})"))),
            "status": "pending",
            "kind": "other" if call is None else call.kind,
            "content": content,
        }
        options: list[JsonValue] = [
            {
                "optionId": choice.key,
                "name": choice.label.removesuffix(", and say what to do instead").removesuffix(" (shift+tab)"),
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
