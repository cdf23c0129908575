"""`find`: files and directories by name."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.scripts import unmeasured
from tests.support.tools import box_of, call, context

from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.search import walk
from indusagi.capabilities.tools import find as names
from indusagi.capabilities.tools.find import find_tool
from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.bridge import UnavailableFs
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.anyio
RG = str(Path(sys.executable).parent / "rg")


def plant(root: Path, paths: Iterable[str]) -> None:
    """Make files, and a directory of what ends in a slash."""
    for name in paths:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (root / name).mkdir(parents=True, exist_ok=True)
        else:
            (root / name).touch()


async def find(root: Path, query: JsonValue, **arguments: JsonValue) -> ToolOutcome:
    box = box_of(replace(context(root), budget=UNLIMITED), find_tool())
    return await call(box, "find", {"query": query, **arguments})


async def found(root: Path, query: str, **arguments: JsonValue) -> list[str]:
    """Give the names of an answer."""
    outcome = await find(root, query, **arguments)
    assert not outcome.is_error, outcome.output
    lines = str(outcome.output).split("\n")[1:]
    return [line for line in lines if not line.endswith(".]")]


TREE = (
    "README.md", "src/app.py", "src/App.test.ts", "src/lib/util.py", "src/lib/deep/util.tsx",
    "docs/src.md", "docs/a[1].md", ".github/ci.yml", "empty/", "src/lib/data.json",
)  # fmt: skip


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("APP", ["src/App.test.ts", "src/app.py"]),
        ("src", ["docs/src.md", "src/"]),
        ("*.py", ["src/app.py", "src/lib/util.py"]),
        ("*.PY", []),
        ("util.*", ["src/lib/deep/util.tsx", "src/lib/util.py"]),
        ("*.{ts,tsx}", ["src/App.test.ts", "src/lib/deep/util.tsx"]),
        ("*.{j{s,son},md}", ["README.md", "docs/a[1].md", "docs/src.md", "src/lib/data.json"]),
        ("src/*.py", ["src/app.py"]),
        ("./src/*.py", ["src/app.py"]),
        ("src/**/*.py", ["src/app.py", "src/lib/util.py"]),
        ("**/*.tsx", ["src/lib/deep/util.tsx"]),
        ("src/**", [
            "src/App.test.ts", "src/app.py", "src/lib/", "src/lib/data.json", "src/lib/deep/",
            "src/lib/deep/util.tsx", "src/lib/util.py",
        ]),
        ("lib/util", ["src/lib/util.py"]),
        ("LIB/UTIL", ["src/lib/util.py"]),
        ("src/lib/util.py", ["src/lib/util.py"]),
        ("a?1?.md", ["docs/a[1].md"]),
        ("a\\[1\\].md", ["docs/a[1].md"]),
        ("[rR]EAD*", ["README.md"]),
        ("empty", ["empty/"]),
        ("lib/", ["src/lib/"]),
        ("*/", [".github/", "docs/", "empty/", "src/", "src/lib/", "src/lib/deep/"]),
        ("ci.yml", [".github/ci.yml"]),
        ("nowhere", []),
        ("[a", []),
    ],
)  # fmt: skip
async def test_what_a_query_finds(query: str, expected: list[str], tmp_path: Path) -> None:
    plant(tmp_path, TREE)
    assert sorted(await found(tmp_path, query)) == sorted(expected)


async def test_names_are_sorted_as_a_walk_would_meet_them(tmp_path: Path) -> None:
    plant(tmp_path, ["a.txt", "a/b.txt", "a/a.txt", "B.txt"])
    assert await found(tmp_path, ".txt") == ["B.txt", "a/a.txt", "a/b.txt", "a.txt"]


async def test_the_latest_comes_first_if_asked_for(tmp_path: Path) -> None:
    plant(tmp_path, ["a", "b", "c", "d"])
    for name, stamp in (("a", 100), ("b", 300), ("c", 200), ("d", 300)):
        os.utime(tmp_path / name, (stamp, stamp))
    assert await found(tmp_path, "*", sort="mtime") == ["b", "d", "c", "a"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("file", ["x1"]),
        ("f", ["x1"]),
        ("dir", ["x2/"]),
        ("directory", ["x2/"]),
        ("link", ["x3"]),
        ("any", ["x1", "x2/", "x3", "x4"]),
        (None, ["x1", "x2/", "x3", "x4"]),
    ],
)
async def test_only_one_kind_is_found_if_asked_for(kind: str | None, expected: list[str], tmp_path: Path) -> None:
    plant(tmp_path, ["x1", "x2/"])
    (tmp_path / "x3").symlink_to("x2")
    os.mkfifo(tmp_path / "x4")
    arguments: dict[str, JsonValue] = {} if kind is None else {"type": kind}
    assert await found(tmp_path, "x", **arguments) == expected


async def test_the_answer_says_how_many_there_are(tmp_path: Path) -> None:
    plant(tmp_path, [f"f{number:03}" for number in range(600)])
    outcome = await find(tmp_path, "f")
    head, *rest = str(outcome.output).split("\n")
    assert head == "600 found, the first 500 are shown: narrow the query, or raise limit"
    assert rest == [f"f{number:03}" for number in range(500)]
    assert (outcome.details["total"], outcome.details["shown"]) == (600, 500)
    assert len(await found(tmp_path, "f", limit=20_000)) == 600


async def test_a_path_says_where_and_names_are_those_from_here(tmp_path: Path) -> None:
    plant(tmp_path, TREE)
    assert await found(tmp_path, "util", path="src/lib") == ["src/lib/deep/util.tsx", "src/lib/util.py"]
    assert await found(tmp_path, "deep/*", path="src/lib") == ["src/lib/deep/util.tsx"]
    assert await found(tmp_path, str(tmp_path / "src/*.py")) == ["src/app.py"]


async def test_ignored_names_are_hidden_and_that_is_said(tmp_path: Path) -> None:
    plant(tmp_path, ["a.py", "a.pyc", "b.pyc", "node_modules/x/a.py", "sub/a.py"])
    (tmp_path / ".gitignore").write_text("*.pyc\nnode_modules/\n", encoding="utf-8")
    outcome = await find(tmp_path, "a.py")
    assert outcome.output == (
        "2 found\n[1 more is hidden by ignore rules: noIgnore: true shows what they hide.]\na.py\nsub/a.py"
    )
    assert outcome.details["ignored"] == 1
    assert await found(tmp_path, "a.py", noIgnore=True) == ["a.py", "a.pyc", "node_modules/x/a.py", "sub/a.py"]


async def test_the_full_name_of_what_is_ignored_finds_it(tmp_path: Path) -> None:
    plant(tmp_path, [".env", "node_modules/x/a.py", "node_modules/b.py"])
    (tmp_path / ".gitignore").write_text(".env\nnode_modules/\n", encoding="utf-8")
    assert await found(tmp_path, ".env") == [".env"]
    assert await found(tmp_path, "node_modules") == ["node_modules/"]
    assert await found(tmp_path, "node_modules/x/a.py") == ["node_modules/x/a.py"]
    assert await found(tmp_path, "node_modules/x") == ["node_modules/x/"]
    assert await found(tmp_path, "node_modules/x", type="file") == []
    assert await found(tmp_path, "node_modules/*.py") == ["node_modules/b.py"]


async def test_nothing_found_says_what_was_not_looked_into(tmp_path: Path) -> None:
    plant(tmp_path, ["node_modules/x", "src/tools/a.py"])
    (tmp_path / ".gitignore").write_text("node_modules/\n", encoding="utf-8")
    assert "1 ignored directory was not looked into" in str((await find(tmp_path, "zz")).output)
    assert "**/tool?/*.py matches anywhere" in str((await find(tmp_path, "tool?/*.py")).output)
    for query in (r"^a.*\.py$", "*.py,*.ts", "(a|b).py"):
        assert "no list and no regular expression" in str((await find(tmp_path, query)).output)


async def test_a_missing_path_is_answered_with_names_like_it(tmp_path: Path) -> None:
    plant(tmp_path, ["src/a.py"])
    outcome = await find(tmp_path, "*.py", path="scr")
    assert outcome.output == "scr does not exist; did you mean src?"


async def test_a_place_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for query, path, shown in (
        ("up/*.py", None, "up"),
        ("deep/*", "sub", "sub/deep"),
        ("x", "up", "up"),
        ("*.py", "../aside", "../aside"),
    ):
        outcome = await find(tmp_path, query, **({} if path is None else {"path": path}))
        assert outcome.is_error
        assert str(outcome.output).startswith((f"{shown}: ", f"{shown} does not exist"))


async def test_hidden_names_are_found_unless_they_are_unwanted(tmp_path: Path) -> None:
    plant(tmp_path, [".a/x", ".x", "x", ".git/x"])
    assert await found(tmp_path, "x") == [".a/x", ".x", "x"]
    assert await found(tmp_path, "x", hidden=False) == ["x"]


async def test_links_are_found_and_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    plant(tmp_path, ["outside/secret", "root/sub/x"])
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "sub/loop").symlink_to("..")
    assert await found(root, "*") == ["link", "sub/", "sub/loop", "sub/x"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "*", "path": ".."},
        {"query": "*", "path": "link"},
        {"query": "../outside/*"},
        {"query": "link/*"},
        {"query": "/etc/*"},
        {"query": "*", "path": "../root-evil"},
    ],
)
async def test_r43_nothing_outside_the_workspace_is_found(arguments: dict[str, JsonValue], tmp_path: Path) -> None:
    root = tmp_path / "root"
    plant(tmp_path, ["outside/secret", "root/sub/x", "root-evil/secret"])
    (root / "link").symlink_to(tmp_path / "outside")
    outcome = await call(box_of(context(root), find_tool()), "find", arguments)
    assert outcome.details["code"] == "denied"


async def test_r43_a_full_path_is_looked_up_through_the_door(tmp_path: Path) -> None:
    root = tmp_path / "root"
    plant(tmp_path, ["outside/secret", "root/sub/x"])
    (root / "link").symlink_to(tmp_path / "outside")
    for query in ("../outside/secret", "link/secret", str(tmp_path / "outside/secret")):
        assert await found(root, query) == []


async def test_names_of_every_kind_are_shown_on_one_line(tmp_path: Path) -> None:
    plant(tmp_path, ["new\nline", "escape\x1b[31m", "\udce9", "-dash", " space"])
    shown = await found(tmp_path, "*")
    unseen = "escape (hidden characters left out)"
    assert sorted(shown) == sorted(["new\\nline", unseen, "\\xe9", "-dash", " space"])
    assert await found(tmp_path, "-d*") == ["-dash"]
    assert await found(tmp_path, "?dash") == ["-dash"]


async def test_a_letter_is_one_character_however_many_bytes_it_has(tmp_path: Path) -> None:
    plant(tmp_path, ["é", "ü"])
    assert await found(tmp_path, "?") == ["é", "ü"]
    assert await found(tmp_path, "[é-ê]") == ["é"]
    assert await found(tmp_path, "É") == ["é"]


@pytest.mark.parametrize("query", ["", "/", "./", "a\0b", "a" * 5_000, "{a,b}" * 9])
async def test_a_query_that_means_nothing_is_refused(query: str, tmp_path: Path) -> None:
    plant(tmp_path, ["a"])
    assert (await find(tmp_path, query)).details["code"] == "invalid_pattern"


async def test_a_path_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    plant(tmp_path, ["file"])
    assert (await find(tmp_path, "a", path="nowhere")).details["code"] == "not_found"
    assert (await find(tmp_path, "nowhere/*")).details["code"] == "not_found"
    assert (await find(tmp_path, "a", path="file")).details["code"] == "not_found"


async def test_other_names_for_the_arguments_are_understood(tmp_path: Path) -> None:
    plant(tmp_path, ["a.py"])
    box = box_of(context(tmp_path), find_tool())
    for name in ("pattern", "glob", "name"):
        outcome = await call(box, "find", {name: "*.py", "limit": "5"})
        assert outcome.output == "1 found\na.py"
    assert (await call(box, "find", "nonsense")).is_error


async def test_files_that_are_not_of_this_machine_are_not_found(tmp_path: Path) -> None:
    ctx = replace(context(tmp_path), fs=UnavailableFs())
    assert (await call(box_of(ctx, find_tool()), "find", {"query": "a"})).is_error


async def test_a_tree_deeper_than_there_are_handles_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "_MAX_DEPTH", 3)
    plant(tmp_path, ["1/2/3/4/x", "x"])
    outcome = await find(tmp_path, "x")
    assert "[1 directory could not be looked into.]" in str(outcome.output)
    assert outcome.details["partial"] is True


AS_SOMEBODY = """
import asyncio, os, tempfile
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.tools.find import find_tool

async def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.mkdir(f"{folder}/closed")
        open(f"{folder}/x", "w").close()
        tool, ctx = find_tool(), make_local_context(folder)
        await tool.run({"query": "x"}, ctx)  # loads what nobody else may read
        os.chmod(f"{folder}/closed", 0)
        me = os.geteuid()
        os.seteuid(me or 65534)
        result = await tool.run({"query": "x"}, ctx)
        os.seteuid(me)
        print(result.content[0].text)

asyncio.run(main())
"""


@pytest.mark.process
def test_a_closed_directory_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_SOMEBODY], capture_output=True, text=True, timeout=60, check=False, env=unmeasured()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 found", "[1 directory could not be looked into.]", "x"]


async def test_a_walk_that_takes_too_long_gives_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "TIME_LIMIT_S", -1.0)
    plant(tmp_path, ["x", "sub/x"])
    outcome = await find(tmp_path, "x")
    assert "[Stopped after " in str(outcome.output)
    assert outcome.details["total"] == 1


async def test_more_names_than_are_collected_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "COLLECTED", 5)
    plant(tmp_path, [f"{number}/x{number}" for number in range(20)])
    outcome = await find(tmp_path, "x*")
    assert "[Stopped at so many names" in str(outcome.output)
    assert outcome.details["total"] == 5


async def test_a_cancelled_walk_leaves_nothing_behind(tmp_path: Path) -> None:
    plant(tmp_path, ["x"])
    box = box_of(context(tmp_path), find_tool())
    token = CancelToken()
    token.cancel("enough")
    outcome = await box.runner.run(ToolCall("1", "find", {"query": "x"}), token)
    assert outcome.details["code"] == "cancelled"


async def test_a_cancelled_walk_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, [f"{number}/x" for number in range(300)])
    token = CancelToken()
    entered = 0
    real = walk.Walk._enter

    def entering(*args: object, **more: object) -> object:
        nonlocal entered
        entered += 1
        if entered == 10:
            token.cancel("enough")
        return real(*args, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(walk.Walk, "_enter", entering)
    box = box_of(context(tmp_path), find_tool())
    with anyio.fail_after(60):
        outcome = await box.runner.run(ToolCall("1", "find", {"query": "x"}), token)
    assert outcome.details["code"] == "cancelled"


# -- oracles ----------------------------------------------------------------------------------


def grown(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    words = ["a", "b", "ab", ".c", "x.py", "y.PY", "é", "a b", "[1]"]
    folders = [root]
    for _ in range(40):
        path = chance.choice(folders) / chance.choice(words)
        if os.path.lexists(path):
            continue
        if chance.random() < 0.4:
            path.mkdir()
            folders.append(path)
        elif chance.random() < 0.1:
            path.symlink_to(chance.choice(words))
        else:
            path.touch()
    (root / ".gitignore").write_text("ab\n*.PY\n!b/*.PY\n/é/\n", encoding="utf-8")


def _said(argv: list[str], cwd: Path) -> list[str]:
    output = subprocess.run(argv, cwd=cwd, capture_output=True, check=False).stdout
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


@pytest.mark.process
@pytest.mark.parametrize("seed", range(8))
async def test_names_are_those_that_find_and_ripgrep_find(seed: int, tmp_path: Path) -> None:
    grown(tmp_path, seed)
    for glob in ("*", "*.py", "a*", "?", "[!a]*", ".*"):
        theirs = _said(["find", ".", "-mindepth", "1", "-name", glob, "-print0"], tmp_path)
        ours = await found(tmp_path, glob, noIgnore=True)
        assert sorted(f"./{name.rstrip('/')}" for name in ours) == sorted(theirs)
    argv = [RG, "--no-config", "--hidden", "--no-require-git", "--files", "-0", "./"]
    ours = await found(tmp_path, "*", type="file")
    assert sorted(f"./{name}" for name in ours) == sorted(_said(argv, tmp_path))


def _walked(root: Path) -> list[tuple[Path, list[str], list[str]]]:
    return [(Path(folder), folders, files) for folder, folders, files in os.walk(root)]


@pytest.mark.parametrize("seed", range(4))
async def test_all_names_are_those_of_a_walk(seed: int, tmp_path: Path) -> None:
    grown(tmp_path, seed)
    theirs = [
        str(folder / name).removeprefix(f"{tmp_path}/")
        for folder, folders, files in _walked(tmp_path)
        for name in [*folders, *files]
    ]
    ours = await found(tmp_path, "*", noIgnore=True, limit=10_000)
    assert sorted(re.sub("/$", "", name) for name in ours) == sorted(theirs)
