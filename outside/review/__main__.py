"""Measure the review of definitions: `make review`, and with `SETS=directory` where there is no network.

Prints the half of the corpus that nobody tunes on, and ends with 1 below a goal, for any finding or for serious ones.
`--tuning` prints the other half with every finding. `--install` also starts the servers of `make sandboxes` once each,
to have what they list.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outside.install import CannotInstall
from outside.review.listings import LISTINGS, store_listings
from outside.review.score import score
from outside.review.sets import KNOWN, SOURCES, count_sources, read_imitations, read_ours, read_public, read_real
from outside.say import aligned, say
from outside.search_bench.sources import SetMissing, find_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outside.review.score import Score

_RECALL: Final = 0.90
_ALARMS: Final = 0.02
_WIDTHS: Final = (34, 6, 6, 7)


class _Options(argparse.Namespace):
    sets: Path | None
    tuning: bool
    install: bool


def main(arguments: Sequence[str]) -> int:
    """Measure one half and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.review", description=__doc__)
    parser.add_argument("--sets", type=Path, help="a directory with the public sets")
    parser.add_argument("--tuning", action="store_true", help="show the half to tune on")
    parser.add_argument("--install", action="store_true", help="list the servers of `make sandboxes` too")
    options = parser.parse_args(arguments, _Options())
    try:
        if options.install:
            store_listings()
        root = find_files(options.sets, SOURCES)
    except (SetMissing, CannotInstall) as exc:
        say(f"outside.review: {exc}; SETS=directory names a directory with the files of {SOURCES.name}")
        return 2
    attacks = [*read_ours(), *read_public(root)]
    real = read_real(root, LISTINGS)
    for title, ones in (("Attacks", attacks), ("Definitions of real servers", real)):
        say(f"{title}: {len(ones)}")
        for source, (count, servers) in count_sources(ones).items():
            say(f"  {source:<28}{count:>6} of {servers} servers")
    if not any(LISTINGS.glob("*.json")):
        say("  no installed servers: `.venv/bin/python -m outside.review --install` starts and lists them")
    chosen = [one for one in (*attacks, *real) if one.is_held_out is not options.tuning]
    result = score(chosen, KNOWN)
    say(f"\n{'Half to tune on' if options.tuning else 'Held-out half'}")
    _print(result)
    if options.tuning:
        for name, findings in result.alarmed.items():
            for finding in findings:
                say(f"  {name}: {finding.brief}")
    imitations = score([one for one in read_imitations(root) if one.is_held_out is not options.tuning], KNOWN)
    found = imitations.caught
    say(f"{imitations.attacks['any']} harmless imitations: {found['any']} with a finding, {found['serious']} serious\n")
    is_good = True
    for severity in ("any", "serious"):
        recall, alarms = result.recall(severity), result.share(severity)
        is_met = recall >= _RECALL and alarms <= _ALARMS
        is_good &= is_met
        verdict = "goals met" if is_met else "below a goal"
        say(f"{severity} finding: {recall:.1%} of the attacks, {alarms:.2%} of real definitions: {verdict}")
    return 0 if is_good else 1


def _print(result: Score) -> None:
    say(aligned(("attacks", "all", "found", "recall"), _WIDTHS))
    for group, count in sorted(result.attacks.items(), key=lambda item: (" " in item[0], item[0])):
        found = result.caught[group]
        say(aligned((group, str(count), str(found), f"{found / count:.1%}"), _WIDTHS))
    say(f"\n{result.benign} definitions of real servers")
    for check, count in result.alarms.most_common():
        say(aligned((check, str(count), "", f"{count / result.benign:.2%}"), _WIDTHS))
    say(f"\n{len(result.misses)} attacks without a finding")
    for miss in sorted(result.misses):
        say(f"  {miss}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
