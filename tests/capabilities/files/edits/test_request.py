"""Changes that are worked out in a thread or in a process, and say the same either way."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest

from indusagi.capabilities.files.edits import task_apart, task_worker
from indusagi.capabilities.files.edits.plan import LARGEST_FILE, Refused, Replacement, Shown
from indusagi.capabilities.files.edits.request import LIGHT, Made, Task, worked_out
from indusagi.capabilities.files.edits.task_apart import worked_out_soon
from indusagi.capabilities.files.edits.task_worker import answer, request
from indusagi.capabilities.files.text.codec import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


def task(
    *edits: Replacement,
    content: str | None = None,
    path: str = "/w/a.c",
    digest: str | None = None,
    gated: bool = False,
) -> Task:
    return Task(path="a.c", resolved=path, cwd="/w", gated=gated, digest=digest, edits=edits, content=content)


LF = TEXT.encode()
LATIN = TEXT.replace("return", "zurück").encode("latin-1")


def run_instead(monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    """Have something else run where the process would."""

    def instead(*_: object, **__: object) -> list[str]:
        return [*argv]

    monkeypatch.setattr(task_apart, "own_python", instead)


TASKS: Sequence[tuple[str, Task, bytes | None]] = [
    ("hit", task(Replacement("def g", "def h")), LF),
    ("miss", task(Replacement("def gg(): pass", "x")), LF),
    ("ambiguous", task(Replacement("return 1", "return 2")), LF),
    ("all", task(Replacement("return 1", "return 2", every=True)), LF),
    ("several", task(Replacement("def f", "def e"), Replacement("def g", "def h")), LF),
    ("indentation", task(Replacement("  return 1\n\n", "  return 2\n\n")), LF),
    ("CRLF", task(Replacement("def g", "def h")), LF.replace(b"\n", b"\r\n")),
    ("Latin-1", task(Replacement("def g", "def ü")), LATIN),
    ("what Latin-1 has not", task(Replacement("def g", "def €")), LATIN),
    ("UTF-16", task(Replacement("def g", "def h")), b"\xff\xfe" + TEXT.encode("utf-16-le")),
    ("half a pair", task(Replacement("def g", "\ud800")), LF),
    ("no text", task(Replacement("a", "b")), b"\x00a"),
    ("nothing there", task(Replacement("a", "b")), None),
    ("a new file", task(Replacement("", "b\n"), Replacement("b", "c")), None),
    ("two new files", task(Replacement("", "b\n"), Replacement("", "c")), None),
    ("a new file with a slip", task(Replacement("", "..."), content=None), None),
    ("empty in an old one", task(Replacement("", "b\n")), LF),
    ("not read", task(Replacement("def g", "def h"), gated=True), LF),
    (
        "read in part",
        replace(task(Replacement("def f", "def e"), gated=True), glance=Shown(digest_bytes(LF), 5, whole=False)),
        LF,
    ),
    ("read", task(Replacement("def g", "def h"), gated=True, digest=digest_bytes(LF)), LF),
    ("changed since", task(Replacement("def g", "def h"), gated=True, digest="0"), LF),
    ("changed too much", task(Replacement("return 1", "x"), gated=True, digest="0"), LF),
    ("changed, no text", task(Replacement("a", "x"), gated=True, digest="0"), b"\x00"),
    ("written anew", task(content="other\n"), LF),
    ("written empty", task(content=""), LF),
    ("written alike", task(content=TEXT), LF),
    ("written unread", task(content="other\n", gated=True), LF),
    ("written first", task(content="first\n"), None),
    ("broken", task(Replacement("def g():", "def g("), path="/w/a.py"), LF),
    ("outside", task(Replacement("def g", "def h"), path="/elsewhere/a"), LF),
    ("a name of bytes", task(Replacement("def g", "def h"), path="/w/\udcff"), LF),
    ("left out", task(content="# ... rest of the code unchanged ...\n"), LF),
]


@pytest.mark.parametrize(("one", "before"), [row[1:] for row in TASKS], ids=[r[0] for r in TASKS])
async def test_a_process_says_what_a_thread_says(
    one: Task, before: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await worked_out_soon(one, before)

    def is_heavy(*_: object) -> bool:
        return False

    monkeypatch.setattr(Task, "is_light", is_heavy)
    assert await worked_out_soon(one, before) == expected


@pytest.mark.parametrize(("one", "before"), [row[1:] for row in TASKS], ids=[r[0] for r in TASKS])
def test_what_goes_between_us_comes_out_as_it_went_in(
    one: Task, before: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        def __init__(self, data: bytes = b"") -> None:
            self.buffer = io.BytesIO(data)

    out = Stream()
    monkeypatch.setattr(sys, "stdin", Stream(b"".join(request(one, before))))
    monkeypatch.setattr(sys, "stdout", out)
    assert task_worker.main() == 0
    assert answer([out.buffer.getvalue()]) == worked_out(one, before)


@pytest.mark.parametrize(
    ("one", "size", "light"),
    [
        (task(Replacement("a", "b")), LIGHT - 1, True),
        (task(Replacement("a", "b")), LIGHT + 1, False),
        (task(Replacement("a", "b" * LIGHT)), 1, False),
        (task(Replacement("a" * (LIGHT + 1), "b")), 1, False),
        (task(Replacement("a", "b" * 100, every=True)), LIGHT // 200, True),
        (task(Replacement("a", "b" * 100, every=True)), LIGHT // 50, False),
        (task(content="x" * LIGHT), 0, True),
        (task(content="x" * (LIGHT + 1)), 0, False),
        (task(Replacement("a", "b"), path="/w/a.py"), 10_000, True),
        (task(Replacement("a", "b"), path="/w/a.py"), 20_000, False),
        (task(Replacement("a", "b"), path="/w/a.json"), 20_000, True),
    ],
)
def test_what_may_hold_up_the_interpreter_is_known_beforehand(one: Task, size: int, light: bool) -> None:
    """The event loop stands still for as long as a single call of a thread takes."""
    assert one.is_light(b"a" * size) is light
    assert one.is_light(None) or not light


async def test_a_large_change_is_not_worked_out_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(*_: object) -> None:
        raise AssertionError("worked out here")

    monkeypatch.setattr(task_apart, "worked_out", here)
    large = b"line\n" * LIGHT
    found = await worked_out_soon(task(Replacement("no such", "x")), large)
    assert isinstance(found, Refused)
    assert found.code == "no_match"
    with pytest.raises(AssertionError, match="worked out here"):
        await worked_out_soon(task(Replacement("no such", "x")), b"line\n")


async def test_a_large_file_goes_there_and_back_whole() -> None:
    large = bytes(range(32, 127)) * (LARGEST_FILE // 95)
    found = await worked_out_soon(task(Replacement(" ", "", every=True)), large)
    assert isinstance(found, Made)
    assert found.after == large.replace(b" ", b"")


async def test_more_than_is_ever_written_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "/nowhere")
    found = await worked_out_soon(task(content="x" * (LARGEST_FILE + 1)), None)
    assert isinstance(found, Refused)
    assert found.code == "too_large"


def test_more_bytes_than_are_ever_written_are_refused_however_few_the_letters() -> None:
    found = worked_out(task(content="€" * (LARGEST_FILE // 2)), None)
    assert isinstance(found, Refused)
    assert found.code == "too_large"


async def test_a_process_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_apart, "DEADLINE_S", 0.2)
    run_instead(monkeypatch, sys.executable, "-c", "import time; time.sleep(60)")
    with anyio.fail_after(20):
        found = await worked_out_soon(task(content="x" * 2 * LIGHT), None)
    assert isinstance(found, Refused)
    assert found.code == "timeout"


async def test_a_process_that_breaks_down_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in ("pass", "print('[1')"):
        run_instead(monkeypatch, sys.executable, "-c", broken)
        found = await worked_out_soon(task(content="x" * 2 * LIGHT), None)
        assert isinstance(found, Refused)
        assert found.code == "failed"


async def test_a_process_that_cannot_be_started_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "/nowhere/python")
    with pytest.raises(OSError, match="nowhere"):
        await worked_out_soon(task(content="x" * 2 * LIGHT), None)


def test_one_who_has_read_the_file_knows_it() -> None:
    one = task(Replacement("a", "b"), gated=True, digest=digest_bytes(b"a"))
    assert one.knows(b"a")
    assert not one.knows(b"b")
    assert replace(one, digest=None).unread
