"""Kept state: what changes is appended once, and restored in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.tools import context

from indusagi.capabilities.checklist import ChecklistItem, checklist_of
from induscode.conversations.kept_state import KeptState
from induscode.conversations.transcript import Transcript
from induscode.permissions.check import Permissions
from induscode.permissions.flow import FlowGuard
from induscode.permissions.plan_mode import PlanMode
from induscode.permissions.rules import Effect, Rule, RuleOrigin

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject

RULE = Rule(effect=Effect.ALLOW, tool="bash", specifier="git status *", origin=RuleOrigin.SESSION, workspace="/w")
DENY = Rule(effect=Effect.DENY, tool="webfetch", origin=RuleOrigin.SESSION, workspace="/w")


class Opened:
    """A conversation whose state is kept, as a session opens it."""

    def __init__(self, folder: Path, flow: FlowGuard | None = None) -> None:
        self.transcript = Transcript(str(folder / "c"), "/w")
        self.context: ToolContext = context(folder)
        self.plan_mode = PlanMode(approves=False)
        self.permissions = Permissions(flow=flow)
        self.state = KeptState(self.transcript, self.context, self.plan_mode, self.permissions)
        self.lost = self.state.restore()

    def save(self) -> list[object]:
        """Save, and list the operations of the new rows."""
        known = len(self.transcript.rows())
        anyio.run(self.state.save)
        return [row["op"] for row in self.transcript.rows()[known:]]


def test_an_initial_state_is_not_stored(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    assert opened.save() == []
    opened.transcript.close()


def test_each_change_is_stored_once_and_restored(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.plan_mode.active = True
    opened.state.model = "openai:one"
    opened.permissions.restore_rules([RULE, DENY])
    items = (ChecklistItem("a", "text", "active"), ChecklistItem("b", "more", "dropped", "low"))
    checklist_of(opened.context).replace(items)
    assert sorted(map(str, opened.save())) == ["checklist", "model", "plan", "rule", "rule"]
    assert opened.save() == []
    opened.transcript.close()
    again = Opened(tmp_path)
    assert (again.plan_mode.active, again.state.last_model) == (True, "openai:one")
    assert checklist_of(again.context).items == items
    assert again.permissions.session_rules == (RULE, DENY)
    assert again.save() == []
    again.transcript.close()


def test_two_lists_of_an_older_transcript_become_one(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    own: JsonObject = {"list": "todo_set", "items": [{"id": "a", "text": "one", "status": "active"}]}
    weighted: JsonObject = {"list": "todo", "items": [{"task": "two", "state": "dropped", "weight": "high"}]}
    opened.transcript.append_rows([{"op": "checklist", **own}, {"op": "checklist", **weighted}])
    opened.transcript.close()
    again = Opened(tmp_path)
    both = (ChecklistItem("a", "one", "active"), ChecklistItem("todo-1", "two", "dropped", "high"))
    assert checklist_of(again.context).items == both
    assert again.save() == ["checklist", "checklist"], "the second list is emptied: its items moved"
    checklist_of(again.context).replace([ChecklistItem("a", "one", "done")])
    again.save()
    again.transcript.close()
    last = Opened(tmp_path)
    assert checklist_of(last.context).items == (ChecklistItem("a", "one", "done"),)
    last.transcript.close()


def test_a_removed_rule_stays_removed(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.permissions.restore_rules([RULE])
    opened.save()
    assert anyio.run(opened.permissions.remove_rule, RULE)
    assert opened.save() == ["rule"]
    opened.transcript.close()
    again = Opened(tmp_path)
    assert again.permissions.session_rules == ()
    again.transcript.close()


def test_what_a_conversation_has_read_outlives_a_rewind_and_the_process(tmp_path: Path) -> None:
    read: JsonObject = {"label": "private", "server": "s", "tool": "read", "when": "now", "confirmed": True}
    opened = Opened(tmp_path, FlowGuard())
    assert opened.permissions.flow is not None
    opened.permissions.flow.restore_call({**read})
    assert opened.save() == ["flow"]
    assert opened.save() == []
    opened.transcript.mark("rewind", before=0)
    opened.transcript.close()
    again = Opened(tmp_path, FlowGuard())
    assert again.permissions.flow is not None
    assert again.permissions.flow.dump_calls() == [read]
    assert again.save() == []
    again.transcript.close()


def test_a_rewind_returns_to_the_former_list_and_keeps_the_rules(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    checklist_of(opened.context).replace([ChecklistItem("a", "first", "active")])
    opened.save()
    position = len(opened.transcript.rows())
    checklist_of(opened.context).replace([ChecklistItem("b", "second", "active")])
    opened.plan_mode.active = True
    opened.permissions.restore_rules([RULE])
    opened.save()
    opened.transcript.mark("rewind", before=position)
    opened.state.restore()
    assert [item.id for item in checklist_of(opened.context).items] == ["a"]
    assert not opened.plan_mode.active
    assert opened.permissions.session_rules == (RULE,)
    opened.transcript.close()


@pytest.mark.parametrize(
    "row",
    [
        {"op": "plan", "active": "yes"},
        {"op": "checklist", "list": "todo_set", "items": [{"id": 1}, "x", {"id": "a", "text": "t", "status": "new"}]},
        {"op": "checklist", "list": "todo", "items": [{"task": "t", "state": "new", "weight": "low"}]},
        {"op": "checklist", "list": "other", "items": []},
        {"op": "rule", "rule": "((", "effect": "allow"},
        {"op": "rule", "rule": "bash", "effect": "perhaps"},
        {"op": "job", "id": "job-1", "running": True},
    ],
)
def test_an_invalid_row_is_ignored(tmp_path: Path, row: dict[str, object]) -> None:
    opened = Opened(tmp_path)
    opened.transcript.append_rows([row])  # pyright: ignore[reportArgumentType] — invalid on purpose
    opened.transcript.close()
    again = Opened(tmp_path)
    assert (again.lost, again.plan_mode.active, again.permissions.session_rules) == ([], False, ())
    assert checklist_of(again.context).items == ()
    again.transcript.close()


def test_a_job_without_an_end_is_lost_until_the_state_is_saved_again(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.transcript.mark("job", id="job-1", mark="m", command="sleep\n 9", cwd="/w", running=True)
    opened.transcript.close()
    again = Opened(tmp_path)
    assert [str(job) for job in again.lost] == ["job-1 (sleep 9) has ended with the last session"]
    assert again.save() == ["job"]
    again.transcript.close()
    last = Opened(tmp_path)
    assert last.lost == []
    last.transcript.close()
