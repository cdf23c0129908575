"""Connectors of a running session: what another process adds, approves or removes is seen without a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anyio import to_thread
from tests.support.openapi import add_in_thread, build_document

from indusagi.capabilities.ports import WebSettings
from indusagi.core.app_dirs import make_private_dir, state_dir
from induscode.boot.session import open_session
from induscode.connectors.live import SAAS_CARD, LiveConnectors
from induscode.connectors.store import ConnectorStore
from induscode.deck.contract import BackendFault
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from induscode.boot.session import Session


async def add(base_url: str = "https://shop.example") -> ConnectorStore:
    def add_here() -> ConnectorStore:
        folder = make_private_dir(state_dir())
        return add_in_thread(Path(folder), build_document(), base_url, None, "shop", folder)

    return await to_thread.run_sync(add_here)


def has_card(session: Session) -> bool:
    return SAAS_CARD in [card.name for card in session.deck().tools()]


async def test_a_session_sees_connectors_come_change_and_go(tmp_path: Path) -> None:
    async with open_session(Invocation(cwd=str(tmp_path), no_mcp=True, no_addons=True)) as session:
        assert not has_card(session)
        assert "no connector is configured" in session.left_out[SAAS_CARD]
        assert await session.refresh_connectors() == []
        store = await add()
        assert not has_card(session), "a turn keeps its deck"
        assert await session.refresh_connectors() == ["connectors added: shop"]
        assert has_card(session)
        assert SAAS_CARD not in session.left_out
        connectors = session.connectors
        assert connectors is not None
        target = await connectors.find_target("SHOP_LIST_CARTS", {})
        assert target is not None
        assert target.url == "https://shop.example/carts"

        def compare() -> None:
            row = store.read()[0]["shop"]
            store.update(replace(row, checked_ms=row.checked_ms + 1))

        await to_thread.run_sync(compare)
        assert await session.refresh_connectors() == [], "a comparison is no change"
        await to_thread.run_sync(store.remove, "shop")
        await add("https://moved.example")
        moved = await connectors.find_target("SHOP_LIST_CARTS", {})
        assert moved == target, "what permissions saw is what is sent"
        assert await session.refresh_connectors() == ["connectors changed: shop"]
        moved = await connectors.find_target("SHOP_LIST_CARTS", {})
        assert moved is not None
        assert moved.url == "https://moved.example/carts"
        await to_thread.run_sync(store.remove, "shop")
        assert await session.refresh_connectors() == ["connectors removed: shop"]
        assert not has_card(session)


async def test_a_tool_that_is_asked_for_by_name_needs_a_connector_at_the_start(tmp_path: Path) -> None:
    invocation = Invocation(cwd=str(tmp_path), no_mcp=True, no_addons=True, tools=(SAAS_CARD,))
    with pytest.raises(BackendFault, match="no connector is configured"):
        async with open_session(invocation):
            pass
    await add()
    async with open_session(invocation) as session:
        assert [card.name for card in session.deck().tools()] == [SAAS_CARD]


async def test_the_gateway_finds_and_refuses_as_the_connectors_do() -> None:
    await add()
    connectors = await to_thread.run_sync(LiveConnectors, WebSettings())
    found = await connectors.discover("list carts", [])
    assert found[0]["slug"] == "SHOP_LIST_CARTS"
    with pytest.raises(OSError, match="ABSENT"):
        await connectors.execute("ABSENT", {})


async def test_the_card_goes_with_the_last_connector_even_while_its_file_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await add()
    async with open_session(Invocation(cwd=str(tmp_path), no_mcp=True, no_addons=True)) as session:
        assert has_card(session)
        # As a gateway sees it that looks between the two steps of the removal.
        monkeypatch.setattr("induscode.connectors.store.os.unlink", str)
        await to_thread.run_sync(store.remove, "shop")
        assert await session.refresh_connectors() == ["connectors removed: shop"]
        assert not has_card(session)
