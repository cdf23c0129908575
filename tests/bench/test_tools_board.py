"""The scoreboard of the tools: its quick parts, small, and what it says when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from bench.row import CannotMeasure
from bench.tools import board as tools_board
from bench.tools import edits as tools_edits
from bench.tools import event_loop as tools_loop
from bench.tools import reading as tools_looking
from bench.tools import shell as tools_shell
from bench.tools import web as tools_web
from bench.tools.board import Finding, Item, Scene, Sizes, format_counts, ground
from bench.tools.original import original
from bench.tools.subject import OURS, TOKEN, TOKEN_NAME, Driver, Stuck, Subject
from bench.tools.trees import files_in, grow, list_by_git
from tests.support.scripts import ROOT

from bench import tools

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from bench.tools.board import Ground

SMALL = Sizes(
    edit_lines=200,
    edit_rounds=1,
    output_bytes=2_000_000,
    file_bytes=200_000,
    tree_folders=8,
    ignore_trees=5,
    anchors=20,
    sessions=5,
    tries=1,
    patience_s=15.0,
)


@pytest.fixture
def shared() -> Generator[Ground]:
    with ground(SMALL) as made:
        yield made


def item(name: str) -> Item:
    return next(item for item in tools.ITEMS if item.name == name)


def fixed(name: str, finding: Finding) -> Item:
    return Item(name, "what it is", "a limit", lambda _: finding)


@pytest.mark.process
@pytest.mark.parametrize("name", ["edit-miss", "bash-told", "read-kinds"])
def test_our_tools_pass_the_probe(name: str, shared: Ground) -> None:
    finding = item(name).find(OURS, shared)
    assert finding.ok, finding.text


@pytest.mark.process
@pytest.mark.parametrize("name", ["find", "web-hostile"])
def test_what_is_timed_is_found_with_its_figures(name: str, shared: Ground) -> None:
    figures = item(name).find(OURS, shared).figures
    assert figures["seconds"] > 0


@pytest.mark.process
def test_no_probe_leaves_a_process_or_a_file(shared: Ground) -> None:
    work = shared.place / "work"
    work.mkdir()
    with Driver(OURS, work, shared.place / "home") as driver:
        driver.call("bash", {"command": "setsid sleep 300 & echo done"})
        assert driver.left()
    assert driver.left() == []
    before = set(shared.place.iterdir())
    item("read-kinds").find(OURS, shared)
    assert set(shared.place.iterdir()) == before


@pytest.mark.process
def test_a_command_of_the_subject_is_given_its_surroundings(shared: Ground) -> None:
    subject = Subject("a shell", sys.executable)
    with Driver(subject, shared.place, shared.place / "home") as driver:
        answer = driver.call("bash", {"command": f"echo $HOME; echo [${TOKEN_NAME}]"})
    assert str(shared.place / "home") in answer.text
    assert TOKEN not in answer.text


@pytest.mark.process
def test_a_call_that_does_not_end_is_given_up_and_its_process_ended(
    shared: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.tools.subject._EXIT_S", 0.05)
    with Driver(OURS, shared.place, shared.place / "home") as driver:
        with pytest.raises(Stuck, match=r"over 0\.2 s"):
            driver.call("bash", {"command": "sleep 300"}, 0.2)
    assert driver.left() == []


def test_whoever_gets_stuck_has_failed_and_what_cannot_be_measured_has_not(shared: Ground) -> None:
    def stuck(_: Scene) -> Finding:
        raise Stuck("over 3 s, given up")

    def lacking(_: Scene) -> Finding:
        raise CannotMeasure("there is no git")

    assert Item("a", "", "", stuck).find(OURS, shared) == Finding(ok=False, text="over 3 s, given up")
    found = Item("a", "", "", lacking).find(OURS, shared)
    assert (found.ok, found.text) == (None, "not measured: there is no git")


def test_cases_that_are_not_right_are_named() -> None:
    assert format_counts({"a": True, "b": True}).text == "2 of 2"
    found = format_counts({"a": True, "b": False, "c": False})
    assert (found.ok, found.text) == (False, "1 of 3; not: b, c")


def test_the_board_is_a_table_and_a_json_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [
        fixed("fine", Finding(ok=True, text="3 ms", figures={"seconds": 0.003})),
        fixed("bad", Finding(ok=False, text="9 s")),
        fixed("unknown", Finding(ok=None, text="not measured: no git")),
    ]
    target = tmp_path / "made" / "board.json"
    assert tools.main(["--json", str(target)], items, SMALL) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| item | what | limit | ours |",
        "|---|---|---|---|",
        "| fine | what it is | a limit | 3 ms |",
        "| bad | what it is | a limit | **9 s** |",
        "| unknown | what it is | a limit | not measured: no git |",
        "",
        "FAILED: bad",
    ]
    written = json.loads(target.read_text(encoding="utf-8"))
    assert [one["found"]["ours"]["ok"] for one in written["items"]] == [True, False, None]
    assert written["items"][0]["found"]["ours"]["figures"] == {"seconds": 0.003}
    assert tools.main(["--check"], items, SMALL) == 1
    assert tools.main(["--check", "--only", "fine"], items, SMALL) == 0
    assert tools.main(["--list"], items, SMALL) == 0


def test_an_original_that_cannot_be_had_is_told_and_ours_is_shown_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere() -> Subject:
        raise CannotMeasure("the original: python ended with 1: it does not say why")

    monkeypatch.setattr(tools, "original", nowhere)
    items = [fixed("fine", Finding(ok=True, text="3 ms"))]
    assert tools.main(["--with-original"], items, SMALL) == 0
    said = capsys.readouterr().out
    assert "| item | what | limit | ours |" in said
    assert said.endswith("\nOurs alone: the original: python ended with 1: it does not say why\n")


@pytest.mark.process
def test_an_original_that_does_not_run_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'in its own words' >&2\necho sorry >&2\nexit 3\n", "utf-8")
    python.chmod(0o755)
    with pytest.raises(CannotMeasure, match=r"python ended with 3: sorry$"):
        original(tmp_path)


@pytest.mark.process
def test_random_trees_have_files_that_git_ignores(tmp_path: Path) -> None:
    told = 0
    for seed in range(20):
        root = tmp_path / str(seed)
        grow(seed, root)
        assert list_by_git(root) <= files_in(root)
        told += list_by_git(root) < files_in(root)
    assert told > 5


def test_every_item_stands_in_the_page_once() -> None:
    page = (ROOT / "docs/evidence/scoreboard.md").read_text(encoding="utf-8")
    names = [item.name for item in tools.ITEMS]
    assert len(set(names)) == len(names)
    for item in tools.ITEMS:
        assert page.count(f"| {item.name} | {item.what} | {item.limit} |") == 1
    assert {row.name.removeprefix("tool-") for row in tools.ROWS} <= set(names)


def test_the_parts_of_the_board_are_those_of_its_modules() -> None:
    parts = (tools_edits, tools_shell, tools_looking, tools_web, tools_loop)
    assert [item for part in parts for item in part.ITEMS] == list(tools.ITEMS)
    assert tools_board.seconds(0.0123) == "12 ms"
    assert tools_board.seconds(12.3) == "12.3 s"


@pytest.mark.process
def test_an_unknown_item_is_refused() -> None:
    command = [sys.executable, "-m", "bench.tools", "--only", "nothing-like-it"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nothing-like-it" in done.stderr
