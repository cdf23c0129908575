"""The shared table: sealed entries in one bucket that every node follows.

Writes are compare-and-swap, and each entry carries a version that only grows. A node keeps what it has read: an entry
that isn't sealed with the key, is older than the known one, or was deleted by other means than `remove` changes
nothing and leaves a note. The broker notifies all nodes of each write, so changes arrive within moments, and a node
that missed one finds it at its next poll. Brokers that lost the bucket or its latest entries get them back from the
running nodes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.tasks import Listeners
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from indusagi.interop.auth.contract import AuthFault, CredentialKey, StoredCredentials, parse_credentials
from induscode.cluster.broker import Broker
from induscode.cluster.contract import ClusterFault, LostRaceError
from induscode.cluster.jetstream import Bucket, BucketEntry, Stream, StreamMessage, open_bucket
from induscode.cluster.key import ClusterKey
from induscode.cluster.proofs import check_key
from induscode.deck.mcp.store import LedgerStore
from induscode.deck.mcp.store.events import Row, content_address

if TYPE_CHECKING:
    from nats.aio.msg import Msg


# -- store ------------------------------------------------------------------------------------
#
# Rows live in this machine's store, whatever the broker does. A definition approved on any node is among the pins of
# every node. So are first-seen definitions: a server that shows another definition to a second node gets noticed there.


_log = logging.getLogger(__name__)

PIN = "pin"


class ClusterPins:
    """The `SharedPins` of a node."""

    def __init__(self, local: LedgerStore, table: SharedTable, node: str) -> None:
        self.identities: Callable[[], Collection[str]] = tuple
        """Returns the identities of this node's servers, whose pins are shared."""
        self._local = local
        self._table = table
        self._node = node
        self._texts: dict[str, str] = {}
        """Definitions of shared pins, by address."""

    def merge(self, own: Sequence[Row]) -> Sequence[Row]:
        """Return other nodes' pins that `own` lacks, followed by `own`."""
        forms = {_find_parts(row.facts) for row in own}
        return (*(row for row in self._read_pins() if _find_parts(row.facts) not in forms), *own)

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

    def find_texts(self, addresses: Iterable[str]) -> Mapping[str, str]:
        """Return definitions approved on other nodes."""
        return {address: self._texts[address] for address in addresses if address in self._texts}

    async def share(self) -> int:
        """Share this node's pins that the other nodes don't have yet, and return their number."""
        wanted = frozenset(self.identities())
        pins = await self._local.latest(PIN)
        own = [row for row in pins if row.position and row.facts.get("identity") in wanted]  # other nodes' have none
        keys = {self._table.build_key(PIN, *name_pin(row.facts)): row for row in own}
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
                # Too large: the digest is enough to recognize it.
                await self._table.put(key, {name: part for name, part in value.items() if name != "text"})
        return len(missing)


def name_pin(facts: JsonObject) -> Sequence[str]:
    """Return the names that make up a shared pin's key."""
    return [str(part) for part in _find_parts(facts)]


def _find_parts(facts: JsonObject) -> tuple[object, ...]:
    """Return the facts that identify an approved form of an item."""
    return tuple(facts.get(name) for name in ("identity", "kind", "tool", "pin"))


# -- table -----------------------------------------------------------------------------------


_POLL_INTERVAL_S = 5.0
"""Polling interval without change notices."""
_NOTICE_DELAYS_S = (0.0, 0.02, 0.08, 0.3, 0.6)
"""Delays between reads after a notice, until one finds something new."""
_ATTEMPTS = 5
_MAX_NOTES = 20
"""A writer without the key can cause any number of these."""
_MAX_ENTRY_BYTES = 512 * 1024
"""Larger entries aren't written."""


class SharedTable:
    """The entries of a bucket, by key. Call `load` first."""

    def __init__(self, broker: Broker, bucket: Bucket, key: ClusterKey, on_note: Callable[[str], None]) -> None:
        self.name = broker.settings.shared
        self.on_change: Listeners[[frozenset[str]]] = Listeners()
        """Called with the keys of changed entries."""
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
        """When the bucket we've read was created; None before the first read or after finding it lost."""
        self._noticed = asyncio.Event()
        self._reported: set[str] = set()

    def list(self, kind: str) -> Mapping[str, JsonObject]:
        """Return the current entries of a kind, by key."""
        return {key: value for key, value in self._entries.items() if key.startswith(f"{kind}.")}

    def build_key(self, kind: str, *names: str) -> str:
        """Build an entry's key. It doesn't reveal the names."""
        return f"{kind}.{self._key.digest('keys', compact_json([*names]))[:32]}"

    # -- writing ----------------------------------------------------------------------------

    async def put(self, key: str, value: JsonObject | None) -> None:
        """Write an entry, or remove it with a sealed tombstone, so that only holders of the key can remove one.

        Raises `ClusterFault` if it's too large, the broker failed, or this node has no lease.
        """
        await self.update(key, lambda _: value)

    async def update(self, key: str, change: Callable[[JsonObject | None], JsonObject | None]) -> None:
        """Change an entry that no other node changes at the same time; raises like `put`."""
        for _ in range(_ATTEMPTS):
            self._broker.check_write()
            present = await self._bucket.get(key)
            found, known = self._read_version(key, present), self._versions.get(key, 0)
            value = self._entries.get(key)
            if present is not None and found > known:
                read = self._unseal(key, present.value)[0].get("value")
                value = read if is_json_object(read) else None
            value = change(value)
            version = max(known + 1, found + 1, now_ms())
            entry: JsonObject = {"version": version, "value": value}
            data = compact_json(entry).encode()
            sealed = data if len(data) > 8 * _MAX_ENTRY_BYTES else self._key.seal(f"{self.name}/{key}", data)
            if len(sealed) > _MAX_ENTRY_BYTES:
                raise ClusterFault("ready", f"it is too large to be shared: {len(sealed):,} bytes")
            if not await self._replace_entry(key, present, sealed):
                continue
            self._apply(key, version, value)
            self._noticed.set()
            return
        raise ClusterFault("ready", f"other nodes change {key} all the time")

    async def _replace_entry(self, key: str, present: BucketEntry | None, sealed: bytes) -> bool:
        """Write an entry over the `present` one. False if another node changed it first."""
        try:
            await self._bucket.put(key, sealed, None if present is None else present.revision)
        except LostRaceError:
            return False
        return True

    def _unseal(self, key: str, data: bytes) -> tuple[JsonObject, int]:
        """Open an entry, and return its version too."""
        value: Any = json.loads(self._key.unseal(f"{self.name}/{key}", data))
        if is_json_object(value) and isinstance(version := value.get("version"), int):
            return value, version
        raise ValueError("it has no version")

    def _read_version(self, key: str, present: BucketEntry | None) -> int:
        """Return an entry's version, or 0 if there's none, or it's forged."""
        with suppress(ValueError):
            return 0 if present is None else self._unseal(key, present.value)[1]
        return 0

    # -- following --------------------------------------------------------------------------

    async def load(self) -> None:
        """Read new entries and report the changes."""
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
            entry, version = self._unseal(key, message.data)
        except (ValueError, RecursionError) as exc:
            self._tell(f"the entry {key} of the broker is ignored: {exc}")
            return set()
        if version < self._versions.get(key, 0):
            self._tell(f"the entry {key} of the broker is ignored: it is older than the one that was there")
            return set()
        return {key} if self._apply(key, version, entry.get("value")) else set()

    def _apply(self, key: str, version: int, value: JsonValue) -> bool:
        """Apply an entry, and return whether it differs from the previous one."""
        self._versions[key] = version
        known = self._entries.get(key)
        if not is_json_object(value):
            return self._entries.pop(key, None) is not None
        self._entries[key] = value
        return value != known

    def _tell(self, text: str) -> None:
        if text in self._reported or len(self._reported) > _MAX_NOTES:
            return
        self._reported.add(text)
        if len(self._reported) > _MAX_NOTES:
            text = "further entries of the broker that are ignored are not told"
        self._on_note(text)

    def look(self) -> None:
        """Poll now."""
        self._noticed.set()

    async def run(self) -> None:
        """Follow the entries until cancelled."""

        async def notice(_: Msg) -> None:
            self.look()

        stop = await self._broker.subscribe(f"{self._subject}>", notice)
        self.look()  # something may have been written before we subscribed
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_INTERVAL_S):
                        await self._noticed.wait()
                is_noticed = self._noticed.is_set()
                self._noticed.clear()
                try:
                    await self._read_noticed(_NOTICE_DELAYS_S if is_noticed else (0.0,))
                except ClusterFault as fault:
                    _log.debug("the shared entries are not read: %s", fault)
                    await asyncio.sleep(_POLL_INTERVAL_S / 10)
                    self._noticed.set()
        finally:
            await stop()

    async def _read_noticed(self, pauses: Sequence[float]) -> None:
        """Read new entries, retrying because a notice may precede the brokers' agreement on the entry."""
        before = self._next
        for pause in pauses:
            await asyncio.sleep(pause)
            await self.load()
            if self._next > before:
                return
        await self._restore()

    async def _restore(self) -> None:
        """Reread everything and write missing entries, if the bucket was recreated or is an older copy."""
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
        """Write an entry as known here, unless the bucket has it or a newer one. Return whether it was written."""
        self._broker.check_write()
        present, version = await self._bucket.get(key), self._versions[key]
        if self._read_version(key, present) >= version:
            return False
        entry: JsonObject = {"version": version, "value": self._entries.get(key)}
        sealed = self._key.seal(f"{self.name}/{key}", compact_json(entry).encode())
        return await self._replace_entry(key, present, sealed)


async def open_table(broker: Broker, on_note: Callable[[str], None]) -> SharedTable:
    """Open and read a cluster's table."""
    settings = broker.settings
    assert settings.key is not None
    table = SharedTable(broker, await open_bucket(broker, settings.shared), settings.key, on_note)
    await table.load()
    return table


# -- sign-ins of users ------------------------------------------------------------------------
#
# A user signs in once for all nodes. A refresh holds a lock in the table, because an issuer that rotates refresh tokens
# takes a second refresh for theft.


T = TypeVar("T")
SIGN_IN, LOCK = "sign-in", "sign-in-lock"
"""Kinds of entries: a sign-in, and the node that refreshes it."""
_LOCK_MS: Final = 60_000
"""How long a node may hold a lock: longer than a refresh takes. Their clocks may differ by less than that."""
_WAIT_S: Final = 90.0
_PAUSE_S: Final = 0.1


class SharedCredentials:
    """The `CredentialStore` of one user at all nodes."""

    def __init__(self, table: SharedTable, user: str, registrations: dict[CredentialKey, StoredCredentials]) -> None:
        self._table, self.user = table, user
        self._registrations = registrations

    async def load(self, resource: str, client: str = "") -> StoredCredentials | None:
        """Return the server's most recently saved sign-in, with any issuer."""
        found = [one for one in self._read() if (one[1].resource, one[1].client) == (resource, client)]
        return parse_credentials(max(found, key=lambda one: one[2])[3]) if found else None

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in with exactly this key, or our registration at its issuer, which all users share."""
        found = next((parse_credentials(value) for _, known, _, value in self._read() if known == key), None)
        return found or self._registrations.get(key)

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in; a registration alone is only remembered."""
        self._registrations[credentials.key] = credentials.drop_tokens()
        if credentials.tokens is None:
            return
        value: JsonObject = {"user": self.user, "saved_ms": now_ms(), "credentials": credentials.to_json()}
        await _reach(self._table.put(self._name(SIGN_IN, credentials.key), value))

    async def delete(self, key: CredentialKey) -> None:
        """Remove a sign-in, if it exists."""
        await _reach(self._table.put(self._name(SIGN_IN, key), None))

    async def list_credentials(self) -> Sequence[StoredCredentials]:
        """List every sign-in."""
        return [one for row in self._read() if (one := parse_credentials(row[3])) is not None]

    @asynccontextmanager
    async def lock(self, key: CredentialKey) -> AsyncGenerator[None]:
        """Keep other tasks and nodes from refreshing this sign-in."""
        place, mark = self._name(LOCK, key), new_ulid()

        def take(value: JsonObject | None) -> JsonObject | None:
            return value if _is_held(value) else {"by": mark, "until": now_ms() + _LOCK_MS}

        try:
            async with asyncio.timeout(_WAIT_S):
                while self._table.list(LOCK).get(place, {}).get("by") != mark:
                    if _is_held(self._table.list(LOCK).get(place)):
                        await asyncio.sleep(_PAUSE_S)
                        await _reach(self._table.load())
                    else:
                        await _reach(self._table.update(place, take))
                await _reach(self._table.load())  # what the last holder has saved
        except TimeoutError as exc:
            message = f"the sign-in of {key.resource} is being refreshed by another node: try again later"
            raise AuthFault(message, is_transient=True) from exc
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True), suppress(AuthFault):  # it ends by itself
                await _reach(self._table.update(place, lambda value: None if _is_by(value, mark) else value))

    def _read(self) -> Sequence[tuple[str, CredentialKey, int, JsonObject]]:
        return read_sign_ins(self._table, self.user)

    def _name(self, kind: str, key: CredentialKey) -> str:
        return self._table.build_key(kind, self.user, key.issuer, key.resource, key.client)


def read_sign_ins(table: SharedTable, user: str | None = None) -> Sequence[tuple[str, CredentialKey, int, JsonObject]]:
    """Read the users, keys, times and credentials of the sign-ins of one user, or of all."""
    rows: list[tuple[str, CredentialKey, int, JsonObject]] = []
    for value in table.list(SIGN_IN).values():
        owner, saved_ms, document = value.get("user"), value.get("saved_ms"), value.get("credentials")
        if (
            isinstance(owner, str)
            and isinstance(saved_ms, int)
            and isinstance(document, dict)
            and user in {None, owner}
        ):
            parts = (str(document.get(name, "")) for name in ("issuer", "resource", "client"))
            rows.append((owner, CredentialKey(*parts), saved_ms, document))
    return rows


def _is_held(value: Mapping[str, object] | None) -> bool:
    until = None if value is None else value.get("until")
    return isinstance(until, int) and until > now_ms()


def _is_by(value: Mapping[str, object] | None, mark: str) -> bool:
    return value is not None and value.get("by") == mark


async def _reach(work: Awaitable[T]) -> T:
    try:
        return await work
    except ClusterFault as fault:
        raise AuthFault(f"the sign-ins shared by the nodes cannot be reached: {fault}", is_transient=True) from fault
