"""Credentials of this program in a home that is the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.tools import box_of, call, context

from indusagi.capabilities.files.policy import default_protected_paths, workspace_policy
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.ports import PathRefused
from indusagi.capabilities.tools.find import find_tool
from indusagi.capabilities.tools.grep import grep_tool
from indusagi.capabilities.tools.read import read_tool

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.process
SECRETS = ("serve-token", "ledger.db", "ledger.db-wal", "conversations/one/log.jsonl", "secrets/a.json")
OPEN = "sessions/one/tool-output/long.txt"
"""A spilled result, which a model is asked to read there."""


@pytest.fixture(params=["usual", "moved"])
def states(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Make a home; a gateway that was not sent elsewhere has its records in the usual place."""
    home = tmp_path / "home"
    found = [home / ".local/state/indus"]
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if request.param == "moved":
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "elsewhere"))
        found.append(home / "elsewhere/indus")
    for state in found:
        for name in (*SECRETS, OPEN):
            (state / name).parent.mkdir(parents=True, exist_ok=True)
            (state / name).write_text("pelican\n", encoding="utf-8")
    return found


async def test_own_secrets_are_not_read(tmp_path: Path, states: list[Path]) -> None:
    home = tmp_path / "home"
    fs = LocalFs(str(home), workspace_policy(str(home)))
    box = box_of(context(home), read_tool())
    for state in states:
        assert await fs.read_text(str(state / OPEN)) == "pelican\n"
        for name in SECRETS:
            with pytest.raises(PathRefused, match="credentials of the user"):
                await fs.read_text(str(state / name))
            outcome = await call(box, "read", {"path": str(state / name)})
            assert outcome.is_error
            assert "pelican" not in str(outcome.output)


async def test_own_secrets_are_not_found_by_search(tmp_path: Path, states: list[Path]) -> None:
    home = tmp_path / "home"
    box = box_of(context(home), grep_tool(), find_tool())
    wanted: JsonObject = {"pattern": "pelican", "mode": "files", "noIgnore": True}
    outcome = await call(box, "grep", wanted)
    lines = str(outcome.output).splitlines()
    places = [str(state.relative_to(home)) for state in states]
    found = {line for line in lines if line.startswith((*places,))}
    assert found == {f"{place}/{OPEN}" for place in places}
    outcome = await call(box, "find", {"query": "*.jsonl", "noIgnore": True})
    assert "log.jsonl" not in str(outcome.output)


def test_own_secrets_are_not_written(tmp_path: Path, states: list[Path]) -> None:
    home = str(tmp_path / "home")
    for state in states:
        for name in (*SECRETS, OPEN, "trust.json"):
            assert default_protected_paths().find_reason(str(state / name), home) is not None
