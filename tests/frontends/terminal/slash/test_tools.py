"""`/tools` and `/permissions` on a terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import calls, says
from tests.support.slash import wait_for_answer
from tests.support.terminal import TerminalSetup, open_setup

from induscode.permissions.rules import RuleStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


def test_tools_are_listed_with_owner_and_tokens_and_found_by_a_word(setup: TerminalSetup) -> None:
    with setup.open() as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/tools webfetch", "1 tool shown to the model")
        assert "webfetch  native" in terminal.text
        wait_for_answer(terminal, "/tools", "left out: ")
        wait_for_answer(terminal, "/tools xyzzy", "no tool has 'xyzzy' in its name, owner or description")
        assert terminal.leave() == 0


def test_rules_are_added_removed_and_stored_and_decide_about_calls(setup: TerminalSetup) -> None:
    (setup.cwd / ".indusvx").mkdir()
    (setup.cwd / ".indusvx/permissions.json").write_text(json.dumps({"deny": ["bash(git push *)"]}))
    script = (calls("write", path="a.txt", content="x"), says("refused"))
    with setup.open("--approval", "auto-edit", "--allow", "bash(make *)", script=script) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/permissions", "bash(git push *)")
        assert "Mode: auto-edit" in terminal.text
        wait_for_answer(terminal, "/permissions remove 1", "rule 1 is from the command line")
        wait_for_answer(terminal, "/permissions remove 2", "rule 2 is the project's")
        wait_for_answer(terminal, "/permissions add deny write", "Added for this session: deny write")
        wait_for_answer(terminal, "/permissions add allow bash(ls *) --save", "Added for this project")
        wait_for_answer(terminal, "/permissions", "allow   user")
        terminal.enter("write it")
        terminal.wait_for("refused")
        assert "it is denied" in setup.requested()
        assert [str(rule) for rule in RuleStore().load()[0]] == ["bash(ls *)"]
        wait_for_answer(terminal, "/permissions remove 3", "deny write: removed")
        wait_for_answer(terminal, "/permissions remove 3", "allow bash(ls *): removed")
        assert RuleStore().load()[0] == ()
        for line, answer in {
            "/permissions bogus": "/permissions has no action 'bogus'",
            "/permissions add": "write /permissions add allow|ask|deny RULE",
            "/permissions add maybe write": "write /permissions add allow|ask|deny RULE",
            "/permissions add allow": "which rule?",
            "/permissions add allow bash(a;b)": "is about one command only",
            "/permissions remove": "takes a number from 1 to 2",
            "/permissions remove 7": "takes a number from 1 to 2",
            "/permissions remove x": "takes a number from 1 to 2",
        }.items():
            wait_for_answer(terminal, line, answer)
        assert terminal.leave() == 0
    assert not (setup.cwd / "a.txt").exists()


def test_rules_that_cannot_be_read_stay(setup: TerminalSetup) -> None:
    RuleStore().add([])
    path = RuleStore().path
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"rules": [{"rule": 1}], "unsandboxed": []}, file)
    with setup.open() as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/permissions remove 1", "rule 1 stands for rows that cannot be read")
        assert terminal.leave() == 0
