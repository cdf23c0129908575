"""The ledger: an append-only log of enrolments, and the deck it folds into.

Pure: no clock, files or servers. A ledger is an immutable value; every change returns a new one. The log is the source
of truth and the snapshot is its fold. Successive ledgers share one list of events, so n enrolments cost n steps in
total; only a second branch from an older value copies. An owner that has stored the events elsewhere can drop them
with `compact`, which returns an equivalent deck.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType

from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.tools import is_accepted_name
from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteToolRef, qualify_tool_name
from induscode.deck.contract import BridgeFault, parse_member
from induscode.deck.mcp.capability import BridgeCapability as BridgeCapability
from induscode.deck.mcp.capability import BridgeKey as BridgeKey
from induscode.deck.mcp.capability import bridge_box_to_capabilities as bridge_box_to_capabilities
from induscode.deck.mcp.capability import bridge_content_key as bridge_content_key
from induscode.deck.mcp.capability import bridge_identity_key, bridge_item_key
from induscode.deck.mcp.capability import bridge_ulid_key as bridge_ulid_key
from induscode.deck.mcp.capability import project_outcome as project_outcome
from induscode.deck.mcp.capability import qualify_bridge_name as qualify_bridge_name
from induscode.deck.mcp.capability import server_of_qualified as server_of_qualified
from induscode.deck.mcp.capability import unqualified_tool as unqualified_tool


class BridgeOp(StrEnum):
    """The effect of an event."""

    ENROLL = "enroll"
    RETIRE = "retire"


@record
class BridgeEntry:
    """One event."""

    op: BridgeOp
    key: BridgeKey
    server: str
    capability: BridgeCapability | None
    """Present on an enrolment only."""
    seq: int
    at: str
    """Time in ISO 8601, UTC. Stored, never interpreted."""
    supersedes: BridgeKey | None = None
    """On an enrolment: the key of the tool's former definition, to take its place in the order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", parse_member(BridgeOp, self.op))
        if type(self.key) is not BridgeKey:
            object.__setattr__(self, "key", BridgeKey(self.key))
        if (self.op is BridgeOp.ENROLL) != (self.capability is not None):
            raise ValueError(f"an event to {self.op} has the wrong capability")


@record
class LedgerSnapshot:
    """The enrolled tools and other items."""

    live: Mapping[BridgeKey, BridgeCapability] = field(
        default_factory=lambda: MappingProxyType(dict[BridgeKey, BridgeCapability]())
    )
    by_server: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(dict[str, int]()))
    """The number of tools of each server."""
    high_water: int = 0
    """The highest folded sequence number."""


@record
class EnrollRequest:
    """A tool to enrol."""

    capability: BridgeCapability
    server: str
    key: BridgeKey | None = None
    """`None`: derived from the tool, so enrolling it twice changes nothing."""
    supersedes: BridgeKey | None = None
    """The key of a retired former definition, to take its place in the order."""


def reduce_ledger(entries: Iterable[BridgeEntry]) -> LedgerSnapshot:
    """Fold events into a snapshot, ordered by sequence number."""
    return _Fold().extend(entries).snapshot()


class _Fold:
    """The state after applying events in order."""

    def __init__(self) -> None:
        self.live: dict[BridgeKey, tuple[BridgeCapability, str]] = {}
        self.by_ref: dict[RemoteToolRef, BridgeKey] = {}
        self.by_name: dict[tuple[ItemKind, str], BridgeKey] = {}
        self.high_water = 0
        # Includes retired keys: a tool gets its place back once approved again.
        self._places: dict[BridgeKey, int] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Fold):
            return NotImplemented
        return (self.live, self._places, self.high_water) == (other.live, other._places, other.high_water)

    __hash__ = None  # type: ignore[assignment]

    def extend(self, entries: Iterable[BridgeEntry]) -> _Fold:
        """Return a copy with further events applied, in the order of their sequence numbers."""
        fold = _Fold()
        fold.live, fold.by_ref, fold.by_name = {**self.live}, {**self.by_ref}, {**self.by_name}
        fold._places, fold.high_water = {**self._places}, self.high_water
        for entry in sorted(entries, key=lambda entry: entry.seq):
            fold.apply(entry)
        return fold

    def forget_places(self, but: Iterable[BridgeKey]) -> None:
        """Drop the places of retired definitions, except the ones in `but`."""
        kept = {*self.live, *but}
        self._places = {key: place for key, place in self._places.items() if key in kept}

    def apply(self, entry: BridgeEntry) -> None:
        if entry.capability is None:
            if (former := self.live.pop(entry.key, None)) is not None:
                self._forget_names(former[0], entry.key)
        else:
            self._enroll(entry, entry.capability)
        self.high_water = max(self.high_water, entry.seq)

    def _enroll(self, entry: BridgeEntry, capability: BridgeCapability) -> None:
        former = self.live.get(entry.key)
        if former is not None:
            self._forget_names(former[0], entry.key)
        else:
            known = self._places.get(entry.supersedes) if entry.supersedes is not None else None
            self._places[entry.key] = entry.seq if known is None else known
        self.live[entry.key] = (capability, entry.server)
        self.by_ref[capability.ref] = entry.key
        self.by_name[capability.ref.kind, capability.name] = entry.key

    def _forget_names(self, capability: BridgeCapability, key: BridgeKey) -> None:
        if self.by_ref.get(capability.ref) == key:
            del self.by_ref[capability.ref]
        name = capability.ref.kind, capability.name
        if self.by_name.get(name) == key:
            del self.by_name[name]

    def snapshot(self) -> LedgerSnapshot:
        live: dict[BridgeKey, BridgeCapability] = {}
        by_server: dict[str, int] = {}
        for key in sorted(self.live, key=self._places.__getitem__):
            capability, server = self.live[key]
            live[key] = capability
            if capability.ref.kind == "tool":
                by_server[server] = by_server.get(server, 0) + 1
        return LedgerSnapshot(MappingProxyType(live), MappingProxyType(by_server), self.high_water)

    def keys_of(self, server: str) -> list[BridgeKey]:
        owned = [key for key, (_, owner) in self.live.items() if owner == server]
        return sorted(owned, key=self._places.__getitem__)


class _Chain:
    """Events shared by successive ledgers, and their fold."""

    def __init__(self, entries: Iterable[BridgeEntry], base: _Fold) -> None:
        self.base = base
        """The fold of all earlier events. Immutable."""
        self.entries = list(entries)
        self.fold = base.extend(self.entries)
        self.lock = threading.Lock()


class BridgeLedger:
    """The log, its fold, and the number of the next event. Start with `empty`."""

    __slots__ = ("_chain", "_events", "_next_seq", "_snapshot")

    def __init__(self, chain: _Chain, length: int, next_seq: int) -> None:
        self._chain = chain
        self._events = length
        self._snapshot: LedgerSnapshot | None = None
        self._next_seq = next_seq

    @classmethod
    def empty(cls) -> BridgeLedger:
        """Return a ledger without events. The first event gets number 1."""
        return cls(_Chain((), _Fold()), 0, 1)

    @classmethod
    def from_log(cls, log: Iterable[BridgeEntry]) -> BridgeLedger:
        """Continue a log."""
        chain = _Chain(log, _Fold())
        return cls(chain, len(chain.entries), chain.fold.high_water + 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BridgeLedger):
            return NotImplemented
        return self.next_seq == other.next_seq and self.log == other.log and self._chain.base == other._chain.base

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BridgeLedger({self._events} events, next {self.next_seq})"

    @property
    def next_seq(self) -> int:
        """The sequence number of the next event."""
        return self._next_seq

    @property
    def events(self) -> int:
        """The number of events in the log."""
        return self._events

    @property
    def log(self) -> Sequence[BridgeEntry]:
        """The events in append order, without compacted ones."""
        return tuple(self._chain.entries[: self._events])

    @property
    def folded(self) -> int:
        """The number of the last compacted event, or 0 if the log is complete."""
        return self._chain.base.high_water

    @property
    def snapshot(self) -> LedgerSnapshot:
        """The fold of the log."""
        if self._snapshot is None:
            with self._chain.lock:
                self._snapshot = self._state().snapshot()
        return self._snapshot

    def _state(self) -> _Fold:
        """Return the fold of this ledger's events, shared if it's the newest ledger."""
        if self._events == len(self._chain.entries):
            return self._chain.fold
        return self._chain.base.extend(self._chain.entries[: self._events])

    # -- changes ----------------------------------------------------------------------------

    def enroll(self, request: EnrollRequest, at: str) -> BridgeLedger:
        """Enrol a tool, replacing a live key and retiring the tool under any other key (its schema differed).

        Raises `BridgeFault` if another tool has its name.
        """
        capability = request.capability
        key = request.key or content_key_of(capability)
        with self._chain.lock:
            state = self._state()
            if request.key is None and key in state.live and state.live[key][0].ref != capability.ref:
                key = _identity_key_of(capability)
            holder = state.by_name.get((capability.ref.kind, capability.name))
            if holder is not None and state.live[holder][0].ref != capability.ref:
                other = state.live[holder][0].ref
                raise BridgeFault(
                    f"{capability.ref.kind} {capability.ref.name!r} of server {capability.ref.server!r} cannot be "
                    f"called {capability.name!r}: {other.name!r} of {other.server!r} is"
                )
            former = state.by_ref.get(capability.ref)
            owner = state.live[former][1] if former is not None else ""
        entries: list[BridgeEntry] = []
        supersedes, seq = request.supersedes, self.next_seq
        if former is not None and former != key:
            entries.append(BridgeEntry(BridgeOp.RETIRE, former, owner, None, seq, at))
            supersedes, seq = former, seq + 1
        entries.append(BridgeEntry(BridgeOp.ENROLL, key, request.server, capability, seq, at, supersedes))
        return self._extend(entries)

    def retire(self, key: BridgeKey, server: str, at: str) -> BridgeLedger:
        """Retire a tool. Unknown keys are recorded too."""
        return self._extend([BridgeEntry(BridgeOp.RETIRE, key, server, None, self.next_seq, at)])

    def withdraw_server(self, server: str, at: str) -> BridgeLedger:
        """Retire all tools of a server. Returns the same ledger if it has none."""
        with self._chain.lock:
            keys = self._state().keys_of(server)
        if not keys:
            return self
        return self._extend(
            [BridgeEntry(BridgeOp.RETIRE, key, server, None, seq, at) for seq, key in enumerate(keys, self.next_seq)]
        )

    def _extend(self, entries: Sequence[BridgeEntry]) -> BridgeLedger:
        with self._chain.lock:
            if self._events == len(self._chain.entries):
                chain = self._chain
            else:  # a newer ledger exists, so branch off
                chain = _Chain(self._chain.entries[: self._events], self._chain.base)
            chain.entries.extend(entries)
            for entry in entries:
                chain.fold.apply(entry)
        return BridgeLedger(chain, self._events + len(entries), self.next_seq + len(entries))

    def compact(self, before: int | None = None, *, places_of: Iterable[BridgeKey] = ()) -> BridgeLedger:
        """Return the same deck without events, or without the ones before a sequence number.

        For owners that have stored these events. Live tools, their order, the next number and the effect of further
        changes stay the same. Only retired definitions in `places_of` can still be superseded in their place.
        """
        end = self.next_seq if before is None else before
        entries = self._chain.entries[: self._events]
        folded = [entry for entry in entries if entry.seq < end]
        if not folded:
            return self
        rest = [entry for entry in entries if entry.seq >= end]
        base = self._chain.base.extend(folded)
        superseded = [entry.supersedes for entry in rest if entry.supersedes is not None]
        base.forget_places(but=(*places_of, *superseded))
        return BridgeLedger(_Chain(rest, base), len(rest), self.next_seq)

    def since(self, seq: int) -> Sequence[BridgeEntry]:
        """List the events from a sequence number on; raises `BridgeFault` if some were compacted."""
        folded = self._chain.base.high_water
        if max(seq, 1) <= folded:
            raise BridgeFault(f"the events {seq} to {folded} of the ledger were compacted: they are in the store")
        # Numbers increase, but a continued log may have gaps.
        entries = self._chain.entries
        start = self._events
        while start and entries[start - 1].seq >= seq:
            start -= 1
        return tuple(entries[start : self._events])

    # -- lookups ----------------------------------------------------------------------------

    def live_capabilities(self) -> Sequence[BridgeCapability]:
        """List the enrolled tools in enrolment order."""
        return self.live_items("tool")

    def live_items(self, kind: ItemKind) -> Sequence[BridgeCapability]:
        """List the enrolled items of a kind in enrolment order."""
        return tuple(item for item in self.snapshot.live.values() if item.ref.kind == kind)

    def live_capabilities_for_server(self, server: str, kind: ItemKind = "tool") -> Sequence[BridgeCapability]:
        """List a server's enrolled tools (or other items)."""
        with self._chain.lock:
            state = self._state()
            items = [state.live[key][0] for key in state.keys_of(server)]
        return tuple(item for item in items if item.ref.kind == kind)

    def find(self, ref: RemoteToolRef) -> tuple[BridgeKey, BridgeCapability] | None:
        """Find a live tool by server and name."""
        with self._chain.lock:
            state = self._state()
            key = state.by_ref.get(ref)
            return None if key is None else (key, state.live[key][0])

    def holder_of(self, name: str, kind: ItemKind = "tool") -> RemoteToolRef | None:
        """Find the live tool (or other item) with a qualified name."""
        with self._chain.lock:
            state = self._state()
            key = state.by_name.get((kind, name))
            return None if key is None else state.live[key][0].ref


def _identity_key_of(capability: BridgeCapability) -> BridgeKey:
    ref = capability.ref
    return bridge_identity_key(ref.server, ref.name, dict(capability.parameters))


def content_key_of(capability: BridgeCapability) -> BridgeKey:
    """Derive a tool's key from its content, or from server and name if another tool has its qualified name."""
    if capability.ref.kind != "tool":
        return bridge_item_key(capability.ref)
    name = qualify_tool_name(capability.ref)
    if capability.name != name and is_accepted_name(name):
        return _identity_key_of(capability)
    return bridge_content_key(capability.ref.server, capability.ref.name, dict(capability.descriptor.parameters))
