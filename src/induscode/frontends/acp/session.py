"""One editor session: a conversation in its own task, answering prompts in order.

The task opens the conversation, runs its turns and closes it. Editor requests wait for it; cancelling a turn yields a
normal response: https://agentclientprotocol.com/protocol/prompt-turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import CoreError, describe_error
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR, RpcError
from induscode.boot.plans import ConfigPathError
from induscode.cli.terminal import escape_controls, escape_unprintable, print_status
from induscode.conversations.mentions import attach_resources
from induscode.conversations.models import NoModelError
from induscode.conversations.opening import open_conversation
from induscode.conversations.run import USAGE_ERRORS
from induscode.conversations.transcript import find_cwd
from induscode.frontends.acp.dialog import EditorDialog
from induscode.frontends.acp.history import replay_messages
from induscode.frontends.acp.params import invalid
from induscode.frontends.acp.updates import SessionUpdates, UpdateChannel
from induscode.frontends.terminal.slash import SlashError, parse_line
from induscode.frontends.terminal.slash.prompts import list_prompt_commands
from induscode.frontends.terminal.slash.table import load_commands
from induscode.permissions.policy import ApprovalMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.rpc.connection import JsonRpcConnection
    from induscode.cli.dialog import Question, Reply
    from induscode.conversations.contract import RunResult
    from induscode.conversations.conversation import Conversation
    from induscode.frontends.acp.params import EditorPrompt
    from induscode.frontends.terminal.slash import SlashCommand
    from induscode.launch.invocation import Invocation

AUTH_REQUIRED = -32000
"""https://agentclientprotocol.com/protocol/schema#errorcode"""
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}
"""https://agentclientprotocol.com/protocol/prompt-turn#stop-reasons, by finish reason of the last answer."""


@dataclass(slots=True)
class _QueuedPrompt:
    prompt: EditorPrompt
    cancel: CancelToken
    response: asyncio.Future[JsonObject]


class EditorSession:
    """An editor session; `run` is its task. `takes_text` says whether the editor can ask the user for text."""

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
        self._modes: SessionModes | None = None
        self._updates: SessionUpdates | None = None
        self._commands: EditorCommands | None = None

    @property
    def modes(self) -> SessionModes:
        """The modes of the open session."""
        assert self._modes is not None
        return self._modes

    @property
    def updates(self) -> SessionUpdates:
        """The updates of the open session."""
        assert self._updates is not None
        return self._updates

    # -- editor requests ----------------------------------------------------------------------

    async def prompt(self, prompt: EditorPrompt) -> JsonObject:
        """Answer a prompt after earlier ones and return the response.

        Cancelling the request cancels the turn and waits for its end.

        Raises:
            RpcError: The model or the session failed.
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

    @property
    def commands(self) -> EditorCommands:
        """The slash commands of the open session."""
        assert self._commands is not None
        return self._commands

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
        self._modes = SessionModes(conversation)
        channel = UpdateChannel(self._connection, self._writable, self.id)
        self._updates = SessionUpdates(channel, conversation, self._modes.find_current)
        self._dialog.updates = self._updates
        self._commands = EditorCommands(conversation, self._updates.channel, self._dialog)
        await self._commands.load()

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
        self._show_note(f"the turn ended early: {result.message}")
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
# https://agentclientprotocol.com/protocol/session-modes. `default` asks, `auto-edit` writes workspace files without
# asking, `plan` only reads until the user approves a plan. `all` requires a start with `--approval all`.


DEFAULT, AUTO_EDIT, PLAN, ALL = "default", "auto-edit", "plan", "all"
_MODES = {
    DEFAULT: (ApprovalMode.ASK, "Ask", "Asks before it changes, runs or sends something"),
    AUTO_EDIT: (ApprovalMode.AUTO_EDIT, "Edit", "Changes files of the workspace without asking"),
    ALL: (ApprovalMode.ALL, "All", "Asks about nothing, except what a rule names"),
}


class SessionModes:
    """The modes of one conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._names = [DEFAULT, AUTO_EDIT]
        if conversation.invocation.approval == ApprovalMode.ALL.value:
            self._names.append(ALL)

    def find_current(self) -> str:
        """Return the current mode, which the model or an approved plan may have changed."""
        if self._conversation.plan_mode.active:
            return PLAN
        checks = self._conversation.permissions.permissions
        approval = ApprovalMode.ASK if checks is None else checks.approval
        return next(name for name, (mode, _, _) in _MODES.items() if mode is approval)

    def change(self, name: str) -> None:
        """Change the mode; `RpcError` if it doesn't exist."""
        plan_mode = self._conversation.plan_mode
        if name == PLAN:
            plan_mode.active = True
            return
        if name not in self._names:
            raise invalid(f"there is no mode {name!r}: {', '.join((*self._names, PLAN))}")
        plan_mode.active = False
        checks = self._conversation.permissions.permissions
        if checks is not None:
            checks.approval = _MODES[name][0]

    def describe(self) -> JsonObject:
        """Describe the modes for the editor."""
        modes: list[JsonValue] = [
            {"id": name, "name": _MODES[name][1], "description": _MODES[name][2]} for name in self._names
        ]
        modes.append({"id": PLAN, "name": "Plan", "description": "Only reads, until you approve a plan"})
        return {"currentModeId": self.find_current(), "availableModes": modes}


# -- commands ---------------------------------------------------------------------------------
#
# https://agentclientprotocol.com/protocol/slash-commands. The terminal's commands, except those that leave the session
# or open another one, which the editor does. Command output becomes a session message.


_TERMINAL_ONLY = frozenset({"exit", "fork", "help", "quit", "resume"})


class EditorScreen:
    """Shows the output of commands as messages."""

    width = 80

    def __init__(self, channel: UpdateChannel, dialog: EditorDialog) -> None:
        self._channel = channel
        self._dialog = dialog

    def print(self, text: str) -> None:
        """Show finished text verbatim."""
        if text.strip():
            self._channel.say(f"```\n{escape_controls(text).rstrip()}\n```\n\n")

    def show(self, text: str) -> None:
        """Show one line."""
        self._dialog.show(text)

    async def ask(self, question: Question) -> Reply:
        """Ask the user at the editor."""
        return await self._dialog.ask(question)


class EditorCommands:
    """The slash commands of one session, and the `SlashHost` they run on."""

    def __init__(self, conversation: Conversation, channel: UpdateChannel, dialog: EditorDialog) -> None:
        self.conversation = conversation
        self.screen = EditorScreen(channel, dialog)
        self._channel = channel
        self._commands: Mapping[str, SlashCommand] = {}
        self._prompt = ""

    async def load(self) -> None:
        """Load built-in, user and project commands."""
        commands = await load_commands(self.conversation.invocation.cwd, self.conversation.notes.append)
        prompts = list_prompt_commands(self.conversation)
        self._commands = {**{name: one for name, one in commands.items() if name not in _TERMINAL_ONLY}, **prompts}

    def announce(self) -> None:
        """Send the list of commands."""
        listed: list[JsonValue] = []
        for command in self._commands.values():
            row: JsonObject = {"name": command.name, "description": command.describe}
            if command.usage:
                row["input"] = {"hint": command.usage}
            listed.append(row)
        self._channel.send({"sessionUpdate": "available_commands_update", "availableCommands": listed})

    def knows(self, text: str) -> bool:
        """Return whether a prompt is a command; anything else goes to the model."""
        return text.startswith("/") and parse_line(text)[0] in self._commands

    async def run(self, line: str) -> str:
        """Run a command and return its prompt for the model, if it has one."""
        name, rest = parse_line(line)
        self._prompt = ""
        try:
            await self._commands[name].run(self, rest)
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
