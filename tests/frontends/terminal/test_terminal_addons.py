"""Addons in a session on a terminal: the note of one without consent, a failing one, a denial."""

from __future__ import annotations

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
        terminal.wait_for("indus addons trust fresh")
        terminal.enter("one")
        terminal.wait_for_answer("First.")
        terminal.wait_for("failed before ls: ValueError: boom")
        terminal.enter("two")
        terminal.wait_for_answer("Second.")
        assert terminal.text.count("ValueError: boom") == 1
        assert "ls was not run: the addon 'strict' denies it: not today" in setup.requested(-1)
        assert terminal.leave() == 0
