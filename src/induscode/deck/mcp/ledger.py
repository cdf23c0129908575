"""Which remote tools are enrolled: an append-only log of events, and the deck it folds into.

Pure: no clock, no file, no server. A ledger is a value; every change gives a new one and leaves the
old one as it was. The log is the truth, the snapshot is what it comes to. A chain of ledgers shares
one list of events, so that n enrolments one by one cost n steps in all; only a second branch that
grows out of an older value copies. Whoever has kept the events elsewhere may have a ledger without
them: `compact` gives the same deck, which goes on in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from indusagi.interop.protocol_bridge.client.tools import is_accepted_name
from indusagi.interop.protocol_bridge.contract import RemoteToolRef, qualify_tool_name
from induscode.deck.contract import BridgeFault, parse_member
from induscode.deck.mcp.capability import BridgeCapability as BridgeCapability
from induscode.deck.mcp.capability import BridgeKey as BridgeKey
from induscode.deck.mcp.capability import bridge_box_to_capabilities as bridge_box_to_capabilities
from induscode.deck.mcp.capability import bridge_content_key as bridge_content_key
from induscode.deck.mcp.capability import bridge_identity_key
from induscode.deck.mcp.capability import bridge_ulid_key as bridge_ulid_key
from induscode.deck.mcp.capability import project_outcome as project_outcome
from induscode.deck.mcp.capability import qualify_bridge_name as qualify_bridge_name
from induscode.deck.mcp.capability import server_of_qualified as server_of_qualified
from induscode.deck.mcp.capability import unqualified_tool as unqualified_tool


class BridgeOp(StrEnum):
    """What an event does."""

    ENROLL = "enroll"
    RETIRE = "retire"


@dataclass(frozen=True, slots=True)
class BridgeEntry:
    """One event."""

    op: BridgeOp
    key: BridgeKey
    server: str
    capability: BridgeCapability | None
    """There on an enrolment, and only there."""
    seq: int
    at: str
    """When, in ISO 8601 and UTC: written down, never read."""
    supersedes: BridgeKey | None = None
    """On an enrolment: the key of a former definition of the tool, whose place it takes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "op", parse_member(BridgeOp, self.op))
        if type(self.key) is not BridgeKey:
            object.__setattr__(self, "key", BridgeKey(self.key))
        if (self.op is BridgeOp.ENROLL) != (self.capability is not None):
            raise ValueError(f"an event that is to {self.op} has the wrong capability")


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """What is enrolled."""

    live: Mapping[BridgeKey, BridgeCapability] = field(
        default_factory=lambda: MappingProxyType(dict[BridgeKey, BridgeCapability]())
    )
    by_server: Mapping[str, int] = field(default_factory=lambda: MappingProxyType(dict[str, int]()))
    high_water: int = 0
    """The highest sequence number that was folded in."""


@dataclass(frozen=True, slots=True)
class EnrollRequest:
    """What is needed to enrol a tool; the ledger adds the rest."""

    capability: BridgeCapability
    server: str
    key: BridgeKey | None = None
    """None: made from what the tool is, so that enrolling it twice changes nothing."""
    supersedes: BridgeKey | None = None
    """The key of a former definition that is retired already, to take its place."""


def reduce_ledger(entries: Iterable[BridgeEntry]) -> LedgerSnapshot:
    """Fold events into what is enrolled, in the order of their numbers, however they come."""
    return _fold(entries).snapshot()


class _Fold:
    """The state that events are applied to, one after the other."""

    def __init__(self) -> None:
        self.live: dict[BridgeKey, tuple[BridgeCapability, str]] = {}
        self.by_ref: dict[RemoteToolRef, BridgeKey] = {}
        self.by_name: dict[str, BridgeKey] = {}
        self.high_water = 0
        # Of keys that were live, too: a tool that is approved again gets its place back.
        self._places: dict[BridgeKey, int] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Fold):
            return NotImplemented
        return (self.live, self._places, self.high_water) == (other.live, other._places, other.high_water)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> _Fold:
        """Give one that can go another way."""
        fold = _Fold()
        fold.live, fold.by_ref, fold.by_name = {**self.live}, {**self.by_ref}, {**self.by_name}
        fold._places, fold.high_water = {**self._places}, self.high_water
        return fold

    def forget_places(self, but: Iterable[BridgeKey]) -> None:
        """Forget where retired definitions stood, other than some of them."""
        kept = {*self.live, *but}
        self._places = {key: place for key, place in self._places.items() if key in kept}

    def apply(self, entry: BridgeEntry) -> None:
        if entry.capability is None:
            self._retire(entry)
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
        self.by_name[capability.name] = entry.key

    def _retire(self, entry: BridgeEntry) -> None:
        former = self.live.pop(entry.key, None)
        if former is not None:
            self._forget_names(former[0], entry.key)

    def _forget_names(self, capability: BridgeCapability, key: BridgeKey) -> None:
        if self.by_ref.get(capability.ref) == key:
            del self.by_ref[capability.ref]
        if self.by_name.get(capability.name) == key:
            del self.by_name[capability.name]

    def snapshot(self) -> LedgerSnapshot:
        live: dict[BridgeKey, BridgeCapability] = {}
        by_server: dict[str, int] = {}
        for key in sorted(self.live, key=self._places.__getitem__):
            capability, server = self.live[key]
            live[key] = capability
            by_server[server] = by_server.get(server, 0) + 1
        return LedgerSnapshot(MappingProxyType(live), MappingProxyType(by_server), self.high_water)

    def keys_of(self, server: str) -> list[BridgeKey]:
        owned = [key for key, (_, owner) in self.live.items() if owner == server]
        return sorted(owned, key=self._places.__getitem__)


def _fold(entries: Iterable[BridgeEntry], base: _Fold | None = None) -> _Fold:
    fold = _Fold() if base is None else base.copy()
    for entry in sorted(entries, key=lambda entry: entry.seq):
        fold.apply(entry)
    return fold


class _Chain:
    """The events that a line of ledgers shares, and what all of them come to."""

    def __init__(self, entries: Iterable[BridgeEntry], base: _Fold) -> None:
        self.base = base
        """What the events before these came to; never changed."""
        self.entries = list(entries)
        self.fold = _fold(self.entries, base)
        self.lock = threading.Lock()


class BridgeLedger:
    """The log, what it folds into, and the number of the next event. Make one with `empty`."""

    __slots__ = ("_chain", "_length", "_next_seq", "_snapshot")

    def __init__(self, chain: _Chain, length: int, next_seq: int) -> None:
        self._chain = chain
        self._length = length
        self._snapshot: LedgerSnapshot | None = None
        self._next_seq = next_seq

    @classmethod
    def empty(cls) -> BridgeLedger:
        """Give a ledger without events; the first one will have the number 1."""
        return cls(_Chain((), _Fold()), 0, 1)

    @classmethod
    def from_log(cls, log: Iterable[BridgeEntry]) -> BridgeLedger:
        """Take up a log where it ended."""
        chain = _Chain(log, _Fold())
        return cls(chain, len(chain.entries), chain.fold.high_water + 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BridgeLedger):
            return NotImplemented
        return self.next_seq == other.next_seq and self.log == other.log and self._chain.base == other._chain.base

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"BridgeLedger({self._length} events, next {self.next_seq})"

    @property
    def next_seq(self) -> int:
        """The number that the next event will have."""
        return self._next_seq

    @property
    def log(self) -> Sequence[BridgeEntry]:
        """The events, in the order they were appended; those that were folded in are not."""
        return tuple(self._chain.entries[: self._length])

    @property
    def folded(self) -> int:
        """The number of the last event that is not in the log any more; 0 if the log is whole."""
        return self._chain.base.high_water

    @property
    def events(self) -> int:
        """How many events the log has."""
        return self._length

    @property
    def snapshot(self) -> LedgerSnapshot:
        """What the log comes to."""
        if self._snapshot is None:
            with self._chain.lock:
                self._snapshot = self._state().snapshot()
        return self._snapshot

    def _state(self) -> _Fold:
        """Give the fold of this ledger's own events; the chain's if nobody went on from here."""
        if self._length == len(self._chain.entries):
            return self._chain.fold
        return _fold(self._chain.entries[: self._length], self._chain.base)

    # -- changes ----------------------------------------------------------------------------

    def enroll(self, request: EnrollRequest, at: str) -> BridgeLedger:
        """Enrol a tool.

        Under a key that is live it takes the place of what is there. A tool that is live under
        another key, because its schema was another, is retired by the same step.

        Raises:
            BridgeFault: Another tool has its name.
        """
        return self.enroll_all((request,), at)

    def enroll_all(self, requests: Iterable[EnrollRequest], at: str) -> BridgeLedger:
        """Enrol several tools in order, as one change.

        Raises:
            BridgeFault: A tool has the name of another; nothing is enrolled then.
        """
        ledger = self
        for request in requests:
            ledger = ledger._enrolled(request, at)
        return ledger

    def _enrolled(self, request: EnrollRequest, at: str) -> BridgeLedger:
        capability = request.capability
        key = request.key or content_key_of(capability)
        with self._chain.lock:
            state = self._state()
            if request.key is None and _is_of_other(state.live.get(key), capability):
                key = _identity_key_of(capability)
            holder = state.by_name.get(capability.name)
            if holder is not None and state.live[holder][0].ref != capability.ref:
                other = state.live[holder][0].ref
                raise BridgeFault(
                    f"tool {capability.ref.name!r} of server {capability.ref.server!r} cannot be "
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
        return self._extended(entries)

    def retire(self, key: BridgeKey, server: str, at: str) -> BridgeLedger:
        """Retire a tool; a key that is not live is recorded all the same."""
        return self._extended([BridgeEntry(BridgeOp.RETIRE, key, server, None, self.next_seq, at)])

    def withdraw_server(self, server: str, at: str) -> BridgeLedger:
        """Retire all that a server has enrolled; the ledger itself if that is nothing."""
        with self._chain.lock:
            keys = self._state().keys_of(server)
        if not keys:
            return self
        return self._extended(
            [BridgeEntry(BridgeOp.RETIRE, key, server, None, seq, at) for seq, key in enumerate(keys, self.next_seq)]
        )

    def _extended(self, entries: Sequence[BridgeEntry]) -> BridgeLedger:
        with self._chain.lock:
            if self._length == len(self._chain.entries):
                chain = self._chain
            else:  # another ledger went on from here: this one needs a list of its own
                chain = _Chain(self._chain.entries[: self._length], self._chain.base)
            chain.entries.extend(entries)
            for entry in entries:
                chain.fold.apply(entry)
        return BridgeLedger(chain, self._length + len(entries), self.next_seq + len(entries))

    def compact(self, before: int | None = None, *, places_of: Iterable[BridgeKey] = ()) -> BridgeLedger:
        """Give the same deck without its past: events before a number are folded in.

        For whoever has kept these events, or all events if no number is given. What is live, its
        order, the next number and what further changes lead to stay the same; only, of definitions
        that are retired, those in `places_of` alone can still be superseded in their place.
        """
        end = self.next_seq if before is None else before
        entries = self._chain.entries[: self._length]
        folded = [entry for entry in entries if entry.seq < end]
        if not folded:
            return self
        rest = [entry for entry in entries if entry.seq >= end]
        base = _fold(folded, self._chain.base)
        superseded = [entry.supersedes for entry in rest if entry.supersedes is not None]
        base.forget_places(but=(*places_of, *superseded))
        return BridgeLedger(_Chain(rest, base), len(rest), self.next_seq)

    def since(self, seq: int) -> Sequence[BridgeEntry]:
        """List the events from a number on, for whoever keeps them.

        Raises:
            BridgeFault: Some of them were folded in.
        """
        if max(seq, 1) <= self.folded:
            raise BridgeFault(
                f"the events {seq} to {self.folded} of the ledger were folded in: whoever had this done has them"
            )
        # Numbers rise with the place in the log, but a log that was taken up may have gaps.
        entries = self._chain.entries
        at = self._length
        while at and entries[at - 1].seq >= seq:
            at -= 1
        return tuple(entries[at : self._length])

    # -- what is enrolled -------------------------------------------------------------------

    def live_capabilities(self) -> Sequence[BridgeCapability]:
        """List what is enrolled, in the order of enrolment."""
        return tuple(self.snapshot.live.values())

    def live_capabilities_for_server(self, server: str) -> Sequence[BridgeCapability]:
        """List what one server has enrolled."""
        with self._chain.lock:
            state = self._state()
            return tuple(state.live[key][0] for key in state.keys_of(server))

    def find(self, ref: RemoteToolRef) -> tuple[BridgeKey, BridgeCapability] | None:
        """Find a live tool by what it is."""
        with self._chain.lock:
            state = self._state()
            key = state.by_ref.get(ref)
            return None if key is None else (key, state.live[key][0])

    def holder_of(self, name: str) -> RemoteToolRef | None:
        """Find out which live tool has a name."""
        with self._chain.lock:
            state = self._state()
            key = state.by_name.get(name)
            return None if key is None else state.live[key][0].ref


def _is_of_other(live: tuple[BridgeCapability, str] | None, capability: BridgeCapability) -> bool:
    return live is not None and live[0].ref != capability.ref


def _identity_key_of(capability: BridgeCapability) -> BridgeKey:
    ref = capability.ref
    return bridge_identity_key(ref.server, ref.name, dict(capability.parameters))


def content_key_of(capability: BridgeCapability) -> BridgeKey:
    """Make the key of a tool from what it is.

    A tool that could not have its joined name, because it is another tool's, has a key that is made
    from both parts of its identity.
    """
    name = qualify_tool_name(capability.ref)
    if capability.name != name and is_accepted_name(name):
        return _identity_key_of(capability)
    return bridge_content_key(capability.ref.server, capability.ref.name, dict(capability.parameters))
