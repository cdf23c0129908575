"""Events of a turn as finished text and as rows of the live region."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.support.scripts import unmeasured
from tests.support.strategies import examples

from induscode.conversations.contract import (
    RetryScheduled,
    TextDelta,
    ThinkingDelta,
    ToolAdvanced,
    ToolAnswered,
    ToolCalled,
    Usage,
)
from induscode.frontends.terminal.blocks import MAX_LINES, MAX_TEXT_CHARS
from induscode.frontends.terminal.render import EventRenderer, Palette, format_line, format_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonValue
    from induscode.conversations.contract import RunEvent

SGR = re.compile(r"\x1b\[[0-9;]*m")
WIDTHS = [100, 40, 20]
PIECES = st.sampled_from(
    [
        *("word ", "two words", "\n", "\n\n", "\n- item ", "\n  - nested", "\n1. one", "\n> quote ", "\n```python\n"),
        *("\n```\n", "`code`", "**bold**", "*it* ", "[link](http://x.y/z) ", "<b>tag</b>", "# head\n", "\n---\n"),
        *(
            "\na | b\n--|--\nc | d\n",
            "&amp;",
            "日本語",
            "😀",
            "\x1b[2J",
            "\u202e",
            "\t",
            "![alt](pic.png)",
            "\\*",
            "~~no~~",
        ),
        *("[ref]: /target 'title'\n", "> " * 6, "- " * 6, "\x00", "\ud800", "averyveryverylongwordthatdoesnotfit "),
    ]
)


class Turn:
    """A renderer with a clock that the test moves."""

    def __init__(self, width: int = 80, *, color: bool = False) -> None:
        self.now = 0.0
        self.renderer = EventRenderer(width=lambda: width, color=color, clock=lambda: self.now)
        self.text = ""

    def feed(self, *events: RunEvent) -> str:
        new = "".join(self.renderer.feed(event) for event in events)
        self.text += new
        return new

    def call(self, name: str, arguments: JsonValue = None, seconds: float = 0.3, **answer: Any) -> str:
        self.feed(ToolCalled("1", name, arguments))
        self.now += seconds
        facts: dict[str, Any] = {"id": "1", "name": name, "text": "", "is_error": False, **answer}
        return self.feed(ToolAnswered(**facts))


def render(text: str, cuts: Sequence[int] = (), *, width: int = 80, color: bool = False) -> str:
    turn = Turn(width, color=color)
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(places):
        turn.feed(TextDelta(text[start:end], starts=start == 0))
        assert all(cell_len(SGR.sub("", row)) <= width for row in turn.renderer.live_rows(5))
    return turn.text + turn.renderer.finish()


# -- text ---------------------------------------------------------------------------------------


def test_a_paragraph_is_printed_when_it_has_ended() -> None:
    turn = Turn()
    assert turn.feed(TextDelta("Hello **wor", starts=True)) == ""
    assert turn.renderer.live_rows(5) == ["Hello **wor"]
    assert turn.feed(TextDelta("ld**\n\nNext")) == "Hello world\n"
    assert turn.feed(TextDelta("Passage", starts=True)) == "\nNext\n"
    assert turn.renderer.finish() == "\nPassage\n"
    assert turn.renderer.finish() == ""


def test_markdown_keeps_links_html_and_line_breaks() -> None:
    text = "## Head\n[a](http://x.y 'title') ![alt](p.png) <b>x</b> `c`\nnext <http://u.v> &lt;\n\n[r]: http://w"
    assert render(text, width=100) == (
        '## Head\n\na (http://x.y "title") alt (p.png) <b>x</b> `c`\nnext http://u.v &lt;\n\n[r]: http://w\n'
    )


def test_code_is_coloured_and_its_lines_are_left_whole() -> None:
    long = "x = 1  # " + "long " * 20
    shown = render(f"```python\n{long}\n```", width=40, color=True)
    assert long.strip() in SGR.sub("", shown)
    assert len(SGR.findall(shown)) > 6


def test_a_table_fits_or_becomes_records() -> None:
    text = "| name | what |\n|---|---|\n| alpha | some words that are long |\n"
    assert render(text, width=20).splitlines() == [
        *("name   what", "─" * 20, "alpha  some words", "       that are long")
    ]
    assert render(text, width=11) == "name: alpha\nwhat: some\nwords that\nare long\n"


def test_a_list_in_parts_reads_as_one_list() -> None:
    text = "".join(f"{number}. item\n" for number in range(1, 31))
    assert [line.strip() for line in render(text).splitlines()] == text.splitlines()


def test_a_long_fence_is_printed_while_it_grows() -> None:
    turn = Turn()
    code = [f"line{number}" for number in range(MAX_LINES + 50)]
    printed = turn.feed(TextDelta("```\n" + "\n".join(code), starts=True))
    assert printed.count("line") == MAX_LINES
    assert len(turn.renderer.live_rows(8)) == 8
    assert [line for line in (printed + turn.renderer.finish()).splitlines() if line.startswith("line")] == code


def test_a_long_paragraph_is_printed_while_it_grows() -> None:
    turn = Turn()
    words = [f"w{number}" for number in range(MAX_TEXT_CHARS)]
    assert len(turn.feed(TextDelta(" ".join(words), starts=True))) > MAX_TEXT_CHARS
    assert sum(map(len, turn.renderer._splitter.pending_lines())) < MAX_TEXT_CHARS
    assert (turn.text + turn.renderer.finish()).split() == words


@examples(2)
@given(st.lists(PIECES, max_size=14), st.lists(st.integers(0, 300), max_size=6), st.sampled_from(WIDTHS), st.booleans())
def test_every_word_is_printed_however_the_text_arrives(
    pieces: list[str], cuts: list[int], width: int, color: bool
) -> None:
    text = "".join(pieces)
    shown = render(text, cuts, width=width, color=color)
    assert shown == render(text, width=width, color=color)
    plain = SGR.sub("", shown)
    assert "\x1b" not in (plain if color else shown)
    assert all(c.isprintable() or c == "\n" for c in plain)
    for word in ("word", "item", "nested", "quote", "code", "bold", "head", "日本語", "alt", "pic", "target", "title"):
        assert plain.replace("\n", "").replace(" ", "").replace("▌", "").count(word) >= text.count(word)
    assert shown == "" or shown.endswith("\n")


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=30), max_size=60), st.sampled_from(WIDTHS))
def test_words_keep_their_order(words: list[str], width: int) -> None:
    assert "".join(render(" ".join(words), width=width).split()) == "".join(words)


# -- calls --------------------------------------------------------------------------------------


def test_a_call_is_one_line_when_it_ends() -> None:
    turn = Turn()
    assert turn.call("read", {"path": "a.py", "limit": 3}, text="1\n2\n3") == "✓ Read a.py limit=3 · 3 lines\n"
    assert turn.call("addon_card", {"q": [1]}, seconds=75, text="one") == "✓ addon_card q=[1] · one · 1m 15s\n"
    assert turn.call("bash", {"command": "git  status\n"}, seconds=12) == "✓ $ git status · no output · 12s\n"
    assert turn.call("webfetch", {"url": "https://a.b/c"}, text="page") == "✓ Fetch a.b/c · page\n"
    assert turn.call("process", {"action": "poll", "id": "bg-1"}, text="x") == "✓ Process poll bg-1 · x\n"
    said: dict[str, Any] = {"text": "bash was not run: the rule says no\n- why", "is_error": True, "code": "denied"}
    assert turn.call("bash", **said) == "⊘ $ · the rule says no\n"
    assert (
        turn.feed(ToolAnswered("9", "nope", "no tool", is_error=True, code="unknown_tool")) == "✗ nope · no such tool\n"
    )
    assert turn.feed(Usage(1)) == ""


def test_a_call_of_a_server_names_it_and_its_tool() -> None:
    turn = Turn()
    turn.feed(ToolCalled("1", "files__list", {"path": "/home/x"}, "files", "list\x1b"))
    assert (
        turn.feed(ToolAnswered("1", "files__list", "a\nb", is_error=False)) == "✓ files → list\\x1b /home/x · 2 lines\n"
    )
    turn.feed(ToolCalled("2", "files__list", {"path": "x", "deep": True}, "files", "list"))
    assert turn.feed(ToolAnswered("2", "files__list", "a", is_error=False)) == "✓ files → list path=x deep=true · a\n"


def test_paths_are_relative_to_the_working_directory() -> None:
    renderer = EventRenderer(width=lambda: 80, color=False, cwd="/work")
    renderer.feed(ToolCalled("1", "read", {"file_path": "/work/a/b.py"}))
    assert renderer.feed(ToolAnswered("1", "read", "x", is_error=False)) == "✓ Read a/b.py · x\n"


def test_a_command_shows_the_ends_of_its_output_and_more_of_its_errors() -> None:
    kept: list[tuple[str, str]] = []
    turn = Turn()

    def keep(title: str, text: str) -> None:
        kept.append((title, text))

    turn.renderer._keep = keep
    text = "".join(f"{number}\n" for number in range(1, 401))
    shown = turn.call("bash", {"command": "seq 1 400"}, text=text).splitlines()
    assert shown == [
        "✓ $ seq 1 400 · 400 lines", "    1", "    2", "    … 397 more lines · ctrl-o shows all", "    400",
    ]  # fmt: skip
    assert kept == [("Run seq 1 400", text)]
    three = turn.call("bash", {"command": "x"}, text="a\n  b\nc\n[a note]", details={"notes": 1}, seconds=2.06)
    assert three.splitlines() == ["✓ $ x · 2.1s", "    a", "      b", "    c"]
    failed: dict[str, Any] = {"is_error": True, "code": "failed", "details": {"exitCode": 3, "notes": 1}}
    assert turn.call("bash", {"command": "x"}, text="no\n[exit code 3]", **failed) == "✗ $ x · exit 3\n    no\n"
    shown = turn.call("bash", {"command": "x"}, text=f"{text}[exit code 3]", **failed).splitlines()
    assert shown[:3] == ["✗ $ x · exit 3", "    … 395 more lines · ctrl-o shows all", "    396"]
    assert len(shown) == 7
    ended: dict[str, Any] = {"is_error": True, "code": "timeout", "details": {"notes": 1}}
    assert turn.call("bash", {"command": "x"}, text="(no output)\n[timed out]", **ended) == "✗ $ x · timeout\n"


def test_finding_u2_call_line_leaves_out_the_time_of_the_user() -> None:
    turn = Turn()
    assert turn.call("bash", {"command": "x"}, seconds=62.5, waited_s=60.0) == "✓ $ x · no output · 2.5s\n"
    said: dict[str, Any] = {"is_error": True, "code": "denied", "waited_s": 60.0}
    text = "bash was not run: the user declined\n- runs: x"
    assert turn.call("bash", {"command": "x"}, seconds=90, text=text, **said) == "⊘ $ x · declined\n"
    text = "bash was not run: the user declined: use make\n- runs: x"
    assert turn.call("bash", {"command": "x"}, text=text, **said) == "⊘ $ x · declined: use make\n"
    details: dict[str, Any] = {"details": {"created": True}}
    assert turn.call("write", {"path": "a"}, text="write was not run: the user declined", **said, **details) == (
        "⊘ Create a · declined\n"
    )


def test_an_error_gets_up_to_five_rows() -> None:
    turn = Turn(30)
    shown = turn.call("webfetch", {"url": "x"}, text="reason " * 50, is_error=True).splitlines()
    assert shown[0] == "✗ Fetch x"
    assert shown[1:] == ["    reason reason reason", *["    reason reason reason"] * 3, "    … ctrl-o shows all"]
    several = turn.call("srv", None, text="one\ntwo", is_error=True)
    assert several == "✗ srv\n    one\n    two\n"


def test_text_and_calls_keep_their_order() -> None:
    turn = Turn()
    turn.feed(TextDelta("Before", starts=True))
    turn.call("a")
    turn.call("b")
    turn.feed(TextDelta("After", starts=True))
    assert turn.text + turn.renderer.finish() == "Before\n\n✓ a · no output\n✓ b · no output\n\nAfter\n"


def test_an_edit_shows_its_diff() -> None:
    lines = "".join(f"+new {number}\n" for number in range(40))
    diff = f"--- a/x\n+++ b/x\n@@ -1 +1,40 @@\n-old\t\x1b[2J\n{lines}"
    details = {"diff": diff, "added": 40, "removed": 1, "changed": True}
    shown = Turn().call("edit", {"path": "x"}, text="updated x", details=details).splitlines()
    assert shown[:3] == ["✓ Edit x · +40 −1", "     1 - old \\x1b[2J", "     1 + new 0"]  # noqa: RUF001 — a minus
    assert shown[-1] == "    … 11 more lines · ctrl-o shows all"
    assert len(shown) == 32
    assert "\x1b[32m     1 + new 0\x1b[0m" in Turn(color=True).call("edit", None, details=details)
    unchanged = {"diff": "", "added": 0, "removed": 0, "changed": False}
    assert Turn().call("write", None, details=unchanged) == "✓ Write · unchanged\n"


def test_pictures_are_shown_by_type_and_size() -> None:
    details = {"bytes": 12345, "width": 10, "height": 20}
    one = Turn().call("read", None, text="[pic]", attachments=("image/png",), details=details)
    assert one == "✓ Read · image/png, 10 by 20 pixels, 12,345 bytes\n"
    two = Turn().call("shot", None, attachments=("image/png", "image/png", "application/pdf"))
    assert two == "✓ shot · 2 × image/png, application/pdf\n"  # noqa: RUF001 — a multiplication sign


def test_running_calls_are_rows_of_the_live_region() -> None:
    turn = Turn(60)
    turn.feed(
        *(ToolCalled(str(n), f"tool{n}", {"n": n}) for n in range(4)), ToolAdvanced("0", "tool0", 3, 10, "page\n3")
    )
    turn.feed(ToolAdvanced("1", "tool1", 7, None, ""), ToolAdvanced("2", "tool2", float("nan"), 1, ""))
    turn.feed(ToolAdvanced("unknown", "x", 1, 2, ""))
    turn.now = 2.0
    rows = turn.renderer.live_rows(8)
    assert rows[0][1:] == " tool0 n=0 · ━━━────────  30% page 3 · 2.0s"
    assert rows[1][1:] == " tool1 n=1 · 7 · 2.0s"
    assert rows[2][1:] == " tool2 n=2 · 2.0s"
    assert [row[2:] for row in turn.renderer.live_rows(2)] == ["tool0 n=0 · ━━━────────  30% page 3 · 2.0s", "3 more"]
    assert turn.renderer.live_rows(0) == []
    assert turn.renderer.finish().splitlines() == [f"⊘ tool{n} n={n} · interrupted · 2.0s" for n in range(4)]
    assert turn.renderer.live_rows(8) == []


def test_a_running_command_shows_the_last_line_it_wrote() -> None:
    turn = Turn(60)
    turn.feed(ToolCalled("1", "bash", {"command": "tick"}), ToolAdvanced("1", "bash", 21, None, "tick 1\ntick 2\x1b\n"))
    assert [row[1:] for row in turn.renderer.live_rows(8)] == [" $ tick", "   tick 2\\x1b"]
    assert [row[1:] for row in turn.renderer.live_rows(1)] == [" $ tick"]


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [*WIDTHS, 3])
def test_foreign_text_of_calls_is_escaped_and_fits(width: int, color: bool) -> None:
    turn = Turn(width, color=color)
    evil = "\x1b[2J\x1b]0;t\x07日本語\u202e\n\r"
    turn.feed(ToolCalled("1", evil * 3, {evil: evil, "deep": [{evil: 1}]}), ToolAdvanced("1", evil, 1, 2, evil * 9))
    rows = turn.renderer.live_rows(3)
    details: dict[str, JsonValue] = {"diff": f"@@\n+{evil * 9}\n", "added": 1, "removed": 1}
    turn.feed(ToolAnswered("1", evil * 3, evil * 9, is_error=False, attachments=(evil,), details=details))
    turn.feed(ToolAnswered("1", evil * 3, evil * 9, is_error=True, code="denied"))
    for row in [*rows, *turn.text.splitlines()]:
        plain = SGR.sub("", row)
        assert plain.isprintable()
        assert cell_len(plain) <= max(width, 8)
        assert color or plain == row


@pytest.mark.process
def test_rich_is_loaded_for_the_first_block_only() -> None:
    script = """
import sys
from induscode.frontends.terminal.render import EventRenderer, Palette, format_line
from induscode.conversations.contract import TextDelta, ToolAnswered, ToolCalled
renderer = EventRenderer(width=lambda: 80, color=True)
renderer.feed(ToolCalled("1", "bash", {"command": "ls"}))
renderer.feed(ToolAnswered("1", "bash", "a", False))
renderer.feed(TextDelta("Hello", True))
assert renderer.live_rows(8) == ["Hello"]
assert not {name for name in sys.modules if name.split(".")[0] in {"rich", "prompt_toolkit", "pygments"}}
assert renderer.finish() == "\\nHello\\n"
assert "rich" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=unmeasured())


def test_the_activity_names_what_the_turn_does_and_since_when() -> None:
    turn = Turn()

    def say(*events: RunEvent) -> str:
        turn.feed(*events)
        turn.now += 1
        return turn.renderer.format_activity().removeprefix(turn.renderer.format_activity()[:2])

    assert say() == "Thinking… 1s · esc to interrupt"
    assert say(TextDelta("Well", starts=True)) == "Writing… 2s · esc to interrupt"
    assert say(ToolCalled("1", "bash", {})) == "Running command… 3s · esc to interrupt"
    assert say(ToolCalled("2", "read", {})) == "Running 2 tools… 4s · esc to interrupt"
    retry = RetryScheduled("Rate limited", 3.0, 2, 10)
    assert say(retry) == "Rate limited. Retrying in 2 s (2 of 10) · esc to interrupt"
    assert say() == "Rate limited. Retrying in 1 s (2 of 10) · esc to interrupt"
    assert turn.renderer.format_activity("Waiting for you")[2:] == "Waiting for you… 6s · esc to interrupt"
    assert len(EventRenderer(width=lambda: 20, color=False).format_activity()) <= 20


def test_reasoning_is_shown_while_it_lasts_and_folded_at_its_end() -> None:
    turn = Turn(40)
    assert turn.feed(ThinkingDelta("First\nthis, \x1b[2J "), ThinkingDelta("then that. " * 20)) == ""
    rows = turn.renderer.live_rows(5)
    assert len(rows) == 2
    assert rows[-1].endswith("then that.")
    turn.now = 4
    assert turn.feed(ToolCalled("1", "bash", {})) == "✻ Thought for 4.0s · First this, \\x1b[2…\n"
    assert not [row for row in turn.renderer.live_rows(5) if "that" in row]
    assert turn.feed(ThinkingDelta(" \n"), TextDelta("Done.", starts=True)) == ""


def test_a_dropped_answer_ends_with_a_line_about_the_retry() -> None:
    turn = Turn()
    turn.feed(TextDelta("Half an", starts=True))
    shown = turn.feed(RetryScheduled("The connection dropped", 0, 2, 2))
    assert shown.splitlines() == ["Half an", "The connection dropped. Retrying now (2 of 2)"]


def make_conversation(tokens: int = 170_000, window: int | None = 200_000) -> Any:
    """Make what the status row reads of a conversation."""
    phases = {"one": "ready", "two": "connecting", "three": "faulted"}
    return SimpleNamespace(
        usage=SimpleNamespace(cost_usd=0.123),
        choice=SimpleNamespace(label="sonnet\x1b[2J", context_window=window),
        context_tokens=tokens,
        plan_mode=SimpleNamespace(active=False),
        permissions=SimpleNamespace(permissions=SimpleNamespace(mode="ask")),
        session=SimpleNamespace(
            mcp=SimpleNamespace(status=lambda: {name: SimpleNamespace(phase=one) for name, one in phases.items()})
        ),
        resources=SimpleNamespace(delegate=SimpleNamespace(list_running=lambda: ["task"])),
    )


STATUS = {
    60: r"  sonnet\x1b[2J · 85% of 200k: /compact · $0.12",
    100: r"  sonnet\x1b[2J · 85% of 200k: /compact · $0.12 · asks before changes ⇧⇥ · starting 1 of 3 servers",
    160: (
        r"  sonnet\x1b[2J · 85% of 200k: /compact · $0.12 · asks before changes ⇧⇥ · starting 1 of 3 servers"
        " · ✗ 1 server · 1 task in the background"
    ),
}


@pytest.mark.parametrize("width", STATUS)
def test_the_status_row_has_the_facts_that_fit_and_warns_of_a_full_context(width: int) -> None:
    plain = format_status(make_conversation(), width, Palette(color=False))
    painted = format_status(make_conversation(), width, Palette(color=True))
    assert plain == STATUS[width]
    assert SGR.sub("", painted) == plain
    assert "\x1b[33m85% of 200k: /compact" in painted
    assert ("\x1b[31m✗ 1 server" in painted) == (width == 160)
    half = format_status(make_conversation(100_000), width, Palette(color=True))
    assert "50% of 200k" in half
    assert "\x1b[33m" not in half
    assert "100k of context" in format_status(make_conversation(100_000, None), width, Palette(color=False))


def test_lines_are_wrapped_at_words_and_coloured_by_kind() -> None:
    plain, color = Palette(color=False), Palette(color=True)
    assert [*format_line(plain, "  one two three four", 12)] == ["  one two", "    three", "    four"]
    assert [*format_line(plain, "see https://example.org/a/long/address", 20)] == [
        "see https://example.org/a/long/address"
    ]
    page = "https://issuer.example/authorize?state=1"
    assert [*format_line(plain, f"Sign in at: {page}", 30)] == ["Sign in at:", page]
    assert [*format_line(color, f"Sign in at: {page}", 30)] == [
        "Sign in at:",
        f"\x1b]8;;{page}\x1b\\https://issuer.example/autho…\x1b]8;;\x1b\\",
    ]
    assert [*format_line(color, f"Sign in at: {page}\x1b]8;;x", 30)][1].startswith(f"\x1b]8;;{page}\\x1b]8;;x\x1b\\")
    assert [*format_line(plain, "a\x1b[2J", 20)] == [r"a\x1b[2J"]
    assert [*format_line(color, "note: it is so", 40)] == ["\x1b[2mnote: it is so\x1b[0m"]
    assert [*format_line(color, "✗ it failed", 40)] == ["\x1b[31m✗\x1b[0m it failed"]
    assert [*format_line(color, "> hello", 40)] == ["\x1b[1m> hello\x1b[0m"]
