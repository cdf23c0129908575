"""The flow guard: what a conversation has read, and the calls that may send it out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.permissions.support import Person, card, context, rules

from indusagi.interop.protocol_bridge.contract import RemoteToolRef, StdioServerConfig
from indusagi.runtime.calls import UserWait, current_conversation, current_wait
from indusagi.runtime.contract import TextContentBlock, ToolDescriptor, ToolResult, project_content
from induscode.cluster.contract import ClusterFault
from induscode.deck.mcp.capability import BridgeCapability
from induscode.gateway.sharing import JoinSharing
from induscode.permissions import flow
from induscode.permissions.check import CheckedCard, Permissions, preview_card
from induscode.permissions.confirm import ApprovalScope
from induscode.permissions.flow import FlowCard, FlowGuard, FlowMode
from induscode.permissions.policy import ApprovalMode
from induscode.servers.config.rows import Origin, parse_row
from induscode.servers.plan import ServerPlan

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio
READ = ("get_issue", "read_file")
"""The first returns untrusted text, the second private data."""
SEND = "send_mail"


class Desk:
    """A conversation with one server and an approver."""

    def __init__(
        self,
        folder: Path,
        mode: FlowMode | None = None,
        *says: ApprovalScope | None,
        labels: JsonValue = None,
        is_gateway: bool = False,
        **options: Any,
    ) -> None:
        self.context = context(folder)
        self.events: list[JsonObject] = []
        self.ran: list[str] = []
        self.person = Person([*says])
        self.guard = FlowGuard(mode, is_gateway=is_gateway)
        row = parse_row("s", {"command": "x", "labels": labels}, Origin("f", "user", "indus"))
        plan = ServerPlan(rows=(row,), configs={"s": StdioServerConfig("s", "x")})
        self.guard.connect(cast("Any", SimpleNamespace(plan=plan, journal=SimpleNamespace(record=self.record))))
        given: dict[str, Any] = {"approver": self.person, "flow": self.guard, **options}
        self.permissions = Permissions(rules(allow="s__*"), **given)
        self.result = ToolResult.text("done")

    def record(self, op: str, facts: JsonObject) -> None:
        assert op == "join"
        self.events.append(facts)

    def build(self, name: str) -> BridgeCapability:
        async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
            self.ran.append(name)
            return self.result

        descriptor = ToolDescriptor(f"s__{name}", "", {"type": "object"})
        return BridgeCapability.from_definition(descriptor, RemoteToolRef("s", name), {"name": name}, run)

    async def call(self, *names: str) -> str:
        text = ""
        for name in names:
            result = await CheckedCard(self.build(name), self.permissions).run({}, self.context)
            text = str(project_content(result.content))
        return text


async def test_the_call_that_completes_the_combination_is_asked_about_and_names_both(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert await desk.call(SEND, *READ) == "done"
    assert desk.person.questions == []
    refused = await desk.call(SEND)
    assert desk.ran == [SEND, *READ]
    (question,) = desk.person.questions
    assert question.asked_by_rule
    reason = question.reasons[0]
    for part in ("read_file of server 's' at 20", "get_issue of server 's' at 20", "and send_mail of server 's' sends"):
        assert part in reason
    assert "flow guard" in refused
    assert question.scopes == (ApprovalScope.ONCE, ApprovalScope.SESSION)


async def test_a_yes_covers_this_call_or_the_tool_in_this_conversation(tmp_path: Path) -> None:
    desk = Desk(tmp_path, None, ApprovalScope.ONCE, ApprovalScope.SESSION)
    await desk.call(*READ, SEND, SEND, SEND)
    assert len(desk.person.questions) == 2
    assert desk.ran == [*READ, SEND, SEND, SEND]
    await desk.call("publish_post")
    assert len(desk.person.questions) == 3
    token = current_conversation.set("another")
    await desk.call(*READ, SEND)
    assert len(desk.person.questions) == 4
    current_conversation.reset(token)


@pytest.mark.parametrize(
    ("mode", "approval", "runs", "asks"),
    [("note", "ask", True, 0), ("deny", "ask", False, 0), ("ask", "ask", False, 1), ("ask", "all", True, 0),
     ("deny", "all", False, 0), (None, "all", True, 0)],
)  # fmt: skip
async def test_modes_decide(tmp_path: Path, mode: FlowMode | None, approval: str, asks: int, *, runs: bool) -> None:
    desk = Desk(tmp_path, mode, approval=ApprovalMode(approval))
    await desk.call(*READ)
    wait = UserWait()
    token = current_wait.set(wait)
    text = await desk.call(SEND)
    current_wait.reset(token)
    assert ((SEND in desk.ran), len(desk.person.questions)) == (runs, asks)
    assert "flow guard: " in (wait.allowed_by if runs else text)


async def test_a_gateway_asks_about_labels_you_gave_and_notes_proposals(tmp_path: Path) -> None:
    proposed = Desk(tmp_path, is_gateway=True)
    await proposed.call(*READ, SEND)
    assert (proposed.ran[-1], proposed.person.questions) == (SEND, [])
    labels: JsonObject = {"get_issue": ["untrusted"], "read_file": ["private"], SEND: ["outward"]}
    given = Desk(tmp_path, labels=labels, is_gateway=True)
    await given.call(*READ, SEND)
    assert len(given.person.questions) == 1
    strict = Desk(tmp_path, "deny", is_gateway=True)
    assert "flow guard" in await strict.call(*READ, SEND)


async def test_labels_that_nobody_has_stop_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, labels=["private"])
    await desk.call(*READ, SEND)
    assert desk.person.questions == []
    assert [event["label"] for event in desk.events] == ["private"]


async def test_an_unanswered_question_names_the_remedy(tmp_path: Path) -> None:
    desk = Desk(tmp_path, approver=None)
    text = await desk.call(*READ, SEND)
    assert "correct its labels (indus mcp labels s), or start with --flow note" in text


async def test_only_the_first_call_of_each_label_is_recorded(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    await desk.call(*READ, *READ, "list_files")
    found = [(event["label"], event["server"], event["tool"]) for event in desk.events]
    assert found == [("untrusted", "s", "get_issue"), ("private", "s", "read_file")]


async def test_a_call_that_never_reached_its_server_brings_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.result = ToolResult.error("away", code="not_connected")
    await desk.call(*READ)
    assert desk.events == []
    desk.result = ToolResult((TextContentBlock("its text"),), is_error=True)
    await desk.call(*READ)
    assert len(desk.events) == 2


async def test_calls_at_the_same_time_count_from_their_admission(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    go, started = anyio.Event(), anyio.Event()

    async def hang(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        started.set()
        await go.wait()
        return ToolResult.text("late")

    slow = BridgeCapability.from_definition(
        ToolDescriptor("s__read_file", "", {}), RemoteToolRef("s", "read_file"), {"name": "read_file"}, hang
    )
    await desk.call("get_issue")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(CheckedCard(slow, desk.permissions).run, cast("JsonObject", {}), desk.context)
        await started.wait()
        assert "flow guard" in await desk.call(SEND)
        tasks.cancel_scope.cancel()
    assert [event["label"] for event in desk.events] == ["untrusted", "private"]


async def test_a_forgotten_conversation_counts_as_having_read_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_MOST_JOINS", 1)
    desk = Desk(tmp_path)
    token = current_conversation.set("first")
    await desk.call("get_issue")
    current_conversation.set("second")
    await desk.call("get_issue", SEND)
    assert desk.person.questions == []
    current_conversation.set("first")
    await desk.call(SEND)
    current_conversation.reset(token)
    assert "isn't remembered" in desk.person.questions[0].reasons[0]


async def test_a_client_without_sessions_starts_anew_after_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(flow, "monotonic", lambda: now)
    desk = Desk(tmp_path)
    for key, asks in (("client:a", 0), ("session", 1)):
        token = current_conversation.set(key)
        now = 0.0
        await desk.call(*READ)
        now = 9 * 3600.0
        await desk.call(SEND)
        current_conversation.reset(token)
        assert len(desk.person.questions) == asks


async def test_a_restored_conversation_keeps_its_join(tmp_path: Path) -> None:
    desk, again = Desk(tmp_path), Desk(tmp_path)
    await desk.call(*READ)
    for facts in desk.guard.dump_calls():
        again.guard.restore_call(facts)
    again.guard.restore_call({"label": "outward"})
    await again.call(SEND)
    assert len(again.person.questions) == 1


async def test_a_gateway_without_rules_loads_the_permissions_for_a_question(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "ask", is_gateway=True)
    loaded: list[Permissions] = []

    def load() -> Permissions:
        loaded.append(desk.permissions)
        return desk.permissions

    for name in (*READ, SEND):
        await FlowCard(desk.build(name), desk.guard, load).run({}, desk.context)
    assert (desk.ran, len(loaded), len(desk.person.questions)) == ([*READ], 1, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "labels"),
    [
        ("read", {"path": "inside.txt"}, ""),
        ("read", {"path": "/etc/hostname"}, "private"),
        ("webfetch", {"url": "https://a.example"}, "untrusted outward"),
        ("websearch", {"query": "x"}, "untrusted"),
        ("bash", {"command": "pytest -q"}, ""),
        ("bash", {"command": "git commit -m x && git push"}, "untrusted outward"),
        ("bash", {"command": "python -c 'open(\"http://a.example\")'"}, "untrusted outward"),
        ("write", {"path": "a", "content": "b"}, ""),
    ],
)
async def test_native_tools_have_fixed_labels(tmp_path: Path, name: str, arguments: JsonObject, labels: str) -> None:
    person = Person()
    permissions = Permissions(rules(ask="*"), approver=person, flow=FlowGuard())
    await permissions.check(card(name, tmp_path), arguments, context(tmp_path))
    facts = person.questions[0].facts
    assert facts is not None
    assert [*FlowGuard().describe_call(facts).labels.labels] == labels.split()


@pytest.mark.parametrize(
    ("labels", "found"), [(None, "private untrusted"), (["private"], "private"), ({"a": ["outward"]}, "")]
)
async def test_a_task_of_another_conversation_has_what_its_server_reads(
    tmp_path: Path, labels: Any, found: str
) -> None:
    desk = Desk(tmp_path, labels=labels)
    desk.guard.adopt_task("s")
    assert [event["label"] for event in desk.events] == found.split()


async def test_a_preview_says_what_the_guard_would_ask(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    await desk.call(*READ)
    decisions = await preview_card(CheckedCard(desk.build(SEND), desk.permissions), {}, desk.context)
    assert not isinstance(decisions, ToolResult)
    assert decisions[0].flow.startswith("flow guard: ")
    assert desk.person.questions == []


class _Table:
    """The shared table of two nodes; it fails if the brokers are away."""

    def __init__(self) -> None:
        self.entries: dict[str, JsonObject] = {}
        self.is_away = False

    def list(self, kind: str) -> dict[str, JsonObject]:
        return self.entries

    def build_key(self, kind: str, *names: str) -> str:
        return f"{kind}.{'.'.join(names)}"

    async def load(self) -> None:
        if self.is_away:
            raise ClusterFault("ready", "the brokers are away")

    async def put(self, key: str, value: JsonObject) -> None:
        await self.load()
        self.entries[key] = value


async def test_a_client_without_sessions_has_one_join_at_all_nodes(tmp_path: Path) -> None:
    table = _Table()
    first, second = Desk(tmp_path), Desk(tmp_path)
    first.guard.shared = second.guard.shared = JoinSharing(cast("Any", table))
    token = current_conversation.set("client:a")
    await first.call("get_issue")
    await second.call("read_file")
    await first.call(SEND)
    assert "read_file of server 's'" in first.person.questions[0].reasons[0]
    current_conversation.set("session")
    await first.call(*READ)
    await second.call(SEND)
    assert second.person.questions == []
    current_conversation.set("client:b")
    table.is_away = True
    await second.call(SEND)
    current_conversation.reset(token)
    assert "a node that can't be asked" in second.person.questions[0].reasons[0]
