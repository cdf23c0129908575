"""The screen in memory: keys become messages, answers and signals, and each row fits its terminal."""

from __future__ import annotations

import asyncio
import io
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output
from tests.support.waiting import until

from induscode.cli.dialog import Choice, FileChange, Question, Reply
from induscode.frontends.terminal import devices
from induscode.frontends.terminal import screen as module
from induscode.frontends.terminal.screen import Screen

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from pathlib import Path

    from prompt_toolkit.document import Document
    from prompt_toolkit.input import PipeInput

pytestmark = pytest.mark.anyio
ENTER, CTRL_C, CTRL_D, SHIFT_TAB, UP, DOWN = "\r", "\x03", "\x04", "\x1b[Z", "\x1b[A", "\x1b[B"
ESCAPE = "\x1b"
CHOICES = (Choice(key="y", label="Yes"), Choice(key="n", label="No", takes_text=True), Choice(key="a", label="Always"))
YES_NO = Question(title="Run it?", lines=("it writes",), choices=CHOICES, default="n")


@dataclass
class Person:
    """Keeps what the person did."""

    did: list[str] = field(default_factory=list[str])

    def submit(self, text: str) -> None:
        self.did.append(f"submit {text!r}")

    def interrupt(self) -> None:
        self.did.append("interrupt")

    def steer(self) -> None:
        self.did.append("steer")

    def recall(self) -> str:
        self.did.append("recall")
        return "queued"

    def leave(self) -> None:
        self.did.append("leave")

    def switch_mode(self) -> None:
        self.did.append("switch")

    def list_results(self) -> str:
        self.did.append("results")
        return ""


class Words(Completer):
    """Completes `/` with six words."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        if document.text.startswith("/"):
            for number in range(6):
                yield Completion(f"/word{number}", -len(document.text), display_meta="about" if number == 1 else "")


class Terminal(io.StringIO):
    """Keeps what is written."""

    encoding = "utf-8"

    def fileno(self) -> int:
        return 1


@dataclass
class Stage:
    """A screen over a pipe."""

    screen: Screen
    person: Person
    keys: PipeInput
    out: Terminal

    async def press(self, keys: str, *did: str) -> None:
        """Press keys, and wait for what they do."""
        self.person.did.clear()
        self.keys.send_text(keys)
        await until(lambda: self.person.did == [*did])

    async def type_text(self, text: str) -> None:
        self.keys.send_text(text)
        await until(lambda: self.screen._draft.text.endswith(text.removesuffix("\r").removesuffix("\\")[-1:]))

    async def answer(self, question: Question, *keys: str) -> Reply:
        """Put a question and press keys, one after the other."""
        asked = asyncio.create_task(self.screen.ask(question))  # noqa: TID251 — awaited below
        await until(lambda: self.screen._open is not None)
        for key in keys:
            self.keys.send_text(key)
            await asyncio.sleep(0)
        return await asyncio.wait_for(asked, 20)

    def printed(self) -> list[str]:
        self.screen.flush()
        return re.findall("→ [^\r]*", self.out.getvalue())


@asynccontextmanager
async def shown(columns: int = 40, rows: int = 24, completer: Completer | None = None) -> AsyncGenerator[Stage]:
    out, person = Terminal(), Person()
    with create_pipe_input() as keys:
        output = Vt100_Output(out, lambda: Size(rows=rows, columns=columns), enable_cpr=False)
        screen = Screen(person, color=False, completer=completer, input=keys, output=output)
        running = asyncio.create_task(screen.run())  # noqa: TID251 — awaited below
        await screen.shown.wait()
        try:
            yield Stage(screen, person, keys, out)
        finally:
            screen.close()
            await running


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have questions take the keyboard at once."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)


async def test_a_message_is_entered_continued_and_kept_in_the_history() -> None:
    async with shown() as stage:
        await stage.press(f"  hello {ENTER}", "submit 'hello'")
        await stage.press(f"one\\{ENTER}two{ENTER}", "submit 'one\\ntwo'")
        await stage.press(f"three\x0afour{ENTER}", "submit 'three\\nfour'")
        await stage.press(f"   {ENTER}x{ENTER}", "submit 'x'")
        assert [*stage.screen._draft.history.get_strings()] == ["  hello ", "one\ntwo", "three\nfour", "x"]


async def test_keys_without_a_question_interrupt_steer_switch_and_leave() -> None:
    async with shown() as stage:
        await stage.press(CTRL_C, "interrupt")
        await stage.press(SHIFT_TAB, "switch")
        await stage.press(ESCAPE, "steer")
        # Ctrl-C empties the line first, and Ctrl-D deletes there.
        await stage.type_text("draft")
        await stage.press(f"{CTRL_D}{CTRL_C}{SHIFT_TAB}", "switch")
        assert stage.screen._draft.text == ""
        await stage.press(CTRL_D, "leave")


@pytest.mark.parametrize(
    ("keys", "reply", "said"),
    [
        (["y"], Reply("y"), "→ Yes"),
        (["A"], Reply("a"), "→ Always"),
        ([ENTER, f"because{ENTER}"], Reply("n", "because"), "→ No: because"),
        (["n", ENTER], Reply("n"), "→ No"),
        ([UP, ENTER], Reply("y"), "→ Yes"),
        ([DOWN, ENTER], Reply("a"), "→ Always"),
        ([DOWN, DOWN, ENTER], Reply("y"), "→ Yes"),
        ([UP, UP, ENTER], Reply("a"), "→ Always"),
        (["x", "y"], Reply("y"), "→ Yes"),
        ([CTRL_D], Reply(cancelled=True), "→ cancelled"),
        ([CTRL_C], Reply(cancelled=True), "→ cancelled"),
        ([ESCAPE], Reply(cancelled=True), "→ cancelled"),
    ],
)
async def test_a_choice_is_made_by_its_letter_by_arrows_or_declined(keys: list[str], reply: Reply, said: str) -> None:
    async with shown() as stage:
        assert await stage.answer(YES_NO, *keys) == reply
        assert stage.printed() == [said]
        assert stage.person.did == (["interrupt"] if keys == [CTRL_C] else [])


async def test_a_text_is_checked_and_a_secret_one_is_not_shown() -> None:
    def check(text: str) -> str | None:
        return None if text == "good" else "it is not good"

    async with shown() as stage:
        found = await stage.answer(Question(title="Name?", check=check), f"bad{ENTER}", "\x08\x08\x08", f"good{ENTER}")
        assert found == Reply(text="good")
        assert stage.printed() == ["→ good"]
        assert stage.out.getvalue().count("  it is not good") == 1
        assert await stage.answer(Question(title="Key?", secret=True), f"hidden{ENTER}") == Reply(text="hidden")
        assert stage.printed()[1:] == ["→ …"]
        assert "hidden" not in stage.out.getvalue()


CHANGE = FileChange(path="/a", before="x", after="y", diff=f"@@ -1 +1 @@\n-x\n+{'y' * 90}\n", counts="+1")
ABOUT_A_CALL = Question(
    title="Edit a",
    lines=("argument: all of it",),
    brief=("asks because: a rule",),
    change=CHANGE,
    prompt="Make this edit?",
    choices=(Choice(key="y", label="Yes"), Choice(key="e", label="All edits"), *CHOICES[1:2]),
    default="y",
)


@pytest.mark.parametrize(
    ("keys", "reply", "did"),
    [
        ([ENTER], Reply("y"), []),
        (["2"], Reply("e"), []),
        ([SHIFT_TAB], Reply("e"), []),
        (["9", "n", "x", f"y{ENTER}"], Reply("n", "xy"), []),
        ([ESCAPE], Reply(cancelled=True), ["steer"]),
        ([CTRL_C], Reply(cancelled=True), ["interrupt"]),
    ],
)
async def test_a_question_about_a_call_disappears_with_its_answer(
    keys: list[str], reply: Reply, did: list[str]
) -> None:
    async with shown(columns=60) as stage:
        assert await stage.answer(ABOUT_A_CALL, *keys) == reply
        assert stage.printed() == []
        assert stage.screen._list_question_rows() == []
        assert stage.person.did == did


async def test_d_prints_all_details_of_a_call_and_the_question_stays() -> None:
    async with shown(columns=60, rows=14) as stage:
        asked = asyncio.create_task(stage.screen.ask(ABOUT_A_CALL))  # noqa: TID251 — awaited below
        await until(lambda: stage.screen.is_asking)
        rows = stage.screen._list_question_rows()
        assert rows[:4] == ["", "● Edit a  +1", "    asks because: a rule", "     1 - x"]
        assert rows[-5:] == [
            "  Make this edit?",
            "▸ y  Yes",
            "  e  All edits",
            "  n  No",
            "  esc  No, and stop · d details",
        ]
        assert "argument: all of it" not in stage.out.getvalue()
        stage.keys.send_text("d")
        await until(lambda: "argument: all of it" in stage.out.getvalue())
        assert "y" * 90 in stage.out.getvalue()
        stage.keys.send_text("1")
        assert await asked == Reply("y")


async def test_a_question_waits_after_a_message_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 600.0)
    async with shown() as stage:
        await stage.press(f"go{ENTER}", "submit 'go'")
        assert not stage.screen._paused.is_set(), "a second Enter may follow"


async def test_text_waits_until_the_open_question_is_answered() -> None:
    async with shown() as stage:
        asked = asyncio.create_task(stage.screen.ask(YES_NO))  # noqa: TID251 — awaited below
        await until(lambda: stage.screen._open is not None)
        stage.screen.print("finished meanwhile")
        stage.screen.flush()
        assert "finished meanwhile" not in stage.out.getvalue()
        assert stage.screen._list_question_rows() == ["  y  Yes", "▸ n  No", "  a  Always"]
        stage.keys.send_text("y")
        assert await asked == Reply("y")
        stage.screen.flush()
        assert stage.out.getvalue().index("→ Yes") < stage.out.getvalue().index("finished meanwhile\r\n")
        assert stage.screen._list_question_rows() == []


async def test_the_end_of_the_terminal_is_a_leave() -> None:
    async with shown() as stage:
        stage.keys.close()
        await until(lambda: stage.person.did == ["leave"])


async def test_the_rows_above_the_input_line_fit_the_region() -> None:
    def give(limit: int) -> Sequence[str]:
        return [f"row {number} of {limit}" for number in range(9)]

    async with shown() as stage:
        state = stage.screen.state
        assert stage.screen._list_live_rows() == []
        state.rows = give
        assert stage.screen._list_live_rows() == [f"row {number} of 5" for number in range(5)]
        state.queued = ["next"]
        assert stage.screen._list_live_rows() == [*(f"row {number} of 4" for number in range(4)), "  queued: next"]
        state.queued = ["next", "later", "last"]
        assert stage.screen._list_live_rows()[-1] == "  queued: next (+2 more)"
        state.status = lambda width: f"of {width}"
        assert stage.screen._list_status_rows() == ["of 40"]
    for rows, count in ((8, 1), (9, 5)):
        async with shown(rows=rows) as stage:
            stage.screen.state.rows = give
            assert len(stage.screen._list_live_rows()) == count


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("a" * 9, "a" * 9),
        ("a" * 10, "a" * 8 + "…"),
        ("日本語日本", "日本語日…"),
        ("日本語日a", "日本語日a"),
        ("a\tb", r"a\tb"),
    ],
)
async def test_a_row_is_cut_to_the_width_of_its_terminal(text: str, row: str) -> None:
    async with shown(columns=10) as stage:
        assert stage.screen._fit(text) == row


async def test_completions_are_a_menu_around_the_chosen_one_with_its_place() -> None:
    async with shown(rows=12, completer=Words()) as stage:
        screen = stage.screen
        assert screen._list_menu_rows() == []
        await stage.type_text("/")
        await until(lambda: screen._draft.complete_state is not None)
        assert screen._list_live_rows() == []
        assert screen._list_menu_rows() == ["  /word0", "  /word1  about", "  /word2", "  /word3", "  1/6"]
        for number, rows in (
            (0, ["▸ /word0", "  /word1  about", "  /word2", "  /word3", "  1/6"]),
            (3, ["  /word0", "  /word1  about", "  /word2", "▸ /word3", "  4/6"]),
            (5, ["  /word2", "  /word3", "  /word4", "▸ /word5", "  6/6"]),
        ):
            screen._draft.go_to_completion(number)
            assert screen._list_menu_rows() == rows
        await stage.press(f"{ESCAPE}{ESCAPE}", "steer")
        assert screen._list_menu_rows() == []
    async with shown(completer=Words()) as stage:
        await stage.type_text("/")
        await until(lambda: stage.screen._draft.complete_state is not None)
        assert len(stage.screen._list_menu_rows()) == 6


async def test_text_after_the_end_is_written_as_it_is() -> None:
    async with shown() as stage:
        screen, out = stage.screen, stage.out
    out.truncate(0)
    out.seek(0)
    screen.print("")
    screen.print("one")
    screen.show("two\x1b")
    screen.flush()
    assert out.getvalue() == "one\r\ntwo\\x1b\r\n"
    assert screen.width == 40


def paste(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


async def test_a_long_paste_is_folded_until_the_message_is_sent() -> None:
    lines = [f"line {number}" for number in range(11)]
    async with shown() as stage:
        await stage.type_text("see ")
        stage.keys.send_text(paste("\r\n".join(lines)))
        stage.keys.send_text(paste("a\rb") + "!")
        await until(lambda: stage.screen._draft.text.endswith("!"))
        assert stage.screen._draft.text == "see [Pasted text #1 +11 lines]a\nb!"
        await stage.press(ENTER, f"submit {'see ' + chr(10).join(lines) + 'a' + chr(10) + 'b!'!r}")
        await stage.type_text("[Pasted text #1 +11 lines]")
        await stage.press(ENTER, "submit '[Pasted text #1 +11 lines]'")


@pytest.mark.parametrize(("rows", "height"), [(60, 15), (24, 8), (6, 3)])
async def test_the_input_grows_to_a_third_of_the_screen(rows: int, height: int) -> None:
    async with shown(rows=rows) as stage:
        await stage.type_text("a" + "\x0a" * 14 + "b")
        window = stage.screen._draft_window
        assert window.preferred_height(40, rows).preferred == height
        stage.screen.state.rows = lambda limit: ["row"] * 9
        assert len(stage.screen._list_live_rows()) == 1


async def test_earlier_messages_are_searched() -> None:
    async with shown() as stage:
        await stage.press(f"first{ENTER}", "submit 'first'")
        await stage.press(f"second{ENTER}", "submit 'second'")
        stage.keys.send_text("\x12fir")
        await until(lambda: stage.screen._app.layout.is_searching)
        stage.keys.send_text(ENTER)
        await until(lambda: stage.screen._draft.text == "first")
        await stage.press(ENTER, "submit 'first'")
        # Esc ends a search, not the turn.
        stage.keys.send_text("\x12x")
        await until(lambda: stage.screen._app.layout.is_searching)
        await stage.press(ESCAPE)
        await until(lambda: not stage.screen._app.layout.is_searching)
        assert stage.person.did == []


async def test_a_text_is_copied_to_the_terminals_clipboard() -> None:
    async with shown() as stage:
        stage.screen.copy("hé")
        assert "\x1b]52;c;aMOp\x07" in stage.out.getvalue()


async def test_c_copies_the_address_of_a_sign_in_that_waits() -> None:
    async with shown() as stage:
        stage.screen.show("Sign in at: https://a")
        stage.keys.send_text("c")
        await until(lambda: "\x1b]52;c;aHR0cHM6Ly9h\x07" in stage.out.getvalue())
        assert stage.screen.draft == ""
        stage.screen.state.link = ""
        await stage.type_text("c")
        assert stage.screen.draft == "c"


async def test_a_pasted_or_dropped_picture_is_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, clipboard = b"\x89PNG\r\n\x1a\n", tmp_path / "xclip"
    (tmp_path / "a b.png").write_bytes(picture)
    (tmp_path / "text.png").write_text("no picture")
    clipboard.write_text(f"#!/bin/sh\nexec cat '{tmp_path}/a b.png'\n")
    clipboard.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(devices, "_CLIPBOARDS", (("xclip",),))
    async with shown() as stage:
        stage.screen.state.pictures = str(tmp_path / "kept")
        for keys, text in (
            (paste(f"'{tmp_path}/a b.png' "), "[Picture #1]"),
            ("\x16", "[Picture #1][Picture #2]"),
            (paste(f"{tmp_path}/text.png"), f"[Picture #1][Picture #2]{tmp_path}/text.png"),
        ):
            stage.keys.send_text(keys)
            await until(lambda: stage.screen.draft == text)  # noqa: B023 — awaited here
        stage.keys.send_text(ENTER)
        await until(lambda: bool(stage.person.did))
    kept = [*(tmp_path / "kept").iterdir()]
    assert [path.read_bytes() for path in kept] == [picture, picture]
    assert all(f'@"{path}"' in stage.person.did[0] for path in kept)
    assert devices.hide_pictures(f'@"{kept[0]}" and', str(tmp_path / "kept")) == "[Picture] and"
