"""The shared table: sealed entries of one bucket that every node follows.

An entry is written on the condition that the entry before it is the one that was read, and carries a version that only
grows. A node keeps what it has read: an entry that is not sealed with the key or is older than the known one changes
nothing, nor does a removal by other means than `remove`; a note says so. Changes arrive within moments: the broker
passes each write on to all nodes, which then read it; a node that missed one finds it at its next look. Brokers that
have lost the bucket, or its last entries, get them again from the nodes that run.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject, compact_json, is_json_object
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from induscode.cluster.broker import Broker, check_key
from induscode.cluster.bucket import Bucket, BucketEntry
from induscode.cluster.contract import ClusterFault, LostRaceError
from induscode.cluster.key import UnsealedError
from induscode.cluster.streams import Stream

if TYPE_CHECKING:
    from datetime import datetime

    from nats.aio.msg import Msg

    from induscode.cluster.key import ClusterKey
    from induscode.cluster.streams import StreamMessage

_log = logging.getLogger(__name__)

_LOOK_S = 5.0
"""How often the bucket is looked at without a notice of a change."""
_NOTICED_S = (0.0, 0.02, 0.08, 0.3, 0.6)
"""The pauses between the looks after a notice, until there is something new."""
_ATTEMPTS = 5
_MOST_ENTRIES = 20_000
_MOST_NOTES = 20
"""Notes about entries; a writer without the key can add any number of them."""
_LARGEST_BYTES = 512 * 1024
"""A larger entry is not written."""


class SharedTable:
    """The entries of a bucket by key; `load` them first."""

    def __init__(self, broker: Broker, bucket: Bucket, key: ClusterKey, on_note: Callable[[str], None]) -> None:
        self.name = broker.settings.shared
        self.on_change: Callable[[frozenset[str]], None] = lambda _: None
        """Called with the keys of the entries that have changed."""
        self._broker = broker
        self._bucket = bucket
        self._key = key
        self._on_note = on_note
        self._stream = Stream(broker, f"KV_{self.name}")
        self._subject = f"$KV.{self.name}."
        self._entries: dict[str, JsonObject] = {}
        self._versions: dict[str, int] = {}
        self._next = 1
        self._created: datetime | None = None
        """When the bucket was made whose entries are counted; None: it was not read yet, or was found to be lost."""
        self._noticed = asyncio.Event()
        self._told: set[str] = set()

    def list(self, kind: str) -> Mapping[str, JsonObject]:
        """Return the present entries of a kind by key."""
        return {key: value for key, value in self._entries.items() if key.startswith(f"{kind}.")}

    def build_key(self, kind: str, *names: str) -> str:
        """Build the key of an entry; the names cannot be read from it."""
        return f"{kind}.{self._key.digest('keys', compact_json([*names]))[:32]}"

    # -- writing ----------------------------------------------------------------------------

    async def put(self, key: str, value: JsonObject) -> None:
        """Write an entry.

        Raises:
            ClusterFault: It is too large, the broker did not do it, or this node has no lease.
        """
        await self._write(key, value)

    async def remove(self, key: str) -> None:
        """Remove an entry: a sealed mark takes its place, so that no one without the key can remove one.

        Raises:
            ClusterFault: The broker did not do it.
        """
        await self._write(key, None)

    async def _write(self, key: str, value: JsonObject | None) -> None:
        for _ in range(_ATTEMPTS):
            self._broker.check_write()
            present = await self._bucket.get(key)
            version = self._versions.get(key, 0)
            if present is not None:
                try:
                    version = max(version, _read_version(self._unseal(key, present.value)))
                except ValueError:
                    pass  # it is replaced
            entry: JsonObject = {"version": max(version + 1, now_ms()), "value": value}
            data = compact_json(entry).encode()
            sealed = data if len(data) > 8 * _LARGEST_BYTES else self._key.seal(f"{self.name}/{key}", data)
            if len(sealed) > _LARGEST_BYTES:
                raise ClusterFault("ready", f"it is too large to be shared: {len(sealed):,} bytes")
            if not await self._replace_entry(key, present, sealed):
                continue
            self._apply(key, entry)
            self._noticed.set()
            return
        raise ClusterFault("ready", f"other nodes change {key} all the time")

    async def _replace_entry(self, key: str, present: BucketEntry | None, sealed: bytes) -> bool:
        """Write an entry in the place of the `present` one; False if another node has changed it meanwhile."""
        try:
            if present is None:
                await self._bucket.create(key, sealed)
            else:
                await self._bucket.update(key, sealed, present.revision)
        except LostRaceError:
            return False
        return True

    def _unseal(self, key: str, data: bytes) -> JsonObject:
        value: object = json.loads(self._key.unseal(f"{self.name}/{key}", data))
        if not is_json_object(value):
            raise ValueError("it is no object")
        return value

    # -- following --------------------------------------------------------------------------

    async def load(self) -> None:
        """Read what is new, and report it.

        Raises:
            ClusterFault: The broker did not answer.
        """
        if self._next == 1 and not self._versions:
            self._created = (await self._stream.read_state()).created
        changed: set[str] = set()
        while True:
            message = await self._stream.read_next(self._next, f"{self._subject}>")
            if message is None:
                break
            self._next = message.number + 1
            changed |= self._take(message)
        if changed:
            self.on_change(frozenset(changed))

    def _take(self, message: StreamMessage) -> set[str]:
        key = message.subject.removeprefix(self._subject)
        if not message.data:
            if key in self._entries:
                self._tell(
                    f"the entry {key} was removed from the broker by other means than this program; it stays here"
                )
            return set()
        try:
            entry = self._unseal(key, message.data)
            version = _read_version(entry)
        except (UnsealedError, ValueError, RecursionError) as exc:
            self._tell(f"the entry {key} of the broker is ignored: {exc}")
            return set()
        if version < self._versions.get(key, 0):
            self._tell(f"the entry {key} of the broker is ignored: it is older than the one that was there")
            return set()
        return {key} if self._apply(key, entry) else set()

    def _apply(self, key: str, entry: JsonObject) -> bool:
        """Take an entry over; tell whether it differs from the one before."""
        self._versions[key] = _read_version(entry)
        value, known = entry.get("value"), self._entries.get(key)
        if not is_json_object(value):
            return self._entries.pop(key, None) is not None
        if known is None and len(self._entries) >= _MOST_ENTRIES:
            self._tell(f"there are more than {_MOST_ENTRIES:,} shared entries; further ones are ignored")
            return False
        self._entries[key] = value
        return value != known

    def _tell(self, text: str) -> None:
        if text in self._told or len(self._told) > _MOST_NOTES:
            return
        self._told.add(text)
        if len(self._told) > _MOST_NOTES:
            text = "further entries of the broker that are ignored are not told"
        self._on_note(text)

    async def notice(self, _: Msg) -> None:
        """Take a notice of the broker that an entry was written."""
        self._noticed.set()

    def look(self) -> None:
        """Look for changes now: the connection is back."""
        self._noticed.set()

    async def run(self) -> None:
        """Follow the entries; runs until cancelled."""
        stop = await self._broker.subscribe(f"{self._subject}>", self.notice)
        self._noticed.set()  # something may have been written before it listened
        try:
            while True:
                is_noticed = False
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._noticed.wait()
                        is_noticed = True
                except TimeoutError:
                    pass
                self._noticed.clear()
                try:
                    await self._read_noticed(_NOTICED_S if is_noticed else (0.0,))
                except ClusterFault as fault:
                    _log.debug("the shared entries are not read: %s", fault)
                    await asyncio.sleep(_LOOK_S / 10)
                    self._noticed.set()
        finally:
            await stop()

    async def _read_noticed(self, pauses: Sequence[float]) -> None:
        """Read what is new; a notice may come before the members of the broker have agreed on the entry."""
        before = self._next
        for pause in pauses:
            await asyncio.sleep(pause)
            await self.load()
            if self._next > before:
                return
        await self._restore()

    async def _restore(self) -> None:
        """Read everything again, and write what is missing, if the bucket was made anew or is an older copy.

        Raises:
            ClusterFault: The broker did not do it; the next look tries again.
        """
        state = await self._stream.read_state()
        if state.created == self._created and state.last + 1 >= self._next:
            return
        self._created = None
        if not await check_key(self._broker):
            return  # the cluster is being prepared
        self._next = 1
        await self.load()
        count = sum([await self._write_again(key) for key in [*self._versions]])
        self._created = state.created
        if count:
            entries = format_count(count, "entry", "entries")
            self._on_note(f"the brokers had lost what the nodes share: {entries} written again")

    async def _write_again(self, key: str) -> bool:
        """Write an entry as it is known here, unless the bucket has it or a later one; tell whether it was written."""
        self._broker.check_write()
        present, version = await self._bucket.get(key), self._versions[key]
        if present is not None:
            try:
                if _read_version(self._unseal(key, present.value)) >= version:
                    return False
            except ValueError:
                pass  # it is replaced
        entry: JsonObject = {"version": version, "value": self._entries.get(key)}
        sealed = self._key.seal(f"{self.name}/{key}", compact_json(entry).encode())
        return await self._replace_entry(key, present, sealed)


def _read_version(entry: JsonObject) -> int:
    version = entry.get("version")
    if isinstance(version, int):
        return version
    raise ValueError("it has no version")


async def open_table(broker: Broker, on_note: Callable[[str], None]) -> SharedTable:
    """Open the table of a cluster, and read it.

    Raises:
        ClusterFault: It is missing, or the broker does not answer.
    """
    settings = broker.settings
    if settings.key is None:
        raise ClusterFault("missing", "the key of the cluster is missing")
    table = SharedTable(broker, await broker.open_bucket(settings.shared), settings.key, on_note)
    await table.load()
    return table
