"""The ledger of a node, shared with the others: its own file, its rows published, and the approvals of all nodes.

A `LedgerStore`: rows are written to and read from the store of this machine, whatever the broker does. A definition
that was approved at any node is among the pins of every node. First definitions are pins too: a server that shows
another definition to a second node is noticed there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject, is_json_object
from induscode.cluster.contract import ClusterFault
from induscode.deck.mcp.store.events import Row, content_address

if TYPE_CHECKING:
    from indusagi.core.faults import Note
    from induscode.cluster.shared.table import SharedTable
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.events import Batch, PruneResult, Retention, RunFacts

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
