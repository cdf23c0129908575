"""Requests for approval in a cluster: every node shows them all, and any node answers.

Requests and answers are sealed entries of the shared table. A node copies the others' requests into its own store, so
the page and `indus approvals` have one source, and sends on what they answer. Only the node that holds a call spends a
yes. Entries are reused, since the table keeps each key for good.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from induscode.cluster.shared.state import ANSWER, REQUEST
from induscode.gateway.approvals.queue import POLL_S
from induscode.gateway.approvals.store import Approval, ApprovalState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.json import JsonObject
    from induscode.cluster.shared.state import SharedState
    from induscode.gateway.approvals.queue import ApprovalQueue

_log = logging.getLogger(__name__)


class ApprovalSharing:
    """Shares one node's queue with the others. `run` has to run meanwhile."""

    def __init__(self, queue: ApprovalQueue, state: SharedState) -> None:
        self._queue, self._table, self._node = queue, state.table, state.node.info.node
        self._slots: dict[str, int] = {}
        """Entries of this node's requests, by id."""
        self._unwritten: dict[str, JsonObject | None] = {}
        self._foreign: dict[str, JsonObject] = {}
        """Other nodes' requests without an answer, by id."""
        self._changed = anyio.Event()
        queue.on_asked.add(self._add)
        queue.on_ended.add(self._remove)
        state.on_approvals.add(self._wake)

    def _wake(self) -> None:
        self._changed.set()

    def _add(self, approval: Approval) -> None:
        taken = set(self._slots.values())
        slot = next(number for number in range(len(taken) + 1) if number not in taken)
        self._slots[approval.id] = slot
        self._write(self._table.build_key(REQUEST, self._node, str(slot)), {**approval.to_json(), "slot": slot})

    def _remove(self, approval: Approval) -> None:
        slot = self._slots.pop(approval.id, None)
        if slot is not None:
            self._write(self._table.build_key(REQUEST, self._node, str(slot)), None)

    def _write(self, key: str, value: JsonObject | None) -> None:
        self._unwritten[key] = value
        self._changed.set()

    async def run(self) -> None:
        """Share requests and answers until cancelled, or the brokers fail."""
        for key, value in self._table.list(REQUEST).items():
            if value.get("node") == self._node and value.get("id") not in self._slots:
                self._unwritten.setdefault(key, None)  # of an earlier process
        self._changed.set()
        while True:
            with anyio.move_on_after(POLL_S if self._foreign else None):
                await self._changed.wait()
            self._changed = anyio.Event()
            await self._take_answers()
            await self._take_requests(self._table.list(REQUEST))
            await self._send_answers()
            await self._put_all()

    async def _put_all(self) -> None:
        while self._unwritten:
            key, value = next(iter(self._unwritten.items()))
            await self._table.put(key, value)
            if self._unwritten.get(key) is value:  # otherwise it has changed meanwhile
                del self._unwritten[key]

    async def _take_answers(self) -> None:
        """Apply the other nodes' answers to this node's calls."""
        for value in [*self._table.list(ANSWER).values()]:
            if value.get("id") in self._slots:
                await self._queue.answer(
                    str(value["id"]),
                    str(value.get("digest")),
                    approve=value.get("approve") is True,
                    by=f"{value.get('by')} at node {value.get('node')}",
                    comment=str(value.get("comment", "")),
                )

    async def _take_requests(self, entries: Mapping[str, JsonObject]) -> None:
        """Copy the other nodes' requests into the store, and end those that are gone."""
        present: dict[str, JsonObject] = {}
        for value in [*entries.values()]:
            try:
                approval = Approval.parse(value)
            except ValueError as exc:
                _log.debug("%s", exc)
                continue
            if approval.node != self._node and approval.is_waiting():
                present[approval.id] = value
                if approval.id not in self._foreign:
                    await to_thread.run_sync(self._queue.store.add, approval)
        for approval_id in self._foreign.keys() - present.keys():
            end = partial(self._queue.store.end, approval_id, ApprovalState.WITHDRAWN, (ApprovalState.WAITING,))
            await to_thread.run_sync(end)  # what was approved here stays so: the holder knows what became of it
        self._foreign = present

    async def _send_answers(self) -> None:
        """Send what this node's user has answered to the nodes that hold the calls."""
        if not self._foreign:
            return
        answered = await to_thread.run_sync(self._queue.store.list_answered, [*self._foreign])
        for approval_id, approval in answered.items():
            request = self._foreign[approval_id]
            key = self._table.build_key(ANSWER, self._node, str(request.get("node")), str(request.get("slot")))
            if self._table.list(ANSWER).get(key, {}).get("id") != approval_id:
                self._unwritten[key] = {
                    "id": approval_id,
                    "digest": approval.digest,
                    "approve": approval.state is ApprovalState.APPROVED,
                    "by": approval.answered_by,
                    "comment": approval.comment,
                    "node": self._node,
                }
