"""Proofs in the bucket of keys: that a process has the cluster's key, or a valid key for offering its servers.

An offering node's entry names the serial of its current key, sealed with the cluster key. A node that has seen a later
entry ignores an earlier one put back in its place. A second part of the entry, sealed with the offer key itself, lets
its holder check that it's valid. Everything here raises `ClusterFault` if the brokers fail or don't answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject, compact_json
from indusagi.core.records import record
from indusagi.core.time import now_ms
from induscode.cluster.contract import ClusterFault, ClusterSettings, LostRaceError, WrongKeyError, read_object
from induscode.cluster.jetstream import Bucket, open_bucket
from induscode.cluster.key import ClusterKey, OfferKey, Seal, SealRing, UnsealedError

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker

PROOF = "proof"
"""Entry with the proof of the cluster key."""
REPLACED = "replaced"
"""Entry that lets holders of an earlier key know it was replaced."""

_CHECK_EVERY_S = 1.0
"""How long to trust an offer key before looking it up again."""
_MAX_UNKNOWN = 20
"""Lookups of names without a key in that time, since anyone can make up names."""


def find_proof_place(settings: ClusterSettings) -> str:
    """Return the place of the key's proof. Earlier versions, which didn't seal messages, used another."""
    return f"{settings.keys}/{PROOF} 2"


async def check_key(broker: Broker) -> bool:
    """Check that this process's key is valid. Return False if the cluster doesn't have one yet.

    Raises:
        WrongKeyError: The cluster has another key, or replaced or revoked this offer key.
        ClusterFault: The broker doesn't answer, or an earlier version prepared the cluster.
    """
    key, offer, name = broker.settings.key, broker.settings.offer, broker.settings.keys
    bucket = await open_bucket(broker, name)
    if offer is not None:
        entry_name, place = _find_place(broker, offer.node)
        entry = await bucket.get(entry_name)
        if entry is not None and Seal.of_offer(offer).open(place, _read_part(entry.value, "offer")) is not None:
            return True
        message = f"the key of the offering node {offer.node!r} was revoked or replaced"
        raise WrongKeyError(f"{message}: get another from `indus cluster offer-key {offer.node}`")
    entry = await bucket.get(PROOF)
    if entry is None:
        return False
    if key is None or key.has_sealed(find_proof_place(broker.settings), entry.value):
        return True
    if key.has_sealed(name, entry.value):
        message = "an earlier version of indus has prepared this cluster, and its nodes send unsealed messages"
        raise ClusterFault("ready", f"{message}: update and stop all nodes, then run `indus cluster init` once")
    replaced = await bucket.get(REPLACED)
    if replaced is not None and key.has_sealed(f"{name}/{REPLACED}", replaced.value):
        remedy = "copy the new key file to this machine"
        raise WrongKeyError(f"the key of the cluster was replaced (indus cluster rotate-key): {remedy}")
    remedy = "copy the key file of the one that prepared it"
    raise WrongKeyError(f"the cluster has another key than this machine: {remedy}")


# -- keys of offering nodes -------------------------------------------------------------------


def _find_place(broker: Broker, node: str) -> tuple[str, str]:
    """Return the key of a node's entry, and its place."""
    return f"offer.{node}", f"{broker.settings.keys}/offer.{node}"


async def issue_offer_key(broker: Broker, key: ClusterKey, node: str) -> OfferKey:
    """Issue a key to an offering node, which revokes its previous one."""
    offer = key.derive_offer(node, secrets.token_hex(6))
    await _write_entry(broker, key, node, offer)
    return offer


async def revoke_offer_key(broker: Broker, key: ClusterKey, node: str) -> bool:
    """Revoke an offering node's key, and return whether it had one."""
    keys = await open_bucket(broker, broker.settings.keys)
    if await keys.get(_find_place(broker, node)[0]) is None:
        return False
    await _write_entry(broker, key, node, None)
    return True


async def _write_entry(broker: Broker, key: ClusterKey, node: str, offer: OfferKey | None) -> None:
    keys = await open_bucket(broker, broker.settings.keys)
    name, place = _find_place(broker, node)
    serial = "" if offer is None else offer.serial
    sealed = key.seal(place, compact_json({"serial": serial, "version": now_ms()}).encode())
    proof = b"" if offer is None else Seal.of_offer(offer).seal(place, {})
    parts: JsonObject = {"cluster": base64.b64encode(sealed).decode(), "offer": base64.b64encode(proof).decode()}
    value, present = compact_json(parts).encode(), await keys.get(name)
    try:
        await keys.put(name, value, None if present is None else present.revision)
    except LostRaceError as exc:
        raise ClusterFault("ready", f"another command changes the key of {node!r} now: try again") from exc


def _read_part(data: bytes, part: str) -> bytes:
    try:
        return base64.b64decode(str(read_object(data).get(part, "")))
    except ValueError:
        return b""


@record
class _KnownOffer:
    """An offering node's entry as last read."""

    read_at: float
    version: int
    seal: Seal | None = None
    serial: str = ""


class OfferRegistry:
    """The valid offer keys, as nodes with the cluster key know them."""

    def __init__(self, broker: Broker, keys: Bucket, key: ClusterKey) -> None:
        self._broker = broker
        self._keys = keys
        self._key = key
        self._known: dict[str, _KnownOffer] = {}
        self._unknown: deque[float] = deque(maxlen=_MAX_UNKNOWN)
        """Times of the last lookups of names without a key."""

    async def find(self, node: str, serial: str) -> Seal | None:
        """Return an offering node's seal, or `None` if a key with this serial isn't valid."""
        now, known = asyncio.get_running_loop().time(), self._known.get(node)
        if known is None:
            if len(self._unknown) == _MAX_UNKNOWN and now - self._unknown[0] < _CHECK_EVERY_S:
                return None
            self._unknown.append(now)
        if known is None or now - known.read_at > _CHECK_EVERY_S:
            with suppress(ClusterFault, LostRaceError):  # keep using the last entry
                entry = await self._keys.get(_find_place(self._broker, node)[0])
                known = self._take(node, b"" if entry is None else entry.value, now)
        return known.seal if known is not None and known.serial == serial else None

    def _take(self, node: str, data: bytes, now: float) -> _KnownOffer:
        """Apply a node's entry, unless it's older than the previous one. Without an entry, no key is valid."""
        known = self._known.get(node, _KnownOffer(now, 0))
        found = _KnownOffer(now, known.version)
        with suppress(UnsealedError, ValueError):
            text = self._key.unseal(_find_place(self._broker, node)[1], _read_part(data, "cluster"))
            value = json.loads(text)
            serial, version = str(value["serial"]), int(value["version"])
            if version < known.version:  # put back by a writer without the key
                found = replace(known, read_at=now)
            elif serial:
                found = _KnownOffer(now, version, Seal.of_offer(self._key.derive_offer(node, serial)), serial)
            else:
                found = _KnownOffer(now, version)
        if found.version:
            self._known[node] = found
        return found


async def open_ring(broker: Broker) -> SealRing:
    """Build this process's seals from the key in its settings.

    Raises:
        WrongKeyError: Its key differs from the cluster's, or its offer key was revoked.
        ClusterFault: It has no key, the cluster isn't prepared, or the broker doesn't answer.
    """
    settings = broker.settings
    if settings.key is None and settings.offer is None:
        message = "this needs the key of the cluster (--cluster-key), or for --offer-only a key of its own"
        raise ClusterFault("missing", f"{message}: indus cluster offer-key NODE makes one")
    if not await check_key(broker):
        raise ClusterFault("missing", "the cluster has no key; prepare it once with `indus cluster init`")
    if settings.key is None:
        assert settings.offer is not None
        return SealRing(Seal.of_offer(settings.offer))
    keys = await open_bucket(broker, settings.keys)
    return SealRing(Seal.of_cluster(settings.key), OfferRegistry(broker, keys, settings.key).find)
