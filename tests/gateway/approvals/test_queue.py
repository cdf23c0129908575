"""Calls at a gateway that wait for a person: by elicitation, from the queue, and everything that spoils a yes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from anyio import to_thread
from tests.permissions.support import context, rules
from tests.support.waiting import LIMIT_S

from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.client.handlers import current_caller
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.runtime.calls import CallingClient, current_client
from indusagi.runtime.contract import ToolDescriptor, ToolResult, project_content
from induscode.deck.mcp.capability import BridgeCapability
from induscode.gateway.approvals.approver import GatewayApprover
from induscode.gateway.approvals.queue import ApprovalOptions, ApprovalQueue
from induscode.gateway.approvals.store import Approval, ApprovalState, ApprovalStore
from induscode.permissions.check import CheckedCard, Permissions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolProgress

pytestmark = pytest.mark.anyio
SCHEMA: JsonObject = {"type": "object", "properties": {"repo": {"type": "string"}, "token": {"type": "string"}}}


@dataclass
class Desk:
    """One gateway's approver in front of one tool."""

    queue: ApprovalQueue
    card: CheckedCard
    context: ToolContext
    ran: list[JsonValue]
    events: list[JsonObject] = field(default_factory=list[Any])
    definition: str = "d1"
    asked: list[Approval] = field(default_factory=list[Approval])
    is_asked: anyio.Event = field(default_factory=anyio.Event)

    async def call(self, **arguments: JsonValue) -> str:
        result = await self.card.run(arguments, self.context)
        return str(project_content(result.content))

    async def wait_for_request(self, count: int = 1) -> Approval:
        with anyio.fail_after(LIMIT_S):
            while len(self.asked) < count:
                self.is_asked = anyio.Event()
                await self.is_asked.wait()
        return self.asked[-1]

    def take(self, approval: Approval) -> None:
        self.asked.append(approval)
        self.is_asked.set()

    async def list_all(self) -> Sequence[Approval]:
        return await to_thread.run_sync(self.queue.store.list_all)

    async def approve(self, approval: Approval, **changes: Any) -> bool:
        facts: dict[str, Any] = {"approve": True, "by": "ada", "digest": approval.digest, **changes}
        return await self.queue.answer(facts.pop("id", approval.id), **facts)


@asynccontextmanager
async def opened(tmp_path: Path, ask: str = "git__push", **options: Any) -> AsyncGenerator[Desk]:
    ran: list[JsonValue] = []

    async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        ran.append(arguments)
        return ToolResult.text("pushed")

    given: dict[str, Any] = {"mode": "ask", **options}
    queue = ApprovalQueue(ApprovalOptions(**given), ApprovalStore(str(tmp_path / "approvals.db")))

    async def look(_: object) -> object:
        return desk.definition

    permissions = Permissions(rules(allow="git__push", ask=ask), approver=GatewayApprover(queue, look))
    descriptor, ref = ToolDescriptor("git__push", "", SCHEMA), RemoteToolRef("git", "push")
    card = CheckedCard(BridgeCapability.from_definition(descriptor, ref, {"name": "push"}, run), permissions)
    desk = Desk(queue, card, context(tmp_path), ran)
    queue.write_event = desk.events.append
    queue.on_asked.add(desk.take)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.run)
        yield desk
        tasks.cancel_scope.cancel()
    queue.store.close()


@dataclass
class Client:
    """The client behind a call."""

    reply: Callable[[JsonObject], JsonObject]
    capabilities: JsonObject = field(default_factory=lambda: {"elicitation": {}})
    asked: list[JsonObject] = field(default_factory=list[Any])

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        self.asked.append(params)
        return self.reply(params)


class SilentClient(Client):
    """A client whose user never answers."""

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        await anyio.sleep_forever()
        raise AssertionError


@asynccontextmanager
async def calling(client: Client | None = None, principal: str = "") -> AsyncGenerator[None]:
    tokens = current_caller.set(cast("Any", client)), current_client.set(CallingClient("ide", "1", principal))
    yield
    current_caller.reset(tokens[0])
    current_client.reset(tokens[1])


# -- the client that made the call --------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "runs"),
    [
        ({"action": "accept", "content": {"approve": True}}, True),
        ({"action": "accept", "content": {"approve": False}}, False),
        ({"action": "accept", "content": {"approve": "true"}}, False),
        ({"action": "accept"}, False),
        ({"action": "decline", "content": {"approve": True}}, False),
        ({"action": "cancel"}, False),
    ],
)
async def test_the_client_that_made_the_call_is_asked(tmp_path: Path, reply: JsonObject, *, runs: bool) -> None:
    client = Client(lambda _: reply)
    async with opened(tmp_path, mode=None) as desk, calling(client, "ada"):
        said = await desk.call(repo="acme/x")
    assert bool(desk.ran) is runs
    assert said == "pushed" if runs else "ada (approval" in said
    message = str(client.asked[0]["message"])
    assert 'argument "repo": "acme/x"' in message
    assert 'principal: "ada"' in message
    assert [event["subject"] for event in desk.events] == (
        ["asked", "approved", "used"] if runs else ["asked", "denied"]
    )


async def test_a_client_that_fails_to_ask_leaves_the_call_in_the_queue(tmp_path: Path) -> None:
    def fail(_: JsonObject) -> JsonObject:
        raise RpcError(-32601, "no")

    async with opened(tmp_path) as desk, calling(Client(fail)), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: desk.call(repo="a"))
        assert await desk.approve(await desk.wait_for_request())
    assert desk.ran == [{"repo": "a"}]


@pytest.mark.parametrize(
    ("options", "capabilities", "asks"),
    [
        ({"mode": None}, {}, False),
        ({"mode": None, "has_page": True}, {}, True),
        ({"mode": None, "target": "desktop"}, {}, True),
        ({"mode": "ask"}, {}, True),
        ({"mode": "deny", "has_page": True}, {"elicitation": {}}, False),
        ({"mode": None}, {"elicitation": {"url": {}}}, False),
        ({"mode": None}, {"elicitation": {"form": {}, "url": {}}}, True),
    ],
)
async def test_only_a_gateway_that_can_be_answered_asks(
    tmp_path: Path, options: Any, capabilities: JsonObject, *, asks: bool
) -> None:
    async with opened(tmp_path, **options), calling(Client(lambda _: {}, capabilities)):
        assert ApprovalOptions(**options).may_ask(by_rule=True) is asks
        assert ApprovalOptions(**options).may_ask(by_rule=False) is (options["mode"] == "ask")


async def test_without_anybody_to_ask_the_refusal_names_the_setting(tmp_path: Path) -> None:
    async with opened(tmp_path, mode=None) as desk, calling():
        said = await desk.call(repo="a")
    assert "this run cannot ask the user" in said
    assert "approvals.notify" in said
    assert not desk.ran


async def test_an_answer_from_elsewhere_counts_while_the_client_still_asks(tmp_path: Path) -> None:
    client = SilentClient(lambda _: {})
    async with opened(tmp_path) as desk, calling(client), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: desk.call(repo="a"))
        assert await desk.approve(await desk.wait_for_request())
    assert desk.ran == [{"repo": "a"}]


# -- the queue ----------------------------------------------------------------------------------


async def test_a_call_waits_until_another_process_answers_and_the_client_hears_progress(tmp_path: Path) -> None:
    heard: list[ToolProgress] = []
    async with opened(tmp_path) as desk, calling(), anyio.create_task_group() as tasks:
        desk.context = replace(desk.context, on_progress=heard.append)
        tasks.start_soon(lambda: desk.call(repo="a\u202eb", token="hunter22"))
        approval = await desk.wait_for_request()
        other = ApprovalStore(str(tmp_path / "approvals.db"))
        answer = partial(other.answer, approval.id, approval.digest, approve=True, by="bob")
        assert await to_thread.run_sync(answer)
        other.close()
    assert desk.ran == [{"repo": "a\u202eb", "token": "hunter22"}]
    assert "waiting for approval" in heard[0].message
    assert 'argument "repo": "a\\u202eb"' in desk.asked[0].lines
    assert 'argument "token": "…"' in desk.asked[0].lines
    assert "hunter22" not in str(desk.asked[0].to_json())
    assert "hunter22" not in str(desk.events)


async def test_equal_looking_values_of_different_types_are_shown_differently(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk, calling(), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: desk.call(a=5, b="5", c=[True], d="[true]", e={"\u202e": None}))
        await desk.wait_for_request()
        tasks.cancel_scope.cancel()
    shown = [line.removeprefix("argument ") for line in desk.asked[0].lines if line.startswith("argument ")]
    assert shown == ['"a": 5', '"b": "5"', '"c": [true]', '"d": "[true]"', '"e": {"\\u202e":null}']


async def test_calls_wait_at_the_same_time_and_each_yes_is_for_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk, calling(), anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(lambda name=name: desk.call(repo=name))
        await desk.wait_for_request(2)
        first, second = desk.asked
        assert not await desk.approve(first, digest=second.digest)
        assert not await desk.approve(first, id=second.id)
        assert await desk.approve(second)
        assert await desk.approve(first, approve=False)
    assert len(desk.ran) == 1
    assert str(desk.ran[0]) in {str({"repo": name}) for name in "ab" if f'"{name}"' in str(desk.asked[1].lines)}


async def test_a_yes_is_spent_by_the_call(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk, calling():
        for count in (1, 2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: desk.call(repo="a"))  # the same call
                asked = await desk.wait_for_request(count)
                for earlier in desk.asked[:-1]:
                    assert asked.digest != earlier.digest
                    assert not await desk.approve(earlier)
                    assert not await desk.approve(asked, digest=earlier.digest)
                    assert not await to_thread.run_sync(desk.queue.store.use, earlier.id, earlier.digest)
                assert await desk.approve(asked, approve=count == 1)
            assert len(desk.ran) == 1


async def test_a_call_that_nobody_answers_is_refused_with_the_remedy_and_stays_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, wait_s=0.01) as desk, calling():
        said = await desk.call(repo="a")
        approval = (await desk.list_all())[0]
        assert not await desk.approve(approval)
    assert "nobody answered within 0.01 s" in said
    assert "--approval all" in said
    assert approval.state is ApprovalState.EXPIRED
    assert not desk.ran


@pytest.mark.parametrize("by_token", [True, False])
async def test_a_cancelled_call_withdraws_its_request(tmp_path: Path, *, by_token: bool) -> None:
    async with opened(tmp_path) as desk, calling():
        cancel = CancelToken()
        desk.context = desk.context.with_cancel(cancel)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: desk.call(repo="a"))
            await desk.wait_for_request()
            cancel.cancel("the client left") if by_token else tasks.cancel_scope.cancel()
        assert not await desk.approve(desk.asked[0])
        assert (await desk.list_all())[0].state is ApprovalState.WITHDRAWN
    assert not desk.ran


async def test_a_definition_or_rule_that_changes_meanwhile_spoils_the_yes(tmp_path: Path) -> None:
    said: list[str] = []

    async def call() -> None:
        said.append(await desk.call(repo="a"))

    async with opened(tmp_path) as desk, calling():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            approval = await desk.wait_for_request()
            desk.definition = "d2"
            assert await desk.approve(approval)
        assert (await desk.list_all())[0].state is ApprovalState.REFUSED
    assert "has changed since: try again" in said[0]
    assert desk.events[-1]["subject"] == "refused"
    assert not desk.ran


async def test_a_principal_cannot_fill_the_queue(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk, anyio.create_task_group() as tasks:
        async with calling(principal="eve"):
            for number in range(32):
                tasks.start_soon(lambda number=number: desk.call(repo=str(number)))
            await desk.wait_for_request(32)
            assert "32 calls wait for approval already" in await desk.call(repo="one more")
        async with calling(principal="ada"):
            tasks.start_soon(lambda: desk.call(repo="a"))
            await desk.wait_for_request(33)
        tasks.cancel_scope.cancel()


async def test_calls_that_a_client_withdraws_push_no_waiting_one_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("induscode.gateway.approvals.store._MOST", 3)
    async with opened(tmp_path) as desk, calling(), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: desk.call(repo="a"))
        first = await desk.wait_for_request()
        for number in range(2, 8):
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(lambda: desk.call(repo="b"))
                await desk.wait_for_request(number)
                cancelled.cancel_scope.cancel()
        assert len(await desk.list_all()) <= 4
        assert await desk.approve(first)
    assert desk.ran == [{"repo": "a"}]


async def test_arguments_that_nobody_reads_are_not_asked_about(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk, calling():
        assert "too long to be shown" in await desk.call(repo="x" * 200_000)
    assert desk.asked == []
