"""Calls and questions as approved screens, at three widths, with and without colours.

The files are in `screens`. `INDUS_APPROVE=1` writes them anew; read the difference then.
"""

from __future__ import annotations

import os
import re
from asyncio import Future, new_event_loop
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from induscode.cli.dialog import Choice, FileChange, Question
from induscode.conversations.contract import TextDelta, ToolAdvanced, ToolAnswered, ToolCalled
from induscode.frontends.terminal.questions import OpenQuestion
from induscode.frontends.terminal.render import EventRenderer, Palette, format_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indusagi.core.json import JsonValue
    from induscode.conversations.contract import RunEvent

SCREENS = Path(__file__).parent / "screens"
COLORS = {
    "0": "/",
    "1": "bold",
    "2": "dim",
    "31": "red",
    "32": "green",
    "33": "yellow",
    "36": "cyan",
    "1;36": "bold cyan",
}
DIFF = """@@ -3,5 +3,5 @@

 def add(a, b):
-    return a - b
+    return a + b

@@ -41,2 +41,3 @@
 print(add(1, 2))
+print("a line that is longer than the narrowest of the three terminals, as it happens in real code")
"""
CHANGE = FileChange(path="/work/app.py", before="", after="", diff=DIFF, counts="+2 −1")  # noqa: RUF001 — a minus
NO = Choice(key="n", label="No, and say what to do instead", takes_text=True, refuses=True)
EDIT = Question(
    title="Edit app.py",
    brief=(),
    change=CHANGE,
    prompt="Make this edit?",
    choices=(
        Choice(key="y", label="Yes"),
        Choice(key="e", label="Yes, and allow all edits in this project for this session (shift+tab)", lasts=True),
        Choice(key="a", label="Always allow edits to app.py in this project", lasts=True),
        NO,
    ),
    default="y",
)
CALL = Question(
    title="files → list_directory",
    brief=(
        "path  ~/proj",
        "asks because: rule ask files__list_directory of .indusvx/permissions.json, which is a reason",
    ),
    prompt="Allow this call?",
    choices=(Choice(key="y", label="Yes"), NO),
    default="n",
    place=lambda: "1 of 3",
)


def call(number: int, name: str, arguments: JsonValue, text: str = "", **answer: object) -> Iterator[RunEvent]:
    server, _, tool = name.partition("__")
    yield ToolCalled(str(number), name, arguments, server if tool else "", tool)
    yield ToolAnswered(str(number), name, text, **{"is_error": False, **answer})  # type: ignore[arg-type]


def list_events() -> Iterator[RunEvent]:
    yield TextDelta("I'll look at **it** first.", starts=True)
    yield from call(1, "read", {"path": "/work/app.py", "limit": 20}, "1\n2\n3")
    yield from call(
        2, "edit", {"path": "app.py", "oldText": "x"}, "updated", details={"diff": DIFF, "added": 2, "removed": 1}
    )
    yield from call(3, "bash", {"command": "seq 1 400"}, "\n".join(map(str, range(1, 401))))
    traceback = (
        "Traceback (most recent call last):\n"
        + "".join(f'  File "a.py", line {n}\n' for n in range(9))
        + "KeyError: 'x'"
    )
    failed = {"is_error": True, "code": "failed", "details": {"exitCode": 1}}
    yield from call(4, "bash", {"command": "python3 -m pytest -q tests/test_a.py"}, traceback, **failed)
    yield from call(5, "files__list_directory", {"path": "~/proj"}, "a\nb\nc")
    declined = {"is_error": True, "code": "denied"}
    yield from call(
        6, "webfetch", {"url": "https://example.com/docs"}, "webfetch was not run: the user declined", **declined
    )
    yield from call(7, "nonsense", None, "There is no tool", is_error=True, code="unknown_tool")
    why = "app.py: oldText is not in it. The closest lines are these, and none is what was asked for:\n  5: return"
    yield from call(8, "edit", {"path": "app.py"}, why, is_error=True, code="no_match")
    yield TextDelta("Done: `add` adds.", starts=True)


def render(width: int, *, color: bool) -> str:
    palette, events = Palette(color), EventRenderer(width=lambda: width, color=color, clock=lambda: 0.0, cwd="/work")
    parts = ["".join(f"{row}\n" for row in format_line(palette, "> fix the tests, please", width))]
    parts += [events.feed(event) for event in list_events()]
    parts.append(events.finish())
    for line in (
        "note: the server 'tracker' was not started, since the project's file that names it has changed: /mcp trust",
        "✗ Rate limited, and no request was answered within the time that is set for all of them together",
    ):
        parts += [f"{row}\n" for row in format_line(palette, line, width)]
    for event in (
        ToolCalled("9", "everything__run", {"steps": 4, "name": "x"}, "everything", "run"),
        ToolAdvanced("9", "everything__run", 2, 4, ""),
    ):
        parts.append(events.feed(event))
    parts.append("-- running --\n" + "".join(f"{row}\n" for row in events.live_rows(6)))
    loop = new_event_loop()
    for question, limit in ((EDIT, 30), (EDIT, 14), (CALL, 30)):
        keys = [choice.key for choice in question.choices]
        opened = OpenQuestion(question, Future(loop=loop), keys.index(question.default))
        parts.append("-- question --\n" + "".join(f"{row}\n" for row in opened.list_rows(palette, width - 1, limit)))
    loop.close()
    return "".join(parts)


@pytest.mark.parametrize("color", [False, True], ids=["plain", "color"])
@pytest.mark.parametrize("width", [60, 100, 160])
def test_calls_and_questions_look_as_approved(width: int, color: bool) -> None:
    drawn = render(width, color=color)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    assert color or plain == drawn
    assert max(map(len, plain.splitlines())) <= width
    shown = re.sub(r"\x1b\[([0-9;]*)m", lambda match: f"<{COLORS.get(match[1], match[1])}>", drawn)
    file = SCREENS / f"{width}-{'color' if color else 'plain'}.txt"
    if os.environ.get("INDUS_APPROVE"):
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")
