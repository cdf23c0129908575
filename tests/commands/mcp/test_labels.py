"""`indus mcp labels`: what's proposed, and what the user says instead."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import configured, one_line, project_file, told, user_file
from tests.commands.mcp.test_pins import Changing
from tests.support.scripts import run

from induscode.deck.mcp.lock import LOCK_NAME

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def server(tmp_path: Path) -> Changing:
    server = Changing(tmp_path)
    server.has(get_issue={"description": "Read."}, send_mail={"description": "Send."})
    return server


def test_proposals_are_shown_confirmed_changed_and_reset(tmp_path: Path, server: Changing) -> None:
    configured(user_file(), {"s": server.row})
    shown = run("mcp", "labels", "s", cwd=tmp_path).stdout
    assert "untrusted: its name has 'issue'" in shown
    assert shown.endswith("To confirm what's proposed: indus mcp labels s --confirm\n")
    unasked = run("mcp", "labels", "s", "--confirm", cwd=tmp_path)
    assert (unasked.returncode, "then use --yes --digest" in unasked.stderr) == (2, True)
    assert run("mcp", "labels", "s", "--confirm", "--yes", cwd=tmp_path).stdout.endswith("s: confirmed\n")
    rows = told("mcp", "labels", "s", "--json", cwd=tmp_path)["tools"]
    assert [(one["tool"], one["labels"], one["confirmed"]) for one in rows] == [
        ("get_issue", ["untrusted"], True),
        ("send_mail", ["outward"], True),
    ]
    assert "nothing to confirm" in run("mcp", "labels", "s", "--confirm", cwd=tmp_path).stdout
    assert run("mcp", "labels", "s", "get_issue", "--set", "private,untrusted", cwd=tmp_path).returncode == 0
    assert told("mcp", "get", "s", "--json", cwd=tmp_path)["labels"]["get_issue"] == ["private", "untrusted"]
    run("mcp", "labels", "s", "send_mail", "--reset", cwd=tmp_path)
    (row,) = told("mcp", "labels", "s", "send_mail", "--json", cwd=tmp_path)["tools"]
    assert (row["labels"], row["confirmed"]) == (["outward"], False)
    tried = run("permissions", "test", "s__get_issue", cwd=tmp_path).stdout
    assert "labels for the flow guard: private (confirmed), untrusted (confirmed)" in tried
    run("mcp", "labels", "s", "--reset", cwd=tmp_path)
    assert "labels" not in json.loads(user_file().read_text())["servers"]["s"]
    assert "labels: untrusted, outward (proposed; look:" in run("mcp", "doctor", "s", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--set", "privat"], "--set 'privat'"),
        (["--set", "none", "--reset"], "Use one of"),
        (["nothing"], "no tool 'nothing'"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, server: Changing, words: list[str], part: str) -> None:
    configured(user_file(), {"s": server.row})
    one_line(run("mcp", "labels", "s", *words, cwd=tmp_path), part)


def test_the_lock_keeps_labels_and_a_row_cannot_take_them_away(tmp_path: Path, server: Changing) -> None:
    configured(project_file(tmp_path), {"s": {**server.row, "labels": ["private"]}})
    run("mcp", "trust", "s", "--yes", cwd=tmp_path)
    assert run("mcp", "lock", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / LOCK_NAME).read_text())["labels"] == {"s": ["private"]}
    assert run("mcp", "lock", "--check", cwd=tmp_path).returncode == 0
    run("mcp", "labels", "s", "--set", "none", cwd=tmp_path)
    rows = told("mcp", "labels", "s", "--json", cwd=tmp_path)["tools"]
    assert [one["labels"] for one in rows] == [["private"], ["private"]]
    checked = run("mcp", "lock", "--check", cwd=tmp_path)
    assert checked.returncode == 1
    assert "the labels of 's' aren't those in" in checked.stderr
