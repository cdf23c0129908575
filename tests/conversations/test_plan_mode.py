"""Plan mode in a session: read-only until a plan is approved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.model_server import calls, model_server, says
from tests.support.sessions import SessionSetup, to_text

from indusagi.capabilities.local import make_local_context
from indusagi.runtime.contract import ToolResult
from induscode.conversations.transcript import conversations_dir
from induscode.deck.cards import enter_plan_mode_card, exit_plan_mode_card
from induscode.deck.contract import DeckContext
from induscode.permissions.plan_mode import PlanMode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.model_server import ModelServer, Reply

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import JsonSchema

pytestmark = pytest.mark.process
PLAN = "# Write a note\n1. write it"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


def ran(server: ModelServer, place: Path, patch: pytest.MonkeyPatch, *script: Reply, **flags: Any) -> list[str]:
    """Give the results of the calls, as the model received them."""
    server.script[:] = script
    assert SessionSetup(place, server).run_in_process(patch, **flags) == 0
    return [to_text(body["messages"][-1]) for body in server.requests[1:]]


def plans() -> list[str]:
    (conversation,) = (entry.path for entry in os.scandir(conversations_dir()) if entry.is_dir())
    folder = os.path.join(conversation, "plans")
    if not os.path.isdir(folder):
        return []
    found: list[str] = []
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found.append(file.read())
    return found


def test_plan_mode_denies_changes_with_approval_all(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, refused, command, listed, approved, written = ran(
        server,
        tmp_path,
        monkeypatch,
        calls("enter_plan_mode"),
        calls("write", path="note.txt", content="too early"),
        calls("bash", command="touch made"),
        calls("ls"),
        calls("exit_plan_mode", plan=PLAN),
        calls("write", path="note.txt", content="in time"),
        says("done"),
        approval="all",
    )
    assert "Plan mode is on" in entered
    assert '"applied":true' in entered.replace(" ", "")
    assert "plan mode: only read-only calls are allowed" in refused
    assert "plan mode: only read-only calls are allowed" in command
    assert "note.txt" not in listed
    assert "The plan is approved and plan mode is off" in approved
    assert "plan mode" not in written
    assert plans() == [PLAN]
    (note,) = tmp_path.rglob("note.txt")
    assert note.read_text(encoding="utf-8") == "in time"
    assert not list(tmp_path.rglob("made"))


def test_unapproved_plan_is_stored_and_plan_mode_stays_on(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, presented, refused = ran(
        server,
        tmp_path,
        monkeypatch,
        calls("enter_plan_mode"),
        calls("exit_plan_mode", plan=PLAN),
        calls("write", path="note.txt", content="x"),
        says(PLAN),
        approval="ask",
        allow=("write",),
    )
    assert "This run cannot ask the user to approve the plan: plan mode stays on" in presented
    assert "plan mode: only read-only calls are allowed" in refused
    assert plans() == [PLAN]
    assert not list(tmp_path.rglob("note.txt"))


def test_plan_outside_plan_mode_changes_nothing(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, presented = ran(
        server,
        tmp_path,
        monkeypatch,
        calls("exit_plan_mode", plan=" "),
        calls("exit_plan_mode", plan=PLAN),
        says("well"),
    )
    assert "The plan is empty" in empty
    assert "Plan mode was not on" in presented
    assert plans() == [PLAN]


class Stranger:
    """A remote tool with the name of a native one."""

    def __init__(self) -> None:
        self.name = self.label = self.description = "enter_plan_mode"
        self.parameters: JsonSchema = {"type": "object"}
        self.read_only = self.foreign = True

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        return ToolResult.text("x", enterPlanMode=True)


async def test_mark_of_a_foreign_card_is_ignored(tmp_path: Path) -> None:
    mode = PlanMode(approves=True)
    card = Stranger()
    assert mode.wrap(card) is card


async def test_plan_that_cannot_be_stored_is_approved(tmp_path: Path) -> None:
    mode = PlanMode(approves=True)
    (tmp_path / "file").touch()
    context = DeckContext(str(tmp_path))
    enter, leave = (mode.wrap(row.build(context)) for row in (enter_plan_mode_card(), exit_plan_mode_card()))
    ctx = make_local_context(tmp_path)
    for folder, said in ((str(tmp_path / "file"), "It could not be kept"), (None, "Go ahead.")):
        mode.folder = folder
        await enter.run({}, ctx)
        assert mode.active
        result = await leave.run({"plan": PLAN}, ctx)
        assert said in str(result.content)
        assert not mode.active
