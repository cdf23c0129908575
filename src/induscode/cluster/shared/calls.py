"""Call records of all nodes, in a stream that keeps the last days.

Records contain sizes and digests, but no arguments or results. A node publishes them in batches from a bounded queue.
Records that don't fit while the broker is away are dropped and counted; they stay in the node's database. A batch has
an id and is resent unchanged if the broker didn't answer, so readers use the first of each id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from induscode.cluster.contract import ClusterFault, LostRaceError
from induscode.cluster.requests import Stream

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker
    from induscode.cluster.contract import ClusterSettings
    from induscode.cluster.key import ClusterKey

_log = logging.getLogger(__name__)

_MAX_WAITING = 20_000
_BATCH_SIZE = 500
_PUBLISH_INTERVAL_S = 0.5
_RETRY_S = 5.0
_CLOSE_S = 3.0
"""How long a stopping node waits for the broker to accept its last records."""


class CallPublisher:
    """Publishes this node's call records."""

    def __init__(self, broker: Broker, key: ClusterKey) -> None:
        self.dropped = 0
        """Records that weren't published."""
        self._broker = broker
        self._settings: ClusterSettings = broker.settings
        self._stream = Stream(broker, self._settings.calls)
        self._key = key
        self._waiting: deque[Sequence[str | int]] = deque()
        self._unanswered: JsonObject | None = None
        """The last batch sent, until the broker answers."""
        self._lock = threading.Lock()

    def put(self, rows: Sequence[Sequence[str | int]]) -> None:
        """Add rows, in the recorder's thread."""
        with self._lock:
            self._waiting.extend(rows)
            while len(self._waiting) > _MAX_WAITING:
                self._waiting.popleft()
                self.dropped += 1

    async def run(self) -> None:
        """Publish records as they come, until cancelled."""
        while True:
            await asyncio.sleep(_PUBLISH_INTERVAL_S)
            try:
                await self.publish_all()
            except (ClusterFault, LostRaceError) as exc:
                _log.debug("call records are not published: %s", exc)
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Publish the rest, within a short deadline. Call it after the recorder has written its last rows."""
        if not self._broker.is_connected:
            return
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.publish_all()
        except (ClusterFault, LostRaceError, TimeoutError) as exc:
            _log.debug("the last call records are not published: %s", exc)

    async def publish_all(self) -> None:
        """Publish all waiting records.

        Raises:
            ClusterFault: The broker failed; they keep waiting.
        """
        subject = f"{self._settings.prefix}.calls.{self._settings.node}"
        while True:
            self._unanswered = batch = self._unanswered or self._take_batch()
            if batch is None:
                return
            sealed = self._key.seal(subject, compact_json(batch).encode())
            await self._stream.publish(subject, sealed, identity=str(batch["batch"]))
            self._unanswered = None

    def _take_batch(self) -> JsonObject | None:
        """Take the next rows from the queue, or return None."""
        with self._lock:
            rows = [self._waiting.popleft() for _ in range(min(_BATCH_SIZE, len(self._waiting)))]
        if not rows:
            return None
        return {"node": self._settings.node, "batch": new_ulid(), "calls": [[*row] for row in rows]}


async def read_calls(broker: Broker, columns: int) -> AsyncGenerator[tuple[str, Sequence[JsonValue]]]:
    """Read all nodes' records, newest first, each with its node. Skips damaged and repeated ones.

    Raises:
        ClusterFault: The broker doesn't answer.
    """
    settings, key = broker.settings, broker.settings.key
    assert key is not None
    stream = Stream(broker, settings.calls)
    state = await stream.read_state()
    seen: set[str] = set()
    for number in range(state.last, max(0, state.first - 1), -1):
        message = await stream.read_at(number)
        if message is None:
            continue
        try:
            value: object = json.loads(key.unseal_message("calls", message.subject, message.data, number))
        except (ValueError, RecursionError) as exc:
            _log.debug("message %d of the call records: %s", number, exc)
            continue
        if not is_json_object(value):
            continue
        calls, node, batch = value.get("calls"), str(value.get("node")), value.get("batch")
        if isinstance(batch, str):
            if batch in seen:
                continue
            seen.add(batch)
        for row in reversed(calls if isinstance(calls, list) else []):
            # Nodes of the previous version don't send `allowed_by`, the last column.
            if isinstance(row, list) and columns - 1 <= len(row) <= columns:
                yield node, row
