"""The history of a run: calls, what came of them, effects of servers and faults; and what must hold of it.

All times are of one clock, `time.monotonic`, which every process of a machine reads alike.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

OutcomeKind: TypeAlias = Literal["answer", "error", "unknown"]
"""What a client learned: the result; that nothing happened; or that it may have happened."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A call that took effect in the process of a server."""

    at: float
    call: str
    key: str
    epoch: int
    node: str
    pid: int
    count: int
    """How many calls took effect in this process so far: its state."""

    @property
    def state(self) -> tuple[int, int, int]:
        """What an answer carries of it."""
        return self.epoch, self.pid, self.count


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client learned about its call."""

    at: float
    call: str
    kind: OutcomeKind
    state: tuple[int, int, int] | None = None
    """Epoch, process and count that an answer carries."""
    text: str = ""


_Event = TypeVar("_Event", Effect, Outcome)


@dataclass(frozen=True, slots=True)
class Call:
    """A call as a client sent it."""

    at: float
    call: str
    key: str
    door: str


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault that was made to happen, or that the machine made: `stall`."""

    at: float
    what: str
    node: str = ""
    text: str = ""


@dataclass(slots=True)
class History:
    """All that happened in a run."""

    calls: list[Call] = field(default_factory=list[Call])
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    effects: list[Effect] = field(default_factory=list[Effect])
    faults: list[FaultEvent] = field(default_factory=list[FaultEvent])
    unanswered: list[str] = field(default_factory=list[str])
    """Keys that had no answer at a door after the last fault, within the time for that."""
    stuck: list[str] = field(default_factory=list[str])
    """Members that did not leave in time."""
    acknowledged: list[str] = field(default_factory=list[str])
    """Rows of ledgers that the brokers have acknowledged to a node."""
    chain: list[str] | None = None
    """Rows in the verified chains of the cluster; None: not read."""
    broken_chains: list[str] = field(default_factory=list[str])
    """What the verification of the ledgers has found."""

    def read_effects(self, path: Path) -> None:
        """Read what the servers have written."""
        if path.exists():
            rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            self.effects += [Effect(**{key: row[key] for key in row if key != "kind"}) for row in rows]

    def list_lines(self) -> list[str]:
        """List the events in the order of time, one JSON object a line."""
        kinds: tuple[tuple[str, Iterable[Call | Outcome | Effect | FaultEvent]], ...] = (
            ("call", self.calls),
            ("outcome", self.outcomes),
            ("effect", self.effects),
            ("fault", self.faults),
        )
        events = [(one.at, name, asdict(one)) for name, listed in kinds for one in listed]
        # An outcome has a field `kind` of its own.
        return [json.dumps({"event": name, **row}) for _, name, row in sorted(events, key=lambda event: event[0])]


_UNFIT_TO_STOP = frozenset({"stop", "stall"})
"""Faults after which a node cannot end its servers in time: a call that was cut off may take effect late."""


def check_history(history: History) -> list[str]:
    """Return what is wrong with a history; empty if it is right."""
    return [
        *_check_calls(history),
        *_check_epochs(history),
        *_check_order(history),
        *_check_ledger(history),
        *(f"stuck: {text}" for text in history.stuck),
        *(f"no service: {key} was not answered after the faults" for key in history.unanswered),
    ]


def _check_calls(history: History) -> list[str]:
    """Each call has one outcome; it took effect once if answered, never if refused, at most once otherwise."""
    wrong: list[str] = []
    outcomes, effects = _group(history.outcomes), _group(history.effects)
    sent = {call.call for call in history.calls}
    wrong += [f"stray: call {call} was never sent" for call in sorted({*outcomes, *effects} - sent)]
    for call in history.calls:
        found, done = outcomes.get(call.call, ()), effects.get(call.call, ())
        if len(found) != 1:
            wrong.append(f"outcomes: call {call.call} has {len(found)}: {[one.kind for one in found]}")
        if len(done) > 1:
            wrong.append(f"twice: call {call.call} took effect {len(done)} times")
        for outcome in found:
            if outcome.kind == "answer" and outcome.state not in [effect.state for effect in done]:
                wrong.append(f"answer without effect: call {call.call} was answered with {outcome.state}")
            if outcome.kind == "error" and done:
                wrong.append(f"effect of an error: call {call.call} took effect, and its client got: {outcome.text}")
    return wrong


def _check_epochs(history: History) -> list[str]:
    """One epoch of a server is one process on one node, with one state."""
    wrong: list[str] = []
    by_epoch: defaultdict[tuple[str, int], list[Effect]] = defaultdict(list)
    for effect in history.effects:
        by_epoch[effect.key, effect.epoch].append(effect)
    for (key, epoch), effects in by_epoch.items():
        owners = {(effect.node, effect.pid) for effect in effects}
        if len(owners) > 1:
            wrong.append(f"owners: {key} has {len(owners)} in epoch {epoch}: {sorted(owners)}")
        counts = [effect.count for effect in sorted(effects, key=lambda effect: effect.count)]
        if len(owners) == 1 and len(set(counts)) < len(counts):
            wrong.append(f"state: {key} counts twice in epoch {epoch}")
    return wrong


def _check_order(history: History) -> list[str]:
    """After the first effect of an epoch, no call that was answered takes effect in an earlier one.

    A call that was cut off may: its client knows that its outcome is unknown, but only if the node of the server could
    not end it, since it was stopped. The servers of a node that is killed are ended by its guard.
    """
    wrong: list[str] = []
    answered = {outcome.call for outcome in history.outcomes if outcome.kind == "answer"}
    unfit = {fault.node for fault in history.faults if fault.what in _UNFIT_TO_STOP}
    by_key: defaultdict[str, list[Effect]] = defaultdict(list)
    for effect in history.effects:
        by_key[effect.key].append(effect)
    for key, effects in by_key.items():
        newest: Effect | None = None
        for effect in sorted(effects, key=lambda effect: effect.at):
            if newest is None or effect.epoch > newest.epoch:
                newest = effect
            elif effect.epoch < newest.epoch and (effect.call in answered or effect.node not in unfit):
                late = "was answered" if effect.call in answered else "took effect"
                wrong.append(
                    f"overlap: {key}: call {effect.call} {late} in epoch {effect.epoch} on {effect.node}, "
                    f"{effect.at - newest.at:.3f} s after epoch {newest.epoch} on {newest.node} had begun"
                )
    return wrong


def _check_ledger(history: History) -> list[str]:
    """Every row that was acknowledged is in a verified chain, and nothing is wrong with the chains."""
    wrong = [f"broken chain: {problem}" for problem in history.broken_chains]
    if history.chain is None:
        return wrong
    present = set(history.chain)
    return [*wrong, *(f"lost event: {row}" for row in history.acknowledged if row not in present)]


def _group(events: Iterable[_Event]) -> Mapping[str, list[_Event]]:
    grouped: defaultdict[str, list[_Event]] = defaultdict(list)
    for event in events:
        grouped[event.call].append(event)
    return grouped
