"""Addons in a session on a terminal: the note of one without consent, a failing one, a denial."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.addons import add_project_addon, build_source
from tests.support.model_server import calls, says
from tests.support.terminal import TerminalSetup, open_setup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        # Consent is stored in the home directory of the session, by the helper in this process.
        monkeypatch.setenv("HOME", str(prepared.home))
        yield prepared


def test_a_session_names_addons_without_consent_and_failing_ones_once(setup: TerminalSetup) -> None:
    add_project_addon(setup.cwd, "bad", build_source("def before(self, call): raise ValueError('boom')"))
    add_project_addon(setup.cwd, "fresh", build_source(), trusted=False)
    add_project_addon(setup.cwd, "strict", build_source("def before(self, call): return Deny('not today')"))
    script = (calls("ls"), says("First."), calls("ls"), says("Second."))
    with setup.open(script=script, columns=200) as terminal:
        terminal.wait_for_prompt()
        terminal.wait_for("/addons trust fresh")
        terminal.enter("one")
        terminal.wait_for_answer("First.")
        terminal.wait_for("failed before ls: ValueError: boom")
        terminal.enter("two")
        terminal.wait_for_answer("Second.")
        assert terminal.text.count("ValueError: boom") == 1
        assert "ls was not run: the addon 'strict' denies it: not today" in setup.requested(-1)
        assert terminal.leave() == 0


def test_skills_and_hooks_are_trusted_in_the_session_which_then_asks_for_them(setup: TerminalSetup) -> None:
    skill = setup.cwd / ".claude/skills/deploy/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\ndescription: How to deploy.\n---\nCall it off.\n", encoding="utf-8")
    answer = {"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "have a look"}}
    row = {"type": "command", "command": f"echo '{json.dumps(answer)}'"}
    hooks = {"PreToolUse": [{"matcher": "Write", "hooks": [row]}]}
    (setup.cwd / ".claude/settings.json").write_text(json.dumps({"hooks": hooks}), encoding="utf-8")
    script = (calls("write", path="a.txt", content="a\n"), says("Written."), says("Called off."))
    with setup.open("--approval", "all", script=script, columns=200) as terminal:
        terminal.wait_for_prompt()
        terminal.wait_for("/addons trust skill:deploy")
        terminal.enter("/addons trust")
        for label in ("skill:deploy", "hooks:.claude/settings.json"):
            terminal.wait_for(f"Trust {label} and use it in this project?")
            terminal.type("y")
        terminal.wait_for("in use from now on: skill:deploy, hooks:.claude/settings.json")
        terminal.enter("write it")
        terminal.wait_for("y  Yes")
        assert "asks because: have a look (hook echo" in terminal.text
        assert not (setup.cwd / "a.txt").exists()
        terminal.type("y")
        terminal.wait_for_answer("Written.")
        assert (setup.cwd / "a.txt").exists()
        terminal.enter("/deploy")
        terminal.wait_for_answer("Called off.")
        assert "Call it off." in setup.requested()
        assert terminal.leave() == 0
