"""Tool calls as an editor shows them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from induscode.cli.call_title import describe_call
from induscode.deck.catalog import capability_ids
from induscode.deck.contract import SECOND_NAMES
from induscode.frontends.acp.updates import build_text, describe_arguments, find_path, list_locations, read_side

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonValue


@pytest.mark.parametrize(
    ("name", "arguments", "title"),
    [
        ("read", {"path": "a.py"}, "Read a.py"),
        ("bash", {"command": "ls\n  -l"}, "Run ls -l"),
        ("grep", {"pattern": "x\x1b[31m", "path": ""}, "Search x\\x1b[31m"),
        ("todo_read", {}, "Read to-do list"),
        ("odd", "no object", "odd"),
    ],
)
def test_a_title_names_what_a_call_is_about(name: str, arguments: JsonValue, title: str) -> None:
    assert str(describe_call(name, arguments)) == title


def test_every_native_tool_has_a_title_of_its_own() -> None:
    names = {*capability_ids(), *SECOND_NAMES, "run_code"}
    assert [name for name in sorted(names) if describe_call(name, {}).verb == name] == []
    assert not describe_call("run_code", {"code": "1", "more": "2"}).rest


def test_titles_are_escaped_and_short() -> None:
    title = str(describe_call("bash", {"command": "echo \x1b[31m " + "x" * 500}))
    assert "\x1b" not in title
    assert len(title) < 500


def test_places_are_absolute() -> None:
    assert find_path({"file_path": "../b.py"}, "/work/a") == "/work/b.py"
    assert find_path({"path": "a\0b"}, "/work") is None
    assert list_locations("read", {"path": "a.py", "offset": 5}, "/w") == [{"path": "/w/a.py", "line": 5}]
    assert list_locations("bash", {"command": "ls", "path": "a"}, "/w") == []
    assert list_locations("read", None, "/w") == []


def test_output_with_fences_stays_in_its_fence() -> None:
    content = build_text("```\ncode\n```", "execute")["content"]
    assert content == {"type": "text", "text": "````\n```\ncode\n```\n````"}
    assert build_text("*word*", "other")["content"] == {"type": "text", "text": "*word*"}


def test_a_side_of_a_diff_is_a_text_file_of_the_workspace(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a").write_text("a", encoding="utf-8")
    (work / "binary").write_bytes(b"\xff\xfe")
    (work / "large").write_bytes(b"x" * (600 * 1024))
    (tmp_path / "outside").write_text("secret", encoding="utf-8")
    (work / "link").symlink_to(tmp_path / "outside")
    (work / "loop").symlink_to("loop")
    os.mkfifo(work / "pipe")
    shown = {"a": "a", "absent": ""}
    for name in ("a", "absent", "binary", "large", "link", "loop", "pipe"):
        assert read_side(str(work / name), str(work)) == shown.get(name), name
    assert read_side(str(work), str(work)) is None


def test_arguments_that_json_cannot_carry_are_left_out() -> None:
    assert describe_arguments({"a": float("nan")}) is None
    assert describe_arguments({"a": 1}) == {"a": 1}
