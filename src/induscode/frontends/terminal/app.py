"""The interactive session: `indus` on a terminal.

The prompt comes first; the deck, the servers and the model open while the user types. Messages are answered in order.
The model gets a message entered during a turn with its next request; Up takes it back before that. Ctrl-C cancels the
turn, a second Ctrl-C leaves, and Esc cancels the turn in favour of the queue. Everything closes in the task
that opened it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from prompt_toolkit.completion import Completer, DynamicCompleter

from indusagi import __version__
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import CoreError, describe_error
from indusagi.core.text import cut_text, format_count
from induscode.cli.terminal import escape_controls, escape_unprintable
from induscode.conversations.contract import RunResult, SpendLimit, ToolAnswered, ToolCalled
from induscode.frontends.terminal.blocks import cut_to_cells
from induscode.frontends.terminal.complete import InputCompleter
from induscode.frontends.terminal.devices import describe_place, hide_pictures, redirected_messages
from induscode.frontends.terminal.plain import open_screen
from induscode.frontends.terminal.render import EventRenderer, Palette, format_farewell, format_status
from induscode.frontends.terminal.slash import (
    SlashCommand,
    SlashError,
    confirm,
    find_command,
    name_slash_commands,
    parse_line,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from indusagi.interop.protocol_bridge.fleet import FleetEvent
    from induscode.conversations.contract import RunEvent
    from induscode.conversations.conversation import Conversation
    from induscode.conversations.servers import DirectoryServers
    from induscode.launch.invocation import Invocation

_LEAVE_WINDOW_S = 2.0
"""A second Ctrl-C within this time leaves, a second Esc opens /rewind."""
_EXCERPT_LINES, _EXCERPT_CHARS = 8, 400
"""How much a continued conversation shows of the last prompt and of the end of the last answer."""
_GO_ON = "Go on."
"""The prompt to send after a failure that came after calls."""
_SHOWN_LINES = 20
"""Lines of a prompt to show, after the first."""
_RESULTS, _LONGEST_RESULT = 20, 256 * 1024
"""Results that Ctrl-O shows, and the characters of one."""
_SPIN_S, _WATCH_S = 0.1, 0.25
_CONVERSATION, _MARKDOWN = "induscode.conversations.run", "induscode.frontends.terminal.markdown"
_COMMANDS = "induscode.frontends.terminal.slash.session"
"""Modules imported in threads after the first prompt."""
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


async def _import_later(module: str) -> None:
    await to_thread.run_sync(import_module, module, abandon_on_cancel=True)


def run_interactive(invocation: Invocation, first: str = "") -> int:
    """Run the session on this process's terminal, beginning with a prompt if it's given, and return the exit code.

    Call it in the main thread, without a running event loop.
    """
    return anyio.run(lambda: InteractiveApp(invocation, first).run())


class InteractiveApp:
    """One session on a terminal: its screen, its message queue and the open conversation."""

    def __init__(self, invocation: Invocation, first: str = "") -> None:
        self.color = not os.environ.get("NO_COLOR") and not invocation.plain
        self._invocation = invocation
        self._conversation: Conversation | None = None
        self.commands: Mapping[str, SlashCommand] = {}
        self._messages: deque[str] = deque([first] if first else [])
        self._arrived = asyncio.Event()
        self._leaving = CancelToken()
        self._turn: CancelToken | None = None
        self._server_wait: CancelToken | None = None
        """Esc ends the wait for servers, not the turn."""
        self._turn_tasks: TaskGroup | None = None
        """Runs commands during the turn."""
        self._renderer: EventRenderer | None = None
        self._called = False
        """Whether the turn has called a tool."""
        self._prompt: str | None = None
        self._next: Invocation | None = None
        self._interrupted_at = self._escaped_at = float("-inf")
        self._exit_code = 0
        self._farewell = ""
        self._noted: set[str] = set()
        self._results: deque[str] = deque(maxlen=_RESULTS)
        self._faults: dict[str, str] = {}
        self._completer: Completer | None = None
        completer = DynamicCompleter(lambda: self._completer)
        self.screen = open_screen(self, invocation, color=self.color, completer=completer)
        self.screen.state.status = lambda width: format_status(self._conversation, width, Palette(self.color))
        self.screen.state.activity = self._format_activity
        self.screen.state.rows = self._list_live_rows

    @property
    def conversation(self) -> Conversation:
        """The open conversation."""
        assert self._conversation is not None
        return self._conversation

    async def run(self) -> int:
        """Run until the user leaves and return the exit code."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end_by_signal, number)
        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        paint = Palette(self.color).paint
        place = escape_unprintable(describe_place(self._invocation.cwd))
        self.screen.print(f"{paint(f'indus {__version__}', '1')} · {place}")
        self.screen.print(paint("? for shortcuts, / for commands, @ for files, ! for the shell", "2"))
        self.screen.flush()
        try:
            # Nothing else may write to the terminal while the screen is up.
            with redirected_messages(lambda line: loop.call_soon_threadsafe(self._show_note, line)):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.screen.run)
                    try:
                        await self.screen.shown.wait()
                        await self._load_and_converse()
                    finally:
                        self.screen.close()
        finally:
            for number in (*_SIGNALS, signal.SIGINT):
                loop.remove_signal_handler(number)
        if self._farewell:
            self.screen.print(Palette(self.color).paint(self._farewell, "2"))
            self.screen.flush()
        return self._exit_code

    # -- user actions -------------------------------------------------------------------------

    def submit(self, text: str) -> None:
        """Queue a message. `/tasks` runs during a turn too, to watch and stop its agents."""
        text = "/help keys" if text == "?" else text
        words = text.split()
        if self._turn_tasks is not None and words[:1] == ["/tasks"] and words[1:2] != ["resume"]:
            self._turn_tasks.start_soon(self._run_during_turn, text)
            return
        self._messages.append(text)
        self._interrupted_at = float("-inf")
        self.screen.state.queued = tuple(self._messages)
        self._arrived.set()
        self.screen.refresh()

    def interrupt(self) -> None:
        """Cancel the turn; leave if repeated within two seconds."""
        if self.screen.is_away:
            return
        now = asyncio.get_running_loop().time()
        again = now - self._interrupted_at < _LEAVE_WINDOW_S
        self._interrupted_at = now
        if again:
            self.leave()
        elif self._turn is not None:
            self._turn.cancel("Ctrl-C")
        else:
            self.screen.show("Press Ctrl-C again to exit")

    def steer(self) -> None:
        """Cancel the turn in favour of the queued or next message. Twice without a turn: list the points of /rewind."""
        now = asyncio.get_running_loop().time()
        again, self._escaped_at = now - self._escaped_at < _LEAVE_WINDOW_S, now
        if self._server_wait is not None and not self._server_wait.cancelled:
            self._server_wait.cancel("Esc")
        elif self._turn is not None:
            self._turn.cancel("Esc")
        elif again and self._conversation is not None and not self.screen.draft:
            self._escaped_at = float("-inf")
            self.submit("/rewind")

    def recall(self) -> str:
        """Take the queued messages back."""
        text = "\n".join(self._messages)
        self._messages.clear()
        self.screen.state.queued = ()
        return text

    def leave(self) -> None:
        """End the session, cancelling a running turn."""
        self._leaving.cancel("the end of the session")
        self._arrived.set()

    def switch_mode(self) -> None:
        """Switch to the next mode: ask, accept edits, plan."""
        permissions = None if self._conversation is None else self._conversation.permissions.permissions
        if permissions is not None:
            permissions.change_mode()
            self.screen.refresh()

    def list_results(self) -> str:
        """Return the whole results of the last calls, the last one first."""
        return "\n".join(reversed(self._results))

    def _keep_result(self, title: str, text: str) -> None:
        """Keep a result for Ctrl-O."""
        self._results.append(f"{title}\n\n{escape_controls(cut_text(text, _LONGEST_RESULT)).rstrip()}\n")

    def _end_by_signal(self, number: signal.Signals) -> None:
        self._exit_code = 128 + number
        self.leave()

    # -- for slash commands -------------------------------------------------------------------

    def print_table(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        """Print a table that fits the terminal, escaping its cells."""
        from rich.console import Console  # noqa: PLC0415 — after the first prompt

        from induscode.cli.listing import print_rich_table  # noqa: PLC0415 — after the first prompt

        text = StringIO()
        console = Console(
            file=text,
            width=self.screen.width,
            force_terminal=self.color,
            color_system="auto" if self.color else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        cells = [[escape_unprintable(cell) for cell in row] for row in rows]
        print_rich_table(console, heads, cells, [False] * len(heads))
        self.screen.print(text.getvalue())

    def reopen(self, invocation: Invocation) -> None:
        """Switch to another conversation after the command."""
        self._next = invocation

    def prompt(self, text: str) -> None:
        """Send a prompt to the model after the command."""
        self._prompt = text

    # -- conversations ------------------------------------------------------------------------

    async def _load_and_converse(self) -> None:
        """Import the modules the first prompt doesn't need, in threads to keep keys responsive, and converse."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_status)
            with self._leaving.guard():
                await _import_later(_CONVERSATION)
            if not self._leaving.cancelled:
                self._completer = InputCompleter(self._invocation.cwd, self._describe_commands)
                tasks.start_soon(_import_later, _MARKDOWN)
                await self._hold_conversations()
            tasks.cancel_scope.cancel()

    async def _watch_status(self) -> None:
        """Redraw during turns, and when the status row or a server start changes."""
        shown: tuple[str, list[str]] = "", []
        while True:
            present = self.screen.state.status(self.screen.width), self._describe_starts()
            if present != shown or self._turn is not None:
                shown = present
                self.screen.refresh()
            await anyio.sleep(_SPIN_S if self._turn is not None else _WATCH_S)

    async def _hold_conversations(self) -> None:
        """Hold one conversation after the other until the user leaves."""
        from induscode.conversations.run import USAGE_ERRORS, to_exit_code  # noqa: PLC0415 — after the first prompt
        from induscode.conversations.servers import DirectoryServers  # noqa: PLC0415 — after the first prompt
        from induscode.conversations.transcript import OpenElsewhereError  # noqa: PLC0415 — after the first prompt

        invocation: Invocation | None = self._invocation
        previous: Invocation | None = None
        from induscode.conversations.models import NoModelError  # noqa: PLC0415 — after the first prompt
        from induscode.frontends.terminal.slash.first_start import set_up_model  # noqa: PLC0415 — after the first prompt

        async with AsyncExitStack() as stack:
            # Conversations of a session share its servers and its limits.
            servers = DirectoryServers(stack, self._handle_server_event)
            spend = SpendLimit(invocation.max_tokens, invocation.max_cost)
            while invocation is not None:
                try:
                    invocation, previous = await self._hold_conversation(invocation, servers, spend), None
                except OpenElsewhereError as exc:
                    if await confirm(self, "This conversation is open elsewhere. Open a copy?", default="y"):
                        invocation = replace(invocation, resume=exc.name, continue_last=False, fork=True)
                    else:
                        invocation, previous = previous, None
                except (*USAGE_ERRORS, CoreError, OSError) as exc:
                    self.screen.show(f"✗ {exc}")
                    if isinstance(exc, NoModelError) and previous is None:
                        chosen: Invocation | None = None
                        with self._leaving.guard():
                            chosen = await set_up_model(self.screen, invocation)
                        if chosen is not None:
                            invocation = chosen
                            continue
                    if self._conversation is not None or previous is None:
                        self._exit_code = self._exit_code or to_exit_code(exc)
                        return
                    invocation, previous = previous, None
                else:
                    previous = self._invocation

    async def _hold_conversation(
        self, invocation: Invocation, servers: DirectoryServers | None = None, spend: SpendLimit | None = None
    ) -> Invocation | None:
        """Open a conversation, answer messages and close it. Return the next invocation, if any."""
        from induscode.conversations.opening import open_conversation  # noqa: PLC0415 — after the first prompt
        from induscode.frontends.terminal.slash.first_start import ask_about_new_servers  # noqa: PLC0415 — after the first prompt

        async with AsyncExitStack() as stack:
            with self._leaving.guard():
                opening = open_conversation(
                    invocation,
                    follow_config=True,
                    dialog=self.screen,
                    on_event=self._handle_server_event,
                    on_note=self._show_note,
                    spend=spend,
                    kept=servers,
                )
                self._conversation = await stack.enter_async_context(opening)
            if self._conversation is None:
                return None
            try:
                self._invocation = replace(
                    invocation, resume=self._conversation.transcript.id, fork=False, continue_last=False, prompt=None
                )
                self.screen.state.pictures = os.path.join(self._conversation.transcript.directory, "pictures")
                await self._load_commands(self._conversation)
                with self._leaving.guard():
                    await ask_about_new_servers(self)
                self._show_start(self._conversation)
                return await self._converse(self._conversation)
            finally:
                self._farewell = format_farewell(self._conversation)
                self._conversation = None

    async def _converse(self, conversation: Conversation) -> Invocation | None:
        while (message := await self._next_message()) is not None:
            self._next = self._prompt = None
            await self._load_commands(conversation)
            for change in await conversation.reload_config():
                self.screen.show(f"note: {name_slash_commands(change)}")
            if message.startswith("/"):
                self.screen.show(f"> {message}")
                await self._run_command(message)
            elif message.startswith("!"):
                await self._run_shell(conversation, message.removeprefix("!").strip())
            else:
                self._prompt = message
            if self._prompt is not None:
                await self._run_turn(conversation, self._prompt)
            if self._next is not None:
                return self._next
        return None

    async def _load_commands(self, conversation: Conversation) -> None:
        await _import_later(_COMMANDS)
        from induscode.frontends.terminal.slash.session import load_commands  # noqa: PLC0415 — imported above, in a thread

        self.commands = await load_commands(conversation, self._show_note)

    def _describe_commands(self) -> Mapping[str, str]:
        """Describe commands and their actions for completion."""
        rows = {name: command.describe for name, command in self.commands.items()}
        for name, command in self.commands.items():
            rows |= {f"{name} {word}": about for word, about in command.actions.items()}
        return rows

    async def _next_message(self) -> str | None:
        """Wait for a message, or return `None` when the user leaves."""
        while not self._leaving.cancelled:
            if self._messages:
                return self._pop_message()
            self._arrived.clear()
            self.screen.expect_message()
            await self._arrived.wait()
        return None

    def _pop_message(self) -> str:
        message = self._messages.popleft()
        self.screen.state.queued = tuple(self._messages)
        return message

    def _show_start(self, conversation: Conversation) -> None:
        from induscode.conversations.transcript import find_last_exchange  # noqa: PLC0415 — after the first prompt

        messages = conversation.transcript.messages()
        if messages:
            count = format_count(len(messages), "message")
            self.screen.show(f"continuing conversation {conversation.transcript.id} ({count})")
            prompt, answer = find_last_exchange(messages)
            lines = prompt.splitlines()[:_EXCERPT_LINES]
            for line in (f"{'  ' if index else '> '}{line}" for index, line in enumerate(lines)):
                self.screen.show(cut_text(line, _EXCERPT_CHARS))
            for line in answer.splitlines()[-_EXCERPT_LINES:]:
                self.screen.show(line[-_EXCERPT_CHARS:])
        plan = conversation.session.mcp.plan
        held = {str(note) for note in plan.notes if "isn't trusted yet" in note.message}
        for note in (*conversation.notes, *conversation.list_notes()):
            if note not in held:
                self._show_note(note)
        if plan.untrusted:
            line = f"{format_count(len(plan.untrusted), 'server')} not trusted: /mcp trust"
            self.screen.print(Palette(self.color).paint(line, "2"))

    def _show_note(self, note: str) -> None:
        """Show a note once per session."""
        if note not in self._noted and note not in self._faults.values():
            self._noted.add(note)
            self.screen.show(f"note: {name_slash_commands(note)}")

    # -- servers ------------------------------------------------------------------------------

    def _handle_server_event(self, event: FleetEvent) -> None:
        """Show faults, each once until the server is up again."""
        server, status = event.server, event.status
        if event.event == "phase" and status.phase == "ready":
            self._faults.pop(server, None)
        elif event.event == "phase" and status.phase in {"faulted", "idle"} and status.fault is not None:
            fault = str(status.fault)
            fault = fault if repr(server) in fault else f"server {server!r}: {fault}"
            is_shown, self._faults[server] = self._faults.get(server) == fault, fault
            servers = None if self._conversation is None else self._conversation.servers
            if not is_shown and (servers is None or server not in servers.phases.awaited):
                cause, _, output = name_slash_commands(fault).partition(". Last output: ")
                # A server that needs a sign-in is idle, and its message already names the command.
                self.screen.show(f"✗ {cause} (/mcp says what to do)" if status.phase == "faulted" else f"note: {cause}")
                if output:
                    self.screen.show(f"  {output}")
        self.screen.refresh()

    def _describe_starts(self) -> list[str]:
        servers = None if self._conversation is None else self._conversation.servers
        return [] if servers is None else servers.phases.describe_starts()

    def _list_live_rows(self, limit: int) -> list[str]:
        """List the slow starts (at most half the rows) and the rows of the turn."""
        starts = self._describe_starts()[: max(1, limit // 2)]
        rows = [cut_to_cells(f"  {escape_unprintable(start)}", self.screen.width - 1) for start in starts]
        return rows if self._renderer is None else [*rows, *self._renderer.live_rows(limit - len(rows))]

    def _format_activity(self) -> str:
        if self._renderer is None:
            return ""
        if self._server_wait is not None:
            status = self.conversation.session.mcp.status()
            starting = [name for name, one in status.items() if one.phase == "connecting"]
            return self._renderer.format_activity(f"Starting {escape_unprintable(', '.join(starting) or 'servers')}")
        return self._renderer.format_activity("Waiting for you" if self.screen.has_question else "")

    # -- turns --------------------------------------------------------------------------------

    async def _run_command(self, line: str) -> None:
        name, rest = parse_line(line)
        try:
            command = find_command(name, self.commands)
            self._turn = CancelToken(self._leaving)
            is_done = False
            with self._turn.guard():
                await command.run(self, rest)
                is_done = True
            if not is_done and not self._leaving.cancelled:
                self.screen.show(f"/{command.name} was cancelled")
        except SlashError as exc:
            self.screen.show(f"✗ {exc}")
        except (CoreError, OSError) as exc:
            self.screen.show(f"✗ /{name} failed: {exc}")
        finally:
            self._turn, self.screen.state.link = None, ""

    async def _run_shell(self, conversation: Conversation, command: str) -> None:
        """Run a shell command of the user. The model gets its output with the next prompt."""
        from indusagi.capabilities.web.fetch import fence_text  # noqa: PLC0415 — after the first prompt

        self._show_message(f"!{command}")
        self._turn = CancelToken(self._leaving)
        self._renderer = EventRenderer(width=lambda: self.screen.width, color=self.color)

        async def show(event: RunEvent) -> None:
            if self._renderer is not None and not isinstance(event, ToolAnswered):
                self._renderer.feed(event)

        try:
            text = await conversation.run_command(command, sink=show, cancel=self._turn, dialog=self.screen)
        except (CoreError, OSError) as exc:
            text = str(exc)
        finally:
            self._turn = self._renderer = None
        self.screen.print(escape_controls(text))
        self.screen.print("\n")
        output = fence_text(f"$ {command}\n{text}", "output", "a command")
        conversation.facts.append(f"The user ran a command:\n{output}")

    async def _run_during_turn(self, line: str) -> None:
        name, rest = parse_line(line)
        try:
            self.screen.show(f"> {line}")
            await find_command(name, self.commands).run(self, rest)
        except (CoreError, OSError) as exc:
            self.screen.show(str(exc))
        except asyncio.CancelledError:  # the turn ended first
            self.submit(line)
            raise

    async def _run_turn(self, conversation: Conversation, message: str) -> None:
        """Answer one message, printing text and calls as they finish."""
        from induscode.conversations.mentions import attach_mentions, attach_pictures  # noqa: PLC0415 — after the first prompt

        self._show_message(message)
        self._turn, prompt, pictures = CancelToken(self._leaving), message, ()
        with self._turn.guard():
            prompt, notes = await attach_mentions(message, conversation.session)
            pictures, notes = await attach_pictures(message, self._invocation.cwd, notes, self.screen.state.pictures)
            for note in notes:
                self.screen.show(f"note: {note}")
        self._called = False
        self._renderer = EventRenderer(
            width=lambda: self.screen.width, color=self.color, cwd=self._invocation.cwd, keep=self._keep_result
        )
        known = len(conversation.notes)
        result = RunResult(reason="cancelled")
        async with anyio.create_task_group() as tasks:
            self._turn_tasks = tasks
            try:
                self._server_wait = CancelToken(self._turn)
                with self._server_wait.guard():
                    await conversation.wait_for_servers()
                self._server_wait = None
                take = partial(self._take_messages, conversation)
                result = await conversation.run_turn(
                    prompt, sink=self._show_event, cancel=self._turn, attachments=pictures, take_messages=take
                )
            except Exception as exc:  # noqa: BLE001 — boundary: a failing turn doesn't end the session
                result = RunResult(reason="error", message=describe_error(exc))
            finally:
                tasks.cancel_scope.cancel()
                self.screen.print(self._renderer.finish())
                self._turn = self._renderer = self._turn_tasks = self._server_wait = None
        is_failed = result.reason == "error" and result.fault is not None and not self._messages
        if is_failed:
            self.screen.offer_draft(_GO_ON if self._called else message)
        if result.reason == "cancelled":
            self.screen.show("Interrupted." if self._messages else "Interrupted. What should it do instead?")
        elif result.reason != "done":
            self.screen.show(f"✗ {result.message}" + (". Enter sends it again" if is_failed else ""))
        if result.note:
            self.screen.show(f"note: {result.note}")
        self.screen.print("\n")
        for note in conversation.notes[known:]:
            self.screen.show(f"note: {note}")

    def _show_message(self, message: str) -> None:
        first, *more = hide_pictures(message, self.screen.state.pictures).split("\n")
        if len(more) > _SHOWN_LINES:
            more = [*more[:_SHOWN_LINES], f"… {format_count(len(more) - _SHOWN_LINES, 'more line')}"]
        for line in (f"> {first}", *(f"  {line}" for line in more)):
            self.screen.show(line)

    async def _take_messages(self, conversation: Conversation) -> Sequence[str]:
        """Take the messages queued before the first command, for the turn's next request."""
        from induscode.conversations.mentions import attach_mentions  # noqa: PLC0415 — after the first prompt

        taken: list[str] = []
        while self._messages and not self._messages[0].startswith(("/", "!")):
            message = self._pop_message()
            if not taken and self._renderer is not None:
                self.screen.print(self._renderer.finish())
            self._show_message(message)
            prompt, notes = await attach_mentions(message, conversation.session)
            for note in notes:
                self.screen.show(f"note: {note}")
            taken.append(prompt)
        return taken

    async def _show_event(self, event: RunEvent) -> None:
        self._called = self._called or isinstance(event, ToolCalled)
        if self._renderer is not None:
            self.screen.print(self._renderer.feed(event))
            self.screen.refresh()
