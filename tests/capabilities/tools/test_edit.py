"""The tool `edit`, called as a model calls it."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripts import unmeasured
from tests.support.strategies import examples
from tests.support.tools import box_of, call, context

from indusagi.capabilities.context import Framework
from indusagi.capabilities.files import match
from indusagi.capabilities.tools.edit import MAX_EDITS, edit_tool, write_tool
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.anyio
MINUS = "\u2212"


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    return context(tmp_path)


def add_read_file(ctx: ToolContext, name: str, data: bytes | str) -> Path:
    """Make a file and remember it the way `read` does."""
    path = Path(ctx.cwd, name)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    state = ctx.framework.read_state
    assert state is not None
    state.record(os.path.realpath(path), hashlib.sha256(path.read_bytes()).hexdigest())
    return path


async def edit(ctx: ToolContext, path: str, old: str, new: str, **more: JsonValue) -> ToolOutcome:
    arguments: dict[str, JsonValue] = {"path": path, "oldText": old, "newText": new, **more}
    return await call(box_of(ctx, edit_tool()), "edit", arguments)


async def edits(ctx: ToolContext, path: str, *pairs: tuple[str, str]) -> ToolOutcome:
    given: list[JsonValue] = [{"oldText": old, "newText": new} for old, new in pairs]
    return await call(box_of(ctx, edit_tool()), "edit", {"path": path, "edits": given})


def text_of(outcome: ToolOutcome) -> str:
    assert isinstance(outcome.output, str)
    return outcome.output


def code(outcome: ToolOutcome) -> object:
    assert outcome.is_error, outcome.output
    return outcome.details["code"]


async def test_an_edit_reports_the_changed_lines(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "".join(f"line {n}\n" for n in range(1, 10)))
    outcome = await edit(ctx, "a.txt", "line 5\n", "line five\nand more\n")
    assert text_of(outcome) == (
        f"updated a.txt (+2 {MINUS}1, 75 bytes)\n"
        "     2\tline 2\n     3\tline 3\n     4\tline 4\n     5\tline five\n     6\tand more\n"
        "     7\tline 6\n     8\tline 7\n     9\tline 8"
    )
    assert outcome.details["rungs"] == ["exact"]
    assert outcome.details["replacements"] == 1
    assert "line five\nand more\n" in path.read_text(encoding="utf-8")


async def test_after_an_edit_the_file_counts_as_read(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.txt", "one\n")
    await edit(ctx, "a.txt", "one", "two")
    assert "changed since" not in text_of(await edit(ctx, "a.txt", "two", "three"))


@pytest.mark.process
@pytest.mark.parametrize("lines", [25, 100, 20_000])
async def test_probe_0_1_a_missing_text_is_reported_quickly_in_a_long_file(ctx: ToolContext, lines: int) -> None:
    text = "".join(f"    value_{n} = compute({n}, other={n * 7})\n" for n in range(lines))
    path = add_read_file(ctx, "a.py", "def f():\n" + text)
    old = "".join(f"    value_{n} = compute({n}, another={n * 7})\n" for n in range(10, 20))
    with anyio.fail_after(60):  # a cubic search would take minutes
        outcome = await edit(ctx, "a.py", old, "pass\n")
    assert code(outcome) == "no_match"
    assert outcome.details["closestLine"] == 12
    assert outcome.details["alike"] == 97
    assert "- ····value_10·=·compute(10,·another=70)" in text_of(outcome)
    assert "+ ····value_10·=·compute(10,·other=70)" in text_of(outcome)
    assert path.read_text(encoding="utf-8") == "def f():\n" + text


async def test_probe_0_2_two_concurrent_edits_are_both_kept(ctx: ToolContext) -> None:
    for round_ in range(20):
        path = add_read_file(ctx, "a.txt", "one\ntwo\nthree\n")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(edit, ctx, "a.txt", "one", f"ONE{round_}")
            tasks.start_soon(edit, ctx, "./a.txt", "three", f"THREE{round_}")
        assert path.read_bytes() == f"ONE{round_}\ntwo\nTHREE{round_}\n".encode()


async def test_finding_d8_concurrent_edits_of_two_hard_links_are_kept_by_each(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "".join(f"line {n}.\n" for n in range(30)))
    os.link(path, path.with_name("b.txt"))
    add_read_file(ctx, "b.txt", path.read_bytes())

    async def change(number: int) -> None:
        name = ("a.txt", "b.txt")[number % 2]
        outcome = await edit(ctx, name, f"line {number}.\n", f"LINE {number}.\n")
        assert not outcome.is_error, outcome.output

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(change, number)
    changed = {n for n in range(30) if f"LINE {n}." in path.read_text(encoding="utf-8")}
    others = path.with_name("b.txt").read_text(encoding="utf-8")
    assert changed == set(range(0, 30, 2))
    assert {n for n in range(30) if f"LINE {n}." in others} == set(range(1, 30, 2))


@pytest.mark.process
def test_probe_0_2_edits_of_two_processes_are_all_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"<{n}>\n" for n in range(60)), encoding="utf-8")
    script = f"""
import sys, anyio
from indusagi.capabilities.context import Framework
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.tools.edit import edit_tool

async def main():
    ctx = make_local_context({str(tmp_path)!r}, framework=Framework())
    tool = edit_tool()
    for n in range(int(sys.argv[1]), 60, 2):
        arguments = {{"path": "a.txt", "oldText": f"<{{n}}>", "newText": f"done {{n}}"}}
        result = await tool.run(arguments, ctx)
        assert not result.is_error, result

anyio.run(main)
"""
    children = [subprocess.Popen([sys.executable, "-c", script, str(n)], env=unmeasured()) for n in (0, 1)]
    assert [child.wait(timeout=60) for child in children] == [0, 0]
    expected = "".join(f"done {n}\n" for n in range(60))
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == expected


async def test_probe_0_3_a_crlf_file_keeps_its_line_endings(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", b"one\r\ntwo\r\nthree\r\n")
    outcome = await edit(ctx, "a.txt", "one\ntwo", "ONE\nTWO")
    assert path.read_bytes() == b"ONE\r\nTWO\r\nthree\r\n"
    assert "matched without regard to line endings" in text_of(outcome)
    assert outcome.details["rungs"] == ["endings"]


async def test_probe_0_4_characters_of_a_latin_1_file_are_kept(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", b"caf\xe9\nx = 1\n")
    outcome = await edit(ctx, "a.txt", "x = 1", "x = 2")
    assert path.read_bytes() == b"caf\xe9\nx = 2\n"
    diff = cast("str", outcome.details["diff"])
    assert b" caf\xe9\n" in diff.encode(cast("str", outcome.details["diffEncoding"]))


@pytest.mark.parametrize("tool", ["edit", "write"])
@pytest.mark.parametrize(
    ("data", "new", "reported"),
    [
        ("café\nx\n".encode("latin-1"), "né", True),
        ("café\nx\n".encode("latin-1"), "ne", False),
        ("café\nx\n".encode(), "né", False),
        ("café\nx\n".encode("utf-16"), "né", False),
    ],
)
async def test_characters_in_a_guessed_encoding_are_reported(
    tool: str, data: bytes, new: str, *, reported: bool, ctx: ToolContext
) -> None:
    add_read_file(ctx, "a.txt", data)
    if tool == "edit":
        outcome = await edit(ctx, "a.txt", "x", new)
    else:
        arguments: JsonValue = {"path": "a.txt", "content": new}
        outcome = await call(box_of(ctx, write_tool()), "write", arguments)
    assert ("written in latin-1, the guessed encoding of the file" in text_of(outcome)) is reported


async def test_probe_0_5_an_edit_with_another_indentation_leaves_valid_python(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.py", "class A:\n    def f(self):\n        x = 1\n")
    outcome = await edit(ctx, "a.py", "def f(self):\n    x = 1", "def f(self):\n    x = 2")
    assert path.read_bytes() == b"class A:\n    def f(self):\n        x = 2\n"
    assert "indentation" in text_of(outcome)
    assert "syntax" not in text_of(outcome)
    ast.parse(path.read_text(encoding="utf-8"))


async def test_ignored_differences_are_reported(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.py", "if a:\n\tsay(“hi”)\n\tb()\nlast \n")
    outcome = await edits(ctx, "a.py", ('    say("hi")\n    b()', "    b()"), ("last\n", "end\n"))
    assert path.read_bytes() == b"if a:\n\tb()\nend\n"
    assert "matched without regard to trailing whitespace" in text_of(outcome)
    assert "matched without regard to punctuation" in text_of(outcome)
    assert "newText was indented as the file is" in text_of(outcome)
    assert outcome.details["rungs"] == ["punctuation", "trailing"]


async def test_probe_0_6_two_lines_are_not_one(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.py", "a = 1\nb = 2\n")
    assert code(await edit(ctx, "a.py", "a = 1 b = 2", "c = 3")) == "no_match"
    assert path.read_bytes() == b"a = 1\nb = 2\n"


async def test_probe_0_7_a_file_that_was_never_read_is_not_edited(ctx: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    outcome = await edit(ctx, "a.txt", "one", "two")
    assert code(outcome) == "not_read"
    assert "     1\tone" in text_of(outcome)
    assert not (await edit(replace(ctx, framework=Framework()), "a.txt", "one", "two")).is_error


SIX = "".join(f"line {number}\n" for number in range(1, 7))


@pytest.mark.parametrize("data", [b"one\n", b"one", b"a\r\none\r\n", b"1\n2\n3\n4\none\n", "öone\n"])
async def test_finding_c4_an_edit_refused_after_showing_the_file_succeeds_when_repeated(
    ctx: ToolContext, tmp_path: Path, data: bytes | str
) -> None:
    before = data.encode() if isinstance(data, str) else data
    (tmp_path / "a.txt").write_bytes(before)
    refused = await edit(ctx, "a.txt", "one", "two")
    assert code(refused) == "not_read"
    assert "counts as read now: repeat the call" in text_of(refused)
    assert not (await edit(ctx, "a.txt", "one", "two")).is_error
    assert (tmp_path / "a.txt").read_bytes() == before.replace(b"one", b"two")
    assert not (await edits(ctx, "a.txt", ("two", "three"))).is_error


@pytest.mark.parametrize("first", ["edit", "edits", "dryRun", "write"])
async def test_finding_c4_a_file_shown_by_one_tool_counts_as_read_for_all(
    ctx: ToolContext, tmp_path: Path, first: str
) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n")
    writing = box_of(ctx, write_tool())
    if first == "write":
        refused = await call(writing, "write", {"path": "a.txt", "content": "other\n"})
    elif first == "edits":
        refused = await edits(ctx, "a.txt", ("one", "two"))
    else:
        refused = await edit(ctx, "a.txt", "one", "two", **({first: True} if first != "edit" else {}))
    assert code(refused) == "not_read"
    assert not (await call(writing, "write", {"path": "a.txt", "content": "new\n"})).is_error
    assert (tmp_path / "a.txt").read_bytes() == b"new\n"


async def test_finding_c4_shown_lines_can_be_edited(ctx: ToolContext, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(SIX, encoding="utf-8")
    assert code(await edit(ctx, "a.txt", "line 6", "six")) == "not_read"
    # The sixth line was not shown, and the whole file still less.
    assert code(await edit(ctx, "a.txt", "line 6", "six")) == "not_read"
    writing = box_of(ctx, write_tool())
    assert code(await call(writing, "write", {"path": "a.txt", "content": "x"})) == "not_read"
    assert path.read_text(encoding="utf-8") == SIX
    # The first five were, and stay known when one of them has become two.
    assert not (await edits(ctx, "a.txt", ("line 1", "one\nand a half"))).is_error
    assert not (await edit(ctx, "a.txt", "line 5", "five")).is_error
    assert code(await edit(ctx, "a.txt", "line 6", "six")) == "not_read"
    assert path.read_text(encoding="utf-8").splitlines() == [
        *("one", "and a half", "line 2", "line 3", "line 4", "five", "line 6")
    ]


@pytest.mark.parametrize("data", [b"x" * 301 + b" one\n", b"one" * 2_000, b"a\x00one", b"z" * 4_096 + b"one"])
async def test_finding_c4_a_cut_line_does_not_count_as_shown(ctx: ToolContext, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    for _ in range(2):
        assert code(await edit(ctx, "a.txt", data[-4:].decode("latin-1"), "q")) == "not_read"
    assert (tmp_path / "a.txt").read_bytes() == data


async def test_finding_c4_a_file_shown_because_it_has_changed_counts_as_read(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\n")
    path.write_bytes(b"one\none\n")
    refused = await edit(ctx, "a.txt", "one", "two", replaceAll=True)
    assert code(refused) == "stale"
    assert not (await edit(ctx, "a.txt", "one", "two", replaceAll=True)).is_error
    assert path.read_bytes() == b"two\ntwo\n"
    # And a change after it was shown is a change again.
    path.write_bytes(b"three\nthree\n")
    assert code(await edit(ctx, "a.txt", "three", "x", replaceAll=True)) == "stale"


async def test_a_changed_file_is_edited_where_the_text_still_stands_once(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\ntwo\n")
    path.write_bytes(b"zero\none\ntwo\n")
    outcome = await edit(ctx, "a.txt", "two", "three")
    assert path.read_bytes() == b"zero\none\nthree\n"
    assert "the file has changed since it was read" in text_of(outcome)
    assert outcome.details["changedSinceRead"] is True
    # Lines of another program have not been read yet, and must not be overwritten.
    assert "changed since" in text_of(await edit(ctx, "a.txt", "one", "uno"))
    box = box_of(ctx, write_tool())
    assert code(await call(box, "write", {"path": "a.txt", "content": "x"})) == "stale"


async def test_a_touched_file_counts_as_unchanged(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\n")
    os.utime(path, (1, 1))
    assert "changed since" not in text_of(await edit(ctx, "a.txt", "one  ", "two"))


async def test_finding_d8_an_edit_keeps_links_mode_and_other_names(ctx: ToolContext, tmp_path: Path) -> None:
    path = add_read_file(ctx, "a.sh", "one\n")
    path.chmod(0o751)
    (tmp_path / "link").symlink_to("a.sh")
    await edit(ctx, "link", "one", "two")
    assert (tmp_path / "link").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o751
    os.link(path, tmp_path / "second")
    await edit(ctx, "a.sh", "two", "three")
    assert path.read_bytes() == b"three\n"
    assert path.stat().st_mode & 0o777 == 0o751
    assert (tmp_path / "second").read_bytes() == b"two\n"


async def test_a_file_name_may_be_invalid_utf_8(ctx: ToolContext) -> None:
    path = add_read_file(ctx, os.fsdecode(b"a\xff.txt"), "one\n")
    outcome = await edit(ctx, path.name, "one", "two")
    assert not outcome.is_error, outcome.output
    assert path.read_bytes() == b"two\n"
    assert '"a/a\\377.txt"' in cast("str", outcome.details["diff"])


@pytest.mark.parametrize("old", ["two ", "one", "none", " two"])
async def test_a_changed_file_is_not_edited_otherwise(ctx: ToolContext, old: str) -> None:
    path = add_read_file(ctx, "a.txt", "one\ntwo\n")
    path.write_bytes(b"one\none\ntwo\n")
    outcome = await edit(ctx, "a.txt", old, "x", replaceAll=True)
    assert code(outcome) == "stale"
    assert "     1\tone" in text_of(outcome)
    assert path.read_bytes() == b"one\none\ntwo\n"


async def test_a_file_that_became_binary_is_refused(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\n")
    path.write_bytes(b"one\0")
    assert code(await edit(ctx, "a.txt", "one", "two")) == "binary"


async def test_a_text_in_several_places_is_refused_with_their_lines(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "".join(f"x {n}\nsame\n" for n in range(15)))
    outcome = await edit(ctx, "a.txt", "same", "other")
    assert code(outcome) == "ambiguous"
    assert outcome.details["count"] == 15
    assert outcome.details["lines"] == list(range(2, 22, 2))
    assert "     2\tsame\n     4\tsame\n" in text_of(outcome)
    assert "… and 5 more" in text_of(outcome)
    outcome = await edit(ctx, "a.txt", "same", "other", replaceAll=True)
    assert outcome.details["replacements"] == 15
    assert b"same" not in path.read_bytes()


async def test_a_tolerant_match_must_be_unique_too(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.txt", "\tf()\n\tg()\n\t\tf()\n\t\tg()\n")
    outcome = await edit(ctx, "a.txt", "    f()\n    g()", "    h()")
    assert code(outcome) == "ambiguous"
    assert "(but for indentation)" in text_of(outcome)


async def test_very_many_places_are_not_counted(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.txt", "a" * 5_000)
    outcome = await edit(ctx, "a.txt", "a", "b")
    assert f"at least {match.MAX_SPANS}" in text_of(outcome)
    assert text_of(outcome).endswith("… and more")


async def test_a_lock_unknown_to_other_processes_is_reported(ctx: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    add_read_file(ctx, "a.txt", "one\n")
    monkeypatch.setenv("HOME", "nowhere")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    outcome = await edit(ctx, "a.txt", "one", "two")
    assert not outcome.is_error
    assert "others may write there too" in text_of(outcome)


async def test_the_shown_start_of_a_file_has_no_extra_line(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\n")
    path.write_bytes(b"first\nsecond\n")
    assert text_of(await edit(ctx, "a.txt", "one", "two")).endswith("     1\tfirst\n     2\tsecond")


async def test_a_missing_text_is_reported_with_visible_blanks(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.py", "def f():\n\tif x:\n\t\treturn  1\n")
    outcome = await edit(ctx, "a.py", "    if x:\n        return 1\n", "pass")
    assert code(outcome) == "no_match"
    text = text_of(outcome)
    assert "line endings, trailing whitespace, indentation, punctuation" in text
    assert "Closest at line 2" in text
    assert "- ········return·1\n" in text
    assert "+ →→return··1" in text


async def test_indentation_without_a_rule_is_reported(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.py", "if a:\n  b\n  c\n")
    outcome = await edit(ctx, "a.py", "if a:\n  b\n    c", "pass")
    assert "At line 1 the lines agree but for indentation" in text_of(outcome)


async def test_a_repeated_edit_is_reported(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.py", "x = 2\n")
    assert "newText is in the file already" in text_of(await edit(ctx, "a.py", "x = 1", "x = 2"))


async def test_a_missing_text_without_similar_lines_is_reported(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.py", "x = 2\n")
    assert "Nothing in the file is like it" in text_of(await edit(ctx, "a.py", "zzzzzz", "y"))


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ("     1\tone\n     2\ttwo", "     1\tONE\n     2\ttwo", "ONE\ntwo\n\tthree\n"),
        ("     3\t\tthree\n", "\tTHREE\n", "one\ntwo\n\tTHREE\n"),
    ],
)
async def test_copied_line_numbers_are_removed(ctx: ToolContext, old: str, new: str, after: str) -> None:
    path = add_read_file(ctx, "a.txt", "one\ntwo\n\tthree\n")
    outcome = await edit(ctx, "a.txt", old, new)
    assert not outcome.is_error
    assert "line numbers of read were taken out" in text_of(outcome)
    assert path.read_text(encoding="utf-8") == after


async def test_copied_line_numbers_are_not_written(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\ntwo\n")
    outcome = await edit(ctx, "a.txt", "     1\tone", "     1\tONE\nmore")
    assert code(outcome) == "no_match"
    assert code(await edit(ctx, "a.txt", "     1\tnone of it", "x")) == "no_match"
    assert path.read_bytes() == b"one\ntwo\n"


async def test_numbers_that_are_in_the_file_are_not_line_numbers(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.tsv", "1\ta\n2\tb\n")
    await edit(ctx, "a.tsv", "1\ta\n2\tb", "1\tx\n2\ty")
    assert path.read_bytes() == b"1\tx\n2\ty\n"


async def test_several_edits_are_made_in_order(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\ntwo\n")
    outcome = await edits(ctx, "a.txt", ("one", "two!"), ("two!", "three"), ("two", "four"))
    assert path.read_bytes() == b"three\nfour\n"
    assert outcome.details["replacements"] == 3


async def test_of_several_edits_all_are_made_or_none(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\ntwo\n")
    outcome = await edits(ctx, "a.txt", ("one", "ONE"), ("missing", "x"))
    assert code(outcome) == "no_match"
    assert outcome.details["edit"] == 2
    assert "edit 2 of 2 cannot be made, so none was" in text_of(outcome)
    assert path.read_bytes() == b"one\ntwo\n"


async def test_a_dry_run_shows_the_diff_and_writes_nothing(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.py", "x = 1\n")
    outcome = await edit(ctx, "a.py", "x = 1", "x = (", dryRun=True)
    assert text_of(outcome).startswith(f"would update a.py (+1 {MINUS}1, 6 bytes)\n")
    assert "-x = 1\n+x = (\n" in text_of(outcome)
    assert "syntax error" in text_of(outcome)
    assert path.read_bytes() == b"x = 1\n"
    assert "changed since" not in text_of(await edit(ctx, "a.py", "x = 1", "x = 2"))


async def test_a_long_dry_run_is_cut(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.txt", f"{'x' * 100}\n" * 1_000)
    outcome = await edit(ctx, "a.txt", "x" * 100, "y", replaceAll=True, dryRun=True)
    assert text_of(outcome).endswith("xxx\n\n[the diff goes on]")
    assert outcome.details["diffCut"] is True


async def test_an_empty_old_text_creates_a_missing_file(ctx: ToolContext, tmp_path: Path) -> None:
    outcome = await edit(ctx, "a/b.txt", "", "one\n")
    assert text_of(outcome) == f"created a/b.txt (+1 {MINUS}0, 4 bytes)"
    assert (tmp_path / "a/b.txt").read_bytes() == b"one\n"
    assert code(await edit(ctx, "a/b.txt", "", "two\n")) == "invalid_arguments"
    assert (tmp_path / "a/b.txt").read_bytes() == b"one\n"


async def test_a_missing_file_can_be_created_and_edited_at_once(ctx: ToolContext, tmp_path: Path) -> None:
    await edits(ctx, "a.txt", ("", "one\ntwo\n"), ("two", "three"))
    assert (tmp_path / "a.txt").read_bytes() == b"one\nthree\n"
    assert code(await edits(ctx, "b.txt", ("", "one\n"), ("two", "three"))) == "no_match"
    assert code(await edits(ctx, "b.txt", ("", "one\n"), ("", "three"))) == "invalid_arguments"
    assert code(await edits(ctx, "b.py", ("", "# ... existing code ...\n"))) == "omission"
    assert sorted(os.listdir(tmp_path)) == ["a.txt"]


async def test_a_missing_file_is_not_found(ctx: ToolContext) -> None:
    outcome = await edit(ctx, "a.txt", "one", "two")
    assert code(outcome) == "not_found"
    assert "empty oldText" in text_of(outcome)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "give oldText and newText, or edits"),
        ({"oldText": "a"}, "give oldText and newText, or edits"),
        ({"oldText": "a", "newText": "a"}, "are the same"),
        ({"edits": []}, "give one at least"),
        ({"edits": [{"oldText": "a", "newText": "b"}] * (MAX_EDITS + 1)}, "at most 200"),
        ({"oldText": "a", "newText": "b", "edits": [{"oldText": "c", "newText": "d"}]}, "either"),
        ({"edits": [{"oldText": "c"}]}, "newText"),
        ({"edits": "none"}, "edits"),
        ([], "object"),
    ],
)
async def test_invalid_arguments_are_refused(ctx: ToolContext, arguments: JsonValue, problem: str) -> None:
    add_read_file(ctx, "a", "a\n")
    given_: JsonValue = {"path": "a", **arguments} if isinstance(arguments, dict) else arguments
    outcome = await call(box_of(ctx, edit_tool()), "edit", given_)
    assert code(outcome) == "invalid_arguments"
    assert problem in text_of(outcome)


@pytest.mark.parametrize(
    "arguments",
    [
        {"file_path": "a", "old_string": "one", "new_string": "two", "replace_all": "true"},
        {"path": "a", "edits": [{"old_string": "one", "new_string": "two"}]},
        {"path": "a", "edits": '[{"oldText": "one", "newText": "two"}]'},
        {"path": "a", "oldText": "one", "newText": "two", "edits": []},
        {"path": "a", "oldText": "", "newText": "", "edits": [{"oldText": "one", "newText": "two"}]},
        # What a local model of 1.5 billion parameters sends.
        {"path": "a", "oldText": "one", "newText": "two", "edits": [{"oldText": "one", "newText": "two"}]},
    ],
)
async def test_argument_names_of_other_agents_are_accepted(ctx: ToolContext, arguments: JsonValue) -> None:
    path = add_read_file(ctx, "a", "one\n")
    outcome = await call(box_of(ctx, edit_tool()), "edit", arguments)
    assert not outcome.is_error, outcome.output
    assert path.read_bytes() == b"two\n"


async def test_an_elision_is_refused(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.py", "x = 1\ny = 2\n# ... other imports ...\n")
    outcome = await edit(ctx, "a.py", "y = 2\n", "# ... rest of the code ...\n")
    assert code(outcome) == "omission"
    assert not (await edit(ctx, "a.py", "x = 1", "x = 3")).is_error
    assert path.read_bytes() == b"x = 3\ny = 2\n# ... other imports ...\n"


async def test_a_binary_file_is_refused(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.bin", b"\x7fELF\0\0one\0")
    assert code(await edit(ctx, "a.bin", "one", "two")) == "binary"


async def test_a_character_missing_in_the_encoding_is_refused(ctx: ToolContext) -> None:
    add_read_file(ctx, "a.txt", "déjà vu, café\n".encode("latin-1") * 9)
    outcome = await edit(ctx, "a.txt", "vu", "→", replaceAll=True)
    assert code(outcome) == "encoding"
    assert "UTF-8" in text_of(outcome)


async def test_the_diff_of_a_utf_16_file_is_one_of_the_text(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "﻿one\r\nzwei €\r\n".encode("utf-16-le"))
    outcome = await edit(ctx, "a.txt", "zwei €\n", "drei €\n")
    assert path.read_bytes().decode("utf-16") == "one\r\ndrei €\r\n"
    assert outcome.details["diffOf"] == "text"
    assert "+drei €\r\n" in cast("str", outcome.details["diff"])
    outcome = await edit(ctx, "a.txt", "one", "uno", dryRun=True)
    assert "+uno" in text_of(outcome)


async def test_an_edit_of_line_endings_only(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", b"a\r\nb\r\n")
    outcome = await edit(ctx, "a.txt", "a\nb\n", "a\r\nb\r\n")
    assert text_of(outcome).startswith("unchanged a.txt")
    await edit(ctx, "a.txt", "a\r\nb\r\n", "a\nb\n")
    assert path.read_bytes() == b"a\nb\n"


@examples(0.2)
@given(
    st.lists(st.sampled_from([b"a", b"b  ", b"\tc", b"\xe9", b"<x>", b""]), max_size=20),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from(["one", "one\ntwo", ""]),
)
def test_the_patch_of_an_edit_produces_the_new_file(
    tmp_path: Path, lines: list[bytes], ending: bytes, new: str
) -> None:
    async def main() -> None:
        data = b"".join(line + ending for line in [*lines, b"<x>"])
        ctx = context(tmp_path)
        path = add_read_file(ctx, "the file", data)
        outcome = await edit(ctx, "the file", "<x>", new, replaceAll=True)
        after = path.read_bytes()
        assert after != data
        diff = cast("str", outcome.details["diff"]).encode(cast("str", outcome.details["diffEncoding"]))
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
        for command in (["patch", "-p1", "--binary", "-s", "-f"], ["git", "apply", "--whitespace=nowarn", "-"]):
            path.write_bytes(data)
            done = await anyio.run_process(command, input=diff, cwd=tmp_path, env=environment, check=False)
            assert done.returncode == 0, (done.stdout, done.stderr, diff)
            assert path.read_bytes() == after

    anyio.run(main)


async def test_a_patch_outside_the_workspace_is_named_from_the_root(ctx: ToolContext, tmp_path: Path) -> None:
    path = add_read_file(ctx, "a.txt", "one\n")
    inner = replace(ctx, cwd=str(tmp_path / "inner"))
    outcome = await edit(inner, str(path), "one", "two")
    assert text_of(outcome).startswith(f"updated {path} ")
    assert f"--- a{path}\n" in cast("str", outcome.details["diff"])


async def test_a_concurrent_edit_and_write_exclude_each_other(ctx: ToolContext) -> None:
    path = add_read_file(ctx, "a.txt", "one\n")
    box = box_of(ctx, edit_tool(), write_tool())
    outcomes: list[ToolOutcome] = []

    async def run(name: str, **arguments: JsonValue) -> None:
        outcomes.append(await call(box, name, {"path": "a.txt", **arguments}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run, "edit", oldText="one", newText="two"))
        tasks.start_soon(partial(run, "write", content="three\n"))
    # What the first has written counts as read, so the second is not refused.
    assert [outcome.is_error for outcome in outcomes].count(True) <= 1
    assert path.read_bytes() in {b"two\n", b"three\n"}


@pytest.mark.parametrize("pair", [("é" * 2**24, "b"), ("a", "é" * 2**24)])
async def test_texts_past_the_size_limit_are_refused(ctx: ToolContext, pair: tuple[str, str]) -> None:
    path = add_read_file(ctx, "a.txt", "a\n")
    outcome = await edits(ctx, "a.txt", pair)
    assert code(outcome) == "too_large"
    assert path.read_bytes() == b"a\n"


async def test_a_call_cancelled_while_planning_writes_nothing(
    ctx: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add_read_file(ctx, "a.txt", "one\n")
    token = CancelToken()
    really = match.find_match

    def slow(*args: object, **more: object) -> object:
        token.cancel("enough")
        return really(*args, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("indusagi.capabilities.files.replace.find_match", slow)
    box = box_of(ctx, edit_tool())
    arguments: JsonValue = {"path": "a.txt", "oldText": "one", "newText": "two"}
    with anyio.fail_after(60):
        outcome = await box.runner.run(ToolCall("1", "edit", arguments), token)
    assert code(outcome) == "cancelled"
    assert path.read_bytes() == b"one\n"
