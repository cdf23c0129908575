"""`indus permissions test`: whether a call would run, and the rule that decides."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import configured, row, user_file

from induscode.commands.program import run

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITE = ("write", "path=notes.md", "content=x")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_rules(folder: Path, **rules: Any) -> None:
    (folder / ".indusvx").mkdir()
    (folder / ".indusvx" / "permissions.json").write_text(json.dumps(rules), "utf-8")


def write_settings(**settings: Any) -> None:
    path = Path(os.environ["HOME"]) / ".config" / "indus" / "settings.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings), "utf-8")


@pytest.mark.parametrize(
    ("rules", "flags", "said", "because"),
    [
        ({}, (), "asks you", "writes to"),
        ({}, ("--allow", "write(notes.md)"), "runs", "allow write(notes.md) (the command line)"),
        ({}, ("--approval", "auto-edit"), "runs", "it needs no rule"),
        ({"deny": ["write(*.md)"]}, ("--allow", "write(notes.md)"), "is denied", "rule deny write(*.md)"),
        ({"ask": ["write"]}, ("--allow", "write"), "asks you", "rule ask write"),
        ({}, ("--gateway",), "is denied", "writes to"),
        ({"ask": ["write"]}, ("--gateway",), "waits for approval", "rule ask write"),
    ],
)
def test_the_answer_names_the_rule_and_nothing_runs(
    project: Path, capsys: pytest.CaptureFixture[str], rules: Any, flags: Sequence[str], said: str, because: str
) -> None:
    write_rules(project, **rules)
    assert run(["permissions", "test", *flags, *WRITE]) == (0 if said == "runs" else 1)
    shown = capsys.readouterr().out
    assert said in shown
    assert because in shown
    assert not (project / "notes.md").exists()


@pytest.mark.parametrize(
    ("mode", "ask", "effect"),
    [("deny", ["write"], "deny"), ("ask", [], "ask"), (None, [], "deny"), (None, ["write"], "ask")],
)
def test_a_gateway_asks_as_its_setting_says(
    project: Path, capsys: pytest.CaptureFixture[str], mode: str | None, ask: list[str], effect: str
) -> None:
    write_rules(project, ask=ask)
    if mode is not None:
        write_settings(approvals={"mode": mode})
    assert run(["permissions", "test", "--gateway", "--json", *WRITE]) == 1
    assert json.loads(capsys.readouterr().out)["effect"] == effect


@pytest.mark.process
def test_arguments_of_a_servers_tool_decide_and_principals_count(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(user_file(), {"honest": row()})
    write_rules(project, deny=["honest__echo(text=acme/*) @alice", "honest__add(c=1)"])
    for words, said in (
        (("--as", "alice", "honest__echo", "text=ACME/x"), "is denied"),
        (("--as", "bob", "honest__echo", "text=acme/x"), "runs"),
        (("honest__add", "a=1", "b=2"), "names the argument 'c', which honest__add doesn't have (it has a, b)"),
    ):
        run(["permissions", "test", "--gateway", *words])
        assert said in capsys.readouterr().out
