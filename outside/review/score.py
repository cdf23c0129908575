"""The split of the corpus, and what the review found in each half."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.mcp.review import review_items

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject
    from induscode.deck.mcp.review import Finding

_NEIGHBOURS = 5


@dataclass(frozen=True, slots=True)
class Definition:
    """One tool of the corpus."""

    source: str
    """The set it's from."""
    server: str
    raw: JsonObject
    kind: str = ""
    """The class of the attack; empty for a definition of a real server."""
    peers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tools of other servers that the set puts next to an attack."""
    first_id: str = ""
    """Its identity in the first corpus, which was split in another way."""

    @property
    def name(self) -> str:
        """The tool's name."""
        return str(self.raw["name"])

    @property
    def id(self) -> str:
        """What it's called in reports."""
        return f"{self.source}/{self.server}/{self.name}"

    @property
    def is_held_out(self) -> bool:
        """Whether it belongs to the half that nobody tunes on.

        Tools of one real server share sentences, so they share a half. Attacks are alone. What the first corpus had in
        its half for tuning isn't held out either.
        """
        if self.first_id and not is_held_out(self.first_id):
            return False
        return is_held_out(self.id if self.kind else self.server.lower())


def is_held_out(identity: str) -> bool:
    """Put an identity into one of two halves, the same in every run and on every machine."""
    return hashlib.sha256(identity.encode()).digest()[0] % 2 == 1


def drop_copies(definitions: Sequence[Definition]) -> list[Definition]:
    """Drop definitions with the name and the letters and digits of the description of an earlier one."""
    found: dict[tuple[str, str], Definition] = {}
    for one in definitions:
        text = f"{one.raw.get('description') or ''} {one.raw.get('inputSchema') if one.kind else ''}"
        found.setdefault((one.name, "".join(filter(str.isalnum, text.lower()))), one)
    return list(found.values())


@dataclass(slots=True)
class Score:
    """What the review found in some definitions."""

    attacks: Counter[str] = field(default_factory=Counter[str])
    """How many, by class and by set; `any` and `serious` count all."""
    caught: Counter[str] = field(default_factory=Counter[str])
    misses: list[str] = field(default_factory=list[str])
    benign: int = 0
    alarms: Counter[str] = field(default_factory=Counter[str])
    """Definitions with a finding by check, with any as `any`, with a serious one as `serious`."""
    alarmed: dict[str, Sequence[Finding]] = field(default_factory=dict[str, "Sequence[Finding]"])

    def recall(self, severity: str) -> float:
        """Return the share of the attacks with `any` or a `serious` finding."""
        return self.caught[severity] / self.attacks[severity]

    def share(self, check: str) -> float:
        """Return the share of the definitions of real servers with a finding of a check, `any` or a `serious` one."""
        return self.alarms[check] / self.benign


def score(definitions: Sequence[Definition], known: Mapping[str, str]) -> Score:
    """Review definitions: each attack next to the tools `known`, each server next to five others."""
    result = Score()
    servers: defaultdict[str, dict[str, Definition]] = defaultdict(dict)
    for one in definitions:
        if not one.kind:
            servers[one.server].setdefault(one.name, one)
            continue
        ref = RemoteToolRef(one.server, one.name)
        findings = review_items(one.server, {ref: one.raw}, {**known, **one.peers})
        for group in ("any", f"class {one.kind}", f"set {one.source}"):
            result.attacks[group] += 1
            result.caught[group] += bool(findings)
        # `any` also counts notable findings; a serious one holds the tool.
        result.attacks["serious"] += 1
        result.caught["serious"] += any(finding.severity == "serious" for finding in findings)
        if not findings:
            result.misses.append(f"{one.id} ({one.kind})")
    order = sorted(servers, key=lambda server: hashlib.sha256(server.encode()).digest())
    for place, server in enumerate(order):
        near = (order[(place + step) % len(order)] for step in range(1, min(_NEIGHBOURS, len(order) - 1) + 1))
        names = {name: other for other in near for name in servers[other]}
        items = {RemoteToolRef(server, name): one for name, one in servers[server].items()}
        findings_of: defaultdict[str, list[Finding]] = defaultdict(list)
        for finding in review_items(server, {ref: one.raw for ref, one in items.items()}, names):
            findings_of[finding.ref.name].append(finding)
        result.benign += len(items)
        for name, findings in findings_of.items():
            result.alarmed[servers[server][name].id] = findings
            result.alarms.update({"any", *(one.check for one in findings)})
            result.alarms["serious"] += any(one.severity == "serious" for one in findings)
    return result
