"""Buckets of a cluster at its brokers: keys with values and revisions, in JetStream's key-value store.

A revision is a write's sequence number (https://docs.nats.io/nats-concepts/jetstream/key-value-store). Creates and
updates name the expected revision, so one of two concurrent writers fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from nats.js.kv import KeyValue

_T = TypeVar("_T")
_NO_STREAM = 10059
"""JetStream's error code for a missing stream, and so a missing bucket."""


class RequestRunner(Protocol):
    """Runs requests to the brokers within a deadline; a `Broker`."""

    async def run(self, what: str, request: Awaitable[_T], *, requests: int = 1, writes: str = "") -> _T:
        """Return a request's result. Raises `ClusterFault`, or `LostRaceError` for a write that came second."""
        ...


@record
class BucketEntry:
    """A bucket's value with its revision."""

    value: bytes
    revision: int


class Bucket:
    """A bucket at the broker. Creates and updates fail if another writer was first."""

    def __init__(self, broker: RequestRunner, values: KeyValue, name: str) -> None:
        self.name = name
        self._broker = broker
        self._values = values

    async def create(self, key: str, value: bytes) -> int:
        """Create an entry, and return its revision.

        Raises:
            LostRaceError: It exists.
            ClusterFault: The broker failed, or didn't confirm in time.
        """
        return await self._broker.run(
            f"the entry {key} could not be created", self._values.create(key, value), requests=2, writes=self.name
        )

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Replace an entry with this revision, and return the new revision. Raises like `create`."""
        return await self._broker.run(
            f"the entry {key} could not be changed", self._values.update(key, value, revision), writes=self.name
        )

    async def delete(self, key: str, revision: int) -> None:
        """Delete an entry with this revision. Raises like `create`."""
        await self._broker.run(
            f"the entry {key} could not be deleted", self._values.delete(key, revision), writes=self.name
        )

    async def get(self, key: str) -> BucketEntry | None:
        """Read an entry, or return `None`.

        Raises:
            ClusterFault: The broker didn't answer, or has no such bucket.
        """
        from nats.js.errors import BucketNotFoundError, KeyNotFoundError  # noqa: PLC0415 — only with a cluster

        async def get() -> BucketEntry | None:
            try:
                entry = await self._values.get(key)
            except KeyNotFoundError as exc:
                # nats-py raises the same for a missing bucket, and not all of its errors have a code.
                if getattr(exc.__context__, "err_code", None) == _NO_STREAM:
                    raise BucketNotFoundError from exc
                return None
            return BucketEntry(entry.value or b"", entry.revision or 0)

        return await self._broker.run(f"the entry {key} could not be read", get())

    async def read_all(self) -> Mapping[str, BucketEntry]:
        """Read all entries, by key, in one stream of messages.

        Raises:
            ClusterFault: The broker didn't answer.
        """

        async def read_once() -> Sequence[KeyValue.Entry]:
            watcher = await self._values.watchall()  # pyright: ignore[reportUnknownMemberType] — untyped options
            found: list[KeyValue.Entry] = []
            try:
                async for entry in watcher:
                    if entry is None:  # changes follow
                        break
                    found.append(entry)
            finally:
                await watcher.stop()
            return found

        async def read_all() -> Mapping[str, BucketEntry]:
            # nats-py reports the end too early while the first entry is on its way. Removed keys leave a marker, so a
            # bucket with messages always has entries.
            while not (found := await read_once()) and (await self._values.status()).values:
                pass
            return {
                entry.key: BucketEntry(entry.value or b"", entry.revision or 0)
                for entry in found
                if entry.operation is None
            }

        return await self._broker.run("the entries could not be listed", read_all(), requests=3)

    async def read_ttl(self) -> float:
        """Read the entries' lifetime in seconds. Raises like `get`."""
        status = await self._broker.run("the bucket could not be read", self._values.status())
        return float(status.ttl or 0.0)

    async def count_replicas(self) -> int:
        """Return how many brokers keep a copy. Raises like `get`."""
        status = await self._broker.run("the bucket could not be read", self._values.status())
        return status.stream_info.config.num_replicas or 1

    async def list_offline(self) -> Sequence[str]:
        """Name unreachable brokers that should keep a copy, according to the one that answers. Raises like `get`."""
        status = await self._broker.run("the bucket could not be read", self._values.status())
        cluster = status.stream_info.cluster
        peers = [] if cluster is None else cluster.replicas or []
        return sorted(peer.name or "?" for peer in peers if peer.offline)
