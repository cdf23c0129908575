"""A user of the broker without the key: what it hears, forges, repeats, overwrites and deletes changes nothing."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from tests.support.broker import KEY, BrokerProcess, broker_process, name_node, new_cluster
from tests.support.cluster import open_members, open_pair
from tests.support.servers import honest
from tests.support.waiting import until

from indusagi.interop.protocol_bridge.contract import ProtocolFault
from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterFault, ClusterSettings, WrongKeyError
from induscode.cluster.jetstream import open_bucket
from induscode.cluster.key import Seal
from induscode.cluster.node import open_node
from induscode.cluster.opening import prepare_cluster
from induscode.cluster.proofs import PROOF, OfferRegistry, issue_offer_key, revoke_offer_key

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from tests.support.cluster import Member

    from indusagi.interop.protocol_bridge.contract import StdioServerConfig
    from induscode.cluster.jetstream import BucketEntry

pytestmark = [pytest.mark.anyio, pytest.mark.process]
CANARY = "canary-81c2"
UNHEARD = b"NATS/1.0 503\r\n\r\n"


class Attacker:
    """A client of the broker that hears everything, and has no key."""

    def __init__(self, client: Client, settings: ClusterSettings) -> None:
        self.client = client
        self._settings = settings
        self.heard: list[Msg] = []

    async def hear(self, message: Msg) -> None:
        self.heard.append(message)

    async def repeat(self, messages: list[Msg]) -> None:
        """Send messages again: as they were, with another reply, and to the subjects of all others."""
        subjects = sorted(
            {message.subject for message in messages if message.subject.startswith(self._settings.prefix)}
        )
        replies = sorted({message.reply for message in messages})
        for message in messages:
            for reply in ("", message.reply, *replies[:4]):
                await self.client.publish(message.subject, message.data, reply)
            for subject in subjects[:12]:
                await self.client.publish(subject, message.data, message.reply)
        await self.client.flush()

    async def deny(self, messages: list[Msg]) -> None:
        """Say in the broker's name that nobody listens: the status 503, as the broker sends it."""
        for subject in sorted({message.reply for message in messages if message.reply}):
            head = f"HPUB {subject} {len(UNHEARD)} {len(UNHEARD)}\r\n".encode()
            await self.client._send_command(head + UNHEARD + b"\r\n")
        await self.client.flush()

    async def forge(self, members: list[Member]) -> None:
        """Send what earlier versions sent: requests, reports, frames and ends in plain JSON."""
        settings = self._settings
        for info in (member.node.info for member in members):
            for value in ({"op": "drain"}, {"op": "own", "key": "x"}, {"op": "ping"}):
                await self.client.publish(
                    settings.subject("node", info.instance), json.dumps(value).encode(), "reply.x"
                )
            for value in ({"gone": info.instance}, info.to_json(), {"waiting": info.to_json()}):
                await self.client.publish(settings.subject("beat"), json.dumps(value).encode())
        for message in [*self.heard]:
            if ".inbox." in message.subject:
                for data in (b"E\0\0\0\0{}", b"F\0\0\0\1" + b'{"jsonrpc":"2.0","id":1,"result":{}}', b"X{}"):
                    await self.client.publish(message.subject, data)
        await self.client.flush()

    async def change_entries(self, bucket: str, what: str, before: list[Msg]) -> None:
        """Overwrite, delete or put back every entry of a bucket."""
        values = await self.client.jetstream().key_value(bucket)  # pyright: ignore[reportUnknownMemberType] — untyped options
        for key in await values.keys():  # pyright: ignore[reportUnknownMemberType] — untyped options
            if what == "delete":
                await values.delete(key)
            elif what == "overwrite":
                await values.put(key, b'{"ended":true,"server":"honest","node":"evil","lease":"evil-1"}')
            else:
                old = [message.data for message in before if message.subject == f"$KV.{bucket}.{key}" and message.data]
                for data in old[:1]:
                    await values.put(key, data)


@asynccontextmanager
async def attacker_at(settings: ClusterSettings) -> AsyncGenerator[Attacker]:
    client = await nats.connect(settings.brokers[0])  # pyright: ignore[reportUnknownMemberType] — untyped options
    attacker = Attacker(client, settings)
    await client.subscribe(">", cb=attacker.hear)  # pyright: ignore[reportUnknownMemberType] — untyped options
    await client.flush()
    try:
        yield attacker
    finally:
        await client.close()


def logged(path: Path) -> StdioServerConfig:
    """A server whose every line of input is kept in a file."""
    server = honest()
    words = shlex.join((server.command, *server.args))
    return replace(server, command="/bin/sh", args=("-c", f"tee -a {shlex.quote(str(path))} | {words}"))


def count_calls(path: Path, text: str) -> int:
    return path.read_text(encoding="utf-8").count(text)


async def echo(member: Member, text: str) -> None:
    """Call, as clients do, until a call is answered; a call that fails has no effect or an unknown one."""
    result = await member.endpoint().invoke("echo", {"text": text})
    assert text in json.dumps([*result.content])


async def test_finding_r2_a_listener_reads_no_arguments_results_or_names(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with attacker_at(settings) as attacker, open_pair(settings, honest()) as (owner, other):
        await echo(other, CANARY)
        await echo(owner, CANARY)
        await other.node.membership.ask(owner.node.info.instance, {"op": "ping"})
        await until(lambda: any(".call." in message.subject for message in attacker.heard))
        await until(lambda: any(".inbox." in message.subject for message in attacker.heard))
        heard = [message.data for message in attacker.heard if message.subject.startswith((settings.prefix, "$KV"))]
    assert len(heard) > 10
    for word in (CANARY, "echo", "jsonrpc", "honest", "drain", "ping", "instance", "lease"):
        assert not any(word.encode() in data for data in heard), word


async def test_finding_r2_a_client_without_the_key_forges_and_repeats_nothing(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings, log = await new_cluster(broker), tmp_path / "input"
    async with attacker_at(settings) as attacker, open_pair(settings, logged(log)) as (owner, other):
        epoch = (await owner.node.placements.list_all())[0].epoch
        for number in range(4):
            await echo(other, f"call-{number}.")
            heard = [*attacker.heard]
            await attacker.forge([owner, other])
            await attacker.repeat([one for one in heard if one.subject.startswith(settings.prefix)][-20:])
            await attacker.deny(heard)
            await echo(other, f"after-{number}.")
        for number in range(4):
            assert count_calls(log, f"call-{number}.") == count_calls(log, f"after-{number}.") == 1
        assert [info.node for info in other.node.membership.list_nodes()] == ["one", "two"]
        assert not any(info.draining for info in other.node.membership.list_nodes())
        assert [one.epoch for one in await other.node.placements.list_all()] == [epoch]
        # After a new connection too: nothing of the old channel counts in the new one.
        heard = [one for one in attacker.heard if ".call." in one.subject or ".inbox." in one.subject]
        await other.fleet.restart("honest")
        await attacker.repeat(heard[-20:])
        await echo(other, "again.")
        assert count_calls(log, "again.") == count_calls(log, "call-0.") == 1


@pytest.mark.parametrize("what", ["overwrite", "delete", "put back"])
async def test_finding_r2_leases_and_placements_outlive_a_client_without_the_key(
    broker: BrokerProcess, tmp_path: Path, what: str
) -> None:
    settings, log = await new_cluster(broker, lease_s=8.0), tmp_path / "input"
    async with attacker_at(settings) as attacker, open_pair(settings, logged(log)) as (owner, other):
        lease, lost = owner.node.info.lease, list[str]()
        owner.node.on_note.add(lost.append)
        await echo(other, "before.")
        [placement] = await owner.node.placements.list_all()
        for _ in range(2):
            before = [*attacker.heard]
            for bucket in (settings.placements, settings.leases):
                await attacker.change_entries(bucket, what, before)
            await echo(other, "meanwhile.")

            async def is_restored() -> bool:
                found = await other.node.placements.find(placement.key)
                return found == placement and await other.node.membership.list_silent() == []

            await until(is_restored)
            await owner.node.membership.renew()
            await other.node.membership.renew()
            assert owner.node.membership.holds(lease)
        async with open_members([name_node(settings, "three")], [logged(log)]) as (third,):
            await echo(third, "third.")
            assert not third.owns
        assert count_calls(log, "meanwhile.") == 2
        assert not any("lost" in text for text in lost)


async def test_servers_of_a_node_that_was_claimed_meanwhile_end_here(broker: BrokerProcess) -> None:
    """A later epoch is the truth, also if a lease was tampered with: the server with the lower one ends."""
    settings = await new_cluster(broker)
    async with open_pair(settings, honest()) as (owner, other):
        [placement] = await owner.node.placements.list_all()
        entries = await open_bucket(other.node.broker, settings.placements)
        later = replace(placement, lease=other.node.info.lease, node="two", epoch=placement.epoch + 1)
        await entries.put(placement.key, other.node.placements._seal(later), placement.revision)
        await owner.node._check_placements()
        served = owner.node.served
        await until(lambda: all(one.placement.epoch != placement.epoch for one in served.values()))


# -- a machine that only offers its servers -----------------------------------------------------


def offering(server: str) -> StdioServerConfig:
    return replace(honest(), command=f"cluster:ada/{server}", args=())


async def test_finding_r2_an_offering_node_has_a_key_of_its_own_that_reaches_nothing_else_and_can_be_revoked(
    broker: BrokerProcess,
) -> None:
    settings = await new_cluster(broker, lease_s=8.0)
    async with open_broker(settings) as opened:
        key = await issue_offer_key(opened, KEY, "ada")
        laptop = replace(settings, node="ada", role="offers", key=None, offer=key)
        async with attacker_at(settings) as attacker, open_members([laptop], [honest()]) as (ada,):
            async with open_members([name_node(settings, "gw")], [offering("honest")]) as (gateway,):
                await echo(gateway, CANARY)
                assert ada.owns
                assert [info.node for info in gateway.node.membership.list_nodes()] == ["ada", "gw"]
                assert [info.node for info in ada.node.membership.list_nodes()] == ["ada"]
                await _abuse_offer_key(Seal.of_offer(key), settings, attacker, gateway)
                assert await revoke_offer_key(opened, KEY, "ada")
                await until(lambda: [info.node for info in gateway.node.membership.list_nodes()] == ["gw"])
                with suppress(ProtocolFault):
                    await gateway.endpoint().invoke("echo", {"text": "late"})
                assert [one.server for one in await gateway.node.placements.list_all()] == []
        with pytest.raises(WrongKeyError, match="'ada' was revoked or replaced"):
            async with open_node(laptop):
                pass
        again = await issue_offer_key(opened, KEY, "ada")
        async with open_node(replace(laptop, offer=again)):
            pass


async def _abuse_offer_key(seal: Seal, settings: ClusterSettings, attacker: Attacker, gateway: Member) -> None:
    """Do with the key of a laptop what only the key of the cluster allows."""
    info, publish = gateway.node.info, attacker.client.publish
    for value in ({"op": "drain"}, {"op": "own", "key": "x"}):
        subject = settings.subject("node", info.instance)
        await publish(subject, seal.seal(f"{subject} ", {**value, "from": "ada.x", "number": 1}))
    await publish(
        settings.subject("beat"), seal.seal(settings.subject("beat"), {"gone": info.instance, "number": 10**9})
    )
    for bucket, name in ((settings.leases, info.lease), (settings.placements, "f" * 32)):
        value: Any = {"ended": True, "server": "honest", "node": "ada", "lease": info.lease, "epoch": 1}
        values = await attacker.client.jetstream().key_value(bucket)  # pyright: ignore[reportUnknownMemberType] — untyped options
        await values.put(name, seal.seal(f"{bucket}/{name}", value))
    await attacker.client.flush()
    await gateway.node.membership.renew()
    assert gateway.node.membership.is_held()
    assert not gateway.node.info.draining
    assert await gateway.node.placements.list_all() == [
        one for one in await gateway.node.placements.list_all() if one.key.startswith("ada.")
    ]
    # It opens no message but those that it has sealed itself.
    others = [one for one in attacker.heard if one.subject == settings.subject("beat") and b"ada:" not in one.data[:8]]
    assert others
    assert all(seal.open(one.subject, one.data) is None for one in others)


async def test_names_that_are_made_up_are_looked_up_within_limits_and_an_earlier_entry_counts_no_more(
    broker: BrokerProcess,
) -> None:
    settings = await new_cluster(broker)
    async with open_broker(settings) as opened:
        keys = await open_bucket(opened, settings.keys)
        registry, looked = OfferRegistry(opened, keys, KEY), list[str]()
        get = keys.get

        async def count(key: str) -> BucketEntry | None:
            looked.append(key)
            return await get(key)

        keys.get = count
        for number in range(200):
            assert await registry.find(f"n{number}", "s") is None
        assert len(looked) <= 2 * 20  # a second may have passed
        registry = OfferRegistry(opened, keys, KEY)
        first = await issue_offer_key(opened, KEY, "ada")
        old = await get("offer.ada")
        assert await registry.find("ada", first.serial) is not None
        second = await issue_offer_key(opened, KEY, "ada")
        present = await get("offer.ada")
        assert old is not None
        assert present is not None
        registry._known["ada"] = replace(registry._known["ada"], read_at=-10.0)
        assert await registry.find("ada", second.serial) is not None
        await keys.put("offer.ada", old.value, present.revision)  # put back
        for serial, counts in ((first.serial, False), (second.serial, True)):
            registry._known["ada"] = replace(registry._known["ada"], read_at=-10.0)
            assert (await registry.find("ada", serial) is not None) is counts


# -- versions -----------------------------------------------------------------------------------


async def test_cluster_of_an_earlier_version_is_refused_until_it_is_prepared_again(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    async with open_broker(settings) as opened:
        keys, leases = await open_bucket(opened, settings.keys), await open_bucket(opened, settings.leases)
        present = await keys.get(PROOF)
        assert present is not None
        await keys.put(PROOF, KEY.seal(settings.keys, PROOF.encode()), present.revision)
        with pytest.raises(ClusterFault, match="update and stop all nodes, then run `indus cluster init` once"):
            async with open_node(settings):
                pass
        revision = await leases.put("old-1", b'{"beat":1,"node":"old"}')
        with pytest.raises(ClusterFault, match="nodes of an earlier version of indus run: stop all nodes first"):
            await prepare_cluster(opened, replicas=1)
        await leases.delete("old-1", revision)
        await prepare_cluster(opened, replicas=1)
        async with open_node(settings):
            pass


# -- permissions --------------------------------------------------------------------------------

DEPLOYMENT = Path(__file__).parents[2] / "docs" / "reference" / "cluster.md"


def find_template() -> str:
    """Return the accounts on the reference page."""
    [block] = [
        one
        for one in re.findall(r"```text\n(.*?)```", DEPLOYMENT.read_text(encoding="utf-8"), re.DOTALL)
        if "permissions" in one
    ]
    return block


async def test_permissions_of_the_reference_are_enough_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAYS_PASSWORD", "g-secret")
    monkeypatch.setenv("ADA_PASSWORD", "a-secret")
    config = tmp_path / "nats.conf"
    await asyncio.to_thread(config.write_text, find_template(), encoding="utf-8")
    with broker_process(tmp_path / "broker", ["-c", str(config)]) as process:
        url = f"nats://127.0.0.1:{process.port}"
        settings = ClusterSettings(brokers=[url], node="gw", key=KEY, credentials="gateways:g-secret")
        async with open_broker(settings) as opened:
            await prepare_cluster(opened, replicas=1)
            offer = await issue_offer_key(opened, KEY, "ada")
        laptop = replace(settings, node="ada", role="offers", key=None, offer=offer, credentials="ada:a-secret")
        async with open_members([laptop], [honest()]) as (ada,):
            async with open_members([settings, name_node(settings, "two")], [offering("honest")]) as members:
                for member in members:
                    await echo(member, CANARY)
                assert ada.owns
                await members[0].node.membership.ask(ada.node.info.instance, {"op": "drain"})
                await until(lambda: not ada.owns)
                await _try_everything(url, members[0])
        async with open_node(laptop):
            pass


async def _try_everything(url: str, gateway: Member) -> None:
    """Try as the laptop's user what its permissions leave out: the broker refuses each."""
    refused: list[str] = []

    async def keep(exc: Exception) -> None:
        refused.append(str(exc).lower())

    client = await nats.connect(url, user="ada", password="a-secret", error_cb=keep)  # pyright: ignore[reportUnknownMemberType] — untyped options
    try:
        lease = gateway.node.info.lease
        for subject in (f"$KV.indus_leases.{lease}", "$KV.indus_placements.x", "$KV.indus_keys.proof", "_INBOX.x.y",
                        "indus.call.key.1", "$KV.indus_shared.x", "$JS.API.STREAM.DELETE.KV_indus_leases",
                        "$JS.API.STREAM.PURGE.KV_indus_leases", "indus.ledger.chain.x",
                        "$JS.API.CONSUMER.CREATE.KV_indus_leases",
                        f"indus.node.{gateway.node.info.instance}"):  # fmt: skip
            refused.clear()
            await client.publish(subject, b"x")
            await client.flush()
            await until(lambda: any("permissions violation for publish" in text for text in refused))
        for subject in (">", "indus.>", "_INBOX.>", "indus.inbox.*.*", "indus.call.*.*", "$KV.>"):
            refused.clear()
            await client.subscribe(subject, cb=keep_message)  # pyright: ignore[reportUnknownMemberType] — untyped options
            await client.flush()
            await until(lambda: any("permissions violation for subscription" in text for text in refused))
    finally:
        await client.close()
    assert gateway.node.membership.is_held()


async def keep_message(_: Msg) -> None:
    pytest.fail("the laptop heard something")
