"""Rotation of the cluster key, while no node runs.

Shared entries are resealed, under names derived from the new key. Ledgers and call records stay unchanged, and the new
key file opens them up to their current end. The new key waits in a file next to the old one until it takes effect.
After any interruption, the next attempt continues: first write the new entries, then replace the key's proof, which is
the switch, and last remove the old entries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from anyio import to_thread

from indusagi.core.json import is_json_object
from indusagi.core.records import record
from induscode.cluster.broker import Broker
from induscode.cluster.contract import ClusterFault, LostRaceError
from induscode.cluster.jetstream import Bucket, Stream, open_bucket
from induscode.cluster.key import ClusterKey, read_key, write_key
from induscode.cluster.membership import open_membership
from induscode.cluster.proofs import PROOF, REPLACED, check_key, find_proof_place
from induscode.cluster.shared.table import PIN, SharedTable, name_pin

_SUFFIX = ".new"
_UNDER_WAY = "another rotation of the key is under way"


@record(kw_only=True)
class Rotation:
    """The outcome of a rotation."""

    entries: int
    """Resealed shared entries."""
    left_out: int
    """Consents, which their nodes share again, and entries that couldn't be opened."""


async def rotate_key(broker: Broker, path: str) -> Rotation:
    """Replace a cluster's key, and this machine's key file. Continues an interrupted attempt."""
    path = await to_thread.run_sync(os.path.realpath, path)  # others may read the file behind a link
    with _locked_key(path):
        return await _rotate(broker, path)


@contextmanager
def _locked_key(path: str) -> Generator[None]:
    """Hold a key file's lock (flock(2)): two rotations would both write the new key's file, and only one key counts."""
    import fcntl  # noqa: PLC0415 — only a rotation pays

    with _explain("read"):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _explain("locked"):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


@contextmanager
def _explain(what: str, remedy: str = "") -> Generator[None]:
    """Turn an error of the key's file into a `ClusterFault`."""
    try:
        yield
    except BlockingIOError as exc:
        raise ClusterFault("ready", _UNDER_WAY) from exc
    except OSError as exc:
        raise ClusterFault("ready", f"the key cannot be {what}: {exc}{remedy}") from exc


async def _rotate(broker: Broker, path: str) -> Rotation:
    settings, pending = broker.settings, path + _SUFFIX
    old = settings.key
    assert old is not None
    keys = await open_bucket(broker, settings.keys)
    proof = await keys.get(PROOF)
    if proof is None:
        raise ClusterFault("missing", "the cluster has no key; prepare it once with `indus cluster init`")
    new = await _read_pending(pending)
    shared = await open_bucket(broker, settings.shared)
    written, left_out = 0, 0
    if new is None or not new.has_sealed(find_proof_place(settings), proof.value):
        await check_key(broker)
        await _check_empty(broker)
        ledger = (await Stream(broker, settings.ledger).read_state()).last
        calls = (await Stream(broker, settings.calls).read_state()).last
        limit = {"ledger": ledger, "calls": calls}
        # A pending key that follows another one is from an attempt another machine has overtaken: it opens too little.
        new = old.replace(**limit) if new is None or not new.follows(old) else new.limit_previous(**limit)
        with _explain("written"):
            await to_thread.run_sync(write_key, pending, new)
        written, left_out = await _seal_again(broker, shared, old, new)
        await _check_empty(broker)
        try:
            await keys.put(PROOF, new.seal(find_proof_place(settings), PROOF.encode()), proof.revision)
        except LostRaceError as exc:
            raise ClusterFault("ready", _UNDER_WAY) from exc
    await _remove_old(settings.shared, shared, new)
    await _leave_word(settings.keys, keys, old)
    with _explain("written", f"; the new one is in {pending}"):
        await to_thread.run_sync(os.replace, pending, path)
    return Rotation(entries=written, left_out=left_out)


async def _read_pending(path: str) -> ClusterKey | None:
    try:
        return await to_thread.run_sync(read_key, path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        remedy = "remove it if `indus cluster status` accepts the present key, then rotate again"
        raise ClusterFault("ready", f"{exc}; it is of a rotation that was interrupted: {remedy}") from exc


async def _check_empty(broker: Broker) -> None:
    """Check that no node has a lease or waits for one."""
    async with open_membership(broker, observer=True) as membership:
        there = [info.node for info in (*membership.list_nodes(), *membership.list_waiting())]
        names = sorted({*there, *await membership.list_silent()})
    if names:
        raise ClusterFault("ready", f"stop all nodes first; there are: {', '.join(names)}")


async def _seal_again(broker: Broker, shared: Bucket, old: ClusterKey, new: ClusterKey) -> tuple[int, int]:
    """Rewrite every shared entry with the new key. Returns how many were written, and how many skipped."""
    name = broker.settings.shared
    table = SharedTable(broker, shared, new, lambda _: None)
    written = left_out = 0
    for key, entry in (await shared.read_all()).items():
        try:
            value: object = json.loads(old.unseal(f"{name}/{key}", entry.value))
        except ValueError:
            left_out += not new.has_sealed(f"{name}/{key}", entry.value)
            continue
        content = value.get("value") if is_json_object(value) else None
        if not is_json_object(content):
            continue  # a tombstone
        kind, facts = key.partition(".")[0], content.get("facts")
        names: Sequence[str] | None = [] if kind == "rules" else None  # of its key; others are shared again
        if kind == PIN and is_json_object(facts):
            names = name_pin(facts)
        elif kind == "server":
            names = [str(content.get("name"))]
        if names is None:
            left_out += 1
            continue
        await table.put(table.build_key(kind, *names), content)
        written += 1
    return written, left_out


async def _remove_old(name: str, shared: Bucket, new: ClusterKey) -> None:
    for key, entry in (await shared.read_all()).items():
        if not new.has_sealed(f"{name}/{key}", entry.value):
            with suppress(LostRaceError):  # written with another key than the new one, so nodes ignore it
                await shared.delete(key, entry.revision)


async def _leave_word(name: str, keys: Bucket, old: ClusterKey) -> None:
    """Leave a message that only machines with the old key can read."""
    data, present = old.seal(f"{name}/{REPLACED}", b"{}"), await keys.get(REPLACED)
    with suppress(LostRaceError):  # only a message
        await keys.put(REPLACED, data, None if present is None else present.revision)
