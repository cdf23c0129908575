"""Records of calls of all nodes, in a stream that keeps the last days.

Records hold sizes and digests, no arguments and no results. A node publishes them in batches, from a bounded queue;
what the queue cannot take while the broker is away is dropped and counted, and stays in the node's own database.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from induscode.cluster.contract import ClusterFault, LostRaceError
from induscode.cluster.streams import Stream

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker
    from induscode.cluster.contract import ClusterSettings
    from induscode.cluster.key import ClusterKey

_log = logging.getLogger(__name__)

_MOST_WAITING = 20_000
_BATCH = 500
_PAUSE_S = 0.5
_RETRY_S = 5.0


class CallPublisher:
    """Publishes the call records of this node."""

    def __init__(self, broker: Broker, key: ClusterKey) -> None:
        self.dropped = 0
        """Records that were not published."""
        self._settings: ClusterSettings = broker.settings
        self._stream = Stream(broker, self._settings.calls)
        self._key = key
        self._waiting: deque[Sequence[str | int]] = deque()
        self._lock = threading.Lock()

    def put(self, rows: Sequence[Sequence[str | int]]) -> None:
        """Add rows; called in the thread of the recorder."""
        with self._lock:
            self._waiting.extend(rows)
            while len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                self.dropped += 1

    async def run(self) -> None:
        """Publish records as they come; runs until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            try:
                await self.publish_all()
            except (ClusterFault, LostRaceError) as exc:
                _log.debug("call records are not published: %s", exc)
                await asyncio.sleep(_RETRY_S)

    async def publish_all(self) -> None:
        """Publish what waits.

        Raises:
            ClusterFault: The broker did not take it; it goes on waiting.
        """
        subject = f"{self._settings.prefix}.calls.{self._settings.node}"
        while True:
            with self._lock:
                rows = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            if not rows:
                return
            value: JsonObject = {"node": self._settings.node, "calls": [[*row] for row in rows]}
            try:
                await self._stream.publish(subject, self._key.seal(subject, compact_json(value).encode()))
            except BaseException:
                with self._lock:
                    self._waiting.extendleft(reversed(rows))
                raise


async def read_calls(broker: Broker, columns: int) -> AsyncGenerator[tuple[str, Sequence[JsonValue]]]:
    """Read the records of all nodes, the newest first, each with its node; damaged and foreign ones are left out.

    Raises:
        ClusterFault: The broker does not answer.
    """
    settings, key = broker.settings, broker.settings.key
    assert key is not None
    stream = Stream(broker, settings.calls)
    state = await stream.read_state()
    for number in range(state.last, max(0, state.first - 1), -1):
        message = await stream.read_at(number)
        if message is None:
            continue
        try:
            value: object = json.loads(key.unseal_message("calls", message.subject, message.data, number))
        except (ValueError, RecursionError) as exc:
            _log.debug("message %d of the call records: %s", number, exc)
            continue
        calls = value.get("calls") if is_json_object(value) else None
        node = str(value.get("node")) if is_json_object(value) else ""
        for row in reversed(calls if isinstance(calls, list) else []):
            if isinstance(row, list) and len(row) == columns:
                yield node, row
