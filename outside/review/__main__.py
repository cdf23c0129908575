"""Judges the review on public sets: attacks in classes, and definitions of real servers.

Every definition belongs to one half, by a hash of its name. The checks are tuned on the first half alone, and the
second one is reported: how many attacks have a serious finding, by class, and how many definitions of real servers do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.mcp.review import review_items
from outside.say import say
from outside.search_bench.sources import find_files

_FOLDER: Final = Path(__file__).parent
_ATTACKS: Final = (
    "specs/065-evaluation-foundation/datasets/detect_corpus_v1.json",
    "specs/065-evaluation-foundation/datasets/security_corpus_v1.json",
)
_REAL: Final = (
    "specs/083-discovery-profiler/datasets/corpus_v2.tools.json",
    "specs/083-discovery-profiler/datasets/livemcptool_snapshot/tools.json",
)
_LEAST_RECALL: Final = 0.9
_MOST_ALARMS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Sample:
    """A definition of which it's known whether it's an attack."""

    kind: str
    """The class of the attack, `imitation` (harmless text like one) or `real`."""
    server: str
    """Of an attack: its id."""
    raw: dict[str, Any]

    @property
    def name(self) -> str:
        """Server and tool."""
        return f"{self.server}:{self.raw['name']}"

    @property
    def is_held_out(self) -> bool:
        """Whether the checks weren't tuned on it."""
        key = self.name if self.kind == "real" else self.server
        return hashlib.sha256(key.encode()).digest()[0] % 2 == 1


def read_samples(sets: Path) -> Sequence[Sample]:
    """Read the public sets, and our own attacks."""
    folder = sets / "mcpproxy-go"
    samples: list[Sample] = []
    for path in _ATTACKS:
        for row in json.loads((folder / path).read_bytes())["entries"]:
            raw: dict[str, Any] = row.get("tool") or {"name": row["id"], "description": row["description"]}
            samples.append(Sample(row["category"] if row["label"] == "malicious" else "imitation", row["id"], raw))
    for path in _REAL:
        for row in json.loads((folder / path).read_bytes())["tools"]:
            schema: Any = row.get("schema") or row.get("inputSchema") or {}
            raw = {"name": row["tool"], "description": row["description"] or "", "inputSchema": schema}
            samples.append(Sample("real", row["server"], raw))
    for kind, rows in tomllib.loads((_FOLDER / "attacks.toml").read_text("utf-8")).items():
        samples += [Sample(f"ours: {kind}", f"ours-{name}", {"name": name, "description": text}) for name, text in rows]
    return samples


def judge(sample: Sample, known_names: dict[str, str]) -> str:
    """Return the worst severity that the review finds."""
    found = review_items(sample.server, {RemoteToolRef(sample.server, sample.raw["name"]): sample.raw}, known_names)
    return found[0].severity if found else "none"


def main() -> int:
    """Print the table of one half, and return 1 if it misses its goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=Path, help="a directory that holds the sets")
    parser.add_argument("--tuned", action="store_true", help="report the half that the checks are tuned on")
    options = parser.parse_args()
    samples = read_samples(find_files(options.sets, _FOLDER / "sources.toml"))
    names = {sample.raw["name"]: sample.server for sample in samples if sample.kind == "real"}
    chosen = [sample for sample in samples if sample.is_held_out is not options.tuned]
    say(f"{len(chosen)} of {len(samples)} definitions")
    counts: dict[str, Counter[str]] = {}
    missed: list[str] = []
    for sample in chosen:
        is_attack = sample.kind not in {"real", "imitation"}
        severity = judge(sample, {})
        counts.setdefault(sample.kind, Counter())[severity] += 1
        if sample.kind == "real":
            counts.setdefault("real, next to all others", Counter())[judge(sample, names)] += 1
        if is_attack is not (severity == "serious") and sample.kind != "imitation":
            missed.append(f"{'missed' if is_attack else 'false alarm'}: {sample.kind}, {sample.name} ({severity})")
    for kind, count in sorted(counts.items()):
        say(f"{kind}: {count.total()} definitions, {count['serious']} serious, {count['notable']} notable")
    attacks = Counter[str]()
    for kind, count in counts.items():
        attacks += count if not kind.startswith(("real", "imitation")) else Counter()
    recall = attacks["serious"] / attacks.total()
    alarms = max(count["serious"] / count.total() for kind, count in counts.items() if kind.startswith("real"))
    for line in missed:
        say(line)
    say(f"recall {recall:.3f} (serious; {attacks['serious']} of {attacks.total()}), false alarms {alarms:.3%}")
    return 0 if recall >= _LEAST_RECALL and alarms <= _MOST_ALARMS else 1


if __name__ == "__main__":
    raise SystemExit(main())
