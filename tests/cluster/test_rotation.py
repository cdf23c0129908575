"""Replacing the key of a cluster: shared entries are sealed again, ledgers stay verifiable, old keys are refused."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.cluster.test_shared_ledger import open_ledger
from tests.support.broker import SHORT_LEASE_S, BrokerProcess, name_node, new_cluster
from tests.support.cluster import LeaseClock
from tests.support.waiting import until

from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterFault
from induscode.cluster.jetstream import Stream, open_bucket
from induscode.cluster.key import ClusterKey, UnsealedError, read_key, write_key
from induscode.cluster.node import open_node
from induscode.cluster.proofs import PROOF, REPLACED, check_key
from induscode.cluster.shared import rotation
from induscode.cluster.shared.rotation import rotate_key
from induscode.cluster.shared.state import CallPublisher, read_calls
from induscode.cluster.shared.table import SharedTable, open_table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from induscode.cluster.contract import ClusterSettings

pytestmark = [pytest.mark.anyio, pytest.mark.process]
FACTS: JsonObject = {"identity": "i", "kind": "tool", "tool": "t", "pin": "p"}


@asynccontextmanager
async def open_shared(settings: ClusterSettings) -> AsyncGenerator[tuple[SharedTable, list[str]]]:
    notes: list[str] = []
    async with open_broker(settings) as opened:
        yield await open_table(opened, notes.append), notes


async def share_entries(settings: ClusterSettings) -> None:
    async with open_shared(settings) as (table, _):
        await table.put(table.build_key("server", "a"), {"name": "a", "row": {"command": "secret"}})
        await table.put(table.build_key("server", "b"), {"name": "b"})
        await table.put(table.build_key("server", "b"), None)
        await table.put(table.build_key("rules"), {"rules": {}})
        await table.put(table.build_key("pin", "i", "tool", "t", "p"), {"facts": FACTS, "subject": "t"})
        await table.put(table.build_key("consent", "digest", "node"), {"digest": "digest", "by": "node"})


async def rotate(settings: ClusterSettings, path: str) -> ClusterSettings:
    async with open_broker(settings) as opened:
        await rotate_key(opened, path)
    return replace(settings, key=await asyncio.to_thread(read_key, path))


async def check_entries(settings: ClusterSettings) -> None:
    async with open_shared(settings) as (table, notes):
        assert table.list("server") == {table.build_key("server", "a"): {"name": "a", "row": {"command": "secret"}}}
        assert [*table.list("rules")] == [table.build_key("rules")]
        assert [*table.list("pin")] == [table.build_key("pin", "i", "tool", "t", "p")]
        assert table.list("consent") == {}
        assert notes == []


async def test_new_key_opens_everything_and_the_old_one_nothing_new(broker: BrokerProcess, tmp_path: Path) -> None:
    old, path = await new_cluster(broker), str(tmp_path / "cluster.key")
    assert old.key is not None
    await asyncio.to_thread(write_key, path, old.key)
    await share_entries(old)
    async with open_ledger(old, tmp_path / "ledger") as ledger:
        await ledger.publish(1, 2)
        await ledger.auditor.anchor()
        calls = CallPublisher(ledger.broker, old.key)
        calls.put([("before",)])
        await calls.publish_all()
    new = await rotate(old, path)
    assert new.key is not None
    await check_entries(new)
    for refused in (old, replace(old, key=ClusterKey(bytes(32)))):
        reason = "was replaced" if refused is old else "another key"
        with pytest.raises(ClusterFault, match=reason):
            async with open_node(refused):
                pass
    async with open_ledger(new, tmp_path / "ledger") as ledger:
        await ledger.publish(3)
        await ledger.auditor.anchor()
        report = await ledger.verify()
        assert (report.problems, report.own_rows, report.anchors, len(report.chains)) == ([], 3, 2, 1)
        calls = CallPublisher(ledger.broker, new.key)
        calls.put([("after",)])
        await calls.publish_all()
        # Its holder can still write to the brokers; it is not of a node any more.
        subject = f"{old.prefix}.calls.test"
        await ledger.broker.client.publish(subject, old.key.seal(subject, b'{"node":"x","calls":[["forged"]]}'))
        forged = old.subject("ledger.chain", "ffff")
        await ledger.broker.client.publish(forged, old.key.seal(forged, b"{}"))
        await ledger.broker.client.flush()
        assert [row async for _, row in read_calls(ledger.broker, 1)] == [["after"], ["before"]]
        [problem] = await ledger.list_problems()
        assert "is not of a node of this cluster" in problem
    # Once more: both earlier keys stay in the file.
    newest = await rotate(new, path)
    await check_entries(newest)
    assert newest.key is not None
    assert len(newest.key.previous) == 2


async def test_key_of_a_cluster_with_nodes_is_not_replaced(broker: BrokerProcess, tmp_path: Path) -> None:
    settings, path = await new_cluster(broker), str(tmp_path / "cluster.key")
    assert settings.key is not None
    await asyncio.to_thread(write_key, path, settings.key)
    async with open_node(name_node(settings, "busy")), open_broker(settings) as opened:
        with pytest.raises(ClusterFault, match="stop all nodes first; there are: busy"):
            await rotate_key(opened, path)
        assert await check_key(opened)


async def test_new_key_that_cannot_be_read_is_named(broker: BrokerProcess, tmp_path: Path) -> None:
    settings, path = await new_cluster(broker), tmp_path / "cluster.key"
    assert settings.key is not None
    await asyncio.to_thread(write_key, str(path), settings.key)
    pending = tmp_path / "cluster.key.new"
    async with open_broker(settings) as opened:
        for damage in (lambda: pending.write_text("no key"), lambda: (pending.unlink(), pending.mkdir())):
            await asyncio.to_thread(damage)
            with pytest.raises(ClusterFault, match="it is of a rotation that was interrupted: remove it if"):
                await rotate_key(opened, str(path))
        assert await check_key(opened)


async def test_node_that_was_away_during_a_rotation_gets_no_lease_and_shares_nothing(broker: BrokerProcess) -> None:
    settings, clock = await new_cluster(broker, SHORT_LEASE_S), LeaseClock()
    assert settings.key is not None
    async with open_node(name_node(settings, "away"), clock) as node:
        notes: list[str] = []
        node.on_note.add(notes.append)
        table = await open_table(node.broker, notes.append)
        await table.put(table.build_key("server", "a"), {"name": "a"})
        # As a rotation does after the lease has ended, with another key.
        keys = await open_bucket(node.broker, settings.keys)
        proof = await keys.get(PROOF)
        assert proof is not None
        await keys.put(REPLACED, settings.key.seal(f"{settings.keys}/{REPLACED}", b"{}"))
        await keys.put(PROOF, ClusterKey(bytes(32)).seal(settings.keys, PROOF.encode()), proof.revision)
        clock.pass_lease()
        await until(lambda: any("this node gets no lease: the key of the cluster was replaced" in one for one in notes))
        assert not node.membership.is_held()
        with pytest.raises(ClusterFault, match="this node has no lease now, and shares nothing"):
            await table.put(table.build_key("server", "a"), {"name": "b"})
        with pytest.raises(ClusterFault, match="shares nothing"):
            await Stream(node.broker, settings.calls).publish(settings.subject("calls", "away"), b"")


@pytest.mark.parametrize("step", ["_seal_again", "_remove_old", "_leave_word"])
async def test_interrupted_rotation_is_finished_by_the_next(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    settings, path = await new_cluster(broker), str(tmp_path / "cluster.key")
    assert settings.key is not None
    await asyncio.to_thread(write_key, path, settings.key)
    await share_entries(settings)
    work = getattr(rotation, step)

    async def fail(*arguments: object) -> None:
        await work(*arguments)
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(rotation, step, fail)
        with pytest.raises(InterruptedError):
            await rotate(settings, path)
    before = (await asyncio.to_thread(read_key, f"{path}.new")).encode().split()[0]
    new = await rotate(settings, path)
    assert new.key is not None
    assert new.key.encode().split()[0] == before
    await check_entries(new)
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["cluster.key"]


async def test_key_of_an_attempt_that_another_rotation_has_overtaken_is_not_used(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, path, other = await new_cluster(broker), str(tmp_path / "cluster.key"), str(tmp_path / "other.key")
    assert first.key is not None
    for one in (path, other):
        await asyncio.to_thread(write_key, one, first.key)

    async def fail(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(rotation, "_seal_again", fail)
        with pytest.raises(InterruptedError):
            await rotate(first, path)
    second = await rotate(first, other)
    assert second.key is not None
    await asyncio.to_thread(write_key, path, second.key)  # as an operator copies it
    async with open_ledger(second, tmp_path / "ledger") as ledger:
        await ledger.publish(1, 2)
    third = await rotate(second, path)
    assert third.key is not None
    assert [one.key.derive("x") for one in third.key.previous] == [key.derive("x") for key in (second.key, first.key)]
    async with open_ledger(third, tmp_path / "ledger") as ledger:
        assert (await ledger.verify()).problems == []


async def test_two_rotations_with_one_file_leave_the_key_of_the_cluster(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, path = await new_cluster(broker), str(tmp_path / "cluster.key")
    assert settings.key is not None
    await asyncio.to_thread(write_key, path, settings.key)
    seal = rotation._seal_again  # after it, the key changes
    reading, sealing, rotated = list[str](), list[str](), list[str]()

    async def read_nothing(where: str) -> None:  # both look for a key that waits before the other one has written it
        reading.append(where)
        await until(lambda: len(reading) == 2 or bool(refused))

    async def seal_in_turn(*arguments: Any) -> tuple[int, int]:
        sealing.append("")
        is_first = len(sealing) == 1
        await until(lambda: bool(refused or rotated) or (is_first and len(sealing) == 2))
        return await seal(*arguments)

    monkeypatch.setattr(rotation, "_read_pending", read_nothing)
    monkeypatch.setattr(rotation, "_seal_again", seal_in_turn)
    refused: list[str] = []

    async def try_to_rotate() -> None:
        try:
            await rotate(settings, path)
            rotated.append(path)
        except ClusterFault as fault:
            refused.append(str(fault))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(try_to_rotate())
    assert refused == ["another rotation of the key is under way"]
    async with open_broker(replace(settings, key=await asyncio.to_thread(read_key, path))) as opened:
        assert await check_key(opened)


def test_previous_key_opens_messages_of_its_time_only(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.key")
    old = ClusterKey(bytes(32))
    write_key(path, old.replace(ledger=5, calls=2))
    key = read_key(path)
    sealed = old.seal("place", b"data")
    assert key.unseal_message("ledger", "place", sealed, 5) == b"data"
    for stream, number in (("ledger", 6), ("calls", 3)):
        with pytest.raises(UnsealedError):
            key.unseal_message("calls" if stream == "calls" else "ledger", "place", sealed, number)
    with pytest.raises(UnsealedError):
        key.unseal("place", sealed)
    for damaged in (b"", b"nonsense", key.encode() + b"more\n", key.encode().replace(b":5:", b":x:")):
        (tmp_path / "cluster.key").write_bytes(damaged)
        with pytest.raises(ValueError, match="no key of a cluster"):
            read_key(path)


def test_no_earlier_key_is_left_out_of_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.key")
    first = key = ClusterKey(bytes(32))
    for number in range(1, 121):  # once a month for ten years
        write_key(path, key.replace(ledger=10**12 + number, calls=10**12 + number))
        key = read_key(path)
    assert key.unseal_message("ledger", "place", first.seal("place", b"data"), 5) == b"data"
