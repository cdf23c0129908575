"""Screen of the interactive session: finished text above a live region of eight rows, or more with a question.

Finished text is written once and stays in the terminal's scrollback. Only the live region is redrawn: running calls,
the unfinished paragraph, queued messages, a question, the input line and the status row. A non-full-screen
prompt_toolkit application draws it (https://python-prompt-toolkit.readthedocs.io/en/stable/), so it never uses the
alternate screen, scroll regions or full-display erases (CSI 2 J, CSI 3 J).
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread
from prompt_toolkit.application import Application, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition, is_searching, vi_insert_mode
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl, SearchBufferControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.processors import AfterInput, BeforeInput, ConditionalProcessor, PasswordProcessor, Processor
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.utils import get_cwidth

from induscode.cli.dialog import Question, Reply
from induscode.cli.terminal import escape_unprintable
from induscode.frontends.terminal.contract import LiveState, ScreenListener
from induscode.frontends.terminal.devices import (
    FoldedPastes,
    VisibleInput,
    names_picture,
    open_output,
    open_pager,
    read_typed_ahead,
)
from induscode.frontends.terminal.questions import HINT, OpenQuestion
from induscode.frontends.terminal.render import SIGN_IN, Palette, format_line, render_markdown

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History


REGION_ROWS = 8
"""Maximum height of the live region, unless the input, the menu or a question grows."""
QUESTION_ROWS = 32
"""Maximum height with a question, on a terminal that's as high."""
_LEAST_INPUT_ROWS, _MOST_MENU_ROWS = 3, 10
_MENU_NAME = 32
"""Widest name in the completion menu whose description is aligned."""
_FRAME_S = 1 / 30
"""Minimum time between redraws not caused by a key."""
_PAUSE_S = 1.0
"""A question waits for a typing pause of this length, so that it never takes typed text as its answer."""
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized output: terminals that support it apply the changes in between at once; others ignore it."""


class _Region(Application[None]):
    """Draws the live region."""

    def redraw(self) -> None:
        """Draw now. `invalidate` would draw later and leave the region blank until then."""
        self._redraw()


class Screen:
    """The terminal of one session. Write with `print`, ask with `ask`, and start `run` as a task."""

    def __init__(
        self,
        listener: ScreenListener,
        *,
        color: bool,
        vi: bool = False,
        history: History | None = None,
        completer: Completer | None = None,
        input: Input | None = None,
        output: Vt100_Output | None = None,
    ) -> None:
        self.state = LiveState()
        self.can_mark = True
        self.shown = asyncio.Event()
        """Set after the first draw of the live region, or when there won't be one."""
        self.is_away = False
        """Whether an editor or a pager has the terminal."""
        self._listener = listener
        self._output: Vt100_Output = output or open_output()
        self._color = color
        self._pending: list[str] = []
        self._held: list[str] = []
        """Finished text held until the open question is answered, so that the question stays in one piece."""
        self._timer: asyncio.TimerHandle | None = None
        self._paused = asyncio.Event()
        self._paused.set()
        self._pause_timer: asyncio.TimerHandle | None = None
        self._asking = asyncio.Lock()
        self._open: OpenQuestion | None = None
        self._palette = Palette(color)
        self._draft = Buffer(
            history=history,
            completer=completer,
            complete_while_typing=completer is not None,
            multiline=True,
            on_text_changed=self._note_typing,
        )
        self._answer = Buffer(multiline=False)
        self._search = SearchBufferControl(Buffer(multiline=False), [BeforeInput("search: ")])
        self._pastes = FoldedPastes()
        self._app = _Region(
            layout=self._build_layout(),
            key_bindings=self._build_keys(),
            editing_mode=EditingMode.VI if vi else EditingMode.EMACS,
            input=input or create_input(sys.stdin),
            output=self._output,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            full_screen=False,
            mouse_support=False,
            erase_when_done=True,
            max_render_postpone_time=0,
            include_default_pygments_style=False,
        )
        self._app.after_render.add_handler(lambda _: self.shown.set())
        # Timeouts that distinguish a lone Esc from the start of a key sequence.
        self._app.ttimeoutlen, self._app.timeoutlen = 0.05, 0.1

    # -- output -----------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._output.get_size().columns

    def print(self, text: str) -> None:
        """Write finished text, adding a missing newline. Text within one frame is batched."""
        if text:
            held = self._held if self._open is not None else self._pending
            held.append(text if text.endswith("\n") else text + "\n")
            self.refresh()

    def show(self, text: str) -> None:
        """Write one finished line, escaped, wrapped, and coloured by its kind."""
        self.print("\n".join(format_line(self._palette, text, self.width)) + "\n")
        if text.startswith(SIGN_IN):
            self.state.link = text.removeprefix(SIGN_IN)
            self.print(self._palette.dim("c copies the address"))

    def refresh(self) -> None:
        """Redraw within one frame; keys redraw immediately."""
        if self._timer is None and self._app.is_running:
            self._timer = asyncio.get_running_loop().call_later(_FRAME_S, self.flush)

    def flush(self) -> None:
        """Write pending text and redraw the live region below it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_away:
            return
        encoding = self._output.encoding()
        # Escape characters that the terminal's encoding lacks.
        text = "".join(self._pending).encode(encoding, "backslashreplace").decode(encoding)
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        self._pending.clear()
        if not self._app.is_running:
            if text:
                self._output.write_raw(text)
                self._output.flush()
            return
        screen, size = self._app.renderer.last_rendered_screen, self._output.get_size()
        height = self._app.layout.container.preferred_height(size.columns, size.rows).preferred
        # prompt_toolkit keeps the last frame's height, so redraw a shrinking region from its first row.
        erases = bool(text) or (screen is not None and screen.height > height)
        self._output.write_raw(_BEGIN_UPDATE)
        if erases:
            self._app.renderer.erase()
            self._output.write_raw(text)
        self._app.redraw()
        self._output.write_raw(_END_UPDATE)
        self._output.flush()

    async def run(self) -> None:
        """Show the live region and read keys until `close`."""
        for line in read_typed_ahead(self._app.input.fileno()):
            self._draft.history.append_string(line)
            self._listener.submit(line.strip())
        try:
            await self._app.run_async(handle_sigint=False, set_exception_handler=False)
        except EOFError:  # the terminal is gone
            self._listener.leave()
        finally:
            self.shown.set()
            self.flush()

    def close(self) -> None:
        """End `run` and remove the live region."""
        if self._app.is_running and not self._app.is_done:
            self.flush()
            self._app.exit()

    def copy(self, text: str) -> None:
        """Send a text to the terminal's clipboard: OSC 52, which tmux and most terminals accept."""
        data = base64.b64encode(text.encode("utf-8", "replace")).decode()
        self._output.write_raw(f"\x1b]52;c;{data}\x07")
        self._output.flush()

    @property
    def draft(self) -> str:
        """The text in the input line."""
        return self._draft.text

    def expect_message(self) -> None:
        """Do nothing: messages may come at any time."""

    def offer_draft(self, text: str) -> None:
        """Put a text into the input line if it's empty."""
        if not self._draft.text:
            self._draft.insert_text(text)

    # -- questions --------------------------------------------------------------------------

    async def ask(self, question: Question) -> Reply:
        """Show a question and wait for the answer, one question at a time."""
        async with self._asking:
            await self._paused.wait()
            keys = [choice.key for choice in question.choices]
            selected = keys.index(question.default) if question.default in keys else 0
            answer = asyncio.get_running_loop().create_future()
            opened = OpenQuestion(question, answer, selected, marked={*question.marked})
            self.print(render_markdown(question.markdown, self.width, color=self._color) if question.markdown else "")
            if not opened.is_call:
                self.show(question.title)
                for line in question.lines:
                    self.show(f"  {line}")
            self._open = opened
            self._answer.reset()
            self._focus()
            try:
                reply = await opened.reply
            finally:
                self._open = None
                self._focus()
            if reply.marked:
                reply = replace(reply, text=", ".join(one.label for one in question.choices if one.key in reply.marked))
            if not opened.is_call:
                chosen = next((choice.label for choice in question.choices if choice.key == reply.key), "")
                shown = "cancelled" if reply.cancelled else chosen or ("…" if question.secret else reply.text)
                text = f": {reply.text}" if chosen and reply.text else ""
                self.show(f"  → {shown}{text}")
            self._pending += self._held
            self._held.clear()
            self.refresh()
            return reply

    def _focus(self) -> None:
        self._app.layout.focus(self._answer_window if self._is_asking_text() else self._draft_window)
        self.flush()

    @property
    def is_asking(self) -> bool:
        """Whether a question is open."""
        return self._open is not None

    @property
    def has_question(self) -> bool:
        """Whether a question is open or waits for a pause in typing."""
        return self._asking.locked()

    def _is_asking_text(self) -> bool:
        return self._open is not None and self._open.wants_text

    def _settle(self, reply: Reply) -> None:
        if self._open is not None and not self._open.reply.done():
            self._open.reply.set_result(reply)

    def _choose(self, index: int) -> None:
        assert self._open is not None
        choice = self._open.choices[index]
        if choice.takes_text:
            self._open.key = choice.key
            self._focus()
        else:
            self._settle(Reply(choice.key))

    def _enter_answer(self, _: KeyPressEvent) -> None:
        assert self._open is not None
        text, question = self._answer.text, self._open.question
        problem = question.check(text) if question.check is not None and not self._open.key else None
        if problem is not None:
            self._pending.append(escape_unprintable(f"  {problem}") + "\n")
            self.refresh()
            return
        self._settle(Reply(self._open.key, text))

    # -- layout -----------------------------------------------------------------------------

    def _build_layout(self) -> Layout:
        asking = Condition(lambda: self.is_asking)
        asking_text = Condition(self._is_asking_text)
        secret = Condition(lambda: self._open is not None and self._open.question.secret)

        def input_window(control: BufferControl, *processors: Processor) -> Window:
            control.input_processors = [VisibleInput(), *processors]
            return Window(
                control,
                height=lambda: Dimension(min=1, max=self._find_third()),
                wrap_lines=True,
                dont_extend_height=True,
            )

        def text_window(rows: Callable[[], Sequence[str]]) -> Window:
            return Window(
                FormattedTextControl(lambda: ANSI("\n".join(rows()))),
                height=lambda: Dimension.exact(len(rows())),
                dont_extend_height=True,
            )

        control = BufferControl(self._draft, search_buffer_control=self._search)
        self._draft_window = input_window(control, BeforeInput("> ", "bold" if self._color else ""))
        hide_secret = ConditionalProcessor(PasswordProcessor(), secret)
        unsaid = Condition(lambda: self._open is not None and bool(self._open.key) and not self._answer.text)
        hint = ConditionalProcessor(AfterInput(f" {HINT}", "ansibrightblack" if self._color else ""), unsaid)
        self._answer_window = input_window(BufferControl(self._answer), BeforeInput("> "), hide_secret, hint)
        return Layout(
            HSplit(
                [
                    ConditionalContainer(text_window(self._list_live_rows), ~asking),
                    text_window(self._list_activity_rows),
                    ConditionalContainer(text_window(self._list_question_rows), asking),
                    ConditionalContainer(self._draft_window, ~asking),
                    ConditionalContainer(Window(self._search, height=1), is_searching),
                    ConditionalContainer(self._answer_window, asking_text),
                    ConditionalContainer(text_window(self._list_menu_rows), ~asking),
                    text_window(self._list_status_rows),
                    Window(dont_extend_height=False),
                ]
            ),
            focused_element=self._draft_window,
        )

    def _list_activity_rows(self) -> list[str]:
        row = "" if self._open is not None else self.state.activity()
        return [row] if row else []

    def _list_live_rows(self) -> list[str]:
        if self._draft.complete_state is not None:
            return []
        size = self._output.get_size()
        height = self._draft_window.preferred_height(size.columns, size.rows).preferred
        limit = max(1, REGION_ROWS - height - 2) if size.rows > REGION_ROWS else 1
        rows: list[str] = []
        if self.state.queued:
            more = f" (+{len(self.state.queued) - 1} more)" if len(self.state.queued) > 1 else ""
            rows.append(self._fit(f"  queued: {self.state.queued[0]}{more}"))
        return [*list(self.state.rows(limit - len(rows)))[: limit - len(rows)], *rows]

    def _list_menu_rows(self) -> list[str]:
        state = self._draft.complete_state
        if state is None:
            return []
        at, found = state.complete_index or 0, state.completions
        count = min(_MOST_MENU_ROWS, self._find_third())
        first = min(max(0, at - count + 1), max(0, len(found) - count))
        shown = found[first : first + count]
        width = min(_MENU_NAME, max((get_cwidth(one.display_text) for one in shown), default=0))
        rows: list[str] = []
        for index, completion in enumerate(shown, first):
            mark, name = "▸" if index == state.complete_index else " ", completion.display_text
            gap = " " * max(0, width - get_cwidth(name))
            rows.append(self._fit(f"{mark} {name}{gap}  {completion.display_meta_text}".rstrip()))
        return [*rows, self._fit(f"  {at + 1}/{len(found)}")] if len(found) > count else rows

    def _find_third(self) -> int:
        """Return the rows that the input or its menu may take: a third of the screen."""
        return max(_LEAST_INPUT_ROWS, self._output.get_size().rows // 3)

    def _list_question_rows(self) -> list[str]:
        if self._open is None:
            return []
        limit = min(QUESTION_ROWS, self._output.get_size().rows - 1) - 1 - self._open.wants_text
        return self._open.list_rows(self._palette, self.width - 1, max(1, limit))

    def _list_status_rows(self) -> list[str]:
        return [self.state.status(self.width)]

    def _fit(self, text: str) -> str:
        """Escape text and truncate it to one row."""
        text, room = escape_unprintable(text), self.width - 1
        if get_cwidth(text) <= room:
            return text
        shown = ""
        for char in text:
            if get_cwidth(shown + char) > room - 1:
                break
            shown += char
        return shown + "…"

    # -- keys -------------------------------------------------------------------------------

    def _note_typing(self, _: Buffer) -> None:
        """Hold back questions while the user types a message, and right after it's sent."""
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        self._paused.clear()
        self._pause_timer = asyncio.get_running_loop().call_later(_PAUSE_S, self._paused.set)

    def _build_keys(self) -> KeyBindings:
        asking, asking_text = Condition(lambda: self.is_asking), Condition(self._is_asking_text)
        choosing, typing = asking & ~asking_text, ~asking & ~is_searching
        empty = Condition(lambda: not self._draft.text)
        keys = KeyBindings()
        keys.add("enter", filter=typing)(self._enter_message)
        keys.add("escape", "enter", filter=typing)(self._insert_newline)
        keys.add("c-j", filter=typing)(self._insert_newline)
        keys.add("enter", filter=asking_text)(self._enter_answer)
        keys.add("enter", filter=choosing)(self._choose_answer)
        keys.add("up", filter=choosing)(self._move_selection)
        keys.add("down", filter=choosing)(self._move_selection)
        keys.add("backspace", filter=choosing)(self._choose_answer)
        keys.add(Keys.Any, filter=choosing)(self._choose_answer)
        queued = Condition(lambda: bool(self.state.queued))
        keys.add("up", filter=typing & empty & queued)(self._take_back)
        keys.add("c", filter=typing & empty & Condition(lambda: bool(self.state.link)))(self._copy_link)
        keys.add(Keys.BracketedPaste, filter=typing)(self._paste)
        keys.add("c-v", filter=typing)(self._paste_clipboard)
        keys.add("c-x", "c-e", filter=typing)(self._open_editor)
        keys.add("c-g", filter=typing)(self._open_editor)
        keys.add("c-c", filter=~is_searching)(self._interrupt)
        keys.add("<sigint>")(self._interrupt)
        keys.add("escape", filter=~is_searching & ~(vi_insert_mode & typing))(self._escape)
        keys.add("c-d", filter=empty)(self._end_input)
        keys.add("s-tab", filter=~asking_text)(self._handle_control)
        keys.add("c-l")(self._handle_control)
        keys.add("c-o")(self._show_results)
        keys.add("c-z")(self._handle_control)
        return keys

    def _handle_control(self, event: KeyPressEvent) -> None:
        key = event.key_sequence[0].key
        if key == Keys.BackTab and self._open is not None:
            if (edits := self._open.find_choice("e")) is not None:
                self._choose(edits)
        elif key == Keys.BackTab:
            self._listener.switch_mode()
        elif key == Keys.ControlL:
            self._app.renderer.erase()  # Ctrl-L would erase the whole display by default
        else:
            self._app.suspend_to_background()

    async def _show_results(self, _: KeyPressEvent) -> None:
        """Show the last results in a pager; without one, above the region."""
        text = self._listener.list_results()
        if not text or self.is_away:
            return
        self.is_away = True
        try:
            is_shown = await run_in_terminal(partial(open_pager, text), in_executor=True)
        finally:
            self.is_away = False
        self.print("" if is_shown else text)
        self.refresh()

    def _enter_message(self, _: KeyPressEvent) -> None:
        if self._draft.text.endswith("\\"):  # a trailing backslash continues the message on a new line
            self._draft.delete_before_cursor()
            self._draft.insert_text("\n")
            return
        self._unfold()
        text = self._draft.text.strip()
        if text:
            self._draft.append_to_history()
        self._clear_draft()
        if text:
            self._listener.submit(text)

    def _clear_draft(self) -> None:
        self._draft.reset()
        self._note_typing(self._draft)  # `reset` doesn't fire a change event

    def _paste(self, event: KeyPressEvent) -> None:
        if names_picture(event.data):
            event.app.create_background_task(self._paste_picture(event.data))
        else:
            self._draft.insert_text(self._pastes.fold(event.data))

    async def _paste_clipboard(self, _: KeyPressEvent) -> None:
        await self._paste_picture(None)

    async def _paste_picture(self, pasted: str | None) -> None:
        """Paste the picture whose path was pasted, or the clipboard's."""
        sign = await to_thread.run_sync(self._pastes.fold_picture, self.state.pictures, pasted)
        if sign or pasted is not None:
            self._draft.insert_text(sign or str(pasted))
        else:
            self.show("note: there's no picture in the clipboard")

    def _unfold(self) -> None:
        text = self._pastes.unfold(self._draft.text)
        if text != self._draft.text:
            self._draft.text = text

    def _open_editor(self, _: KeyPressEvent) -> None:
        """Edit the message in `$VISUAL` or `$EDITOR`; output waits meanwhile."""
        self._unfold()
        self.is_away = True

        def end(_: object) -> None:
            self.is_away = False
            self.refresh()

        self._draft.open_in_editor().add_done_callback(end)

    def _copy_link(self, _: KeyPressEvent) -> None:
        self.copy(self.state.link)
        self.show("Copied the address")

    def _take_back(self, _: KeyPressEvent) -> None:
        self._draft.insert_text(self._listener.recall())

    def _insert_newline(self, _: KeyPressEvent) -> None:
        self._draft.insert_text("\n")

    def _choose_answer(self, event: KeyPressEvent) -> None:
        """Choose the selected answer with Enter, or another by its letter or number."""
        if self._open is None:
            return
        if event.key_sequence[0].key == Keys.Enter:
            if self._open.question.marks:
                self._settle(Reply(marked=tuple(sorted(self._open.marked))))
            elif self._open.choices:
                self._choose(self._open.selected)
        elif self._open.question.marks:
            self._open.mark(event.data)
        elif self._open.question.picks:
            is_back = event.key_sequence[0].key == Keys.Backspace
            self._open.wanted = self._open.wanted[:-1] if is_back else self._open.wanted + event.data
            self._open.selected = 0
        elif (index := self._open.find_choice(event.data)) is not None:
            self._choose(index)
        elif event.data == "d" and self._open.is_call:
            self._pending += [f"{row}\n" for row in self._open.list_details(self._palette, self.width)]
            self.refresh()

    def _move_selection(self, event: KeyPressEvent) -> None:
        if self._open is not None:
            step = -1 if event.key_sequence[0].key == Keys.Up else 1
            self._open.selected = (self._open.selected + step) % max(1, len(self._open.choices))

    def _interrupt(self, _: KeyPressEvent) -> None:
        if self._open is None and self._draft.text:
            self._clear_draft()
            return
        self._settle(Reply(cancelled=True))
        self._listener.interrupt()

    def _escape(self, _: KeyPressEvent) -> None:
        if self._open is not None:
            self._settle(Reply(cancelled=True))
            if self._open.is_call:
                self._listener.steer()
        elif self._draft.complete_state is not None:
            self._draft.cancel_completion()
        else:
            self._listener.steer()

    def _end_input(self, _: KeyPressEvent) -> None:
        if self._open is not None:
            self._settle(Reply(cancelled=True))
        else:
            self._listener.leave()
