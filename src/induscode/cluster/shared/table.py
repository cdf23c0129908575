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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject, compact_json, is_json_object
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from induscode.cluster.broker import Broker, check_key
from induscode.cluster.bucket import Bucket, BucketEntry
from induscode.cluster.contract import ClusterFault, LostRaceError
from induscode.cluster.key import UnsealedError
from induscode.cluster.requests import Stream
from induscode.deck.mcp.store.events import Row, content_address

if TYPE_CHECKING:
    from datetime import datetime

    from nats.aio.msg import Msg

    from indusagi.core.faults import Note
    from induscode.cluster.key import ClusterKey
    from induscode.cluster.requests import StreamMessage
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Batch, PruneResult, Retention, RunFacts


# -- store ------------------------------------------------------------------------------------
#
# A `LedgerStore`: rows are written to and read from the store of this machine, whatever the broker does. A definition
# that was approved at any node is among the pins of every node. First definitions are pins too: a server that shows
# another definition to a second node is noticed there.


_log = logging.getLogger(__name__)

PIN = "pin"


class ClusterStore:
    """A `LedgerStore` of a node; the caller closes the store of the machine."""

    def __init__(self, local: LedgerStore, table: SharedTable, node: str) -> None:
        self.on_append: Callable[[], None] = lambda: None
        """Called when something was appended."""
        self.identities: Callable[[], Collection[str]] = tuple
        """Returns the identities of the servers of this node, whose pins are shared."""
        self._local = local
        self._table = table
        self._node = node
        self._texts: dict[str, str] = {}
        """The definitions of shared pins by address."""

    @property
    def path(self) -> str | None:
        """The file of this machine; None while the ledger is in memory."""
        return self._local.path

    @property
    def notes(self) -> Sequence[Note]:
        """What failed, and what was removed."""
        return self._local.notes

    def append(self, make: Callable[[], Batch]) -> None:
        """Write a batch soon, to the file of this machine; it is published later."""
        self._local.append(make)
        self.on_append()

    async def flush(self) -> bool:
        """Wait until everything appended so far is in the file of this machine; False if it is not in a file."""
        return await self._local.flush()

    async def rows(self, run: str) -> Sequence[Row]:
        """Read the rows of a run of this machine, in order."""
        return await self._local.rows(run)

    async def latest(self, op: str) -> Sequence[Row]:
        """Read the latest row of every subject of an op; the pins of other nodes come first."""
        own = await self._local.latest(op)
        if op != PIN:
            return own
        forms = set(map(_find_form, own))
        return (*(row for row in self._read_pins() if _find_form(row) not in forms), *own)

    def _read_pins(self) -> Iterable[Row]:
        for key, value in self._table.list(PIN).items():
            facts, subject, text = value.get("facts"), value.get("subject"), value.get("text")
            if not is_json_object(facts) or not isinstance(subject, str):
                _log.debug("the shared pin %s has another form", key)
                continue
            address = facts.get("definition")
            if isinstance(text, str) and isinstance(address, str) and content_address(text) == address:
                self._texts[address] = text
            yield Row(0, f"node {value.get('by')}", 0, str(value.get("at", "")), PIN, subject, facts, "")

    async def runs(self) -> Sequence[RunFacts]:
        """List the runs of this machine, in the order in which they began."""
        return await self._local.runs()

    async def documents(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Read documents of this machine, and definitions that other nodes have approved."""
        wanted = [*addresses]
        found = await self._local.documents(wanted)
        missing = [address for address in wanted if address not in found and address in self._texts]
        return {**found, **{address: self._texts[address] for address in missing}} if missing else found

    async def verify(self, *, set_aside: bool = False) -> Sequence[Note]:
        """Check the file of this machine; `indus cluster verify` checks all ledgers."""
        return await self._local.verify(set_aside=set_aside)

    async def prune(self, keep: Retention, own_run: str) -> PruneResult | None:
        """Remove old runs of this machine that are published."""
        return await self._local.prune(keep, own_run)

    async def aclose(self) -> None:
        """Close the store of this machine."""
        await self._local.aclose()

    # -- approvals for the others -----------------------------------------------------------

    async def share_pins(self) -> int:
        """Write the pins of this node's servers that the others do not have; return their number.

        Raises:
            ClusterFault: The broker did not take one.
        """
        wanted = frozenset(self.identities())
        own = [row for row in await self._local.latest(PIN) if row.facts.get("identity") in wanted]
        keys = {self._build_key(row): row for row in own}
        missing = {key: row for key, row in keys.items() if key not in self._table.list(PIN)}
        texts = await self._local.documents(str(row.facts.get("definition")) for row in missing.values())
        for key, row in missing.items():
            value: JsonObject = {"facts": row.facts, "subject": row.subject, "by": self._node, "at": row.at}
            if (text := texts.get(str(row.facts.get("definition")))) is not None:
                value["text"] = text
            try:
                await self._table.put(key, value)
            except ClusterFault as fault:
                if fault.state != "ready":
                    raise
                # Too large: its digest alone is enough to recognize it.
                await self._table.put(key, {name: part for name, part in value.items() if name != "text"})
        return len(missing)

    def _build_key(self, row: Row) -> str:
        return self._table.build_key(PIN, *name_pin(row.facts))


def name_pin(facts: JsonObject) -> Sequence[str]:
    """Return the names from which the key of a shared pin is built."""
    return [str(part) for part in _find_parts(facts)]


def _find_form(row: Row) -> tuple[object, ...]:
    """Return what tells an approved form of an item from all others."""
    return _find_parts(row.facts)


def _find_parts(facts: JsonObject) -> tuple[object, ...]:
    return tuple(facts.get(name) for name in ("identity", "kind", "tool", "pin"))


# -- table -----------------------------------------------------------------------------------


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
