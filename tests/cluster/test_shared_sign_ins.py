"""Sign-ins of users that the nodes of a cluster share, without a broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.cluster.test_table_entries import Stage
from tests.support.protected import stored_sign_in

from indusagi.interop.auth.contract import AuthFault, CredentialKey, StoredCredentials, TokenSet
from induscode.cluster.contract import ClusterFault
from induscode.cluster.shared import table as module
from induscode.cluster.shared.table import SharedCredentials, read_sign_ins

if TYPE_CHECKING:
    from induscode.cluster.shared.table import SharedTable

pytestmark = pytest.mark.anyio
ALICE, BOB = '["i","alice"]', '["i","bob"]'
STORED = stored_sign_in("http://127.0.0.1:1/mcp")
KEY = STORED.key


def open_store(table: SharedTable, user: str = ALICE) -> SharedCredentials:
    return SharedCredentials(table, user, dict[CredentialKey, StoredCredentials]())


async def test_a_sign_in_is_found_at_every_node_by_its_user_alone() -> None:
    nodes = Stage()
    first, second = nodes.open(), nodes.open()
    await open_store(first).save(STORED)
    await second.load()
    assert await open_store(second).load(KEY.resource) == STORED
    assert await open_store(second).find(KEY) == STORED
    assert await open_store(second).list_credentials() == [STORED]
    assert [row[:2] for row in read_sign_ins(second)] == [(ALICE, KEY)]
    for other in (BOB, '["i","Alice"]', '["j","alice"]'):
        assert await open_store(second, other).load(KEY.resource) is None
        assert await open_store(second, other).find(KEY) is None
        await open_store(second, other).delete(KEY)
    assert await open_store(second).load(KEY.resource, "other client") is None
    # Nothing in the bucket says whose it is, or what.
    assert STORED.tokens is not None
    for message in nodes.bucket.messages:
        assert not any(text in message.data for text in (b"alice", STORED.tokens.access_token.encode()))
        assert "alice" not in message.subject
    await open_store(second).delete(KEY)
    await first.load()
    assert await open_store(first).find(KEY) is None


async def test_a_registration_alone_is_no_sign_in_and_serves_all_users() -> None:
    table = Stage().open()
    known: dict[CredentialKey, StoredCredentials] = {}
    await SharedCredentials(table, ALICE, known).save(replace(STORED, tokens=None))
    assert read_sign_ins(table) == []
    found = await SharedCredentials(table, BOB, known).find(KEY)
    assert found is not None
    assert (found.registration, found.tokens) == (STORED.registration, None)


async def test_one_node_refreshes_at_a_time_and_the_next_sees_what_it_saved() -> None:
    nodes = Stage()
    tables = [nodes.open() for _ in range(3)]
    await open_store(tables[0]).save(STORED)
    inside, seen = 0, list[str]()

    async def refresh(table: SharedTable, number: int) -> None:
        nonlocal inside
        store = open_store(table)
        async with store.lock(KEY):
            inside += 1
            assert inside == 1
            found = await store.find(KEY)
            assert found is not None
            assert found.tokens is not None
            seen.append(found.tokens.access_token)
            await asyncio.sleep(0)
            await store.save(replace(STORED, tokens=TokenSet(access_token=f"new{number}")))
            inside -= 1

    async with asyncio.TaskGroup() as tasks:
        for number, table in enumerate(tables):
            tasks.create_task(refresh(table, number))
    assert seen[0] == "access-0"
    assert len({*seen}) == 3


async def test_a_lost_lock_ends_and_brokers_that_are_gone_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Stage()
    first, second = nodes.open(), nodes.open()
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    async with open_store(first).lock(KEY):
        await second.load()
        with pytest.raises(AuthFault, match="another node"):
            async with open_store(second).lock(KEY):
                pass
        async with open_store(second, BOB).lock(KEY):
            pass
        later = module.now_ms() + module._LOCK_MS + 1
        monkeypatch.setattr(module, "now_ms", lambda: later)
        monkeypatch.setattr(module, "_WAIT_S", 30.0)
        async with open_store(second).lock(KEY):
            pass

    async def fail(*_: object) -> None:
        raise ClusterFault("away", "no broker")

    monkeypatch.setattr(first, "put", fail)
    with pytest.raises(AuthFault, match="cannot be reached") as caught:
        await open_store(first).save(STORED)
    assert caught.value.is_transient
