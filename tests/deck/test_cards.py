"""The app cards: what each does with a host's handle, and without one."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.local import make_local_context
from indusagi.core import now_ms
from indusagi.core.json import is_json_object
from indusagi.core.protocols import offers
from indusagi.runtime import JsonContentBlock, TextContentBlock
from induscode.deck import DeckContext, DeckFramework
from induscode.deck.cards import daemon_card, enter_plan_mode_card, exit_plan_mode_card, saas_card, task_card, todo_card
from induscode.deck.cards import plan as plans
from induscode.deck.cards.bg_process import CAPTURE_DIRNAME, MAX_BUFFERED_LINES, STOP_GRACE_MS
from induscode.deck.cards.plan import PLANS_DIRNAME, plan_file_path, plan_slug, read_plan, write_plan
from induscode.deck.cards.todo import TodoItem, TodoLedger, TodoState, TodoWeight
from induscode.deck.contract import ActionError, DelegateReport, DelegateRequest, LeanCard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime import ToolResult
    from induscode.deck import Capability, CapabilityCard
    from induscode.deck.contract import DelegateRunner, SaasGatewayPort

pytestmark = pytest.mark.anyio


def build(
    card: CapabilityCard, tmp_path: Path, *, delegate: DelegateRunner | None = None, saas: SaasGatewayPort | None = None
) -> Capability:
    framework = DeckFramework(delegate=delegate, saas=saas)
    return card.build(DeckContext(str(tmp_path), framework))


async def run(card: Capability, tmp_path: Path, **arguments: JsonValue) -> ToolResult:
    return await card.run({**arguments}, make_local_context(tmp_path))


def text(result: ToolResult) -> str:
    return "\n".join(b.text for b in result.content if isinstance(b, TextContentBlock))


def value(result: ToolResult) -> JsonValue:
    return next(b.value for b in result.content if isinstance(b, JsonContentBlock))


# -- todo -------------------------------------------------------------------------------------


async def test_the_checklist_shows_states_by_glyph_and_weights_by_word(tmp_path: Path) -> None:
    card = build(todo_card(), tmp_path)
    items: JsonValue = [
        {"task": "a"},
        {"task": "b", "state": "active", "weight": "high"},
        {"task": "c", "state": "done"},
        {"task": "d", "state": "dropped", "weight": "low"},
    ]
    result = await run(card, tmp_path, action="set", items=items)
    assert text(result) == "[ ] a\n[~] b (high)\n[x] c\n[-] d (low)"
    again = await run(card, tmp_path, action="read")
    assert (text(again), value(again)) == (text(result), value(result))


async def test_setting_the_checklist_names_items_that_disappeared(tmp_path: Path) -> None:
    card = build(todo_card(), tmp_path)
    await run(card, tmp_path, action="set", items=[{"task": "a"}, {"task": "b", "state": "done"}])
    result = await run(card, tmp_path, action="set", items=[{"task": "c"}])
    assert text(result) == "[ ] c\nGone without being done or dropped: a"
    assert text(await run(card, tmp_path, action="set", items=[])).startswith("The checklist is")


async def test_setting_nothing_at_all_is_refused(tmp_path: Path) -> None:
    result = await run(build(todo_card(), tmp_path), tmp_path, action="set")
    assert result.details["code"] == "invalid_arguments"
    result = await run(build(todo_card(), tmp_path), tmp_path, action="set", items=[{"state": 1}])
    assert result.details["code"] == "invalid_arguments"


def test_a_todo_ledger_returns_the_replaced_items() -> None:
    ledger = TodoLedger()
    item = TodoItem("a", TodoState.ACTIVE, TodoWeight.LOW)
    assert ledger.replace([item]) == ()
    assert ledger.replace([TodoItem("b", TodoState.DONE)]) == (item,)
    assert ledger.open_items() == ()
    assert item.as_json() == {"task": "a", "state": "active", "weight": "low"}


async def test_two_checklists_share_nothing(tmp_path: Path) -> None:
    one, two = build(todo_card(), tmp_path), build(todo_card(), tmp_path)
    await run(one, tmp_path, action="set", items=[{"task": "a"}])
    assert text(await run(two, tmp_path, action="read")) == "The checklist is empty."


# -- task -------------------------------------------------------------------------------------


class Delegate:
    """Runs nothing, and reports what it was told to."""

    def __init__(self, report: DelegateReport, agents: Sequence[str] = ("scout", "smith")) -> None:
        self.report = report
        self.agents = agents
        self.requests: list[DelegateRequest] = []

    def list_agents(self) -> Sequence[str]:
        return self.agents

    async def run(self, request: DelegateRequest, ctx: ToolContext) -> DelegateReport:
        self.requests.append(request)
        return self.report


async def test_a_task_without_a_runner_is_an_error(tmp_path: Path) -> None:
    result = await run(build(task_card(), tmp_path), tmp_path, objective="x")
    assert result.is_error  # nothing was done
    assert value(result) == {"delegated": False, "reason": "no_runner"}


async def test_a_task_is_delegated_with_all_its_arguments(tmp_path: Path) -> None:
    delegate = Delegate(DelegateReport(ok=True, text="Done.", id="t-1", files=("a.py",)))
    card = build(task_card(), tmp_path, delegate=delegate)
    assert card.description.endswith("Agents: scout, smith.")
    result = await run(card, tmp_path, objective="x", agent="scout", context="c", maxTurns=3, timeoutMs=5000)
    assert delegate.requests == [
        DelegateRequest(objective="x", agent="scout", context="c", max_turns=3, timeout_ms=5000)
    ]
    assert text(result) == "Done."
    assert value(result) == {"delegated": True, "ok": True, "reason": None, "id": "t-1", "files": ["a.py"]}


async def test_a_task_that_ended_early_returns_the_partial_result(tmp_path: Path) -> None:
    delegate = Delegate(DelegateReport(ok=False, text="Half.", id="t-1", reason="turns"))
    result = await run(build(task_card(), tmp_path, delegate=delegate), tmp_path, objective="x")
    assert result.is_error
    assert text(result) == "Ended early (turns). What there is:\nHalf."
    assert result.details["id"] == "t-1"


async def test_an_unknown_agent_is_answered_with_the_roster(tmp_path: Path) -> None:
    delegate = Delegate(DelegateReport(ok=True, text=""))
    card = build(task_card(), tmp_path, delegate=delegate)
    result = await run(card, tmp_path, objective="x", agent="bard")
    assert "There are: scout, smith." in text(result)
    assert delegate.requests == []
    empty = await run(card, tmp_path, objective="x")
    assert text(empty) == "The agent reported nothing."


async def test_the_lean_task_has_an_objective_and_one_of_the_agents(tmp_path: Path) -> None:
    delegate = Delegate(DelegateReport(ok=True, text="Done."))
    card = build(task_card(), tmp_path, delegate=delegate)
    assert offers(card, LeanCard)
    lean = card.lean
    properties = lean.parameters["properties"]
    assert is_json_object(properties)
    assert {*properties} == {"objective", "agent"}
    assert properties["agent"] == {"type": "string", "enum": ["scout", "smith"]}
    assert text(await run(lean, tmp_path, prompt="x", subagent_type="scout")) == "Done."
    assert delegate.requests == [DelegateRequest(objective="x", agent="scout")]
    assert (await run(lean, tmp_path, objective="x", resume="1")).is_error, "an invented id starts nothing"
    assert len(delegate.requests) == 1


# -- saas-action ------------------------------------------------------------------------------


class Gateway:
    """Knows one action."""

    def __init__(self, answer: JsonValue = None) -> None:
        self.answer = answer
        self.asked: list[tuple[object, ...]] = []

    async def discover(self, query: str | None, toolkits: Sequence[str]) -> Sequence[Mapping[str, JsonValue]]:
        self.asked.append((query, tuple(toolkits)))
        return [{"slug": "GITHUB_CREATE_ISSUE"}]

    async def execute(self, slug: str, arguments: JsonObject) -> JsonValue:
        self.asked.append((slug, arguments))
        return self.answer


async def test_an_action_without_a_gateway_is_reported(tmp_path: Path) -> None:
    result = await run(build(saas_card(), tmp_path), tmp_path, action="discover")
    assert value(result) == {"connected": False, "reason": "no_gateway"}


async def test_finding_1a5_to_execute_nothing_is_an_error(tmp_path: Path) -> None:
    card = build(saas_card(), tmp_path)
    result = await run(card, tmp_path, action="execute", slug="GITHUB_CREATE_ISSUE")
    assert (result.is_error, result.details["code"]) == (True, "no_gateway")
    assert "Nothing was executed" in text(result)


async def test_actions_are_found_and_run_under_their_own_names(tmp_path: Path) -> None:
    gateway = Gateway({"number": 7})
    card = build(saas_card(), tmp_path, saas=gateway)
    found = await run(card, tmp_path, action="discover", query="issue", toolkits=["github"])
    assert value(found) == {"actions": [{"slug": "GITHUB_CREATE_ISSUE"}]}
    done = await run(card, tmp_path, action="execute", slug="GITHUB_CREATE_ISSUE", arguments={"title": "x"})
    assert value(done) == {"number": 7}
    assert gateway.asked == [("issue", ("github",)), ("GITHUB_CREATE_ISSUE", {"title": "x"})]
    assert not card.read_only


async def test_an_action_needs_a_name_and_its_answer_must_be_json(tmp_path: Path) -> None:
    card = build(saas_card(), tmp_path, saas=Gateway(float("nan")))
    assert (await run(card, tmp_path, action="execute")).details["code"] == "invalid_arguments"
    bad = await run(card, tmp_path, action="execute", slug="X")
    assert bad.details["code"] == "bad_result"


class Refusing(Gateway):
    """Refuses every action."""

    async def discover(self, query: str | None, toolkits: Sequence[str]) -> Sequence[Mapping[str, JsonValue]]:
        raise ActionError("there is no connector 'x'", code="not_found")

    async def execute(self, slug: str, arguments: JsonObject) -> JsonValue:
        raise ActionError(f"{slug}: 429", code="http_status", status=429)


async def test_a_refused_action_is_an_error_with_its_facts(tmp_path: Path) -> None:
    card = build(saas_card(), tmp_path, saas=Refusing())
    result = await run(card, tmp_path, action="execute", slug="GITHUB_CREATE_ISSUE")
    assert (result.is_error, result.details["code"], result.details["status"]) == (True, "http_status", 429)
    assert "GITHUB_CREATE_ISSUE: 429" in text(result)
    assert (await run(card, tmp_path, action="discover")).details["code"] == "not_found"


# -- plan mode --------------------------------------------------------------------------------


async def test_the_plan_cards_answer_with_marks_and_change_nothing(tmp_path: Path) -> None:
    enter = build(enter_plan_mode_card(), tmp_path)
    leave = build(exit_plan_mode_card(), tmp_path)
    assert (enter.read_only, leave.read_only) == (True, True)
    assert value(await run(enter, tmp_path)) == {"enterPlanMode": True, "applied": False}
    assert value(await run(leave, tmp_path, plan="# Do")) == {"exitPlan": True, "plan": "# Do"}
    empty = await run(leave, tmp_path, plan=" \n")
    assert empty.details["code"] == "invalid_arguments"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("plan", "slug"),
    [
        ("# Fix the parser!\nmore", "fix-the-parser"),
        ("\n\n  Two  words ", "two-words"),
        ("", "plan"),
        ("!!!\nsecond", "plan"),
        ("日本語", "plan"),
        ("x" * 100, "x" * 48),
        (f"{'a' * 47} b", "a" * 47),
    ],
)
def test_a_plan_is_named_by_its_first_line(plan: str, slug: str) -> None:
    assert plan_slug(plan) == slug


@given(st.text())
def test_a_slug_is_always_a_safe_name(plan: str) -> None:
    assert re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,46}[a-z0-9])?", plan_slug(plan))


def test_plans_of_one_millisecond_never_overwrite_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "now_ms", lambda: 1_700_000_000_000)
    paths = [write_plan(tmp_path, "# Same") for _ in range(3)]
    assert [os.path.basename(path) for path in paths] == [
        "loyw3v28-same.md",
        "loyw3v28-same-2.md",
        "loyw3v28-same-3.md",
    ]
    assert {read_plan(path) for path in paths} == {"# Same"}
    assert os.path.dirname(paths[0]) == str(tmp_path / PLANS_DIRNAME)
    assert os.stat(paths[0]).st_mode & 0o777 == 0o600
    assert int("loyw3v28", 36) == 1_700_000_000_000
    monkeypatch.setattr(plans, "now_ms", lambda: 0)
    assert os.path.basename(write_plan(tmp_path, "x")) == "0-x.md"
    assert now_ms() > 0


def test_an_unreadable_plan_is_none(tmp_path: Path) -> None:
    assert read_plan(tmp_path / "nowhere") is None
    assert read_plan(tmp_path) is None
    (tmp_path / "bad").write_bytes(b"\xff")
    assert read_plan(tmp_path / "bad") is None
    os.mkfifo(tmp_path / "fifo")
    assert read_plan(tmp_path / "fifo") is None
    assert plan_file_path("/s", "x") == "/s/plans/x.md"


# -- bg-process -------------------------------------------------------------------------------


@pytest.mark.process
async def test_a_background_command_is_started_polled_listed_and_stopped(tmp_path: Path) -> None:
    assert (MAX_BUFFERED_LINES, STOP_GRACE_MS) == (2_000, 3_000)
    card = build(daemon_card(), tmp_path)
    async with make_local_context(tmp_path) as ctx:
        started = await card.run({"action": "start", "command": "echo hi; sleep 60 & sleep 60"}, ctx)
        assert started.details["id"] == "bg-1"
        path = str(started.details["path"])
        assert os.path.dirname(path) == str(tmp_path / CAPTURE_DIRNAME)
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
        assert (tmp_path / CAPTURE_DIRNAME / ".gitignore").read_text(encoding="utf-8") == "*\n"
        polled = await card.run({"action": "poll", "id": "bg-1", "match": "hi"}, ctx)
        assert "hi" in text(polled)
        assert "bg-1" in text(await card.run({"action": "list"}, ctx))
        stopped = await card.run({"action": "stop", "id": "bg-1"}, ctx)
        assert (stopped.is_error, stopped.details["left"]) == (False, 0)
        again = await card.run({"action": "stop", "id": "bg-1"}, ctx)
        assert not again.is_error
        missing = await card.run({"action": "poll", "id": "bg-9"}, ctx)
        assert missing.details["code"] == "not_found"


async def test_finding_1a18_each_stream_of_a_command_has_a_ring_of_its_own(tmp_path: Path) -> None:
    card = build(daemon_card(), tmp_path)
    async with make_local_context(tmp_path) as ctx:
        noise = MAX_BUFFERED_LINES + 500
        command = f"echo precious; seq {noise} >&2; echo last"
        started = await card.run({"action": "start", "command": command}, ctx)
        await card.run({"action": "poll", "id": "bg-1", "match": "never said"}, ctx)  # to its end
        done = await card.run({"action": "poll", "id": "bg-1", "sinceLast": False}, ctx)
        assert done.details["state"] == "exited"
        assert (done.details["firstLine"], done.details["lines"]) == (1, 2)
        errors = done.details["errors"]
        assert is_json_object(errors)
        assert (errors["lines"], errors["dropped"]) == (MAX_BUFFERED_LINES, 500)
        shown = text(done)
        assert shown.index("precious") < shown.index("[standard error:]")
        assert str(noise) in shown
    # Both are on the disk, each in a file of its own.
    folder = tmp_path / CAPTURE_DIRNAME
    assert (folder / "bg-1.out").read_text(encoding="utf-8") == "precious\nlast\n"
    assert len((folder / "bg-1.err").read_text(encoding="utf-8").splitlines()) == noise
    assert started.details["path"] == str(folder / "bg-1.out")


async def test_poll_waits_for_a_match_on_either_stream(tmp_path: Path) -> None:
    card = build(daemon_card(), tmp_path)
    async with make_local_context(tmp_path) as ctx:
        await card.run({"action": "start", "command": "echo up >&2; sleep 60"}, ctx)
        polled = await card.run({"action": "poll", "id": "bg-1", "match": "up"}, ctx)
        assert (polled.details["matched"], polled.details["state"]) == (True, "running")
        again = await card.run({"action": "poll", "id": "bg-1"}, ctx)
        assert "[standard error:]" not in text(again)


@pytest.mark.process
async def test_two_tables_of_background_commands_share_nothing(tmp_path: Path) -> None:
    one, two = build(daemon_card(), tmp_path), build(daemon_card(), tmp_path)
    async with make_local_context(tmp_path) as ctx:
        await one.run({"action": "start", "command": "sleep 60"}, ctx)
        assert text(await two.run({"action": "list"}, ctx)) == "no jobs"


@pytest.mark.process
async def test_background_commands_that_start_at_once_have_files_of_their_own(tmp_path: Path) -> None:
    card = build(daemon_card(), tmp_path)
    (tmp_path / CAPTURE_DIRNAME).mkdir()
    (tmp_path / CAPTURE_DIRNAME / "bg-2.out").write_text("old", encoding="utf-8")
    paths: list[object] = []
    async with make_local_context(tmp_path) as ctx:

        async def start() -> None:
            started = await card.run({"action": "start", "command": "true"}, ctx)
            paths.append(started.details["path"])

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(start)
    assert len(set(paths)) == 4
    assert (tmp_path / CAPTURE_DIRNAME / "bg-2.out").read_text(encoding="utf-8") == "old"


@pytest.mark.process
async def test_where_no_folder_can_be_made_the_output_goes_to_the_session(tmp_path: Path) -> None:
    (tmp_path / CAPTURE_DIRNAME).write_text("in the way", encoding="utf-8")
    card = build(daemon_card(), tmp_path)
    async with make_local_context(tmp_path) as ctx:
        started = await card.run({"action": "start", "command": "true"}, ctx)
        assert CAPTURE_DIRNAME not in str(started.details["path"])
