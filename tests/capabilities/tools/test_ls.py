"""`ls`: what a model sees of a directory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripts import unmeasured
from tests.support.tools import box_of, call, context

from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.ports import DirEntry, FileKind, FileStat, Folder
from indusagi.capabilities.tools.ls import MOST_ENTRIES, ListedEntry, format_size, ls_tool
from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.bridge import UnavailableFs
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import Fs
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.anyio


async def ls(ctx: ToolContext, **arguments: JsonValue) -> ToolOutcome:
    return await call(box_of(ctx, ls_tool()), "ls", arguments)


async def lines(root: Path, **arguments: JsonValue) -> list[str]:
    outcome = await ls(context(root), **arguments)
    assert not outcome.is_error, outcome.output
    return str(outcome.output).split("\n")


def fill(root: Path, files: Mapping[str, int]) -> None:
    for name, size in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
        os.truncate(root / name, size)


async def test_directories_come_first_and_capitals_do_not_count(tmp_path: Path) -> None:
    fill(tmp_path, {"b.txt": 0, "A.txt": 5, "Zoo/x": 0, "apple/x": 0, "a.txt": 1536})
    assert await lines(tmp_path) == [
        "[.: 2 directories; 3 files]",
        "apple/",
        "Zoo/",
        "A.txt  5 B",
        "a.txt  1.5 KiB",
        "b.txt  0 B",
    ]


async def test_an_empty_directory_says_so(tmp_path: Path) -> None:
    assert await lines(tmp_path) == ["[.: empty]"]


async def test_hidden_names_are_counted_and_shown_when_asked_for(tmp_path: Path) -> None:
    fill(tmp_path, {".env": 1, ".config/x": 1, "a": 1})
    assert await lines(tmp_path) == ["[.: 1 file; 2 hidden (showHidden shows them)]", "a  1 B"]
    assert await lines(tmp_path, showHidden=True) == ["[.: 1 directory; 2 files]", ".config/", ".env  1 B", "a  1 B"]


async def test_links_tell_where_they_lead_and_when_they_lead_nowhere(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root, {"folder/x": 1, "file": 3})
    (tmp_path / "beside").touch()
    for name, target in {"a": "file", "b": "folder", "c": "nothing", "d": "../beside", "e": "e"}.items():
        (root / name).symlink_to(target)
    assert await lines(root) == [
        "[.: 1 directory; 6 files]",
        "folder/",
        "a -> file",
        "b -> folder/",
        "c -> nothing (broken)",
        "d -> ../beside (outside)",
        "e -> e (broken)",
        "file  3 B",
    ]


async def test_pipes_and_sockets_are_marked_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tmp_path, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{here}/socket")
        finally:
            os.close(here)
    assert (await lines(tmp_path))[1:] == ["pipe (special)", "socket (special)"]
    assert await lines(tmp_path, path="pipe") == ["pipe (special)"]


async def test_levels_below_are_shown_as_far_as_asked_for(tmp_path: Path) -> None:
    fill(tmp_path, {"a/b/c/d": 1, "a/x": 1, "y": 1})
    assert await lines(tmp_path, depth=1) == ["[.: 1 directory; 1 file]", "a/", "y  1 B"]
    assert await lines(tmp_path, depth=3) == [
        "[.: 3 directories; 2 files]",
        "a/",
        "  b/",
        "    c/",
        "  x  1 B",
        "y  1 B",
    ]


async def test_a_link_to_a_directory_is_not_entered(tmp_path: Path) -> None:
    fill(tmp_path, {"a/x": 1})
    (tmp_path / "a/up").symlink_to("..")
    assert (await lines(tmp_path, depth=3))[1:] == ["a/", "  up -> ../", "  x  1 B"]


async def test_what_git_ignores_is_marked_and_not_entered(tmp_path: Path) -> None:
    fill(tmp_path, {"build/x": 1, "a.log": 1, "kept.log": 1, "src/b.log": 1, "src/tmp/x": 1})
    (tmp_path / ".gitignore").write_text("*.log\n!kept.log\nbuild/\n", encoding="utf-8")
    (tmp_path / "src/.gitignore").write_text("tmp\n", encoding="utf-8")
    (tmp_path / ".git").mkdir()
    outcome = await ls(context(tmp_path), depth=3, showHidden=True)
    assert str(outcome.output).split("\n")[1:] == [
        ".git/",
        "build/ (ignored)",
        "src/",
        "  tmp/ (ignored)",
        "  .gitignore  4 B",
        "  b.log  1 B (ignored)",
        ".gitignore  23 B",
        "a.log  1 B (ignored)",
        "kept.log  1 B",
    ]
    assert outcome.details["ignored"] == 4


@pytest.mark.process
async def test_git_agrees_on_what_is_ignored(tmp_path: Path) -> None:
    fill(tmp_path, {f"{folder}/{name}": 1 for folder in "abc" for name in ("x.o", "y.c", "z/w")})
    (tmp_path / ".gitignore").write_text("*.o\n/b/\n", encoding="utf-8")
    (tmp_path / "a/.gitignore").write_text("!x.o\nz/\n", encoding="utf-8")
    command = ["git", "-C", str(tmp_path)]
    await anyio.run_process([*command, "init", "-q"])
    for folder in (".", "a", "c"):
        listed = (await lines(tmp_path, path=folder))[1:]
        names = {line.split("  ")[0].split(" (")[0].rstrip("/"): line for line in listed}
        asked = "\n".join(f"{folder}/{name}" for name in names)
        said = await anyio.run_process(
            [*command, "check-ignore", "--no-index", "--stdin"], input=asked.encode(), check=False
        )
        ignored = {os.path.basename(path) for path in said.stdout.decode().split()}
        assert {name for name, line in names.items() if line.endswith("(ignored)")} == ignored


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["*.log"], ["src/", "  deep/", "    y", "  x", "a"]),
        (["src"], ["a", "b.log"]),
        (["src/"], ["a", "b.log"]),
        (["a/"], ["src/", "  deep/", "    y", "  c.log", "  x", "a", "b.log"]),
        (["src/x", "./src/deep"], ["src/", "  c.log", "a", "b.log"]),
        (["**/y", "/a"], ["src/", "  deep/", "  c.log", "  x", "b.log"]),
        (["["], ["src/", "  deep/", "    y", "  c.log", "  x", "a", "b.log"]),
    ],
)
async def test_names_can_be_left_out_by_patterns(tmp_path: Path, patterns: list[JsonValue], left: list[str]) -> None:
    fill(tmp_path, {"a": 1, "b.log": 1, "src/c.log": 1, "src/x": 1, "src/deep/y": 1})
    head, *shown = await lines(tmp_path, depth=3, ignore=patterns)
    assert [line.removesuffix("  1 B") for line in shown] == left
    assert ("left out by ignore" in head) == (len(left) < 7)


async def test_patterns_written_as_text_are_understood(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 1, "b.log": 1})
    assert (await lines(tmp_path, ignore='["*.log"]', depth="2"))[1:] == ["a  1 B"]


async def test_too_many_patterns_are_refused(tmp_path: Path) -> None:
    outcome = await ls(context(tmp_path), ignore=[str(n) for n in range(101)])
    assert (outcome.is_error, outcome.details["code"]) == (True, "invalid_pattern")


async def test_after_1000_entries_there_is_a_count(tmp_path: Path) -> None:
    for number in range(1_234):
        (tmp_path / f"{number:04}").touch()
    head, *shown = await lines(tmp_path)
    assert head == "[.: 1,234 files; cut at 1,000]"
    assert (len(shown), shown[0], shown[-2:]) == (1_001, "0000  0 B", ["0999  0 B", "[234 more]"])


async def test_of_very_many_entries_none_is_kept_that_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is looked through and sorted while no other thread runs."""
    made: list[DirEntry] = []

    def branch(entry: DirEntry, ignored: bool = False) -> ListedEntry:
        made.append(entry)
        return ListedEntry(entry, ignored)

    monkeypatch.setattr("indusagi.capabilities.tools.ls.ListedEntry", branch)
    for number in range(1_234):
        (tmp_path / f"{number:04}").touch()
    (tmp_path / ".gitignore").write_text("1*\n", encoding="utf-8")
    (tmp_path / ".git").mkdir()
    outcome = await ls(context(tmp_path))
    assert len(made) == 1 + MOST_ENTRIES  # the directory itself
    assert (outcome.details["entries"], outcome.details["ignored"]) == (1_234, 234)


async def test_what_is_above_is_shown_before_what_is_below(tmp_path: Path) -> None:
    fill(tmp_path, {f"a/{number:04}": 0 for number in range(1_100)} | {"b/x": 0, "c": 0})
    outcome = await ls(context(tmp_path), depth=2)
    head, *shown = str(outcome.output).split("\n")
    assert head == "[.: 2 directories; 1,101 files; cut at 1,000, 1 directory was not entered]"
    assert (shown[0], shown[1], shown[-3:]) == ("a/", "  0000  0 B", ["  [103 more]", "b/", "c  0 B"])
    assert outcome.details == {
        "path": str(tmp_path),
        "kind": "directory",
        "entries": 1_103,
        "shown": MOST_ENTRIES,
        "directories": 2,
        "hidden": 0,
        "ignored": 0,
        "leftOut": 0,
        "truncated": True,
    }


async def test_a_file_is_shown_by_itself(tmp_path: Path) -> None:
    fill(tmp_path, {"sub/a.txt": 2_000})
    outcome = await ls(context(tmp_path), path="sub/a.txt")
    assert outcome.output == "sub/a.txt  1.9 KiB"
    assert outcome.details == {"path": str(tmp_path / "sub/a.txt"), "kind": "file", "size": 2_000}


async def test_a_missing_directory_is_answered_with_names_like_it(tmp_path: Path) -> None:
    fill(tmp_path, {"source/x": 1})
    outcome = await ls(context(tmp_path), path="sources")
    assert (outcome.is_error, outcome.details["code"]) == (True, "not_found")
    assert "did you mean source" in str(outcome.output)


async def test_r43_a_directory_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    fill(tmp_path, {"w-evil/secret": 1})
    (tmp_path / "w/link").symlink_to("../w-evil")
    for path in ("..", "../w-evil", "link", str(tmp_path / "w-evil"), "/etc", "/proc/self/fd"):
        outcome = await ls(context(tmp_path / "w"), path=path)
        assert (outcome.is_error, outcome.details["code"]) == (True, "denied")
        assert "secret" not in str(outcome.output)


async def test_names_are_shown_on_one_line_and_without_what_nobody_sees(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path)
    for name in (b"a\nb", b"c\td", b"e\x1b[2Jf", b"caf\xe9", "g\u202ehi".encode(), "ü".encode()):
        os.close(os.open(os.path.join(raw, name), os.O_CREAT | os.O_WRONLY))
    assert (await lines(tmp_path))[1:] == [
        "a\\nb  0 B",
        "c\\td  0 B",
        "caf\\xe9  0 B",
        "ef (hidden characters left out)  0 B",
        "ghi (hidden characters left out)  0 B",
        "ü  0 B",
    ]


async def test_the_answer_does_not_depend_on_when_it_is_given(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{other}": 10 for name in "bca" for other in "zyx"})
    first = await lines(tmp_path, depth=2)
    for name in "abc":
        os.utime(tmp_path / name, (1, 1))
    assert await lines(tmp_path, depth=2) == first


async def test_the_working_directory_may_be_reached_through_a_link(tmp_path: Path) -> None:
    fill(tmp_path, {"real/sub/x": 1})
    (tmp_path / "link").symlink_to("real")
    assert (await lines(tmp_path / "link", path="sub"))[0] == "[sub: 1 file]"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.process
def test_a_directory_below_that_is_closed_says_so_in_its_place(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys, tempfile
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.tools.ls import ls_tool

async def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/closed", 0o700)
        os.mkdir(f"{folder}/open")
        tool, ctx = ls_tool(), make_local_context(folder)
        await tool.run({"depth": 2}, ctx)  # loads what nobody else may read
        os.seteuid(65534)
        for path in (".", "closed"):
            result = await tool.run({"path": path, "depth": 2}, ctx)
            print(result.content[0].text.replace(folder, ""))
        os.seteuid(0)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, env=unmeasured()
    )
    assert done.stdout.splitlines() == [
        "[.: 2 directories]",
        "closed/ (Permission denied)",
        "open/",
        "closed: Permission denied",
    ]


async def test_a_listing_can_be_stopped(tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel("enough")
    box = box_of(context(tmp_path), ls_tool())
    outcome = await box.runner.run(ToolCall("1", "ls", {}), token)
    assert outcome.details["code"] == "cancelled"


class FarFs(UnavailableFs):
    """Files of another machine: what can be asked for is answered, the rest is not there."""

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        if path == "/far":
            raise OSError("no such place")
        return f"/far/{path}"

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        return FileStat(kind=FileKind.DIRECTORY, size=0, mode=0o755, mtime_ns=0)

    async def readdir(self, path: str) -> tuple[DirEntry, ...]:
        if path.endswith("lost"):
            raise OSError("the line is dead")
        names: Sequence[DirEntry] = [
            DirEntry("sub", FileKind.DIRECTORY),
            DirEntry("lost", FileKind.DIRECTORY),
            DirEntry(".gitignore", FileKind.FILE),
            DirEntry("a", FileKind.FILE),
            DirEntry("l", FileKind.SYMLINK),
        ]
        return tuple(names) if path == "." else tuple(names[2:4])

    async def folder(self, path: str) -> Folder:
        raise OSError(95, "Operation not supported")


async def test_files_of_another_machine_are_listed_without_git_s_rules(tmp_path: Path) -> None:
    ctx = make_local_context("/far", fs=cast("Fs", FarFs()))
    outcome = await ls(ctx, depth=2)
    assert str(outcome.output).split("\n") == [
        "[/far/.: 2 directories; 3 files; 2 hidden (showHidden shows them)]",
        "lost/ (the line is dead)",
        "sub/",
        "  a",
        "a",
        "l -> ?/",
    ]


async def test_a_directory_that_is_gone_when_it_is_listed_is_an_error(tmp_path: Path) -> None:
    outcome = await ls(make_local_context("/far", fs=cast("Fs", FarFs())), path="lost")
    assert (outcome.is_error, outcome.output) == (True, "lost: the line is dead")


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1023.9 KiB"),
        (1024**2, "1.0 MiB"),
        (10 * 1024**3, "10.0 GiB"),
        (2**63 - 1, "7.9 EiB"),
    ],
)
def test_a_size_is_said_in_few_digits(size: int, said: str) -> None:
    assert format_size(size) == said


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_size_is_never_said_larger_than_it_is_nor_a_tenth_smaller(size: int) -> None:
    number, unit = format_size(size).split(" ")
    scale = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].index(unit)
    whole, _, tenth = number.partition(".")
    tenths = int(whole) * 10 + int(tenth or 0)
    assert tenths * scale <= 10 * size < (tenths + 1) * scale
