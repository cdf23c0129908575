"""The walks of `docs/architecture.md`, traced in the running program: the page states how long each one is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import ROOT
from tests.support.walks import Walk, trace_card, trace_edit, trace_http_call, trace_remote_call, trace_turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.process
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
AGAIN = ("second", "third", "fourth")
SLACK = 0.5
"""A walk that has become shorter than this part of the stated length makes the page untrue."""


@pytest.mark.parametrize(
    ("row", "trace"),
    [
        ("a server's tool, from the model loop", trace_remote_call),
        ("an HTTP `tools/call` on a warm server", trace_http_call),
        ("`edit` of a file of three lines", trace_edit),
        ("a configured server's row, the second start", trace_card),
        ("a turn of the interactive session", trace_turn),
    ],
    ids=["remote", "http", "edit", "card", "turn"],
)
def test_a_call_goes_through_as_many_functions_as_the_page_states(
    row: str, trace: Callable[[Path], Walk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    stated = re.search(rf"^\| {re.escape(row)}.*\| (\d+) \| (\d+) \|$", PAGE, re.M)
    assert stated is not None, f"docs/architecture.md has no row {row!r}"
    functions, files = int(stated[1]), int(stated[2])
    # A timer may fire within the call, the more so on a busy machine: only what several walks have in common counts.
    walk = trace(tmp_path)
    for name in AGAIN:
        if len(walk.functions) > functions or len(walk.files) > files:
            (tmp_path / name).mkdir()
            walk.keep_common(trace(tmp_path / name))
    assert functions * SLACK <= len(walk.functions) <= functions, walk.text()
    assert len(walk.files) <= files, walk.text()


def test_a_turn_takes_as_many_calls_as_the_page_states_and_builds_no_deck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    stated = re.search(r"The turn takes at most ([\d,]+) calls of functions", PAGE)
    assert stated is not None
    calls = int(stated[1].replace(",", ""))
    # On a busy machine the terminal draws more often within the turn.
    walk = trace_turn(tmp_path)
    for name in AGAIN:
        if walk.calls > calls:
            (tmp_path / name).mkdir()
            walk.keep_common(trace_turn(tmp_path / name))
    assert walk.calls <= calls, walk.text()
    ran = {name for _, name in walk.functions}
    assert "Session.deck" in ran
    # Nothing changed since the first turn.
    assert not ran & {"Session._build_deck", "provision_deck", "DeckLimit.fit", "DeckRunner.__init__"}
