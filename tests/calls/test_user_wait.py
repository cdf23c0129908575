"""The time of the user isn't the time of the tool: waits are counted apart, wherever the user is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from tests.calls.helpers import load_calls

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.runtime import ToolCall, ToolResult
from indusagi.runtime.calls import ObserverChain, UserWait, current_wait, waiting_for_user
from induscode.calls.record import CallOrigin
from induscode.calls.recorder import CallRecorder
from induscode.calls.telemetry import CallMetrics
from induscode.deck.contract import DeckContext, DeckFramework
from induscode.deck.provision import DeckRunner, DeckToolBox, base_context
from induscode.permissions.check import Permissions, require_permission
from induscode.permissions.confirm import ApprovalScope, InstantApprover, PermissionAnswer
from induscode.permissions.policy import ApprovalMode
from induscode.permissions.rules import Effect, Rule, parse_rule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonObject
    from induscode.calls.record import CallRecord
    from induscode.deck.contract import Capability
    from induscode.permissions.confirm import PermissionRequest

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that moves when it's told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        for place in ("indusagi.runtime.calls.perf_counter", "induscode.calls.telemetry.perf_counter"):
            monkeypatch.setattr(place, lambda: self.now)
        monkeypatch.setattr("induscode.calls.recorder.perf_counter_ns", lambda: int(self.now * 1_000_000_000))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class SlowUser:
    """A user who answers after a minute."""

    def __init__(self, clock: Clock, answer: PermissionAnswer) -> None:
        self._clock, self._answer = clock, answer

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        self._clock.now += 60
        return self._answer


def make_card(clock: Clock) -> Capability:
    async def run(arguments: JsonObject, _: ToolContext) -> ToolResult:
        clock.now += 2
        return ToolResult.text("done")

    return define_tool(ToolSpec("work", "", {"type": "object", "properties": {}}, run))


def parse(text: str) -> Rule:
    rule = parse_rule(text, Effect.ALLOW, file="/rules.json")
    assert isinstance(rule, Rule)
    return rule


async def record_call(clock: Clock, folder: Path, permissions: Permissions) -> Sequence[CallRecord]:
    recorder = CallRecorder(str(folder / "calls.db"), CallOrigin(via="session"))
    card = require_permission(make_card(clock), permissions)
    ctx = base_context(DeckContext(str(folder), DeckFramework(observer=recorder)))
    await DeckToolBox(DeckRunner({"work": card}, ctx)).runner.run(ToolCall("1", "work", {}))
    await recorder.aclose()
    return await load_calls(folder / "calls.db")


@pytest.mark.parametrize("is_declined", [False, True], ids=["approved", "declined"])
async def test_finding_u2_record_and_metrics_separate_the_user_from_the_tool(
    is_declined: bool, clock: Clock, tmp_path: Path
) -> None:
    answer = PermissionAnswer(None, "no") if is_declined else PermissionAnswer(ApprovalScope.ONCE)
    path, metrics = tmp_path / "calls.db", CallMetrics()
    recorder = CallRecorder(str(path), CallOrigin(via="session"))
    card = require_permission(make_card(clock), Permissions(approver=SlowUser(clock, answer)))
    framework = DeckFramework(observer=ObserverChain([recorder, metrics]))
    ctx = base_context(DeckContext(str(tmp_path), framework))
    await DeckToolBox(DeckRunner({"work": card}, ctx)).runner.run(ToolCall("1", "work", {}))
    await recorder.aclose()
    (call,) = await load_calls(path)
    ran = 0 if is_declined else 2_000_000
    assert (call.outcome, call.duration_us, call.waited_us) == ("denied" if is_declined else "ok", ran, 60_000_000)
    text = metrics.render()
    assert 'indus_call_user_wait_seconds_total{kind="tool",server="",tool="work"} 60.0' in text
    assert f'indus_call_duration_seconds_sum{{kind="tool",server="",tool="work"}} {ran / 1e6:.6f}' in text
    assert f'indus_call_duration_seconds_count{{kind="tool",server="",tool="work"}} {0 if is_declined else 1}' in text
    assert f'outcome="{call.outcome}"}} 1' in text


async def test_finding_u2_call_inside_a_call_counts_for_both(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    recorder = CallRecorder(str(path), CallOrigin(via="session"))
    user = SlowUser(clock, PermissionAnswer(ApprovalScope.ONCE))
    cards: dict[str, Capability] = {"work": require_permission(make_card(clock), Permissions(approver=user))}
    box = DeckToolBox(DeckRunner(cards, base_context(DeckContext(str(tmp_path), DeckFramework(observer=recorder)))))

    async def run_script(arguments: JsonObject, _: ToolContext) -> ToolResult:
        clock.now += 1
        await box.runner.run(ToolCall("inner", "work", {}))
        return ToolResult.text("done")

    cards["script"] = define_tool(ToolSpec("script", "", {"type": "object", "properties": {}}, run_script))
    await box.runner.run(ToolCall("outer", "script", {}))
    await recorder.aclose()
    found = {call.tool: (call.duration_us, call.waited_us) for call in await load_calls(path)}
    assert found == {"work": (2_000_000, 60_000_000), "script": (3_000_000, 60_000_000)}


def test_questions_that_are_open_at_once_count_once(clock: Clock) -> None:
    wait = UserWait()
    with wait.hold():
        clock.now += 1
        with UserWait(wait).hold():
            clock.now += 1
        assert wait.seconds == 2
        clock.now += 1
    clock.now += 5
    assert wait.seconds == 3


async def test_wait_belongs_to_the_call_of_its_task(clock: Clock) -> None:
    waits = [UserWait(), UserWait()]
    turn = anyio.Event()

    async def first() -> None:
        current_wait.set(waits[0])
        with waiting_for_user():
            await turn.wait()

    async def second() -> None:
        current_wait.set(waits[1])
        clock.now += 7
        turn.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(second)
    assert [wait.seconds for wait in waits] == [7, 0]
    with waiting_for_user():  # outside of a call nothing counts
        pass


class Button(InstantApprover):
    """Approves after a minute of computing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        self._clock.now += 60
        return PermissionAnswer(ApprovalScope.ONCE)


async def test_a_call_that_asks_nobody_has_not_waited(clock: Clock, tmp_path: Path) -> None:
    (call,) = await record_call(clock, tmp_path, Permissions(approver=Button(clock)))
    assert (call.waited_us, call.duration_us, call.allowed_by) == (0, 62_000_000, "the user")


@pytest.mark.parametrize(
    ("permissions", "by"),
    [
        (Permissions([parse("work")]), "allow work (/rules.json)"),
        (Permissions([parse("w*"), parse("work")]), "allow w* (/rules.json)"),
        (Permissions(approval=ApprovalMode.ALL), "--approval all"),
        (Permissions(), ""),
    ],
    ids=["rule", "first rule", "flag", "denied"],
)
async def test_a_record_names_the_rule_that_allowed_the_call(
    permissions: Permissions, by: str, clock: Clock, tmp_path: Path
) -> None:
    (call,) = await record_call(clock, tmp_path, permissions)
    assert (call.allowed_by, call.outcome) == (by, "ok" if by else "denied")
