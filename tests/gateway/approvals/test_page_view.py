"""The page's view of calls that need a person: what's shown to whom, and forms bound to what was shown."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from anyio import to_thread

from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.host.identity import BROWSER, ClientIdentity, find_rights
from induscode.gateway.approvals.queue import ApprovalOptions, ApprovalQueue
from induscode.gateway.approvals.store import Approval, ApprovalState, ApprovalStore
from induscode.gateway.page.access import PageRequest, PageUser
from induscode.gateway.page.html import PageError
from induscode.gateway.page.views.approvals import show_approvals

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from indusagi.interop.protocol_bridge.host.identity import PageMode

pytestmark = pytest.mark.anyio
LINE = 'argument "repo": "<b>acme</b>"'


def build_user(principal: str = "", scopes: str = "", mode: PageMode = "full") -> PageUser:
    identity = BROWSER
    if principal:
        identity = ClientIdentity(principal=principal, scopes=frozenset(scopes.split()), credential="principal")
    return PageUser(rights=find_rights(identity, mode), form_key="k", principal=principal)


class Desk:
    """A queue with one request, and its view."""

    def __init__(self, folder: Path) -> None:
        self.queue = ApprovalQueue(ApprovalOptions(), ApprovalStore(str(folder / "approvals.db")))

    async def add(self, approval_id: str, **facts: Any) -> Approval:
        times: dict[str, Any] = {"asked_ms": now_ms(), "expires_ms": now_ms() + 600_000, **facts}
        approval = Approval(
            id=approval_id,
            digest=f"d-{approval_id}",
            principal="ada",
            tool="git__push",
            title="push <it>",
            lines=(LINE,),
            **times,
        )
        await to_thread.run_sync(self.queue.store.add, approval)
        return approval

    async def show(self, user: PageUser | None = None, **form: str) -> str:
        source = SimpleNamespace(approvals=self.queue)
        page = PageRequest(source=cast("Any", source), user=user or build_user(), query={}, form=form)
        return str((await show_approvals(page)).content)

    async def find(self, approval_id: str) -> Approval:
        found = await to_thread.run_sync(self.queue.store.find, approval_id)
        assert found is not None
        return found


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[Desk]:
    desk = Desk(folder)
    yield desk
    desk.queue.store.close()


async def test_a_waiting_call_is_shown_in_full_and_answered_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        assert "No call waits for you." in await desk.show()
        await desk.add("A")
        shown = await desk.show()
        assert "&lt;b&gt;acme&lt;/b&gt;" in shown
        assert "<b>" not in shown
        assert 'value="d-A"' in shown
        said = await desk.show(approval="A", digest="d-A", action="approve")
        assert "Allowed: it runs now, once." in said
        assert (await desk.find("A")).answered_by == "the page's user"
        with pytest.raises(PageError, match="doesn't wait any more") as failed:
            await desk.show(approval="A", digest="d-A", action="approve")
        assert failed.value.status == 409


@pytest.mark.parametrize("digest", ["", "d-B", "D-A", "d-A "])
async def test_a_yes_to_something_else_is_refused(tmp_path: Path, digest: str) -> None:
    async with opened(tmp_path) as desk:
        await desk.add("A")
        await desk.add("B")
        with pytest.raises(PageError):
            await desk.show(approval="A", digest=digest, action="approve")
        assert (await desk.find("A")).state is ApprovalState.WAITING


async def test_a_no_has_a_reason_and_an_unknown_action_is_a_no(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.add("A")
        await desk.add("B")
        assert "Denied." in await desk.show(approval="A", digest="d-A", action="deny", reason="not <now>")
        await desk.show(approval="B", digest="d-B", action="Approve")
        assert ((await desk.find("A")).comment, (await desk.find("B")).state) == ("not <now>", ApprovalState.DENIED)
        assert "denied: not &lt;now&gt;" in await desk.show()


async def test_an_expired_call_cannot_be_answered(tmp_path: Path) -> None:
    async with opened(tmp_path) as desk:
        await desk.add("A", expires_ms=1)
        shown = await desk.show()
        assert "<form" not in shown
        assert "expired" in shown
        with pytest.raises(PageError):
            await desk.show(approval="A", digest="d-A", action="approve")


@pytest.mark.parametrize(
    ("user", "acts", "reads"),
    [
        (build_user(), True, True),
        (build_user(mode="read-only"), False, True),
        (build_user("root", "indus:list indus:admin"), True, True),
        (build_user("ada", "indus:list indus:call"), False, True),
        (build_user("eve", "indus:list indus:call"), False, False),
    ],
)
async def test_only_those_with_the_right_answer_and_read_arguments_of_others(
    tmp_path: Path, user: PageUser, *, acts: bool, reads: bool
) -> None:
    async with opened(tmp_path) as desk:
        await desk.add("A")
        shown = await desk.show(user)
    assert ("<form" in shown, "acme" in shown) == (acts, reads)
    assert "push &lt;it&gt;" in shown
